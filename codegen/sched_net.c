/* The dataflow of a micro-batch as a graph of tasks: which exist, where they run, what follows what, what they cost. */
#include "codegen/sched_buckets.h"

#include <math.h>
#include <string.h>

#include "codegen/cost_terms.h"
#include "runtime/moe_layout.h"

int sched_group(const SchedNet *net, SchedTask task, int layer, int way)
{
  const Spec *spec = net->spec;
  const Plan *plan = net->plan;
  switch (task) {
  case TASK_EMBED_FWD:
  case TASK_EMBED_WGRAD:
  case TASK_ATT_FWD:
  case TASK_ATT_AGAIN:
  case TASK_ATT_DGRAD:
  case TASK_ATT_WGRAD:
  case TASK_HEAD:
  case TASK_DISPATCH:
  case TASK_DISPATCH_AGAIN:
    return plan_att(spec, plan, way, layer);
  case TASK_JOIN_FWD:
  case TASK_JOIN_DGRAD:
  case TASK_COMBINE_B:
    return plan_combine(spec, plan, way, layer);
  case TASK_PIPE: /* from the join, or from the dense layer itself */
    return layer < spec->model.dense.layers ? plan_att(spec, plan, way, layer) : plan_combine(spec, plan, way, layer);
  case TASK_PIPE_B:
    return plan_att(spec, plan, way, layer + 1);
  default:
    return plan_ffn(spec, plan, way, layer);
  }
}

int sched_dst(const SchedNet *net, SchedTask task, int layer, int way)
{
  switch (task) {
  case TASK_COMBINE:
    return plan_combine(net->spec, net->plan, way, layer);
  case TASK_DISPATCH_B:
    return plan_att(net->spec, net->plan, way, layer);
  case TASK_PIPE:
    return plan_att(net->spec, net->plan, way, layer + 1);
  case TASK_PIPE_B:
    return sched_group(net, TASK_PIPE, layer, way);
  default:
    return plan_ffn(net->spec, net->plan, way, layer);
  }
}

int sched_group_of(const SchedNet *net, int32_t id)
{
  return sched_group(net, sched_task(net, id), sched_layer(net, id), sched_way(net, sched_mb(net, id)));
}

static bool is_dense(const SchedNet *net, int layer)
{
  return layer < net->spec->model.dense.layers;
}

bool sched_again(const SchedNet *net, int layer)
{
  return cost_again(net->spec, net->plan->recompute, layer);
}

bool sched_task_exists(const SchedNet *net, SchedTask task, int layer, int way)
{
  bool piped = layer < net->n_layers && net->piped[sched_at(net, way, layer)];
  switch (task) {
  case TASK_HEAD:
    return layer == net->n_layers;
  case TASK_EMBED_FWD:
  case TASK_EMBED_WGRAD:
    return layer == 0;
  case TASK_ATT_FWD:
  case TASK_ATT_DGRAD:
  case TASK_ATT_WGRAD:
    return layer < net->n_layers;
  case TASK_ATT_AGAIN:
  case TASK_DISPATCH_AGAIN:
    return sched_again(net, layer);
  case TASK_FORWARD_AGAIN:
    return sched_again(net, layer) && net->relayed[sched_at(net, way, layer)];
  case TASK_JOIN_FWD:
  case TASK_JOIN_DGRAD:
    return piped && !is_dense(net, layer);
  case TASK_PIPE:
  case TASK_PIPE_B:
    return piped;
  case TASK_RELAY:
  case TASK_REDUCE_FWD:
  case TASK_REDUCE_BWD:
  case TASK_FORWARD:
  case TASK_GATHER:
  case TASK_GATHER_B:
  case TASK_FORWARD_B:
    return layer < net->n_layers && net->relayed[sched_at(net, way, layer)];
  default:
    return layer < net->n_layers && !is_dense(net, layer);
  }
}

int sched_chunks(const SchedNet *net, SchedTask task)
{
  switch (task) {
  case TASK_EMBED_FWD:
  case TASK_EMBED_WGRAD:
  case TASK_ATT_FWD:
  case TASK_ATT_AGAIN:
  case TASK_ATT_DGRAD:
  case TASK_ATT_WGRAD:
  case TASK_JOIN_FWD:
  case TASK_JOIN_DGRAD:
  case TASK_HEAD:
  case TASK_PIPE:
  case TASK_PIPE_B:
    return 1;
  default:
    return net->chunks;
  }
}

/* ---- successors ---- */

static int all_chunks(const SchedNet *net, SchedTask task, int layer, int mb, int32_t *next)
{
  for (int c = 0; c < net->chunks; c++) {
    next[c] = sched_id(net, task, layer, mb, c);
  }
  return net->chunks;
}

/* From the gradient of layer's input to the layer before. */
static int gradient_out(const SchedNet *net, int layer, int mb, int32_t *next)
{
  if (layer == 0) {
    next[0] = sched_id(net, TASK_EMBED_WGRAD, 0, mb, 0);
    return 1;
  }
  if (net->piped[sched_at(net, sched_way(net, mb), layer - 1)]) {
    next[0] = sched_id(net, TASK_PIPE_B, layer - 1, mb, 0);
    return 1;
  }
  return all_chunks(net, TASK_COMBINE_B, layer - 1, mb, next);
}

static int32_t after(const SchedNet *net, int32_t id, SchedTask task)
{
  return sched_id(net, task, sched_layer(net, id), sched_mb(net, id), sched_chunk(net, id));
}

static int32_t layer_entry(const SchedNet *net, int layer, int mb)
{
  return sched_id(net, layer < net->n_layers ? TASK_ATT_FWD : TASK_HEAD, layer, mb, 0);
}

static int32_t hop_next(const SchedNet *net, int32_t id)
{
  int layer = sched_layer(net, id), mb = sched_mb(net, id);
  int at = sched_at(net, sched_way(net, mb), layer);
  bool relayed = net->relayed[at];
  switch (sched_task(net, id)) {
  case TASK_DISPATCH:
    return after(net, id, relayed ? TASK_RELAY : TASK_FFN_FWD);
  case TASK_FORWARD:
    return after(net, id, TASK_FFN_FWD);
  case TASK_GATHER:
    return after(net, id, TASK_REDUCE_FWD);
  case TASK_COMBINE:
    return net->piped[at] ? sched_id(net, TASK_JOIN_FWD, layer, mb, 0) : layer_entry(net, layer + 1, mb);
  case TASK_PIPE:
    return layer_entry(net, layer + 1, mb);
  case TASK_PIPE_B:
    return sched_id(net, is_dense(net, layer) ? TASK_ATT_DGRAD : TASK_JOIN_DGRAD, layer, mb, 0);
  case TASK_COMBINE_B:
    return after(net, id, relayed ? TASK_GATHER_B : TASK_FFN_DGRAD);
  case TASK_DISPATCH_AGAIN:
    return after(net, id, relayed ? TASK_FORWARD_AGAIN : TASK_FFN_DGRAD);
  case TASK_FORWARD_AGAIN:
  case TASK_GATHER_B:
    return after(net, id, TASK_FFN_DGRAD);
  case TASK_FORWARD_B:
    return after(net, id, TASK_REDUCE_BWD);
  default:
    return sched_id(net, TASK_ATT_DGRAD, layer, mb, 0);
  }
}

/* Behind n others: the layer before is computed again once the gradient has passed the experts of this one. */
static int with_again(const SchedNet *net, int layer, int mb, int32_t *next, int n)
{
  if (layer > 0 && sched_again(net, layer - 1)) {
    next[n++] = sched_id(net, TASK_ATT_AGAIN, layer - 1, mb, 0);
  }
  return n;
}

int sched_nexts(const SchedNet *net, int32_t id, int32_t next[SCHED_MAX_NEXT])
{
  SchedTask task = sched_task(net, id);
  if (task >= TASK_DISPATCH) {
    next[0] = hop_next(net, id);
    return 1;
  }
  int layer = sched_layer(net, id), mb = sched_mb(net, id), n;
  bool relayed = layer < net->n_layers && net->relayed[sched_at(net, sched_way(net, mb), layer)];
  switch (task) {
  case TASK_EMBED_FWD:
    next[0] = sched_id(net, TASK_ATT_FWD, 0, mb, 0);
    return 1;
  case TASK_ATT_FWD:
    next[0] = sched_id(net, TASK_PIPE, layer, mb, 0);
    return is_dense(net, layer) ? 1 : all_chunks(net, TASK_DISPATCH, layer, mb, next);
  case TASK_FFN_FWD:
    next[0] = after(net, id, relayed ? TASK_GATHER : TASK_COMBINE);
    return 1;
  case TASK_JOIN_FWD:
    next[0] = sched_id(net, TASK_PIPE, layer, mb, 0);
    return 1;
  case TASK_HEAD:
    return with_again(net, layer, mb, next, gradient_out(net, layer, mb, next));
  case TASK_ATT_AGAIN:
    return all_chunks(net, TASK_DISPATCH_AGAIN, layer, mb, next);
  case TASK_JOIN_DGRAD:
    return all_chunks(net, TASK_COMBINE_B, layer, mb, next);
  case TASK_FFN_DGRAD:
    next[0] = after(net, id, relayed ? TASK_FORWARD_B : TASK_DISPATCH_B);
    next[1] = after(net, id, TASK_FFN_WGRAD);
    return with_again(net, layer, mb, next, 2);
  case TASK_ATT_DGRAD:
    n = gradient_out(net, layer, mb, next);
    next[n] = sched_id(net, TASK_ATT_WGRAD, layer, mb, 0);
    return n + 1;
  case TASK_RELAY:
    next[0] = after(net, id, TASK_FORWARD);
    return 1;
  case TASK_REDUCE_FWD:
    next[0] = after(net, id, TASK_COMBINE);
    return 1;
  case TASK_REDUCE_BWD:
    next[0] = after(net, id, TASK_DISPATCH_B);
    return 1;
  default:
    return 0;
  }
}

int sched_frees(const SchedNet *net, int32_t id, int32_t hops[SCHED_MAX_CHUNKS])
{
  int layer = sched_layer(net, id), mb = sched_mb(net, id), way = sched_way(net, mb);
  bool relayed = layer < net->n_layers && net->relayed[sched_at(net, way, layer)];
  switch (sched_task(net, id)) {
  case TASK_ATT_FWD:
  case TASK_HEAD:
    if (layer == 0) {
      return 0;
    }
    hops[0] = sched_id(net, TASK_PIPE, layer - 1, mb, 0);
    return net->piped[sched_at(net, way, layer - 1)] ? 1 : all_chunks(net, TASK_COMBINE, layer - 1, mb, hops);
  case TASK_JOIN_FWD:
    return all_chunks(net, TASK_COMBINE, layer, mb, hops);
  case TASK_JOIN_DGRAD:
    hops[0] = sched_id(net, TASK_PIPE_B, layer, mb, 0);
    return 1;
  case TASK_ATT_DGRAD:
    hops[0] = sched_id(net, TASK_PIPE_B, layer, mb, 0);
    return is_dense(net, layer) ? 1 : all_chunks(net, TASK_DISPATCH_B, layer, mb, hops);
  case TASK_FFN_FWD:
    hops[0] = after(net, id, relayed ? TASK_FORWARD : TASK_DISPATCH);
    return 1;
  case TASK_FORWARD:
    hops[0] = after(net, id, TASK_DISPATCH);
    return 1;
  case TASK_REDUCE_FWD:
    hops[0] = after(net, id, TASK_GATHER);
    return 1;
  case TASK_FFN_DGRAD:
    hops[0] = after(net, id, relayed ? TASK_GATHER_B : TASK_COMBINE_B);
    hops[1] = after(net, id, relayed ? TASK_FORWARD_AGAIN : TASK_DISPATCH_AGAIN);
    return sched_again(net, layer) ? 2 : 1;
  case TASK_FORWARD_AGAIN:
    hops[0] = after(net, id, TASK_DISPATCH_AGAIN);
    return 1;
  case TASK_GATHER_B:
    hops[0] = after(net, id, TASK_COMBINE_B);
    return 1;
  case TASK_REDUCE_BWD:
    hops[0] = after(net, id, TASK_FORWARD_B);
    return 1;
  default:
    return 0;
  }
}

int sched_work_side(const SchedNet *net, int32_t id)
{
  int layer = sched_layer(net, id);
  switch (sched_task(net, id)) {
  case TASK_FFN_FWD:
  case TASK_FFN_DGRAD:
  case TASK_REDUCE_FWD:
  case TASK_REDUCE_BWD:
    return 1;
  case TASK_HEAD:
  case TASK_ATT_AGAIN:
  case TASK_JOIN_FWD:
  case TASK_JOIN_DGRAD:
    return 0;
  case TASK_ATT_FWD: /* its output: of a dense layer, or if only the input is kept */
    return is_dense(net, layer) || sched_again(net, layer) ? 0 : -1;
  case TASK_ATT_DGRAD: /* or goes on with what ATT_AGAIN left */
    return sched_again(net, layer) ? -1 : 0;
  default:
    return -1;
  }
}

int sched_n_before(const SchedNet *net, int32_t id)
{
  int32_t hops[SCHED_MAX_CHUNKS];
  int n = sched_frees(net, id, hops);
  if (sched_task(net, id) == TASK_ATT_AGAIN && sched_layer(net, id) + 1 < net->n_layers) {
    return net->chunks; /* of the layer above, whose gradients have their turn first */
  }
  return (n ? n : 1) + (sched_holder(net, id) >= 0); /* without a message to read it follows one op */
}

int32_t sched_holder(const SchedNet *net, int32_t id)
{
  if (!net->marks || !(net->marks[id] & MARK_HELD)) {
    return -1;
  }
  SchedTask task = sched_task(net, id);
  if (task == TASK_COMBINE_B && sched_again(net, sched_layer(net, id))) {
    return sched_id(net, TASK_ATT_AGAIN, sched_layer(net, id), sched_mb(net, id), 0);
  }
  return task == TASK_FORWARD_B || task == TASK_DISPATCH_B
             ? after(net, id, TASK_FFN_WGRAD)
             : sched_id(net, TASK_ATT_WGRAD, sched_layer(net, id) + 1, sched_mb(net, id), 0);
}

int sched_holds(const SchedNet *net, int32_t id, int32_t hops[SCHED_MAX_CHUNKS])
{
  SchedTask task = sched_task(net, id);
  if (task == TASK_ATT_AGAIN) {
    return all_chunks(net, TASK_COMBINE_B, sched_layer(net, id), sched_mb(net, id), hops);
  }
  if (task != TASK_FFN_WGRAD && task != TASK_ATT_WGRAD) {
    return 0;
  }
  int32_t next[SCHED_MAX_NEXT];
  int n = sched_nexts(net, after(net, id, task == TASK_FFN_WGRAD ? TASK_FFN_DGRAD : TASK_ATT_DGRAD), next), held = 0;
  for (int i = 0; i < n; i++) {
    if (sched_task(net, next[i]) >= TASK_DISPATCH) {
      hops[held++] = next[i];
    }
  }
  return held;
}

MoeOpKind sched_kind(SchedTask task)
{
  static const MoeOpKind kinds[] = {
      [TASK_EMBED_FWD] = MOE_OP_EMBED_FWD,
      [TASK_ATT_FWD] = MOE_OP_ATT_FWD,
      [TASK_FFN_FWD] = MOE_OP_FFN_FWD,
      [TASK_JOIN_FWD] = MOE_OP_JOIN_FWD,
      [TASK_HEAD] = MOE_OP_HEAD,
      [TASK_ATT_AGAIN] = MOE_OP_ATT_AGAIN,
      [TASK_JOIN_DGRAD] = MOE_OP_JOIN_DGRAD,
      [TASK_FFN_DGRAD] = MOE_OP_FFN_DGRAD,
      [TASK_ATT_DGRAD] = MOE_OP_ATT_DGRAD,
      [TASK_FFN_WGRAD] = MOE_OP_FFN_WGRAD,
      [TASK_ATT_WGRAD] = MOE_OP_ATT_WGRAD,
      [TASK_EMBED_WGRAD] = MOE_OP_EMBED_WGRAD,
      [TASK_RELAY] = MOE_OP_RELAY,
      [TASK_REDUCE_FWD] = MOE_OP_NODE_REDUCE,
      [TASK_REDUCE_BWD] = MOE_OP_NODE_REDUCE,
  };
  return task < TASK_DISPATCH ? kinds[task] : MOE_OP_SEND;
}

MoeEdge sched_edge(SchedTask task)
{
  static const MoeEdge edges[] = {
      [TASK_REDUCE_FWD - TASK_REDUCE_FWD] = MOE_EDGE_GATHER,
      [TASK_REDUCE_BWD - TASK_REDUCE_FWD] = MOE_EDGE_FORWARD_B,
      [TASK_DISPATCH - TASK_REDUCE_FWD] = MOE_EDGE_DISPATCH,
      [TASK_FORWARD - TASK_REDUCE_FWD] = MOE_EDGE_FORWARD,
      [TASK_GATHER - TASK_REDUCE_FWD] = MOE_EDGE_GATHER,
      [TASK_COMBINE - TASK_REDUCE_FWD] = MOE_EDGE_COMBINE,
      [TASK_PIPE - TASK_REDUCE_FWD] = MOE_EDGE_PIPE,
      [TASK_PIPE_B - TASK_REDUCE_FWD] = MOE_EDGE_PIPE_B,
      [TASK_DISPATCH_AGAIN - TASK_REDUCE_FWD] = MOE_EDGE_DISPATCH_AGAIN,
      [TASK_FORWARD_AGAIN - TASK_REDUCE_FWD] = MOE_EDGE_FORWARD_AGAIN,
      [TASK_COMBINE_B - TASK_REDUCE_FWD] = MOE_EDGE_COMBINE_B,
      [TASK_GATHER_B - TASK_REDUCE_FWD] = MOE_EDGE_GATHER_B,
      [TASK_FORWARD_B - TASK_REDUCE_FWD] = MOE_EDGE_FORWARD_B,
      [TASK_DISPATCH_B - TASK_REDUCE_FWD] = MOE_EDGE_DISPATCH_B,
  };
  return task >= TASK_REDUCE_FWD ? edges[task - TASK_REDUCE_FWD] : MOE_EDGE_NONE;
}

/* Some node holds two ranks of the layer's FFN group and the plan sends each token once per node. */
static bool is_relayed(const Plan *plan, int layer)
{
  const PlanGroup *group = &plan->groups[plan->ffn_group[layer]];
  if (plan->dedup != DEDUP_NODE || plan->ranks_per_node < 2) {
    return false;
  }
  for (int q = 0; q < plan->replicas; q++) {
    int first = q * plan->replica_ranks + group->first_rank;
    for (int rank = first + 1; rank < first + group->n_ranks; rank++) {
      if (plan_node_of(plan, rank) == plan_node_of(plan, rank - 1)) {
        return true;
      }
    }
  }
  return false;
}

/* ---- costs ---- */

static int64_t at_least_1(int64_t ns)
{
  return ns < 1 ? 1 : ns;
}

static int cost_at(const SchedNet *net, int size, int way, int layer)
{
  return sched_at(net, size * net->ways + way, layer);
}

static int cost_of(const SchedNet *net, int32_t id)
{
  int mb = sched_mb(net, id);
  return cost_at(net, sched_size(net, mb), sched_way(net, mb), sched_layer(net, id));
}

int64_t sched_op_ns(const SchedNet *net, int32_t id)
{
  int64_t ns = net->op_ns[sched_task(net, id)][cost_of(net, id)];
  return net->marks && (net->marks[id] & MARK_MERGED) ? (int64_t)llround((double)ns * net->merged) : ns;
}

const MsgCost *sched_msg(const SchedNet *net, int32_t id)
{
  return &net->msg[sched_task(net, id)][cost_of(net, id)];
}

int sched_mb_seqs(const Plan *plan, int mb)
{
  int64_t left =
      plan->shape ? moe_part_max(plan->shape->global_batch, plan->replicas) - (int64_t)mb * plan->mb_seqs : 0;
  return left > 0 && left < plan->mb_seqs ? (int)left : plan->mb_seqs;
}

/* The plan as micro-batches of one size and direction see it. */
static Plan view_of(const SchedNet *net, int size, int way)
{
  Plan view = *net->plan;
  view.mb_seqs = net->seqs[size];
  view.ways = 1;
  view.att_group += way * (net->n_layers + 1);
  view.ffn_group += way * net->n_layers;
  view.combine_group += way * net->n_layers;
  return view;
}

/* An earlier layer whose messages go between the same groups and so cost the same, or the layer itself. */
static int like_layer(const SchedNet *net, const Plan *view, int layer)
{
  for (int l = net->spec->model.dense.layers; l < layer; l++) {
    if (view->att_group[l] == view->att_group[layer] && view->ffn_group[l] == view->ffn_group[layer] &&
        view->combine_group[l] == view->combine_group[layer] && view->att_group[l + 1] == view->att_group[layer + 1]) {
      return l;
    }
  }
  return layer;
}

static void fill_costs(SchedNet *net, SchedTask task, int size, int way)
{
  Plan view = view_of(net, size, way);
  for (int layer = 0; layer <= net->n_layers; layer++) {
    if (!sched_task_exists(net, task, layer, way)) {
      continue;
    }
    int at = cost_at(net, size, way, layer);
    if (task < TASK_DISPATCH) {
      net->op_ns[task][at] = at_least_1(cost_op_ns(net->spec, &view, sched_kind(task), layer));
      continue;
    }
    int like = is_dense(net, layer) ? layer : like_layer(net, &view, layer);
    net->msg[task][at] = like < layer ? net->msg[task][cost_at(net, size, way, like)]
                                      : cost_msg(net->spec, &view, sched_edge(task), layer);
  }
}

/* Units of the GPU that merged systems give to communication; 20 of 132 in DeepSeek-V3's report. */
static double merged_factor(const Spec *spec)
{
  double tax = spec->cluster.gpu.comm_tax;
  return spec->costs.given ? 1 : tax > 0 ? 1 / (1 - tax) : 132.0 / 112;
}

/* What of Comet's messages is not hidden under the experts becomes part of the op's time, and the messages themselves
   then take none. `after`: work that may fill the window, too: the weight gradients behind the input gradient. `more`
   comes in, too. */
static void fold_messages(SchedNet *net, SchedTask op, SchedTask after, SchedTask in, SchedTask more, SchedTask out)
{
  for (int at = 0; at < net->n_sizes * net->ways * (net->n_layers + 1); at++) {
    double f = (double)net->op_ns[op][at], d = (double)net->msg[in][at].ns, c = (double)net->msg[out][at].ns;
    d += more == in ? 0 : (double)net->msg[more][at].ns;
    double window = f + (after == op ? 0 : (double)net->op_ns[after][at]);
    if (f > 0) {
      net->op_ns[op][at] = at_least_1(llround(f + d + c - cost_hidden(window, d, c)));
    }
  }
}

static void fold_all(SchedNet *net)
{
  static const SchedTask hops[] = {TASK_DISPATCH, TASK_COMBINE, TASK_DISPATCH_AGAIN, TASK_COMBINE_B, TASK_DISPATCH_B};
  fold_messages(net, TASK_FFN_FWD, TASK_FFN_FWD, TASK_DISPATCH, TASK_DISPATCH, TASK_COMBINE);
  fold_messages(net, TASK_FFN_DGRAD, TASK_FFN_WGRAD, TASK_COMBINE_B, TASK_DISPATCH_AGAIN, TASK_DISPATCH_B);
  for (int i = 0; i < 5; i++) {
    for (int at = 0; at < net->n_sizes * net->ways * (net->n_layers + 1); at++) {
      MsgCost *cost = &net->msg[hops[i]][at];
      *cost = (MsgCost){.bytes = cost->bytes, .nic_bytes = cost->nic_bytes};
    }
  }
}

int sched_way_mbs(const SchedNet *net, int way)
{
  int half = (net->n_mbs + 1) / 2;
  return net->ways == 1 ? net->n_mbs : way == 0 ? half : net->n_mbs - half;
}

SchedNet sched_net(Arena *arena, const Spec *spec, const Plan *plan)
{
  SchedNet net = {.spec = spec, .plan = plan, .n_layers = spec->model.layers, .n_mbs = plan->micro_batches};
  net.n_groups = plan->n_groups;
  net.ways = plan->ways;
  net.seqs[0] = plan->mb_seqs;
  net.seqs[1] = sched_mb_seqs(plan, net.n_mbs - 1);
  net.n_sizes = net.seqs[1] < net.seqs[0] ? 2 : 1;
  net.chunks = plan->chunks;
  bool merges =
      plan->system == SYSTEM_MEGATRON_OVERLAP || plan->system == SYSTEM_DUALPIPE || plan->system == SYSTEM_DUALPIPEV;
  net.merged = merges ? merged_factor(spec) : 1;
  size_t layers = (size_t)net.ways * ((size_t)net.n_layers + 1);
  net.relayed = arena_new_array(arena, bool, layers);
  net.piped = arena_new_array(arena, bool, layers);
  for (int way = 0; way < net.ways; way++) {
    Plan view = view_of(&net, 0, way);
    for (int layer = 0; layer < net.n_layers; layer++) {
      net.relayed[sched_at(&net, way, layer)] = layer >= spec->model.dense.layers && is_relayed(&view, layer);
      net.piped[sched_at(&net, way, layer)] = plan_piped(spec, plan, way, layer);
    }
  }
  for (SchedTask task = 0; task < TASK_COUNT; task++) {
    if (task < TASK_DISPATCH) {
      net.op_ns[task] = arena_new_array(arena, int64_t, (size_t)net.n_sizes * layers);
    } else {
      net.msg[task] = arena_new_array(arena, MsgCost, (size_t)net.n_sizes * layers);
    }
    for (int i = 0; i < net.n_sizes * net.ways; i++) {
      fill_costs(&net, task, i / net.ways, i % net.ways);
    }
  }
  if (plan->system == SYSTEM_COMET) {
    fold_all(&net);
  }
  sched_buckets(arena, &net);
  return net;
}
