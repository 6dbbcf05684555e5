/* Pieces of pages: of the comparison's, of a run's report. */
#ifndef CODEGEN_PAGE_H
#define CODEGEN_PAGE_H

#include "codegen/compare.h"

/* Text with what markup would take for its own escaped. */
void page_text(FILE *, const char *text);

/* page_frame.c. All before the body, with the title "NAME: WHAT", and all behind it. Return false after an error. */
bool page_begin(Arena *, Diag *, const char *home, const char *name, const char *what, FILE *);
bool page_end(Arena *, Diag *, const char *home, FILE *);

/* An entry of a legend; `style` is of its square. */
void page_key(FILE *, const char *style, const char *name);

/* Legend and buttons of the timelines, <option>s with the `where` of each between the two; then their data, numbered
   from 0. */
void page_begin_controls(FILE *);
void page_end_controls(FILE *);
void page_begin_timelines(FILE *);
void page_timeline(FILE *, int number, const char *title, int where, const Timeline *);
void page_end_timelines(FILE *);

/* Panels for one point and shape: an SVG each. */
void chart_speed(FILE *, const Comparison *, int point, int shape);
void chart_times(FILE *, const Comparison *, int point, int shape);
void chart_memory(FILE *, const Comparison *, int point, int shape);

/* Lines over points [first, last] of a sweep's last axis, one per system: tokens per second and GPU. */
void chart_sweep(FILE *, const Comparison *, int first, int last, int shape);

#endif
