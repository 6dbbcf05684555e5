/* Messages of a rank to itself, through private memory: the smallest complete transport. Sender and receiver are the
   same progress thread, but slots are also released by the compute thread, so the counters are atomic here as well. */
#include "runtime/transport.h"

static MoeSlot *slot_at(const MoeLink *link, uint32_t slot)
{
  return (MoeSlot *)(void *)(link->slab + link->offset[slot]);
}

static bool self_reaches(const MoePeer *me, const MoePeer *other)
{
  return me->rank == other->rank;
}

static uint8_t *self_slot(const MoeLink *link, uint32_t slot)
{
  return moe_slot_data(slot_at(link, slot));
}

static bool self_acquire(const MoeLink *link, uint32_t slot, uint64_t generation)
{
  return moe_slot_writable(slot_at(link, slot), generation);
}

static MoeStatus self_put(const MoeLink *link, uint32_t slot, uint64_t generation, size_t bytes, int64_t start_ns)
{
  MoeSlot *s = slot_at(link, slot);
  (void)bytes; /* it lies there already */
  atomic_store_explicit(&s->start_ns, start_ns, memory_order_relaxed);
  moe_slot_publish(s, generation);
  moe_bell_ring(link->dst_bell);
  return MOE_OK;
}

static bool self_arrived(const MoeLink *link, uint32_t slot, uint64_t generation, int64_t *start_ns_p)
{
  MoeSlot *s = slot_at(link, slot);
  if (!moe_slot_readable(s, generation)) {
    return false;
  }
  *start_ns_p = atomic_load_explicit(&s->start_ns, memory_order_relaxed);
  return true;
}

static const uint8_t *self_data(const MoeLink *link, uint32_t slot)
{
  return moe_slot_data(slot_at(link, slot));
}

static void self_release(const MoeLink *link, uint32_t slot, uint64_t generation)
{
  moe_slot_release(slot_at(link, slot), generation);
  moe_bell_ring(link->src_bell);
}

static void self_take(const MoeLink *link, uint32_t slot, uint64_t generation)
{
  atomic_store_explicit(&slot_at(link, slot)->taken, generation, memory_order_release);
  moe_bell_ring(link->src_bell);
}

static bool self_taken(const MoeLink *link, uint32_t slot, uint64_t generation)
{
  return atomic_load_explicit(&slot_at(link, slot)->taken, memory_order_acquire) >= generation;
}

const MoeTransport moe_transport_self = {
    .name = "self",
    .reaches = self_reaches,
    .slot = self_slot,
    .acquire = self_acquire,
    .put = self_put,
    .arrived = self_arrived,
    .data = self_data,
    .release = self_release,
    .take = self_take,
    .taken = self_taken,
};
