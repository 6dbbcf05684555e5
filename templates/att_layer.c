/* The attention side of one layer. Forward: x summed from the partial rows, a = round(x + attention), h = norm(a),
   router. Backward: da summed from the FFN ranks, + router and post-norm, attention, + input norm = dx. A dense layer
   has its MLP here instead of a router: its output a + MLP(h), and the gradient of that, go by PIPE. All but the
   attention proper goes tile by tile of MOE_ATT_TILE tokens. */
#include "moe_gemm.h"
#include "moe_parts.h"
#include "moe_vec.h"

enum {
  H = MOE_HIDDEN,
  O = MOE_O_DIM,
  DV = MOE_V_DIM,
  QKV = MOE_QKV_DIM,
  IN = MOE_IN_DIM,
  E = MOE_EXPERTS,
  FD = MOE_DENSE_HIDDEN
};

static void carve_scratch(const MoeCall *call, size_t tokens, MoeAttScratch *t)
{
  moe_att_scratch_carve(call->scratch, tokens, (size_t)call->seq, (size_t)call->n_in, t);
}

static bool is_dense(const MoeCall *call)
{
  return call->layer < MOE_DENSE_LAYERS;
}

/* Tokens at .. at + n from x to their projections. */
static void project(const MoeCall *call, const MoeAttSaved *s, const MoeAttScratch *t, size_t at, size_t n)
{
  const float *w = call->w;
  float *qkv = moe_target(s->qkv + at * QKV, t->wide);
  moe_norm(s->x + at * H, w, n, t->h0, s->rstd_in + at);
  moe_gemm_nt(n, IN, H, t->h0, H, w + MOE_AT_QKV, H, 0.0f, qkv, QKV);
  if (MOE_ATT_BIAS) {
    moe_add_bias(qkv, n, QKV, w + MOE_AT_QKV_BIAS, IN);
  }
  if (MOE_LATENT) {
    moe_latent(w, n, qkv, t->latent);
  }
  moe_keep(s->qkv + at * QKV, qkv, n * QKV);
}

/* From the heads' outputs to a, and to the router's logits or a dense layer's output. */
static void output(const MoeCall *call, const MoeAttSaved *s, const MoeAttScratch *t, size_t at, size_t n)
{
  const float *w = call->w;
  moe_gemm_nt(n, H, O, moe_floats(s->o + at * O, n * O, t->wide), O, w + MOE_AT_O, O, 0.0f, t->h0, H);
  if (MOE_ATT_BIAS) {
    moe_add_bias(t->h0, n, H, w + MOE_AT_O_BIAS, H);
  }
  for (size_t i = at * H; i < (at + n) * H; i++) {
    s->a[i] = moe_put(moe_get(s->x[i]) + t->h0[i - at * H]);
  }
  moe_norm(s->a + at * H, call->gain, n, t->h1, s->rstd_post + at);
  if (is_dense(call)) {
    MoeAttWork out;
    moe_att_work_carve(call->work, s->tokens, &out);
    moe_mlp_inner(w + MOE_AT_DENSE, FD, t->h1, n, t->gate_up);
    moe_mlp_outer(w + MOE_AT_DENSE, FD, t->gate_up, n, t->act, t->h0);
    for (size_t i = at * H; i < (at + n) * H; i++) {
      out.dx[i] = moe_put(moe_get(s->a[i]) + t->h0[i - at * H]);
    }
    return;
  }
  moe_gemm_nt(n, E, H, t->h1, H, w + MOE_AT_ROUTER, H, 0.0f, s->prob + at * E, E);
  if (MOE_ROUTER_BIAS) {
    moe_add_bias(s->prob + at * E, n, E, w + MOE_AT_RBIAS, E);
  }
}

/* From x to a and the router's logits, or to a dense layer's output. */
static void forward(const MoeCall *call, const MoeAttSaved *s, const MoeAttScratch *t)
{
  size_t seq = (size_t)call->seq;
  for (size_t at = 0; at < s->tokens; at += MOE_ATT_TILE) {
    project(call, s, t, at, moe_min(MOE_ATT_TILE, s->tokens - at));
  }
  if (s->tokens > 0) {
    moe_rope_tables(&t->core, seq);
  }
  for (size_t at = 0; at < s->tokens; at += seq) {
    moe_attention(&t->core, (size_t)call->layer, seq, s->qkv + at * QKV, call->w, s->o + at * O,
                  s->lse + at * MOE_HEADS);
  }
  for (size_t at = 0; at < s->tokens; at += MOE_ATT_TILE) {
    output(call, s, t, at, moe_min(MOE_ATT_TILE, s->tokens - at));
  }
}

MoeStatus moe_att_again(MoeCall *call)
{
  MoeAttSaved s;
  MoeAttScratch t;
  moe_att_saved(call, &s);
  carve_scratch(call, s.tokens, &t);
  forward(call, &s, &t);
  moe_router_again(&s);
  return MOE_OK;
}

MoeStatus moe_att_fwd(MoeCall *call)
{
  MoeAttSaved s;
  MoeAttScratch t;
  moe_att_begin(call, call->piped ? 0 : call->n_in, &s);
  carve_scratch(call, s.tokens, &t);
  if (call->n_in == 0 && call->layer != 0) {
    return MOE_EPROTO;
  }
  if (call->n_in > 0) {
    MOE_TRY(call->piped ? moe_take_pipe(call, s.x) : moe_take_combine(call, s.x, &s.src, t.source));
  }
  forward(call, &s, &t);
  return is_dense(call) ? MOE_OK : moe_router(call, &s);
}

/* Of a dense layer, tokens at .. at + n: the gradient of the output, which out->dx holds, becomes da; dh goes to h1.
   Gate and up are computed again and the MLP's weight gradient is formed at once, so that nothing of it need be kept:
   the slots of all layers are alike, and the few dense layers have the largest hidden size. */
static void dense_back(const MoeCall *call, const MoeAttSaved *s, const MoeAttScratch *t, size_t at, size_t n,
                       const MoeAttWork *out, float *da)
{
  const float *w = call->w + MOE_AT_DENSE;
  float *gw = call->gw + MOE_AT_DENSE;
  moe_read_row(out->dx + at * H, n * H, da);
  moe_norm_rows(s->a + at * H, call->gain, s->rstd_post + at, n, t->h1);
  moe_mlp_inner(w, FD, t->h1, n, t->gate_up);
  moe_mlp_dgrad_outer(w, FD, da, n, t->gate_up, t->act);
  moe_mlp_wgrad_outer(FD, da, t->act, n, gw);
  moe_mlp_wgrad_inner(FD, t->gate_up, t->h1, n, gw);
  moe_mlp_dgrad_inner(w, FD, t->gate_up, n, t->h1);
}

/* Tokens at .. at + n: da, dz, and the gradient of the heads' outputs in their columns of dqkv. */
static MoeStatus output_back(MoeCall *call, const MoeAttSaved *s, const MoeAttScratch *t, size_t at, size_t n,
                             MoeAttWork *out)
{
  float *dz = out->dz + at * E;
  float *da = moe_target(out->da + at * H, t->h0);
  if (is_dense(call)) {
    dense_back(call, s, t, at, n, out, da);
  } else {
    MOE_TRY(moe_take_dispatch_b(call, s, t->source, at, n, da, t->dw));
    moe_router_back(call, s, at, n, t->dw, dz);
    moe_gemm_nn(n, H, E, dz, E, call->w + MOE_AT_ROUTER, H, 0.0f, t->h1, H);
  }
  moe_norm_back(s->a + at * H, call->gain, s->rstd_post + at, t->h1, n, da, call->g_gain);
  moe_keep(out->da + at * H, da, n * H);
  const float *d_attention = moe_floats(out->da + at * H, n * H, t->h0);
  moe_gemm_nn(n, O, H, d_attention, H, call->w + MOE_AT_O, O, 0.0f, t->wide, O);
  for (size_t r = 0; r < n; r++) {
    for (size_t head = 0; head < MOE_HEADS; head++) {
      moe_keep_row(out->dqkv + (at + r) * QKV + moe_out_col(head), t->wide + r * O + head * DV, DV);
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

  if (MOE_RECOMPUTE == 2 && is_dense(call)) {
    forward(call, &s, &t);
  }
  MOE_TRY(is_dense(call) ? moe_take_pipe(call, out.dx) : moe_open_dispatch_b(call, t.source));
  for (size_t at = 0; at < s.tokens; at += MOE_ATT_TILE) {
    MOE_TRY(output_back(call, &s, &t, at, moe_min(MOE_ATT_TILE, s.tokens - at), &out));
  }
  if (!is_dense(call) && !moe_sources_done(call, t.source)) {
    return MOE_EPROTO;
  }
  if (s.tokens > 0) {
    moe_rope_tables(&t.core, seq);
  }
  for (size_t at = 0; at < s.tokens; at += seq) {
    moe_attention_back(&t.core, (size_t)call->layer, seq, s.qkv + at * QKV, w, s.o + at * O, s.lse + at * MOE_HEADS,
                       out.dqkv + at * QKV, call->gw);
  }
  for (size_t at = 0; at < s.tokens; at += MOE_ATT_TILE) {
    size_t n = moe_min(MOE_ATT_TILE, s.tokens - at);
    if (MOE_LATENT) {
      moe_latent_back(s.qkv + at * QKV, w, n, out.dqkv + at * QKV, call->gw, t.wide, t.latent);
    }
    const float *dqkv = moe_floats(out.dqkv + at * QKV, n * QKV, t.wide);
    moe_gemm_nn(n, H, IN, dqkv, QKV, w + MOE_AT_QKV, H, 0.0f, t.h1, H);
    float *dx = moe_target(out.dx + at * H, t.h0);
    moe_read_row(out.da + at * H, n * H, dx);
    moe_norm_back(s.x + at * H, w, s.rstd_in + at, t.h1, n, dx, call->gw);
    moe_keep(out.dx + at * H, dx, n * H);
  }
  return MOE_OK;
}

static void router_wgrad(const MoeCall *call, const MoeAttSaved *s, const MoeAttScratch *t, size_t at, size_t n,
                         const float *dz)
{
  moe_norm_rows(s->a + at * H, call->gain, s->rstd_post + at, n, t->h1);
  moe_gemm_tn(E, H, n, dz, E, t->h1, H, 1.0f, call->gw + MOE_AT_ROUTER, H);
  if (MOE_ROUTER_BIAS) {
    moe_bias_back(call->gw + MOE_AT_RBIAS, dz, n, E, E);
  }
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
    moe_gemm_tn(IN, H, n, dqkv, QKV, t.h0, H, 1.0f, gw + MOE_AT_QKV, H);
    if (MOE_ATT_BIAS) {
      moe_bias_back(gw + MOE_AT_QKV_BIAS, dqkv, n, QKV, IN);
    }
    if (MOE_LATENT) {
      moe_latent_wgrad(s.qkv + at * QKV, call->w, n, dqkv, gw, t.latent);
    }

    const float *da = moe_floats(in.da + at * H, n * H, t.h0);
    const float *o = moe_floats(s.o + at * O, n * O, t.wide);
    moe_gemm_tn(H, O, n, da, H, o, O, 1.0f, gw + MOE_AT_O, O);
    if (MOE_ATT_BIAS) {
      moe_bias_back(gw + MOE_AT_O_BIAS, da, n, H, H);
    }
    if (!is_dense(call)) {
      router_wgrad(call, &s, &t, at, n, in.dz + at * E);
    }
  }
  return MOE_OK;
}
