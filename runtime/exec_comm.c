/* Progress of messages. Each link has a cursor into its static list; a pass moves every cursor as far as it goes.
   Nothing here blocks, so a message that cannot go yet holds up only those behind it on its own link. */
#include <string.h>

#include "runtime/exec.h"
#include "runtime/log.h"

void moe_comm_begin(MoeExec *x)
{
  x->unfinished = x->n_locals;
  x->local_at = 0;
  x->wake_ns = INT64_MAX;
  for (int32_t i = 0; i < x->n_ops; i++) {
    x->info[i].left = x->info[i].n_msgs;
    x->info[i].begun = false;
    x->info[i].start_ns = INT64_MAX;
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

static void message_done(MoeExec *x, int32_t op)
{
  x->unfinished--;
  if (--x->info[op].left == 0) {
    moe_exec_finish(x, op, true, x->info[op].start_ns);
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
  size_t bytes;
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
    bytes = moe_tail_pack(x, msg->op, end->other, slot);
  }
  if (bytes < sizeof(MoeMsgHead) || bytes > link->capacity[msg->slot]) {
    moe_error("a message of %zu bytes to rank %d does not fit its slot of %zu", bytes, end->other,
              link->capacity[msg->slot]);
    return MOE_EOVERFLOW;
  }
  set_busy(x, 0);
  *bytes_p = bytes;
  return MOE_OK;
}

static MoeStatus hand_over(const MoeExec *x, MoeEnd *end, size_t bytes, int64_t start_ns)
{
  const MoeMsg *msg = &end->plan->sends[end->sent++];
  return end->link.transport->put(&end->link, msg->slot, moe_msg_generation(msg, x->step.tick), bytes, start_ns);
}

/* Hands over what the arbiter has let through by now. */
static MoeStatus progress_paced(MoeExec *x, MoeEnd *end, int64_t now, bool *moved_p)
{
  MoePacer *pacer = x->shared->pacer;
  if (end->sent == end->next) {
    return MOE_OK;
  }
  if (now >= end->pace_next_ns || moe_pace_epoch(pacer) != end->pace_epoch) {
    end->pace_epoch = moe_pace_epoch(pacer);
    uint64_t done = moe_pace_done(pacer, end->link.src, end->link.dst, now, &end->pace_next_ns);
    while (end->pace_sent < done) {
      int64_t start_ns = moe_pace_start_ns(pacer, end->link.src, end->link.dst, end->pace_sent++);
      const MoeMsg *msg = &end->plan->sends[end->sent];
      const MoeMsgHead *head = (const void *)end->link.transport->slot(&end->link, msg->slot);
      MOE_TRY(hand_over(x, end, head->bytes, start_ns));
      *moved_p = true;
    }
  }
  if (end->sent < end->next && end->pace_next_ns < x->wake_ns) {
    x->wake_ns = end->pace_next_ns;
  }
  return MOE_OK;
}

static void start_paced(MoeExec *x, MoeEnd *end, size_t bytes)
{
  MoePacer *pacer = x->shared->pacer;
  (void)moe_pace_start(pacer, end->link.src, end->link.dst, bytes, moe_now_ns());
  end->pace_next_ns = 0;
  int32_t n = moe_pace_senders(pacer, x->pace_ranks);
  for (int32_t i = 0; i < n; i++) { /* a new message changes the others' arrival */
    if (x->pace_ranks[i] != x->me.rank) {
      moe_bell_ring(&x->shared->comm_bells[x->pace_ranks[i]]);
    }
  }
}

static bool may_pack(const MoeExec *x, const MoeEnd *end)
{
  if (end->next == end->plan->n_msgs || (x->options.sync_send && end->finished < end->next) ||
      end->next - end->sent >= MOE_PACE_QUEUE) {
    return false;
  }
  const MoeMsg *msg = &end->plan->sends[end->next];
  return moe_exec_ready(x, msg->op) &&
         end->link.transport->acquire(&end->link, msg->slot, moe_msg_generation(msg, x->step.tick));
}

static void finish_sent(MoeExec *x, MoeEnd *end, bool *moved_p)
{
  while (end->finished < end->sent) {
    const MoeMsg *msg = &end->plan->sends[end->finished];
    if (x->options.sync_send &&
        !end->link.transport->taken(&end->link, msg->slot, moe_msg_generation(msg, x->step.tick))) {
      break;
    }
    end->finished++;
    message_done(x, msg->op);
    *moved_p = true;
  }
}

static MoeStatus progress_send(MoeExec *x, MoeEnd *end, bool *moved_p)
{
  if (end->finished == end->plan->n_msgs) {
    return MOE_OK;
  }
  if (end->paced) {
    MOE_TRY(progress_paced(x, end, moe_now_ns(), moved_p));
  }
  finish_sent(x, end, moved_p);
  while (may_pack(x, end)) {
    const MoeMsg *msg = &end->plan->sends[end->next];
    size_t bytes;
    MOE_TRY(pack(x, end, msg, &bytes));
    end->next++;
    *moved_p = true;
    if (end->paced) {
      start_paced(x, end, bytes);
    } else {
      MOE_TRY(hand_over(x, end, bytes, x->info[msg->op].start_ns));
      finish_sent(x, end, moved_p);
    }
  }
  return MOE_OK;
}

static MoeStatus check_arrival(const MoeExec *x, const MoeEnd *end, const MoeMsg *msg)
{
  const MoeOp *op = &x->ops[msg->op];
  const MoeMsgHead *head = (const void *)end->link.transport->data(&end->link, msg->slot);
  uint32_t expected = moe_stamp((uint32_t)x->step.tick, (uint32_t)op->layer, (uint32_t)op->mb, op->edge);
  if (head->stamp != expected) {
    char text[96];
    moe_op_text(op, text, sizeof text);
    moe_error(
        "%s: the message from rank %d is stamped %08x, the schedule expects %08x (step, layer, micro-batch, edge)",
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
    uint64_t generation = moe_msg_generation(msg, x->step.tick);
    MoeOpInfo *info = &x->info[msg->op];
    int64_t start_ns;
    if (!moe_exec_ready(x, msg->op) || !end->link.transport->arrived(&end->link, msg->slot, generation, &start_ns)) {
      break;
    }
    MOE_TRY(check_arrival(x, end, msg));
    if (start_ns < info->start_ns) {
      info->start_ns = start_ns;
    }
    if (x->ops[msg->op].edge == MOE_EDGE_SCALARS_DOWN) {
      moe_tail_arrived(x, msg->op, end->link.transport->data(&end->link, msg->slot));
    }
    end->next++;
    *moved_p = true;
    if (x->options.sync_send) {
      end->link.transport->take(&end->link, msg->slot, generation);
    }
    message_done(x, msg->op);
  }
  return MOE_OK;
}

/* Relays and node sums are independent of each other: whichever is ready runs. `left` is 0 of all of them, -1 once
 * done. */
static MoeStatus progress_locals(MoeExec *x, bool *moved_p)
{
  for (int32_t i = x->local_at; i < x->n_locals; i++) {
    int32_t op = x->locals[i];
    if (x->info[op].left < 0 || !moe_exec_ready(x, op)) {
      continue;
    }
    set_busy(x, (uint32_t)op + 1);
    moe_exec_delay(x, true);
    int64_t start_ns = x->step.trace ? moe_now_ns() : 0;
    MoeStatus status = x->kernels->run[x->ops[op].kind](&x->info[op].call);
    if (status != MOE_OK) {
      moe_error("%s", moe_status_text(status));
      return status;
    }
    set_busy(x, 0);
    x->info[op].left = -1;
    x->unfinished--;
    *moved_p = true;
    moe_exec_finish(x, op, true, start_ns);
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
  return MOE_OK;
}
