/* Charts as inline SVG. Lengths are in the units of the viewBox; colours are the style sheet's. */
#include <math.h>
#include <string.h>

#include "codegen/human.h"
#include "codegen/page.h"

enum { WIDTH = 420, LABELS = 112, VALUES = 66, ROW = 24, BARS = WIDTH - LABELS - VALUES };

void page_text(FILE *out, const char *text)
{
  for (const char *p = text; *p; p++) {
    unsigned char c = (unsigned char)*p;
    if (c == '<' || c == '>' || c == '&' || c == '"') {
      fprintf(out, "&#%d;", c);
    } else {
      fputc(c < 32 || c == 127 ? ' ' : c, out);
    }
  }
}

static void begin_bars(FILE *out, const Comparison *c, const char *label)
{
  fprintf(out, "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"", WIDTH, c->n_systems * ROW + 4);
  page_text(out, label);
  fprintf(out, "\">\n");
}

/* A line from top to bottom, behind what is drawn later. */
static void upright(FILE *out, const Comparison *c, const char *class, double x)
{
  fprintf(out, "<line class=\"%s\" x1=\"%.2f\" x2=\"%.2f\" y1=\"0\" y2=\"%d\"/>\n", class, x, x,
          c->n_systems * ROW + 4);
}

static double top_of(int system)
{
  return 2 + system * ROW;
}

/* The system's name, and its reason where it has no bar. Returns whether it has one. */
static bool begin_row(FILE *out, const CompareRow *row, int k)
{
  fprintf(out, "<text x=\"0\" y=\"%.1f\">%s</text>", top_of(k) + 15, plan_system_name(row->system));
  if (row->ran) {
    return true;
  }
  enum { MOST = 38 };
  char text[MOST + 4];
  size_t n = strlen(row->reason);
  snprintf(text, sizeof text, "%.*s%s", MOST, row->reason, n > MOST ? "..." : "");
  fprintf(out, "<text class=\"faint\" x=\"%d\" y=\"%.1f\"><title>", LABELS, top_of(k) + 15);
  page_text(out, row->reason);
  fprintf(out, "</title>");
  page_text(out, text);
  fprintf(out, "</text>\n");
  return false;
}

static void rect(FILE *out, const char *class, double x, double y, double w, double h, const char *title)
{
  fprintf(out, "<rect class=\"%s\" x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\"><title>", class, x, y,
          w > 0 ? w : 0, h);
  page_text(out, title);
  fprintf(out, "</title></rect>");
}

static void value(FILE *out, double x, int k, const char *text)
{
  fprintf(out, "<text class=\"soft\" x=\"%.2f\" y=\"%.1f\">", x + 6, top_of(k) + 15);
  page_text(out, text);
  fprintf(out, "</text>\n");
}

/* The step that speeds are measured against: megatron's, else the slowest. */
static double base_step(const Comparison *c, int point, int shape)
{
  double base = 0;
  for (int k = 0; k < c->n_systems; k++) {
    const CompareRow *row = compare_row(c, point, shape, k);
    double step = row->metrics.whole.step_ns;
    if (row->ran && row->system == SYSTEM_MEGATRON) {
      return step;
    }
    base = row->ran && step > base ? step : base;
  }
  return base;
}

void chart_speed(FILE *out, const Comparison *c, int point, int shape)
{
  double base = base_step(c, point, shape), most = 1;
  for (int k = 0; k < c->n_systems; k++) {
    const CompareRow *row = compare_row(c, point, shape, k);
    most = row->ran ? fmax(most, base / row->metrics.whole.step_ns) : most;
  }
  begin_bars(out, c, "speed of each system");
  upright(out, c, "one", LABELS + BARS / most);
  for (int k = 0; k < c->n_systems; k++) {
    const CompareRow *row = compare_row(c, point, shape, k);
    if (!begin_row(out, row, k)) {
      continue;
    }
    char text[HUMAN_MAX], step[HUMAN_MAX];
    double speed = base / row->metrics.whole.step_ns, w = BARS * speed / most;
    snprintf(text, sizeof text, "%.2fx", speed);
    fprintf(out,
            "<rect style=\"fill:var(--s%d)\" x=\"%d\" y=\"%.2f\" width=\"%.2f\" height=\"14\" rx=\"2\"><title>%s: %s"
            "</title></rect>",
            (int)row->system % 8, LABELS, top_of(k) + 4, w, plan_system_name(row->system),
            human_time(step, row->metrics.whole.step_ns));
    value(out, LABELS + w, k, text);
  }
  fprintf(out, "</svg>\n");
}

void chart_times(FILE *out, const Comparison *c, int point, int shape)
{
  double most = 0;
  for (int k = 0; k < c->n_systems; k++) {
    most = fmax(most, compare_row(c, point, shape, k)->metrics.whole.step_ns);
  }
  begin_bars(out, c, "where the step of each system goes");
  for (int k = 0; k < c->n_systems; k++) {
    const CompareRow *row = compare_row(c, point, shape, k);
    if (!begin_row(out, row, k)) {
      continue;
    }
    static const char *const classes[] = {"compute", "exposed", "bubble"};
    static const char *const names[] = {"compute", "exposed communication", "bubble"};
    const TimeSplit *w = &row->metrics.whole;
    const double parts[] = {w->compute_ns, w->exposed_ns, w->bubble_ns};
    double x = LABELS, scale = BARS / most;
    char text[HUMAN_MAX], title[96];
    for (int i = 0; i < 3; i++) {
      snprintf(title, sizeof title, "%s: %s, %.1f %% of the step", names[i], human_time(text, parts[i]),
               100 * parts[i] / w->step_ns);
      rect(out, classes[i], x, top_of(k) + 3, parts[i] * scale, 11, title);
      x += parts[i] * scale;
    }
    snprintf(title, sizeof title, "overlapped communication: %s, %.1f %% of the step",
             human_time(text, w->overlapped_ns), 100 * w->overlapped_ns / w->step_ns);
    rect(out, "overlapped", LABELS, top_of(k) + 15, w->overlapped_ns * scale, 4, title);
    value(out, x, k, human_time(text, w->step_ns));
  }
  fprintf(out, "</svg>\n");
}

void chart_memory(FILE *out, const Comparison *c, int point, int shape)
{
  double limit = 0, most = 0;
  for (int k = 0; k < c->n_systems; k++) {
    const Metrics *m = &compare_row(c, point, shape, k)->metrics;
    limit = fmax(limit, (double)m->memory_limit);
    most = fmax(most, (double)m->peak_memory);
  }
  most = fmax(most, limit);
  begin_bars(out, c, "memory of the fullest rank of each system");
  if (limit > 0) {
    upright(out, c, "limit", LABELS + BARS * limit / most);
  }
  for (int k = 0; k < c->n_systems; k++) {
    const CompareRow *row = compare_row(c, point, shape, k);
    if (!begin_row(out, row, k)) {
      continue;
    }
    char text[HUMAN_MAX], title[96];
    double bytes = (double)row->metrics.peak_memory, w = BARS * bytes / most;
    snprintf(title, sizeof title, "%.1f %% of the GPU's memory", 100 * bytes / (double)row->metrics.memory_limit);
    rect(out, "compute", LABELS, top_of(k) + 4, w, 14, title);
    value(out, LABELS + w, k, human_bytes(text, bytes));
  }
  fprintf(out, "</svg>\n");
}

/* ---- lines ---- */

enum { TALL = 250, SIDE = 52, ABOVE = 12, BELOW = 34 };

/* A round number at or above x: 1, 2, 2.5 or 5 times a power of ten. */
static double round_up(double x)
{
  static const double steps[] = {1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10};
  double power = pow(10, floor(log10(x > 0 ? x : 1)));
  for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
    if (steps[i] * power >= x * (1 - 1e-9)) {
      return steps[i] * power;
    }
  }
  return 10 * power;
}

static double x_of(int first, int last, int point)
{
  double room = WIDTH - SIDE - 44;
  return SIDE + 10 + (last > first ? room * (point - first) / (last - first) : room / 2);
}

static double y_of(double v, double most)
{
  return ABOVE + (TALL - ABOVE - BELOW) * (1 - v / most);
}

static void draw_axes(FILE *out, const Comparison *c, int first, int last, double most)
{
  char text[HUMAN_MAX];
  for (int i = 0; i <= 4; i++) {
    double y = y_of(most * i / 4, most);
    fprintf(out,
            "<line class=\"axis\" x1=\"%d\" x2=\"%d\" y1=\"%.2f\" y2=\"%.2f\"/><text class=\"faint\" x=\"%d\" "
            "y=\"%.2f\" text-anchor=\"end\">%s</text>\n",
            SIDE, WIDTH, y, y, SIDE - 6, y + 4, human_count(text, most * i / 4));
  }
  int every = (last - first) / 8 + 1;
  for (int p = first; p <= last; p += every) {
    const SweepPoint *point = &c->points[p];
    fprintf(out, "<text class=\"soft\" x=\"%.2f\" y=\"%d\" text-anchor=\"middle\">", x_of(first, last, p), TALL - 14);
    for (int k = point->last_axis; k < point->n; k++) {
      fputs(k > point->last_axis ? ":" : "", out);
      page_text(out, point->values[k]);
    }
    fprintf(out, "</text>\n");
  }
}

void chart_sweep(FILE *out, const Comparison *c, int first, int last, int shape)
{
  double most = 0;
  for (int p = first; p <= last; p++) {
    for (int k = 0; k < c->n_systems; k++) {
      most = fmax(most, compare_row(c, p, shape, k)->metrics.tokens_per_s_gpu);
    }
  }
  most = round_up(most);
  fprintf(out, "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"tokens per second and GPU over the sweep\">\n",
          WIDTH, TALL);
  draw_axes(out, c, first, last, most);
  for (int k = 0; k < c->n_systems; k++) {
    int system = (int)compare_row(c, first, shape, k)->system;
    const char *command = "M";
    fprintf(out, "<path style=\"stroke:var(--s%d)\" fill=\"none\" stroke-width=\"2\" d=\"M0 0", system % 8);
    for (int p = first; p <= last; p++) {
      const CompareRow *row = compare_row(c, p, shape, k);
      if (row->ran) {
        fprintf(out, "%s%.2f %.2f", command, x_of(first, last, p), y_of(row->metrics.tokens_per_s_gpu, most));
      }
      command = row->ran ? "L" : "M";
    }
    fprintf(out, "\"/>\n");
    for (int p = first; p <= last; p++) {
      const CompareRow *row = compare_row(c, p, shape, k);
      char text[HUMAN_MAX];
      if (row->ran) {
        fprintf(out,
                "<circle style=\"fill:var(--s%d)\" cx=\"%.2f\" cy=\"%.2f\" r=\"3.2\"><title>%s: %.1f tokens/s per "
                "GPU, step %s</title></circle>\n",
                system % 8, x_of(first, last, p), y_of(row->metrics.tokens_per_s_gpu, most),
                plan_system_name(row->system), row->metrics.tokens_per_s_gpu,
                human_time(text, row->metrics.whole.step_ns));
      }
    }
  }
  fprintf(out, "</svg>\n");
}
