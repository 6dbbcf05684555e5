/* Groups of a side that price alike: what each holds and with whom it exchanges messages, each kind once. */
#include <string.h>

#include "codegen/plan_price.h"

/* home: group of each layer's attention, and of the head. */
static int distinct_peers(const Spec *spec, const Tuple *t, const int *home, bool att, int group, int next)
{
  char seen[4096] = {0};
  int n = 0;
  for (int l = spec->model.dense.layers; l < spec->model.layers; l++) {
    int a = home[l + next], f = layer_ffn(spec, l, t->p_ffn, t->place == PLACE_COLOCATED);
    int peer = att ? f : a;
    if ((att ? a : f) == group && peer < (int)sizeof seen && !seen[peer]) {
      seen[peer] = 1;
      n++;
    }
  }
  return n;
}

static void describe(const Spec *spec, const Tuple *t, const int *home, int roles, int group, Kind *k)
{
  memset(k, 0, sizeof *k);
  for (int l = 0; (roles & PLAN_A) && l < spec->model.layers; l++) {
    bool dense = spec_layer_is_dense(spec, l), mine = home[l] == group;
    k->layers[dense * 2 + cost_layer_window(spec, l)] += mine;
    k->dispatches += mine && !dense;
    k->combines += !dense && home[l + 1] == group;
  }
  if (roles & PLAN_A) {
    k->embed = home[0] == group;
    k->head = home[spec->model.layers] == group;
    k->combine_from = distinct_peers(spec, t, home, true, group, 1);
    k->dispatch_b_from = distinct_peers(spec, t, home, true, group, 0);
  }
  for (int l = spec->model.dense.layers; (roles & PLAN_F) && l < spec->model.layers; l++) {
    k->ffn_layers += layer_ffn(spec, l, t->p_ffn, t->place == PLACE_COLOCATED) == group;
  }
  if (roles & PLAN_F) {
    k->dispatch_from = distinct_peers(spec, t, home, false, group, 0);
    k->combine_b_from = distinct_peers(spec, t, home, false, group, 1);
  }
}

static const Kind *describe_all(Arena *arena, const Spec *spec, const Tuple *t, const int *home, int roles, int groups,
                                int *n_p, const short **kind_p)
{
  Kind list[MAX_KINDS], *kept;
  short *kind = arena_new_array(arena, short, (size_t)groups);
  int n = 0;
  *kind_p = kind;
  for (int g = 0; g < groups; g++) {
    Kind k;
    bool known = false;
    describe(spec, t, home, roles, g, &k);
    for (int i = 0; i < n && !known; i++) {
      known = memcmp(&list[i], &k, sizeof k) == 0;
      kind[g] = (short)i;
    }
    if (!known && n < MAX_KINDS) {
      kind[g] = (short)n;
      list[n++] = k;
    }
  }
  kept = arena_new_array(arena, Kind, (size_t)n);
  memcpy(kept, list, (size_t)n * sizeof *kept);
  *n_p = n;
  return kept;
}

void price_kinds(Arena *arena, const Spec *spec, const int *home, const Tuple *t, Kinds *k)
{
  k->home = home;
  if (t->place == PLACE_COLOCATED) {
    k->att = k->ffn = describe_all(arena, spec, t, home, PLAN_A | PLAN_F, t->p_att, &k->n_att, &k->att_kind);
    k->ffn_kind = k->att_kind;
    k->n_ffn = k->n_att;
  } else {
    k->att = describe_all(arena, spec, t, home, PLAN_A, t->p_att, &k->n_att, &k->att_kind);
    k->ffn = describe_all(arena, spec, t, home, PLAN_F, t->p_ffn, &k->n_ffn, &k->ffn_kind);
  }
}
