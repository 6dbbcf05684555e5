/* Causal attention of one sequence, head norm and rotation included, tile by tile: no seq x seq matrix is kept.
   Heads: y = rotate(gain * (x r)), r as in norm.c over the head; pairs (i, i + d/2) turn by pos * theta^(-2 i / d).
   Forward: P = softmax(q k^T / sqrt(d)) with a running maximum m and sum l; the query heads that share a key head are
   the rows (position, head) of one tile. Backward: P again from the saved lse = m + log l; with D = <dO, O>: dS = P (dO
   v^T - D) / sqrt(d), dq = dS k, dk = dS^T q, dv = P^T dO. */
#include "moe_gemm.h"
#include "moe_parts.h"
#include "moe_vec.h"

enum { D = MOE_HEAD_DIM, HALF = MOE_HEAD_DIM / 2, G = MOE_GROUP };

static float score_scale(void)
{
  return 1.0f / sqrtf((float)D);
}

/* cos and sin [seq, d / 2]: angles in fp64. One sincos per coarse and per fine step, the rest by the addition theorem.
 */
void moe_rope_tables(const MoeCore *core, size_t seq)
{
  enum { STEP = 32 };
  for (size_t i = 0; i < HALF; i++) {
    double freq = pow(MOE_ROPE_THETA, -2.0 * (double)i / D);
    double fine_cos[STEP];
    double fine_sin[STEP];
    for (size_t p = 0; p < moe_min(STEP, seq); p++) {
      fine_cos[p] = cos((double)p * freq);
      fine_sin[p] = sin((double)p * freq);
    }
    for (size_t p0 = 0; p0 < seq; p0 += STEP) {
      double c = cos((double)p0 * freq);
      double s = sin((double)p0 * freq);
      for (size_t p = p0; p < moe_min(p0 + STEP, seq); p++) {
        core->cos[p * HALF + i] = (float)(c * fine_cos[p - p0] - s * fine_sin[p - p0]);
        core->sin[p * HALF + i] = (float)(s * fine_cos[p - p0] + c * fine_sin[p - p0]);
      }
    }
  }
}

static float head_rstd(const float *x)
{
  return 1.0f / sqrtf(moe_dot(x, x, D) / (float)D + (float)MOE_NORM_EPS);
}

/* y [d]: one head at one position, normed and rotated. */
static void head_row(const MoeReal *raw, const float *gain, const float *cosp, const float *sinp, float *y)
{
  float x[D];
  for (size_t i = 0; i < D; i++) {
    x[i] = moe_get(raw[i]);
  }
  if (MOE_QK_NORM) {
    float r = head_rstd(x);
    for (size_t i = 0; i < D; i++) {
      x[i] = moe_round(gain[i] * moe_round(x[i] * r));
    }
  }
  for (size_t i = 0; i < HALF; i++) {
    y[i] = moe_round(x[i] * cosp[i] - x[i + HALF] * sinp[i]);
    y[i + HALF] = moe_round(x[i + HALF] * cosp[i] + x[i] * sinp[i]);
  }
}

/* dx [d] from dy of head_row(); dgain [d] is added to. */
static void head_row_back(const MoeReal *raw, const float *gain, const float *cosp, const float *sinp, const float *dy,
                          MoeReal *dx, float *dgain)
{
  float d[D];
  for (size_t i = 0; i < HALF; i++) {
    d[i] = dy[i] * cosp[i] + dy[i + HALF] * sinp[i];
    d[i + HALF] = dy[i + HALF] * cosp[i] - dy[i] * sinp[i];
  }
  if (MOE_QK_NORM) {
    float xh[D];
    for (size_t i = 0; i < D; i++) {
      xh[i] = moe_get(raw[i]);
    }
    float r = head_rstd(xh);
    for (size_t i = 0; i < D; i++) {
      xh[i] *= r;
      dgain[i] = moe_fma(d[i], xh[i], dgain[i]);
      d[i] *= gain[i];
    }
    float mean = moe_dot(d, xh, D) / (float)D;
    for (size_t i = 0; i < D; i++) {
      d[i] = r * moe_fma(-xh[i], mean, d[i]);
    }
  }
  for (size_t i = 0; i < D; i++) {
    dx[i] = moe_put(d[i]);
  }
}

/* k and v [seq, d] of one key head. */
static void load_keys(const MoeCore *core, size_t seq, const MoeReal *qkv, const float *w, size_t kv)
{
  for (size_t p = 0; p < seq; p++) {
    const MoeReal *k = qkv + p * MOE_QKV_DIM + MOE_Q_DIM + kv * D;
    const MoeReal *v = k + MOE_KV_DIM;
    head_row(k, w + MOE_AT_KNORM, core->cos + p * HALF, core->sin + p * HALF, core->k + p * D);
    for (size_t i = 0; i < D; i++) {
      core->v[p * D + i] = moe_get(v[i]);
    }
  }
}

/* q [positions, G, d] of one key head, positions q0 .. q_end. */
static void load_queries(const MoeCore *core, size_t q0, size_t q_end, const MoeReal *qkv, const float *w, size_t kv)
{
  float *q = core->q;
  for (size_t p = q0; p < q_end; p++) {
    for (size_t g = 0; g < G; g++, q += D) {
      const MoeReal *raw = qkv + p * MOE_QKV_DIM + (kv * G + g) * D;
      head_row(raw, w + MOE_AT_QNORM, core->cos + p * HALF, core->sin + p * HALF, q);
    }
  }
}

/* Keys k0 .. k0 + nk that row r of the tile at q0 may see. */
static size_t visible(size_t r, size_t q0, size_t k0, size_t nk)
{
  size_t end = q0 + r / G + 1;
  return end <= k0 ? 0 : moe_min(end - k0, nk);
}

/* Scores in core->p become unnormalised probabilities; sums, maxima and what acc holds so far follow. */
static void softmax_tile(const MoeCore *core, size_t rows, size_t q0, size_t k0, size_t nk)
{
  float scale = score_scale();
  for (size_t r = 0; r < rows; r++) {
    float *p = core->p + r * nk;
    size_t n = visible(r, q0, k0, nk);
    if (n > 0) {
      float best = scale * moe_vec_max(p, n);
      best = k0 > 0 && core->row_max[r] > best ? core->row_max[r] : best;
      float sum = moe_exp_row(p, scale, best, n, p);
      if (k0 > 0) {
        float shrink = moe_exp(core->row_max[r] - best);
        sum = moe_fma(core->row_sum[r], shrink, sum);
        for (size_t i = 0; i < D; i++) {
          core->acc[r * D + i] *= shrink;
        }
      }
      core->row_max[r] = best;
      core->row_sum[r] = sum;
    }
    for (size_t k = n; k < nk; k++) {
      p[k] = 0.0f;
    }
  }
}

void moe_attention(const MoeCore *core, size_t seq, const MoeReal *qkv, const float *w, MoeReal *o, float *lse)
{
  for (size_t kv = 0; kv < MOE_KV_HEADS; kv++) {
    load_keys(core, seq, qkv, w, kv);
    for (size_t q0 = 0; q0 < seq; q0 += MOE_TILE_Q) {
      size_t q_end = moe_min(q0 + MOE_TILE_Q, seq);
      size_t rows = (q_end - q0) * G;
      load_queries(core, q0, q_end, qkv, w, kv);
      for (size_t k0 = 0; k0 < q_end; k0 += MOE_TILE_K) {
        size_t nk = moe_min(MOE_TILE_K, q_end - k0);
        moe_gemm_nt(rows, nk, D, core->q, D, core->k + k0 * D, D, 0.0f, core->p, nk);
        softmax_tile(core, rows, q0, k0, nk);
        moe_gemm_nn(rows, D, nk, core->p, nk, core->v + k0 * D, D, k0 > 0 ? 1.0f : 0.0f, core->acc, D);
      }
      for (size_t r = 0; r < rows; r++) {
        size_t pos = q0 + r / G;
        size_t head = kv * G + r % G;
        for (size_t i = 0; i < D; i++) {
          o[pos * MOE_Q_DIM + head * D + i] = moe_put(core->acc[r * D + i] / core->row_sum[r]);
        }
        lse[pos * MOE_HEADS + head] = core->row_max[r] + logf(core->row_sum[r]);
      }
    }
  }
}

/* Scores in core->p become P, <dO, v> in core->dp become dS. row_max holds lse, row_sum holds D. */
static void grad_tile(const MoeCore *core, size_t rows, size_t q0, size_t k0, size_t nk)
{
  float scale = score_scale();
  for (size_t r = 0; r < rows; r++) {
    float *p = core->p + r * nk;
    float *dp = core->dp + r * nk;
    size_t n = visible(r, q0, k0, nk);
    float dot = core->row_sum[r];
    moe_exp_row(p, scale, core->row_max[r], n, p);
    for (size_t k = 0; k < n; k++) {
      dp[k] = p[k] * (dp[k] - dot) * scale;
    }
    for (size_t k = n; k < nk; k++) {
      p[k] = 0.0f;
      dp[k] = 0.0f;
    }
  }
}

/* dO [positions, G, d] of one key head, positions q0 .. q_end; row_max becomes lse, row_sum D. */
static void load_grads(const MoeCore *core, size_t q0, size_t q_end, const MoeReal *dqkv, const MoeReal *o,
                       const float *lse, size_t kv)
{
  float buf[D];
  size_t r = 0;
  for (size_t p = q0; p < q_end; p++) {
    for (size_t head = kv * G; head < (kv + 1) * G; head++, r++) {
      const MoeReal *from = dqkv + p * MOE_QKV_DIM + head * D;
      float *d_o = core->d_o + r * D;
      for (size_t i = 0; i < D; i++) {
        d_o[i] = moe_get(from[i]);
      }
      core->row_max[r] = lse[p * MOE_HEADS + head];
      core->row_sum[r] = moe_dot(d_o, moe_floats(o + p * MOE_Q_DIM + head * D, D, buf), D);
    }
  }
}

/* acc holds dq. */
static void store_queries(const MoeCore *core, size_t q0, size_t q_end, const MoeReal *qkv, const float *w, size_t kv,
                          MoeReal *dqkv, float *dgain)
{
  const float *dq = core->acc;
  for (size_t p = q0; p < q_end; p++) {
    for (size_t g = 0; g < G; g++, dq += D) {
      size_t at = p * MOE_QKV_DIM + (kv * G + g) * D;
      const float *cosp = core->cos + p * HALF;
      head_row_back(qkv + at, w + MOE_AT_QNORM, cosp, core->sin + p * HALF, dq, dqkv + at, dgain);
    }
  }
}

static void store_keys(const MoeCore *core, size_t seq, const MoeReal *qkv, const float *w, size_t kv, MoeReal *dqkv,
                       float *dgain)
{
  for (size_t p = 0; p < seq; p++) {
    size_t at = p * MOE_QKV_DIM + MOE_Q_DIM + kv * D;
    const float *cosp = core->cos + p * HALF;
    head_row_back(qkv + at, w + MOE_AT_KNORM, cosp, core->sin + p * HALF, core->dk + p * D, dqkv + at, dgain);
    for (size_t i = 0; i < D; i++) {
      dqkv[at + MOE_KV_DIM + i] = moe_put(core->dv[p * D + i]);
    }
  }
}

/* All keys for the queries q0 .. q_end: dk and dv are added to, dq goes to acc. */
static void back_tile(const MoeCore *core, size_t q0, size_t q_end)
{
  size_t rows = (q_end - q0) * G;
  for (size_t k0 = 0; k0 < q_end; k0 += MOE_TILE_K) {
    size_t nk = moe_min(MOE_TILE_K, q_end - k0);
    moe_gemm_nt(rows, nk, D, core->q, D, core->k + k0 * D, D, 0.0f, core->p, nk);
    moe_gemm_nt(rows, nk, D, core->d_o, D, core->v + k0 * D, D, 0.0f, core->dp, nk);
    grad_tile(core, rows, q0, k0, nk);
    moe_gemm_tn(nk, D, rows, core->p, nk, core->d_o, D, 1.0f, core->dv + k0 * D, D);
    moe_gemm_tn(nk, D, rows, core->dp, nk, core->q, D, 1.0f, core->dk + k0 * D, D);
    moe_gemm_nn(rows, D, nk, core->dp, nk, core->k + k0 * D, D, k0 > 0 ? 1.0f : 0.0f, core->acc, D);
  }
}

void moe_attention_back(const MoeCore *core, size_t seq, const MoeReal *qkv, const float *w, const MoeReal *o,
                        const float *lse, MoeReal *dqkv, float *gw)
{
  for (size_t kv = 0; kv < MOE_KV_HEADS; kv++) {
    float dgain_q[D] = {0};
    float dgain_k[D] = {0};
    load_keys(core, seq, qkv, w, kv);
    memset(core->dk, 0, seq * D * sizeof(float));
    memset(core->dv, 0, seq * D * sizeof(float));
    for (size_t q0 = 0; q0 < seq; q0 += MOE_TILE_Q) {
      size_t q_end = moe_min(q0 + MOE_TILE_Q, seq);
      load_queries(core, q0, q_end, qkv, w, kv);
      load_grads(core, q0, q_end, dqkv, o, lse, kv);
      back_tile(core, q0, q_end);
      store_queries(core, q0, q_end, qkv, w, kv, dqkv, dgain_q);
    }
    store_keys(core, seq, qkv, w, kv, dqkv, dgain_k);
    for (size_t i = 0; MOE_QK_NORM && i < D; i++) {
      gw[MOE_AT_QNORM + i] += dgain_q[i];
      gw[MOE_AT_KNORM + i] += dgain_k[i];
    }
  }
}
