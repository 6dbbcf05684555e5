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
  assert_int_equal(moe_cuda_norm(t->x, t->gain, t->n, t->y, t->rstd_out, NULL), MOE_OK);
  assert_int_equal(moe_cuda_norm_rows(t->x, t->gain, t->rstd_out, t->row, t->n, t->y_again, NULL), MOE_OK);
  assert_int_equal(moe_cuda_norm_back(t->x, t->gain, t->rstd_out, t->dy, t->n, t->dx, t->g, partial, NULL), MOE_OK);
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

int test_rows(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_norm),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
