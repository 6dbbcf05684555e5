/* Router: logits z (fp32) to choices, weights and drops; and back.
   MOE_ROUTER 0: softmax over all, top-k, renormalised = 2: softmax over the k chosen logits; 1: softmax over all, kept;
   3: sigmoids, chosen by sigmoid + bias, divided by the sum of the chosen. All weights times MOE_ROUTER_SCALE. 0 and 2
   are the same function; the second form cannot divide 0 by 0. Choices descend by score, ties go to the lower index;
   route_only limits them but not the softmax over all. Groups: only experts of the best top_groups may be chosen, by
   the sum of the two best scores of a group (3), or by the best (the others). Balance loss per sequence: coef /
   sequences of the step * sum_e ce_e mean_t(p_te), ce_e = E / (S K) * choices of e before drops, p the softmax, or the
   sigmoids over their sum. With 3 the gradient of the bias is no gradient but the choices of each expert, from which
   the optimizer moves it. */
#include "moe_parts.h"
#include "moe_vec.h"

/* Marks the best of n as taken and returns it. Works for NaN too, so that a diverged step still sends well-formed
   messages. n: none is left. */
static size_t take_best(const float *z, bool *taken, size_t n)
{
  size_t best = n;
  for (size_t e = 0; e < n; e++) {
    if (!taken[e] && (best == n || z[e] > z[best])) {
      best = e;
    }
  }
  if (best < n) {
    taken[best] = true;
  }
  return best;
}

static float group_score(const float *z, size_t n)
{
  float first = -INFINITY;
  float second = -INFINITY;
  for (size_t e = 0; e < n; e++) {
    if (z[e] > first) {
      second = first;
      first = z[e];
    } else if (z[e] > second) {
      second = z[e];
    }
  }
  return MOE_ROUTER == 3 && n > 1 ? first + second : first;
}

/* Experts that may not be chosen. */
static void bar(const MoeCall *call, const float *z, bool *taken)
{
  enum { SIZE = MOE_EXPERTS / MOE_GROUPS };
  bool barred = call->route_only != NULL || MOE_TOP_GROUPS < MOE_GROUPS;
  for (size_t e = 0; e < MOE_EXPERTS; e++) {
    taken[e] = barred;
  }
  for (int32_t i = 0; call->route_only != NULL && i < call->n_route_only; i++) {
    taken[call->route_only[i]] = false;
  }
  if (MOE_TOP_GROUPS < MOE_GROUPS) {
    float score[MOE_GROUPS];
    bool out[MOE_GROUPS] = {false};
    for (size_t g = 0; g < MOE_GROUPS; g++) {
      score[g] = group_score(z + g * SIZE, SIZE);
    }
    for (size_t i = 0; i < MOE_TOP_GROUPS; i++) {
      size_t g = take_best(score, out, MOE_GROUPS);
      memset(taken + g * SIZE, 0, SIZE * sizeof *taken);
    }
  }
}

/* Top-k of z among the allowed. */
static void choose(const MoeCall *call, const float *z, uint16_t *choice)
{
  bool taken[MOE_EXPERTS];
  bar(call, z, taken);
  for (size_t k = 0; k < MOE_TOP_K; k++) {
    choice[k] = (uint16_t)take_best(z, taken, MOE_EXPERTS);
  }
}

static void softmax(float *z, size_t n)
{
  float sum = moe_exp_row(z, 1.0f, moe_vec_max(z, n), n, z);
  for (size_t i = 0; i < n; i++) {
    z[i] /= sum;
  }
}

/* Pairs that one expert takes from one sequence. */
static uint32_t capacity(size_t seq)
{
  double share = ceil(MOE_CAPACITY * (double)seq * MOE_TOP_K / MOE_EXPERTS);
  double all = (double)seq * MOE_TOP_K;
  return MOE_CAPACITY <= 0.0 || share > all ? (uint32_t)all : share < 1.0 ? 1 : (uint32_t)share;
}

static float sum_of(const float *x, size_t n)
{
  float sum = 0.0f;
  for (size_t i = 0; i < n; i++) {
    sum += x[i];
  }
  return sum;
}

static void sigmoids(float *z)
{
  for (size_t e = 0; e < MOE_EXPERTS; e++) {
    z[e] = 1.0f / (1.0f + moe_exp(-z[e]));
  }
}

/* Logits become sigmoids. */
static void route_sigmoid(const MoeCall *call, float *z, float *weight, uint16_t *choice)
{
  float score[MOE_EXPERTS];
  sigmoids(z);
  for (size_t e = 0; e < MOE_EXPERTS; e++) {
    score[e] = z[e] + call->w[MOE_AT_RBIAS + e];
  }
  choose(call, score, choice);
  for (size_t k = 0; k < MOE_TOP_K; k++) {
    weight[k] = z[choice[k]];
  }
  float sum = sum_of(weight, MOE_TOP_K) + 1e-20f;
  for (size_t k = 0; k < MOE_TOP_K; k++) {
    weight[k] = weight[k] / sum * (float)MOE_ROUTER_SCALE;
  }
}

/* Logits become probabilities. */
static void route_softmax(const MoeCall *call, float *z, float *weight, uint16_t *choice)
{
  choose(call, z, choice);
  for (size_t k = 0; k < MOE_TOP_K; k++) {
    weight[k] = z[choice[k]];
  }
  softmax(z, MOE_EXPERTS);
  if (MOE_ROUTER == 1) {
    for (size_t k = 0; k < MOE_TOP_K; k++) {
      weight[k] = z[choice[k]];
    }
  } else {
    softmax(weight, MOE_TOP_K);
  }
  for (size_t k = 0; k < MOE_TOP_K; k++) {
    weight[k] *= (float)MOE_ROUTER_SCALE;
  }
}

static bool route_only_valid(const MoeCall *call)
{
  bool listed[MOE_EXPERTS] = {false};
  size_t distinct = 0;
  for (int32_t i = 0; i < call->n_route_only; i++) {
    int32_t e = call->route_only[i];
    if (e < 0 || e >= MOE_EXPERTS) {
      return false;
    }
    distinct += !listed[e];
    listed[e] = true;
  }
  return distinct >= MOE_TOP_K;
}

MoeStatus moe_router(const MoeCall *call, const MoeAttSaved *s)
{
  size_t seq = (size_t)call->seq;
  uint32_t limit = capacity(seq);
  size_t dropped = 0;
  if (call->route_only != NULL && !route_only_valid(call)) {
    return MOE_EINVAL;
  }
  for (size_t b = 0; b < (size_t)call->n_seqs; b++) {
    uint32_t *picks = s->picks + b * MOE_EXPERTS;
    double mean[MOE_EXPERTS] = {0};
    double balance = 0;
    memset(picks, 0, MOE_EXPERTS * sizeof *picks);
    for (size_t t = b * seq; t < (b + 1) * seq; t++) {
      uint16_t *choice = s->choice + t * MOE_TOP_K;
      float *p = s->prob + t * MOE_EXPERTS;
      if (MOE_ROUTER == 3) {
        route_sigmoid(call, p, s->weight + t * MOE_TOP_K, choice);
      } else {
        route_softmax(call, p, s->weight + t * MOE_TOP_K, choice);
      }
      for (size_t k = 0; k < MOE_TOP_K; k++) {
        bool drop = picks[choice[k]]++ >= limit;
        s->dropped[t * MOE_TOP_K + k] = drop;
        dropped += drop;
      }
      double share = MOE_ROUTER == 3 ? 1.0 / (double)sum_of(p, MOE_EXPERTS) : 1.0;
      for (size_t e = 0; e < MOE_EXPERTS; e++) {
        mean[e] += (double)p[e] * share;
      }
    }
    for (size_t e = 0; call->load != NULL && e < MOE_EXPERTS; e++) {
      call->load[e] += picks[e];
      call->load[MOE_EXPERTS + e] += picks[e] > limit ? picks[e] - limit : 0;
    }
    for (size_t e = 0; e < MOE_EXPERTS; e++) {
      balance += (double)picks[e] * MOE_EXPERTS / ((double)seq * MOE_TOP_K) * (mean[e] / (double)seq);
    }
    if (MOE_BALANCE_COEF > 0.0) {
      call->scalars[MOE_SC_BALANCE] += MOE_BALANCE_COEF * call->inv_seqs * balance;
    }
  }
  call->scalars[MOE_SC_DROPPED] += (double)dropped;
  return MOE_OK;
}

void moe_router_again(const MoeAttSaved *s)
{
  for (size_t t = 0; t < s->tokens; t++) {
    float *z = s->prob + t * MOE_EXPERTS;
    if (MOE_ROUTER == 3) {
      sigmoids(z);
    } else {
      softmax(z, MOE_EXPERTS);
    }
  }
}

/* dz for the weights' gradient dw of one token, and the slope of the balance loss by each probability. */
static void softmax_back(const float *p, const float *weight, const uint16_t *choice, const float *dw,
                         const float *slope, float *dz)
{
  float c = moe_dot(dw, weight, MOE_TOP_K);
  float mean = MOE_BALANCE_COEF > 0.0 ? moe_dot(p, slope, MOE_EXPERTS) : 0.0f;
  for (size_t e = 0; e < MOE_EXPERTS; e++) {
    dz[e] = MOE_ROUTER == 1 ? -p[e] * c : 0.0f;
  }
  for (size_t k = 0; k < MOE_TOP_K; k++) {
    dz[choice[k]] += weight[k] * (MOE_ROUTER == 1 ? dw[k] : dw[k] - c / (float)MOE_ROUTER_SCALE);
  }
  for (size_t e = 0; MOE_BALANCE_COEF > 0.0 && e < MOE_EXPERTS; e++) {
    dz[e] += p[e] * (slope[e] - mean);
  }
}

/* With s the sigmoids, S their sum, Q that of the chosen and c = <dw, w>: ds = (slope - <s, slope> / S) / S, and of the
   chosen (scale dw - c) / Q more; dz = ds s (1 - s). */
static void sigmoid_back(const float *s, const float *weight, const uint16_t *choice, const float *dw,
                         const float *slope, float *dz)
{
  float c = moe_dot(dw, weight, MOE_TOP_K);
  float all = sum_of(s, MOE_EXPERTS);
  float mean = MOE_BALANCE_COEF > 0.0 ? moe_dot(s, slope, MOE_EXPERTS) / all : 0.0f;
  float chosen = 1e-20f;
  for (size_t k = 0; k < MOE_TOP_K; k++) {
    chosen += s[choice[k]];
  }
  for (size_t e = 0; e < MOE_EXPERTS; e++) {
    dz[e] = MOE_BALANCE_COEF > 0.0 ? (slope[e] - mean) / all : 0.0f;
  }
  for (size_t k = 0; k < MOE_TOP_K; k++) {
    dz[choice[k]] += ((float)MOE_ROUTER_SCALE * dw[k] - c) / chosen;
  }
  for (size_t e = 0; e < MOE_EXPERTS; e++) {
    dz[e] *= s[e] * (1.0f - s[e]);
  }
}

/* The choices of token t, counted where the optimizer finds them. */
static void count_load(const MoeCall *call, const uint16_t *choice)
{
  for (size_t k = 0; MOE_ROUTER == 3 && k < MOE_TOP_K; k++) {
    call->gw[MOE_AT_RBIAS + choice[k]] += 1.0f;
  }
}

void moe_router_back(const MoeCall *call, const MoeAttSaved *s, size_t first, size_t n, const float *dw, float *dz)
{
  size_t seq = (size_t)call->seq;
  double scale = MOE_BALANCE_COEF * call->inv_seqs * MOE_EXPERTS / ((double)seq * MOE_TOP_K) / (double)seq;
  for (size_t i = 0; i < n; i++) {
    size_t t = first + i;
    const uint32_t *picks = s->picks + t / seq * MOE_EXPERTS;
    const uint16_t *choice = s->choice + t * MOE_TOP_K;
    const float *p = s->prob + t * MOE_EXPERTS;
    const float *weight = s->weight + t * MOE_TOP_K;
    float slope[MOE_EXPERTS];
    for (size_t e = 0; MOE_BALANCE_COEF > 0.0 && e < MOE_EXPERTS; e++) {
      slope[e] = (float)(scale * (double)picks[e]);
    }
    if (MOE_ROUTER == 3) {
      sigmoid_back(p, weight, choice, dw + i * MOE_TOP_K, slope, dz + i * MOE_EXPERTS);
      count_load(call, choice);
    } else {
      softmax_back(p, weight, choice, dw + i * MOE_TOP_K, slope, dz + i * MOE_EXPERTS);
    }
  }
}
