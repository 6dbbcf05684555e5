/* Numbers in order. */
#ifndef CODEGEN_MEDIAN_H
#define CODEGEN_MEDIAN_H

/* Ascending. */
void sort_numbers(double *list, int n);

/* Of n > 0 numbers, which it sorts. */
double median_of(double *list, int n);

#endif
