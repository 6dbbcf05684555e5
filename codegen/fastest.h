/* The fastest of some systems in words. */
#ifndef CODEGEN_FASTEST_H
#define CODEGEN_FASTEST_H

#include "codegen/plan.h"

/* Step times that are the same in the three decimals in which ratios are printed. */
bool same_step(double ns, double other_ns);

/* "1.234x faster than" or, of such times, "as fast as". */
const char *faster_than(Arena *, double ns, double slower_ns);

/* A system and its step; 0 ns: it did not run. */
typedef struct Contender {
  SystemKind system;
  double step_ns;
} Contender;

/* "af_pipe, as fast as afd, 1.234x faster than tutel, the next": the first of those with the shortest step, all that
   are as fast, and the one after them. NULL: none ran. */
const char *fastest_text(Arena *, const Contender *, int n);

#endif
