/* Windows on even layers, sinks, heads wider than 128; experts with biases and a clamped activation. */
#ifndef MOE_CONFIG_H
#define MOE_CONFIG_H

#include "plain.h"
#undef MOE_SINKS
#undef MOE_WINDOW
#undef MOE_WINDOW_LAYERS
#undef MOE_EXPERT_BIAS
#undef MOE_CLAMPED
#undef MOE_ACT_LIMIT
#define MOE_SINKS         1
#define MOE_WINDOW        21
#define MOE_WINDOW_LAYERS 1
#define MOE_EXPERT_BIAS   1
#define MOE_CLAMPED       1
#define MOE_ACT_LIMIT     0.5

#define MOE_LAYERS       2
#define MOE_VOCAB        64
#define MOE_HIDDEN       32
#define MOE_HEADS        3
#define MOE_KV_HEADS     1
#define MOE_HEAD_DIM     144
#define MOE_QK_NORM      0
#define MOE_NORM_EPS     1e-5
#define MOE_ROPE_THETA   10000.0
#define MOE_EXPERTS      4
#define MOE_TOP_K        2
#define MOE_FFN_HIDDEN   40
#define MOE_ROUTER       2
#define MOE_CAPACITY     0.0
#define MOE_BALANCE_COEF 0.0
#define MOE_TIED         0
#define MOE_RECOMPUTE    0
#define MOE_BF16         0

#endif
