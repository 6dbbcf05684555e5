/* Progress of messages. Each link has a cursor into its static list; a pass moves every cursor as far as it goes.
   Nothing here blocks, so a message that cannot go yet holds up only those behind it on its own link. */
#include <string.h>

#include "runtime/emu.h"
#include "runtime/exec.h"
#include "runtime/log.h"

void moe_comm_begin(MoeExec *x)
{
  x->unfinished = x->n_locals;
  x->local_at = 0;
  x->wake_ns = INT64_MAX;
  x->last_ns = 0;
  for (int32_t i = 0; i < x->n_ops; i++) {
    MoeOpInfo *info = &x->info[i];
    info->left = info->n_msgs;
    info->begun = false;
    info->start_ns = INT64_MAX;
    if (!info->compute) {
      info->end_ns = 0;
    }
  }
  for (int32_t i = 0; i < x->n_sends; i++) {
    x->sends[i].next = x->sends[i].sent = x->sends[i].finished = 0;
    x->unfinished += x->sends[i].plan->n_msgs;
  }
  for (int32_t i = 0; i < x->n_recvs; i++) {
    x->recvs[i].next = 0;
    x->unfinished += x->recvs[i].plan->n_msgs;
  }
}

bool moe_comm_in_flight(const MoeExec *x)
{
  for (int32_t i = 0; i < x->n_sends; i++) {
    if (x->sends[i].sent < x->sends[i].next) {
      return true;
    }
  }
  return false;
}

static void message_done(MoeExec *x, int32_t op, int64_t end_ns)
{
  MoeOpInfo *info = &x->info[op];
  x->unfinished--;
  info->end_ns = end_ns > info->end_ns ? end_ns : info->end_ns;
  x->last_ns = end_ns > x->last_ns ? end_ns : x->last_ns;
  if (--info->left == 0) {
    moe_exec_finish(x, op, true, info->start_ns);
  }
}

static void set_busy(MoeExec *x, uint32_t what)
{
  atomic_store_explicit(&x->shared->states[x->me.rank].comm, what, memory_order_relaxed);
}

static MoeStatus pack(MoeExec *x, const MoeEnd *end, const MoeMsg *msg, size_t *bytes_p)
{
  MoeOpInfo *info = &x->info[msg->op];
  const MoeOp *op = &x->ops[msg->op];
  const MoeLink *link = &end->link;
  uint8_t *slot = link->transport->slot(link, msg->slot);
  size_t bytes = 0;
  MoeStatus status = MOE_OK;
  set_busy(x, (uint32_t)msg->op + 1);
  moe_exec_delay(x, true);
  if (!info->begun) {
    info->begun = true;
    info->start_ns = x->step.trace ? moe_now_ns() : 0;
  }
  if (x->kernels->pack[op->edge] != NULL) {
    info->call.peer = end->peer_index;
    bytes = x->kernels->pack[op->edge](&info->call, slot);
  } else {
    status = moe_tail_pack(x, msg->op, end->other, slot);
  }
  MOE_TRY(moe_exec_wait(x, MOE_LANE_COMM, status));
  bytes = bytes > 0 ? bytes : ((const MoeMsgHead *)(const void *)slot)->bytes;
  if (bytes < sizeof(MoeMsgHead) || bytes > link->capacity[msg->slot]) {
    moe_error("a message of %zu bytes to rank %d does not fit its slot of %zu", bytes, end->other,
              link->capacity[msg->slot]);
    return MOE_EOVERFLOW;
  }
  set_busy(x, 0);
  *bytes_p = bytes;
  return MOE_OK;
}

static MoeStatus hand_over(const MoeExec *x, MoeEnd *end, size_t bytes, MoeSpan span)
{
  const MoeMsg *msg = &end->plan->sends[end->sent++];
  return end->link.transport->put(&end->link, msg->slot, moe_msg_generation(msg, x->tick), bytes, span);
}

static void look_again(MoeExec *x, int64_t ns)
{
  x->wake_ns = ns < x->wake_ns ? ns : x->wake_ns;
}

/* Hands over what the arbiter has let through by now. The op's end is when the port was free again. */
static MoeStatus progress_paced(MoeExec *x, MoeEnd *end, int64_t now, bool *moved_p)
{
  while (end->sent < end->next) {
    const MoeMsg *msg = &end->plan->sends[end->sent];
    MoeOpInfo *info = &x->info[msg->op];
    MoePaced paced;
    if (!moe_pace_message(x->shared->pacer, end->traffic, end->link.src, end->link.dst, *end->pace_sent, &paced)) {
      break; /* moe_pace_poll() knows when to look again */
    }
    if (paced.arrival_ns > now) {
      look_again(x, paced.arrival_ns);
      break;
    }
    const MoeMsgHead *head = (const void *)end->link.transport->slot(&end->link, msg->slot);
    (*end->pace_sent)++;
    info->end_ns = paced.sent_ns > info->end_ns ? paced.sent_ns : info->end_ns;
    info->start_ns = x->bundle->emu != NULL && paced.start_ns < info->start_ns ? paced.start_ns : info->start_ns;
    MOE_TRY(hand_over(x, end, head->bytes, (MoeSpan){paced.start_ns, paced.arrival_ns}));
    *moved_p = true;
  }
  return MOE_OK;
}

static void start_paced(MoeExec *x, MoeEnd *end, const MoeMsg *msg, size_t bytes, int64_t ready_ns)
{
  int64_t latency_ns = 0;
  double size = (double)bytes;
  if (x->bundle->emu != NULL) {
    size = moe_emu_message(&x->me, msg->op, end->other, x->options.scale, &latency_ns);
  }
  (void)moe_pace_start(x->shared->pacer, end->traffic, end->link.src, end->link.dst, size, latency_ns, ready_ns);
}

/* Whether the next message may be packed, and since when, if that matters. */
static bool may_pack(const MoeExec *x, const MoeEnd *end, int64_t *ready_ns_p)
{
  int64_t free_ns = 0;
  if (end->next == end->plan->n_msgs || (x->options.sync_send && end->finished < end->next) ||
      end->next - end->sent >= MOE_PACE_QUEUE) {
    return false;
  }
  const MoeMsg *msg = &end->plan->sends[end->next];
  if (!moe_exec_ready(x, msg->op) ||
      !end->link.transport->acquire(&end->link, msg->slot, moe_msg_generation(msg, x->tick), &free_ns)) {
    return false;
  }
  if (x->timed) {
    int64_t ready_ns = moe_exec_ready_ns(x, msg->op);
    *ready_ns_p = free_ns > ready_ns ? free_ns : ready_ns;
  } else if (end->paced) {
    *ready_ns_p = moe_now_ns();
  }
  return true;
}

static void finish_sent(MoeExec *x, MoeEnd *end, bool *moved_p)
{
  while (end->finished < end->sent) {
    const MoeMsg *msg = &end->plan->sends[end->finished];
    if (x->options.sync_send && !end->link.transport->taken(&end->link, msg->slot, moe_msg_generation(msg, x->tick))) {
      break;
    }
    end->finished++;
    message_done(x, msg->op, 0);
    *moved_p = true;
  }
}

static MoeStatus progress_send(MoeExec *x, MoeEnd *end, bool *moved_p)
{
  int64_t ready_ns = 0;
  if (end->finished == end->plan->n_msgs) {
    return MOE_OK;
  }
  finish_sent(x, end, moved_p);
  while (may_pack(x, end, &ready_ns)) {
    const MoeMsg *msg = &end->plan->sends[end->next];
    MoeOpInfo *info = &x->info[msg->op];
    size_t bytes;
    MOE_TRY(pack(x, end, msg, &bytes));
    end->next++;
    *moved_p = true;
    if (end->paced) {
      start_paced(x, end, msg, bytes, ready_ns);
    } else {
      info->end_ns = ready_ns > info->end_ns ? ready_ns : info->end_ns;
      info->start_ns = x->bundle->emu != NULL ? ready_ns : info->start_ns;
      MOE_TRY(hand_over(x, end, bytes, (MoeSpan){info->start_ns, ready_ns}));
      finish_sent(x, end, moved_p);
    }
  }
  return MOE_OK;
}

/* Brings the arbiter up to now and hands over what has arrived. */
static MoeStatus progress_pacer(MoeExec *x, bool *moved_p)
{
  bool under_way = false;
  for (int32_t i = 0; i < x->n_sends && !under_way; i++) {
    under_way = x->sends[i].paced && x->sends[i].sent < x->sends[i].next;
  }
  if (!under_way) {
    return MOE_OK;
  }
  int64_t now = moe_now_ns();
  look_again(x, moe_pace_poll(x->shared->pacer, x->me.rank, now));
  for (int32_t i = 0; i < x->n_sends; i++) {
    if (x->sends[i].paced) {
      MOE_TRY(progress_paced(x, &x->sends[i], now, moved_p));
    }
  }
  return MOE_OK;
}

static MoeStatus check_arrival(const MoeExec *x, const MoeEnd *end, const MoeMsg *msg)
{
  const MoeOp *op = &x->ops[msg->op];
  const MoeMsgHead *head = (const void *)end->link.transport->data(&end->link, msg->slot);
  uint32_t expected =
      moe_stamp((uint32_t)x->tick, (uint32_t)op->chunk, (uint32_t)op->layer, (uint32_t)op->mb, op->edge);
  if (head->stamp != expected) {
    char text[96];
    moe_op_text(op, text, sizeof text);
    moe_error(
        "%s: the message from rank %d is stamped %08x, the schedule expects %08x (step and chunk, layer, micro-batch, "
        "edge)",
        text, end->other, head->stamp, expected);
    return MOE_EPROTO;
  }
  if (head->bytes > end->link.capacity[msg->slot]) {
    moe_error("the message from rank %d claims %u bytes in a slot of %zu", end->other, head->bytes,
              end->link.capacity[msg->slot]);
    return MOE_EPROTO;
  }
  return MOE_OK;
}

static MoeStatus progress_recv(MoeExec *x, MoeEnd *end, bool *moved_p)
{
  while (end->next < end->plan->n_msgs) {
    const MoeMsg *msg = &end->plan->recvs[end->next];
    uint64_t generation = moe_msg_generation(msg, x->tick);
    MoeOpInfo *info = &x->info[msg->op];
    MoeSpan span;
    if (!moe_exec_ready(x, msg->op) || !end->link.transport->arrived(&end->link, msg->slot, generation, &span)) {
      break;
    }
    MOE_TRY(check_arrival(x, end, msg));
    if (span.start_ns < info->start_ns) {
      info->start_ns = span.start_ns;
    }
    if (x->ops[msg->op].edge == MOE_EDGE_SCALARS_DOWN) {
      moe_tail_arrived(x, msg->op, end->link.transport->data(&end->link, msg->slot));
    }
    end->next++;
    *moved_p = true;
    if (x->options.sync_send) {
      end->link.transport->take(&end->link, msg->slot, generation);
    }
    message_done(x, msg->op, span.arrival_ns);
  }
  return MOE_OK;
}

/* Runs a relay or node sum that is ready; one that takes a given time ends later. */
static MoeStatus start_local(MoeExec *x, int32_t op)
{
  MoeOpInfo *info = &x->info[op];
  set_busy(x, (uint32_t)op + 1);
  moe_exec_delay(x, true);
  info->start_ns = x->step.trace || x->timed ? moe_now_ns() : 0;
  MOE_TRY(moe_exec_wait(x, MOE_LANE_COMM, x->kernels->run[x->ops[op].kind](&info->call)));
  set_busy(x, 0);
  info->running = true;
  if (x->bundle->emu != NULL) {
    info->start_ns = moe_exec_ready_ns(x, op);
    info->end_ns = info->start_ns + moe_emu_ns(&x->me, op, x->options.scale);
  } else if (x->timed) {
    info->end_ns = moe_exec_ready_ns(x, op) + moe_now_ns() - info->start_ns;
  }
  return MOE_OK;
}

/* Relays and node sums are independent of each other: whichever is ready runs. `left` is 0 of all of them, -1 once
 * done. */
static MoeStatus progress_locals(MoeExec *x, bool *moved_p)
{
  for (int32_t i = x->local_at; i < x->n_locals; i++) {
    int32_t op = x->locals[i];
    MoeOpInfo *info = &x->info[op];
    if (info->left < 0 || !moe_exec_ready(x, op)) {
      continue;
    }
    if (!info->running) {
      MOE_TRY(start_local(x, op));
    }
    if (x->timed && info->end_ns > moe_now_ns()) {
      look_again(x, info->end_ns);
      continue;
    }
    info->running = false;
    info->left = -1;
    x->unfinished--;
    *moved_p = true;
    moe_exec_finish(x, op, true, info->start_ns);
  }
  while (x->local_at < x->n_locals && x->info[x->locals[x->local_at]].left < 0) {
    x->local_at++;
  }
  return MOE_OK;
}

MoeStatus moe_comm_pass(MoeExec *x, bool *moved_p)
{
  x->wake_ns = INT64_MAX;
  for (int32_t i = 0; i < x->n_recvs; i++) {
    MOE_TRY(progress_recv(x, &x->recvs[i], moved_p));
  }
  MOE_TRY(progress_locals(x, moved_p));
  for (int32_t i = 0; i < x->n_sends; i++) {
    MOE_TRY(progress_send(x, &x->sends[i], moved_p));
  }
  if (x->shared->pacer != NULL) {
    MOE_TRY(progress_pacer(x, moved_p));
  }
  return MOE_OK;
}
