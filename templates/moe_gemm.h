/* Row-major fp32 GEMMs by name of what is transposed. Sizes of zero are legal and do nothing. */
#ifndef MOE_GEMM_H
#define MOE_GEMM_H

#include <cblas.h>
#include <stddef.h>

/* C[m, n] = A[m, k] B[n, k]^T + beta C */
static inline void moe_gemm_nt(size_t m, size_t n, size_t k, const float *a, size_t lda, const float *b, size_t ldb,
                               float beta, float *c, size_t ldc)
{
  if (m > 0 && n > 0 && k > 0) {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)m, (int)n, (int)k, 1.0f, a, (int)lda, b, (int)ldb, beta,
                c, (int)ldc);
  }
}

/* C[m, n] = A[m, k] B[k, n] + beta C */
static inline void moe_gemm_nn(size_t m, size_t n, size_t k, const float *a, size_t lda, const float *b, size_t ldb,
                               float beta, float *c, size_t ldc)
{
  if (m > 0 && n > 0 && k > 0) {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)m, (int)n, (int)k, 1.0f, a, (int)lda, b, (int)ldb, beta,
                c, (int)ldc);
  }
}

/* C[m, n] = A[k, m]^T B[k, n] + beta C */
static inline void moe_gemm_tn(size_t m, size_t n, size_t k, const float *a, size_t lda, const float *b, size_t ldb,
                               float beta, float *c, size_t ldc)
{
  if (m > 0 && n > 0 && k > 0) {
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)m, (int)n, (int)k, 1.0f, a, (int)lda, b, (int)ldb, beta,
                c, (int)ldc);
  }
}

#endif
