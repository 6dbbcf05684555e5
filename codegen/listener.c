#include "codegen/listener.h"

#include <stdlib.h>
#include <string.h>

Listener *listener_new(Arena *arena)
{
  Listener *l = arena_new_of(arena, Listener);
  l->out = open_memstream(&l->text, &l->n);
  if (!l->out) {
    die("out of memory");
  }
  l->diag = diag_new(arena, l->out);
  return l;
}

const char *listener_heard(Arena *arena, Listener *l)
{
  fclose(l->out);
  const char *error = strstr(l->text, "error: ");
  const char *from = error ? error + strlen("error: ") : "it fails without a word";
  const char *words = arena_strndup(arena, from, strcspn(from, "\n"));
  free(l->text);
  return words;
}
