/* spec_build: gathers the blocks of all files, reads each by keys.def, resolves names, then holds the rules between
   keys. A key that was wrong counts as bad, so that rules about it stay silent and one mistake gives one error. */
#include "lang/spec.h"

#include <string.h>
#include <uthash.h>

#include "lang/spec_keys.h"

typedef struct Entry {
  const AstItem *item;
  const char *name;
  bool own, used; /* own: stands in the file asked for */
  bool read;
  UT_hash_handle hh;
  struct Entry *next;
} Entry;

/* Blocks of one kind in order, by name where they have one. */
typedef struct Entries {
  Entry *first, *last, *by_name;
  int n;
} Entries;

typedef struct Gather {
  Reader *reader;
  Entries blocks[N_BLOCKS]; /* outermost ones only */
} Gather;

static void gather_block(Gather *gather, const AstItem *item, bool own)
{
  Reader *reader = gather->reader;
  BlockId block = block_find(B_root, item->name);
  if (block == B_root) {
    complain_unknown_block(reader, item, B_root);
    return;
  }
  const BlockRow *row = &block_rows[block];
  Entries *list = &gather->blocks[block];
  Entry *entry = arena_new_of(reader->arena, Entry);
  entry->item = item;
  entry->own = own;
  read_block_word(reader, item, block, &entry->name);
  if (row->count == COUNT_ONE || row->count == COUNT_MAYBE) {
    if (list->n) {
      diag_error(reader->diag, item->name_span, "a spec has one %s; this is another", row->name);
      diag_note(reader->diag, list->first->item->name_span, "the first stands here");
      return;
    }
  } else if (item->word) {
    Entry *other = NULL;
    HASH_FIND_STR(list->by_name, entry->name, other);
    if (other) {
      diag_error(reader->diag, item->word_span, "there are two %s blocks called '%.64s'", row->name, entry->name);
      diag_note(reader->diag, other->item->word_span, "the first stands here");
      return;
    }
    HASH_ADD_KEYPTR(hh, list->by_name, entry->name, strlen(entry->name), entry);
  }
  if (list->last) {
    list->last->next = entry;
  } else {
    list->first = entry;
  }
  list->last = entry;
  list->n++;
}

static void gather_file(Gather *gather, const AstFile *file, bool own)
{
  for (const AstItem *item = file->items; item; item = item->next) {
    switch (item->kind) {
    case ITEM_USE:
      if (item->used) {
        gather_file(gather, item->used, false);
      }
      break;
    case ITEM_LET:
      eval_let(gather->reader, item);
      break;
    case ITEM_KEY:
      complain_outside(gather->reader, item);
      break;
    case ITEM_BLOCK:
      gather_block(gather, item, own);
      break;
    }
  }
}

static void declare_lets(Reader *reader, const AstFile *file, bool own)
{
  for (const AstItem *item = file->items; item; item = item->next) {
    if (item->kind == ITEM_LET) {
      eval_declare(reader, item, own);
    } else if (item->kind == ITEM_USE && item->used) {
      declare_lets(reader, item->used, false);
    }
  }
}

/* The library block that `key` names. */
static Entry *find_named(Gather *gather, BlockId block, KeyId key, const char *name)
{
  Reader *reader = gather->reader;
  if (reader->state[key] != KEY_SET) {
    return NULL;
  }
  Entry *entry = NULL;
  HASH_FIND_STR(gather->blocks[block].by_name, name, entry);
  if (!entry) {
    Suggest suggest = suggest_for(name);
    int tried = 0;
    for (const Entry *other = gather->blocks[block].first; other && tried < 1000; other = other->next, tried++) {
      suggest_try(&suggest, other->name);
    }
    diag_error(reader->diag, reader->spans.key[key], "there is no %s called '%.64s'%s%s", block_rows[block].name, name,
               suggest_text(reader->arena, &suggest),
               gather->blocks[block].n ? "" : "; is a 'use \"hardware/...\"' line missing?");
  } else {
    entry->used = true;
  }
  return entry;
}

static void warn_unused(Gather *gather, BlockId block, BlockId user)
{
  Reader *reader = gather->reader;
  for (const Entry *entry = gather->blocks[block].first; entry; entry = entry->next) {
    if (entry->own && !entry->used) {
      diag_warn(reader->diag, entry->item->name_span, "no %s uses this %s", block_rows[user].name,
                block_rows[block].name);
    }
  }
}

static void read_one_node(Reader *reader, const Entry *entry, NodeKeys *node)
{
  *node = (NodeKeys){0};
  read_defaults(B_node, node);
  read_block(reader, entry->item, B_node, node);
  rules_node(reader, entry->item, node);
}

static void read_one_gpu(Reader *reader, const Entry *entry, GpuSpec *gpu)
{
  *gpu = (GpuSpec){.name = entry->name};
  read_defaults(B_gpu, gpu);
  read_block(reader, entry->item, B_gpu, gpu);
  rules_gpu(reader, entry->item, gpu);
}

/* Every library block is checked, the chosen one last, so that the Reader keeps the places of its keys. */
static void read_hardware(Gather *gather, Spec *spec)
{
  Reader *reader = gather->reader;
  ClusterKeys cluster = {0};
  const Entry *first = gather->blocks[B_cluster].first;
  Entry *chosen = NULL;
  if (first) {
    cluster.cluster.name = first->name;
    read_defaults(B_cluster, &cluster);
    read_block(reader, first->item, B_cluster, &cluster);
    chosen = find_named(gather, B_node, K_cluster_node, cluster.node);
  }
  NodeKeys node = {0};
  Entry *gpu_chosen = NULL;
  GpuSpec gpu = {0};
  for (Entry *entry = gather->blocks[B_node].first; entry; entry = entry->next) {
    if (entry != chosen) {
      read_one_node(reader, entry, &node);
      find_named(gather, B_gpu, K_node_gpu, node.gpu);
    }
  }
  if (chosen) {
    read_one_node(reader, chosen, &node);
    gpu_chosen = find_named(gather, B_gpu, K_node_gpu, node.gpu);
  }
  for (Entry *entry = gather->blocks[B_gpu].first; entry; entry = entry->next) {
    if (entry != gpu_chosen) {
      read_one_gpu(reader, entry, &gpu);
    }
  }
  if (gpu_chosen) {
    read_one_gpu(reader, gpu_chosen, &gpu);
  }
  if (chosen && gpu_chosen) {
    int nodes = cluster.cluster.nodes;
    const char *name = cluster.cluster.name;
    spec->cluster = node.part;
    spec->cluster.name = name;
    spec->cluster.nodes = nodes;
    spec->cluster.gpu = gpu;
    warn_unused(gather, B_node, B_cluster);
    warn_unused(gather, B_gpu, B_node);
  }
}

static void read_shapes(Gather *gather, Spec *spec)
{
  Reader *reader = gather->reader;
  const Entries *list = &gather->blocks[B_shape];
  spec->shapes = arena_new_array(reader->arena, ShapeSpec, (size_t)list->n + 1);
  Span keys[N_KEYS];
  Span block = {0};
  for (const Entry *entry = list->first; entry; entry = entry->next) {
    ShapeSpec *shape = &spec->shapes[spec->n_shapes];
    shape->name = entry->name;
    shape->span = entry->item->name_span;
    read_defaults(B_shape, shape);
    read_block(reader, entry->item, B_shape, shape);
    rules_shape(reader, entry->item, shape);
    if (spec->n_shapes++ == 0) {
      memcpy(keys, reader->spans.key, sizeof keys);
      block = reader->spans.block[B_shape];
    }
  }
  if (list->n) {
    memcpy(reader->spans.key, keys, sizeof keys);
    reader->spans.block[B_shape] = block;
  }
}

static void require_blocks(Gather *gather, const AstFile *file)
{
  Span top = {file->source, 0, 0};
  for (int b = 0; b < N_BLOCKS; b++) {
    const BlockRow *row = &block_rows[b];
    if (row->parent == B_root && (row->count == COUNT_ONE || row->count == COUNT_MANY) && !gather->blocks[b].n &&
        !gather->reader->excused_block[b]) {
      diag_error(gather->reader->diag, top, "the spec has no %s block: %s", row->name, row->doc);
    }
  }
}

bool spec_build(Arena *arena, Diag *diag, const AstFile *file, Spec *spec)
{
  int before = diag_errors(diag);
  *spec = (Spec){.path = file->path};
  Reader *reader = arena_new_of(arena, Reader);
  *reader = (Reader){.arena = arena, .diag = diag, .spec = spec, .file = file};
  Gather gather = {.reader = reader};
  declare_lets(reader, file, true);
  gather_file(&gather, file, true);
  eval_check_defines(reader);
  require_blocks(&gather, file);

  read_defaults(B_model, &spec->model);
  read_defaults(B_train, &spec->train);
  PlanKeys plan = {0};
  read_defaults(B_plan, &plan);
  const Entry *model = gather.blocks[B_model].first;
  const Entry *train = gather.blocks[B_train].first;
  const Entry *costs = gather.blocks[B_costs].first;
  const Entry *pins = gather.blocks[B_plan].first;
  if (model) {
    spec->model.name = model->name;
    read_block(reader, model->item, B_model, &spec->model);
    rules_model(reader);
  }
  read_hardware(&gather, spec);
  read_shapes(&gather, spec);
  if (train) {
    read_block(reader, train->item, B_train, &spec->train);
  }
  rules_train(reader);
  if (costs) {
    read_block(reader, costs->item, B_costs, &spec->costs);
    rules_costs(reader, &spec->costs);
  }
  if (pins) {
    read_block(reader, pins->item, B_plan, &plan);
  }
  rules_plan(reader, &plan);
  spec->plan = plan.plan;
  if (diag_errors(diag) == before) {
    eval_warn_unused(reader);
  }
  eval_free(reader);
  for (int b = 0; b < N_BLOCKS; b++) {
    HASH_CLEAR(hh, gather.blocks[b].by_name);
  }
  spec->spans = &reader->spans;
  if (diag_errors(diag) > before) {
    return false;
  }
  spec->hash = spec_hash(spec);
  return true;
}

Span spec_span(const Spec *spec, const char *block, const char *key)
{
  for (int b = 0; b < N_BLOCKS && spec->spans; b++) {
    if (strcmp(block_rows[b].name, block) != 0) {
      continue;
    }
    for (int k = block_rows[b].first; key && k < block_end((BlockId)b); k++) {
      if (strcmp(key_rows[k].name, key) == 0 && spec->spans->key[k].source) {
        return spec->spans->key[k];
      }
    }
    return spec->spans->block[b];
  }
  return (Span){0};
}

bool spec_layer_is_dense(const Spec *spec, int layer)
{
  return layer < spec->model.dense.layers;
}

bool spec_select_shapes(Arena *arena, Diag *diag, Spec *spec, const char *names)
{
  ShapeSpec *kept = arena_new_array(arena, ShapeSpec, (size_t)spec->n_shapes + 1);
  int n = 0;
  bool good = true;
  for (const char *p = names; *p;) {
    size_t length = strcspn(p, ",");
    const char *name = arena_strndup(arena, p, length);
    p += length + (p[length] == ',');
    Suggest suggest = suggest_for(name);
    int found = -1;
    for (int i = 0; i < spec->n_shapes; i++) {
      suggest_try(&suggest, spec->shapes[i].name);
      found = strcmp(spec->shapes[i].name, name) == 0 ? i : found;
    }
    bool twice = false;
    for (int i = 0; found >= 0 && i < n; i++) {
      twice = twice || strcmp(kept[i].name, name) == 0;
    }
    if (!*name) {
      diag_error(diag, (Span){0}, "--shape '%s': a name is empty", names);
      good = false;
    } else if (found < 0) {
      diag_error(diag, (Span){0}, "--shape %s: the spec has no such shape%s", name, suggest_text(arena, &suggest));
      good = false;
    } else if (twice) {
      diag_error(diag, (Span){0}, "--shape names '%s' twice", name);
      good = false;
    } else {
      kept[n++] = spec->shapes[found];
    }
  }
  if (good && n == 0) {
    diag_error(diag, (Span){0}, "--shape needs the name of a shape");
    good = false;
  }
  if (good) {
    spec->shapes = kept;
    spec->n_shapes = n;
    spec->hash = spec_hash(spec);
  }
  return good;
}
