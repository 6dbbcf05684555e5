/* RMSNorm: r = 1 / sqrt(mean(x^2) + eps), y = gain * (x r), both products rounded to the storage type, or with
   MOE_NORM_ONCE only the second. Backward with xh = x r and d = dy gain: dx = r (d - xh mean(d xh)), dgain = sum over
   rows of dy xh. */
#include "moe_parts.h"
#include "moe_vec.h"

float moe_rstd(const float *x, size_t n, double eps)
{
  return 1.0f / sqrtf(moe_dot(x, x, n) / (float)n + (float)eps);
}

void moe_norm_row(const MoeReal *x, const float *gain, float rstd, float *y)
{
  for (size_t i = 0; i < MOE_HIDDEN; i++) {
    float xh = moe_get(x[i]) * rstd;
    y[i] = moe_round(gain[i] * (MOE_NORM_ONCE ? xh : moe_round(xh)));
  }
}

void moe_norm_rows(const MoeReal *x, const float *gain, const float *rstd, size_t n, float *y)
{
  for (size_t r = 0; r < n; r++) {
    moe_norm_row(x + r * MOE_HIDDEN, gain, rstd[r], y + r * MOE_HIDDEN);
  }
}

void moe_rstds(const MoeReal *x, size_t n, float *rstd)
{
  float row[MOE_BF16 ? MOE_HIDDEN : 1];
  for (size_t r = 0; r < n; r++) {
    const float *xf = moe_floats(x + r * MOE_HIDDEN, MOE_HIDDEN, row);
    rstd[r] = moe_rstd(xf, MOE_HIDDEN, MOE_NORM_EPS);
  }
}

void moe_norm(const MoeReal *x, const float *gain, size_t n, float *y, float *rstd)
{
  for (size_t r = 0; r < n; r++) {
    moe_rstds(x + r * MOE_HIDDEN, 1, &rstd[r]);
    moe_norm_row(x + r * MOE_HIDDEN, gain, rstd[r], y + r * MOE_HIDDEN);
  }
}

void moe_norm_back(const MoeReal *x, const float *gain, const float *rstd, const float *dy, size_t n, float *dx,
                   float *g_gain)
{
  float scaled[MOE_HIDDEN];
  float xh[MOE_HIDDEN];
  float dgain[MOE_HIDDEN] = {0};
  for (size_t r = 0; r < n; r++) {
    const MoeReal *xr = x + r * MOE_HIDDEN;
    const float *dyr = dy + r * MOE_HIDDEN;
    float *dxr = dx + r * MOE_HIDDEN;
    for (size_t i = 0; i < MOE_HIDDEN; i++) {
      xh[i] = moe_get(xr[i]) * rstd[r];
      scaled[i] = dyr[i] * gain[i];
      dgain[i] = moe_fma(dyr[i], xh[i], dgain[i]);
    }
    float mean = moe_dot(scaled, xh, MOE_HIDDEN) / (float)MOE_HIDDEN;
    for (size_t i = 0; i < MOE_HIDDEN; i++) {
      dxr[i] = moe_fma(rstd[r], moe_fma(-xh[i], mean, scaled[i]), dxr[i]);
    }
  }
  for (size_t i = 0; i < MOE_HIDDEN && n > 0; i++) {
    g_gain[i] += dgain[i];
  }
}

void moe_norm_vector_by(const float *x, const float *gain, float rstd, size_t n, float *y)
{
  for (size_t i = 0; i < n; i++) {
    y[i] = moe_round(gain[i] * moe_round(x[i] * rstd));
  }
}

void moe_norm_vector(const float *x, const float *gain, size_t n, double eps, float *y)
{
  moe_norm_vector_by(x, gain, moe_rstd(x, n, eps), n, y);
}

void moe_norm_vector_back(const float *x, const float *gain, size_t n, double eps, const float *dy, float *dx,
                          float *dgain)
{
  float r = moe_rstd(x, n, eps);
  float sum = 0.0f;
  for (size_t i = 0; i < n; i++) {
    float xh = x[i] * r;
    sum = moe_fma(dy[i] * gain[i], xh, sum);
    dgain[i] = moe_fma(dy[i], xh, dgain[i]);
  }
  float mean = sum / (float)n;
  for (size_t i = 0; i < n; i++) {
    dx[i] = r * moe_fma(-x[i] * r, mean, dy[i] * gain[i]);
  }
}
