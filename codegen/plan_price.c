#include "codegen/plan_price.h"

#include <math.h>
#include <string.h>

#include "codegen/arith.h"
#include "runtime/moe_layout.h"

static int min_of(const int *list, int n, int otherwise)
{
  int least = otherwise;
  for (int i = 0; i < n; i++) {
    least = list[i] < least ? list[i] : least;
  }
  return least;
}

static bool colocated(const Price *p)
{
  return p->tuple->place == PLACE_COLOCATED;
}

/* A layer of each kind, -1 where the model has none. */
static int sample_layer(const Spec *spec, int kind)
{
  for (int l = 0; l < spec->model.layers && l < spec->model.dense.layers + 2; l++) {
    if (spec_layer_is_dense(spec, l) * 2 + cost_layer_window(spec, l) == kind) {
      return l;
    }
  }
  return -1;
}

static Work att_work(const Price *p, MoeOpKind kind, int layer, int seqs)
{
  return work_att(p->spec, kind, layer, p->shape->seq, seqs, p->tuple->recompute);
}

/* Attention of one layer of a kind, one micro-batch; without weight gradients the ops that wait for each other. */
static double layer_ns(const Price *p, int kind, int seqs, bool wgrad)
{
  int l = sample_layer(p->spec, kind);
  double ns = 0;
  if (l >= 0) {
    ns += work_ns(p->spec, att_work(p, MOE_OP_ATT_FWD, l, seqs));
    ns += work_ns(p->spec, att_work(p, MOE_OP_ATT_DGRAD, l, seqs));
    ns += wgrad ? work_ns(p->spec, att_work(p, MOE_OP_ATT_WGRAD, l, seqs)) : 0;
    bool again = wgrad && cost_again(p->spec, p->tuple->recompute, l);
    ns += again ? work_ns(p->spec, att_work(p, MOE_OP_ATT_AGAIN, l, seqs)) : 0;
  }
  return ns;
}

static double head_ns(const Price *p, int seqs)
{
  return work_ns(p->spec, att_work(p, MOE_OP_HEAD, 0, seqs));
}

/* Experts of one layer on the fullest of n ranks, all tokens of the step in micro-batches of mb_seqs sequences, without
   launches or reads of weights. */
static double find_ffn_layer_ns(const Price *p, int n, int mb_seqs)
{
  double t = (double)(p->tuple->batch * p->shape->seq), ns = 0;
  int hits = cost_hits_max(p->spec, n);
  static const MoeOpKind ops[] = {MOE_OP_FFN_FWD, MOE_OP_FFN_DGRAD, MOE_OP_FFN_WGRAD};
  for (int i = 0; i < 3; i++) {
    double pairs = cost_pairs_per_token(p->spec, hits);
    Work w = work_ffn(p->spec, ops[i], t * cost_rows_per_token(p->spec, hits), t * pairs, hits, t / n, 0,
                      p->tuple->recompute);
    w.rows = (double)(mb_seqs * p->shape->seq) / n;
    w.expert_rows = hits > 0 ? (double)(mb_seqs * p->shape->seq) * pairs / hits : 0;
    ns += work_ns(p->spec, w) - p->spec->cluster.gpu.launch_ns;
  }
  return ns;
}

/* Whether the rate of the experts' products depends on the micro-batch. */
static bool ffn_by_size(const Price *p)
{
  const GpuSpec *gpu = &p->spec->cluster.gpu;
  return gpu->eff_grouped_rows.n > 0 || (p->spec->model.moe.shared > 0 && gpu->eff_gemm_rows.n > 0);
}

double price_ffn_compute(const Price *p, int n, int mb_seqs)
{
  Memo *memo = p->memo;
  mb_seqs = ffn_by_size(p) ? mb_seqs : 1;
  if (n >= MEMO) {
    return find_ffn_layer_ns(p, n, mb_seqs);
  }
  if (memo->ffn_layer[n] == 0 || memo->ffn_seqs[n] != mb_seqs) {
    memo->ffn_layer[n] = find_ffn_layer_ns(p, n, mb_seqs);
    memo->ffn_seqs[n] = mb_seqs;
  }
  return memo->ffn_layer[n];
}

/* ---- messages ---- */

static bool relayed(const Price *p, int ffn_n)
{
  Dedup dedup = p->spec->plan.dedup;
  return (p->mix.on > 0 ? p->mix.on > 1 : ffn_n > 1 && p->nodes.ranks > 1) &&
         (dedup == DEDUP_NODE || (dedup == DEDUP_AUTO && !p->tuple->single));
}

/* Ranks of an FFN group on a node, at most. */
static int node_ranks(const Price *p, int ffn_n)
{
  return p->mix.on > 0 ? p->mix.on : ffn_n < p->nodes.ranks ? ffn_n : p->nodes.ranks;
}

/* Rows that leave an attention rank per token. */
static double find_rows_out(const Price *p, int ffn_n)
{
  const Spec *spec = p->spec;
  if (spec->plan.dedup == DEDUP_FLAT) {
    return spec->model.moe.top_k;
  }
  int step = relayed(p, ffn_n) ? p->nodes.ranks : 1;
  double rows = 0;
  for (int j = 0; j < ffn_n; j += step) {
    int end = j + step < ffn_n ? j + step : ffn_n;
    rows += cost_touch(spec, cost_hits(spec, moe_part_begin(spec->model.moe.experts, ffn_n, j),
                                       moe_part_begin(spec->model.moe.experts, ffn_n, end)));
  }
  return rows;
}

static double rows_out(const Price *p, int ffn_n)
{
  if (p->mix.on > 0) {
    return p->mix.rows;
  }
  if (ffn_n >= MEMO) {
    return find_rows_out(p, ffn_n);
  }
  if (p->memo->rows_out[ffn_n] == 0) {
    p->memo->rows_out[ffn_n] = find_rows_out(p, ffn_n);
  }
  return p->memo->rows_out[ffn_n];
}

/* Rows that reach the busiest FFN rank per token, as a relay or as the experts' rank. */
static double rows_in(const Price *p, int ffn_n)
{
  const Spec *spec = p->spec;
  double factor = spec->model.moe.imbalance > 1 ? spec->model.moe.imbalance : 1;
  if (p->mix.on > 0) {
    return p->mix.rows_in;
  }
  if (!relayed(p, ffn_n)) {
    int hits = cost_hits_max(spec, ffn_n);
    return spec->plan.dedup == DEDUP_FLAT ? cost_pairs_per_token(spec, hits) : cost_rows_per_token(spec, hits);
  }
  int ranks = ffn_n < p->nodes.ranks ? ffn_n : p->nodes.ranks, most = 0;
  for (int j = 0; j < ffn_n; j += ranks) {
    int end = j + ranks < ffn_n ? j + ranks : ffn_n;
    int hits = cost_hits(spec, moe_part_begin(spec->model.moe.experts, ffn_n, j),
                         moe_part_begin(spec->model.moe.experts, ffn_n, end));
    most = hits > most ? hits : most;
  }
  return cost_touch(spec, most) / ranks * factor;
}

Bytes price_bytes(const Price *p, double rows, double pairs)
{
  double row = (double)cost_row_bytes(p->spec);
  return (Bytes){.dispatch = rows * (row + sizeof(MoeRowHead)) + pairs * sizeof(MoePair),
                 .again = p->tuple->recompute == RECOMPUTE_FULL ? rows * row : 0,
                 .dispatch_b = rows * row + pairs * sizeof(float),
                 .combine = rows * (row + sizeof(uint32_t)),
                 .combine_b = rows * row};
}

/* Share of a port's rate that messages of this size reach. */
static double reached(const Curve *curve, double bytes)
{
  return curve->n ? curve_at(curve, max2(bytes, 1)) : 1;
}

/* One message of a micro-batch between two ranks. */
static double pair_bytes(const Price *p, int att_n, int ffn_n)
{
  double tokens = (double)(price_mb_seqs(p, att_n) * p->shape->seq);
  return tokens * rows_out(p, ffn_n) * (double)cost_row_bytes(p->spec) / ((double)att_n * ffn_n);
}

double price_reached(const Price *p, const Curve *curve, int att_n, int ffn_n)
{
  return reached(curve, pair_bytes(p, att_n, ffn_n));
}

/* Slowest port of a rank that moves so many bytes in one direction, in messages of `each`: NVLink within a node, its
   share of the side's NICs between nodes. */
static double port_ns(const Price *p, double bytes, double each, int ranks, int nics)
{
  const ClusterSpec *c = &p->spec->cluster;
  double nvlink = c->nvlink * reached(&c->nvlink_bytes, each) / 1e9;
  double nic = c->nic * reached(&c->nic_bytes, each) / 1e9 * nics / ranks;
  double far = p->tuple->single ? 0 : p->mix.on > 0 ? p->mix.far : 1;
  return max2((1 - far) * bytes / nvlink, far > 0 ? far * bytes / nic : 0);
}

static int all_ranks(const Price *p, int att_n, int ffn_n)
{
  return p->tuple->replicas * (p->tuple->p_att * att_n + (colocated(p) ? 0 : p->tuple->p_ffn * ffn_n));
}

/* Gradients to their owners, updated weights back, and the optimizer between them. all: ranks of the plan. */
static double tail_ns(const Price *p, double elems, int holders, int all, double nics_per_rank)
{
  const ClusterSpec *c = &p->spec->cluster;
  bool crosses = p->nodes.count > 1 && p->tuple->ranks * p->tuple->replicas > p->nodes.ranks;
  double owners = p->tuple->shard == OPT_SHARD_ALL ? all : holders;
  double bytes = 2 * 4 * elems * (owners - 1) / owners;
  double rate = crosses && nics_per_rank > 0 ? c->nic * nics_per_rank : c->nvlink;
  return (bytes / rate + 32 * elems / holders / (c->gpu.hbm * c->gpu.eff_memory)) * 1e9;
}

static double att_elems(const Price *p, const Kind *k)
{
  int dense = p->spec->model.dense.layers;
  double n = (k->layers[0] + k->layers[1]) * (double)cost_bucket_elems(p->spec, MOE_BUCKET_ATT, dense, 0);
  n += (k->layers[2] + k->layers[3]) * (double)cost_bucket_elems(p->spec, MOE_BUCKET_ATT, 0, 0);
  n += k->embed ? (double)cost_bucket_elems(p->spec, MOE_BUCKET_EMBED, 0, 0) : 0;
  return n + (k->head ? (double)cost_bucket_elems(p->spec, MOE_BUCKET_HEAD, 0, 0) : 0);
}

double price_att_tail(const Price *p, int kind, int att_n, int ffn_n, double nics_per_rank)
{
  int least = min_of(p->spec->plan.attention_gpus, p->spec->plan.n_attention_gpus, att_n);
  return tail_ns(p, att_elems(p, &p->kinds.att[kind]), least * p->tuple->replicas, all_ranks(p, att_n, ffn_n),
                 nics_per_rank);
}

/* Of so many layers' experts on n ranks, and of the shared one, which all of them hold. */
static double ffn_tail(const Price *p, int layers, int n, int all, double nics_per_rank)
{
  int dense = p->spec->model.dense.layers, most = (int)moe_part_max(p->spec->model.moe.experts, n),
      q = p->tuple->replicas;
  double own = layers * (double)cost_bucket_elems(p->spec, MOE_BUCKET_EXPERTS, dense, most);
  double shared = layers * (double)cost_bucket_elems(p->spec, MOE_BUCKET_SHARED, dense, 0);
  return tail_ns(p, own, q, all, nics_per_rank) + tail_ns(p, shared, n * q, all, nics_per_rank);
}

double price_ffn_tail(const Price *p, int kind, int att_n, int ffn_n, double nics_per_rank)
{
  const PlanSpec *pin = &p->spec->plan;
  return ffn_tail(p, p->kinds.ffn[kind].ffn_layers, min_of(pin->ffn_gpus, pin->n_ffn_gpus, ffn_n),
                  all_ranks(p, att_n, ffn_n), nics_per_rank);
}

/* ---- memory ---- */

static MemIn mem_in(const Price *p, const Kind *k, int att_n, int ffn_n, bool att)
{
  const PlanSpec *pin = &p->spec->plan;
  int att_least = min_of(pin->attention_gpus, pin->n_attention_gpus, att_n);
  int ffn_least = min_of(pin->ffn_gpus, pin->n_ffn_gpus, ffn_n);
  int pinned = pin->in_flight, batches = price_micro_batches(p, att_n);
  return (MemIn){.seq = p->shape->seq,
                 .mb_seqs = price_mb_seqs(p, att_n),
                 .att_seqs = (int)moe_part_max(price_mb_seqs(p, att_n), att_least),
                 .att_ranks = att_n,
                 .ffn_ranks = ffn_n,
                 .replicas = p->tuple->replicas,
                 .recompute = p->tuple->recompute,
                 .shard = p->tuple->shard,
                 .in_flight = pinned > 0 ? (pinned < batches ? pinned : batches) : 1,
                 .own_ranks = att ? att_least : ffn_least,
                 .att_dense = k->layers[2] + k->layers[3],
                 .att_moe = k->layers[0] + k->layers[1],
                 .embed = k->embed,
                 .head = k->head,
                 .combine_from = k->combine_from,
                 .dispatch_b_from = k->dispatch_b_from,
                 .ffn_layers = k->ffn_layers,
                 .experts = (int)moe_part_max(p->spec->model.moe.experts, ffn_least),
                 .dispatch_from = k->dispatch_from,
                 .combine_b_from = k->combine_b_from,
                 .n_src = k->combine_from > 0 ? ffn_n : 0,
                 .micro_batches = batches,
                 .total_ranks = all_ranks(p, att_n, ffn_n),
                 .relays = relayed(p, ffn_n),
                 .relayed = relayed(p, ffn_n),
                 .node_ranks = node_ranks(p, ffn_n)};
}

int64_t price_memory(const Price *p, int roles, int att_n, int ffn_n)
{
  int64_t most = 0;
  int n = roles & PLAN_A ? p->kinds.n_att : p->kinds.n_ffn;
  for (int i = 0; i < n; i++) {
    MemIn in = mem_in(p, roles & PLAN_A ? &p->kinds.att[i] : &p->kinds.ffn[i], att_n, ffn_n, roles & PLAN_A);
    int64_t need = memory_need(p->spec, &in, roles);
    most = need > most ? need : most;
  }
  return most;
}

/* One message of a micro-batch to or from an FFN group, when a token goes to `rows` places of it: the smallest
   micro-batch's rows through one rank's port, and the latency. */
static double hop_ns(const Price *p, double rows)
{
  const ClusterSpec *c = &p->spec->cluster;
  int least = p->shape->micro_batch < p->tuple->batch ? p->shape->micro_batch : p->tuple->batch;
  double rate = p->tuple->single ? c->nvlink : c->nic * p->nodes.nics / p->nodes.ranks;
  double bytes = rows * (double)(least * p->shape->seq * cost_row_bytes(p->spec));
  return bytes / rate * 1e9 + (p->tuple->single ? c->nvlink_ns : c->nic_ns);
}

/* What chain and fill gain when tokens go to several places. */
static double more_hop_ns(const Price *p, int ffn_n)
{
  return 4 * (hop_ns(p, rows_out(p, ffn_n)) - hop_ns(p, 1));
}

double price_more_fill(const Price *p, int ffn_n)
{
  int steps = p->tuple->p_att > p->tuple->p_ffn ? p->tuple->p_att : p->tuple->p_ffn;
  return steps * more_hop_ns(p, ffn_n);
}

/* Attention of all layers and the head for one micro-batch, without weight gradients. */
static double att_path_ns(const Price *p, int seqs)
{
  double *known = seqs < MEMO ? &p->memo->path[seqs] : NULL, ns = head_ns(p, seqs);
  if (known && *known > 0) {
    return *known;
  }
  for (int kind = 0; kind < 4; kind++) {
    int n = 0;
    for (int l = 0; l < p->spec->model.layers; l++) {
      n += spec_layer_is_dense(p->spec, l) * 2 + cost_layer_window(p->spec, l) == kind;
    }
    ns += n ? n * layer_ns(p, kind, seqs, false) : 0;
  }
  if (known) {
    *known = ns;
  }
  return ns;
}

/* Experts of one layer and micro-batch on the fullest rank, without weight gradients. */
static double ffn_path_ns(const Price *p, int ffn_n, double tokens)
{
  const Spec *spec = p->spec;
  int hits = cost_hits_max(spec, ffn_n);
  double rows = tokens * cost_rows_per_token(spec, hits), pairs = tokens * cost_pairs_per_token(spec, hits);
  double weights = (double)moe_part_max(spec->model.moe.experts, ffn_n) * cost_expert_params(spec), ns = 0;
  static const MoeOpKind ops[] = {MOE_OP_FFN_FWD, MOE_OP_FFN_DGRAD};
  for (int i = 0; i < 2; i++) {
    ns += work_ns(spec, work_ffn(spec, ops[i], rows, pairs, hits, tokens / ffn_n, weights, p->tuple->recompute));
  }
  return ns;
}

/* Longest dependent chain of a full micro-batch: ops at their real size and messages on the slower port of both sides,
   NICs as they come with the ranks. */
static double path_ns(const Price *p, int att_n, int ffn_n)
{
  const ClusterSpec *c = &p->spec->cluster;
  int mb_seqs = price_mb_seqs(p, att_n), seqs = (int)moe_part_max(mb_seqs, att_n), hits = cost_hits_max(p->spec, ffn_n);
  double tokens = (double)(mb_seqs * p->shape->seq), own = (double)(seqs * p->shape->seq);
  double k = p->spec->model.moe.top_k, pairs = cost_pairs_per_token(p->spec, hits), each = pair_bytes(p, att_n, ffn_n);
  Bytes a = price_bytes(p, rows_out(p, ffn_n), k);
  Bytes f = price_bytes(p, rows_in(p, ffn_n), relayed(p, ffn_n) ? k / ffn_n : pairs);
  const double out[4] = {a.dispatch, a.combine, a.combine_b, a.dispatch_b};
  const double in[4] = {f.dispatch, f.combine, f.combine_b, f.dispatch_b};
  int att_ranks = p->tuple->p_att * att_n, ffn_ranks = p->tuple->p_ffn * ffn_n;
  int att_nics = plan_default_nics(&p->nodes, att_ranks), ffn_nics = plan_default_nics(&p->nodes, ffn_ranks);
  double layer = ffn_path_ns(p, ffn_n, tokens) + 4 * (p->tuple->single ? c->nvlink_ns : c->nic_ns);
  for (int i = 0; i < 4; i++) {
    layer += max2(port_ns(p, own * out[i], each, att_ranks, att_nics),
                  port_ns(p, tokens * in[i], each, ffn_ranks, ffn_nics));
  }
  if (relayed(p, ffn_n)) {
    int on = node_ranks(p, ffn_n);
    Bytes n = price_bytes(p, cost_rows_per_token(p->spec, hits), pairs);
    layer +=
        tokens * (n.dispatch + n.dispatch_b + 2 * n.combine_b) * (on - 1) / on / c->nvlink * 1e9 + 4 * c->nvlink_ns;
  }
  return att_path_ns(p, seqs) + plan_moe_layers(p->spec) * layer;
}

/* Step time where only so many micro-batches can be on their way: twice as many as a side has saved slots for, as on
   the mean each has half of its own taken. With k of them a closed queue of one bottleneck takes between max(z, path
   B / k) and path B / k + (1 - 1/k) z; the middle of the two lower terms is taken, which is z itself from twice as many
   on as would fill an empty pipeline. z: the side's busiest rank over the step. */
Room price_room(const Price *p, int roles, int att_n, int ffn_n)
{
  int batches = price_micro_batches(p, att_n), pinned = p->spec->plan.in_flight;
  double cap = pinned > 0 && pinned < batches ? pinned : batches;
  int n = roles & PLAN_A ? p->kinds.n_att : p->kinds.n_ffn;
  for (int i = 0; i < n; i++) {
    MemIn in = mem_in(p, roles & PLAN_A ? &p->kinds.att[i] : &p->kinds.ffn[i], att_n, ffn_n, roles & PLAN_A);
    double fits = memory_cap(p->spec, &in, roles);
    if (fits < in.in_flight) {
      return (Room){INFINITY, 0};
    }
    cap = fits < cap ? fits : cap;
  }
  cap = 2 * cap < batches ? 2 * cap : batches;
  double chain = p->chain + plan_moe_layers(p->spec) * more_hop_ns(p, ffn_n);
  if (cap >= batches) {
    return (Room){chain, 0};
  }
  return (Room){max2(chain, path_ns(p, att_n, ffn_n)) * batches / cap, (cap - 1.0) / cap / 2};
}

static double memory_ns(const Price *p, int roles, int att_n, int ffn_n, double z)
{
  Room room = price_room(p, roles, att_n, ffn_n);
  return max2(z, room.base + room.slope * z);
}

/* ---- prices ---- */

int price_mb_seqs(const Price *p, int att_n)
{
  int64_t seqs = (int64_t)p->shape->micro_batch * att_n;
  return seqs < p->tuple->batch ? (int)seqs : p->tuple->batch;
}

int price_micro_batches(const Price *p, int att_n)
{
  return (int)moe_part_max(p->tuple->batch, price_mb_seqs(p, att_n));
}

/* All layers of a kind of group, and the head where it is. */
static double find_att_compute_ns(const Price *p, const Kind *k, int seqs)
{
  double ns = k->head ? head_ns(p, seqs) : 0;
  for (int i = 0; i < 4; i++) {
    ns += k->layers[i] ? k->layers[i] * layer_ns(p, i, seqs, true) : 0;
  }
  return ns;
}

double price_att_compute(const Price *p, int kind, int seqs)
{
  if (p->memo->seqs != seqs) {
    p->memo->seqs = seqs;
    for (int i = 0; i < p->kinds.n_att; i++) {
      p->memo->attention[i] = find_att_compute_ns(p, &p->kinds.att[i], seqs);
    }
  }
  return p->memo->attention[kind];
}

double price_att(const Price *p, int att_n, int att_nics, int ffn_n)
{
  const PlanSpec *pin = &p->spec->plan;
  int least = min_of(pin->attention_gpus, pin->n_attention_gpus, att_n), batches = price_micro_batches(p, att_n);
  int seqs = (int)moe_part_max(price_mb_seqs(p, att_n), least), ranks = p->tuple->p_att * att_n;
  double tokens = (double)batches * seqs * (double)p->shape->seq, z = 0;
  Bytes b = price_bytes(p, rows_out(p, ffn_n), p->spec->model.moe.top_k);
  double each = pair_bytes(p, att_n, ffn_n);
  for (int i = 0; i < p->kinds.n_att; i++) {
    const Kind *k = &p->kinds.att[i];
    double busy = batches * price_att_compute(p, i, seqs);
    double sent = k->dispatches * (b.dispatch + b.again) + k->combines * b.combine_b;
    double out = port_ns(p, tokens * sent, each, ranks, att_nics);
    double in = port_ns(p, tokens * (k->dispatches * b.dispatch_b + k->combines * b.combine), each, ranks, att_nics);
    double tail = price_att_tail(p, i, att_n, ffn_n, (double)att_nics / ranks);
    z = max2(z, max2(busy, max2(out, in)) + tail);
  }
  return memory_ns(p, PLAN_A, att_n, ffn_n, z) + price_more_fill(p, ffn_n);
}

/* Port time of an FFN rank over the step, per layer. */
static double ffn_port_ns(const Price *p, int least, int att_n, int ffn_n, int ffn_nics)
{
  double tokens = (double)(p->tuple->batch * p->shape->seq), k = p->spec->model.moe.top_k;
  int hits = cost_hits_max(p->spec, least);
  Bytes b = price_bytes(p, rows_in(p, least), relayed(p, ffn_n) ? k / ffn_n : cost_pairs_per_token(p->spec, hits));
  int ranks = p->tuple->p_ffn * ffn_n;
  double each = pair_bytes(p, att_n, ffn_n);
  double in = port_ns(p, tokens * (b.dispatch + b.again + b.combine_b), each, ranks, ffn_nics);
  double out = port_ns(p, tokens * (b.dispatch_b + b.combine), each, ranks, ffn_nics);
  double z = max2(in, out);
  if (relayed(p, ffn_n)) { /* relay to ranks and back, both directions of both passes */
    int on = node_ranks(p, ffn_n);
    Bytes n = price_bytes(p, cost_rows_per_token(p->spec, hits), cost_pairs_per_token(p->spec, hits));
    double bytes = tokens * (n.dispatch + n.again + n.dispatch_b + 2 * n.combine_b) * (on - 1) / on;
    z = max2(z, bytes / p->spec->cluster.nvlink * 1e9);
  }
  return z;
}

double price_ffn(const Price *p, int att_n, int ffn_n, int ffn_nics)
{
  const PlanSpec *pin = &p->spec->plan;
  int least = min_of(pin->ffn_gpus, pin->n_ffn_gpus, ffn_n), ranks = p->tuple->p_ffn * ffn_n;
  double compute = price_ffn_compute(p, least, price_mb_seqs(p, att_n)),
         port = ffn_port_ns(p, least, att_n, ffn_n, ffn_nics), z = 0;
  for (int i = 0; i < p->kinds.n_ffn; i++) {
    double layers = p->kinds.ffn[i].ffn_layers;
    double tail = price_ffn_tail(p, i, att_n, ffn_n, (double)ffn_nics / ranks);
    z = max2(z, layers * max2(compute, port) + tail);
  }
  double launches = price_ffn_launches(p, att_n);
  return memory_ns(p, PLAN_F, att_n, ffn_n, z + launches) - launches + price_more_fill(p, ffn_n);
}

double price_ffn_launches(const Price *p, int att_n)
{
  int most = 0;
  for (int i = 0; i < p->kinds.n_ffn; i++) {
    most = (int)max2(most, p->kinds.ffn[i].ffn_layers);
  }
  return (double)price_micro_batches(p, att_n) * most * 3 * p->spec->cluster.gpu.launch_ns;
}

double price_both(const Price *p, int n, int nics)
{
  int batches = price_micro_batches(p, n), seqs = (int)moe_part_max(price_mb_seqs(p, n), n),
      ranks = p->tuple->p_att * n, all = all_ranks(p, n, n);
  double tokens = (double)batches * seqs * (double)p->shape->seq, z = 0,
         ffn = price_ffn_compute(p, n, price_mb_seqs(p, n));
  Bytes b = price_bytes(p, rows_out(p, n), p->spec->model.moe.top_k);
  double port = ffn_port_ns(p, n, n, n, nics), each = pair_bytes(p, n, n);
  for (int i = 0; i < p->kinds.n_att; i++) {
    const Kind *k = &p->kinds.att[i];
    double busy = batches * price_att_compute(p, i, seqs) + k->ffn_layers * ffn;
    busy += (double)batches * k->ffn_layers * 3 * p->spec->cluster.gpu.launch_ns;
    double sent = k->dispatches * (b.dispatch + b.again) + k->combines * b.combine_b;
    double move = port_ns(p, tokens * sent, each, ranks, nics);
    move += k->ffn_layers * port;
    double tail = tail_ns(p, att_elems(p, k), n * p->tuple->replicas, all, (double)nics / ranks) +
                  ffn_tail(p, k->ffn_layers, n, all, (double)nics / ranks);
    z = max2(z, max2(busy, move) + tail);
  }
  return memory_ns(p, PLAN_A | PLAN_F, n, n, z) + price_more_fill(p, n);
}

/* ---- bounds ---- */

double price_att_least(const Price *p, int att_n)
{
  int least = min_of(p->spec->plan.attention_gpus, p->spec->plan.n_attention_gpus, att_n);
  int seqs = (int)moe_part_max(price_mb_seqs(p, att_n), least);
  double most = 0;
  for (int i = 0; i < p->kinds.n_att; i++) {
    most = max2(most, price_att_compute(p, i, seqs));
  }
  return price_micro_batches(p, att_n) * most;
}

double price_ffn_least(const Price *p, int att_n, int ffn_n)
{
  int least = min_of(p->spec->plan.ffn_gpus, p->spec->plan.n_ffn_gpus, ffn_n), most = 0;
  for (int i = 0; i < p->kinds.n_ffn; i++) {
    most = p->kinds.ffn[i].ffn_layers > most ? p->kinds.ffn[i].ffn_layers : most;
  }
  return most * price_ffn_compute(p, least, price_mb_seqs(p, att_n)) + price_ffn_launches(p, att_n);
}

/* ---- set-up ---- */

Chain price_chain(const Price *p)
{
  const Spec *spec = p->spec;
  int least = p->shape->micro_batch < p->tuple->batch ? p->shape->micro_batch : p->tuple->batch;
  Chain c = {.hop = hop_ns(p, 1), .head = head_ns(p, least)};
  for (int kind = 0; kind < 4; kind++) {
    int n = 0;
    for (int l = 0; l < spec->model.layers; l++) {
      n += spec_layer_is_dense(spec, l) * 2 + cost_layer_window(spec, l) == kind;
    }
    c.ahead += n ? n * layer_ns(p, kind, least, false) : 0;
    c.all += n ? n * layer_ns(p, kind, least, true) : 0;
  }
  if (colocated(p)) {
    c.ffn = plan_moe_layers(spec) * find_ffn_layer_ns(p, 1, least) / p->tuple->batch * least;
  }
  return c;
}

/* Chain and fill take the other side as balanced (its layer then lasts p_ffn / p_att of an attention layer) and tokens
   as going to one place; prices add what is more. */
void price_span(const Spec *spec, const Tuple *t, const Chain *c, double *chain, double *fill)
{
  bool both = t->place == PLACE_COLOCATED; /* the same ranks do both */
  double ratio = both ? c->ffn / c->all : (double)t->p_ffn / t->p_att;
  double t_att = c->all / spec->model.layers, t_ffn = t_att * ratio;
  double steps = t->p_att > t->p_ffn ? t->p_att : t->p_ffn;
  *chain = c->ahead * (1 + ratio) + c->head + 4 * plan_moe_layers(spec) * c->hop;
  *fill = steps * (t_att + t_ffn + 4 * c->hop) - (both ? t_att + t_ffn : max2(t_att, t_ffn));
}

void price_init(Price *p, const Spec *spec, const ShapeSpec *shape, const Tuple *tuple, const Kinds *kinds, Memo *memo)
{
  *p = (Price){.spec = spec, .shape = shape, .nodes = plan_nodes(spec), .tuple = tuple, .memo = memo};
  p->kinds = kinds ? *kinds : (Kinds){0};
  memset(memo, 0, sizeof *memo);
  Chain c = price_chain(p);
  price_span(spec, tuple, &c, &p->chain, &p->fill);
}
