/* Closed forms after the publications of the schedules: interleaved 1F1B takes (M v + p - 1)(f + b) plus exposed hops,
   with merged pairs [M v - (v - 1) p - 1] FB + v p (f + b), DualPipe (p + 1)(F + B) + (M - p - 1) FB + (p/2 - 1)(FB + B
   - 3 W). Chunked layers: the longest path through dispatches, experts and combines that share one stream. Fused
   kernels: the longer of compute and messages per product, with a head and tail that stay exposed. */
#include "codegen/plan_stage.h"

#include <math.h>
#include <string.h>

#include "codegen/arith.h"
#include "runtime/moe_layout.h"

static void grow(double *most, double value)
{
  *most = max2(*most, value);
}

/* ---- times of one layer ---- */

static double msg_ns(const Spec *spec, const Plan *plan, MoeEdge edge, int layer)
{
  return (double)cost_msg(spec, plan, edge, layer).ns * plan->chunks;
}

static double op_ns(const Spec *spec, const Plan *plan, MoeOpKind kind, int layer)
{
  return (double)cost_op_ns(spec, plan, kind, layer);
}

static void moe_layer(const Spec *spec, const Plan *plan, int l, StageTimes *t)
{
  double d = plan->chunks;
  bool relayed = cost_relayed(plan, l);
  double sum = relayed ? op_ns(spec, plan, MOE_OP_NODE_REDUCE, l) : 0;
  double relay = relayed ? op_ns(spec, plan, MOE_OP_RELAY, l) : 0;
  grow(&t->att_fwd, op_ns(spec, plan, MOE_OP_ATT_FWD, l));
  grow(&t->att_again, op_ns(spec, plan, MOE_OP_ATT_AGAIN, l));
  grow(&t->att_dgrad, op_ns(spec, plan, MOE_OP_ATT_DGRAD, l));
  grow(&t->att_wgrad, op_ns(spec, plan, MOE_OP_ATT_WGRAD, l));
  grow(&t->ffn_fwd, d * op_ns(spec, plan, MOE_OP_FFN_FWD, l));
  grow(&t->ffn_dgrad, d * op_ns(spec, plan, MOE_OP_FFN_DGRAD, l));
  grow(&t->ffn_wgrad, d * op_ns(spec, plan, MOE_OP_FFN_WGRAD, l));
  grow(&t->dispatch,
       msg_ns(spec, plan, MOE_EDGE_DISPATCH, l) + relay + (relayed ? msg_ns(spec, plan, MOE_EDGE_FORWARD, l) : 0));
  grow(&t->combine,
       msg_ns(spec, plan, MOE_EDGE_COMBINE, l) + sum + (relayed ? msg_ns(spec, plan, MOE_EDGE_GATHER, l) : 0));
  grow(&t->dispatch_b,
       msg_ns(spec, plan, MOE_EDGE_DISPATCH_B, l) + sum + (relayed ? msg_ns(spec, plan, MOE_EDGE_FORWARD_B, l) : 0));
  grow(&t->combine_b,
       msg_ns(spec, plan, MOE_EDGE_COMBINE_B, l) + (relayed ? msg_ns(spec, plan, MOE_EDGE_GATHER_B, l) : 0));
  if (cost_again(spec, plan->recompute, l)) {
    grow(&t->dispatch_again, msg_ns(spec, plan, MOE_EDGE_DISPATCH_AGAIN, l) +
                                 (relayed ? msg_ns(spec, plan, MOE_EDGE_FORWARD_AGAIN, l) : 0));
  }
}

void stage_times(const Spec *spec, const Plan *plan, StageTimes *t)
{
  int layers = spec->model.layers, last = -1;
  *t = (StageTimes){.chunks = plan->chunks, .nic_share = plan->groups[0].nic_share};
  for (int l = 0; l < layers; l++) {
    int g = plan_att(spec, plan, 0, l);
    if (spec_layer_is_dense(spec, l)) {
      t->dense_fwd = op_ns(spec, plan, MOE_OP_ATT_FWD, l);
      t->dense_dgrad = op_ns(spec, plan, MOE_OP_ATT_DGRAD, l);
      t->dense_wgrad = op_ns(spec, plan, MOE_OP_ATT_WGRAD, l);
    } else if (g != last) { /* the first of a group stands for all of it; windows: the next one as well */
      moe_layer(spec, plan, l, t);
      if (spec->model.attention.window > 0 && l + 1 < layers && plan_att(spec, plan, 0, l + 1) == g) {
        grow(&t->att_fwd, op_ns(spec, plan, MOE_OP_ATT_FWD, l + 1));
        grow(&t->att_again, op_ns(spec, plan, MOE_OP_ATT_AGAIN, l + 1));
        grow(&t->att_dgrad, op_ns(spec, plan, MOE_OP_ATT_DGRAD, l + 1));
      }
      last = g;
    }
    if (l + 1 < layers && plan_att(spec, plan, 0, l + 1) != g) {
      grow(&t->p2p, (double)cost_msg(spec, plan, MOE_EDGE_PIPE, l).ns);
    }
  }
  t->head = op_ns(spec, plan, MOE_OP_HEAD, layers);
  if (spec->model.attention.window > 0 && spec->model.attention.window_layers != LAYERS_ALL && layers > 1) {
    int l = layers - 2 < spec->model.dense.layers ? layers - 1 : layers - 2; /* a mean layer, not the slower one */
    t->att_fwd = 0.5 * (op_ns(spec, plan, MOE_OP_ATT_FWD, l) + op_ns(spec, plan, MOE_OP_ATT_FWD, layers - 1));
    t->att_again = 0.5 * (op_ns(spec, plan, MOE_OP_ATT_AGAIN, l) + op_ns(spec, plan, MOE_OP_ATT_AGAIN, layers - 1));
    t->att_dgrad = 0.5 * (op_ns(spec, plan, MOE_OP_ATT_DGRAD, l) + op_ns(spec, plan, MOE_OP_ATT_DGRAD, layers - 1));
  }
}

/* Dispatches 0..d-1, then combines 0..d-1 on one stream; experts in between as their chunks arrive. */
static double chunked(double dispatch, double ffn, double combine, int d)
{
  double a = dispatch / d, f = ffn / d, c = combine / d;
  return max2(max2(dispatch + combine, a + f + combine), max2(a + ffn + c, dispatch + f + c));
}

/* The experts with a message inside each of their two products. */
static double fused(double in, double ffn, double out)
{
  return ffn + in + out - cost_hidden(ffn, in, out);
}

/* Forward and backward of one MoE layer of an un-merged stage. */
static double layer_fwd(SystemKind system, const StageTimes *t)
{
  if (system == SYSTEM_TUTEL) {
    return t->att_fwd + chunked(t->dispatch, t->ffn_fwd, t->combine, t->chunks);
  }
  if (system == SYSTEM_COMET) {
    return t->att_fwd + fused(t->dispatch, t->ffn_fwd, t->combine);
  }
  return t->att_fwd + t->dispatch + t->ffn_fwd + t->combine;
}

static double layer_bwd(SystemKind system, const StageTimes *t)
{
  double att = t->att_again + t->att_dgrad + t->att_wgrad, ffn = t->ffn_dgrad + t->ffn_wgrad;
  if (system == SYSTEM_TUTEL) {
    return att + t->dispatch_again + chunked(t->combine_b, ffn, t->dispatch_b, t->chunks);
  }
  if (system == SYSTEM_COMET) {
    return att + fused(t->dispatch_again + t->combine_b, ffn, t->dispatch_b);
  }
  return att + ffn + t->dispatch_again + t->combine_b + t->dispatch_b;
}

double stage_merged_ns(const StageTimes *t, int layers, double tax)
{
  double compute = 0, comm = 0, ai = 0, cf = 0, slow = 1 / (1 - tax);
  for (int i = 0; i < layers; i++) {
    double cb = max2(comm, ai) + t->combine_b;
    double again = compute + slow * t->att_again;
    double da = t->dispatch_again > 0 ? max2(cb, again) + t->dispatch_again : cb;
    double af = max2(again, cf) + slow * t->att_fwd;
    double fi = max2(af, da) + slow * t->ffn_dgrad;
    double df = max2(da, af) + t->dispatch;
    double fw = fi + slow * t->ffn_wgrad;
    double db = max2(df, fi) + t->dispatch_b;
    double ff = max2(fw, df) + slow * t->ffn_fwd;
    cf = max2(db, ff) + t->combine;
    ai = max2(ff, db) + slow * t->att_dgrad;
    compute = ai + slow * t->att_wgrad;
    comm = cf;
  }
  return max2(compute, comm);
}

/* ---- stages ---- */

typedef struct Stage {
  double f, b, w; /* forward, whole backward, its weight gradients */
  double pair;    /* forward and backward, merged */
} Stage;

/* MoE and dense layers of a stage. */
static Stage stage_of(const Spec *spec, const StageLayout *at, const StageTimes *t, int s)
{
  SystemKind system = spec->plan.system;
  int64_t begin = moe_part_begin(spec->model.layers, at->stages, s);
  int64_t end = moe_part_begin(spec->model.layers, at->stages, s + 1), dense = spec->model.dense.layers;
  double n_dense = (double)(dense > begin ? (dense < end ? dense : end) - begin : 0);
  double n = (double)(end - begin) - n_dense, tax = spec->cluster.gpu.comm_tax;
  Stage st = {.f = n_dense * t->dense_fwd + n * layer_fwd(system, t),
              .b = n_dense * (t->dense_dgrad + t->dense_wgrad) + n * layer_bwd(system, t),
              .w = n_dense * t->dense_wgrad + n * (t->att_wgrad + t->ffn_wgrad)};
  bool dual = stage_dual(system);
  if (dual || system == SYSTEM_MEGATRON_OVERLAP) {
    st.pair = n_dense * (t->dense_fwd + t->dense_dgrad + t->dense_wgrad);
    st.pair += stage_merged_ns(t, (int)n, dual ? tax : 0);
  }
  return st;
}

/* Largest of each over all stages. */
static Stage largest(const Spec *spec, const StageLayout *at, const StageTimes *t)
{
  Stage most = {0};
  for (int s = 0; s < at->stages; s++) {
    Stage st = stage_of(spec, at, t, s);
    grow(&most.f, st.f);
    grow(&most.b, st.b);
    grow(&most.w, st.w);
    grow(&most.pair, st.pair);
  }
  return most;
}

static double hops(const StageLayout *at, double p2p)
{
  double p = at->p, m = at->micro_batches;
  if (at->p == 1) {
    return 0;
  }
  if (at->virtual_stages == 1) {
    return (2 * (p - 1) * m / p + 2 * (p - 2)) * p2p;
  }
  return at->mb_group >= at->p + 2 ? 2 * (p - 1) * p2p : 2 * (at->virtual_stages * p - 1) * p2p;
}

static double interleaved_ns(const Spec *spec, const StageLayout *at, const StageTimes *t)
{
  bool merged = spec->plan.system == SYSTEM_MEGATRON_OVERLAP;
  double m = at->micro_batches, p = at->p, v = at->virtual_stages, n = m * v, busiest = 0;
  Stage most = largest(spec, at, t);
  double pairs = max2(0, n - (v - 1) * p - 1);
  for (int r = 0; r < at->p; r++) {
    double sum = 0, pair = 0;
    for (int s = r; s < at->stages; s += at->p) {
      Stage st = stage_of(spec, at, t, s);
      sum += st.f + st.b;
      pair += st.pair;
    }
    double busy = merged ? pairs * pair / v + (n - pairs) * sum / v : m * sum;
    grow(&busiest, busy + (r == at->p - 1 ? m * t->head : 0));
  }
  return busiest + (p - 1) * (most.f + most.b) + hops(at, t->p2p);
}

static double dual_ns(const Spec *spec, const StageLayout *at, const StageTimes *t)
{
  bool fold = spec->plan.system == SYSTEM_DUALPIPEV;
  double p = fold ? 2.0 * at->p : at->p, c = fold ? 2.0 * at->micro_batches : at->micro_batches;
  Stage m = largest(spec, at, t);
  double ns = (p + 1) * (m.f + m.b) + (c - p - 1) * m.pair + (p / 2 - 1) * (m.pair + m.b - 3 * m.w);
  return ns + (p + 1 + 0.9 * c) * t->p2p + c / 2 * t->head;
}

/* ---- step's tail ---- */

static double exchange_ns(const Spec *spec, const StageLayout *at, double elems, double holders, double rate)
{
  const GpuSpec *gpu = &spec->cluster.gpu;
  double owners = at->shard == OPT_SHARD_NONE ? 1 : holders;
  double parts = at->shard == OPT_SHARD_ALL ? (double)at->replicas * at->p * at->n : holders;
  double bytes = 2 * 4 * elems * (parts - 1) / parts;
  return (bytes / rate + 32 * elems / owners / (gpu->hbm * gpu->eff_memory)) * 1e9;
}

/* Gradients of the largest pipeline rank, with the embedding or the head if it has one. */
static double tail_ns(const Spec *spec, const StageLayout *at, const StageTimes *t)
{
  const ClusterSpec *c = &spec->cluster;
  Nodes nodes = plan_nodes(spec);
  int ways = plan_system_ways(spec->plan.system), dense = spec->model.dense.layers;
  double layers = ceil((double)spec->model.layers * ways / at->p), holders = (double)at->n * at->replicas * ways;
  bool near = at->replicas * at->p * at->n <= nodes.ranks;
  double rate = near || t->nic_share <= 0 ? c->nvlink : c->nic * t->nic_share;
  bool inside = near || (at->replicas == 1 && ways == 1 && at->n <= nodes.ranks && nodes.ranks % at->n == 0);
  int experts = (int)moe_part_max(spec->model.moe.experts, at->n);
  double att = layers * (double)(cost_bucket_elems(spec, MOE_BUCKET_ATT, dense, 0) +
                                 cost_bucket_elems(spec, MOE_BUCKET_SHARED, dense, 0)); /* the same holders */
  att += max2((double)cost_bucket_elems(spec, MOE_BUCKET_EMBED, 0, 0),
              (double)cost_bucket_elems(spec, MOE_BUCKET_HEAD, 0, 0));
  double ffn = layers * (double)cost_bucket_elems(spec, MOE_BUCKET_EXPERTS, dense, experts);
  inside = inside && at->shard != OPT_SHARD_ALL;
  return exchange_ns(spec, at, att, holders, inside ? c->nvlink : rate) +
         exchange_ns(spec, at, ffn, (double)at->replicas * ways, rate);
}

double stage_step_ns(const Spec *spec, const StageLayout *at, const StageTimes *t)
{
  double ns = stage_dual(spec->plan.system) ? dual_ns(spec, at, t) : interleaved_ns(spec, at, t);
  return ns + (spec->costs.given ? 0 : tail_ns(spec, at, t));
}

int stage_live_bound(SystemKind system, const StageLayout *at, int rank)
{
  int p = at->p, v = at->virtual_stages, n = at->micro_batches * v;
  if (stage_dual(system)) {
    return system == SYSTEM_DUALPIPE ? p + 1 : 2 * p + 1;
  }
  int warm = v == 1 ? p - rank - 1 : 2 * (p - rank - 1) + (v - 1) * at->mb_group;
  warm += system == SYSTEM_MEGATRON_OVERLAP;
  return warm + 1 < n ? warm + 1 : n;
}

int stage_owed_bound(SystemKind system, const StageLayout *at, int rank)
{
  int end = at->p - 1 - rank;
  return system == SYSTEM_DUALPIPEV ? rank + 1 : system != SYSTEM_DUALPIPE ? 0 : (rank < end ? rank : end) + 1;
}

int stage_work(SystemKind system, int owed, int deepest)
{
  return owed > 0 ? owed * deepest : system == SYSTEM_MEGATRON_OVERLAP ? 2 : 1;
}
