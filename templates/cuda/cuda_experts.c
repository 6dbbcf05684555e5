/* The FFN side of one layer, as experts.c has it, for all rows of the slot at once. */
#include "cuda_ops.h"

enum { H = MOE_HIDDEN, F = MOE_FFN_HIDDEN };

/* The op at hand. */
typedef struct Op {
  MoeCall *call;
  MoeQueue queue;
  MoeFfnSaved s;
  MoeFfnWork out;
  CudaFfnScratch t;
  MoeFfnList list;
  const MoeReal *w;
  const float *gain; /* as floats */
} Op;

static int32_t first_expert(const MoeCall *call)
{
  return (int32_t)moe_part_begin(MOE_EXPERTS, call->n_ffn, call->me);
}

static int32_t n_experts(const MoeCall *call)
{
  return (int32_t)moe_part_size(MOE_EXPERTS, call->n_ffn, call->me);
}

/* The slot has been found. */
static MoeStatus open_op(MoeCall *call, Op *op)
{
  MoeFfnSaved *s = &op->s;
  size_t rows = s->list.head->rows;
  size_t pairs = s->list.head->pairs;
  op->call = call;
  op->queue = moe_queue(call);
  op->w = moe_reals(call->w);
  moe_ffn_work_carve(call->work, rows, pairs, &op->out);
  cuda_ffn_scratch(call->scratch, rows, pairs, (size_t)call->n_in, &op->t);
  op->list = (MoeFfnList){.n_rows = rows,
                          .n_pairs = pairs,
                          .first_expert = first_expert(call),
                          .n_experts = n_experts(call),
                          .rows = s->list.rows,
                          .pairs = s->list.pairs,
                          .row_pair = op->t.row_pair,
                          .pair_row = op->t.pair_row,
                          .first = s->first,
                          .group_pair = s->group_pair,
                          .group_row = s->group_row,
                          .place = op->t.place};
  return cuda_gains(call, call->gain, H, op->t.gains, &op->gain);
}

/* Gate and up of all pairs. */
static MoeStatus inner(const Op *op)
{
  const MoeFfnSaved *s = &op->s;
  const CudaFfnScratch *t = &op->t;
  MOE_TRY(moe_cuda_norm_rows(s->a, op->gain, s->rstd, s->group_row, op->list.n_pairs, t->x, op->queue));
  return moe_cuda_group_nt(&op->list, t->x, H, op->w, s->gate_up, (size_t)2 * F, op->queue);
}

MoeStatus cuda_ffn_fwd(MoeCall *call)
{
  Op op;
  MoeListHead counts;
  MOE_TRY(cuda_count_list(call, moe_chunk_tokens(call), call->me, call->me + 1, &counts));
  cuda_ffn_slot(call, &counts, &op.s);
  MOE_TRY(open_op(call, &op));
  const MoeFfnSaved *s = &op.s;
  const CudaFfnScratch *t = &op.t;
  MOE_TRY(cuda_take_list(call, s, t));
  MOE_TRY(moe_cuda_group_pairs(&op.list, op.queue));
  MOE_TRY(moe_cuda_norm(s->a, op.gain, counts.rows, t->h, s->rstd, op.queue));
  MOE_TRY(inner(&op));
  MOE_TRY(moe_cuda_activate(&op.list, s->gate_up, op.out.act, op.queue));
  MOE_TRY(moe_cuda_group_nt_float(&op.list, op.out.act, F, op.w + MOE_AT_DOWN, t->y, H, op.queue));
  return moe_cuda_sum_outputs(&op.list, t->y, s->a, call->me, op.out.rows, op.queue);
}

MoeStatus cuda_ffn_dgrad(MoeCall *call)
{
  Op op;
  cuda_ffn_saved(call, &op.s);
  MOE_TRY(open_op(call, &op));
  const MoeFfnSaved *s = &op.s;
  const MoeFfnWork *out = &op.out;
  const CudaFfnScratch *t = &op.t;
  const MoeFfnList *l = &op.list;
  MoeQueue queue = op.queue;
  MOE_TRY(cuda_take_rows(call, s, t, false, out->dx));
  if (MOE_RECOMPUTE == 2) {
    MOE_TRY(cuda_take_rows(call, s, t, true, s->a));
    MOE_TRY(moe_cuda_norm(s->a, op.gain, l->n_rows, t->h, s->rstd, queue));
  }
  MOE_TRY(moe_cuda_group_pairs(l, queue)); /* once more what only scratch holds */
  if (MOE_RECOMPUTE > 0) {
    MOE_TRY(inner(&op));
  }
  MOE_TRY(moe_cuda_gather_rows(l, out->dx, false, t->x, queue));
  MOE_TRY(moe_cuda_group_nn_float(l, t->x, H, op.w + MOE_AT_DOWN, t->d, F, queue));
  MOE_TRY(moe_cuda_activate_back(l, t->d, s->gate_up, out->act, out->dw, queue));
  MOE_TRY(moe_cuda_group_nn_float(l, s->gate_up, (size_t)2 * F, op.w, t->y, H, queue));
  MOE_TRY(moe_cuda_sum_grads(l, t->y, t->dh, queue));
  MOE_TRY(moe_cuda_start_sums(l, out->dx, call->me, t->da, queue));
  MOE_TRY(moe_cuda_norm_back(s->a, op.gain, s->rstd, t->dh, l->n_rows, t->da, call->g_gain, t->partial, queue));
  return moe_cuda_to_weights(out->rows, t->da, l->n_rows * H, queue);
}

MoeStatus cuda_ffn_wgrad(MoeCall *call)
{
  Op op;
  cuda_ffn_saved(call, &op.s);
  MOE_TRY(open_op(call, &op));
  const MoeFfnSaved *s = &op.s;
  const MoeFfnList *l = &op.list;
  MoeReal *x = op.t.x;
  MOE_TRY(moe_cuda_gather_rows(l, op.out.dx, true, x, op.queue));
  MOE_TRY(moe_cuda_group_tn(l, x, H, op.out.act, F, call->gw + MOE_AT_DOWN, op.queue));
  MOE_TRY(moe_cuda_norm_rows(s->a, op.gain, s->rstd, s->group_row, l->n_pairs, x, op.queue));
  return moe_cuda_group_tn(l, s->gate_up, (size_t)2 * F, x, H, call->gw, op.queue);
}
