/* Memory of one rank from sizes alone, for the planner's columns and for finished plans. The layout of slots follows
   the kernels' own (templates/moe_slots.h): the same pieces, each aligned to 64 bytes. */
#ifndef CODEGEN_MEMORY_H
#define CODEGEN_MEMORY_H

#include "codegen/cost_terms.h"

/* What a rank holds and whom it talks to. */
typedef struct MemIn {
  int64_t seq;
  int mb_seqs;              /* sequences of a full micro-batch of the replica */
  int att_seqs;             /* of them on one attention rank: the fullest */
  int att_ranks, ffn_ranks; /* of the largest group of each side */
  int replicas;
  int in_flight;
  int own_ranks; /* of the group itself */

  int att_dense, att_moe; /* layers whose attention it has */
  bool embed, head;
  int combine_from, dispatch_b_from; /* FFN groups it receives COMBINE and DISPATCH_B from */

  int ffn_layers, experts;           /* layers whose experts it has; experts of a layer on the fullest rank */
  int dispatch_from, combine_b_from; /* attention groups */
  bool relayed;
  int node_ranks; /* ranks of its FFN group on one node, where relayed */
} MemIn;

/* Add one side's terms; total and limit are not touched. */
void memory_att(const Spec *, const MemIn *, MemoryTerms *);
void memory_ffn(const Spec *, const MemIn *, MemoryTerms *);

int64_t memory_sum(const MemoryTerms *);

/* Bytes with in.in_flight micro-batches, and the most micro-batches in flight that fit (0: not even one), for a rank
   with the given roles. */
int64_t memory_need(const Spec *, const MemIn *, int roles);
int memory_cap(const Spec *, const MemIn *, int roles);

#endif
