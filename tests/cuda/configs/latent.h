/* Latent attention, heads of two widths, adjacent pairs that turn; a sigmoid router with groups, a shared expert. */
#ifndef MOE_CONFIG_H
#define MOE_CONFIG_H

#include "plain.h"
#undef MOE_ROPE_DIM
#undef MOE_ROPE_PAIRS
#undef MOE_LATENT
#undef MOE_Q_LORA
#undef MOE_KV_LORA
#undef MOE_V_DIM
#undef MOE_SHARED
#undef MOE_ROUTER_SCALE
#undef MOE_GROUPS
#undef MOE_TOP_GROUPS
#define MOE_ROPE_DIM     12
#define MOE_ROPE_PAIRS   1
#define MOE_LATENT       1
#define MOE_Q_LORA       37
#define MOE_KV_LORA      21
#define MOE_V_DIM        20
#define MOE_SHARED       29
#define MOE_ROUTER_SCALE 2.5
#define MOE_GROUPS       6
#define MOE_TOP_GROUPS   3

#define MOE_LAYERS       2
#define MOE_VOCAB        64
#define MOE_HIDDEN       43
#define MOE_HEADS        5
#define MOE_KV_HEADS     5
#define MOE_HEAD_DIM     32
#define MOE_QK_NORM      0
#define MOE_NORM_EPS     1e-5
#define MOE_ROPE_THETA   10000.0
#define MOE_EXPERTS      42
#define MOE_TOP_K        4
#define MOE_FFN_HIDDEN   24
#define MOE_ROUTER       3
#define MOE_CAPACITY     1.25
#define MOE_BALANCE_COEF 0.05
#define MOE_TIED         0
#define MOE_RECOMPUTE    0
#define MOE_BF16         0

#endif
