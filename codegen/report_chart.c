/* Charts of a run's report as inline SVG. Lengths are in the units of the viewBox; colours are the style sheet's. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "codegen/human.h"
#include "codegen/page.h"
#include "codegen/report.h"

enum { WIDTH = 420, TALL = 220, SIDE = 58, RIGHT = 10, ABOVE = 10, BELOW = 26, BUCKETS = 300 };

/* ---- lines ---- */

typedef struct Axes {
  int64_t first, last; /* steps */
  double low, high;    /* values, or their logarithms */
  bool log;
} Axes;

static double x_of(const Axes *a, double step)
{
  double span = a->last > a->first ? (double)(a->last - a->first) : 1;
  return SIDE + (WIDTH - SIDE - RIGHT) * (step - (double)a->first) / span;
}

static double y_of(const Axes *a, double value)
{
  double v = a->log ? log10(value) : value;
  double part = a->high > a->low ? (v - a->low) / (a->high - a->low) : 0.5;
  return ABOVE + (TALL - ABOVE - BELOW) * (1 - part);
}

static Axes axes_of(const ChartLine *lines, int n, bool from_zero)
{
  Axes a = {INT64_MAX, INT64_MIN, INFINITY, -INFINITY, false};
  for (int k = 0; k < n; k++) {
    for (int i = 0; i < lines[k].n; i++) {
      double v = lines[k].values[i];
      a.first = lines[k].steps[i] < a.first ? lines[k].steps[i] : a.first;
      a.last = lines[k].steps[i] > a.last ? lines[k].steps[i] : a.last;
      a.low = isfinite(v) && v < a.low ? v : a.low;
      a.high = isfinite(v) && v > a.high ? v : a.high;
    }
  }
  if (a.high < a.low) { /* nothing finite */
    a.low = 0;
    a.high = 1;
  }
  a.log = !from_zero && a.low > 0 && a.high / a.low > 100;
  if (a.log) {
    a.low = log10(a.low);
    a.high = log10(a.high);
  }
  a.low = from_zero && a.low > 0 ? 0 : a.low;
  double margin = a.high > a.low ? 0.04 * (a.high - a.low) : a.high != 0 ? fabs(a.high) * 0.1 : 1;
  a.high += margin;
  a.low -= from_zero && a.low >= 0 ? 0 : margin;
  return a;
}

/* Three digits: the value of a line or a tick. */
static const char *tick(char text[HUMAN_MAX], double v)
{
  if (fabs(v) >= 1e3 && fabs(v) < 1e15) {
    return human_count(text, v);
  }
  snprintf(text, HUMAN_MAX, "%.3g", v);
  return text;
}

static void draw_axes(FILE *out, const Axes *a)
{
  char text[HUMAN_MAX];
  for (int i = 0; i <= 4; i++) {
    double v = a->low + (a->high - a->low) * i / 4, y = ABOVE + (TALL - ABOVE - BELOW) * (1 - i / 4.0);
    fprintf(out,
            "<line class=\"axis\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/><text class=\"faint\" x=\"%d\" "
            "y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
            SIDE, WIDTH - RIGHT, y, y, SIDE - 6, y + 4, tick(text, a->log ? pow(10, v) : v));
  }
  for (int i = 0; i <= (a->last > a->first ? 4 : 0); i++) {
    double step = (double)a->first + floor((double)(a->last - a->first) * i / 4);
    fprintf(out, "<text class=\"soft\" x=\"%.1f\" y=\"%d\" text-anchor=\"%s\">%s</text>\n", x_of(a, step), TALL - 8,
            i == 4 ? "end" : "middle", tick(text, step));
  }
}

/* Points that share a part of the x axis. */
typedef struct Bucket {
  double step, sum, least, most; /* step: mean */
  int n, wrong;                  /* points; of them not finite */
} Bucket;

static int fill_buckets(const Axes *a, const ChartLine *line, Bucket buckets[BUCKETS])
{
  memset(buckets, 0, BUCKETS * sizeof *buckets);
  double span = (double)(a->last - a->first) + 1;
  int n = 0, before = -1;
  for (int i = 0; i < line->n; i++) {
    int part = line->n <= BUCKETS ? i : (int)(BUCKETS * (double)(line->steps[i] - a->first) / span);
    if (part != before) {
      before = part;
      buckets[n++] = (Bucket){.least = INFINITY, .most = -INFINITY};
    }
    Bucket *b = &buckets[n - 1];
    double v = line->values[i];
    b->step += ((double)line->steps[i] - b->step) / ++b->n;
    if (isfinite(v)) {
      b->sum += v;
      b->least = fmin(b->least, v);
      b->most = fmax(b->most, v);
    } else {
      b->wrong++;
    }
  }
  return n;
}

static double mean_of(const Bucket *b)
{
  return b->sum / (b->n - b->wrong);
}

static void draw_line(FILE *out, const Axes *a, const ChartLine *line)
{
  Bucket buckets[BUCKETS];
  char text[HUMAN_MAX];
  int n = fill_buckets(a, line, buckets);
  for (int begin = 0, end; begin < n; begin = end + 1) { /* pieces between gaps */
    for (end = begin; end < n && buckets[end].n > buckets[end].wrong; end++) {
    }
    if (end - begin > 0 && line->n > BUCKETS) {
      fprintf(out, "<path style=\"fill:var(--s%d)\" opacity=\"0.22\" d=\"", line->colour);
      for (int i = begin; i < end; i++) {
        fprintf(out, "%c%.1f %.1f", i == begin ? 'M' : 'L', x_of(a, buckets[i].step), y_of(a, buckets[i].most));
      }
      for (int i = end - 1; i >= begin; i--) {
        fprintf(out, "L%.1f %.1f", x_of(a, buckets[i].step), y_of(a, buckets[i].least));
      }
      fprintf(out, "Z\"/>\n");
    }
    if (end - begin > 0) {
      fprintf(out, "<path style=\"stroke:var(--s%d)\" fill=\"none\" stroke-width=\"1.6\" d=\"", line->colour);
      for (int i = begin; i < end; i++) {
        fprintf(out, "%c%.1f %.1f", i == begin ? 'M' : 'L', x_of(a, buckets[i].step), y_of(a, mean_of(&buckets[i])));
      }
      fprintf(out, "\"/>\n");
    }
    for (int i = begin; i < end && (line->dots || end - begin == 1); i++) {
      fprintf(
          out,
          "<circle style=\"fill:var(--s%d)\" cx=\"%.1f\" cy=\"%.1f\" r=\"2.6\"><title>step %.0f: %s</title></circle>\n",
          line->colour, x_of(a, buckets[i].step), y_of(a, mean_of(&buckets[i])), buckets[i].step,
          tick(text, mean_of(&buckets[i])));
    }
  }
  for (int i = 0; i < n; i++) {
    if (buckets[i].wrong) {
      fprintf(out,
              "<line class=\"limit\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"><title>near step %.0f: %d not "
              "finite</title></line>\n",
              x_of(a, buckets[i].step), x_of(a, buckets[i].step), TALL - BELOW - 6, TALL - BELOW, buckets[i].step,
              buckets[i].wrong);
    }
  }
}

static void begin_svg(FILE *out, int width, int height, const char *label)
{
  fprintf(out, "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"", width, height);
  page_text(out, label);
  fprintf(out, "\">\n");
}

void chart_lines(FILE *out, const char *label, const ChartLine *lines, int n, bool from_zero)
{
  Axes a = axes_of(lines, n, from_zero);
  begin_svg(out, WIDTH, TALL, label);
  draw_axes(out, &a);
  for (int k = 0; k < n; k++) {
    draw_line(out, &a, &lines[k]);
  }
  fprintf(out, "</svg>\n");
}

/* ---- bars ---- */

enum { LABELS = 104, VALUES = 66, ROW = 34, BARS = WIDTH - LABELS - VALUES };

static void draw_bar(FILE *out, const char *class, double y, double ns, double most, const char *what)
{
  char text[HUMAN_MAX];
  if (!isfinite(ns)) {
    return;
  }
  double w = most > 0 ? BARS * ns / most : 0;
  fprintf(out,
          "<rect class=\"%s\" x=\"%d\" y=\"%.1f\" width=\"%.2f\" height=\"9\"><title>%s %s</title></rect><text "
          "class=\"soft\" x=\"%.2f\" y=\"%.1f\">%s</text>\n",
          class, LABELS, y, w, what, human_time(text, ns), LABELS + w + 5, y + 8.5, text);
}

void chart_pairs(FILE *out, const char *label, const ChartPair *pairs, int n)
{
  double most = 0;
  for (int i = 0; i < n; i++) {
    most = fmax(most, fmax(pairs[i].first, pairs[i].second)); /* fmax leaves NaN out */
  }
  begin_svg(out, WIDTH, n * ROW + 4, label);
  for (int i = 0; i < n; i++) {
    fprintf(out, "<text x=\"0\" y=\"%d\">", i * ROW + 20);
    page_text(out, pairs[i].name);
    fprintf(out, "</text>");
    draw_bar(out, "compute", i * ROW + 3, pairs[i].first, most, "measured");
    draw_bar(out, "overlapped", i * ROW + 16, pairs[i].second, most, "predicted");
  }
  fprintf(out, "</svg>\n");
}

/* ---- the load of experts ---- */

enum { MOST_ROWS = 96, MOST_COLUMNS = 192, LEVELS = 12, MAP_WIDTH = 860 };

/* 0: nobody came; the mean is a third of the way; the last is three times the mean or more. */
static int level_of(double over_mean)
{
  int level = (int)(over_mean * (LEVELS - 1) / 3 + 0.5);
  return level < LEVELS ? level : LEVELS - 1;
}

static double mean_tokens(const LogLoad *load, int layer)
{
  double sum = 0;
  for (int e = 0; e < load->experts; e++) {
    sum += load->tokens[(size_t)layer * (size_t)load->experts + (size_t)e];
  }
  return sum / load->experts;
}

/* Greatest load over the mean in a part of the map. */
static double fullest_of(const LogLoad *load, const double *means, int row, int rows, int column, int columns)
{
  double most = 0;
  for (int l = (int)((int64_t)row * load->layers / rows); l < (int)((int64_t)(row + 1) * load->layers / rows); l++) {
    for (int e = (int)((int64_t)column * load->experts / columns);
         e < (int)((int64_t)(column + 1) * load->experts / columns); e++) {
      double tokens = load->tokens[(size_t)l * (size_t)load->experts + (size_t)e];
      most = fmax(most, means[l] > 0 ? tokens / means[l] : 0);
    }
  }
  return most;
}

void chart_load(FILE *out, const LogLoad *load)
{
  int rows = load->layers < MOST_ROWS ? load->layers : MOST_ROWS;
  int columns = load->experts < MOST_COLUMNS ? load->experts : MOST_COLUMNS;
  int side = (MAP_WIDTH - SIDE) / columns < 18 ? (MAP_WIDTH - SIDE) / columns : 18, tall = side > 8 ? side : 8;
  Arena *scratch = arena_new();
  double *means = arena_new_array(scratch, double, (size_t)load->layers + 1);
  for (int l = 0; l < load->layers; l++) {
    means[l] = mean_tokens(load, l);
  }
  int width = SIDE + columns * side + RIGHT, height = rows * tall + 34;
  fprintf(out,
          "<svg width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"tokens of every expert, by "
          "layer\">\n",
          width, height, width, height);
  for (int level = 0; level < LEVELS; level++) { /* one path for all cells of a colour */
    fprintf(out, "<path style=\"fill:hsl(%d 75%% 50%%)\" opacity=\"%.2f\" d=\"M0 0",
            level <= LEVELS / 3 ? 215 : 215 - 30 * (level - LEVELS / 3), 0.06 + 0.94 * level / (LEVELS - 1));
    for (int r = 0; r < rows; r++) {
      for (int c = 0; c < columns; c++) {
        if (level_of(fullest_of(load, means, r, rows, c, columns)) == level) {
          fprintf(out, "M%d %dh%dv%dh-%dz", SIDE + c * side, r * tall, side, tall, side);
        }
      }
    }
    fprintf(out, "\"/>\n");
  }
  int every = (rows * tall + 299) / 300 * 18 / tall + 1;
  for (int r = 0; r < rows; r += every) {
    fprintf(out, "<text class=\"soft\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%d</text>\n", SIDE - 6,
            (r + 0.5) * tall + 4, (int)((int64_t)r * load->layers / rows));
  }
  for (int c = 0; c < columns; c += (columns + 15) / 16) {
    fprintf(out, "<text class=\"soft\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%d</text>\n", SIDE + (c + 0.5) * side,
            rows * tall + 16, (int)((int64_t)c * load->experts / columns));
  }
  fprintf(out, "<text class=\"faint\" x=\"0\" y=\"%d\">layer with experts / expert</text></svg>\n", rows * tall + 30);
  arena_free(scratch);
}
