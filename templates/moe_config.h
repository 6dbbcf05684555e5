/* Sizes of one model, as macros, written by moec. The copy among the templates is that of specs/tiny.moespec,
   so that every template compiles where it stands; a bundle's own takes its place there. */
#ifndef MOE_CONFIG_H
#define MOE_CONFIG_H

#define MOE_LAYERS        4
#define MOE_VOCAB         256
#define MOE_HIDDEN        64
#define MOE_HEADS         4
#define MOE_KV_HEADS      2
#define MOE_HEAD_DIM      16
#define MOE_QK_NORM       1 /* RMSNorm on q and k, before RoPE: 1 over head_dim, 2 over all heads */
#define MOE_NORM_ONCE     0 /* gains multiply before the row is rounded, as in gpt-oss */
#define MOE_NORM_EPS      1e-06
#define MOE_ROPE_THETA    1e+04
#define MOE_ROPE_DIM      16 /* part of a head that turns: its end */
#define MOE_ROPE_PAIRS    0 /* 1: pairs (2i, 2i + 1) turn; 0: (i, i + d/2) */
#define MOE_ROPE_SCALE    1.0 /* of cos and sin */
#define MOE_SCORE_SCALE   0.25
#define MOE_YARN_FACTOR   1.0 /* 1: none */
#define MOE_YARN_LOW      0.0 /* frequencies up to here stay */
#define MOE_YARN_HIGH     1.0 /* those from here on are divided by the factor */
#define MOE_LATENT        0 /* latent attention */
#define MOE_Q_LORA        0 /* width of the query latent; 0: none */
#define MOE_KV_LORA       0 /* of the key-value latent */
#define MOE_V_DIM         16 /* width of a value head */
#define MOE_ATT_BIAS      0 /* on q, k, v and o */
#define MOE_SINKS         0 /* one logit per head that takes attention and gives nothing */
#define MOE_WINDOW        0 /* keys that a token sees, itself included; 0: all */
#define MOE_WINDOW_LAYERS 0 /* 0 all, 1 even, 2 odd; the others see all keys */
#define MOE_CLIP_QKV      0.0 /* largest magnitude of q, k, v; 0: none */
#define MOE_DENSE_LAYERS  0 /* the first layers have one MLP */
#define MOE_DENSE_HIDDEN  0
#define MOE_SHARED        0 /* hidden size of the expert that sees every token; 0: none */
#define MOE_EXPERTS       8
#define MOE_TOP_K         2
#define MOE_FFN_HIDDEN    128
#define MOE_ROUTER        0 /* 0 softmax, top-k, renormalised; 1 not renormalised; 2 top-k, then softmax; 3 sigmoid with selection bias */
#define MOE_ROUTER_SCALE  1.0 /* of the weights */
#define MOE_ROUTER_BIAS   0 /* on the logits */
#define MOE_GROUPS        1 /* of experts, of which a token uses the best MOE_TOP_GROUPS */
#define MOE_TOP_GROUPS    1
#define MOE_EXPERT_BIAS   0 /* inside the experts */
#define MOE_CLAMPED       0 /* activation (u + 1) g sigmoid(alpha g), clamped */
#define MOE_ACT_LIMIT     7.0
#define MOE_ACT_ALPHA     1.702
#define MOE_CAPACITY      0.0 /* factor over the even share, per sequence and expert; 0: no drops */
#define MOE_BALANCE_COEF  0.01 /* of the per-sequence balance loss; 0: none */
#define MOE_TIED          0 /* output table is the embedding table */
#define MOE_RECOMPUTE     0 /* 0 none, 1 gate and up, 2 all but inputs and choices of layers */
#define MOE_BF16          0 /* storage of activations, messages and weights; 0: fp32 */

#endif
