/* The attention side of one layer. Forward: x summed from the partial rows, a = round(x + attention), h = norm(a),
   router. Backward: da summed from the FFN ranks, + router and post-norm, attention, + input norm = dx. */
#include "moe_gemm.h"
#include "moe_parts.h"

static void carve_scratch(const MoeCall *call, size_t tokens, MoeAttScratch *t)
{
  moe_att_scratch_carve(call->scratch, tokens, (size_t)call->seq, (size_t)call->n_in, t);
}

MoeStatus moe_att_fwd(MoeCall *call)
{
  MoeAttSaved s;
  MoeAttScratch t;
  const float *w = call->w;
  size_t seq = (size_t)call->seq;
  moe_att_begin(call, call->piped ? 0 : call->n_in, &s);
  carve_scratch(call, s.tokens, &t);
  if (call->n_in == 0 && call->layer != 0) {
    return MOE_EPROTO;
  }
  if (call->n_in > 0) {
    MOE_TRY(call->piped ? moe_take_pipe(call, s.x) : moe_take_combine(call, s.x, &s.src, t.source));
  }

  size_t n = s.tokens;
  moe_norm(s.x, w, n, t.h0, s.rstd_in);
  float *qkv = moe_target(s.qkv, t.qkv);
  moe_gemm_nt(n, MOE_QKV_DIM, MOE_HIDDEN, t.h0, MOE_HIDDEN, w + MOE_AT_QKV, MOE_HIDDEN, 0.0f, qkv, MOE_QKV_DIM);
  moe_keep(s.qkv, qkv, n * MOE_QKV_DIM);
  if (n > 0) {
    moe_rope_tables(&t.core, seq);
  }
  for (size_t at = 0; at < n; at += seq) {
    moe_attention(&t.core, seq, s.qkv + at * MOE_QKV_DIM, w, s.o + at * MOE_Q_DIM, s.lse + at * MOE_HEADS);
  }
  const float *o = moe_floats(s.o, n * MOE_Q_DIM, t.q);
  moe_gemm_nt(n, MOE_HIDDEN, MOE_Q_DIM, o, MOE_Q_DIM, w + MOE_AT_O, MOE_Q_DIM, 0.0f, t.h0, MOE_HIDDEN);
  for (size_t i = 0; i < n * MOE_HIDDEN; i++) {
    s.a[i] = moe_put(moe_get(s.x[i]) + t.h0[i]);
  }

  moe_norm(s.a, call->gain, n, t.h1, s.rstd_post);
  moe_gemm_nt(n, MOE_EXPERTS, MOE_HIDDEN, t.h1, MOE_HIDDEN, w + MOE_AT_ROUTER, MOE_HIDDEN, 0.0f, s.prob, MOE_EXPERTS);
  return moe_router(call, &s);
}

MoeStatus moe_att_dgrad(MoeCall *call)
{
  MoeAttSaved s;
  MoeAttWork out;
  MoeAttScratch t;
  const float *w = call->w;
  moe_att_saved(call, &s);
  size_t n = s.tokens;
  size_t seq = s.head->seq;
  moe_att_work_carve(call->work, n, &out);
  carve_scratch(call, n, &t);

  float *da = moe_target(out.da, t.h0);
  MOE_TRY(moe_take_dispatch_b(call, &s, t.source, da, t.dw));
  moe_router_back(call, &s, t.dw, out.dz);
  moe_gemm_nn(n, MOE_HIDDEN, MOE_EXPERTS, out.dz, MOE_EXPERTS, w + MOE_AT_ROUTER, MOE_HIDDEN, 0.0f, t.h1, MOE_HIDDEN);
  moe_norm_back(s.a, call->gain, s.rstd_post, t.h1, n, da, call->g_gain);
  moe_keep(out.da, da, n * MOE_HIDDEN);

  const float *d_attention = moe_floats(out.da, n * MOE_HIDDEN, t.h0);
  moe_gemm_nn(n, MOE_Q_DIM, MOE_HIDDEN, d_attention, MOE_HIDDEN, w + MOE_AT_O, MOE_Q_DIM, 0.0f, t.q, MOE_Q_DIM);
  if (n > 0) {
    moe_rope_tables(&t.core, seq);
  }
  for (size_t at = 0; at < n; at += seq) {
    moe_attention_back(&t.core, seq, s.qkv + at * MOE_QKV_DIM, w, s.o + at * MOE_Q_DIM, s.lse + at * MOE_HEADS,
                       t.q + at * MOE_Q_DIM, out.dqkv + at * MOE_QKV_DIM, call->gw);
  }
  const float *dqkv = moe_floats(out.dqkv, n * MOE_QKV_DIM, t.qkv);
  moe_gemm_nn(n, MOE_HIDDEN, MOE_QKV_DIM, dqkv, MOE_QKV_DIM, w + MOE_AT_QKV, MOE_HIDDEN, 0.0f, t.h1, MOE_HIDDEN);
  float *dx = moe_target(out.dx, t.h0);
  if (dx != d_attention) {
    memcpy(dx, d_attention, n * MOE_HIDDEN * sizeof *dx);
  }
  moe_norm_back(s.x, w, s.rstd_in, t.h1, n, dx, call->gw);
  moe_keep(out.dx, dx, n * MOE_HIDDEN);
  return MOE_OK;
}

MoeStatus moe_att_wgrad(MoeCall *call)
{
  MoeAttSaved s;
  MoeAttWork in;
  MoeAttScratch t;
  float *gw = call->gw;
  moe_att_saved(call, &s);
  size_t n = s.tokens;
  moe_att_work_carve(call->work, n, &in);
  carve_scratch(call, n, &t);

  moe_norm_rows(s.x, call->w, s.rstd_in, n, t.h0);
  const float *dqkv = moe_floats(in.dqkv, n * MOE_QKV_DIM, t.qkv);
  moe_gemm_tn(MOE_QKV_DIM, MOE_HIDDEN, n, dqkv, MOE_QKV_DIM, t.h0, MOE_HIDDEN, 1.0f, gw + MOE_AT_QKV, MOE_HIDDEN);

  const float *da = moe_floats(in.da, n * MOE_HIDDEN, t.h0);
  const float *o = moe_floats(s.o, n * MOE_Q_DIM, t.q);
  moe_gemm_tn(MOE_HIDDEN, MOE_Q_DIM, n, da, MOE_HIDDEN, o, MOE_Q_DIM, 1.0f, gw + MOE_AT_O, MOE_Q_DIM);

  moe_norm_rows(s.a, call->gain, s.rstd_post, n, t.h1);
  moe_gemm_tn(MOE_EXPERTS, MOE_HIDDEN, n, in.dz, MOE_EXPERTS, t.h1, MOE_HIDDEN, 1.0f, gw + MOE_AT_ROUTER, MOE_HIDDEN);
  return MOE_OK;
}
