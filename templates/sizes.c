/* How large slots and messages are, wherever kernels run. */
#include "moe_sizes.h"

/* Positions of the largest chunk. */
static size_t chunk_seq(const MoeDims *d)
{
  return moe_positive((int32_t)moe_part_max(d->seq, d->chunks));
}

size_t moe_ffn_rows(const MoeDims *d)
{
  return d->ffn_experts > 0 ? moe_positive(d->mb_seqs) * chunk_seq(d) : 0;
}

size_t moe_ffn_pairs(const MoeDims *d)
{
  return moe_ffn_rows(d) * moe_min(MOE_TOP_K, moe_positive(d->ffn_experts));
}

size_t moe_att_saved_bytes(const MoeDims *d)
{
  MoeAttSaved s;
  const MoeAttHead shape = {.seq = (uint32_t)moe_positive(d->seq),
                            .n_seqs = (uint32_t)moe_positive(d->att_seqs),
                            .n_src = (uint32_t)moe_positive(d->n_src),
                            .n_join = (uint32_t)moe_positive(d->n_join),
                            .rows = (uint32_t)(moe_positive(d->att_seqs) * chunk_seq(d))};
  return moe_att_saved_carve(NULL, &shape, &s);
}

size_t moe_att_work_bytes(const MoeDims *d)
{
  MoeAttWork w;
  return moe_max(moe_att_work_carve(NULL, moe_positive(d->att_seqs) * moe_positive(d->seq), &w), 64);
}

size_t moe_ffn_saved_bytes(const MoeDims *d)
{
  MoeFfnSaved s;
  MoeList relay;
  size_t list = d->relay ? moe_relay_carve(NULL, moe_positive(d->mb_seqs) * moe_positive(d->seq), &relay) : 0;
  return list + moe_ffn_saved_carve(NULL, moe_ffn_rows(d), moe_ffn_pairs(d), &s);
}

size_t moe_ffn_work_bytes(const MoeDims *d)
{
  MoeFfnWork w;
  size_t tokens = d->relay ? moe_positive(d->mb_seqs) * moe_positive(d->seq) : 0;
  size_t sums = moe_sum_work_carve(NULL, tokens, tokens * MOE_TOP_K, &w);
  return moe_max(moe_max(moe_ffn_work_carve(NULL, moe_ffn_rows(d), moe_ffn_pairs(d), &w), sums), 64);
}

size_t moe_msg_bytes(MoeEdge edge, int32_t seq, int32_t src_seqs, int32_t experts)
{
  size_t rows = moe_positive(src_seqs) * moe_positive(seq);
  size_t pairs = rows * moe_min(MOE_TOP_K, moe_positive(experts));
  switch (edge) {
  case MOE_EDGE_DISPATCH:
  case MOE_EDGE_FORWARD:
    return moe_align64(moe_msg_size(rows, MOE_LIST_HEAD, pairs, MOE_LIST_PAIR));
  case MOE_EDGE_DISPATCH_B:
  case MOE_EDGE_FORWARD_B:
    return moe_align64(moe_msg_size(rows, MOE_NO_HEAD, pairs, MOE_GRAD_PAIR));
  case MOE_EDGE_COMBINE:
    return moe_align64(moe_msg_size(rows, MOE_TOKEN_HEAD, 0, 0));
  case MOE_EDGE_DISPATCH_AGAIN:
  case MOE_EDGE_FORWARD_AGAIN:
  case MOE_EDGE_COMBINE_B:
  case MOE_EDGE_GATHER:
  case MOE_EDGE_GATHER_B:
  case MOE_EDGE_PIPE:
  case MOE_EDGE_PIPE_B:
    return moe_align64(moe_msg_size(rows, MOE_NO_HEAD, 0, 0));
  default:
    return 0; /* not a message of kernels */
  }
}
