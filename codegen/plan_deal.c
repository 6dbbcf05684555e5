/* Which attention group has which layer. */
#include <math.h>
#include <string.h>

#include "codegen/cost_terms.h"
#include "codegen/plan_int.h"

enum { KINDS = 4 }; /* of layers: dense * 2 + window */

/* What a deal is made from, per sequence and forward and backward, nothing recomputed. */
typedef struct Loads {
  double layer[KINDS], head;
  int kind[KINDS]; /* layers of each kind */
} Loads;

static const double SAME = 1e-9; /* relative; times closer than this are equal */

static int kind_of(const Spec *spec, int layer)
{
  return spec_layer_is_dense(spec, layer) * 2 + cost_layer_window(spec, layer);
}

static Loads loads_of(const Spec *spec, const ShapeSpec *shape)
{
  static const MoeOpKind ops[] = {MOE_OP_ATT_FWD, MOE_OP_ATT_DGRAD, MOE_OP_ATT_WGRAD};
  Loads loads = {.head = work_ns(spec, work_att(spec, MOE_OP_HEAD, 0, shape->seq, 1, RECOMPUTE_NONE))};
  for (int l = 0; l < spec->model.layers; l++) {
    int kind = kind_of(spec, l);
    for (int i = 0; i < 3 && loads.kind[kind] == 0; i++) {
      loads.layer[kind] += work_ns(spec, work_att(spec, ops[i], l, shape->seq, 1, RECOMPUTE_NONE));
    }
    loads.kind[kind]++;
  }
  return loads;
}

static double largest(const double *list, int n)
{
  double most = 0;
  for (int i = 0; i < n; i++) {
    most = fmax(most, list[i]);
  }
  return most;
}

/* Turns, and the head where there is least to do; of equal groups on the one whose turn it is, or else the first.
   Returns what the busiest group has. */
static double take_turns(const Spec *spec, const Loads *loads, int p, double *sum, int *group)
{
  int layers = spec->model.layers, best = layers % p;
  memset(sum, 0, (size_t)p * sizeof *sum);
  for (int l = 0; l < layers; l++) {
    group[l] = l % p;
    sum[l % p] += loads->layer[kind_of(spec, l)];
  }
  for (int g = 0; g < p; g++) {
    best = sum[g] < sum[best] * (1 - SAME) ? g : best;
  }
  group[layers] = best;
  sum[best] += loads->head;
  return largest(sum, p);
}

/* How many layers of each kind every group has: the head first, and then what is largest, each to the group that has
   least so far. counts: [p][KINDS]; the head is on group p - 1. */
static double share_out(const Loads *loads, int p, double *sum, int (*counts)[KINDS])
{
  bool done[KINDS] = {false};
  memset(sum, 0, (size_t)p * sizeof *sum);
  memset(counts, 0, (size_t)p * sizeof *counts);
  sum[p - 1] = loads->head;
  for (int turn = 0; turn < KINDS; turn++) {
    int k = -1;
    for (int i = 0; i < KINDS; i++) {
      k = !done[i] && (k < 0 || loads->layer[i] > loads->layer[k]) ? i : k;
    }
    done[k] = true;
    for (int i = 0; i < loads->kind[k]; i++) {
      int g = 0;
      for (int h = 1; h < p; h++) {
        g = sum[h] < sum[g] * (1 - SAME) ? h : g;
      }
      counts[g][k]++;
      sum[g] += loads->layer[k];
    }
  }
  return largest(sum, p);
}

/* Each layer to the group that is furthest behind its share of the layers, of those that lack one of its kind; of equal
   ones the next in turn. */
static void place(Arena *arena, const Spec *spec, int p, int (*counts)[KINDS], int *group)
{
  int layers = spec->model.layers, last = p - 1, numbers = 0;
  int *all = arena_new_array(arena, int, (size_t)p), *given = arena_new_array(arena, int, (size_t)p);
  int *number = arena_new_array(arena, int, (size_t)p);
  for (int g = 0; g < p; g++) {
    all[g] = counts[g][0] + counts[g][1] + counts[g][2] + counts[g][3];
    given[g] = 0;
    number[g] = -1;
  }
  for (int l = 0; l < layers; l++) {
    int best = -1, kind = kind_of(spec, l);
    for (int i = 1; i <= p; i++) {
      int g = (last + i) % p;
      bool behind = best < 0 || (int64_t)(given[g] + 1) * all[best] < (int64_t)(given[best] + 1) * all[g];
      best = counts[g][kind] > 0 && behind ? g : best;
    }
    counts[best][kind]--;
    given[best]++;
    last = best;
    number[best] = number[best] < 0 ? numbers++ : number[best]; /* groups count as they come */
    group[l] = number[best];
  }
  group[layers] = number[p - 1] < 0 ? p - 1 : number[p - 1];
}

int *layer_deal(Arena *arena, const Spec *spec, const ShapeSpec *shape, int p_att, bool turns)
{
  static const double worth = 0.99; /* what another deal must at least come down to */
  int *group = arena_new_array(arena, int, (size_t)spec->model.layers + 1);
  double *sum = arena_new_array(arena, double, (size_t)p_att);
  int(*counts)[KINDS] = arena_alloc(arena, (size_t)p_att * sizeof *counts);
  Loads loads = loads_of(spec, shape);
  double most = take_turns(spec, &loads, p_att, sum, group);
  if (!turns && share_out(&loads, p_att, sum, counts) < worth * most) {
    place(arena, spec, p_att, counts, group);
  }
  return group;
}
