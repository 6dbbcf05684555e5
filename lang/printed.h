/* Text that is printed piece by piece and needed whole: a stream into memory. */
#ifndef LANG_PRINTED_H
#define LANG_PRINTED_H

#include <stddef.h>
#include <stdio.h>

#include "lang/arena.h"

typedef struct Printed {
  FILE *to;
  char *text; /* ends with a 0 that n does not count; complete once the stream is flushed or closed */
  size_t n;
} Printed;

/* Running out of memory ends the program with a message. */
void printed_open(Printed *);

/* Both close the stream. keep: moves the text into the arena, and `text` with it; drop: frees it. */
const char *printed_keep(Printed *, Arena *);
void printed_drop(Printed *);

#endif
