/* The search for an allocation. Replicas, groups per side, placement and recomputation make a tuple; within a tuple the
   pairs of ranks per group are priced one by one. Tuples are taken in the order of a bound on their estimate, so most
   are never priced, and a pair is dropped as soon as one side's compute alone takes too long. The program of the tuple
   that wins is then solved as the mixed-integer program it is (plan_milp.c), which must agree. Ties: fewest ranks, then
   the first tuple. */
#include <limits.h>
#include <math.h>
#include <string.h>

#include "codegen/plan_price.h"
#include "runtime/moe_layout.h"

enum {
  CACHED_LAYERS = 512,
  SCRATCH_TUPLES = 64, /* after so many the memory of lists is given back */
  SHORTAGE_TRIALS = 400000,
  PAIR_BUDGET = 1 << 26, /* pairs priced, after which the best so far is taken: by number, so that machines agree */
  ALIKE = 2              /* candidates that differ in recomputation and the place of the optimizer's state alone */
};

static const double SAME = 1e-9; /* relative; times closer than this are equal */

typedef struct Search {
  Arena *arena;
  Space space;
  Kinds *kinds; /* by groups of both sides and colocated or not */
  int **homes;  /* by groups of attention and colocated or not: layer_deal */
  Memo memo;
  int64_t pairs; /* priced so far */
} Search;

static const int *home_of(Search *s, const Tuple *t)
{
  bool turns = t->place == PLACE_COLOCATED;
  const Spec *spec = s->space.spec;
  if (s->homes == NULL) {
    s->homes = arena_new_array(s->arena, int *, 2 * ((size_t)spec->model.layers + 1));
  }
  int **home = &s->homes[2 * t->p_att + turns];
  *home = *home ? *home : layer_deal(s->arena, spec, s->space.shape, t->p_att, turns);
  return *home;
}

static void init_price(Search *s, Price *p, const Tuple *t)
{
  const Spec *spec = s->space.spec;
  size_t n = (size_t)spec->model.layers + 1;
  bool cached = n <= CACHED_LAYERS;
  size_t at = cached ? ((size_t)t->p_att * n + (size_t)t->p_ffn) * 2 + (t->place == PLACE_COLOCATED) : 0;
  if (s->kinds == NULL) {
    s->kinds = arena_new_array(s->arena, Kinds, cached ? n * n * 2 : 1);
  }
  if (s->kinds[at].n_att == 0 || !cached) {
    price_kinds(s->arena, spec, home_of(s, t), t, &s->kinds[at]);
  }
  price_init(p, spec, s->space.shape, t, &s->kinds[at], &s->memo);
}

/* ---- pairs of a tuple ---- */

/* An allocation of a tuple and what it costs. */
typedef struct Pair {
  int att_n, ffn_n, att_nics, ffn_nics, ranks;
  double z, sum; /* ns per step; of both sides together */
} Pair;

/* Phase 1: the smallest z. Phase 2, among equals: fewest ranks, then the least time of both sides. */
static bool improves(const Pair *a, const Pair *b)
{
  if (b->ranks == 0 || fabs(a->z - b->z) > SAME * b->z) {
    return b->ranks == 0 || a->z < b->z;
  }
  double more = a->ranks - b->ranks + 0.5 * (a->sum - b->sum) / (2 * b->z);
  return more < -SAME;
}

static void consider(const Price *p, Pair pair, double z_att, double z_ffn, Pair *best)
{
  pair.z = fmax(p->chain, fmax(z_att, z_ffn));
  pair.sum = z_att + z_ffn;
  if (isfinite(pair.z) && improves(&pair, best)) {
    *best = pair;
  }
}

static bool within(const Tuple *t, int ranks)
{
  return t->exact ? ranks == t->ranks : ranks <= t->ranks;
}

/* Time beyond which a pair does not matter. */
static double cut(double limit, const Pair *best)
{
  return best->ranks ? fmin(limit, best->z * (1 + SAME)) : limit;
}

static void separate_pairs(const Space *s, const Price *p, double limit, Pair *best, int64_t *priced)
{
  const Tuple *t = p->tuple;
  const PlanSpec *pin = &s->spec->plan;
  IntList att = space_counts(s, t, true), ffn = space_counts(s, t, false);
  for (int i = 0; i < att.n; i++) {
    Pair pair = {.att_n = att.v[i]};
    int att_ranks = space_ranks(s, true, t->p_att, pair.att_n);
    ++*priced;
    pair.att_nics = pin->attention_nics > 0 ? pin->attention_nics : space_nics(s, t, att_ranks);
    if (price_att_least(p, pair.att_n) > cut(limit, best)) {
      continue;
    }
    *priced += ffn.n;
    for (int j = 0; j < ffn.n; j++) {
      int ffn_ranks = space_ranks(s, false, t->p_ffn, ffn.v[j]);
      pair.ffn_n = ffn.v[j];
      pair.ranks = att_ranks + ffn_ranks;
      pair.ffn_nics = pin->ffn_nics > 0 ? pin->ffn_nics : space_nics(s, t, ffn_ranks);
      if (!within(t, pair.ranks) || price_ffn_least(p, pair.att_n, pair.ffn_n) > cut(limit, best)) {
        continue;
      }
      double z = price_att(p, pair.att_n, pair.att_nics, pair.ffn_n);
      if (z <= cut(limit, best)) {
        double y = price_ffn(p, pair.att_n, pair.ffn_n, pair.ffn_nics) + price_ffn_launches(p, pair.att_n);
        consider(p, pair, z, y <= limit ? y : INFINITY, best);
      }
    }
  }
}

/* Of the columns of both sides at once. */
static void whole_pairs(const Space *s, const Price *p, double limit, Pair *best, int64_t *priced)
{
  Columns columns = {0};
  space_columns(s, p, limit, &columns);
  *priced += columns.n;
  for (int i = 0; i < columns.n; i++) {
    const Column *c = &columns.v[i];
    if (within(p->tuple, c->ranks)) {
      consider(p, (Pair){c->att_n, c->ffn_n, c->att_nics, c->ffn_nics, c->ranks, 0, 0}, c->z_att, c->z_ffn, best);
    }
  }
}

static bool best_pair(const Space *s, const Price *p, double limit, Pair *best, int64_t *priced)
{
  const Tuple *t = p->tuple;
  *best = (Pair){0};
  if (t->place == PLACE_COLOCATED || (t->place == PLACE_MIXED && !t->single)) {
    whole_pairs(s, p, limit, best, priced);
  } else {
    separate_pairs(s, p, limit, best, priced);
  }
  return best->ranks > 0;
}

/* ---- what is kept ---- */

/* What the search has kept: the best so far, sorted. */
typedef struct Kept {
  Found *list;
  int *ranks; /* of each: all its ranks, and its tuple */
  const Tuple **tuple;
  int n, most;
} Kept;

static bool better(double estimate, int ranks, int index, double old, int old_ranks, int old_index)
{
  if (fabs(estimate - old) > 1e-9 * old) {
    return estimate < old;
  }
  return ranks != old_ranks ? ranks < old_ranks : index < old_index;
}

static bool same_side(const Side *a, const Side *b)
{
  return a->p == b->p && a->n == b->n && a->nics == b->nics;
}

static bool same_ranks(const Choice *a, const Choice *b)
{
  return a->replicas == b->replicas && a->place == b->place && same_side(&a->att, &b->att) &&
         same_side(&a->ffn, &b->ffn);
}

/* Entry of the same ranks that is to go so that one more can come: the last of them where there are enough, or one that
   is the same in all; -1: none. */
static int crowded(const Kept *kept, const Choice *choice)
{
  int alike = 0;
  for (int i = 0; i < kept->n; i++) {
    const Choice *c = &kept->list[i].choice;
    if (same_ranks(c, choice)) {
      alike++;
      if (alike == ALIKE || (c->recompute == choice->recompute && c->shard == choice->shard)) {
        return i;
      }
    }
  }
  return -1;
}

static void drop(Kept *kept, int at)
{
  kept->n--;
  for (int i = at; i < kept->n; i++) {
    kept->list[i] = kept->list[i + 1];
    kept->ranks[i] = kept->ranks[i + 1];
    kept->tuple[i] = kept->tuple[i + 1];
  }
}

static void keep(Kept *kept, const Found *found, int ranks, const Tuple *t)
{
  int at = kept->n, worse = crowded(kept, &found->choice);
  while (at > 0 && better(found->choice.estimate, ranks, t->index, kept->list[at - 1].choice.estimate,
                          kept->ranks[at - 1], kept->tuple[at - 1]->index)) {
    at--;
  }
  if (at == kept->most || (worse >= 0 && at > worse)) {
    return;
  }
  if (worse >= 0) {
    drop(kept, worse);
  }
  kept->n += kept->n < kept->most;
  for (int i = kept->n - 1; i > at; i--) {
    kept->list[i] = kept->list[i - 1];
    kept->ranks[i] = kept->ranks[i - 1];
    kept->tuple[i] = kept->tuple[i - 1];
  }
  kept->list[at] = *found;
  kept->ranks[at] = ranks;
  kept->tuple[at] = t;
}

/* Estimate that a tuple must reach to matter: the worst of those kept, and nothing far behind the best. */
static double to_beat(const Kept *kept)
{
  static const double far = 1.25;
  double worst = kept->n == kept->most ? kept->list[kept->n - 1].choice.estimate : INFINITY;
  return kept->n == 0 ? INFINITY : fmin(worst, far * kept->list[0].choice.estimate) * (1 + 1e-9);
}

static Choice choose(const Space *s, const Price *p, const Pair *pair)
{
  const PlanSpec *pin = &s->spec->plan;
  const Tuple *t = p->tuple;
  Choice c = {.replicas = t->replicas, .place = t->place, .z = pair->z, .estimate = pair->z + p->fill};
  c.recompute = t->recompute;
  c.shard = t->shard;
  c.att = (Side){.p = t->p_att, .n = pair->att_n, .nics = pair->att_nics};
  c.ffn = (Side){.p = t->p_ffn, .n = pair->ffn_n, .nics = pair->ffn_nics};
  c.att.list = pin->n_attention_gpus > 1 ? pin->attention_gpus : NULL;
  c.ffn.list = pin->n_ffn_gpus > 1 ? pin->ffn_gpus : NULL;
  if (t->place == PLACE_COLOCATED) {
    c.att.list = c.att.list ? c.att.list : c.ffn.list;
    c.ffn = c.att;
  }
  return c;
}

/* The winner's tuple as a program for the solver, without the columns that are slower than the winner. */
static void prove(Search *s, Price *p, const Tuple *t, Found *found)
{
  const PlanSpec *pin = &s->space.spec->plan;
  Columns columns = {0};
  init_price(s, p, t);
  space_columns(&s->space, p, found->choice.z * (1 + SAME), &columns);
  Milp milp = {columns.v, columns.n, t->ranks, t->exact, p->chain, pin->node_limit, pin->gap};
  MilpResult r;
  found->proved = milp_solve(&milp, &r) && r.proved;
  found->gap = r.gap;
  if (r.z < found->choice.z * (1 - SAME)) {
    die("the planner's search and its program disagree");
  }
}

/* Least memory over all allocations that fit the ranks; for large searches over a sample of them. */
static void measure_shortage(Search *s, Price *p, const Tuple *tuples, int n_tuples, Shortage *out)
{
  int64_t left = SHORTAGE_TRIALS;
  const Space *space = &s->space;
  for (int i = 0; i < n_tuples && left > 0; i++) {
    const Tuple *t = &tuples[i];
    init_price(s, p, t);
    bool both = t->place == PLACE_COLOCATED;
    IntList att = space_counts(space, t, true), ffn = space_counts(space, t, false);
    Mixed *mixed = t->place == PLACE_MIXED && !t->single ? mixed_new(space->arena, p) : NULL;
    for (int a = 0; a < att.n; a++) {
      int least = 0, most = INT_MAX;
      if (mixed) {
        space_partners(space, t, att.v[a], &least, &most);
      }
      for (int f = 0; f < ffn.n && ffn.v[f] <= most; f++) {
        int m = att.v[a], n = ffn.v[f];
        int ranks = space_ranks(space, true, t->p_att, m) + (both ? 0 : space_ranks(space, false, t->p_ffn, n));
        if (n < least || ranks > t->ranks || (t->exact && ranks != t->ranks) || (both && m != n) ||
            (mixed && (space->nodes.nics < 2 || !space_mixed(space, t, m, n) || !mixed_set(mixed, m, n))) ||
            left-- < 0) {
          continue;
        }
        int64_t need_a = mixed ? mixed_memory(mixed, PLAN_A) : price_memory(p, both ? PLAN_A | PLAN_F : PLAN_A, m, n);
        int64_t need_f = both ? 0 : mixed ? mixed_memory(mixed, PLAN_F) : price_memory(p, PLAN_F, m, n);
        int64_t need = need_a > need_f ? need_a : need_f;
        if (!out->any || need < out->need) {
          *out = (Shortage){true,        need,     both ? PLAN_A | PLAN_F : need_a > need_f ? PLAN_A : PLAN_F,
                            t->replicas, t->p_att, t->p_ffn,
                            m,           n};
        }
      }
    }
  }
}

static bool all_pinned(const Spec *spec)
{
  const PlanSpec *pin = &spec->plan;
  return pin->replicas > 0 && pin->n_attention_gpus > 0 && pin->n_ffn_gpus > 0 && plan_pinned_stages(spec, true) > 0 &&
         plan_pinned_stages(spec, false) > 0;
}

int plan_search(Arena *out, const Spec *spec, const ShapeSpec *shape, Found *list, int most, Shortage *shortage)
{
  Search s = {.arena = out, .space = {arena_new(), spec, shape, plan_nodes(spec)}};
  Price *p = arena_new_of(out, Price);
  Kept kept = {.list = list, .most = most};
  double begin = plan_now_ms(), left = 0; /* what tuples that were not looked at may be better by */
  int n_tuples = 0;
  Tuple *tuples = tuples_list(out, spec, shape, &n_tuples);
  kept.ranks = arena_new_array(out, int, (size_t)most + 1);
  kept.tuple = arena_new_array(out, const Tuple *, (size_t)most + 1);
  memset(shortage, 0, sizeof *shortage);
  for (int i = 0; i < n_tuples; i++) {
    const Tuple *t = &tuples[i];
    double limit = to_beat(&kept);
    if (t->bound > limit * (1 - spec->plan.gap)) {
      break;
    }
    if (s.pairs > PAIR_BUDGET && kept.n > 0) {
      left = 1 - t->bound / list[0].choice.estimate;
      break;
    }
    init_price(&s, p, t);
    Pair pair;
    if (best_pair(&s.space, p, limit - p->fill, &pair, &s.pairs)) {
      Found found = {.choice = choose(&s.space, p, &pair), .pinned = all_pinned(spec)};
      keep(&kept, &found, pair.ranks * t->replicas, t);
    }
    if (i % SCRATCH_TUPLES == SCRATCH_TUPLES - 1) {
      arena_free(s.space.arena);
      s.space.arena = arena_new();
    }
  }
  if (kept.n > 0) {
    prove(&s, p, kept.tuple[0], &list[0]);
    list[0].proved = list[0].proved && left <= 0;
    list[0].gap = left > list[0].gap ? left : list[0].gap;
  } else {
    measure_shortage(&s, p, tuples, n_tuples, shortage);
  }
  double ms = plan_now_ms() - begin;
  for (int i = 0; i < kept.n; i++) {
    list[i].proved = list[0].proved;
    list[i].gap = list[0].gap;
    list[i].ms = ms;
  }
  arena_free(s.space.arena);
  return kept.n;
}
