/* AF-Pipe: the order of compute ops by list scheduling over modelled times.
   The rule of the list scheduler: input gradients and forwards first, in turn or one before the other, because other
   groups wait for them; weight gradients fill what is left, unless more of them wait than the policy lets pile up.
   Variants of this rule are tried and the shortest timeline wins; ties go to the variant listed first, so the result
   depends on the input alone. */
#include "codegen/plan_int.h"
#include "codegen/sched_int.h"

#include <math.h>

SchedOrder *sched_orders_new(Arena *arena, const SchedNet *net)
{
  SchedOrder *orders = arena_new_array(arena, SchedOrder, (size_t)net->n_groups);
  for (SchedTask task = 0; task < TASK_N_COMPUTE; task++) {
    for (int layer = 0; layer <= net->n_layers; layer++) {
      for (int way = 0; way < net->ways; way++) {
        if (sched_task_exists(net, task, layer, way)) {
          orders[sched_group(net, task, layer, way)].n += sched_way_mbs(net, way) * sched_chunks(net, task);
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
        n += sched_task_exists(net, task, layer, way) ? sched_way_mbs(net, way) * sched_chunks(net, task) : 0;
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

/* In an order that gains most over a grid of plans, those for few saved slots before most of those for plenty. The
   former let so many times more micro-batches be under way than there are slots for with all layers; the latter admit
   micro-batches whole. */
enum { ANY = INT16_MAX };
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
    {{TURN_FORWARD, .oldest_sends = true, .last_grads = true, .first_forwards = true, .wgrads = ANY, .backlog = 3}, 1},
    {{TURN_GRAD, .oldest_sends = true, .last_grads = true, .wgrads = ANY}, 1},
    {{TURN_GRAD, .last_grads = true, .first_forwards = true, .wgrads = 1, .backlog = 3}, 1},
    {{TURN_BOTH, .last_grads = true, .wgrads = 3}, 1},
    {{TURN_GRAD, .first_forwards = true, .wgrads = ANY}, 1},
    {{TURN_FORWARD, .oldest_sends = true, .last_grads = true, .first_forwards = true, .wgrads = 2, .backlog = 3}, 1},
};
enum { N_POLICIES = sizeof policies / sizeof *policies };

/* Policy by its number: the second time round with half as many micro-batches. False if the plan has no use for it. */
static bool policy_at(const SchedSearch *s, int i, SchedPolicy *policy)
{
  const Plan *plan = s->net->plan;
  int most = plan->in_flight < s->net->n_mbs ? plan->in_flight : s->net->n_mbs;
  double more = policies[i % N_POLICIES].more * s->whole;
  *policy = policies[i % N_POLICIES].policy;
  policy->cap = !policy->keep         ? (i < N_POLICIES ? most : (most + 1) / 2)
                : more < s->under_way ? (int)ceil(more)
                                      : s->under_way;
  return !policy->keep || (most < s->net->n_mbs && i < N_POLICIES);
}

/* One policy with so many slots for work and for each kind of message. Is it the best so far? */
static bool try_policy(SchedSearch *s, int i, int work_slots, int chan_slots)
{
  SchedPolicy policy;
  if (!policy_at(s, i, &policy)) {
    return false;
  }
  policy.work_slots = work_slots;
  policy.chan_slots = chan_slots;
  Arena *scratch = arena_new();
  bool better = sched_simulate(scratch, s->net, &policy, NULL, s->shortest - 1, &s->tried);
  s->lacked[i] |= s->tried.lacked;
  if (better) {
    SchedTimes swap = s->tried;
    s->tried = s->times;
    s->times = swap;
    s->shortest = swap.makespan;
    s->best = i;
  }
  arena_free(scratch);
  return better;
}

SchedSearch sched_search_new(Arena *arena, const SchedNet *net)
{
  SchedSearch s = {.net = net, .shortest = INT64_MAX, .whole = whole_mbs(net)};
  s.under_way = plan_under_way(net->spec, net->plan);
  s.times = sched_times_new(arena, net);
  s.tried = sched_times_new(arena, net);
  s.lacked = arena_new_array(arena, uint8_t, (size_t)(2 * N_POLICIES));
  return s;
}

void sched_search(SchedSearch *s, int only)
{
  enum { MIN_POLICIES = 5, MAX_TASKS = 1 << 19 };
  SchedPolicy policy;
  int left = MAX_TASKS / n_tasks(s->net), skip = only;
  left = left < MIN_POLICIES ? MIN_POLICIES : left;
  for (int i = 0; i < 2 * N_POLICIES && left > 0; i++) {
    if (policy_at(s, i, &policy) && skip-- <= 0) {
      left = only < 0 ? left - 1 : 0;
      try_policy(s, i, PLAN_WORK_SLOTS, PLAN_CHAN_SLOTS);
    }
  }
}

enum { MORE_TASKS = 1 << 17 };

bool sched_search_is_small(const SchedSearch *s)
{
  return n_tasks(s->net) < MORE_TASKS;
}

bool sched_search_more(SchedSearch *s, int slots)
{
  int left = MORE_TASKS / n_tasks(s->net), best = s->best;
  bool better = s->lacked[best] && try_policy(s, best, slots, slots);
  for (int i = 0; i < N_POLICIES && left > 0; i++) {
    if (i != best && s->lacked[i]) {
      better |= try_policy(s, i, slots, slots);
      left--;
    }
  }
  return better;
}
