/* The router, forward and backward: choices, drops and picks as the C twin's, the rest against fp64. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "check.h"
#include "tests/cuda/tests.h"
#include "tests/ref/ref_math.h"

enum { E = MOE_EXPERTS, K = MOE_TOP_K };

typedef struct Router {
  MoeAttSizes sizes;
  size_t n;
  float *logits, *dw;
  int32_t *route_only;
  int n_route_only;
  const float *bias; /* of the sigmoid router */
  MoeRouterIo out;
  double *scalars;
  float *dz, *again;
} Router;

static const double inv_seqs = 1.0 / 3;

static void launch_router(void *c)
{
  Router *t = c;
  static const double zero[MOE_SC_COUNT];
  double *sums = dev_new(t->sizes.n_seqs * 2 * sizeof *sums);
  t->out.bias = t->bias;
  t->out.load = out_copy(t->bias, E * sizeof(float)); /* what choices are added to */
  t->out.prob = out_copy(t->logits, t->n * E * sizeof(float));
  t->out.weight = out_new(t->n * K * sizeof(float));
  t->out.choice = out_new(t->n * K * sizeof(uint16_t));
  t->out.dropped = out_new(t->n * K);
  t->out.picks = out_new(t->sizes.n_seqs * E * sizeof(uint32_t));
  t->scalars = out_copy(zero, sizeof zero);
  t->dz = out_new(t->n * E * sizeof(float));
  ok(moe_cuda_router(&t->sizes, &t->out, inv_seqs, t->route_only, t->n_route_only, t->scalars, sums, NULL));
  t->again = out_copy(t->logits, t->n * E * sizeof(float));
  ok(moe_cuda_router_again(t->again, t->n, NULL));
  ok(moe_cuda_router_back(&t->sizes, &t->out, inv_seqs, t->dw, t->dz, NULL));
  dev_free(sums);
}

/* p, weights and dz of one token with the choices given; slope: of the balance loss by p, or by sigmoids over their
   sum, whose product with those is returned. */
static double token64(const float *logits, const uint16_t *choice, const float *dw, const double *slope, double *p,
                      double *weight, double *dz)
{
  double z[E];
  double by_z[E] = {0}; /* sigmoids: the gradient by them */
  double chosen[K];
  double by_p = 0;
  double c = 0;
  double sum = 0;
  for (size_t e = 0; e < E; e++) {
    z[e] = (double)logits[e];
  }
  ref_softmax(p, z, E);
  for (size_t e = 0; e < E; e++) {
    p[e] = MOE_ROUTER == 3 ? 1 / (1 + exp(-z[e])) : p[e];
  }
  for (size_t k = 0; k < K; k++) {
    chosen[k] = z[choice[k]];
    sum += p[choice[k]];
  }
  ref_softmax(weight, chosen, K);
  for (size_t k = 0; k < K; k++) {
    weight[k] = MOE_ROUTER == 3 ? p[choice[k]] / sum : MOE_ROUTER == 1 ? p[choice[k]] : weight[k];
    c += (double)dw[k] * weight[k];
  }
  double all = 0;
  for (size_t e = 0; e < E; e++) {
    by_p += slope[e] * p[e];
    all += p[e];
  }
  if (MOE_ROUTER == 3) {
    by_p /= all;
    for (size_t e = 0; e < E; e++) {
      by_z[e] = (slope[e] - by_p) / all;
    }
    for (size_t k = 0; k < K; k++) {
      by_z[choice[k]] += MOE_ROUTER_SCALE * ((double)dw[k] - c) / sum;
      weight[k] *= MOE_ROUTER_SCALE;
    }
    for (size_t e = 0; e < E; e++) {
      dz[e] = by_z[e] * p[e] * (1 - p[e]);
    }
    return by_p;
  }
  for (size_t e = 0; e < E; e++) {
    dz[e] = p[e] * (slope[e] - by_p) - (MOE_ROUTER == 1 ? p[e] * c : 0.0);
  }
  for (size_t k = 0; k < K; k++) {
    dz[choice[k]] += weight[k] * ((double)dw[k] - (MOE_ROUTER == 1 ? 0.0 : c));
  }
  return by_p;
}

static void check_router(Router *t, const MoeAttSaved *s, const double *scalars)
{
  size_t n = t->n;
  size_t seq = t->sizes.seq;
  double *p = malloc(n * E * sizeof *p);
  double *weight = malloc(n * K * sizeof *weight);
  double *dz = malloc(n * E * sizeof *dz);
  float *dz_twin = malloc(n * E * sizeof *dz_twin);
  double balance = 0;
  MoeCall call = {.seq = (int32_t)seq, .n_seqs = (int32_t)t->sizes.n_seqs, .inv_seqs = inv_seqs};
  check_same("choices", t->out.choice, s->choice, n * K * sizeof *s->choice);
  check_same("drops", t->out.dropped, s->dropped, n * K);
  check_same("picks", t->out.picks, s->picks, t->sizes.n_seqs * E * sizeof *s->picks);
  assert_true(t->scalars[MOE_SC_DROPPED] <= scalars[MOE_SC_DROPPED] &&
              t->scalars[MOE_SC_DROPPED] >= scalars[MOE_SC_DROPPED]);
  for (size_t i = 0; i < n; i++) {
    double slope[E];
    const uint32_t *picks = s->picks + i / seq * E;
    for (size_t e = 0; e < E; e++) {
      slope[e] = MOE_BALANCE_COEF * inv_seqs * picks[e] * E / ((double)(seq * K) * (double)seq);
    }
    balance +=
        token64(t->logits + i * E, s->choice + i * K, t->dw + i * K, slope, p + i * E, weight + i * K, dz + i * E);
  }
  float *load = calloc(MOE_ATT_ELEMS + E, sizeof *load);
  memcpy(load + MOE_AT_RBIAS, t->bias, E * sizeof *load);
  call.gw = load;
  moe_router_back(&call, s, 0, n, t->dw, dz_twin);
  check_same("choices of each expert", t->out.load, load + MOE_AT_RBIAS, E * sizeof *load);
  free(load);
  check_same("probabilities again", t->again, t->out.prob, n * E * sizeof *t->again);
  check_floats("probabilities", t->out.prob, s->prob, p, n * E);
  check_floats("weights", t->out.weight, s->weight, weight, n * K);
  check_floats("dz", t->dz, dz_twin, dz, n * E);
  assert_true(fabs(t->scalars[MOE_SC_BALANCE] - balance) <= 1e-5 * balance);
  free(p);
  free(weight);
  free(dz);
  free(dz_twin);
}

/* kind 0: as drawn; 1: all alike; 2: too large for exp(), but no further apart, since what is left of dz where one
   weight is near 1 is rounding; 3: only some experts may be chosen. */
static void one_router(size_t n_seqs, size_t seq, int kind)
{
  size_t n = n_seqs * seq;
  double scalars[MOE_SC_COUNT] = {0};
  MoeAttSaved s;
  const MoeAttHead shape = {.seq = (uint32_t)seq, .n_seqs = (uint32_t)n_seqs};
  uint8_t *slot = malloc(moe_att_saved_carve(NULL, &shape, &s));
  Router t = {.sizes = {seq, n_seqs}, .n = n};
  float *bias = float_waves(E, 7, 0.2f);
  float *w = calloc(MOE_ATT_ELEMS + E, sizeof *w);
  memcpy(w + MOE_AT_RBIAS, bias, E * sizeof *w);
  t.bias = dev_copy(bias, E * sizeof *bias);
  float *logits = malloc(n * E * sizeof *logits);
  float *dw = float_waves(n * K, 2, 1.0f);
  int32_t only[K + 1];
  moe_att_saved_carve(slot, &shape, &s);
  for (size_t i = 0; i < n * E; i++) {
    logits[i] = kind == 1 ? 0.5f : (kind == 2 ? 200.0f : 0.0f) + 3.0f * wave(i * 13 + seq);
  }
  for (int i = 0; i <= K; i++) {
    only[i] = E - 1 - (i < E ? i : 0);
  }
  t.n_route_only = kind == 3 ? K + 1 : 0;
  t.route_only = kind == 3 ? dev_copy(only, sizeof only) : NULL;
  t.logits = logits;
  t.dw = dev_copy(dw, n * K * sizeof *dw);
  in_all_orders(launch_router, &t);
  memcpy(s.prob, logits, n * E * sizeof *logits);
  MoeCall call = {.w = w,
                  .seq = (int32_t)seq,
                  .n_seqs = (int32_t)n_seqs,
                  .inv_seqs = inv_seqs,
                  .scalars = scalars,
                  .route_only = kind == 3 ? only : NULL,
                  .n_route_only = t.n_route_only};
  assert_int_equal(moe_router(&call, &s), MOE_OK);
  check_router(&t, &s, scalars);
  if (t.route_only != NULL) {
    dev_free(t.route_only);
  }
  dev_free(t.dw);
  dev_free((void *)(uintptr_t)t.bias);
  free(bias);
  free(w);
  free(slot);
  free(logits);
  free(dw);
}

static void test_router_values(void **state)
{
  (void)state;
  static const size_t seqs[] = {1, 5, 67};
  for (size_t i = 0; i < sizeof seqs / sizeof *seqs; i++) {
    for (int kind = 0; kind < 4; kind++) {
      one_router(kind == 0 ? 3 : 1, seqs[i], kind);
    }
  }
}

/* A diverged step still sends well-formed messages. */
static void test_router_nan(void **state)
{
  (void)state;
  Router t = {.sizes = {2, 1}, .n = 2, .logits = malloc(2 * E * sizeof(float))};
  float *dw = float_waves(2 * K, 2, 1.0f);
  for (size_t i = 0; i < 2 * E; i++) {
    t.logits[i] = i < E || i % 3 == 0 ? NAN : wave(i);
  }
  t.dw = dev_copy(dw, 2 * K * sizeof *dw);
  float zero[E] = {0};
  t.bias = dev_copy(zero, sizeof zero);
  in_all_orders(launch_router, &t);
  dev_free((void *)(uintptr_t)t.bias);
  for (size_t i = 0; i < 2 * K; i++) {
    assert_true(t.out.choice[i] < E);
    for (size_t j = i / K * K; j < i; j++) {
      assert_true(t.out.choice[i] != t.out.choice[j]);
    }
  }
  dev_free(t.dw);
  free(t.logits);
  free(dw);
}

int test_router(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_router_values),
      cmocka_unit_test(test_router_nan),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
