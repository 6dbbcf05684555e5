/* Candidates of the planner are ranked by its own estimate; the simulator has the last word on the best few of them.
   How many depends on their size alone, so that the answer does not depend on the machine. Each candidate is built in
   an arena of its own, and with a Diag that nobody reads unless all fail: then the first speaks. */
#include "codegen/evaluate.h"

#include <string.h>

#include "codegen/listener.h"
#include "codegen/plan_int.h"
#include "codegen/plan_shape.h"

enum { MOST = 64, FULL = 6 };

static const double MISS = 0.03; /* by which a promise of short steps may be wrong, against others */

/* Ops of a step, roughly: what limits how many plans are simulated with all micro-batches, with few, and with fewer. */
static const double ops_per_layer = 16, full_budget = 200000, guess_budget = 1500000, glance_budget = 1500000;

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

static bool try_plan(const Spec *spec, const Plan *plan, Try *t)
{
  *t = (Try){.arena = arena_new()};
  Arena *words = arena_new();
  Listener *l = listener_new(words);
  bool ok = sched_build(t->arena, l->diag, spec, plan, &t->sched);
  listener_heard(words, l);
  arena_free(words);
  if (!ok) {
    arena_free(t->arena);
    t->arena = NULL;
  }
  return ok;
}

/* ---- steps of few micro-batches ---- */

/* Time of so many micro-batches, by one order, or of their whole step; 0 if it cannot be scheduled. */
static double short_ns(const Spec *spec, const Plan *plan, int micro_batches, int order, bool tail)
{
  Plan few = *plan;
  few.micro_batches = micro_batches;
  few.in_flight = few.in_flight < micro_batches ? few.in_flight : micro_batches;
  Arena *words = arena_new();
  Listener *l = listener_new(words);
  double ns = (double)sched_order_ns(l->diag, spec, &few, order, tail);
  listener_heard(words, l);
  arena_free(words);
  return ns;
}

/* Two numbers of micro-batches: the first fills the pipeline, what the second has more shows the pace of the steady
   state. In colocated systems both keep the remainder that the orders are made for. Returns false where the plan has no
   more than that. */
static bool short_steps(const Plan *plan, int *first, int *second)
{
  bool stages = plan_system_colocated(plan->system);
  int turn = stages ? 2 * plan->n_groups : 1, cap = plan->in_flight;
  turn = plan->mb_group > turn ? plan->mb_group : turn;
  *first = plan->micro_batches % turn + (stages ? turn : 2 * cap + 4);
  *second = *first + (stages ? turn : 2 * cap + 4);
  return *first + *second < plan->micro_batches;
}

static int n_orders(const Plan *plan)
{
  return plan_system_colocated(plan->system) ? 1 : SCHED_FIRST_ORDERS;
}

/* Gradient exchange and optimizer: what a step of `few` micro-batches has more than those. ns: what `n` take, by the
   first order. */
static double tail_ns(const Spec *spec, const Plan *plan, int few, int n, double ns)
{
  return short_ns(spec, plan, few, 0, true) - (few == n ? ns : short_ns(spec, plan, few, 0, false));
}

/* Step time of all micro-batches: those that the first short step lacks take the pace of what the second has more. The
   best of a few orders; 0 if the plan cannot be scheduled. */
static double guess_ns(const Spec *spec, const Plan *plan)
{
  int first, second;
  bool more = short_steps(plan, &first, &second);
  int n = more ? first : plan->micro_batches, few = plan_system_colocated(plan->system) ? first : 1;
  double best = 0, plain = 0;
  for (int i = 0; i < n_orders(plan); i++) {
    double ns = short_ns(spec, plan, n, i, false);
    plain = i == 0 ? ns : plain;
    if (more && ns > 0) {
      ns += (plan->micro_batches - first) * (short_ns(spec, plan, second, i, false) - ns) / (second - first);
    }
    best = ns > 0 && (best == 0 || ns < best) ? ns : best;
  }
  few = few < plan->micro_batches ? few : plan->micro_batches;
  return best > 0 ? best + tail_ns(spec, plan, few, n, plain) : 0;
}

static double guess_ops(const Spec *spec, const Plan *plan)
{
  int first, second, n = short_steps(plan, &first, &second) ? first + second : plan->micro_batches;
  return n_orders(plan) * ops_of(spec, n);
}

/* One plan forward to another place, the others in their order. */
static void put_at(Plan *plans, int from, int to)
{
  Plan plan = plans[from];
  for (int i = from; i > to; i--) {
    plans[i] = plans[i - 1];
  }
  plans[to] = plan;
}

/* Step time from the shortest step that fills the pipeline, by the first order: its pace is what it takes more than one
   micro-batch. Too long for plans of few micro-batches, but for all alike; 0 if the plan cannot be scheduled. */
static double glance_ns(const Spec *spec, const Plan *plan)
{
  int first, second;
  short_steps(plan, &first, &second);
  if (first >= plan->micro_batches) {
    return guess_ns(spec, plan);
  }
  double one = short_ns(spec, plan, 1, 0, false), ns = short_ns(spec, plan, first, 0, false);
  return ns > 0 ? ns + (plan->micro_batches - first) * (ns - one) / (first - 1) + tail_ns(spec, plan, 1, 1, one) : 0;
}

static double glance_ops(const Spec *spec, const Plan *plan)
{
  int first, second;
  short_steps(plan, &first, &second);
  return first < plan->micro_batches ? ops_of(spec, first + 3) : guess_ops(spec, plan);
}

/* A way to tell how fast a plan is, what that costs, and how much it may cost for all plans together. */
typedef struct Look {
  double (*ns)(const Spec *, const Plan *);
  double (*ops)(const Spec *, const Plan *);
  double budget;
} Look;

/* Sorts the plans by a look at each; equal ones and those that are too many to look at stay as they were, and behind
   those that were looked at. Returns how many can be scheduled or were not looked at. */
static int sort_plans(const Spec *spec, const Look *look, Plan *plans, int n)
{
  double spent = 0;
  int looked = 0, kept = 0;
  while (looked < n && (looked < 2 || spent + look->ops(spec, &plans[looked]) <= look->budget)) {
    spent += look->ops(spec, &plans[looked]);
    double ns = look->ns(spec, &plans[looked]);
    if (ns > 0) {
      int at = kept++;
      plan_set_step(spec, &plans[looked], ns);
      while (at > 0 && plans[at - 1].step_ns > ns) {
        at--;
      }
      put_at(plans, looked, at); /* over those that failed, too */
    }
    looked++;
  }
  for (int i = looked; i < n; i++) {
    plans[kept++] = plans[i];
  }
  return kept;
}

/* The same but for where the optimizer's state lies, and room for as many micro-batches: then the estimate is right
   about which of the two is faster. */
static bool are_twins(const Plan *a, const Plan *b)
{
  bool same = a->replicas == b->replicas && a->placement == b->placement && a->recompute == b->recompute &&
              a->p_att == b->p_att && a->n_groups == b->n_groups && a->n_nics == b->n_nics && a->chunks == b->chunks &&
              a->n_stages == b->n_stages && a->mb_group == b->mb_group;
  for (int g = 0; same && g < a->n_groups; g++) {
    const PlanGroup *x = &a->groups[g], *y = &b->groups[g];
    same = x->n_ranks == y->n_ranks && x->live == y->live && x->nics == y->nics;
  }
  return same;
}

/* Without the slower of twins; plans are sorted by their estimates. Returns how many are left. */
static int drop_twins(Plan *plans, int n)
{
  int kept = 0;
  for (int i = 0; i < n; i++) {
    bool twin = false;
    for (int k = 0; k < kept && !twin; k++) {
      twin = are_twins(&plans[k], &plans[i]);
    }
    if (!twin) {
      plans[kept++] = plans[i];
    }
  }
  return kept;
}

/* At a glance, and the best of them by their short steps. */
static int rank_plans(const Spec *spec, Plan *plans, int n)
{
  const Look glance = {glance_ns, glance_ops, glance_budget}, guess = {guess_ns, guess_ops, guess_budget};
  if (n > 0 && !plan_system_colocated(plans[0].system)) { /* of those each look is as short as can be */
    n = sort_plans(spec, &glance, plans, n);
  }
  return sort_plans(spec, &guess, plans, n);
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

void evaluate_for_kernels(Spec *spec)
{
  PlanSpec *pins = &spec->plan;
  pins->no_fused = true;
  pins->optimizer_shard = pins->optimizer_shard == OPT_SHARD_AUTO ? OPT_SHARD_HOLDERS : pins->optimizer_shard;
}

/* Bytes that the fullest rank lacks once the schedule's own slots are counted; 0: it fits. The planner counts the slots
   that an order should need, and messages and heads, and orders of colocated systems, can take a few more. With
   `save`, groups give up as many saved slots as they lack, and *save says whether they could. */
static int64_t lacks(const Spec *spec, Plan *plan, const Schedule *sched, bool *save)
{
  Arena *arena = arena_new();
  Plan copy = *plan;
  plan_copy_groups(arena, &copy);
  sched_memory(spec, sched, &copy);
  int64_t most = 0;
  for (int g = 0; g < copy.n_groups; g++) {
    int64_t more = copy.groups[g].memory.total - copy.groups[g].memory.limit;
    most = more > most ? more : most;
    *save = *save && (more <= 0 || plan_save(spec, plan, g, more));
  }
  arena_free(arena);
  return most;
}

/* A plan whose schedule takes more than there is gets another with fewer slots. */
static bool try_to_fit(const Spec *spec, Plan *plan, Try *t, int64_t *more)
{
  bool save = !plan_system_colocated(plan->system), no = false;
  if (!try_plan(spec, plan, t)) {
    return false;
  }
  *more = lacks(spec, plan, &t->sched, &save);
  if (*more > 0 && save) {
    arena_free(t->arena);
    cost_memory(spec, plan);
    if (!try_plan(spec, plan, t)) {
      return false;
    }
    *more = lacks(spec, plan, &t->sched, &no);
  }
  return true;
}

/* Errors go to `diag`. */
static int evaluate_own(Diag *diag, const Spec *own, int shape, SystemKind system, Evaluation *e)
{
  Spec view = evaluate_view(own, system);
  const Spec *spec = &view;
  *e = (Evaluation){.arena = arena_new(), .system = system};
  Plan *plans = arena_new_array(e->arena, Plan, MOST);
  bool infeasible = false;
  if (!sched_in_bounds(diag, spec, &spec->shapes[shape]) || !sched_in_time(diag, spec, &spec->shapes[shape])) {
    return e->code = EXIT_REFUSED;
  }
  int n = plan_candidates(e->arena, diag, spec, shape, system, plans, MOST, &infeasible), winner = -1;
  if (n <= 0) {
    return e->code = infeasible ? EXIT_NO_PLAN : EXIT_REFUSED;
  }
  n = drop_twins(plans, n);
  int all = n > 1 ? rank_plans(spec, plans, n) : n;
  all = all > 0 ? all : n;
  Try best = {0};
  double spent = 0;
  int64_t least = 0;                           /* that a plan lacks */
  double near = plans[0].step_ns * (1 + MISS); /* what must be promised, where simulating it costs much */
  /* a plan that cannot be scheduled does not count among those that are tried */
  for (int i = 0; i < all && e->tried < FULL; i++) {
    Try t;
    double ops = ops_of(spec, plans[i].micro_batches);
    int64_t more = 0;
    bool enough = e->tried >= 2 || (e->tried == 1 && plans[i].step_ns > near);
    if ((enough && spent + ops > full_budget) || !try_to_fit(spec, &plans[i], &t, &more)) {
      continue;
    }
    if (more > 0) {
      least = least == 0 || more < least ? more : least;
      arena_free(t.arena);
      continue;
    }
    spent += ops;
    plan_set_step(spec, &plans[i], (double)t.sched.step_ns);
    put_at(plans, i, e->tried);
    bool better = winner < 0 || t.sched.step_ns < best.sched.step_ns;
    Arena *loser = better ? best.arena : t.arena;
    if (better) {
      best = t;
      winner = e->tried;
    }
    e->tried++;
    if (loser) {
      arena_free(loser);
    }
  }
  e->sched_arena = best.arena;
  e->sched = best.sched;
  put_at(plans, winner < 0 ? 0 : winner, 0);
  e->plan = plans[0];
  e->plans = plans;
  e->n_plans = all;
  if (winner < 0 && least > 0) {
    diag_error(diag, spec_span(spec, "gpu", "memory"),
               "no plan: with the slots of its schedule the leanest layout of %s lacks %.3f GiB on its fullest rank",
               plan_system_name(system), (double)least / (1 << 30));
    return e->code = EXIT_NO_PLAN;
  }
  if (winner < 0) { /* say why */
    e->sched_arena = arena_new();
    sched_build(e->sched_arena, diag, spec, &e->plan, &e->sched);
  }
  e->ran = winner >= 0 && plan_check(diag, spec, &e->plan) && sched_check(diag, spec, &e->plan, &e->sched);
  if (e->ran) {
    sched_memory(spec, &e->sched, &e->plan);
  }
  return e->code = e->ran ? 0 : EXIT_REFUSED;
}

/* Plans with one group a side are plans of af_pipe, too: where the best of them wins it is taken. *afd_ns: the step of
   the best of them, if one ran; or NULL. */
static int evaluate_one(Diag *diag, const Spec *spec, int shape, SystemKind system, Evaluation *e, int64_t *afd_ns)
{
  evaluate_own(diag, spec, shape, system, e);
  if (system == SYSTEM_AF_PIPE && e->ran && spec->plan.attention_stages <= 1 && spec->plan.ffn_stages <= 1) {
    Evaluation single;
    Arena *words = arena_new();
    Listener *l = listener_new(words);
    evaluate_own(l->diag, spec, shape, SYSTEM_AFD, &single);
    listener_heard(words, l);
    arena_free(words);
    if (afd_ns && single.ran) {
      *afd_ns = single.sched.step_ns;
    }
    bool better = single.ran && single.sched.step_ns < e->sched.step_ns;
    Evaluation loser = better ? *e : single;
    if (better) {
      *e = single;
      e->system = e->plan.system = system;
      for (int i = 0; i < e->n_plans; i++) {
        e->plans[i].system = system;
      }
    }
    evaluation_free(&loser);
  }
  return e->code;
}

/* The first error becomes the reason. */
static void evaluate_heard(const Spec *spec, int shape, SystemKind system, Evaluation *e, int64_t *afd_ns)
{
  if (system == SYSTEM_COMET && spec->plan.no_fused) {
    *e = (Evaluation){.arena = arena_new(), .system = system, .code = EXIT_REFUSED};
    e->reason = "the target has no kernels for messages inside the experts' ops";
    return;
  }
  Arena *words = arena_new();
  Listener *l = listener_new(words);
  evaluate_one(l->diag, spec, shape, system, e, afd_ns);
  const char *reason = listener_heard(words, l);
  if (!e->ran) {
    e->reason = arena_strndup(e->arena, reason, strlen(reason));
  }
  arena_free(words);
}

void evaluate_quietly(const Spec *spec, int shape, SystemKind system, Evaluation *e)
{
  evaluate_heard(spec, shape, system, e, NULL);
}

static int evaluate_auto(Diag *diag, const Spec *spec, int shape, Evaluation *best)
{
  Outcome outcomes[SYSTEM_COUNT];
  Arena *words = arena_new();
  int64_t afd_ns = 0;
  for (int s = 0; s < SYSTEM_COUNT; s++) {
    Evaluation e;
    if (s == SYSTEM_AFD && afd_ns > 0) { /* af_pipe has looked at it, and is no slower */
      outcomes[s] = (Outcome){.system = SYSTEM_AFD, .ran = true, .step_ns = afd_ns};
      continue;
    }
    evaluate_heard(spec, shape, (SystemKind)s, &e, &afd_ns);
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
    evaluate_one(diag, spec, shape, (SystemKind)0, best, NULL);
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
  return system == SYSTEM_AUTO ? evaluate_auto(diag, spec, shape, e) : evaluate_one(diag, spec, shape, system, e, NULL);
}
