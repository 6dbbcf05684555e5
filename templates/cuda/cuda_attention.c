/* The attention side of one layer, as att_layer.c has it, for all tokens of the slot at once. */
#include "cuda_ops.h"

enum { H = MOE_HIDDEN, O = MOE_O_DIM, QKV = MOE_QKV_DIM, E = MOE_EXPERTS, D = MOE_HEAD_DIM };

/* The op at hand. */
typedef struct Op {
  MoeCall *call;
  MoeQueue queue;
  MoeAttSaved s;
  CudaAttScratch t;
  const MoeReal *w;
  const float *gain_in, *gain_post; /* as floats */
  const float *norms;               /* what lies at MOE_AT_QNORM of it are the gains of q and k, as floats */
} Op;

static MoeStatus open_op(MoeCall *call, Op *op)
{
  op->call = call;
  op->queue = moe_queue(call);
  op->w = moe_reals(call->w);
  size_t n_ffn = (size_t)call->n_ffn;
  cuda_att_scratch(call->scratch, (size_t)call->seq, (size_t)call->n_seqs, (size_t)call->n_in, n_ffn, &op->t);
  MOE_TRY(cuda_gains(call, call->w, H, op->t.gains, &op->gain_in));
  MOE_TRY(cuda_gains(call, call->gain, H, op->t.gains + H, &op->gain_post));
  const float *norms;
  const float *stored = (const void *)(op->w + MOE_AT_QNORM);
  MOE_TRY(cuda_gains(call, stored, MOE_QNORM_DIM + MOE_KNORM_DIM, op->t.gains + (size_t)2 * H, &norms));
  op->norms = norms - MOE_AT_QNORM;
  return MOE_OK;
}

static MoeAttSizes sizes_of(const MoeCall *call)
{
  return (MoeAttSizes){.seq = (size_t)call->seq, .n_seqs = (size_t)call->n_seqs};
}

static MoeRouterIo router_of(const MoeAttSaved *s)
{
  return (MoeRouterIo){
      .prob = s->prob, .weight = s->weight, .choice = s->choice, .dropped = s->dropped, .picks = s->picks};
}

/* The heads as scores are made of them, from the projections. */
static MoeStatus turn_heads(const Op *op)
{
  const CudaAttScratch *t = &op->t;
  size_t seq = (size_t)op->call->seq;
  MOE_TRY(moe_cuda_rope_tables(seq, t->cosp, t->sinp, op->queue));
  return moe_cuda_heads(op->s.qkv, op->norms, t->cosp, t->sinp, seq, op->s.tokens, t->turned, op->queue);
}

/* From x to a and the router's logits. */
static MoeStatus forward(const Op *op)
{
  const MoeCall *call = op->call;
  const MoeAttSaved *s = &op->s;
  const CudaAttScratch *t = &op->t;
  size_t n = s->tokens;
  MOE_TRY(moe_cuda_norm(s->x, op->gain_in, n, t->h, s->rstd_in, op->queue));
  MOE_TRY(moe_cuda_gemm_nt(n, QKV, H, t->h, H, op->w + MOE_AT_QKV, H, 0.0f, s->qkv, QKV, op->queue));
  MOE_TRY(turn_heads(op));
  MOE_TRY(moe_cuda_attention(t->turned, op->norms, (size_t)call->layer, (size_t)call->seq, (size_t)call->n_seqs, s->o,
                             s->lse, op->queue));
  MOE_TRY(moe_cuda_gemm_nt_float(n, H, O, s->o, O, op->w + MOE_AT_O, O, 0.0f, t->wide, H, op->queue));
  MOE_TRY(moe_cuda_add_rounded(s->x, t->wide, n * H, s->a, op->queue));
  MOE_TRY(moe_cuda_norm(s->a, op->gain_post, n, t->h, s->rstd_post, op->queue));
  return moe_cuda_gemm_nt_float(n, E, H, t->h, H, op->w + MOE_AT_ROUTER, H, 0.0f, s->prob, E, op->queue);
}

MoeStatus cuda_att_fwd(MoeCall *call)
{
  Op op;
  cuda_att_begin(call, call->piped ? 0 : call->n_in, &op.s);
  MOE_TRY(open_op(call, &op));
  if (call->n_in == 0 && call->layer != 0) {
    return MOE_EPROTO;
  }
  if (call->n_in > 0) {
    MOE_TRY(call->piped ? cuda_take_pipe(call, op.s.x)
                        : cuda_take_combine(call, &op.s.src, op.t.in, op.t.where, op.s.x));
  }
  MOE_TRY(forward(&op));
  const int32_t *only = NULL;
  if (call->route_only != NULL) {
    size_t bytes = (size_t)call->n_route_only * sizeof *only;
    MOE_TRY(moe_cuda_copy(op.t.route_only, call->route_only, bytes, op.queue));
    only = op.t.route_only;
  }
  const MoeAttSizes sizes = sizes_of(call);
  const MoeRouterIo io = router_of(&op.s);
  return moe_cuda_router(&sizes, &io, call->inv_seqs, only, call->n_route_only, call->scalars, op.t.sums, op.queue);
}

MoeStatus cuda_att_again(MoeCall *call)
{
  Op op;
  cuda_att_saved(call, &op.s);
  MOE_TRY(open_op(call, &op));
  MOE_TRY(forward(&op));
  return moe_cuda_router_again(op.s.prob, op.s.tokens, op.queue);
}

/* da and dw from the messages of all chunks. */
static MoeStatus take_gradients(const Op *op)
{
  const MoeCall *call = op->call;
  const MoeAttSaved *s = &op->s;
  const CudaAttScratch *t = &op->t;
  if (call->n_in != call->n_ffn * call->n_chunks) {
    return MOE_EPROTO;
  }
  MOE_TRY(cuda_inputs(call, (CudaKind){.pair_bytes = MOE_GRAD_PAIR}, 0, t->in, NULL));
  for (int32_t chunk = 0; chunk < call->n_chunks; chunk++) {
    MoeRouteSizes routes;
    MOE_TRY(cuda_routes(call, s, chunk, t->nodes, &routes));
    MOE_TRY(moe_cuda_plan_routes(&routes, s->choice, s->dropped, &t->plan, op->queue));
    MOE_TRY(moe_cuda_take_dispatch_b(&routes, s->choice, s->dropped, &t->plan, t->in + chunk * call->n_ffn, t->da,
                                     t->dw, moe_status(call), op->queue));
  }
  return MOE_OK;
}

/* dz [T, E] as a product takes it. */
static MoeStatus stored_dz(const Op *op, const float *dz, const MoeReal **dz_p)
{
  *dz_p = MOE_BF16 ? op->t.dz : (const void *)dz;
  return MOE_BF16 ? moe_cuda_to_weights(op->t.dz, dz, op->s.tokens * E, op->queue) : MOE_OK;
}

MoeStatus cuda_att_dgrad(MoeCall *call)
{
  Op op;
  MoeAttWork out;
  const CudaAttScratch *t = &op.t;
  const MoeAttSaved *s = &op.s;
  cuda_att_saved(call, &op.s);
  MOE_TRY(open_op(call, &op));
  moe_att_work_carve(call->work, s->tokens, &out);
  size_t n = s->tokens;
  size_t seq = (size_t)call->seq;
  MoeQueue queue = op.queue;

  MOE_TRY(take_gradients(&op));
  const MoeAttSizes sizes = sizes_of(call);
  const MoeRouterIo io = router_of(s);
  MOE_TRY(moe_cuda_router_back(&sizes, &io, call->inv_seqs, t->dw, out.dz, queue));
  const MoeReal *dz;
  MOE_TRY(stored_dz(&op, out.dz, &dz));
  MOE_TRY(moe_cuda_gemm_nn_float(n, H, E, dz, E, op.w + MOE_AT_ROUTER, H, 0.0f, t->wide, H, queue));
  MOE_TRY(moe_cuda_norm_back(s->a, op.gain_post, s->rstd_post, t->wide, n, t->da, call->g_gain, t->partial, queue));
  MOE_TRY(moe_cuda_to_weights(out.da, t->da, n * H, queue));
  MOE_TRY(moe_cuda_gemm_nn(n, O, H, out.da, H, op.w + MOE_AT_O, O, 0.0f, t->d_o, O, queue));

  MOE_TRY(turn_heads(&op));
  MOE_TRY(moe_cuda_attention_back(t->turned, op.norms, (size_t)call->layer, seq, (size_t)call->n_seqs, s->o, s->lse,
                                  t->d_o, t->d, call->gw, t->delta, t->partial, queue));
  MOE_TRY(moe_cuda_heads_back(s->qkv, op.norms, t->cosp, t->sinp, seq, n, t->d, out.dqkv, call->gw, t->partial, queue));

  MOE_TRY(moe_cuda_gemm_nn_float(n, H, QKV, out.dqkv, QKV, op.w + MOE_AT_QKV, H, 0.0f, t->wide, H, queue));
  MOE_TRY(moe_cuda_floats(out.da, n * H, t->da, queue));
  MOE_TRY(moe_cuda_norm_back(s->x, op.gain_in, s->rstd_in, t->wide, n, t->da, call->gw, t->partial, queue));
  return moe_cuda_to_weights(out.dx, t->da, n * H, queue);
}

MoeStatus cuda_att_wgrad(MoeCall *call)
{
  Op op;
  MoeAttWork in;
  cuda_att_saved(call, &op.s);
  MOE_TRY(open_op(call, &op));
  const MoeAttSaved *s = &op.s;
  const MoeReal *h = op.t.h;
  moe_att_work_carve(call->work, s->tokens, &in);
  size_t n = s->tokens;
  MOE_TRY(moe_cuda_norm_rows(s->x, op.gain_in, s->rstd_in, NULL, n, op.t.h, op.queue));
  MOE_TRY(moe_cuda_gemm_tn(QKV, H, n, in.dqkv, QKV, h, H, 1.0f, call->gw + MOE_AT_QKV, H, op.queue));
  MOE_TRY(moe_cuda_gemm_tn(H, O, n, in.da, H, s->o, O, 1.0f, call->gw + MOE_AT_O, O, op.queue));
  MOE_TRY(moe_cuda_norm_rows(s->a, op.gain_post, s->rstd_post, NULL, n, op.t.h, op.queue));
  const MoeReal *dz;
  MOE_TRY(stored_dz(&op, in.dz, &dz));
  return moe_cuda_gemm_tn(E, H, n, dz, E, h, H, 1.0f, call->gw + MOE_AT_ROUTER, H, op.queue);
}
