/* Routing of one layer: scores, choices, weights, drops, balance loss; and the way back. Choices, drops and the shares
   ce of the balance loss are constants to the derivative. */
#include "tests/ref/ref_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ref/ref_math.h"

int64_t ref_capacity(const RefConfig *c, int64_t seq)
{
  if (c->capacity == 0) {
    return seq * c->top_k;
  }
  double limit = ceil(c->capacity * (double)(seq * c->top_k) / (double)c->experts);
  return limit < 1 ? 1 : limit < (double)(seq * c->top_k) ? (int64_t)limit : seq * c->top_k;
}

/* The n open entries of highest score, by descending score; of equal ones the lowest index first. Closes them. Returns
   the gap between the last chosen and the best one left. */
static double take_best(const double *scores, bool *open, int64_t n_scores, int64_t n, int32_t *chosen)
{
  for (int64_t k = 0; k <= n; k++) {
    int64_t best = -1;
    for (int64_t e = 0; e < n_scores; e++) {
      if (open[e] && (best < 0 || scores[e] > scores[best])) {
        best = e;
      }
    }
    if (k == n) {
      return best < 0 ? INFINITY : scores[chosen[n - 1]] - scores[best];
    }
    chosen[k] = (int32_t)best;
    open[best] = false;
  }
  return INFINITY;
}

/* A group's score: its highest; of the sigmoid router the sum of its two highest. */
static double group_score(const RefConfig *c, const double *scores, int64_t n)
{
  double first = -INFINITY;
  double second = -INFINITY;
  for (int64_t e = 0; e < n; e++) {
    second = fmax(second, fmin(first, scores[e]));
    first = fmax(first, scores[e]);
  }
  return first + (c->router == REF_SIGMOID_BIAS && n > 1 ? second : 0);
}

/* Opens the experts of the best groups. */
static double open_groups(const RefConfig *c, const double *scores, bool *open)
{
  int64_t size = c->experts / c->groups;
  double *score = ref_alloc(c->groups, sizeof(double));
  bool *group_open = ref_alloc(c->groups, sizeof(bool));
  int32_t *best = ref_alloc(c->top_groups, sizeof(int32_t));
  for (int64_t g = 0; g < c->groups; g++) {
    score[g] = group_score(c, scores + g * size, size);
    group_open[g] = true;
  }
  double margin = take_best(score, group_open, c->groups, c->top_groups, best);
  for (int64_t i = 0; i < c->top_groups; i++) {
    for (int64_t e = 0; e < size; e++) {
      open[best[i] * size + e] = true;
    }
  }
  free(score);
  free(group_open);
  free(best);
  return margin;
}

static double choose(const RefConfig *c, const double *scores, int32_t *chosen)
{
  bool *open = ref_alloc(c->experts, sizeof(bool));
  double margin = INFINITY;
  if (c->n_route_only == 0) {
    margin = open_groups(c, scores, open);
  }
  for (int64_t i = 0; i < c->n_route_only; i++) {
    open[c->route_only[i]] = true;
  }
  margin = fmin(margin, take_best(scores, open, c->experts, c->top_k, chosen));
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
  bool divide = c->router == REF_SOFTMAX_RENORM || c->router == REF_SIGMOID_BIAS;
  for (int64_t k = 0; k < c->top_k; k++) {
    weights[k] = weights[k] / (divide ? sum : 1) * c->router_scale;
  }
}

static double total(const RefConfig *c, const double *probs)
{
  double sum = 0;
  for (int64_t e = 0; e < c->experts; e++) {
    sum += probs[e];
  }
  return sum;
}

static void route_row(const RefConfig *c, const RefLayer *w, const int32_t *pinned, int64_t row, RefLayerState *s,
                      double *min_margin)
{
  const double *logits = s->logits + row * c->experts;
  double *probs = s->probs + row * c->experts;
  int32_t *chosen = s->experts + row * c->top_k;
  double *scores = ref_alloc(c->experts, sizeof(double));
  if (c->router == REF_SIGMOID_BIAS) {
    for (int64_t e = 0; e < c->experts; e++) {
      probs[e] = 1 / (1 + exp(-logits[e]));
      scores[e] = probs[e] + w->router_bias[e];
    }
  } else {
    ref_softmax(probs, logits, c->experts);
    memcpy(scores, logits, (size_t)c->experts * sizeof(double));
  }
  if (pinned) {
    memcpy(chosen, pinned + row * c->top_k, (size_t)c->top_k * sizeof(int32_t));
  } else {
    *min_margin = fmin(*min_margin, choose(c, scores, chosen));
  }
  weigh(c, logits, probs, chosen, s->weights + row * c->top_k);
  free(scores);
}

void ref_route(const RefConfig *c, const RefLayer *w, const RefBatch *b, int64_t l, RefState *state)
{
  RefLayerState *s = &state->layers[l];
  int64_t t = b->n_seqs * b->seq;
  int64_t k = c->top_k;
  int64_t limit = ref_capacity(c, b->seq);
  int64_t *picks = ref_alloc(c->experts, sizeof(int64_t));
  ref_linear(s->logits, s->h, w->router, t, c->hidden, c->experts);
  if (c->router_bias) {
    ref_bias(s->logits, w->router_bias, t, c->experts);
  }
  for (int64_t n = 0; n < b->n_seqs; n++) {
    memset(picks, 0, (size_t)c->experts * sizeof(int64_t));
    for (int64_t row = n * b->seq; row < (n + 1) * b->seq; row++) {
      route_row(c, w, b->pinned ? b->pinned + l * t * k : NULL, row, s, &state->min_margin);
      for (int64_t j = row * k; j < (row + 1) * k; j++) {
        s->kept[j] = picks[s->experts[j]]++ < limit;
        state->dropped += !s->kept[j];
      }
    }
    for (int64_t e = 0; e < c->experts; e++) {
      double ce = (double)(c->experts * picks[e]) / (double)(b->seq * k);
      double mean = 0;
      for (int64_t row = n * b->seq; row < (n + 1) * b->seq; row++) {
        const double *probs = s->probs + row * c->experts;
        mean += probs[e] / (c->router == REF_SIGMOID_BIAS ? total(c, probs) : 1) / (double)b->seq;
      }
      state->balance_loss += c->balance_coef / (double)b->n_seqs * ce * mean;
    }
  }
  free(picks);
}

/* Gradient of one row's logits: that of the routing weights, and that of the balance loss, whose derivative by a
   probability is `slope` (with the sigmoid router by a sigmoid over the row's sum). */
static void row_back(const RefConfig *c, const double *slope, int64_t row, RefLayerState *s)
{
  const int32_t *chosen = s->experts + row * c->top_k;
  const double *weights = s->weights + row * c->top_k;
  const double *dweights = s->dweights + row * c->top_k;
  const double *probs = s->probs + row * c->experts;
  double *dz = s->dlogits + row * c->experts;
  double mean = ref_dot(weights, dweights, c->top_k); /* of the weighted, times the scale */
  double mean_slope = ref_dot(probs, slope, c->experts);
  if (c->router == REF_SIGMOID_BIAS) {
    double chosen_sum = 0;
    double sum = total(c, probs);
    for (int64_t k = 0; k < c->top_k; k++) {
      chosen_sum += probs[chosen[k]];
    }
    for (int64_t e = 0; e < c->experts; e++) {
      dz[e] = (slope[e] - mean_slope / sum) / sum;
    }
    for (int64_t k = 0; k < c->top_k; k++) {
      dz[chosen[k]] += (c->router_scale * dweights[k] - mean) / chosen_sum;
    }
    for (int64_t e = 0; e < c->experts; e++) {
      dz[e] *= probs[e] * (1 - probs[e]);
    }
    return;
  }
  for (int64_t e = 0; e < c->experts; e++) {
    dz[e] = probs[e] * (slope[e] - mean_slope);
    dz[e] -= c->router == REF_SOFTMAX ? probs[e] * mean : 0;
  }
  for (int64_t k = 0; k < c->top_k; k++) {
    double centred = c->router == REF_SOFTMAX ? dweights[k] : dweights[k] - mean / c->router_scale;
    dz[chosen[k]] += weights[k] * centred;
  }
}

void ref_route_back(const RefConfig *c, const RefBatch *b, RefLayerState *s)
{
  double *slope = ref_alloc(c->experts, sizeof(double));
  for (int64_t n = 0; n < b->n_seqs; n++) {
    int64_t first = n * b->seq;
    memset(slope, 0, (size_t)c->experts * sizeof(double));
    for (int64_t pair = first * c->top_k; pair < (first + b->seq) * c->top_k; pair++) {
      double share = (double)c->experts / (double)(b->seq * c->top_k);
      slope[s->experts[pair]] += c->balance_coef * share / (double)(b->n_seqs * b->seq);
    }
    for (int64_t row = first; row < first + b->seq; row++) {
      row_back(c, slope, row, s);
    }
  }
  free(slope);
}

void ref_move_bias(const RefConfig *c, RefParams *p, const RefParams *g)
{
  for (int64_t l = c->dense_layers; l < c->layers && c->router == REF_SIGMOID_BIAS; l++) {
    const double *load = g->layers[l].router_bias;
    double sum = total(c, load);
    for (int64_t e = 0; e < c->experts; e++) {
      double above = load[e] * (double)c->experts - sum;
      p->layers[l].router_bias[e] += above < 0 ? c->bias_rate : above > 0 ? -c->bias_rate : 0;
    }
  }
}
