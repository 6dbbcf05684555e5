#define _XOPEN_SOURCE 700 /* readlink */
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "codegen/cli.h"
#include "codegen/output.h"

/* Flags that bundles take unless --cflags says otherwise. */
#ifndef MOEC_CFLAGS
#define MOEC_CFLAGS NULL
#endif

bool install_find(Arena *arena, Diag *diag, Install *install)
{
  char self[PATH_MAX];
  ssize_t n = readlink("/proc/self/exe", self, sizeof self);
  if (n < 0 || (size_t)n == sizeof self) {
    errno = n < 0 ? errno : ENAMETOOLONG;
    return output_fail(diag, "read", "/proc/self/exe");
  }
  self[n] = '\0';
  *strrchr(self, '/') = '\0';
  char *last = strrchr(self, '/');
  if (last && strcmp(last, "/bin") == 0) {
    *last = '\0';
  }
  *install = (Install){.home = arena_printf(arena, "%s/share/moec", self),
                       .runtime_lib = arena_printf(arena, "%s/lib/moec/libmoert.a", self),
                       .cflags = MOEC_CFLAGS};
  return true;
}
