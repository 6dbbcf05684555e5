/* AF-Pipe: the order of compute ops by list scheduling over modelled times, and the passes every schedule goes through.
   The rule of the list scheduler: input gradients and forwards first, in turn or one before the other, because other
   groups wait for them; weight gradients fill what is left, unless more of them wait than the policy lets pile up.
   Variants of this rule are tried and the shortest timeline wins; ties go to the variant listed first, so the result
   depends on the input alone. */
#include "codegen/plan_int.h"
#include "codegen/sched_int.h"
#include "runtime/moe_layout.h"

#include <math.h>

static int way_mbs(const SchedNet *net, int way)
{
  int half = (net->n_mbs + 1) / 2;
  return net->ways == 1 ? net->n_mbs : way == 0 ? half : net->n_mbs - half;
}

SchedOrder *sched_orders_new(Arena *arena, const SchedNet *net)
{
  SchedOrder *orders = arena_new_array(arena, SchedOrder, (size_t)net->n_groups);
  for (SchedTask task = 0; task < TASK_N_COMPUTE; task++) {
    for (int layer = 0; layer <= net->n_layers; layer++) {
      for (int way = 0; way < net->ways; way++) {
        if (sched_task_exists(net, task, layer, way)) {
          orders[sched_group(net, task, layer, way)].n += way_mbs(net, way) * sched_chunks(net, task);
        }
      }
    }
  }
  for (int g = 0; g < net->n_groups; g++) {
    orders[g].ids = arena_new_array(arena, int32_t, (size_t)orders[g].n);
    orders[g].n = 0;
  }
  return orders;
}

static int n_tasks(const SchedNet *net)
{
  int n = 0;
  for (SchedTask task = 0; task < TASK_COUNT; task++) {
    for (int layer = 0; layer <= net->n_layers; layer++) {
      for (int way = 0; way < net->ways; way++) {
        n += sched_task_exists(net, task, layer, way) ? way_mbs(net, way) * sched_chunks(net, task) : 0;
      }
    }
  }
  return n;
}

/* Micro-batches of which the scarcest pool could hold all layers. */
static double whole_mbs(const SchedNet *net)
{
  double least = net->n_mbs;
  for (int g = 0; g < net->n_groups; g++) {
    for (int side = PLAN_A; side <= PLAN_F; side++) {
      int layers = plan_layers(net->spec, net->plan, g, side);
      double n = layers > 0 ? (double)plan_saved(net->spec, net->plan, g, side) / layers : least;
      least = n < least ? n : least;
    }
  }
  return least;
}

/* Policies are tried in an order that gains most over a grid of plans, those for few saved slots before most of those
   for plenty, until a number of tasks has been simulated: all of them for small plans, the first few for large ones;
   or, if `only` is not negative, that one alone. The former let so many times more micro-batches be under way than
   there are slots for with all layers; the latter admit micro-batches whole. */
static void af_pipe(Arena *arena, const SchedNet *net, int only, SchedTimes *times)
{
  enum { MIN_POLICIES = 5, MAX_TASKS = 1 << 19, ANY = INT16_MAX };
  static const struct {
    SchedPolicy policy;
    double more;
  } policies[] = {
      {{TURN_FORWARD, .oldest_sends = true, .wgrads = 1, .keep = 1}, 1.75},
      {{TURN_FORWARD, .wgrads = ANY, .keep = 1}, 1.75},
      {{TURN_BOTH, .last_grads = true, .wgrads = ANY, .backlog = 3}, 1},
      {{TURN_BOTH, .oldest_sends = true, .wgrads = ANY, .keep = 3}, 3},
      {{TURN_FORWARD, .oldest_sends = true, .last_grads = true, .wgrads = 1, .keep = 1}, 2.25},
      {{TURN_BOTH, .wgrads = 1, .keep = 1}, 1.75},
      {{TURN_FORWARD, .oldest_sends = true, .last_grads = true, .wgrads = ANY, .keep = 3}, 3},
      {{TURN_BOTH, .oldest_sends = true, .wgrads = 1, .keep = 1}, 1.75},
      {{TURN_FORWARD, .last_grads = true, .wgrads = 1, .keep = 3}, 3},
      {{TURN_BOTH, .wgrads = ANY, .keep = 1}, 1.75},
      {{TURN_FORWARD, .wgrads = 1, .keep = 1}, 1.75},
      {{TURN_FORWARD, .oldest_sends = true, .wgrads = 1}, 1},
      {{TURN_FORWARD, .oldest_sends = true, .last_grads = true, .first_forwards = true, .wgrads = 0}, 1},
      {{TURN_BOTH, .oldest_sends = true, .wgrads = ANY}, 1},
      {{TURN_FORWARD, .oldest_sends = true, .last_grads = true, .wgrads = ANY}, 1},
      {{TURN_FORWARD, .last_grads = true, .wgrads = 0}, 1},
      {{TURN_GRAD, .oldest_sends = true, .first_forwards = true, .wgrads = ANY, .backlog = 3}, 1},
      {{TURN_BOTH, .oldest_sends = true, .last_grads = true, .wgrads = 3}, 1},
      {{TURN_GRAD, .oldest_sends = true, .last_grads = true, .first_forwards = true, .wgrads = 3}, 1},
      {{TURN_FORWARD, .oldest_sends = true, .last_grads = true, .wgrads = 1, .backlog = 3}, 1},
      {{TURN_BOTH, .oldest_sends = true, .last_grads = true, .wgrads = ANY}, 1},
      {{TURN_GRAD, .oldest_sends = true, .last_grads = true, .first_forwards = true, .wgrads = ANY}, 1},
      {{TURN_GRAD, .oldest_sends = true, .last_grads = true, .wgrads = ANY, .backlog = 3}, 1},
      {{TURN_FORWARD, .oldest_sends = true, .last_grads = true, .first_forwards = true, .wgrads = ANY, .backlog = 3},
       1},
      {{TURN_GRAD, .oldest_sends = true, .last_grads = true, .wgrads = ANY}, 1},
      {{TURN_GRAD, .last_grads = true, .first_forwards = true, .wgrads = 1, .backlog = 3}, 1},
      {{TURN_BOTH, .last_grads = true, .wgrads = 3}, 1},
      {{TURN_GRAD, .first_forwards = true, .wgrads = ANY}, 1},
      {{TURN_FORWARD, .oldest_sends = true, .last_grads = true, .first_forwards = true, .wgrads = 2, .backlog = 3}, 1},
  };
  enum { N_POLICIES = sizeof policies / sizeof *policies };
  int most = net->plan->in_flight < net->n_mbs ? net->plan->in_flight : net->n_mbs;
  int left = MAX_TASKS / n_tasks(net), skip = only, under_way = plan_under_way(net->spec, net->plan);
  double whole = whole_mbs(net);
  left = left < MIN_POLICIES ? MIN_POLICIES : left;
  SchedTimes tried = sched_times_new(arena, net);
  int64_t shortest = INT64_MAX;
  *times = sched_times_new(arena, net);
  for (int i = 0; i < 2 * N_POLICIES && left > 0; i++) { /* the second time with half as many */
    SchedPolicy policy = policies[i % N_POLICIES].policy;
    double more = policies[i % N_POLICIES].more * whole;
    if (policy.keep && (most == net->n_mbs || i >= N_POLICIES)) {
      continue;
    }
    policy.cap = !policy.keep       ? (i < N_POLICIES ? most : (most + 1) / 2)
                 : more < under_way ? (int)ceil(more)
                                    : under_way;
    policy.work_slots = PLAN_WORK_SLOTS;
    policy.chan_slots = PLAN_CHAN_SLOTS;
    if (skip-- > 0) {
      continue;
    }
    left = only < 0 ? left - 1 : 0;
    Arena *scratch = arena_new();
    if (sched_simulate(scratch, net, &policy, NULL, shortest - 1, &tried)) {
      SchedTimes swap = tried;
      shortest = tried.makespan;
      tried = *times;
      *times = swap;
    }
    arena_free(scratch);
  }
}

/* A join's rows are kept beside those of its layer's attention. */
static bool joins_fit(Diag *diag, const Spec *spec, const Plan *plan)
{
  for (int way = 0; way < plan->ways; way++) {
    for (int layer = spec->model.dense.layers; layer < spec->model.layers; layer++) {
      if (plan_piped(spec, plan, way, layer) &&
          plan_combine(spec, plan, way, layer) != plan_att(spec, plan, way, layer)) {
        diag_error(diag, (Span){0},
                   "layer %d: its output is combined on group %d, which is neither its own, %d, nor %s", layer,
                   plan_combine(spec, plan, way, layer), plan_att(spec, plan, way, layer), "the next layer's");
        return false;
      }
    }
  }
  return true;
}

/* Micro-batches that so many layers allow. */
static int most_mbs(const Spec *spec)
{
  int most = SCHED_MAX_PASSES / (spec->model.layers > 0 ? spec->model.layers : 1);
  return most < SCHED_MAX_MBS ? most : SCHED_MAX_MBS;
}

bool sched_in_bounds(Diag *diag, const Spec *spec, const ShapeSpec *shape)
{
  int64_t gpus = (int64_t)spec->cluster.nodes * spec->cluster.gpus, most = gpus * shape->micro_batch;
  int64_t least = moe_part_max(shape->global_batch, most);
  bool layers = spec->model.layers <= SCHED_MAX_LAYERS;
  if (!layers) {
    diag_error(diag, spec_span(spec, "model", "layers"), "%d layers: 1 to %d can be scheduled", spec->model.layers,
               SCHED_MAX_LAYERS);
  }
  if (layers && least > most_mbs(spec)) {
    diag_error(diag, shape->span,
               "%d sequences per step, %d for each of %lld GPUs and micro-batch, are at least %lld micro-batches: 1 to "
               "%d of %d layers can be scheduled",
               shape->global_batch, shape->micro_batch, (long long)gpus, (long long)least, most_mbs(spec),
               spec->model.layers);
    diag_note(diag, shape->span, "smallest change: micro_batch = %lld",
              (long long)moe_part_max(shape->global_batch, gpus * most_mbs(spec)));
  }
  if (gpus > SCHED_MAX_GPUS) {
    diag_error(diag, spec_span(spec, "cluster", "nodes"), "%d nodes of %d GPUs are %lld: up to %d can be planned",
               spec->cluster.nodes, spec->cluster.gpus, (long long)gpus, SCHED_MAX_GPUS);
  }
  return layers && gpus <= SCHED_MAX_GPUS && least <= most_mbs(spec);
}

static bool plan_fits(Diag *diag, const Spec *spec, const Plan *plan)
{
  int errors = diag_errors(diag);
  if (plan->micro_batches < 1 || plan->micro_batches > most_mbs(spec)) {
    diag_error(diag, plan->shape ? plan->shape->span : (Span){0},
               "%d micro-batches per step: 1 to %d of %d layers can be scheduled", plan->micro_batches, most_mbs(spec),
               spec->model.layers);
  }
  if (plan->in_flight < 1) {
    diag_error(diag, (Span){0}, "%d micro-batches in flight: at least 1", plan->in_flight);
  }
  if (spec->model.layers < 1 || spec->model.layers > SCHED_MAX_LAYERS) {
    diag_error(diag, spec_span(spec, "model", "layers"), "%d layers: 1 to %d can be scheduled", spec->model.layers,
               SCHED_MAX_LAYERS);
  }
  if (plan->chunks < 1 || plan->chunks > SCHED_MAX_CHUNKS) {
    diag_error(diag, spec_span(spec, "plan", "chunks"), "%d chunks: 1 to %d can be scheduled", plan->chunks,
               SCHED_MAX_CHUNKS);
  }
  if (plan->ways == 2 && plan->micro_batches < 2) {
    diag_error(diag, (Span){0}, "%d micro-batch for two directions: at least 2", plan->micro_batches);
  }
  for (int g = 0; g < plan->n_groups && diag_errors(diag) == errors; g++) {
    bool used = false;
    for (int way = 0; way < plan->ways; way++) {
      used |= plan_att(spec, plan, way, spec->model.layers) == g;
      for (int layer = 0; layer < spec->model.layers; layer++) {
        used |= plan_att(spec, plan, way, layer) == g || plan_ffn(spec, plan, way, layer) == g;
      }
    }
    if (!used) {
      diag_error(diag, (Span){0}, "plan group %d has no layer: %d layers over %d attention and %d FFN groups", g,
                 spec->model.layers, plan->p_att, plan->p_ffn);
    }
  }
  return diag_errors(diag) == errors && joins_fit(diag, spec, plan);
}

/* Orders and times of all compute tasks. Given orders keep to no caps: what they hold at once is their authors' choice,
   and the slots that it takes are counted afterwards. */
static bool make_times(Arena *arena, Diag *diag, SchedNet *net, int only, SchedTimes *times)
{
  if (!plan_system_colocated(net->plan->system)) {
    af_pipe(arena, net, only, times);
    return true;
  }
  enum { PLENTY = INT16_MAX };
  SchedPolicy policy = {.cap = net->n_mbs, .work_slots = PLENTY, .chan_slots = PLENTY};
  SchedOrder *orders = sched_orders_new(arena, net);
  uint8_t *marks = arena_new_array(arena, uint8_t, (size_t)sched_ids(net));
  if (!sched_stage_orders(arena, diag, net, orders, marks)) {
    return false;
  }
  net->marks = marks;
  *times = sched_times_new(arena, net);
  sched_simulate(arena, net, &policy, orders, INT64_MAX, times);
  return true;
}

static bool build(Arena *arena, Diag *diag, const Spec *spec, const Plan *plan, int only, Schedule *sched)
{
  *sched = (Schedule){0};
  if (!plan_fits(diag, spec, plan)) {
    return false;
  }
  Arena *scratch = arena_new();
  SchedNet net = sched_net(scratch, spec, plan);
  SchedTimes times;
  SchedRecs recs = {0};
  bool ok = make_times(scratch, diag, &net, only, &times);
  if (ok) {
    sched->n_groups = plan->n_groups;
    sched->groups = arena_new_array(arena, SchedGroup, (size_t)plan->n_groups);
    size_t chans = (size_t)((TASK_COUNT - TASK_DISPATCH) * net.ways * (net.n_layers + 1));
    sched->chans = arena_new_array(arena, MoeChan, chans + MOE_EDGE_COUNT + 2 * MOE_BUCKET_COUNT);
    sched_comm(scratch, &net, &times, &recs);
    sched_slots(scratch, &net, &recs, sched);
    sched_tail(scratch, &net, &recs, sched);
    sched_rows(arena, &recs, sched);
    sched->in_flight = times.in_flight;
  }
  arena_free(scratch);
  return ok;
}

bool sched_build(Arena *arena, Diag *diag, const Spec *spec, const Plan *plan, Schedule *sched)
{
  return build(arena, diag, spec, plan, -1, sched);
}

int64_t sched_order_ns(Diag *diag, const Spec *spec, const Plan *plan, int order, bool tail)
{
  Arena *arena = arena_new();
  Schedule sched;
  SchedTimes times;
  int64_t ns = 0;
  if (tail) {
    ns = build(arena, diag, spec, plan, order, &sched) ? sched.step_ns : 0;
  } else if (plan_fits(diag, spec, plan)) {
    SchedNet net = sched_net(arena, spec, plan);
    ns = make_times(arena, diag, &net, order, &times) ? times.makespan : 0;
  }
  arena_free(arena);
  return ns;
}
