#include "tests/ref/ref_math.h"

#include <math.h>
#include <stdlib.h>

#include "tests/ref/ref_config.h"

void *ref_alloc(int64_t n, int64_t size)
{
  void *p = calloc((size_t)(n > 0 ? n : 1), (size_t)size);
  if (!p) {
    ref_fail("out of memory");
  }
  return p;
}

/* Four sums at once, because one chain of additions would wait for each other. */
double ref_dot(const double *a, const double *b, int64_t n)
{
  double s0 = 0;
  double s1 = 0;
  double s2 = 0;
  double s3 = 0;
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    s0 += a[i] * b[i];
    s1 += a[i + 1] * b[i + 1];
    s2 += a[i + 2] * b[i + 2];
    s3 += a[i + 3] * b[i + 3];
  }
  for (; i < n; i++) {
    s0 += a[i] * b[i];
  }
  return (s0 + s1) + (s2 + s3);
}

void ref_axpy(double *restrict y, double a, const double *restrict x, int64_t n)
{
  for (int64_t i = 0; i < n; i++) {
    y[i] += a * x[i];
  }
}

void ref_linear(double *y, const double *x, const double *w, int64_t rows, int64_t in, int64_t out)
{
  for (int64_t r = 0; r < rows; r++) {
    for (int64_t o = 0; o < out; o++) {
      y[r * out + o] = ref_dot(x + r * in, w + o * in, in);
    }
  }
}

void ref_linear_dx(double *dx, const double *dy, const double *w, int64_t rows, int64_t in, int64_t out)
{
  for (int64_t r = 0; r < rows; r++) {
    for (int64_t o = 0; o < out; o++) {
      ref_axpy(dx + r * in, dy[r * out + o], w + o * in, in);
    }
  }
}

void ref_linear_dw(double *dw, const double *dy, const double *x, int64_t rows, int64_t in, int64_t out)
{
  for (int64_t r = 0; r < rows; r++) {
    for (int64_t o = 0; o < out; o++) {
      ref_axpy(dw + o * in, dy[r * out + o], x + r * in, in);
    }
  }
}

static double inverse_rms(const double *x, int64_t n, double eps)
{
  return 1 / sqrt(ref_dot(x, x, n) / (double)n + eps);
}

void ref_rmsnorm(double *y, const double *x, const double *gain, int64_t rows, int64_t n, double eps)
{
  for (int64_t row = 0; row < rows; row++, x += n, y += n) {
    double r = inverse_rms(x, n, eps);
    for (int64_t i = 0; i < n; i++) {
      y[i] = gain[i] * x[i] * r;
    }
  }
}

void ref_rmsnorm_back(double *dx, double *dgain, const double *dy, const double *x, const double *gain, int64_t rows,
                      int64_t n, double eps)
{
  for (int64_t row = 0; row < rows; row++, x += n, dy += n, dx += n) {
    double r = inverse_rms(x, n, eps);
    double mean = 0;
    for (int64_t i = 0; i < n; i++) {
      mean += dy[i] * gain[i] * x[i] * r / (double)n;
    }
    for (int64_t i = 0; i < n; i++) {
      dx[i] += r * (dy[i] * gain[i] - x[i] * r * mean);
      dgain[i] += dy[i] * x[i] * r;
    }
  }
}

void ref_softmax(double *p, const double *z, int64_t n)
{
  double most = z[0];
  for (int64_t i = 1; i < n; i++) {
    most = fmax(most, z[i]);
  }
  double sum = 0;
  for (int64_t i = 0; i < n; i++) {
    p[i] = exp(z[i] - most);
    sum += p[i];
  }
  for (int64_t i = 0; i < n; i++) {
    p[i] /= sum;
  }
}

void ref_bias(double *y, const double *b, int64_t rows, int64_t n)
{
  for (int64_t row = 0; row < rows; row++) {
    ref_axpy(y + row * n, 1, b, n);
  }
}

void ref_bias_back(double *db, const double *dy, int64_t rows, int64_t n)
{
  for (int64_t row = 0; row < rows; row++) {
    ref_axpy(db, 1, dy + row * n, n);
  }
}
