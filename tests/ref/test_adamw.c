/* The optimizer of the reference against numbers worked out by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>

#include "tests/ref/ref_model.h"

static void near(double x, double expected)
{
  if (!(fabs(x - expected) <= 1e-14 * fmax(1, fabs(expected)))) {
    fail_msg("%.17g, expected %.17g", x, expected);
  }
}

static void learning_rate_follows_its_schedule(void **state)
{
  (void)state;
  RefConfig c;
  ref_config_default(&c);
  c.lr = 1;
  c.lr_min = 0.2;
  c.warmup = 4;
  c.steps = 12;
  c.lr_kind = REF_LR_COSINE;
  near(ref_lr(&c, 0), 0.25);
  near(ref_lr(&c, 3), 1);
  near(ref_lr(&c, 4), 1);
  near(ref_lr(&c, 8), 0.6);
  near(ref_lr(&c, 6), 0.2 + 0.4 * (1 + sqrt(0.5)));
  near(ref_lr(&c, 12), 0.2);
  near(ref_lr(&c, 1000), 0.2);
  c.lr_kind = REF_LR_LINEAR;
  near(ref_lr(&c, 6), 0.8);
  near(ref_lr(&c, 13), 0.2);
  c.lr_kind = REF_LR_CONSTANT;
  near(ref_lr(&c, 1), 0.5);
  near(ref_lr(&c, 13), 1);
  c.lr_kind = REF_LR_COSINE;
  c.warmup = 0;
  c.steps = 0;
  near(ref_lr(&c, 0), 1);
  near(ref_lr(&c, 1), 0.2);
}

/* Two steps with gradients g then -g. After the first, m / bias1 = g and v / bias2 = g^2, so a weight moves by lr
   whatever g is (eps aside); after the second m / bias1 = (beta1 - 1) g / (1 + beta1), v / bias2 = g^2. */
static void two_steps_by_hand(void **state)
{
  (void)state;
  RefConfig c;
  ref_config_default(&c);
  c.lr = 0.5;
  c.lr_kind = REF_LR_CONSTANT;
  c.beta1 = 0.75;
  c.beta2 = 0.5;
  c.eps = 0;
  c.weight_decay = 0.25;
  RefParams *p = ref_params_new(&c);
  RefParams *g = ref_params_new(&c);
  RefAdam adam = {0};
  double norm = 2 * sqrt((double)p->n);
  for (int64_t i = 0; i < p->n; i++) {
    p->data[i] = 8;
    g->data[i] = i % 2 ? 2 : -2;
  }
  near(ref_grad_norm(g), norm);
  ref_adamw(&c, p, g, &adam);
  near(p->embed[0], 8 - 0.5 * 0.25 * 8 + 0.5);
  near(p->embed[1], 8 - 0.5 * 0.25 * 8 - 0.5);
  near(p->layers[0].input_norm[1], 8 - 0.5); /* gains do not decay */
  near(p->layers[1].q_norm[0], 8 + 0.5);
  near(p->layers[1].experts[3].down[0], 8 - 0.5 * 0.25 * 8 + 0.5);
  c.clip = norm / 4; /* a quarter of the gradient is left */
  for (int64_t i = 0; i < p->n; i++) {
    g->data[i] = -g->data[i];
  }
  double before = p->layers[0].input_norm[1];
  ref_adamw(&c, p, g, &adam);
  double m = 0.75 * (0.25 * 2) + 0.25 * -0.5;
  double v = 0.5 * (0.5 * 4) + 0.5 * 0.25;
  near(p->layers[0].input_norm[1], before - 0.5 * (m / (1 - 0.75 * 0.75)) / sqrt(v / (1 - 0.25)));
  free(adam.m);
  free(adam.v);
  ref_params_free(p);
  ref_params_free(g);
}

/* A tied table is one tensor, updated and counted once. */
static void tied_table_is_one_tensor(void **state)
{
  (void)state;
  RefConfig c;
  ref_config_default(&c);
  RefParams *apart = ref_params_new(&c);
  c.tied = true;
  RefParams *tied = ref_params_new(&c);
  assert_ptr_equal(tied->head, tied->embed);
  assert_int_equal(apart->n - tied->n, c.vocab * c.hidden);
  ref_params_free(apart);
  ref_params_free(tied);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(learning_rate_follows_its_schedule),
      cmocka_unit_test(two_steps_by_hand),
      cmocka_unit_test(tied_table_is_one_tensor),
  };
  return cmocka_run_group_tests_name("reference optimizer", tests, NULL, NULL);
}
