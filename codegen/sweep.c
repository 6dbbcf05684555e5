/* Sweeps: a key of the spec takes each of several values. The key is set in the parsed file and the spec is built
   again, so a swept value is read, checked and reported like one that stands in the file. */
#include <string.h>

#include "codegen/compare.h"
#include "codegen/listener.h"
#include "lang/spec_keys.h"

/* Keys that can be swept: what the option calls them, and where they stand. */
typedef struct SweepKey {
  const char *name;
  const char *outer, *inner; /* blocks; inner NULL: none */
  const char *key;
} SweepKey;

static const SweepKey keys[] = {
    {"seq", "shape", NULL, "seq"},
    {"micro_batch", "shape", NULL, "micro_batch"},
    {"global_batch", "shape", NULL, "global_batch"},
    {"layers", "model", NULL, "layers"},
    {"top_k", "model", "moe", "top_k"},
    {"experts", "model", "moe", "experts"},
    {"imbalance", "model", "moe", "imbalance"},
    {"nodes", "cluster", NULL, "nodes"},
    {"nic", "node", NULL, "nic"},
    {"nvlink", "node", NULL, "nvlink"},
    {"memory", "gpu", NULL, "memory"},
    {"replicas", "plan", NULL, "replicas"},
    {"stages", "plan", NULL, "stages"},
    {"expert_parallel", "plan", NULL, "expert_parallel"},
    {"virtual_stages", "plan", NULL, "virtual_stages"},
    {"chunks", "plan", NULL, "chunks"},
    {"attention_gpus", "plan", NULL, "attention_gpus"},
    {"ffn_gpus", "plan", NULL, "ffn_gpus"},
    {"attention_nics", "plan", NULL, "attention_nics"},
    {"ffn_nics", "plan", NULL, "ffn_nics"},
    {"in_flight", "plan", NULL, "in_flight"},
    {"dedup", "plan", NULL, "dedup"},
    {"colocated_dedup", "plan", NULL, "colocated_dedup"},
    {"recompute", "plan", NULL, "recompute"},
};

enum { N_KEYS_SWEPT = sizeof keys / sizeof *keys, MAX_KEYS = 16, MAX_VALUES = 64, MAX_POINTS = 1024 };

/* One --sweep: keys that move together, and their values. */
typedef struct Axis {
  int keys[MAX_KEYS];
  int n_keys;
  const char *values[MAX_VALUES][MAX_KEYS];
  int n_values;
} Axis;

static int find_key(const char *name)
{
  for (int i = 0; i < N_KEYS_SWEPT; i++) {
    if (strcmp(keys[i].name, name) == 0) {
      return i;
    }
  }
  return -1;
}

static bool unknown_key(Arena *arena, Diag *diag, const char *name)
{
  Suggest suggest = suggest_for(name);
  const char *all = "";
  for (int i = 0; i < N_KEYS_SWEPT; i++) {
    suggest_try(&suggest, keys[i].name);
    all = arena_printf(arena, "%s%s%s", all, i ? ", " : "", keys[i].name);
  }
  diag_error(diag, (Span){0}, "--sweep: '%s' cannot be swept%s", name, suggest_text(arena, &suggest));
  diag_note(diag, (Span){0}, "keys that can: %s", all);
  return false;
}

/* The next part of *text up to one of `ends`, without blanks around it. */
static const char *take(Arena *arena, const char **text, const char *ends)
{
  const char *p = *text + strspn(*text, " ");
  size_t n = strcspn(p, ends), skip = n + (p[n] != 0);
  *text = p + skip;
  while (n > 0 && p[n - 1] == ' ') {
    n--;
  }
  return arena_strndup(arena, p, n);
}

static bool read_values(Arena *arena, Diag *diag, const char *text, const char *values, Axis *axis)
{
  while (*values) {
    if (axis->n_values == MAX_VALUES) {
      diag_error(diag, (Span){0}, "--sweep %s: more than %d values", text, MAX_VALUES);
      return false;
    }
    const char *value = take(arena, &values, ","), *part = value;
    int n = 0;
    while (*part && n <= axis->n_keys) {
      const char *one = take(arena, &part, ":");
      if (n < axis->n_keys) {
        axis->values[axis->n_values][n] = one;
      }
      n += *one ? 1 : MAX_KEYS;
    }
    if (n != axis->n_keys) {
      diag_error(diag, (Span){0}, "--sweep %s: '%s' is not %d value%s%s", text, value, axis->n_keys,
                 axis->n_keys == 1 ? "" : "s", axis->n_keys == 1 ? "" : " with ':' between them");
      return false;
    }
    axis->n_values++;
  }
  if (axis->n_values == 0) {
    diag_error(diag, (Span){0}, "--sweep %s: there are no values", text);
  }
  return axis->n_values > 0;
}

static bool read_axis(Arena *arena, Diag *diag, const char *text, Axis *axis)
{
  const char *equals = strchr(text, '=');
  if (!equals) {
    diag_error(diag, (Span){0}, "--sweep %s: expected key=value,value,...", text);
    return false;
  }
  const char *names = arena_strndup(arena, text, (size_t)(equals - text));
  while (*names) {
    const char *name = take(arena, &names, ":");
    int key = find_key(name);
    if (key < 0) {
      return unknown_key(arena, diag, name);
    }
    if (axis->n_keys == MAX_KEYS) {
      diag_error(diag, (Span){0}, "--sweep %s: more than %d keys", text, MAX_KEYS);
      return false;
    }
    axis->keys[axis->n_keys++] = key;
  }
  if (axis->n_keys == 0) {
    diag_error(diag, (Span){0}, "--sweep %s: which key?", text);
    return false;
  }
  return read_values(arena, diag, text, equals + 1, axis);
}

/* ---- setting a key in the parsed file ---- */

/* An item that was changed, and what it was. */
typedef struct Change {
  AstItem *item;
  AstItem was;
  struct Change *next;
} Change;

static void note_change(Arena *arena, Change **changes, AstItem *item)
{
  Change *change = arena_new_of(arena, Change);
  *change = (Change){item, *item, *changes};
  *changes = change;
}

static void undo(Change *changes)
{
  for (; changes; changes = changes->next) {
    *changes->item = changes->was;
  }
}

static void set_in_block(Arena *arena, AstItem *block, const AstItem *key, Change **changes)
{
  for (AstItem *item = block->items; item; item = item->next) {
    if (item->kind == ITEM_KEY && strcmp(item->name, key->name) == 0) {
      note_change(arena, changes, item);
      AstItem *next = item->next;
      *item = *key;
      item->next = next;
      return;
    }
  }
  note_change(arena, changes, block);
  AstItem *added = arena_new_of(arena, AstItem);
  *added = *key;
  added->next = block->items;
  block->items = added;
}

/* Sets the key in every block that is meant; returns how many. */
static int set_in_items(Arena *arena, AstItem *items, const SweepKey *which, const AstItem *key, Change **changes)
{
  int n = 0;
  for (AstItem *item = items; item; item = item->next) {
    if (item->kind == ITEM_USE && item->used) {
      n += set_in_items(arena, item->used->items, which, key, changes);
    } else if (item->kind == ITEM_BLOCK && strcmp(item->name, which->outer) == 0) {
      AstItem *inner = which->inner ? item->items : NULL;
      while (inner && !(inner->kind == ITEM_BLOCK && strcmp(inner->name, which->inner) == 0)) {
        inner = inner->next;
      }
      if (inner || !which->inner) {
        set_in_block(arena, inner ? inner : item, key, changes);
        n++;
      }
    }
  }
  return n;
}

static bool set_key(Arena *arena, Diag *diag, AstFile *file, const SweepKey *which, const char *value, Change **changes)
{
  const char *path = arena_printf(arena, "--sweep %s", which->name);
  const char *text = arena_printf(arena, "%s = %s", which->key, value);
  AstFile *parsed = ast_parse_text(arena, diag, path, text, strlen(text), false, NULL, 0);
  if (!parsed) {
    return false;
  }
  AstItem *key = parsed->items;
  if (!key || key->kind != ITEM_KEY || key->next) {
    diag_error(diag, (Span){0}, "--sweep %s: '%s' is not a value", which->name, value);
    return false;
  }
  if (set_in_items(arena, file->items, which, key, changes) > 0) {
    return true;
  }
  text = arena_printf(arena, "%s { }", which->outer); /* the file has no such block: one more at its end */
  parsed = ast_parse_text(arena, diag, path, text, strlen(text), false, NULL, 0);
  AstItem *last = file->items;
  if (!parsed || !last) {
    return false;
  }
  while (last->next) {
    last = last->next;
  }
  note_change(arena, changes, last);
  last->next = parsed->items;
  set_in_block(arena, parsed->items, key, changes);
  return true;
}

/* ---- points ---- */

/* Without a word if it is right, as warnings about the file have been given, and if the reason says what is wrong. */
static bool build_spec(Arena *arena, Diag *diag, const AstFile *file, const char *shapes, SweepPoint *point)
{
  Listener *quiet = listener_new(arena);
  Spec spec;
  bool ok =
      spec_build(arena, quiet->diag, file, &spec) && (!shapes || spec_select_shapes(arena, quiet->diag, &spec, shapes));
  const char *words = listener_heard(arena, quiet);
  if (ok) {
    point->spec = spec;
  } else if (spec.misread) {
    return spec_build(arena, diag, file, &spec);
  } else {
    point->reason = words;
  }
  return true;
}

static bool make_point(Arena *arena, Diag *diag, AstFile *file, const Spec *spec, const Axis *axes, int n_axes,
                       int index, const char *shapes, SweepPoint *point)
{
  *point = (SweepPoint){.spec = *spec};
  int total = 0;
  for (int a = 0; a < n_axes; a++) {
    total += axes[a].n_keys;
  }
  point->keys = arena_new_array(arena, const char *, (size_t)total + 1);
  point->values = arena_new_array(arena, const char *, (size_t)total + 1);
  Change *changes = NULL;
  /* with auto, every pin may stand: each system takes those that concern it */
  bool ok = set_key(arena, diag, file, &(SweepKey){"schedule", "plan", NULL, "schedule"}, "auto", &changes);
  int chosen[MAX_KEYS] = {0};
  for (int a = n_axes - 1; a >= 0; a--) {
    chosen[a] = index % axes[a].n_values;
    index /= axes[a].n_values;
  }
  for (int a = 0; a < n_axes && ok; a++) {
    point->last_axis = point->n;
    for (int k = 0; k < axes[a].n_keys && ok; k++) {
      const char *value = axes[a].values[chosen[a]][k];
      point->keys[point->n] = keys[axes[a].keys[k]].name;
      point->values[point->n++] = value;
      ok = set_key(arena, diag, file, &keys[axes[a].keys[k]], value, &changes);
    }
  }
  ok = ok && build_spec(arena, diag, file, shapes, point);
  undo(changes);
  return ok;
}

bool sweep_points(Arena *arena, Diag *diag, AstFile *file, const Spec *spec, const char *const *texts, int n_texts,
                  const char *shapes, SweepPoint **points, int *n_points)
{
  Axis *axes = arena_new_array(arena, Axis, (size_t)n_texts + 1);
  if (n_texts > MAX_KEYS) {
    diag_error(diag, (Span){0}, "--sweep is given %d times; %d at most", n_texts, MAX_KEYS);
    return false;
  }
  int64_t n = 1;
  for (int a = 0; a < n_texts; a++) {
    if (!read_axis(arena, diag, texts[a], &axes[a])) {
      return false;
    }
    for (int b = 0; b < a * MAX_KEYS; b++) {
      const Axis *other = &axes[b / MAX_KEYS];
      for (int k = 0; k < axes[a].n_keys && b % MAX_KEYS < other->n_keys; k++) {
        if (other->keys[b % MAX_KEYS] == axes[a].keys[k]) {
          diag_error(diag, (Span){0}, "--sweep moves %s twice", keys[axes[a].keys[k]].name);
          return false;
        }
      }
    }
    n *= axes[a].n_values;
    if (n > MAX_POINTS) {
      diag_error(diag, (Span){0}, "--sweep: %lld combinations of values; %d at most", (long long)n, MAX_POINTS);
      return false;
    }
  }
  *n_points = (int)n;
  *points = arena_new_array(arena, SweepPoint, (size_t)n);
  for (int i = 0; i < *n_points; i++) {
    if (!make_point(arena, diag, file, spec, axes, n_texts, i, shapes, &(*points)[i])) {
      return false;
    }
  }
  return true;
}
