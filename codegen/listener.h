/* A Diag whose messages are kept instead of printed: for trials that may fail. */
#ifndef CODEGEN_LISTENER_H
#define CODEGEN_LISTENER_H

#include "lang/diag.h"
#include "lang/printed.h"

typedef struct Listener {
  Diag *diag;
  Printed out;
} Listener;

Listener *listener_new(Arena *);

/* The first error's words, without "moec: error: ". The listener is done with. */
const char *listener_heard(Arena *, Listener *);

#endif
