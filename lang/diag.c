/* The one printer of messages. A source is registered once; its line table is made when the first message points into
   it. Columns count characters, not bytes; tabs are widened to eight so that carets stand where the eye expects them.
   Long lines are shown as a window around the mistake. After MAX_SHOWN errors (or warnings) the rest is only counted.
 */
#include "lang/diag.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SHOWN = 20, TAB = 8, WINDOW = 100, LEAD = 60 };

typedef struct Source {
  const char *path, *text;
  uint32_t length;
  uint32_t *lines; /* offset of each line's first byte; NULL: not made yet */
  uint32_t n_lines;
} Source;

struct Diag {
  Arena *arena;
  FILE *out;
  Source *sources;
  uint32_t n_sources, cap_sources;
  int errors, warnings;
  bool muted; /* the last error or warning was not shown, so its notes are not either */
};

Diag *diag_new(Arena *arena, FILE *out)
{
  Diag *diag = arena_new_of(arena, Diag);
  diag->arena = arena;
  diag->out = out;
  return diag;
}

uint32_t diag_add_source(Diag *diag, const char *path, const char *text, size_t length)
{
  if (diag->n_sources == diag->cap_sources) {
    uint32_t cap = diag->cap_sources ? 2 * diag->cap_sources : 8;
    Source *bigger = arena_new_array(diag->arena, Source, cap);
    if (diag->n_sources) {
      memcpy(bigger, diag->sources, diag->n_sources * sizeof *bigger);
    }
    diag->sources = bigger;
    diag->cap_sources = cap;
  }
  if (length >= UINT32_MAX) {
    die("source of %zu bytes", length);
  }
  diag->sources[diag->n_sources++] = (Source){.path = path, .text = text, .length = (uint32_t)length};
  return diag->n_sources;
}

int diag_sources(const Diag *diag)
{
  return (int)diag->n_sources;
}

const char *diag_source_path(const Diag *diag, int i)
{
  return diag->sources[i].path;
}

static void make_lines(Diag *diag, Source *source)
{
  uint32_t n = 1;
  for (uint32_t i = 0; i < source->length; i++) {
    n += source->text[i] == '\n';
  }
  source->lines = arena_new_array(diag->arena, uint32_t, n);
  source->n_lines = n;
  uint32_t line = 1;
  for (uint32_t i = 0; i < source->length; i++) {
    if (source->text[i] == '\n') {
      source->lines[line++] = i + 1;
    }
  }
}

/* Index of the line that holds byte `at`. */
static uint32_t find_line(const Source *source, uint32_t at)
{
  uint32_t low = 0;
  uint32_t high = source->n_lines;
  while (high - low > 1) {
    uint32_t middle = low + (high - low) / 2;
    if (source->lines[middle] <= at) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

/* Bytes of the character at p, 1 for anything that is not UTF-8; *width is its columns on a terminal. */
static uint32_t char_bytes(const char *p, uint32_t left, uint32_t *width)
{
  unsigned char c = (unsigned char)*p;
  uint32_t n = c >= 0xf0 && c < 0xf8 ? 4 : c >= 0xe0 ? 3 : c >= 0xc2 ? 2 : 1;
  *width = 1;
  if (c >= 0xf8 || n > left) {
    return 1;
  }
  uint32_t code = n == 1 ? c : c & (0xffu >> (n + 1));
  for (uint32_t i = 1; i < n; i++) {
    if (((unsigned char)p[i] & 0xc0) != 0x80) {
      return 1;
    }
    code = code << 6 | ((unsigned char)p[i] & 0x3f);
  }
  if (code >= 0x300 && code <= 0x36f) {
    *width = 0;
  } else if ((code >= 0x1100 && code <= 0x115f) || (code >= 0x2e80 && code <= 0xa4cf) ||
             (code >= 0xac00 && code <= 0xd7a3) || (code >= 0xf900 && code <= 0xfaff) ||
             (code >= 0xfe30 && code <= 0xfe6f) || (code >= 0xff00 && code <= 0xff60) || code >= 0x1f300) {
    *width = 2;
  }
  return n;
}

static bool printable(const char *p, uint32_t n)
{
  unsigned char c = (unsigned char)*p;
  return n > 1 ? !(c == 0xc2 && (unsigned char)p[1] < 0xa0) : c >= 0x20 && c < 0x7f;
}

static uint32_t start_of_window(const char *line, uint32_t at, uint32_t length)
{
  uint32_t from = length > WINDOW && at > LEAD ? at - LEAD : 0;
  while (from > 0 && ((unsigned char)line[from] & 0xc0) == 0x80) {
    from--;
  }
  return from;
}

/* Prints the line and, below it, a caret at `begin` and an underline up to `end`; both are bytes within the line. */
static void show_line(FILE *out, const char *line, uint32_t length, uint32_t begin, uint32_t end)
{
  uint32_t from = start_of_window(line, begin, length);
  uint32_t to = length - from > WINDOW ? from + WINDOW : length;
  uint32_t column = 0;
  uint32_t caret = 0;
  uint32_t underline = 0;
  fputs("  ", out);
  if (from > 0) {
    fputs("...", out);
    column = 3;
  }
  for (uint32_t i = from; i < to;) {
    uint32_t width = 1;
    uint32_t n = char_bytes(line + i, length - i, &width);
    if (i <= begin) {
      caret = column;
    }
    if (line[i] == '\t') {
      width = TAB - column % TAB;
      fprintf(out, "%*s", (int)width, "");
    } else if (printable(line + i, n)) {
      fwrite(line + i, 1, n, out);
    } else {
      fputc('?', out);
      width = 1;
    }
    column += width;
    i += n;
    if (i <= end) {
      underline = column;
    }
  }
  if (begin >= to) {
    caret = column;
  }
  fprintf(out, "%s\n  %*s^", to < length ? "..." : "", (int)caret, "");
  for (uint32_t i = caret + 1; i < underline; i++) {
    fputc('~', out);
  }
  fputc('\n', out);
}

/* A format is never NULL, but under sanitizers the compiler warns of that case unless it is ruled out. */
static void print(FILE *out, const char *format, va_list args)
{
  if (format) {
    vfprintf(out, format, args);
  }
}

static void report(Diag *diag, Span span, const char *kind, const char *format, va_list args)
{
  FILE *out = diag->out;
  if (span.source == 0 || span.source > diag->n_sources) {
    fprintf(out, "moec: %s: ", kind);
    print(out, format, args);
    fputc('\n', out);
    return;
  }
  Source *source = &diag->sources[span.source - 1];
  if (!source->lines) {
    make_lines(diag, source);
  }
  uint32_t begin = span.begin < source->length ? span.begin : source->length;
  uint32_t index = find_line(source, begin);
  uint32_t start = source->lines[index];
  uint32_t stop = index + 1 < source->n_lines ? source->lines[index + 1] - 1 : source->length;
  if (stop > start && source->text[stop - 1] == '\r') {
    stop--;
  }
  begin = begin < stop ? begin : stop;
  uint32_t end = span.end < begin ? begin : span.end < stop ? span.end : stop;
  uint32_t column = 1;
  for (uint32_t i = start; i < begin;) {
    uint32_t width = 1;
    i += char_bytes(source->text + i, stop - i, &width);
    column++;
  }
  fprintf(out, "%s:%u:%u: %s: ", source->path, index + 1, column, kind);
  print(out, format, args);
  fputc('\n', out);
  if (stop == start) {
    return; /* nothing to see */
  }
  show_line(out, source->text + start, stop - start, begin - start, end - start);
}

void diag_error(Diag *diag, Span span, const char *format, ...)
{
  diag->errors++;
  diag->muted = diag->errors > MAX_SHOWN;
  if (diag->muted) {
    return;
  }
  va_list args;
  va_start(args, format);
  report(diag, span, "error", format, args);
  va_end(args);
}

void diag_warn(Diag *diag, Span span, const char *format, ...)
{
  diag->warnings++;
  diag->muted = diag->warnings > MAX_SHOWN;
  if (diag->muted) {
    return;
  }
  va_list args;
  va_start(args, format);
  report(diag, span, "warning", format, args);
  va_end(args);
}

void diag_note(Diag *diag, Span span, const char *format, ...)
{
  if (diag->muted) {
    return;
  }
  va_list args;
  va_start(args, format);
  report(diag, span, "note", format, args);
  va_end(args);
}

const char *diag_quote(Diag *diag, Span span)
{
  enum { LONGEST = 40 };
  if (span.source == 0 || span.source > diag->n_sources || span.end <= span.begin) {
    return "";
  }
  const Source *source = &diag->sources[span.source - 1];
  const char *text = source->text + span.begin;
  size_t n = (span.end < source->length ? span.end : source->length) - span.begin;
  size_t shown = n;
  if (n > LONGEST) {
    shown = LONGEST;
    while (shown > 0 && ((unsigned char)text[shown] & 0xc0) == 0x80) {
      shown--;
    }
  }
  char *quote = arena_printf(diag->arena, "'%.*s%s'", (int)shown, text, n > shown ? "..." : "");
  for (char *p = quote; *p; p++) {
    *p = (unsigned char)*p < 0x20 || *p == 0x7f ? ' ' : *p;
  }
  return quote;
}

int diag_errors(const Diag *diag)
{
  return diag->errors;
}

int diag_warnings(const Diag *diag)
{
  return diag->warnings;
}

static void count_hidden(FILE *out, int n, const char *kind)
{
  if (n > MAX_SHOWN) {
    fprintf(out, "moec: %d more %s%s not shown\n", n - MAX_SHOWN, kind, n - MAX_SHOWN > 1 ? "s" : "");
  }
}

void diag_finish(Diag *diag)
{
  count_hidden(diag->out, diag->errors, "error");
  count_hidden(diag->out, diag->warnings, "warning");
}

void die_at(const char *file, int line, const char *format, ...)
{
  va_list args;
  va_start(args, format);
  fprintf(stderr, "moec: internal fault at %s:%d: ", file, line);
  print(stderr, format, args);
  fputc('\n', stderr);
  va_end(args);
  abort();
}
