/* A Spec as text that reads back as the same Spec, and its hash. Both walk keys.def. */
#include <inttypes.h>
#include <string.h>

#include "lang/printed.h"
#include "lang/spec_keys.h"

/* The structs that keys.def's offsets are within, filled from a Spec. */
typedef struct Bases {
  ModelSpec model;
  ClusterKeys cluster;
  NodeKeys node;
  GpuSpec gpu;
  ShapeSpec shape;
  TrainSpec train;
  CostsSpec costs;
  PlanKeys plan;
} Bases;

static void bases_of(const Spec *spec, Bases *bases)
{
  memset(bases, 0, sizeof *bases);
  bases->model = spec->model;
  bases->cluster.cluster = spec->cluster;
  bases->cluster.node = "machine";
  bases->node.part = spec->cluster;
  bases->node.gpu = spec->cluster.gpu.name;
  bases->gpu = spec->cluster.gpu;
  bases->train = spec->train;
  bases->costs = spec->costs;
  bases->plan.plan = spec->plan;
  PlanSpec *plan = &bases->plan.plan;
  if (system_is(plan->system, true) && plan->attention_stages == plan->ffn_stages) {
    bases->plan.stages = plan->attention_stages; /* there a side has none of its own */
    plan->attention_stages = plan->ffn_stages = 0;
  }
}

static const void *base_of(const Bases *bases, BlockId block)
{
  while (block_rows[block].parent != B_root) {
    block = block_rows[block].parent;
  }
  switch (block) {
  case B_model:
    return &bases->model;
  case B_cluster:
    return &bases->cluster;
  case B_node:
    return &bases->node;
  case B_gpu:
    return &bases->gpu;
  case B_shape:
    return &bases->shape;
  case B_train:
    return &bases->train;
  case B_costs:
    return &bases->costs;
  default:
    return &bases->plan;
  }
}

static void print_real(FILE *out, double x)
{
  char text[REAL_MAX];
  if (x < 1e16 && x == (double)(int64_t)x) {
    fprintf(out, "%.0f", x);
  } else {
    fputs(real_text(text, x), out);
  }
}

static void print_ints(FILE *out, const int *list, int n)
{
  for (int i = 0; i < n; i++) {
    fprintf(out, "%s%d", i ? ", " : "", list[i]);
  }
}

static void print_curve(FILE *out, const Curve *curve, const char *unit)
{
  for (int i = 0; i < curve->n; i++) {
    fputs(i ? ", " : "", out);
    print_real(out, curve->x[i]);
    fprintf(out, "%s: ", unit);
    print_real(out, curve->y[i]);
  }
}

static void print_value(FILE *out, const KeyRow *row, const void *base)
{
  static const char *const unit[DIM_COUNT] = {"", " B", " B/s", " FLOPS", " ns"};
  const char *at = (const char *)base + row->offset;
  const char *second = (const char *)base + row->second;
  int small;
  int64_t large;
  double real;
  bool on;
  const int *list;
  const char *text;
  Curve curve;
  switch (row->type) {
  case TYPE_INT:
    memcpy(&small, at, sizeof small);
    fprintf(out, "%d", small);
    break;
  case TYPE_ENUM:
    memcpy(&small, at, sizeof small);
    fputs(row->words.words[small], out);
    break;
  case TYPE_LONG:
  case TYPE_SEED:
    memcpy(&large, at, sizeof large);
    fprintf(out, "%" PRId64 "%s", large, unit[row->unit]);
    break;
  case TYPE_REAL:
    memcpy(&real, at, sizeof real);
    print_real(out, real);
    fputs(unit[row->unit], out);
    break;
  case TYPE_PAIR:
    memcpy(&real, at, sizeof real);
    print_real(out, real);
    fputs(", ", out);
    memcpy(&real, second, sizeof real);
    print_real(out, real);
    break;
  case TYPE_BOOL:
    memcpy(&on, at, sizeof on);
    fputs(on ? "true" : "false", out);
    break;
  case TYPE_INTS:
    memcpy(&list, at, sizeof list);
    memcpy(&small, second, sizeof small);
    print_ints(out, list, small);
    break;
  case TYPE_CURVE:
    memcpy(&curve, at, sizeof curve);
    print_curve(out, &curve, unit[row->unit]);
    break;
  case TYPE_REF:
    memcpy(&text, at, sizeof text);
    fputs(text ? text : "", out);
    break;
  }
}

static size_t value_bytes(KeyType type)
{
  switch (type) {
  case TYPE_INT:
  case TYPE_ENUM:
    return sizeof(int);
  case TYPE_BOOL:
    return sizeof(bool);
  case TYPE_LONG:
  case TYPE_SEED:
    return sizeof(int64_t);
  case TYPE_REAL:
  case TYPE_PAIR:
    return sizeof(double);
  default:
    return sizeof(void *);
  }
}

/* Whether leaving the key out gives the same value. */
static bool is_default(const KeyRow *row, const void *base, const Bases *defaults)
{
  const char *a = (const char *)base;
  const char *b = base_of(defaults, row->block);
  size_t n = value_bytes(row->type);
  bool same = memcmp(a + row->offset, b + row->offset, n) == 0;
  if (row->type == TYPE_PAIR) {
    same = same && memcmp(a + row->second, b + row->second, n) == 0;
  }
  if (row->type == TYPE_INTS) {
    int count;
    memcpy(&count, a + row->second, sizeof count);
    same = count == 0;
  }
  if (row->type == TYPE_CURVE) {
    Curve curve;
    memcpy(&curve, a + row->offset, sizeof curve);
    same = curve.n == 0;
  }
  if (row->block == B_costs && row->def && *row->def == '=') {
    same = false; /* where it is 0, leaving it out would give the forward time */
  }
  return row->def && row->type != TYPE_REF && same;
}

/* Keys that the rules fill in for this kind of model and that would be of no effect if they were written. */
static bool is_derived(const Spec *spec, KeyId key)
{
  bool latent = spec->model.attention.kind == ATTENTION_MLA;
  return (latent && (key == K_attention_kv_heads || key == K_attention_head_dim)) ||
         (key == K_moe_top_groups && spec->model.moe.top_groups == spec->model.moe.groups) ||
         (block_rows[key_rows[key].block].parent == B_attention && key_rows[key].block == B_yarn &&
          !spec->model.attention.rope.yarn);
}

static bool has_block(const Spec *spec, BlockId block, const Bases *bases, const Bases *defaults)
{
  bool empty = true; /* an efficiency or rope block of nothing but defaults */
  for (int k = block_rows[block].first; k < block_end(block); k++) {
    empty = empty && is_default(&key_rows[k], base_of(bases, block), defaults);
  }
  if (empty && (block == B_efficiency || (block == B_rope && !spec->model.attention.rope.yarn))) {
    return false;
  }
  return block == B_yarn      ? spec->model.attention.rope.yarn
         : block == B_dense   ? spec->model.dense.layers > 0
         : block == B_balance ? spec->model.moe.balance != BALANCE_NONE
                              : true;
}

static void print_block(const Spec *spec, FILE *out, BlockId block, const char *word, int indent, const Bases *bases,
                        const Bases *defaults)
{
  const void *base = base_of(bases, block);
  fprintf(out, "%*s%s%s%s {\n", indent, "", block_rows[block].name, word ? " " : "", word ? word : "");
  for (int k = block_rows[block].first; k < block_end(block); k++) {
    if (!is_default(&key_rows[k], base, defaults) && !is_derived(spec, (KeyId)k)) {
      fprintf(out, "%*s%s = ", indent + 2, "", key_rows[k].name);
      print_value(out, &key_rows[k], base);
      fputc('\n', out);
    }
  }
  for (int inner = block + 1; inner < N_BLOCKS; inner++) {
    if (block_rows[inner].parent == block && has_block(spec, (BlockId)inner, bases, defaults)) {
      const char *kind = inner == B_lr          ? block_rows[B_lr].kinds.words[spec->train.lr_kind]
                         : inner == B_optimizer ? "adamw"
                                                : NULL;
      print_block(spec, out, (BlockId)inner, kind, indent + 2, bases, defaults);
    }
  }
  fprintf(out, "%*s}\n", indent, "");
}

static void default_bases(Bases *defaults)
{
  memset(defaults, 0, sizeof *defaults);
  for (int b = 0; b < N_BLOCKS; b++) {
    if (block_rows[b].parent == B_root) {
      union {
        const void *from;
        void *to;
      } base = {base_of(defaults, (BlockId)b)}; /* the same memory, writable: it is our own */
      read_defaults((BlockId)b, base.to);
    }
  }
}

static void print_blocks(const Spec *spec, FILE *out)
{
  Bases bases;
  Bases defaults;
  bases_of(spec, &bases);
  default_bases(&defaults);
  print_block(spec, out, B_model, spec->model.name, 0, &bases, &defaults);
  print_block(spec, out, B_gpu, spec->cluster.gpu.name, 0, &bases, &defaults);
  print_block(spec, out, B_node, "machine", 0, &bases, &defaults);
  print_block(spec, out, B_cluster, spec->cluster.name, 0, &bases, &defaults);
  for (int i = 0; i < spec->n_shapes; i++) {
    bases.shape = spec->shapes[i];
    print_block(spec, out, B_shape, spec->shapes[i].name, 0, &bases, &defaults);
  }
  print_block(spec, out, B_train, NULL, 0, &bases, &defaults);
  if (spec->costs.given) {
    print_block(spec, out, B_costs, NULL, 0, &bases, &defaults);
  }
  print_block(spec, out, B_plan, NULL, 0, &bases, &defaults);
}

void spec_print_model(const Spec *spec, FILE *out)
{
  Bases bases;
  Bases defaults;
  bases_of(spec, &bases);
  default_bases(&defaults);
  print_block(spec, out, B_model, spec->model.name, 0, &bases, &defaults);
}

void spec_print(const Spec *spec, FILE *out)
{
  Arena *arena = arena_new();
  Printed plain;
  printed_open(&plain);
  print_blocks(spec, plain.to);
  const char *text = printed_keep(&plain, arena);
  AstFile *file = ast_parse_text(arena, diag_new(arena, stderr), "a printed spec", text, plain.n, false, NULL, 0);
  if (!file) {
    die("a printed spec does not parse");
  }
  ast_print(file, out);
  arena_free(arena);
}

/* ---- what a checkpoint depends on ---- */

/* Keys of which trained weights know nothing: how they began, what others call the model, how much room buffers have.
 */
static bool is_forgotten(KeyId key)
{
  return key == K_model_init_std || key == K_model_family || key == K_moe_imbalance || key == K_train_seed;
}

/* "attention.rope." of a block within `top`; nothing of `top` itself. */
static void print_path(FILE *out, BlockId block, BlockId top)
{
  if (block != top) {
    print_path(out, (BlockId)block_rows[block].parent, top);
    fprintf(out, "%s.", block_rows[block].name);
  }
}

static void print_keys(const Spec *spec, FILE *out, BlockId block, BlockId top, const Bases *bases,
                       const Bases *defaults)
{
  for (int k = block_rows[block].first; k < block_end(block); k++) {
    if (!is_forgotten((KeyId)k)) {
      print_path(out, block, top);
      fprintf(out, "%s = ", key_rows[k].name);
      print_value(out, &key_rows[k], base_of(bases, block));
      fputc('\n', out);
    }
  }
  for (int inner = block + 1; inner < N_BLOCKS; inner++) {
    bool here = inner == B_rope || has_block(spec, (BlockId)inner, bases, defaults);
    if (block_rows[inner].parent == block && here) {
      print_keys(spec, out, (BlockId)inner, top, bases, defaults);
    }
  }
}

static void print_block_keys(const Spec *spec, FILE *out, BlockId block)
{
  Bases bases;
  Bases defaults;
  bases_of(spec, &bases);
  default_bases(&defaults);
  print_keys(spec, out, block, block, &bases, &defaults);
}

void spec_print_model_keys(const Spec *spec, FILE *out)
{
  print_block_keys(spec, out, B_model);
}

void spec_print_train_keys(const Spec *spec, FILE *out)
{
  print_block_keys(spec, out, B_train);
  fprintf(out, "lr.kind = %s\n", block_rows[B_lr].kinds.words[spec->train.lr_kind]);
}

/* ---- hash ---- */

static uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t n)
{
  const unsigned char *p = bytes;
  for (size_t i = 0; i < n; i++) {
    hash = (hash ^ p[i]) * 0x100000001b3u;
  }
  return hash;
}

static uint64_t hash_text(uint64_t hash, const char *text)
{
  return hash_bytes(hash, text ? text : "", text ? strlen(text) + 1 : 1);
}

static uint64_t hash_key(uint64_t hash, const KeyRow *row, const void *base)
{
  const char *at = (const char *)base + row->offset;
  const char *second = (const char *)base + row->second;
  if (row->type == TYPE_REF) {
    return hash;
  }
  if (row->type == TYPE_INTS) {
    const int *list;
    int n;
    memcpy(&list, at, sizeof list);
    memcpy(&n, second, sizeof n);
    hash = hash_bytes(hash, &n, sizeof n);
    return n ? hash_bytes(hash, list, (size_t)n * sizeof *list) : hash;
  }
  if (row->type == TYPE_CURVE) {
    Curve curve;
    memcpy(&curve, at, sizeof curve);
    hash = hash_bytes(hash, &curve.n, sizeof curve.n);
    hash = hash_bytes(hash, curve.x, (size_t)curve.n * sizeof *curve.x);
    return hash_bytes(hash, curve.y, (size_t)curve.n * sizeof *curve.y);
  }
  hash = hash_bytes(hash, at, value_bytes(row->type));
  return row->type == TYPE_PAIR ? hash_bytes(hash, second, sizeof(double)) : hash;
}

static uint64_t hash_block(uint64_t hash, BlockId block, const void *base)
{
  for (int k = block_rows[block].first; k < block_end(block); k++) {
    hash = hash_key(hash, &key_rows[k], base);
  }
  for (int inner = block + 1; inner < N_BLOCKS; inner++) {
    if (block_rows[inner].parent == block) {
      hash = hash_block(hash, (BlockId)inner, base);
    }
  }
  return hash;
}

uint64_t spec_hash(const Spec *spec)
{
  Bases bases;
  bases_of(spec, &bases);
  uint64_t hash = hash_text(0xcbf29ce484222325u, spec->model.name);
  hash = hash_block(hash, B_model, &bases.model);
  hash = hash_bytes(hash, &spec->model.attention.rope.yarn, sizeof(bool));
  hash = hash_block(hash, B_cluster, &bases.cluster);
  hash = hash_block(hash, B_node, &bases.node);
  hash = hash_block(hash, B_gpu, &bases.gpu);
  for (int i = 0; i < spec->n_shapes; i++) {
    hash = hash_text(hash, spec->shapes[i].name);
    hash = hash_block(hash, B_shape, &spec->shapes[i]);
  }
  hash = hash_block(hash, B_train, &bases.train);
  hash = hash_bytes(hash, &spec->train.lr_kind, sizeof spec->train.lr_kind);
  hash = hash_bytes(hash, &spec->costs.given, sizeof spec->costs.given);
  hash = hash_block(hash, B_costs, &bases.costs);
  return hash_block(hash, B_plan, &bases.plan);
}
