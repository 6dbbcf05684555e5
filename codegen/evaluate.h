/* Evaluation: the fastest plan of a system for one shape, by simulated step, with its checked schedule. */
#ifndef CODEGEN_EVALUATE_H
#define CODEGEN_EVALUATE_H

#include "codegen/plan.h"
#include "codegen/sched.h"

/* Exit codes of what cannot run. */
enum { EXIT_REFUSED = 1, EXIT_NO_PLAN = 3 };

/* What became of one system under SYSTEM_AUTO. */
typedef struct Outcome {
  SystemKind system;
  bool ran;
  int64_t step_ns;
  const char *reason; /* why it did not run, in the words of its first error; else NULL */
} Outcome;

typedef struct Evaluation {
  Arena *arena, *sched_arena; /* hold what is below, and die with evaluation_free() */
  SystemKind system;
  bool ran; /* plan and sched are filled in; else reason */
  int code; /* 0, or the exit code */
  const char *reason;
  Plan plan; /* its step_ns, tokens_per_s and mfu are those of the schedule */
  Schedule sched;
  Plan
      *plans; /* the plan again, then the candidates that were not taken; of those that were simulated with that step */
  int n_plans;
  int tried;                      /* plans that were simulated */
  Outcome outcomes[SYSTEM_COUNT]; /* under SYSTEM_AUTO, in the order of systems.def */
  int n_outcomes;                 /* else 0 */
} Evaluation;

/* Plans the shape for a system, simulates the few plans that look best, keeps the fastest and checks its schedule.
   Under SYSTEM_AUTO that for every system; the fastest is kept, and a system that cannot run is an outcome and no
   error. Returns 0, or after an error 1 (refused) or 3 (no plan fits). */
int evaluate_shape(Diag *, const Spec *, int shape, SystemKind, Evaluation *);

/* The same for one system, with nothing printed: what went wrong becomes `reason`. */
void evaluate_quietly(const Spec *, int shape, SystemKind, Evaluation *);

void evaluation_free(Evaluation *);

/* Leaves to the planner only what the targets with kernels can do; what is asked for by name stays, to be refused by
 * name. */
void evaluate_for_kernels(Spec *);

/* The spec as a system takes it: without the pins that are not this one's. */
Spec evaluate_view(const Spec *, SystemKind);

#endif
