/* Bytes and times of messages. An attention rank sends a token's row to an FFN rank with the chance that the token has
   an expert there, to a relay of a node with the chance that it has one on the node, spread evenly over the node's
   ranks. Between ranks of one node bytes cross the GPU's own port; between nodes they share the NICs of the rank's
   group. Both directions of a port run at full rate at once, so a class of messages takes as long as its busiest port.
 */
#include <math.h>

#include "codegen/cost_terms.h"
#include "runtime/moe_layout.h"

/* Bytes in one direction of one rank's ports. */
typedef struct Port {
  double nvlink, nic;
} Port;

/* What one token sends one FFN rank, on average. */
typedef struct Share {
  double rows, pairs;
} Share;

static int node_of(const Plan *plan, const PlanGroup *g, int rank)
{
  return (g->first_rank + rank) / plan->ranks_per_node;
}

/* First rank of `g` on `node` or later, as an index in the group. */
static int node_begin(const Plan *plan, const PlanGroup *g, int node)
{
  int first = node * plan->ranks_per_node - g->first_rank;
  return first < 0 ? 0 : first > g->n_ranks ? g->n_ranks : first;
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

static double port_ns(const Spec *spec, const PlanGroup *g, Port p)
{
  double share = g->nic_share > 0 ? g->nic_share : (double)(g->nics > 0 ? g->nics : 1) / g->n_ranks;
  double nvlink = p.nvlink / spec->cluster.nvlink;
  double nic = p.nic > 0 ? p.nic / (spec->cluster.nic * share) : 0;
  return (nvlink > nic ? nvlink : nic) * 1e9;
}

static MsgCost finish(const Spec *spec, double bytes, double src, double dst, bool crosses)
{
  double latency = crosses ? spec->cluster.nic_ns : spec->cluster.nvlink_ns;
  MsgCost c = {.bytes = bytes, .src_ns = (int64_t)ceil(src), .dst_ns = (int64_t)ceil(dst)};
  c.ns = (c.src_ns > c.dst_ns ? c.src_ns : c.dst_ns) + (int64_t)ceil(latency);
  c.ns = c.ns < 1 ? 1 : c.ns;
  return c;
}

/* Messages between every rank of attention group `a` and every rank of FFN group `f`: per token row_bytes for each row
   and pair_bytes for each pair that the FFN rank has of it. */
static MsgCost att_ffn(const Spec *spec, const Plan *plan, const PlanGroup *a, const PlanGroup *f, int layer,
                       double row_bytes, double pair_bytes, bool to_ffn)
{
  bool relayed = cost_relayed(plan, layer), same = a == f, crosses = false;
  double total = 0, att_ns = 0, ffn_ns = 0, bytes = 0, seq = (double)plan->shape->seq;
  double factor = spec->model.moe.imbalance > 1 ? spec->model.moe.imbalance : 1;
  for (int j = 0; j < f->n_ranks; j++) {
    Share s = share_of(spec, plan, f, relayed, j);
    total += s.rows * row_bytes + s.pairs * pair_bytes;
  }
  for (int i = 0; i < a->n_ranks; i++) {
    double t = seq * (double)moe_part_size(plan->mb_seqs, a->n_ranks, i), near = 0, self = 0;
    int node = node_of(plan, a, i);
    for (int j = node_begin(plan, f, node); j < node_begin(plan, f, node + 1); j++) {
      Share s = share_of(spec, plan, f, relayed, j);
      double n = s.rows * row_bytes + s.pairs * pair_bytes;
      near += n;
      self += same && i == j ? n : 0;
    }
    double far = total - near > 1e-9 * total ? t * (total - near) : 0;
    double ns = port_ns(spec, a, (Port){.nvlink = t * (near - self), .nic = far});
    att_ns = ns > att_ns ? ns : att_ns;
    bytes += t * (total - self);
    crosses = crosses || far > 0;
  }
  for (int j = 0; j < f->n_ranks; j++) {
    Share s = share_of(spec, plan, f, relayed, j);
    double rows = relayed || s.rows * factor <= 1 ? s.rows * factor : 1, near = 0, all = seq * plan->mb_seqs;
    double each = rows * row_bytes + s.pairs * factor * pair_bytes;
    int node = node_of(plan, f, j);
    int64_t first = node_begin(plan, a, node), last = node_begin(plan, a, node + 1);
    near = seq *
           (double)(moe_part_begin(plan->mb_seqs, a->n_ranks, last) - moe_part_begin(plan->mb_seqs, a->n_ranks, first));
    double self = same ? seq * (double)moe_part_size(plan->mb_seqs, a->n_ranks, j) : 0;
    double ns = port_ns(spec, f, (Port){.nvlink = (near - self) * each, .nic = (all - near) * each});
    ffn_ns = ns > ffn_ns ? ns : ffn_ns;
  }
  return finish(spec, bytes, to_ffn ? att_ns : ffn_ns, to_ffn ? ffn_ns : att_ns, crosses);
}

/* Messages between relays and the ranks of their node; outward: from the relay. */
static MsgCost in_node(const Spec *spec, const Plan *plan, const PlanGroup *f, double row_bytes, double pair_bytes,
                       bool outward)
{
  double t = (double)(plan->mb_seqs * plan->shape->seq), relay_ns = 0, rank_ns = 0, bytes = 0;
  double factor = spec->model.moe.imbalance > 1 ? spec->model.moe.imbalance : 1;
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
    double relay = port_ns(spec, f, (Port){.nvlink = out}), rank = port_ns(spec, f, (Port){.nvlink = mine});
    relay_ns = relay > relay_ns ? relay : relay_ns;
    rank_ns = rank > rank_ns ? rank : rank_ns;
    bytes += mine;
  }
  return finish(spec, bytes, outward ? relay_ns : rank_ns, outward ? rank_ns : relay_ns, false);
}

/* Residual rows from one attention group to another, re-split by the sequence map. */
static MsgCost pipe(const Spec *spec, const Plan *plan, const PlanGroup *src, const PlanGroup *dst)
{
  if (src == dst) {
    return finish(spec, 0, 0, 0, false);
  }
  double row = (double)(cost_row_bytes(spec) * plan->shape->seq);
  bool crosses = node_of(plan, src, 0) != node_of(plan, dst, dst->n_ranks - 1) ||
                 node_of(plan, dst, 0) != node_of(plan, src, src->n_ranks - 1);
  double out = row * (double)moe_part_max(plan->mb_seqs, src->n_ranks);
  double in = row * (double)moe_part_max(plan->mb_seqs, dst->n_ranks);
  Port src_port = {.nvlink = crosses ? 0 : out, .nic = crosses ? out : 0};
  Port dst_port = {.nvlink = crosses ? 0 : in, .nic = crosses ? in : 0};
  return finish(spec, row * plan->mb_seqs, port_ns(spec, src, src_port), port_ns(spec, dst, dst_port), crosses);
}

/* The group that holds a bucket; of a gain the attention side, of a tied table the embedding's. */
static const PlanGroup *holder_group(const Spec *spec, const Plan *plan, MoeBucketKind bucket, int layer)
{
  switch (bucket) {
  case MOE_BUCKET_EMBED:
    return &plan->groups[plan->att_group[0]];
  case MOE_BUCKET_HEAD:
    return &plan->groups[plan->att_group[spec->model.layers]];
  case MOE_BUCKET_EXPERTS:
    return &plan->groups[plan->ffn_group[layer]];
  default:
    return &plan->groups[plan->att_group[layer]];
  }
}

int cost_bucket_holders(const Spec *spec, const Plan *plan, MoeBucketKind bucket, int layer)
{
  const PlanGroup *g = holder_group(spec, plan, bucket, layer), *also = g;
  int n = bucket == MOE_BUCKET_EXPERTS ? 1 : g->n_ranks;
  if (bucket == MOE_BUCKET_GAIN) {
    also = &plan->groups[plan->ffn_group[layer]];
  } else if (bucket == MOE_BUCKET_EMBED && spec->model.tied) {
    also = &plan->groups[plan->att_group[spec->model.layers]];
  }
  return (n + (also == g ? 0 : also->n_ranks)) * plan->replicas;
}

MsgCost cost_bucket_msg(const Spec *spec, const Plan *plan, MoeEdge edge, MoeBucketKind bucket, int layer)
{
  (void)edge; /* REDUCE and SHARE move the same slices, in fp32 */
  const PlanGroup *g = holder_group(spec, plan, bucket, layer);
  int holders = cost_bucket_holders(spec, plan, bucket, layer), near = 1;
  int experts = bucket == MOE_BUCKET_EXPERTS ? plan_ffn_experts(spec, g) : 0;
  bool model = bucket == MOE_BUCKET_EMBED || bucket == MOE_BUCKET_HEAD;
  double slice = 4.0 * (double)cost_bucket_elems(spec, bucket, model ? 0 : layer, experts) / holders;
  int nodes = (plan->replicas * plan->replica_ranks + plan->ranks_per_node - 1) / plan->ranks_per_node;
  if (nodes == 1) {
    near = holders;
  } else if (bucket != MOE_BUCKET_EXPERTS) {
    near = g->n_ranks < plan->ranks_per_node ? g->n_ranks : plan->ranks_per_node;
  }
  Port p = {.nvlink = slice * (near - 1), .nic = slice * (holders - near)};
  double ns = port_ns(spec, g, p);
  return finish(spec, slice * holders * (holders - 1), ns, ns, p.nic > 0);
}

static MsgCost tail_msg(const Spec *spec, const Plan *plan, MoeEdge edge, int layer)
{
  if (layer < 0 || layer > spec->model.layers) {
    return finish(spec, 0, 0, 0, false);
  }
  bool model = layer == spec->model.layers;
  MsgCost most = cost_bucket_msg(spec, plan, edge, model ? MOE_BUCKET_HEAD : MOE_BUCKET_ATT, layer);
  if (model || layer >= spec->model.dense.layers) {
    MsgCost other = cost_bucket_msg(spec, plan, edge, model ? MOE_BUCKET_EMBED : MOE_BUCKET_EXPERTS, layer);
    most = other.ns > most.ns ? other : most;
  }
  return most;
}

MsgCost cost_msg(const Spec *spec, const Plan *plan, MoeEdge edge, int layer)
{
  double row = (double)cost_row_bytes(spec), pair = sizeof(MoePair), head = sizeof(MoeRowHead);
  const PlanGroup *a, *f, *next;
  if (edge == MOE_EDGE_REDUCE || edge == MOE_EDGE_SHARE) {
    return tail_msg(spec, plan, edge, layer);
  }
  if (edge == MOE_EDGE_SCALARS_UP || edge == MOE_EDGE_SCALARS_DOWN) {
    return finish(spec, 0, 0, 0, plan->replicas * plan->replica_ranks > plan->ranks_per_node);
  }
  a = &plan->groups[plan->att_group[layer]];
  f = &plan->groups[plan->ffn_group[layer]];
  next = &plan->groups[plan->att_group[layer + 1]];
  switch (edge) {
  case MOE_EDGE_DISPATCH:
    return att_ffn(spec, plan, a, f, layer, row + head, pair, true);
  case MOE_EDGE_DISPATCH_B:
    return att_ffn(spec, plan, a, f, layer, row, sizeof(float), false);
  case MOE_EDGE_COMBINE:
    return att_ffn(spec, plan, next, f, layer, row + sizeof(uint32_t), 0, false);
  case MOE_EDGE_COMBINE_B:
    return att_ffn(spec, plan, next, f, layer, row, 0, true);
  case MOE_EDGE_FORWARD:
    return in_node(spec, plan, f, row + head, pair, true);
  case MOE_EDGE_FORWARD_B:
    return in_node(spec, plan, f, row, sizeof(float), false);
  case MOE_EDGE_GATHER:
    return in_node(spec, plan, f, row, 0, false);
  case MOE_EDGE_GATHER_B:
    return in_node(spec, plan, f, row, 0, true);
  default:
    return edge == MOE_EDGE_PIPE ? pipe(spec, plan, a, next) : pipe(spec, plan, next, a);
  }
}
