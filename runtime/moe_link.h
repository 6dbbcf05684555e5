/* Links: who replaces a file replaces what a link names and never the link. Compiler and runtime share the rule. */
#ifndef MOE_LINK_H
#define MOE_LINK_H

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Follows the links that `path` ends in, if it ends in one, to a name that is no link; whether there is a file of that
   name does not matter. False: there are too many of them or the name is too long, and errno says which. */
static inline bool moe_link_end(const char *path, char end[PATH_MAX])
{
  enum { MOST_LINKS = 40 };
  char target[PATH_MAX], next[2 * PATH_MAX];
  if (snprintf(end, PATH_MAX, "%s", path) >= PATH_MAX) {
    errno = ENAMETOOLONG;
    return false;
  }
  for (int i = 0; i < MOST_LINKS; i++) {
    ssize_t n = readlink(end, target, sizeof target - 1);
    if (n < 0) {
      return true; /* no link, or nothing at all */
    }
    target[n] = '\0';
    const char *slash = target[0] == '/' ? NULL : strrchr(end, '/');
    int folder = slash != NULL ? (int)(slash - end) + 1 : 0;
    snprintf(next, sizeof next, "%.*s%s", folder, end, target);
    if (strlen(next) >= PATH_MAX) {
      errno = ENAMETOOLONG;
      return false;
    }
    strcpy(end, next);
  }
  errno = ELOOP;
  return false;
}

#endif
