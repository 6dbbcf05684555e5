/* A norm over all heads, clamped projections, softmax over groups of experts, bf16. */
#ifndef MOE_CONFIG_H
#define MOE_CONFIG_H

#include "plain.h"
#undef MOE_CLIP_QKV
#undef MOE_GROUPS
#undef MOE_TOP_GROUPS
#undef MOE_SHARED
#define MOE_CLIP_QKV   0.75
#define MOE_GROUPS     4
#define MOE_TOP_GROUPS 2
#define MOE_SHARED     24

#define MOE_LAYERS       2
#define MOE_VOCAB        64
#define MOE_HIDDEN       48
#define MOE_HEADS        6
#define MOE_KV_HEADS     3
#define MOE_HEAD_DIM     32
#define MOE_QK_NORM      2
#define MOE_NORM_EPS     1e-5
#define MOE_ROPE_THETA   10000.0
#define MOE_EXPERTS      16
#define MOE_TOP_K        3
#define MOE_FFN_HIDDEN   40
#define MOE_ROUTER       1
#define MOE_CAPACITY     0.0
#define MOE_BALANCE_COEF 0.02
#define MOE_TIED         0
#define MOE_RECOMPUTE    0
#define MOE_BF16         1

#endif
