#include "runtime/data_tokens.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/log.h"

enum { READ_BYTES = 1 << 14 }; /* taken from a file at a time, on the stack */

static const struct {
  const char *name;
  int width;
  bool is_signed;
} types[] = {
    [MOE_TOKEN_U8] = {"uint8", 1, false},   [MOE_TOKEN_I8] = {"int8", 1, true},
    [MOE_TOKEN_I16] = {"int16", 2, true},   [MOE_TOKEN_I32] = {"int32", 4, true},
    [MOE_TOKEN_I64] = {"int64", 8, true},   [MOE_TOKEN_U16] = {"uint16", 2, false},
    [MOE_TOKEN_U32] = {"uint32", 4, false},
};

int64_t moe_token_width(MoeTokenType type)
{
  return types[type].width;
}

const char *moe_token_type_name(MoeTokenType type)
{
  return types[type].name;
}

/* Data of many shards needs more open files than a shell allows at first. */
static int open_file(const char *path)
{
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  struct rlimit files;
  if (fd < 0 && errno == EMFILE && getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
    files.rlim_cur = files.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &files) == 0) {
      fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    }
  }
  return fd;
}

MoeStatus moe_tokens_open(MoeTokenFile *f, const char *path)
{
  *f = (MoeTokenFile){.fd = open_file(path), .type = MOE_TOKEN_U8};
  if (f->fd < 0) {
    moe_error("cannot open data file %s: %s", path, strerror(errno));
    return MOE_EIO;
  }
  struct stat st;
  if (fstat(f->fd, &st) != 0 || !S_ISREG(st.st_mode)) {
    moe_error("data file %s is %s, not a regular file", path, S_ISDIR(st.st_mode) ? "a directory" : "a special file");
    moe_tokens_close(f);
    return MOE_EIO;
  }
  f->path = strdup(path);
  f->bytes = st.st_size;
  f->tokens = st.st_size;
  if (f->path == NULL) {
    moe_error("out of memory for the names of data files");
    moe_tokens_close(f);
    return MOE_ENOMEM;
  }
  return MOE_OK;
}

void moe_tokens_close(MoeTokenFile *f)
{
  if (f->fd >= 0) {
    close(f->fd);
  }
  free(f->path);
  *f = (MoeTokenFile){.fd = -1};
}

MoeStatus moe_tokens_layout(MoeTokenFile *f, MoeTokenType type, int64_t begin)
{
  int64_t width = types[type].width;
  if ((f->bytes - begin) % width != 0) {
    moe_error("data file %s has %lld bytes, not a multiple of the format's %lld", f->path, (long long)f->bytes,
              (long long)width);
    return MOE_EINVAL;
  }
  f->type = type;
  f->begin = begin;
  f->tokens = (f->bytes - begin) / width;
  return MOE_OK;
}

int64_t moe_tokens_bytes(const MoeTokenFile *f, int64_t at, void *bytes, int64_t n)
{
  int64_t done = 0;
  while (done < n) {
    ssize_t got = pread(f->fd, (char *)bytes + done, (size_t)(n - done), at + done);
    if (got < 0 && errno != EINTR) {
      moe_error("cannot read byte %lld of data file %s: %s", (long long)(at + done), f->path, strerror(errno));
      return -1;
    }
    if (got == 0) {
      break;
    }
    done += got > 0 ? got : 0;
  }
  return done;
}

static int64_t token_at(const uint8_t *p, MoeTokenType type)
{
  int width = types[type].width;
  uint64_t value = moe_little_endian(p, width);
  uint64_t sign = (uint64_t)1 << (8 * width - 1);
  if (types[type].is_signed && (value & sign) != 0) {
    return (int64_t)(value - sign) - (int64_t)(sign - 1) - 1;
  }
  return (int64_t)value;
}

MoeStatus moe_tokens_read(const MoeTokenFile *f, int64_t first, int64_t n, const MoeTokenRange *range, int32_t *ids)
{
  uint8_t bytes[READ_BYTES];
  int64_t width = types[f->type].width;
  for (int64_t done = 0; done < n;) {
    int64_t some = n - done < READ_BYTES / width ? n - done : READ_BYTES / width;
    int64_t at = f->begin + (first + done) * width;
    int64_t got = moe_tokens_bytes(f, at, bytes, some * width);
    if (got < 0) {
      return MOE_EIO;
    }
    if (got < some * width) {
      struct stat st = {0};
      (void)fstat(f->fd, &st);
      moe_error("data file %s has %lld bytes; it had %lld when the run began", f->path, (long long)st.st_size,
                (long long)f->bytes);
      return MOE_EIO;
    }
    for (int64_t i = 0; i < some; i++) {
      int64_t id = token_at(bytes + i * width, f->type);
      if ((id < 0 || id >= range->vocab) && (id != range->mask || id == MOE_NO_TOKEN)) {
        moe_error("%s: token %lld (byte %lld) is id %lld, but the model's vocabulary has %d", f->path,
                  (long long)(first + done + i), (long long)(at + i * width), (long long)id, range->vocab);
        return MOE_EINVAL;
      }
      if (ids != NULL) {
        ids[done + i] = (int32_t)id;
      }
    }
    done += some;
  }
  return MOE_OK;
}
