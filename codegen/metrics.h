/* Metrics of a schedule: where the time of a step goes, what travels, what memory it takes. The same definitions for
   every system.

   Of one group, T being the step, all compute ops being one resource, and intervals being modelled [start, end):
     compute_ns    C = |union of its compute ops|
     comm_ns       M = |union of its SEND and RECV rows|, a SEND lasting until its ports are free, a RECV until it
   arrived overlapped_ns |M and C| exposed_ns    |M without C|, until the group's last compute op has ended: the network
   moves something of the group while its compute waits. This is the paper's non-overlapped communication (Figure 11).
     bubble_ns     T - C - exposed: nothing to compute and nothing on the way
   Of the whole: means over the ranks. So compute + exposed + bubble = T.

   The other convention, exposed communication as step time minus (compute and bubble): T0 is the step if the same
   tables ran with messages that take no time, each group's compute in the same order; exposed_step_ns = T - T0
   bubble_step_ns = T0 - C

   Of a fused op (comet: messages inside the experts' kernels) the time beyond that of the experts alone is exposed, and
   what its messages would take alone is their communication. */
#ifndef CODEGEN_METRICS_H
#define CODEGEN_METRICS_H

#include "codegen/cost.h"
#include "codegen/sched.h"

typedef struct TimeSplit {
  double step_ns, compute_ns, comm_ns, overlapped_ns, exposed_ns, bubble_ns;
} TimeSplit;

/* Forward bytes of one token, summed over all layers and ranks, a mean over the micro-batch's tokens. Between attention
   and FFN groups dispatch is the M2N, combine the N2M. */
typedef struct Traffic {
  double dispatch; /* to the ranks of its experts; with node-dedup to relays and from them to the ranks */
  double combine;  /* partial sums back, or on to the next attention group */
  double p2p;      /* the residual from stage to stage, where the combine does not carry it */
  double nic;      /* of all of them: between nodes */
  double backward; /* all gradients together, and rows that are dispatched again */
} Traffic;

typedef struct Metrics {
  int n_groups;
  TimeSplit *groups;
  TimeSplit whole;
  double exposed_step_ns, bubble_step_ns;
  double tokens_per_s, tokens_per_s_gpu, tokens_per_s_cluster_gpu, mfu; /* per GPU that works, per GPU of the cluster */
  int64_t peak_memory, memory_limit;                                    /* bytes on the fullest rank */
  Traffic traffic;                                                      /* as planned */
  Traffic by_dedup[DEDUP_AUTO];                                         /* had the plan that dedup */
  int piped;        /* layers whose output goes on in a message of its own, of one micro-batch */
  double grad_tail; /* share of the step after the last micro-batch: gradients and optimizer */
} Metrics;

/* Of a token in all, over whatever links. */
double traffic_sum(const Traffic *);

void metrics_of(Arena *, const Spec *, const Plan *, const Schedule *, Metrics *);

/* The parts of it that need times only: groups, whole, exposed_step_ns, bubble_step_ns. */
void metrics_times(Arena *, const Plan *, const Schedule *, Metrics *);

/* A table of the groups and a few sentences. */
void metrics_print(const Spec *, const Plan *, const Schedule *, const Metrics *, FILE *);

/* Step time if the tables ran with messages that take no time. */
int64_t metrics_free_messages(const Schedule *);

#endif
