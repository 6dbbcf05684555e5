/* What none of the sets of sizes here has; each says the rest. */
#ifndef MOE_PLAIN_H
#define MOE_PLAIN_H

#define MOE_NORM_ONCE     0
#define MOE_ROPE_DIM      MOE_HEAD_DIM
#define MOE_ROPE_PAIRS    0
#define MOE_ROPE_SCALE    1.0
#define MOE_SCORE_SCALE   (1.0 / sqrt(MOE_HEAD_DIM))
#define MOE_YARN_FACTOR   1.0
#define MOE_YARN_LOW      0.0
#define MOE_YARN_HIGH     1.0
#define MOE_LATENT        0
#define MOE_Q_LORA        0
#define MOE_KV_LORA       0
#define MOE_V_DIM         MOE_HEAD_DIM
#define MOE_ATT_BIAS      0
#define MOE_SINKS         0
#define MOE_WINDOW        0
#define MOE_WINDOW_LAYERS 0
#define MOE_CLIP_QKV      0.0
#define MOE_DENSE_LAYERS  0
#define MOE_DENSE_HIDDEN  0
#define MOE_SHARED        0
#define MOE_ROUTER_SCALE  1.0
#define MOE_ROUTER_BIAS   0
#define MOE_GROUPS        1
#define MOE_TOP_GROUPS    1
#define MOE_EXPERT_BIAS   0
#define MOE_CLAMPED       0
#define MOE_ACT_LIMIT     7.0
#define MOE_ACT_ALPHA     1.702

#endif
