/* Numbers of Hugging Face files, to and from floats. */
#ifndef MOE_HF_NUMBERS_H
#define MOE_HF_NUMBERS_H

#include "runtime/safetensors.h"

/* Whether moe_hf_widen() reads the type: F64, F32, F16, BF16. */
bool moe_hf_reads(MoeStDtype);

/* to[i to_step] = element at + i step of the tensor, i < n: exact, but for F64, which is rounded. */
void moe_hf_widen(const MoeStTensor *, int64_t at, int64_t step, int64_t n, float *to, int64_t to_step);

/* The same of an MXFP4 matrix: element i is nibble i mod 2 (the low one first) of byte i / 2 of the blocks, an E2M1
   number, times 2^(s - 127) with s byte i / 32 of the scales. Exact. */
void moe_hf_widen_mxfp4(const uint8_t *blocks, const uint8_t *scales, int64_t at, int64_t step, int64_t n, float *to,
                        int64_t to_step);

/* to[i] = from[i step] as F32, or rounded to BF16 (nearest, ties to even; NaN stays NaN). */
void moe_hf_narrow(MoeStDtype, const float *from, int64_t step, int64_t n, uint8_t *to, int64_t to_step);

#endif
