/* Norms and what else works row by row. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "check.h"
#include "tests/cuda/tests.h"
#include "tests/ref/ref_math.h"

enum { H = MOE_HIDDEN };

static const size_t lengths[] = {1, 2, 31, 67, 131};

typedef struct Norm {
  size_t n;
  MoeReal *x;
  float *gain, *dy, *dx0, *g0, *rstd; /* inputs; what dx and the gain's gradient are added to */
  uint32_t *row;
  MoeReal *y, *y_again;
  float *rstd_out, *dx, *g;
} Norm;

static void launch_norm(void *c)
{
  Norm *t = c;
  size_t bytes = t->n * H * sizeof(MoeReal);
  t->y = out_new(bytes);
  t->rstd_out = out_new(t->n * sizeof(float));
  t->y_again = out_new(bytes);
  t->dx = out_copy(t->dx0, t->n * H * sizeof(float));
  t->g = out_copy(t->g0, H * sizeof(float));
  float *partial = dev_new(MOE_PARTS * H * sizeof(float));
  ok(moe_cuda_norm(t->x, t->gain, t->n, t->y, t->rstd_out, NULL));
  ok(moe_cuda_norm_rows(t->x, t->gain, t->rstd_out, t->row, t->n, t->y_again, NULL));
  ok(moe_cuda_norm_back(t->x, t->gain, t->rstd_out, t->dy, t->n, t->dx, t->g, partial, NULL));
  dev_free(partial);
}

static void test_norm(void **state)
{
  (void)state;
  for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
    size_t n = lengths[k];
    Norm t = {.n = n};
    MoeReal *x = real_waves(n * H, 1, 3.0f);
    float *gain = float_waves(H, 2, 1.0f);
    float *dy = float_waves(n * H, 3, 0.5f);
    float *dx = float_waves(n * H, 4, 0.1f);
    float *g = float_waves(H, 5, 0.1f);
    float *y = malloc(n * H * sizeof *y);
    float *rstd = malloc(n * sizeof *rstd);
    MoeReal *y_real = malloc(n * H * sizeof *y_real);
    double *x64 = doubles_of_reals(x, n * H);
    double *gain64 = doubles_of(gain, H);
    double *dy64 = doubles_of(dy, n * H);
    double *dx64 = doubles_of(dx, n * H);
    double *g64 = doubles_of(g, H);
    double *y64 = malloc(n * H * sizeof *y64);
    t.x = dev_copy(x, n * H * sizeof *x);
    t.gain = dev_copy(gain, H * sizeof *gain);
    t.dy = dev_copy(dy, n * H * sizeof *dy);
    t.dx0 = dx;
    t.g0 = g;
    t.row = dev_new(n * sizeof *t.row);
    for (size_t i = 0; i < n; i++) {
      t.row[i] = (uint32_t)(n - 1 - i);
    }
    in_all_orders(launch_norm, &t);

    moe_norm(x, gain, n, y, rstd);
    moe_keep_row(y_real, y, n * H);
    moe_norm_back(x, gain, rstd, dy, n, dx, g);
    ref_rmsnorm(y64, x64, gain64, (int64_t)n, H, MOE_NORM_EPS);
    ref_rmsnorm_back(dx64, g64, dy64, x64, gain64, (int64_t)n, H, MOE_NORM_EPS);
    check_reals("norm", t.y, y_real, y64, n * H);
    check_floats("dx", t.dx, dx, dx64, n * H);
    check_floats("gain's gradient", t.g, g, g64, H);
    for (size_t i = 0; i < n; i++) {
      check_same("norm of chosen rows", t.y_again + i * H, t.y + (n - 1 - i) * H, H * sizeof(MoeReal));
    }

    dev_free(t.x);
    dev_free(t.gain);
    dev_free(t.dy);
    dev_free(t.row);
    void *all[] = {x, gain, dy, dx, g, y, rstd, y_real, x64, gain64, dy64, dx64, g64, y64};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
      free(all[i]);
    }
  }
}

/* -- embedding -- */

typedef struct Embed {
  size_t n;
  int32_t *tokens;
  MoeReal *table, *dx;
  float *g0;
  MoeReal *x;
  float *g;
  int32_t *status;
} Embed;

static void launch_embed(void *c)
{
  static const int32_t fine[2] = {MOE_OK, MOE_OK};
  Embed *t = c;
  t->x = out_new(t->n * H * sizeof(MoeReal));
  t->g = out_copy(t->g0, (size_t)MOE_VOCAB * H * sizeof(float));
  t->status = out_copy(fine, sizeof fine);
  ok(moe_cuda_embed(t->tokens, t->n, t->table, t->x, t->status, NULL));
  ok(moe_cuda_embed_wgrad(t->tokens, t->n, t->dx, t->g, t->status + 1, NULL));
}

static void test_embed(void **state)
{
  (void)state;
  static const size_t counts[] = {1, 129, 300};
  MoeReal *table = real_waves((size_t)MOE_VOCAB * H, 1, 1.0f);
  float *table_floats = float_waves((size_t)MOE_VOCAB * H, 1, 1.0f);
  Embed t = {.table = dev_copy(table, (size_t)MOE_VOCAB * H * sizeof *table)};
  for (size_t k = 0; k < 3 * sizeof counts / sizeof *counts; k++) {
    size_t n = counts[k / 3];
    int32_t *tokens = malloc(n * sizeof *tokens);
    float *g = float_waves((size_t)MOE_VOCAB * H, 2, 0.1f);
    MoeReal *dx = real_waves(n * H, 3, 1.0f);
    double *g64 = doubles_of(g, (size_t)MOE_VOCAB * H);
    for (size_t i = 0; i < n; i++) { /* all alike, few ids, many */
      tokens[i] = (int32_t)(k % 3 == 0 ? MOE_VOCAB - 1 : k % 3 == 1 ? i * i % 7 : i * 31 % MOE_VOCAB);
      for (size_t j = 0; j < H; j++) {
        g64[(size_t)tokens[i] * H + j] += (double)moe_get(dx[i * H + j]);
      }
    }
    t.n = n;
    t.tokens = dev_copy(tokens, n * sizeof *tokens);
    t.dx = dev_copy(dx, n * H * sizeof *dx);
    t.g0 = g;
    in_all_orders(launch_embed, &t);
    assert_int_equal(t.status[0], MOE_OK);

    MoeAttSaved s;
    MoeAttWork work;
    const MoeAttHead shape = {.seq = (uint32_t)n, .n_seqs = 1};
    MoeCall call = {
        .seq = (int32_t)n, .n_seqs = 1, .n_chunks = 1, .tokens = tokens, .table = table_floats, .g_table = g};
    call.saved = malloc(moe_att_saved_carve(NULL, &shape, &s));
    call.work = malloc(moe_att_work_carve(NULL, n, &work));
    assert_int_equal(moe_embed_fwd(&call), MOE_OK);
    moe_att_saved(&call, &s);
    moe_att_work_carve(call.work, n, &work);
    memcpy(work.dx, dx, n * H * sizeof *dx);
    assert_int_equal(moe_embed_wgrad(&call), MOE_OK);
    check_same("embedding", t.x, s.x, n * H * sizeof *t.x);
    check_floats("table's gradient", t.g, g, g64, (size_t)MOE_VOCAB * H);
    check_same("table's gradient", t.g, g, (size_t)MOE_VOCAB * H * sizeof *g);

    t.tokens[n / 2] = MOE_VOCAB; /* outside */
    in_all_orders(launch_embed, &t);
    assert_int_equal(t.status[0], MOE_EINVAL);
    assert_int_equal(t.status[1], MOE_EINVAL);

    dev_free(t.tokens);
    dev_free(t.dx);
    void *all[] = {tokens, g, dx, g64, call.saved, call.work};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
      free(all[i]);
    }
  }
  dev_free(t.table);
  free(table);
  free(table_floats);
}

/* -- optimizer -- */

static const MoeAdam adam = {.lr = 1e-2f,
                             .beta1 = 0.9f,
                             .beta2 = 0.95f,
                             .eps = 1e-8f,
                             .weight_decay = 0.1f,
                             .scale = 0.5f,
                             .bias1 = 0.19f,
                             .bias2 = 0.0975f};

typedef struct Update {
  size_t n;
  bool decay;
  float *master0, *m0, *v0, *g;
  MoeReal *w, *again;
  float *master, *m, *v, *sum;
  double *squares;
  float *floats;   /* of the new weights */
  MoeReal *summed; /* those and g */
} Update;

static void launch_update(void *c)
{
  Update *t = c;
  size_t bytes = t->n * sizeof(float);
  const double before = 3.0;
  double *partial = dev_new(MOE_PARTS * sizeof *partial);
  t->master = out_copy(t->master0, bytes);
  t->m = out_copy(t->m0, bytes);
  t->v = out_copy(t->v0, bytes);
  t->sum = out_copy(t->m0, bytes);
  t->w = out_new(t->n * sizeof(MoeReal));
  t->again = out_new(t->n * sizeof(MoeReal));
  t->squares = out_copy(&before, sizeof before);
  ok(moe_cuda_add(t->sum, t->g, t->n, NULL));
  ok(moe_cuda_sumsq(t->g, t->n, t->squares, partial, NULL));
  ok(moe_cuda_adamw(&adam, t->w, t->master, t->m, t->v, t->g, t->n, t->decay, NULL));
  ok(moe_cuda_to_weights(t->again, t->master, t->n, NULL));
  t->floats = out_new(bytes);
  t->summed = out_new(t->n * sizeof(MoeReal));
  ok(moe_cuda_floats(t->w, t->n, t->floats, NULL));
  ok(moe_cuda_add_rounded(t->w, t->g, t->n, t->summed, NULL));
  dev_free(partial);
}

/* The formulas in fp64, from what float holds of the settings. */
static void update64(size_t n, bool decay, double *master, double *m, double *v, const double *g)
{
  for (size_t i = 0; i < n; i++) {
    double scaled = (double)adam.scale * g[i];
    m[i] = (double)adam.beta1 * m[i] + (1 - (double)adam.beta1) * scaled;
    v[i] = (double)adam.beta2 * v[i] + (1 - (double)adam.beta2) * scaled * scaled;
    double step = m[i] / (double)adam.bias1 / (sqrt(v[i] / (double)adam.bias2) + (double)adam.eps);
    master[i] -= (double)adam.lr * (step + (decay ? (double)adam.weight_decay * master[i] : 0.0));
  }
}

static void test_update(void **state)
{
  (void)state;
  static const size_t counts[] = {1, 255, 257, 20011};
  for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
    size_t n = counts[k];
    Update t = {.n = n, .decay = k % 2 == 0};
    float *master = float_waves(n, 1, 1.0f);
    float *m = float_waves(n, 2, 1.0f);
    float *v = float_waves(n, 3, 1.0f);
    float *g = float_waves(n, 4, 1.0f);
    float *w = malloc(n * sizeof *w);
    MoeReal *w_real = malloc(n * sizeof *w_real);
    for (size_t i = 0; i < n; i++) {
      v[i] = fabsf(v[i]);
    }
    double *master64 = doubles_of(master, n);
    double *m64 = doubles_of(m, n);
    double *v64 = doubles_of(v, n);
    double *g64 = doubles_of(g, n);
    t.master0 = master;
    t.m0 = m;
    t.v0 = v;
    t.g = dev_copy(g, n * sizeof *g);
    in_all_orders(launch_update, &t);

    double squares = 3.0;
    for (size_t i = 0; i < n; i++) {
      float sum = m[i] + g[i];
      squares += g64[i] * g64[i];
      check_same("sum", &t.sum[i], &sum, sizeof sum);
    }
    assert_true(fabs(*t.squares - squares) <= 1e-12 * squares);
    moe_adamw(&adam, w, master, m, v, g, n, t.decay);
    moe_keep_row(w_real, w, n);
    update64(n, t.decay, master64, m64, v64, g64);
    check_floats("master", t.master, master, master64, n);
    check_floats("m", t.m, m, m64, n);
    check_floats("v", t.v, v, v64, n);
    check_reals("weights", t.w, w_real, master64, n);
    check_same("weights again", t.again, t.w, n * sizeof *t.w);
    for (size_t i = 0; i < n; i++) {
      float value = moe_get(t.w[i]);
      MoeReal summed = moe_put(value + g[i]);
      check_same("a weight as a float", &t.floats[i], &value, sizeof value);
      check_same("a weight and a float", &t.summed[i], &summed, sizeof summed);
    }
    dev_free(t.g);
    void *all[] = {master, m, v, g, w, w_real, master64, m64, v64, g64};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
      free(all[i]);
    }
  }
}

int test_rows(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_norm),
      cmocka_unit_test(test_embed),
      cmocka_unit_test(test_update),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
