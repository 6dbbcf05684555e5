/* Links: who replaces a file replaces what a link names and never the link. And whether two paths name one place.
   Compiler and runtime share these rules. */
#ifndef MOE_LINK_H
#define MOE_LINK_H

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
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

/* Splits a path into its folder, which it becomes, and its last name, without "/" and "/." at its end. */
static inline void moe_cut_name(char path[PATH_MAX], char name[PATH_MAX])
{
  size_t n = strlen(path);
  while (n > 1 && (path[n - 1] == '/' || (n > 2 && path[n - 1] == '.' && path[n - 2] == '/'))) {
    path[--n] = '\0';
  }
  char *slash = strrchr(path, '/');
  strcpy(name, slash != NULL ? slash + 1 : path);
  strcpy(slash == path ? path + 1 : slash != NULL ? slash : path, slash != NULL ? "" : ".");
}

/* Whether two paths are one file or folder, or would be if it were made: by whatever spelling, through whatever links.
   A device or a pipe is never one, since it may be written to twice. */
static inline bool moe_same_place(const char *a, const char *b)
{
  char x[PATH_MAX], y[PATH_MAX], name_x[PATH_MAX], name_y[PATH_MAX];
  struct stat s, t;
  if (!moe_link_end(a, x) || !moe_link_end(b, y)) {
    return false;
  }
  for (int depth = 0; depth < PATH_MAX; depth++) {
    bool in_x = stat(x, &s) == 0, in_y = stat(y, &t) == 0;
    if (in_x || in_y) {
      return in_x && in_y && s.st_dev == t.st_dev && s.st_ino == t.st_ino && (S_ISREG(s.st_mode) || S_ISDIR(s.st_mode));
    }
    moe_cut_name(x, name_x);
    moe_cut_name(y, name_y);
    if (strcmp(name_x, name_y) != 0) {
      return false;
    }
  }
  return false;
}

#endif
