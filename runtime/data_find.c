/* Formats are told apart in this order: an index beside the file, the header of llm.c, and then what the user says. A
   file that could be several things is never guessed at: text is read as bytes, since that is all it can be, but tokens
   without a header need --format. */
#include "runtime/data_find.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "runtime/log.h"

enum { LLMC_HEAD = 1024 };

/* The header of llm.c's shards: int32 magic (20240520 with version 1 and uint16 tokens, 20240801 with version 7 and
   uint32 tokens), version, number of tokens; then zeros up to 1024 bytes. *found_p: whether it has such a header and
   its size is what that says. EINVAL if it has the header but not the size, or is another of llm.c's files, unless
   `lenient`. */
static MoeStatus read_llmc(MoeTokenFile *f, bool lenient, bool *found_p)
{
  uint8_t head[12];
  *found_p = false;
  int64_t n = moe_tokens_bytes(f, 0, head, sizeof head);
  if (n < (int64_t)sizeof head) {
    return n < 0 ? MOE_EIO : MOE_OK;
  }
  int32_t magic = (int32_t)moe_little_endian(head, 4);
  int32_t version = (int32_t)moe_little_endian(head + 4, 4);
  int64_t count = (int32_t)moe_little_endian(head + 8, 4);
  bool gpt2 = magic == 20240520;
  if (!gpt2 && magic != 20240801) {
    if ((magic == 20240522 || magic == 20240326) && !lenient) {
      moe_error("data file %s is a %s of llm.c (%d), not tokens to train on", f->path,
                magic == 20240522 ? "file of questions" : "model", magic);
      return MOE_EINVAL;
    }
    return MOE_OK;
  }
  MoeTokenType type = gpt2 ? MOE_TOKEN_U16 : MOE_TOKEN_U32;
  int64_t expected = LLMC_HEAD + count * moe_token_width(type);
  if (version != (gpt2 ? 1 : 7)) {
    if (!lenient) {
      moe_error("data file %s: byte 4: version %d of llm.c's header %d is unknown; known is %d", f->path, version,
                magic, gpt2 ? 1 : 7);
    }
    return lenient ? MOE_OK : MOE_EINVAL;
  }
  if (count < 0 || f->bytes != expected) {
    if (!lenient) {
      moe_error("data file %s: its header says %lld tokens, which makes %lld bytes, but it has %lld", f->path,
                (long long)count, (long long)expected, (long long)f->bytes);
    }
    return lenient ? MOE_OK : MOE_EINVAL;
  }
  *found_p = true;
  return moe_tokens_layout(f, type, LLMC_HEAD);
}

static bool ends_with(const char *text, const char *end)
{
  size_t n = strlen(text), m = strlen(end);
  return n >= m && strcmp(text + n - m, end) == 0;
}

static bool exists(const char *path)
{
  struct stat st;
  return stat(path, &st) == 0;
}

/* The path without .bin or .idx, and `suffix`; owned by the caller. */
static char *sibling(const char *path, const char *suffix)
{
  size_t n = strlen(path);
  n -= ends_with(path, ".bin") || ends_with(path, ".idx") ? 4 : 0;
  char *name = malloc(n + strlen(suffix) + 1);
  if (name != NULL) {
    memcpy(name, path, n);
    strcpy(name + n, suffix);
  }
  return name;
}

static bool headerless(MoeFormat format)
{
  return format == MOE_FORMAT_BYTES || format == MOE_FORMAT_UINT16 || format == MOE_FORMAT_UINT32;
}

static MoeStatus contradicts(const MoeData *d, const char *what)
{
  moe_error("--format %s, but %s", moe_format_names[d->in.format], what);
  return MOE_EINVAL;
}

/* Whether the path means indexed data. Where a file of that very name exists that is neither .bin nor .idx, it is what
   is meant, and an index is none of its business. */
static MoeStatus look_for_index(MoeData *d, bool *found_p)
{
  const char *path = d->in.path;
  MoeFormat format = d->in.format;
  bool named = ends_with(path, ".bin") || ends_with(path, ".idx");
  char text[256];
  *found_p = false;
  d->index_path = sibling(path, ".idx");
  if (d->index_path == NULL) {
    moe_error("out of memory for the names of data files");
    return MOE_ENOMEM;
  }
  bool here = (named || !exists(path)) && exists(d->index_path);
  if (here && headerless(format) && moe_index_sniff(d->index_path)) {
    snprintf(text, sizeof text, "%.200s is an index of its tokens", d->index_path);
    return contradicts(d, text);
  }
  *found_p = format == MOE_FORMAT_INDEXED || (here && format == MOE_FORMAT_AUTO);
  return MOE_OK;
}

static MoeStatus open_indexed(MoeData *d)
{
  d->format = MOE_FORMAT_INDEXED;
  MOE_TRY(moe_index_open(&d->index, d->index_path));
  char *bin = sibling(d->in.path, ".bin");
  d->files = malloc(sizeof *d->files);
  MoeStatus status = bin != NULL && d->files != NULL ? MOE_OK : MOE_ENOMEM;
  if (status != MOE_OK) {
    moe_error("out of memory for the names of data files");
  } else {
    status = moe_tokens_open(d->files, bin);
    d->n_files = status == MOE_OK;
  }
  free(bin);
  MOE_TRY(status);
  MOE_TRY(moe_index_check(&d->index, d->files));
  return moe_tokens_layout(d->files, d->index.type, 0);
}

/* One of the files; the first one decides the format, the others follow. */
static MoeStatus know_file(MoeData *d, MoeTokenFile *f)
{
  bool shard;
  char text[256];
  MOE_TRY(read_llmc(f, headerless(d->in.format), &shard));
  if (shard && headerless(d->in.format)) {
    snprintf(text, sizeof text, "%.200s has a header of llm.c, which would be read as tokens", f->path);
    return contradicts(d, text);
  }
  if (!shard && d->in.format == MOE_FORMAT_LLMC) {
    snprintf(text, sizeof text, "%.200s does not begin with a header of llm.c", f->path);
    return contradicts(d, text);
  }
  MoeFormat format = shard ? MOE_FORMAT_LLMC : d->in.format == MOE_FORMAT_AUTO ? MOE_FORMAT_BYTES : d->in.format;
  if (d->format != MOE_FORMAT_AUTO && (format != d->format || (shard && f->type != d->files[0].type))) {
    moe_error("data files %s and %s are of different formats, %s of %s and %s of %s", d->files[0].path, f->path,
              moe_format_names[d->format], moe_token_type_name(d->files[0].type), moe_format_names[format],
              moe_token_type_name(f->type));
    return MOE_EINVAL;
  }
  d->format = format;
  if (format == MOE_FORMAT_BYTES && d->in.format == MOE_FORMAT_AUTO && ends_with(f->path, ".bin")) {
    moe_error("data file %s has no header that says what its tokens are: give --format uint16, uint32 or bytes",
              f->path);
    return MOE_EINVAL;
  }
  if (shard) {
    return MOE_OK;
  }
  static const MoeTokenType of_format[] = {
      [MOE_FORMAT_BYTES] = MOE_TOKEN_U8, [MOE_FORMAT_UINT16] = MOE_TOKEN_U16, [MOE_FORMAT_UINT32] = MOE_TOKEN_U32};
  return moe_tokens_layout(f, of_format[format], 0);
}

static MoeStatus open_files(MoeData *d, char *const *paths, size_t n)
{
  d->files = n <= INT32_MAX ? malloc(n * sizeof *d->files) : NULL;
  if (d->files == NULL) {
    moe_error("out of memory for %zu data files", n);
    return MOE_ENOMEM;
  }
  for (size_t i = 0; i < n; i++) {
    MOE_TRY(moe_tokens_open(&d->files[i], paths[i]));
    d->n_files++;
    MOE_TRY(know_file(d, &d->files[i]));
  }
  return MOE_OK;
}

MoeStatus moe_data_find(MoeData *d)
{
  char *path = (char *)d->in.path;
  bool indexed;
  MOE_TRY(look_for_index(d, &indexed));
  if (indexed) {
    return open_indexed(d);
  }
  if (exists(path) || strpbrk(path, "*?[") == NULL) {
    return open_files(d, &path, 1);
  }
  glob_t found = {0};
  if (glob(path, 0, NULL, &found) != 0) {
    moe_error("no data file matches %s", path);
    return MOE_EIO;
  }
  MoeStatus status = open_files(d, found.gl_pathv, found.gl_pathc);
  globfree(&found);
  return status;
}
