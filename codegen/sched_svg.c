/* The schedule as a picture: per group one lane each for compute, sending and receiving, time from left to right. A
   large step's neighbours of one class are drawn as one, so that the file stays small. */
#include <math.h>
#include <string.h>

#include "codegen/human.h"
#include "codegen/sched.h"
#include "codegen/timeline.h"

enum { WIDTH = 1600, LEFT = 64, RIGHT = 16, COMPUTE = 16, MESSAGE = 8, GAP = 10, TOP = 80, BOTTOM = 8, RECTS = 40000 };
enum { BLOCK = COMPUTE + 2 * MESSAGE + 2 + GAP };

static double x_of(const Timeline *t, int64_t ns)
{
  return LEFT + (double)ns * (WIDTH - LEFT - RIGHT) / (double)(t->step_ns > 0 ? t->step_ns : 1);
}

static void print_escaped(FILE *out, const char *text)
{
  for (; *text; text++) {
    if (*text == '<' || *text == '>' || *text == '&') {
      fprintf(out, "&#%d;", *text);
    } else {
      fputc(*text, out);
    }
  }
}

static void draw_legend(FILE *out)
{
  double x = LEFT;
  for (int i = 0; i < DRAW_COUNT; i++) {
    const char *name = draw_name((DrawClass)i);
    fprintf(out,
            "<rect x=\"%.0f\" y=\"32\" width=\"11\" height=\"11\" rx=\"2\" fill=\"%s\"/><text x=\"%.0f\" "
            "y=\"42\">%s</text>\n",
            x, draw_colour((DrawClass)i), x + 16, name);
    x += 40 + 6.2 * (double)strlen(name);
  }
}

/* Time in steps of 1, 2 or 5 times a power of ten, ten or so of them. */
static void draw_axis(const Timeline *t, int height, FILE *out)
{
  double rough = (double)t->step_ns / 10, power = pow(10, floor(log10(rough > 1 ? rough : 1)));
  double tick = power * (rough / power > 5 ? 10 : rough / power > 2 ? 5 : rough / power > 1 ? 2 : 1);
  char text[HUMAN_MAX];
  for (double at = 0; at <= (double)t->step_ns; at += tick) {
    double x = x_of(t, (int64_t)at);
    fprintf(out, "<path d=\"M%.2f %d V%d\" stroke=\"#e3e6ea\"/>", x, TOP - 12, height - BOTTOM);
    fprintf(out, "<text x=\"%.2f\" y=\"%d\" fill=\"#69727d\">%s</text>\n", x + 3, TOP - 16, human_time(text, at));
  }
}

static void draw_rect(const Timeline *t, const DrawRect *r, int lane, int top, FILE *out)
{
  static const int tops[LANES] = {0, COMPUTE + 1, COMPUTE + MESSAGE + 2};
  double x = x_of(t, r->begin), w = x_of(t, r->end) - x;
  char at[HUMAN_MAX], ns[HUMAN_MAX];
  const char *name = draw_name((DrawClass)r->kind);
  fprintf(out, "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\"><title>", x, top + tops[lane],
          w > 0.3 ? w : 0.3, lane == LANE_COMPUTE ? COMPUTE : MESSAGE, draw_colour((DrawClass)r->kind));
  if (r->n > 1) {
    fprintf(out, "%d ops, mostly %s", r->n, name);
  } else if (r->mb >= 0) {
    fprintf(out, "%s, layer %d, micro-batch %d", name, r->layer, r->mb);
  } else {
    fputs(name, out);
  }
  fprintf(out, ": %s at %s</title></rect>\n", human_time(ns, (double)(r->end - r->begin)),
          human_time(at, (double)r->begin));
}

void sched_print_svg(const Spec *spec, const Plan *plan, const Schedule *sched, FILE *out)
{
  Arena *arena = arena_new();
  Timeline t;
  char text[HUMAN_MAX];
  timeline_of(arena, plan, sched, RECTS, &t);
  int height = TOP + t.n_groups * BLOCK
  +BOTTOM;
  fprintf(out,
          "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
          "font-family=\"system-ui, sans-serif\" font-size=\"12\" fill=\"#1b2026\">\n"
          "<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n<text x=\"%d\" y=\"20\"><tspan "
          "font-weight=\"bold\">",
          WIDTH, height, WIDTH, height, LEFT);
  print_escaped(out, spec->model.name);
  fprintf(out, "</tspan>, %s, shape ", plan_system_name(plan->system));
  print_escaped(out, plan->shape->name);
  fprintf(out, ": a step of %s as modelled. Lanes of a group: compute, sending, receiving.</text>\n",
          human_time(text, (double)t.step_ns));
  draw_legend(out);
  for (int g = 0; g < t.n_groups; g++) {
    int top = TOP + g * BLOCK;
    fprintf(out,
            "<text x=\"8\" y=\"%d\">%s</text><rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" "
            "fill=\"#f3f4f6\"/>\n",
            top + COMPUTE - 3, t.names[g], LEFT, top, WIDTH - LEFT - RIGHT, BLOCK - GAP);
  }
  draw_axis(&t, height, out);
  for (int i = 0; i < t.n_groups * LANES; i++) {
    for (int k = 0; k < t.lanes[i].n; k++) {
      draw_rect(&t, &t.lanes[i].rects[k], i % LANES, TOP + i / LANES * BLOCK, out);
    }
  }
  fprintf(out, "</svg>\n");
  arena_free(arena);
}
