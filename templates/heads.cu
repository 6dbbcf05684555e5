/* Norm and rotation of heads, in one pass over the projections; heads.c has the formulas. One warp per head of a token:
   a lane holds pairs of elements that turn together; one block per token, so that a norm over all heads of q, of k, is
   a sum over the block. Backward, the gradients of the two gains are sums over tokens, and of the norm of single heads
   over heads too: MOE_PARTS blocks take neighbouring tokens. Latent heads: latent.cu. */
#include "moe_cuda.cuh"

namespace
{

constexpr int D = MOE_HEAD_DIM;
constexpr int HALF = MOE_ROPE_DIM / 2;
constexpr bool WHOLE = MOE_QK_NORM == 2;
constexpr int QKV = MOE_QKV_DIM;
constexpr int TURNED = MOE_HEADS + MOE_KV_HEADS; /* heads that are normed and turned: q, then k */
constexpr int WARPS = 4;
constexpr int THREADS = WARPS * LANES;
constexpr int EACH = ceil_div(TURNED, WARPS); /* heads of a warp */
constexpr int KEPT = WHOLE ? EACH : 2;        /* sums for gains that a warp has: of each of its heads; of q and k */
constexpr int GAINS = WARPS * D;              /* what the warps of a block hold of a gain */
constexpr int GAIN_DIM = MOE_QNORM_DIM + MOE_KNORM_DIM;
constexpr int PER = ceil_div(HALF, LANES); /* pairs per lane */

__device__ __forceinline__ int pair_first(int i)
{
  return MOE_ROPE_PAIRS ? 2 * i : i;
}

__device__ __forceinline__ int pair_second(int i)
{
  return MOE_ROPE_PAIRS ? 2 * i + 1 : i + HALF;
}

__device__ __forceinline__ float clamp(float x)
{
  const float limit = (float)MOE_CLIP_QKV;
  return !(MOE_CLIP_QKV > 0.0) ? x : x > limit ? limit : x < -limit ? -limit : x;
}

__device__ __forceinline__ bool clamped(float x)
{
  return MOE_CLIP_QKV > 0.0 && (x > (float)MOE_CLIP_QKV || x < -(float)MOE_CLIP_QKV);
}

/* Pairs of one head, of which a lane holds lane, lane + LANES ... */
struct Pairs {
  float a[PER], b[PER];
};

__device__ __forceinline__ Pairs read_pairs(const MoeReal *x)
{
  Pairs p;
  for (int j = 0; j < PER; j++) {
    int i = (int)(threadIdx.x % LANES) + j * (int)LANES;
    p.a[j] = i < HALF ? moe_get(x[pair_first(i)]) : 0.0f;
    p.b[j] = i < HALF ? moe_get(x[pair_second(i)]) : 0.0f;
  }
  return p;
}

/* Of what a lane holds. */
__device__ __forceinline__ float squares(const Pairs &p)
{
  float sum = 0.0f;
  for (int j = 0; j < PER; j++) {
    sum = moe_fma(p.a[j], p.a[j], moe_fma(p.b[j], p.b[j], sum));
  }
  return sum;
}

__device__ __forceinline__ float rstd_of(float squares, int n)
{
  return 1.0f / sqrtf(squares / (float)n + (float)MOE_NORM_EPS);
}

/* Of all heads of q, and of k. */
struct Both {
  float q, k;
};

__device__ __forceinline__ float &side(Both &b, int head)
{
  return head < MOE_HEADS ? b.q : b.k;
}

/* part: shared [WARPS]. */
__device__ __forceinline__ Both block_both(Both own, float *part)
{
  own.q = block_sum<THREADS>(own.q, part);
  own.k = block_sum<THREADS>(own.k, part);
  return own;
}

/* The norms over all heads of one token. */
__device__ __forceinline__ Both whole_rstds(const MoeReal *qkv, float *part)
{
  Both sum = {0.0f, 0.0f};
  for (int head = (int)(threadIdx.x / LANES); head < TURNED; head += WARPS) {
    side(sum, head) += squares(read_pairs(qkv + head * D));
  }
  sum = block_both(sum, part);
  return Both{rstd_of(sum.q, MOE_Q_DIM), rstd_of(sum.k, MOE_KV_DIM)};
}

/* Of one head, by the norm that the model has; whole: as above. */
__device__ __forceinline__ float head_rstd(const Pairs &p, Both whole, int head)
{
  return WHOLE ? side(whole, head) : MOE_QK_NORM ? rstd_of(warp_sum(squares(p)), D) : 1.0f;
}

__device__ __forceinline__ float normed(float x, float gain, float rstd)
{
  return MOE_QK_NORM ? moe_round(gain * moe_round(x * rstd)) : x;
}

/* Where a head's gains are: those of k lie behind those of q. */
__device__ __forceinline__ int gain_at(int head)
{
  return WHOLE ? head * D : head < MOE_HEADS ? 0 : MOE_QNORM_DIM;
}

/* cos and sin [seq, ROPE_DIM / 2] of each position; angles in fp64. */
__global__ void __launch_bounds__(THREADS) rope_tables(size_t n, float *cosp, float *sinp)
{
  size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x;
  if (at >= n) {
    return;
  }
  double i = (double)(at % HALF);
  double freq = pow(MOE_ROPE_THETA, -2.0 * i / MOE_ROPE_DIM);
  if (MOE_YARN_FACTOR > 1.0) {
    double ramp = fmin(fmax((i - MOE_YARN_LOW) / (MOE_YARN_HIGH - MOE_YARN_LOW), 0.0), 1.0);
    freq = freq * (1.0 - ramp) + freq / MOE_YARN_FACTOR * ramp;
  }
  double angle = (double)(at / HALF) * freq;
  cosp[at] = (float)(MOE_ROPE_SCALE * cos(angle));
  sinp[at] = (float)(MOE_ROPE_SCALE * sin(angle));
}

__global__ void __launch_bounds__(THREADS)
    heads(const MoeReal *qkv, const float *gains, const float *cosp, const float *sinp, size_t seq, MoeReal *out)
{
  SHARED(float, part, WARPS);
  size_t token = blockIdx.x;
  const float *c = cosp + token % seq * HALF;
  const float *s = sinp + token % seq * HALF;
  qkv += token * QKV;
  out += token * QKV;
  Both whole = {0.0f, 0.0f};
  if (WHOLE) {
    whole = whole_rstds(qkv, part);
  }
  for (int head = (int)(threadIdx.x / LANES); head < TURNED; head += WARPS) {
    Pairs p = read_pairs(qkv + head * D);
    float r = head_rstd(p, whole, head);
    const float *gain = gains + gain_at(head);
    for (int j = 0; j < PER; j++) {
      int i = (int)(threadIdx.x % LANES) + j * (int)LANES;
      if (i < HALF) {
        float a = clamp(normed(p.a[j], gain[MOE_QK_NORM ? pair_first(i) : 0], r));
        float b = clamp(normed(p.b[j], gain[MOE_QK_NORM ? pair_second(i) : 0], r));
        out[head * D + pair_first(i)] = moe_put(a * c[i] - b * s[i]);
        out[head * D + pair_second(i)] = moe_put(b * c[i] + a * s[i]);
      }
    }
  }
  for (int i = TURNED * D + (int)threadIdx.x; i < QKV; i += THREADS) {
    out[i] = moe_put(clamp(moe_get(qkv[i])));
  }
}

/* Sum over the block's warps of what each lane holds of a head's gain, into sum [D]. by_warp: shared [WARPS, D]. */
__device__ __forceinline__ void sum_gain(const Pairs &dgain, float *by_warp, float *sum)
{
  for (int j = 0; j < PER; j++) {
    int i = (int)(threadIdx.x % LANES) + j * (int)LANES;
    if (i < HALF) {
      by_warp[threadIdx.x / LANES * D + pair_first(i)] = dgain.a[j];
      by_warp[threadIdx.x / LANES * D + pair_second(i)] = dgain.b[j];
    }
  }
  __syncthreads();
  for (int i = (int)threadIdx.x; i < D; i += THREADS) {
    float all = 0.0f;
    for (int w = 0; w < WARPS; w++) {
      all += by_warp[w * D + i];
    }
    sum[i] = all;
  }
  __syncthreads();
}

/* One head: the gradient behind its norm, from d, that of what heads() put out. */
__device__ __forceinline__ Pairs turn_back(const Pairs &p, const float *gain, float r, const float *c, const float *s,
                                           const float *d)
{
  Pairs g = {};
  for (int j = 0; j < PER; j++) {
    int i = (int)(threadIdx.x % LANES) + j * (int)LANES;
    if (i < HALF) {
      float gain_a = MOE_QK_NORM ? gain[pair_first(i)] : 1.0f;
      float gain_b = MOE_QK_NORM ? gain[pair_second(i)] : 1.0f;
      float da = d[pair_first(i)] * c[i] + d[pair_second(i)] * s[i];
      float db = d[pair_second(i)] * c[i] - d[pair_first(i)] * s[i];
      g.a[j] = clamped(normed(p.a[j], gain_a, r)) ? 0.0f : da;
      g.b[j] = clamped(normed(p.b[j], gain_b, r)) ? 0.0f : db;
    }
  }
  return g;
}

/* The norm's share of that: g becomes times gain, dgain is added to; returns the lane's part of <g, x r>. */
__device__ __forceinline__ float norm_back(const Pairs &p, const float *gain, float r, Pairs &g, Pairs &dgain)
{
  float sum = 0.0f;
  for (int j = 0; j < PER; j++) {
    int i = (int)(threadIdx.x % LANES) + j * (int)LANES;
    if (i < HALF) {
      float xa = p.a[j] * r;
      float xb = p.b[j] * r;
      dgain.a[j] = moe_fma(g.a[j], xa, dgain.a[j]);
      dgain.b[j] = moe_fma(g.b[j], xb, dgain.b[j]);
      g.a[j] *= gain[pair_first(i)];
      g.b[j] *= gain[pair_second(i)];
      sum = moe_fma(g.a[j], xa, moe_fma(g.b[j], xb, sum));
    }
  }
  return sum;
}

__device__ __forceinline__ void write_pairs(const Pairs &g, MoeReal *dx)
{
  for (int j = 0; j < PER; j++) {
    int i = (int)(threadIdx.x % LANES) + j * (int)LANES;
    if (i < HALF) {
      dx[pair_first(i)] = moe_put(g.a[j]);
      dx[pair_second(i)] = moe_put(g.b[j]);
    }
  }
}

/* g through the norm: r (g - x r mean). */
__device__ __forceinline__ void through_norm(const Pairs &p, float r, float mean, Pairs &g)
{
  for (int j = 0; j < PER; j++) {
    g.a[j] = r * moe_fma(-p.a[j] * r, mean, g.a[j]);
    g.b[j] = r * moe_fma(-p.b[j] * r, mean, g.b[j]);
  }
}

/* partial [gridDim, gains]: gradients of q's gains, then of k's. A norm over all heads comes when the gradients behind
   it are known of all of them; until then they are in dqkv, as in the twin. */
__global__ void __launch_bounds__(THREADS)
    heads_back(const MoeReal *qkv, const float *gains, const float *cosp, const float *sinp, size_t seq, size_t n,
               const float *d, MoeReal *dqkv, float *partial)
{
  SHARED(float, by_warp, GAINS);
  SHARED(float, part, WARPS);
  int warp = (int)(threadIdx.x / LANES);
  Pairs dgain[KEPT] = {};
  size_t end = (size_t)moe_part_begin((int64_t)n, gridDim.x, blockIdx.x + 1);
  for (size_t token = (size_t)moe_part_begin((int64_t)n, gridDim.x, blockIdx.x); token < end; token++) {
    const float *c = cosp + token % seq * HALF;
    const float *s = sinp + token % seq * HALF;
    size_t row = token * QKV;
    Both whole = {0.0f, 0.0f};
    Both sum = {0.0f, 0.0f};
    if (WHOLE) {
      whole = whole_rstds(qkv + row, part);
    }
    UNROLL
    for (int h = 0; h < EACH; h++) {
      int head = warp + h * WARPS;
      if (head < TURNED) {
        size_t at = row + (size_t)(head * D);
        const float *gain = gains + gain_at(head);
        Pairs p = read_pairs(qkv + at);
        float r = head_rstd(p, whole, head);
        Pairs g = turn_back(p, gain, r, c, s, d + at);
        if (WHOLE) {
          write_pairs(g, dqkv + at);
          g = read_pairs(dqkv + at);
          side(sum, head) += norm_back(p, gain, r, g, dgain[h % KEPT]);
        } else if (MOE_QK_NORM) {
          float mean = warp_sum(norm_back(p, gain, r, g, dgain[head < MOE_HEADS ? 0 : 1])) / (float)D;
          through_norm(p, r, mean, g);
        }
        if (!WHOLE) {
          write_pairs(g, dqkv + at);
        }
      }
    }
    if (WHOLE) {
      sum = block_both(sum, part);
      sum = Both{sum.q / (float)MOE_Q_DIM, sum.k / (float)MOE_KV_DIM};
      for (int head = warp; head < TURNED; head += WARPS) {
        size_t at = row + (size_t)(head * D);
        const float *gain = gains + gain_at(head);
        Pairs p = read_pairs(qkv + at);
        Pairs g = read_pairs(dqkv + at);
        Pairs unused = {};
        (void)norm_back(p, gain, side(whole, head), g, unused);
        through_norm(p, side(whole, head), side(sum, head), g);
        write_pairs(g, dqkv + at);
      }
    }
    for (int i = TURNED * D + (int)threadIdx.x; i < QKV; i += THREADS) {
      dqkv[row + i] = moe_put(clamped(moe_get(qkv[row + i])) ? 0.0f : d[row + i]);
    }
  }
  partial += (size_t)blockIdx.x * GAIN_DIM;
  if (WHOLE) {
    UNROLL
    for (int h = 0; h < EACH; h++) {
      for (int j = 0; j < PER; j++) {
        int i = (int)(threadIdx.x % LANES) + j * (int)LANES;
        int head = warp + h * WARPS;
        if (head < TURNED && i < HALF) {
          partial[head * D + pair_first(i)] = dgain[h % KEPT].a[j];
          partial[head * D + pair_second(i)] = dgain[h % KEPT].b[j];
        }
      }
    }
  } else if (MOE_QK_NORM) {
    sum_gain(dgain[0], by_warp, partial);
    sum_gain(dgain[1], by_warp, partial + D);
  }
}

} // namespace

MoeStatus moe_cuda_rope_tables(size_t seq, float *cosp, float *sinp, MoeQueue queue)
{
  unsigned blocks = (unsigned)((seq * HALF + THREADS - 1) / THREADS);
  return seq == 0 ? MOE_OK : MOE_LAUNCH(rope_tables, blocks, THREADS, 0, queue, seq * HALF, cosp, sinp);
}

MoeStatus moe_cuda_heads(const MoeReal *qkv, const float *w, const float *cosp, const float *sinp, size_t seq, size_t n,
                         MoeReal *out, MoeQueue queue)
{
  const float *gains = w + MOE_AT_QNORM;
  if (MOE_LATENT) {
    return moe_cuda_latent_heads(qkv, cosp, sinp, seq, n, out, queue);
  }
  return n == 0 ? MOE_OK : MOE_LAUNCH(heads, (unsigned)n, THREADS, 0, queue, qkv, gains, cosp, sinp, seq, out);
}

MoeStatus moe_cuda_heads_back(const MoeReal *qkv, const float *w, const float *cosp, const float *sinp, size_t seq,
                              size_t n, const float *d, MoeReal *dqkv, float *gw, float *partial, MoeQueue queue)
{
  const float *gains = w + MOE_AT_QNORM;
  unsigned parts = (unsigned)moe_min(n, MOE_PARTS);
  if (MOE_LATENT) {
    return moe_cuda_latent_heads_back(cosp, sinp, seq, n, d, dqkv, queue);
  }
  if (n == 0) {
    return MOE_OK;
  }
  MOE_TRY(MOE_LAUNCH(heads_back, parts, THREADS, 0, queue, qkv, gains, cosp, sinp, seq, n, d, dqkv, partial));
  return MOE_QK_NORM ? moe_cuda_add_parts(partial, parts, GAIN_DIM, gw + MOE_AT_QNORM, queue) : MOE_OK;
}
