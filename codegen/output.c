#include "codegen/output.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/moe_link.h"

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

/* A file about to be replaced. */
typedef struct Target {
  bool special; /* a device, a pipe or a folder: written where it is, if at all */
  bool exists;  /* with this mode */
  mode_t mode;
  char name[PATH_MAX]; /* without links */
  const char *temp;    /* beside it */
} Target;

static bool find_target(Arena *arena, const char *path, Target *t)
{
  struct stat old;
  t->exists = stat(path, &old) == 0;
  t->special = t->exists && !S_ISREG(old.st_mode);
  t->mode = t->exists ? old.st_mode & 07777 : 0666;
  if (!moe_link_end(path, t->name)) {
    return false;
  }
  t->temp = arena_printf(arena, "%s.tmp-%ld", t->name, (long)getpid());
  return true;
}

bool output_check(Arena *arena, Diag *diag, const char *path)
{
  Target t;
  bool ok = find_target(arena, path, &t);
  if (ok && t.special) {
    struct stat st;
    bool folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    ok = !folder && access(path, W_OK) == 0;
    errno = folder ? EISDIR : errno;
  } else if (ok) {
    ok = !put(t.temp, "", 0, 0666);
    int error = errno;
    unlink(t.temp);
    errno = error;
  }
  return ok || output_fail(diag, "write", path);
}

bool output_replace(Arena *arena, Diag *diag, const char *path, const void *bytes, size_t n)
{
  Target t;
  bool ok = find_target(arena, path, &t);
  if (ok && t.special) {
    ok = !put(path, bytes, n, 0666);
  } else if (ok) {
    ok = !put(t.temp, bytes, n, 0666) && (!t.exists || chmod(t.temp, t.mode) == 0) && rename(t.temp, t.name) == 0;
    int error = errno;
    if (!ok) {
      unlink(t.temp);
    }
    errno = error;
  }
  return ok || output_fail(diag, "write", path);
}

bool output_finish(Printed *p, Arena *arena, Diag *diag, const char *path)
{
  fflush(p->to);
  bool ok = output_replace(arena, diag, path, p->text, p->n);
  printed_drop(p);
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
