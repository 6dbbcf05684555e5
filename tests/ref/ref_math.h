/* The few dense operations of the reference. Matrices are row-major; weights are [out, in]; gradients are added to. */
#ifndef REF_MATH_H
#define REF_MATH_H

#include <stdint.h>

/* Zeroed memory; running out of it ends the program. */
void *ref_alloc(int64_t n, int64_t size);

double ref_dot(const double *a, const double *b, int64_t n);
void ref_axpy(double *y, double a, const double *x, int64_t n); /* y += a x */

/* y [rows, out] = x [rows, in] W^T */
void ref_linear(double *y, const double *x, const double *w, int64_t rows, int64_t in, int64_t out);
/* dx [rows, in] += dy [rows, out] W */
void ref_linear_dx(double *dx, const double *dy, const double *w, int64_t rows, int64_t in, int64_t out);
/* dW [out, in] += dy^T x */
void ref_linear_dw(double *dw, const double *dy, const double *x, int64_t rows, int64_t in, int64_t out);

/* y = gain * x / sqrt(mean(x^2) + eps), for each of `rows` rows of n */
void ref_rmsnorm(double *y, const double *x, const double *gain, int64_t rows, int64_t n, double eps);
/* With r the reciprocal root and xh = x r: dx += r (dy gain - xh mean(dy gain xh)), dgain += dy xh */
void ref_rmsnorm_back(double *dx, double *dgain, const double *dy, const double *x, const double *gain, int64_t rows,
                      int64_t n, double eps);

/* Softmax of z over n entries into p. */
void ref_softmax(double *p, const double *z, int64_t n);

/* y [rows, n] += b [n] in every row; db [n] += sum of the rows of dy. */
void ref_bias(double *y, const double *b, int64_t rows, int64_t n);
void ref_bias_back(double *db, const double *dy, int64_t rows, int64_t n);

#endif
