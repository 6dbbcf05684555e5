/* Chrome traces of one step, measured by `train --trace` or modelled by `moec schedule --trace`, which have one format.
 */
#ifndef CODEGEN_RUN_TRACE_H
#define CODEGEN_RUN_TRACE_H

#include "codegen/timeline.h"

typedef struct TraceProcess {
  char group[16]; /* "A0" */
  int rank;       /* -1: of a model, which knows groups alone */
  DrawLane lanes[LANES];
} TraceProcess;

typedef struct RunTrace {
  TraceProcess *processes;
  int n;
  int64_t step_ns;              /* end of the last op */
  double kind_ns[MOE_OP_COUNT]; /* summed over groups, the mean of a group's ranks */
  int kind_n[MOE_OP_COUNT];     /* ops of all processes */
} RunTrace;

bool run_trace_read(Arena *, Diag *, const char *path, RunTrace *);

/* One timeline of both, group by group: the model's, then the ranks'. Either may be NULL. Rows beyond `most_rows` are
   left out: first all ranks of a group but its first one, then groups. Returns how many were left out. */
int run_trace_timeline(Arena *, const RunTrace *measured, const RunTrace *predicted, int most_rows, int most_rects,
                       Timeline *);

#endif
