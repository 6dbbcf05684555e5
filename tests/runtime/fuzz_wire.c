/* libFuzzer's function over what comes from the network. An input whose first byte is even is a stream of frames, cut
   where the second byte says; an odd one is a stream of messages and credits on a connection whose slots have guards
   around them, and whose owner releases what has arrived or not, by bits of the second byte. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/tcp.h"
#include "runtime/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { RANKS = 3, SLOTS = 4, CAPACITY = 40, GUARD = 64, STEP = 64 + 64 + GUARD, PATTERN = 0x5a };

static void frames(const uint8_t *data, size_t size)
{
  uint32_t accepts = (uint32_t)data[1] << 2 | 3;
  size_t piece = 1 + data[0] / 2;
  data += 2;
  size -= 2;
  for (size_t at = 0, have = 0; at < size;) {
    MoeFrame f;
    size_t need = 0;
    have = have + piece < size - at ? have + piece : size - at;
    uint8_t *copy = malloc(have + 1); /* exactly so large: a read past the end is found */
    memcpy(copy, data + at, have);
    MoeStatus status = moe_frame_read(copy, have, accepts, RANKS, &f, &need);
    if (status == MOE_OK && (f.n + (size_t)MOE_FRAME_HEAD != need || need > have ||
                             need > moe_frame_most(accepts, RANKS) || (accepts & 1u << f.type) == 0)) {
      abort();
    }
    if (status == MOE_AGAIN && (need <= have || need > moe_frame_most(accepts, RANKS))) {
      abort();
    }
    if (status == MOE_OK) {
      char text[64];
      MoeCursor c = {.from = f.body, .n = f.n};
      (void)moe_get(&c, 4);
      moe_get_text(&c, text, sizeof text);
      for (const char *t = text; *t != '\0'; t++) {
        if (*t < 0x20 || *t > 0x7e) {
          abort();
        }
      }
    }
    free(copy);
    if (status == MOE_EPROTO || (status == MOE_AGAIN && have == size - at)) {
      return;
    }
    if (status == MOE_OK) {
      at += need;
      have = 0;
    }
  }
}

static MoeSlot *slot_at(uint8_t *slabs, int i)
{
  return (MoeSlot *)(void *)(slabs + i * STEP);
}

/* Slots 0 to 3 are for what comes from the other side, 4 to 7 for what goes to it, of which each has sent one. */
static void line(const uint8_t *data, size_t size)
{
  static _Alignas(64) uint8_t slabs[2 * SLOTS * STEP];
  uint64_t offsets[2][SLOTS];
  size_t capacities[SLOTS];
  MoeLinkPlan links[MOE_TRAFFIC_COUNT * 4] = {0};
  MoeWiring wiring = {.n_ranks = 2, .links = links};
  MoeTcpLine l;
  memset(slabs, PATTERN, sizeof slabs);
  for (int i = 0; i < 2 * SLOTS; i++) {
    memset(slot_at(slabs, i), 0, sizeof(MoeSlot));
    offsets[i / SLOTS][i % SLOTS] = (uint64_t)i * STEP;
    capacities[i % SLOTS] = CAPACITY;
    atomic_store(&slot_at(slabs, i)->full, i < SLOTS ? 0 : 1);
  }
  for (int32_t traffic = 0; traffic < MOE_TRAFFIC_COUNT; traffic++) { /* each has a part of the slots */
    enum { PART = SLOTS / MOE_TRAFFIC_COUNT };
    MoeLinkPlan plan = {.n_slots = PART, .offset = offsets[0] + traffic * PART, .capacity = capacities};
    links[moe_link_index(&wiring, (MoeTraffic)traffic, 1, 0)] = plan;
    plan.offset = offsets[1] + traffic * PART;
    links[moe_link_index(&wiring, (MoeTraffic)traffic, 0, 1)] = plan;
  }
  if (moe_tcp_line_open(&l, slabs, &wiring, 1, 0, 1) != MOE_OK) {
    abort();
  }
  bool releases = (data[1] & 1) != 0;
  data += 2;
  size -= 2;
  while (size > 0) {
    size_t room;
    bool rang = false;
    uint8_t *to = moe_tcp_line_room(&l, &room);
    size_t n = room < size ? room : size;
    if (room == 0) {
      abort();
    }
    memcpy(to, data, n);
    data += n;
    size -= n;
    if (moe_tcp_line_filled(&l, n, &rang) != MOE_OK) {
      break;
    }
    for (int i = 0; i < SLOTS && rang && releases; i++) {
      atomic_store(&slot_at(slabs, i)->free, atomic_load(&slot_at(slabs, i)->full));
    }
  }
  for (int i = 0; i < 2 * SLOTS; i++) {
    const MoeSlot *s = slot_at(slabs, i);
    const uint8_t *guard = (const uint8_t *)s + sizeof(MoeSlot) + (i < SLOTS ? CAPACITY : 0);
    for (const uint8_t *g = guard; g < (const uint8_t *)s + STEP; g++) {
      if (*g != PATTERN) {
        abort();
      }
    }
    if (i >= SLOTS && (atomic_load(&s->free) > 1 || atomic_load(&s->full) != 1 || atomic_load(&s->taken) > 1)) {
      abort();
    }
    if (i < SLOTS && atomic_load(&s->full) > atomic_load(&s->free) + 1) {
      abort();
    }
  }
  moe_tcp_line_close(&l);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  if (size < 3) {
    return 0;
  }
  if (data[0] % 2 == 0) {
    frames(data, size);
  } else {
    line(data, size);
  }
  return 0;
}
