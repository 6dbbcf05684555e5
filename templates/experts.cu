/* Pairs and rows of an FFN rank around its products: pairs grouped by expert, the activation between the two products,
   rows as sums over their pairs; experts.c has the formulas. Sums over the pairs of a row run in the order of experts.
 */
#include "moe_act.h"
#include "moe_cuda.cuh"

namespace
{

constexpr int H = MOE_HIDDEN;
constexpr int F = MOE_FFN_HIDDEN;
constexpr int E = MOE_EXPERTS;
constexpr int K = MOE_TOP_K;
constexpr int THREADS = 256;
constexpr int WARPS = THREADS / LANES;

/* One block: row_pair [rows + 1], where each row's pairs begin, and pair_row [pairs]. */
__global__ void __launch_bounds__(THREADS)
    expand_rows(const MoeRowHead *rows, size_t n, uint32_t *row_pair, uint32_t *pair_row)
{
  SHARED(unsigned, part, WARPS);
  unsigned before = 0;
  for (size_t at = 0; at < n; at += THREADS) {
    size_t r = at + threadIdx.x;
    unsigned own = r < n ? rows[r].pairs : 0;
    unsigned end = own;
    unsigned all = block_scan<THREADS>(&end, part);
    if (r < n) {
      row_pair[r] = before + end - own;
      for (unsigned k = 0; k < own; k++) {
        pair_row[before + end - own + k] = (uint32_t)r;
      }
    }
    before += all;
  }
  if (threadIdx.x == 0) {
    row_pair[n] = before;
  }
}

/* Block e of E + 1: where the pairs of local expert e begin, and which they are, in their order. */
__global__ void __launch_bounds__(THREADS)
    group_pairs(const MoePair *pairs, const uint32_t *pair_row, unsigned n, unsigned first_expert, uint32_t *first,
                uint32_t *group_pair, uint32_t *group_row, uint32_t *place)
{
  SHARED(unsigned, part, WARPS);
  unsigned e = first_expert + blockIdx.x;
  unsigned less = 0;
  for (unsigned p = threadIdx.x; p < n; p += THREADS) {
    less += pairs[p].expert < e;
  }
  unsigned begin = block_scan<THREADS>(&less, part);
  if (threadIdx.x == 0) {
    first[blockIdx.x] = begin;
  }
  for (unsigned at = 0; at < n; at += THREADS) {
    unsigned p = at + threadIdx.x;
    unsigned own = p < n && pairs[p].expert == e;
    unsigned end = own;
    unsigned all = block_scan<THREADS>(&end, part);
    if (own) {
      place[p] = begin + end - 1;
      group_pair[begin + end - 1] = p;
      group_row[begin + end - 1] = pair_row[p];
    }
    begin += all;
  }
}

/* The row's pairs as places in the grouped order, ascending; returns their number. */
__device__ __forceinline__ unsigned row_places(const uint32_t *row_pair, const uint32_t *place, size_t r, uint32_t *at,
                                               uint32_t *pair)
{
  unsigned n = row_pair[r + 1] - row_pair[r];
  for (unsigned k = 0; k < K && k < n; k++) { /* says the bound to compilers that look for one */
    uint32_t p = row_pair[r] + k;
    unsigned i = k;
    for (; i > 0 && at[i - 1] > place[p]; i--) {
      at[i] = at[i - 1];
      pair[i] = pair[i - 1];
    }
    at[i] = place[p];
    pair[i] = p;
  }
  return n;
}

__global__ void __launch_bounds__(THREADS)
    start_sums(const MoeRowHead *rows, const MoeReal *residual, unsigned me, float *sum)
{
  size_t r = blockIdx.x;
  bool home = rows[r].home == me;
  for (int i = (int)threadIdx.x; i < H; i += THREADS) {
    sum[r * H + i] = home ? moe_get(residual[r * H + i]) : 0.0f;
  }
}

/* What the shared expert has for rows: x in the order of their homes; NULL: there is none. */
struct Shared {
  const uint32_t *place;
  const float *x;
};

__device__ __forceinline__ float shared_at(const Shared &s, size_t r, int i)
{
  return s.x != NULL && s.place[r] != MOE_NOT_HOME ? s.x[(size_t)s.place[r] * H + (size_t)i] : 0.0f;
}

/* Out: partial sums of a layer's output, residual included on the row's home. */
__global__ void __launch_bounds__(THREADS)
    sum_outputs(const MoeRowHead *rows, const MoePair *pairs, const uint32_t *row_pair, const uint32_t *place,
                const float *y, const MoeReal *residual, unsigned me, Shared shared, MoeReal *out)
{
  size_t r = blockIdx.x;
  uint32_t at[K] = {0};
  uint32_t pair[K] = {0};
  unsigned n = row_places(row_pair, place, r, at, pair);
  bool home = rows[r].home == me;
  for (int i = (int)threadIdx.x; i < H; i += THREADS) {
    float sum = home ? moe_get(residual[r * H + i]) : 0.0f;
    for (unsigned k = 0; k < n; k++) {
      sum = moe_fma(pairs[pair[k]].weight, y[(size_t)at[k] * H + i], sum);
    }
    out[r * H + i] = moe_put(sum + shared_at(shared, r, i));
  }
}

/* dh of a row: the sum over its pairs of their gradients. */
__global__ void __launch_bounds__(THREADS)
    sum_grads(const uint32_t *row_pair, const uint32_t *place, const float *d, Shared shared, float *dh)
{
  size_t r = blockIdx.x;
  uint32_t at[K] = {0};
  uint32_t pair[K] = {0};
  unsigned n = row_places(row_pair, place, r, at, pair);
  for (int i = (int)threadIdx.x; i < H; i += THREADS) {
    float sum = 0.0f;
    for (unsigned k = 0; k < n; k++) {
      sum += d[(size_t)at[k] * H + i];
    }
    dh[r * H + i] = sum + shared_at(shared, r, i);
  }
}

/* x [pairs, H] in the grouped order: the rows; with pairs, times the pair's weight. */
__global__ void __launch_bounds__(THREADS)
    gather_rows(const MoeReal *rows, const MoePair *pairs, const uint32_t *group_pair, const uint32_t *group_row,
                MoeReal *x)
{
  size_t from = group_row[blockIdx.x];
  float weight = pairs != NULL ? pairs[group_pair[blockIdx.x]].weight : 1.0f;
  for (int i = (int)threadIdx.x; i < H; i += THREADS) {
    MoeReal v = rows[from * H + i];
    x[(size_t)blockIdx.x * H + i] = pairs != NULL ? moe_put(weight * moe_get(v)) : v;
  }
}

__global__ void __launch_bounds__(THREADS) activate(const MoeReal *gate_up, MoeReal *act)
{
  const MoeReal *gate = gate_up + (size_t)blockIdx.x * 2 * F;
  for (int i = (int)threadIdx.x; i < F; i += THREADS) {
    act[(size_t)blockIdx.x * F + i] = moe_put(moe_act(MOE_CLAMPED, moe_get(gate[i]), moe_get(gate[F + i])));
  }
}

/* Gate and up become their gradients; d [pairs, F] is down^T dx of each pair. dw by the number of the pair in the list.
 */
__global__ void __launch_bounds__(THREADS) activate_back(const MoePair *pairs, const uint32_t *group_pair,
                                                         const float *d, MoeReal *gate_up, MoeReal *act, float *dw)
{
  SHARED(float, part, WARPS);
  uint32_t pair = group_pair[blockIdx.x];
  float weight = pairs[pair].weight;
  MoeReal *gate = gate_up + (size_t)blockIdx.x * 2 * F;
  float dot = 0.0f;
  for (int i = (int)threadIdx.x; i < F; i += THREADS) {
    float dg;
    float du;
    float own = d[(size_t)blockIdx.x * F + i];
    float value = moe_round(moe_act_back(MOE_CLAMPED, moe_get(gate[i]), moe_get(gate[F + i]), &dg, &du));
    gate[i] = moe_put(weight * own * dg);
    gate[F + i] = moe_put(weight * own * du);
    act[(size_t)blockIdx.x * F + i] = moe_put(value);
    dot = moe_fma(own, value, dot);
  }
  dot = block_sum<THREADS>(dot, part);
  if (threadIdx.x == 0) {
    dw[pair] = dot;
  }
}

/* One warp per pair of the grouped order: dw += <dx, the expert's bias>, dx [pairs, H]. */
__global__ void __launch_bounds__(THREADS)
    bias_weights(const MoePair *pairs, const uint32_t *group_pair, size_t n, unsigned first_expert, const MoeReal *dx,
                 const MoeReal *bias, float *dw)
{
  size_t p = (size_t)blockIdx.x * WARPS + threadIdx.x / LANES;
  if (p >= n) {
    return;
  }
  uint32_t pair = group_pair[p];
  const MoeReal *own = bias + (pairs[pair].expert - first_expert) * MOE_EXPERT_ELEMS;
  float dot = 0.0f;
  for (int i = (int)(threadIdx.x % LANES); i < H; i += LANES) {
    dot = moe_fma(moe_get(dx[p * H + (size_t)i]), moe_get(own[i]), dot);
  }
  dot = warp_sum(dot);
  if (threadIdx.x % LANES == 0) {
    dw[pair] += dot;
  }
}

/* Block (columns, expert): g [n of each expert] += the sum of its rows of dy [pairs, n]. */
__global__ void __launch_bounds__(THREADS) sum_groups(const uint32_t *first, const MoeReal *dy, size_t n, float *g)
{
  size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
  unsigned begin = first[blockIdx.y];
  unsigned end = first[blockIdx.y + 1];
  if (i >= n || begin == end) {
    return;
  }
  float sum = g[blockIdx.y * MOE_EXPERT_ELEMS + i];
  for (unsigned p = begin; p < end; p++) {
    sum += moe_get(dy[(size_t)p * n + i]);
  }
  g[blockIdx.y * MOE_EXPERT_ELEMS + i] = sum;
}

} // namespace

MoeStatus moe_cuda_group_pairs(const MoeFfnList *l, MoeQueue queue)
{
  MOE_TRY(MOE_LAUNCH(expand_rows, 1, THREADS, 0, queue, l->rows, l->n_rows, l->row_pair, l->pair_row));
  return MOE_LAUNCH(group_pairs, E + 1, THREADS, 0, queue, l->pairs, l->pair_row, (unsigned)l->n_pairs,
                    (unsigned)l->first_expert, l->first, l->group_pair, l->group_row, l->place);
}

MoeStatus moe_cuda_start_sums(const MoeFfnList *l, const MoeReal *residual, int32_t me, float *sum, MoeQueue queue)
{
  unsigned rows = (unsigned)l->n_rows;
  return rows == 0 ? MOE_OK : MOE_LAUNCH(start_sums, rows, THREADS, 0, queue, l->rows, residual, (unsigned)me, sum);
}

MoeStatus moe_cuda_sum_outputs_shared(const MoeFfnList *l, const float *y, const MoeReal *residual, int32_t me,
                                      const MoeHomes *homes, const float *shared_y, MoeReal *out, MoeQueue queue)
{
  Shared shared = {homes->place, shared_y};
  return l->n_rows == 0 ? MOE_OK
                        : MOE_LAUNCH(sum_outputs, (unsigned)l->n_rows, THREADS, 0, queue, l->rows, l->pairs,
                                     l->row_pair, l->place, y, residual, (unsigned)me, shared, out);
}

MoeStatus moe_cuda_sum_outputs(const MoeFfnList *l, const float *y, const MoeReal *residual, int32_t me, MoeReal *out,
                               MoeQueue queue)
{
  const MoeHomes none = {};
  return moe_cuda_sum_outputs_shared(l, y, residual, me, &none, NULL, out, queue);
}

MoeStatus moe_cuda_sum_grads_shared(const MoeFfnList *l, const float *d, const MoeHomes *homes, const float *shared_d,
                                    float *dh, MoeQueue queue)
{
  Shared shared = {homes->place, shared_d};
  return l->n_rows == 0
             ? MOE_OK
             : MOE_LAUNCH(sum_grads, (unsigned)l->n_rows, THREADS, 0, queue, l->row_pair, l->place, d, shared, dh);
}

MoeStatus moe_cuda_sum_grads(const MoeFfnList *l, const float *d, float *dh, MoeQueue queue)
{
  const MoeHomes none = {};
  return moe_cuda_sum_grads_shared(l, d, &none, NULL, dh, queue);
}

MoeStatus moe_cuda_gather_rows(const MoeFfnList *l, const MoeReal *rows, bool weighted, MoeReal *x, MoeQueue queue)
{
  const MoePair *pairs = weighted ? l->pairs : NULL;
  return l->n_pairs == 0 ? MOE_OK
                         : MOE_LAUNCH(gather_rows, (unsigned)l->n_pairs, THREADS, 0, queue, rows, pairs, l->group_pair,
                                      l->group_row, x);
}

MoeStatus moe_cuda_activate(const MoeFfnList *l, const MoeReal *gate_up, MoeReal *act, MoeQueue queue)
{
  return l->n_pairs == 0 ? MOE_OK : MOE_LAUNCH(activate, (unsigned)l->n_pairs, THREADS, 0, queue, gate_up, act);
}

MoeStatus moe_cuda_activate_back(const MoeFfnList *l, const float *d, MoeReal *gate_up, MoeReal *act, float *dw,
                                 MoeQueue queue)
{
  return l->n_pairs == 0 ? MOE_OK
                         : MOE_LAUNCH(activate_back, (unsigned)l->n_pairs, THREADS, 0, queue, l->pairs, l->group_pair,
                                      d, gate_up, act, dw);
}

MoeStatus moe_cuda_bias_weights(const MoeFfnList *l, const MoeReal *dx, const MoeReal *bias, float *dw, MoeQueue queue)
{
  unsigned blocks = (unsigned)((l->n_pairs + WARPS - 1) / WARPS);
  return l->n_pairs == 0 ? MOE_OK
                         : MOE_LAUNCH(bias_weights, blocks, THREADS, 0, queue, l->pairs, l->group_pair, l->n_pairs,
                                      (unsigned)l->first_expert, dx, bias, dw);
}

MoeStatus moe_cuda_group_bias_back(const MoeFfnList *l, const MoeReal *dy, size_t n, float *g, MoeQueue queue)
{
  dim3 grid((unsigned)((n + THREADS - 1) / THREADS), (unsigned)l->n_experts);
  return l->n_pairs == 0 ? MOE_OK : MOE_LAUNCH(sum_groups, grid, THREADS, 0, queue, l->first, dy, n, g);
}
