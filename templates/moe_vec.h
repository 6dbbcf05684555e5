/* Loops that compilers turn into vector code without being allowed to reorder sums: sums run in a fixed number of lanes
   that are added in a fixed order. */
#ifndef MOE_VEC_H
#define MOE_VEC_H

#include <math.h>
#include <stddef.h>

#include "moe_store.h"

enum { MOE_LANES = 16 };

/* a * b + c; fused only where that is one instruction. */
MOE_FN float moe_fma(float a, float b, float c)
{
#ifdef __FP_FAST_FMAF
  return fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

static inline float moe_lane_sum(float *lane)
{
  for (size_t w = MOE_LANES / 2; w > 0; w /= 2) {
    for (size_t l = 0; l < w; l++) {
      lane[l] += lane[l + w];
    }
  }
  return lane[0];
}

static inline float moe_dot(const float *a, const float *b, size_t n)
{
  float lane[MOE_LANES] = {0};
  size_t i = 0;
  for (; i + MOE_LANES <= n; i += MOE_LANES) {
    for (size_t l = 0; l < MOE_LANES; l++) {
      lane[l] = moe_fma(a[i + l], b[i + l], lane[l]);
    }
  }
  for (size_t l = 0; l < n % MOE_LANES; l++) {
    lane[l] = moe_fma(a[i + l], b[i + l], lane[l]);
  }
  return moe_lane_sum(lane);
}

/* Rows of y [n, width], ld apart, += bias. */
static inline void moe_add_bias(float *y, size_t n, size_t ld, const float *bias, size_t width)
{
  for (size_t r = 0; r < n; r++) {
    for (size_t i = 0; i < width; i++) {
      y[r * ld + i] += bias[i];
    }
  }
}

/* g += sum of the rows of dy. */
static inline void moe_bias_back(float *g, const float *dy, size_t n, size_t ld, size_t width)
{
  for (size_t r = 0; r < n; r++) {
    for (size_t i = 0; i < width; i++) {
      g[i] += dy[r * ld + i];
    }
  }
}

/* Largest of x[0 .. n), n >= 1. */
static inline float moe_vec_max(const float *x, size_t n)
{
  float lane[MOE_LANES];
  for (size_t l = 0; l < MOE_LANES; l++) {
    lane[l] = x[0];
  }
  size_t i = 0;
  for (; i + MOE_LANES <= n; i += MOE_LANES) {
    for (size_t l = 0; l < MOE_LANES; l++) {
      lane[l] = x[i + l] > lane[l] ? x[i + l] : lane[l];
    }
  }
  for (size_t l = 0; l < n % MOE_LANES; l++) {
    lane[l] = x[i + l] > lane[l] ? x[i + l] : lane[l];
  }
  float best = lane[0];
  for (size_t l = 1; l < MOE_LANES; l++) {
    best = lane[l] > best ? lane[l] : best;
  }
  return best;
}

/* e^x with a relative error below 2e-7 for -87 <= x <= 88; 0 below, e^88 above, NaN stays NaN.
   x = n ln 2 + r, |r| <= ln 2 / 2; e^r by the polynomial of the Cephes library. */
MOE_FN float moe_exp(float x)
{
  const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer, held in the low bits */
  float z = x > 88.0f ? 88.0f : x;
  z = z < -87.0f ? -87.0f : z;
  float t = moe_fma(z, 1.44269504088896341f, magic);
  float n = t - magic;
  float r = moe_fma(n, -0.693359375f, z);
  r = moe_fma(n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = moe_fma(p, r, 1.3981999507e-3f);
  p = moe_fma(p, r, 8.3334519073e-3f);
  p = moe_fma(p, r, 4.1665795894e-2f);
  p = moe_fma(p, r, 1.6666665459e-1f);
  p = moe_fma(p, r, 5.0000001201e-1f);
  p = moe_fma(p, r * r, r) + 1.0f;
  float scale = moe_float((moe_bits(t) - 0x4b400000u + 127u) << 23);
  return x < -87.0f ? 0.0f : p * scale;
}

/* y = e^(scale x - shift); returns the sum. x and y may be the same. */
static inline float moe_exp_row(const float *x, float scale, float shift, size_t n, float *y)
{
  float lane[MOE_LANES] = {0};
  size_t i = 0;
  for (; i + MOE_LANES <= n; i += MOE_LANES) {
    for (size_t l = 0; l < MOE_LANES; l++) {
      float e = moe_exp(moe_fma(x[i + l], scale, -shift));
      y[i + l] = e;
      lane[l] += e;
    }
  }
  for (size_t l = 0; l < n % MOE_LANES; l++) {
    float e = moe_exp(moe_fma(x[i + l], scale, -shift));
    y[i + l] = e;
    lane[l] += e;
  }
  return moe_lane_sum(lane);
}

#endif
