/* A plain MLP that every token passes: of dense layers, and the shared expert. y = down(silu(gate h) * (up h)); gate
   and up are one matrix [2 f, H], down [H, f] follows it. */
#include "moe_act.h"
#include "moe_gemm.h"
#include "moe_parts.h"

enum { H = MOE_HIDDEN };

void moe_mlp_inner(const float *w, size_t f, const float *h, size_t n, float *gate_up)
{
  moe_gemm_nt(n, 2 * f, H, h, H, w, H, 0.0f, gate_up, 2 * f);
  for (size_t i = 0; i < n * 2 * f; i++) {
    gate_up[i] = moe_round(gate_up[i]);
  }
}

void moe_mlp_outer(const float *w, size_t f, const float *gate_up, size_t n, float *act, float *y)
{
  for (size_t r = 0; r < n; r++) {
    const float *row = gate_up + r * 2 * f;
    for (size_t i = 0; i < f; i++) {
      act[r * f + i] = moe_round(moe_act(false, row[i], row[f + i]));
    }
  }
  moe_gemm_nt(n, H, f, act, f, w + 2 * f * H, f, 0.0f, y, H);
}

void moe_mlp_dgrad_outer(const float *w, size_t f, const float *dy, size_t n, float *gate_up, float *act)
{
  moe_gemm_nn(n, f, H, dy, H, w + 2 * f * H, f, 0.0f, act, f);
  for (size_t r = 0; r < n; r++) {
    float *row = gate_up + r * 2 * f;
    for (size_t i = 0; i < f; i++) {
      float dg;
      float du;
      float *a = &act[r * f + i];
      float value = moe_act_back(false, row[i], row[f + i], &dg, &du);
      row[i] = moe_round(*a * dg);
      row[f + i] = moe_round(*a * du);
      *a = moe_round(value);
    }
  }
}

void moe_mlp_dgrad_inner(const float *w, size_t f, const float *d_gate_up, size_t n, float *dh)
{
  moe_gemm_nn(n, H, 2 * f, d_gate_up, 2 * f, w, H, 0.0f, dh, H);
}

void moe_mlp_wgrad_inner(size_t f, const float *d_gate_up, const float *h, size_t n, float *gw)
{
  moe_gemm_tn(2 * f, H, n, d_gate_up, 2 * f, h, H, 1.0f, gw, H);
}

void moe_mlp_wgrad_outer(size_t f, const float *dy, const float *act, size_t n, float *gw)
{
  moe_gemm_tn(H, f, n, dy, H, act, f, 1.0f, gw + 2 * f * H, f);
}
