/* The present state of a run as a file in Prometheus's text format, replaced as a whole: what a node exporter's
   textfile collector reads. */
#ifndef MOE_METRICS_H
#define MOE_METRICS_H

#include "runtime/report.h"

typedef struct MoeMetrics {
  const char *path; /* NULL: none */
  const char *model, *system;
  int64_t steps;                   /* of the run */
  int64_t written_ns;              /* when the file was written last; 0: never */
  bool behind;                     /* it lacks what came later */
  double held_out;                 /* last held-out loss; NaN: none yet */
  double tokens, skipped, dropped; /* since the run began */
  MoeStepResult last;              /* its load is of that step */
} MoeMetrics;

/* Takes the step in; writes the file if the last one is a second old. */
MoeStatus moe_metrics_step(MoeMetrics *, const MoeStepResult *, double peak_flops);
void moe_metrics_eval(MoeMetrics *, double loss);
/* Writes what has not been written yet. */
MoeStatus moe_metrics_end(MoeMetrics *, double peak_flops);

#endif
