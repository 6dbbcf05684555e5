#define _XOPEN_SOURCE 700 /* realpath */

#include "codegen/output.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool output_fail(Diag *diag, const char *what, const char *path)
{
  diag_error(diag, (Span){0}, "cannot %s %s: %s", what, path, strerror(errno));
  return false;
}

/* Returns 0 or what failed; errno tells why. `mode` is that of a new file. */
static const char *put(const char *path, const void *bytes, size_t n, mode_t mode)
{
  const char *p = bytes;
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
  if (fd < 0) {
    return "create";
  }
  while (n > 0) {
    ssize_t wrote = write(fd, p, n);
    if (wrote < 0 && errno == EINTR) {
      continue;
    }
    if (wrote < 0) {
      int error = errno;
      close(fd);
      errno = error;
      return "write";
    }
    p += wrote;
    n -= (size_t)wrote;
  }
  return close(fd) == 0 ? NULL : "write";
}

bool output_write(Diag *diag, const char *path, const void *bytes, size_t n)
{
  const char *failed = put(path, bytes, n, 0666);
  return !failed || output_fail(diag, failed, path);
}

bool output_replace(Arena *arena, Diag *diag, const char *path, const void *bytes, size_t n)
{
  struct stat old;
  bool exists = stat(path, &old) == 0, special = exists && !S_ISREG(old.st_mode);
  char *target = exists && !special ? realpath(path, NULL) : NULL;
  const char *name = target ? target : path;
  const char *temp = special ? path : arena_printf(arena, "%s.tmp-%ld", name, (long)getpid());
  bool ok = !put(temp, bytes, n, 0666);
  if (ok && !special) {
    ok = (!exists || chmod(temp, old.st_mode & 07777) == 0) && rename(temp, name) == 0;
  }
  if (!ok) {
    output_fail(diag, "write", path);
    if (!special) {
      unlink(temp);
    }
  }
  free(target);
  return ok;
}

void output_begin(Output *o)
{
  *o = (Output){0};
  o->to = open_memstream(&o->text, &o->n);
  if (!o->to) {
    die("out of memory");
  }
}

void output_drop(Output *o)
{
  fclose(o->to);
  free(o->text);
}

bool output_finish(Output *o, Arena *arena, Diag *diag, const char *path)
{
  fflush(o->to);
  bool ok = output_replace(arena, diag, path, o->text, o->n);
  output_drop(o);
  return ok;
}

void output_remove_folder(const char *path)
{
  Arena *arena = arena_new();
  DIR *dir = opendir(path);
  for (struct dirent *entry; dir && (entry = readdir(dir));) {
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) {
      continue;
    }
    const char *inner = arena_printf(arena, "%s/%s", path, entry->d_name);
    struct stat st;
    if (lstat(inner, &st) == 0 && S_ISDIR(st.st_mode)) {
      output_remove_folder(inner);
    } else {
      unlink(inner);
    }
  }
  if (dir) {
    closedir(dir);
  }
  rmdir(path);
  arena_free(arena);
}
