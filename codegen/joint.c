/* A candidate is given up as soon as the shapes simulated so far, and the others by their lower bounds, cost more than
   the best one. */
#include "codegen/joint.h"

#include <math.h>

#include "codegen/listener.h"
#include "codegen/plan_shape.h"

enum { MOST_PAIRS = 6 };

typedef struct Search {
  const Spec *spec;
  const Evaluation *own;
  Arena *words;
  const char *reason; /* why the first candidate that failed did */
  const Plan **seen;  /* candidates so far */
  int n_seen, room;
  double weights; /* of all shapes */
  double best;    /* weighted sum */
} Search;

static double alone_ns(const Search *s, int shape)
{
  return (double)s->own[shape].sched.step_ns;
}

/* An empty program in arenas of its own. */
static Joint joint_new(int n)
{
  Joint j = {.arena = arena_new(), .n = n};
  j.plans = arena_new_array(j.arena, Plan, (size_t)n);
  j.scheds = arena_new_array(j.arena, Schedule, (size_t)n);
  j.sched_arenas = arena_new_array(j.arena, Arena *, (size_t)n);
  j.taken = arena_new_array(j.arena, bool, (size_t)n);
  return j;
}

void joint_free(Joint *j)
{
  for (int i = 0; i < j->n; i++) {
    if (j->sched_arenas[i]) {
      arena_free(j->sched_arenas[i]);
    }
  }
  if (j->arena) {
    arena_free(j->arena);
  }
  *j = (Joint){0};
}

/* Plans every shape of a candidate; bounds: the least that each can add to the sum. A shape on its own layout is taken
   over as it is. Returns false if one of them cannot run. */
static bool plan_all(Search *s, Diag *diag, const Spec *view, const Plan *base, Joint *j, double *bounds)
{
  for (int i = 0; i < j->n; i++) {
    const Evaluation *own = &s->own[i];
    double least = (double)own->sched.step_ns;
    if (plan_same_layout(view, &own->plan, base)) {
      j->plans[i] = own->plan;
      plan_copy_groups(j->arena, &j->plans[i]);
      j->scheds[i] = own->sched;
      j->taken[i] = true;
    } else if (plan_for_shape(j->arena, diag, view, base, i, &j->plans[i])) {
      least = (double)sched_bound(view, &j->plans[i]).ns;
    } else {
      return false;
    }
    bounds[i] = view->shapes[i].weight * (least / alone_ns(s, i) - 1);
  }
  return true;
}

static bool schedule_shape(Diag *diag, const Spec *view, int shape, Joint *j)
{
  Plan *plan = &j->plans[shape];
  if (j->taken[shape]) {
    return true;
  }
  j->sched_arenas[shape] = arena_new();
  if (!sched_build(j->sched_arenas[shape], diag, view, plan, &j->scheds[shape])) {
    return false;
  }
  plan_set_step(view, plan, (double)j->scheds[shape].step_ns);
  sched_memory(view, &j->scheds[shape], plan);
  return true;
}

/* Weighted sum over all shapes, INFINITY where the candidate fails or cannot win. */
static double price(Search *s, Diag *diag, const Spec *view, const Plan *base, Joint *j)
{
  double sum = s->weights, *bounds = arena_new_array(j->arena, double, (size_t)j->n);
  if (!plan_all(s, diag, view, base, j, bounds)) {
    return INFINITY;
  }
  for (int i = 0; i < j->n; i++) {
    sum += bounds[i];
  }
  for (int i = 0; i < j->n && sum < s->best; i++) {
    if (!schedule_shape(diag, view, i, j)) {
      return INFINITY;
    }
    sum += view->shapes[i].weight * ((double)j->scheds[i].step_ns / alone_ns(s, i) - 1) - bounds[i];
  }
  if (sum < s->best && !plan_share_memory(j->plans, j->n)) {
    diag_error(diag, (Span){0}, "no plan: the pools and message slots of all shapes together do not fit the memory");
    return INFINITY;
  }
  return sum;
}

static bool is_new(Search *s, const Plan *plan)
{
  for (int i = 0; i < s->n_seen; i++) {
    if (plan_same_layout(s->spec, s->seen[i], plan)) {
      return false;
    }
  }
  s->seen = arena_grow(s->words, s->seen, s->n_seen, &s->room, sizeof(const Plan *));
  s->seen[s->n_seen++] = plan;
  return true;
}

/* Whether plans are small enough for all candidates to be simulated. */
static bool small(const Evaluation *e)
{
  return e->tried >= e->n_plans;
}

/* Candidates of one system; of large plans only the first. The evaluations live as long as `seen` needs them. */
static void try_candidates(Search *s, const Spec *view, const Evaluation *from, Joint *best)
{
  for (int c = 0; c < (small(from) ? from->n_plans : 1); c++) {
    if (!is_new(s, &from->plans[c])) {
      continue;
    }
    Joint j = joint_new(s->spec->n_shapes);
    Listener *l = listener_new(s->words);
    double sum = price(s, l->diag, view, &from->plans[c], &j);
    const char *words = listener_heard(s->words, l);
    s->reason = isfinite(sum) || s->reason ? s->reason : words;
    if (sum < s->best) {
      joint_free(best);
      *best = j;
      s->best = sum;
    } else {
      joint_free(&j);
    }
  }
}

static int between(int64_t a, int64_t b)
{
  return (int)lround(sqrt((double)a * (double)b));
}

/* A shape between two others: what suits neither of them best, but both well, may suit it best. */
static void evaluate_between(Search *s, SystemKind system, int a, int b, Evaluation *e)
{
  const ShapeSpec *x = &s->spec->shapes[a], *y = &s->spec->shapes[b];
  ShapeSpec *middle = arena_new_of(s->words, ShapeSpec);
  *middle = *x;
  middle->seq = between(x->seq, y->seq);
  middle->micro_batch = between(x->micro_batch, y->micro_batch);
  middle->global_batch = between(x->global_batch, y->global_batch);
  Spec *spec = arena_new_of(s->words, Spec);
  *spec = *s->spec;
  spec->shapes = middle;
  spec->n_shapes = 1;
  evaluate_quietly(spec, 0, system, e);
}

/* more: [n_shapes + MOST_PAIRS] */
static void try_system(Search *s, SystemKind system, Joint *best, Evaluation *more)
{
  Spec view = evaluate_view(s->spec, system);
  int shapes = s->spec->n_shapes, pairs = 0;
  bool all_small = true;
  for (int i = 0; i < shapes; i++) {
    const Evaluation *from = &s->own[i];
    if (from->plan.system != system) {
      evaluate_quietly(s->spec, i, system, &more[i]);
      from = &more[i];
    }
    if (from->ran) {
      try_candidates(s, &view, from, best);
    }
    all_small = all_small && small(from);
  }
  for (int i = 0; i < shapes && all_small; i++) {
    for (int k = i + 1; k < shapes && pairs < MOST_PAIRS && s->best > s->weights; k++) {
      Evaluation *e = &more[shapes + pairs++];
      evaluate_between(s, system, i, k, e);
      if (e->ran) {
        try_candidates(s, &view, e, best);
      }
    }
  }
}

/* Under SYSTEM_AUTO: least weighted sum that a system can reach; INFINITY if it cannot run some shape. */
static double least(const Search *s, int outcome)
{
  double sum = 0;
  for (int i = 0; i < s->spec->n_shapes; i++) {
    const Outcome *o = &s->own[i].outcomes[outcome];
    sum += o->ran ? s->spec->shapes[i].weight * (double)o->step_ns / alone_ns(s, i) : INFINITY;
  }
  return sum;
}

/* The systems that may win, the most promising first. */
static int list_systems(const Search *s, SystemKind asked, SystemKind *list, double *bounds)
{
  int n = 0;
  if (asked != SYSTEM_AUTO) {
    list[0] = asked;
    bounds[0] = 0;
    return 1;
  }
  for (int o = 0; o < s->own[0].n_outcomes; o++) {
    double bound = least(s, o);
    int at = n;
    if (!isfinite(bound)) {
      continue;
    }
    for (; at > 0 && bounds[at - 1] > bound; at--) {
      bounds[at] = bounds[at - 1];
      list[at] = list[at - 1];
    }
    bounds[at] = bound;
    list[at] = s->own[0].outcomes[o].system;
    n++;
  }
  return n;
}

static bool check(Diag *diag, const Spec *spec, const Joint *j)
{
  Spec view = evaluate_view(spec, j->plans[0].system);
  bool ok = true;
  for (int i = 0; i < j->n && ok; i++) {
    ok = plan_check(diag, &view, &j->plans[i]);
    ok = ok && (j->taken[i] || sched_check(diag, &view, &j->plans[i], &j->scheds[i]));
  }
  return ok;
}

int evaluate_joint(Diag *diag, const Spec *spec, SystemKind system, const Evaluation *own, Joint *joint)
{
  int shapes = spec->n_shapes;
  SystemKind systems[SYSTEM_COUNT];
  double bounds[SYSTEM_COUNT];
  Search s = {.spec = spec, .own = own, .words = arena_new(), .best = INFINITY};
  *joint = (Joint){0};
  for (int i = 0; i < shapes; i++) {
    s.weights += spec->shapes[i].weight;
  }
  int n = list_systems(&s, system, systems, bounds);
  int each = shapes + MOST_PAIRS;
  Evaluation *more = arena_new_array(s.words, Evaluation, (size_t)(SYSTEM_COUNT * each));
  for (int i = 0; i < n && bounds[i] < s.best; i++) {
    try_system(&s, systems[i], joint, &more[i * each]);
  }
  int code = 0;
  if (joint->n == 0) {
    diag_error(diag, spec->shapes[0].span, "no placement of the weights serves all %d shapes: %s", shapes,
               s.reason ? s.reason : "no schedule runs each of them");
    diag_note(diag, spec->shapes[0].span, "smallest change: a program for fewer of them (--shape)");
    code = EXIT_NO_PLAN;
  } else {
    joint->loss = s.best / s.weights - 1;
    joint->tried = s.n_seen;
    code = check(diag, spec, joint) ? 0 : EXIT_REFUSED;
  }
  for (int i = 0; i < SYSTEM_COUNT * each; i++) {
    evaluation_free(&more[i]);
  }
  arena_free(s.words);
  return code;
}

void joint_print(const Spec *spec, const Evaluation *own, const Joint *j, FILE *out)
{
  const Plan *plan = &j->plans[0];
  fprintf(out, "one program for %d shapes: %s, %s, %d replica%s x %d ranks:", j->n, plan_system_name(plan->system),
          plan_placement_name(plan->placement), plan->replicas, plan->replicas == 1 ? "" : "s", plan->replica_ranks);
  for (int g = 0; g < plan->n_groups; g++) {
    const PlanGroup *group = &plan->groups[g];
    bool run = g > 0 && group->n_ranks == group[-1].n_ranks && group->role == group[-1].role;
    int alike = 1;
    while (g + alike < plan->n_groups && group[alike].n_ranks == group->n_ranks && group[alike].role == group->role) {
      alike++;
    }
    if (!run) {
      fprintf(out, "%s %d x %d %s", g ? "," : "", alike, group->n_ranks, plan_role_letters(group->role));
    }
  }
  fprintf(out, "\n");
  for (int i = 0; i < j->n; i++) {
    double step = (double)j->scheds[i].step_ns, alone = (double)own[i].sched.step_ns;
    fprintf(out, "  shape %-12s weight %-6g step %.3f ms, alone %.3f ms: %s %.2f %%\n", spec->shapes[i].name,
            spec->shapes[i].weight, step * 1e-6, alone * 1e-6, step < alone ? "gains" : "loses",
            100 * fabs(step / alone - 1));
  }
  fprintf(out, "  weighted: %.2f %% over each shape alone, the best of %d layouts%s\n", 100 * j->loss, j->tried,
          spec->plan.no_fused ? " that the cpu target can run" : "");
}
