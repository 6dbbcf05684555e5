/* RMSNorm; norm.c has the formulas. One block per row; backward, where gains need a sum over rows, MOE_PARTS blocks
   that each take neighbouring rows and keep their part of the sum in registers. */
#include "moe_cuda.cuh"

namespace
{

constexpr int H = MOE_HIDDEN;
constexpr int THREADS = H >= 2048 ? 256 : H >= 512 ? 128 : H > 32 ? 64 : 32;
constexpr int WARPS = THREADS / LANES;
constexpr int PER = ceil_div(H, THREADS); /* elements of a row per thread */

__device__ __forceinline__ MoeReal normed(MoeReal x, float gain, float rstd)
{
  float xh = moe_get(x) * rstd;
  return moe_put(gain * (MOE_NORM_ONCE ? xh : moe_round(xh)));
}

__global__ void __launch_bounds__(THREADS) norm(const MoeReal *x, const float *gain, MoeReal *y, float *rstd)
{
  SHARED(float, part, WARPS);
  x += (size_t)blockIdx.x * H;
  y += (size_t)blockIdx.x * H;
  float sum = 0.0f;
  for (int i = threadIdx.x; i < H; i += THREADS) {
    float v = moe_get(x[i]);
    sum = moe_fma(v, v, sum);
  }
  float r = 1.0f / sqrtf(block_sum<THREADS>(sum, part) / (float)H + (float)MOE_NORM_EPS);
  for (int i = threadIdx.x; i < H; i += THREADS) {
    y[i] = normed(x[i], gain[i], r);
  }
  if (threadIdx.x == 0) {
    rstd[blockIdx.x] = r;
  }
}

__global__ void __launch_bounds__(THREADS)
    norm_rows(const MoeReal *x, const float *gain, const float *rstd, const uint32_t *row, MoeReal *y)
{
  size_t from = row != NULL ? row[blockIdx.x] : blockIdx.x;
  for (int i = threadIdx.x; i < H; i += THREADS) {
    y[(size_t)blockIdx.x * H + i] = normed(x[from * H + i], gain[i], rstd[from]);
  }
}

__global__ void __launch_bounds__(THREADS) norm_back(const MoeReal *x, const float *gain, const float *rstd,
                                                     const float *dy, size_t n, float *dx, float *partial)
{
  SHARED(float, part, WARPS);
  size_t end = (size_t)moe_part_begin((int64_t)n, gridDim.x, blockIdx.x + 1);
  float dgain[PER] = {0};
  for (size_t row = (size_t)moe_part_begin((int64_t)n, gridDim.x, blockIdx.x); row < end; row++) {
    float r = rstd[row];
    float xh[PER];
    float scaled[PER];
    float sum = 0.0f;
    for (int j = 0; j < PER; j++) {
      int i = threadIdx.x + j * THREADS;
      float d = i < H ? dy[row * H + i] : 0.0f;
      xh[j] = i < H ? moe_get(x[row * H + i]) * r : 0.0f;
      scaled[j] = i < H ? d * gain[i] : 0.0f;
      dgain[j] = moe_fma(d, xh[j], dgain[j]);
      sum = moe_fma(scaled[j], xh[j], sum);
    }
    float mean = block_sum<THREADS>(sum, part) / (float)H;
    for (int j = 0; j < PER; j++) {
      int i = threadIdx.x + j * THREADS;
      if (i < H) {
        dx[row * H + i] = moe_fma(r, moe_fma(-xh[j], mean, scaled[j]), dx[row * H + i]);
      }
    }
  }
  for (int j = 0; j < PER; j++) {
    int i = threadIdx.x + j * THREADS;
    if (i < H) {
      partial[(size_t)blockIdx.x * H + i] = dgain[j];
    }
  }
}

constexpr int COLUMNS = 128; /* threads, one column each */

__global__ void __launch_bounds__(COLUMNS) add_parts(const float *partial, size_t n, size_t columns, float *g)
{
  size_t i = (size_t)blockIdx.x * COLUMNS + threadIdx.x;
  if (i >= columns) {
    return;
  }
  float sum = 0.0f;
  for (size_t p = 0; p < n; p++) {
    sum += partial[p * columns + i];
  }
  g[i] += sum;
}

} // namespace

MoeStatus moe_cuda_norm(const MoeReal *x, const float *gain, size_t n, MoeReal *y, float *rstd, MoeQueue queue)
{
  return n == 0 ? MOE_OK : MOE_LAUNCH(norm, (unsigned)n, THREADS, 0, queue, x, gain, y, rstd);
}

MoeStatus moe_cuda_norm_rows(const MoeReal *x, const float *gain, const float *rstd, const uint32_t *row, size_t n,
                             MoeReal *y, MoeQueue queue)
{
  return n == 0 ? MOE_OK : MOE_LAUNCH(norm_rows, (unsigned)n, THREADS, 0, queue, x, gain, rstd, row, y);
}

MoeStatus moe_cuda_norm_back(const MoeReal *x, const float *gain, const float *rstd, const float *dy, size_t n,
                             float *dx, float *g_gain, float *partial, MoeQueue queue)
{
  unsigned parts = (unsigned)moe_min(n, MOE_PARTS);
  if (n == 0) {
    return MOE_OK;
  }
  MOE_TRY(MOE_LAUNCH(norm_back, parts, THREADS, 0, queue, x, gain, rstd, dy, n, dx, partial));
  return moe_cuda_add_parts(partial, parts, H, g_gain, queue);
}

MoeStatus moe_cuda_add_parts(const float *partial, size_t n, size_t columns, float *g, MoeQueue queue)
{
  unsigned blocks = (unsigned)((columns + COLUMNS - 1) / COLUMNS);
  return n == 0 ? MOE_OK : MOE_LAUNCH(add_parts, blocks, COLUMNS, 0, queue, partial, n, columns, g);
}
