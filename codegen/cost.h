/* Costs: FLOPs and bytes of every op from the model's sizes, times from the cluster's rates. One place for planner,
   scheduler and simulator. Sources: parameter and FLOP counts are the closed forms of the public model definitions; the
   time of an op is max(FLOPs / sustained rate, bytes / memory rate) + launch latency. */
#ifndef CODEGEN_COST_H
#define CODEGEN_COST_H

#include "codegen/plan.h"
#include "runtime/moe_ops.h"

typedef struct OpWork {
  double flops;
  double bytes; /* of memory traffic */
} OpWork;

/* Work of one compute op on the fullest rank of the group that runs it, for one full micro-batch. */
OpWork cost_op_work(const Spec *, const Plan *, MoeOpKind, int layer);

/* Its duration. At least 1. */
int64_t cost_op_ns(const Spec *, const Plan *, MoeOpKind, int layer);

/* A class of messages between two groups for one layer and one full micro-batch, all pairs together: expected bytes out
   of the busiest sender port or into the busiest receiver port, and the time they take there. */
typedef struct MsgCost {
  double bytes;   /* over all pairs */
  int64_t src_ns; /* busiest sending port */
  int64_t dst_ns; /* busiest receiving port */
  int64_t ns;     /* the larger plus latency */
} MsgCost;
MsgCost cost_msg(const Spec *, const Plan *, MoeEdge, int layer);

/* Distinct parts of `parts` equal ones that a token with k distinct experts of E touches on average under uniform
   routing: g (1 - C(E - E/g, k) / C(E, k)). */
double cost_distinct(int experts, int parts, int k);

/* Elements of a bucket: parameters that one holder keeps. experts: experts on the rank (EXPERTS only). */
int64_t cost_bucket_elems(const Spec *, MoeBucketKind, int layer, int experts);

double cost_model_params(const Spec *);
double cost_flops_per_token(const Spec *, int64_t seq); /* model FLOPs, 3 x forward, causal attention counted exactly */

/* Fills group->memory of every group. `saved` and `work` count slots per pool as scheduled, or as in_flight implies
   when the schedule does not exist yet. */
void cost_memory(const Spec *, Plan *);

#endif
