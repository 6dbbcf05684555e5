/* Reads token files through a mapping that the launcher makes and the ranks inherit. */
#include "runtime/data.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/init.h"
#include "runtime/log.h"

#define CHECK_AT_START_BYTES (64u << 20)

static size_t token_bytes(MoeFormat format)
{
  return format == MOE_FORMAT_BYTES ? 1 : format == MOE_FORMAT_UINT16 ? 2 : 4;
}

static uint32_t token_at(const MoeData *d, int64_t i)
{
  const uint8_t *p = d->base + (size_t)i * token_bytes(d->format);
  switch (d->format) {
  case MOE_FORMAT_BYTES:
    return p[0];
  case MOE_FORMAT_UINT16:
    return p[0] | (uint32_t)p[1] << 8;
  case MOE_FORMAT_UINT32:
    break;
  }
  return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static MoeStatus check_id(const MoeData *d, int64_t i, uint32_t id)
{
  if (id < (uint32_t)d->vocab) {
    return MOE_OK;
  }
  moe_error("%s: token %lld (byte %lld) is id %u, but the model's vocabulary has %d", d->path, (long long)i,
            (long long)i * (long long)token_bytes(d->format), id, d->vocab);
  return MOE_EINVAL;
}

static MoeStatus map_file(MoeData *d)
{
  int fd = open(d->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    moe_error("cannot open data file %s: %s", d->path, strerror(errno));
    return MOE_EIO;
  }
  struct stat st;
  if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
    moe_error("data file %s is %s, not a regular file", d->path,
              S_ISDIR(st.st_mode) ? "a directory" : "a special file");
    close(fd);
    return MOE_EIO;
  }
  d->bytes = (size_t)st.st_size;
  if (d->bytes % token_bytes(d->format) != 0) {
    moe_error("data file %s has %zu bytes, not a multiple of the format's %zu", d->path, d->bytes,
              token_bytes(d->format));
    close(fd);
    return MOE_EINVAL;
  }
  void *base = d->bytes == 0 ? NULL : mmap(NULL, d->bytes, PROT_READ, MAP_SHARED, fd, 0);
  int map_errno = errno;
  close(fd);
  if (base == MAP_FAILED) {
    moe_error("cannot map data file %s: %s", d->path, strerror(map_errno));
    return MOE_EIO;
  }
  d->base = base;
  return MOE_OK;
}

MoeStatus moe_data_open(MoeData *d, const char *path, MoeFormat format, double holdout, int32_t seq, int32_t vocab,
                        uint64_t seed)
{
  *d = (MoeData){.path = path, .format = format, .seq = seq, .vocab = vocab, .seed = seed};
  MOE_TRY(map_file(d));
  d->tokens = (int64_t)(d->bytes / token_bytes(format));
  d->train_tokens = d->tokens - (int64_t)((double)d->tokens * holdout);
  d->n_train = d->train_tokens > 0 ? (d->train_tokens - 1) / seq : 0;
  int64_t held = d->tokens - d->train_tokens;
  d->n_eval = held > 0 ? (held - 1) / seq : 0;
  if (d->n_train < 1) {
    moe_error(
        "data file %s has %lld tokens, %lld of them for training, but one sample needs %d (sequence length %d + 1)",
        path, (long long)d->tokens, (long long)d->train_tokens, seq + 1, seq);
    return MOE_EINVAL;
  }
  if (d->bytes < CHECK_AT_START_BYTES) {
    for (int64_t i = 0; i < d->tokens; i++) {
      MOE_TRY(check_id(d, i, token_at(d, i)));
    }
  }
  return MOE_OK;
}

void moe_data_close(MoeData *d)
{
  if (d->base != NULL) {
    munmap(d->base, d->bytes);
    d->base = NULL;
  }
}

uint64_t moe_permute(uint64_t key, uint64_t n, uint64_t i)
{
  unsigned half = 1;
  while (half < 32 && ((uint64_t)1 << (2 * half)) < n) {
    half++;
  }
  uint64_t mask = ((uint64_t)1 << half) - 1;
  do {
    uint64_t left = i >> half;
    uint64_t right = i & mask;
    for (uint64_t round = 0; round < 4; round++) {
      uint64_t next = left ^ (moe_mix(key ^ moe_mix(right + (round << 32))) & mask);
      left = right;
      right = next;
    }
    i = left << half | right;
  } while (i >= n);
  return i;
}

int64_t moe_data_sample(const MoeData *d, uint64_t number)
{
  uint64_t n = (uint64_t)d->n_train;
  uint64_t epoch = number / n;
  return (int64_t)moe_permute(moe_mix(d->seed ^ moe_mix(epoch)), n, number % n);
}

int64_t moe_data_eval_sample(const MoeData *d, int64_t n_seqs, int64_t i)
{
  if (d->n_eval >= n_seqs) {
    return i * d->n_eval / n_seqs;
  }
  return i < d->n_eval ? i : -1;
}

MoeStatus moe_data_read(const MoeData *d, bool held_out, int64_t sample, int32_t *tokens)
{
  int64_t first = (held_out ? d->train_tokens : 0) + sample * d->seq;
  for (int64_t i = 0; i <= d->seq; i++) {
    uint32_t id = token_at(d, first + i);
    MOE_TRY(check_id(d, first + i, id));
    tokens[i] = (int32_t)id;
  }
  return MOE_OK;
}
