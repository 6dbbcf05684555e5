/* Calibration: a hardware description from runs. Each run is a spec and the trace that its program wrote: op by op, the
   modelled work over the measured time gives the rates that the machine sustains. */
#ifndef CODEGEN_CALIBRATE_H
#define CODEGEN_CALIBRATE_H

#include "codegen/cost_terms.h"
#include "codegen/evaluate.h"

/* Ops of one run that do the same work. */
typedef struct CalOp {
  int run;
  MoeOpKind kind;
  Work work;
  double ns; /* the median of */
  int n;     /* so many */
  double *times;
} CalOp;

/* Messages of one run that carry the same. */
typedef struct CalMsg {
  int run;
  MoeEdge edge;
  double nvlink_ns, nic_ns; /* what the run's spec says of its busiest ports, without latency */
  bool far;                 /* nodes apart: the other latency */
  double ns;                /* as nearly alone on the ports as any were: the least but for a tenth */
  int n;
  double *times;
} CalMsg;

typedef struct CalRun {
  const char *spec_path, *trace_path;
  Spec spec;
  SystemKind system;
  int ranks, events;
} CalRun;

typedef struct Calibration {
  CalRun *runs;
  int n_runs;
  CalOp *ops;
  int n_ops, room_ops;
  CalMsg *msgs;
  int n_msgs, room_msgs;
} Calibration;

/* Adds a run: plans the spec again and goes through the trace with the schedule beside it. False after an error, such
   as a trace of another program. */
bool calibrate_read(Arena *, Diag *, Calibration *, const char *spec_path, const char *trace_path);

/* What the runs have in common is fitted: least squares of relative errors with non-negative times per FLOP, byte and
   launch, each op weighted by its share of the run's time, outliers held down. What no run says keeps its value in
   `cluster`, which must hold a description to start from. */
typedef struct CalFit {
  bool gemm, grouped, attention, attention_back, memory, launch, nvlink, nic; /* what was fitted */
} CalFit;
void calibrate_fit(Arena *, const Calibration *, ClusterSpec *cluster, CalFit *);

/* Time of a sample by a description. */
double calibrate_op_ns(const Calibration *, const CalOp *, const ClusterSpec *);
double calibrate_msg_ns(const Calibration *, const CalMsg *, const ClusterSpec *);

/* x >= 0 that minimises |a x - b|, a [rows][n] by rows. */
void calibrate_nnls(Arena *, const double *a, const double *b, int rows, int n, double *x);

#endif
