/* Causal attention in flash form; attention.c has the formulas. One block per tile of queries of one head, or backward
   of keys of one key head: a tile of scores at a time, and no seq x seq matrix. A warp has some rows of the block's own
   tile; its lanes are the rows of the other tile while scores are formed, and columns of the result after that.
   Backward the scores are formed twice, once for the queries' gradients and once for the keys' and values': each sum
   then has one writer and one order. Plain products: the path that others are compared with. */
#include "moe_cuda.cuh"

namespace
{

constexpr int D = MOE_HEAD_DIM;
constexpr int DV = MOE_V_DIM;
constexpr int G = MOE_GROUP;
constexpr int O = MOE_O_DIM;
constexpr int WIDTH = MOE_TURNED_DIM; /* of a token's heads: q, k, v */
constexpr int K_COL = MOE_Q_DIM;
constexpr int V_COL = MOE_Q_DIM + MOE_KV_HEADS * D;
constexpr int WARPS = 4;
constexpr int THREADS = WARPS * LANES;
constexpr int WIDEST = D > DV ? D : DV;
constexpr int TILE = WIDEST > 128 ? 16 : 32; /* queries, keys: at most one per lane */
constexpr int ROWS = TILE / WARPS;           /* of a warp */
constexpr int LINE = WIDEST + 4;             /* of a tile, so that four elements of neighbouring rows share no bank */
constexpr int AREA = TILE * LINE;
constexpr int SCORES = TILE * TILE;

static_assert(D % 4 == 0 && DV % 4 == 0, "tiles are read four elements at a time");
static_assert(WIDEST <= 256, "tiles of wider heads need more shared memory than a block has");

/* Rows first .. first + TILE, `stride` elements apart, of which `width` are read; from `end` on zeros. */
__device__ __forceinline__ void load_tile(const MoeReal *from, size_t stride, size_t first, size_t end, int width,
                                          float *tile)
{
  for (int i = (int)threadIdx.x; i < TILE * width; i += THREADS) {
    size_t row = first + (size_t)(i / width);
    tile[i / width * LINE + i % width] = row < end ? moe_get(from[row * stride + (size_t)(i % width)]) : 0.0f;
  }
}

/* s[r] = <row r of own, the lane's row of other>; lanes past the tile get zero. */
__device__ __forceinline__ void dots(const float *own, const float *other, int width, float s[ROWS])
{
  int lane = (int)(threadIdx.x % LANES);
  UNROLL
  for (int r = 0; r < ROWS; r++) {
    s[r] = 0.0f;
  }
  for (int i = 0; lane < TILE && i < width; i += 4) {
    float4 x = *(const float4 *)&other[lane * LINE + i];
    UNROLL
    for (int r = 0; r < ROWS; r++) {
      float4 y = *(const float4 *)&own[r * LINE + i];
      s[r] = moe_fma(y.w, x.w, moe_fma(y.z, x.z, moe_fma(y.y, x.y, moe_fma(y.x, x.x, s[r]))));
    }
  }
}

/* The warp's rows of a result N wide, of which a lane has columns lane, lane + LANES ... */
template <int N> struct Sums {
  static constexpr int COLUMNS = ceil_div(N, (int)LANES); /* of a lane */
  float at[ROWS][COLUMNS];
};

/* sums += score x, score [ROWS, TILE], x a tile. */
template <int N> __device__ __forceinline__ void add_rows(const float *score, const float *x, Sums<N> &sums)
{
  for (int k = 0; k < TILE; k++) {
    UNROLL
    for (int c = 0; c < Sums<N>::COLUMNS; c++) {
      int i = (int)(threadIdx.x % LANES) + c * (int)LANES;
      float value = i < N ? x[k * LINE + i] : 0.0f;
      UNROLL
      for (int r = 0; r < ROWS; r++) {
        sums.at[r][c] = moe_fma(score[r * TILE + k], value, sums.at[r][c]);
      }
    }
  }
}

/* Whether `query` sees `key`, both within a sequence. window 0: all before it. */
__device__ __forceinline__ bool sees(size_t window, size_t query, size_t key)
{
  return key <= query && (window == 0 || query - key < window);
}

__device__ __forceinline__ size_t first_key(size_t window, size_t pos)
{
  return window > 0 && pos >= window ? pos - window + 1 : 0;
}

/* Running maximum, and sum of e^(score - best), of one query. */
struct Softmax {
  float best, sum;
};

/* A query and the lane's key: its score becomes e^(s - best), unseen 0. Returns by what earlier results shrink. */
__device__ __forceinline__ float add_score(Softmax &q, bool seen, float *s)
{
  float score = seen ? *s : -INFINITY;
  float best = fmaxf(q.best, warp_max(score));
  bool any = best > -INFINITY; /* else the query sees no key yet */
  float shrink = any ? moe_exp(q.best - best) : 1.0f;
  *s = any && seen ? moe_exp(score - best) : 0.0f;
  q.sum = moe_fma(q.sum, shrink, warp_sum(*s));
  q.best = best;
  return shrink;
}

/* Block (tile of queries, head, sequence). */
__global__ void __launch_bounds__(THREADS, 2)
    attention(const MoeReal *qkv, const float *sinks, size_t seq, size_t window, float scale, MoeReal *o, float *lse)
{
  SHARED(float, queries, AREA);
  SHARED(float, keys, AREA);
  SHARED(float, scores, SCORES);
  int head = (int)blockIdx.y;
  int lane = (int)(threadIdx.x % LANES);
  int row = (int)(threadIdx.x / LANES) * ROWS; /* the warp's first */
  size_t token = blockIdx.z * seq;
  size_t q0 = (size_t)blockIdx.x * TILE;
  size_t q_end = q0 + TILE < seq ? q0 + TILE : seq;
  const MoeReal *rows = qkv + token * WIDTH;
  Softmax query[ROWS];
  Sums<DV> out = {};
  UNROLL
  for (int r = 0; r < ROWS; r++) {
    query[r].best = MOE_SINKS ? sinks[head] : -INFINITY;
    query[r].sum = MOE_SINKS ? 1.0f : 0.0f;
  }
  load_tile(rows + head * D, WIDTH, q0, q_end, D, queries);
  for (size_t k0 = first_key(window, q0) / TILE * TILE; k0 < q_end; k0 += TILE) {
    float s[ROWS];
    load_tile(rows + K_COL + head / G * D, WIDTH, k0, q_end, D, keys);
    __syncthreads();
    dots(queries + row * LINE, keys, D, s);
    UNROLL
    for (int r = 0; r < ROWS; r++) {
      s[r] *= scale;
      float shrink = add_score(query[r], lane < TILE && sees(window, q0 + (size_t)(row + r), k0 + (size_t)lane), &s[r]);
      UNROLL
      for (int c = 0; c < Sums<DV>::COLUMNS; c++) {
        out.at[r][c] *= shrink;
      }
      if (lane < TILE) {
        scores[(row + r) * TILE + lane] = s[r];
      }
    }
    __syncthreads(); /* values take the keys' place */
    load_tile(rows + V_COL + head / G * DV, WIDTH, k0, q_end, DV, keys);
    __syncthreads();
    add_rows<DV>(scores + row * TILE, keys, out);
    __syncthreads();
  }
  UNROLL
  for (int r = 0; r < ROWS; r++) {
    size_t pos = q0 + (size_t)(row + r);
    UNROLL
    for (int c = 0; c < Sums<DV>::COLUMNS; c++) {
      int i = lane + c * (int)LANES;
      if (pos < q_end && i < DV) {
        o[(token + pos) * O + (size_t)(head * DV + i)] = moe_put(out.at[r][c] / query[r].sum);
      }
    }
    if (pos < q_end && lane == 0) {
      lse[(token + pos) * MOE_HEADS + (size_t)head] = query[r].best + logf(query[r].sum);
    }
  }
}

/* One warp per head of a token: delta = <dO, o>. */
__global__ void __launch_bounds__(THREADS) find_delta(const MoeReal *o, const MoeReal *d_o, size_t n, float *delta)
{
  size_t at = (size_t)blockIdx.x * WARPS + threadIdx.x / LANES;
  if (at >= n) {
    return;
  }
  float sum = 0.0f;
  for (int i = (int)(threadIdx.x % LANES); i < DV; i += LANES) {
    sum = moe_fma(moe_get(d_o[at * DV + i]), moe_get(o[at * DV + i]), sum);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % LANES == 0) {
    delta[at] = sum;
  }
}

/* One block per part of the tokens, a thread per head: partial [gridDim, heads], the sinks' gradients. */
__global__ void __launch_bounds__(THREADS)
    sinks_back(const float *sinks, const float *lse, const float *delta, size_t n, float *partial)
{
  size_t end = (size_t)moe_part_begin((int64_t)n, gridDim.x, blockIdx.x + 1);
  for (int head = (int)threadIdx.x; head < MOE_HEADS; head += THREADS) {
    float sum = 0.0f;
    for (size_t t = (size_t)moe_part_begin((int64_t)n, gridDim.x, blockIdx.x); t < end; t++) {
      size_t at = t * MOE_HEADS + (size_t)head;
      sum = moe_fma(-moe_exp(sinks[head] - lse[at]), delta[at], sum);
    }
    partial[blockIdx.x * MOE_HEADS + (unsigned)head] = sum;
  }
}

/* Of a score s and dp = <dO, v>: P, and dS. */
struct Grad {
  float p, ds;
};

__device__ __forceinline__ Grad grad_of(bool seen, float s, float dp, float scale, float lse, float delta)
{
  Grad g = {0.0f, 0.0f};
  if (seen) {
    g.p = moe_exp(moe_fma(s, scale, -lse));
    g.ds = g.p * (dp - delta) * scale;
  }
  return g;
}

/* What both directions read, and d [n, WIDTH], gradients of the heads. */
struct Back {
  const MoeReal *qkv, *d_o;
  const float *lse, *delta;
  float *d;
  size_t seq, window;
  float scale;
};

/* The warp's rows `pos` .. below `end`, whose columns begin at d. */
template <int N> __device__ __forceinline__ void store_rows(const Sums<N> &sums, size_t pos, size_t end, float *d)
{
  UNROLL
  for (int r = 0; r < ROWS; r++) {
    UNROLL
    for (int c = 0; c < Sums<N>::COLUMNS; c++) {
      int i = (int)(threadIdx.x % LANES) + c * (int)LANES;
      if (pos + (size_t)r < end && i < N) {
        d[(pos + (size_t)r) * WIDTH + (size_t)i] = sums.at[r][c];
      }
    }
  }
}

/* Block (tile of queries, head, sequence). */
__global__ void __launch_bounds__(THREADS, 2) queries_back(Back b)
{
  SHARED_DYNAMIC(float, room);
  float *queries = room;
  float *d_out = queries + AREA;
  float *keys = d_out + AREA;
  float *values = keys + AREA;
  float *ds = values + AREA;
  int head = (int)blockIdx.y;
  int lane = (int)(threadIdx.x % LANES);
  int row = (int)(threadIdx.x / LANES) * ROWS;
  size_t token = blockIdx.z * b.seq;
  size_t q0 = (size_t)blockIdx.x * TILE;
  size_t q_end = q0 + TILE < b.seq ? q0 + TILE : b.seq;
  const MoeReal *rows = b.qkv + token * WIDTH;
  Sums<D> dq = {};
  float lse[ROWS];
  float delta[ROWS];
  UNROLL
  for (int r = 0; r < ROWS; r++) {
    size_t pos = q0 + (size_t)(row + r);
    size_t at = (token + (pos < q_end ? pos : q0)) * MOE_HEADS + (size_t)head;
    lse[r] = b.lse[at];
    delta[r] = b.delta[at];
  }
  load_tile(rows + head * D, WIDTH, q0, q_end, D, queries);
  load_tile(b.d_o + token * O + head * DV, O, q0, q_end, DV, d_out);
  for (size_t k0 = first_key(b.window, q0) / TILE * TILE; k0 < q_end; k0 += TILE) {
    float s[ROWS];
    float dp[ROWS];
    load_tile(rows + K_COL + head / G * D, WIDTH, k0, q_end, D, keys);
    load_tile(rows + V_COL + head / G * DV, WIDTH, k0, q_end, DV, values);
    __syncthreads();
    dots(queries + row * LINE, keys, D, s);
    dots(d_out + row * LINE, values, DV, dp);
    UNROLL
    for (int r = 0; r < ROWS; r++) {
      size_t pos = q0 + (size_t)(row + r);
      bool seen = pos < q_end && sees(b.window, pos, k0 + (size_t)lane);
      if (lane < TILE) {
        ds[(row + r) * TILE + lane] = grad_of(seen, s[r], dp[r], b.scale, lse[r], delta[r]).ds;
      }
    }
    __syncwarp();
    add_rows<D>(ds + row * TILE, keys, dq);
    __syncthreads();
  }
  store_rows<D>(dq, q0 + (size_t)row, q_end, b.d + token * WIDTH + head * D);
}

/* Block (tile of keys, key head, sequence): all queries of all heads that see them, head after head. */
__global__ void __launch_bounds__(THREADS, 2) keys_back(Back b)
{
  SHARED_DYNAMIC(float, room);
  float *keys = room;
  float *values = keys + AREA;
  float *queries = values + AREA;
  float *d_out = queries + AREA;
  float *p = d_out + AREA;
  float *ds = p + SCORES;
  int kv = (int)blockIdx.y;
  int lane = (int)(threadIdx.x % LANES);
  int row = (int)(threadIdx.x / LANES) * ROWS;
  size_t token = blockIdx.z * b.seq;
  size_t k0 = (size_t)blockIdx.x * TILE;
  size_t k_end = k0 + TILE < b.seq ? k0 + TILE : b.seq;
  size_t q_end = b.window > 0 && k_end - 1 + b.window < b.seq ? k_end - 1 + b.window : b.seq;
  const MoeReal *rows = b.qkv + token * WIDTH;
  Sums<D> dk = {};
  Sums<DV> dv = {};
  load_tile(rows + K_COL + kv * D, WIDTH, k0, k_end, D, keys);
  load_tile(rows + V_COL + kv * DV, WIDTH, k0, k_end, DV, values);
  for (int head = kv * G; head < (kv + 1) * G; head++) {
    for (size_t q0 = k0; q0 < q_end; q0 += TILE) {
      float s[ROWS];
      float dp[ROWS];
      size_t pos = q0 + (size_t)lane;
      bool in = lane < TILE && pos < q_end;
      size_t at = (token + (in ? pos : q0)) * MOE_HEADS + (size_t)head;
      float lse = b.lse[at];
      float delta = b.delta[at];
      load_tile(rows + head * D, WIDTH, q0, q_end, D, queries);
      load_tile(b.d_o + token * O + head * DV, O, q0, q_end, DV, d_out);
      __syncthreads();
      dots(keys + row * LINE, queries, D, s);
      dots(values + row * LINE, d_out, DV, dp);
      UNROLL
      for (int r = 0; r < ROWS; r++) {
        bool seen = in && sees(b.window, pos, k0 + (size_t)(row + r));
        Grad g = grad_of(seen, s[r], dp[r], b.scale, lse, delta);
        if (lane < TILE) {
          p[(row + r) * TILE + lane] = g.p;
          ds[(row + r) * TILE + lane] = g.ds;
        }
      }
      __syncwarp();
      add_rows<DV>(p + row * TILE, d_out, dv);
      add_rows<D>(ds + row * TILE, queries, dk);
      __syncthreads();
    }
  }
  store_rows<D>(dk, k0 + (size_t)row, k_end, b.d + token * WIDTH + K_COL + kv * D);
  store_rows<DV>(dv, k0 + (size_t)row, k_end, b.d + token * WIDTH + V_COL + kv * DV);
}

/* Keys that a position of the layer sees, itself included; 0: all. */
size_t window_of(size_t layer)
{
  bool here = MOE_WINDOW_LAYERS == 0 || (layer % 2 == 0) == (MOE_WINDOW_LAYERS == 1);
  return here ? (size_t)MOE_WINDOW : 0;
}

dim3 tiles(size_t seq, unsigned heads, size_t n_seqs)
{
  return dim3((unsigned)((seq + TILE - 1) / TILE), heads, (unsigned)n_seqs);
}

} // namespace

MoeStatus moe_cuda_attention(const MoeReal *qkv, const float *w, size_t layer, size_t seq, size_t n_seqs, MoeReal *o,
                             float *lse, MoeQueue queue)
{
  const float *sinks = w + MOE_AT_SINKS;
  return seq * n_seqs == 0 ? MOE_OK
                           : MOE_LAUNCH(attention, tiles(seq, MOE_HEADS, n_seqs), THREADS, 0, queue, qkv, sinks, seq,
                                        window_of(layer), (float)MOE_SCORE_SCALE, o, lse);
}

MoeStatus moe_cuda_attention_back(const MoeReal *qkv, const float *w, size_t layer, size_t seq, size_t n_seqs,
                                  const MoeReal *o, const float *lse, const MoeReal *d_o, float *d, float *gw,
                                  float *delta, float *partial, MoeQueue queue)
{
  size_t n = seq * n_seqs;
  unsigned parts = (unsigned)moe_min(n, MOE_PARTS);
  unsigned warps = (unsigned)((n * MOE_HEADS + WARPS - 1) / WARPS);
  size_t q_room = (4 * AREA + SCORES) * sizeof(float);
  size_t k_room = (4 * AREA + 2 * SCORES) * sizeof(float);
  Back b = {qkv, d_o, lse, delta, d, seq, window_of(layer), (float)MOE_SCORE_SCALE};
  if (n == 0) {
    return MOE_OK;
  }
  MOE_TRY(MOE_LAUNCH(find_delta, warps, THREADS, 0, queue, o, d_o, n * MOE_HEADS, delta));
  if (MOE_SINKS) {
    MOE_TRY(MOE_LAUNCH(sinks_back, parts, THREADS, 0, queue, w + MOE_AT_SINKS, lse, delta, n, partial));
    MOE_TRY(moe_cuda_add_parts(partial, parts, MOE_HEADS, gw + MOE_AT_SINKS, queue));
  }
  moe_ask_shared(queries_back, q_room);
  moe_ask_shared(keys_back, k_room);
  MOE_TRY(MOE_LAUNCH(queries_back, tiles(seq, MOE_HEADS, n_seqs), THREADS, q_room, queue, b));
  return MOE_LAUNCH(keys_back, tiles(seq, MOE_KV_HEADS, n_seqs), THREADS, k_room, queue, b);
}
