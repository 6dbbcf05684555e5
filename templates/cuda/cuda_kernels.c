/* The table of kernels that the executor calls, on a device; kernels.c is that of the host. */
#include "cuda_ops.h"
#include "moe_sizes.h"

static size_t most_senders(const MoeDims *d)
{
  size_t ffn = moe_positive(d->n_ffn) * moe_positive(d->chunks);
  return moe_max(moe_max(moe_positive(d->n_src), moe_positive(d->n_join)), ffn);
}

static size_t scratch_bytes(const MoeDims *d)
{
  CudaAttScratch att;
  CudaHeadScratch head;
  CudaFfnScratch ffn;
  size_t seq = moe_positive(d->seq);
  size_t n_seqs = moe_positive(d->att_seqs);
  size_t senders = most_senders(d);
  size_t bytes = cuda_ffn_scratch(NULL, moe_ffn_rows(d), moe_ffn_pairs(d), moe_positive(d->n_ffn_in), &ffn);
  if (n_seqs > 0) {
    bytes = moe_max(bytes, cuda_att_scratch(NULL, seq, n_seqs, senders, moe_positive(d->n_ffn), &att));
    bytes = moe_max(bytes, cuda_head_scratch(NULL, seq * n_seqs, senders, &head));
  }
  return bytes;
}

/* SENDs of attention ranks, of FFN ranks and of relays. */
static size_t comm_scratch_bytes(const MoeDims *d)
{
  CudaPackScratch s;
  size_t tokens = moe_positive(d->att_seqs) * moe_positive(d->seq);
  size_t relay_rows = d->relay ? moe_positive(d->mb_seqs) * moe_positive(d->seq) : 0;
  return cuda_pack_scratch(NULL, moe_positive(d->n_ffn), tokens, moe_positive(d->n_ffn_in), relay_rows, &s);
}

/* ---- vectors: on the lane of the compute thread, which tells their errors when it is waited for ---- */

static MoeQueue vectors(void)
{
  return moe_cuda_lane(MOE_LANE_COMPUTE)->queue;
}

static void add(float *sum, const float *x, size_t n)
{
  moe_cuda_note(MOE_LANE_COMPUTE, moe_cuda_add(sum, x, n, vectors()));
}

static double sumsq(const float *x, size_t n)
{
  const MoeCudaLane *lane = moe_cuda_lane(MOE_LANE_COMPUTE);
  *lane->sum = 0;
  moe_cuda_note(MOE_LANE_COMPUTE, moe_cuda_sumsq(x, n, lane->sum, lane->partial, lane->queue));
  moe_cuda_note(MOE_LANE_COMPUTE, moe_cuda_device.wait(MOE_LANE_COMPUTE));
  return *lane->sum;
}

static void adamw(const MoeAdam *adam, float *w, float *master, float *m, float *v, const float *g, size_t n,
                  bool decay)
{
  MoeReal *stored = (void *)w;
  moe_cuda_note(MOE_LANE_COMPUTE, moe_cuda_adamw(adam, stored, master, m, v, g, n, decay, vectors()));
}

static void to_weights(float *w, const float *master, size_t n)
{
  MoeReal *stored = (void *)w;
  moe_cuda_note(MOE_LANE_COMPUTE, moe_cuda_to_weights(stored, master, n, vectors()));
}

const MoeKernels moe_kernels = {
    .device = &moe_cuda_device,
    .weight_bytes = sizeof(MoeReal),
    .att_saved_bytes = moe_att_saved_bytes,
    .att_work_bytes = moe_att_work_bytes,
    .ffn_saved_bytes = moe_ffn_saved_bytes,
    .ffn_work_bytes = moe_ffn_work_bytes,
    .scratch_bytes = scratch_bytes,
    .comm_scratch_bytes = comm_scratch_bytes,
    .msg_bytes = moe_msg_bytes,
    .run =
        {
            [MOE_OP_EMBED_FWD] = cuda_embed_fwd,
            [MOE_OP_ATT_FWD] = cuda_att_fwd,
            [MOE_OP_ATT_AGAIN] = cuda_att_again,
            [MOE_OP_FFN_FWD] = cuda_ffn_fwd,
            [MOE_OP_JOIN_FWD] = cuda_join_fwd,
            [MOE_OP_HEAD] = cuda_head,
            [MOE_OP_JOIN_DGRAD] = cuda_join_dgrad,
            [MOE_OP_FFN_DGRAD] = cuda_ffn_dgrad,
            [MOE_OP_ATT_DGRAD] = cuda_att_dgrad,
            [MOE_OP_FFN_WGRAD] = cuda_ffn_wgrad,
            [MOE_OP_ATT_WGRAD] = cuda_att_wgrad,
            [MOE_OP_EMBED_WGRAD] = cuda_embed_wgrad,
            [MOE_OP_RELAY] = cuda_relay,
            [MOE_OP_NODE_REDUCE] = cuda_node_reduce,
        },
    .pack =
        {
            [MOE_EDGE_DISPATCH] = cuda_pack_dispatch,
            [MOE_EDGE_DISPATCH_AGAIN] = cuda_pack_dispatch_again,
            [MOE_EDGE_FORWARD] = cuda_pack_forward,
            [MOE_EDGE_FORWARD_AGAIN] = cuda_pack_forward,
            [MOE_EDGE_GATHER] = cuda_pack_gather,
            [MOE_EDGE_GATHER_B] = cuda_pack_forward,
            [MOE_EDGE_FORWARD_B] = cuda_pack_gather,
            [MOE_EDGE_COMBINE] = cuda_pack_combine,
            [MOE_EDGE_COMBINE_B] = cuda_pack_combine_b,
            [MOE_EDGE_DISPATCH_B] = cuda_pack_dispatch_b,
            [MOE_EDGE_PIPE] = cuda_pack_pipe,
            [MOE_EDGE_PIPE_B] = cuda_pack_pipe,
        },
    .add = add,
    .sumsq = sumsq,
    .adamw = adamw,
    .to_weights = to_weights,
};
