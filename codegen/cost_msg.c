/* Bytes and times of messages. An attention rank sends a token's row to an FFN rank with the chance that the token has
   an expert there, to a relay of a node with the chance that it has one on the node, spread evenly over the node's
   ranks. Between ranks of one node bytes cross the GPU's own port; between nodes they share the NICs of the rank's
   group. Both directions of a port run at full rate at once, so a class of messages takes as long as its busiest port.
 */
#include <math.h>

#include "codegen/arith.h"
#include "codegen/cost_terms.h"
#include "runtime/moe_layout.h"

/* What one rank sends or receives through its ports, and how many messages that is. */
typedef struct Load {
  double nvlink, nic; /* bytes */
  double near, far;   /* peers */
} Load;

/* The busiest rank's time on each kind of port. */
typedef struct Port {
  double nvlink, nic; /* ns */
} Port;

/* What one token sends one FFN rank, on average. */
typedef struct Share {
  double rows, pairs;
} Share;

static int node_of(const Plan *plan, const PlanGroup *g, int rank)
{
  return plan_node_of(plan, g->first_rank + rank);
}

/* First rank of `g` on `node` or later, as an index in the group. */
static int node_begin(const Plan *plan, const PlanGroup *g, int node)
{
  return plan_node_begin(plan, g, 0, node);
}

bool cost_relayed(const Plan *plan, int layer)
{
  const PlanGroup *g = &plan->groups[plan->ffn_group[layer]];
  if (plan->dedup != DEDUP_NODE) {
    return false;
  }
  for (int r = 1; r < g->n_ranks; r++) {
    if (node_of(plan, g, r) == node_of(plan, g, r - 1)) {
      return true;
    }
  }
  return false;
}

static Share share_of(const Spec *spec, const Plan *plan, const PlanGroup *f, bool relayed, int rank)
{
  int64_t experts = spec->model.moe.experts, first = rank, last = rank + 1, ranks = 1;
  if (relayed) {
    first = node_begin(plan, f, node_of(plan, f, rank));
    last = node_begin(plan, f, node_of(plan, f, rank) + 1);
    ranks = last - first;
  }
  int64_t begin = moe_part_begin(experts, f->n_ranks, first), end = moe_part_begin(experts, f->n_ranks, last);
  double hits = cost_hits(spec, begin, end), k = spec->model.moe.top_k, n = cost_routable(spec);
  Share s = {.pairs = k * hits / n / (double)ranks};
  s.rows = plan->dedup == DEDUP_FLAT ? s.pairs : cost_touch(spec, (int)hits) / (double)ranks;
  return s;
}

/* Share of the port's rate that messages of this size reach. */
static double reached(const Curve *curve, double bytes, double peers)
{
  return curve->n ? curve_at(curve, bytes > peers ? bytes / (peers > 1 ? peers : 1) : 1) : 1;
}

static void add_port(const Spec *spec, const PlanGroup *g, Load load, Port *busiest)
{
  const ClusterSpec *c = &spec->cluster;
  double share = g->nic_share > 0 ? g->nic_share : (double)(g->nics > 0 ? g->nics : 1) / g->n_ranks;
  if (load.nvlink > 0) {
    double ns = load.nvlink / (c->nvlink * reached(&c->nvlink_bytes, load.nvlink, load.near)) * 1e9;
    busiest->nvlink = ns > busiest->nvlink ? ns : busiest->nvlink;
  }
  if (load.nic > 0) {
    double ns = load.nic / (c->nic * share * reached(&c->nic_bytes, load.nic, load.far)) * 1e9;
    busiest->nic = ns > busiest->nic ? ns : busiest->nic;
  }
}

static MsgCost finish(double bytes, double nic_bytes, Port src, Port dst, double latency)
{
  MsgCost c = {.bytes = bytes, .nic_bytes = nic_bytes, .latency = (int64_t)ceil(latency)};
  c.out_nvlink = (int64_t)ceil(src.nvlink);
  c.out_nic = (int64_t)ceil(src.nic);
  c.in_nvlink = (int64_t)ceil(dst.nvlink);
  c.in_nic = (int64_t)ceil(dst.nic);
  c.src_ns = max64(c.out_nvlink, c.out_nic);
  c.dst_ns = max64(c.in_nvlink, c.in_nic);
  c.ns = max64(1, max64(c.src_ns, c.dst_ns) + c.latency);
  return c;
}

static double latency(const Spec *spec, bool crosses)
{
  return crosses ? spec->cluster.nic_ns : spec->cluster.nvlink_ns;
}

/* Positions of a sequence that one message has tokens of. */
static double positions(const Plan *plan)
{
  return (double)moe_part_max(plan->shape->seq, plan->chunks);
}

/* Messages between every rank of attention group `a` and every rank of FFN group `f`: per token row_bytes for each row
   and pair_bytes for each pair that the FFN rank has of it. */
static MsgCost att_ffn(const Spec *spec, const Plan *plan, const PlanGroup *a, const PlanGroup *f, int layer,
                       double row_bytes, double pair_bytes, bool to_ffn)
{
  bool relayed = cost_relayed(plan, layer), same = a == f;
  double total = 0, bytes = 0, nic_bytes = 0, seq = positions(plan);
  double factor = spec->model.moe.imbalance > 1 ? spec->model.moe.imbalance : 1;
  Port att = {0}, ffn = {0};
  for (int j = 0; j < f->n_ranks; j++) {
    Share s = share_of(spec, plan, f, relayed, j);
    total += s.rows * row_bytes + s.pairs * pair_bytes;
  }
  for (int i = 0; i < a->n_ranks; i++) {
    double t = seq * (double)moe_part_size(plan->mb_seqs, a->n_ranks, i), near = 0, self = 0;
    int node = node_of(plan, a, i), first = node_begin(plan, f, node), last = node_begin(plan, f, node + 1);
    for (int j = first; j < last; j++) {
      Share s = share_of(spec, plan, f, relayed, j);
      double n = s.rows * row_bytes + s.pairs * pair_bytes;
      near += n;
      self += same && i == j ? n : 0;
    }
    double far = total - near > 1e-9 * total ? t * (total - near) : 0;
    Load load = {.nvlink = t * (near - self), .nic = far, .near = last - first - same};
    load.far = f->n_ranks - (last - first);
    add_port(spec, a, load, &att);
    bytes += t * (total - self);
    nic_bytes += far;
  }
  for (int j = 0; j < f->n_ranks; j++) {
    Share s = share_of(spec, plan, f, relayed, j);
    double rows = plan->dedup == DEDUP_FLAT || relayed || s.rows * factor <= 1 ? s.rows * factor : 1, near = 0;
    double each = rows * row_bytes + s.pairs * factor * pair_bytes, all = seq * plan->mb_seqs;
    int node = node_of(plan, f, j);
    int64_t first = node_begin(plan, a, node), last = node_begin(plan, a, node + 1);
    near = seq *
           (double)(moe_part_begin(plan->mb_seqs, a->n_ranks, last) - moe_part_begin(plan->mb_seqs, a->n_ranks, first));
    double self = same ? seq * (double)moe_part_size(plan->mb_seqs, a->n_ranks, j) : 0;
    Load load = {.nvlink = (near - self) * each, .nic = (all - near) * each, .near = (double)(last - first - same)};
    load.far = a->n_ranks - (double)(last - first);
    add_port(spec, f, load, &ffn);
  }
  return finish(bytes, nic_bytes, to_ffn ? att : ffn, to_ffn ? ffn : att, latency(spec, nic_bytes > 0));
}

/* Messages between relays and the ranks of their node; outward: from the relay. */
static MsgCost in_node(const Spec *spec, const Plan *plan, const PlanGroup *f, double row_bytes, double pair_bytes,
                       bool outward)
{
  double t = plan->mb_seqs * positions(plan), bytes = 0;
  double factor = spec->model.moe.imbalance > 1 ? spec->model.moe.imbalance : 1;
  Port relay = {0}, rank = {0};
  for (int j = 0; j < f->n_ranks; j++) {
    int first = node_begin(plan, f, node_of(plan, f, j)), last = node_begin(plan, f, node_of(plan, f, j) + 1);
    double ranks = last - first, out = 0, mine = 0;
    for (int i = first; i < last; i++) {
      Share s = share_of(spec, plan, f, false, i);
      double rows = s.rows * factor > 1 ? 1 : s.rows * factor;
      double n = t * (rows * row_bytes + s.pairs * factor * pair_bytes);
      out += i == j ? 0 : n / ranks;
      mine = i == j ? n * (ranks - 1) / ranks : mine;
    }
    add_port(spec, f, (Load){.nvlink = out, .near = ranks - 1}, &relay);
    add_port(spec, f, (Load){.nvlink = mine, .near = ranks - 1}, &rank);
    bytes += mine;
  }
  return finish(bytes, 0, outward ? relay : rank, outward ? rank : relay, latency(spec, false));
}

/* Adds what the ranks of `me` exchange with those of `peer`, by overlap of their runs of sequences. */
static void pipe_side(const Spec *spec, const Plan *plan, const PlanGroup *me, const PlanGroup *peer, Port *busiest,
                      double *nic_bytes)
{
  double row = (double)(cost_row_bytes(spec) * plan->shape->seq);
  for (int i = 0, first = 0; i < me->n_ranks; i++) {
    int64_t begin = moe_part_begin(plan->mb_seqs, me->n_ranks, i),
            end = moe_part_begin(plan->mb_seqs, me->n_ranks, i + 1);
    Load load = {0};
    while (first < peer->n_ranks && moe_part_begin(plan->mb_seqs, peer->n_ranks, first + 1) <= begin) {
      first++;
    }
    for (int j = first; j < peer->n_ranks; j++) {
      int64_t from = moe_part_begin(plan->mb_seqs, peer->n_ranks, j);
      int64_t to = moe_part_begin(plan->mb_seqs, peer->n_ranks, j + 1);
      from = from > begin ? from : begin;
      to = to < end ? to : end;
      if (from >= end) {
        break;
      }
      bool near = node_of(plan, me, i) == node_of(plan, peer, j);
      *(near ? &load.nvlink : &load.nic) += row * (double)(to - from);
      *(near ? &load.near : &load.far) += 1;
    }
    add_port(spec, me, load, busiest);
    *nic_bytes += load.nic;
  }
}

/* Residual rows from one attention group to another, re-split by the sequence map. */
static MsgCost pipe(const Spec *spec, const Plan *plan, const PlanGroup *src, const PlanGroup *dst)
{
  Port out = {0}, in = {0};
  double nic_bytes = 0, again = 0;
  if (src == dst) {
    return finish(0, 0, out, in, 0);
  }
  pipe_side(spec, plan, src, dst, &out, &nic_bytes);
  pipe_side(spec, plan, dst, src, &in, &again);
  double bytes = (double)(cost_row_bytes(spec) * plan->shape->seq * plan->mb_seqs);
  return finish(bytes, nic_bytes, out, in, latency(spec, nic_bytes > 0));
}

/* ---- the end of the step ---- */

int cost_bucket_groups(const Spec *spec, const Plan *plan, MoeBucketKind bucket, int layer,
                       int groups[MOE_BUCKET_GROUPS])
{
  int n = 0, last = spec->model.layers;
  for (int way = 0; way < plan->ways; way++) {
    int two[2] = {-1, -1};
    switch (bucket) {
    case MOE_BUCKET_EMBED:
      two[0] = plan_att(spec, plan, way, 0);
      two[1] = spec->model.tied ? plan_att(spec, plan, way, last) : -1;
      break;
    case MOE_BUCKET_HEAD:
      two[0] = plan_att(spec, plan, way, last);
      break;
    case MOE_BUCKET_EXPERTS:
    case MOE_BUCKET_SHARED:
      two[0] = plan_ffn(spec, plan, way, layer);
      break;
    default:
      two[0] = plan_att(spec, plan, way, layer);
      two[1] = bucket == MOE_BUCKET_GAIN ? plan_ffn(spec, plan, way, layer) : -1;
    }
    for (int k = 0; k < 2; k++) {
      bool fresh = two[k] >= 0;
      for (int i = 0; i < n; i++) {
        fresh &= groups[i] != two[k];
      }
      if (fresh) {
        groups[n++] = two[k];
      }
    }
  }
  return n;
}

int cost_bucket_holders(const Spec *spec, const Plan *plan, MoeBucketKind bucket, int layer)
{
  int groups[MOE_BUCKET_GROUPS], ranks = 0, n = cost_bucket_groups(spec, plan, bucket, layer, groups);
  for (int i = 0; i < n; i++) {
    ranks += bucket == MOE_BUCKET_EXPERTS ? 1 : plan->groups[groups[i]].n_ranks;
  }
  return ranks * plan->replicas;
}

int cost_bucket_parties(const Spec *spec, const Plan *plan, MoeBucketKind bucket, int layer)
{
  int groups[MOE_BUCKET_GROUPS], ranks = 0, n = cost_bucket_groups(spec, plan, bucket, layer, groups);
  for (int i = 0; i < n && plan->optimizer_shard == OPT_SHARD_ALL; i++) {
    ranks += plan->groups[groups[i]].n_ranks;
  }
  return ranks > 0 ? ranks * plan->replicas : cost_bucket_holders(spec, plan, bucket, layer);
}

/* Holders on the node of the first holder, itself included. */
static int64_t holders_near(const Plan *plan, MoeBucketKind bucket, const int *groups, int n)
{
  int64_t near = 0;
  int node = node_of(plan, &plan->groups[groups[0]], 0);
  for (int q = 0; q < plan->replicas; q++) {
    for (int i = 0; i < n; i++) {
      const PlanGroup *g = &plan->groups[groups[i]];
      int first = plan_node_begin(plan, g, q, node), end = plan_node_begin(plan, g, q, node + 1);
      near += bucket == MOE_BUCKET_EXPERTS ? first == 0 && end > 0 : end - first;
    }
  }
  return near;
}

/* Slices of a bucket that its holders exchange, in fp32: gradients to the owners, and what the owners made of them
   back. Owners are the holders or, if the optimizer's state is spread over the whole plan, all its ranks. */
MsgCost cost_bucket_msg(const Spec *spec, const Plan *plan, MoeEdge edge, MoeBucketKind bucket, int layer)
{
  (void)edge; /* REDUCE and SHARE move the same slices */
  if (spec->costs.given) {
    return finish(0, 0, (Port){0}, (Port){0}, 0);
  }
  int groups[MOE_BUCKET_GROUPS], n = cost_bucket_groups(spec, plan, bucket, layer, groups);
  const PlanGroup *g = &plan->groups[groups[0]];
  double holders = cost_bucket_holders(spec, plan, bucket, layer), owners = holders;
  double near = (double)holders_near(plan, bucket, groups, n);
  int experts = bucket == MOE_BUCKET_EXPERTS ? plan_ffn_experts(spec, g) : 0;
  bool model = bucket == MOE_BUCKET_EMBED || bucket == MOE_BUCKET_HEAD;
  if (plan->optimizer_shard == OPT_SHARD_ALL) {
    owners = plan->replicas * plan->replica_ranks;
    near = owners < plan->ranks_per_node ? owners : plan->ranks_per_node;
  }
  double slice = 4.0 * (double)cost_bucket_elems(spec, bucket, model ? 0 : layer, experts) / owners;
  Load load = {.nvlink = slice * (near - 1), .nic = slice * (owners - near), .near = near - 1, .far = owners - near};
  Port port = {0};
  add_port(spec, g, load, &port);
  return finish(slice * holders * (owners - 1), load.nic * holders, port, port, latency(spec, load.nic > 0));
}

static MsgCost tail_msg(const Spec *spec, const Plan *plan, MoeEdge edge, int layer)
{
  if (layer < 0 || layer > spec->model.layers) {
    return finish(0, 0, (Port){0}, (Port){0}, latency(spec, false));
  }
  bool model = layer == spec->model.layers;
  MsgCost most = cost_bucket_msg(spec, plan, edge, model ? MOE_BUCKET_HEAD : MOE_BUCKET_ATT, layer);
  if (model || layer >= spec->model.dense.layers) {
    MsgCost other = cost_bucket_msg(spec, plan, edge, model ? MOE_BUCKET_EMBED : MOE_BUCKET_EXPERTS, layer);
    most = other.ns > most.ns ? other : most;
  }
  return most;
}

/* ---- all edges ---- */

/* Bytes as they are, times as the spec's costs block says: dispatches and combines, their gradients with them, take the
   ports of both groups for the given time; a pipeline send is latency alone; the rest is free. */
static MsgCost with_given(const Spec *spec, const Plan *plan, MoeEdge edge, MsgCost c)
{
  const CostsSpec *given = &spec->costs;
  bool dispatch = edge == MOE_EDGE_DISPATCH || edge == MOE_EDGE_DISPATCH_B || edge == MOE_EDGE_DISPATCH_AGAIN;
  bool combine = edge == MOE_EDGE_COMBINE || edge == MOE_EDGE_COMBINE_B;
  bool piped = edge == MOE_EDGE_PIPE || edge == MOE_EDGE_PIPE_B;
  double ns = (dispatch ? given->dispatch : combine ? given->combine : 0) / (plan->chunks > 1 ? plan->chunks : 1);
  Port port = {.nic = ns - 0.5 > 0 ? floor(ns + 0.5) : 0};
  return finish(c.bytes, c.bytes, port, port, piped && c.bytes > 0 ? given->p2p : 0);
}

static MsgCost modelled(const Spec *spec, const Plan *plan, MoeEdge edge, int layer)
{
  double row = (double)cost_row_bytes(spec), pair = sizeof(MoePair), head = sizeof(MoeRowHead);
  const PlanGroup *a = &plan->groups[plan->att_group[layer]], *f = &plan->groups[plan->ffn_group[layer]];
  const PlanGroup *combine = &plan->groups[plan->combine_group[layer]];
  const PlanGroup *next = &plan->groups[plan->att_group[layer + 1]];
  const PlanGroup *from = layer < spec->model.dense.layers ? a : combine; /* of a pipeline send */
  switch (edge) {
  case MOE_EDGE_DISPATCH:
    return att_ffn(spec, plan, a, f, layer, row + head, pair, true);
  case MOE_EDGE_DISPATCH_AGAIN:
    return att_ffn(spec, plan, a, f, layer, row, 0, true);
  case MOE_EDGE_DISPATCH_B:
    return att_ffn(spec, plan, a, f, layer, row, sizeof(float), false);
  case MOE_EDGE_COMBINE:
    return att_ffn(spec, plan, combine, f, layer, row + sizeof(uint32_t), 0, false);
  case MOE_EDGE_COMBINE_B:
    return att_ffn(spec, plan, combine, f, layer, row, 0, true);
  case MOE_EDGE_FORWARD:
    return in_node(spec, plan, f, row + head, pair, true);
  case MOE_EDGE_FORWARD_B:
    return in_node(spec, plan, f, row, sizeof(float), false);
  case MOE_EDGE_GATHER:
    return in_node(spec, plan, f, row, 0, false);
  case MOE_EDGE_FORWARD_AGAIN:
  case MOE_EDGE_GATHER_B:
    return in_node(spec, plan, f, row, 0, true);
  default:
    return edge == MOE_EDGE_PIPE ? pipe(spec, plan, from, next) : pipe(spec, plan, next, from);
  }
}

MsgCost cost_msg(const Spec *spec, const Plan *plan, MoeEdge edge, int layer)
{
  if (edge == MOE_EDGE_REDUCE || edge == MOE_EDGE_SHARE) {
    return tail_msg(spec, plan, edge, layer);
  }
  if (edge == MOE_EDGE_SCALARS_UP || edge == MOE_EDGE_SCALARS_DOWN) {
    bool crosses = plan->replicas * plan->replica_ranks > plan->ranks_per_node;
    return finish(0, 0, (Port){0}, (Port){0}, spec->costs.given ? 0 : latency(spec, crosses));
  }
  MsgCost c = modelled(spec, plan, edge, layer);
  return spec->costs.given ? with_given(spec, plan, edge, c) : c;
}
