/* Latent attention's projections: q = Wq_b norm(c_q), per head [k; v] = Wkv_b norm(c), where the latents c_q, c come
   from the input. The norms are those of the published models, whose eps is 1e-6 whatever the others have. */
#include "moe_gemm.h"
#include "moe_parts.h"

enum { QKV = MOE_QKV_DIM, RQ = MOE_Q_LORA, RKV = MOE_KV_LORA, Q = MOE_Q_DIM, KVB = MOE_KVB_DIM };

static const double LATENT_EPS = 1e-6;

/* latent [n, rank] = norm of the columns from `col` on of rows [n, QKV]. */
static void norm_columns(const float *rows, size_t n, size_t col, size_t rank, const float *gain, float *latent)
{
  for (size_t r = 0; r < n; r++) {
    moe_norm_vector(rows + r * QKV + col, gain, rank, LATENT_EPS, latent + r * rank);
  }
}

void moe_latent(const float *w, size_t n, float *rows, float *latent)
{
  for (size_t r = 0; r < n; r++) {
    for (size_t i = 0; i < MOE_IN_DIM; i++) {
      rows[r * QKV + i] = moe_round(rows[r * QKV + i]);
    }
  }
  if (RQ > 0) {
    norm_columns(rows, n, 0, RQ, w + MOE_AT_QNORM, latent);
    moe_gemm_nt(n, Q, RQ, latent, RQ, w + MOE_AT_QB, RQ, 0.0f, rows + MOE_Q_COL, QKV);
  }
  norm_columns(rows, n, MOE_C_COL, RKV, w + MOE_AT_KNORM, latent);
  moe_gemm_nt(n, KVB, RKV, latent, RKV, w + MOE_AT_KVB, RKV, 0.0f, rows + MOE_KVB_COL, QKV);
}

/* The columns from `col` on of dqkv = gradient of a latent, given that of its norm. */
static void norm_columns_back(const MoeReal *qkv, size_t n, size_t col, size_t rank, const float *gain,
                              const float *latent, MoeReal *dqkv, float *dgain)
{
  float x[RQ > RKV ? RQ : RKV > 0 ? RKV : 1];
  float dx[RQ > RKV ? RQ : RKV > 0 ? RKV : 1];
  for (size_t r = 0; r < n; r++) {
    size_t at = r * QKV + col;
    const float *row = moe_floats(qkv + at, rank, x);
    moe_norm_vector_back(row, gain, rank, LATENT_EPS, latent + r * rank, dx, dgain);
    moe_keep_row(dqkv + at, dx, rank);
  }
}

void moe_latent_back(const MoeReal *qkv, const float *w, size_t n, MoeReal *dqkv, float *gw, float *wide, float *latent)
{
  const float *d = moe_floats(dqkv, n * QKV, wide);
  if (RQ > 0) {
    moe_gemm_nn(n, RQ, Q, d + MOE_Q_COL, QKV, w + MOE_AT_QB, RQ, 0.0f, latent, RQ);
    norm_columns_back(qkv, n, 0, RQ, w + MOE_AT_QNORM, latent, dqkv, gw + MOE_AT_QNORM);
  }
  moe_gemm_nn(n, RKV, KVB, d + MOE_KVB_COL, QKV, w + MOE_AT_KVB, RKV, 0.0f, latent, RKV);
  norm_columns_back(qkv, n, MOE_C_COL, RKV, w + MOE_AT_KNORM, latent, dqkv, gw + MOE_AT_KNORM);
}

/* The latents of one token at a time are read as floats: their columns do not lie together. */
static void norm_saved(const MoeReal *qkv, size_t n, size_t col, size_t rank, const float *gain, float *latent)
{
  float x[RQ > RKV ? RQ : RKV > 0 ? RKV : 1];
  for (size_t r = 0; r < n; r++) {
    moe_norm_vector(moe_floats(qkv + r * QKV + col, rank, x), gain, rank, LATENT_EPS, latent + r * rank);
  }
}

void moe_latent_wgrad(const MoeReal *qkv, const float *w, size_t n, const float *dqkv, float *gw, float *latent)
{
  if (RQ > 0) {
    norm_saved(qkv, n, 0, RQ, w + MOE_AT_QNORM, latent);
    moe_gemm_tn(Q, RQ, n, dqkv + MOE_Q_COL, QKV, latent, RQ, 1.0f, gw + MOE_AT_QB, RQ);
  }
  norm_saved(qkv, n, MOE_C_COL, RKV, w + MOE_AT_KNORM, latent);
  moe_gemm_tn(KVB, RKV, n, dqkv + MOE_KVB_COL, QKV, latent, RKV, 1.0f, gw + MOE_AT_KVB, RKV);
}
