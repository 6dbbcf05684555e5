/* Buckets of weights as the passes want them, in the one order in which the step's end takes them: GAIN of all layers,
   which are small and the only ones that groups of both sides hold together; HEAD; of each layer, the last first,
   EXPERTS, SHARED, ATT; EMBED. */
#ifndef CODEGEN_SCHED_BUCKETS_H
#define CODEGEN_SCHED_BUCKETS_H

#include "codegen/cost_terms.h"
#include "codegen/sched_int.h"

enum { BUCKET_TURNS = 2 };

struct SchedBucket {
  MoeBucketKind kind;
  int layer;                     /* 0 of HEAD and EMBED */
  int groups[MOE_BUCKET_GROUPS]; /* ascending */
  int n_groups;
  bool exchanged; /* slices of it go between ranks */
  /* Where the sets of groups that hold a layer's bucket of the kind are equal or have nothing in common, those of a set
     take turns in BUCKET_TURNS slots of the channel, and this is the number of the set; else -1, and each has a slot.
   */
  int set;
  int64_t reduce_ns; /* GRAD_REDUCE */
  MsgCost msg;       /* REDUCE, of each group that holds it */
};

/* Modelled times of a bucket's exchange and sum. */
struct SchedBucketTimes {
  int64_t start, sent, end; /* of the messages, all holders alike */
  int32_t seq, slot, use;
  int64_t reduce[MOE_BUCKET_GROUPS]; /* start of GRAD_REDUCE */
  int32_t reduce_seq[MOE_BUCKET_GROUPS];
};

/* Fills net->buckets. */
void sched_buckets(Arena *, SchedNet *);
/* Numbers of the buckets to whose gradient a task of the layer adds; returns how many. */
enum { SCHED_MAX_ADDS = 2 };
int sched_adds(const SchedNet *, SchedTask, int layer, int numbers[SCHED_MAX_ADDS]);
/* Sets that BUCKET_TURNS slots may belong to. */
int sched_bucket_sets(const SchedNet *);
/* The slot for the bucket's next exchange and which use of it that is. turns: [sets] exchanges so far. */
void sched_bucket_slot(const SchedBucket *, int32_t *turns, int32_t *slot_p, int32_t *use_p);

#endif
