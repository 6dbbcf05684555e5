/* Biases: rows that a product is added to begin as the bias, and its gradient is a sum of rows, of which MOE_PARTS
   parts are formed first. */
#include "moe_cuda.cuh"

namespace
{

constexpr int THREADS = 128; /* one column each */

template <typename Out>
__global__ void __launch_bounds__(THREADS) set_rows(const float *row, size_t width, Out *y, size_t ld)
{
  for (size_t i = threadIdx.x; i < width; i += THREADS) {
    moe_store(&y[blockIdx.x * ld + i], row[i]);
  }
}

/* Block (columns, part): partial [gridDim.y, width]. */
template <typename In>
__global__ void __launch_bounds__(THREADS) sum_rows(const In *dy, size_t n, size_t ld, size_t width, float *partial)
{
  size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
  size_t end = (size_t)moe_part_begin((int64_t)n, gridDim.y, blockIdx.y + 1);
  if (i >= width) {
    return;
  }
  float sum = 0.0f;
  for (size_t r = (size_t)moe_part_begin((int64_t)n, gridDim.y, blockIdx.y); r < end; r++) {
    sum += moe_load(dy[r * ld + i]);
  }
  partial[blockIdx.y * width + i] = sum;
}

template <typename In>
MoeStatus bias_back(const In *dy, size_t n, size_t ld, size_t width, float *g, float *partial, MoeQueue queue)
{
  unsigned parts = (unsigned)moe_min(n, MOE_PARTS);
  dim3 grid((unsigned)((width + THREADS - 1) / THREADS), parts);
  if (n == 0) {
    return MOE_OK;
  }
  MOE_TRY(MOE_LAUNCH(sum_rows, grid, THREADS, 0, queue, dy, n, ld, width, partial));
  return moe_cuda_add_parts(partial, parts, width, g, queue);
}

} // namespace

MoeStatus moe_cuda_set_rows(const float *row, size_t n, size_t width, MoeReal *y, size_t ld, MoeQueue queue)
{
  return n == 0 ? MOE_OK : MOE_LAUNCH(set_rows, (unsigned)n, THREADS, 0, queue, row, width, y, ld);
}

MoeStatus moe_cuda_set_rows_float(const float *row, size_t n, size_t width, float *y, size_t ld, MoeQueue queue)
{
  return n == 0 ? MOE_OK : MOE_LAUNCH(set_rows, (unsigned)n, THREADS, 0, queue, row, width, y, ld);
}

MoeStatus moe_cuda_bias_back(const MoeReal *dy, size_t n, size_t ld, size_t width, float *g, float *partial,
                             MoeQueue queue)
{
  return bias_back(dy, n, ld, width, g, partial, queue);
}

MoeStatus moe_cuda_bias_back_float(const float *dy, size_t n, size_t ld, size_t width, float *g, float *partial,
                                   MoeQueue queue)
{
  return bias_back(dy, n, ld, width, g, partial, queue);
}
