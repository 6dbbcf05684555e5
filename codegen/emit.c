#include "codegen/emit.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "codegen/cost.h"
#include "codegen/emit_emu.h"
#include "codegen/hf.h"
#include "codegen/params.h"
#include "codegen/plan_shape.h"
#include "codegen/rope.h"
#include "lang/printed.h"
#include "lang/units.h"

/* What the schedule's rows and the kernels' interface need, next to the templates. */
static const char *const contract[] = {"buckets.def",  "edges.def", "moe_bundle.h", "moe_device.h", "moe_kernels.h",
                                       "moe_layout.h", "moe_ops.h", "moe_status.h", "ops.def",      "status.def"};

/* ---- one header of sizes ---- */

/* Text that C takes for a double. */
static const char *c_real(char text[REAL_MAX], double value)
{
  return strpbrk(real_text(text, value), ".e") ? text : strcat(text, ".0");
}

void emit_config(const Spec *spec, Recompute recompute, FILE *out)
{
  const ModelSpec *m = &spec->model;
  char text[REAL_MAX];
#define real(value) c_real(text, (value))
  fprintf(
      out,
      "/* Sizes of one model, as macros, written by moec. The copy among the templates is that of specs/tiny.moespec,\n"
      "   so that every template compiles where it stands; a bundle's own takes its place there. */\n"
      "#ifndef MOE_CONFIG_H\n#define MOE_CONFIG_H\n\n");
#define CONFIG(name, format, value, doc)                                                                               \
  fprintf(out, "#define %-17s " format, (name), (value));                                                              \
  fprintf(out, (doc)[0] ? " /* %s */\n" : "%s\n", (doc));
#include "codegen/config.def"
#undef CONFIG
#undef real
  fprintf(out, "\n#endif\n");
}

/* ---- tables ---- */

static const char *stream_name(unsigned stream)
{
  static const char *const names[] = {"FWD", "BWD", "SEND", "RECV"};
  return names[stream];
}

static void banner(const Spec *spec, FILE *out, const char *what)
{
  fprintf(out, "/* Written by moec for model %s: %s. Do not edit. */\n", spec->model.name, what);
}

static void emit_ids(const int32_t *ids, FILE *out)
{
  fprintf(out, "IDS(");
  for (int k = 0; k < MOE_MAX_WAITS; k++) {
    fprintf(out, "%s%d", k ? ", " : "", ids[k]);
  }
  fprintf(out, ")");
}

/* One shape of the program on its way out. Names of what is its own end in `suffix`: "" of the first, else "_NAME". */
typedef struct Shape {
  const Spec *spec;
  const Plan *plan;
  const Schedule *sched;
  const char *suffix;
  const struct Shape *next; /* NULL: the last */
  bool first, emu;
} Shape;

static void emit_ops(const Shape *shape, int g, FILE *out)
{
  const Spec *spec = shape->spec;
  const Plan *plan = shape->plan;
  const Schedule *sched = shape->sched;
  const SchedGroup *group = &sched->groups[g];
  banner(spec, out, "the schedule of one group, one op per row, in the order of modelled start");
  fprintf(out,
          "#include \"moe_bundle.h\"\n\n"
          "#define IDS(...) {__VA_ARGS__}\n"
          "#define ROW(kind, stream, edge, bucket, layer, peer, mb, saved, work, chan, slot, use, chunk, waits, frees) "
          "\\\n"
          "  {MOE_OP_##kind, MOE_STREAM_##stream, MOE_EDGE_##edge, MOE_BUCKET_##bucket, layer, peer, mb, saved, work, "
          "chan, slot, \\\n"
          "   use, waits, frees, chunk, 0},\n\n"
          "extern const MoeOp moe_ops%s_%d[];\nconst MoeOp moe_ops%s_%d[] = { /* group %d, %d ops */\n",
          shape->suffix, g, shape->suffix, g, plan->groups[g].id, group->n_ops);
  for (int i = 0; i < group->n_ops; i++) {
    const MoeOp *op = &group->ops[i];
    MoeEdge edge = (MoeEdge)op->edge;
    MoeBucketKind bucket = (MoeBucketKind)op->bucket;
    fprintf(out, "ROW(%s, %s, %s, %s, %d, %d, %d, %d, %d, %d, %d, %d, %d, ", moe_op_name((MoeOpKind)op->kind),
            stream_name(op->stream), edge == MOE_EDGE_NONE ? "NONE" : moe_edge_name(edge),
            bucket == MOE_BUCKET_NONE ? "NONE" : moe_bucket_name(bucket), op->layer, op->peer, op->mb, op->saved,
            op->work, op->chan, op->slot, op->use, op->chunk);
    emit_ids(op->wait, out);
    fprintf(out, ", ");
    emit_ids(op->release, out);
    fprintf(out, ") /* %d */\n", i);
  }
  fprintf(out, "};\n");
}

static void emit_int16s(FILE *out, const char *name, const int *values, int n)
{
  fprintf(out, "const int16_t %s[] = {", name);
  for (int i = 0; i < n; i++) {
    fprintf(out, "%s%d", i ? ", " : "", values[i]);
  }
  fprintf(out, "};\n");
}

static void emit_groups(const Shape *shape, FILE *out)
{
  const Plan *plan = shape->plan;
  const Schedule *sched = shape->sched;
  for (int g = 0; g < plan->n_groups; g++) {
    fprintf(out, "extern const MoeOp moe_ops%s_%d[];\n", shape->suffix, g);
  }
  fprintf(out, "\nstatic const int32_t seat[] = {");
  for (int r = 0; r < plan->replica_ranks; r++) {
    fprintf(out, "%s%d", r == 0 ? "\n  " : r % 24 == 0 ? ",\n  " : ", ", plan->seat[r]);
  }
  fprintf(out, "};\n\nstatic const MoeGroup groups[] = {\n");
  for (int g = 0; g < plan->n_groups; g++) {
    const PlanGroup *group = &plan->groups[g];
    const SchedGroup *s = &sched->groups[g];
    fprintf(out, "  {\"%s%d\", %d, %d, %d, moe_ops%s_%d, %d, %d, %d, %d, %d},\n", plan_role_letters(group->role),
            group->index, group->role, group->first_rank, group->n_ranks, shape->suffix, g, s->n_ops, s->att_saved,
            s->att_work, s->ffn_saved, s->ffn_work);
  }
  fprintf(out, "};\n\nstatic const MoeChan chans[] = {\n");
  for (int c = 0; c < sched->n_chans; c++) {
    const MoeChan *chan = &sched->chans[c];
    MoeBucketKind bucket = (MoeBucketKind)chan->bucket;
    fprintf(out, "  {MOE_EDGE_%s, MOE_BUCKET_%s, %d, %d, %d},\n", moe_edge_name((MoeEdge)chan->edge),
            bucket == MOE_BUCKET_NONE ? "NONE" : moe_bucket_name(bucket), chan->src, chan->dst, chan->slots);
  }
  fprintf(out, "};\n\n");
}

static void emit_params(const ParamTables *tables, FILE *out)
{
  fprintf(out, "const int32_t moe_holders[] = {");
  for (int i = 0; i < tables->n_holders; i++) {
    fprintf(out, "%s%d", i == 0 ? "\n  " : i % 24 == 0 ? ",\n  " : ", ", tables->holders[i]);
  }
  fprintf(out, "};\n\nconst MoeBucket moe_buckets[] = {\n");
  for (int i = 0; i < tables->n_buckets; i++) {
    const MoeBucket *b = &tables->buckets[i];
    fprintf(out, "  {MOE_BUCKET_%s, %d, %d, %d, %" PRId64 ", %d, %d},\n", moe_bucket_name((MoeBucketKind)b->kind),
            b->layer, b->first_holder, b->n_holders, b->elems, b->first_param, b->n_params);
  }
  fprintf(out, "};\n\nconst MoeParam moe_params[] = {\n");
  for (int i = 0; i < tables->n_params; i++) {
    const MoeParam *p = &tables->params[i];
    fprintf(out, "  {\"%s\", %" PRId64 ", %d, %d, %.9g, %d, %d},\n", p->name, p->offset, p->rows, p->cols,
            (double)p->std, p->decay, p->counts);
  }
  fprintf(out, "};\n\n");
}

static void emit_real(FILE *out, const char *field, double value)
{
  char text[REAL_MAX];
  fprintf(out, "  .%s = %s,\n", field, c_real(text, value));
}

/* A C string literal of any bytes. */
static void emit_string(FILE *out, const char *field, const char *value)
{
  fprintf(out, "  .%s = \"", field);
  for (const char *p = value; *p; p++) {
    unsigned char c = (unsigned char)*p;
    if (c < 32 || c > 126 || c == '"' || c == '\\' || c == '?') {
      fprintf(out, "\\%03o", c);
    } else {
      fputc(c, out);
    }
  }
  fprintf(out, "\",\n");
}

static void emit_keys(FILE *out, const char *field, void (*print)(const Spec *, FILE *), const Spec *spec)
{
  Printed keys;
  printed_open(&keys);
  print(spec, keys.to);
  fflush(keys.to);
  emit_string(out, field, keys.text);
  printed_drop(&keys);
}

static void emit_bundle_row(const Shape *shape, const ParamTables *tables, uint64_t hash, FILE *out)
{
  const Spec *spec = shape->spec;
  const Plan *plan = shape->plan;
  const Schedule *sched = shape->sched;
  const ModelSpec *m = &spec->model;
  const TrainSpec *t = &spec->train;
  bool lr_moves = t->lr_kind != LR_CONSTANT;
  fprintf(out, "const MoeBundle moe_bundle%s = {\n", shape->suffix);
  emit_string(out, "shape", plan->shape->name);
  if (shape->next) {
    fprintf(out, "  .next = &moe_bundle%s,\n", shape->next->suffix);
  }
  emit_string(out, "spec", spec->path);
  emit_string(out, "model", m->name);
  emit_string(out, "system", plan_system_name(plan->system));
  fprintf(out, "  .hash = UINT64_C(0x%016" PRIx64 "),\n", hash);
  emit_keys(out, "model_keys", spec_print_model_keys, spec);
  emit_keys(out, "train_keys", spec_print_train_keys, spec);
  fprintf(out, "  .replicas = %d,\n  .replica_ranks = %d,\n  .ranks_per_node = %d,\n", plan->replicas,
          plan->replica_ranks, plan->ranks_per_node);
  fprintf(out, "  .seat = seat,\n");
  fprintf(out,
          "  .n_groups = %d,\n  .groups = groups,\n  .n_layers = %d,\n  .ways = %d,\n  .att_group = moe_att_group,\n"
          "  .ffn_group = moe_ffn_group,\n  .combine_group = moe_combine_group,\n  .dense = %d,\n  .chunks = %d,\n",
          plan->n_groups, m->layers, plan->ways, m->dense.layers, plan->chunks);
  fprintf(
      out,
      "  .n_chans = %d,\n  .chans = chans,\n  .n_buckets = %d,\n  .buckets = moe_buckets,\n  .holders = moe_holders,\n",
      sched->n_chans, tables->n_buckets);
  fprintf(out, "  .params = moe_params,\n  .n_params = %d,\n", tables->n_params);
  fprintf(out, "  .experts = %d,\n  .top_k = %d,\n  .vocab = %d,\n  .tied = %d,\n", m->moe.experts, m->moe.top_k,
          m->vocab, m->tied);
  fprintf(out, "  .dedup = MOE_DEDUP_%s,\n",
          plan->dedup == DEDUP_NODE   ? "NODE"
          : plan->dedup == DEDUP_FLAT ? "FLAT"
                                      : "RANK");
  fprintf(out, "  .seq = %" PRId64 ",\n  .mb_seqs = %d,\n  .micro_batches = %d,\n  .global_batch = %d,\n",
          plan->shape->seq, plan->mb_seqs, plan->micro_batches, plan->shape->global_batch);
  fprintf(out, "  .route_only = %s,\n  .n_route_only = %d,\n", m->moe.n_route_only ? "moe_route_only" : "0",
          m->moe.n_route_only);
  fprintf(out, "  .seed = UINT64_C(%" PRIu64 "),\n", t->seed);
  emit_real(out, "lr", t->lr);
  emit_real(out, "lr_min", lr_moves ? t->lr_min : t->lr);
  emit_real(out, "beta1", t->beta1);
  emit_real(out, "beta2", t->beta2);
  emit_real(out, "eps", t->eps);
  emit_real(out, "weight_decay", t->weight_decay);
  emit_real(out, "clip", t->clip);
  emit_real(out, "bias_rate", m->moe.balance == BALANCE_BIAS ? m->moe.bias_rate : 0.0);
  fprintf(out, "  .warmup = %" PRId64 ",\n  .lr_steps = %" PRId64 ",\n  .stop_on_nan = %d,\n", t->warmup,
          lr_moves ? t->steps : 0, t->stop_on_nan);
  emit_real(out, "flops_per_token", cost_flops_per_token(spec, plan->shape->seq));
  emit_real(out, "peak_flops", spec->cluster.gpu.flops * plan->replicas * plan->replica_ranks);
  if (shape->first) {
    fprintf(out, "  .hf = &hf,\n");
  }
  if (shape->emu) {
    fprintf(out, "  .emu = &emu,\n");
  }
  fprintf(out, "};\n");
}

static uint64_t fnv1a(uint64_t hash, const char *bytes, size_t n)
{
  for (size_t i = 0; i < n; i++) {
    hash = (hash ^ (unsigned char)bytes[i]) * UINT64_C(0x100000001b3);
  }
  return hash;
}

static void emit_hf(Arena *arena, const Spec *spec, FILE *out)
{
  const char *why = NULL;
  const char *config = hf_config_text(arena, spec, &why);
  fprintf(out, "static const MoeHf hf = {\n");
  emit_string(out, "family", hf_family_name(hf_family(&spec->model)));
  emit_string(out, "dtype", spec->train.dtype == DTYPE_BF16 ? "BF16" : "F32");
  emit_string(out, config ? "config" : "why", config ? config : why);
  fprintf(out, "};\n\n");
}

/* What all shapes have in common: of the first the tables, of the others that they exist. */
static void emit_shared(Arena *arena, const Shape *shape, const ParamTables *tables, FILE *out)
{
  const ModelSpec *m = &shape->spec->model;
  const Plan *plan = shape->plan;
  fprintf(out, "extern const int16_t moe_att_group[], moe_ffn_group[], moe_combine_group[];\n"
               "extern const int32_t moe_holders[], moe_route_only[];\n"
               "extern const MoeBucket moe_buckets[];\nextern const MoeParam moe_params[];\n\n");
  if (!shape->first) {
    return;
  }
  emit_int16s(out, "moe_att_group", plan->att_group, plan->ways * (m->layers + 1));
  emit_int16s(out, "moe_ffn_group", plan->ffn_group, plan->ways * m->layers);
  emit_int16s(out, "moe_combine_group", plan->combine_group, plan->ways * m->layers);
  fprintf(out, "\n");
  emit_params(tables, out);
  emit_hf(arena, shape->spec, out);
  if (m->moe.n_route_only) {
    fprintf(out, "const int32_t moe_route_only[] = {");
    for (int i = 0; i < m->moe.n_route_only; i++) {
      fprintf(out, "%s%d", i ? ", " : "", m->moe.route_only[i]);
    }
    fprintf(out, "};\n\n");
  }
}

/* Everything but the schedule's rows. The hash covers the spec's content and the placement, not the spec's path. */
static void emit_tables(Arena *arena, const Shape *shape, FILE *out)
{
  ParamTables tables;
  Spec small = emu_small_spec(shape->spec);
  params_build(arena, shape->emu ? &small : shape->spec, shape->plan, &tables);
  Printed body;
  printed_open(&body);
  emit_groups(shape, body.to);
  emit_shared(arena, shape, &tables, body.to);
  if (shape->emu) {
    emit_emu_tables(arena, shape->spec, shape->plan, shape->sched, body.to);
  }
  fflush(body.to);
  banner(shape->spec, out, "groups, channels, buckets and parameters");
  fprintf(out, "#include \"moe_bundle.h\"\n\n");
  fwrite(body.text, 1, body.n, out);
  if (shape->next) {
    fprintf(out, "extern const MoeBundle moe_bundle%s;\n\n", shape->next->suffix);
  }
  emit_bundle_row(shape, &tables, fnv1a(shape->spec->hash, body.text, body.n), out);
  printed_drop(&body);
}

/* ---- files ---- */

typedef struct FileList {
  Arena *arena;
  Diag *diag;
  Bundle *bundle;
  int room;
} FileList;

static void add_file(FileList *list, const char *path, const char *bytes, size_t n)
{
  Bundle *b = list->bundle;
  b->files = arena_grow(list->arena, b->files, b->n_files, &list->room, sizeof *b->files);
  b->files[b->n_files++] = (BundleFile){path, bytes, n};
}

static void add_printed(FileList *list, Printed *p, const char *path)
{
  printed_keep(p, list->arena);
  add_file(list, path, p->text, p->n);
}

static bool add_copy(FileList *list, const char *folder, const char *name)
{
  char *path = arena_printf(list->arena, "%s/%s", folder, name);
  FILE *in = fopen(path, "rb");
  if (!in) {
    diag_error(list->diag, (Span){0}, "cannot read %s: %s", path, strerror(errno));
    return false;
  }
  Printed copy;
  printed_open(&copy);
  char block[16384];
  for (size_t got; (got = fread(block, 1, sizeof block, in)) > 0;) {
    fwrite(block, 1, got, copy.to);
  }
  bool ok = !ferror(in);
  if (!ok) {
    diag_error(list->diag, (Span){0}, "cannot read %s: %s", path, strerror(errno));
  }
  fclose(in);
  add_printed(list, &copy, arena_strndup(list->arena, name, strlen(name)));
  return ok;
}

static bool ends_with(const char *text, const char *end)
{
  size_t n = strlen(text);
  size_t m = strlen(end);
  return n >= m && strcmp(text + n - m, end) == 0;
}

SourceKind bundle_source(const char *path)
{
  return ends_with(path, ".c")     ? SOURCE_C
         : ends_with(path, ".cu")  ? SOURCE_CUDA
         : ends_with(path, ".cpp") ? SOURCE_SIMT
                                   : SOURCE_NONE;
}

/* Files of templates/ or a folder in it whose names end in one of `ends`, NULL after the last. */
static bool add_folder(FileList *list, const char *home, const char *subfolder, const char *const *ends)
{
  char *folder = arena_printf(list->arena, "%s/templates%s", home, subfolder);
  DIR *dir = opendir(folder);
  if (!dir) {
    diag_error(list->diag, (Span){0}, "cannot read %s: %s", folder, strerror(errno));
    return false;
  }
  bool ok = true;
  for (struct dirent *entry; ok && (entry = readdir(dir));) {
    bool wanted = false;
    for (int i = 0; ends[i] && !wanted; i++) {
      wanted = ends_with(entry->d_name, ends[i]);
    }
    if (wanted && strcmp(entry->d_name, "moe_config.h") != 0) {
      ok = add_copy(list, folder, entry->d_name);
    }
  }
  closedir(dir);
  return ok;
}

static bool add_templates(FileList *list, const char *home, Target target)
{
  static const char *const c[] = {".c", ".h", NULL};
  static const char *const cuda[] = {".cu", ".cuh", ".h", "sizes.c", NULL};
  static const char *const simt[] = {".cpp", ".h", NULL};
  bool ok = false;
  switch (target) {
  case TARGET_CPU:
    ok = add_folder(list, home, "", c);
    break;
  case TARGET_EMU:
    ok = add_folder(list, home, "/emu", c);
    break;
  case TARGET_CUDA:
    ok =
        add_folder(list, home, "", cuda) && add_folder(list, home, "/cuda", c) && add_folder(list, home, "/simt", simt);
    break;
  }
  char *runtime = arena_printf(list->arena, "%s/runtime", home);
  for (size_t i = 0; ok && i < sizeof contract / sizeof *contract; i++) {
    ok = add_copy(list, runtime, contract[i]);
  }
  return ok;
}

static int by_path(const void *a, const void *b)
{
  return strcmp(((const BundleFile *)a)->path, ((const BundleFile *)b)->path);
}

/* A shape's own files. */
static void add_shape(FileList *list, const Shape *shape)
{
  Printed file;
  for (int g = 0; g < shape->plan->n_groups; g++) {
    printed_open(&file);
    emit_ops(shape, g, file.to);
    add_printed(list, &file, arena_printf(list->arena, "moe_ops%s_%d.c", shape->suffix, g));
  }
  printed_open(&file);
  emit_tables(list->arena, shape, file.to);
  add_printed(list, &file, arena_printf(list->arena, "moe_tables%s.c", shape->suffix));
}

typedef struct Program {
  const Spec *spec;
  const Plan *plans;
  const Schedule *scheds;
  int n;
  Target target;
} Program;

static bool make_bundle(Arena *arena, Diag *diag, const Program *p, const char *home, Bundle *bundle)
{
  *bundle = (Bundle){0};
  FileList list = {arena, diag, bundle, 0};
  Shape *shapes = arena_new_array(arena, Shape, (size_t)p->n);
  for (int i = 0; i < p->n; i++) {
    if (!plan_same_placement(p->spec, &p->plans[0], &p->plans[i])) {
      diag_error(diag, (Span){0}, "shapes %s and %s do not have the same placement of the weights",
                 p->plans[0].shape->name, p->plans[i].shape->name);
      return false;
    }
    shapes[i] = (Shape){.spec = p->spec,
                        .plan = &p->plans[i],
                        .sched = &p->scheds[i],
                        .suffix = i ? arena_printf(arena, "_%s", p->plans[i].shape->name) : "",
                        .next = i + 1 < p->n ? &shapes[i + 1] : NULL,
                        .first = i == 0,
                        .emu = p->target == TARGET_EMU};
  }
  if (p->target != TARGET_EMU) {
    Printed file;
    printed_open(&file);
    emit_config(p->spec, p->plans[0].recompute, file.to);
    add_printed(&list, &file, "moe_config.h");
  }
  for (int i = 0; i < p->n; i++) {
    add_shape(&list, &shapes[i]);
  }
  if (!add_templates(&list, home, p->target)) {
    return false;
  }
  qsort(bundle->files, (size_t)bundle->n_files, sizeof *bundle->files, by_path);
  return true;
}

bool emit_bundle(Arena *arena, Diag *diag, const Spec *spec, const Plan *plans, const Schedule *scheds, int n,
                 Target target, const char *home, Bundle *bundle)
{
  return make_bundle(arena, diag, &(Program){spec, plans, scheds, n, target}, home, bundle);
}
