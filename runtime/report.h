/* What rank 0 tells about a run: JSON lines to a file, progress to stderr. */
#ifndef MOE_REPORT_H
#define MOE_REPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/load.h"
#include "runtime/moe_status.h"

typedef struct MoeReport {
  int log_fd; /* -1: none */
  const char *log_path;
  bool live;      /* stderr is a terminal: one line that is overwritten */
  bool open_line; /* the cursor stands in a progress line */
  int64_t steps;
  int64_t first_step; /* steps that an earlier run has done */
  int64_t begin_ns;
  int64_t printed_ns; /* last progress line */
  double peak_flops;
  int64_t log_experts; /* every so many steps the log has each expert's tokens; 0: never */
} MoeReport;

typedef struct MoeStepResult {
  int64_t step;      /* from 1 */
  const char *shape; /* NULL: the program has one only */
  double flops_per_token;
  double loss, balance_loss, grad_norm, lr;
  int64_t tokens; /* of this step */
  int64_t step_ns;
  bool skipped;   /* not finite: no update */
  double dropped; /* pairs of token and expert over the capacity */
  MoeLoad load;
} MoeStepResult;

/* A step of a rehearsal. Times are modelled ones, but for how long it really took. */
typedef struct MoeRehearsedStep {
  int64_t step;
  const char *shape; /* NULL: the program has one only */
  double executed_ns, modelled_ns;
  double late_ns; /* most by which an op began too late for want of a core */
  double scale;   /* real time per modelled time */
  int64_t real_ns;
} MoeRehearsedStep;

MoeStatus moe_report_step(MoeReport *, const MoeStepResult *);
MoeStatus moe_report_rehearsed(MoeReport *, const MoeRehearsedStep *);
MoeStatus moe_report_eval(MoeReport *, int64_t step, const char *shape, double loss);
void moe_report_saved(MoeReport *, int64_t step, uint64_t bytes, double seconds);
void moe_report_end(MoeReport *);

#endif
