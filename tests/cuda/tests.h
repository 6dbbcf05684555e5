/* The groups of tests, one per file; each returns the number that failed. */
#ifndef CUDA_TESTS_H
#define CUDA_TESTS_H

#include <stdbool.h>
#include <stddef.h>

int test_rows(void);
int test_router(void);
int test_messages(void);
int test_experts(void);
int test_attention(void);
int test_dense(void);
int test_lists(void);
int test_head(void);
int test_heads(void);

/* All heads of one token in fp64: y [TURNED] from the projections x [QKV]; from its gradient d to dx, of the columns
   that have a part in it, and to the gains', which are added to. test_heads.c has it. */
void heads64(size_t pos, const double *x, const double *w, const double *d, double *y, double *dx, double *gw);

#endif
