/* Files on disk: written beside their place under another name and renamed, so that none is ever half written. */
#ifndef CODEGEN_OUTPUT_H
#define CODEGEN_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "lang/arena.h"
#include "lang/diag.h"

/* Replaces `path`, or creates it. A link stays and the file that it names is replaced, with the mode that it had, or
   created; a device or a pipe is written where it is. Reports what fails; the old file is then as it was. */
bool output_replace(Arena *, Diag *, const char *path, const void *bytes, size_t n);

/* Whether output_replace() could write there, for work that takes long before it does. Reports what is in the way. */
bool output_check(Arena *, Diag *, const char *path);

/* A file in the making: all that is printed to `to` is what output_finish() puts in its place by output_replace(). */
typedef struct Output {
  FILE *to;
  char *text;
  size_t n;
} Output;
void output_begin(Output *);
bool output_finish(Output *, Arena *, Diag *, const char *path);
void output_drop(Output *);

/* Writes a file that nobody reads yet, such as one in a temporary folder. */
bool output_write(Diag *, const char *path, const void *bytes, size_t n);

/* Removes a folder and all that it holds, as far as it can. */
void output_remove_folder(const char *path);

/* "cannot WHAT PATH: " and errno's text, as an error. Returns false. */
bool output_fail(Diag *, const char *what, const char *path);

#endif
