/* One head at one position: from the projections to what the scores are made of, and back.
   y = turn(clamp(gain * (x r))): r as in norm.c over the head, or over all heads of q, of k; of the turning part (all
   of a head, but with latents its end) the pairs (i, i + d/2), or (2i, 2i + 1), turn by pos * freq_i, freq_i =
   theta^(-2 i / d). YaRN: freq_i (1 - ramp) + freq_i / factor * ramp, ramp = (i - low) / (high - low) within 0 and 1,
   and cos and sin are scaled. A step that the model lacks leaves no code. */
#include "moe_parts.h"
#include "moe_vec.h"

enum {
  D = MOE_HEAD_DIM,
  DV = MOE_V_DIM,
  NOPE = MOE_NOPE,
  TURN = MOE_ROPE_DIM,
  HALF = MOE_ROPE_DIM / 2,
  G = MOE_GROUP,
  QKV = MOE_QKV_DIM,
  KVB = MOE_NOPE + MOE_V_DIM /* of one head */
};

/* cos and sin [seq, TURN / 2]: angles in fp64. One sincos per coarse and per fine step, the rest by the addition
 * theorem.
 */
void moe_rope_tables(const MoeCore *core, size_t seq)
{
  enum { STEP = 32 };
  for (size_t i = 0; i < HALF; i++) {
    double freq = pow(MOE_ROPE_THETA, -2.0 * (double)i / TURN);
    if (MOE_YARN_FACTOR > 1.0) {
      double ramp = fmin(fmax(((double)i - MOE_YARN_LOW) / (MOE_YARN_HIGH - MOE_YARN_LOW), 0.0), 1.0);
      freq = freq * (1.0 - ramp) + freq / MOE_YARN_FACTOR * ramp;
    }
    double fine_cos[STEP];
    double fine_sin[STEP];
    for (size_t p = 0; p < moe_min(STEP, seq); p++) {
      fine_cos[p] = MOE_ROPE_SCALE * cos((double)p * freq);
      fine_sin[p] = MOE_ROPE_SCALE * sin((double)p * freq);
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

static size_t pair_first(size_t i)
{
  return MOE_ROPE_PAIRS ? 2 * i : i;
}

static size_t pair_second(size_t i)
{
  return MOE_ROPE_PAIRS ? 2 * i + 1 : i + HALF;
}

static void turn(const float *x, const float *cosp, const float *sinp, float *y)
{
  for (size_t i = 0; i < HALF; i++) {
    size_t a = pair_first(i);
    size_t b = pair_second(i);
    y[a] = moe_round(x[a] * cosp[i] - x[b] * sinp[i]);
    y[b] = moe_round(x[b] * cosp[i] + x[a] * sinp[i]);
  }
}

static void turn_back(const float *dy, const float *cosp, const float *sinp, float *dx)
{
  for (size_t i = 0; i < HALF; i++) {
    size_t a = pair_first(i);
    size_t b = pair_second(i);
    dx[a] = dy[a] * cosp[i] + dy[b] * sinp[i];
    dx[b] = dy[b] * cosp[i] - dy[a] * sinp[i];
  }
}

static float clamp(float x)
{
  const float limit = (float)MOE_CLIP_QKV;
  return !(MOE_CLIP_QKV > 0.0) ? x : x > limit ? limit : x < -limit ? -limit : x;
}

static bool clamped(float x)
{
  return MOE_CLIP_QKV > 0.0 && (x > (float)MOE_CLIP_QKV || x < -(float)MOE_CLIP_QKV);
}

/* x [d] normed; rstd is that of the whole vector. */
static void head_norm(float *x, const float *gain, float rstd)
{
  if (MOE_QK_NORM == 1) {
    moe_norm_vector(x, gain, D, MOE_NORM_EPS, x);
  } else if (MOE_QK_NORM == 2) {
    moe_norm_vector_by(x, gain, rstd, D, x);
  }
}

/* y [d] of a whole head. */
static void head_row(const MoeReal *raw, const float *gain, float rstd, const float *cosp, const float *sinp, float *y)
{
  float x[D];
  moe_read_row(raw, D, x);
  head_norm(x, gain, rstd);
  for (size_t i = 0; i < D; i++) {
    x[i] = clamp(x[i]);
  }
  memcpy(y, x, NOPE * sizeof *y);
  turn(x + NOPE, cosp, sinp, y + NOPE);
}

/* dx [d] from dy of head_row(), before a norm over all heads; dgain [d] is added to. */
static void head_row_back(const MoeReal *raw, const float *gain, float rstd, const float *cosp, const float *sinp,
                          const float *dy, MoeReal *dx, float *dgain)
{
  float x[D];
  float d[D];
  memcpy(d, dy, NOPE * sizeof *d);
  turn_back(dy + NOPE, cosp, sinp, d + NOPE);
  moe_read_row(raw, D, x);
  if (MOE_CLIP_QKV > 0.0) {
    float y[D];
    memcpy(y, x, sizeof y);
    head_norm(y, gain, rstd);
    for (size_t i = 0; i < D; i++) {
      d[i] = clamped(y[i]) ? 0.0f : d[i];
    }
  }
  if (MOE_QK_NORM == 1) {
    float unnormed[D];
    moe_norm_vector_back(x, gain, D, MOE_NORM_EPS, d, unnormed, dgain);
    memcpy(d, unnormed, sizeof d);
  }
  moe_keep_row(dx, d, D);
}

/* Gain of a head, from the first of its norm. */
static const float *gain_of(const float *gains, size_t head)
{
  return gains + (MOE_QK_NORM == 2 ? head * D : 0);
}

static float whole_rstd(const float *rstd, size_t p)
{
  return MOE_QK_NORM == 2 ? rstd[p] : 0.0f;
}

size_t moe_out_col(size_t head)
{
  return MOE_LATENT ? MOE_KVB_COL + head * KVB + NOPE : head * D;
}

void moe_heads_open(const MoeCore *core, size_t seq, const MoeReal *qkv)
{
  if (MOE_LATENT) {
    memset(core->d_turn, 0, seq * TURN * sizeof(float));
  }
  for (size_t p = 0; MOE_QK_NORM == 2 && p < seq; p++) {
    float x[MOE_Q_DIM];
    moe_read_row(qkv + p * QKV, MOE_Q_DIM, x);
    core->rstd_q[p] = moe_rstd(x, MOE_Q_DIM, MOE_NORM_EPS);
    moe_read_row(qkv + p * QKV + MOE_Q_DIM, MOE_KV_DIM, x);
    core->rstd_k[p] = moe_rstd(x, MOE_KV_DIM, MOE_NORM_EPS);
  }
}

void moe_load_keys(const MoeCore *core, size_t seq, const MoeReal *qkv, const float *w, size_t kv)
{
  const float *gain = gain_of(w + MOE_AT_KNORM, kv);
  for (size_t p = 0; p < seq; p++) {
    const MoeReal *row = qkv + p * QKV;
    const float *cosp = core->cos + p * HALF;
    const float *sinp = core->sin + p * HALF;
    float *k = core->k + p * D;
    float *v = core->v + p * DV;
    if (MOE_LATENT) {
      const MoeReal *own = row + MOE_KVB_COL + kv * KVB;
      float x[TURN];
      moe_read_row(own, NOPE, k);
      moe_read_row(row + MOE_R_COL, TURN, x);
      turn(x, cosp, sinp, k + NOPE);
      moe_read_row(own + NOPE, DV, v);
    } else {
      const MoeReal *raw = row + MOE_Q_DIM + kv * D;
      head_row(raw, gain, whole_rstd(core->rstd_k, p), cosp, sinp, k);
      for (size_t i = 0; i < DV; i++) {
        v[i] = clamp(moe_get(raw[MOE_KV_DIM + i]));
      }
    }
  }
}

void moe_load_queries(const MoeCore *core, size_t q0, size_t q_end, const MoeReal *qkv, const float *w, size_t kv)
{
  float *q = core->q;
  for (size_t p = q0; p < q_end; p++) {
    for (size_t head = kv * G; head < (kv + 1) * G; head++, q += D) {
      head_row(qkv + p * QKV + MOE_Q_COL + head * D, gain_of(w + MOE_AT_QNORM, head), whole_rstd(core->rstd_q, p),
               core->cos + p * HALF, core->sin + p * HALF, q);
    }
  }
}

void moe_store_queries(const MoeCore *core, size_t q0, size_t q_end, const MoeReal *qkv, const float *w, size_t kv,
                       MoeReal *dqkv, float *gw)
{
  const float *dq = core->acc;
  float dgain[D] = {0};
  for (size_t p = q0; p < q_end; p++) {
    for (size_t head = kv * G; head < (kv + 1) * G; head++, dq += D) {
      size_t at = p * QKV + MOE_Q_COL + head * D;
      head_row_back(qkv + at, gain_of(w + MOE_AT_QNORM, head), whole_rstd(core->rstd_q, p), core->cos + p * HALF,
                    core->sin + p * HALF, dq, dqkv + at, dgain);
    }
  }
  for (size_t i = 0; MOE_QK_NORM == 1 && i < D; i++) {
    gw[MOE_AT_QNORM + i] += dgain[i];
  }
}

void moe_store_keys(const MoeCore *core, size_t seq, const MoeReal *qkv, const float *w, size_t kv, MoeReal *dqkv,
                    float *gw)
{
  float dgain[D] = {0};
  for (size_t p = 0; p < seq; p++) {
    const float *cosp = core->cos + p * HALF;
    const float *sinp = core->sin + p * HALF;
    const float *dk = core->dk + p * D;
    const float *dv = core->dv + p * DV;
    if (MOE_LATENT) {
      MoeReal *to = dqkv + p * QKV + MOE_KVB_COL + kv * KVB;
      float d[TURN];
      turn_back(dk + NOPE, cosp, sinp, d);
      for (size_t i = 0; i < TURN; i++) {
        core->d_turn[p * TURN + i] += d[i];
      }
      moe_keep_row(to, dk, NOPE);
      moe_keep_row(to + NOPE, dv, DV);
    } else {
      size_t at = p * QKV + MOE_Q_DIM + kv * D;
      head_row_back(qkv + at, gain_of(w + MOE_AT_KNORM, kv), whole_rstd(core->rstd_k, p), cosp, sinp, dk, dqkv + at,
                    dgain);
      for (size_t i = 0; i < DV; i++) {
        dqkv[at + MOE_KV_DIM + i] = moe_put(clamped(moe_get(qkv[at + MOE_KV_DIM + i])) ? 0.0f : dv[i]);
      }
    }
  }
  for (size_t i = 0; MOE_QK_NORM == 1 && i < D; i++) {
    gw[MOE_AT_KNORM + i] += dgain[i];
  }
}

/* The norm over all heads of q, or of k: dqkv holds the gradient behind it. */
static void whole_norm_back(const MoeReal *raw, size_t n, const float *gain, MoeReal *d, float *dgain)
{
  float x[MOE_Q_DIM];
  float dy[MOE_Q_DIM];
  float dx[MOE_Q_DIM];
  moe_read_row(raw, n, x);
  moe_read_row(d, n, dy);
  moe_norm_vector_back(x, gain, n, MOE_NORM_EPS, dy, dx, dgain);
  moe_keep_row(d, dx, n);
}

void moe_heads_close(const MoeCore *core, size_t seq, const MoeReal *qkv, const float *w, MoeReal *dqkv, float *gw)
{
  for (size_t p = 0; p < seq; p++) {
    if (MOE_LATENT) {
      moe_keep_row(dqkv + p * QKV + MOE_R_COL, core->d_turn + p * TURN, TURN);
    }
    if (MOE_QK_NORM == 2) {
      size_t k = p * QKV + MOE_Q_DIM;
      whole_norm_back(qkv + p * QKV, MOE_Q_DIM, w + MOE_AT_QNORM, dqkv + p * QKV, gw + MOE_AT_QNORM);
      whole_norm_back(qkv + k, MOE_KV_DIM, w + MOE_AT_KNORM, dqkv + k, gw + MOE_AT_KNORM);
    }
  }
}
