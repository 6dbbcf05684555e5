/* Eight query heads on one key head, head_dim 128, sixteen experts, drops. */
#ifndef MOE_CONFIG_H
#define MOE_CONFIG_H

#include "plain.h"

#define MOE_LAYERS       2
#define MOE_VOCAB        257
#define MOE_HIDDEN       96
#define MOE_HEADS        8
#define MOE_KV_HEADS     1
#define MOE_HEAD_DIM     128
#define MOE_QK_NORM      1
#define MOE_NORM_EPS     1e-5
#define MOE_ROPE_THETA   1000000.0
#define MOE_EXPERTS      16
#define MOE_TOP_K        4
#define MOE_FFN_HIDDEN   40
#define MOE_ROUTER       0
#define MOE_CAPACITY     1.25
#define MOE_BALANCE_COEF 0.01
#define MOE_TIED         0
#define MOE_RECOMPUTE    0
#define MOE_BF16         0

#endif
