/* Verb compare: every system on every shape. */
#include <string.h>
#include <unistd.h>

#include "codegen/cli.h"
#include "codegen/compare.h"
#include "codegen/output.h"

/* The names of --systems, or all. Returns how many, 0 after a message. */
static int read_systems(Compile *c, SystemKind *systems)
{
  const char *p = c->options->systems;
  int n = 0;
  if (!p) {
    for (int s = 0; s < SYSTEM_COUNT; s++) {
      systems[n++] = (SystemKind)s;
    }
    return n;
  }
  do {
    size_t length = strcspn(p, ",");
    SystemKind system;
    if (!cli_system(c->arena, "--systems", arena_strndup(c->arena, p, length), false, &system)) {
      return 0;
    }
    for (int i = 0; i < n; i++) {
      if (systems[i] == system) {
        cli_usage_error("--systems names a system twice", plan_system_name(system));
        return 0;
      }
    }
    systems[n++] = system;
    p += length + (p[length] == ',');
  } while (*p);
  return n;
}

static void show_progress(const CompareRow *row, int at, int n)
{
  fprintf(stderr, "\rcomparing %d/%d: %s, %s\033[K", at + 1, n, row->shape->name, plan_system_name(row->system));
}

/* Sweeping the length of a sequence makes shapes that differ in it alike. */
static bool sweeps_shapes(const SweepPoint *point)
{
  for (int k = 0; k < point->n; k++) {
    if (strcmp(point->keys[k], "seq") == 0) {
      return true;
    }
  }
  return false;
}

static bool write_page(Compile *c, const Comparison *comparison)
{
  Printed file;
  printed_open(&file);
  if (!page_print(c->arena, c->diag, comparison, c->install->home, file.to)) {
    printed_drop(&file);
    return false;
  }
  return output_finish(&file, c->arena, c->diag, c->options->html);
}

int verb_compare(Compile *c)
{
  const Options *o = c->options;
  SystemKind systems[SYSTEM_COUNT];
  SweepPoint *points;
  int n_points, n_systems = read_systems(c, systems), code = n_systems ? cli_load(c) : EXIT_USAGE;
  if (code) {
    return code;
  }
  if (!sweep_points(c->arena, c->diag, c->ast, &c->spec, o->sweeps.items, o->sweeps.n, o->shape, &points, &n_points)) {
    return EXIT_USAGE;
  }
  if (sweeps_shapes(&points[0])) {
    cli_take_first_shape(c);
    for (int i = 0; i < n_points; i++) {
      points[i].spec.n_shapes = 1;
    }
  }
  /* rectangles per row, so that the page stays below 5 MB whatever is compared */
  int rows = n_points * points[0].spec.n_shapes * n_systems, rects = o->html ? 180000 / rows : 0;
  bool talk = !o->quiet && isatty(STDERR_FILENO);
  Comparison comparison;
  compare_run(c->arena, points, n_points, systems, n_systems, rects > 40000 ? 40000 : rects,
              talk ? show_progress : NULL, &comparison);
  if (talk) {
    fprintf(stderr, "\r\033[K");
  }
  if (o->html && !write_page(c, &comparison)) {
    return EXIT_BAD_SPEC;
  }
  if (o->json) {
    compare_print_json(&comparison, stdout);
  } else {
    compare_print(&comparison, stdout);
  }
  return 0;
}
