/* What the kernels that pack and read messages share. A warp has a row. */
#ifndef MOE_MESSAGE_CUH
#define MOE_MESSAGE_CUH

#include "moe_cuda.cuh"
#include "route.h"

namespace
{

constexpr int H = MOE_HIDDEN;
constexpr int K = MOE_TOP_K;
constexpr int THREADS = 256;
constexpr int WARPS = THREADS / LANES;

/* owner [E] of every expert, in shared memory; a barrier must follow. */
__device__ __forceinline__ void read_owners(int n_ffn, uint16_t *owner)
{
  for (int e = (int)threadIdx.x; e < MOE_EXPERTS; e += THREADS) {
    owner[e] = (uint16_t)moe_part_of(MOE_EXPERTS, n_ffn, e);
  }
}

/* The head of a message and the padding before its rows; by one block. */
__device__ __forceinline__ void write_head(uint8_t *slot, unsigned rows, size_t row_bytes, unsigned pairs,
                                           size_t pair_bytes, uint32_t stamp)
{
  size_t lists = sizeof(MoeMsgHead) + rows * row_bytes + pairs * pair_bytes;
  size_t rows_at = moe_msg_rows_at(rows, row_bytes, pairs, pair_bytes);
  if (threadIdx.x == 0) {
    MoeMsgHead *head = (MoeMsgHead *)slot;
    head->rows = rows;
    head->pairs = pairs;
    head->stamp = stamp;
    head->bytes = (uint32_t)(rows_at + (size_t)rows * H * sizeof(MoeReal));
  }
  for (size_t i = lists + threadIdx.x; i < rows_at; i += THREADS) {
    slot[i] = 0;
  }
}

__device__ __forceinline__ const MoeReal *rows_of(const uint8_t *message, size_t row_bytes, size_t pair_bytes)
{
  const MoeMsgHead *head = (const MoeMsgHead *)message;
  return (const MoeReal *)(message + moe_msg_rows_at(head->rows, row_bytes, head->pairs, pair_bytes));
}

__device__ __forceinline__ void copy_row(MoeReal *to, const MoeReal *from)
{
  for (int i = (int)(threadIdx.x % LANES); i < H; i += LANES) {
    to[i] = from[i];
  }
}

/* The first row of a warp, and by how many it goes on. */
__device__ __forceinline__ size_t first_row()
{
  return (size_t)blockIdx.x * WARPS + threadIdx.x / LANES;
}

__device__ __forceinline__ size_t row_step()
{
  return (size_t)gridDim.x * WARPS;
}

__device__ __forceinline__ void refuse(int32_t *status)
{
  atomicMin(status, (int32_t)MOE_EPROTO);
}

inline unsigned warps_for(size_t n)
{
  return (unsigned)((n + WARPS - 1) / WARPS);
}

/* Of a message that may be empty, where warps take several rows each. */
inline unsigned blocks_for(size_t most_rows)
{
  return (unsigned)moe_min(moe_max(warps_for(most_rows), 1), 1024);
}

} // namespace

#endif
