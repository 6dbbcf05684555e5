/* Messages through slots in memory that both ends can reach: a rank's own memory for messages to itself (`self`), a
   region that two ranks of one host have mapped (`shm`). The sender packs straight into the receiver's slot, so a
   message is copied once. The counters are atomic in both: even of a message to oneself, the progress thread packs and
   the compute thread releases. */
#include "runtime/transport.h"

static MoeSlot *slot_at(const MoeLink *link, uint32_t slot)
{
  return (MoeSlot *)(void *)(link->slab + link->offset[slot]);
}

static bool self_reaches(const MoePeer *me, const MoePeer *other)
{
  return me->rank == other->rank;
}

static bool shm_reaches(const MoePeer *me, const MoePeer *other)
{
  return me->rank != other->rank && me->host == other->host;
}

static uint8_t *memory_slot(const MoeLink *link, uint32_t slot)
{
  return moe_slot_data(slot_at(link, slot));
}

static bool memory_acquire(const MoeLink *link, uint32_t slot, uint64_t generation, int64_t *free_ns_p)
{
  MoeSlot *s = slot_at(link, slot);
  if (!moe_slot_writable(s, generation)) {
    return false;
  }
  *free_ns_p = atomic_load_explicit(&s->free_ns, memory_order_relaxed);
  return true;
}

static MoeStatus memory_put(const MoeLink *link, uint32_t slot, uint64_t generation, size_t bytes, MoeSpan span)
{
  MoeSlot *s = slot_at(link, slot);
  (void)bytes; /* it lies there already */
  atomic_store_explicit(&s->start_ns, span.start_ns, memory_order_relaxed);
  atomic_store_explicit(&s->arrival_ns, span.arrival_ns, memory_order_relaxed);
  moe_slot_publish(s, generation);
  moe_bell_ring(link->dst_bell);
  return MOE_OK;
}

static bool memory_arrived(const MoeLink *link, uint32_t slot, uint64_t generation, MoeSpan *span_p)
{
  MoeSlot *s = slot_at(link, slot);
  if (!moe_slot_readable(s, generation)) {
    return false;
  }
  *span_p = (MoeSpan){.start_ns = atomic_load_explicit(&s->start_ns, memory_order_relaxed),
                      .arrival_ns = atomic_load_explicit(&s->arrival_ns, memory_order_relaxed)};
  return true;
}

static const uint8_t *memory_data(const MoeLink *link, uint32_t slot)
{
  return moe_slot_data(slot_at(link, slot));
}

static void memory_release(const MoeLink *link, uint32_t slot, uint64_t generation, int64_t free_ns)
{
  atomic_store_explicit(&slot_at(link, slot)->free_ns, free_ns, memory_order_relaxed);
  moe_slot_release(slot_at(link, slot), generation);
  moe_bell_ring(link->src_bell);
}

static void memory_take(const MoeLink *link, uint32_t slot, uint64_t generation)
{
  atomic_store_explicit(&slot_at(link, slot)->taken, generation, memory_order_release);
  moe_bell_ring(link->src_bell);
}

static bool memory_taken(const MoeLink *link, uint32_t slot, uint64_t generation)
{
  return atomic_load_explicit(&slot_at(link, slot)->taken, memory_order_acquire) >= generation;
}

const MoeTransport moe_transport_self = {
    .name = "self",
    .reaches = self_reaches,
    .slot = memory_slot,
    .acquire = memory_acquire,
    .put = memory_put,
    .arrived = memory_arrived,
    .data = memory_data,
    .release = memory_release,
    .take = memory_take,
    .taken = memory_taken,
};

const MoeTransport moe_transport_shm = {
    .name = "shm",
    .reaches = shm_reaches,
    .slot = memory_slot,
    .acquire = memory_acquire,
    .put = memory_put,
    .arrived = memory_arrived,
    .data = memory_data,
    .release = memory_release,
    .take = memory_take,
    .taken = memory_taken,
};
