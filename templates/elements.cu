/* Element by element: between the storage type and floats. */
#include "moe_cuda.cuh"

namespace
{

constexpr int THREADS = 256;
constexpr unsigned MOST_BLOCKS = 1024; /* each thread takes several elements */

__global__ void __launch_bounds__(THREADS) floats(const MoeReal *x, size_t n, float *y)
{
  for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += (size_t)gridDim.x * THREADS) {
    y[i] = moe_get(x[i]);
  }
}

__global__ void __launch_bounds__(THREADS) add_rounded(const MoeReal *x, const float *y, size_t n, MoeReal *a)
{
  for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += (size_t)gridDim.x * THREADS) {
    a[i] = moe_put(moe_get(x[i]) + y[i]);
  }
}

unsigned blocks_for(size_t n)
{
  return (unsigned)moe_min((n + THREADS - 1) / THREADS, MOST_BLOCKS);
}

} // namespace

MoeStatus moe_cuda_floats(const MoeReal *x, size_t n, float *y, MoeQueue queue)
{
  return n == 0 ? MOE_OK : MOE_LAUNCH(floats, blocks_for(n), THREADS, 0, queue, x, n, y);
}

MoeStatus moe_cuda_add_rounded(const MoeReal *x, const float *y, size_t n, MoeReal *a, MoeQueue queue)
{
  return n == 0 ? MOE_OK : MOE_LAUNCH(add_rounded, blocks_for(n), THREADS, 0, queue, x, y, n, a);
}
