/* How a kernel is checked: it runs on the emulated device in several orders of threads and blocks, which must give the
   same bits; then its error against fp64 is compared with a bound, and in bf16 with that of its C twin. */
#ifndef CUDA_CHECK_H
#define CUDA_CHECK_H

#include "moe_launch.cuh"
#include "moe_parts.h"
#include "simt.h"

/* A value that i picks, in [-1, 1). */
float wave(size_t i);

/* The device's memory, exactly as large as asked for and full of NaN. Ends the test if what lies around it was written
   to when it is freed. */
void *dev_new(size_t bytes);
void dev_free(void *);
/* The same with values. */
void *dev_copy(const void *from, size_t bytes);

/* Ends the test with the device's report if it refused a kernel. */
void ok(MoeStatus);

/* Runs launch(c) once per order. launch() makes its outputs by out_new() (full of NaN) or out_copy(); the first order's
   are compared bit by bit with the others', and those of the last stay until the next call. */
void in_all_orders(void (*launch)(void *c), void *c);
void *out_new(size_t bytes);
void *out_copy(const void *from, size_t bytes);

/* wave() as the storage type, and as floats that the storage type holds; and back. All by malloc(). */
MoeReal *real_waves(size_t n, size_t seed, float scale);
float *float_waves(size_t n, size_t seed, float scale);
double *doubles_of(const float *x, size_t n);
double *doubles_of_reals(const MoeReal *x, size_t n);

/* The norm of the difference over that of `want` is at most 1e-5 where all is fp32; in bf16 at most twice that of the
   twin. NaN is an error. */
void check_floats(const char *what, const float *got, const float *twin, const double *want, size_t n);
void check_reals(const char *what, const MoeReal *got, const MoeReal *twin, const double *want, size_t n);
/* The same of `width` columns of rows [n, stride], from `col` on. */
void check_columns(const char *what, const MoeReal *got, const MoeReal *twin, const double *want, size_t n,
                   size_t stride, size_t col, size_t width);
/* Sums of few values, which may cancel: over the norm of `size`, each sum's with all terms positive. */
void check_sums(const char *what, const float *got, const float *twin, const double *want, const double *size,
                size_t n);
/* The C twin does nothing else: the same bits. */
void check_same(const char *what, const void *got, const void *twin, size_t bytes);

#endif
