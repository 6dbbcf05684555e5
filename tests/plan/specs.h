/* Specs filled in by hand, so that the planner's tests need no parser; and planning runs. */
#ifndef TESTS_PLAN_SPECS_H
#define TESTS_PLAN_SPECS_H

#include "codegen/plan.h"

typedef struct Model {
  const char *name;
  ModelSpec spec;
  double params;          /* MODELS.md 4.1 */
  double attention;       /* per layer */
  double flops_per_token; /* forward at 4096, GFLOP, as printed in MODELS.md 4.2; 0: not listed there */
} Model;

extern const Model models[];
extern const int n_models;

/* A model of a few thousand parameters on one 8-GPU node. */
Spec small_spec(ShapeSpec *shape);

/* Qwen3-235B on H800 nodes of 8. */
Spec large_spec(ShapeSpec *shape, int nodes);

/* xorshift: the same numbers everywhere. */
unsigned next_random(unsigned long long *state);
int in_range(unsigned long long *state, int low, int high);

/* The spec with twice of one thing, 0 <= what < DOUBLES; and with every time ten times as long. */
enum { DOUBLES = 5 };
Spec spec_with_double(const Spec *, int what);
Spec spec_tenfold_times(const Spec *);

/* One planning run and what it said. */
enum { RUN_MOST = 8 };
typedef struct Run {
  Arena *arena;
  Plan plans[RUN_MOST];
  int n;
  bool infeasible;
  char *text;
  size_t length;
} Run;

Run run_plan(const Spec *, SystemKind, int most);
void end_run(Run *);

#endif
