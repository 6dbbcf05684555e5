/* The search. Where the paper's version takes any allocation within a radius of the seed, here the next trial is the
   one that promises most: its simulated step, times what earlier trials say about the simulator nearby, less what is
   not known about it yet (tune_guess). The neighbourhood moves with the best plan so far: a constant that is wrong by a
   factor moves the best split by as much, which may be farther than the radius, and a step that has been measured is
   better to start from than one that was not. */
#include "codegen/tune.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "codegen/fastest.h"
#include "codegen/output.h"

static const double pi = 3.14159265358979;

typedef struct Search {
  Arena *arena;
  Diag *diag;
  const Spec *spec;
  const TuneOptions *options;
  TunePool pool;
  TuneResult *result;
  TuneBelief *belief;
  TuneCandidate *best; /* the fastest measured; until then the seed */
  int micro_batches;   /* of the seed */
} Search;

/* Candidates that may be simulated before a trial: fewer of large ones, by size alone. */
static int simulations(const Search *s)
{
  enum { MOST = 256, LEAST = 3 };
  static const double ops_budget = 2e6, ops_per_layer = 16;
  double n = ops_budget / (ops_per_layer * s->spec->model.layers * s->micro_batches);
  return n > MOST ? MOST : n < LEAST ? LEAST : (int)n;
}

/* What a trial of the plan may gain over the best so far: the expected improvement of the step's logarithm, by `ns`,
   the planner's estimate or the simulated step. Plans that are well known and no better are worth little, so are plans
   that are hardly ever better. */
static double promise(const Search *s, const TuneCandidate *c, double ns)
{
  double mean = 0, spread = 0, best = log(s->pool.list[0]->predicted_ns);
  tune_guess(s->belief, c, &mean, &spread);
  mean += log(ns);
  if (s->result->best >= 0) {
    best = log(s->result->trials[s->result->best].measured_ns);
  }
  double z = (best - mean) / (spread + 1e-9);
  return (best - mean) * erfc(-z / sqrt(2)) / 2 + spread * exp(-z * z / 2) / sqrt(2 * pi);
}

typedef struct Ranked {
  TuneCandidate *what;
  double promise;
  int index;
} Ranked;

static int by_promise(const void *a, const void *b)
{
  const Ranked *x = a, *y = b;
  return x->promise != y->promise ? (x->promise < y->promise) - (x->promise > y->promise) : x->index - y->index;
}

/* The most promising plan that has not been tried; NULL: there is none. */
static TuneCandidate *next_candidate(Search *s)
{
  Ranked *list = malloc((size_t)(s->pool.n + 1) * sizeof *list);
  int n = 0, left = simulations(s);
  if (!list) {
    die("out of memory");
  }
  for (int i = 0; i < s->pool.n; i++) {
    TuneCandidate *c = s->pool.list[i];
    if (c->trial < 0 && !c->refused) {
      list[n++] = (Ranked){c, promise(s, c, c->predicted_ns > 0 ? c->predicted_ns : c->estimate_ns), i};
    }
  }
  qsort(list, (size_t)n, sizeof *list, by_promise);
  TuneCandidate *best = NULL;
  double most = -INFINITY;
  for (int i = 0; i < n; i++) {
    TuneCandidate *c = list[i].what;
    if (c->predicted_ns <= 0 && left-- > 0 && !tune_caught()) {
      tune_predict(&s->pool, c);
    }
    double p = c->predicted_ns > 0 && !c->refused ? promise(s, c, c->predicted_ns) : -INFINITY;
    if (p > most) {
      most = p;
      best = c;
    }
  }
  free(list);
  return best;
}

/* The plans from which the search sets out: the planner's own; under auto that of every other system as well. */
static int add_seeds(Search *s, TuneCandidate **seed)
{
  SystemKind asked = s->options->system;
  Evaluation e;
  int code = evaluate_shape(s->diag, s->spec, 0, asked, &e);
  PlanSpec pins = s->spec->plan;
  if (code == 0) {
    pins.system = e.plan.system;
    s->micro_batches = e.plan.micro_batches;
    *seed = tune_add(&s->pool, &pins, &e.plan);
    if (*seed) {
      (*seed)->predicted_ns = (double)e.sched.step_ns;
    } else {
      diag_error(s->diag, (Span){0},
                 "the planner's own plan cannot be said in pins, so there is nothing to start from");
      code = 1;
    }
  }
  for (int i = 0; code == 0 && i < e.n_outcomes; i++) {
    Evaluation other;
    if (!e.outcomes[i].ran || e.outcomes[i].system == e.plan.system) {
      continue;
    }
    evaluate_quietly(s->spec, 0, e.outcomes[i].system, &other);
    if (other.ran) {
      pins.system = other.plan.system;
      TuneCandidate *c = tune_add(&s->pool, &pins, &other.plan);
      if (c && c != *seed) {
        c->predicted_ns = (double)other.sched.step_ns;
      }
    }
    evaluation_free(&other);
  }
  evaluation_free(&e);
  return code;
}

/* Runs one candidate; false: stop. */
static bool try_one(Search *s, TuneCandidate *c, const char *work)
{
  const TuneOptions *o = s->options;
  TuneResult *r = s->result;
  TuneTrial *t = &r->trials[r->n_trials];
  *t = (TuneTrial){.what = c};
  if (o->report) {
    o->report(o->context, r->n_trials, t, false);
  }
  if (!tune_trial(s->arena, s->diag, s->spec, o, work, r->n_trials + 1, t, &r->ended_by) || r->ended_by) {
    return false;
  }
  c->trial = r->n_trials++;
  if (t->measured_ns > 0 && (r->best < 0 || t->measured_ns < r->trials[r->best].measured_ns)) {
    r->best = c->trial;
    s->best = c;
  }
  tune_learn(s->belief, t);
  if (o->report) {
    o->report(o->context, c->trial, t, true);
  }
  return true;
}

int tune_search(Arena *arena, Diag *diag, const Spec *spec, const TuneOptions *o, TuneResult *result)
{
  *result = (TuneResult){.best = -1, .trials = arena_new_array(arena, TuneTrial, (size_t)o->trials + 1)};
  Search s = {.arena = arena, .diag = diag, .spec = spec, .options = o, .result = result};
  s.pool = (TunePool){.arena = arena, .spec = spec, .cpu = !o->emu && !o->launch};
  s.belief = tune_belief(arena, o->trials);
  TuneCandidate *seed = NULL, *centre = NULL;
  const char *work = NULL;
  int code = add_seeds(&s, &seed);
  if (code != 0) {
    return code;
  }
  tune_catch_signals();
  if (!tune_make_work(arena, diag, o, &work)) {
    tune_release_signals();
    return 1;
  }
  TuneCandidate *c = s.best = seed;
  while (c && result->n_trials < o->trials && try_one(&s, c, work)) {
    if (s.best != centre) {
      centre = s.best;
      tune_neighbours(&s.pool, centre, o->radius);
    }
    c = result->n_trials < o->trials ? next_candidate(&s) : NULL;
  }
  if (result->best > 0 && same_step(result->trials[result->best].measured_ns, result->trials[0].measured_ns)) {
    result->best = 0; /* no reason to leave the planner's own */
  }
  result->ended_by = result->ended_by ? result->ended_by : tune_caught();
  if (!o->work) {
    output_remove_folder(work);
  }
  tune_release_signals();
  return diag_errors(diag) ? 1 : 0;
}
