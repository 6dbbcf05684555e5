/* Which allocations are tried. Replicas, groups per side and placement make a tuple; within a tuple a mixed-integer
   program chooses ranks per group and NICs. Tuples are taken in the order of a bound on their estimate, so most are
   never priced. Ties: fewest ranks, then the first tuple. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "codegen/plan_price.h"
#include "runtime/moe_layout.h"

enum {
  ALL_STAGES = 16,  /* up to here every number of groups is tried */
  ALL_REPLICAS = 64 /* with so many GPUs every number of replicas */
};

typedef struct IntList {
  int *v, n;
} IntList;

typedef struct Search {
  Arena *arena;
  const Spec *spec;
  const ShapeSpec *shape;
  Nodes nodes;
  Tuple *tuples;
  int n_tuples, room;
  Kinds *kinds; /* by groups of both sides and colocated or not */
  Memo memo;
} Search;

static void push(Arena *arena, IntList *list, int value, int room)
{
  if (list->v == NULL) {
    list->v = arena_new_array(arena, int, (size_t)room);
  }
  list->v[list->n++] = value;
}

/* Numbers of groups for a side with so many layers: the smallest for each depth that the deepest group can have. */
static IntList stage_numbers(Search *s, int layers, int pinned)
{
  IntList list = {0};
  if (pinned > 0) {
    push(s->arena, &list, pinned, 1);
    return list;
  }
  for (int p = 1; p <= layers; p++) {
    if (p <= ALL_STAGES || moe_part_max(layers, p) != moe_part_max(layers, p - 1)) {
      push(s->arena, &list, p, layers);
    }
  }
  return list;
}

static void add_tuple(Search *s, Tuple t)
{
  if (s->n_tuples == s->room) {
    Tuple *old = s->tuples;
    s->room = s->room ? 2 * s->room : 256;
    s->tuples = arena_new_array(s->arena, Tuple, (size_t)s->room);
    if (old) {
      memcpy(s->tuples, old, (size_t)s->n_tuples * sizeof *old);
    }
  }
  t.index = s->n_tuples;
  s->tuples[s->n_tuples++] = t;
}

static void add_placements(Search *s, Tuple t)
{
  Placement place = s->spec->plan.placement;
  if (place == PLACE_COLOCATED) {
    if (t.p_att == t.p_ffn) {
      t.place = PLACE_COLOCATED;
      add_tuple(s, t);
    }
    return;
  }
  if (place != PLACE_MIXED || t.single) {
    t.place = place == PLACE_MIXED ? PLACE_MIXED : PLACE_SEPARATE;
    add_tuple(s, t);
  }
  if (place != PLACE_SEPARATE && !t.single && t.p_att == t.p_ffn) {
    t.place = PLACE_MIXED;
    add_tuple(s, t);
  }
}

static void add_stages(Search *s, const IntList *p_att, const IntList *p_ffn, Tuple t)
{
  bool both = s->spec->plan.placement == PLACE_COLOCATED;
  t.batch = (int)moe_part_max(s->shape->global_batch, t.replicas);
  for (int i = 0; i < p_att->n; i++) {
    for (int j = 0; j < p_ffn->n; j++) {
      t.p_att = p_att->v[i];
      t.p_ffn = p_ffn->v[j];
      if ((both ? t.p_att : t.p_att + t.p_ffn) <= t.ranks) {
        add_placements(s, t);
      }
    }
  }
}

/* With `most` replicas, with the fewest whose largest share of the batch is no more, and on small clusters with all
   numbers below: fewer replicas exchange their gradients a little faster. */
static void add_budget(Search *s, const IntList *p_att, const IntList *p_ffn, Tuple t, int least)
{
  int most = t.replicas, share = (int)moe_part_max(s->shape->global_batch, most);
  int fewest = (int)moe_part_max(s->shape->global_batch, share);
  bool exact = t.exact;
  for (int r = least; r <= most; r++) {
    if (r == most || r == fewest || s->nodes.total <= ALL_REPLICAS) {
      t.replicas = r;
      t.exact = exact && r > 1;
      add_stages(s, p_att, p_ffn, t);
    }
  }
}

/* A pinned number of replicas on several nodes. Where the GPUs are pinned as well, replicas may lie as they fall. */
static void list_pinned(Search *s, const IntList *p_att, const IntList *p_ffn)
{
  const PlanSpec *pin = &s->spec->plan;
  int r = pin->replicas, per = s->nodes.ranks, nodes = s->nodes.count;
  bool fixed = pin->n_attention_gpus > 0 && pin->n_ffn_gpus > 0;
  int most = fixed ? s->nodes.total / r : nodes / r * per;
  if (most > per) {
    add_stages(s, p_att, p_ffn, (Tuple){.replicas = r, .ranks = most});
  }
  for (int q = 1; q <= per; q++) {
    if (fixed ? q == 1 : per % q == 0 && r <= nodes * q) {
      int ranks = fixed && most < per ? most : per / q;
      add_stages(s, p_att, p_ffn, (Tuple){.replicas = r, .ranks = ranks, .exact = r > 1 && !fixed, .single = true});
    }
  }
}

/* Replicas and the ranks each may use. On several nodes a replica has whole nodes or an equal part of one. */
static void list_tuples(Search *s)
{
  const PlanSpec *pin = &s->spec->plan;
  int dense = s->spec->model.dense.layers;
  IntList p_att = stage_numbers(s, s->spec->model.layers, plan_pinned_stages(s->spec, true));
  IntList p_ffn = stage_numbers(s, s->spec->model.layers - dense, plan_pinned_stages(s->spec, false));
  int most = pin->replicas ? pin->replicas : s->shape->global_batch, nodes = s->nodes.count, last = 0;
  if (pin->replicas > 0 && nodes > 1) {
    list_pinned(s, &p_att, &p_ffn);
    return;
  }
  if (nodes == 1) {
    for (int r = pin->replicas ? pin->replicas : 1; r <= s->nodes.ranks && r <= most; r++) {
      add_stages(s, &p_att, &p_ffn, (Tuple){.replicas = r, .ranks = s->nodes.ranks / r, .single = true});
    }
    return;
  }
  for (int k = nodes; k >= 2; k--) {
    int r = nodes / k < most ? nodes / k : most;
    if (r != last) {
      add_budget(s, &p_att, &p_ffn, (Tuple){.replicas = r, .ranks = k * s->nodes.ranks}, last + 1);
    }
    last = r;
  }
  for (int q = 1; q <= s->nodes.ranks; q++) {
    int r = nodes * q < most ? nodes * q : most;
    if (s->nodes.ranks % q == 0) {
      Tuple t = {.replicas = r, .ranks = s->nodes.ranks / q, .exact = true, .single = true};
      add_budget(s, &p_att, &p_ffn, t, 1);
    }
  }
}

/* ---- columns ---- */

typedef struct Columns {
  Column *v;
  int n, room;
} Columns;

static void add_column(Arena *arena, Columns *list, Column c)
{
  if (list->n == list->room) {
    Column *old = list->v;
    list->room = list->room ? 2 * list->room : 128;
    list->v = arena_new_array(arena, Column, (size_t)list->room);
    if (old) {
      memcpy(list->v, old, (size_t)list->n * sizeof *old);
    }
  }
  list->v[list->n++] = c;
}

static int largest(const int *list, int n)
{
  int most = 0;
  for (int i = 0; i < n; i++) {
    most = list[i] > most ? list[i] : most;
  }
  return most;
}

static int total(const int *list, int n, int p)
{
  if (n <= 1) {
    return p * list[0];
  }
  int sum = 0;
  for (int i = 0; i < n; i++) {
    sum += list[i];
  }
  return sum;
}

/* Ranks of all groups of a side with n in each, or as pinned. */
static int ranks_of(const Search *s, bool att, int p, int n)
{
  const PlanSpec *pin = &s->spec->plan;
  int count = att ? pin->n_attention_gpus : pin->n_ffn_gpus;
  return count > 1 ? total(att ? pin->attention_gpus : pin->ffn_gpus, count, p) : p * n;
}

/* Ranks per group that a side may have in a tuple. In separate plans over several nodes a side has whole nodes, so that
   nothing of the other side shares its NICs, and an FFN group either whole nodes or an equal part of one. */
static IntList counts(const Search *s, const Tuple *t, bool att)
{
  const PlanSpec *pin = &s->spec->plan;
  IntList list = {0};
  bool both = t->place == PLACE_COLOCATED; /* either side's pin holds for both */
  att = both ? pin->n_attention_gpus > 0 || pin->n_ffn_gpus == 0 : att;
  int pinned = att ? pin->n_attention_gpus : pin->n_ffn_gpus, p = att ? t->p_att : t->p_ffn, per = s->nodes.ranks;
  int other = att ? t->p_ffn : t->p_att, most = att ? t->batch : s->spec->model.moe.experts;
  if (pinned > 0) {
    push(s->arena, &list, largest(att ? pin->attention_gpus : pin->ffn_gpus, pinned), 1);
    return list;
  }
  int left = both ? t->ranks : t->ranks - other;
  for (int n = 1; n * p <= left && n <= most; n++) {
    bool even = att || t->single || t->place != PLACE_SEPARATE || n % per == 0 || per % n == 0;
    bool ends = !att && t->replicas == 1; /* the last node of the only replica may be used in part */
    if (even && (t->single || ends || t->place != PLACE_SEPARATE || n * p % per == 0)) {
      push(s->arena, &list, n, left);
    }
  }
  return list;
}

/* NICs of a side of a separate plan: those of its nodes, where it has them alone. */
static int side_nics(const Search *s, const Tuple *t, int ranks)
{
  const PlanSpec *pin = &s->spec->plan;
  bool shared = pin->n_attention_gpus > 0 && ranks_of(s, true, t->p_att, pin->attention_gpus[0]) % s->nodes.ranks != 0;
  if (t->single || shared) {
    return plan_default_nics(&s->nodes, ranks);
  }
  return (int)moe_part_max(ranks, s->nodes.ranks) * s->nodes.nics;
}

/* Columns of one side: its price may change with the other side's count; one column per run of equal price. */
static void add_side(Search *s, const Price *p, bool att, const IntList *own, const IntList *other, double limit,
                     Columns *out)
{
  const Tuple *t = p->tuple;
  int pinned = att ? s->spec->plan.attention_nics : s->spec->plan.ffn_nics;
  for (int i = 0; i < own->n; i++) {
    int n = own->v[i], ranks = ranks_of(s, att, att ? t->p_att : t->p_ffn, n);
    int nics = pinned > 0 ? pinned : side_nics(s, t, ranks);
    Column c = {.att = att, .ffn = !att, .att_n = att ? n : 0, .ffn_n = att ? 0 : n, .ranks = ranks};
    double run = INFINITY;
    c.att_nics = att ? nics : 0;
    c.ffn_nics = att ? 0 : nics;
    for (int j = 0; j <= other->n; j++) {
      double z = INFINITY;
      if (j < other->n) {
        z = att ? price_att(p, n, nics, other->v[j]) : price_ffn(p, other->v[j], n, nics);
        z = z <= limit ? z : INFINITY;
      }
      if (z != run) {
        if (isfinite(run)) {
          c.hi = other->v[j - 1];
          add_column(s->arena, out, c);
        }
        run = z;
        c.lo = j < other->n ? other->v[j] : 0;
        c.z_att = att ? z : 0;
        c.z_ffn = att ? price_ffn_launches(p, n) : z;
      }
    }
  }
}

/* Whether mixed groups of n and m ranks fall whole on nodes, over more than one of them. */
static bool mixed_fits(const Search *s, const Tuple *t, int n, int m)
{
  const PlanSpec *pin = &s->spec->plan;
  int per = s->nodes.ranks, ranks = t->p_att * (n + m);
  bool pinned = (pin->n_attention_gpus && pin->attention_gpus[0] != n) || (pin->n_ffn_gpus && pin->ffn_gpus[0] != m);
  return !pinned && per % (n + m) == 0 && ranks > per && ranks <= t->ranks && (t->replicas == 1 || ranks % per == 0) &&
         n <= t->batch && m <= s->spec->model.moe.experts && pin->n_attention_gpus <= 1 && pin->n_ffn_gpus <= 1;
}

/* Mixed: each node hosts whole pairs of groups and its NICs are divided between the two sides. */
static void add_mixed(Search *s, const Price *p, double limit, Columns *out)
{
  const Tuple *t = p->tuple;
  const PlanSpec *pin = &s->spec->plan;
  int per = s->nodes.ranks, nics = s->nodes.nics;
  for (int n = 1; n < per; n++) {
    for (int m = 1; n + m <= per; m++) {
      int ranks = t->p_att * (n + m), nodes = (int)moe_part_max(ranks, per);
      if (!mixed_fits(s, t, n, m)) {
        continue;
      }
      for (int a = 1; a < nics; a++) {
        Column c = {.att = true, .ffn = true, .att_n = n, .ffn_n = m, .ranks = ranks};
        c.att_nics = pin->attention_nics > 0 ? pin->attention_nics : a * nodes;
        c.ffn_nics = pin->ffn_nics > 0 ? pin->ffn_nics : (nics - a) * nodes;
        c.z_att = price_att(p, n, c.att_nics, m);
        c.z_ffn = price_ffn(p, n, m, c.ffn_nics) + price_ffn_launches(p, n);
        if (isfinite(c.z_att + c.z_ffn) && c.z_att <= limit && c.z_ffn <= limit) {
          add_column(s->arena, out, c);
        }
      }
    }
  }
}

static void add_colocated(Search *s, const Price *p, const IntList *own, double limit, Columns *out)
{
  int pinned = s->spec->plan.attention_nics;
  for (int i = 0; i < own->n && own->v[i] <= s->spec->model.moe.experts; i++) {
    int n = own->v[i], ranks = ranks_of(s, s->spec->plan.n_attention_gpus > 0, p->tuple->p_att, n);
    int nics = pinned > 0 ? pinned : plan_default_nics(&s->nodes, ranks);
    Column c = {.att = true, .ffn = true, .att_n = n, .ffn_n = n, .att_nics = nics, .ffn_nics = nics, .ranks = ranks};
    c.z_att = price_both(p, n, nics);
    if (isfinite(c.z_att) && c.z_att <= limit) {
      add_column(s->arena, out, c);
    }
  }
}

static void add_columns(Search *s, const Price *p, double limit, Columns *out)
{
  const Tuple *t = p->tuple;
  IntList att = counts(s, t, true), ffn = counts(s, t, false);
  if (t->place == PLACE_COLOCATED) {
    add_colocated(s, p, &att, limit, out);
  } else if (t->place == PLACE_MIXED && !t->single) {
    add_mixed(s, p, limit, out);
  } else {
    add_side(s, p, true, &att, &ffn, limit, out);
    add_side(s, p, false, &ffn, &att, limit, out);
  }
}

/* ---- search ---- */

enum { CACHED_LAYERS = 512 };

static void init_price(Search *s, Price *p, const Tuple *t)
{
  size_t n = (size_t)s->spec->model.layers + 1;
  bool cached = n <= CACHED_LAYERS;
  size_t at = cached ? ((size_t)t->p_att * n + (size_t)t->p_ffn) * 2 + (t->place == PLACE_COLOCATED) : 0;
  if (s->kinds == NULL) {
    s->kinds = arena_new_array(s->arena, Kinds, cached ? n * n * 2 : 1);
  }
  if (s->kinds[at].n_att == 0 || !cached) {
    price_kinds(s->arena, s->spec, t, &s->kinds[at]);
  }
  price_init(p, s->spec, s->shape, t, &s->kinds[at], &s->memo);
}

static int by_bound(const void *a, const void *b)
{
  const Tuple *x = a, *y = b;
  if (x->bound != y->bound) {
    return x->bound < y->bound ? -1 : 1;
  }
  return x->index - y->index;
}

/* Ranks divide so that both sides take equally long: no allocation of the tuple is faster than that. */
static double bound_of(Search *s, Price *p, Tuple *t)
{
  init_price(s, p, t);
  double att = price_att_alone(p), ffn = price_ffn_alone(p);
  double z = (t->place == PLACE_COLOCATED ? t->p_att : 1) * (att + ffn) / t->ranks;
  if (t->place != PLACE_COLOCATED) {
    z = (t->p_att * att + t->p_ffn * ffn) / t->ranks;
  }
  return (z > p->chain ? z : p->chain) + p->fill;
}

static bool better(const Found *best, double estimate, int ranks, int index, int best_ranks, int best_index)
{
  double old = best->choice.estimate;
  if (fabs(estimate - old) > 1e-9 * old) {
    return estimate < old;
  }
  return ranks != best_ranks ? ranks < best_ranks : index < best_index;
}

static Choice choose(const Search *s, const Price *p, const Column *a, const Column *f, double z)
{
  const PlanSpec *pin = &s->spec->plan;
  const Tuple *t = p->tuple;
  Choice c = {.replicas = t->replicas, .place = t->place, .z = z, .estimate = z + p->fill};
  c.att = (Side){.p = t->p_att, .n = a->att_n, .nics = a->att_nics};
  c.ffn = (Side){.p = t->p_ffn, .n = f->ffn_n, .nics = f->ffn_nics};
  c.att.list = pin->n_attention_gpus > 1 ? pin->attention_gpus : NULL;
  c.ffn.list = pin->n_ffn_gpus > 1 ? pin->ffn_gpus : NULL;
  if (t->place == PLACE_COLOCATED) {
    c.att.list = c.att.list ? c.att.list : c.ffn.list;
    c.ffn = c.att;
  }
  return c;
}

/* Least memory over all allocations that fit the ranks; for large searches over a sample of them. */
static void measure_shortage(Search *s, Price *p, Shortage *out)
{
  int64_t left = 2000000;
  for (int i = 0; i < s->n_tuples && left > 0; i++) {
    Tuple *t = &s->tuples[i];
    init_price(s, p, t);
    bool both = t->place == PLACE_COLOCATED;
    IntList att = counts(s, t, true), ffn = counts(s, t, false);
    for (int a = 0; a < att.n; a++) {
      for (int f = 0; f < ffn.n; f++) {
        int m = att.v[a], n = ffn.v[f];
        int ranks = ranks_of(s, true, t->p_att, m) + (both ? 0 : ranks_of(s, false, t->p_ffn, n));
        bool mixed = t->place == PLACE_MIXED && !t->single;
        if (ranks > t->ranks || (t->exact && ranks != t->ranks) || (both && m != n) ||
            (mixed && !mixed_fits(s, t, m, n)) || left-- < 0) {
          continue;
        }
        int64_t need_a = price_memory(p, both ? PLAN_A | PLAN_F : PLAN_A, m, n);
        int64_t need_f = both ? 0 : price_memory(p, PLAN_F, m, n), need = need_a > need_f ? need_a : need_f;
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

bool plan_search(Arena *out, const Spec *spec, const ShapeSpec *shape, Found *best, Shortage *shortage)
{
  Search s = {.arena = out, .spec = spec, .shape = shape, .nodes = plan_nodes(spec)};
  Price *p = arena_new_of(out, Price);
  int best_ranks = 0, best_index = 0;
  bool found = false;
  memset(best, 0, sizeof *best);
  memset(shortage, 0, sizeof *shortage);
  best->proved = true;
  best->pinned = all_pinned(spec);
  struct timespec begin, end;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  list_tuples(&s);
  for (int i = 0; i < s.n_tuples; i++) {
    s.tuples[i].bound = bound_of(&s, p, &s.tuples[i]);
  }
  if (s.n_tuples) {
    qsort(s.tuples, (size_t)s.n_tuples, sizeof *s.tuples, by_bound);
  }
  for (int i = 0; i < s.n_tuples; i++) {
    const Tuple *t = &s.tuples[i];
    if (found && t->bound > best->choice.estimate * (1 + 1e-9)) {
      break;
    }
    init_price(&s, p, t);
    Columns columns = {0};
    add_columns(&s, p, found ? best->choice.estimate * (1 + 1e-9) - p->fill : INFINITY, &columns);
    Milp milp = {columns.v, columns.n, t->ranks, t->exact, p->chain, spec->plan.node_limit, spec->plan.gap};
    MilpResult r;
    if (!milp_solve(&milp, &r)) {
      continue;
    }
    const Column *a = &columns.v[r.att], *f = &columns.v[r.ffn];
    int ranks = (a == f ? a->ranks : a->ranks + f->ranks) * t->replicas;
    if (!found || better(best, r.z + p->fill, ranks, t->index, best_ranks, best_index)) {
      best->choice = choose(&s, p, a, f, r.z);
      best->gap = r.gap;
      best_ranks = ranks;
      best_index = t->index;
    }
    best->proved = best->proved && r.proved;
    found = true;
  }
  clock_gettime(CLOCK_MONOTONIC, &end);
  best->ms = (double)(end.tv_sec - begin.tv_sec) * 1e3 + (double)(end.tv_nsec - begin.tv_nsec) / 1e6;
  if (!found) {
    measure_shortage(&s, p, shortage);
  }
  return found;
}
