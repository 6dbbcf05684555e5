/* Memory of one rank from sizes alone, for the planner's columns and for finished plans. The layout of slots follows
   the kernels' own (templates/moe_slots.h): the same pieces, each aligned to 64 bytes. */
#ifndef CODEGEN_MEMORY_H
#define CODEGEN_MEMORY_H

#include "codegen/cost_terms.h"

/* Slots of a rank's pools as a schedule has them. */
typedef struct MemSlots {
  int att_saved, att_work, ffn_saved, ffn_work;
} MemSlots;

/* What a rank holds and whom it talks to. */
typedef struct MemIn {
  int64_t seq;
  int mb_seqs;              /* sequences of a full micro-batch of the replica */
  int att_seqs;             /* of them on one attention rank: the fullest */
  int att_ranks, ffn_ranks; /* of the largest group of each side */
  int replicas;
  int total_ranks; /* of all replicas */
  int ways;        /* groups that hold a layer, each with all its ranks; 0: 1 */
  int chunks;      /* 0: 1 */
  int micro_batches;
  Recompute recompute;
  OptShard shard; /* never OPT_SHARD_AUTO */
  int in_flight;
  int live;              /* slots for a layer's micro-batch that must be kept; 0: in_flight for each layer */
  const MemSlots *slots; /* or NULL: what the plan must have room for. With them messages do not count. */
  int own_ranks;         /* of the group itself */
  int work;              /* slots of work that its order needs; 0: PLAN_WORK_SLOTS, and PLAN_CHAN_SLOTS for messages */

  int att_dense, att_moe; /* layers whose attention it has */
  bool embed, head;
  int n_src, n_join;                 /* COMBINE messages that a layer's input, and a join's output, are summed from */
  int combine_from, dispatch_b_from; /* FFN groups it receives COMBINE and DISPATCH_B from */
  int pipe_from, pipe_b_from;        /* groups */
  bool relays;                       /* FFN ranks that it talks to are reached through relays */

  int ffn_layers, experts;           /* layers whose experts it has; experts of a layer on the fullest rank */
  int dispatch_from, combine_b_from; /* attention groups */
  bool relayed;                      /* it relays itself */
  int node_ranks;                    /* ranks of an FFN group on one node, where relayed */
} MemIn;

/* All terms, total and limit of a rank with the given roles. */
void memory_terms(const Spec *, const MemIn *, int roles, MemoryTerms *);

/* Micro-batches that may be under way where in.live slots, not micro-batches, are dealt out: on the mean each has half
   of its own taken. */
int memory_under_way(const MemIn *);

/* One slot of a message that the rank receives; of exchanges of gradients 0. */
int64_t memory_message(const Spec *, const MemIn *, MoeEdge);

/* Bytes with in.in_flight micro-batches, and the most micro-batches in flight whose saved slots fit (0: not even
   one's), for a rank with the given roles. */
int64_t memory_need(const Spec *, const MemIn *, int roles);
double memory_cap(const Spec *, const MemIn *, int roles);

#endif
