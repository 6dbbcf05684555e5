/* One query head per key head, head_dim 80, one choice of three experts, softmax after top-k. */
#ifndef MOE_CONFIG_H
#define MOE_CONFIG_H

#include "plain.h"

#define MOE_LAYERS       2
#define MOE_VOCAB        300
#define MOE_HIDDEN       72
#define MOE_HEADS        4
#define MOE_KV_HEADS     4
#define MOE_HEAD_DIM     80
#define MOE_QK_NORM      1
#define MOE_NORM_EPS     1e-5
#define MOE_ROPE_THETA   500000.0
#define MOE_EXPERTS      3
#define MOE_TOP_K        1
#define MOE_FFN_HIDDEN   56
#define MOE_ROUTER       2
#define MOE_CAPACITY     0.0
#define MOE_BALANCE_COEF 0.0
#define MOE_TIED         0
#define MOE_RECOMPUTE    0
#define MOE_BF16         0

#endif
