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

/* Its duration, or what the spec's costs block gives. At least 1. With chunks an FFN op is that of the largest chunk.
 */
int64_t cost_op_ns(const Spec *, const Plan *, MoeOpKind, int layer);

/* A class of messages between two groups for one layer and one full micro-batch (of a chunk, where the plan has chunks:
   the largest), all pairs together: expected bytes, and the time that its part of them takes on the busiest rank's port
   of each kind. `out` of the sending group, `in` of the receiving one. All of them are 0 where nothing is on the wire
   or the time is given as latency alone. */
typedef struct MsgCost {
  double bytes;     /* over all pairs; what a rank keeps for itself is not counted */
  double nic_bytes; /* of them, between nodes */
  int64_t out_nvlink, out_nic, in_nvlink, in_nic;
  int64_t latency;
  int64_t src_ns, dst_ns; /* the busier port of each side */
  int64_t ns;             /* the busiest of the four, and the latency; at least 1 */
} MsgCost;
MsgCost cost_msg(const Spec *, const Plan *, MoeEdge, int layer);

/* Elements of a bucket: parameters that one holder keeps. experts: experts on the rank (EXPERTS only). */
int64_t cost_bucket_elems(const Spec *, MoeBucketKind, int layer, int experts);

double cost_model_params(const Spec *);
double cost_flops_per_token(const Spec *, int64_t seq); /* model FLOPs, 3 x forward, causal attention counted exactly */

/* Fills group->memory of every group. `saved` and `work` count slots per pool as scheduled, or as in_flight implies
   when the schedule does not exist yet. */
void cost_memory(const Spec *, Plan *);

#endif
