#include "codegen/plan_price.h"

#include <math.h>
#include <string.h>

#include "runtime/moe_layout.h"

static double max2(double a, double b)
{
  return a > b ? a : b;
}

static int min_of(const int *list, int n, int otherwise)
{
  int least = otherwise;
  for (int i = 0; i < n; i++) {
    least = list[i] < least ? list[i] : least;
  }
  return least;
}

/* ---- groups that price alike ---- */

static bool colocated(const Price *p)
{
  return p->tuple->place == PLACE_COLOCATED;
}

static int distinct_peers(const Spec *spec, const Tuple *t, bool att, int group, int next)
{
  char seen[4096] = {0};
  int n = 0;
  for (int l = spec->model.dense.layers; l < spec->model.layers; l++) {
    int a = layer_att(l + next, t->p_att), f = layer_ffn(spec, l, t->p_ffn, t->place == PLACE_COLOCATED);
    int peer = att ? f : a;
    if ((att ? a : f) == group && peer < (int)sizeof seen && !seen[peer]) {
      seen[peer] = 1;
      n++;
    }
  }
  return n;
}

static void describe(const Spec *spec, const Tuple *t, int roles, int group, Kind *k)
{
  memset(k, 0, sizeof *k);
  for (int l = 0; (roles & PLAN_A) && l < spec->model.layers; l++) {
    bool dense = spec_layer_is_dense(spec, l), mine = layer_att(l, t->p_att) == group;
    k->layers[dense * 2 + cost_layer_window(spec, l)] += mine;
    k->dispatches += mine && !dense;
    k->combines += !dense && layer_att(l + 1, t->p_att) == group;
  }
  if (roles & PLAN_A) {
    k->embed = group == 0;
    k->head = layer_att(spec->model.layers, t->p_att) == group;
    k->combine_from = distinct_peers(spec, t, true, group, 1);
    k->dispatch_b_from = distinct_peers(spec, t, true, group, 0);
  }
  for (int l = spec->model.dense.layers; (roles & PLAN_F) && l < spec->model.layers; l++) {
    k->ffn_layers += layer_ffn(spec, l, t->p_ffn, t->place == PLACE_COLOCATED) == group;
  }
  if (roles & PLAN_F) {
    k->dispatch_from = distinct_peers(spec, t, false, group, 0);
    k->combine_b_from = distinct_peers(spec, t, false, group, 1);
  }
}

static const Kind *describe_all(Arena *arena, const Spec *spec, const Tuple *t, int roles, int groups, int *n_p)
{
  Kind list[MAX_KINDS], *kept;
  int n = 0;
  for (int g = 0; g < groups; g++) {
    Kind k;
    bool known = false;
    describe(spec, t, roles, g, &k);
    for (int i = 0; i < n && !known; i++) {
      known = memcmp(&list[i], &k, sizeof k) == 0;
    }
    if (!known && n < MAX_KINDS) {
      list[n++] = k;
    }
  }
  kept = arena_new_array(arena, Kind, (size_t)n);
  memcpy(kept, list, (size_t)n * sizeof *kept);
  *n_p = n;
  return kept;
}

/* ---- work ---- */

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

/* Attention of one layer of a kind, one micro-batch. */
static double layer_ns(const Price *p, int kind, int seqs, bool wgrad)
{
  int l = sample_layer(p->spec, kind);
  double ns = 0;
  if (l >= 0) {
    ns += work_ns(p->spec, work_att(p->spec, MOE_OP_ATT_FWD, l, p->shape->seq, seqs));
    ns += work_ns(p->spec, work_att(p->spec, MOE_OP_ATT_DGRAD, l, p->shape->seq, seqs));
    ns += wgrad ? work_ns(p->spec, work_att(p->spec, MOE_OP_ATT_WGRAD, l, p->shape->seq, seqs)) : 0;
  }
  return ns;
}

static double head_ns(const Price *p, int seqs)
{
  return work_ns(p->spec, work_att(p->spec, MOE_OP_HEAD, 0, p->shape->seq, seqs));
}

/* Experts of one layer on the fullest of n ranks, all tokens of the step, without launches or reads of weights. */
static double find_ffn_layer_ns(const Price *p, int n)
{
  double t = (double)(p->tuple->batch * p->shape->seq), ns = 0;
  int hits = cost_hits_max(p->spec, n);
  static const MoeOpKind ops[] = {MOE_OP_FFN_FWD, MOE_OP_FFN_DGRAD, MOE_OP_FFN_WGRAD};
  for (int i = 0; i < 3; i++) {
    Work w = work_ffn(p->spec, ops[i], t * cost_rows_per_token(p->spec, hits), t * cost_pairs_per_token(p->spec, hits),
                      t / n, 0);
    ns += work_ns(p->spec, w) - p->spec->cluster.gpu.launch_ns;
  }
  return ns;
}

static double ffn_layer_ns(const Price *p, int n)
{
  if (n >= MEMO) {
    return find_ffn_layer_ns(p, n);
  }
  if (p->memo->ffn_layer[n] == 0) {
    p->memo->ffn_layer[n] = find_ffn_layer_ns(p, n);
  }
  return p->memo->ffn_layer[n];
}

/* ---- messages ---- */

static bool relayed(const Price *p, int ffn_n)
{
  Dedup dedup = p->spec->plan.dedup;
  return ffn_n > 1 && p->nodes.ranks > 1 && (dedup == DEDUP_NODE || (dedup == DEDUP_AUTO && !p->tuple->single));
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

typedef struct Bytes {
  double dispatch, dispatch_b, combine, combine_b; /* per token and layer */
} Bytes;

static Bytes message_bytes(const Price *p, double rows, double pairs)
{
  double row = (double)cost_row_bytes(p->spec);
  return (Bytes){.dispatch = rows * (row + sizeof(MoeRowHead)) + pairs * sizeof(MoePair),
                 .dispatch_b = rows * row + pairs * sizeof(float),
                 .combine = rows * (row + sizeof(uint32_t)),
                 .combine_b = rows * row};
}

/* Mixed placement: pairs of groups per node. The first of a node gets its COMBINE from another node, if there are more
   pairs than one node has. */
static bool mixed_crosses(const Price *p, int att_n, int ffn_n)
{
  return p->tuple->p_att > p->nodes.ranks / (att_n + ffn_n);
}

/* Slowest port of a rank that moves `near` bytes in one direction for one class of edges and `far` for the other; by
   placement those are on NVLink or on its share of the side's NICs. */
static double port_ns(const Price *p, double dispatch, double combine, int ranks, int nics, bool crosses)
{
  double nvlink = p->spec->cluster.nvlink / 1e9;
  if (p->tuple->single) {
    return (dispatch + combine) / nvlink;
  }
  double nic = p->spec->cluster.nic / 1e9 * nics / ranks;
  if (p->tuple->place == PLACE_MIXED) {
    return crosses ? max2(dispatch / nvlink, combine / nic) : (dispatch + combine) / nvlink;
  }
  return (dispatch + combine) / nic;
}

/* ---- step's tail ---- */

/* Gradients to their owners, updated weights back, and the optimizer between them. */
static double tail_ns(const Price *p, double elems, int holders, int ranks, int nics, bool crosses)
{
  const ClusterSpec *c = &p->spec->cluster;
  double bytes = 2 * 4 * elems * (holders - 1) / holders;
  double rate = crosses && nics > 0 ? c->nic * nics / ranks : c->nvlink;
  return (bytes / rate + 32 * elems / holders / (c->gpu.hbm * c->gpu.eff_memory)) * 1e9;
}

static double att_elems(const Price *p, const Kind *k)
{
  const Spec *spec = p->spec;
  int dense = spec->model.dense.layers;
  double n = (k->layers[0] + k->layers[1]) * (double)cost_bucket_elems(spec, MOE_BUCKET_ATT, dense, 0);
  n += (k->layers[2] + k->layers[3]) * (double)cost_bucket_elems(spec, MOE_BUCKET_ATT, 0, 0);
  n += k->embed ? (double)cost_bucket_elems(spec, MOE_BUCKET_EMBED, 0, 0) : 0;
  return n + (k->head ? (double)cost_bucket_elems(spec, MOE_BUCKET_HEAD, 0, 0) : 0);
}

static bool many_nodes(const Price *p)
{
  return p->nodes.count > 1 && p->tuple->ranks * p->tuple->replicas > p->nodes.ranks;
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
                 .relayed = relayed(p, ffn_n),
                 .node_ranks = ffn_n < p->nodes.ranks ? ffn_n : p->nodes.ranks};
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

static double more_fill_ns(const Price *p, int ffn_n)
{
  int steps = p->tuple->p_att > p->tuple->p_ffn ? p->tuple->p_att : p->tuple->p_ffn;
  return steps * more_hop_ns(p, ffn_n);
}

/* Time that the chain takes when only so many micro-batches can be on their way. */
static double memory_ns(const Price *p, int roles, int att_n, int ffn_n)
{
  int batches = price_micro_batches(p, att_n), cap = batches, pinned = p->spec->plan.in_flight;
  int n = roles & PLAN_A ? p->kinds.n_att : p->kinds.n_ffn;
  for (int i = 0; i < n; i++) {
    MemIn in = mem_in(p, roles & PLAN_A ? &p->kinds.att[i] : &p->kinds.ffn[i], att_n, ffn_n, roles & PLAN_A);
    int fits = memory_cap(p->spec, &in, roles);
    if (fits < in.in_flight) {
      return INFINITY;
    }
    cap = fits < cap ? fits : cap;
  }
  cap = pinned > 0 && pinned < cap ? pinned : cap;
  return (p->chain + plan_moe_layers(p->spec) * more_hop_ns(p, ffn_n)) * batches / cap;
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

static double att_compute_ns(const Price *p, int kind, int seqs)
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
  Bytes b = message_bytes(p, rows_out(p, ffn_n), p->spec->model.moe.top_k);
  bool crosses = mixed_crosses(p, att_n, ffn_n);
  for (int i = 0; i < p->kinds.n_att; i++) {
    const Kind *k = &p->kinds.att[i];
    double busy = batches * att_compute_ns(p, i, seqs);
    double out =
        port_ns(p, tokens * k->dispatches * b.dispatch, tokens * k->combines * b.combine_b, ranks, att_nics, crosses);
    double in =
        port_ns(p, tokens * k->dispatches * b.dispatch_b, tokens * k->combines * b.combine, ranks, att_nics, crosses);
    double tail = tail_ns(p, att_elems(p, k), least * p->tuple->replicas, ranks, att_nics, many_nodes(p));
    z = max2(z, max2(busy, max2(out, in)) + tail);
  }
  return max2(z, memory_ns(p, PLAN_A, att_n, ffn_n)) + more_fill_ns(p, ffn_n);
}

/* Port time of an FFN rank over the step, per layer. */
static double ffn_port_ns(const Price *p, int least, int att_n, int ffn_n, int ffn_nics)
{
  double tokens = (double)(p->tuple->batch * p->shape->seq), k = p->spec->model.moe.top_k;
  int hits = cost_hits_max(p->spec, least);
  Bytes b = message_bytes(p, rows_in(p, least), relayed(p, ffn_n) ? k / ffn_n : cost_pairs_per_token(p->spec, hits));
  int ranks = p->tuple->p_ffn * ffn_n;
  bool crosses = mixed_crosses(p, att_n, ffn_n);
  double in = port_ns(p, tokens * b.dispatch, tokens * b.combine_b, ranks, ffn_nics, crosses);
  double out = port_ns(p, tokens * b.dispatch_b, tokens * b.combine, ranks, ffn_nics, crosses);
  double z = max2(in, out);
  if (relayed(p, ffn_n)) { /* relay to ranks and back, both directions of both passes */
    int on = ffn_n < p->nodes.ranks ? ffn_n : p->nodes.ranks;
    Bytes n = message_bytes(p, cost_rows_per_token(p->spec, hits), cost_pairs_per_token(p->spec, hits));
    double bytes = tokens * (n.dispatch + n.dispatch_b + 2 * n.combine_b) * (on - 1) / on;
    z = max2(z, bytes / p->spec->cluster.nvlink * 1e9);
  }
  return z;
}

double price_ffn(const Price *p, int att_n, int ffn_n, int ffn_nics)
{
  const PlanSpec *pin = &p->spec->plan;
  int least = min_of(pin->ffn_gpus, pin->n_ffn_gpus, ffn_n), ranks = p->tuple->p_ffn * ffn_n, dense;
  int experts = (int)moe_part_max(p->spec->model.moe.experts, least);
  double compute = ffn_layer_ns(p, least), port = ffn_port_ns(p, least, att_n, ffn_n, ffn_nics), z = 0;
  dense = p->spec->model.dense.layers;
  for (int i = 0; i < p->kinds.n_ffn; i++) {
    double layers = p->kinds.ffn[i].ffn_layers;
    double elems = layers * (double)cost_bucket_elems(p->spec, MOE_BUCKET_EXPERTS, dense, experts);
    double tail = tail_ns(p, elems, p->tuple->replicas, ranks, ffn_nics, many_nodes(p));
    z = max2(z, layers * max2(compute, port) + tail);
  }
  return max2(z, memory_ns(p, PLAN_F, att_n, ffn_n) - price_ffn_launches(p, att_n)) + more_fill_ns(p, ffn_n);
}

double price_ffn_launches(const Price *p, int att_n)
{
  int most = 0;
  for (int i = 0; i < p->kinds.n_ffn; i++) {
    most = p->kinds.ffn[i].ffn_layers > most ? p->kinds.ffn[i].ffn_layers : most;
  }
  return (double)price_micro_batches(p, att_n) * most * 3 * p->spec->cluster.gpu.launch_ns;
}

double price_both(const Price *p, int n, int nics)
{
  int batches = price_micro_batches(p, n), seqs = (int)moe_part_max(price_mb_seqs(p, n), n),
      ranks = p->tuple->p_att * n;
  double tokens = (double)batches * seqs * (double)p->shape->seq, z = 0, ffn = ffn_layer_ns(p, n);
  int experts = (int)moe_part_max(p->spec->model.moe.experts, n), dense = p->spec->model.dense.layers;
  Bytes b = message_bytes(p, rows_out(p, n), p->spec->model.moe.top_k);
  double port = ffn_port_ns(p, n, n, n, nics);
  for (int i = 0; i < p->kinds.n_att; i++) {
    const Kind *k = &p->kinds.att[i];
    double busy = batches * att_compute_ns(p, i, seqs) + k->ffn_layers * ffn;
    busy += (double)batches * k->ffn_layers * 3 * p->spec->cluster.gpu.launch_ns;
    double move =
        port_ns(p, tokens * k->dispatches * b.dispatch, tokens * k->combines * b.combine_b, ranks, nics, true);
    move += k->ffn_layers * port;
    double elems = k->ffn_layers * (double)cost_bucket_elems(p->spec, MOE_BUCKET_EXPERTS, dense, experts);
    double tail = tail_ns(p, att_elems(p, k), n * p->tuple->replicas, ranks, nics, many_nodes(p)) +
                  tail_ns(p, elems, p->tuple->replicas, ranks, nics, many_nodes(p));
    z = max2(z, max2(busy, move) + tail);
  }
  return max2(z, memory_ns(p, PLAN_A | PLAN_F, n, n)) + more_fill_ns(p, n);
}

/* ---- bounds ---- */

double price_att_alone(const Price *p)
{
  double most = 0;
  for (int i = 0; i < p->kinds.n_att; i++) {
    const Kind *k = &p->kinds.att[i];
    double ns = k->head ? work_flop_ns(p->spec, work_att(p->spec, MOE_OP_HEAD, 0, p->shape->seq, 1)) : 0;
    for (int j = 0; j < 4; j++) {
      int l = k->layers[j] ? sample_layer(p->spec, j) : -1;
      for (int op = 0; l >= 0 && op < 3; op++) {
        static const MoeOpKind ops[] = {MOE_OP_ATT_FWD, MOE_OP_ATT_DGRAD, MOE_OP_ATT_WGRAD};
        ns += k->layers[j] * work_flop_ns(p->spec, work_att(p->spec, ops[op], l, p->shape->seq, 1));
      }
    }
    most = max2(most, ns);
  }
  return most * p->tuple->batch;
}

double price_ffn_alone(const Price *p)
{
  double t = (double)(p->tuple->batch * p->shape->seq), one = 0;
  int most = 0;
  static const MoeOpKind ops[] = {MOE_OP_FFN_FWD, MOE_OP_FFN_DGRAD, MOE_OP_FFN_WGRAD};
  for (int i = 0; i < 3; i++) { /* the pairs of all ranks; the fullest has at least the mean */
    one += work_flop_ns(p->spec, work_ffn(p->spec, ops[i], 0, t * p->spec->model.moe.top_k, t, 0));
  }
  for (int i = 0; i < p->kinds.n_ffn; i++) {
    most = p->kinds.ffn[i].ffn_layers > most ? p->kinds.ffn[i].ffn_layers : most;
  }
  return one * most;
}

/* ---- set-up ---- */

/* Chain and fill take the other side as balanced (its layer then lasts p_ffn / p_att of an attention layer) and tokens
   as going to one place; prices add what is more. */
static void init_chain(Price *p)
{
  const Spec *spec = p->spec;
  int least = p->shape->micro_batch < p->tuple->batch ? p->shape->micro_batch : p->tuple->batch;
  double ahead = 0, all = 0, layers = spec->model.layers, ratio = (double)p->tuple->p_ffn / p->tuple->p_att;
  for (int kind = 0; kind < 4; kind++) {
    int n = 0;
    for (int l = 0; l < spec->model.layers; l++) {
      n += spec_layer_is_dense(spec, l) * 2 + cost_layer_window(spec, l) == kind;
    }
    ahead += n ? n * layer_ns(p, kind, least, false) : 0;
    all += n ? n * layer_ns(p, kind, least, true) : 0;
  }
  if (colocated(p)) { /* the same ranks do both */
    ratio = plan_moe_layers(spec) * ffn_layer_ns(p, 1) / p->tuple->batch * least / all;
  }
  double hop = hop_ns(p, 1);
  double t_att = all / layers, t_ffn = t_att * ratio;
  double steps = p->tuple->p_att > p->tuple->p_ffn ? p->tuple->p_att : p->tuple->p_ffn;
  p->chain = ahead * (1 + ratio) + head_ns(p, least) + 4 * plan_moe_layers(spec) * hop;
  p->fill = steps * (t_att + t_ffn + 4 * hop) - (colocated(p) ? t_att + t_ffn : max2(t_att, t_ffn));
}

void price_kinds(Arena *arena, const Spec *spec, const Tuple *t, Kinds *k)
{
  if (t->place == PLACE_COLOCATED) {
    k->att = k->ffn = describe_all(arena, spec, t, PLAN_A | PLAN_F, t->p_att, &k->n_att);
    k->n_ffn = k->n_att;
  } else {
    k->att = describe_all(arena, spec, t, PLAN_A, t->p_att, &k->n_att);
    k->ffn = describe_all(arena, spec, t, PLAN_F, t->p_ffn, &k->n_ffn);
  }
}

void price_init(Price *p, const Spec *spec, const ShapeSpec *shape, const Tuple *tuple, const Kinds *kinds, Memo *memo)
{
  *p = (Price){.spec = spec, .shape = shape, .nodes = plan_nodes(spec), .tuple = tuple, .kinds = *kinds, .memo = memo};
  memset(memo, 0, sizeof *memo);
  init_chain(p);
}
