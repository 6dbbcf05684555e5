#include "lang/printed.h"

#include <stdlib.h>

#include "lang/diag.h"

void printed_open(Printed *p)
{
  *p = (Printed){0};
  p->to = open_memstream(&p->text, &p->n);
  if (!p->to) {
    die("out of memory");
  }
}

const char *printed_keep(Printed *p, Arena *arena)
{
  fclose(p->to);
  char *own = p->text;
  p->text = arena_strndup(arena, own, p->n);
  free(own);
  return p->text;
}

void printed_drop(Printed *p)
{
  fclose(p->to);
  free(p->text);
}
