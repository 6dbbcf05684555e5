/* The attention side of one layer. Forward: x summed from the partial rows, a = round(x + attention), h = norm(a),
   router. Backward: da summed from the FFN ranks, + router and post-norm, attention, + input norm = dx. All but the
   attention proper goes tile by tile of MOE_ATT_TILE tokens. */
#include "moe_gemm.h"
#include "moe_parts.h"

enum { H = MOE_HIDDEN, Q = MOE_Q_DIM, QKV = MOE_QKV_DIM, E = MOE_EXPERTS };

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

  for (size_t at = 0; at < s.tokens; at += MOE_ATT_TILE) {
    size_t n = moe_min(MOE_ATT_TILE, s.tokens - at);
    float *qkv = moe_target(s.qkv + at * QKV, t.wide);
    moe_norm(s.x + at * H, w, n, t.h0, s.rstd_in + at);
    moe_gemm_nt(n, QKV, H, t.h0, H, w + MOE_AT_QKV, H, 0.0f, qkv, QKV);
    moe_keep(s.qkv + at * QKV, qkv, n * QKV);
  }
  if (s.tokens > 0) {
    moe_rope_tables(&t.core, seq);
  }
  for (size_t at = 0; at < s.tokens; at += seq) {
    moe_attention(&t.core, seq, s.qkv + at * QKV, w, s.o + at * Q, s.lse + at * MOE_HEADS);
  }
  for (size_t at = 0; at < s.tokens; at += MOE_ATT_TILE) {
    size_t n = moe_min(MOE_ATT_TILE, s.tokens - at);
    moe_gemm_nt(n, H, Q, moe_floats(s.o + at * Q, n * Q, t.wide), Q, w + MOE_AT_O, Q, 0.0f, t.h0, H);
    for (size_t i = 0; i < n * H; i++) {
      s.a[at * H + i] = moe_put(moe_get(s.x[at * H + i]) + t.h0[i]);
    }
    moe_norm(s.a + at * H, call->gain, n, t.h1, s.rstd_post + at);
    moe_gemm_nt(n, E, H, t.h1, H, w + MOE_AT_ROUTER, H, 0.0f, s.prob + at * E, E);
  }
  return moe_router(call, &s);
}

/* Tokens at .. at + n: da, dz, and the gradient of the attention's output in the query columns of dqkv. */
static MoeStatus output_back(MoeCall *call, const MoeAttSaved *s, const MoeAttScratch *t, size_t at, size_t n,
                             MoeAttWork *out)
{
  float *dz = out->dz + at * E;
  float *da = moe_target(out->da + at * H, t->h0);
  MOE_TRY(moe_take_dispatch_b(call, s, t->source, at, n, da, t->dw));
  moe_router_back(call, s, at, n, t->dw, dz);
  moe_gemm_nn(n, H, E, dz, E, call->w + MOE_AT_ROUTER, H, 0.0f, t->h1, H);
  moe_norm_back(s->a + at * H, call->gain, s->rstd_post + at, t->h1, n, da, call->g_gain);
  moe_keep(out->da + at * H, da, n * H);
  const float *d_attention = moe_floats(out->da + at * H, n * H, t->h0);
  moe_gemm_nn(n, Q, H, d_attention, H, call->w + MOE_AT_O, Q, 0.0f, t->wide, Q);
  for (size_t r = 0; r < n; r++) {
    for (size_t i = 0; i < Q; i++) {
      out->dqkv[(at + r) * QKV + i] = moe_put(t->wide[r * Q + i]);
    }
  }
  return MOE_OK;
}

MoeStatus moe_att_dgrad(MoeCall *call)
{
  MoeAttSaved s;
  MoeAttWork out;
  MoeAttScratch t;
  const float *w = call->w;
  moe_att_saved(call, &s);
  size_t seq = s.head->seq;
  moe_att_work_carve(call->work, s.tokens, &out);
  carve_scratch(call, s.tokens, &t);

  MOE_TRY(moe_open_dispatch_b(call, t.source));
  for (size_t at = 0; at < s.tokens; at += MOE_ATT_TILE) {
    MOE_TRY(output_back(call, &s, &t, at, moe_min(MOE_ATT_TILE, s.tokens - at), &out));
  }
  if (!moe_sources_done(call, t.source)) {
    return MOE_EPROTO;
  }
  if (s.tokens > 0) {
    moe_rope_tables(&t.core, seq);
  }
  for (size_t at = 0; at < s.tokens; at += seq) {
    moe_attention_back(&t.core, seq, s.qkv + at * QKV, w, s.o + at * Q, s.lse + at * MOE_HEADS, out.dqkv + at * QKV,
                       call->gw);
  }
  for (size_t at = 0; at < s.tokens; at += MOE_ATT_TILE) {
    size_t n = moe_min(MOE_ATT_TILE, s.tokens - at);
    const float *dqkv = moe_floats(out.dqkv + at * QKV, n * QKV, t.wide);
    moe_gemm_nn(n, H, QKV, dqkv, QKV, w + MOE_AT_QKV, H, 0.0f, t.h1, H);
    float *dx = moe_target(out.dx + at * H, t.h0);
    for (size_t i = 0; i < n * H; i++) {
      dx[i] = moe_get(out.da[at * H + i]);
    }
    moe_norm_back(s.x + at * H, w, s.rstd_in + at, t.h1, n, dx, call->gw);
    moe_keep(out.dx + at * H, dx, n * H);
  }
  return MOE_OK;
}

MoeStatus moe_att_wgrad(MoeCall *call)
{
  MoeAttSaved s;
  MoeAttWork in;
  MoeAttScratch t;
  float *gw = call->gw;
  moe_att_saved(call, &s);
  moe_att_work_carve(call->work, s.tokens, &in);
  carve_scratch(call, s.tokens, &t);

  for (size_t at = 0; at < s.tokens; at += MOE_ATT_TILE) {
    size_t n = moe_min(MOE_ATT_TILE, s.tokens - at);
    moe_norm_rows(s.x + at * H, call->w, s.rstd_in + at, n, t.h0);
    const float *dqkv = moe_floats(in.dqkv + at * QKV, n * QKV, t.wide);
    moe_gemm_tn(QKV, H, n, dqkv, QKV, t.h0, H, 1.0f, gw + MOE_AT_QKV, H);

    const float *da = moe_floats(in.da + at * H, n * H, t.h0);
    const float *o = moe_floats(s.o + at * Q, n * Q, t.wide);
    moe_gemm_tn(H, Q, n, da, H, o, Q, 1.0f, gw + MOE_AT_O, Q);

    moe_norm_rows(s.a + at * H, call->gain, s.rstd_post + at, n, t.h1);
    moe_gemm_tn(E, H, n, in.dz + at * E, E, t.h1, H, 1.0f, gw + MOE_AT_ROUTER, H);
  }
  return MOE_OK;
}
