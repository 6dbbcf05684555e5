#include "codegen/median.h"

#include <stdlib.h>

static int by_size(const void *a, const void *b)
{
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

void sort_numbers(double *list, int n)
{
  qsort(list, (size_t)n, sizeof *list, by_size);
}

double median_of(double *list, int n)
{
  sort_numbers(list, n);
  return (list[(n - 1) / 2] + list[n / 2]) / 2;
}
