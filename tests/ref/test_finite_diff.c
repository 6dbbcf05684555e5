/* Holds the hand-written gradients to finite differences of the loss, for every tensor, over small models of every
   kind.

   Along a direction u of a tensor the five-point formula
     f' = (f(-2s) - 8 f(-s) + 8 f(s) - f(2s)) / (12 s)
   errs by s^4 f^(5) / 30, at s = 2e-4 below 1e-9 even where the norm of a small q or k bends the loss (f^(5) up to
   1e7), plus the rounding of the loss, about 1e-15 / s = 5e-12. Gradients here are of order 1e-3 to 1, so 1e-6 of the
   larger of the derivative and the tensor's root mean square holds with room to spare; a floor of 1e-10 covers tensors
   whose gradient vanishes. The router's choices are pinned to those of the undisturbed weights: the loss is smooth only
   while they stay. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ref/ref_math.h"
#include "tests/ref/ref_model.h"

enum { N_SEQS = 3, DIRECTIONS = 2, ELEMENTS = 3 };

static const double RTOL = 1e-6;
static const double FLOOR = 1e-10;

typedef struct Setup {
  RefConfig c;
  RefParams *p, *g;
  RefState *s;
  RefBatch b;
  int32_t *tokens, *labels, *pinned;
  uint64_t random;
} Setup;

static uint64_t next(uint64_t *state)
{
  *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return *state >> 33;
}

static void set_up(Setup *t, const char *changes)
{
  char text[256];
  ref_config_default(&t->c);
  t->c.init_std = 0.3;
  snprintf(text, sizeof text, "%s", changes);
  for (char *key = strtok(text, " "); key; key = strtok(NULL, " ")) {
    char *value = strchr(key, '=');
    *value = '\0';
    ref_config_set(&t->c, key, value + 1);
  }
  ref_config_check(&t->c);
  const RefConfig *c = &t->c;
  int64_t n = N_SEQS * c->seq;
  int64_t pairs = n * c->top_k;
  t->random = 7;
  t->p = ref_params_new(c);
  t->g = ref_params_new(c);
  t->s = ref_state_new(c, N_SEQS, c->seq);
  t->tokens = ref_alloc(n, sizeof(int32_t));
  t->labels = ref_alloc(n, sizeof(int32_t));
  t->pinned = ref_alloc(c->layers * pairs, sizeof(int32_t));
  ref_params_random(t->p, 5, c->init_std);
  for (int64_t i = 0; i < n; i++) {
    t->tokens[i] = (int32_t)(next(&t->random) % (uint64_t)c->vocab);
    t->labels[i] = (int32_t)(next(&t->random) % (uint64_t)c->vocab);
  }
  t->labels[n - 1] = -100;
  for (int64_t l = 0; l < c->layers; l++) { /* dropped pairs leave these unset: nothing may read them */
    for (int64_t i = 0; !ref_is_dense(c, l) && i < pairs * c->ffn_hidden; i++) {
      t->s->layers[l].pairs.gate[i] = t->s->layers[l].pairs.up[i] = NAN;
    }
    for (int64_t i = 0; !ref_is_dense(c, l) && i < pairs * c->hidden; i++) {
      t->s->layers[l].pairs.y[i] = NAN;
    }
  }
  t->b = (RefBatch){.n_seqs = N_SEQS, .seq = c->seq, .tokens = t->tokens, .labels = t->labels};
  ref_forward(c, t->p, &t->b, t->s);
  ref_backward(c, t->p, &t->b, t->s, t->g);
  for (int64_t l = 0; l < c->layers; l++) {
    memcpy(t->pinned + l * pairs, t->s->layers[l].experts, (size_t)pairs * sizeof(int32_t));
  }
  t->b.pinned = t->pinned;
}

static void tear_down(Setup *t)
{
  ref_params_free(t->p);
  ref_params_free(t->g);
  ref_state_free(&t->c, t->s);
  free(t->tokens);
  free(t->labels);
  free(t->pinned);
}

static double loss_at(Setup *t, RefTensor *w, const double *saved, const double *u, double s)
{
  for (int64_t i = 0; i < w->n; i++) {
    w->data[i] = saved[i] + s * u[i];
  }
  ref_forward(&t->c, t->p, &t->b, t->s);
  return t->s->loss + t->s->balance_loss;
}

/* Derivative of the loss along u, and with it the error of the gradient relative to what it may be. */
static double error_along(Setup *t, int tensor, const double *u, double rms)
{
  const double s = 2e-4;
  RefTensor *w = &t->p->tensors[tensor];
  double *saved = ref_alloc(w->n, sizeof(double));
  memcpy(saved, w->data, (size_t)w->n * sizeof(double));
  double far = loss_at(t, w, saved, u, -2 * s) - loss_at(t, w, saved, u, 2 * s);
  double near = loss_at(t, w, saved, u, s) - loss_at(t, w, saved, u, -s);
  memcpy(w->data, saved, (size_t)w->n * sizeof(double));
  free(saved);
  double measured = (far + 8 * near) / (12 * s);
  double computed = ref_dot(t->g->tensors[tensor].data, u, w->n);
  double error = fabs(measured - computed) / (RTOL * fmax(fabs(computed), rms) + FLOOR);
  if (!(error <= 1)) {
    print_error("%s: computed %.12g, measured %.12g\n", w->name, computed, measured);
  }
  return isnan(error) ? INFINITY : error;
}

/* Random directions of length about 1 see every element; single elements see a misplaced one clearly. */
static double tensor_error(Setup *t, int tensor)
{
  const RefTensor *g = &t->g->tensors[tensor];
  double rms = sqrt(ref_dot(g->data, g->data, g->n) / (double)g->n);
  double *u = ref_alloc(g->n, sizeof(double));
  double worst = 0;
  for (int k = 0; k < DIRECTIONS + ELEMENTS; k++) {
    memset(u, 0, (size_t)g->n * sizeof(double));
    if (k < DIRECTIONS) {
      for (int64_t i = 0; i < g->n; i++) {
        u[i] = (next(&t->random) % 2 ? 1 : -1) / sqrt((double)g->n);
      }
    } else {
      u[next(&t->random) % (uint64_t)g->n] = 1;
    }
    worst = fmax(worst, error_along(t, tensor, u, rms));
  }
  free(u);
  return worst;
}

static void check_gradients(void **state)
{
  Setup t;
  set_up(&t, *state);
  double worst = 0;
  int zero = 0;
  for (int i = 0; i < t.p->n_tensors; i++) {
    const RefTensor *g = &t.g->tensors[i];
    if (g->kind == REF_SELECTION) {
      continue; /* counts */
    }
    zero += ref_dot(g->data, g->data, g->n) == 0;
    worst = fmax(worst, tensor_error(&t, i));
  }
  print_message("%d tensors, %d without gradient, %lld pairs dropped, largest error %.2g\n", t.p->n_tensors, zero,
                (long long)t.s->dropped, worst * RTOL);
  assert_true(worst <= 1);
  if (t.c.capacity > 0) {
    assert_true(t.s->dropped > 0); /* else this case tests nothing */
  }
  bool all_used = t.c.n_route_only == 0 && t.c.router != REF_SIGMOID_BIAS; /* random biases idle some experts */
  if (all_used && t.c.seq > 1 && t.c.top_k > 1) {
    assert_int_equal(zero, 0);
  }
  for (int64_t e = 0; e < t.c.experts && t.c.n_route_only > 0; e++) {
    bool idle = true;
    for (int64_t i = 0; i < t.c.n_route_only; i++) {
      idle = idle && t.c.route_only[i] != e;
    }
    const double *g = t.g->layers[0].experts[e].down;
    assert_true((ref_dot(g, g, t.c.hidden * t.c.ffn_hidden) == 0) == idle);
  }
  tear_down(&t);
}

/* With one expert chosen and renormalised the weight is 1 whatever the router says: it learns nothing. */
static void top_1_renormalised_has_no_router_gradient(void **state)
{
  (void)state;
  Setup t;
  set_up(&t, "top_k=1 router=softmax_renorm");
  for (int64_t l = 0; l < t.c.layers; l++) {
    const double *g = t.g->layers[l].router;
    for (int64_t i = 0; i < t.c.experts * t.c.hidden; i++) {
      assert_true(g[i] == 0);
    }
  }
  tear_down(&t);
}

/* All logits equal: the lowest indices are chosen, in order, and equally weighted. */
static void ties_go_to_the_lowest_index(void **state)
{
  (void)state;
  Setup t;
  set_up(&t, "experts=6 top_k=3");
  memset(t.p->layers[0].router, 0, (size_t)(t.c.experts * t.c.hidden) * sizeof(double));
  t.b.pinned = NULL;
  ref_forward(&t.c, t.p, &t.b, t.s);
  for (int64_t i = 0; i < N_SEQS * t.c.seq * 3; i++) {
    assert_int_equal(t.s->layers[0].experts[i], i % 3);
    assert_true(fabs(t.s->layers[0].weights[i] - 1.0 / 3) < 1e-15);
  }
  assert_true(t.s->min_margin == 0);
  tear_down(&t);
}

/* The first `limit` tokens of each sequence that pick an expert keep it; the others lose it. */
static void capacity_drops_in_token_order(void **state)
{
  (void)state;
  Setup t;
  set_up(&t, "experts=4 top_k=2 capacity=1 seq=10 route_only=1,3");
  assert_int_equal(ref_capacity(&t.c, t.c.seq), 5);
  for (int64_t i = 0; i < N_SEQS * t.c.seq * 2; i++) {
    assert_int_equal(t.s->layers[1].kept[i], i / 2 % t.c.seq < 5);
  }
  t.c.experts = 64;
  assert_int_equal(ref_capacity(&t.c, 1), 1);
  tear_down(&t);
}

/* Two runs of one sequence each count the same sequence-wise balance loss as one run of both. */
static void balance_loss_does_not_depend_on_the_split(void **state)
{
  (void)state;
  Setup t;
  set_up(&t, "balance_coef=0.5");
  t.b.pinned = NULL;
  double whole = t.s->balance_loss;
  double sum = 0;
  for (int64_t n = 0; n < N_SEQS; n++) {
    RefBatch one = t.b;
    one.n_seqs = 1;
    one.tokens += n * t.c.seq;
    one.labels += n * t.c.seq;
    ref_forward(&t.c, t.p, &one, t.s);
    sum += t.s->balance_loss / N_SEQS;
  }
  assert_true(fabs(whole - sum) < 1e-14 && whole > 0.5 * (double)t.c.layers * 0.9);
  tear_down(&t);
}

/* Experts above the mean load lose rate, those below gain it. */
static void selection_bias_follows_the_load(void **state)
{
  (void)state;
  Setup t;
  set_up(&t, "router=sigmoid_bias experts=6 top_k=2 bias_rate=0.25 dense_layers=1 dense_hidden=4");
  const double *load = t.g->layers[1].router_bias;
  double before[6];
  double mean = (double)(N_SEQS * t.c.seq * 2) / 6;
  double sum = 0;
  memcpy(before, t.p->layers[1].router_bias, sizeof before);
  ref_move_bias(&t.c, t.p, t.g);
  for (int e = 0; e < 6; e++) {
    double moved = t.p->layers[1].router_bias[e] - before[e];
    double expected = load[e] > mean ? -0.25 : load[e] < mean ? 0.25 : 0;
    sum += load[e];
    assert_true(fabs(moved - expected) < 1e-15);
  }
  assert_true(sum == 6 * mean);
  tear_down(&t);
}

#define MLA "mla=1 heads=3 kv_heads=3 kv_lora=6 nope_dim=4 rope_dim=6 v_dim=5"

#define CASE(changes)                                                                                                  \
  {                                                                                                                    \
    changes, check_gradients, NULL, NULL, (void *)(uintptr_t)(changes)                                                 \
  }

int main(void)
{
  const struct CMUnitTest tests[] = {
      CASE("router=softmax_renorm"),
      CASE("router=softmax"),
      CASE("router=topk_softmax"),
      CASE("router=softmax_renorm qk_norm=none"),
      CASE("router=softmax tied=1 heads=4 kv_heads=2"),
      CASE("router=topk_softmax balance_coef=0.7 heads=4 kv_heads=4"),
      CASE("router=softmax_renorm balance_coef=0.7 capacity=0.8"),
      CASE("router=softmax balance_coef=0.7 capacity=0.5 tied=1"),
      CASE("router=topk_softmax capacity=0.8 top_k=3 experts=5"),
      CASE("router=softmax_renorm top_k=1 balance_coef=0.3"),
      CASE("router=softmax top_k=1"),
      CASE("router=topk_softmax top_k=1"),
      CASE("router=softmax_renorm top_k=4"),
      CASE("router=softmax top_k=4 balance_coef=0.3"),
      CASE("router=topk_softmax top_k=4 capacity=0.5"),
      CASE("router=softmax_renorm experts=1 top_k=1"),
      CASE("router=softmax_renorm seq=1 balance_coef=0.3"),
      CASE("router=softmax seq=1 top_k=1 qk_norm=none"),
      CASE("router=softmax_renorm seq=2 layers=1"),
      CASE("router=softmax seq=13 layers=3 balance_coef=0.3"),
      CASE("router=softmax_renorm route_only=0,2 balance_coef=0.3"),
      CASE("router=softmax route_only=1,2,3 balance_coef=0.3"),
      CASE("router=softmax_renorm heads=3 kv_heads=1 head_dim=2 hidden=10 ffn_hidden=7 vocab=11"),
      CASE("router=softmax_renorm qk_norm=whole kv_heads=2 heads=4"),
      CASE("router=softmax qk_norm=whole clip_qkv=0.7 seq=3 layers=1 hidden=8"),
      CASE("router=softmax clip_qkv=0.5 qk_norm=none attention_bias=1 seq=3 layers=1 hidden=8"),
      CASE("router=topk_softmax attention_bias=1 sinks=1 router_bias=1 expert_bias=1"),
      CASE("router=topk_softmax sinks=1 window=3 window_layers=even layers=3"),
      CASE("router=softmax window=2 window_layers=odd seq=9"),
      CASE("router=topk_softmax expert_bias=1 clamped=1 act_limit=0.8 act_alpha=1.3 seq=3 layers=1 hidden=8 "
           "ffn_hidden=6"),
      CASE("router=softmax yarn=1 yarn_factor=4 yarn_original=16 yarn_beta_fast=4 rope_interleaved=1"),
      CASE(
          "router=softmax yarn=1 yarn_factor=4 yarn_original=16 yarn_truncate=0 yarn_mscale=1 yarn_mscale_all_dim=0.7"),
      CASE("router=softmax shared=10 dense_layers=1 dense_hidden=12 layers=3 balance_coef=0.4"),
      CASE("router=softmax_renorm router_scale=2.5 balance_coef=0.4"),
      CASE("router=topk_softmax router_scale=0.7"),
      CASE("router=softmax router_scale=1.5 groups=2 top_groups=1"),
      CASE("router=sigmoid_bias balance_coef=0.4 router_scale=2.5 experts=6 groups=3 top_groups=2 top_k=3 shared=6"),
      CASE("router=sigmoid_bias top_k=1 capacity=0.8"),
      CASE(MLA " q_lora=7 router=sigmoid_bias"),
      CASE(MLA " rope_interleaved=1 dense_layers=1 dense_hidden=9 yarn=1 yarn_factor=8 yarn_original=8 "
               "yarn_mscale_all_dim=1"),
      CASE(MLA " q_lora=5 window=3 sinks=1"),
      cmocka_unit_test(top_1_renormalised_has_no_router_gradient),
      cmocka_unit_test(ties_go_to_the_lowest_index),
      cmocka_unit_test(capacity_drops_in_token_order),
      cmocka_unit_test(balance_loss_does_not_depend_on_the_split),
      cmocka_unit_test(selection_bias_follows_the_load),
  };
  return cmocka_run_group_tests_name("reference gradients", tests, NULL, NULL);
}
