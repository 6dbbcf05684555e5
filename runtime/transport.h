/* How messages get from one rank to another. A link is one direction between two ranks; its slots are numbered when the
   program starts, equally on both sides, and belong to the receiver. A transport only moves whole messages into slots
   and credits back: order, waiting and pacing are the executor's. No call blocks. */
#ifndef MOE_TRANSPORT_H
#define MOE_TRANSPORT_H

#include "runtime/bell.h"
#include "runtime/moe_status.h"
#include "runtime/slab.h"

typedef struct MoePeer {
  int32_t rank;
  uint64_t host; /* equal for ranks that can share memory */
} MoePeer;

typedef struct MoeTransport MoeTransport;

typedef struct MoeLink {
  const MoeTransport *transport;
  int32_t src; /* ranks */
  int32_t dst;
  MoeBell *src_bell; /* of the progress threads at both ends */
  MoeBell *dst_bell;
  int32_t n_slots;
  uint8_t *slab;          /* what the offsets count from; owned by the region it lies in */
  const uint64_t *offset; /* [n_slots] of MoeSlot */
  const size_t *capacity; /* [n_slots] largest message */
  struct MoeTcp *net;     /* this rank's connections to other hosts; NULL: it has none */
} MoeLink;

/* When a message began to travel and when it arrived. Transports carry these times, they do not look at them. */
typedef struct MoeSpan {
  int64_t start_ns;
  int64_t arrival_ns;
} MoeSpan;

struct MoeTransport {
  const char *name;
  bool (*reaches)(const MoePeer *me, const MoePeer *other);

  /* Sender. `slot`: where to pack the message. `acquire`: whether generation g may be packed, and since when. `put`:
     hands over what was packed; the receiver will see it whole. */
  uint8_t *(*slot)(const MoeLink *, uint32_t slot);
  bool (*acquire)(const MoeLink *, uint32_t slot, uint64_t generation, int64_t *free_ns_p);
  MoeStatus (*put)(const MoeLink *, uint32_t slot, uint64_t generation, size_t bytes, MoeSpan);

  /* Receiver. `data` is valid from `arrived` to `release`. */
  bool (*arrived)(const MoeLink *, uint32_t slot, uint64_t generation, MoeSpan *span_p);
  const uint8_t *(*data)(const MoeLink *, uint32_t slot);
  void (*release)(const MoeLink *, uint32_t slot, uint64_t generation, int64_t free_ns);

  /* The receiver tells that it has seen a message, the sender asks: only for the test in which sends wait for that. */
  void (*take)(const MoeLink *, uint32_t slot, uint64_t generation);
  bool (*taken)(const MoeLink *, uint32_t slot, uint64_t generation);
};

/* NULL if no transport reaches the peer. */
const MoeTransport *moe_transport_for(const MoePeer *me, const MoePeer *other);

#define MOE_TRANSPORT(name) extern const MoeTransport moe_transport_##name;
#include "runtime/transports.def"
#undef MOE_TRANSPORT

#endif
