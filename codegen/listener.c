#include "codegen/listener.h"

#include <string.h>

Listener *listener_new(Arena *arena)
{
  Listener *l = arena_new_of(arena, Listener);
  printed_open(&l->out);
  l->diag = diag_new(arena, l->out.to);
  return l;
}

const char *listener_heard(Arena *arena, Listener *l)
{
  fflush(l->out.to);
  const char *error = strstr(l->out.text, "error: ");
  const char *from = error ? error + strlen("error: ") : "it fails without a word";
  const char *words = arena_strndup(arena, from, strcspn(from, "\n"));
  printed_drop(&l->out);
  return words;
}
