/* A message slot: two generation counters and the message itself, in the receiver's memory. Generations of a slot count
   its messages from 1; the sender of generation g waits until g - 1 is free, the receiver until g is full. */
#ifndef MOE_SLAB_H
#define MOE_SLAB_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct MoeSlot {
  _Alignas(64) _Atomic uint64_t full; /* generation of the message that lies here */
  _Atomic uint64_t free;              /* generation of the last message that is no longer needed */
  _Atomic uint64_t taken;             /* generation of the last message the receiver has seen; for tests */
  _Atomic int64_t start_ns;           /* when the message in it began to travel */
  _Atomic int64_t arrival_ns;         /* when it arrived: where ops take given times, before anybody looked */
  _Atomic int64_t free_ns;            /* when the last message was no longer needed, likewise */
} MoeSlot;

static inline size_t moe_slot_bytes(size_t capacity)
{
  return sizeof(MoeSlot) + ((capacity + 63u) & ~(size_t)63u);
}

static inline uint8_t *moe_slot_data(MoeSlot *slot)
{
  return (uint8_t *)slot + sizeof(MoeSlot);
}

static inline bool moe_slot_writable(const MoeSlot *slot, uint64_t generation)
{
  return atomic_load_explicit(&slot->free, memory_order_acquire) + 1 == generation;
}

static inline void moe_slot_publish(MoeSlot *slot, uint64_t generation)
{
  atomic_store_explicit(&slot->full, generation, memory_order_release);
}

static inline bool moe_slot_readable(const MoeSlot *slot, uint64_t generation)
{
  return atomic_load_explicit(&slot->full, memory_order_acquire) == generation;
}

static inline void moe_slot_release(MoeSlot *slot, uint64_t generation)
{
  atomic_store_explicit(&slot->free, generation, memory_order_release);
}

#endif
