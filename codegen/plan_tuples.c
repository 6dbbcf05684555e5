/* Replicas, groups per side, placement and recomputation: the corners of the search, and how fast an allocation of each
   can be at best. */
#include <math.h>
#include <stdlib.h>

#include "codegen/plan_price.h"
#include "runtime/moe_layout.h"

enum {
  ALL_STAGES = 16,  /* up to here every number of groups is tried */
  ALL_REPLICAS = 64 /* with so many GPUs every number of replicas */
};

/* Work of one sequence through the deepest group of a side. */
typedef struct Work1 {
  double att;           /* ns if one rank had it, at the best rates */
  double grouped, gemm; /* ns of the experts' and the shared experts' products, at a rate of one */
  int least;            /* ranks per FFN group, for its weights to fit in memory */
} Work1;

typedef struct Listing {
  Arena *arena;
  const Spec *spec;
  const ShapeSpec *shape;
  Nodes nodes;
  Tuple *tuples;
  int n_tuples, room;
  Work1 *work;          /* [recompute][groups]: att by attention groups, the rest by FFN groups */
  Chain chain[3][2][2]; /* [recompute][on one node][colocated], where the batch is not smaller than a micro-batch */
  double *share;        /* [experts + 1] least of n times the fullest rank's pairs over all pairs, n ranks or more */
} Listing;

static void push(Arena *arena, IntList *list, int value, int room)
{
  if (list->v == NULL) {
    list->v = arena_new_array(arena, int, (size_t)room);
  }
  list->v[list->n++] = value;
}

/* Numbers of groups for a side with so many layers: the smallest for each depth that the deepest group can have. */
static IntList stage_numbers(Listing *s, int layers, int pinned)
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

static void add_tuple_as(Listing *s, Tuple t)
{
  s->tuples = arena_grow(s->arena, s->tuples, s->n_tuples, &s->room, sizeof *s->tuples);
  t.index = s->n_tuples;
  s->tuples[s->n_tuples++] = t;
}

/* Where recomputation and the place of the optimizer's state are free to choose, each way of them is a corner of its
   own; the bounds sort the rest. */
static void add_tuple(Listing *s, Tuple t)
{
  Recompute pin = s->spec->plan.recompute;
  for (int r = RECOMPUTE_NONE; r <= RECOMPUTE_FULL; r++) {
    for (OptShard shard = OPT_SHARD_HOLDERS; shard < OPT_SHARD_AUTO; shard++) {
      if ((pin == RECOMPUTE_AUTO || pin == (Recompute)r) && plan_shard_allowed(s->spec, shard)) {
        t.recompute = (Recompute)r;
        t.shard = shard;
        add_tuple_as(s, t);
      }
    }
  }
}

static void add_placements(Listing *s, Tuple t)
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
  if (place != PLACE_SEPARATE && !t.single) {
    t.place = PLACE_MIXED;
    add_tuple(s, t);
  }
}

static void add_stages(Listing *s, const IntList *p_att, const IntList *p_ffn, Tuple t)
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
static void add_budget(Listing *s, const IntList *p_att, const IntList *p_ffn, Tuple t, int least)
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
static void list_pinned(Listing *s, const IntList *p_att, const IntList *p_ffn)
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
static void list_tuples(Listing *s)
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

/* ---- bounds ---- */

static double best_rate(const Curve *curve, double constant, double most)
{
  double best = curve->n ? curve_at(curve, most) : constant;
  for (int i = 0; i < curve->n && curve->x[i] <= most; i++) {
    best = curve->y[i] > best ? curve->y[i] : best;
  }
  return best;
}

/* Of a sequence, at the best rates: sizes are left open. */
static double att_ns(const Listing *s, MoeOpKind kind, int layer, Recompute recompute)
{
  Work w = work_att(s->spec, kind, layer, s->shape->seq, 1, recompute);
  w.rows = 0;
  return work_flop_ns(s->spec, w);
}

static double layer_ns(const Listing *s, int layer, Recompute recompute)
{
  double again = cost_again(s->spec, recompute, layer) ? att_ns(s, MOE_OP_ATT_AGAIN, layer, recompute) : 0;
  return att_ns(s, MOE_OP_ATT_FWD, layer, recompute) + again + att_ns(s, MOE_OP_ATT_DGRAD, layer, recompute) +
         att_ns(s, MOE_OP_ATT_WGRAD, layer, recompute);
}

/* Busiest attention group of p, per sequence, if layers could be cut to be dealt evenly. */
static double deepest(const Listing *s, int p, Recompute recompute, const double *layer)
{
  int layers = s->spec->model.layers;
  double head = att_ns(s, MOE_OP_HEAD, 0, recompute), sum = head;
  for (int l = 0; l < layers; l++) {
    sum += layer[l];
  }
  return fmax(head, sum / p);
}

/* Ranks per FFN group from which on weights and gradients of its experts fit. */
static int least_ranks(const Listing *s, int64_t layers)
{
  const ModelSpec *m = &s->spec->model;
  double each = (double)layers * cost_expert_params(s->spec) * (s->spec->train.dtype == DTYPE_BF16 ? 6 : 8);
  for (int n = 1; n < m->moe.experts; n++) {
    if ((double)moe_part_max(m->moe.experts, n) * each <= (double)s->spec->cluster.gpu.memory) {
      return n;
    }
  }
  return m->moe.experts;
}

static void init_bounds(Listing *s)
{
  static const MoeOpKind ops[] = {MOE_OP_FFN_FWD, MOE_OP_FFN_DGRAD, MOE_OP_FFN_WGRAD};
  const ModelSpec *m = &s->spec->model;
  int layers = m->layers, moe = layers - m->dense.layers;
  double *layer = arena_new_array(s->arena, double, (size_t)layers), t = (double)s->shape->seq;
  double scale = 1e9 / s->spec->cluster.gpu.flops;
  s->work = arena_new_array(s->arena, Work1, 3 * (size_t)(layers + 1));
  for (int r = 0; r < 3; r++) {
    Work ffn = {0};
    for (int l = 0; l < layers; l++) {
      layer[l] = layer_ns(s, l, (Recompute)r);
    }
    for (int i = 0; i < 3; i++) {
      Work w = work_ffn(s->spec, ops[i], 0, t * m->moe.top_k, 0, t, 0, (Recompute)r);
      ffn.grouped += work_grouped(s->spec, w);
      ffn.gemm += w.gemm;
    }
    for (int p = 1; p <= layers; p++) {
      int64_t deep = moe_part_max(moe, p);
      s->work[r * (layers + 1) + p] = (Work1){.att = deepest(s, p, (Recompute)r, layer),
                                              .grouped = (double)deep * ffn.grouped * scale,
                                              .gemm = (double)deep * ffn.gemm * scale,
                                              .least = least_ranks(s, deep)};
    }
  }
  int experts = m->moe.experts, k = m->moe.top_k < cost_routable(s->spec) ? m->moe.top_k : cost_routable(s->spec);
  s->share = arena_new_array(s->arena, double, (size_t)experts + 2);
  s->share[experts + 1] = INFINITY;
  for (int n = experts; n >= 1; n--) {
    double all = n * cost_pairs_per_token(s->spec, cost_hits_max(s->spec, n)) / k;
    s->share[n] = all < s->share[n + 1] ? all : s->share[n + 1];
  }
}

static Chain chain_of(Listing *s, const Tuple *t, Memo *memo)
{
  bool both = t->place == PLACE_COLOCATED, usual = t->batch >= s->shape->micro_batch;
  Chain *known = &s->chain[t->recompute][t->single][both];
  if (usual && known->all > 0) {
    return *known;
  }
  Price p;
  price_init(&p, s->spec, s->shape, t, NULL, memo);
  Chain c = price_chain(&p);
  *known = usual ? c : *known;
  return c;
}

/* Ranks divide so that both sides take equally long: no allocation of the tuple is faster than that. The experts' rate
   is that of the largest micro-batch there can be. */
static double bound_of(Listing *s, const Tuple *t, Memo *memo)
{
  const GpuSpec *gpu = &s->spec->cluster.gpu;
  const ModelSpec *m = &s->spec->model;
  bool both = t->place == PLACE_COLOCATED, pinned = s->spec->plan.n_ffn_gpus > 0 || both;
  const Work1 *att = &s->work[(int)t->recompute * (m->layers + 1) + t->p_att];
  const Work1 *ffn = &s->work[(int)t->recompute * (m->layers + 1) + t->p_ffn];
  int least = pinned ? 1 : ffn->least;
  double ranks = (double)(both ? t->ranks : t->ranks - t->p_ffn * least) / t->p_att;
  double mb_seqs = fmin(t->batch, fmax(1, ranks) * s->shape->micro_batch);
  double imbalance = m->moe.imbalance > 1 ? m->moe.imbalance : 1;
  double rows = mb_seqs * (double)s->shape->seq * m->moe.top_k / cost_routable(s->spec) * imbalance;
  double experts = ffn->grouped * s->share[least] / best_rate(&gpu->eff_grouped_rows, gpu->eff_grouped, fmax(1, rows));
  experts += ffn->gemm / best_rate(&gpu->eff_gemm_rows, gpu->eff_gemm, INFINITY);
  double z = both ? t->p_att * (att->att + experts) : t->p_att * att->att + t->p_ffn * experts;
  double chain, fill;
  Chain c = chain_of(s, t, memo);
  price_span(s->spec, t, &c, &chain, &fill);
  z *= (double)t->batch / t->ranks;
  return (z > chain ? z : chain) + fill;
}

static int by_bound(const void *a, const void *b)
{
  const Tuple *x = a, *y = b;
  if (x->bound != y->bound) {
    return x->bound < y->bound ? -1 : 1;
  }
  return x->index - y->index;
}

Tuple *tuples_list(Arena *arena, const Spec *spec, const ShapeSpec *shape, int *n)
{
  Listing s = {.arena = arena, .spec = spec, .shape = shape, .nodes = plan_nodes(spec)};
  Memo *memo = arena_new_of(arena, Memo);
  list_tuples(&s);
  init_bounds(&s);
  for (int i = 0; i < s.n_tuples; i++) {
    s.tuples[i].bound = bound_of(&s, &s.tuples[i], memo);
  }
  if (s.n_tuples) {
    qsort(s.tuples, (size_t)s.n_tuples, sizeof *s.tuples, by_bound);
  }
  *n = s.n_tuples;
  return s.tuples;
}
