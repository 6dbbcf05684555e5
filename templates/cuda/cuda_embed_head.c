/* Embedding and head, as embed_head.c has them. */
#include "cuda_ops.h"

enum { H = MOE_HIDDEN };

MoeStatus cuda_embed_fwd(MoeCall *call)
{
  MoeAttSaved s;
  cuda_att_begin(call, 0, &s);
  return moe_cuda_embed(call->tokens, s.tokens, moe_reals(call->table), s.x, moe_status(call), moe_queue(call));
}

MoeStatus cuda_embed_wgrad(MoeCall *call)
{
  MoeAttSaved s;
  MoeAttWork work;
  cuda_att_saved(call, &s);
  moe_att_work_carve(call->work, s.tokens, &work);
  return moe_cuda_embed_wgrad(call->tokens, s.tokens, work.dx, call->g_table, moe_status(call), moe_queue(call));
}

MoeStatus cuda_head(MoeCall *call)
{
  MoeAttSaved s;
  MoeAttWork out;
  CudaHeadScratch t;
  MoeQueue queue = moe_queue(call);
  const float *gain;
  cuda_att_begin(call, call->piped ? 0 : call->n_in, &s);
  moe_att_work_carve(call->work, s.tokens, &out);
  cuda_head_scratch(call->scratch, s.tokens, (size_t)call->n_in, &t);
  MOE_TRY(cuda_gains(call, call->w, H, t.gains, &gain));
  MOE_TRY(call->piped ? cuda_take_pipe(call, s.x) : cuda_take_combine(call, &s.src, t.in, t.where, s.x));
  for (size_t at = 0; at < s.tokens; at += t.room.chunk) {
    size_t n = moe_min(t.room.chunk, s.tokens - at);
    const MoeHeadIo io = {.x = s.x + at * H,
                          .labels = call->labels + at,
                          .gain = gain,
                          .table = moe_reals(call->table),
                          .dx = out.dx + at * H,
                          .g_gain = call->gw,
                          .g_table = call->g_table,
                          .logits = call->logits != NULL ? t.logits : NULL,
                          .scalars = call->scalars,
                          .status = moe_status(call)};
    MOE_TRY(moe_cuda_head(&io, n, call->inv_tokens, &t.room, queue));
    if (call->logits != NULL) {
      MOE_TRY(moe_cuda_copy(call->logits + at * MOE_VOCAB, t.logits, n * MOE_VOCAB * sizeof *t.logits, queue));
    }
  }
  return MOE_OK;
}
