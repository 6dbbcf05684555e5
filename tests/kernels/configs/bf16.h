/* bf16 storage, and tiles smaller than a micro-batch. */
#ifndef MOE_CONFIG_H
#define MOE_CONFIG_H

#include "plain.h"

#define MOE_LAYERS       3
#define MOE_VOCAB        257
#define MOE_HIDDEN       64
#define MOE_HEADS        4
#define MOE_KV_HEADS     2
#define MOE_HEAD_DIM     16
#define MOE_QK_NORM      1
#define MOE_NORM_EPS     1e-5
#define MOE_ROPE_THETA   10000.0
#define MOE_EXPERTS      8
#define MOE_TOP_K        2
#define MOE_FFN_HIDDEN   96
#define MOE_ROUTER       0
#define MOE_CAPACITY     0.0
#define MOE_BALANCE_COEF 0.01
#define MOE_TIED         0
#define MOE_RECOMPUTE    0
#define MOE_BF16         1

/* not of the model */
#define MOE_FFN_TILE  ((size_t)13)
#define MOE_FFN_SHARE 6
#define MOE_ATT_TILE  ((size_t)16)

#endif
