/* Lists of rows on FFN ranks and relays, and the messages along them; messages.c and relay.c say what they hold. A list
   is its messages one after the other; what goes back to one sender, or on to one receiver, is a run of its rows. */
#include "moe_message.cuh"

namespace
{

/* One block. runs [n + 1]: where each message's rows and pairs begin; what the heads say must add up to what there is
   room for. */
__global__ void __launch_bounds__(THREADS)
    add_heads(const uint8_t *const *in, unsigned n, size_t n_rows, size_t n_pairs, MoeRuns runs, int32_t *status)
{
  SHARED(unsigned, part, WARPS);
  unsigned rows = 0;
  unsigned pairs = 0;
  for (unsigned at = 0; at < n; at += THREADS) {
    unsigned i = at + threadIdx.x;
    const MoeMsgHead *head = (const MoeMsgHead *)in[i < n ? i : 0];
    unsigned own[2] = {i < n ? head->rows : 0, i < n ? head->pairs : 0};
    unsigned end[2] = {own[0], own[1]};
    unsigned all_rows = block_scan<THREADS>(&end[0], part);
    unsigned all_pairs = block_scan<THREADS>(&end[1], part);
    if (i < n) {
      runs.row[i] = rows + end[0] - own[0];
      runs.pair[i] = pairs + end[1] - own[1];
    }
    rows += all_rows;
    pairs += all_pairs;
  }
  if (threadIdx.x == 0) {
    bool right = rows == n_rows && pairs == n_pairs;
    runs.row[n] = right ? rows : 0; /* with 0 nothing is copied */
    runs.pair[n] = pairs;
    if (!right) {
      refuse(status);
    }
  }
}

__device__ __forceinline__ bool row_valid(const MoeTakeSizes &s, const MoeRowHead *rows, size_t r)
{
  uint32_t token = rows[r].token;
  return token < s.mb_tokens && (r == 0 || token > rows[r - 1].token) && rows[r].pairs <= K && rows[r].home < s.n_ffn &&
         (s.n_chunks == 1 || moe_part_of((int64_t)s.seq, s.n_chunks, token % (int64_t)s.seq) == s.chunk);
}

/* Block (x, message): checks its part of the message's list and copies it. */
__global__ void __launch_bounds__(THREADS)
    copy_lists(MoeTakeSizes s, const uint8_t *const *in, unsigned n_in, MoeRuns runs, MoeRowHead *rows, MoePair *pairs,
               uint16_t *src, MoeReal *a, int32_t *status)
{
  unsigned from = blockIdx.y;
  const MoeMsgHead *head = (const MoeMsgHead *)in[from];
  const MoeRowHead *in_rows = (const MoeRowHead *)(head + 1);
  const MoePair *in_pairs = (const MoePair *)(in_rows + head->rows);
  size_t row = runs.row[from];
  size_t pair = runs.pair[from];
  bool wrong = false;
  if (runs.row[n_in] == 0) {
    return;
  }
  const MoeReal *in_a = rows_of(in[from], sizeof *in_rows, sizeof *in_pairs);
  for (size_t r = first_row(); r < head->rows; r += row_step()) {
    if (threadIdx.x % LANES == 0) {
      wrong |= !row_valid(s, in_rows, r);
      rows[row + r] = in_rows[r];
      src[row + r] = (uint16_t)from;
    }
    if (a != NULL) {
      copy_row(a + (row + r) * H, in_a + r * H);
    }
  }
  for (size_t p = blockIdx.x * THREADS + threadIdx.x; p < head->pairs; p += (size_t)gridDim.x * THREADS) {
    wrong |= in_pairs[p].expert < (uint32_t)s.first_expert || in_pairs[p].expert >= (uint32_t)s.end_expert;
    pairs[pair + p] = in_pairs[p];
  }
  if (wrong) {
    refuse(status);
  }
}

/* Block `message`: whether its rows have as many pairs as it says. */
__global__ void __launch_bounds__(THREADS) count_pairs(const uint8_t *const *in, int32_t *status)
{
  SHARED(unsigned, part, WARPS);
  const MoeMsgHead *head = (const MoeMsgHead *)in[blockIdx.x];
  const MoeRowHead *rows = (const MoeRowHead *)(head + 1);
  unsigned n = 0;
  for (size_t r = threadIdx.x; r < head->rows; r += THREADS) {
    n += rows[r].pairs;
  }
  unsigned all = block_scan<THREADS>(&n, part);
  if (threadIdx.x == 0 && all != head->pairs) {
    refuse(status);
  }
}

/* Block i of n + 1: where run i begins: as many rows, and their pairs, are of an earlier run. src NULL: of receivers,
   whose tokens ascend; else of senders. */
__global__ void __launch_bounds__(THREADS)
    find_runs(const MoeRowHead *rows, const uint16_t *src, size_t n, int64_t mb_seqs, size_t seq, MoeRuns runs)
{
  SHARED(unsigned, part, WARPS);
  unsigned first = blockIdx.x;
  int64_t token = src == NULL ? moe_part_begin(mb_seqs, (int64_t)gridDim.x - 1, first) * (int64_t)seq : 0;
  unsigned row = 0;
  unsigned pair = 0;
  for (size_t r = threadIdx.x; r < n; r += THREADS) {
    bool before = src == NULL ? rows[r].token < token : src[r] < first;
    row += before;
    pair += before ? rows[r].pairs : 0;
  }
  row = block_scan<THREADS>(&row, part);
  pair = block_scan<THREADS>(&pair, part);
  if (threadIdx.x == 0) {
    runs.row[first] = row;
    runs.pair[first] = pair;
  }
}

/* Block (x, message): rows without heads to where its run is. */
__global__ void __launch_bounds__(THREADS)
    take_rows(const uint8_t *const *in, const uint32_t *run, MoeReal *to, int32_t *status)
{
  const MoeMsgHead *head = (const MoeMsgHead *)in[blockIdx.y];
  size_t row = run[blockIdx.y];
  if (head->rows != run[blockIdx.y + 1] - row || head->pairs != 0) {
    refuse(status);
    return;
  }
  const MoeReal *rows = rows_of(in[blockIdx.y], 0, 0);
  for (size_t r = first_row(); r < head->rows; r += row_step()) {
    copy_row(to + (row + r) * H, rows + r * H);
  }
}

/* Run `peer` of a list. heads NULL: no tokens; dw NULL: no pairs. */
__global__ void __launch_bounds__(THREADS) pack_run(MoeRuns runs, unsigned peer, const MoeRowHead *heads,
                                                    const float *dw, const MoeReal *rows, uint32_t stamp, uint8_t *slot)
{
  size_t row = runs.row[peer];
  size_t pair = runs.pair[peer];
  unsigned n = (unsigned)(runs.row[peer + 1] - row);
  unsigned n_pairs = dw != NULL ? (unsigned)(runs.pair[peer + 1] - pair) : 0;
  size_t row_bytes = heads != NULL ? sizeof(uint32_t) : 0;
  size_t pair_bytes = dw != NULL ? sizeof(float) : 0;
  uint32_t *tokens = (uint32_t *)(slot + sizeof(MoeMsgHead));
  float *values = (float *)(slot + sizeof(MoeMsgHead) + n * row_bytes);
  MoeReal *to = (MoeReal *)(slot + moe_msg_rows_at(n, row_bytes, n_pairs, pair_bytes));
  if (blockIdx.x == 0) {
    write_head(slot, n, row_bytes, n_pairs, pair_bytes, stamp);
  }
  for (size_t p = blockIdx.x * THREADS + threadIdx.x; p < n_pairs; p += (size_t)gridDim.x * THREADS) {
    values[p] = dw[pair + p];
  }
  for (size_t r = first_row(); r < n; r += row_step()) {
    if (heads != NULL && threadIdx.x % LANES == 0) {
      tokens[r] = heads[row + r].token;
    }
    copy_row(to + r * H, rows + (row + r) * H);
  }
}

/* n rows without heads. */
__global__ void __launch_bounds__(THREADS) pack_rows(const MoeReal *rows, unsigned n, uint32_t stamp, uint8_t *slot)
{
  if (blockIdx.x == 0) {
    write_head(slot, n, 0, 0, 0, stamp);
  }
  for (size_t r = first_row(); r < n; r += row_step()) {
    copy_row((MoeReal *)(slot + moe_msg_rows_at(n, 0, 0, 0)) + r * H, rows + r * H);
  }
}

__global__ void __launch_bounds__(THREADS) take_pipe(const uint8_t *in, unsigned n, MoeReal *x, int32_t *status)
{
  const MoeMsgHead *head = (const MoeMsgHead *)in;
  if (head->rows != n || head->pairs != 0) {
    refuse(status);
    return;
  }
  for (size_t r = first_row(); r < n; r += row_step()) {
    copy_row(x + r * H, rows_of(in, 0, 0) + r * H);
  }
}

} // namespace

MoeStatus moe_cuda_take_list(const MoeTakeSizes *s, const uint8_t *const *in, size_t n_in, const MoeTaken *to,
                             int32_t *status, MoeQueue queue)
{
  dim3 grid(blocks_for(s->n_rows), (unsigned)n_in);
  if (n_in == 0) {
    return MOE_OK;
  }
  MOE_TRY(MOE_LAUNCH(add_heads, 1, THREADS, 0, queue, in, (unsigned)n_in, s->n_rows, s->n_pairs, to->runs, status));
  MOE_TRY(MOE_LAUNCH(copy_lists, grid, THREADS, 0, queue, *s, in, (unsigned)n_in, to->runs, to->rows, to->pairs,
                     to->src, to->a, status));
  return MOE_LAUNCH(count_pairs, (unsigned)n_in, THREADS, 0, queue, in, status);
}

MoeStatus moe_cuda_src_runs(const MoeRowHead *rows, const uint16_t *src, size_t n_rows, int32_t n_src,
                            const MoeRuns *runs, MoeQueue queue)
{
  return MOE_LAUNCH(find_runs, (unsigned)n_src + 1, THREADS, 0, queue, rows, src, n_rows, (int64_t)0, (size_t)0, *runs);
}

MoeStatus moe_cuda_dst_runs(const MoeRowHead *rows, size_t n_rows, int64_t mb_seqs, size_t seq, int32_t n_dst,
                            const MoeRuns *runs, MoeQueue queue)
{
  return MOE_LAUNCH(find_runs, (unsigned)n_dst + 1, THREADS, 0, queue, rows, (const uint16_t *)NULL, n_rows, mb_seqs,
                    seq, *runs);
}

MoeStatus moe_cuda_take_rows(const uint8_t *const *in, size_t n_in, const MoeRuns *runs, size_t n_rows, MoeReal *to,
                             int32_t *status, MoeQueue queue)
{
  dim3 grid(blocks_for(n_rows), (unsigned)n_in);
  return n_in == 0 ? MOE_OK : MOE_LAUNCH(take_rows, grid, THREADS, 0, queue, in, runs->row, to, status);
}

MoeStatus moe_cuda_pack_run(const MoeRuns *runs, int32_t peer, const MoeRowHead *heads, const float *dw,
                            const MoeReal *rows, size_t most_rows, uint32_t stamp, void *slot, MoeQueue queue)
{
  return MOE_LAUNCH(pack_run, blocks_for(most_rows), THREADS, 0, queue, *runs, (unsigned)peer, heads, dw, rows, stamp,
                    (uint8_t *)slot);
}

MoeStatus moe_cuda_pack_rows(const MoeReal *rows, size_t n, uint32_t stamp, void *slot, MoeQueue queue)
{
  return MOE_LAUNCH(pack_rows, blocks_for(n), THREADS, 0, queue, rows, (unsigned)n, stamp, (uint8_t *)slot);
}

MoeStatus moe_cuda_take_pipe(const uint8_t *in, size_t n, MoeReal *x, int32_t *status, MoeQueue queue)
{
  return MOE_LAUNCH(take_pipe, blocks_for(n), THREADS, 0, queue, in, (unsigned)n, x, status);
}
