/* Walks every rank's table once and appends each message to the list of its link. A (channel, slot) of the schedule
   becomes one slot of the link; its uses are counted per link, in table order, which is the same on both sides. */
#include "runtime/wiring.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/log.h"
#include "runtime/slab.h"
#include "runtime/topo.h"

/* While building, `slot` holds chan << 16 | slot until link slots are numbered. */
static MoeStatus append(MoeMsg **list, int32_t *n, int32_t op, const MoeOp *row)
{
  if ((*n & (*n - 1)) == 0) { /* grow at 0, 1, 2, 4, ... */
    size_t room = *n == 0 ? 1 : (size_t)*n * 2;
    MoeMsg *more = realloc(*list, room * sizeof **list);
    if (more == NULL) {
      moe_error("out of memory for message lists");
      return MOE_ENOMEM;
    }
    *list = more;
  }
  (*list)[(*n)++] = (MoeMsg){.op = op, .slot = (uint32_t)row->chan << 16 | (uint32_t)(uint16_t)row->slot};
  return MOE_OK;
}

static MoeStatus check_row(const MoeBundle *b, const MoeOp *op)
{
  if (op->edge >= MOE_EDGE_COUNT || op->chan < 0 || op->chan >= b->n_chans || op->slot < 0 ||
      op->slot >= b->chans[op->chan].slots || b->chans[op->chan].edge != op->edge) {
    char text[96];
    moe_op_text(op, text, sizeof text);
    moe_error("%s names channel %d, slot %d, which the bundle does not have", text, op->chan, op->slot);
    return MOE_EINVAL;
  }
  return MOE_OK;
}

static MoeStatus collect_op(const MoeRank *me, MoeWiring *w, int32_t *n_recvs, int32_t *peers, int32_t index)
{
  const MoeOp *op = &me->group->ops[index];
  MOE_TRY(check_row(me->bundle, op));
  MoeTraffic traffic = moe_edge_traffic((MoeEdge)op->edge);
  int32_t n = moe_op_peers(me, op, peers);
  for (int32_t k = 0; k < n; k++) {
    if (op->kind == MOE_OP_SEND) {
      MoeLinkPlan *link = &w->links[moe_link_index(w, traffic, me->rank, peers[k])];
      MOE_TRY(append(&link->sends, &link->n_msgs, index, op));
    } else {
      int32_t at = moe_link_index(w, traffic, peers[k], me->rank);
      MOE_TRY(append(&w->links[at].recvs, &n_recvs[at], index, op));
    }
  }
  return MOE_OK;
}

static MoeStatus collect(const MoeBundle *b, MoeWiring *w, int32_t *n_recvs, int32_t *peers)
{
  for (int32_t r = 0; r < w->n_ranks; r++) {
    MoeRank me = moe_rank_of(b, r);
    for (int32_t i = 0; i < me.group->n_ops; i++) {
      if (me.group->ops[i].kind == MOE_OP_SEND || me.group->ops[i].kind == MOE_OP_RECV) {
        MOE_TRY(collect_op(&me, w, n_recvs, peers, i));
      }
    }
  }
  return MOE_OK;
}

static bool same_message(const MoeOp *a, const MoeOp *b)
{
  return a->edge == b->edge && a->layer == b->layer && a->mb == b->mb && a->chunk == b->chunk &&
         a->bucket == b->bucket && a->chan == b->chan && a->slot == b->slot;
}

static MoeStatus check_pair(const MoeBundle *b, const MoeLinkPlan *link, int32_t n_recvs, int32_t src, int32_t dst)
{
  const MoeOp *from = moe_rank_of(b, src).group->ops;
  const MoeOp *to = moe_rank_of(b, dst).group->ops;
  for (int32_t i = 0; i < link->n_msgs && i < n_recvs; i++) {
    if (!same_message(&from[link->sends[i].op], &to[link->recvs[i].op])) {
      char sent[96];
      char expected[96];
      moe_op_text(&from[link->sends[i].op], sent, sizeof sent);
      moe_op_text(&to[link->recvs[i].op], expected, sizeof expected);
      moe_error("message %d from rank %d to rank %d: sender's table has %s, receiver's %s", i, src, dst, sent,
                expected);
      return MOE_EPROTO;
    }
  }
  if (link->n_msgs != n_recvs) {
    moe_error("rank %d sends %d messages a step to rank %d, which expects %d", src, link->n_msgs, dst, n_recvs);
    return MOE_EPROTO;
  }
  return MOE_OK;
}

/* Numbers the link's slots in order of first use, counts uses, finds capacities. */
static MoeStatus number_slots(const MoeBundle *b, const MoeKernels *kernels, MoeLinkPlan *link, int32_t src,
                              int32_t dst)
{
  uint32_t *names = calloc((size_t)link->n_msgs, sizeof *names);
  uint32_t *uses = calloc((size_t)link->n_msgs, sizeof *uses);
  link->offset = calloc((size_t)link->n_msgs, sizeof *link->offset);
  link->capacity = calloc((size_t)link->n_msgs, sizeof *link->capacity);
  if (names == NULL || uses == NULL || link->offset == NULL || link->capacity == NULL) {
    free(names);
    free(uses);
    moe_error("out of memory for message slots");
    return MOE_ENOMEM;
  }
  const MoeOp *ops = moe_rank_of(b, src).group->ops;
  for (int32_t i = 0; i < link->n_msgs; i++) {
    int32_t s = 0;
    while (s < link->n_slots && names[s] != link->sends[i].slot) {
      s++;
    }
    if (s == link->n_slots) {
      names[link->n_slots++] = link->sends[i].slot;
    }
    size_t bytes = moe_op_msg_bytes(b, kernels, &ops[link->sends[i].op], src, dst);
    if (bytes > link->capacity[s]) {
      link->capacity[s] = bytes;
    }
    link->sends[i].slot = link->recvs[i].slot = (uint32_t)s;
    link->sends[i].use = link->recvs[i].use = uses[s]++;
  }
  for (int32_t i = 0; i < link->n_msgs; i++) {
    link->sends[i].uses = link->recvs[i].uses = uses[link->sends[i].slot];
  }
  free(names);
  free(uses);
  return MOE_OK;
}

MoeStatus moe_wiring_build(const MoeBundle *b, const MoeKernels *kernels, uint64_t shared_begin, MoeWiring *w)
{
  int32_t n = moe_n_ranks(b);
  *w = (MoeWiring){.n_ranks = n, .shared_end = shared_begin};
  size_t links = (size_t)moe_n_links(w);
  w->links = calloc(links, sizeof *w->links);
  w->self_bytes = calloc((size_t)n, sizeof *w->self_bytes);
  w->in_bytes = calloc((size_t)n, sizeof *w->in_bytes);
  int32_t *n_recvs = calloc(links, sizeof *n_recvs);
  int32_t *peers = calloc((size_t)n, sizeof *peers);
  MoeStatus status = MOE_ENOMEM;
  if (w->links == NULL || w->self_bytes == NULL || w->in_bytes == NULL || n_recvs == NULL || peers == NULL) {
    moe_error("out of memory for message lists");
  } else {
    status = collect(b, w, n_recvs, peers);
  }
  for (int32_t i = 0; status == MOE_OK && i < moe_n_links(w); i++) {
    int32_t src = i / n % n, dst = i % n;
    MoeLinkPlan *link = &w->links[i];
    status = check_pair(b, link, n_recvs[i], src, dst);
    if (status == MOE_OK && link->n_msgs > 0) {
      status = number_slots(b, kernels, link, src, dst);
    }
    for (int32_t s = 0; status == MOE_OK && s < link->n_slots; s++) {
      uint64_t *end = src == dst ? &w->self_bytes[src] : &w->shared_end;
      link->offset[s] = *end;
      *end += moe_slot_bytes(link->capacity[s]);
      w->in_bytes[dst] += moe_slot_bytes(link->capacity[s]);
    }
  }
  free(n_recvs);
  free(peers);
  return status;
}

void moe_wiring_poison(const MoeWiring *w, uint8_t *slabs)
{
  for (int32_t i = 0; i < moe_n_links(w); i++) {
    const MoeLinkPlan *link = &w->links[i];
    bool shared = i / w->n_ranks % w->n_ranks != i % w->n_ranks;
    for (int32_t s = 0; shared && s < link->n_slots; s++) {
      memset(slabs + link->offset[s] + sizeof(MoeSlot), 0xff, moe_align64(link->capacity[s]));
    }
  }
}

void moe_wiring_free(MoeWiring *w)
{
  for (int32_t i = 0; w->links != NULL && i < moe_n_links(w); i++) {
    free(w->links[i].sends);
    free(w->links[i].recvs);
    free(w->links[i].offset);
    free(w->links[i].capacity);
  }
  free(w->links);
  free(w->self_bytes);
  free(w->in_bytes);
  *w = (MoeWiring){0};
}
