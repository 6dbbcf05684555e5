/* What pages have in common: one file with everything in it, which asks for nothing over the network and is well-formed
   XML as well as HTML. Timelines are data that page.js draws. */
#include <inttypes.h>

#include "codegen/output.h"
#include "codegen/page.h"

/* A file of ours, whole. */
static bool copy_file(Arena *arena, Diag *diag, const char *home, const char *name, FILE *out)
{
  const char *path = arena_printf(arena, "%s/codegen/%s", home, name);
  FILE *in = fopen(path, "rb");
  char block[4096];
  if (!in) {
    return output_fail(diag, "read", path);
  }
  for (size_t got; (got = fread(block, 1, sizeof block, in)) > 0;) {
    fwrite(block, 1, got, out);
  }
  bool ok = !ferror(in);
  fclose(in);
  return ok || output_fail(diag, "read", path);
}

bool page_begin(Arena *arena, Diag *diag, const char *home, const char *name, const char *what, FILE *out)
{
  fprintf(out, "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\n"
               "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>");
  page_text(out, name);
  fprintf(out, ": %s</title>\n<style>\n", what);
  bool ok = copy_file(arena, diag, home, "page.css", out);
  fprintf(out, "</style></head>\n<body>\n");
  return ok;
}

bool page_end(Arena *arena, Diag *diag, const char *home, FILE *out)
{
  fprintf(out, "<script>//<![CDATA[\n");
  bool ok = copy_file(arena, diag, home, "page.js", out);
  fprintf(out, "//]]></script>\n</body></html>\n");
  return ok;
}

void page_key(FILE *out, const char *style, const char *name)
{
  fprintf(out,
          "<li><svg viewBox=\"0 0 10 10\" aria-hidden=\"true\"><rect width=\"10\" height=\"10\" rx=\"2\" %s/></svg>%s"
          "</li>",
          style, name);
}

/* ---- timelines ---- */

void page_begin_controls(FILE *out)
{
  fprintf(out, "<ul class=\"legend\">");
  for (int i = 0; i < DRAW_COUNT; i++) {
    char style[32];
    snprintf(style, sizeof style, "fill=\"%s\"", draw_colour((DrawClass)i));
    page_key(out, style, draw_name((DrawClass)i));
  }
  fprintf(out, "</ul>\n<div class=\"bar\"><select id=\"where\" aria-label=\"which\">");
}

void page_end_controls(FILE *out)
{
  fprintf(out, "</select><button id=\"in\" type=\"button\">zoom in</button><button id=\"out\" type=\"button\">zoom "
               "out</button><button id=\"first\" type=\"button\">first 5 %%</button><button id=\"last\" "
               "type=\"button\">last 5 %%</button><button id=\"all\" type=\"button\">all</button></div>\n"
               "<div id=\"lanes\"></div><div id=\"tip\" role=\"tooltip\"></div>\n");
}

void page_begin_timelines(FILE *out)
{
  fprintf(out, "<script type=\"application/json\" id=\"timelines\">{\"classes\":[");
  for (int i = 0; i < DRAW_COUNT; i++) {
    fprintf(out, "%s[\"%s\",\"%s\"]", i ? "," : "", draw_name((DrawClass)i), draw_colour((DrawClass)i));
  }
  fprintf(out, "],\n\"rows\":[");
}

static void print_lane(const DrawLane *lane, double unit, FILE *out)
{
  int64_t at = 0;
  fputc('[', out);
  for (int i = 0; i < lane->n; i++) {
    const DrawRect *r = &lane->rects[i];
    int64_t begin = (int64_t)((double)r->begin / unit), end = (int64_t)((double)r->end / unit);
    fprintf(out, "%s%" PRId64 ",%" PRId64 ",%d,%d,%d", i ? "," : "", begin - at, end > begin ? end - begin : 1, r->kind,
            r->layer, r->n > 1 ? r->n : r->mb);
    at = begin;
  }
  fputc(']', out);
}

void page_timeline(FILE *out, int number, const char *title, int where, const Timeline *t)
{
  double unit = t->step_ns > 2000000 ? (double)t->step_ns / 1e6 : 1;
  fprintf(out,
          "%s{\"title\":\"%s\",\"where\":%d,\"step\":%" PRId64 ",\"unit\":%.6g,\"joined\":%" PRId64 ",\"groups\":[",
          number ? ",\n" : "\n", title, where, t->step_ns, unit, t->joined_ns);
  for (int g = 0; g < t->n_groups; g++) {
    fprintf(out, "%s\"%s\"", g ? "," : "", t->names[g]);
  }
  fprintf(out, "],\"lanes\":[");
  for (int l = 0; l < t->n_groups * LANES; l++) {
    fputs(l ? ",\n" : "", out);
    print_lane(&t->lanes[l], unit, out);
  }
  fprintf(out, "]}");
}

void page_end_timelines(FILE *out)
{
  fprintf(out, "\n]}</script>\n");
}
