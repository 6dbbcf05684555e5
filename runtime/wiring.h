/* The static part of all communication: which messages travel between which two ranks, in which order, in which slots.
   Computed once, before any rank is forked, from the op tables alone. */
#ifndef MOE_WIRING_H
#define MOE_WIRING_H

#include "runtime/moe_bundle.h"

/* One message of a step on one link. Its generation in the shape's step n is n * uses + use + 1. */
typedef struct MoeMsg {
  int32_t op;    /* SEND in the sender's table, or RECV in the receiver's */
  uint32_t slot; /* of the link */
  uint32_t use;  /* earlier messages of the step in this slot on this link */
  uint32_t uses; /* messages of a step in this slot on this link */
} MoeMsg;

/* One direction and class of traffic between two ranks. Both lists describe the same messages, entry by entry. */
typedef struct MoeLinkPlan {
  int32_t n_msgs;
  MoeMsg *sends;
  MoeMsg *recvs;
  int32_t n_slots;
  uint64_t *offset; /* of each slot in the slab region; of a rank to itself in that rank's private region */
  size_t *capacity;
} MoeLinkPlan;

typedef struct MoeWiring {
  int32_t n_ranks;
  MoeLinkPlan *links;   /* [MOE_TRAFFIC_COUNT][src][dst] */
  uint64_t shared_end;  /* of its slots between different ranks, in the shared region */
  uint64_t *self_bytes; /* [n_ranks] slots of a rank to itself */
  uint64_t *in_bytes;   /* [n_ranks] all slots a rank receives in */
} MoeWiring;

/* Slots between ranks lie in the shared region from shared_begin on. Fails if the two sides of a pair of ranks do not
   agree, which no checked schedule does. */
MoeStatus moe_wiring_build(const MoeBundle *, const MoeKernels *, uint64_t shared_begin, MoeWiring *);
void moe_wiring_free(MoeWiring *);

/* Fills the slots between different ranks with bytes that make NaN of every number; slabs: of the shared region. */
void moe_wiring_poison(const MoeWiring *, uint8_t *slabs);

static inline int32_t moe_n_links(const MoeWiring *w)
{
  return MOE_TRAFFIC_COUNT * w->n_ranks * w->n_ranks;
}

static inline int32_t moe_link_index(const MoeWiring *w, MoeTraffic traffic, int32_t src, int32_t dst)
{
  return ((int32_t)traffic * w->n_ranks + src) * w->n_ranks + dst;
}

static inline const MoeLinkPlan *moe_link_plan(const MoeWiring *w, MoeTraffic traffic, int32_t src, int32_t dst)
{
  return &w->links[moe_link_index(w, traffic, src, dst)];
}

static inline uint64_t moe_msg_generation(const MoeMsg *msg, uint64_t tick)
{
  return tick * msg->uses + msg->use + 1;
}

#endif
