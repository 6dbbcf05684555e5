/* Preloaded into `train`: the process that makes a file whose path contains $FAULT_AT fails, or is killed, in its
   $FAULT_CALL-th call from then on that changes files. $FAULT_DO: a number is the errno to fail with (EINTR: only where
   it may be); "kill"; "short": half of a write; "count": nothing, but the number of calls goes to the file
   $FAULT_COUNT. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static atomic_bool armed; /* rank 0 writes the manifest after its own file, so it stays armed */
static atomic_int calls;

static const char *setting(const char *name)
{
  const char *value = getenv(name);
  return value != NULL ? value : "";
}

static void *next(const char *name)
{
  return dlsym(RTLD_NEXT, name);
}

/* Whether this call is the one to fail. writes: it may be cut short or interrupted. */
static bool strikes(bool writes)
{
  const char *what = setting("FAULT_DO");
  if (!atomic_load(&armed)) {
    return false;
  }
  int call = atomic_fetch_add(&calls, 1);
  if (strcmp(what, "count") == 0) {
    FILE *out = fopen(setting("FAULT_COUNT"), "w");
    fprintf(out, "%d\n", call + 1);
    fclose(out);
    return false;
  }
  if (call != atoi(setting("FAULT_CALL"))) {
    return false;
  }
  if (strcmp(what, "kill") == 0) {
    kill(getpid(), SIGKILL);
  }
  errno = strcmp(what, "short") == 0 ? 0 : atoi(what);
  return writes || (errno != 0 && errno != EINTR);
}

int open(const char *path, int flags, ...)
{
  va_list args;
  va_start(args, flags);
  mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
  va_end(args);
  if ((flags & O_CREAT) && strstr(path, setting("FAULT_AT")) != NULL) {
    atomic_store(&armed, true);
  }
  int (*real)(const char *, int, ...);
  *(void **)&real = next("open");
  return (flags & O_CREAT) && strikes(false) ? -1 : real(path, flags, mode);
}

ssize_t pwrite(int fd, const void *bytes, size_t n, off_t offset)
{
  ssize_t (*real)(int, const void *, size_t, off_t);
  *(void **)&real = next("pwrite");
  if (strikes(true)) {
    return errno != 0 ? -1 : real(fd, bytes, (n + 1) / 2, offset);
  }
  return real(fd, bytes, n, offset);
}

int ftruncate(int fd, off_t size)
{
  int (*real)(int, off_t);
  *(void **)&real = next("ftruncate");
  return strikes(false) ? -1 : real(fd, size);
}

int fsync(int fd)
{
  int (*real)(int);
  *(void **)&real = next("fsync");
  return strikes(strcmp(setting("FAULT_DO"), "short") != 0) ? -1 : real(fd);
}

int rename(const char *from, const char *to)
{
  int (*real)(const char *, const char *);
  *(void **)&real = next("rename");
  return strikes(false) ? -1 : real(from, to);
}

int unlinkat(int folder, const char *path, int flags)
{
  int (*real)(int, const char *, int);
  *(void **)&real = next("unlinkat");
  return strikes(false) ? -1 : real(folder, path, flags);
}

int rmdir(const char *path)
{
  int (*real)(const char *);
  *(void **)&real = next("rmdir");
  return strikes(false) ? -1 : real(path);
}
