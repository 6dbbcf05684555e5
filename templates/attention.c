/* Causal attention of one sequence, tile by tile: no seq x seq matrix is kept. heads.c makes queries and keys.
   Forward: P = softmax(scale q k^T) with a running maximum m and sum l; the query heads that share a key head are the
   rows (position, head) of one tile. A sink is one more logit per head, without a value: m and l start from it.
   Backward: P again from the saved lse = m + log l; with D = <dO, O>: dS = P (dO v^T - D) scale, dq = dS k, dk = dS^T
   q, dv = P^T dO, and of a sink s: ds = -sum e^(s - lse) D. */
#include "moe_gemm.h"
#include "moe_parts.h"
#include "moe_vec.h"

enum { D = MOE_HEAD_DIM, DV = MOE_V_DIM, G = MOE_GROUP };

#define SCALE ((float)MOE_SCORE_SCALE)

/* Keys that a position of the layer sees, itself included; 0: all. */
static size_t window_of(size_t layer)
{
  bool here = MOE_WINDOW_LAYERS == 0 || (layer % 2 == 0) == (MOE_WINDOW_LAYERS == 1);
  return here ? (size_t)MOE_WINDOW : 0;
}

static size_t first_key(size_t window, size_t pos)
{
  return window > 0 && pos >= window ? pos - window + 1 : 0;
}

/* First key tile that the queries from q0 on see. */
static size_t first_tile(size_t window, size_t q0)
{
  return first_key(window, q0) / MOE_TILE_K * MOE_TILE_K;
}

/* Keys begin .. end of the tile at k0 that row r of the tile at q0 may see. */
typedef struct Seen {
  size_t begin, end;
} Seen;

static Seen seen_keys(size_t window, size_t r, size_t q0, size_t k0, size_t nk)
{
  size_t pos = q0 + r / G;
  size_t first = first_key(window, pos);
  Seen s = {first > k0 ? moe_min(first - k0, nk) : 0, pos + 1 > k0 ? moe_min(pos + 1 - k0, nk) : 0};
  s.begin = moe_min(s.begin, s.end);
  return s;
}

static void clear_unseen(float *p, Seen s, size_t nk)
{
  for (size_t k = 0; k < s.begin; k++) {
    p[k] = 0.0f;
  }
  for (size_t k = s.end; k < nk; k++) {
    p[k] = 0.0f;
  }
}

/* Before the first keys: nothing but the sink. */
static void softmax_open(const MoeCore *core, size_t rows, const float *sinks)
{
  memset(core->acc, 0, rows * DV * sizeof(float));
  for (size_t r = 0; r < rows; r++) {
    core->row_max[r] = MOE_SINKS ? sinks[r % G] : -INFINITY;
    core->row_sum[r] = MOE_SINKS ? 1.0f : 0.0f;
  }
}

/* Scores in core->p become unnormalised probabilities; sums, maxima and what acc holds so far follow. */
static void softmax_tile(const MoeCore *core, size_t window, size_t rows, size_t q0, size_t k0, size_t nk)
{
  for (size_t r = 0; r < rows; r++) {
    float *p = core->p + r * nk;
    Seen s = seen_keys(window, r, q0, k0, nk);
    size_t n = s.end - s.begin;
    if (n > 0) {
      float best = SCALE * moe_vec_max(p + s.begin, n);
      best = core->row_max[r] > best ? core->row_max[r] : best;
      float shrink = moe_exp(core->row_max[r] - best);
      core->row_sum[r] = moe_fma(core->row_sum[r], shrink, moe_exp_row(p + s.begin, SCALE, best, n, p + s.begin));
      for (size_t i = 0; i < DV && shrink < 1.0f; i++) {
        core->acc[r * DV + i] *= shrink;
      }
      core->row_max[r] = best;
    }
    clear_unseen(p, s, nk);
  }
}

void moe_attention(const MoeCore *core, size_t layer, size_t seq, const MoeReal *qkv, const float *w, MoeReal *o,
                   float *lse)
{
  size_t window = window_of(layer);
  moe_heads_open(core, seq, qkv);
  for (size_t kv = 0; kv < MOE_KV_HEADS; kv++) {
    moe_load_keys(core, seq, qkv, w, kv);
    for (size_t q0 = 0; q0 < seq; q0 += MOE_TILE_Q) {
      size_t q_end = moe_min(q0 + MOE_TILE_Q, seq);
      size_t rows = (q_end - q0) * G;
      moe_load_queries(core, q0, q_end, qkv, w, kv);
      softmax_open(core, rows, w + MOE_AT_SINKS + kv * G);
      for (size_t k0 = first_tile(window, q0); k0 < q_end; k0 += MOE_TILE_K) {
        size_t nk = moe_min(MOE_TILE_K, q_end - k0);
        moe_gemm_nt(rows, nk, D, core->q, D, core->k + k0 * D, D, 0.0f, core->p, nk);
        softmax_tile(core, window, rows, q0, k0, nk);
        moe_gemm_nn(rows, DV, nk, core->p, nk, core->v + k0 * DV, DV, 1.0f, core->acc, DV);
      }
      for (size_t r = 0; r < rows; r++) {
        size_t pos = q0 + r / G;
        size_t head = kv * G + r % G;
        for (size_t i = 0; i < DV; i++) {
          o[pos * MOE_O_DIM + head * DV + i] = moe_put(core->acc[r * DV + i] / core->row_sum[r]);
        }
        lse[pos * MOE_HEADS + head] = core->row_max[r] + logf(core->row_sum[r]);
      }
    }
  }
}

/* Scores in core->p become P, <dO, v> in core->dp become dS. row_max holds lse, row_sum holds D. */
static void grad_tile(const MoeCore *core, size_t window, size_t rows, size_t q0, size_t k0, size_t nk)
{
  for (size_t r = 0; r < rows; r++) {
    float *p = core->p + r * nk;
    float *dp = core->dp + r * nk;
    Seen s = seen_keys(window, r, q0, k0, nk);
    float dot = core->row_sum[r];
    moe_exp_row(p + s.begin, SCALE, core->row_max[r], s.end - s.begin, p + s.begin);
    for (size_t k = s.begin; k < s.end; k++) {
      dp[k] = p[k] * (dp[k] - dot) * SCALE;
    }
    clear_unseen(p, s, nk);
    clear_unseen(dp, s, nk);
  }
}

/* dO [positions, G, v_dim] of one key head, positions q0 .. q_end; row_max becomes lse, row_sum D; sinks' gradient. */
static void load_grads(const MoeCore *core, size_t q0, size_t q_end, const float *w, const MoeReal *dqkv,
                       const MoeReal *o, const float *lse, size_t kv, float *gw)
{
  float buf[DV];
  size_t r = 0;
  for (size_t p = q0; p < q_end; p++) {
    for (size_t head = kv * G; head < (kv + 1) * G; head++, r++) {
      float *d_o = core->d_o + r * DV;
      moe_read_row(dqkv + p * MOE_QKV_DIM + moe_out_col(head), DV, d_o);
      core->row_max[r] = lse[p * MOE_HEADS + head];
      core->row_sum[r] = moe_dot(d_o, moe_floats(o + p * MOE_O_DIM + head * DV, DV, buf), DV);
      if (MOE_SINKS) {
        gw[MOE_AT_SINKS + head] -= moe_exp(w[MOE_AT_SINKS + head] - core->row_max[r]) * core->row_sum[r];
      }
    }
  }
}

/* All keys for the queries q0 .. q_end: dk and dv are added to, dq goes to acc. */
static void back_tile(const MoeCore *core, size_t window, size_t q0, size_t q_end)
{
  size_t rows = (q_end - q0) * G;
  size_t start = first_tile(window, q0);
  for (size_t k0 = start; k0 < q_end; k0 += MOE_TILE_K) {
    size_t nk = moe_min(MOE_TILE_K, q_end - k0);
    moe_gemm_nt(rows, nk, D, core->q, D, core->k + k0 * D, D, 0.0f, core->p, nk);
    moe_gemm_nt(rows, nk, DV, core->d_o, DV, core->v + k0 * DV, DV, 0.0f, core->dp, nk);
    grad_tile(core, window, rows, q0, k0, nk);
    moe_gemm_tn(nk, DV, rows, core->p, nk, core->d_o, DV, 1.0f, core->dv + k0 * DV, DV);
    moe_gemm_tn(nk, D, rows, core->dp, nk, core->q, D, 1.0f, core->dk + k0 * D, D);
    moe_gemm_nn(rows, D, nk, core->dp, nk, core->k + k0 * D, D, k0 > start ? 1.0f : 0.0f, core->acc, D);
  }
}

void moe_attention_back(const MoeCore *core, size_t layer, size_t seq, const MoeReal *qkv, const float *w,
                        const MoeReal *o, const float *lse, MoeReal *dqkv, float *gw)
{
  size_t window = window_of(layer);
  moe_heads_open(core, seq, qkv);
  for (size_t kv = 0; kv < MOE_KV_HEADS; kv++) {
    moe_load_keys(core, seq, qkv, w, kv);
    memset(core->dk, 0, seq * D * sizeof(float));
    memset(core->dv, 0, seq * DV * sizeof(float));
    for (size_t q0 = 0; q0 < seq; q0 += MOE_TILE_Q) {
      size_t q_end = moe_min(q0 + MOE_TILE_Q, seq);
      moe_load_queries(core, q0, q_end, qkv, w, kv);
      load_grads(core, q0, q_end, w, dqkv, o, lse, kv, gw);
      back_tile(core, window, q0, q_end);
      moe_store_queries(core, q0, q_end, qkv, w, kv, dqkv, gw);
    }
    moe_store_keys(core, seq, qkv, w, kv, dqkv, gw);
  }
  moe_heads_close(core, seq, qkv, w, dqkv, gw);
}
