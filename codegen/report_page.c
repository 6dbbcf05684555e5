/* The page of a run's report. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "codegen/human.h"
#include "codegen/page.h"
#include "codegen/report.h"

enum { MOST_LANES = 64, MOST_RECTS = 40000 };

/* ---- in words ---- */

static int by_value(const void *a, const void *b)
{
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Of the values that are finite; NaN: none are. */
static double median_of_finite(const double *values, int n)
{
  Arena *scratch = arena_new();
  double *list = arena_new_array(scratch, double, (size_t)n + 1);
  int m = 0;
  for (int i = 0; i < n; i++) {
    if (isfinite(values[i])) {
      list[m++] = values[i];
    }
  }
  qsort(list, (size_t)m, sizeof *list, by_value);
  double median = m ? list[m / 2] : (double)NAN;
  arena_free(scratch);
  return median;
}

/* One column of the log's steps as a line. */
static ChartLine column(Arena *arena, const RunLog *log, size_t field, const char *name, int colour)
{
  int64_t *steps = arena_new_array(arena, int64_t, (size_t)log->n_steps + 1);
  double *values = arena_new_array(arena, double, (size_t)log->n_steps + 1);
  for (int i = 0; i < log->n_steps; i++) {
    steps[i] = log->steps[i].step;
    values[i] = *(const double *)((const char *)&log->steps[i] + field);
  }
  return (ChartLine){.name = name, .colour = colour, .n = log->n_steps, .steps = steps, .values = values};
}

static bool any_finite(const ChartLine *line)
{
  for (int i = 0; i < line->n; i++) {
    if (isfinite(line->values[i])) {
      return true;
    }
  }
  return false;
}

static void print_facts(const Report *r, const ChartLine *loss, const ChartLine *rate, const ChartLine *ms, FILE *out)
{
  const RunLog *log = &r->log;
  char text[HUMAN_MAX];
  fprintf(out, "<ul class=\"verdicts\">\n<li>steps %" PRId64 " to %" PRId64 ", <b>%d</b> of them in the log",
          log->steps[0].step, log->steps[log->n_steps - 1].step, log->n_steps);
  if (!log->rehearsal) {
    int wrong = 0, last = -1;
    for (int i = 0; i < loss->n; i++) {
      wrong += !isfinite(loss->values[i]);
      last = isfinite(loss->values[i]) ? i : last;
    }
    fprintf(out, "</li>\n<li>loss ");
    if (last < 0) {
      fprintf(out, "of no step is finite");
    } else {
      fprintf(out, "<b>%.4f</b> at step %" PRId64, loss->values[last], loss->steps[last]);
      if (wrong) {
        fprintf(out, "; of %d step%s it is not finite, and their updates were skipped", wrong, wrong == 1 ? "" : "s");
      }
    }
  }
  if (log->n_evals) {
    const LogEval *e = &log->evals[log->n_evals - 1];
    fprintf(out, "</li>\n<li>held-out loss <b>%.4f</b> at step %" PRId64, e->loss, e->step);
  }
  double median = median_of_finite(rate->values, rate->n);
  fprintf(out, "</li>\n<li>median step %s", human_time(text, 1e6 * median_of_finite(ms->values, ms->n)));
  if (isfinite(median)) {
    fprintf(out, ", %s tokens/s", human_count(text, median));
  }
  fprintf(out, "</li>\n</ul>\n");
}

/* ---- panels ---- */

static void print_panel(FILE *out, const char *title, const char *more, const ChartLine *lines, int n, bool from_zero)
{
  fprintf(out, "<div class=\"panel\"><h3>%s <span>%s</span></h3>\n", title, more);
  chart_lines(out, title, lines, n, from_zero);
  fprintf(out, "</div>\n");
}

static void print_lines_legend(FILE *out, const ChartLine *lines, int n)
{
  fprintf(out, "<ul class=\"legend\">");
  for (int i = 0; i < n; i++) {
    char style[48];
    snprintf(style, sizeof style, "style=\"fill:var(--s%d)\"", lines[i].colour);
    page_key(out, style, lines[i].name);
  }
  fprintf(out, "</ul>\n");
}

static void print_curves(Arena *arena, const Report *r, FILE *out)
{
  const RunLog *log = &r->log;
#define COLUMN(field, name, colour) column(arena, log, offsetof(LogStep, field), name, colour)
  ChartLine losses[2] = {COLUMN(loss, "training", 0), {.name = "held out", .colour = 4, .dots = true}};
  const ChartLine rate = COLUMN(rate, "tokens/s", 6), ms = COLUMN(ms, "ms", 2);
  const ChartLine others[] = {COLUMN(grad, "gradient norm", 0), COLUMN(lr, "learning rate", 2),
                              COLUMN(balance, "balance loss", 4), COLUMN(fullest, "fullest expert, over the mean", 4),
                              COLUMN(dropped, "pairs dropped", 5)};
#undef COLUMN
  int64_t *steps = arena_new_array(arena, int64_t, (size_t)log->n_evals + 1);
  double *values = arena_new_array(arena, double, (size_t)log->n_evals + 1);
  for (int i = 0; i < log->n_evals; i++) {
    steps[i] = log->evals[i].step;
    values[i] = log->evals[i].loss;
  }
  losses[1].n = log->n_evals;
  losses[1].steps = steps;
  losses[1].values = values;
  print_facts(r, &losses[0], &rate, &ms, out);
  fprintf(
      out,
      "<h2>Over the steps</h2>\n<p class=\"lead\">Of many steps the mean of neighbours, with a band from the least to "
      "the greatest. A red mark: not finite.</p>\n");
  print_lines_legend(out, losses, log->n_evals ? 2 : 1);
  fprintf(out, "<div class=\"grid\">\n");
  if (!log->rehearsal) {
    print_panel(out, "Loss", "nats per token", losses, log->n_evals ? 2 : 1, false);
  }
  if (any_finite(&rate)) {
    print_panel(out, "Tokens per second", "of all ranks", &rate, 1, true);
  }
  print_panel(out, "Step time", "ms", &ms, 1, true);
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    if (any_finite(&others[i])) {
      print_panel(out, others[i].name, "", &others[i], 1, i > 0);
    }
  }
  fprintf(out, "</div>\n");
}

static void print_load(const Report *r, FILE *out)
{
  const LogLoad *load = &r->log.load;
  if (!load->layers) {
    return;
  }
  double dropped = 0;
  for (size_t i = 0; load->dropped && i < (size_t)load->layers * (size_t)load->experts; i++) {
    dropped += load->dropped[i];
  }
  fprintf(out,
          "<h2>Load of the experts</h2>\n<p class=\"lead\">Tokens that chose an expert in step %" PRId64
          ", over the mean of its layer: pale for few, blue for the mean, by green and yellow to red for three times "
          "the mean. %.0f pairs "
          "of token and "
          "expert were dropped.</p>\n<div class=\"scroll\">",
          load->step, dropped);
  chart_load(out, load);
  fprintf(out, "</div>\n");
}

static void print_kinds(const Report *r, FILE *out)
{
  ChartPair pairs[MOE_OP_COUNT];
  int n = 0;
  for (int k = 0; k < MOE_OP_COUNT; k++) {
    if (r->measured.kind_n[k] || r->predicted.kind_n[k]) {
      pairs[n++] = (ChartPair){moe_op_name((MoeOpKind)k), r->measured.n ? r->measured.kind_ns[k] : (double)NAN,
                               r->predicted.n ? r->predicted.kind_ns[k] : (double)NAN};
    }
  }
  fprintf(
      out,
      "<h2>Time by kind of op</h2>\n<p class=\"lead\">Of the traced step, summed over the groups, of each the mean of "
      "its ranks. A SEND counts how long it queued, a RECV from when its sender was ready.</p>\n<ul class=\"legend\">");
  if (r->measured.n) {
    page_key(out, "class=\"compute\"", "measured");
  }
  if (r->predicted.n) {
    page_key(out, "class=\"overlapped\"", "predicted");
  }
  fprintf(out, "</ul>\n<div class=\"grid\"><div class=\"panel\">");
  chart_pairs(out, "time by kind of op", pairs, n);
  fprintf(out, "</div></div>\n");
}

static void print_timelines(Arena *arena, const Report *r, FILE *out)
{
  Timeline t;
  char first[HUMAN_MAX], second[HUMAN_MAX];
  int left_out = run_trace_timeline(arena, r->measured.n ? &r->measured : NULL, r->predicted.n ? &r->predicted : NULL,
                                    MOST_LANES, MOST_RECTS, &t);
  fprintf(out, "<h2>Timeline</h2>\n<p class=\"lead\">");
  if (r->measured.n) {
    fprintf(out, "The traced step as measured, %s. ", human_time(first, (double)r->measured.step_ns));
  }
  if (r->predicted.n) {
    fprintf(out, "The step as modelled, %s%s. ", human_time(second, (double)r->predicted.step_ns),
            r->measured.n ? ", above the ranks of each group" : "");
  }
  fprintf(out, "Rows: compute, sending, receiving. The wheel zooms, dragging moves, a double click shows all.</p>\n");
  if (left_out) {
    fprintf(out, "<p class=\"note\">%d rows are left out: the first ranks of the first groups stand for all.</p>\n",
            left_out);
  }
  page_begin_controls(out);
  fprintf(out, "<option value=\"0\">one step</option>");
  page_end_controls(out);
  page_begin_timelines(out);
  page_timeline(out, 0,
                r->measured.n && r->predicted.n ? "measured over predicted"
                : r->measured.n                 ? "measured"
                                                : "predicted",
                0, &t);
  page_end_timelines(out);
}

bool report_print(Arena *arena, Diag *diag, const Report *r, const char *home, FILE *out)
{
  bool ok = page_begin(arena, diag, home, r->name, "report of a run", out);
  fprintf(out, "<h1>");
  page_text(out, r->name);
  fprintf(out, "</h1>\n");
  print_curves(arena, r, out);
  print_load(r, out);
  if (r->measured.n || r->predicted.n) {
    print_kinds(r, out);
    print_timelines(arena, r, out);
  }
  return page_end(arena, diag, home, out) && ok;
}
