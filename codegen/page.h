/* Pieces of the comparison's page. */
#ifndef CODEGEN_PAGE_H
#define CODEGEN_PAGE_H

#include "codegen/compare.h"

/* Text with what markup would take for its own escaped. */
void page_text(FILE *, const char *text);

/* Panels for one point and shape: an SVG each. */
void chart_speed(FILE *, const Comparison *, int point, int shape);
void chart_times(FILE *, const Comparison *, int point, int shape);
void chart_memory(FILE *, const Comparison *, int point, int shape);

/* Lines over points [first, last] of a sweep's last axis, one per system: tokens per second and GPU. */
void chart_sweep(FILE *, const Comparison *, int first, int last, int shape);

#endif
