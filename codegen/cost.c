/* FLOPs, bytes and times of compute ops. Parameter and FLOP counts are the closed forms of the public model
   definitions: projections of GQA 4 T H d (nq + nkv), attention core 2 B pairs nq (d_qk + d_v) over the causal (and
   windowed) pairs only, routed experts 6 T K H F, head 2 T H V. Each matrix costs the same again for its input gradient
   and for its weight gradient; the attention core costs 2.5 times as much backward, because kernels recompute the
   scores. Rows and pairs per FFN rank are expectations under uniform routing on the fullest rank, times the declared
   imbalance. */
#include "codegen/cost_terms.h"

#include <math.h>

#include "codegen/arith.h"
#include "runtime/moe_layout.h"

/* ---- sizes of the model ---- */

int cost_elem_bytes(const Spec *spec)
{
  return spec->train.dtype == DTYPE_BF16 ? 2 : 4;
}

int64_t cost_row_bytes(const Spec *spec)
{
  return (int64_t)spec->model.hidden * cost_elem_bytes(spec);
}

bool cost_layer_window(const Spec *spec, int layer)
{
  LayerPattern pattern = spec->model.attention.window_layers;
  return spec->model.attention.window > 0 && (pattern == LAYERS_ALL || (layer % 2 == 0) == (pattern == LAYERS_EVEN));
}

/* Weights of the projections alone: what the GEMMs multiply with. */
static double projection_weights(const Spec *spec)
{
  double h = spec->model.hidden, nq = spec->model.attention.heads;
  if (spec->model.attention.kind == ATTENTION_MLA) {
    double rq = spec->model.attention.q_lora, rkv = spec->model.attention.kv_lora;
    double dn = spec->model.attention.nope_dim, dr = spec->model.attention.rope_dim, dv = spec->model.attention.v_dim;
    double query = rq > 0 ? h * rq + rq * nq * (dn + dr) : h * nq * (dn + dr);
    return query + h * (rkv + dr) + rkv * nq * (dn + dv) + nq * dv * h;
  }
  return h * spec->model.attention.head_dim * (2 * nq + 2.0 * spec->model.attention.kv_heads);
}

static double attention_params(const Spec *spec)
{
  double h = spec->model.hidden, nq = spec->model.attention.heads, nkv = spec->model.attention.kv_heads;
  double d = spec->model.attention.head_dim, n = projection_weights(spec);
  if (spec->model.attention.kind == ATTENTION_MLA) {
    return n + spec->model.attention.q_lora + spec->model.attention.kv_lora;
  }
  if (spec->model.attention.bias) {
    n += (nq + 2 * nkv) * d + h;
  }
  if (spec->model.attention.sinks) {
    n += nq;
  }
  if (spec->model.attention.qk_norm == QK_NORM_HEAD) {
    n += 2 * d;
  } else if (spec->model.attention.qk_norm == QK_NORM_WHOLE) {
    n += (nq + nkv) * d;
  }
  return n;
}

double cost_expert_params(const Spec *spec)
{
  double h = spec->model.hidden, f = spec->model.moe.hidden;
  return 3 * h * f + (spec->model.moe.bias ? 2 * f + h : 0);
}

static double router_params(const Spec *spec)
{
  bool bias = spec->model.moe.router_bias || spec->model.moe.router == ROUTER_SIGMOID_BIAS;
  return (double)spec->model.moe.experts * spec->model.hidden + (bias ? spec->model.moe.experts : 0);
}

static double shared_params(const Spec *spec)
{
  return 3.0 * spec->model.hidden * spec->model.moe.shared;
}

static double dense_params(const Spec *spec)
{
  return 3.0 * spec->model.hidden * spec->model.dense.hidden;
}

double cost_model_params(const Spec *spec)
{
  double h = spec->model.hidden, table = h * spec->model.vocab, n = table + h + (spec->model.tied ? 0 : table);
  for (int l = 0; l < spec->model.layers; l++) {
    n += attention_params(spec) + 2 * h;
    n += l < spec->model.dense.layers
             ? dense_params(spec)
             : router_params(spec) + spec->model.moe.experts * cost_expert_params(spec) + shared_params(spec);
  }
  return n;
}

int64_t cost_bucket_elems(const Spec *spec, MoeBucketKind kind, int layer, int experts)
{
  double h = spec->model.hidden, n = 0;
  bool dense = layer < spec->model.dense.layers;
  switch (kind) {
  case MOE_BUCKET_EMBED:
    n = h * spec->model.vocab;
    break;
  case MOE_BUCKET_ATT: /* a dense layer's FFN stays on the attention side */
    n = h + attention_params(spec) + (dense ? dense_params(spec) : router_params(spec));
    break;
  case MOE_BUCKET_GAIN:
    n = h;
    break;
  case MOE_BUCKET_EXPERTS:
    n = dense ? 0 : experts * cost_expert_params(spec);
    break;
  case MOE_BUCKET_SHARED:
    n = dense ? 0 : shared_params(spec);
    break;
  case MOE_BUCKET_HEAD:
    n = h + (spec->model.tied ? 0 : h * spec->model.vocab);
    break;
  case MOE_BUCKET_NONE:
    break;
  }
  return (int64_t)n;
}

/* ---- routing ---- */

/* Chance that k distinct choices of n all miss a set of e: C(n - e, k) / C(n, k). */
static double miss(double n, double e, int k)
{
  double p = 1;
  for (int i = 0; i < k; i++) {
    p *= max2(0, n - e - i) / (n - i);
  }
  return p;
}

int cost_routable(const Spec *spec)
{
  return spec->model.moe.n_route_only > 0 ? spec->model.moe.n_route_only : spec->model.moe.experts;
}

int cost_hits(const Spec *spec, int64_t begin, int64_t end)
{
  if (spec->model.moe.n_route_only == 0) {
    return (int)(end - begin);
  }
  int n = 0;
  for (int i = 0; i < spec->model.moe.n_route_only; i++) {
    n += spec->model.moe.route_only[i] >= begin && spec->model.moe.route_only[i] < end;
  }
  return n;
}

int cost_hits_max(const Spec *spec, int parts)
{
  int64_t experts = spec->model.moe.experts;
  if (spec->model.moe.n_route_only == 0) {
    return (int)moe_part_max(experts, parts);
  }
  int most = 0;
  for (int j = 0; j < parts; j++) {
    int n = cost_hits(spec, moe_part_begin(experts, parts, j), moe_part_begin(experts, parts, j + 1));
    most = n > most ? n : most;
  }
  return most;
}

double cost_touch(const Spec *spec, int hits)
{
  int n = cost_routable(spec), k = spec->model.moe.top_k < n ? spec->model.moe.top_k : n;
  return 1 - miss(n, hits, k);
}

static double imbalance(const Spec *spec)
{
  return spec->model.moe.imbalance > 0 ? spec->model.moe.imbalance : 1;
}

double cost_rows_per_token(const Spec *spec, int hits)
{
  return min2(1, cost_touch(spec, hits) * imbalance(spec));
}

double cost_pairs_per_token(const Spec *spec, int hits)
{
  double mean = (double)spec->model.moe.top_k * hits / cost_routable(spec);
  return min2(min2(spec->model.moe.top_k, hits), mean * imbalance(spec));
}

/* ---- work ---- */

/* Sustained share of the peak at a size; the best there is where the size is 0. */
static double share(const Curve *curve, double constant, double x)
{
  double best = 0;
  for (int i = 0; i < curve->n; i++) {
    best = max2(best, curve->y[i]);
  }
  return curve->n == 0 ? constant : x > 0 ? curve_at(curve, x) : best;
}

double work_flops(Work w)
{
  return w.gemm + w.grouped + w.grouped_dgrad + w.grouped_wgrad + w.attention + w.attention_back;
}

double work_grouped(const Spec *spec, Work w)
{
  const GpuSpec *gpu = &spec->cluster.gpu;
  return w.grouped + w.grouped_dgrad / gpu->eff_grouped_dgrad + w.grouped_wgrad / gpu->eff_grouped_wgrad;
}

double work_flop_ns(const Spec *spec, Work w)
{
  const GpuSpec *gpu = &spec->cluster.gpu;
  double seq = (double)w.seq;
  return (w.gemm / share(&gpu->eff_gemm_rows, gpu->eff_gemm, w.rows) +
          work_grouped(spec, w) / share(&gpu->eff_grouped_rows, gpu->eff_grouped, w.expert_rows) +
          w.attention / share(&gpu->eff_attention_seq, gpu->eff_attention, seq) +
          w.attention_back / share(&gpu->eff_attention_back_seq, gpu->eff_attention, seq)) /
         gpu->flops * 1e9;
}

double work_ns(const Spec *spec, Work w)
{
  const GpuSpec *gpu = &spec->cluster.gpu;
  return max2(work_flop_ns(spec, w), w.bytes / (gpu->hbm * gpu->eff_memory) * 1e9) + gpu->launch_ns;
}

double cost_qkv_width(const Spec *spec)
{
  double nq = spec->model.attention.heads;
  if (spec->model.attention.kind == ATTENTION_MLA) {
    double dn = spec->model.attention.nope_dim, dr = spec->model.attention.rope_dim;
    return spec->model.attention.q_lora + spec->model.attention.kv_lora + dr + nq * (dn + dr) +
           nq * (dn + spec->model.attention.v_dim);
  }
  return (nq + 2.0 * spec->model.attention.kv_heads) * spec->model.attention.head_dim;
}

/* FLOPs of scores and values for one sequence. */
static double core_flops(const Spec *spec, int layer, int64_t seq)
{
  double s = (double)seq, w = s;
  if (cost_layer_window(spec, layer)) {
    w = min2(s, (double)spec->model.attention.window);
  }
  double pairs = s * w - w * (w - 1) / 2, width = 2.0 * spec->model.attention.head_dim;
  if (spec->model.attention.kind == ATTENTION_MLA) {
    width = spec->model.attention.nope_dim + spec->model.attention.rope_dim + spec->model.attention.v_dim;
  }
  return 2 * pairs * spec->model.attention.heads * width;
}

bool cost_again(const Spec *spec, Recompute recompute, int layer)
{
  return recompute == RECOMPUTE_FULL && layer >= spec->model.dense.layers && layer < spec->model.layers;
}

Work work_att(const Spec *spec, MoeOpKind kind, int layer, int64_t seq, int64_t seqs, Recompute recompute)
{
  const ModelSpec *m = &spec->model;
  double t = (double)(seq * seqs), h = m->hidden, v = m->vocab, b = cost_elem_bytes(spec);
  bool dense = layer < m->dense.layers;
  double weights = projection_weights(spec) + (dense ? dense_params(spec) : (double)m->moe.experts * h);
  double gemm = 2 * t * weights, core = (double)seqs * core_flops(spec, layer, seq);
  double acts = t * b * (6 * h + 2 * cost_qkv_width(spec) + (dense ? 3.0 * m->dense.hidden : 0)) +
                (dense ? 0 : 4 * t * m->moe.experts);
  Work w = {.rows = t, .seq = seq};
  switch (kind) {
  case MOE_OP_ATT_FWD:
  case MOE_OP_ATT_AGAIN:
    w.gemm = gemm;
    w.attention = core;
    w.bytes = b * weights + acts;
    break;
  case MOE_OP_ATT_DGRAD:
    w.gemm = gemm;
    w.attention_back = 2.5 * core;
    w.bytes = b * weights + 2 * acts;
    if (recompute == RECOMPUTE_FULL && dense) {
      w.gemm += gemm;
      w.attention += core;
      w.bytes += b * weights + acts;
    }
    break;
  case MOE_OP_ATT_WGRAD: /* gradients are fp32, read and written */
    w.gemm = gemm;
    w.bytes = 8 * weights + acts;
    break;
  case MOE_OP_HEAD: /* logits and both gradients */
    w.gemm = 6 * t * h * v;
    w.bytes = (2 * b + 8) * h * v + t * (8 * v + 4 * b * h);
    break;
  case MOE_OP_EMBED_FWD:
    w.bytes = 2 * t * h * b;
    break;
  case MOE_OP_EMBED_WGRAD:
    w.bytes = t * h * (b + 8);
    break;
  default:
    w.bytes = 3 * t * h * b; /* JOIN: two rows in, one out */
    break;
  }
  return w;
}

Work work_ffn(const Spec *spec, MoeOpKind kind, double rows, double pairs, double experts, double home, double weights,
              Recompute recompute)
{
  double h = spec->model.hidden, f = spec->model.moe.hidden, fs = spec->model.moe.shared, b = cost_elem_bytes(spec);
  double products = 6 * pairs * h * f;
  Work w = {.gemm = 6 * home * h * fs,
            .grouped = kind == MOE_OP_FFN_FWD ? products : 0,
            .grouped_dgrad = kind == MOE_OP_FFN_DGRAD ? products : 0,
            .grouped_wgrad = kind == MOE_OP_FFN_WGRAD ? products : 0,
            .rows = home,
            .expert_rows = experts > 0 ? pairs / experts : 0};
  double acts = b * (3 * rows * h + pairs * (2 * h + 3 * f) + home * 3 * fs);
  w.bytes = acts + weights * (kind == MOE_OP_FFN_WGRAD ? 8 : b);
  if (kind == MOE_OP_FFN_DGRAD) {
    w.bytes += acts;
    if (recompute != RECOMPUTE_NONE) { /* gate and up again */
      w.gemm += 4 * home * h * fs;
      w.grouped += 4 * pairs * h * f;
    }
  }
  return w;
}

double cost_flops_per_token(const Spec *spec, int64_t seq)
{
  double total = 2.0 * spec->model.hidden * spec->model.vocab;
  for (int l = 0; l < spec->model.layers; l++) {
    Work a = work_att(spec, MOE_OP_ATT_FWD, l, seq, 1, RECOMPUTE_NONE);
    total += (a.gemm + a.attention) / (double)seq;
    if (l >= spec->model.dense.layers) {
      Work f = work_ffn(spec, MOE_OP_FFN_FWD, 1, spec->model.moe.top_k, 0, 1, 0, RECOMPUTE_NONE);
      total += f.gemm + f.grouped;
    }
  }
  return 3 * total;
}

/* ---- ops of a plan ---- */

static const PlanGroup *att_of(const Plan *plan, int layer)
{
  return &plan->groups[plan->att_group[layer]];
}

static const PlanGroup *ffn_of(const Plan *plan, int layer)
{
  return &plan->groups[plan->ffn_group[layer]];
}

/* Tokens of a full micro-batch, or of its largest chunk. */
static double ffn_tokens(const Plan *plan)
{
  return (double)plan->mb_seqs * (double)moe_part_max(plan->shape->seq, plan->chunks > 1 ? plan->chunks : 1);
}

static Work ffn_op(const Spec *spec, const Plan *plan, MoeOpKind kind, int layer)
{
  const PlanGroup *g = ffn_of(plan, layer);
  double t = ffn_tokens(plan), e = plan_ffn_experts(spec, g);
  int hits = cost_hits_max(spec, g->n_ranks);
  return work_ffn(spec, kind, t * cost_rows_per_token(spec, hits), t * cost_pairs_per_token(spec, hits),
                  hits > 0 ? hits : 1, t / g->n_ranks, e * cost_expert_params(spec) + shared_params(spec),
                  plan->recompute);
}

/* RELAY writes heads and pairs of its rows; NODE_REDUCE reads a row from each rank of the node that has one and writes
   their sum. Both on the fullest relay. */
static Work relay_op(const Spec *spec, const Plan *plan, MoeOpKind kind, int layer)
{
  const PlanGroup *g = ffn_of(plan, layer);
  double t = ffn_tokens(plan);
  int hits = cost_hits_max(spec, g->n_ranks);
  double arrive = t * cost_rows_per_token(spec, hits);
  if (kind == MOE_OP_RELAY) {
    return (Work){.bytes = arrive * sizeof(MoeRowHead) + t * cost_pairs_per_token(spec, hits) * sizeof(MoePair)};
  }
  return (Work){.bytes = 2 * arrive * (double)cost_row_bytes(spec)};
}

Work cost_bucket_terms(const Spec *spec, const Plan *plan, MoeOpKind kind, MoeBucketKind bucket, int layer)
{
  bool model = bucket == MOE_BUCKET_EMBED || bucket == MOE_BUCKET_HEAD;
  int experts = bucket == MOE_BUCKET_EXPERTS ? plan_ffn_experts(spec, ffn_of(plan, layer)) : 0;
  double n = (double)cost_bucket_elems(spec, bucket, model ? 0 : layer, experts);
  double holders = cost_bucket_holders(spec, plan, bucket, layer), slice = ceil(n / holders);
  Work w = {0};
  if (kind == MOE_OP_GRAD_REDUCE) {
    w.bytes = slice * 4 * (holders + 1);
  } else if (kind == MOE_OP_OPTIMIZER) { /* reads gradient, master, m, v; writes master, m, v, weight */
    w.bytes = slice * 32;
  } else {
    w.bytes = n * 8;
  }
  return w;
}

/* A group of one rank has nobody in its table to exchange with. Where optimizer state lies with all ranks, its slices
   go there and back all the same: that time is part of its ops, nothing hides it. */
int64_t cost_bucket_op_ns(const Spec *spec, const Plan *plan, MoeOpKind kind, MoeBucketKind bucket, int layer)
{
  if (spec->costs.given) {
    return 1;
  }
  double ns = work_ns(spec, cost_bucket_terms(spec, plan, kind, bucket, layer));
  bool alone = plan->optimizer_shard == OPT_SHARD_ALL && cost_bucket_parties(spec, plan, bucket, layer) == 1;
  if (alone && (kind == MOE_OP_GRAD_REDUCE || kind == MOE_OP_OPTIMIZER)) {
    ns += (double)cost_bucket_msg(spec, plan, MOE_EDGE_REDUCE, bucket, layer).ns;
  }
  return (int64_t)max2(1, round(ns));
}

/* The layer's bucket with the most work; layers >= L: the per-model ones. */
static int64_t tail_op_ns(const Spec *spec, const Plan *plan, MoeOpKind kind, int layer)
{
  if (layer < 0) {
    return (int64_t)max2(1, spec->cluster.gpu.launch_ns);
  }
  if (layer >= spec->model.layers) {
    int64_t head = cost_bucket_op_ns(spec, plan, kind, MOE_BUCKET_HEAD, layer);
    int64_t embed = cost_bucket_op_ns(spec, plan, kind, MOE_BUCKET_EMBED, layer);
    return head > embed ? head : embed;
  }
  int64_t most = cost_bucket_op_ns(spec, plan, kind, MOE_BUCKET_ATT, layer);
  if (layer >= spec->model.dense.layers) {
    int64_t experts = cost_bucket_op_ns(spec, plan, kind, MOE_BUCKET_EXPERTS, layer);
    most = experts > most ? experts : most;
  }
  return most;
}

double cost_hidden(double work, double in, double out)
{
  return 0.865 * (min2(work * 2 / 3, in) + min2(work / 3, out));
}

Work cost_op_terms(const Spec *spec, const Plan *plan, MoeOpKind kind, int layer)
{
  if (kind == MOE_OP_ATT_AGAIN && !cost_again(spec, plan->recompute, layer)) {
    return (Work){0};
  }
  switch (kind) {
  case MOE_OP_FFN_FWD:
  case MOE_OP_FFN_DGRAD:
  case MOE_OP_FFN_WGRAD:
    return ffn_op(spec, plan, kind, layer);
  case MOE_OP_RELAY:
  case MOE_OP_NODE_REDUCE:
    return relay_op(spec, plan, kind, layer);
  case MOE_OP_SEND: /* their time is the message's: cost_msg */
  case MOE_OP_RECV:
  case MOE_OP_SCALARS:
  case MOE_OP_GRAD_REDUCE:
  case MOE_OP_OPTIMIZER:
  case MOE_OP_WEIGHTS_IN:
  case MOE_OP_COUNT:
    return (Work){0};
  default:
    return work_att(spec, kind, layer, plan->shape->seq, plan_att_seqs(plan, att_of(plan, layer)), plan->recompute);
  }
}

/* What the spec's costs block says; a chunk takes its part. */
static double given_ns(const Spec *spec, const Plan *plan, MoeOpKind kind)
{
  const CostsSpec *c = &spec->costs;
  double part = plan->chunks > 1 ? 1.0 / plan->chunks : 1;
  switch (kind) {
  case MOE_OP_ATT_FWD:
  case MOE_OP_ATT_AGAIN:
    return c->att_fwd;
  case MOE_OP_ATT_DGRAD:
    return c->att_dgrad;
  case MOE_OP_ATT_WGRAD:
    return c->att_wgrad;
  case MOE_OP_FFN_FWD:
    return c->ffn_fwd * part;
  case MOE_OP_FFN_DGRAD:
    return c->ffn_dgrad * part;
  case MOE_OP_FFN_WGRAD:
    return c->ffn_wgrad * part;
  default:
    return 1;
  }
}

OpWork cost_op_work(const Spec *spec, const Plan *plan, MoeOpKind kind, int layer)
{
  Work w = cost_op_terms(spec, plan, kind, layer);
  return (OpWork){.flops = work_flops(w), .bytes = w.bytes};
}

int64_t cost_op_ns(const Spec *spec, const Plan *plan, MoeOpKind kind, int layer)
{
  if (kind == MOE_OP_SEND || kind == MOE_OP_RECV) {
    return 1;
  }
  if (kind == MOE_OP_ATT_AGAIN && !cost_again(spec, plan->recompute, layer)) {
    return 0;
  }
  if (spec->costs.given) {
    return (int64_t)max2(1, round(given_ns(spec, plan, kind)));
  }
  if (kind == MOE_OP_GRAD_REDUCE || kind == MOE_OP_OPTIMIZER || kind == MOE_OP_WEIGHTS_IN) {
    return tail_op_ns(spec, plan, kind, layer);
  }
  return (int64_t)max2(1, round(work_ns(spec, cost_op_terms(spec, plan, kind, layer))));
}
