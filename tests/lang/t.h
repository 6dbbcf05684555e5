/* What every unit test here needs: cmocka, an arena, diagnostics in memory. */
#ifndef TESTS_LANG_T_H
#define TESTS_LANG_T_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lang/spec.h"

typedef struct T {
  Arena *arena;
  Diag *diag;
  FILE *out;
  char *messages;
  size_t n_messages;
} T;

static inline void t_open(T *t) /* the stream keeps pointers into *t */
{
  *t = (T){.arena = arena_new()};
  t->out = open_memstream(&t->messages, &t->n_messages);
  t->diag = diag_new(t->arena, t->out);
}

static inline const char *t_messages(T *t)
{
  fflush(t->out);
  return t->messages;
}

static inline void t_close(T *t)
{
  fclose(t->out);
  free(t->messages);
  arena_free(t->arena);
}

static inline AstFile *t_parse(T *t, const char *text)
{
  return ast_parse_text(t->arena, t->diag, "t.moespec", text, strlen(text), false, NULL, 0);
}

/* The formatted text; free() it. */
static inline char *t_format(const AstFile *file)
{
  char *text = NULL;
  size_t n = 0;
  FILE *out = open_memstream(&text, &n);
  ast_print(file, out);
  fclose(out);
  return text;
}

static inline void t_contains(const char *text, const char *part)
{
  if (!text || !strstr(text, part)) {
    fail_msg("expected \"%s\" in:\n%s", part, text ? text : "");
  }
}

#endif
