/* Step times of stage orders by a simulation of a few lines that knows only what a step needs: the stage before it in
   its direction, or the stage after it in backward, and one hop between two ranks. */
#ifndef TESTS_SCHED_STAGESIM_H
#define TESTS_SCHED_STAGESIM_H

#include "codegen/stage_order.h"

/* Durations of a stage; `pair`: of a merged F and B. */
typedef struct StagesimTimes {
  int64_t f, b, i, w, pair, hop;
} StagesimTimes;

/* The orders of a case that must be legal. */
StageOrder *stagesim_orders(Arena *, const StageIn *);

/* End of the last step; fails the test unless every step runs once and everything ends. */
int64_t stagesim(const StageIn *, const StagesimTimes *);

#endif
