/* Vector work of gradient reduction and AdamW; optimizer.c has the formulas. Sums of squares are fp64, in MOE_PARTS
   parts that one block then adds in order. */
#include "moe_cuda.cuh"

namespace
{

constexpr int THREADS = 256;
constexpr unsigned MOST_BLOCKS = 1024; /* enough for every device; each thread takes several elements */

__device__ __forceinline__ size_t first_element()
{
  return (size_t)blockIdx.x * THREADS + threadIdx.x;
}

__device__ __forceinline__ size_t stride()
{
  return (size_t)gridDim.x * THREADS;
}

__global__ void __launch_bounds__(THREADS) add(float *sum, const float *x, size_t n)
{
  for (size_t i = first_element(); i < n; i += stride()) {
    sum[i] += x[i];
  }
}

__global__ void __launch_bounds__(THREADS) sumsq(const float *x, size_t n, double *partial)
{
  SHARED(double, all, THREADS);
  double sum = 0;
  for (size_t i = first_element(); i < n; i += stride()) {
    sum += (double)x[i] * (double)x[i];
  }
  sum = block_sum_double<THREADS>(sum, all);
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = sum;
  }
}

__global__ void add_sums(const double *partial, unsigned n, double *total)
{
  if (threadIdx.x == 0) {
    double sum = *total;
    for (unsigned i = 0; i < n; i++) {
      sum += partial[i];
    }
    *total = sum;
  }
}

struct Rates {
  float lr, beta1, beta2, eps, decay, scale;
  float unbias1, unbias2; /* 1 / bias */
};

__global__ void __launch_bounds__(THREADS)
    adamw(Rates a, MoeReal *w, float *master, float *m, float *v, const float *g, size_t n)
{
  for (size_t i = first_element(); i < n; i += stride()) {
    float scaled = g[i] * a.scale;
    float mean = moe_fma(a.beta1, m[i], (1.0f - a.beta1) * scaled);
    float square = moe_fma(a.beta2, v[i], (1.0f - a.beta2) * scaled * scaled);
    float update = mean * a.unbias1 / (sqrtf(square * a.unbias2) + a.eps);
    float weight = moe_fma(-a.lr, moe_fma(a.decay, master[i], update), master[i]);
    m[i] = mean;
    v[i] = square;
    master[i] = weight;
    w[i] = moe_put(weight);
  }
}

__global__ void __launch_bounds__(THREADS) to_weights(MoeReal *w, const float *master, size_t n)
{
  for (size_t i = first_element(); i < n; i += stride()) {
    w[i] = moe_put(master[i]);
  }
}

unsigned blocks_for(size_t n)
{
  return (unsigned)moe_min((n + THREADS - 1) / THREADS, MOST_BLOCKS);
}

} // namespace

MoeStatus moe_cuda_add(float *sum, const float *x, size_t n, MoeQueue queue)
{
  return n == 0 ? MOE_OK : MOE_LAUNCH(add, blocks_for(n), THREADS, 0, queue, sum, x, n);
}

MoeStatus moe_cuda_sumsq(const float *x, size_t n, double *total, double *partial, MoeQueue queue)
{
  unsigned parts = (unsigned)moe_min(blocks_for(n), MOE_PARTS);
  if (n == 0) {
    return MOE_OK;
  }
  MOE_TRY(MOE_LAUNCH(sumsq, parts, THREADS, 0, queue, x, n, partial));
  return MOE_LAUNCH(add_sums, 1, LANES, 0, queue, partial, parts, total);
}

MoeStatus moe_cuda_adamw(const MoeAdam *adam, MoeReal *w, float *master, float *m, float *v, const float *g, size_t n,
                         bool decay, MoeQueue queue)
{
  Rates a = {adam->lr,    adam->beta1,        adam->beta2,       adam->eps, decay ? adam->weight_decay : 0.0f,
             adam->scale, 1.0f / adam->bias1, 1.0f / adam->bias2};
  return n == 0 ? MOE_OK : MOE_LAUNCH(adamw, blocks_for(n), THREADS, 0, queue, a, w, master, m, v, g, n);
}

MoeStatus moe_cuda_to_weights(MoeReal *w, const float *master, size_t n, MoeQueue queue)
{
  return n == 0 ? MOE_OK : MOE_LAUNCH(to_weights, blocks_for(n), THREADS, 0, queue, w, master, n);
}
