/* The report of a run: one page from its log and, if they are given, from the traces of one of its steps. */
#ifndef CODEGEN_REPORT_H
#define CODEGEN_REPORT_H

#include "codegen/run_log.h"
#include "codegen/run_trace.h"

typedef struct Report {
  const char *name; /* of the log */
  RunLog log;
  RunTrace measured, predicted; /* n 0: not given */
} Report;

bool report_print(Arena *, Diag *, const Report *, const char *home, FILE *);

/* ---- report_chart.c: inline SVG ---- */

/* One line over steps. Of many points means are drawn, with a band from the least to the greatest; what is NaN is a gap
   with a mark below it. */
typedef struct ChartLine {
  const char *name;
  int colour; /* 0 to 7, of the style sheet's --s0 ... */
  bool dots;  /* every point is marked */
  int n;
  const int64_t *steps; /* ascending */
  const double *values;
} ChartLine;

/* from_zero: the axis begins there, else where the values do; it is logarithmic where those span a factor of 100. */
void chart_lines(FILE *, const char *label, const ChartLine *, int n, bool from_zero);

/* Pairs of bars, of two times each; NAN: none. */
typedef struct ChartPair {
  const char *name;
  double first, second;
} ChartPair;
void chart_pairs(FILE *, const char *label, const ChartPair *, int n);

/* Tokens of experts over the mean of their layer, from white over the mean to red; at most so many rows and columns, of
   which each is the greatest of its part. */
void chart_load(FILE *, const LogLoad *);

#endif
