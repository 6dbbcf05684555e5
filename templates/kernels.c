/* The table of kernels that the executor calls, and how large the buffers are that it hands them. */
#include "moe_parts.h"

static size_t positive(int32_t n)
{
  return n > 0 ? (size_t)n : 0;
}

/* Positions of the largest chunk. */
static size_t chunk_seq(const MoeDims *d)
{
  return positive((int32_t)moe_part_max(d->seq, d->chunks));
}

/* Rows that an FFN rank may get, and pairs, when every token of a micro-batch's chunk comes to it. */
static size_t ffn_rows(const MoeDims *d)
{
  return d->ffn_experts > 0 ? positive(d->mb_seqs) * chunk_seq(d) : 0;
}

static size_t ffn_pairs(const MoeDims *d)
{
  return ffn_rows(d) * moe_min(MOE_TOP_K, positive(d->ffn_experts));
}

static size_t att_saved_bytes(const MoeDims *d)
{
  MoeAttSaved s;
  const MoeAttHead shape = {.seq = (uint32_t)positive(d->seq),
                            .n_seqs = (uint32_t)positive(d->att_seqs),
                            .n_src = (uint32_t)positive(d->n_src),
                            .n_join = (uint32_t)positive(d->n_join),
                            .rows = (uint32_t)(positive(d->att_seqs) * chunk_seq(d))};
  return moe_att_saved_carve(NULL, &shape, &s);
}

static size_t att_work_bytes(const MoeDims *d)
{
  MoeAttWork w;
  return moe_max(moe_att_work_carve(NULL, positive(d->att_seqs) * positive(d->seq), &w), 64);
}

static size_t ffn_saved_bytes(const MoeDims *d)
{
  MoeFfnSaved s;
  MoeList relay;
  size_t list = d->relay ? moe_relay_carve(NULL, positive(d->mb_seqs) * positive(d->seq), &relay) : 0;
  return list + moe_ffn_saved_carve(NULL, ffn_rows(d), ffn_pairs(d), &s);
}

static size_t ffn_work_bytes(const MoeDims *d)
{
  MoeFfnWork w;
  size_t tokens = d->relay ? positive(d->mb_seqs) * positive(d->seq) : 0;
  size_t sums = moe_sum_work_carve(NULL, tokens, tokens * MOE_TOP_K, &w);
  return moe_max(moe_max(moe_ffn_work_carve(NULL, ffn_rows(d), ffn_pairs(d), &w), sums), 64);
}

/* Of the compute thread: each side's ops are run by ranks that have that side. */
static size_t scratch_bytes(const MoeDims *d)
{
  MoeAttScratch att;
  MoeHeadScratch head;
  MoeFfnScratch ffn;
  size_t senders = moe_max(moe_max(positive(d->n_src), positive(d->n_join)), positive(d->n_ffn) * positive(d->chunks));
  size_t tokens = positive(d->att_seqs) * positive(d->seq);
  size_t bytes = moe_ffn_scratch_carve(NULL, ffn_rows(d), &ffn);
  if (tokens > 0) {
    bytes = moe_max(bytes, moe_att_scratch_carve(NULL, tokens, positive(d->seq), senders, &att));
    bytes = moe_max(bytes, moe_head_scratch_carve(NULL, senders, &head));
  }
  return bytes;
}

/* Of the progress thread: node sums. */
static size_t comm_scratch_bytes(const MoeDims *d)
{
  MoeSource *source;
  return moe_source_scratch_carve(NULL, d->relay ? positive(d->n_ffn) : 0, &source);
}

static size_t msg_bytes(MoeEdge edge, int32_t seq, int32_t src_seqs, int32_t experts)
{
  size_t rows = positive(src_seqs) * positive(seq);
  size_t pairs = rows * moe_min(MOE_TOP_K, positive(experts));
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

const MoeKernels moe_kernels = {
    .att_saved_bytes = att_saved_bytes,
    .att_work_bytes = att_work_bytes,
    .ffn_saved_bytes = ffn_saved_bytes,
    .ffn_work_bytes = ffn_work_bytes,
    .scratch_bytes = scratch_bytes,
    .comm_scratch_bytes = comm_scratch_bytes,
    .msg_bytes = msg_bytes,
    .run =
        {
            [MOE_OP_EMBED_FWD] = moe_embed_fwd,
            [MOE_OP_ATT_FWD] = moe_att_fwd,
            [MOE_OP_ATT_AGAIN] = moe_att_again,
            [MOE_OP_FFN_FWD] = moe_ffn_fwd,
            [MOE_OP_JOIN_FWD] = moe_join_fwd,
            [MOE_OP_HEAD] = moe_head,
            [MOE_OP_JOIN_DGRAD] = moe_join_dgrad,
            [MOE_OP_FFN_DGRAD] = moe_ffn_dgrad,
            [MOE_OP_ATT_DGRAD] = moe_att_dgrad,
            [MOE_OP_FFN_WGRAD] = moe_ffn_wgrad,
            [MOE_OP_ATT_WGRAD] = moe_att_wgrad,
            [MOE_OP_EMBED_WGRAD] = moe_embed_wgrad,
            [MOE_OP_RELAY] = moe_relay,
            [MOE_OP_NODE_REDUCE] = moe_node_reduce,
        },
    .pack =
        {
            [MOE_EDGE_DISPATCH] = moe_pack_dispatch,
            [MOE_EDGE_DISPATCH_AGAIN] = moe_pack_dispatch_again,
            [MOE_EDGE_FORWARD_AGAIN] = moe_pack_gather_b, /* rows along the same list */
            [MOE_EDGE_FORWARD] = moe_pack_forward,
            [MOE_EDGE_GATHER] = moe_pack_gather,
            [MOE_EDGE_COMBINE] = moe_pack_combine,
            [MOE_EDGE_COMBINE_B] = moe_pack_combine_b,
            [MOE_EDGE_GATHER_B] = moe_pack_gather_b,
            [MOE_EDGE_FORWARD_B] = moe_pack_forward_b,
            [MOE_EDGE_DISPATCH_B] = moe_pack_dispatch_b,
            [MOE_EDGE_PIPE] = moe_pack_pipe,
            [MOE_EDGE_PIPE_B] = moe_pack_pipe,
        },
    .add = moe_add,
    .sumsq = moe_sumsq,
    .adamw = moe_adamw,
    .to_weights = moe_to_weights,
};
