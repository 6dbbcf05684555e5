/* Plain products of row-major matrices. On a GPU they are cuBLASLt's, which reads columns first: it is given each
   matrix as its transpose, c^T = b^T a^T. Without room for partial results no product is split along its depth, so that
   sums have one order. Elsewhere one thread forms one element. */
#include "moe_cuda.cuh"

#ifdef __CUDACC__
#include <cublasLt.h>
#endif

namespace
{

/* Element (row, depth) of a lies at row * a.row + depth * a.depth; (depth, column) of b likewise. */
struct Strides {
  size_t a_row, a_depth, b_depth, b_column;
};

#ifdef __CUDACC__

cublasLtHandle_t open_cublas()
{
  cublasLtHandle_t handle = nullptr;
  return cublasLtCreate(&handle) == CUBLAS_STATUS_SUCCESS ? handle : nullptr;
}

cudaDataType_t type_of(const float *)
{
  return CUDA_R_32F;
}

#if MOE_BF16
cudaDataType_t type_of(const MoeReal *)
{
  return CUDA_R_16BF;
}
#endif

/* What all of p, p + line ... is a multiple of, in bytes, as far as cuBLASLt asks. */
uint32_t alignment(const void *p, size_t line_bytes)
{
  size_t bits = (size_t)p | line_bytes | 256;
  return (uint32_t)(bits & (~bits + 1));
}

bool took(cublasStatus_t status)
{
  if (status != CUBLAS_STATUS_SUCCESS) {
    fprintf(stderr, "error: cuBLASLt: %s\n", cublasLtGetStatusString(status));
  }
  return status == CUBLAS_STATUS_SUCCESS;
}

template <typename Out>
MoeStatus multiply(const Strides &s, size_t m, size_t n, size_t k, const MoeReal *a, const MoeReal *b, float beta,
                   Out *c, size_t ldc, MoeQueue queue)
{
  static const cublasLtHandle_t handle = open_cublas();
  const float one = 1.0f;
  const size_t no_room = 0;
  bool a_turned = s.a_depth == 1; /* [m, k]: to cuBLASLt a matrix of k rows */
  bool b_turned = s.b_depth == 1;
  size_t lda = a_turned ? s.a_row : s.a_depth;
  size_t ldb = b_turned ? s.b_column : s.b_depth;
  cublasOperation_t on_first = b_turned ? CUBLAS_OP_T : CUBLAS_OP_N;
  cublasOperation_t on_second = a_turned ? CUBLAS_OP_N : CUBLAS_OP_T;
  uint32_t align_a = alignment(a, lda * sizeof *a);
  uint32_t align_b = alignment(b, ldb * sizeof *b);
  uint32_t align_c = alignment(c, ldc * sizeof *c);
  cublasLtMatmulDescOpaque_t product;
  cublasLtMatrixLayoutOpaque_t first, second, result;
  cublasLtMatmulPreferenceOpaque_t wish;
  cublasLtMatmulHeuristicResult_t found;
  int n_found = 0;
  if (handle == nullptr) {
    fprintf(stderr, "error: cuBLASLt does not open\n");
    return MOE_EDEVICE;
  }
  bool fine =
      took(cublasLtMatmulDescInit(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F)) &&
      took(cublasLtMatmulDescSetAttribute(&product, CUBLASLT_MATMUL_DESC_TRANSA, &on_first, sizeof on_first)) &&
      took(cublasLtMatmulDescSetAttribute(&product, CUBLASLT_MATMUL_DESC_TRANSB, &on_second, sizeof on_second)) &&
      took(cublasLtMatrixLayoutInit(&first, type_of(b), b_turned ? k : n, b_turned ? n : k, (int64_t)ldb)) &&
      took(cublasLtMatrixLayoutInit(&second, type_of(a), a_turned ? k : m, a_turned ? m : k, (int64_t)lda)) &&
      took(cublasLtMatrixLayoutInit(&result, type_of(c), n, m, (int64_t)ldc)) &&
      took(cublasLtMatmulPreferenceInit(&wish)) &&
      took(cublasLtMatmulPreferenceSetAttribute(&wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &no_room,
                                                sizeof no_room)) &&
      took(cublasLtMatmulPreferenceSetAttribute(&wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align_b,
                                                sizeof align_b)) &&
      took(cublasLtMatmulPreferenceSetAttribute(&wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align_a,
                                                sizeof align_a)) &&
      took(cublasLtMatmulPreferenceSetAttribute(&wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &align_c,
                                                sizeof align_c)) &&
      took(cublasLtMatmulPreferenceSetAttribute(&wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align_c,
                                                sizeof align_c)) &&
      took(cublasLtMatmulAlgoGetHeuristic(handle, &product, &first, &second, &result, &result, &wish, 1, &found,
                                          &n_found)) &&
      took(cublasLtMatmul(handle, &product, &one, b, &first, a, &second, &beta, c, &result, c, &result, &found.algo,
                          nullptr, 0, queue));
  return fine ? MOE_OK : MOE_EDEVICE;
}

#else

constexpr int SIDE = 16; /* of a block */

template <typename Out>
__global__ void product(Strides s, size_t m, size_t n, size_t k, const MoeReal *a, const MoeReal *b, float beta, Out *c,
                        size_t ldc)
{
  size_t row = (size_t)blockIdx.y * SIDE + threadIdx.y;
  size_t column = (size_t)blockIdx.x * SIDE + threadIdx.x;
  if (row >= m || column >= n) {
    return;
  }
  float sum = 0.0f;
  for (size_t i = 0; i < k; i++) {
    sum = moe_fma(moe_get(a[row * s.a_row + i * s.a_depth]), moe_get(b[i * s.b_depth + column * s.b_column]), sum);
  }
  Out *to = &c[row * ldc + column];
  moe_store(to, beta > 0.0f || beta < 0.0f ? moe_fma(beta, moe_load(*to), sum) : sum);
}

template <typename Out>
MoeStatus multiply(const Strides &s, size_t m, size_t n, size_t k, const MoeReal *a, const MoeReal *b, float beta,
                   Out *c, size_t ldc, MoeQueue queue)
{
  dim3 grid((unsigned)((n + SIDE - 1) / SIDE), (unsigned)((m + SIDE - 1) / SIDE));
  return MOE_LAUNCH(product, grid, dim3(SIDE, SIDE), 0, queue, s, m, n, k, a, b, beta, c, ldc);
}

#endif

template <typename Out>
MoeStatus gemm(const Strides &s, size_t m, size_t n, size_t k, const MoeReal *a, const MoeReal *b, float beta, Out *c,
               size_t ldc, MoeQueue queue)
{
  return m == 0 || n == 0 || k == 0 ? MOE_OK : multiply(s, m, n, k, a, b, beta, c, ldc, queue);
}

} // namespace

MoeStatus moe_cuda_gemm_nt(size_t m, size_t n, size_t k, const MoeReal *a, size_t lda, const MoeReal *b, size_t ldb,
                           float beta, MoeReal *c, size_t ldc, MoeQueue queue)
{
  return gemm(Strides{lda, 1, 1, ldb}, m, n, k, a, b, beta, c, ldc, queue);
}

MoeStatus moe_cuda_gemm_nt_float(size_t m, size_t n, size_t k, const MoeReal *a, size_t lda, const MoeReal *b,
                                 size_t ldb, float beta, float *c, size_t ldc, MoeQueue queue)
{
  return gemm(Strides{lda, 1, 1, ldb}, m, n, k, a, b, beta, c, ldc, queue);
}

MoeStatus moe_cuda_gemm_nn(size_t m, size_t n, size_t k, const MoeReal *a, size_t lda, const MoeReal *b, size_t ldb,
                           float beta, MoeReal *c, size_t ldc, MoeQueue queue)
{
  return gemm(Strides{lda, 1, ldb, 1}, m, n, k, a, b, beta, c, ldc, queue);
}

MoeStatus moe_cuda_gemm_nn_float(size_t m, size_t n, size_t k, const MoeReal *a, size_t lda, const MoeReal *b,
                                 size_t ldb, float beta, float *c, size_t ldc, MoeQueue queue)
{
  return gemm(Strides{lda, 1, ldb, 1}, m, n, k, a, b, beta, c, ldc, queue);
}

MoeStatus moe_cuda_gemm_tn(size_t m, size_t n, size_t k, const MoeReal *a, size_t lda, const MoeReal *b, size_t ldb,
                           float beta, float *c, size_t ldc, MoeQueue queue)
{
  return gemm(Strides{1, lda, ldb, 1}, m, n, k, a, b, beta, c, ldc, queue);
}
