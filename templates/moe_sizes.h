/* How large slots and messages are, wherever kernels run: rows of MoeKernels. */
#ifndef MOE_SIZES_H
#define MOE_SIZES_H

#include "moe_slots.h"

static inline size_t moe_positive(int32_t n)
{
  return n > 0 ? (size_t)n : 0;
}

size_t moe_att_saved_bytes(const MoeDims *);
size_t moe_att_work_bytes(const MoeDims *);
size_t moe_ffn_saved_bytes(const MoeDims *);
size_t moe_ffn_work_bytes(const MoeDims *);
size_t moe_msg_bytes(MoeEdge, int32_t seq, int32_t src_seqs, int32_t experts);

/* Rows that an FFN rank may get, and pairs, when every token of a micro-batch's chunk comes to it. */
size_t moe_ffn_rows(const MoeDims *);
size_t moe_ffn_pairs(const MoeDims *);

#endif
