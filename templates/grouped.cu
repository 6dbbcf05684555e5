/* Products of the experts: one launch for all groups, whose sizes are read on the device. Plain tiles, no tensor cores:
   the path that others are compared with. A block finds its group by going through the groups' tiles; blocks past the
   last one leave, so that the grid need only be large enough for the worst skew. */
#include "moe_cuda.cuh"

namespace
{

constexpr int TILE = 32;     /* rows and columns of a block's result, and depth of a step */
constexpr int THREADS = 256; /* 16 x 16, each of 2 x 2 elements */
constexpr int SIDE = 16;
constexpr int LINE = TILE + 1; /* of a tile in shared memory, so that columns lie in different banks */
constexpr int AREA = TILE * LINE;

struct Tile {
  int group;    /* E: none */
  unsigned row; /* first row, among all pairs */
  unsigned end; /* end of the group's rows */
};

__device__ __forceinline__ Tile find_tile(const uint32_t *first, int n_groups, unsigned number)
{
  Tile t = {n_groups, 0, 0};
  for (int e = 0; e < n_groups; e++) {
    unsigned tiles = (first[e + 1] - first[e] + TILE - 1) / TILE;
    if (number < tiles) {
      t.group = e;
      t.row = first[e] + number * TILE;
      t.end = first[e + 1];
      return t;
    }
    number -= tiles;
  }
  return t;
}

struct Sums {
  float at[2][2];
};

/* sums += a b of two tiles, a [row][depth], b [depth][column]. */
__device__ __forceinline__ void multiply(const float *a, const float *b, Sums &s)
{
  int y = (int)threadIdx.x / SIDE;
  int x = (int)threadIdx.x % SIDE;
  for (int k = 0; k < TILE; k++) {
    for (int i = 0; i < 2; i++) {
      for (int j = 0; j < 2; j++) {
        s.at[i][j] = moe_fma(a[(y + i * SIDE) * LINE + k], b[k * LINE + x + j * SIDE], s.at[i][j]);
      }
    }
  }
}

/* c [pairs, n] = a [pairs, k] times the group's matrix, whose element (depth, column) lies at b[group * elems + depth *
   b_depth + column * b_column]; plus, unless it is NULL, bias[group * elems + column]. */
template <typename Out>
__global__ void __launch_bounds__(THREADS)
    rows_by_group(const uint32_t *first, int n_groups, const MoeReal *a, int k, const MoeReal *b, size_t elems,
                  size_t b_depth, size_t b_column, const MoeReal *bias, Out *c, int n)
{
  SHARED(float, tile_a, AREA);
  SHARED(float, tile_b, AREA);
  Tile tile = find_tile(first, n_groups, blockIdx.y);
  if (tile.group == n_groups) {
    return;
  }
  int column = (int)blockIdx.x * TILE;
  Sums sums = {};
  b += (size_t)tile.group * elems;
  for (int at = 0; at < k; at += TILE) {
    for (int i = (int)threadIdx.x; i < TILE * TILE; i += THREADS) {
      int y = i / TILE;
      int x = i % TILE;
      bool in_a = tile.row + (unsigned)y < tile.end && at + x < k;
      tile_a[y * LINE + x] = in_a ? moe_get(a[(size_t)(tile.row + (unsigned)y) * (size_t)k + (size_t)(at + x)]) : 0.0f;
      int depth = b_column == 1 ? y : x; /* along the lines of b */
      int j = b_column == 1 ? x : y;
      bool in_b = at + depth < k && column + j < n;
      tile_b[depth * LINE + j] =
          in_b ? moe_get(b[(size_t)(at + depth) * b_depth + (size_t)(column + j) * b_column]) : 0.0f;
    }
    __syncthreads();
    multiply(tile_a, tile_b, sums);
    __syncthreads();
  }
  for (int i = 0; i < 2; i++) {
    for (int j = 0; j < 2; j++) {
      unsigned row = tile.row + threadIdx.x / SIDE + (unsigned)(i * SIDE);
      int x = column + (int)(threadIdx.x % SIDE) + j * SIDE;
      if (row < tile.end && x < n) {
        float added = bias != NULL ? moe_get(bias[(size_t)tile.group * elems + (size_t)x]) : 0.0f;
        moe_store(&c[(size_t)row * (size_t)n + (size_t)x], sums.at[i][j] + added);
      }
    }
  }
}

/* Of each group: c[group * elems + ...] [m, n] += a^T b over its rows, a [pairs, m], b [pairs, n]. A group without rows
   is left alone. */
__global__ void __launch_bounds__(THREADS)
    weights_by_group(const uint32_t *first, const MoeReal *a, int m, const MoeReal *b, int n, float *c, size_t elems)
{
  SHARED(float, tile_a, AREA);
  SHARED(float, tile_b, AREA);
  unsigned end = first[blockIdx.z + 1];
  int row = (int)blockIdx.y * TILE;
  int column = (int)blockIdx.x * TILE;
  Sums sums = {};
  if (first[blockIdx.z] == end) {
    return;
  }
  for (unsigned at = first[blockIdx.z]; at < end; at += TILE) {
    for (int i = (int)threadIdx.x; i < TILE * TILE; i += THREADS) {
      int depth = i / TILE;
      int x = i % TILE;
      size_t pair = at + (unsigned)depth;
      tile_a[x * LINE + depth] = pair < end && row + x < m ? moe_get(a[pair * (size_t)m + (size_t)(row + x)]) : 0.0f;
      tile_b[depth * LINE + x] =
          pair < end && column + x < n ? moe_get(b[pair * (size_t)n + (size_t)(column + x)]) : 0.0f;
    }
    __syncthreads();
    multiply(tile_a, tile_b, sums);
    __syncthreads();
  }
  c += blockIdx.z * elems;
  for (int i = 0; i < 2; i++) {
    for (int j = 0; j < 2; j++) {
      int y = row + (int)(threadIdx.x / SIDE) + i * SIDE;
      int x = column + (int)(threadIdx.x % SIDE) + j * SIDE;
      if (y < m && x < n) {
        c[(size_t)y * (size_t)n + (size_t)x] += sums.at[i][j];
      }
    }
  }
}

/* Enough for n_pairs in n_groups groups, however they are spread. */
unsigned most_tiles(size_t n_pairs, int n_groups)
{
  return (unsigned)(n_pairs / TILE + moe_min((size_t)n_groups, n_pairs));
}

template <typename Out>
MoeStatus rows(const MoeFfnList *l, const MoeReal *a, size_t k, const MoeReal *b, size_t b_depth, size_t b_column,
               const MoeReal *bias, Out *c, size_t n, MoeQueue queue)
{
  dim3 grid((unsigned)((n + TILE - 1) / TILE), most_tiles(l->n_pairs, l->n_experts));
  return l->n_pairs == 0 ? MOE_OK
                         : MOE_LAUNCH(rows_by_group, grid, THREADS, 0, queue, l->first, l->n_experts, a, (int)k, b,
                                      MOE_EXPERT_ELEMS, b_depth, b_column, bias, c, (int)n);
}

} // namespace

MoeStatus moe_cuda_group_nt(const MoeFfnList *l, const MoeReal *a, size_t k, const MoeReal *w, MoeReal *c, size_t n,
                            MoeQueue queue)
{
  return rows(l, a, k, w, 1, k, NULL, c, n, queue);
}

MoeStatus moe_cuda_group_nt_float(const MoeFfnList *l, const MoeReal *a, size_t k, const MoeReal *w, float *c, size_t n,
                                  MoeQueue queue)
{
  return rows(l, a, k, w, 1, k, NULL, c, n, queue);
}

MoeStatus moe_cuda_group_nt_bias(const MoeFfnList *l, const MoeReal *a, size_t k, const MoeReal *w, const MoeReal *bias,
                                 MoeReal *c, size_t n, MoeQueue queue)
{
  return rows(l, a, k, w, 1, k, bias, c, n, queue);
}

MoeStatus moe_cuda_group_nt_bias_float(const MoeFfnList *l, const MoeReal *a, size_t k, const MoeReal *w,
                                       const MoeReal *bias, float *c, size_t n, MoeQueue queue)
{
  return rows(l, a, k, w, 1, k, bias, c, n, queue);
}

MoeStatus moe_cuda_group_nn_float(const MoeFfnList *l, const MoeReal *a, size_t k, const MoeReal *w, float *c, size_t n,
                                  MoeQueue queue)
{
  return rows(l, a, k, w, n, 1, NULL, c, n, queue);
}

MoeStatus moe_cuda_group_tn(const MoeFfnList *l, const MoeReal *a, size_t m, const MoeReal *b, size_t n, float *gw,
                            MoeQueue queue)
{
  dim3 grid((unsigned)((n + TILE - 1) / TILE), (unsigned)((m + TILE - 1) / TILE), (unsigned)l->n_experts);
  return l->n_pairs == 0 ? MOE_OK
                         : MOE_LAUNCH(weights_by_group, grid, THREADS, 0, queue, l->first, a, (int)m, b, (int)n, gw,
                                      MOE_EXPERT_ELEMS);
}
