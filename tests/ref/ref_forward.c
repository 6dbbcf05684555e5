/* The forward pass, layer by layer:
     a = x + attention(rmsnorm(x)),  h = rmsnorm(a),  next x = a + sum over the token's experts of w_e E_e(h),
   with a shared expert + E(h), or in a dense layer a + MLP(h); then the final norm, the output table and the mean
   cross-entropy. */
#include "tests/ref/ref_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ref/ref_math.h"

bool ref_is_dense(const RefConfig *c, int64_t layer)
{
  return layer < c->dense_layers;
}

static void *own(RefLayerState *s, int64_t n, int64_t size)
{
  if (s->n_owned == REF_OWNED) {
    ref_fail("too many buffers in a layer");
  }
  return s->owned[s->n_owned++] = ref_alloc(n, size);
}

static double *reals(RefLayerState *s, int64_t n)
{
  return own(s, n, sizeof(double));
}

static RefMlpState mlp_state(const RefConfig *c, RefLayerState *s, int64_t rows, int64_t f)
{
  return (RefMlpState){.gate = reals(s, rows * f), .up = reals(s, rows * f), .y = reals(s, rows * c->hidden)};
}

static void attention_state(const RefConfig *c, int64_t t, RefLayerState *s)
{
  int64_t q = c->heads * ref_qk_dim(c);
  int64_t k = ref_key_heads(c) * ref_qk_dim(c);
  int64_t v = ref_key_heads(c) * ref_v_dim(c);
  s->q_raw = reals(s, t * q);
  s->k_raw = reals(s, t * k);
  s->q_mid = reals(s, t * q);
  s->k_mid = reals(s, t * k);
  s->v_mid = reals(s, t * v);
  s->q = reals(s, t * q);
  s->k = reals(s, t * k);
  s->v = reals(s, t * v);
  s->q_latent = reals(s, t * c->q_lora);
  s->c_q = reals(s, t * c->q_lora);
  s->kv_latent = reals(s, t * (c->kv_lora + c->rope_dim));
  s->c_kv = reals(s, t * c->kv_lora);
  s->kv = reals(s, t * c->heads * (c->nope_dim + c->v_dim));
  s->o = reals(s, t * c->heads * ref_v_dim(c));
}

RefLayerState ref_layer_state_new(const RefConfig *c, int64_t layer, int64_t t)
{
  RefLayerState s = {0};
  int64_t pairs = t * c->top_k;
  s.x = reals(&s, t * c->hidden);
  s.x_norm = reals(&s, t * c->hidden);
  attention_state(c, t, &s);
  s.a = reals(&s, t * c->hidden);
  s.h = reals(&s, t * c->hidden);
  s.logits = reals(&s, t * c->experts);
  s.probs = reals(&s, t * c->experts);
  s.experts = own(&s, pairs, sizeof(int32_t));
  s.weights = reals(&s, pairs);
  s.kept = own(&s, pairs, sizeof(bool));
  s.pairs = mlp_state(c, &s, ref_is_dense(c, layer) ? 0 : pairs, c->ffn_hidden);
  s.shared = mlp_state(c, &s, c->shared ? t : 0, c->shared);
  s.dense = mlp_state(c, &s, ref_is_dense(c, layer) ? t : 0, c->dense_hidden);
  s.dx = reals(&s, t * c->hidden);
  s.da = reals(&s, t * c->hidden);
  s.dweights = reals(&s, pairs);
  s.dlogits = reals(&s, t * c->experts);
  return s;
}

RefState *ref_state_new(const RefConfig *c, int64_t n_seqs, int64_t seq)
{
  const int64_t real = sizeof(double);
  int64_t t = n_seqs * seq;
  RefState *s = ref_alloc(1, sizeof *s);
  s->layers = ref_alloc(c->layers, sizeof(RefLayerState));
  for (int64_t l = 0; l < c->layers; l++) {
    s->layers[l] = ref_layer_state_new(c, l, t);
  }
  s->x = ref_alloc(t * c->hidden, real);
  s->x_norm = ref_alloc(t * c->hidden, real);
  s->logits = ref_alloc(t * c->vocab, real);
  s->probs = ref_alloc(t * c->vocab, real);
  s->dx = ref_alloc(t * c->hidden, real);
  return s;
}

void ref_state_free(const RefConfig *c, RefState *s)
{
  for (int64_t l = 0; s && l < c->layers; l++) {
    for (int i = 0; i < s->layers[l].n_owned; i++) {
      free(s->layers[l].owned[i]);
    }
  }
  if (s) {
    free(s->layers);
    free(s->x);
    free(s->x_norm);
    free(s->logits);
    free(s->probs);
    free(s->dx);
    free(s);
  }
}

/* out = a + sum over the kept pairs of w_e E_e(h) + shared(h); of a dense layer a + MLP(h) */
static void ffn(const RefConfig *c, const RefLayer *w, bool dense, int64_t t, RefLayerState *s, double *out)
{
  int64_t h = c->hidden;
  memcpy(out, s->a, (size_t)(t * h) * sizeof(double));
  for (int64_t row = 0; dense && row < t; row++) {
    ref_mlp(c, &w->dense, c->dense_hidden, false, s->h + row * h, row, &s->dense);
    ref_axpy(out + row * h, 1, s->dense.y + row * h, h);
  }
  for (int64_t pair = 0; !dense && pair < t * c->top_k; pair++) {
    int64_t row = pair / c->top_k;
    if (s->kept[pair]) {
      ref_mlp(c, &w->experts[s->experts[pair]], c->ffn_hidden, c->clamped, s->h + row * h, pair, &s->pairs);
      ref_axpy(out + row * h, s->weights[pair], s->pairs.y + pair * h, h);
    }
  }
  for (int64_t row = 0; !dense && c->shared && row < t; row++) {
    ref_mlp(c, &w->shared, c->shared, false, s->h + row * h, row, &s->shared);
    ref_axpy(out + row * h, 1, s->shared.y + row * h, h);
  }
}

static void head(const RefConfig *c, const RefParams *p, const RefBatch *b, RefState *s)
{
  int64_t t = b->n_seqs * b->seq;
  ref_rmsnorm(s->x_norm, s->x, p->final_norm, t, c->hidden, c->norm_eps);
  ref_linear(s->logits, s->x_norm, p->head, t, c->hidden, c->vocab);
  double sum = 0;
  for (int64_t row = 0; row < t; row++) {
    const double *logits = s->logits + row * c->vocab;
    double logit = b->labels[row] >= 0 ? logits[b->labels[row]] : 0;
    double most = logits[0];
    for (int64_t i = 1; i < c->vocab; i++) {
      most = fmax(most, logits[i]);
    }
    double exps = 0;
    for (int64_t i = 0; i < c->vocab; i++) {
      exps += exp(logits[i] - most);
    }
    if (b->labels[row] >= 0) {
      sum += most + log(exps) - logit;
      s->valid++;
    }
    ref_softmax(s->probs + row * c->vocab, logits, c->vocab);
  }
  s->loss = s->valid ? sum / (double)s->valid : 0;
}

static void check_batch(const RefConfig *c, const RefBatch *b)
{
  for (int64_t i = 0; i < b->n_seqs * b->seq; i++) {
    if (b->tokens[i] < 0 || b->tokens[i] >= c->vocab || b->labels[i] >= c->vocab) {
      ref_fail("sequence %lld position %lld: token %d, label %d, vocabulary %lld", (long long)(i / b->seq),
               (long long)(i % b->seq), b->tokens[i], b->labels[i], (long long)c->vocab);
    }
  }
  for (int64_t i = 0; b->pinned && i < c->layers * b->n_seqs * b->seq * c->top_k; i++) {
    if (b->pinned[i] < 0 || b->pinned[i] >= c->experts) {
      ref_fail("pinned choice %d is not an expert", b->pinned[i]);
    }
  }
}

void ref_forward(const RefConfig *c, const RefParams *p, const RefBatch *b, RefState *s)
{
  int64_t t = b->n_seqs * b->seq;
  check_batch(c, b);
  s->balance_loss = 0;
  s->valid = 0;
  s->dropped = 0;
  s->min_margin = INFINITY;
  for (int64_t row = 0; row < t; row++) {
    memcpy(s->layers[0].x + row * c->hidden, p->embed + b->tokens[row] * c->hidden, (size_t)c->hidden * sizeof(double));
  }
  for (int64_t l = 0; l < c->layers; l++) {
    RefLayerState *layer = &s->layers[l];
    ref_attention(c, &p->layers[l], b, l, layer);
    ref_rmsnorm(layer->h, layer->a, p->layers[l].post_norm, t, c->hidden, c->norm_eps);
    if (!ref_is_dense(c, l)) {
      ref_route(c, &p->layers[l], b, l, s);
    }
    ffn(c, &p->layers[l], ref_is_dense(c, l), t, layer, l + 1 < c->layers ? s->layers[l + 1].x : s->x);
  }
  head(c, p, b, s);
}
