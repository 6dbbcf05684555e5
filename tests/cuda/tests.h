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

/* One head in fp64: y = turn(norm(x)), and from its gradient d to dx and the gain's, which is added to. Not turned: a
   value. test_rows.c has it. */
void head64(size_t pos, bool turned, const double *x, const double *gain, const double *d, double *y, double *dx,
            double *dgain);

#endif
