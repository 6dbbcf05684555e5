/* Odd sizes: three query heads per key head, softmax kept as it is, drops, tied tables; and tiles much
   smaller than a micro-batch. */
#ifndef MOE_CONFIG_H
#define MOE_CONFIG_H

#include "plain.h"

#define MOE_LAYERS       3
#define MOE_VOCAB        257
#define MOE_HIDDEN       40
#define MOE_HEADS        6
#define MOE_KV_HEADS     2
#define MOE_HEAD_DIM     32
#define MOE_QK_NORM      0
#define MOE_NORM_EPS     1e-5
#define MOE_ROPE_THETA   10000.0
#define MOE_EXPERTS      5
#define MOE_TOP_K        3
#define MOE_FFN_HIDDEN   24
#define MOE_ROUTER       1
#define MOE_CAPACITY     0.75
#define MOE_BALANCE_COEF 0.05
#define MOE_TIED         1
#define MOE_RECOMPUTE    0
#define MOE_BF16         0

/* not of the model */
#define MOE_FFN_TILE  ((size_t)7)
#define MOE_FFN_SHARE 5
#define MOE_ATT_TILE  ((size_t)11)

#endif
