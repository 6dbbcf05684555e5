/* Causal attention in flash form, forward; attention.c has the formulas. One block per tile of queries of one head:
   scores of a tile of keys, a running maximum and sum per query, and no seq x seq matrix. A warp has some of the
   queries; its lanes are the keys of a tile while scores are formed, and columns of the output after that. Plain
   products: the path that others are compared with. */
#include "moe_cuda.cuh"

namespace
{

constexpr int D = MOE_HEAD_DIM;
constexpr int DV = MOE_V_DIM;
constexpr int G = MOE_GROUP;
constexpr int QKV = MOE_QKV_DIM;
constexpr int WARPS = 4;
constexpr int THREADS = WARPS * LANES;
constexpr int WIDEST = D > DV ? D : DV;
constexpr int TILE_Q = WIDEST > 128 ? 16 : 32; /* shared memory holds both tiles up to 256 wide */
constexpr int TILE_K = WIDEST > 128 ? 16 : 32; /* at most one key per lane */
constexpr int ROWS = TILE_Q / WARPS;           /* queries of a warp */
constexpr int COLUMNS = ceil_div(DV, LANES);   /* of the output, of a lane */
constexpr int LINE = WIDEST + 1;               /* of a tile, so that keys lie in different banks */
constexpr int QUERIES = TILE_Q * LINE;
constexpr int KEYS = TILE_K * LINE;
constexpr int SCORES = TILE_Q * TILE_K;

/* Rows first .. first + n of one head's vectors, `width` wide; past `end` zeros. */
__device__ __forceinline__ void load_tile(const MoeReal *from, size_t first, size_t end, int n, int width, float *tile)
{
  for (int i = (int)threadIdx.x; i < n * width; i += THREADS) {
    size_t row = first + (size_t)(i / width);
    tile[i / width * LINE + i % width] = row < end ? moe_get(from[row * QKV + (size_t)(i % width)]) : 0.0f;
  }
}

struct Query {
  float best, sum; /* running maximum, and sum of e^(score - best) */
  float out[COLUMNS];
};

/* One query and a tile of keys, its scores in `score` [TILE_K] of shared memory, first as they are, then e^(s - best).
 */
__device__ __forceinline__ void add_scores(Query &q, const float *query, const float *keys, int seen_begin,
                                           int seen_end, float scale, float *score)
{
  int lane = (int)(threadIdx.x % LANES);
  float s = -INFINITY;
  if (lane >= seen_begin && lane < seen_end) {
    s = 0.0f;
    for (int i = 0; i < D; i++) {
      s = moe_fma(query[i], keys[lane * LINE + i], s);
    }
    s *= scale;
  }
  float best = fmaxf(q.best, warp_max(s));
  bool any = best > -INFINITY; /* else the query sees no key yet */
  float shrink = any ? moe_exp(q.best - best) : 1.0f;
  float p = any && s > -INFINITY ? moe_exp(s - best) : 0.0f;
  q.sum = moe_fma(q.sum, shrink, warp_sum(p));
  q.best = best;
  UNROLL
  for (int c = 0; c < COLUMNS; c++) {
    q.out[c] *= shrink;
  }
  if (lane < TILE_K) {
    score[lane] = p;
  }
}

__device__ __forceinline__ void add_values(Query &q, const float *values, const float *score)
{
  for (int k = 0; k < TILE_K; k++) {
    UNROLL
    for (int c = 0; c < COLUMNS; c++) {
      int i = (int)(threadIdx.x % LANES) + c * (int)LANES;
      q.out[c] = i < DV ? moe_fma(score[k], values[k * LINE + i], q.out[c]) : 0.0f;
    }
  }
}

__device__ __forceinline__ size_t first_key(size_t window, size_t pos)
{
  return window > 0 && pos >= window ? pos - window + 1 : 0;
}

/* Of keys begin .. begin + TILE_K those that `pos` sees: from .. to within the tile. */
__device__ __forceinline__ int clip(size_t key, size_t begin)
{
  return key <= begin ? 0 : key - begin < TILE_K ? (int)(key - begin) : TILE_K;
}

/* Block (tile of queries, head, sequence). */
__global__ void __launch_bounds__(THREADS)
    attention(const MoeReal *qkv, const float *sinks, size_t seq, size_t window, float scale, MoeReal *o, float *lse)
{
  SHARED(float, queries, QUERIES);
  SHARED(float, keys, KEYS);
  SHARED(float, scores, SCORES);
  int head = (int)blockIdx.y;
  int warp = (int)(threadIdx.x / LANES);
  size_t token = blockIdx.z * seq;
  size_t q0 = (size_t)blockIdx.x * TILE_Q;
  size_t q_end = q0 + TILE_Q < seq ? q0 + TILE_Q : seq;
  const MoeReal *k_rows = qkv + token * QKV + MOE_Q_DIM + head / G * D;
  const MoeReal *v_rows = qkv + token * QKV + MOE_Q_DIM + MOE_KV_DIM + head / G * DV;
  Query query[ROWS];
  UNROLL
  for (int r = 0; r < ROWS; r++) {
    query[r] = {};
    query[r].best = MOE_SINKS ? sinks[head] : -INFINITY;
    query[r].sum = MOE_SINKS ? 1.0f : 0.0f;
  }
  load_tile(qkv + token * QKV + head * D, q0, q_end, TILE_Q, D, queries);
  for (size_t k0 = first_key(window, q0) / TILE_K * TILE_K; k0 < q_end; k0 += TILE_K) {
    load_tile(k_rows, k0, q_end, TILE_K, D, keys);
    __syncthreads();
    UNROLL
    for (int r = 0; r < ROWS; r++) {
      int row = warp * ROWS + r;
      size_t pos = q0 + (size_t)row;
      add_scores(query[r], queries + row * LINE, keys, clip(first_key(window, pos), k0), clip(pos + 1, k0), scale,
                 scores + row * TILE_K);
    }
    __syncthreads(); /* values take the keys' place */
    load_tile(v_rows, k0, q_end, TILE_K, DV, keys);
    __syncthreads();
    UNROLL
    for (int r = 0; r < ROWS; r++) {
      add_values(query[r], keys, scores + (warp * ROWS + r) * TILE_K);
    }
    __syncthreads();
  }
  UNROLL
  for (int r = 0; r < ROWS; r++) {
    size_t pos = q0 + (size_t)(warp * ROWS + r);
    int lane = (int)(threadIdx.x % LANES);
    for (int i = lane, c = 0; pos < q_end && i < DV; i += LANES, c++) {
      o[(token + pos) * MOE_O_DIM + (size_t)(head * DV + i)] = moe_put(query[r].out[c] / query[r].sum);
    }
    if (pos < q_end && lane == 0) {
      lse[(token + pos) * MOE_HEADS + (size_t)head] = query[r].best + logf(query[r].sum);
    }
  }
}

/* Keys that a position of the layer sees, itself included; 0: all. */
size_t window_of(size_t layer)
{
  bool here = MOE_WINDOW_LAYERS == 0 || (layer % 2 == 0) == (MOE_WINDOW_LAYERS == 1);
  return here ? (size_t)MOE_WINDOW : 0;
}

} // namespace

MoeStatus moe_cuda_attention(const MoeReal *qkv, const float *w, size_t layer, size_t seq, size_t n_seqs, MoeReal *o,
                             float *lse, MoeQueue queue)
{
  dim3 grid((unsigned)((seq + TILE_Q - 1) / TILE_Q), MOE_HEADS, (unsigned)n_seqs);
  const float *sinks = w + MOE_AT_SINKS;
  return seq * n_seqs == 0 ? MOE_OK
                           : MOE_LAUNCH(attention, grid, THREADS, 0, queue, qkv, sinks, seq, window_of(layer),
                                        (float)MOE_SCORE_SCALE, o, lse);
}
