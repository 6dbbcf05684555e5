/* Durations are those of the schedule's rows. Sizes of messages are worked out here rank by rank from the same terms as
   the cost model's classes, so that executing them shows whether a class, which knows only its busiest ports, was
   priced rightly. */
#include "codegen/emit_emu.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "codegen/cost_terms.h"
#include "runtime/moe_layout.h"

Spec emu_small_spec(const Spec *spec)
{
  Spec small = *spec;
  ModelSpec *m = &small.model;
  m->hidden = m->vocab = 2;
  m->attention.kind = ATTENTION_GQA;
  m->attention.heads = m->attention.kv_heads = 1;
  m->attention.head_dim = 2;
  m->attention.qk_norm = QK_NORM_NONE;
  m->attention.bias = m->attention.sinks = false;
  m->dense.hidden = m->moe.hidden = 1;
  m->moe.router = ROUTER_SOFTMAX_RENORM;
  m->moe.router_bias = m->moe.bias = false;
  m->moe.shared = m->moe.shared > 0; /* its bucket is exchanged */
  return small;
}

/* One class of messages: a matrix of bytes, rank by rank, and its latencies. */
typedef struct Class {
  int n_src, n_dst;
  double *bytes;
  int64_t near_ns, far_ns;
} Class;

typedef struct Emu {
  Arena *arena;
  const Spec *spec;
  const Plan *plan;
  Class *classes;
  int n_classes, room;
} Emu;

/* The end of a message at which tokens have experts, and the other one. */
typedef struct Ends {
  const PlanGroup *src, *dst;
  bool to_ffn; /* dst is the FFN side */
} Ends;

static int node_of(const Plan *plan, const PlanGroup *g, int rank)
{
  return plan_node_of(plan, g->first_rank + rank);
}

/* Ranks of the group that share the node of `rank`: [*first_p, result). */
static int node_ranks(const Plan *plan, const PlanGroup *g, int rank, int *first_p)
{
  int node = node_of(plan, g, rank), first = rank, end = rank;
  while (first > 0 && node_of(plan, g, first - 1) == node) {
    first--;
  }
  while (end < g->n_ranks && node_of(plan, g, end) == node) {
    end++;
  }
  *first_p = first;
  return end;
}

/* Expected bytes of one token to or from FFN rank j, per row and per pair. The first rank is the fullest one where the
   spec declares an imbalance; what it has more the others have less. */
static double token_bytes(const Emu *emu, const PlanGroup *f, bool relayed, int j, double row, double pair)
{
  const Spec *spec = emu->spec;
  int first = j, last = j + 1;
  if (relayed) {
    last = node_ranks(emu->plan, f, j, &first);
  }
  int64_t begin = moe_part_begin(spec->model.moe.experts, f->n_ranks, first);
  int64_t end = moe_part_begin(spec->model.moe.experts, f->n_ranks, last);
  int hits = cost_hits(spec, begin, end);
  double pairs = (double)spec->model.moe.top_k * hits / cost_routable(spec);
  double rows = emu->plan->dedup == DEDUP_FLAT ? pairs : cost_touch(spec, hits);
  double factor = spec->model.moe.imbalance, n = f->n_ranks;
  if (factor > 1 && n > 1) {
    factor = j == 0 ? factor : factor < n ? (n - factor) / (n - 1) : 0;
    pairs *= factor;
    rows = emu->plan->dedup == DEDUP_FLAT || rows * factor < 1 ? rows * factor : 1;
  }
  return (rows * row + pairs * pair) / (last - first);
}

/* Bytes as a port sees them: small messages do not reach the full rate. */
static double on_port(const Curve *curve, double bytes)
{
  return curve->n && bytes > 0 ? bytes / curve_at(curve, bytes > 1 ? bytes : 1) : bytes;
}

static double positions(const Emu *emu, int chunk)
{
  return (double)moe_part_size(emu->plan->shape->seq, emu->plan->chunks, chunk);
}

static double seqs_of(const Plan *plan, const PlanGroup *g, int rank)
{
  return (double)moe_part_size(plan->mb_seqs, g->n_ranks, rank);
}

/* Between an attention rank (a relay, if the group talks to itself on one node) and an FFN rank. */
static void fill_tokens(const Emu *emu, Ends ends, int chunk, bool relayed, bool in_node, double row, double pair,
                        Class *class)
{
  const PlanGroup *a = ends.to_ffn ? ends.src : ends.dst, *f = ends.to_ffn ? ends.dst : ends.src;
  for (int i = 0; i < a->n_ranks; i++) {
    int first = 0, ranks = 1;
    if (in_node) {
      ranks = node_ranks(emu->plan, a, i, &first) - first;
    }
    for (int j = 0; j < f->n_ranks; j++) {
      double seqs = in_node ? (double)emu->plan->mb_seqs / ranks : seqs_of(emu->plan, a, i);
      double bytes = seqs * positions(emu, chunk) * token_bytes(emu, f, relayed && !in_node, j, row, pair);
      class->bytes[ends.to_ffn ? i * class->n_dst + j : j * class->n_dst + i] = bytes;
    }
  }
}

static void fill_pipe(const Emu *emu, Class *class)
{
  double row = (double)(cost_row_bytes(emu->spec) * emu->plan->shape->seq);
  for (int i = 0; i < class->n_src; i++) {
    int64_t first = moe_part_begin(emu->plan->mb_seqs, class->n_src, i), begin;
    int64_t size = moe_part_size(emu->plan->mb_seqs, class->n_src, i);
    for (int j = 0; j < class->n_dst; j++) {
      int64_t n = moe_part_overlap(emu->plan->mb_seqs, class->n_dst, j, first, size, &begin);
      class->bytes[i * class->n_dst + j] = row * (double)n;
    }
  }
}

static void fill(const Emu *emu, MoeEdge edge, Ends ends, int layer, int chunk, Class *class)
{
  double row = (double)cost_row_bytes(emu->spec);
  bool relayed = layer < emu->spec->model.layers && cost_relayed(emu->plan, layer);
  switch (edge) {
  case MOE_EDGE_DISPATCH:
    fill_tokens(emu, ends, chunk, relayed, false, row + sizeof(MoeRowHead), sizeof(MoePair), class);
    break;
  case MOE_EDGE_DISPATCH_B:
    fill_tokens(emu, ends, chunk, relayed, false, row, sizeof(float), class);
    break;
  case MOE_EDGE_COMBINE:
    fill_tokens(emu, ends, chunk, relayed, false, row + sizeof(uint32_t), 0, class);
    break;
  case MOE_EDGE_DISPATCH_AGAIN:
  case MOE_EDGE_COMBINE_B:
    fill_tokens(emu, ends, chunk, relayed, false, row, 0, class);
    break;
  case MOE_EDGE_FORWARD:
    fill_tokens(emu, ends, chunk, relayed, true, row + sizeof(MoeRowHead), sizeof(MoePair), class);
    break;
  case MOE_EDGE_FORWARD_B:
    fill_tokens(emu, ends, chunk, relayed, true, row, sizeof(float), class);
    break;
  case MOE_EDGE_FORWARD_AGAIN:
  case MOE_EDGE_GATHER:
  case MOE_EDGE_GATHER_B:
    fill_tokens(emu, ends, chunk, relayed, true, row, 0, class);
    break;
  default:
    fill_pipe(emu, class);
    break;
  }
}

/* Edges whose messages a fused op hides: they cost nothing beside it. */
static bool fused(const Plan *plan, MoeEdge edge)
{
  return plan->system == SYSTEM_COMET &&
         (edge == MOE_EDGE_DISPATCH || edge == MOE_EDGE_COMBINE || edge == MOE_EDGE_DISPATCH_AGAIN ||
          edge == MOE_EDGE_DISPATCH_B || edge == MOE_EDGE_COMBINE_B);
}

/* Given times fill a port of one byte per ns on the side that has more peers. */
static void fill_given(const Emu *emu, MoeEdge edge, const Ends *ends, int layer, Class *class)
{
  MsgCost cost = cost_msg(emu->spec, emu->plan, edge, layer);
  int self = ends->src == ends->dst, n = class->n_src > class->n_dst ? class->n_src : class->n_dst;
  for (int k = 0; k < class->n_src * class->n_dst; k++) {
    class->bytes[k] = n > self ? (double)cost.src_ns / (n - self) : 0;
  }
  class->near_ns = class->far_ns = cost.latency;
}

static Class pair_class(const Emu *emu, const MoeOp *op, int group)
{
  const Plan *plan = emu->plan;
  const ClusterSpec *c = &emu->spec->cluster;
  MoeEdge edge = (MoeEdge)op->edge;
  Ends ends = {&plan->groups[group], &plan->groups[op->peer], false};
  ends.to_ffn = edge == MOE_EDGE_DISPATCH || edge == MOE_EDGE_DISPATCH_AGAIN || edge == MOE_EDGE_COMBINE_B ||
                edge == MOE_EDGE_FORWARD || edge == MOE_EDGE_FORWARD_AGAIN || edge == MOE_EDGE_GATHER_B;
  Class class = {.n_src = ends.src->n_ranks, .n_dst = ends.dst->n_ranks};
  class.bytes = arena_new_array(emu->arena, double, (size_t)(class.n_src * class.n_dst));
  bool piped = edge == MOE_EDGE_PIPE || edge == MOE_EDGE_PIPE_B;
  if (fused(plan, edge) || (piped && ends.src == ends.dst)) {
    return class;
  }
  if (emu->spec->costs.given) {
    fill_given(emu, edge, &ends, op->layer, &class);
    return class;
  }
  fill(emu, edge, ends, op->layer, op->chunk, &class);
  class.near_ns = class.far_ns = (int64_t)ceil(c->nvlink_ns);
  for (int i = 0; i < class.n_src; i++) {
    for (int j = 0; j < class.n_dst; j++) {
      double *bytes = &class.bytes[i * class.n_dst + j];
      bool near = node_of(plan, ends.src, i) == node_of(plan, ends.dst, j);
      class.far_ns = !near && *bytes > 0 ? (int64_t)ceil(c->nic_ns) : class.far_ns;
      *bytes = on_port(near ? &c->nvlink_bytes : &c->nic_bytes, *bytes);
    }
  }
  return class;
}

/* Exchanges of buckets, and scalars. */
static Class tail_class(const Emu *emu, const MoeOp *op)
{
  const ClusterSpec *c = &emu->spec->cluster;
  MsgCost cost = cost_msg(emu->spec, emu->plan, MOE_EDGE_SCALARS_UP, -1);
  Class class = {.bytes = arena_new_array(emu->arena, double, 1), .near_ns = cost.latency, .far_ns = cost.latency};
  if (op->edge == MOE_EDGE_REDUCE || op->edge == MOE_EDGE_SHARE) {
    MoeBucketKind bucket = (MoeBucketKind)op->bucket;
    cost = cost_bucket_msg(emu->spec, emu->plan, (MoeEdge)op->edge, bucket, op->layer);
    double holders = cost_bucket_holders(emu->spec, emu->plan, bucket, op->layer);
    double others = cost_bucket_parties(emu->spec, emu->plan, bucket, op->layer) - 1;
    class.bytes[0] = others > 0 ? cost.bytes / (holders * others) : 0;
    class.bytes[0] = on_port(cost.nic_bytes > 0 ? &c->nic_bytes : &c->nvlink_bytes, class.bytes[0]);
    class.near_ns = class.far_ns = cost.latency;
  }
  return class;
}

static bool same_class(const Class *a, const Class *b)
{
  size_t n = (size_t)(a->n_src ? a->n_src * a->n_dst : 1);
  return a->n_src == b->n_src && a->n_dst == b->n_dst && a->near_ns == b->near_ns && a->far_ns == b->far_ns &&
         memcmp(a->bytes, b->bytes, n * sizeof *a->bytes) == 0;
}

static int add_class(Emu *emu, const Class *class)
{
  for (int i = 0; i < emu->n_classes; i++) {
    if (same_class(&emu->classes[i], class)) {
      return i;
    }
  }
  emu->classes = arena_grow(emu->arena, emu->classes, emu->n_classes, &emu->room, sizeof *emu->classes);
  emu->classes[emu->n_classes] = *class;
  return emu->n_classes++;
}

/* The class of a micro-batch's messages: of as many sequences as it has. */
static Class mb_class(const Emu *emu, const MoeOp *op, int group)
{
  Plan view = *emu->plan;
  Emu sized = *emu;
  view.mb_seqs = sched_mb_seqs(emu->plan, op->mb);
  sized.plan = &view;
  return pair_class(&sized, op, group);
}

/* Numbers the classes of a group's SENDs; ops that differ only in their micro-batch share one, but for a short last
 * one.
 */
static int *number_classes(Emu *emu, const SchedGroup *sched, int group)
{
  int layers = emu->spec->model.layers + 2, chunks = emu->plan->chunks;
  int kinds = (MOE_EDGE_COUNT + 1) * (MOE_BUCKET_COUNT + 1);
  int *known = arena_new_array(emu->arena, int, (size_t)(2 * kinds * layers * chunks * emu->plan->n_groups));
  int *of_op = arena_new_array(emu->arena, int, (size_t)sched->n_ops + 1);
  for (int i = 0; i < sched->n_ops; i++) {
    const MoeOp *op = &sched->ops[i];
    of_op[i] = -1;
    if (op->kind != MOE_OP_SEND) {
      continue;
    }
    int kind = op->edge * (MOE_BUCKET_COUNT + 1) + op->bucket;
    int peer = op->peer < 0 ? 0 : op->peer;
    bool is_short = op->mb >= 0 && sched_mb_seqs(emu->plan, op->mb) < emu->plan->mb_seqs;
    int *index =
        &known[(((kind * layers + op->layer + 1) * chunks + op->chunk) * emu->plan->n_groups + peer) * 2 + is_short];
    if (*index == 0) {
      Class class = op->peer < 0 ? tail_class(emu, op) : mb_class(emu, op, group);
      *index = add_class(emu, &class) + 1;
    }
    of_op[i] = *index - 1;
  }
  return of_op;
}

static void emit_durations(const SchedGroup *sched, int group, FILE *out)
{
  fprintf(out, "static const int64_t op_ns_%d[] = {", group);
  for (int i = 0; i < sched->n_ops; i++) {
    bool message = sched->ops[i].kind == MOE_OP_SEND || sched->ops[i].kind == MOE_OP_RECV;
    fprintf(out, "%s%" PRId64,
            i % 16 ? ", "
            : i    ? ",\n  "
                   : "\n  ",
            message ? 0 : sched->end_ns[i] - sched->start_ns[i]);
  }
  fprintf(out, "%s};\n", sched->n_ops ? "" : "0");
}

static void emit_numbers(const char *name, int number, const int *values, int n, FILE *out)
{
  fprintf(out, "static const int32_t %s", name);
  fprintf(out, number >= 0 ? "%d[] = {" : "[] = {", number);
  for (int i = 0; i < n; i++) {
    fprintf(out, "%s%d", i % 32 ? ", " : i ? ",\n  " : "\n  ", values[i]);
  }
  fprintf(out, "%s};\n", n ? "" : "0");
}

static void emit_classes(const Emu *emu, FILE *out)
{
  for (int k = 0; k < emu->n_classes; k++) {
    const Class *class = &emu->classes[k];
    int n = class->n_src ? class->n_src * class->n_dst : 1;
    fprintf(out, "static const double bytes_%d[] = {", k);
    for (int i = 0; i < n; i++) {
      fprintf(out, "%s%.17g", i % 8 ? ", " : i ? ",\n  " : "", class->bytes[i]);
    }
    fprintf(out, "};\n");
  }
  fprintf(out, "static const MoeEmuMsg emu_msgs[] = {\n");
  for (int k = 0; k < emu->n_classes; k++) {
    const Class *class = &emu->classes[k];
    fprintf(out, "  {%d, %d, bytes_%d, %" PRId64 ", %" PRId64 "},\n", class->n_src, class->n_dst, k, class->near_ns,
            class->far_ns);
  }
  fprintf(out, "%s};\n", emu->n_classes ? "" : "{0}");
}

/* Roles of the group that a rank of the replica belongs to. */
static int role_of(const Plan *plan, int rank)
{
  for (int g = 0; g < plan->n_groups; g++) {
    if (rank >= plan->groups[g].first_rank && rank < plan->groups[g].first_rank + plan->groups[g].n_ranks) {
      return plan->groups[g].role;
    }
  }
  return 0;
}

/* NICs that serve the ranks of a mixed side on one node, if neither number divides the other: those are one port of all
   these ranks, beginning with *first_p. Else 0. */
static int shared_nics(const Plan *plan, int rank, int *first_p)
{
  int first = rank, end = rank + 1, nics = 0, role = role_of(plan, rank), node = plan_node_of(plan, rank);
  if (plan->placement != PLACE_MIXED) {
    return 0;
  }
  while (first > 0 && plan_node_of(plan, first - 1) == node && role_of(plan, first - 1) == role) {
    first--;
  }
  while (end < plan->replica_ranks && plan_node_of(plan, end) == node && role_of(plan, end) == role) {
    end++;
  }
  for (int k = 0; k < plan->n_nics; k++) {
    nics += plan->nic_ranks[k] >= first && plan->nic_ranks[k] < end;
  }
  *first_p = first;
  return nics > 0 && nics % (end - first) != 0 && (end - first) % nics != 0 ? nics : 0;
}

/* A NIC is used from its first rank on, by the ranks of that side, until the side's next NIC begins; NICs with the same
   first rank are one port. */
static void emit_nics(const Emu *emu, FILE *out)
{
  const Plan *plan = emu->plan;
  int *port_of = arena_new_array(emu->arena, int, (size_t)plan->replica_ranks);
  int *first = arena_new_array(emu->arena, int, (size_t)plan->replica_ranks);
  int *count = arena_new_array(emu->arena, int, (size_t)plan->replica_ranks), n = 0;
  bool given = emu->spec->costs.given;
  for (int rank = 0; rank < plan->replica_ranks; rank++) {
    int best = -1, same = 0, port = 0;
    for (int k = 0; k < plan->n_nics && !given; k++) {
      if (plan->nic_ranks[k] <= rank && role_of(plan, plan->nic_ranks[k]) == role_of(plan, rank)) {
        same = plan->nic_ranks[k] == best ? same + 1 : 1;
        best = plan->nic_ranks[k];
      }
    }
    int node_first, shared = given ? 0 : shared_nics(plan, rank, &node_first);
    if (shared > 0) {
      best = node_first;
      same = shared;
    }
    if (best < 0) { /* no NIC: one of its own */
      best = rank;
      same = 1;
    }
    while (port < n && first[port] != best) {
      port++;
    }
    if (port == n) {
      first[n] = best;
      count[n++] = same;
    }
    port_of[rank] = port;
  }
  emit_numbers("nic_of", -1, port_of, plan->replica_ranks, out);
  fprintf(out, "static const double nics[] = {");
  for (int port = 0; port < n; port++) {
    double rate = given ? 1e9 : emu->spec->cluster.nic > 0 ? emu->spec->cluster.nic * count[port] : 1e9;
    fprintf(out, "%s%.17g", port ? ", " : "", rate);
  }
  fprintf(out, "};\n");
  fprintf(out, "static const MoeEmu emu = {\n  .nic_of = nic_of,\n  .nic = nics,\n  .n_nics = %d,\n", n);
}

void emit_emu_tables(Arena *arena, const Spec *spec, const Plan *plan, const Schedule *sched, FILE *out)
{
  Emu emu = {.arena = arena, .spec = spec, .plan = plan};
  bool given = spec->costs.given;
  for (int g = 0; g < sched->n_groups; g++) {
    emit_durations(&sched->groups[g], g, out);
    emit_numbers("op_msgs_", g, number_classes(&emu, &sched->groups[g], g), sched->groups[g].n_ops, out);
  }
  fprintf(out, "static const int64_t *const op_ns[] = {");
  for (int g = 0; g < sched->n_groups; g++) {
    fprintf(out, "%sop_ns_%d", g ? ", " : "", g);
  }
  fprintf(out, "};\nstatic const int32_t *const op_msgs[] = {");
  for (int g = 0; g < sched->n_groups; g++) {
    fprintf(out, "%sop_msgs_%d", g ? ", " : "", g);
  }
  fprintf(out, "};\n");
  emit_classes(&emu, out);
  emit_nics(&emu, out);
  fprintf(out, "  .step_ns = %" PRId64 ",\n  .op_ns = op_ns,\n  .op_msgs = op_msgs,\n  .msgs = emu_msgs,\n",
          sched->step_ns);
  double nvlink = !given && spec->cluster.nvlink > 0 ? spec->cluster.nvlink : 1e9;
  fprintf(out, "  .ranks_per_node = %d,\n  .nvlink = %.17g,\n};\n\n", given ? 1 : plan->ranks_per_node, nvlink);
}
