/* What the .cu files offer: the kernels of their C twins, launched on a queue. Pointers are the device's; what the twin
   computes is computed, in the same order where the twin's order shows, with the same roundings. A launcher returns at
   once: MOE_OK, or MOE_EDEVICE when the device refuses. Nothing to do is no launch. For C as well as for CUDA. */
#ifndef MOE_LAUNCH_CUH
#define MOE_LAUNCH_CUH

#include "moe_model.h"
#include "moe_store.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CUstream_st *MoeQueue;

/* Sums over rows are formed in this many parts at most, which are then added in order. Kernels that do so take room for
   `partial`: [MOE_PARTS, columns of the sum]. */
enum { MOE_PARTS = 64 };

/* norm.cu: as moe_norm(), moe_norm_rows() (row: which rows of x, NULL for 0 .. n) and moe_norm_back(). */
MoeStatus moe_cuda_norm(const MoeReal *x, const float *gain, size_t n, MoeReal *y, float *rstd, MoeQueue);
MoeStatus moe_cuda_norm_rows(const MoeReal *x, const float *gain, const float *rstd, const uint32_t *row, size_t n,
                             MoeReal *y, MoeQueue);
MoeStatus moe_cuda_norm_back(const MoeReal *x, const float *gain, const float *rstd, const float *dy, size_t n,
                             float *dx, float *g_gain, float *partial /* [PARTS, H] */, MoeQueue);

/* g [columns] += the sum of n parts, in order. */
MoeStatus moe_cuda_add_parts(const float *partial, size_t n, size_t columns, float *g, MoeQueue);

/* heads.cu, w the bucket ATT. cos and sin [seq, D / 2] of moe_cuda_rope_tables(); n tokens, whole sequences. Forward: q
   and k normed and turned and v, all clamped, out [n, QKV]. Backward: d [n, QKV] is the gradient of that; dqkv that of
   the projections; gains' gradients are added to gw. partial [PARTS, 2 D]. */
MoeStatus moe_cuda_rope_tables(size_t seq, float *cosp, float *sinp, MoeQueue);
MoeStatus moe_cuda_heads(const MoeReal *qkv, const float *w, const float *cosp, const float *sinp, size_t seq, size_t n,
                         MoeReal *out, MoeQueue);
MoeStatus moe_cuda_heads_back(const MoeReal *qkv, const float *w, const float *cosp, const float *sinp, size_t seq,
                              size_t n, const float *d, MoeReal *dqkv, float *gw, float *partial, MoeQueue);

/* embed_head.cu: as moe_embed_fwd() and moe_embed_wgrad(). status becomes MOE_EINVAL if an id is outside the
   vocabulary; its row is left alone. */
MoeStatus moe_cuda_embed(const int32_t *tokens, size_t n, const MoeReal *table, MoeReal *x, int32_t *status, MoeQueue);
MoeStatus moe_cuda_embed_wgrad(const int32_t *tokens, size_t n, const MoeReal *dx, float *g_table, int32_t *status,
                               MoeQueue);

/* optimizer.cu: as moe_add(), moe_sumsq() (added to total; partial [PARTS]), moe_adamw() and moe_to_weights(); weights
   are of the storage type. In fp32 w and master may be the same. */
MoeStatus moe_cuda_add(float *sum, const float *x, size_t n, MoeQueue);
MoeStatus moe_cuda_sumsq(const float *x, size_t n, double *total, double *partial, MoeQueue);
MoeStatus moe_cuda_adamw(const MoeAdam *, MoeReal *w, float *master, float *m, float *v, const float *g, size_t n,
                         bool decay, MoeQueue);
MoeStatus moe_cuda_to_weights(MoeReal *w, const float *master, size_t n, MoeQueue);

#ifdef __cplusplus
}
#endif

#endif
