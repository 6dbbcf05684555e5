/* The state of an event simulation, between its parts: sched_sim.c moves time, sched_choose.c picks what a group
   computes next. */
#ifndef CODEGEN_SCHED_SIM_H
#define CODEGEN_SCHED_SIM_H

#include "codegen/sched_flow.h"
#include "codegen/sched_heap.h"
#include "codegen/sched_int.h"
#include "codegen/sched_reduce.h"
#include "codegen/sched_room.h"

enum { READY_GRAD, READY_FWD, READY_WGRAD, READY_COUNT };
enum { N_HOPS = TASK_COUNT - TASK_DISPATCH };

/* A message channel and the messages that want to start. */
typedef struct Chan {
  int used, slots;
  Heap queue;
} Chan;

/* An ordered pair of groups; messages between ranks of one node, relays', are a pair of their own. */
typedef struct Pair {
  int src, dst;
  bool busy, stirred;
  int waiting; /* messages in its queues */
  Chan chans[N_HOPS];
} Pair;

/* Work slots of one side of a group: of attention ops, of FFN ops. */
typedef struct Pool {
  int used, slots;
} Pool;

typedef struct Group {
  int64_t free_at; /* compute */
  Heap ready[READY_COUNT];
  Heap reduces; /* NODE_REDUCE tasks that want a work slot */
  int latest;   /* which of READY_GRAD and READY_FWD ran last */
  int cursor;   /* next in the given order */
  bool stirred; /* something changed that may let it start a compute op or a NODE_REDUCE */
  bool no_room; /* a forward waits for saved slots */
  Pool pools[2];
} Group;

typedef struct Sim {
  const SchedNet *net;
  const SchedPolicy *policy;
  const SchedOrder *given; /* or NULL */
  Group *groups;
  Pair *pairs;
  int n_pairs;
  int32_t *pair_of;        /* [2][groups][groups] */
  int32_t *stirred_pairs;  /* to look at in this instant, in the order in which they were stirred */
  int32_t *stirred_groups; /* the same */
  int n_stirred_pairs, n_stirred_groups;
  SchedFlows *flows;
  SchedReduce *reduce;
  SchedRoom *room; /* or NULL: micro-batches are admitted whole */
  uint8_t *come;   /* [ids] how many of the tasks before it are done */
  uint8_t *ready;  /* [ids] with a given order: it may start */
  int32_t *owner;  /* [ids] whose work slot the task reads, -1 if none */
  int8_t *readers; /* [ids] of a task with a work slot: how many of its readers are to come */
  int32_t *left;   /* [mbs] weight gradients still to come */
  Heap events;     /* ids of ops that end and of messages that arrive, numbers of sched_reduce.h */
  SchedTimes *times;
  int64_t now;
  int admitted, retired;
} Sim;

/* The ordered pair of groups that a hop goes along. */
Pair *sim_pair_of(Sim *, int32_t id);
/* Is there a work slot for the task, if it takes one? */
bool sim_has_work(Sim *, int32_t id);
/* The task that a group computes next, which leaves its queue; -1 if none can start. */
int32_t sim_choose(Sim *, int group);

#endif
