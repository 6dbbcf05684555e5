/* Sizes of one model, as macros, written by moec. The copy among the templates is that of specs/tiny.moespec,
   so that every template compiles where it stands; a bundle's own takes its place there. */
#ifndef MOE_CONFIG_H
#define MOE_CONFIG_H

#define MOE_LAYERS       4
#define MOE_VOCAB        256
#define MOE_HIDDEN       64
#define MOE_HEADS        4
#define MOE_KV_HEADS     2
#define MOE_HEAD_DIM     16
#define MOE_QK_NORM      1 /* RMSNorm over head_dim on q and k, before RoPE */
#define MOE_NORM_EPS     1e-06
#define MOE_ROPE_THETA   1e+04
#define MOE_EXPERTS      8
#define MOE_TOP_K        2
#define MOE_FFN_HIDDEN   128
#define MOE_ROUTER       0 /* 0 softmax, top-k, renormalised; 1 not renormalised; 2 top-k, then softmax */
#define MOE_CAPACITY     0.0 /* factor over the even share, per sequence and expert; 0: no drops */
#define MOE_BALANCE_COEF 0.01 /* of the per-sequence balance loss; 0: none */
#define MOE_TIED         0 /* output table is the embedding table */
#define MOE_BF16         0 /* storage of activations, messages and weights; 0: fp32 */

#endif
