/* Files on disk: written beside their place under another name and renamed, so that none is ever half written. */
#ifndef CODEGEN_OUTPUT_H
#define CODEGEN_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>

#include "lang/arena.h"
#include "lang/diag.h"
#include "lang/printed.h"

/* Replaces `path`, or creates it. A link stays and the file that it names is replaced, with the mode that it had, or
   created; a device or a pipe is written where it is. Reports what fails; the old file is then as it was. */
bool output_replace(Arena *, Diag *, const char *path, const void *bytes, size_t n);

/* Whether output_replace() could write there, for work that takes long before it does. Reports what is in the way. */
bool output_check(Arena *, Diag *, const char *path);

/* Puts what was printed in its place by output_replace(), and drops it. */
bool output_finish(Printed *, Arena *, Diag *, const char *path);

/* Writes a file that nobody reads yet, such as one in a temporary folder. */
bool output_write(Diag *, const char *path, const void *bytes, size_t n);

/* Removes a folder and all that it holds, as far as it can. */
void output_remove_folder(const char *path);

/* "cannot WHAT PATH: " and errno's text, as an error. Returns false. */
bool output_fail(Diag *, const char *what, const char *path);

#endif
