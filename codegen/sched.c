/* AF-Pipe: the order of compute ops by list scheduling over modelled times, and the passes every schedule goes through.
   The rule of the list scheduler: input gradients and forwards first, in turn or one before the other, because other
   groups wait for them; weight gradients fill what is left, unless more of them wait than the policy lets pile up.
   Micro-batches enter in order, at most `in_flight` of them between their first forward and their last weight gradient.
   Variants of this rule are tried and the shortest timeline wins; ties go to the variant listed first, so the result
   depends on the input alone. */
#include "codegen/sched_int.h"

int sched_group(const SchedNet *net, SchedTask task, int layer)
{
  const Plan *plan = net->plan;
  switch (task) {
  case TASK_EMBED_FWD:
  case TASK_EMBED_WGRAD:
  case TASK_ATT_FWD:
  case TASK_ATT_DGRAD:
  case TASK_ATT_WGRAD:
  case TASK_HEAD:
  case TASK_DISPATCH:
    return plan->att_group[layer];
  case TASK_COMBINE_B:
    return plan->att_group[layer + 1];
  default:
    return plan->ffn_group[layer];
  }
}

int sched_dst(const SchedNet *net, SchedTask task, int layer)
{
  switch (task) {
  case TASK_COMBINE:
    return net->plan->att_group[layer + 1];
  case TASK_DISPATCH_B:
    return net->plan->att_group[layer];
  default:
    return net->plan->ffn_group[layer];
  }
}

int32_t sched_next(const SchedNet *net, int32_t id)
{
  int layer = sched_layer(net, id), mb = sched_mb(net, id), last = net->n_layers - 1;
  bool relayed = layer <= last && net->relayed[layer];
  switch (sched_task(net, id)) {
  case TASK_EMBED_FWD:
    return sched_id(net, TASK_ATT_FWD, 0, mb);
  case TASK_ATT_FWD:
    return sched_id(net, TASK_DISPATCH, layer, mb);
  case TASK_DISPATCH:
    return sched_id(net, relayed ? TASK_RELAY : TASK_FFN_FWD, layer, mb);
  case TASK_RELAY:
    return sched_id(net, TASK_FORWARD, layer, mb);
  case TASK_FORWARD:
    return sched_id(net, TASK_FFN_FWD, layer, mb);
  case TASK_FFN_FWD:
    return sched_id(net, relayed ? TASK_GATHER : TASK_COMBINE, layer, mb);
  case TASK_GATHER:
    return sched_id(net, TASK_REDUCE_FWD, layer, mb);
  case TASK_REDUCE_FWD:
    return sched_id(net, TASK_COMBINE, layer, mb);
  case TASK_COMBINE:
    return sched_id(net, layer < last ? TASK_ATT_FWD : TASK_HEAD, layer + 1, mb);
  case TASK_HEAD:
    return sched_id(net, TASK_COMBINE_B, last, mb);
  case TASK_COMBINE_B:
    return sched_id(net, relayed ? TASK_GATHER_B : TASK_FFN_DGRAD, layer, mb);
  case TASK_GATHER_B:
    return sched_id(net, TASK_FFN_DGRAD, layer, mb);
  case TASK_FFN_DGRAD:
    return sched_id(net, relayed ? TASK_FORWARD_B : TASK_DISPATCH_B, layer, mb);
  case TASK_FORWARD_B:
    return sched_id(net, TASK_REDUCE_BWD, layer, mb);
  case TASK_REDUCE_BWD:
    return sched_id(net, TASK_DISPATCH_B, layer, mb);
  case TASK_DISPATCH_B:
    return sched_id(net, TASK_ATT_DGRAD, layer, mb);
  case TASK_ATT_DGRAD:
    return layer > 0 ? sched_id(net, TASK_COMBINE_B, layer - 1, mb) : sched_id(net, TASK_EMBED_WGRAD, 0, mb);
  default:
    return -1;
  }
}

int32_t sched_wgrad(const SchedNet *net, int32_t id)
{
  SchedTask task = sched_task(net, id);
  if (task != TASK_FFN_DGRAD && task != TASK_ATT_DGRAD) {
    return -1;
  }
  return sched_id(net, task == TASK_FFN_DGRAD ? TASK_FFN_WGRAD : TASK_ATT_WGRAD, sched_layer(net, id),
                  sched_mb(net, id));
}

MoeOpKind sched_kind(SchedTask task)
{
  static const MoeOpKind kinds[] = {
      [TASK_EMBED_FWD] = MOE_OP_EMBED_FWD,     [TASK_ATT_FWD] = MOE_OP_ATT_FWD,
      [TASK_FFN_FWD] = MOE_OP_FFN_FWD,         [TASK_HEAD] = MOE_OP_HEAD,
      [TASK_FFN_DGRAD] = MOE_OP_FFN_DGRAD,     [TASK_ATT_DGRAD] = MOE_OP_ATT_DGRAD,
      [TASK_FFN_WGRAD] = MOE_OP_FFN_WGRAD,     [TASK_ATT_WGRAD] = MOE_OP_ATT_WGRAD,
      [TASK_EMBED_WGRAD] = MOE_OP_EMBED_WGRAD, [TASK_RELAY] = MOE_OP_RELAY,
      [TASK_REDUCE_FWD] = MOE_OP_NODE_REDUCE,  [TASK_REDUCE_BWD] = MOE_OP_NODE_REDUCE,
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
      [TASK_COMBINE_B - TASK_REDUCE_FWD] = MOE_EDGE_COMBINE_B,
      [TASK_GATHER_B - TASK_REDUCE_FWD] = MOE_EDGE_GATHER_B,
      [TASK_FORWARD_B - TASK_REDUCE_FWD] = MOE_EDGE_FORWARD_B,
      [TASK_DISPATCH_B - TASK_REDUCE_FWD] = MOE_EDGE_DISPATCH_B,
  };
  return task >= TASK_REDUCE_FWD ? edges[task - TASK_REDUCE_FWD] : MOE_EDGE_NONE;
}

bool sched_task_exists(const SchedNet *net, SchedTask task, int layer)
{
  switch (task) {
  case TASK_HEAD:
    return layer == net->n_layers;
  case TASK_EMBED_FWD:
  case TASK_EMBED_WGRAD:
    return layer == 0;
  case TASK_RELAY:
  case TASK_REDUCE_FWD:
  case TASK_REDUCE_BWD:
  case TASK_FORWARD:
  case TASK_GATHER:
  case TASK_GATHER_B:
  case TASK_FORWARD_B:
    return layer < net->n_layers && net->relayed[layer];
  default:
    return layer < net->n_layers;
  }
}

bool sched_relayed(const Plan *plan, int layer)
{
  const PlanGroup *group = &plan->groups[plan->ffn_group[layer]];
  if (plan->dedup != DEDUP_NODE || plan->ranks_per_node < 2) {
    return false;
  }
  for (int q = 0; q < plan->replicas; q++) {
    int first = q * plan->replica_ranks + group->first_rank;
    for (int rank = first + 1; rank < first + group->n_ranks; rank++) {
      if (rank / plan->ranks_per_node == (rank - 1) / plan->ranks_per_node) {
        return true;
      }
    }
  }
  return false;
}

static int64_t at_least_1(int64_t ns)
{
  return ns < 1 ? 1 : ns;
}

static SchedNet net_new(Arena *arena, const Spec *spec, const Plan *plan)
{
  SchedNet net = {.spec = spec, .plan = plan, .n_layers = spec->model.layers, .n_mbs = plan->micro_batches};
  net.n_groups = plan->n_groups;
  net.relayed = arena_new_array(arena, bool, (size_t)net.n_layers);
  for (int layer = 0; layer < net.n_layers; layer++) {
    net.relayed[layer] = sched_relayed(plan, layer);
  }
  for (SchedTask task = 0; task < TASK_COUNT; task++) {
    if (task < TASK_DISPATCH) {
      net.op_ns[task] = arena_new_array(arena, int64_t, (size_t)net.n_layers + 1);
    } else {
      net.msg[task] = arena_new_array(arena, MsgCost, (size_t)net.n_layers + 1);
    }
    for (int layer = 0; layer <= net.n_layers; layer++) {
      if (!sched_task_exists(&net, task, layer)) {
        continue;
      }
      if (task < TASK_DISPATCH) {
        net.op_ns[task][layer] = at_least_1(cost_op_ns(spec, plan, sched_kind(task), layer));
      } else {
        MsgCost cost = cost_msg(spec, plan, sched_edge(task), layer);
        cost.src_ns = at_least_1(cost.src_ns);
        cost.dst_ns = at_least_1(cost.dst_ns);
        cost.ns = cost.ns < cost.src_ns ? cost.src_ns : cost.ns;
        cost.ns = cost.ns < cost.dst_ns ? cost.dst_ns : cost.ns;
        net.msg[task][layer] = cost;
      }
    }
  }
  return net;
}

static SchedOrder *orders_new(Arena *arena, const SchedNet *net)
{
  SchedOrder *orders = arena_new_array(arena, SchedOrder, (size_t)net->n_groups);
  for (SchedTask task = 0; task < TASK_N_COMPUTE; task++) {
    for (int layer = 0; layer <= net->n_layers; layer++) {
      if (sched_task_exists(net, task, layer)) {
        orders[sched_group(net, task, layer)].n += net->n_mbs;
      }
    }
  }
  for (int g = 0; g < net->n_groups; g++) {
    orders[g].ids = arena_new_array(arena, int32_t, (size_t)orders[g].n);
  }
  return orders;
}

static int n_tasks(const SchedNet *net)
{
  int n = 0;
  for (SchedTask task = 0; task < TASK_COUNT; task++) {
    for (int layer = 0; layer <= net->n_layers; layer++) {
      n += sched_task_exists(net, task, layer) ? net->n_mbs : 0;
    }
  }
  return n;
}

/* The generator: nothing but an order per group. Policies are tried, the most promising first, until a number of tasks
   has been simulated: all of them for small plans, the first few for large ones. */
static SchedOrder *af_pipe(Arena *arena, const SchedNet *net)
{
  enum { MIN_POLICIES = 5, MAX_TASKS = 1 << 20 };
  static const SchedPolicy policies[] = {
      {.turn = TURN_BOTH, .oldest_sends = true, .wgrads = 2},
      {.turn = TURN_BOTH, .oldest_sends = false, .wgrads = 1},
      {.turn = TURN_FORWARD, .oldest_sends = true, .wgrads = 1},
      {.turn = TURN_GRAD, .oldest_sends = true, .wgrads = 16},
      {.turn = TURN_FORWARD, .oldest_sends = false, .wgrads = 1},
      {.turn = TURN_BOTH, .oldest_sends = true, .wgrads = 0},
      {.turn = TURN_BOTH, .oldest_sends = false, .wgrads = 4},
      {.turn = TURN_FORWARD, .oldest_sends = true, .wgrads = 2},
      {.turn = TURN_GRAD, .oldest_sends = false, .wgrads = 0},
      {.turn = TURN_FORWARD, .oldest_sends = true, .wgrads = 4},
      {.turn = TURN_GRAD, .oldest_sends = true, .wgrads = 4},
      {.turn = TURN_BOTH, .oldest_sends = true, .wgrads = 16},
  };
  enum { N_POLICIES = sizeof policies / sizeof *policies, N_CAPS = 3 };
  int most = net->plan->in_flight < net->n_mbs ? net->plan->in_flight : net->n_mbs;
  const int caps[N_CAPS] = {most, (3 * most + 3) / 4, (most + 1) / 2};
  int budget = MAX_TASKS / n_tasks(net);
  SchedOrder *best = NULL;
  int64_t shortest = INT64_MAX;
  for (int i = 0; i < N_POLICIES * N_CAPS && (i < budget || i < MIN_POLICIES); i++) {
    SchedPolicy policy = policies[i % N_POLICIES];
    policy.cap = caps[i / N_POLICIES];
    policy.work_slots = PLAN_WORK_SLOTS;
    policy.chan_slots = PLAN_CHAN_SLOTS;
    Arena *scratch = arena_new();
    SchedOrder *made = orders_new(arena, net);
    SchedTimes times;
    sched_simulate(scratch, net, &policy, made, NULL, &times);
    if (times.makespan < shortest) {
      shortest = times.makespan;
      best = made;
      best->policy = policy;
    }
    arena_free(scratch);
  }
  return best;
}

static bool plan_fits(Diag *diag, const Spec *spec, const Plan *plan)
{
  int errors = diag_errors(diag);
  if (spec->model.dense.layers > 0) {
    diag_error(diag, spec_span(spec, "dense", "layers"), "schedules have no dense layers yet: %d wanted",
               spec->model.dense.layers);
  }
  if (spec->model.moe.shared > 0) {
    diag_error(diag, spec_span(spec, "moe", "shared"), "schedules have no shared experts yet");
  }
  if (plan->dedup != DEDUP_RANK && plan->dedup != DEDUP_NODE) {
    diag_error(diag, spec_span(spec, "plan", "dedup"),
               "schedules send a token once per rank or once per node, not flat");
  }
  /* messages carry 12 bits of micro-batch and 8 of layer in their stamp */
  if (plan->micro_batches < 1 || plan->micro_batches > 4096) {
    diag_error(diag, (Span){0}, "%d micro-batches per step: 1 to 4096 can be scheduled", plan->micro_batches);
  }
  if (plan->in_flight < 1) {
    diag_error(diag, (Span){0}, "%d micro-batches in flight: at least 1", plan->in_flight);
  }
  if (spec->model.layers < 1 || spec->model.layers > 255) {
    diag_error(diag, spec_span(spec, "model", "layers"), "%d layers: 1 to 255 can be scheduled", spec->model.layers);
  }
  for (int g = 0; g < plan->n_groups && diag_errors(diag) == errors; g++) {
    bool used = plan->att_group[spec->model.layers] == g;
    for (int layer = 0; layer < spec->model.layers; layer++) {
      used |= plan->att_group[layer] == g || plan->ffn_group[layer] == g;
    }
    if (!used) {
      diag_error(diag, (Span){0}, "plan group %d has no layer: %d layers over %d attention and %d FFN groups", g,
                 spec->model.layers, plan->p_att, plan->p_ffn);
    }
  }
  return diag_errors(diag) == errors;
}

bool sched_build(Arena *arena, Diag *diag, const Spec *spec, const Plan *plan, Schedule *sched)
{
  *sched = (Schedule){0};
  if (!plan_fits(diag, spec, plan)) {
    return false;
  }
  Arena *scratch = arena_new();
  SchedNet net = net_new(scratch, spec, plan);
  SchedOrder *order = af_pipe(scratch, &net);
  SchedTimes times;
  SchedRecs recs = {0};
  sched->n_groups = plan->n_groups;
  sched->groups = arena_new_array(arena, SchedGroup, (size_t)plan->n_groups);
  sched_simulate(scratch, &net, &order->policy, NULL, order, &times);
  sched->chans = arena_new_array(
      arena, MoeChan, TASK_COUNT * (size_t)(net.n_groups * net.n_groups) + MOE_EDGE_COUNT + 2 * MOE_BUCKET_COUNT);
  sched_comm(scratch, &net, &times, &recs);
  sched_slots(scratch, &net, &recs, sched);
  sched_tail(scratch, &net, &recs, sched);
  sched_rows(arena, &recs, sched);
  sched->in_flight = times.in_flight;
  arena_free(scratch);
  return true;
}
