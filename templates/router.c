/* Router: logits z (fp32) to choices, weights and drops; and back.
   MOE_ROUTER 0: softmax over all, top-k, renormalised = 2: softmax over the k chosen logits; 1: softmax over all, kept.
   0 and 2 are the same function; the second form cannot divide 0 by 0. Choices descend by logit, ties go to the lower
   index; route_only limits them but not the softmax over all. Balance loss per sequence: coef / sequences of the step *
   sum_e ce_e mean_t(p_te), ce_e = E / (S K) * choices of e before drops. */
#include "moe_parts.h"
#include "moe_vec.h"

/* Top-k of z among the allowed. Works for NaN too, so that a diverged step still sends well-formed messages. */
static void choose(const MoeCall *call, const float *z, uint16_t *choice)
{
  bool taken[MOE_EXPERTS] = {false};
  size_t n = call->route_only != NULL ? (size_t)call->n_route_only : MOE_EXPERTS;
  for (size_t k = 0; k < MOE_TOP_K; k++) {
    size_t best = MOE_EXPERTS;
    for (size_t i = 0; i < n; i++) {
      size_t e = call->route_only != NULL ? (size_t)call->route_only[i] : i;
      if (!taken[e] && (best == MOE_EXPERTS || z[e] > z[best] || (z[e] >= z[best] && e < best))) {
        best = e;
      }
    }
    taken[best] = true;
    choice[k] = (uint16_t)best;
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

static void route_token(const MoeCall *call, float *z, float *weight, uint16_t *choice)
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
      route_token(call, p, s->weight + t * MOE_TOP_K, choice);
      for (size_t k = 0; k < MOE_TOP_K; k++) {
        bool drop = picks[choice[k]]++ >= limit;
        s->dropped[t * MOE_TOP_K + k] = drop;
        dropped += drop;
      }
      for (size_t e = 0; e < MOE_EXPERTS; e++) {
        mean[e] += (double)p[e];
      }
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

/* dz for the weights' gradient dw of one token. */
static void weights_back(const float *p, const float *weight, const uint16_t *choice, const float *dw, float *dz)
{
  float c = 0;
  for (size_t k = 0; k < MOE_TOP_K; k++) {
    c = moe_fma(dw[k], weight[k], c);
  }
  for (size_t e = 0; e < MOE_EXPERTS; e++) {
    dz[e] = MOE_ROUTER == 1 ? -p[e] * c : 0.0f;
  }
  for (size_t k = 0; k < MOE_TOP_K; k++) {
    dz[choice[k]] += weight[k] * (MOE_ROUTER == 1 ? dw[k] : dw[k] - c);
  }
}

void moe_router_back(const MoeCall *call, const MoeAttSaved *s, size_t first, size_t n, const float *dw, float *dz)
{
  size_t seq = (size_t)call->seq;
  double scale = MOE_BALANCE_COEF * call->inv_seqs * MOE_EXPERTS / ((double)seq * MOE_TOP_K) / (double)seq;
  for (size_t t = first; t < first + n; t++) {
    const uint32_t *picks = s->picks + t / seq * MOE_EXPERTS;
    const float *p = s->prob + t * MOE_EXPERTS;
    float *dzt = dz + (t - first) * MOE_EXPERTS;
    weights_back(p, s->weight + t * MOE_TOP_K, s->choice + t * MOE_TOP_K, dw + (t - first) * MOE_TOP_K, dzt);
    if (MOE_BALANCE_COEF > 0.0) {
      float h[MOE_EXPERTS];
      for (size_t e = 0; e < MOE_EXPERTS; e++) {
        h[e] = (float)(scale * (double)picks[e]);
      }
      float mean = moe_dot(p, h, MOE_EXPERTS);
      for (size_t e = 0; e < MOE_EXPERTS; e++) {
        dzt[e] += p[e] * (h[e] - mean);
      }
    }
  }
}
