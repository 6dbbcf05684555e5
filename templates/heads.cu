/* Norm and rotation of heads, in one pass over the projections; heads.c has the formulas. One warp per head of a token:
   a lane holds pairs of elements that turn together. Backward, the gradients of the two gains are sums over tokens and
   heads: MOE_PARTS blocks take neighbouring tokens. */
#include "moe_cuda.cuh"

static_assert(!MOE_LATENT && MOE_QK_NORM < 2, "these kernels know neither latents nor a norm over all heads");

namespace
{

constexpr int D = MOE_HEAD_DIM;
constexpr int HALF = D / 2;
constexpr int QKV = MOE_QKV_DIM;
constexpr int TURNED = MOE_HEADS + MOE_KV_HEADS; /* heads that are normed and turned: q, then k */
constexpr int WARPS = 4;
constexpr int THREADS = WARPS * LANES;
constexpr int GAINS = WARPS * D;           /* what the warps of a block hold of a gain */
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

__device__ __forceinline__ float head_rstd(const Pairs &p)
{
  float sum = 0.0f;
  for (int j = 0; j < PER; j++) {
    sum = moe_fma(p.a[j], p.a[j], moe_fma(p.b[j], p.b[j], sum));
  }
  return 1.0f / sqrtf(warp_sum(sum) / (float)D + (float)MOE_NORM_EPS);
}

__device__ __forceinline__ float normed(float x, float gain, float rstd)
{
  return MOE_QK_NORM ? moe_round(gain * moe_round(x * rstd)) : x;
}

/* Gains of q, or of k behind them. */
__device__ __forceinline__ const float *gain_of(const float *gains, int head)
{
  return gains + (head < MOE_HEADS ? 0 : MOE_QNORM_DIM);
}

/* cos and sin [seq, D / 2] of each position; angles in fp64. */
__global__ void __launch_bounds__(THREADS) rope_tables(size_t n, float *cosp, float *sinp)
{
  size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x;
  if (at >= n) {
    return;
  }
  double i = (double)(at % HALF);
  double freq = pow(MOE_ROPE_THETA, -2.0 * i / D);
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
  size_t token = blockIdx.x;
  const float *c = cosp + token % seq * HALF;
  const float *s = sinp + token % seq * HALF;
  qkv += token * QKV;
  out += token * QKV;
  for (int head = (int)(threadIdx.x / LANES); head < TURNED; head += WARPS) {
    Pairs p = read_pairs(qkv + head * D);
    float r = MOE_QK_NORM ? head_rstd(p) : 0.0f;
    const float *gain = gain_of(gains, head);
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

/* One head: dx from d, the gradient of what heads() put out. */
__device__ __forceinline__ void head_back(const MoeReal *x, const float *gain, const float *c, const float *s,
                                          const float *d, MoeReal *dx, Pairs &dgain)
{
  Pairs p = read_pairs(x);
  Pairs g;
  float r = MOE_QK_NORM ? head_rstd(p) : 1.0f;
  float sum = 0.0f;
  for (int j = 0; j < PER; j++) {
    int i = (int)(threadIdx.x % LANES) + j * (int)LANES;
    g.a[j] = g.b[j] = 0.0f;
    if (i < HALF) {
      int a = pair_first(i);
      int b = pair_second(i);
      float gain_a = MOE_QK_NORM ? gain[a] : 1.0f;
      float gain_b = MOE_QK_NORM ? gain[b] : 1.0f;
      float da = clamped(normed(p.a[j], gain_a, r)) ? 0.0f : d[a] * c[i] + d[b] * s[i];
      float db = clamped(normed(p.b[j], gain_b, r)) ? 0.0f : d[b] * c[i] - d[a] * s[i];
      float xa = p.a[j] * r;
      float xb = p.b[j] * r;
      dgain.a[j] = moe_fma(da, xa, dgain.a[j]);
      dgain.b[j] = moe_fma(db, xb, dgain.b[j]);
      g.a[j] = da * gain_a;
      g.b[j] = db * gain_b;
      sum = moe_fma(g.a[j], xa, moe_fma(g.b[j], xb, sum));
    }
  }
  float mean = MOE_QK_NORM ? warp_sum(sum) / (float)D : 0.0f;
  for (int j = 0; j < PER; j++) {
    int i = (int)(threadIdx.x % LANES) + j * (int)LANES;
    if (i < HALF) {
      dx[pair_first(i)] = moe_put(MOE_QK_NORM ? r * moe_fma(-p.a[j] * r, mean, g.a[j]) : g.a[j]);
      dx[pair_second(i)] = moe_put(MOE_QK_NORM ? r * moe_fma(-p.b[j] * r, mean, g.b[j]) : g.b[j]);
    }
  }
}

/* partial [gridDim, 2 D]: gradients of q's gain, then of k's. */
__global__ void __launch_bounds__(THREADS)
    heads_back(const MoeReal *qkv, const float *gains, const float *cosp, const float *sinp, size_t seq, size_t n,
               const float *d, MoeReal *dqkv, float *partial)
{
  SHARED(float, by_warp, GAINS);
  Pairs dgain[2] = {};
  size_t end = (size_t)moe_part_begin((int64_t)n, gridDim.x, blockIdx.x + 1);
  for (size_t token = (size_t)moe_part_begin((int64_t)n, gridDim.x, blockIdx.x); token < end; token++) {
    const float *c = cosp + token % seq * HALF;
    const float *s = sinp + token % seq * HALF;
    size_t row = token * QKV;
    for (int head = (int)(threadIdx.x / LANES); head < TURNED; head += WARPS) {
      size_t at = row + (size_t)(head * D);
      head_back(qkv + at, gain_of(gains, head), c, s, d + at, dqkv + at, dgain[head < MOE_HEADS ? 0 : 1]);
    }
    for (int i = TURNED * D + (int)threadIdx.x; i < QKV; i += THREADS) {
      dqkv[row + i] = moe_put(clamped(moe_get(qkv[row + i])) ? 0.0f : d[row + i]);
    }
  }
  if (MOE_QK_NORM) {
    sum_gain(dgain[0], by_warp, partial + (size_t)blockIdx.x * 2 * D);
    sum_gain(dgain[1], by_warp, partial + (size_t)blockIdx.x * 2 * D + D);
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
  return n == 0 ? MOE_OK : MOE_LAUNCH(heads, (unsigned)n, THREADS, 0, queue, qkv, gains, cosp, sinp, seq, out);
}

MoeStatus moe_cuda_heads_back(const MoeReal *qkv, const float *w, const float *cosp, const float *sinp, size_t seq,
                              size_t n, const float *d, MoeReal *dqkv, float *gw, float *partial, MoeQueue queue)
{
  const float *gains = w + MOE_AT_QNORM;
  unsigned parts = (unsigned)moe_min(n, MOE_PARTS);
  if (n == 0) {
    return MOE_OK;
  }
  MOE_TRY(MOE_LAUNCH(heads_back, parts, THREADS, 0, queue, qkv, gains, cosp, sinp, seq, n, d, dqkv, partial));
  return MOE_QK_NORM ? moe_cuda_add_parts(partial, parts, 2 * D, gw + MOE_AT_QNORM, queue) : MOE_OK;
}
