/* What the scheduling passes share. A task is one thing that happens for one (layer, micro-batch, chunk): a compute op,
   a helper op of the progress thread, or a message hop (a SEND row and its RECV row). Tasks of attention and PIPE have
   chunk 0 alone; FFN tasks and their messages exist once per chunk. The dataflow is a graph of tasks, sched_nexts();
   passes: compute_order -> timeline -> rows -> slots. */
#ifndef CODEGEN_SCHED_INT_H
#define CODEGEN_SCHED_INT_H

#include "codegen/cost.h"
#include "codegen/sched.h"

/* Order matters: compute tasks, helpers, hops; weight gradients stand together; forward hops before gradients. */
typedef enum SchedTask {
  TASK_EMBED_FWD,
  TASK_ATT_FWD, /* of a dense layer: the whole layer */
  TASK_FFN_FWD,
  TASK_JOIN_FWD,  /* layer: the one whose COMBINE it sums */
  TASK_HEAD,      /* its layer is the number of layers */
  TASK_ATT_AGAIN, /* attention of a layer of which only the input is kept: before its gradients */
  TASK_JOIN_DGRAD,
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
  TASK_PIPE,
  TASK_PIPE_B,
  TASK_DISPATCH_AGAIN,
  TASK_FORWARD_AGAIN,
  TASK_COMBINE_B,
  TASK_GATHER_B,
  TASK_FORWARD_B,
  TASK_DISPATCH_B,
  TASK_COUNT
} SchedTask;

enum { SCHED_MAX_CHUNKS = 4 };                  /* a compute op waits for that many messages and as many slots */
enum { SCHED_MAX_NEXT = SCHED_MAX_CHUNKS + 2 }; /* successors of a task */

/* Marks of tasks that a given order may set. */
enum {
  MARK_HELD = 1, /* on a message: it leaves only after the weight gradient of the op that made it, see sched_holder() */
  MARK_MERGED = 2 /* on a compute task: it runs while messages of the same group are moved by the GPU itself */
};

enum { SCHED_SIZES = 2 }; /* of micro-batches: a full one, the last */

typedef struct SchedBucket SchedBucket;
typedef struct SchedBucketTimes SchedBucketTimes;

/* The plan as the passes want it: who runs what, and how long it takes. Tables by sched_at(net, way, layer), those of
   times and costs for each size of micro-batch, one after the other. */
typedef struct SchedNet {
  const Spec *spec;
  const Plan *plan;
  int n_layers;
  int n_mbs;
  int n_groups;
  int ways, chunks;
  int n_sizes, seqs[SCHED_SIZES]; /* sequences of a micro-batch of each size */
  bool *relayed;
  bool *piped;                   /* the layer's output goes on by PIPE */
  int64_t *op_ns[TASK_DISPATCH]; /* of compute and helper tasks; chunks are alike */
  MsgCost *msg[TASK_COUNT];      /* of hops */
  double merged;                 /* factor on the time of a MARK_MERGED task */
  SchedBucket *buckets;          /* in the order in which the step's end takes them: sched_buckets.h */
  int n_buckets;
  int *bucket_of;       /* [bucket kinds][layers] number of a bucket, if there is one */
  const uint8_t *marks; /* [task ids] or NULL */
} SchedNet;

/* Who goes first: input gradients, forwards, or each in turn. */
typedef enum SchedTurn { TURN_GRAD, TURN_FORWARD, TURN_BOTH } SchedTurn;

/* How the list scheduler chooses, and how much room it has. Messages of gradients always go before others. */
typedef struct SchedPolicy {
  SchedTurn turn;
  bool oldest_sends;   /* of two messages the older micro-batch's goes first, else the one that is ready first */
  bool last_grads;     /* of two gradients the later layer's goes first, with most before it, else the older one's */
  bool first_forwards; /* of two forwards the earlier layer's goes first, with most before it, else the later's */
  int wgrads;          /* weight gradients that may wait on a group before they go ahead of forwards */
  int backlog;         /* messages on a link before which weight gradients go ahead of what would add to them; 0: any */
  int cap;             /* micro-batches in flight */
  int keep;            /* saved slots are dealt out one by one, kept for so many of the oldest: see sched_room.h; or 0:
                          there are enough for `cap` whole micro-batches */
  int work_slots;      /* per group and side, and per message channel, unless more are needed to get on */
  int chan_slots;
} SchedPolicy;

/* Order of compute tasks of one group: task ids, see sched_id(). */
typedef struct SchedOrder {
  int32_t *ids;
  int n;
} SchedOrder;

/* Modelled times by task id; -1 where a task does not exist. `seq` counts starts over all groups: two rows with the
   same seq are the two ends of one message. end of a hop is its arrival; sent is when the sender's port is free. */
typedef struct SchedTimes {
  int64_t *start, *end, *sent;
  int32_t *seq;
  SchedBucketTimes *buckets; /* [buckets] */
  int32_t n_seq;
  int64_t makespan; /* of the micro-batches; gradients may still be summed then */
  int in_flight;    /* peak of micro-batches between first forward and last weight gradient */
  bool lacked;      /* something waited for a slot for work or a message; else more of them change nothing */
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

/* Task ids: every (task, layer, micro-batch, chunk) has one, whether or not the task exists. */
static inline int32_t sched_ids(const SchedNet *net)
{
  return TASK_COUNT * (net->n_layers + 1) * net->n_mbs * net->chunks;
}

static inline int32_t sched_id(const SchedNet *net, SchedTask task, int layer, int mb, int chunk)
{
  return (((int32_t)task * (net->n_layers + 1) + layer) * net->n_mbs + mb) * net->chunks + chunk;
}

static inline SchedTask sched_task(const SchedNet *net, int32_t id)
{
  return (SchedTask)(id / ((net->n_layers + 1) * net->n_mbs * net->chunks));
}

static inline int sched_layer(const SchedNet *net, int32_t id)
{
  return id / (net->n_mbs * net->chunks) % (net->n_layers + 1);
}

static inline int sched_mb(const SchedNet *net, int32_t id)
{
  return id / net->chunks % net->n_mbs;
}

static inline int sched_chunk(const SchedNet *net, int32_t id)
{
  return id % net->chunks;
}

static inline int sched_way(const SchedNet *net, int mb)
{
  return moe_way(net->ways, net->n_mbs, mb);
}

static inline int sched_at(const SchedNet *net, int way, int layer)
{
  return way * (net->n_layers + 1) + layer;
}

/* Of which size it is. */
static inline int sched_size(const SchedNet *net, int mb)
{
  return net->n_sizes > 1 && mb == net->n_mbs - 1;
}

/* Everything of the plan that passes ask about. */
SchedNet sched_net(Arena *, const Spec *, const Plan *);

/* Group that runs a compute or helper task, and the sending group of a hop; receiving group of a hop. */
int sched_group(const SchedNet *, SchedTask, int layer, int way);
int sched_dst(const SchedNet *, SchedTask, int layer, int way);
int sched_group_of(const SchedNet *, int32_t id);
/* Is there such a task for micro-batches of this way? Chunks: that many, 1 of tasks without. */
bool sched_task_exists(const SchedNet *, SchedTask, int layer, int way);
/* Is the layer's forward, of which only its input and lists are kept, run again before its gradients? */
bool sched_again(const SchedNet *, int layer);
int sched_chunks(const SchedNet *, SchedTask);
int sched_way_mbs(const SchedNet *, int way); /* micro-batches that go this way */
/* Tasks that read what this one makes, weight gradients included; returns how many. In a fixed order. Of the gradient
   of a layer's experts, and of the head, the last is TASK_ATT_AGAIN of the layer before where there is one: it reads
   nothing of them, but then is its time. */
int sched_nexts(const SchedNet *, int32_t id, int32_t next[SCHED_MAX_NEXT]);
/* Of which side the task takes a work slot: 0 attention, 1 experts, -1 of none. */
int sched_work_side(const SchedNet *, int32_t id);
/* How many tasks must be done before this one can begin: those that have it among their nexts, and one more for a held
   message. Of EMBED_FWD, which has none, 1. */
int sched_n_before(const SchedNet *, int32_t id);
/* Hops whose messages this task gives back when it is done: those it reads. Of a relay's dispatch that is FORWARD,
   which packs from it. Returns how many. */
int sched_frees(const SchedNet *, int32_t id, int32_t hops[SCHED_MAX_CHUNKS]);
/* The op for which a held message waits: the weight gradient of the op that made it, or the forward that is run again
   before the message is read; -1 of all other tasks. Messages that a task may hold: those of the input gradient before
   a weight gradient, and those that come with what a forward run again sends; returns how many. */
int32_t sched_holder(const SchedNet *, int32_t id);
int sched_holds(const SchedNet *, int32_t id, int32_t hops[SCHED_MAX_CHUNKS]);

/* Modelled time of a compute or helper task; cost of a hop. */
int64_t sched_op_ns(const SchedNet *, int32_t id);
const MsgCost *sched_msg(const SchedNet *, int32_t id);

MoeOpKind sched_kind(SchedTask);
MoeEdge sched_edge(SchedTask);

/* Orders of the colocated systems: fills the compute tasks of every group's order, complete and in the order in which
   they run, and the marks. `orders` is [groups], its ids have room for all compute tasks of the group and n is 0;
   `marks` is [task ids], zeroed. False after an error. */
bool sched_stage_orders(Arena *, Diag *, const SchedNet *, SchedOrder *orders, uint8_t *marks);

/* Empty orders with room for every compute task of their groups. */
SchedOrder *sched_orders_new(Arena *, const SchedNet *);

SchedTimes sched_times_new(Arena *, const SchedNet *);
void sched_times_clear(const SchedNet *, SchedTimes *);
/* Fills in_flight: most micro-batches between their first forward and their last weight gradient. */
void sched_times_count(Arena *, const SchedNet *, SchedTimes *);

/* Event simulation along `given` orders or, without, by the policy's rule. The policy's limits (cap, slots) hold either
   way. Fills `times`, which may have been used before; `arena` is for what it needs meanwhile. False, and times without
   meaning, if it takes longer than `most`: a search may stop there. Dies of an order that cannot end. */
bool sched_simulate(Arena *, const SchedNet *, const SchedPolicy *, const SchedOrder *given, int64_t most,
                    SchedTimes *times);

/* The search for AF-Pipe's order, and the best so far: its times, how long it takes, the number of its policy. */
typedef struct SchedSearch {
  const SchedNet *net;
  double whole;  /* micro-batches of which the saved slots have room for all layers */
  int under_way; /* most that may be under way where slots are dealt out one by one */
  int64_t shortest;
  int best;
  uint8_t *lacked;         /* [policies] what they lacked were slots for work and messages */
  SchedTimes times, tried; /* of the best; room for those of the one at hand */
} SchedSearch;
SchedSearch sched_search_new(Arena *, const SchedNet *);
/* With the slots for work and messages that every plan has. Policies are tried until a number of tasks has been
   simulated: all of them for small plans, the first few for large ones; or, if `only` is not negative, that one. */
void sched_search(SchedSearch *, int only);
/* The best policy again, and for small plans others, those that lacked slots, with so many of each kind. Is one shorter
   than the best so far? */
bool sched_search_more(SchedSearch *, int slots);
bool sched_search_is_small(const SchedSearch *); /* others than the best are tried */

/* Shared passes, in this order: rows with their waits; slots of pools and channels; the end of the step; tables. */
void sched_comm(Arena *, const SchedNet *, const SchedTimes *, SchedRecs *);
void sched_slots(Arena *, const SchedNet *, SchedRecs *, Schedule *);
void sched_tail(Arena *, const SchedNet *, const SchedTimes *, SchedRecs *, Schedule *);
void sched_rows(Arena *, SchedRecs *, Schedule *);

MoeOp sched_op(MoeOpKind, int layer, int mb);                         /* a row with nothing in it but its stream */
int32_t sched_add(SchedRecs *, SchedRec);                             /* returns the record's number */
void sched_wait(SchedRecs *, int32_t rec, int32_t on);                /* once; -1 is nothing */
void sched_release(SchedRecs *, int32_t rec, int32_t recv);           /* waits for it, too */
int sched_chan(Schedule *, MoeEdge, MoeBucketKind, int src, int dst); /* finds or adds a channel */

#endif
