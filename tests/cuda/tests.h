/* The groups of tests, one per file; each returns the number that failed. */
#ifndef CUDA_TESTS_H
#define CUDA_TESTS_H

int test_rows(void);
int test_router(void);
int test_messages(void);
int test_experts(void);

#endif
