/* Which rank owns which elements, and their files. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/bytes.h"
#include "runtime/checkpoint.h"
#include "runtime/crc.h"
#include "runtime/log.h"

const char *const moe_ck_suffix[MOE_CK_STATE_COUNT] = {
#define STATE(suffix, field) suffix,
    MOE_CK_STATES(STATE)
#undef STATE
};

const float *moe_ck_state(const MoeHeld *h, int state)
{
  const float *const states[] = {
#define STATE(suffix, field) h->field,
      MOE_CK_STATES(STATE)
#undef STATE
  };
  return states[state];
}

const char *moe_ck_file_name(char name[MOE_CK_NAME], int32_t rank, int32_t n_files)
{
  snprintf(name, MOE_CK_NAME, "rank-%05d-of-%05d.safetensors", rank, n_files);
  return name;
}

int32_t moe_ck_parts(const MoeBundle *b, int32_t rank, MoeCkPart *parts)
{
  int32_t n = 0;
  for (int32_t i = 0; i < b->n_buckets; i++) {
    const MoeBucket *bucket = &b->buckets[i];
    int32_t k = moe_holder_index(b, bucket, rank);
    if (k < 0) {
      continue;
    }
    int64_t begin = moe_part_begin(bucket->elems, bucket->n_holders, k);
    int64_t end = begin + moe_part_size(bucket->elems, bucket->n_holders, k);
    for (int32_t p = bucket->first_param; p < bucket->first_param + bucket->n_params; p++) {
      int64_t first = b->params[p].offset, last = first + moe_param_elems(&b->params[p]);
      int64_t from = begin > first ? begin : first, to = end < last ? end : last;
      if (from < to) {
        if (parts != NULL) {
          parts[n] = (MoeCkPart){.tensor = p, .file = rank, .begin = from - first, .end = to - first};
        }
        n++;
      }
    }
  }
  return n;
}

/* The header is 8 bytes of its length, and that many more. */
static bool header_crc(int fd, uint64_t bytes, uint32_t *crc_p)
{
  uint8_t length[8];
  if (pread(fd, length, 8, 0) != 8) {
    return false;
  }
  uint64_t n = moe_little_endian(length, 8);
  if (n > bytes - 8) {
    *crc_p = 0; /* no header that could be read has this one */
    return true;
  }
  uint8_t *header = malloc(n + 1);
  bool read = header != NULL && pread(fd, header, n, 8) == (ssize_t)n;
  if (read) {
    *crc_p = moe_crc32(moe_crc32(0, length, 8), header, n);
  }
  free(header);
  return read;
}

MoeStatus moe_ck_read_file(const char *path, MoeCkFile *file)
{
  struct stat status;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  bool good = fd >= 0 && fstat(fd, &status) == 0;
  if (good) {
    *file = (MoeCkFile){.bytes = (uint64_t)status.st_size};
    good = file->bytes < 8 || header_crc(fd, file->bytes, &file->header_crc);
  }
  if (!good) {
    moe_error("cannot read %s: %s", path, errno != 0 ? strerror(errno) : "a short read");
  }
  if (fd >= 0) {
    close(fd);
  }
  return good ? MOE_OK : MOE_EIO;
}
