/* The forward pass, layer by layer:
     a = x + Wo attention(rmsnorm(x)),  h = rmsnorm(a),  next x = a + sum over the token's experts of w_e E_e(h),
   then the final norm, the output table and the mean cross-entropy. */
#include "tests/ref/ref_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ref/ref_math.h"

RefState *ref_state_new(const RefConfig *c, int64_t n_seqs, int64_t seq)
{
  const int64_t real = sizeof(double);
  int64_t t = n_seqs * seq;
  int64_t q = c->heads * c->head_dim;
  int64_t kv = c->kv_heads * c->head_dim;
  int64_t pairs = t * c->top_k;
  RefState *s = ref_alloc(1, sizeof *s);
  s->layers = ref_alloc(c->layers, sizeof(RefLayerState));
  for (int64_t l = 0; l < c->layers; l++) {
    RefLayerState *layer = &s->layers[l];
    layer->x = ref_alloc(t * c->hidden, real);
    layer->x_norm = ref_alloc(t * c->hidden, real);
    layer->q_raw = ref_alloc(t * q, real);
    layer->k_raw = ref_alloc(t * kv, real);
    layer->q = ref_alloc(t * q, real);
    layer->k = ref_alloc(t * kv, real);
    layer->v = ref_alloc(t * kv, real);
    layer->o = ref_alloc(t * q, real);
    layer->a = ref_alloc(t * c->hidden, real);
    layer->h = ref_alloc(t * c->hidden, real);
    layer->logits = ref_alloc(t * c->experts, real);
    layer->probs = ref_alloc(t * c->experts, real);
    layer->experts = ref_alloc(pairs, sizeof(int32_t));
    layer->weights = ref_alloc(pairs, real);
    layer->kept = ref_alloc(pairs, sizeof(bool));
    layer->gate = ref_alloc(pairs * c->ffn_hidden, real);
    layer->up = ref_alloc(pairs * c->ffn_hidden, real);
    layer->y = ref_alloc(pairs * c->hidden, real);
    layer->dx = ref_alloc(t * c->hidden, real);
    layer->da = ref_alloc(t * c->hidden, real);
    layer->dweights = ref_alloc(pairs, real);
    layer->dlogits = ref_alloc(t * c->experts, real);
  }
  s->x = ref_alloc(t * c->hidden, real);
  s->x_norm = ref_alloc(t * c->hidden, real);
  s->probs = ref_alloc(t * c->vocab, real);
  s->dx = ref_alloc(t * c->hidden, real);
  return s;
}

void ref_state_free(const RefConfig *c, RefState *s)
{
  for (int64_t l = 0; s && l < c->layers; l++) {
    RefLayerState *y = &s->layers[l];
    void *all[] = {y->x,  y->x_norm, y->q_raw,  y->k_raw, y->q,        y->k,       y->v,    y->o,
                   y->a,  y->h,      y->logits, y->probs, y->experts,  y->weights, y->kept, y->gate,
                   y->up, y->y,      y->dx,     y->da,    y->dweights, y->dlogits};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
      free(all[i]);
    }
  }
  if (s) {
    free(s->layers);
    free(s->x);
    free(s->x_norm);
    free(s->probs);
    free(s->dx);
    free(s);
  }
}

/* Causal attention of one query row over the positions 0 .. last of its sequence. */
static void attend(const RefConfig *c, RefLayerState *s, int64_t first_row, int64_t last, int64_t head, double *p)
{
  int64_t d = c->head_dim;
  int64_t kv_head = head / (c->heads / c->kv_heads);
  const double *q = s->q + ((first_row + last) * c->heads + head) * d;
  double *o = s->o + ((first_row + last) * c->heads + head) * d;
  for (int64_t j = 0; j <= last; j++) {
    p[j] = ref_dot(q, s->k + ((first_row + j) * c->kv_heads + kv_head) * d, d) / sqrt((double)d);
  }
  ref_softmax(p, p, last + 1);
  memset(o, 0, (size_t)d * sizeof(double));
  for (int64_t j = 0; j <= last; j++) {
    ref_axpy(o, p[j], s->v + ((first_row + j) * c->kv_heads + kv_head) * d, d);
  }
}

static void attention(const RefConfig *c, const RefLayer *w, const RefBatch *b, RefLayerState *s)
{
  int64_t t = b->n_seqs * b->seq;
  int64_t h = c->hidden;
  int64_t d = c->head_dim;
  ref_rmsnorm(s->x_norm, s->x, w->input_norm, t, h, c->norm_eps);
  ref_linear(s->q_raw, s->x_norm, w->q, t, h, c->heads * d);
  ref_linear(s->k_raw, s->x_norm, w->k, t, h, c->kv_heads * d);
  ref_linear(s->v, s->x_norm, w->v, t, h, c->kv_heads * d);
  if (c->qk_norm) {
    ref_rmsnorm(s->q, s->q_raw, w->q_norm, t * c->heads, d, c->norm_eps);
    ref_rmsnorm(s->k, s->k_raw, w->k_norm, t * c->kv_heads, d, c->norm_eps);
  } else {
    memcpy(s->q, s->q_raw, (size_t)(t * c->heads * d) * sizeof(double));
    memcpy(s->k, s->k_raw, (size_t)(t * c->kv_heads * d) * sizeof(double));
  }
  ref_rope(s->q, t, b->seq, c->heads, d, c->rope_theta, 1);
  ref_rope(s->k, t, b->seq, c->kv_heads, d, c->rope_theta, 1);
  double *p = ref_alloc(b->seq, sizeof(double));
  for (int64_t n = 0; n < b->n_seqs; n++) {
    for (int64_t i = 0; i < b->seq; i++) {
      for (int64_t head = 0; head < c->heads; head++) {
        attend(c, s, n * b->seq, i, head, p);
      }
    }
  }
  free(p);
  ref_linear(s->a, s->o, w->o, t, c->heads * d, h);
  ref_axpy(s->a, 1, s->x, t * h);
}

/* The K allowed experts of highest logit, by descending logit; of equal ones the lowest index first. Returns the gap
   between the last chosen and the best one left. */
static double choose(const RefConfig *c, const double *logits, int32_t *chosen)
{
  bool *open = ref_alloc(c->experts, sizeof(bool));
  for (int64_t e = 0; e < c->experts; e++) {
    open[e] = c->n_route_only == 0;
  }
  for (int64_t i = 0; i < c->n_route_only; i++) {
    open[c->route_only[i]] = true;
  }
  double margin = INFINITY;
  for (int64_t k = 0; k <= c->top_k; k++) {
    int64_t best = -1;
    for (int64_t e = 0; e < c->experts; e++) {
      if (open[e] && (best < 0 || logits[e] > logits[best])) {
        best = e;
      }
    }
    if (k < c->top_k) {
      chosen[k] = (int32_t)best;
      open[best] = false;
    } else if (best >= 0) {
      margin = logits[chosen[k - 1]] - logits[best];
    }
  }
  free(open);
  return margin;
}

static void weigh(const RefConfig *c, const double *logits, const double *probs, const int32_t *chosen, double *weights)
{
  double sum = 0;
  for (int64_t k = 0; k < c->top_k; k++) {
    weights[k] = c->router == REF_TOPK_SOFTMAX ? logits[chosen[k]] : probs[chosen[k]];
    sum += weights[k];
  }
  if (c->router == REF_TOPK_SOFTMAX) {
    ref_softmax(weights, weights, c->top_k);
  }
  for (int64_t k = 0; c->router == REF_SOFTMAX_RENORM && k < c->top_k; k++) {
    weights[k] /= sum;
  }
}

int64_t ref_capacity(const RefConfig *c, int64_t seq)
{
  if (c->capacity == 0) {
    return seq * c->top_k;
  }
  double limit = ceil(c->capacity * (double)(seq * c->top_k) / (double)c->experts);
  return limit < 1 ? 1 : limit < (double)(seq * c->top_k) ? (int64_t)limit : seq * c->top_k;
}

/* Choices, weights, drops and the balance loss of one layer. */
static void route(const RefConfig *c, const RefLayer *w, const RefBatch *b, int64_t l, RefState *state)
{
  RefLayerState *s = &state->layers[l];
  int64_t t = b->n_seqs * b->seq;
  int64_t k = c->top_k;
  int64_t limit = ref_capacity(c, b->seq);
  int64_t *picks = ref_alloc(c->experts, sizeof(int64_t));
  ref_linear(s->logits, s->h, w->router, t, c->hidden, c->experts);
  for (int64_t n = 0; n < b->n_seqs; n++) {
    memset(picks, 0, (size_t)c->experts * sizeof(int64_t));
    for (int64_t row = n * b->seq; row < (n + 1) * b->seq; row++) {
      const double *logits = s->logits + row * c->experts;
      double *probs = s->probs + row * c->experts;
      int32_t *chosen = s->experts + row * k;
      ref_softmax(probs, logits, c->experts);
      if (b->pinned) {
        memcpy(chosen, b->pinned + (l * t + row) * k, (size_t)k * sizeof(int32_t));
      } else {
        state->min_margin = fmin(state->min_margin, choose(c, logits, chosen));
      }
      weigh(c, logits, probs, chosen, s->weights + row * k);
      for (int64_t j = 0; j < k; j++) {
        s->kept[row * k + j] = picks[chosen[j]]++ < limit;
        state->dropped += !s->kept[row * k + j];
      }
    }
    for (int64_t e = 0; e < c->experts; e++) {
      double ce = (double)(c->experts * picks[e]) / (double)(b->seq * k);
      double mean = 0;
      for (int64_t row = n * b->seq; row < (n + 1) * b->seq; row++) {
        mean += s->probs[row * c->experts + e] / (double)b->seq;
      }
      state->balance_loss += c->balance_coef / (double)b->n_seqs * ce * mean;
    }
  }
  free(picks);
}

static double silu(double x)
{
  return x / (1 + exp(-x));
}

/* out = a + sum over the kept pairs of w_e Wdown_e (silu(Wgate_e h) * (Wup_e h)) */
static void experts(const RefConfig *c, const RefLayer *w, int64_t t, RefLayerState *s, double *out)
{
  int64_t h = c->hidden;
  int64_t f = c->ffn_hidden;
  double *act = ref_alloc(f, sizeof(double));
  memcpy(out, s->a, (size_t)(t * h) * sizeof(double));
  for (int64_t e = 0; e < c->experts; e++) {
    for (int64_t pair = 0; pair < t * c->top_k; pair++) {
      if (s->experts[pair] != e || !s->kept[pair]) {
        continue;
      }
      int64_t row = pair / c->top_k;
      double *gate = s->gate + pair * f;
      double *up = s->up + pair * f;
      double *y = s->y + pair * h;
      ref_linear(gate, s->h + row * h, w->experts[e].gate, 1, h, f);
      ref_linear(up, s->h + row * h, w->experts[e].up, 1, h, f);
      for (int64_t i = 0; i < f; i++) {
        act[i] = silu(gate[i]) * up[i];
      }
      ref_linear(y, act, w->experts[e].down, 1, f, h);
      ref_axpy(out + row * h, s->weights[pair], y, h);
    }
  }
  free(act);
}

static void head(const RefConfig *c, const RefParams *p, const RefBatch *b, RefState *s)
{
  int64_t t = b->n_seqs * b->seq;
  ref_rmsnorm(s->x_norm, s->x, p->final_norm, t, c->hidden, c->norm_eps);
  ref_linear(s->probs, s->x_norm, p->head, t, c->hidden, c->vocab);
  double sum = 0;
  for (int64_t row = 0; row < t; row++) {
    double *logits = s->probs + row * c->vocab;
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
    ref_softmax(logits, logits, c->vocab);
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
    attention(c, &p->layers[l], b, layer);
    ref_rmsnorm(layer->h, layer->a, p->layers[l].post_norm, t, c->hidden, c->norm_eps);
    route(c, &p->layers[l], b, l, s);
    experts(c, &p->layers[l], t, layer, l + 1 < c->layers ? s->layers[l + 1].x : s->x);
  }
  head(c, p, b, s);
}
