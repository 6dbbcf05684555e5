/* Where a layer's output is summed at the tokens' origin and sent on to the next layer's attention ranks: the sum, its
   gradient, and the messages that carry the two. Rows travel in the storage type, so that what arrives is, bit for bit,
   what attention ranks would have summed themselves. */
#include "moe_parts.h"

MoeStatus moe_join_fwd(MoeCall *call)
{
  MoeAttHead *head = (void *)call->saved;
  MoeAttSaved s;
  MoeAttWork out;
  MoeSource *source;
  if (head->n_seqs != (uint32_t)call->n_seqs || head->seq0 != (uint32_t)call->seq0) {
    return MOE_EPROTO;
  }
  head->n_join = (uint32_t)call->n_in;
  moe_att_saved(call, &s);
  moe_att_work_carve(call->work, s.tokens, &out);
  moe_source_scratch_carve(call->scratch, (size_t)call->n_in, &source);
  return moe_take_combine(call, out.dx, &s.join, source);
}

MoeStatus moe_join_dgrad(MoeCall *call)
{
  MoeAttWork out;
  moe_att_work_carve(call->work, (size_t)call->n_seqs * (size_t)call->seq, &out);
  return moe_take_pipe(call, out.dx);
}

/* Senders hold ascending runs of sequences, so their rows follow each other. */
MoeStatus moe_take_pipe(const MoeCall *call, MoeReal *x)
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
    moe_row_copy(x, view.rows, rows);
    x += rows * MOE_HIDDEN;
    next += seqs;
  }
  return next == call->seq0 + call->n_seqs ? MOE_OK : MOE_EPROTO;
}

/* PIPE: rows of the sum; PIPE_B: gradient rows of the layer's input. Both lie at the start of the work slot. */
size_t moe_pack_pipe(MoeCall *call, void *slot)
{
  MoeAttSaved s;
  MoeAttWork work;
  int64_t begin;
  moe_att_saved(call, &s);
  moe_att_work_carve(call->work, s.tokens, &work);
  int64_t first = s.head->seq0;
  int64_t seqs = moe_part_overlap(call->mb_seqs, call->n_dst, call->peer, first, s.head->n_seqs, &begin);
  size_t rows = (size_t)seqs * s.head->seq;
  MoeDraft draft = moe_draft(call, slot, rows, MOE_NO_HEAD, 0, 0);
  if (rows > 0) {
    moe_row_put(&draft, draft.rows, work.dx + (size_t)(begin - first) * s.head->seq * MOE_HIDDEN, rows);
  }
  return moe_draft_end(&draft);
}
