/* The storage type of activations, messages and weights: fp32, or bf16 rounded to nearest even. Arithmetic is fp32. */
#ifndef MOE_STORE_H
#define MOE_STORE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "moe_config.h"
#include "moe_layout.h"

MOE_FN uint32_t moe_bits(float x)
{
  uint32_t u;
  memcpy(&u, &x, sizeof u);
  return u;
}

MOE_FN float moe_float(uint32_t u)
{
  float x;
  memcpy(&x, &u, sizeof x);
  return x;
}

/* Nearest bf16, ties to even. A NaN stays one: plain rounding could carry it over into infinity or zero. */
MOE_FN uint16_t moe_to_bf16(float x)
{
  uint32_t u = moe_bits(x);
  uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  uint32_t quiet = (u >> 16) | 0x40u;
  return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

#if MOE_BF16

typedef uint16_t MoeReal;

MOE_FN float moe_get(MoeReal x)
{
  return moe_float((uint32_t)x << 16);
}

MOE_FN MoeReal moe_put(float x)
{
  return moe_to_bf16(x);
}

/* Rows as floats for a GEMM to read: converted into buf. */
static inline const float *moe_floats(const MoeReal *x, size_t n, float *buf)
{
  for (size_t i = 0; i < n; i++) {
    buf[i] = moe_get(x[i]);
  }
  return buf;
}

/* Where a GEMM may write what moe_keep() then stores. */
static inline float *moe_target(MoeReal *x, float *buf)
{
  (void)x;
  return buf;
}

static inline void moe_keep(MoeReal *x, const float *target, size_t n)
{
  for (size_t i = 0; i < n; i++) {
    x[i] = moe_put(target[i]);
  }
}

#else

typedef float MoeReal;

MOE_FN float moe_get(MoeReal x)
{
  return x;
}

MOE_FN MoeReal moe_put(float x)
{
  return x;
}

/* Rows as floats for a GEMM to read: they are floats already, buf may be NULL. */
static inline const float *moe_floats(const MoeReal *x, size_t n, float *buf)
{
  (void)n;
  (void)buf;
  return x;
}

static inline float *moe_target(MoeReal *x, float *buf)
{
  (void)buf;
  return x;
}

static inline void moe_keep(MoeReal *x, const float *target, size_t n)
{
  (void)x;
  (void)target;
  (void)n;
}

#endif

/* n values that lie elsewhere, stored; and read. */
static inline void moe_keep_row(MoeReal *x, const float *values, size_t n)
{
  for (size_t i = 0; i < n; i++) {
    x[i] = moe_put(values[i]);
  }
}

static inline void moe_read_row(const MoeReal *x, size_t n, float *values)
{
  for (size_t i = 0; i < n; i++) {
    values[i] = moe_get(x[i]);
  }
}

MOE_FN float moe_round(float x)
{
  return moe_get(moe_put(x));
}

#endif
