/* Relays; relay.c says what they do. Which rows of the list go to which rank of the node, and where they and their
   pairs lie in that message, is found once (plan_relay); packing and summing are then one warp per row. */
#include "moe_message.cuh"

namespace
{

/* Block `rank` of the node. plan.row and plan.pair [ranks, rows]: rows and pairs of that rank's message before this
   row; plan.row_pair [rows + 1]: where the row's pairs begin in the list. */
__global__ void __launch_bounds__(THREADS)
    plan_relay(MoeRelaySizes s, const MoeRowHead *rows, const MoePair *pairs, MoeRelayPlan plan)
{
  SHARED(uint16_t, owner, MOE_EXPERTS);
  SHARED(unsigned, part, WARPS);
  uint16_t rank = (uint16_t)(s.first + (int32_t)blockIdx.x);
  unsigned before = 0; /* pairs of the list */
  unsigned to_rows = 0;
  unsigned to_pairs = 0;
  read_owners(s.n_ffn, owner);
  __syncthreads();
  for (size_t at = 0; at < s.n_rows; at += THREADS) {
    size_t r = at + threadIdx.x;
    unsigned own = r < s.n_rows ? rows[r].pairs : 0;
    unsigned end = own;
    unsigned tile = block_scan<THREADS>(&end, part);
    size_t n = 0;
    unsigned goes = r < s.n_rows && moe_row_goes_to(owner, &rows[r], pairs + before + end - own, rank, &n);
    unsigned row_end = goes;
    unsigned pair_end = (unsigned)n;
    unsigned tile_rows = block_scan<THREADS>(&row_end, part);
    unsigned tile_pairs = block_scan<THREADS>(&pair_end, part);
    if (r < s.n_rows) {
      plan.row[blockIdx.x * s.n_rows + r] = goes ? to_rows + row_end - 1 : UINT32_MAX;
      plan.pair[blockIdx.x * s.n_rows + r] = to_pairs + pair_end - (unsigned)n;
      if (blockIdx.x == 0) {
        plan.row_pair[r] = before + end - own;
      }
    }
    before += tile;
    to_rows += tile_rows;
    to_pairs += tile_pairs;
  }
  if (threadIdx.x == 0) {
    plan.total[blockIdx.x].rows = to_rows;
    plan.total[blockIdx.x].pairs = to_pairs;
  }
}

/* Which of n runs row r lies in. */
__device__ __forceinline__ unsigned run_of(const uint32_t *run, unsigned n, size_t r)
{
  unsigned i = 0;
  while (i + 1 < n && run[i + 1] <= r) {
    i++;
  }
  return i;
}

/* Rows of the list, which lie in the messages `in` along `run`, to rank `to` of the node. lists: with their heads and
   pairs, and so they came. */
__global__ void __launch_bounds__(THREADS)
    pack_forward(MoeRelaySizes s, const MoeRowHead *rows, const MoePair *pairs, MoeRelayPlan plan, unsigned to,
                 const uint8_t *const *in, unsigned n_in, const uint32_t *run, bool lists, uint32_t stamp,
                 uint8_t *slot, int32_t *status)
{
  size_t row_bytes = lists ? sizeof(MoeRowHead) : 0;
  size_t pair_bytes = lists ? sizeof(MoePair) : 0;
  unsigned n = plan.total[to].rows;
  unsigned n_pairs = lists ? plan.total[to].pairs : 0;
  MoeRowHead *heads = (MoeRowHead *)(slot + sizeof(MoeMsgHead));
  MoePair *out = (MoePair *)(slot + sizeof(MoeMsgHead) + n * row_bytes);
  MoeReal *put = (MoeReal *)(slot + moe_msg_rows_at(n, row_bytes, n_pairs, pair_bytes));
  int64_t rank = s.first + (int64_t)to;
  if (blockIdx.x == 0) {
    write_head(slot, n, row_bytes, n_pairs, pair_bytes, stamp);
  }
  for (size_t r = first_row(); r < s.n_rows; r += row_step()) {
    uint32_t at = plan.row[to * s.n_rows + r];
    if (at == UINT32_MAX) {
      continue;
    }
    unsigned i = run_of(run, n_in, r);
    const MoeMsgHead *from = (const MoeMsgHead *)in[i];
    if (from->rows != run[i + 1] - run[i] || (!lists && from->pairs != 0)) {
      refuse(status);
      return;
    }
    copy_row(put + (size_t)at * H, rows_of(in[i], row_bytes, pair_bytes) + (r - run[i]) * H);
    if (lists && threadIdx.x % LANES == 0) {
      const MoePair *own = pairs + plan.row_pair[r];
      MoePair *pair = out + plan.pair[to * s.n_rows + r];
      uint16_t sent = 0;
      for (unsigned k = 0; k < rows[r].pairs; k++) {
        if (moe_part_of(MOE_EXPERTS, s.n_ffn, own[k].expert) == rank) {
          pair[sent++] = own[k];
        }
      }
      heads[at] = rows[r];
      heads[at].pairs = sent;
    }
  }
}

/* Row by row the sum of what the ranks of the node have of it, in rank order; dw NULL: without gradients of weights. */
__global__ void __launch_bounds__(THREADS)
    node_reduce(MoeRelaySizes s, const MoeRowHead *rows, const MoePair *pairs, MoeRelayPlan plan,
                const uint8_t *const *in, MoeReal *sums, float *dw, int32_t *status)
{
  size_t pair_bytes = dw != NULL ? sizeof(float) : 0;
  unsigned ranks = (unsigned)(s.last - s.first);
  for (unsigned i = 0; i < ranks; i++) {
    const MoeMsgHead *head = (const MoeMsgHead *)in[i];
    if (head->rows != plan.total[i].rows || head->pairs != (dw != NULL ? plan.total[i].pairs : 0)) {
      refuse(status);
      return;
    }
  }
  for (size_t r = first_row(); r < s.n_rows; r += row_step()) {
    for (int j = (int)(threadIdx.x % LANES); j < H; j += LANES) {
      float sum = 0.0f;
      bool found = false;
      for (unsigned i = 0; i < ranks; i++) {
        uint32_t at = plan.row[i * s.n_rows + r];
        if (at != UINT32_MAX) {
          float v = moe_get(rows_of(in[i], 0, pair_bytes)[(size_t)at * H + (size_t)j]);
          sum = found ? sum + v : v;
          found = true;
        }
      }
      sums[r * H + (size_t)j] = moe_put(sum);
    }
    for (unsigned i = 0; dw != NULL && threadIdx.x % LANES == 0 && i < ranks; i++) {
      const float *value = (const float *)(in[i] + sizeof(MoeMsgHead)) + plan.pair[i * s.n_rows + r];
      for (unsigned k = 0; k < rows[r].pairs; k++) {
        size_t pair = plan.row_pair[r] + k;
        if (moe_part_of(MOE_EXPERTS, s.n_ffn, pairs[pair].expert) == s.first + (int64_t)i) {
          dw[pair] = *value++;
        }
      }
    }
  }
}

} // namespace

MoeStatus moe_cuda_plan_relay(const MoeRelaySizes *s, const MoeRowHead *rows, const MoePair *pairs,
                              const MoeRelayPlan *plan, MoeQueue queue)
{
  return MOE_LAUNCH(plan_relay, (unsigned)(s->last - s->first), THREADS, 0, queue, *s, rows, pairs, *plan);
}

MoeStatus moe_cuda_pack_forward(const MoeRelaySizes *s, const MoeRowHead *rows, const MoePair *pairs,
                                const MoeRelayPlan *plan, int32_t peer, const uint8_t *const *in, size_t n_in,
                                const MoeRuns *runs, bool lists, uint32_t stamp, void *slot, int32_t *status,
                                MoeQueue queue)
{
  return MOE_LAUNCH(pack_forward, blocks_for(s->n_rows), THREADS, 0, queue, *s, rows, pairs, *plan,
                    (unsigned)(peer - s->first), in, (unsigned)n_in, runs->row, lists, stamp, (uint8_t *)slot, status);
}

MoeStatus moe_cuda_node_reduce(const MoeRelaySizes *s, const MoeRowHead *rows, const MoePair *pairs,
                               const MoeRelayPlan *plan, const uint8_t *const *in, MoeReal *sums, float *dw,
                               int32_t *status, MoeQueue queue)
{
  return MOE_LAUNCH(node_reduce, blocks_for(s->n_rows), THREADS, 0, queue, *s, rows, pairs, *plan, in, sums, dw,
                    status);
}
