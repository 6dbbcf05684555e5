/* Diagnostics: where text came from, and the one printer of errors. A user's mistake is diag_error(); our own is die().
 */
#ifndef LANG_DIAG_H
#define LANG_DIAG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "lang/arena.h"

/* Bytes [begin, end) of one source; {0} is "nowhere". */
typedef struct Span {
  uint32_t source; /* 1-based index of the source in the Diag; 0: nowhere */
  uint32_t begin;
  uint32_t end;
} Span;

typedef struct Diag Diag;

/* Messages go to `out` (stderr for users, a buffer in tests). */
Diag *diag_new(Arena *, FILE *out);

/* Registers a text that spans may point into; the text must outlive the Diag. Returns its source number. */
uint32_t diag_add_source(Diag *, const char *path, const char *text, size_t length);

/* How many texts are registered, and what the i-th of them, from 0, was called. */
int diag_sources(const Diag *);
const char *diag_source_path(const Diag *, int i);

/* Prints "path:line:column: error: ...", the source line and a caret. A span of {0} prints "moec: error: ...". */
void diag_error(Diag *, Span, const char *format, ...) __attribute__((format(printf, 3, 4)));
void diag_warn(Diag *, Span, const char *format, ...) __attribute__((format(printf, 3, 4)));
void diag_note(Diag *, Span, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* The text of a span in quotes, shortened where it is long; "" where there is none. */
const char *diag_quote(Diag *, Span);

int diag_errors(const Diag *);
int diag_warnings(const Diag *);

/* At the end of a run: says how many errors and warnings were counted but not shown (the first 20 of each are). */
void diag_finish(Diag *);

/* A fault of moec itself: prints file, line and the text, and aborts. */
#define die(...) die_at(__FILE__, __LINE__, __VA_ARGS__)
_Noreturn void die_at(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
