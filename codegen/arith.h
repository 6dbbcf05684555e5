/* The larger and the smaller of two times or sizes. */
#ifndef MOEC_ARITH_H
#define MOEC_ARITH_H

#include <stdint.h>

static inline double max2(double a, double b)
{
  return a > b ? a : b;
}

static inline double min2(double a, double b)
{
  return a < b ? a : b;
}

static inline int64_t max64(int64_t a, int64_t b)
{
  return a > b ? a : b;
}

#endif
