/* Latent attention around its scores: norms of the latents and their expansions, as in latent.c, and heads whose end
   turns; the keys' turning part is one for all heads, so that its gradient is a sum over them. One block per token; for
   gradients of gains MOE_PARTS blocks. */
#include "moe_cuda.cuh"

namespace
{

constexpr int QKV = MOE_QKV_DIM;
constexpr int D = MOE_HEAD_DIM;
constexpr int DV = MOE_V_DIM;
constexpr int TURN = MOE_ROPE_DIM;
constexpr int HALF = TURN / 2;
constexpr int NOPE = MOE_NOPE;
constexpr int KVB = NOPE + DV; /* expansion of one head: keys, values */
constexpr int HEADS = MOE_HEADS;
constexpr int TURNED = MOE_TURNED_DIM;
constexpr int RQ = MOE_Q_LORA;
constexpr int RKV = MOE_KV_LORA;
constexpr int Q_LATENT = RQ > 0 ? RQ : 1; /* where there are none, kernels of one column that nobody runs */
constexpr int KV_LATENT = RKV > 0 ? RKV : 1;
constexpr int THREADS = 128;
constexpr int WARPS = THREADS / LANES;
constexpr float LATENT_EPS = 1e-6f; /* of the published models, whatever the others have */

__device__ __forceinline__ int pair_first(int i)
{
  return MOE_ROPE_PAIRS ? 2 * i : i;
}

__device__ __forceinline__ int pair_second(int i)
{
  return MOE_ROPE_PAIRS ? 2 * i + 1 : i + HALF;
}

/* Element i of what turns, x [TURN]; by: 1 forward, -1 back. */
template <typename In>
__device__ __forceinline__ float turned(const In *x, const float *c, const float *s, int i, float by)
{
  int pair = MOE_ROPE_PAIRS ? i / 2 : i % HALF;
  bool second = i == pair_second(pair);
  float other = moe_load(x[second ? pair_first(pair) : pair_second(pair)]);
  return moe_load(x[i]) * c[pair] + (second ? by : -by) * other * s[pair];
}

/* Block: a token. out [n, TURNED]: queries, keys, values. */
__global__ void __launch_bounds__(THREADS)
    latent_heads(const MoeReal *qkv, const float *cosp, const float *sinp, size_t seq, MoeReal *out)
{
  size_t token = blockIdx.x;
  const float *c = cosp + token % seq * HALF;
  const float *s = sinp + token % seq * HALF;
  qkv += token * QKV;
  out += token * TURNED;
  for (int i = (int)threadIdx.x; i < HEADS * D; i += THREADS) {
    int head = i / D;
    int at = i % D;
    const MoeReal *q = qkv + MOE_Q_COL + head * D;
    const MoeReal *k = qkv + MOE_KVB_COL + head * KVB;
    out[i] = at < NOPE ? q[at] : moe_put(turned(q + NOPE, c, s, at - NOPE, 1.0f));
    out[HEADS * D + i] = at < NOPE ? k[at] : moe_put(turned(qkv + MOE_R_COL, c, s, at - NOPE, 1.0f));
  }
  for (int i = (int)threadIdx.x; i < HEADS * DV; i += THREADS) {
    out[2 * HEADS * D + i] = qkv[MOE_KVB_COL + i / DV * KVB + NOPE + i % DV];
  }
}

/* d [n, TURNED] to the expanded columns of dqkv and to the turning one. */
__global__ void __launch_bounds__(THREADS)
    latent_heads_back(const float *cosp, const float *sinp, size_t seq, const float *d, MoeReal *dqkv)
{
  SHARED(float, keys, TURN); /* gradient of their turning part, summed over the heads */
  size_t token = blockIdx.x;
  const float *c = cosp + token % seq * HALF;
  const float *s = sinp + token % seq * HALF;
  d += token * TURNED;
  dqkv += token * QKV;
  for (int i = (int)threadIdx.x; i < HEADS * D; i += THREADS) {
    int head = i / D;
    int at = i % D;
    dqkv[MOE_Q_COL + i] = moe_put(at < NOPE ? d[i] : turned(d + head * D + NOPE, c, s, at - NOPE, -1.0f));
    if (at < NOPE) {
      dqkv[MOE_KVB_COL + head * KVB + at] = moe_put(d[HEADS * D + i]);
    }
  }
  for (int i = (int)threadIdx.x; i < HEADS * DV; i += THREADS) {
    dqkv[MOE_KVB_COL + i / DV * KVB + NOPE + i % DV] = moe_put(d[2 * HEADS * D + i]);
  }
  for (int i = (int)threadIdx.x; i < TURN; i += THREADS) {
    float sum = 0.0f;
    for (int head = 0; head < HEADS; head++) {
      sum += d[HEADS * D + head * D + NOPE + i];
    }
    keys[i] = sum;
  }
  __syncthreads();
  for (int i = (int)threadIdx.x; i < TURN; i += THREADS) {
    dqkv[MOE_R_COL + i] = moe_put(turned(keys, c, s, i, -1.0f));
  }
}

__device__ __forceinline__ float rstd_of(float squares, int n)
{
  return 1.0f / sqrtf(squares / (float)n + LATENT_EPS);
}

/* Block: a token. latent [n, N] = norm of the columns from `col` on. */
template <int N>
__global__ void __launch_bounds__(THREADS) norm_columns(const MoeReal *qkv, int col, const float *gain, MoeReal *latent)
{
  SHARED(float, part, WARPS);
  const MoeReal *x = qkv + (size_t)blockIdx.x * QKV + col;
  float sum = 0.0f;
  for (int i = (int)threadIdx.x; i < N; i += THREADS) {
    sum = moe_fma(moe_get(x[i]), moe_get(x[i]), sum);
  }
  float r = rstd_of(block_sum<THREADS>(sum, part), N);
  for (int i = (int)threadIdx.x; i < N; i += THREADS) {
    latent[(size_t)blockIdx.x * N + i] = moe_put(gain[i] * moe_round(moe_get(x[i]) * r));
  }
}

/* dy [n, N] is the gradient of that; the columns of dqkv become the latent's, partial [gridDim, N] the gain's. */
template <int N>
__global__ void __launch_bounds__(THREADS) norm_columns_back(const MoeReal *qkv, int col, const float *gain,
                                                             const float *dy, size_t n, MoeReal *dqkv, float *partial)
{
  constexpr int PER = (N + THREADS - 1) / THREADS;
  SHARED(float, part, WARPS);
  float dgain[PER] = {0};
  size_t end = (size_t)moe_part_begin((int64_t)n, gridDim.x, blockIdx.x + 1);
  for (size_t t = (size_t)moe_part_begin((int64_t)n, gridDim.x, blockIdx.x); t < end; t++) {
    float x[PER];
    float g[PER];
    float sum[2] = {0.0f, 0.0f};
    UNROLL
    for (int j = 0; j < PER; j++) {
      int i = (int)threadIdx.x + j * THREADS;
      x[j] = i < N ? moe_get(qkv[t * QKV + (unsigned)(col + i)]) : 0.0f;
      sum[0] = moe_fma(x[j], x[j], sum[0]);
    }
    float r = rstd_of(block_sum<THREADS>(sum[0], part), N);
    UNROLL
    for (int j = 0; j < PER; j++) {
      int i = (int)threadIdx.x + j * THREADS;
      float d = i < N ? dy[t * N + i] : 0.0f;
      g[j] = i < N ? d * gain[i] : 0.0f;
      x[j] *= r;
      dgain[j] = moe_fma(d, x[j], dgain[j]);
      sum[1] = moe_fma(g[j], x[j], sum[1]);
    }
    float mean = block_sum<THREADS>(sum[1], part) / (float)N;
    UNROLL
    for (int j = 0; j < PER; j++) {
      int i = (int)threadIdx.x + j * THREADS;
      if (i < N) {
        dqkv[t * QKV + (unsigned)(col + i)] = moe_put(r * moe_fma(-x[j], mean, g[j]));
      }
    }
  }
  UNROLL
  for (int j = 0; j < PER; j++) {
    int i = (int)threadIdx.x + j * THREADS;
    if (i < N) {
      partial[(size_t)blockIdx.x * N + i] = dgain[j];
    }
  }
}

template <int N>
MoeStatus norm_latent(const MoeReal *qkv, int col, const float *gain, size_t n, MoeReal *latent, MoeQueue queue)
{
  return MOE_LAUNCH(norm_columns<N>, (unsigned)n, THREADS, 0, queue, qkv, col, gain, latent);
}

template <int N>
MoeStatus norm_latent_back(const MoeReal *qkv, int col, const float *gain, size_t n, const float *dy, MoeReal *dqkv,
                           float *g_gain, float *partial, MoeQueue queue)
{
  unsigned parts = (unsigned)moe_min(n, MOE_PARTS);
  MOE_TRY(MOE_LAUNCH(norm_columns_back<N>, parts, THREADS, 0, queue, qkv, col, gain, dy, n, dqkv, partial));
  return moe_cuda_add_parts(partial, parts, N, g_gain, queue);
}

} // namespace

MoeStatus moe_cuda_latent_heads(const MoeReal *qkv, const float *cosp, const float *sinp, size_t seq, size_t n,
                                MoeReal *out, MoeQueue queue)
{
  return n == 0 ? MOE_OK : MOE_LAUNCH(latent_heads, (unsigned)n, THREADS, 0, queue, qkv, cosp, sinp, seq, out);
}

MoeStatus moe_cuda_latent_heads_back(const float *cosp, const float *sinp, size_t seq, size_t n, const float *d,
                                     MoeReal *dqkv, MoeQueue queue)
{
  return n == 0 ? MOE_OK : MOE_LAUNCH(latent_heads_back, (unsigned)n, THREADS, 0, queue, cosp, sinp, seq, d, dqkv);
}

MoeStatus moe_cuda_latent(const MoeReal *w, const float *gains, size_t n, MoeReal *qkv, MoeReal *latent, MoeQueue queue)
{
  if (n == 0) {
    return MOE_OK;
  }
  if (RQ > 0) {
    MOE_TRY(norm_latent<Q_LATENT>(qkv, 0, gains + MOE_AT_QNORM, n, latent, queue));
    MOE_TRY(moe_cuda_gemm_nt(n, MOE_Q_DIM, RQ, latent, RQ, w + MOE_AT_QB, RQ, 0.0f, qkv + MOE_Q_COL, QKV, queue));
  }
  MOE_TRY(norm_latent<KV_LATENT>(qkv, MOE_C_COL, gains + MOE_AT_KNORM, n, latent, queue));
  return moe_cuda_gemm_nt(n, MOE_KVB_DIM, RKV, latent, RKV, w + MOE_AT_KVB, RKV, 0.0f, qkv + MOE_KVB_COL, QKV, queue);
}

MoeStatus moe_cuda_latent_back(const MoeReal *qkv, const MoeReal *w, const float *gains, size_t n, MoeReal *dqkv,
                               float *gw, float *d_latent, float *partial, MoeQueue queue)
{
  if (n == 0) {
    return MOE_OK;
  }
  if (RQ > 0) {
    MOE_TRY(
        moe_cuda_gemm_nn_float(n, RQ, MOE_Q_DIM, dqkv + MOE_Q_COL, QKV, w + MOE_AT_QB, RQ, 0.0f, d_latent, RQ, queue));
    MOE_TRY(
        norm_latent_back<Q_LATENT>(qkv, 0, gains + MOE_AT_QNORM, n, d_latent, dqkv, gw + MOE_AT_QNORM, partial, queue));
  }
  MOE_TRY(moe_cuda_gemm_nn_float(n, RKV, MOE_KVB_DIM, dqkv + MOE_KVB_COL, QKV, w + MOE_AT_KVB, RKV, 0.0f, d_latent, RKV,
                                 queue));
  return norm_latent_back<KV_LATENT>(qkv, MOE_C_COL, gains + MOE_AT_KNORM, n, d_latent, dqkv, gw + MOE_AT_KNORM,
                                     partial, queue);
}

MoeStatus moe_cuda_latent_wgrad(const MoeReal *qkv, const float *gains, size_t n, const MoeReal *dqkv, float *gw,
                                MoeReal *latent, MoeQueue queue)
{
  if (n == 0) {
    return MOE_OK;
  }
  if (RQ > 0) {
    MOE_TRY(norm_latent<Q_LATENT>(qkv, 0, gains + MOE_AT_QNORM, n, latent, queue));
    MOE_TRY(moe_cuda_gemm_tn(MOE_Q_DIM, RQ, n, dqkv + MOE_Q_COL, QKV, latent, RQ, 1.0f, gw + MOE_AT_QB, RQ, queue));
  }
  MOE_TRY(norm_latent<KV_LATENT>(qkv, MOE_C_COL, gains + MOE_AT_KNORM, n, latent, queue));
  return moe_cuda_gemm_tn(MOE_KVB_DIM, RKV, n, dqkv + MOE_KVB_COL, QKV, latent, RKV, 1.0f, gw + MOE_AT_KVB, RKV, queue);
}
