/* The roofline over a spec's shapes: FLOP/s that a rank can reach against its FLOP per network byte, both logarithmic.
   One roof per side, drawn for the first shape; a point per shape and side. */
#include <math.h>
#include <string.h>

#include "codegen/human.h"
#include "codegen/plan_explain.h"

enum { WIDTH = 860, HEIGHT = 460, LEFT = 92, RIGHT = 24, TOP = 64, BOTTOM = 52 };

static const char *const colours[] = {"#2f6fde", "#d9722a"}; /* attention, FFN */

/* Decades that the picture spans. */
typedef struct Frame {
  double x0, x1, y0, y1; /* log10 */
} Frame;

static double px(const Frame *f, double intensity)
{
  return LEFT + (log10(intensity) - f->x0) / (f->x1 - f->x0) * (WIDTH - LEFT - RIGHT);
}

static double py(const Frame *f, double flops)
{
  return HEIGHT - BOTTOM - (log10(flops) - f->y0) / (f->y1 - f->y0) * (HEIGHT - TOP - BOTTOM);
}

static void escape(FILE *out, const char *text)
{
  for (; *text; text++) {
    if (*text == '<' || *text == '>' || *text == '&') {
      fprintf(out, "&#%d;", *text);
    } else {
      fputc(*text, out);
    }
  }
}

/* What a rank reaches: its FLOPs over the longer of compute and network. */
static double reached(const SideView *v)
{
  return v->flops / fmax(v->compute_ns, v->network_ns) * 1e9;
}

static void widen(double *low, double *high, double value)
{
  *low = fmin(*low, log10(value));
  *high = fmax(*high, log10(value));
}

static Frame frame_of(const SideView *views, int n)
{
  Frame f = {INFINITY, -INFINITY, INFINITY, -INFINITY};
  for (int i = 0; i < n; i++) {
    const SideView *v = &views[i];
    if (isfinite(v->intensity)) {
      widen(&f.x0, &f.x1, v->intensity);
      widen(&f.x0, &f.x1, v->turning);
      widen(&f.y0, &f.y1, reached(v));
    }
    widen(&f.y0, &f.y1, v->peak);
  }
  if (!isfinite(f.x0)) { /* no message leaves a rank anywhere */
    f.x0 = 2;
    f.x1 = 4;
  }
  f.x0 = floor(f.x0 * 2 - 0.5) / 2;
  f.x1 = ceil(f.x1 * 2 + 0.5) / 2;
  f.y0 = fmin(floor(f.y0 * 2 - 0.2) / 2, floor(f.y1) - 1);
  f.y1 = ceil(f.y1 * 4 + 0.2) / 4;
  return f;
}

/* "10K" for 10^4; a letter per three decades. */
static const char *power(char text[HUMAN_MAX], int decade)
{
  static const char *const letters[] = {"", "K", "M", "G", "T", "P", "E"};
  int letter = decade / 3, n = (int)(sizeof letters / sizeof *letters);
  if (decade < 0 || letter >= n) {
    snprintf(text, HUMAN_MAX, "1e%d", decade);
  } else {
    snprintf(text, HUMAN_MAX, "%d%s", decade % 3 == 0 ? 1 : decade % 3 == 1 ? 10 : 100, letters[letter]);
  }
  return text;
}

static void draw_axes(const Frame *f, FILE *out)
{
  char text[HUMAN_MAX];
  for (double d = ceil(f->x0 - 1e-9); d <= f->x1; d++) {
    double x = px(f, pow(10, d));
    fprintf(out, "<path d=\"M%.1f %d V%d\" stroke=\"#e3e6ea\"/>", x, TOP, HEIGHT - BOTTOM);
    fprintf(out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\" fill=\"#69727d\">%s</text>\n", x,
            HEIGHT - BOTTOM + 18, power(text, (int)d));
  }
  for (double d = ceil(f->y0 - 1e-9); d <= f->y1; d++) {
    double y = py(f, pow(10, d));
    fprintf(out, "<path d=\"M%d %.1f H%d\" stroke=\"#e3e6ea\"/>", LEFT, y, WIDTH - RIGHT);
    fprintf(out, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\" fill=\"#69727d\">%sFLOP/s</text>\n", LEFT - 6, y + 4,
            power(text, (int)d));
  }
  fprintf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">FLOP per network byte of a rank</text>\n",
          (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12);
}

/* Slope of the network up to the turning point, then the peak. */
static void draw_roof(const Frame *f, const SideView *v, int colour, FILE *out)
{
  double left = fmax(pow(10, f->x0), pow(10, f->y0) / v->rate), turn = v->turning;
  if (!isfinite(v->intensity)) {
    return;
  }
  fprintf(out,
          "<path d=\"M%.1f %.1f L%.1f %.1f H%d\" fill=\"none\" stroke=\"%s\" stroke-width=\"1.5\"%s/>\n"
          "<path d=\"M%.1f %.1f V%d\" stroke=\"%s\" stroke-dasharray=\"2 4\"/>\n",
          px(f, left), py(f, left * v->rate), px(f, turn), py(f, v->peak), WIDTH - RIGHT, colours[colour],
          colour ? " stroke-dasharray=\"7 4\"" : "", px(f, turn), py(f, v->peak), HEIGHT - BOTTOM, colours[colour]);
}

/* A point, and its shape's name where no name of an earlier one stands. */
static void draw_point(const Frame *f, const SideView *views, const Plan *plans, int at, int step, int colour,
                       FILE *out)
{
  const SideView *v = &views[at];
  const char *shape = plans[at / step].shape->name;
  char flops[HUMAN_MAX], ratio[HUMAN_MAX];
  if (!isfinite(v->intensity)) {
    return;
  }
  double x = px(f, v->intensity), y = py(f, reached(v));
  int line = 0;
  for (int i = at - step; i >= 0; i -= step) {
    double dx = px(f, views[i].intensity) - x, dy = py(f, reached(&views[i])) - y;
    line += fabs(dx) < 40 && fabs(dy) < 12;
  }
  fprintf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4.5\" fill=\"%s\"><title>", x, y, colours[colour]);
  escape(out, shape);
  fprintf(out, ", %s: %s FLOP/byte, %sFLOP/s, bound by %s</title></circle>", plan_role_name(v->role),
          human_count(ratio, v->intensity), human_count(flops, reached(v)),
          v->compute_ns >= v->network_ns ? "compute" : "the network");
  fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" font-size=\"11\" fill=\"%s\">", x + 7,
          y + (colour ? 14 + 12 * line : -6 - 12 * line), colours[colour]);
  escape(out, shape);
  fprintf(out, "</text>\n");
}

static void draw_legend(const SideView *views, int sides, FILE *out)
{
  static const char *const names[] = {"attention", "FFN"};
  for (int s = 0; s < sides; s++) {
    char turn[HUMAN_MAX];
    int x = LEFT + 330 * s;
    fprintf(out,
            "<circle cx=\"%d\" cy=\"46\" r=\"4.5\" fill=\"%s\"/><text x=\"%d\" y=\"50\">%s: turning point %s "
            "FLOP/byte of %s</text>\n",
            x + 5, colours[s], x + 16, sides == 1 ? "attention and FFN" : names[s], human_count(turn, views[s].turning),
            views[s].nic ? "NIC" : "NVLink");
  }
}

void plan_roofline_svg(const Spec *spec, const Plan *plans, int n, FILE *out)
{
  Arena *arena = arena_new();
  SideView *views = arena_new_array(arena, SideView, 2 * (size_t)n);
  int sides = plans[0].groups[0].role == (PLAN_A | PLAN_F) ? 1 : 2;
  for (int i = 0; i < n; i++) {
    views[sides * i] = plan_side(spec, &plans[i], PLAN_A);
    if (sides == 2) {
      views[sides * i + 1] = plan_side(spec, &plans[i], PLAN_F);
    }
  }
  Frame f = frame_of(views, sides * n);
  fprintf(out,
          "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
          "font-family=\"system-ui, sans-serif\" font-size=\"12\" fill=\"#1b2026\">\n"
          "<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n"
          "<text x=\"%d\" y=\"24\"><tspan font-weight=\"bold\">",
          WIDTH, HEIGHT, WIDTH, HEIGHT, LEFT);
  escape(out, spec->model.name);
  fprintf(out, "</tspan>, %s: roofs of a rank, forward and backward of one layer</text>\n",
          plan_system_name(plans[0].system));
  draw_legend(views, sides, out);
  draw_axes(&f, out);
  for (int s = 0; s < sides; s++) {
    draw_roof(&f, &views[s], s, out);
  }
  for (int i = 0; i < n; i++) {
    for (int s = 0; s < sides; s++) {
      draw_point(&f, views, plans, sides * i + s, sides, s, out);
    }
  }
  fprintf(out, "</svg>\n");
  arena_free(arena);
}
