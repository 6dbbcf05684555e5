/* Messages, as messages.c and join.c have them. How long a message is stands in its head once it is packed; how many
   rows one has that arrived, the host reads there. */
#include "cuda_ops.h"

/* ---- packing ---- */

size_t cuda_packed(const MoeCall *call, MoeStatus status)
{
  moe_cuda_note(call->lane, status);
  return 0;
}

/* The plan is made for each receiver anew, since all that a SEND keeps lies in its slot. */
static MoeStatus pack_dispatch(const MoeCall *call, void *slot, bool again)
{
  MoeAttSaved s;
  CudaPackScratch t;
  MoeQueue queue = moe_queue(call);
  uint32_t stamp = cuda_stamp(call);
  cuda_att_saved(call, &s);
  MoeRouteSizes routes;
  cuda_pack_scratch(call->scratch, (size_t)call->n_ffn, s.tokens, 0, 0, &t);
  MOE_TRY(cuda_routes(call, &s, call->chunk, t.nodes, &routes));
  MOE_TRY(moe_cuda_plan_routes(&routes, s.choice, s.dropped, &t.plan, queue));
  return again
             ? moe_cuda_pack_dispatch_again(&routes, s.choice, s.dropped, s.a, &t.plan, call->peer, stamp, slot, queue)
             : moe_cuda_pack_dispatch(&routes, s.choice, s.dropped, s.weight, s.a, &t.plan, call->peer, stamp, slot,
                                      queue);
}

size_t cuda_pack_dispatch(MoeCall *call, void *slot)
{
  return cuda_packed(call, pack_dispatch(call, slot, false));
}

size_t cuda_pack_dispatch_again(MoeCall *call, void *slot)
{
  return cuda_packed(call, pack_dispatch(call, slot, true));
}

static MoeStatus pack_combine_b(const MoeCall *call, void *slot)
{
  MoeAttSaved s;
  MoeAttWork work;
  cuda_att_saved(call, &s);
  moe_att_work_carve(call->work, s.tokens, &work);
  const MoeSenders *to = call->piped ? &s.join : &s.src;
  size_t i = (size_t)(call->chunk * call->n_ffn + call->peer);
  if (i >= to->n) {
    return MOE_EPROTO;
  }
  return moe_cuda_pack_combine_b(to->rows + i, to->token + i * to->stride, to->stride, work.dx, cuda_stamp(call), slot,
                                 moe_queue(call));
}

size_t cuda_pack_combine_b(MoeCall *call, void *slot)
{
  return cuda_packed(call, pack_combine_b(call, slot));
}

/* Rows as they lie in the work slot: COMBINE those for rank `peer` of the next group, DISPATCH_B those that came from
   rank `peer`; where there are relays, of the relay's list. */
static MoeStatus pack_list(const MoeCall *call, void *slot, bool combine)
{
  MoeFfnSaved s;
  MoeFfnWork work;
  CudaPackScratch t;
  MoeQueue queue = moe_queue(call);
  cuda_ffn_saved(call, &s);
  if (call->relayed) {
    cuda_relay_list(call, NULL, &s.list);
  }
  size_t n = s.list.head->rows;
  size_t n_runs = combine ? (size_t)call->n_dst : (size_t)call->peer + 1;
  moe_sum_work_carve(call->work, n, s.list.head->pairs, &work);
  cuda_pack_scratch(call->scratch, 0, 0, n_runs, 0, &t);
  if (combine) {
    MOE_TRY(moe_cuda_dst_runs(s.list.rows, n, call->mb_seqs, (size_t)call->seq, call->n_dst, &t.runs, queue));
  } else {
    MOE_TRY(moe_cuda_src_runs(s.list.rows, s.list.src, n, (int32_t)n_runs, &t.runs, queue));
  }
  return moe_cuda_pack_run(&t.runs, call->peer, combine ? s.list.rows : NULL, combine ? NULL : work.dw, work.rows, n,
                           cuda_stamp(call), slot, queue);
}

size_t cuda_pack_combine(MoeCall *call, void *slot)
{
  return cuda_packed(call, pack_list(call, slot, true));
}

size_t cuda_pack_dispatch_b(MoeCall *call, void *slot)
{
  return cuda_packed(call, pack_list(call, slot, false));
}

static MoeStatus pack_pipe(const MoeCall *call, void *slot)
{
  MoeAttSaved s;
  MoeAttWork work;
  int64_t begin;
  cuda_att_saved(call, &s);
  moe_att_work_carve(call->work, s.tokens, &work);
  int64_t first = s.head->seq0;
  int64_t seqs = moe_part_overlap(call->mb_seqs, call->n_dst, call->peer, first, s.head->n_seqs, &begin);
  const MoeReal *rows = seqs > 0 ? work.dx + (size_t)(begin - first) * s.head->seq * MOE_HIDDEN : work.dx;
  return moe_cuda_pack_rows(rows, (size_t)seqs * s.head->seq, cuda_stamp(call), slot, moe_queue(call));
}

size_t cuda_pack_pipe(MoeCall *call, void *slot)
{
  return cuda_packed(call, pack_pipe(call, slot));
}

/* ---- reading ---- */

/* Where a list of pointers is put on the device; a copy from memory that is not pinned has been read when it returns.
 */
typedef struct Pointers {
  const uint8_t **to;
  MoeQueue queue;
  const uint8_t *some[64];
  size_t n, done;
} Pointers;

static MoeStatus flush(Pointers *p)
{
  MOE_TRY(moe_cuda_copy(p->to + p->done, p->some, p->n * sizeof *p->some, p->queue));
  p->done += p->n;
  p->n = 0;
  return MOE_OK;
}

static bool is_again(const MoeIn *in)
{
  MoeMsgHead head;
  memcpy(&head, in->data, sizeof head);
  uint32_t edge = head.stamp & 0xfu;
  return edge == MOE_EDGE_DISPATCH_AGAIN || edge == MOE_EDGE_FORWARD_AGAIN;
}

MoeStatus cuda_inputs(const MoeCall *call, CudaKind kind, int32_t first, const uint8_t **in, size_t *n_p)
{
  Pointers p = {.to = in, .queue = moe_queue(call)};
  for (int32_t i = 0; i < call->n_in; i++) {
    const MoeIn *message = &call->in[i];
    MoeView view;
    if (is_again(message) != kind.again) {
      continue;
    }
    MOE_TRY(moe_view(message, kind.head_bytes, kind.pair_bytes, &view));
    if (message->peer != first + (int32_t)(p.done + p.n)) { /* everybody sends */
      return MOE_EPROTO;
    }
    p.some[p.n++] = message->data;
    if (p.n == sizeof p.some / sizeof *p.some) {
      MOE_TRY(flush(&p));
    }
  }
  MOE_TRY(flush(&p));
  if (n_p != NULL) {
    *n_p = p.done;
  }
  return MOE_OK;
}

MoeStatus cuda_count_list(const MoeCall *call, size_t most, int32_t first, int32_t last, MoeListHead *counts)
{
  size_t experts =
      (size_t)(moe_part_begin(MOE_EXPERTS, call->n_ffn, last) - moe_part_begin(MOE_EXPERTS, call->n_ffn, first));
  size_t rows = 0;
  size_t pairs = 0;
  for (int32_t i = 0; i < call->n_in; i++) {
    MoeView view;
    MOE_TRY(moe_view(&call->in[i], MOE_LIST_HEAD, MOE_LIST_PAIR, &view));
    rows += view.n_rows;
    pairs += view.n_pairs;
  }
  if (rows > most || pairs > rows * moe_min(MOE_TOP_K, experts)) {
    return MOE_EOVERFLOW;
  }
  *counts = (MoeListHead){.rows = (uint32_t)rows, .pairs = (uint32_t)pairs};
  return MOE_OK;
}

MoeStatus cuda_take_combine(const MoeCall *call, const MoeSenders *senders, const uint8_t **in, uint32_t *where,
                            MoeReal *x)
{
  size_t n = (size_t)call->n_seqs * (size_t)call->seq;
  uint32_t first = (uint32_t)call->seq0 * (uint32_t)call->seq;
  MOE_TRY(cuda_inputs(call, (CudaKind){.head_bytes = MOE_TOKEN_HEAD}, 0, in, NULL));
  return moe_cuda_take_combine(in, (size_t)call->n_in, first, n, x, senders->rows, senders->token, senders->stride,
                               where, moe_status(call), moe_queue(call));
}

/* Senders hold ascending runs of sequences, so their rows follow each other. */
MoeStatus cuda_take_pipe(const MoeCall *call, MoeReal *x)
{
  int64_t next = call->seq0;
  if (call->n_in != call->n_src) {
    return MOE_EPROTO;
  }
  for (int32_t i = 0; i < call->n_in; i++) {
    MoeView view;
    int64_t begin;
    int64_t seqs = moe_part_overlap(call->mb_seqs, call->n_src, i, call->seq0, call->n_seqs, &begin);
    size_t rows = (size_t)(seqs * call->seq);
    MOE_TRY(moe_view(&call->in[i], MOE_NO_HEAD, 0, &view));
    if (call->in[i].peer != i || view.n_rows != rows || (rows > 0 && begin != next)) {
      return MOE_EPROTO;
    }
    MOE_TRY(moe_cuda_take_pipe(call->in[i].data, rows, x, moe_status(call), moe_queue(call)));
    x += rows * MOE_HIDDEN;
    next += seqs;
  }
  return next == call->seq0 + call->n_seqs ? MOE_OK : MOE_EPROTO;
}

/* The first of the ranks that sent an FFN rank its rows. */
static int32_t first_sender(const MoeCall *call)
{
  return call->relayed ? cuda_node(call).first : 0;
}

MoeStatus cuda_take_list(const MoeCall *call, const MoeFfnSaved *s, const CudaFfnScratch *t)
{
  const CudaKind kind = {.head_bytes = MOE_LIST_HEAD, .pair_bytes = MOE_LIST_PAIR};
  const MoeTakeSizes sizes = {.mb_tokens = moe_mb_tokens(call),
                              .seq = (size_t)call->seq,
                              .n_rows = s->list.head->rows,
                              .n_pairs = s->list.head->pairs,
                              .n_ffn = call->n_ffn,
                              .chunk = call->chunk,
                              .n_chunks = call->n_chunks,
                              .first_expert = (int32_t)moe_part_begin(MOE_EXPERTS, call->n_ffn, call->me),
                              .end_expert = (int32_t)moe_part_begin(MOE_EXPERTS, call->n_ffn, call->me + 1)};
  const MoeTaken taken = {.rows = s->list.rows, .pairs = s->list.pairs, .src = s->list.src, .a = s->a, .runs = t->runs};
  MOE_TRY(cuda_inputs(call, kind, first_sender(call), t->in, NULL));
  return moe_cuda_take_list(&sizes, t->in, (size_t)call->n_in, &taken, moe_status(call), moe_queue(call));
}

MoeStatus cuda_take_rows(const MoeCall *call, const MoeFfnSaved *s, const CudaFfnScratch *t, bool again, MoeReal *to)
{
  size_t n;
  size_t n_rows = s->list.head->rows;
  MoeQueue queue = moe_queue(call);
  MOE_TRY(cuda_inputs(call, (CudaKind){.again = again}, first_sender(call), t->in, &n));
  if (again || call->relayed) {
    MOE_TRY(moe_cuda_src_runs(s->list.rows, s->list.src, n_rows, (int32_t)n, &t->runs, queue));
  } else if (n == (size_t)call->n_dst) {
    MOE_TRY(moe_cuda_dst_runs(s->list.rows, n_rows, call->mb_seqs, (size_t)call->seq, call->n_dst, &t->runs, queue));
  } else {
    return MOE_EPROTO;
  }
  return moe_cuda_take_rows(t->in, n, &t->runs, n_rows, to, moe_status(call), queue);
}

/* ---- joins ---- */

MoeStatus cuda_join_fwd(MoeCall *call)
{
  MoeAttHead *head = (void *)call->note;
  MoeAttSaved s;
  MoeAttWork out;
  CudaHeadScratch t;
  if (head->n_seqs != (uint32_t)call->n_seqs || head->seq0 != (uint32_t)call->seq0) {
    return MOE_EPROTO;
  }
  head->n_join = (uint32_t)call->n_in;
  cuda_att_saved(call, &s);
  moe_att_work_carve(call->work, s.tokens, &out);
  cuda_head_scratch(call->scratch, s.tokens, (size_t)call->n_in, &t);
  return cuda_take_combine(call, &s.join, t.in, t.where, out.dx);
}

MoeStatus cuda_join_dgrad(MoeCall *call)
{
  MoeAttWork out;
  moe_att_work_carve(call->work, (size_t)call->n_seqs * (size_t)call->seq, &out);
  return cuda_take_pipe(call, out.dx);
}
