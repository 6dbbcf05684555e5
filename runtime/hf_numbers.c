#include "runtime/hf_numbers.h"

#include <math.h>
#include <string.h>

static float float_of(uint32_t bits)
{
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

static float half_to_float(uint16_t half)
{
  uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
  uint32_t exponent = half >> 10 & 0x1fu;
  uint32_t fraction = half & 0x3ffu;
  if (exponent == 0) { /* zero or subnormal: fraction 2^-24 */
    float x = (float)fraction * 0x1p-24F;
    return sign != 0 ? -x : x;
  }
  return float_of(sign | (exponent == 31 ? 0xffu : exponent + 112) << 23 | fraction << 13);
}

static uint16_t float_to_bf16(float x)
{
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  if (isnan(x)) {
    return (uint16_t)(bits >> 16 | 0x40u);
  }
  return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

bool moe_hf_reads(MoeStDtype dtype)
{
  return dtype == MOE_ST_F64 || dtype == MOE_ST_F32 || dtype == MOE_ST_F16 || dtype == MOE_ST_BF16;
}

void moe_hf_widen(const MoeStTensor *t, int64_t at, int64_t step, int64_t n, float *to, int64_t to_step)
{
  switch (t->dtype) {
  case MOE_ST_F64:
    for (int64_t i = 0; i < n; i++) {
      double x;
      memcpy(&x, t->data + (at + i * step) * 8, sizeof x);
      to[i * to_step] = (float)x;
    }
    return;
  case MOE_ST_F32:
    for (int64_t i = 0; i < n; i++) {
      memcpy(&to[i * to_step], t->data + (at + i * step) * 4, sizeof *to);
    }
    return;
  case MOE_ST_F16:
    for (int64_t i = 0; i < n; i++) {
      uint16_t half;
      memcpy(&half, t->data + (at + i * step) * 2, sizeof half);
      to[i * to_step] = half_to_float(half);
    }
    return;
  default: /* BF16 */
    for (int64_t i = 0; i < n; i++) {
      uint16_t top;
      memcpy(&top, t->data + (at + i * step) * 2, sizeof top);
      to[i * to_step] = float_of((uint32_t)top << 16);
    }
    return;
  }
}

void moe_hf_widen_mxfp4(const uint8_t *blocks, const uint8_t *scales, int64_t at, int64_t step, int64_t n, float *to,
                        int64_t to_step)
{
  static const float values[16] = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                                   -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};
  for (int64_t i = 0; i < n; i++) {
    int64_t k = at + i * step;
    int nibble = blocks[k / 2] >> 4 * (k % 2) & 0xf;
    to[i * to_step] = ldexpf(values[nibble], scales[k / 32] - 127);
  }
}

void moe_hf_narrow(MoeStDtype dtype, const float *from, int64_t step, int64_t n, uint8_t *to, int64_t to_step)
{
  for (int64_t i = 0; i < n; i++) {
    if (dtype == MOE_ST_F32) {
      memcpy(to + i * to_step * 4, &from[i * step], sizeof *from);
    } else {
      uint16_t top = float_to_bf16(from[i * step]);
      memcpy(to + i * to_step * 2, &top, sizeof top);
    }
  }
}
