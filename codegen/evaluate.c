/* Candidates of the planner are ranked by its own estimate; the simulator has the last word on the best few of them.
   How many depends on their size alone, so that the answer does not depend on the machine. Each candidate is built in
   an arena of its own, and with a Diag that nobody reads unless all fail: then the first speaks. */
#include "codegen/evaluate.h"

#include <string.h>

#include "codegen/listener.h"

enum { MOST = 20, MORE = 4, FULL = 6, EXIT_REFUSED = 1, EXIT_NO_PLAN = 3 };

/* Ops of a step, roughly: what limits how many plans are simulated, and how many with few micro-batches. */
static const double ops_per_layer = 16, full_budget = 200000, guess_budget = 2000000;

static double ops_of(const Spec *spec, int micro_batches)
{
  return ops_per_layer * spec->model.layers * micro_batches;
}

void evaluation_free(Evaluation *e)
{
  if (e->arena) {
    arena_free(e->arena);
  }
  if (e->sched_arena) {
    arena_free(e->sched_arena);
  }
  *e = (Evaluation){0};
}

/* One candidate, in an arena of its own. */
typedef struct Try {
  Arena *arena;
  Schedule sched;
} Try;

/* order: that one alone, if not negative. */
static bool try_plan(const Spec *spec, const Plan *plan, int order, Try *t)
{
  *t = (Try){.arena = arena_new()};
  Arena *words = arena_new();
  Listener *l = listener_new(words);
  bool ok = order >= 0 ? sched_build_order(t->arena, l->diag, spec, plan, order, &t->sched)
                       : sched_build(t->arena, l->diag, spec, plan, &t->sched);
  listener_heard(words, l);
  arena_free(words);
  if (!ok) {
    arena_free(t->arena);
    t->arena = NULL;
  }
  return ok;
}

/* ---- steps of few micro-batches ---- */

/* Step time with so many micro-batches, by one order; 0 if it cannot be scheduled. */
static double short_step_ns(const Spec *spec, const Plan *plan, int micro_batches, int order)
{
  Plan few = *plan;
  Try t;
  few.micro_batches = micro_batches;
  few.in_flight = few.in_flight < micro_batches ? few.in_flight : micro_batches;
  if (!try_plan(spec, &few, order, &t)) {
    return 0;
  }
  double ns = (double)t.sched.step_ns;
  arena_free(t.arena);
  return ns;
}

/* Two numbers of micro-batches: the first fills the pipeline, the second shows the slope of the steady state. In
   colocated systems both keep the remainder that the orders are made for. Returns false where the plan has no more. */
static bool short_steps(const Plan *plan, int *first, int *second)
{
  bool stages = plan_system_colocated(plan->system);
  int turn = stages ? 2 * plan->n_groups : 1, cap = plan->in_flight;
  turn = plan->mb_group > turn ? plan->mb_group : turn;
  *first = plan->micro_batches % turn + (stages ? turn : cap + cap / 4 + 2);
  *second = *first + (stages ? turn : cap + cap / 2 + 4);
  return *second < plan->micro_batches;
}

/* Step time of all micro-batches from two short steps of the same order: what follows the first takes the slope between
   them. The best of a few orders; only those that are good at the first are asked for the second. */
static double guess_ns(const Spec *spec, const Plan *plan)
{
  int first, second, orders = plan_system_colocated(plan->system) ? 1 : SCHED_FIRST_ORDERS, better = 0;
  bool more = short_steps(plan, &first, &second);
  double steps[SCHED_FIRST_ORDERS], best = 0;
  for (int i = 0; i < orders; i++) {
    steps[i] = short_step_ns(spec, plan, more ? first : plan->micro_batches, i);
    if (steps[i] == 0) {
      return 0;
    }
  }
  for (int i = 0; i < orders; i++, better = 0) {
    for (int k = 0; k < orders; k++) {
      better += steps[k] < steps[i] || (steps[k] == steps[i] && k < i);
    }
    if (better < (more ? (orders + 1) / 2 : 1)) {
      double ns = steps[i];
      if (more) {
        ns += (plan->micro_batches - first) * (short_step_ns(spec, plan, second, i) - ns) / (second - first);
      }
      best = best == 0 || ns < best ? ns : best;
    }
  }
  return best;
}

static double guess_ops(const Spec *spec, const Plan *plan)
{
  int first, second;
  return ops_of(spec, short_steps(plan, &first, &second) ? 2 * first + second : 2 * plan->micro_batches);
}

/* Sorts the plans by what their short steps promise; equal ones and those that are too many to look at stay in the
   order of their estimates, and behind those that were looked at. Returns how many can be scheduled or were not looked
   at. */
static int rank_plans(const Spec *spec, Plan *plans, int n)
{
  double spent = 0;
  int looked = 0, kept = 0;
  while (looked < n && (looked < 2 || spent + guess_ops(spec, &plans[looked]) <= guess_budget)) {
    Plan plan = plans[looked];
    spent += guess_ops(spec, &plan);
    double ns = guess_ns(spec, &plan);
    if (ns > 0) {
      int at = kept++;
      plan_set_step(spec, &plan, ns);
      for (int i = looked; i > at; i--) { /* over those that failed */
        plans[i] = plans[i - 1];
      }
      for (; at > 0 && plans[at - 1].step_ns > ns; at--) {
        plans[at] = plans[at - 1];
      }
      plans[at] = plan;
    }
    looked++;
  }
  for (int i = looked; i < n; i++) {
    plans[kept++] = plans[i];
  }
  return kept;
}

Spec evaluate_view(const Spec *spec, SystemKind system)
{
  Spec view = *spec;
  PlanSpec *pins = &view.plan;
  bool colocated = plan_system_colocated(system);
  if (colocated && pins->colocated_dedup != DEDUP_AUTO) {
    pins->dedup = pins->colocated_dedup;
  }
  if (spec->plan.system == system) {
    return view;
  }
  if (system == SYSTEM_AFD) {
    pins->attention_stages = pins->ffn_stages = 0;
  }
  if (colocated) {
    pins->n_attention_gpus = pins->n_ffn_gpus = 0;
    pins->attention_gpus = pins->ffn_gpus = NULL;
    pins->attention_nics = pins->ffn_nics = pins->in_flight = 0;
    pins->placement = PLACE_AUTO;
  } else {
    pins->expert_parallel = pins->virtual_stages = pins->mb_group = 0;
    pins->placement = pins->placement == PLACE_COLOCATED ? PLACE_AUTO : pins->placement;
  }
  if (system != SYSTEM_TUTEL) {
    pins->chunks = 0;
  }
  return view;
}

void evaluate_for_cpu(Spec *spec)
{
  PlanSpec *pins = &spec->plan;
  pins->recompute = pins->recompute == RECOMPUTE_AUTO ? RECOMPUTE_NONE : pins->recompute;
  pins->optimizer_shard = pins->optimizer_shard == OPT_SHARD_AUTO ? OPT_SHARD_HOLDERS : pins->optimizer_shard;
}

static bool same_layout(const Plan *a, const Plan *b)
{
  bool same = a->replicas == b->replicas && a->n_groups == b->n_groups && strcmp(a->placement, b->placement) == 0;
  for (int g = 0; same && g < a->n_groups; g++) {
    same = a->groups[g].n_ranks == b->groups[g].n_ranks && a->groups[g].nics == b->groups[g].nics;
  }
  return same;
}

/* Plans with one group a side are plans of af_pipe, too. Adds the best of them that are not among the n plans; returns
   how many. */
static int add_single_groups(Arena *arena, const Spec *spec, int shape, SystemKind system, Plan *plans, int n)
{
  if (system != SYSTEM_AF_PIPE || spec->plan.attention_stages > 1 || spec->plan.ffn_stages > 1) {
    return 0;
  }
  Arena *words = arena_new();
  Listener *l = listener_new(words);
  bool infeasible = false;
  Plan found[MORE];
  int m = plan_candidates(arena, l->diag, spec, shape, SYSTEM_AFD, found, MORE, &infeasible), added = 0;
  listener_heard(words, l);
  arena_free(words);
  for (int i = 0; i < m; i++) {
    bool known = false;
    for (int k = 0; k < n && !known; k++) {
      known = same_layout(&plans[k], &found[i]);
    }
    if (!known) {
      plans[n + added] = found[i];
      plans[n + added++].system = system;
    }
  }
  return added;
}

/* The winner to the front, the others in their order. */
static void put_first(Plan *plans, int winner)
{
  Plan first = plans[winner];
  for (int i = winner; i > 0; i--) {
    plans[i] = plans[i - 1];
  }
  plans[0] = first;
}

/* Errors go to `diag`. */
static int evaluate_one(Diag *diag, const Spec *own, int shape, SystemKind system, Evaluation *e)
{
  Spec view = evaluate_view(own, system);
  const Spec *spec = &view;
  *e = (Evaluation){.arena = arena_new(), .system = system};
  Plan *plans = arena_new_array(e->arena, Plan, MOST + MORE);
  bool infeasible = false;
  int n = plan_candidates(e->arena, diag, spec, shape, system, plans, MOST, &infeasible), winner = -1;
  if (n <= 0) {
    return e->code = infeasible ? EXIT_NO_PLAN : EXIT_REFUSED;
  }
  n += add_single_groups(e->arena, spec, shape, system, plans, n);
  int all = n > 1 ? rank_plans(spec, plans, n) : n;
  all = all > 0 ? all : n;
  Try best = {0};
  double spent = 0;
  /* a plan that cannot be scheduled does not count among those that are tried */
  for (int i = 0; i < all && e->tried < FULL; i++) {
    Try t;
    double ops = ops_of(spec, plans[i].micro_batches);
    if ((e->tried >= 2 && spent + ops > full_budget) || !try_plan(spec, &plans[i], -1, &t)) {
      continue;
    }
    spent += ops;
    e->tried++;
    plan_set_step(spec, &plans[i], (double)t.sched.step_ns);
    bool better = winner < 0 || t.sched.step_ns < best.sched.step_ns;
    Arena *loser = better ? best.arena : t.arena;
    if (better) {
      best = t;
      winner = i;
    }
    if (loser) {
      arena_free(loser);
    }
  }
  e->sched_arena = best.arena;
  e->sched = best.sched;
  put_first(plans, winner < 0 ? 0 : winner);
  e->plan = plans[0];
  e->plans = plans;
  e->n_plans = all;
  if (winner < 0) { /* say why */
    e->sched_arena = arena_new();
    sched_build(e->sched_arena, diag, spec, &e->plan, &e->sched);
  }
  e->ran = winner >= 0 && plan_check(diag, spec, &e->plan) && sched_check(diag, spec, &e->plan, &e->sched);
  if (e->ran) {
    plan_set_step(spec, &e->plan, (double)e->sched.step_ns);
    sched_memory(spec, &e->sched, &e->plan);
  }
  return e->code = e->ran ? 0 : EXIT_REFUSED;
}

void evaluate_quietly(const Spec *spec, int shape, SystemKind system, Evaluation *e)
{
  Arena *words = arena_new();
  Listener *l = listener_new(words);
  evaluate_one(l->diag, spec, shape, system, e);
  const char *reason = listener_heard(words, l);
  if (!e->ran) {
    e->reason = arena_strndup(e->arena, reason, strlen(reason));
  }
  arena_free(words);
}

static int evaluate_auto(Diag *diag, const Spec *spec, int shape, Evaluation *best)
{
  Outcome outcomes[SYSTEM_COUNT];
  Arena *words = arena_new();
  for (int s = 0; s < SYSTEM_COUNT; s++) {
    Evaluation e;
    evaluate_quietly(spec, shape, (SystemKind)s, &e);
    outcomes[s] = (Outcome){.system = (SystemKind)s, .ran = e.ran, .step_ns = e.ran ? e.sched.step_ns : 0};
    if (e.reason) {
      outcomes[s].reason = arena_strndup(words, e.reason, strlen(e.reason));
    }
    bool better = e.ran && (!best->ran || e.sched.step_ns < best->sched.step_ns);
    Evaluation loser = better ? *best : e;
    if (better) {
      *best = e;
    }
    evaluation_free(&loser);
  }
  if (!best->ran) { /* the first system's error, in full */
    evaluation_free(best);
    evaluate_one(diag, spec, shape, (SystemKind)0, best);
    for (int s = 1; s < SYSTEM_COUNT; s++) {
      diag_note(diag, (Span){0}, "%s: %s", plan_system_name((SystemKind)s), outcomes[s].reason);
    }
  } else {
    for (int s = 0; s < SYSTEM_COUNT; s++) {
      best->outcomes[s] = outcomes[s];
      if (outcomes[s].reason) {
        best->outcomes[s].reason = arena_strndup(best->arena, outcomes[s].reason, strlen(outcomes[s].reason));
      }
    }
    best->n_outcomes = SYSTEM_COUNT;
  }
  arena_free(words);
  return best->code;
}

int evaluate_shape(Diag *diag, const Spec *spec, int shape, SystemKind system, Evaluation *e)
{
  *e = (Evaluation){0};
  return system == SYSTEM_AUTO ? evaluate_auto(diag, spec, shape, e) : evaluate_one(diag, spec, shape, system, e);
}
