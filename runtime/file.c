/* Temporary names carry the process id, so two jobs with one target do not write into each other's file. */
#include "runtime/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/log.h"
#include "runtime/moe_link.h"

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
  snprintf(f->temp, room, "%s.tmp%ld", f->target, (long)getpid());
  f->fd = open(f->temp, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (f->fd < 0) {
    moe_error("cannot create %s: %s", path, strerror(errno));
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
    unlink(f->temp);
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

char *moe_path_in(const char *folder, const char *name)
{
  char *path = NULL;
  return asprintf(&path, "%s/%s", folder, name) < 0 ? NULL : path;
}

bool moe_folder_remove(const char *path)
{
  DIR *d = opendir(path);
  if (d == NULL) {
    return false;
  }
  for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
    if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) {
      unlinkat(dirfd(d), e->d_name, 0); /* what stays lets rmdir fail */
    }
  }
  closedir(d);
  return rmdir(path) == 0;
}
