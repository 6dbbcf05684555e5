/* Messages between ranks of one host, through slots in memory that both have mapped. The sender packs straight into the
   receiver's slot, so a message is copied once. */
#include "runtime/transport.h"

static MoeSlot *slot_at(const MoeLink *link, uint32_t slot)
{
  return (MoeSlot *)(void *)(link->slab + link->offset[slot]);
}

static bool shm_reaches(const MoePeer *me, const MoePeer *other)
{
  return me->rank != other->rank && me->host == other->host;
}

static uint8_t *shm_slot(const MoeLink *link, uint32_t slot)
{
  return moe_slot_data(slot_at(link, slot));
}

static bool shm_acquire(const MoeLink *link, uint32_t slot, uint64_t generation)
{
  return moe_slot_writable(slot_at(link, slot), generation);
}

static MoeStatus shm_put(const MoeLink *link, uint32_t slot, uint64_t generation, size_t bytes, int64_t start_ns)
{
  MoeSlot *s = slot_at(link, slot);
  (void)bytes; /* it lies there already */
  atomic_store_explicit(&s->start_ns, start_ns, memory_order_relaxed);
  moe_slot_publish(s, generation);
  moe_bell_ring(link->dst_bell);
  return MOE_OK;
}

static bool shm_arrived(const MoeLink *link, uint32_t slot, uint64_t generation, int64_t *start_ns_p)
{
  MoeSlot *s = slot_at(link, slot);
  if (!moe_slot_readable(s, generation)) {
    return false;
  }
  *start_ns_p = atomic_load_explicit(&s->start_ns, memory_order_relaxed);
  return true;
}

static const uint8_t *shm_data(const MoeLink *link, uint32_t slot)
{
  return moe_slot_data(slot_at(link, slot));
}

static void shm_release(const MoeLink *link, uint32_t slot, uint64_t generation)
{
  moe_slot_release(slot_at(link, slot), generation);
  moe_bell_ring(link->src_bell);
}

static void shm_take(const MoeLink *link, uint32_t slot, uint64_t generation)
{
  atomic_store_explicit(&slot_at(link, slot)->taken, generation, memory_order_release);
  moe_bell_ring(link->src_bell);
}

static bool shm_taken(const MoeLink *link, uint32_t slot, uint64_t generation)
{
  return atomic_load_explicit(&slot_at(link, slot)->taken, memory_order_acquire) >= generation;
}

const MoeTransport moe_transport_shm = {
    .name = "shm",
    .reaches = shm_reaches,
    .slot = shm_slot,
    .acquire = shm_acquire,
    .put = shm_put,
    .arrived = shm_arrived,
    .data = shm_data,
    .release = shm_release,
    .take = shm_take,
    .taken = shm_taken,
};
