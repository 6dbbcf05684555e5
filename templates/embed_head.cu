/* The embedding, and its gradient without float atomics: the first token with an id adds the rows of all tokens with
   that id, in token order, so that every sum has one writer and one order. A block looks through all tokens for that,
   some 4 bytes each; the rows that it reads are far more. */
#include "moe_cuda.cuh"

namespace
{

constexpr int H = MOE_HIDDEN;
constexpr int THREADS = 128;
constexpr int WARPS = THREADS / LANES;

__device__ __forceinline__ bool valid(int32_t id)
{
  return id >= 0 && id < MOE_VOCAB;
}

__global__ void __launch_bounds__(THREADS)
    embed(const int32_t *tokens, const MoeReal *table, MoeReal *x, int32_t *status)
{
  int32_t id = tokens[blockIdx.x];
  if (!valid(id)) {
    if (threadIdx.x == 0) {
      atomicMin(status, (int32_t)MOE_EINVAL);
    }
    return;
  }
  for (int i = (int)threadIdx.x; i < H; i += THREADS) {
    x[(size_t)blockIdx.x * H + i] = table[(size_t)id * H + i];
  }
}

/* Whether one of tokens[0 .. n) is `id`; the same for all threads. */
__device__ __forceinline__ bool occurs(const int32_t *tokens, unsigned n, int32_t id)
{
  for (unsigned at = 0; at < n; at += THREADS) {
    unsigned t = at + threadIdx.x;
    if (__syncthreads_or(t < n && tokens[t] == id)) {
      return true;
    }
  }
  return false;
}

__global__ void __launch_bounds__(THREADS)
    embed_wgrad(const int32_t *tokens, unsigned n, const MoeReal *dx, float *g_table, int32_t *status)
{
  SHARED(unsigned, found, THREADS);
  SHARED(unsigned, part, WARPS);
  int32_t id = tokens[blockIdx.x];
  if (!valid(id)) {
    if (threadIdx.x == 0) {
      atomicMin(status, (int32_t)MOE_EINVAL);
    }
    return;
  }
  if (occurs(tokens, blockIdx.x, id)) {
    return;
  }
  float *g = g_table + (size_t)id * H;
  for (unsigned at = blockIdx.x; at < n; at += THREADS) {
    unsigned t = at + threadIdx.x;
    bool mine = t < n && tokens[t] == id;
    unsigned place = mine;
    unsigned all = block_scan<THREADS>(&place, part);
    if (mine) {
      found[place - 1] = t;
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; all > 0 && i < H; i += THREADS) {
      float sum = g[i];
      for (unsigned k = 0; k < all; k++) {
        sum += moe_get(dx[(size_t)found[k] * H + i]);
      }
      g[i] = sum;
    }
    __syncthreads(); /* found may be written again */
  }
}

} // namespace

MoeStatus moe_cuda_embed(const int32_t *tokens, size_t n, const MoeReal *table, MoeReal *x, int32_t *status,
                         MoeQueue queue)
{
  return n == 0 ? MOE_OK : MOE_LAUNCH(embed, (unsigned)n, THREADS, 0, queue, tokens, table, x, status);
}

MoeStatus moe_cuda_embed_wgrad(const int32_t *tokens, size_t n, const MoeReal *dx, float *g_table, int32_t *status,
                               MoeQueue queue)
{
  unsigned count = (unsigned)n;
  return n == 0 ? MOE_OK : MOE_LAUNCH(embed_wgrad, count, THREADS, 0, queue, tokens, count, dx, g_table, status);
}
