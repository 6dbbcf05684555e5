/* The activations, element by element. Plain: silu(g) u. Clamped: (u + 1) g sigmoid(alpha g) with g = min(g, limit) and
   u = clamp(u, -limit, limit); up to and at the limit gradient passes. With s the sigmoid: d/du = g s,
   d/dg = u s (1 + alpha g (1 - s)), u + 1 in place of u where clamped. */
#ifndef MOE_ACT_H
#define MOE_ACT_H

#include <stdbool.h>

#include "moe_vec.h"

MOE_FN float moe_min_float(float a, float b)
{
  return b < a ? b : a; /* a NaN in a stays */
}

MOE_FN float moe_clamp_up(float u)
{
  const float limit = (float)MOE_ACT_LIMIT;
  return moe_min_float(u, limit) < -limit ? -limit : moe_min_float(u, limit);
}

MOE_FN float moe_act(bool clamped, float g, float u)
{
  if (!clamped) {
    return g / (1.0f + moe_exp(-g)) * u;
  }
  float x = moe_min_float(g, (float)MOE_ACT_LIMIT);
  return (moe_clamp_up(u) + 1.0f) * (x / (1.0f + moe_exp(-(float)MOE_ACT_ALPHA * x)));
}

/* The same value, and its derivatives. */
MOE_FN float moe_act_back(bool clamped, float g, float u, float *dg, float *du)
{
  const float limit = (float)MOE_ACT_LIMIT;
  float alpha = clamped ? (float)MOE_ACT_ALPHA : 1.0f;
  float x = clamped ? moe_min_float(g, limit) : g;
  float y = clamped ? moe_clamp_up(u) + 1.0f : u;
  float s = 1.0f / (1.0f + moe_exp(-alpha * x));
  float silu = x * s;
  *dg = clamped && g > limit ? 0.0f : y * moe_fma(alpha * silu, 1.0f - s, s);
  *du = clamped && (u > limit || u < -limit) ? 0.0f : silu;
  return silu * y;
}

#endif
