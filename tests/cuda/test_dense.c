/* Plain products in their forms, added or not, in rows that are longer than they are wide; and biases. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "check.h"
#include "moe_gemm.h"
#include "moe_vec.h"
#include "tests/cuda/tests.h"

typedef enum Form { NT, NN, TN } Form;
typedef enum Out { REALS, FLOATS } Out;

enum { GAP = 3 }; /* elements between rows, which stay as they are */

typedef struct Product {
  Form form;
  Out out;
  size_t m, n, k, lda, ldb, ldc;
  float beta;
  MoeReal *a, *b, *c0; /* the device's; c0 the host's */
  float *c0_float;
  MoeReal *c;
  float *c_float;
} Product;

static void launch_product(void *p)
{
  Product *t = p;
  size_t room = t->m * t->ldc;
  if (t->out == REALS) {
    t->c = out_copy(t->c0, room * sizeof *t->c);
    ok((t->form == NT ? moe_cuda_gemm_nt : moe_cuda_gemm_nn)(t->m, t->n, t->k, t->a, t->lda, t->b, t->ldb, t->beta,
                                                             t->c, t->ldc, NULL));
  } else {
    t->c_float = out_copy(t->c0_float, room * sizeof *t->c_float);
    ok((t->form == NT ? moe_cuda_gemm_nt_float
        : t->form == NN
            ? moe_cuda_gemm_nn_float
            : moe_cuda_gemm_tn)(t->m, t->n, t->k, t->a, t->lda, t->b, t->ldb, t->beta, t->c_float, t->ldc, NULL));
  }
}

/* The twin and fp64, from floats that the storage type holds. */
static void product_twin(const Product *t, const float *a, const float *b, float *c, double *want)
{
  (t->form == NT   ? moe_gemm_nt
   : t->form == NN ? moe_gemm_nn
                   : moe_gemm_tn)(t->m, t->n, t->k, a, t->lda, b, t->ldb, t->beta, c, t->ldc);
  for (size_t i = 0; i < t->m; i++) {
    for (size_t j = 0; j < t->n; j++) {
      double sum = t->beta > 0 ? want[i * t->ldc + j] : 0.0;
      for (size_t l = 0; l < t->k; l++) {
        sum += (double)a[t->form == TN ? l * t->lda + i : i * t->lda + l] *
               (double)b[t->form == NT ? j * t->ldb + l : l * t->ldb + j];
      }
      want[i * t->ldc + j] = sum;
    }
  }
}

static void one_product(Form form, Out out, size_t m, size_t n, size_t k, bool added)
{
  Product t = {.form = form, .out = out, .m = m, .n = n, .k = k, .ldc = n + GAP, .beta = added ? 1.0f : 0.0f};
  size_t a_rows = form == TN ? k : m;
  size_t b_rows = form == NT ? n : k;
  t.lda = (form == TN ? m : k) + GAP;
  t.ldb = (form == NT ? k : n) + 2 * GAP;
  float *a = float_waves(a_rows * t.lda, 1, 1.0f);
  float *b = float_waves(b_rows * t.ldb, 2, 1.0f);
  MoeReal *a_real = real_waves(a_rows * t.lda, 1, 1.0f);
  MoeReal *b_real = real_waves(b_rows * t.ldb, 2, 1.0f);
  float *c = float_waves(m * t.ldc, 3, 1.0f);
  double *want = doubles_of(c, m * t.ldc);
  t.c0 = real_waves(m * t.ldc, 3, 1.0f);
  t.c0_float = float_waves(m * t.ldc, 3, 1.0f);
  for (size_t i = 0; !added && i < m * t.ldc; i++) { /* not read then */
    if (i % t.ldc < n) {
      memset(&t.c0[i], 0xff, sizeof *t.c0);
      memset(&t.c0_float[i], 0xff, sizeof *t.c0_float);
    }
  }
  t.a = dev_copy(a_real, a_rows * t.lda * sizeof *a_real);
  t.b = dev_copy(b_real, b_rows * t.ldb * sizeof *b_real);
  in_all_orders(launch_product, &t);
  product_twin(&t, a, b, c, want);
  if (k == 0) { /* nothing is done */
    check_same("product without depth", out == REALS ? (void *)t.c : t.c_float,
               out == REALS ? (void *)t.c0 : t.c0_float, m * t.ldc * (out == REALS ? sizeof *t.c : sizeof *t.c_float));
  } else if (out == REALS) {
    MoeReal *twin = malloc((m * t.ldc + 1) * sizeof *twin);
    moe_keep_row(twin, c, m * t.ldc);
    check_reals("product", t.c, twin, want, m * t.ldc);
    free(twin);
  } else {
    check_floats("product", t.c_float, c, want, m * t.ldc);
  }
  for (size_t i = 0; i < m; i++) {
    size_t gap = i * t.ldc + n;
    check_same("gap", out == REALS ? (void *)(t.c + gap) : t.c_float + gap,
               out == REALS ? (void *)(t.c0 + gap) : t.c0_float + gap,
               GAP * (out == REALS ? sizeof *t.c : sizeof *t.c_float));
  }
  dev_free(t.a);
  dev_free(t.b);
  void *all[] = {a, b, a_real, b_real, c, want, t.c0, t.c0_float};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    free(all[i]);
  }
}

static void test_products(void **state)
{
  (void)state;
  static const size_t sizes[][3] = {{1, 1, 1}, {1, 37, 5}, {67, 1, 16}, {33, 31, 64}, {16, 48, 131}, {5, 7, 0}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    for (int added = 0; added < 2; added++) {
      for (int form = NT; form <= TN; form++) {
        one_product((Form)form, FLOATS, sizes[i][0], sizes[i][1], sizes[i][2], added);
        if (form != TN) {
          one_product((Form)form, REALS, sizes[i][0], sizes[i][1], sizes[i][2], added);
        }
      }
    }
  }
}

/* -- biases -- */

typedef struct Bias {
  size_t n, width;
  float *row, *dy_float, *g0;
  MoeReal *dy, *y;
  float *y_float, *g, *g_float;
} Bias;

static void launch_bias(void *p)
{
  Bias *t = p;
  size_t ld = t->width + GAP;
  float *partial = dev_new(MOE_PARTS * t->width * sizeof *partial);
  t->y = out_new(t->n * ld * sizeof *t->y);
  t->y_float = out_new(t->n * ld * sizeof *t->y_float);
  t->g = out_copy(t->g0, t->width * sizeof *t->g);
  t->g_float = out_copy(t->g0, t->width * sizeof *t->g_float);
  ok(moe_cuda_set_rows(t->row, t->n, t->width, t->y, ld, NULL));
  ok(moe_cuda_set_rows_float(t->row, t->n, t->width, t->y_float, ld, NULL));
  ok(moe_cuda_bias_back(t->dy, t->n, ld, t->width, t->g, partial, NULL));
  ok(moe_cuda_bias_back_float(t->dy_float, t->n, ld, t->width, t->g_float, partial, NULL));
  dev_free(partial);
}

static void test_bias(void **state)
{
  (void)state;
  static const size_t sizes[][2] = {{0, 4}, {1, 1}, {3, 129}, {131, 67}};
  for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
    size_t n = sizes[k][0];
    size_t width = sizes[k][1];
    size_t ld = width + GAP;
    float *row = float_waves(width, 1, 1.0f);
    float *dy = float_waves(n * ld, 2, 1.0f);
    MoeReal *dy_real = real_waves(n * ld, 2, 1.0f);
    float *g = float_waves(width, 3, 0.1f);
    Bias t = {.n = n, .width = width, .g0 = float_waves(width, 3, 0.1f)};
    double *want = doubles_of(g, width);
    t.row = dev_copy(row, width * sizeof *row);
    t.dy_float = dev_copy(dy, n * ld * sizeof *dy);
    t.dy = dev_copy(dy_real, n * ld * sizeof *dy_real);
    in_all_orders(launch_bias, &t);
    moe_bias_back(g, dy, n, ld, width);
    for (size_t i = 0; i < n * ld; i++) {
      uint8_t untouched[sizeof(float)];
      memset(untouched, 0xff, sizeof untouched);
      MoeReal want_real = i % ld < width ? moe_put(row[i % ld]) : t.y[i];
      check_same("row", &t.y[i], &want_real, sizeof want_real);
      check_same("row of floats", &t.y_float[i], i % ld < width ? (void *)&row[i % ld] : untouched, sizeof(float));
      want[i % ld < width ? i % ld : 0] += i % ld < width ? (double)dy[i] : 0.0;
    }
    check_floats("bias's gradient", t.g, g, want, width);
    check_floats("bias's gradient from floats", t.g_float, g, want, width);
    void *device[] = {t.row, t.dy_float, t.dy};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++) {
      dev_free(device[i]);
    }
    void *all[] = {row, dy, dy_real, g, t.g0, want};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
      free(all[i]);
    }
  }
}

int test_dense(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_products),
      cmocka_unit_test(test_bias),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
