/* The log of a run, as `train --log` writes it: JSON lines. */
#ifndef CODEGEN_RUN_LOG_H
#define CODEGEN_RUN_LOG_H

#include <stdint.h>

#include "lang/arena.h"
#include "lang/diag.h"

/* What is written as null, or not at all, is NaN. */
typedef struct LogStep {
  int64_t step;
  double loss, balance, grad, lr, rate, ms; /* rate: tokens per second */
  double dropped;                           /* pairs of token and expert over the capacity */
  double fullest;                           /* tokens of the fullest expert of any layer over the mean of its layer */
} LogStep;

typedef struct LogEval {
  int64_t step;
  double loss;
} LogEval;

/* Tokens that chose each expert in one step. */
typedef struct LogLoad {
  int64_t step;
  int layers, experts;
  double *tokens, *dropped; /* [layers][experts] */
} LogLoad;

typedef struct RunLog {
  LogStep *steps; /* ascending; of a step that is told twice, after a crash, the later one */
  LogEval *evals;
  int n_steps, n_evals;
  LogLoad load;   /* the last; layers 0: none */
  bool rehearsal; /* steps have times alone */
} RunLog;

/* False after an error with the line; a last line that was cut off is left out with a warning. */
bool run_log_read(Arena *, Diag *, const char *path, RunLog *);

#endif
