/* Folders are removed under a .tmp name, so one that is half removed does not look like a checkpoint. */
#include "runtime/checkpoint_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/bell.h"
#include "runtime/file.h"
#include "runtime/log.h"

#define TEMPORARY ".tmp"
#define DAMAGED   ".damaged"

/* The ranks of a run whose launcher was killed are gone by then. */
#define LOCK_NS 2000000000

char *moe_ck_path(const char *dir, int64_t step, const char *suffix)
{
  char *path = NULL;
  return asprintf(&path, "%s/step-%06lld%s", dir, (long long)step, suffix) < 0 ? NULL : path;
}

static MoeStatus fail(const char *what, const char *path)
{
  moe_error("cannot %s %s: %s", what, path, strerror(errno));
  return MOE_EIO;
}

/* The step in a name of ours, whose suffix is then *suffix_p; -1 for any other name. */
static int64_t step_of(const char *name, const char **suffix_p)
{
  char again[40];
  long long step = -1;
  if (strncmp(name, "step-", 5) != 0 || strspn(name + 5, "0123456789") > 18) {
    return -1;
  }
  char *end;
  step = strtoll(name + 5, &end, 10);
  snprintf(again, sizeof again, "step-%06lld", step);
  if (end == name + 5 || strncmp(name, again, strlen(again)) != 0 || name + strlen(again) != end) {
    return -1;
  }
  *suffix_p = end;
  return *end == '\0' || strcmp(end, TEMPORARY) == 0 || strcmp(end, DAMAGED) == 0 ? step : -1;
}

static int ascending(const void *a, const void *b)
{
  const int64_t *x = a, *y = b;
  return (*x > *y) - (*x < *y);
}

MoeStatus moe_ck_steps(const char *dir, int64_t **steps_p, int32_t *n_p, char **other_p)
{
  DIR *d = opendir(dir);
  if (d == NULL) {
    return fail("read", dir);
  }
  int64_t *steps = NULL;
  int32_t n = 0;
  bool ours = false;
  MoeStatus status = MOE_OK;
  for (struct dirent *e = readdir(d); e != NULL && status == MOE_OK; e = readdir(d)) {
    const char *suffix = NULL;
    int64_t step = step_of(e->d_name, &suffix);
    if (step < 0 && e->d_name[0] != '.' && other_p != NULL && *other_p == NULL) {
      *other_p = strdup(e->d_name);
    }
    ours = ours || step >= 0;
    if (step < 0 || *suffix != '\0') {
      continue;
    }
    int64_t *more = realloc(steps, ((size_t)n + 1) * sizeof *steps);
    if (more == NULL) {
      moe_error("out of memory for the checkpoints in %s", dir);
      status = MOE_ENOMEM;
    } else {
      steps = more;
      steps[n++] = step;
    }
  }
  closedir(d);
  if (ours && other_p != NULL) {
    free(*other_p);
    *other_p = NULL;
  }
  if (n > 0) {
    qsort(steps, (size_t)n, sizeof *steps, ascending);
  }
  *steps_p = steps;
  *n_p = n;
  return status;
}

static MoeStatus remove_half_ones(const char *dir)
{
  DIR *d = opendir(dir);
  if (d == NULL) {
    return fail("read", dir);
  }
  MoeStatus status = MOE_OK;
  for (struct dirent *e = readdir(d); e != NULL && status == MOE_OK; e = readdir(d)) {
    const char *suffix = NULL;
    if (step_of(e->d_name, &suffix) >= 0 && strcmp(suffix, TEMPORARY) == 0) {
      char *path = moe_path_in(dir, e->d_name);
      status = path != NULL && moe_folder_remove(path) ? MOE_OK : fail("remove", path != NULL ? path : dir);
      free(path);
    }
  }
  closedir(d);
  return status;
}

static MoeStatus lock(const char *dir, int *lock_p)
{
  int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) {
    return fail("save into", dir);
  }
  *lock_p = fd;
  int64_t limit = moe_now_ns() + LOCK_NS;
  int locked = flock(fd, LOCK_EX | LOCK_NB);
  while (locked != 0 && errno == EWOULDBLOCK && moe_now_ns() < limit) {
    moe_sleep_until(moe_now_ns() + LOCK_NS / 100);
    locked = flock(fd, LOCK_EX | LOCK_NB);
  }
  if (locked != 0 && errno == EWOULDBLOCK) { /* some file systems have no locks */
    moe_error("cannot save into %s: another run is saving there", dir);
    return MOE_EIO;
  }
  if (faccessat(AT_FDCWD, dir, W_OK | X_OK, AT_EACCESS) != 0) {
    return fail("save into", dir);
  }
  return MOE_OK;
}

bool moe_ck_lies_in(const char *checkpoint, const char *dir)
{
  struct stat of_parent, of_dir;
  char *parent =
      checkpoint != NULL ? moe_path_in(checkpoint, "..") : NULL; /* of the folder itself, not of a link to it */
  bool same = parent != NULL && stat(parent, &of_parent) == 0 && stat(dir, &of_dir) == 0 &&
              of_parent.st_dev == of_dir.st_dev && of_parent.st_ino == of_dir.st_ino;
  free(parent);
  return same;
}

static MoeStatus set_aside(const char *dir, int64_t step)
{
  char *from = moe_ck_path(dir, step, "");
  char *to = moe_ck_path(dir, step, DAMAGED);
  MoeStatus status = from != NULL && to != NULL ? MOE_OK : MOE_ENOMEM;
  if (status == MOE_OK) {
    moe_folder_remove(to);
    status = rename(from, to) == 0 ? MOE_OK : fail("rename", from);
  }
  free(from);
  free(to);
  return status;
}

static MoeStatus check_steps(const char *dir, const char *resumed, int64_t step, bool newest, const int64_t *steps,
                             int32_t n)
{
  if (n > 0 && !moe_ck_lies_in(resumed, dir)) {
    moe_error("%s holds the checkpoints of another run, up to step %lld: go on from them with --resume, or save into "
              "another folder",
              dir, (long long)steps[n - 1]);
    return MOE_EINVAL;
  }
  for (int32_t i = n - 1; i >= 0 && steps[i] > step; i--) {
    if (!newest) {
      moe_error("%s holds a checkpoint of step %lld, after step %lld from which this run goes on: save into another "
                "folder, or move the later ones away",
                dir, (long long)steps[i], (long long)step);
      return MOE_EINVAL;
    }
    MOE_TRY(set_aside(dir, steps[i]));
  }
  return MOE_OK;
}

MoeStatus moe_ck_prepare(const char *dir, const char *resumed, int64_t step, bool newest, int *lock_p)
{
  int64_t *steps = NULL;
  int32_t n = 0;
  char *other = NULL;
  if (mkdir(dir, 0777) != 0 && errno != EEXIST) {
    return fail("create", dir);
  }
  MOE_TRY(lock(dir, lock_p));
  MoeStatus status = moe_ck_steps(dir, &steps, &n, &other);
  if (status == MOE_OK && other != NULL) {
    moe_error("%s holds %s, which is no checkpoint: save into an empty folder or one of checkpoints", dir, other);
    status = MOE_EINVAL;
  }
  status = status == MOE_OK ? check_steps(dir, resumed, step, newest, steps, n) : status;
  free(steps);
  free(other);
  return status == MOE_OK ? remove_half_ones(dir) : status;
}

static MoeStatus sync_folder(const char *path)
{
  int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  MoeStatus status = fd >= 0 && moe_sync(fd) ? MOE_OK : fail("sync", path);
  if (fd >= 0) {
    close(fd);
  }
  return status;
}

MoeStatus moe_ck_publish(const char *dir, int64_t step)
{
  char *from = moe_ck_path(dir, step, TEMPORARY);
  char *to = moe_ck_path(dir, step, "");
  MoeStatus status = from != NULL && to != NULL ? sync_folder(from) : MOE_ENOMEM;
  if (status == MOE_OK) {
    status = rename(from, to) == 0 ? sync_folder(dir) : fail("rename", from);
  }
  free(from);
  free(to);
  return status;
}

static bool drop(const char *dir, int64_t step)
{
  char *from = moe_ck_path(dir, step, "");
  char *to = moe_ck_path(dir, step, TEMPORARY);
  bool gone = from != NULL && to != NULL && rename(from, to) == 0 && moe_folder_remove(to);
  if (!gone) {
    moe_note("cannot remove the old checkpoint %s: %s", from, strerror(errno));
  }
  free(from);
  free(to);
  return gone;
}

void moe_ck_trim(const char *dir, int64_t step, int64_t keep)
{
  int64_t *steps = NULL;
  int32_t n = 0;
  if (moe_ck_steps(dir, &steps, &n, NULL) == MOE_OK) {
    while (n > 0 && steps[n - 1] > step) {
      n--;
    }
    for (int32_t i = 0; i < n - keep; i++) {
      (void)drop(dir, steps[i]);
    }
  }
  free(steps);
}
