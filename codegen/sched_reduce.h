/* The reduction of gradients within the event simulation. A bucket's slices leave as soon as the last op that adds to
   them has ended at all holders, while micro-batches still compute; of one group one exchange is under way at a time.
   They move along a class of traffic of their own and take what other messages leave of the ports
   (MOE_TRAFFIC_BUCKETS), so they hold nothing up. A group adds what has arrived when it has nothing else to do. What
   the simulation keeps in its queues for this are numbers above those of the tasks. */
#ifndef CODEGEN_SCHED_REDUCE_H
#define CODEGEN_SCHED_REDUCE_H

#include "codegen/sched_flow.h"
#include "codegen/sched_heap.h"
#include "codegen/sched_int.h"

typedef struct SchedReduce SchedReduce;

/* flows, events (by time) and times are the simulation's. */
SchedReduce *reduce_new(Arena *, const SchedNet *, SchedFlows *, Heap *events, SchedTimes *);
void reduce_free(SchedReduce *);
bool reduce_has(const SchedReduce *, int32_t number);
/* A task has ended. */
void reduce_added(SchedReduce *, int32_t id);
/* Begins the exchanges that can begin. */
void reduce_exchange(SchedReduce *, int64_t now);
/* The last byte of a group's slices has left. */
void reduce_left(SchedReduce *, int64_t now, int32_t number);
/* An event of the reduction's has come: its bucket. The groups that hold it may have something to do. */
const SchedBucket *reduce_event(SchedReduce *, int32_t number);
/* Runs a sum on a group that has nothing else to do: when it ends, or `now` if there is none. */
int64_t reduce_run(SchedReduce *, int64_t now, int group);

#endif
