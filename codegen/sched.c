/* A schedule from its plan: orders and times of compute tasks, of AF-Pipe by the search of sched_search.c, then the
   passes that every schedule goes through. */
#include "codegen/plan_int.h"
#include "codegen/plan_shape.h"
#include "codegen/sched_int.h"
#include "runtime/moe_layout.h"

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

/* Orders and times of all compute tasks of a colocated system. Given orders keep to no caps: what they hold at once is
   their authors' choice, and the slots that it takes are counted afterwards. */
static bool given_times(Arena *arena, Diag *diag, SchedNet *net, SchedTimes *times)
{
  enum { PLENTY = INT16_MAX };
  SchedPolicy policy = {.cap = net->n_mbs, .work_slots = PLENTY, .chan_slots = PLENTY};
  SchedOrder *orders = sched_orders_new(arena, net);
  uint8_t *marks = arena_new_array(arena, uint8_t, (size_t)sched_ids(net));
  if (!sched_stage_orders(arena, diag, net, orders, marks)) {
    return false;
  }
  net->marks = marks;
  sched_simulate(arena, net, &policy, orders, INT64_MAX, times);
  return true;
}

static void make_tables(Arena *arena, const SchedNet *net, const SchedTimes *times, Schedule *sched)
{
  Arena *scratch = arena_new();
  SchedRecs recs = {0};
  *sched = (Schedule){.n_groups = net->n_groups};
  sched->groups = arena_new_array(arena, SchedGroup, (size_t)net->n_groups);
  size_t chans = (size_t)((TASK_COUNT - TASK_DISPATCH) * net->ways * (net->n_layers + 1));
  sched->chans = arena_new_array(arena, MoeChan, chans + MOE_EDGE_COUNT + 2 * MOE_BUCKET_COUNT);
  sched_comm(scratch, net, times, &recs);
  sched_slots(scratch, net, &recs, sched);
  sched_tail(scratch, net, times, &recs, sched);
  sched_rows(arena, &recs, sched);
  sched->in_flight = times->in_flight;
  arena_free(scratch);
}

static bool fits_memory(const SchedNet *net, const Schedule *sched)
{
  Arena *arena = arena_new();
  Plan copy = *net->plan;
  bool fits = true;
  plan_copy_groups(arena, &copy);
  sched_memory(net->spec, sched, &copy);
  for (int g = 0; g < copy.n_groups; g++) {
    fits &= copy.groups[g].memory.total <= copy.groups[g].memory.limit;
  }
  arena_free(arena);
  return fits;
}

/* With few slots for work and messages, forwards that wait for a link stand in the way of gradients. Where a group's
   memory has room for more of them than every plan counts on, the order may take them. */
static void with_more_slots(Arena *arena, const SchedSearch *search, Schedule *sched)
{
  static const int slots[] = {32 * PLAN_WORK_SLOTS, 4 * PLAN_WORK_SLOTS, 3 * PLAN_WORK_SLOTS / 2};
  int n = !fits_memory(search->net, sched) ? 0 : sched_search_is_small(search) ? 3 : 1;
  for (int i = 0; i < n; i++) {
    SchedSearch more = *search;
    Schedule other;
    if (sched_search_more(&more, slots[i])) {
      make_tables(arena, search->net, &more.times, &other);
      if (other.step_ns < sched->step_ns && fits_memory(search->net, &other)) {
        *sched = other;
        return;
      }
    }
  }
}

/* Orders and times of all compute tasks, in search->times. */
static bool make_times(Arena *arena, Diag *diag, SchedNet *net, int only, SchedSearch *search)
{
  *search = sched_search_new(arena, net);
  if (plan_system_colocated(net->plan->system)) {
    return given_times(arena, diag, net, &search->times);
  }
  sched_search(search, only);
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
  SchedSearch search;
  bool ok = make_times(scratch, diag, &net, only, &search);
  if (ok) {
    make_tables(arena, &net, &search.times, sched);
  }
  if (ok && only < 0 && !plan_system_colocated(plan->system)) {
    with_more_slots(arena, &search, sched);
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
  SchedSearch search;
  int64_t ns = 0;
  if (tail) {
    ns = build(arena, diag, spec, plan, order, &sched) ? sched.step_ns : 0;
  } else if (plan_fits(diag, spec, plan)) {
    SchedNet net = sched_net(arena, spec, plan);
    ns = make_times(arena, diag, &net, order, &search) ? search.times.makespan : 0;
  }
  arena_free(arena);
  return ns;
}
