/* Kernels of a rehearsal: the same table as real ones, without the mathematics. Slots and messages are one cache line;
   how long an op takes and how large a message counts is in the bundle's tables. What remains to check is checked: a
   message reaches the op that its stamp promises (the runtime does that), and an op finds as many messages as there are
   ranks at the other end. */
#include <string.h>

#include "moe_kernels.h"

enum { LINE = 64 };

static size_t one_line(const MoeDims *d)
{
  (void)d;
  return LINE;
}

static size_t msg_bytes(MoeEdge edge, int32_t seq, int32_t att_seqs, int32_t experts)
{
  (void)edge;
  (void)seq;
  (void)att_seqs;
  (void)experts;
  return LINE;
}

static MoeStatus op(MoeCall *call)
{
  for (int32_t i = 0; i < call->n_in; i++) {
    const MoeMsgHead *head = (const void *)call->in[i].data;
    if (head->bytes != LINE) {
      return MOE_EPROTO;
    }
  }
  return MOE_OK;
}

static size_t pack(MoeCall *call, void *slot)
{
  MoeMsgHead head = {.bytes = LINE};
  head.stamp = moe_stamp(call->step, (uint32_t)call->chunk, (uint32_t)call->layer, (uint32_t)call->mb, call->edge);
  memset(slot, 0, LINE);
  memcpy(slot, &head, sizeof head);
  return LINE;
}

static void add(float *sum, const float *x, size_t n)
{
  (void)sum;
  (void)x;
  (void)n;
}

static double sumsq(const float *x, size_t n)
{
  (void)x;
  (void)n;
  return 0;
}

static void adamw(const MoeAdam *adam, float *w, float *master, float *m, float *v, const float *g, size_t n,
                  bool decay)
{
  (void)adam;
  (void)w;
  (void)master;
  (void)m;
  (void)v;
  (void)g;
  (void)n;
  (void)decay;
}

static void to_weights(float *w, const float *master, size_t n)
{
  (void)w;
  (void)master;
  (void)n;
}

const MoeKernels moe_kernels = {
    .weight_bytes = sizeof(float),
    .att_saved_bytes = one_line,
    .att_work_bytes = one_line,
    .ffn_saved_bytes = one_line,
    .ffn_work_bytes = one_line,
    .scratch_bytes = one_line,
    .comm_scratch_bytes = one_line,
    .msg_bytes = msg_bytes,
    .run =
        {
            [MOE_OP_EMBED_FWD] = op,
            [MOE_OP_ATT_FWD] = op,
            [MOE_OP_FFN_FWD] = op,
            [MOE_OP_JOIN_FWD] = op,
            [MOE_OP_HEAD] = op,
            [MOE_OP_ATT_AGAIN] = op,
            [MOE_OP_JOIN_DGRAD] = op,
            [MOE_OP_FFN_DGRAD] = op,
            [MOE_OP_ATT_DGRAD] = op,
            [MOE_OP_FFN_WGRAD] = op,
            [MOE_OP_ATT_WGRAD] = op,
            [MOE_OP_EMBED_WGRAD] = op,
            [MOE_OP_RELAY] = op,
            [MOE_OP_NODE_REDUCE] = op,
        },
    .pack =
        {
            [MOE_EDGE_DISPATCH] = pack,
            [MOE_EDGE_DISPATCH_AGAIN] = pack,
            [MOE_EDGE_FORWARD] = pack,
            [MOE_EDGE_FORWARD_AGAIN] = pack,
            [MOE_EDGE_GATHER] = pack,
            [MOE_EDGE_COMBINE] = pack,
            [MOE_EDGE_COMBINE_B] = pack,
            [MOE_EDGE_GATHER_B] = pack,
            [MOE_EDGE_FORWARD_B] = pack,
            [MOE_EDGE_DISPATCH_B] = pack,
            [MOE_EDGE_PIPE] = pack,
            [MOE_EDGE_PIPE_B] = pack,
        },
    .add = add,
    .sumsq = sumsq,
    .adamw = adamw,
    .to_weights = to_weights,
};
