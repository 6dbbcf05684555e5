/* Comparison: every system on every shape of a spec, each at the best settings that fit, and what came of it. */
#ifndef CODEGEN_COMPARE_H
#define CODEGEN_COMPARE_H

#include "codegen/evaluate.h"
#include "codegen/metrics.h"
#include "codegen/timeline.h"
#include "lang/ast.h"

/* One setting of all swept keys; without sweeps there is one, of no keys. */
typedef struct SweepPoint {
  const char **keys;   /* [n] */
  const char **values; /* [n] as written */
  int n;
  int last_axis;      /* first key of the last sweep, which moves fastest */
  const char *reason; /* why these values make no spec, in the words of its first error; else NULL */
  Spec spec;          /* with a reason: that without the sweep */
} SweepPoint;

typedef struct CompareRow {
  const SweepPoint *point;
  const ShapeSpec *shape;
  SystemKind system;
  bool ran;
  const char *reason;   /* why not, else NULL */
  const char *settings; /* replicas, groups and ranks in a few words */
  Metrics metrics;
  double vs_megatron;   /* its step over this one's; 0: unknown */
  double vs_best_other; /* the fastest other system's step over this one's; 0: there is none */
  Plan plan;            /* its groups and maps are not there any more */
  Timeline timeline;    /* empty unless asked for */
} CompareRow;

typedef struct Comparison {
  const SweepPoint *points;
  int n_points, n_shapes, n_systems;
  const SystemKind *systems;
  CompareRow *rows; /* [points][shapes][systems] */
} Comparison;

CompareRow *compare_row(const Comparison *, int point, int shape, int system);

/* The row with the shortest step, `but` left out; NULL: no other ran. */
const CompareRow *compare_fastest(const Comparison *, int point, int shape, const CompareRow *but);

/* fastest_text() of a point's shape; NULL: no system ran. */
const char *compare_verdict(Arena *, const Comparison *, int point, int shape);

/* Runs everything. timeline_rects: most rectangles of a row's timeline, 0 for none. `progress` may be NULL; it gets the
   row about to run and how many there are. */
typedef void CompareProgress(const CompareRow *, int row, int n_rows);
void compare_run(Arena *, const SweepPoint *points, int n_points, const SystemKind *systems, int n_systems,
                 int timeline_rects, CompareProgress *, Comparison *);

void compare_print(const Comparison *, FILE *);
void compare_print_json(const Comparison *, FILE *);

/* What makes the comparison fair, line by line; NULL ends. */
extern const char *const compare_rules[];

/* sweep.c: points of a file and of the spec that it is without a sweep. "seq=4Ki,8Ki" or "a:b=1:2,3:4"; several texts:
   every combination, the last moving fastest. `shapes` as for spec_select_shapes, or NULL. A key that is not swept or a
   value that it can never have is reported; false then. A value that does not go with the rest of the spec makes a
   point with a reason. */
bool sweep_points(Arena *, Diag *, AstFile *, const Spec *, const char *const *texts, int n_texts, const char *shapes,
                  SweepPoint **points, int *n_points);

/* page*.c: the self-contained page. `home` holds codegen/page.css and codegen/page.js. */
bool page_print(Arena *, Diag *, const Comparison *, const char *home, FILE *);

#endif
