/* Verb report: what a run has left, as a page. */
#include <string.h>

#include "codegen/cli.h"
#include "codegen/output.h"
#include "codegen/report.h"

int verb_report(Compile *c)
{
  const Options *o = c->options;
  Report report = {.name = strrchr(o->file, '/') ? strrchr(o->file, '/') + 1 : o->file};
  if (!run_log_read(c->arena, c->diag, o->file, &report.log) ||
      (o->measured && !run_trace_read(c->arena, c->diag, o->measured, &report.measured)) ||
      (o->predicted && !run_trace_read(c->arena, c->diag, o->predicted, &report.predicted))) {
    return EXIT_BAD_SPEC;
  }
  Printed page;
  printed_open(&page);
  if (!report_print(c->arena, c->diag, &report, c->install->home, page.to)) {
    printed_drop(&page);
    return EXIT_BAD_SPEC;
  }
  const char *out = cli_out(c);
  if (!output_finish(&page, c->arena, c->diag, out)) {
    return EXIT_BAD_SPEC;
  }
  printf("written to %s\n", out);
  return 0;
}
