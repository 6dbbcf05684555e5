#include "runtime/data_index.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/log.h"

enum { MAGIC_BYTES = 9, TYPE_AT = 17, N_SEQS_AT = 18, N_DOCS_AT = 26, HEAD_BYTES = 34 };
static const uint8_t magic[MAGIC_BYTES] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0};

int64_t moe_index_length(const MoeIndex *x, int64_t seq)
{
  return (int32_t)moe_little_endian(x->base + HEAD_BYTES + 4 * seq, 4);
}

int64_t moe_index_offset(const MoeIndex *x, int64_t seq)
{
  return (int64_t)moe_little_endian(x->base + HEAD_BYTES + 4 * x->n_seqs + 8 * seq, 8);
}

static int64_t document_start(const MoeIndex *x, int64_t doc)
{
  return (int64_t)moe_little_endian(x->base + HEAD_BYTES + 12 * x->n_seqs + 8 * doc, 8);
}

static MoeStatus read_type(MoeIndex *x, int code)
{
  static const MoeTokenType of_code[] = {0, MOE_TOKEN_U8, MOE_TOKEN_I8, MOE_TOKEN_I16, MOE_TOKEN_I32, MOE_TOKEN_I64, 0,
                                         0, MOE_TOKEN_U16};
  if (code < 1 || code > 8) {
    moe_error("%s: byte %d: type code %d of the tokens is unknown; known are 1 to 8", x->path, TYPE_AT, code);
    return MOE_EINVAL;
  }
  if (code == 6 || code == 7) {
    moe_error("%s: byte %d: type code %d says float%d, but tokens are whole numbers", x->path, TYPE_AT, code,
              code == 6 ? 64 : 32);
    return MOE_EINVAL;
  }
  x->type = of_code[code];
  return MOE_OK;
}

static MoeStatus read_head(MoeIndex *x)
{
  if (x->bytes < HEAD_BYTES) {
    moe_error("%s has %zu bytes, but the header of an index has %d", x->path, x->bytes, HEAD_BYTES);
    return MOE_EINVAL;
  }
  if (memcmp(x->base, magic, sizeof magic) != 0) {
    moe_error("%s does not begin with MMIDIDX, so it is not an index of tokens", x->path);
    return MOE_EINVAL;
  }
  uint64_t version = moe_little_endian(x->base + MAGIC_BYTES, 8);
  if (version != 1) {
    moe_error("%s: byte %d: version %llu of the index is unknown; known is 1", x->path, MAGIC_BYTES,
              (unsigned long long)version);
    return MOE_EINVAL;
  }
  return read_type(x, x->base[TYPE_AT]);
}

/* The arrays fill the file: without an overflow, whatever the header says. */
static MoeStatus read_counts(MoeIndex *x)
{
  uint64_t n_seqs = moe_little_endian(x->base + N_SEQS_AT, 8);
  uint64_t n_docs = moe_little_endian(x->base + N_DOCS_AT, 8);
  uint64_t room = x->bytes - HEAD_BYTES;
  if (n_seqs > room / 12 || n_docs > (room - 12 * n_seqs) / 8) {
    moe_error("%s: %llu sequences and %llu document boundaries need more than its %zu bytes", x->path,
              (unsigned long long)n_seqs, (unsigned long long)n_docs, x->bytes);
    return MOE_EINVAL;
  }
  uint64_t rest = room - 12 * n_seqs - 8 * n_docs;
  if (rest != 0 && rest != n_seqs) {
    moe_error("%s: %llu sequences and %llu document boundaries need %llu bytes, but the file has %zu", x->path,
              (unsigned long long)n_seqs, (unsigned long long)n_docs, (unsigned long long)(x->bytes - rest), x->bytes);
    return MOE_EINVAL;
  }
  if (n_seqs == 0 || n_seqs > INT32_MAX) {
    moe_error("%s has %llu sequences; from 1 to %d can be trained on", x->path, (unsigned long long)n_seqs, INT32_MAX);
    return MOE_EINVAL;
  }
  x->n_seqs = (int64_t)n_seqs;
  x->n_docs = (int64_t)n_docs;
  for (uint64_t i = 0; i < rest; i++) {
    uint8_t mode = x->base[x->bytes - rest + i];
    if (mode != 0) {
      moe_error("%s: sequence %llu has mode %u, so it is not text", x->path, (unsigned long long)i, mode);
      return MOE_EINVAL;
    }
  }
  return MOE_OK;
}

static MoeStatus check_documents(const MoeIndex *x)
{
  int64_t last = -1;
  for (int64_t d = 0; d < x->n_docs; d++) {
    int64_t start = document_start(x, d);
    bool wrong = d == 0 ? start != 0 : start < last || start > x->n_seqs;
    if (wrong) {
      moe_error("%s: document boundary %lld is %lld, but they ascend from 0 to the number of sequences, %lld", x->path,
                (long long)d, (long long)start, (long long)x->n_seqs);
      return MOE_EINVAL;
    }
    last = start;
  }
  if (last != x->n_seqs) {
    moe_error("%s: the last of %lld document boundaries is %lld, but there are %lld sequences", x->path,
              (long long)x->n_docs, (long long)last, (long long)x->n_seqs);
    return MOE_EINVAL;
  }
  return MOE_OK;
}

static MoeStatus map_file(MoeIndex *x)
{
  int fd = open(x->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    moe_error("cannot open index %s: %s", x->path, strerror(errno));
    return MOE_EIO;
  }
  struct stat st;
  if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
    moe_error("index %s is %s, not a regular file", x->path, S_ISDIR(st.st_mode) ? "a directory" : "a special file");
    close(fd);
    return MOE_EIO;
  }
  bool mapped = st.st_size == 0 || moe_map(&x->mapped, fd, (size_t)st.st_size, PROT_READ, x->path);
  int map_errno = errno;
  close(fd);
  if (!mapped) {
    moe_error("cannot map index %s: %s", x->path, strerror(map_errno));
    return MOE_EIO;
  }
  x->base = x->mapped.base;
  x->bytes = (size_t)st.st_size;
  return MOE_OK;
}

MoeStatus moe_index_open(MoeIndex *x, const char *path)
{
  *x = (MoeIndex){.path = path};
  MOE_TRY(map_file(x));
  MOE_TRY(read_head(x));
  MOE_TRY(read_counts(x));
  return check_documents(x);
}

void moe_index_close(MoeIndex *x)
{
  moe_unmap(&x->mapped);
  *x = (MoeIndex){0};
}

bool moe_index_sniff(const char *path)
{
  uint8_t head[MAGIC_BYTES];
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  bool same = fd >= 0 && pread(fd, head, sizeof head, 0) == sizeof head && memcmp(head, magic, sizeof magic) == 0;
  if (fd >= 0) {
    close(fd);
  }
  return same;
}

MoeStatus moe_index_check(const MoeIndex *x, const MoeTokenFile *bin)
{
  int64_t width = moe_token_width(x->type), end = 0;
  for (int64_t i = 0; i < x->n_seqs; i++) {
    int64_t n = moe_index_length(x, i), at = moe_index_offset(x, i);
    if (n < 0 || at < 0 || at > bin->bytes || n > (bin->bytes - at) / width || at % width != 0) {
      moe_error("%s: sequence %lld has %lld tokens of %lld bytes from byte %lld on, but %s has %lld bytes", x->path,
                (long long)i, (long long)n, (long long)width, (long long)at, bin->path, (long long)bin->bytes);
      return MOE_EINVAL;
    }
    end = at + n * width > end ? at + n * width : end;
  }
  if (end != bin->bytes) {
    moe_error("%s has %lld bytes, but the sequences of %s end at byte %lld: they do not belong together", bin->path,
              (long long)bin->bytes, x->path, (long long)end);
    return MOE_EINVAL;
  }
  return MOE_OK;
}
