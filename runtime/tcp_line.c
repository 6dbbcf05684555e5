/* What may come over a connection is known beforehand to the byte: a message for one of so many slots, no larger than
   that, when the slot's last message has been released; and credits for messages that were sent. */
#include "runtime/tcp.h"

#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "runtime/log.h"
#include "runtime/wire.h"

static int by_offset(const void *a, const void *b)
{
  const MoeTcpSlot *x = a, *y = b;
  return (x->offset > y->offset) - (x->offset < y->offset);
}

/* Slots of both classes: a connection carries what comes first. */
static MoeTcpSlot *list_slots(const MoeWiring *wirings, int32_t n, int32_t src, int32_t dst, int32_t *n_p)
{
  size_t total = 1;
  for (int32_t i = 0; i < MOE_TRAFFIC_COUNT * n; i++) {
    total +=
        (size_t)moe_link_plan(&wirings[i / MOE_TRAFFIC_COUNT], (MoeTraffic)(i % MOE_TRAFFIC_COUNT), src, dst)->n_slots;
  }
  MoeTcpSlot *slots = calloc(total, sizeof *slots);
  *n_p = 0;
  for (int32_t i = 0; i < MOE_TRAFFIC_COUNT * n && slots != NULL; i++) {
    const MoeLinkPlan *plan =
        moe_link_plan(&wirings[i / MOE_TRAFFIC_COUNT], (MoeTraffic)(i % MOE_TRAFFIC_COUNT), src, dst);
    for (int32_t s = 0; s < plan->n_slots; s++) {
      slots[(*n_p)++] = (MoeTcpSlot){plan->offset[s], plan->capacity[s]};
    }
  }
  if (slots != NULL) {
    qsort(slots, (size_t)*n_p, sizeof *slots, by_offset);
  }
  return slots;
}

MoeStatus moe_tcp_line_open(MoeTcpLine *l, uint8_t *slabs, const MoeWiring *wirings, int32_t n, int32_t me,
                            int32_t other)
{
  *l = (MoeTcpLine){.fd = -1, .rank = other, .slabs = slabs};
  l->in = list_slots(wirings, n, other, me, &l->n_in);
  l->out = list_slots(wirings, n, me, other, &l->n_out);
  l->room = (uint32_t)(l->n_out + 2 * l->n_in) + 1;
  l->queue = calloc(l->room, sizeof *l->queue);
  if (l->in == NULL || l->out == NULL || l->queue == NULL) {
    moe_error("out of memory for the connection to rank %d", other);
    return MOE_ENOMEM;
  }
  for (int32_t i = 0; i < l->n_out; i++) {
    if (l->out[i].capacity > UINT32_MAX) {
      moe_error("messages to rank %d have up to %zu bytes; to another host they have at most %u", other,
                l->out[i].capacity, UINT32_MAX);
      return MOE_EOVERFLOW;
    }
  }
  return MOE_OK;
}

void moe_tcp_line_close(MoeTcpLine *l)
{
  free(l->in);
  free(l->out);
  free(l->queue);
  *l = (MoeTcpLine){.fd = -1};
}

/* ---- receiving ---- */

static MoeSlot *slot_at(const MoeTcpLine *l, uint64_t offset)
{
  return (MoeSlot *)(void *)(l->slabs + offset);
}

static const MoeTcpSlot *find(const MoeTcpSlot *slots, int32_t n, uint64_t offset)
{
  MoeTcpSlot key = {.offset = offset};
  return bsearch(&key, slots, (size_t)n, sizeof key, by_offset);
}

/* The head is that of something that may come now. */
static bool may_come(const MoeTcpLine *l, const MoeTcpItem *i)
{
  bool message = i->kind == MOE_TCP_MESSAGE;
  const MoeTcpSlot *known = message ? find(l->in, l->n_in, i->offset) : find(l->out, l->n_out, i->offset);
  if (known == NULL || i->kind > MOE_TCP_TAKEN) {
    return false;
  }
  const MoeSlot *s = slot_at(l, i->offset);
  uint64_t full = atomic_load_explicit(&s->full, memory_order_acquire);
  uint64_t free_ = atomic_load_explicit(&s->free, memory_order_acquire);
  uint64_t taken = atomic_load_explicit(&s->taken, memory_order_acquire);
  if (message) {
    return i->bytes > 0 && i->bytes <= known->capacity && free_ == full && i->generation == full + 1;
  }
  uint64_t last = i->kind == MOE_TCP_CREDIT ? free_ : taken;
  return i->bytes == 0 && i->generation == last + 1 && i->generation <= full;
}

uint8_t *moe_tcp_line_room(MoeTcpLine *l, size_t *n_p)
{
  if (!l->in_message) {
    *n_p = MOE_TCP_HEAD - l->got;
    return l->head + l->got;
  }
  *n_p = l->item.bytes - l->got;
  return moe_slot_data(slot_at(l, l->item.offset)) + l->got;
}

static MoeStatus take_head(MoeTcpLine *l, bool *rang_p)
{
  MoeCursor c = {.from = l->head, .n = MOE_TCP_HEAD};
  l->item.kind = (uint32_t)moe_get(&c, 4);
  l->item.bytes = (uint32_t)moe_get(&c, 4);
  l->item.offset = moe_get(&c, 8);
  l->item.generation = moe_get(&c, 8);
  l->got = 0;
  if (!may_come(l, &l->item)) {
    return MOE_EPROTO;
  }
  if (l->item.kind == MOE_TCP_MESSAGE) {
    l->in_message = true;
    l->start_ns = moe_now_ns();
    return MOE_OK;
  }
  MoeSlot *s = slot_at(l, l->item.offset);
  if (l->item.kind == MOE_TCP_CREDIT) {
    atomic_store_explicit(&s->free_ns, moe_now_ns(), memory_order_relaxed);
    moe_slot_release(s, l->item.generation);
  } else {
    atomic_store_explicit(&s->taken, l->item.generation, memory_order_release);
  }
  *rang_p = true;
  return MOE_OK;
}

MoeStatus moe_tcp_line_filled(MoeTcpLine *l, size_t n, bool *rang_p)
{
  l->got += n;
  if (!l->in_message) {
    return l->got == MOE_TCP_HEAD ? take_head(l, rang_p) : MOE_OK;
  }
  if (l->got == l->item.bytes) {
    MoeSlot *s = slot_at(l, l->item.offset);
    atomic_store_explicit(&s->start_ns, l->start_ns, memory_order_relaxed); /* by this host's clock */
    atomic_store_explicit(&s->arrival_ns, moe_now_ns(), memory_order_relaxed);
    moe_slot_publish(s, l->item.generation);
    l->in_message = false;
    l->got = 0;
    *rang_p = true;
  }
  return MOE_OK;
}

/* ---- sending ---- */

void moe_tcp_line_push(MoeTcpLine *l, MoeTcpItem item)
{
  l->queue[l->end++ % l->room] = item;
}

int moe_tcp_line_next(MoeTcpLine *l, struct iovec *pieces)
{
  if (l->first == l->end) {
    return 0;
  }
  const MoeTcpItem *i = &l->queue[l->first % l->room];
  if (l->sent == 0) {
    MoeCursor c = {.to = l->out_head, .n = MOE_TCP_HEAD};
    moe_put(&c, i->kind, 4);
    moe_put(&c, i->bytes, 4);
    moe_put(&c, i->offset, 8);
    moe_put(&c, i->generation, 8);
  }
  int n = 0;
  if (l->sent < MOE_TCP_HEAD) {
    pieces[n++] = (struct iovec){.iov_base = l->out_head + l->sent, .iov_len = MOE_TCP_HEAD - l->sent};
  }
  size_t of_message = l->sent > MOE_TCP_HEAD ? l->sent - MOE_TCP_HEAD : 0;
  if (i->bytes > of_message) {
    pieces[n++] =
        (struct iovec){.iov_base = moe_slot_data(slot_at(l, i->offset)) + of_message, .iov_len = i->bytes - of_message};
  }
  return n;
}

void moe_tcp_line_gone(MoeTcpLine *l, size_t n)
{
  l->sent += n;
  if (l->sent == MOE_TCP_HEAD + (size_t)l->queue[l->first % l->room].bytes) {
    l->first++;
    l->sent = 0;
  }
}
