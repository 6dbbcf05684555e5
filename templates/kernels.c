/* The table of kernels that the executor calls. */
#include "moe_parts.h"
#include "moe_sizes.h"

/* Of the compute thread: each side's ops are run by ranks that have that side. */
static size_t scratch_bytes(const MoeDims *d)
{
  MoeAttScratch att;
  MoeHeadScratch head;
  MoeFfnScratch ffn;
  size_t senders = moe_max(moe_max(moe_positive(d->n_src), moe_positive(d->n_join)),
                           moe_positive(d->n_ffn) * moe_positive(d->chunks));
  size_t tokens = moe_positive(d->att_seqs) * moe_positive(d->seq);
  size_t bytes = moe_ffn_scratch_carve(NULL, moe_ffn_rows(d), &ffn);
  if (tokens > 0) {
    bytes = moe_max(bytes, moe_att_scratch_carve(NULL, tokens, moe_positive(d->seq), senders, &att));
    bytes = moe_max(bytes, moe_head_scratch_carve(NULL, senders, &head));
  }
  return bytes;
}

/* Of the progress thread: node sums. */
static size_t comm_scratch_bytes(const MoeDims *d)
{
  MoeSource *source;
  return moe_source_scratch_carve(NULL, d->relay ? moe_positive(d->n_ffn) : 0, &source);
}

const MoeKernels moe_kernels = {
    .weight_bytes = sizeof(float),
    .att_saved_bytes = moe_att_saved_bytes,
    .att_work_bytes = moe_att_work_bytes,
    .ffn_saved_bytes = moe_ffn_saved_bytes,
    .ffn_work_bytes = moe_ffn_work_bytes,
    .scratch_bytes = scratch_bytes,
    .comm_scratch_bytes = comm_scratch_bytes,
    .msg_bytes = moe_msg_bytes,
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
