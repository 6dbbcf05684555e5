/* The backward pass: the derivative of loss + balance_loss, written out by hand, in the reverse order of ref_forward.c.
   Choices, drops and the shares `ce` of the balance loss are constants. */
#include "tests/ref/ref_model.h"

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

/* From the gradient `dout` [T, H] of the layer's output to dh, which is added to, and dweights. */
static void ffn_back(const RefConfig *c, const RefLayer *w, const RefLayer *g, bool dense, int64_t t, RefLayerState *s,
                     const double *dout, double *dh)
{
  int64_t h = c->hidden;
  double *weighted = ref_alloc(h, sizeof(double));
  for (int64_t row = 0; dense && row < t; row++) {
    ref_mlp_back(c, &w->dense, &g->dense, c->dense_hidden, false, s->h + row * h, dout + row * h, row, &s->dense,
                 dh + row * h);
  }
  for (int64_t row = 0; !dense && c->shared && row < t; row++) {
    ref_mlp_back(c, &w->shared, &g->shared, c->shared, false, s->h + row * h, dout + row * h, row, &s->shared,
                 dh + row * h);
  }
  for (int64_t pair = 0; !dense && pair < t * c->top_k; pair++) {
    int64_t row = pair / c->top_k;
    int32_t e = s->experts[pair];
    s->dweights[pair] = 0;
    if (s->kept[pair]) {
      memset(weighted, 0, (size_t)h * sizeof(double));
      ref_axpy(weighted, s->weights[pair], dout + row * h, h);
      ref_mlp_back(c, &w->experts[e], &g->experts[e], c->ffn_hidden, c->clamped, s->h + row * h, weighted, pair,
                   &s->pairs, dh + row * h);
      s->dweights[pair] = ref_dot(dout + row * h, s->pairs.y + pair * h, h);
    }
  }
  free(weighted);
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
    bool dense = ref_is_dense(c, l);
    ffn_back(c, w, gw, dense, t, layer, dout, dh);
    if (!dense) {
      ref_route_back(c, b, layer);
      for (int64_t pair = 0; c->router == REF_SIGMOID_BIAS && pair < t * c->top_k; pair++) {
        gw->router_bias[layer->experts[pair]]++;
      }
      ref_linear_dw(gw->router, layer->dlogits, layer->h, t, c->hidden, c->experts);
      ref_linear_dx(dh, layer->dlogits, w->router, t, c->hidden, c->experts);
      if (c->router_bias) {
        ref_bias_back(gw->router_bias, layer->dlogits, t, c->experts);
      }
    }
    memcpy(layer->da, dout, (size_t)(t * c->hidden) * sizeof(double));
    ref_rmsnorm_back(layer->da, gw->post_norm, dh, layer->a, w->post_norm, t, c->hidden, c->norm_eps);
    ref_attention_back(c, w, gw, b, l, layer);
    dout = layer->dx;
  }
  for (int64_t row = 0; row < t; row++) {
    ref_axpy(g->embed + b->tokens[row] * c->hidden, 1, dout + row * c->hidden, c->hidden);
  }
  free(dh);
}
