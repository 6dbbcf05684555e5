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

#ifdef __cplusplus
}
#endif

#endif
