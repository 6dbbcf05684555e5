/* What the .cu files share: the words that nvcc and the emulated device spell differently, and sums over a warp and
   over a block, whose order is fixed. */
#ifndef MOE_CUDA_CUH
#define MOE_CUDA_CUH

#include "moe_launch.cuh"
#include "moe_model.h"
#include "moe_store.h"
#include "moe_vec.h"

#ifdef __CUDACC__

#include <stdio.h>

/* n elements of shared memory of this block, n a constant; and all that the launch asked for. */
#define SHARED(type, name, n)      __shared__ __align__(16) type name[n]
#define SHARED_DYNAMIC(type, name) type *name = (type *)moe_dynamic_shared()
#define UNROLL                     _Pragma("unroll") /* so that arrays of a thread are registers */

__device__ inline char *moe_dynamic_shared()
{
  extern __shared__ __align__(1024) char moe_dynamic_bytes[];
  return moe_dynamic_bytes;
}

inline MoeStatus moe_launched(const char *kernel)
{
  cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) {
    fprintf(stderr, "error: %s: %s\n", kernel, cudaGetErrorString(error));
    return MOE_EDEVICE;
  }
  return MOE_OK;
}

/* More than 48 KiB are given only to kernels that have asked for them. A refusal shows in the launch. */
template <typename Kernel> inline void moe_ask_shared(Kernel *kernel, size_t bytes)
{
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}

inline MoeStatus moe_clear(void *p, size_t bytes, MoeQueue queue)
{
  return cudaMemsetAsync(p, 0, bytes, queue) == cudaSuccess ? MOE_OK : MOE_EDEVICE;
}

#define MOE_LAUNCH(kernel, grid, block, bytes, queue, ...)                                                             \
  (kernel<<<(grid), (block), (bytes), (queue)>>>(__VA_ARGS__), moe_launched(#kernel))

#else

#include "moe_simt.h"

template <typename Kernel> inline void moe_ask_shared(Kernel *, size_t) {}

inline MoeStatus moe_clear(void *p, size_t bytes, MoeQueue)
{
  simt::clear(p, bytes);
  return MOE_OK;
}

#define SHARED(type, name, n)      type *const name = static_cast<type *>(simt::shared_array(#name, (n) * sizeof(type)))
#define SHARED_DYNAMIC(type, name) type *const name = static_cast<type *>(simt::dynamic_array(#name))
#define UNROLL

#define MOE_LAUNCH(kernel, grid, block, bytes, queue, ...)                                                             \
  ((void)(queue),                                                                                                      \
   simt::launch(#kernel, (grid), (block), (bytes), [&] { kernel(__VA_ARGS__); }) == 0 ? MOE_OK : MOE_EDEVICE)

#endif

namespace
{

/* Of the storage type as of floats, for kernels that are written for both. */
__device__ __forceinline__ float moe_load(float x)
{
  return x;
}

__device__ __forceinline__ void moe_store(float *y, float x)
{
  *y = x;
}

#if MOE_BF16
__device__ __forceinline__ float moe_load(MoeReal x)
{
  return moe_get(x);
}

__device__ __forceinline__ void moe_store(MoeReal *y, float x)
{
  *y = moe_put(x);
}
#endif

constexpr unsigned LANES = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;

constexpr int ceil_div(int a, int b)
{
  return (a + b - 1) / b;
}

__device__ __forceinline__ float warp_sum(float x)
{
  for (int with = LANES / 2; with > 0; with /= 2) {
    x += __shfl_xor_sync(ALL_LANES, x, with);
  }
  return x;
}

__device__ __forceinline__ float warp_max(float x)
{
  for (int with = LANES / 2; with > 0; with /= 2) {
    x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, with));
  }
  return x;
}

/* Sum over the block, for every thread. part: shared, one element per warp. */
template <int THREADS> __device__ __forceinline__ float block_sum(float x, float *part)
{
  constexpr int WARPS = THREADS / LANES;
  x = warp_sum(x);
  if (WARPS == 1) {
    return x;
  }
  if (threadIdx.x % LANES == 0) {
    part[threadIdx.x / LANES] = x;
  }
  __syncthreads();
  float sum = 0.0f;
  for (int w = 0; w < WARPS; w++) {
    sum += part[w];
  }
  __syncthreads(); /* part may be written again */
  return sum;
}

/* Largest of the block's, for every thread. part: as above. */
template <int THREADS> __device__ __forceinline__ float block_max(float x, float *part)
{
  constexpr int WARPS = THREADS / LANES;
  x = warp_max(x);
  if (WARPS == 1) {
    return x;
  }
  if (threadIdx.x % LANES == 0) {
    part[threadIdx.x / LANES] = x;
  }
  __syncthreads();
  for (int w = 0; w < WARPS; w++) {
    x = fmaxf(x, part[w]);
  }
  __syncthreads(); /* part may be written again */
  return x;
}

/* Sum of the block's values, THREADS a power of two, for every thread. all: shared [THREADS]. */
template <int THREADS> __device__ __forceinline__ double block_sum_double(double x, double *all)
{
  all[threadIdx.x] = x;
  for (unsigned half = THREADS / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) {
      all[threadIdx.x] += all[threadIdx.x + half];
    }
  }
  __syncthreads();
  double sum = all[0];
  __syncthreads(); /* all may be written again */
  return sum;
}

/* x + sum over the threads before this one, in x; returns the sum over the block. part: as above. */
template <int THREADS> __device__ __forceinline__ unsigned block_scan(unsigned *x, unsigned *part)
{
  constexpr int WARPS = THREADS / LANES;
  unsigned lane = threadIdx.x % LANES;
  unsigned own = *x;
  for (unsigned by = 1; by < LANES; by *= 2) {
    unsigned below = __shfl_up_sync(ALL_LANES, own, by);
    own += lane >= by ? below : 0;
  }
  if (lane == LANES - 1) {
    part[threadIdx.x / LANES] = own;
  }
  __syncthreads();
  unsigned all = 0;
  for (unsigned w = 0; w < WARPS; w++) {
    own += w < threadIdx.x / LANES ? part[w] : 0;
    all += part[w];
  }
  __syncthreads();
  *x = own;
  return all;
}

} // namespace

#endif
