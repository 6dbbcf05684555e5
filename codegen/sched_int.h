/* What the scheduling passes share. A task is one thing that happens for one (layer, micro-batch): a compute op, a
   helper op of the progress thread, or a message hop (a SEND row and its RECV row). Every task has exactly one
   predecessor, so the dataflow is a walk: compute_order -> timeline -> rows -> slots. */
#ifndef CODEGEN_SCHED_INT_H
#define CODEGEN_SCHED_INT_H

#include "codegen/cost.h"
#include "codegen/sched.h"

typedef enum SchedTask {
  TASK_EMBED_FWD,
  TASK_ATT_FWD,
  TASK_FFN_FWD,
  TASK_HEAD, /* its layer is the number of layers */
  TASK_FFN_DGRAD,
  TASK_ATT_DGRAD,
  TASK_FFN_WGRAD,
  TASK_ATT_WGRAD,
  TASK_EMBED_WGRAD,
  TASK_N_COMPUTE,
  TASK_RELAY = TASK_N_COMPUTE,
  TASK_REDUCE_FWD, /* NODE_REDUCE of GATHER */
  TASK_REDUCE_BWD, /* NODE_REDUCE of FORWARD_B */
  TASK_DISPATCH,   /* hops from here on */
  TASK_FORWARD,
  TASK_GATHER,
  TASK_COMBINE,
  TASK_COMBINE_B,
  TASK_GATHER_B,
  TASK_FORWARD_B,
  TASK_DISPATCH_B,
  TASK_COUNT
} SchedTask;

/* The plan as the passes want it: who runs what, and how long it takes. */
typedef struct SchedNet {
  const Spec *spec;
  const Plan *plan;
  int n_layers;
  int n_mbs;
  int n_groups;
  bool *relayed;                      /* [n_layers] */
  int64_t *op_ns[TASK_N_COMPUTE + 3]; /* [n_layers + 1] of compute and helper tasks */
  MsgCost *msg[TASK_COUNT];           /* [n_layers] of hops */
} SchedNet;

/* How the list scheduler chooses, and how much room it has. */
/* Who goes first: input gradients, forwards, or each in turn. */
typedef enum SchedTurn { TURN_GRAD, TURN_FORWARD, TURN_BOTH } SchedTurn;

typedef struct SchedPolicy {
  SchedTurn turn;
  bool oldest_sends; /* of two messages the older micro-batch's goes first, else the one that is ready first */
  int wgrads;        /* weight gradients that may wait on a group before they go ahead of forwards */
  int cap;           /* micro-batches in flight */
  int work_slots;    /* per group and side, and per message channel, unless more are needed to get on */
  int chan_slots;
} SchedPolicy;

/* Order of compute tasks of one group: task ids, see sched_id(). */
typedef struct SchedOrder {
  int32_t *ids;
  int n;
  SchedPolicy policy; /* of the first group's: what made them, whose limits the timeline keeps */
} SchedOrder;

/* Modelled times by task id; -1 where a task does not exist. `seq` counts starts over all groups: two rows with the
   same seq are the two ends of one message. end of a hop is its arrival; sent is when the sender's port is free. */
typedef struct SchedTimes {
  int64_t *start, *end, *sent;
  int32_t *seq;
  int32_t n_seq;
  int64_t makespan;
  int in_flight; /* peak of micro-batches between first forward and last weight gradient */
} SchedTimes;

/* A row under construction. Ids in wait and release are record numbers; `chain` breaks ties of seq (SEND before RECV).
 */
typedef struct SchedRec {
  MoeOp op;
  int32_t group;
  int32_t seq;
  int32_t chain;
  int32_t index; /* in the group's table, once sorted */
  int64_t start, end;
  int64_t freed; /* RECV: end of the op that releases it */
} SchedRec;

typedef struct SchedRecs {
  SchedRec *recs;
  int n, cap;
  int32_t *by_task; /* [task ids] record of a compute or helper task, or of a hop's SEND; -1 */
  int32_t *recv_of; /* [task ids] record of a hop's RECV; -1 */
  int32_t n_seq;
} SchedRecs;

static inline int32_t sched_ids(const SchedNet *net)
{
  return TASK_COUNT * (net->n_layers + 1) * net->n_mbs;
}

static inline int32_t sched_id(const SchedNet *net, SchedTask task, int layer, int mb)
{
  return ((int32_t)task * (net->n_layers + 1) + layer) * net->n_mbs + mb;
}

static inline SchedTask sched_task(const SchedNet *net, int32_t id)
{
  return (SchedTask)(id / ((net->n_layers + 1) * net->n_mbs));
}

static inline int sched_layer(const SchedNet *net, int32_t id)
{
  return id / net->n_mbs % (net->n_layers + 1);
}

static inline int sched_mb(const SchedNet *net, int32_t id)
{
  return id % net->n_mbs;
}

/* Group that runs a compute or helper task, and the sending group of a hop; receiving group of a hop. */
int sched_group(const SchedNet *, SchedTask, int layer);
int sched_dst(const SchedNet *, SchedTask, int layer);
/* The task that can begin when this one is done, besides weight gradients; -1 at the end of the walk. */
int32_t sched_next(const SchedNet *, int32_t id);
/* The weight gradient that becomes possible, or -1. */
int32_t sched_wgrad(const SchedNet *, int32_t id);
MoeOpKind sched_kind(SchedTask);
MoeEdge sched_edge(SchedTask);
bool sched_task_exists(const SchedNet *, SchedTask, int layer);

/* True if some node holds two ranks of the layer's FFN group and the plan sends each token once per node. */
bool sched_relayed(const Plan *, int layer);

/* Event simulation by the policy's rule, which fills the orders `made`, or along `given` orders. Of the other, NULL.
   The policy's limits (cap, slots) hold either way. */
void sched_simulate(Arena *, const SchedNet *, const SchedPolicy *, SchedOrder *made, const SchedOrder *given,
                    SchedTimes *);

/* Shared passes, in this order: rows with their waits; slots of pools and channels; the end of the step; tables. */
void sched_comm(Arena *, const SchedNet *, const SchedTimes *, SchedRecs *);
void sched_slots(Arena *, const SchedNet *, SchedRecs *, Schedule *);
void sched_tail(Arena *, const SchedNet *, SchedRecs *, Schedule *);
void sched_rows(Arena *, SchedRecs *, Schedule *);

MoeOp sched_op(MoeOpKind, int layer, int mb);                         /* a row with nothing in it but its stream */
int32_t sched_add(SchedRecs *, SchedRec);                             /* returns the record's number */
void sched_wait(SchedRecs *, int32_t rec, int32_t on);                /* once; -1 is nothing */
void sched_release(SchedRecs *, int32_t rec, int32_t recv);           /* waits for it, too */
int sched_chan(Schedule *, MoeEdge, MoeBucketKind, int src, int dst); /* finds or adds a channel */

#endif
