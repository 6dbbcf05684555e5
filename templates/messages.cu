/* Messages between attention and FFN ranks; messages.c says what they hold, and these are the same bytes. Where a
   token's row and pairs lie in each message follows from all tokens before it, so that one block per message first goes
   through the tokens in order (plan_routes); packing, and reading the gradients that come back, are then one warp per
   token. Sums over senders run in rank order for each token. */
#include "moe_message.cuh"

namespace
{

__device__ __forceinline__ uint32_t global_token(const MoeRouteSizes &r, size_t t)
{
  return (uint32_t)(r.seq0 * r.seq + t);
}

/* Tokens of a message, in its order: of each sequence the positions of the chunk. */
__device__ __forceinline__ size_t chunk_token(const MoeRouteSizes &r, size_t i)
{
  size_t begin = (size_t)moe_part_begin((int64_t)r.seq, r.n_chunks, r.chunk);
  size_t size = (size_t)moe_part_size((int64_t)r.seq, r.n_chunks, r.chunk);
  return i / size * r.seq + begin + i % size;
}

__device__ __forceinline__ size_t chunk_tokens(const MoeRouteSizes &r)
{
  return r.n_seqs * (size_t)moe_part_size((int64_t)r.seq, r.n_chunks, r.chunk);
}

/* Where one token goes. */
struct Way {
  MoeRoute route;
  MoeTarget target[MOE_TOP_K];
  size_t n;
};

__device__ __forceinline__ void find_way(const MoeRouteSizes &r, const uint16_t *owner, const uint16_t *choice,
                                         const uint8_t *dropped, size_t t, Way *way)
{
  uint32_t token = global_token(r, t);
  moe_route(owner, choice + t * K, dropped + t * K, token, &way->route);
  way->n = moe_targets(r.node_first, &way->route, token, way->target);
}

/* Which of the token's targets is `rank`: way->n if none. */
__device__ __forceinline__ size_t target_at(const Way *way, unsigned rank)
{
  size_t i = 0;
  while (i < way->n && way->target[i].rank != rank) {
    i++;
  }
  return i;
}

__device__ __forceinline__ unsigned pairs_for(const MoeTarget *target, const uint16_t *owner, const uint16_t *choice,
                                              const uint8_t *dropped, size_t t)
{
  unsigned n = 0;
  for (size_t k = t * K; k < (t + 1) * K; k++) {
    n += !dropped[k] && moe_in_target(target, owner[choice[k]]);
  }
  return n;
}

/* Block `rank`: the message to that rank. plan.row and plan.pair [n_ffn, tokens of the chunk]: rows and pairs in it
   before this token's; total [n_ffn]. */
__global__ void __launch_bounds__(THREADS)
    plan_routes(MoeRouteSizes r, const uint16_t *choice, const uint8_t *dropped, MoeRoutePlan plan)
{
  SHARED(uint16_t, owner, MOE_EXPERTS);
  SHARED(unsigned, part, WARPS);
  size_t n = chunk_tokens(r);
  unsigned rows = 0;
  unsigned pairs = 0;
  read_owners(r.n_ffn, owner);
  __syncthreads();
  for (size_t at = 0; at < n; at += THREADS) {
    size_t i = at + threadIdx.x;
    unsigned own_row = 0;
    unsigned own_pairs = 0;
    if (i < n) {
      size_t t = chunk_token(r, i);
      Way way;
      find_way(r, owner, choice, dropped, t, &way);
      size_t to = target_at(&way, blockIdx.x);
      if (to < way.n) {
        own_row = 1;
        own_pairs = pairs_for(&way.target[to], owner, choice, dropped, t);
      }
    }
    unsigned row_end = own_row;
    unsigned pair_end = own_pairs;
    unsigned tile_rows = block_scan<THREADS>(&row_end, part);
    unsigned tile_pairs = block_scan<THREADS>(&pair_end, part);
    if (i < n) {
      plan.row[blockIdx.x * n + i] = rows + row_end - own_row;
      plan.pair[blockIdx.x * n + i] = pairs + pair_end - own_pairs;
    }
    rows += tile_rows;
    pairs += tile_pairs;
  }
  if (threadIdx.x == 0) {
    plan.total[blockIdx.x].rows = rows;
    plan.total[blockIdx.x].pairs = pairs;
  }
}

/* weight NULL: the second time, with rows alone. */
__global__ void __launch_bounds__(THREADS)
    pack_dispatch(MoeRouteSizes r, const uint16_t *choice, const uint8_t *dropped, const float *weight,
                  const MoeReal *a, MoeRoutePlan plan, unsigned peer, uint32_t stamp, uint8_t *slot)
{
  SHARED(uint16_t, owner, MOE_EXPERTS);
  bool again = weight == NULL;
  unsigned n_rows = plan.total[peer].rows;
  unsigned n_pairs = again ? 0 : plan.total[peer].pairs;
  size_t row_bytes = again ? 0 : sizeof(MoeRowHead);
  size_t pair_bytes = again ? 0 : sizeof(MoePair);
  read_owners(r.n_ffn, owner);
  if (blockIdx.x == 0) {
    write_head(slot, n_rows, row_bytes, n_pairs, pair_bytes, stamp);
  }
  __syncthreads();
  size_t n = chunk_tokens(r);
  size_t i = (size_t)blockIdx.x * WARPS + threadIdx.x / LANES;
  if (i >= n) {
    return;
  }
  size_t t = chunk_token(r, i);
  Way way;
  find_way(r, owner, choice, dropped, t, &way);
  size_t to = target_at(&way, peer);
  if (to == way.n) {
    return;
  }
  MoeRowHead *heads = (MoeRowHead *)(slot + sizeof(MoeMsgHead));
  MoePair *pairs = (MoePair *)(heads + n_rows);
  MoeReal *rows = (MoeReal *)(slot + moe_msg_rows_at(n_rows, row_bytes, n_pairs, pair_bytes));
  size_t row = plan.row[peer * n + i];
  copy_row(rows + row * H, a + t * H);
  if (!again && threadIdx.x % LANES == 0) {
    MoePair *pair = pairs + plan.pair[peer * n + i];
    unsigned first = 0;
    for (size_t k = t * K; k < (t + 1) * K; k++) {
      if (!dropped[k] && moe_in_target(&way.target[to], owner[choice[k]])) {
        pair[first].expert = choice[k];
        pair[first++].weight = weight[k];
      }
    }
    heads[row].token = global_token(r, t);
    heads[row].pairs = (uint16_t)first;
    heads[row].home = way.route.home;
  }
}

/* The rows and pair values of DISPATCH_B of one chunk: in[rank] is the message of FFN rank `rank`. */
__global__ void __launch_bounds__(THREADS)
    take_dispatch_b(MoeRouteSizes r, const uint16_t *choice, const uint8_t *dropped, MoeRoutePlan plan,
                    const uint8_t *const *in, float *da, float *dw, int32_t *status)
{
  SHARED(uint16_t, owner, MOE_EXPERTS);
  read_owners(r.n_ffn, owner);
  __syncthreads();
  size_t n = chunk_tokens(r);
  size_t i = (size_t)blockIdx.x * WARPS + threadIdx.x / LANES;
  int lane = (int)(threadIdx.x % LANES);
  if (i >= n) {
    return;
  }
  size_t t = chunk_token(r, i);
  Way way;
  find_way(r, owner, choice, dropped, t, &way);
  for (int k = lane; k < K; k += LANES) {
    dw[t * K + k] = 0.0f;
  }
  __syncwarp();
  for (size_t to = 0; to < way.n; to++) {
    unsigned rank = way.target[to].rank;
    const MoeMsgHead *head = (const MoeMsgHead *)in[rank];
    const float *values = (const float *)(head + 1);
    const MoeReal *rows = (const MoeReal *)(in[rank] + moe_msg_rows_at(head->rows, 0, head->pairs, sizeof(float)));
    if (head->rows != plan.total[rank].rows || head->pairs != plan.total[rank].pairs) {
      if (lane == 0) {
        atomicMin(status, (int32_t)MOE_EPROTO);
      }
      return;
    }
    const MoeReal *row = rows + (size_t)plan.row[rank * n + i] * H;
    for (int j = lane; j < H; j += LANES) {
      float x = moe_get(row[j]);
      da[t * H + j] = to == 0 ? x : da[t * H + j] + x;
    }
    size_t pair = plan.pair[rank * n + i];
    for (int k = 0; k < K && lane == 0; k++) {
      if (!dropped[t * K + k] && moe_in_target(&way.target[to], owner[choice[t * K + k]])) {
        dw[t * K + k] = values[pair++];
      }
    }
  }
}

/* Block (x, sender): where each of its rows goes. where [n_in, n]: row of the token in the sender's message, plus one;
   0: none. Lists must ascend. */
__global__ void __launch_bounds__(THREADS)
    find_rows(const uint8_t *const *in, uint32_t first, size_t n, uint32_t *where, int32_t *status)
{
  const MoeMsgHead *head = (const MoeMsgHead *)in[blockIdx.y];
  const uint32_t *token = (const uint32_t *)(head + 1);
  bool wrong = head->rows > n || head->pairs != 0;
  for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; !wrong && i < head->rows;
       i += (size_t)gridDim.x * THREADS) {
    if (token[i] < first || token[i] - first >= n || (i > 0 && token[i] <= token[i - 1])) {
      wrong = true;
    } else {
      where[blockIdx.y * n + (token[i] - first)] = (uint32_t)i + 1;
    }
  }
  if (wrong) {
    atomicMin(status, (int32_t)MOE_EPROTO);
  }
}

/* One warp per token: x = the sum of its rows, senders in rank order. */
__global__ void __launch_bounds__(THREADS)
    sum_rows(const uint8_t *const *in, unsigned n_in, size_t n, const uint32_t *where, MoeReal *x, int32_t *status)
{
  size_t t = (size_t)blockIdx.x * WARPS + threadIdx.x / LANES;
  if (t >= n) {
    return;
  }
  for (int j = (int)(threadIdx.x % LANES); j < H; j += LANES) {
    float sum = 0.0f;
    bool found = false;
    for (unsigned i = 0; i < n_in; i++) {
      unsigned row = where[i * n + t];
      if (row > 0) {
        const MoeMsgHead *head = (const MoeMsgHead *)in[i];
        const MoeReal *rows = (const MoeReal *)(in[i] + moe_msg_rows_at(head->rows, sizeof(uint32_t), 0, 0));
        float v = moe_get(rows[(size_t)(row - 1) * H + j]);
        sum = found ? sum + v : v;
        found = true;
      }
    }
    x[t * H + j] = moe_put(sum);
    if (!found) {
      atomicMin(status, (int32_t)MOE_EPROTO);
    }
  }
}

/* Block (x, sender): its list, relative to the first token; and the message that goes back along it later. */
__global__ void __launch_bounds__(THREADS) keep_senders(const uint8_t *const *in, uint32_t first, size_t stride,
                                                        uint32_t *rows, uint32_t *token, int32_t *status)
{
  const MoeMsgHead *head = (const MoeMsgHead *)in[blockIdx.y];
  const uint32_t *sent = (const uint32_t *)(head + 1);
  if (head->rows > stride) { /* tokens of another chunk */
    atomicMin(status, (int32_t)MOE_EPROTO);
    return;
  }
  for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < head->rows; i += (size_t)gridDim.x * THREADS) {
    token[blockIdx.y * stride + i] = sent[i] - first;
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    rows[blockIdx.y] = head->rows;
  }
}

/* COMBINE_B: gradient rows along a kept list. One warp per row; the grid is as large as the list can be. */
__global__ void __launch_bounds__(THREADS)
    pack_combine_b(const uint32_t *n_rows, const uint32_t *token, const MoeReal *dx, uint32_t stamp, uint8_t *slot)
{
  unsigned n = *n_rows;
  if (blockIdx.x == 0) {
    write_head(slot, n, 0, 0, 0, stamp);
  }
  size_t row = (size_t)blockIdx.x * WARPS + threadIdx.x / LANES;
  if (row < n) {
    MoeReal *rows = (MoeReal *)(slot + moe_msg_rows_at(n, 0, 0, 0));
    copy_row(rows + row * H, dx + (size_t)token[row] * H);
  }
}

size_t tokens_of(const MoeRouteSizes *r)
{
  return r->n_seqs * (size_t)moe_part_size((int64_t)r->seq, r->n_chunks, r->chunk);
}

} // namespace

MoeStatus moe_cuda_plan_routes(const MoeRouteSizes *r, const uint16_t *choice, const uint8_t *dropped,
                               const MoeRoutePlan *plan, MoeQueue queue)
{
  return MOE_LAUNCH(plan_routes, (unsigned)r->n_ffn, THREADS, 0, queue, *r, choice, dropped, *plan);
}

MoeStatus moe_cuda_pack_dispatch(const MoeRouteSizes *r, const uint16_t *choice, const uint8_t *dropped,
                                 const float *weight, const MoeReal *a, const MoeRoutePlan *plan, int32_t peer,
                                 uint32_t stamp, void *slot, MoeQueue queue)
{
  unsigned blocks = (unsigned)moe_max(warps_for(tokens_of(r)), 1); /* a message without rows has a head */
  return MOE_LAUNCH(pack_dispatch, blocks, THREADS, 0, queue, *r, choice, dropped, weight, a, *plan, (unsigned)peer,
                    stamp, (uint8_t *)slot);
}

MoeStatus moe_cuda_pack_dispatch_again(const MoeRouteSizes *r, const uint16_t *choice, const uint8_t *dropped,
                                       const MoeReal *a, const MoeRoutePlan *plan, int32_t peer, uint32_t stamp,
                                       void *slot, MoeQueue queue)
{
  return moe_cuda_pack_dispatch(r, choice, dropped, NULL, a, plan, peer, stamp, slot, queue);
}

MoeStatus moe_cuda_take_dispatch_b(const MoeRouteSizes *r, const uint16_t *choice, const uint8_t *dropped,
                                   const MoeRoutePlan *plan, const uint8_t *const *in, float *da, float *dw,
                                   int32_t *status, MoeQueue queue)
{
  unsigned blocks = warps_for(tokens_of(r));
  return blocks == 0
             ? MOE_OK
             : MOE_LAUNCH(take_dispatch_b, blocks, THREADS, 0, queue, *r, choice, dropped, *plan, in, da, dw, status);
}

MoeStatus moe_cuda_take_combine(const uint8_t *const *in, size_t n_in, uint32_t first, size_t n, MoeReal *x,
                                uint32_t *rows, uint32_t *token, size_t stride, uint32_t *where, int32_t *status,
                                MoeQueue queue)
{
  dim3 grid((unsigned)moe_max((n + THREADS - 1) / THREADS, 1), (unsigned)n_in);
  if (n_in == 0) {
    return MOE_OK;
  }
  MOE_TRY(moe_clear(where, n_in * n * sizeof *where, queue));
  MOE_TRY(MOE_LAUNCH(find_rows, grid, THREADS, 0, queue, in, first, n, where, status));
  if (n > 0) {
    MOE_TRY(MOE_LAUNCH(sum_rows, warps_for(n), THREADS, 0, queue, in, (unsigned)n_in, n, where, x, status));
  }
  return rows == NULL ? MOE_OK
                      : MOE_LAUNCH(keep_senders, grid, THREADS, 0, queue, in, first, stride, rows, token, status);
}

MoeStatus moe_cuda_pack_combine_b(const uint32_t *rows, const uint32_t *token, size_t stride, const MoeReal *dx,
                                  uint32_t stamp, void *slot, MoeQueue queue)
{
  unsigned blocks = (unsigned)moe_max(warps_for(stride), 1);
  return MOE_LAUNCH(pack_combine_b, blocks, THREADS, 0, queue, rows, token, dx, stamp, (uint8_t *)slot);
}
