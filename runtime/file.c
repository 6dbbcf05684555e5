/* Temporary names carry the process id, so two jobs with one target do not write into each other's file. */
#include "runtime/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/log.h"
#include "runtime/moe_link.h"

static uint64_t joined_id;

void moe_file_join(uint64_t id)
{
  joined_id = id;
}

MoeStatus moe_file_begin(MoeFile *f, const char *path)
{
  *f = (MoeFile){.fd = -1, .path = path};
  struct stat old;
  char end[PATH_MAX];
  if (stat(path, &old) == 0 && !S_ISREG(old.st_mode)) { /* ranks write at their own offsets, which no pipe takes */
    moe_error("cannot create %s: it is %s", path, S_ISDIR(old.st_mode) ? "a directory" : "a special file");
    return MOE_EIO;
  }
  f->target = moe_link_end(path, end) ? strdup(end) : NULL;
  size_t room = f->target != NULL ? strlen(f->target) + 32 : 0;
  f->temp = f->target != NULL ? malloc(room) : NULL;
  if (f->temp == NULL) {
    moe_error("cannot create %s: %s", path, strerror(errno));
    free(f->target);
    *f = MOE_NO_FILE;
    return MOE_EIO;
  }
  f->joined = joined_id != 0;
  snprintf(f->temp, room, "%s.tmp%llu", f->target,
           f->joined ? (unsigned long long)joined_id : (unsigned long long)getpid());
  f->fd = open(f->temp, f->joined ? O_RDWR | O_CLOEXEC : O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (f->fd >= 0 && !f->joined) {
    moe_file_hold(f->fd);
  } else if (f->fd < 0) {
    moe_error(f->joined ? "cannot open %s as rank 0's process has begun it (do all hosts share its folder?): %s"
                        : "cannot create %s: %s",
              path, strerror(errno));
    free(f->temp);
    free(f->target);
    *f = MOE_NO_FILE;
    return MOE_EIO;
  }
  return MOE_OK;
}

MoeStatus moe_file_write_at(const MoeFile *f, const void *bytes, size_t n, uint64_t offset)
{
  const char *from = bytes;
  while (n > 0) {
    ssize_t done = pwrite(f->fd, from, n, (off_t)offset);
    if (done < 0 && errno == EINTR) {
      continue;
    }
    if (done <= 0) {
      moe_error("cannot write %s: %s", f->path, done < 0 ? strerror(errno) : "nothing was written");
      return MOE_EIO;
    }
    from += done;
    n -= (size_t)done;
    offset += (uint64_t)done;
  }
  return MOE_OK;
}

bool moe_sync(int fd)
{
  int result;
  do {
    result = fsync(fd);
  } while (result != 0 && errno == EINTR);
  return result == 0 || errno == EINVAL || errno == EROFS;
}

MoeStatus moe_file_sync(const MoeFile *f)
{
  if (!moe_sync(f->fd)) {
    moe_error("cannot write %s: %s", f->path, strerror(errno));
    return MOE_EIO;
  }
  return MOE_OK;
}

MoeStatus moe_file_commit(MoeFile *f)
{
  if (f->fd < 0) {
    return MOE_OK;
  }
  MOE_TRY(moe_file_sync(f));
  if (rename(f->temp, f->target) != 0) {
    moe_error("cannot rename %s to %s: %s", f->temp, f->path, strerror(errno));
    return MOE_EIO;
  }
  close(f->fd);
  free(f->temp);
  free(f->target);
  *f = MOE_NO_FILE;
  return MOE_OK;
}

void moe_file_abandon(MoeFile *f)
{
  if (f->fd >= 0) {
    close(f->fd);
    if (!f->joined) {
      unlink(f->temp);
    }
    free(f->temp);
    free(f->target);
    *f = MOE_NO_FILE;
  }
}

MoeStatus moe_file_put(const char *path, const void *bytes, size_t n)
{
  MoeFile f;
  MoeStatus status = moe_file_begin(&f, path);
  if (status == MOE_OK) {
    status = moe_file_write_at(&f, bytes, n, 0);
  }
  if (status == MOE_OK) {
    status = moe_file_commit(&f);
  }
  moe_file_abandon(&f);
  return status;
}

/* Removes the files in a folder; what stays lets its removal fail. */
static bool empty_folder(int fd)
{
  int own = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *d = own >= 0 ? fdopendir(own) : NULL;
  if (d == NULL) {
    return false;
  }
  for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
    if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) {
      unlinkat(own, e->d_name, 0);
    }
  }
  closedir(d);
  return true;
}

void moe_file_hold(int fd)
{
  (void)flock(fd, LOCK_EX | LOCK_NB); /* of a file system without locks nothing is removed either */
}

/* One entry of the folder. Process ids are those of one host or container, so a free lock must say the same. */
static void sweep_one(int folder, const char *name, const char *digits)
{
  char *end;
  long pid = strtol(digits, &end, 10);
  struct stat status;
  bool gone = digits[0] != '\0' && *end == '\0' && strspn(digits, "0123456789") == strlen(digits) && pid > 0 &&
              kill((pid_t)pid, 0) != 0 && errno == ESRCH;
  int fd = gone ? openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK) : -1;
  if (fd < 0) {
    return;
  }
  if (flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &status) == 0) {
    bool removed = false;
    if (S_ISDIR(status.st_mode)) {
      removed = empty_folder(fd) && unlinkat(folder, name, AT_REMOVEDIR) == 0;
    } else if (S_ISREG(status.st_mode)) {
      removed = unlinkat(folder, name, 0) == 0;
    }
    if (removed) {
      moe_note("removed %s, which a run that was killed had left", name);
    }
  }
  close(fd);
}

void moe_file_sweep(const char *path)
{
  char end[PATH_MAX], named[PATH_MAX];
  size_t n = strlen(path);
  while (n > 1 && path[n - 1] == '/') {
    n--;
  }
  if (snprintf(named, sizeof named, "%.*s", (int)n, path) >= PATH_MAX || !moe_link_end(named, end)) {
    return; /* whoever creates it will say so */
  }
  char *slash = strrchr(end, '/');
  const char *base = slash != NULL ? slash + 1 : end;
  size_t length = strlen(base);
  int fd;
  if (slash == NULL) {
    fd = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  } else {
    char first = *base;
    slash[1] = '\0';
    fd = open(end, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    slash[1] = first;
  }
  DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
  for (struct dirent *e = d != NULL ? readdir(d) : NULL; e != NULL; e = readdir(d)) {
    if (strncmp(e->d_name, base, length) == 0 && strncmp(e->d_name + length, ".tmp", 4) == 0) {
      sweep_one(fd, e->d_name, e->d_name + length + 4);
    }
  }
  if (d != NULL) {
    closedir(d);
  } else if (fd >= 0) {
    close(fd);
  }
}

bool moe_folder_holds(const char *folder, const char *path)
{
  struct stat given, own;
  DIR *d = stat(path, &given) == 0 ? opendir(folder) : NULL;
  bool holds = false;
  if (d == NULL) {
    return false;
  }
  for (struct dirent *e = readdir(d); e != NULL && !holds; e = readdir(d)) {
    holds = fstatat(dirfd(d), e->d_name, &own, 0) == 0 && S_ISREG(own.st_mode) && own.st_dev == given.st_dev &&
            own.st_ino == given.st_ino;
  }
  closedir(d);
  return holds;
}

char *moe_path_in(const char *folder, const char *name)
{
  char *path = NULL;
  return asprintf(&path, "%s/%s", folder, name) < 0 ? NULL : path;
}

bool moe_folder_remove(const char *path)
{
  int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  bool emptied = fd >= 0 && empty_folder(fd);
  int error = errno;
  if (fd >= 0) {
    close(fd);
  }
  errno = error;
  return emptied && rmdir(path) == 0;
}
