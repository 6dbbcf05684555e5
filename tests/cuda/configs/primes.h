/* Prime sizes, 257 experts, head_dim 80; and rows, heads and groups that no tile divides. */
#ifndef MOE_CONFIG_H
#define MOE_CONFIG_H

#include "plain.h"

#define MOE_LAYERS       2
#define MOE_VOCAB        101
#define MOE_HIDDEN       67
#define MOE_HEADS        6
#define MOE_KV_HEADS     2
#define MOE_HEAD_DIM     80
#define MOE_QK_NORM      1
#define MOE_NORM_EPS     1e-5
#define MOE_ROPE_THETA   1000000.0
#define MOE_EXPERTS      257
#define MOE_TOP_K        8
#define MOE_FFN_HIDDEN   24
#define MOE_ROUTER       0
#define MOE_CAPACITY     1.25
#define MOE_BALANCE_COEF 0.02
#define MOE_TIED         0
#define MOE_RECOMPUTE    0
#define MOE_BF16         1

#endif
