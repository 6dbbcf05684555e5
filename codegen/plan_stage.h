/* Step times of the colocated systems by their closed forms: the orders of stage_order.h with modelled times of layers.
   Between the files of the planner. */
#ifndef CODEGEN_PLAN_STAGE_H
#define CODEGEN_PLAN_STAGE_H

#include "codegen/plan_int.h"
#include "codegen/stage_order.h"

/* One layer and one full micro-batch on a group, in ns. The experts' times and messages are of all chunks together;
   messages include their latency and, with relays, the hop within the node. */
typedef struct StageTimes {
  double att_fwd, att_again, att_dgrad, att_wgrad;
  double ffn_fwd, ffn_dgrad, ffn_wgrad;
  double dispatch, combine, dispatch_again, dispatch_b, combine_b;
  double dense_fwd, dense_dgrad, dense_wgrad;
  double head;      /* and the loss, forward and backward */
  double p2p;       /* output of a stage to the next group */
  double nic_share; /* NICs per rank */
  int chunks;
} StageTimes;

/* A layout: pipeline ranks and what they hold. */
typedef struct StageLayout {
  int stages, virtual_stages; /* of one direction; per pipeline rank */
  int p, n;                   /* pipeline ranks, ranks of each */
  int replicas, micro_batches, mb_seqs, mb_group, chunks;
  Recompute recompute;
  OptShard shard;
  double estimate; /* ns per step */
} StageLayout;

/* Times on the groups of a plan of the system, the slowest of them where nodes cut them differently. */
void stage_times(const Spec *, const Plan *, StageTimes *);

/* Step time by the closed form, gradient exchange and optimizer included. */
double stage_step_ns(const Spec *, const StageLayout *, const StageTimes *);

/* Compute time of one forward and one backward of a layer, merged on two streams with their messages: layers pairs one
   after the other, all alike. */
double stage_merged_ns(const StageTimes *, int layers, double tax);

/* Most (stage, micro-batch) pairs that pipeline rank r keeps, by the rule of the order. */
int stage_live_bound(SystemKind, const StageLayout *, int rank);

/* The same for stage_owed(): where both directions are under way, a weight gradient waits for each step of the way in.
 */
int stage_owed_bound(SystemKind, const StageLayout *, int rank);

/* Work slots of a rank that owes so many pairs of at most `deepest` layers: one for each layer of those. Else a layer's
   are free when the next layer begins, and where messages run under compute when the one after begins. */
int stage_work(SystemKind, int owed, int deepest);

#endif
