/* Attention of one layer, forward and backward: grouped-query attention (biases, qk-norm, clamp, RoPE), latent
   attention (low-rank queries, keys and values, RoPE on a part of each head), and the core they share (causal, window,
   sinks). */
#include "tests/ref/ref_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ref/ref_math.h"

static const double LATENT_EPS =
    1e-6; /* of the latents' norms, whatever norm_eps is: the published models have it so */

int64_t ref_key_heads(const RefConfig *c)
{
  return c->mla ? c->heads : c->kv_heads;
}

int64_t ref_qk_dim(const RefConfig *c)
{
  return c->mla ? c->nope_dim + c->rope_dim : c->head_dim;
}

int64_t ref_v_dim(const RefConfig *c)
{
  return c->mla ? c->v_dim : c->head_dim;
}

/* ---- RoPE ---- */

static double mscale(double factor, double k)
{
  return factor <= 1 ? 1 : 0.1 * k * log(factor) + 1;
}

/* Dimension whose frequency makes `turns` rotations within the original context. */
static double yarn_dimension(const RefConfig *c, int64_t d, double turns)
{
  const double two_pi = 6.283185307179586;
  return (double)d * log((double)c->yarn_original / (turns * two_pi)) / (2 * log(c->rope_theta));
}

/* theta^(-2i/d); YaRN divides it by the factor where i is past the ramp, keeps it before, and mixes on it. */
static double frequency(const RefConfig *c, int64_t d, int64_t i)
{
  double plain = pow(c->rope_theta, -2.0 * (double)i / (double)d);
  if (!c->yarn) {
    return plain;
  }
  double low = yarn_dimension(c, d, c->yarn_beta_fast);
  double high = yarn_dimension(c, d, c->yarn_beta_slow);
  low = fmax(c->yarn_truncate ? floor(low) : low, 0);
  high = fmin(c->yarn_truncate ? ceil(high) : high, (double)d - 1);
  if (low == high) {
    high += 0.001;
  }
  double ramp = fmin(fmax(((double)i - low) / (high - low), 0), 1);
  return plain * (1 - ramp) + plain / c->yarn_factor * ramp;
}

/* Multiplies cos and sin. */
static double rope_factor(const RefConfig *c)
{
  if (!c->yarn) {
    return 1;
  }
  if (c->yarn_attention_factor > 0) {
    return c->yarn_attention_factor;
  }
  if (c->yarn_mscale > 0 && c->yarn_mscale_all_dim > 0) {
    return mscale(c->yarn_factor, c->yarn_mscale) / mscale(c->yarn_factor, c->yarn_mscale_all_dim);
  }
  return mscale(c->yarn_factor, 1);
}

static double score_scale(const RefConfig *c)
{
  double extra = c->yarn && c->yarn_mscale_all_dim > 0 ? mscale(c->yarn_factor, c->yarn_mscale_all_dim) : 1;
  return extra * extra / sqrt((double)ref_qk_dim(c));
}

/* Rotates d entries, from `first` on, of every head of x [rows, heads, width] by direction * position * frequency,
   where a row's position is its index modulo seq; pairs (i, i + d/2), or (2i, 2i + 1). Direction -1 is the transpose:
   the backward pass. */
static void rope(const RefConfig *c, double *x, int64_t rows, int64_t seq, int64_t heads, int64_t width, int64_t first,
                 int64_t d, double direction)
{
  for (int64_t i = 0; i < d / 2; i++) {
    double f = frequency(c, d, i);
    int64_t i1 = first + (c->rope_interleaved ? 2 * i : i);
    int64_t i2 = first + (c->rope_interleaved ? 2 * i + 1 : i + d / 2);
    for (int64_t row = 0; row < rows; row++) {
      double angle = direction * (double)(row % seq) * f;
      double cosine = rope_factor(c) * cos(angle);
      double sine = rope_factor(c) * sin(angle);
      for (int64_t head = 0; head < heads; head++) {
        double *at = x + (row * heads + head) * width;
        double x1 = at[i1];
        double x2 = at[i2];
        at[i1] = x1 * cosine - x2 * sine;
        at[i2] = x2 * cosine + x1 * sine;
      }
    }
  }
}

/* ---- core ---- */

/* First key that position `last` sees. */
static int64_t first_key(const RefConfig *c, int64_t layer, int64_t last)
{
  bool here = c->window_layers == REF_LAYERS_ALL || (layer % 2 == 0) == (c->window_layers == REF_LAYERS_EVEN);
  return c->window > 0 && here && last >= c->window ? last - c->window + 1 : 0;
}

/* One query row of one head. */
typedef struct Row {
  int64_t first, n; /* keys first .. first + n of its sequence */
  int64_t query;    /* offset of its q */
  int64_t out;      /* of its output */
  int64_t key;      /* of key number `first` of its key head, in rows of k */
  int64_t heads;    /* key heads: rows from one key to the next */
} Row;

static Row row_of(const RefConfig *c, int64_t layer, int64_t first_row, int64_t last, int64_t head)
{
  int64_t heads = ref_key_heads(c);
  int64_t first = first_key(c, layer, last);
  int64_t row = (first_row + last) * c->heads + head;
  return (Row){.first = first,
               .n = last + 1 - first,
               .query = row * ref_qk_dim(c),
               .out = row * ref_v_dim(c),
               .key = (first_row + first) * heads + head / (c->heads / heads),
               .heads = heads};
}

/* Probabilities of its keys into p; returns that of the sink. */
static double probabilities(const RefConfig *c, const RefLayerState *s, const double *sink, const Row *r, double *p)
{
  int64_t d = ref_qk_dim(c);
  for (int64_t j = 0; j < r->n; j++) {
    p[j] = score_scale(c) * ref_dot(s->q + r->query, s->k + (r->key + j * r->heads) * d, d);
  }
  if (sink) {
    p[r->n] = *sink;
  }
  ref_softmax(p, p, r->n + (sink ? 1 : 0));
  return sink ? p[r->n] : 0;
}

static void attend(const RefConfig *c, RefLayerState *s, const double *sink, const Row *r, double *p)
{
  int64_t d = ref_v_dim(c);
  probabilities(c, s, sink, r, p);
  memset(s->o + r->out, 0, (size_t)d * sizeof(double));
  for (int64_t j = 0; j < r->n; j++) {
    ref_axpy(s->o + r->out, p[j], s->v + (r->key + j * r->heads) * d, d);
  }
}

/* Given dO in `dattn`; adds to dq, dk, dv and dsink. p, dp: [seq + 1] room. */
static void attend_back(const RefConfig *c, const RefLayerState *s, const double *sink, const Row *r,
                        const double *dattn, double *dq, double *dk, double *dv, double *dsink, double *p, double *dp)
{
  int64_t dim = ref_qk_dim(c);
  int64_t v_dim = ref_v_dim(c);
  double sink_p = probabilities(c, s, sink, r, p);
  for (int64_t j = 0; j < r->n; j++) {
    dp[j] = ref_dot(dattn + r->out, s->v + (r->key + j * r->heads) * v_dim, v_dim);
  }
  double mean = ref_dot(p, dp, r->n);
  for (int64_t j = 0; j < r->n; j++) {
    int64_t key = r->key + j * r->heads;
    double dscore = p[j] * (dp[j] - mean) * score_scale(c);
    ref_axpy(dq + r->query, dscore, s->k + key * dim, dim);
    ref_axpy(dk + key * dim, dscore, s->q + r->query, dim);
    ref_axpy(dv + key * v_dim, p[j], dattn + r->out, v_dim);
  }
  if (sink) {
    *dsink -= sink_p * mean;
  }
}

/* ---- grouped-query attention ---- */

static void project(double *y, const double *x, const double *w, const double *bias, int64_t rows, int64_t in,
                    int64_t out)
{
  ref_linear(y, x, w, rows, in, out);
  if (bias) {
    ref_bias(y, bias, rows, out);
  }
}

static void qk_norm(const RefConfig *c, double *y, const double *x, const double *gain, int64_t t, int64_t heads)
{
  int64_t d = c->head_dim;
  if (c->qk_norm == REF_QK_HEAD) {
    ref_rmsnorm(y, x, gain, t * heads, d, c->norm_eps);
  } else if (c->qk_norm == REF_QK_WHOLE) {
    ref_rmsnorm(y, x, gain, t, heads * d, c->norm_eps);
  } else {
    memcpy(y, x, (size_t)(t * heads * d) * sizeof(double));
  }
}

/* Replaces the gradient of a normalised q or k by that of the projection. */
static void qk_norm_back(const RefConfig *c, double *dy, double *dgain, const double *raw, const double *gain,
                         int64_t t, int64_t heads)
{
  int64_t d = c->head_dim;
  double *dx = ref_alloc(t * heads * d, sizeof(double));
  if (c->qk_norm == REF_QK_HEAD) {
    ref_rmsnorm_back(dx, dgain, dy, raw, gain, t * heads, d, c->norm_eps);
  } else if (c->qk_norm == REF_QK_WHOLE) {
    ref_rmsnorm_back(dx, dgain, dy, raw, gain, t, heads * d, c->norm_eps);
  }
  if (c->qk_norm != REF_QK_NONE) {
    memcpy(dy, dx, (size_t)(t * heads * d) * sizeof(double));
  }
  free(dx);
}

static void clip(const RefConfig *c, double *y, const double *x, int64_t n)
{
  for (int64_t i = 0; i < n; i++) {
    y[i] = c->clip_qkv > 0 ? fmin(fmax(x[i], -c->clip_qkv), c->clip_qkv) : x[i];
  }
}

static void clip_back(const RefConfig *c, double *dy, const double *x, int64_t n)
{
  for (int64_t i = 0; i < n && c->clip_qkv > 0; i++) {
    dy[i] = fabs(x[i]) <= c->clip_qkv ? dy[i] : 0;
  }
}

static void grouped(const RefConfig *c, const RefLayer *w, const RefBatch *b, RefLayerState *s)
{
  int64_t t = b->n_seqs * b->seq;
  int64_t h = c->hidden;
  int64_t d = c->head_dim;
  int64_t nq = c->heads * d;
  int64_t nk = c->kv_heads * d;
  project(s->q_raw, s->x_norm, w->q, w->q_bias, t, h, nq);
  project(s->k_raw, s->x_norm, w->k, w->k_bias, t, h, nk);
  project(s->v_mid, s->x_norm, w->v, w->v_bias, t, h, nk);
  qk_norm(c, s->q_mid, s->q_raw, w->q_norm, t, c->heads);
  qk_norm(c, s->k_mid, s->k_raw, w->k_norm, t, c->kv_heads);
  clip(c, s->q, s->q_mid, t * nq);
  clip(c, s->k, s->k_mid, t * nk);
  clip(c, s->v, s->v_mid, t * nk);
  rope(c, s->q, t, b->seq, c->heads, d, 0, d, 1);
  rope(c, s->k, t, b->seq, c->kv_heads, d, 0, d, 1);
}

static void project_back(double *dx, double *dw, double *dbias, const double *dy, const double *x, const double *w,
                         int64_t rows, int64_t in, int64_t out)
{
  ref_linear_dw(dw, dy, x, rows, in, out);
  ref_linear_dx(dx, dy, w, rows, in, out);
  if (dbias) {
    ref_bias_back(dbias, dy, rows, out);
  }
}

/* From dq, dk, dv to the gradient of x_norm, which is added to. */
static void grouped_back(const RefConfig *c, const RefLayer *w, const RefLayer *g, const RefBatch *b, RefLayerState *s,
                         double *dq, double *dk, double *dv, double *dx_norm)
{
  int64_t t = b->n_seqs * b->seq;
  int64_t h = c->hidden;
  int64_t d = c->head_dim;
  int64_t nq = c->heads * d;
  int64_t nk = c->kv_heads * d;
  rope(c, dq, t, b->seq, c->heads, d, 0, d, -1);
  rope(c, dk, t, b->seq, c->kv_heads, d, 0, d, -1);
  clip_back(c, dq, s->q_mid, t * nq);
  clip_back(c, dk, s->k_mid, t * nk);
  clip_back(c, dv, s->v_mid, t * nk);
  qk_norm_back(c, dq, g->q_norm, s->q_raw, w->q_norm, t, c->heads);
  qk_norm_back(c, dk, g->k_norm, s->k_raw, w->k_norm, t, c->kv_heads);
  project_back(dx_norm, g->q, g->q_bias, dq, s->x_norm, w->q, t, h, nq);
  project_back(dx_norm, g->k, g->k_bias, dk, s->x_norm, w->k, t, h, nk);
  project_back(dx_norm, g->v, g->v_bias, dv, s->x_norm, w->v, t, h, nk);
}

/* ---- latent attention ---- */

/* c_q = norm(Wq_a x), q = Wq_b c_q (or q = Wq x); [c; k_rope] = Wkv_a x, per head [k_nope; v] = Wkv_b norm(c);
   k = [k_nope, rope(k_rope)], the rotated part being the same for all heads. */
static void latent(const RefConfig *c, const RefLayer *w, const RefBatch *b, RefLayerState *s)
{
  int64_t t = b->n_seqs * b->seq;
  int64_t h = c->hidden;
  int64_t nq = c->heads;
  int64_t dn = c->nope_dim;
  int64_t dr = c->rope_dim;
  int64_t dv = c->v_dim;
  int64_t wide = c->kv_lora + dr;
  if (w->q_a) {
    ref_linear(s->q_latent, s->x_norm, w->q_a, t, h, c->q_lora);
    ref_rmsnorm(s->c_q, s->q_latent, w->q_a_norm, t, c->q_lora, LATENT_EPS);
    ref_linear(s->q, s->c_q, w->q_b, t, c->q_lora, nq * (dn + dr));
  } else {
    ref_linear(s->q, s->x_norm, w->q, t, h, nq * (dn + dr));
  }
  rope(c, s->q, t, b->seq, nq, dn + dr, dn, dr, 1);
  ref_linear(s->kv_latent, s->x_norm, w->kv_a, t, h, wide);
  for (int64_t row = 0; row < t; row++) {
    ref_rmsnorm(s->c_kv + row * c->kv_lora, s->kv_latent + row * wide, w->kv_a_norm, 1, c->kv_lora, LATENT_EPS);
  }
  ref_linear(s->kv, s->c_kv, w->kv_b, t, c->kv_lora, nq * (dn + dv));
  for (int64_t row = 0; row < t; row++) {
    for (int64_t head = 0; head < nq; head++) {
      const double *kv = s->kv + (row * nq + head) * (dn + dv);
      double *k = s->k + (row * nq + head) * (dn + dr);
      memcpy(k, kv, (size_t)dn * sizeof(double));
      memcpy(k + dn, s->kv_latent + row * wide + c->kv_lora, (size_t)dr * sizeof(double));
      memcpy(s->v + (row * nq + head) * dv, kv + dn, (size_t)dv * sizeof(double));
    }
  }
  rope(c, s->k, t, b->seq, nq, dn + dr, dn, dr, 1);
}

static void latent_back(const RefConfig *c, const RefLayer *w, const RefLayer *g, const RefBatch *b, RefLayerState *s,
                        double *dq, double *dk, const double *dv, double *dx_norm)
{
  int64_t t = b->n_seqs * b->seq;
  int64_t h = c->hidden;
  int64_t nq = c->heads;
  int64_t dn = c->nope_dim;
  int64_t dr = c->rope_dim;
  int64_t wide = c->kv_lora + dr;
  double *dkv = ref_alloc(t * nq * (dn + c->v_dim), sizeof(double));
  double *dlatent = ref_alloc(t * wide, sizeof(double));
  double *dc = ref_alloc(t * c->kv_lora, sizeof(double));
  rope(c, dq, t, b->seq, nq, dn + dr, dn, dr, -1);
  rope(c, dk, t, b->seq, nq, dn + dr, dn, dr, -1);
  for (int64_t row = 0; row < t; row++) {
    for (int64_t head = 0; head < nq; head++) {
      double *to = dkv + (row * nq + head) * (dn + c->v_dim);
      const double *k = dk + (row * nq + head) * (dn + dr);
      memcpy(to, k, (size_t)dn * sizeof(double));
      memcpy(to + dn, dv + (row * nq + head) * c->v_dim, (size_t)c->v_dim * sizeof(double));
      ref_axpy(dlatent + row * wide + c->kv_lora, 1, k + dn, dr);
    }
  }
  ref_linear_dw(g->kv_b, dkv, s->c_kv, t, c->kv_lora, nq * (dn + c->v_dim));
  ref_linear_dx(dc, dkv, w->kv_b, t, c->kv_lora, nq * (dn + c->v_dim));
  for (int64_t row = 0; row < t; row++) {
    ref_rmsnorm_back(dlatent + row * wide, g->kv_a_norm, dc + row * c->kv_lora, s->kv_latent + row * wide, w->kv_a_norm,
                     1, c->kv_lora, LATENT_EPS);
  }
  project_back(dx_norm, g->kv_a, NULL, dlatent, s->x_norm, w->kv_a, t, h, wide);
  if (w->q_a) {
    double *dcq = ref_alloc(t * c->q_lora, sizeof(double));
    double *draw = ref_alloc(t * c->q_lora, sizeof(double));
    project_back(dcq, g->q_b, NULL, dq, s->c_q, w->q_b, t, c->q_lora, nq * (dn + dr));
    ref_rmsnorm_back(draw, g->q_a_norm, dcq, s->q_latent, w->q_a_norm, t, c->q_lora, LATENT_EPS);
    project_back(dx_norm, g->q_a, NULL, draw, s->x_norm, w->q_a, t, h, c->q_lora);
    free(dcq);
    free(draw);
  } else {
    project_back(dx_norm, g->q, NULL, dq, s->x_norm, w->q, t, h, nq * (dn + dr));
  }
  free(dkv);
  free(dlatent);
  free(dc);
}

/* ---- the layer ---- */

void ref_attention(const RefConfig *c, const RefLayer *w, const RefBatch *b, int64_t layer, RefLayerState *s)
{
  int64_t t = b->n_seqs * b->seq;
  int64_t h = c->hidden;
  ref_rmsnorm(s->x_norm, s->x, w->input_norm, t, h, c->norm_eps);
  if (c->mla) {
    latent(c, w, b, s);
  } else {
    grouped(c, w, b, s);
  }
  double *p = ref_alloc(b->seq + 1, sizeof(double));
  for (int64_t i = 0; i < t; i++) {
    for (int64_t head = 0; head < c->heads; head++) {
      Row r = row_of(c, layer, i / b->seq * b->seq, i % b->seq, head);
      attend(c, s, w->sinks ? w->sinks + head : NULL, &r, p);
    }
  }
  free(p);
  project(s->a, s->o, w->o, w->o_bias, t, c->heads * ref_v_dim(c), h);
  ref_axpy(s->a, 1, s->x, t * h);
}

void ref_attention_back(const RefConfig *c, const RefLayer *w, const RefLayer *g, const RefBatch *b, int64_t layer,
                        RefLayerState *s)
{
  int64_t t = b->n_seqs * b->seq;
  int64_t h = c->hidden;
  int64_t no = c->heads * ref_v_dim(c);
  double *dattn = ref_alloc(t * no, sizeof(double));
  double *dq = ref_alloc(t * c->heads * ref_qk_dim(c), sizeof(double));
  double *dk = ref_alloc(t * ref_key_heads(c) * ref_qk_dim(c), sizeof(double));
  double *dv = ref_alloc(t * ref_key_heads(c) * ref_v_dim(c), sizeof(double));
  double *dx_norm = ref_alloc(t * h, sizeof(double));
  double *p = ref_alloc(b->seq + 1, sizeof(double));
  double *dp = ref_alloc(b->seq + 1, sizeof(double));
  project_back(dattn, g->o, g->o_bias, s->da, s->o, w->o, t, no, h);
  for (int64_t i = 0; i < t; i++) {
    for (int64_t head = 0; head < c->heads; head++) {
      Row r = row_of(c, layer, i / b->seq * b->seq, i % b->seq, head);
      attend_back(c, s, w->sinks ? w->sinks + head : NULL, &r, dattn, dq, dk, dv, w->sinks ? g->sinks + head : NULL, p,
                  dp);
    }
  }
  if (c->mla) {
    latent_back(c, w, g, b, s, dq, dk, dv, dx_norm);
  } else {
    grouped_back(c, w, g, b, s, dq, dk, dv, dx_norm);
  }
  memcpy(s->dx, s->da, (size_t)(t * h) * sizeof(double));
  ref_rmsnorm_back(s->dx, g->input_norm, dx_norm, s->x, w->input_norm, t, h, c->norm_eps);
  free(dattn);
  free(dq);
  free(dk);
  free(dv);
  free(dx_norm);
  free(p);
  free(dp);
}
