/* One expert: all but one FFN rank stay idle, and half of the tokens keep no pair. */
#ifndef MOE_CONFIG_H
#define MOE_CONFIG_H

#include "plain.h"

#define MOE_LAYERS       2
#define MOE_VOCAB        64
#define MOE_HIDDEN       32
#define MOE_HEADS        2
#define MOE_KV_HEADS     1
#define MOE_HEAD_DIM     16
#define MOE_QK_NORM      0
#define MOE_NORM_EPS     1e-5
#define MOE_ROPE_THETA   10000.0
#define MOE_EXPERTS      1
#define MOE_TOP_K        1
#define MOE_FFN_HIDDEN   48
#define MOE_ROUTER       0
#define MOE_CAPACITY     0.5
#define MOE_BALANCE_COEF 0.01
#define MOE_TIED         0
#define MOE_RECOMPUTE    0
#define MOE_BF16         0

#endif
