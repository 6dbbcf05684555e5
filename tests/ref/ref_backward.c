/* The backward pass: the derivative of loss + balance_loss, written out by hand, in the reverse order of ref_forward.c.
   Choices, drops and the shares `ce` of the balance loss are constants. */
#include "tests/ref/ref_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ref/ref_math.h"

static void head_back(const RefConfig *c, const RefParams *p, const RefBatch *b, RefState *s, RefParams *g)
{
  int64_t t = b->n_seqs * b->seq;
  double *dlogits = ref_alloc(t * c->vocab, sizeof(double));
  double *dx_norm = ref_alloc(t * c->hidden, sizeof(double));
  for (int64_t row = 0; row < t; row++) {
    if (b->labels[row] < 0) {
      continue;
    }
    ref_axpy(dlogits + row * c->vocab, 1 / (double)s->valid, s->probs + row * c->vocab, c->vocab);
    dlogits[row * c->vocab + b->labels[row]] -= 1 / (double)s->valid;
  }
  ref_linear_dw(g->head, dlogits, s->x_norm, t, c->hidden, c->vocab);
  ref_linear_dx(dx_norm, dlogits, p->head, t, c->hidden, c->vocab);
  memset(s->dx, 0, (size_t)(t * c->hidden) * sizeof(double));
  ref_rmsnorm_back(s->dx, g->final_norm, dx_norm, s->x, p->final_norm, t, c->hidden, c->norm_eps);
  free(dlogits);
  free(dx_norm);
}

/* One (token, expert) pair, given the gradient `dout` [H] of the token's output. Adds to dh [H] and to the expert's
   gradient, and returns the gradient of the routing weight. dact: [F] room. */
static double expert_back(const RefConfig *c, const RefExpert *w, const RefExpert *g, const RefLayerState *s,
                          int64_t pair, const double *dout, double *dh, double *act, double *dact)
{
  int64_t h = c->hidden;
  int64_t f = c->ffn_hidden;
  const double *in = s->h + pair / c->top_k * h;
  const double *gate = s->gate + pair * f;
  const double *up = s->up + pair * f;
  memset(dact, 0, (size_t)f * sizeof(double));
  ref_linear_dx(dact, dout, w->down, 1, f, h);
  double weight = s->weights[pair];
  for (int64_t i = 0; i < f; i++) {
    double sigma = 1 / (1 + exp(-gate[i]));
    double dgate = weight * dact[i] * up[i] * sigma * (1 + gate[i] * (1 - sigma));
    double dup = weight * dact[i] * gate[i] * sigma;
    act[i] = weight * gate[i] * sigma * up[i]; /* weighted, as dWdown needs it */
    ref_axpy(g->gate + i * h, dgate, in, h);
    ref_axpy(g->up + i * h, dup, in, h);
    ref_axpy(dh, dgate, w->gate + i * h, h);
    ref_axpy(dh, dup, w->up + i * h, h);
  }
  ref_linear_dw(g->down, dout, act, 1, f, h);
  return ref_dot(dout, s->y + pair * h, h);
}

static void experts_back(const RefConfig *c, const RefLayer *w, const RefLayer *g, int64_t t, RefLayerState *s,
                         const double *dout, double *dh)
{
  double *act = ref_alloc(c->ffn_hidden, sizeof(double));
  double *dact = ref_alloc(c->ffn_hidden, sizeof(double));
  memset(s->dweights, 0, (size_t)(t * c->top_k) * sizeof(double));
  for (int64_t e = 0; e < c->experts; e++) {
    for (int64_t pair = 0; pair < t * c->top_k; pair++) {
      if (s->experts[pair] == e && s->kept[pair]) {
        int64_t row = pair / c->top_k;
        s->dweights[pair] = expert_back(c, &w->experts[e], &g->experts[e], s, pair, dout + row * c->hidden,
                                        dh + row * c->hidden, act, dact);
      }
    }
  }
  free(act);
  free(dact);
}

/* Gradient of the router's logits: that of the routing weights, and that of the balance loss, in which with
   b_e = coef ce_e / (n_seqs seq): dz_e = p_e (b_e - sum p b). */
static void route_back(const RefConfig *c, const RefBatch *b, RefLayerState *s)
{
  int64_t n_experts = c->experts;
  double *slope = ref_alloc(n_experts, sizeof(double));
  memset(s->dlogits, 0, (size_t)(b->n_seqs * b->seq * n_experts) * sizeof(double));
  for (int64_t n = 0; n < b->n_seqs; n++) {
    int64_t first = n * b->seq;
    memset(slope, 0, (size_t)n_experts * sizeof(double));
    for (int64_t pair = first * c->top_k; pair < (first + b->seq) * c->top_k; pair++) {
      double share = (double)n_experts / (double)(b->seq * c->top_k);
      slope[s->experts[pair]] += c->balance_coef * share / (double)(b->n_seqs * b->seq);
    }
    for (int64_t row = first; row < first + b->seq; row++) {
      const int32_t *chosen = s->experts + row * c->top_k;
      const double *weights = s->weights + row * c->top_k;
      const double *dweights = s->dweights + row * c->top_k;
      const double *probs = s->probs + row * n_experts;
      double *dz = s->dlogits + row * n_experts;
      double mean = ref_dot(weights, dweights, c->top_k);
      for (int64_t k = 0; k < c->top_k; k++) {
        dz[chosen[k]] += c->router == REF_SOFTMAX ? weights[k] * dweights[k] : weights[k] * (dweights[k] - mean);
      }
      double mean_slope = ref_dot(probs, slope, n_experts);
      for (int64_t e = 0; e < n_experts; e++) {
        dz[e] += probs[e] * (slope[e] - mean_slope);
        dz[e] -= c->router == REF_SOFTMAX ? probs[e] * mean : 0;
      }
    }
  }
  free(slope);
}

/* One query row of one head, given do [d] in dattn; adds to dq, dk, dv. p and dp: [seq] room. */
static void attend_back(const RefConfig *c, const RefLayerState *s, int64_t first_row, int64_t last, int64_t head,
                        const double *dattn, double *dq, double *dk, double *dv, double *p, double *dp)
{
  int64_t d = c->head_dim;
  int64_t kv_head = head / (c->heads / c->kv_heads);
  int64_t query = ((first_row + last) * c->heads + head) * d;
  double scale = 1 / sqrt((double)d);
  for (int64_t j = 0; j <= last; j++) {
    int64_t key = ((first_row + j) * c->kv_heads + kv_head) * d;
    p[j] = ref_dot(s->q + query, s->k + key, d) * scale;
    dp[j] = ref_dot(dattn + query, s->v + key, d);
  }
  ref_softmax(p, p, last + 1);
  double mean = ref_dot(p, dp, last + 1);
  for (int64_t j = 0; j <= last; j++) {
    int64_t key = ((first_row + j) * c->kv_heads + kv_head) * d;
    double dscore = p[j] * (dp[j] - mean) * scale;
    ref_axpy(dq + query, dscore, s->k + key, d);
    ref_axpy(dk + key, dscore, s->q + query, d);
    ref_axpy(dv + key, p[j], dattn + query, d);
  }
}

/* From the heads' outputs back to q, k, v before RoPE (all with room for t rows, zero at entry). */
static void core_back(const RefConfig *c, const RefBatch *b, const RefLayerState *s, const double *dattn, double *dq,
                      double *dk, double *dv)
{
  int64_t t = b->n_seqs * b->seq;
  double *p = ref_alloc(b->seq, sizeof(double));
  double *dp = ref_alloc(b->seq, sizeof(double));
  for (int64_t n = 0; n < b->n_seqs; n++) {
    for (int64_t i = 0; i < b->seq; i++) {
      for (int64_t head = 0; head < c->heads; head++) {
        attend_back(c, s, n * b->seq, i, head, dattn, dq, dk, dv, p, dp);
      }
    }
  }
  free(p);
  free(dp);
  ref_rope(dq, t, b->seq, c->heads, c->head_dim, c->rope_theta, -1);
  ref_rope(dk, t, b->seq, c->kv_heads, c->head_dim, c->rope_theta, -1);
}

/* Replaces the gradient of a normalised q or k by that of the projection. */
static void qk_norm_back(double *dy, double *dgain, const double *raw, const double *gain, int64_t rows, int64_t d,
                         double eps)
{
  double *dx = ref_alloc(rows * d, sizeof(double));
  ref_rmsnorm_back(dx, dgain, dy, raw, gain, rows, d, eps);
  memcpy(dy, dx, (size_t)(rows * d) * sizeof(double));
  free(dx);
}

/* From da to dx: the residual, and the way through o, attention, q, k, v and the input norm. */
static void attention_back(const RefConfig *c, const RefLayer *w, const RefLayer *g, const RefBatch *b,
                           RefLayerState *s)
{
  int64_t t = b->n_seqs * b->seq;
  int64_t h = c->hidden;
  int64_t d = c->head_dim;
  int64_t nq = c->heads * d;
  int64_t nkv = c->kv_heads * d;
  double *dattn = ref_alloc(t * nq, sizeof(double));
  double *dq = ref_alloc(t * nq, sizeof(double));
  double *dk = ref_alloc(t * nkv, sizeof(double));
  double *dv = ref_alloc(t * nkv, sizeof(double));
  double *dx_norm = ref_alloc(t * h, sizeof(double));
  ref_linear_dw(g->o, s->da, s->o, t, nq, h);
  ref_linear_dx(dattn, s->da, w->o, t, nq, h);
  core_back(c, b, s, dattn, dq, dk, dv);
  if (c->qk_norm) {
    qk_norm_back(dq, g->q_norm, s->q_raw, w->q_norm, t * c->heads, d, c->norm_eps);
    qk_norm_back(dk, g->k_norm, s->k_raw, w->k_norm, t * c->kv_heads, d, c->norm_eps);
  }
  ref_linear_dw(g->q, dq, s->x_norm, t, h, nq);
  ref_linear_dw(g->k, dk, s->x_norm, t, h, nkv);
  ref_linear_dw(g->v, dv, s->x_norm, t, h, nkv);
  ref_linear_dx(dx_norm, dq, w->q, t, h, nq);
  ref_linear_dx(dx_norm, dk, w->k, t, h, nkv);
  ref_linear_dx(dx_norm, dv, w->v, t, h, nkv);
  memcpy(s->dx, s->da, (size_t)(t * h) * sizeof(double));
  ref_rmsnorm_back(s->dx, g->input_norm, dx_norm, s->x, w->input_norm, t, h, c->norm_eps);
  free(dattn);
  free(dq);
  free(dk);
  free(dv);
  free(dx_norm);
}

void ref_backward(const RefConfig *c, const RefParams *p, const RefBatch *b, RefState *s, RefParams *g)
{
  int64_t t = b->n_seqs * b->seq;
  double *dh = ref_alloc(t * c->hidden, sizeof(double));
  memset(g->data, 0, (size_t)g->n * sizeof(double));
  head_back(c, p, b, s, g);
  const double *dout = s->dx;
  for (int64_t l = c->layers - 1; l >= 0; l--) {
    const RefLayer *w = &p->layers[l];
    const RefLayer *gw = &g->layers[l];
    RefLayerState *layer = &s->layers[l];
    memset(dh, 0, (size_t)(t * c->hidden) * sizeof(double));
    experts_back(c, w, gw, t, layer, dout, dh);
    route_back(c, b, layer);
    ref_linear_dw(gw->router, layer->dlogits, layer->h, t, c->hidden, c->experts);
    ref_linear_dx(dh, layer->dlogits, w->router, t, c->hidden, c->experts);
    memcpy(layer->da, dout, (size_t)(t * c->hidden) * sizeof(double));
    ref_rmsnorm_back(layer->da, gw->post_norm, dh, layer->a, w->post_norm, t, c->hidden, c->norm_eps);
    attention_back(c, w, gw, b, layer);
    dout = layer->dx;
  }
  for (int64_t row = 0; row < t; row++) {
    ref_axpy(g->embed + b->tokens[row] * c->hidden, 1, dout + row * c->hidden, c->hidden);
  }
  free(dh);
}
