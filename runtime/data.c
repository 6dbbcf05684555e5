#include "runtime/data.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "runtime/crc.h"
#include "runtime/data_blend.h"
#include "runtime/data_find.h"
#include "runtime/init.h"
#include "runtime/log.h"

#define CHECK_AT_START_BYTES (64 << 20)

enum { PAGE = 4096 };

const char *const moe_format_names[MOE_N_FORMATS] = {"auto", "bytes", "uint16", "uint32", "llmc", "indexed"};

static MoeTokenRange allowed(const MoeData *d)
{
  return (MoeTokenRange){.vocab = d->in.vocab, .mask = d->in.mask_token};
}

static MoeStatus too_short(const MoeData *d)
{
  moe_error("data file %s has %lld tokens, %lld of them for training, but one sample needs %d (sequence length %d + 1)",
            d->in.path, (long long)d->tokens, (long long)d->train_tokens, d->in.seq + 1, d->in.seq);
  return MOE_EINVAL;
}

/* Whole steps of a shard, so that a step never lies in two. */
static int64_t shard_samples(const MoeData *d, int64_t tokens)
{
  int64_t step = (int64_t)d->in.batch * d->in.seq;
  return (tokens - 1) / step * d->in.batch;
}

/* Cuts every file where the held-out part begins, counting over all. */
static MoeStatus cut_pieces(MoeData *d)
{
  int64_t *n[2] = {&d->n_train, &d->n_eval};
  int64_t before = 0;
  for (int part = 0; part < 2; part++) {
    d->pieces[part] = calloc((size_t)d->n_files, sizeof *d->pieces[part]);
    if (d->pieces[part] == NULL) {
      moe_error("out of memory for the parts of %d data files", d->n_files);
      return MOE_ENOMEM;
    }
  }
  for (int32_t f = 0; f < d->n_files; f++) {
    int64_t tokens = d->files[f].tokens;
    int64_t cut = d->train_tokens - before;
    cut = cut < 0 ? 0 : cut > tokens ? tokens : cut;
    int64_t size[2] = {cut, tokens - cut};
    for (int part = 0; part < 2; part++) {
      bool steps = part == 0 && d->format == MOE_FORMAT_LLMC;
      int64_t own = size[part] < 1 ? 0 : steps ? shard_samples(d, size[part]) : (size[part] - 1) / d->in.seq;
      d->pieces[part][f] = (MoePiece){f, part == 0 ? 0 : cut, size[part], *n[part], own};
      *n[part] += own;
    }
    before += tokens;
  }
  return MOE_OK;
}

/* A shard that does not hold a step would be left out without a word. */
static MoeStatus check_shards(const MoeData *d)
{
  int64_t step = (int64_t)d->in.batch * d->in.seq + 1;
  for (int32_t f = 0; f < d->n_files; f++) {
    if (d->files[f].tokens < step) {
      moe_error("data file %s has %lld tokens, but a step of %d sequences of %d needs %lld", d->files[f].path,
                (long long)d->files[f].tokens, d->in.batch, d->in.seq, (long long)step);
      return MOE_EINVAL;
    }
  }
  return MOE_OK;
}

static MoeStatus open_pieces(MoeData *d)
{
  for (int32_t f = 0; f < d->n_files; f++) {
    d->tokens += d->files[f].tokens;
  }
  d->train_tokens = d->tokens - (int64_t)((double)d->tokens * d->in.holdout);
  if (d->format == MOE_FORMAT_LLMC) {
    MOE_TRY(check_shards(d));
  }
  MOE_TRY(cut_pieces(d));
  if (d->n_train > 0) {
    return MOE_OK;
  }
  if (d->format != MOE_FORMAT_LLMC || d->train_tokens <= d->in.seq) {
    return too_short(d);
  }
  moe_error(
      "no file of %s has the %lld tokens of a step of %d sequences of %d for training, %lld of %lld being held out",
      d->in.path, (long long)d->in.batch * d->in.seq + 1, d->in.batch, d->in.seq,
      (long long)(d->tokens - d->train_tokens), (long long)d->tokens);
  return MOE_EINVAL;
}

/* Parts are whole sequences. Halves are rounded to even, as where the format comes from. */
static int64_t first_held_out(int64_t n, double holdout)
{
  double cut = (1 - holdout) * (double)n;
  int64_t whole = (int64_t)cut;
  double rest = cut - (double)whole;
  return whole + (rest > 0.5 || (rest == 0.5 && whole % 2 == 1));
}

static MoeStatus open_orders(MoeData *d)
{
  int64_t n = d->index.n_seqs, cut = first_held_out(n, d->in.holdout);
  int64_t samples = d->in.samples > 0 ? d->in.samples : 1;
  MOE_TRY(moe_order_build(&d->orders[0], &d->index, 0, cut, d->in.seq, samples, d->in.seed));
  MOE_TRY(moe_order_build(&d->orders[1], &d->index, cut, n, d->in.seq, 0, 0));
  d->train_tokens = d->orders[0].tokens;
  d->tokens = d->train_tokens + d->orders[1].tokens;
  d->n_train = d->orders[0].n_samples;
  d->n_eval = d->orders[1].n_samples;
  return d->n_train > 0 ? MOE_OK : too_short(d);
}

static MoeStatus check_ids(const MoeData *d)
{
  int64_t bytes = 0;
  MoeTokenRange range = allowed(d);
  for (int32_t f = 0; f < d->n_files; f++) {
    bytes += d->files[f].bytes;
  }
  for (int32_t f = 0; f < d->n_files && bytes < CHECK_AT_START_BYTES; f++) {
    MOE_TRY(moe_tokens_read(&d->files[f], 0, d->files[f].tokens, &range, NULL));
  }
  return MOE_OK;
}

static uint32_t crc_of_ends(uint32_t crc, const uint8_t *bytes, size_t n)
{
  size_t some = n < PAGE ? n : PAGE;
  return moe_crc32(moe_crc32(crc, bytes, some), bytes + n - some, some);
}

static MoeStatus read_content(MoeData *d)
{
  uint8_t ends[2 * PAGE];
  for (int32_t f = 0; f < d->n_files; f++) {
    const MoeTokenFile *file = &d->files[f];
    int64_t some = file->bytes < PAGE ? file->bytes : PAGE;
    int64_t first = moe_tokens_bytes(file, 0, ends, some);
    int64_t last = moe_tokens_bytes(file, file->bytes - some, ends + PAGE, some);
    if (first < 0 || last < 0) {
      return MOE_EIO;
    }
    d->content = moe_crc32(moe_crc32(d->content, ends, (size_t)first), ends + PAGE, (size_t)last);
  }
  if (d->index.base != NULL) {
    d->content = crc_of_ends(d->content, d->index.base, d->index.bytes);
  }
  return MOE_OK;
}

MoeStatus moe_data_open(MoeData *d, const MoeDataIn *in)
{
  *d = (MoeData){.in = *in};
  if (moe_blend_is(in->path)) {
    return moe_blend_open(d);
  }
  MOE_TRY(moe_data_find(d));
  MOE_TRY(read_content(d));
  MOE_TRY(d->format == MOE_FORMAT_INDEXED ? open_orders(d) : open_pieces(d));
  return check_ids(d);
}

void moe_data_close(MoeData *d)
{
  for (int32_t f = 0; f < d->n_files; f++) {
    moe_tokens_close(&d->files[f]);
  }
  for (int part = 0; part < 2; part++) {
    free(d->pieces[part]);
    moe_order_free(&d->orders[part]);
  }
  moe_blend_close(d);
  moe_index_close(&d->index);
  free(d->index_path);
  free(d->files);
  *d = (MoeData){0};
}

static bool same_file(const struct stat *a, const struct stat *b)
{
  return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

bool moe_data_holds(const MoeData *d, const char *path)
{
  struct stat given, own;
  if (stat(path, &given) != 0) {
    return false;
  }
  bool holds = d->format == MOE_FORMAT_INDEXED && stat(d->index_path, &own) == 0 && same_file(&given, &own);
  for (int32_t f = 0; f < d->n_files && !holds; f++) {
    holds = fstat(d->files[f].fd, &own) == 0 && same_file(&given, &own);
  }
  for (int32_t p = 0; p < d->n_parts && !holds; p++) {
    holds = moe_data_holds(&d->parts[p], path);
  }
  return holds;
}

void moe_data_describe(const MoeData *d, char *text, size_t n)
{
  char what[64];
  if (d->n_parts > 0) {
    snprintf(text, n, "%d sets, %lld tokens, %lld of them for training", d->n_parts, (long long)d->tokens,
             (long long)d->train_tokens);
    return;
  }
  snprintf(what, sizeof what, "%lld sequences", (long long)d->index.n_seqs);
  if (d->format != MOE_FORMAT_INDEXED) {
    snprintf(what, sizeof what, "%d file%s", d->n_files, d->n_files > 1 ? "s" : "");
  }
  snprintf(text, n, "%s, %s of %s, %lld tokens, %lld of them for training", moe_format_names[d->format], what,
           moe_token_type_name(d->files[0].type), (long long)d->tokens, (long long)d->train_tokens);
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
  if (d->n_parts > 0) {
    return moe_blend_sample(d, number);
  }
  if (d->format == MOE_FORMAT_INDEXED) { /* its order was made for all samples of the run */
    return moe_order_sample(&d->orders[0], (int64_t)(number % n));
  }
  if (d->format == MOE_FORMAT_LLMC) {
    return (int64_t)(number % n);
  }
  return (int64_t)moe_permute(moe_mix(d->in.seed ^ moe_mix(epoch)), n, number % n);
}

int64_t moe_data_eval_sample(const MoeData *d, int64_t n_seqs, int64_t i)
{
  if (d->n_parts > 0) {
    return moe_blend_eval_sample(d, i);
  }
  if (d->n_eval >= n_seqs) {
    return i * d->n_eval / n_seqs;
  }
  return i < d->n_eval ? i : -1;
}

/* The last piece that begins at the sample or before and is not empty. */
static const MoePiece *piece_of(const MoePiece *pieces, int32_t n, int64_t sample)
{
  int32_t low = 0, high = n;
  while (high - low > 1) {
    int32_t middle = low + (high - low) / 2;
    if (pieces[middle].sample <= sample) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return &pieces[low];
}

MoeStatus moe_data_read(const MoeData *d, bool held_out, int64_t sample, int32_t *tokens)
{
  MoeTokenRange range = allowed(d);
  if (d->n_parts > 0) {
    return moe_data_read(&d->parts[sample % d->n_parts], held_out, sample / d->n_parts, tokens);
  }
  if (d->format == MOE_FORMAT_INDEXED) {
    return moe_order_read(&d->orders[held_out], &d->index, d->files, &range, sample, d->in.seq, tokens);
  }
  const MoePiece *p = piece_of(d->pieces[held_out], d->n_files, sample);
  int64_t first = p->first + (sample - p->sample) * d->in.seq;
  return moe_tokens_read(&d->files[p->file], first, (int64_t)d->in.seq + 1, &range, tokens);
}

bool moe_data_masks(const MoeData *d)
{
  return d->in.mask_token != MOE_NO_TOKEN || d->in.mask_after != MOE_NO_TOKEN;
}

int32_t moe_data_token(const MoeData *d, const int32_t *tokens, int64_t i)
{
  return tokens[i] >= 0 && tokens[i] < d->in.vocab ? tokens[i] : 0;
}

int32_t moe_data_label(const MoeData *d, const int32_t *tokens, int64_t i)
{
  bool counts = tokens[i + 1] != d->in.mask_token && tokens[i] != d->in.mask_after;
  return counts ? tokens[i + 1] : -1;
}

MoeDataPlace moe_data_place(const MoeData *d, uint64_t next)
{
  MoeDataPlace place = {
      .next = next, .seed = d->in.seed, .identity = moe_mix((uint64_t)d->format + 1), .content = d->content};
  bool finite = d->n_parts > 0 || d->format == MOE_FORMAT_INDEXED; /* the order is made for so many samples */
  place.samples = finite ? (uint64_t)d->in.samples : 0;
  uint64_t sizes[] = {(uint64_t)d->in.seq, d->format == MOE_FORMAT_LLMC ? (uint64_t)d->in.batch : 0,
                      (uint64_t)d->train_tokens};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    place.identity = moe_mix(place.identity ^ sizes[i]);
  }
  for (int32_t f = 0; f < d->n_files; f++) {
    place.identity = moe_mix(place.identity ^ (uint64_t)d->files[f].bytes);
  }
  for (int32_t p = 0; p < d->n_parts; p++) { /* how many samples a part is made for says its share */
    place.identity = moe_mix(place.identity ^ moe_data_place(&d->parts[p], 0).identity);
    place.identity = moe_mix(place.identity ^ (uint64_t)d->parts[p].in.samples);
    place.content = moe_crc32(place.content, &d->parts[p].content, sizeof place.content);
  }
  return place;
}

MoeStatus moe_data_check_place(const MoeData *d, const MoeDataPlace *place)
{
  MoeDataPlace own = moe_data_place(d, place->next);
  const struct {
    const char *what;
    uint64_t was, is;
  } facts[] = {{"seed of the order", place->seed, own.seed},
               {"number of samples of the whole run", place->samples, own.samples}};
  for (size_t i = 0; i < sizeof facts / sizeof *facts; i++) {
    if (facts[i].was != facts[i].is) {
      moe_error("%s: the run cannot go on with the same tokens: the %s was %llu and is %llu", d->in.path, facts[i].what,
                (unsigned long long)facts[i].was, (unsigned long long)facts[i].is);
      return MOE_EINVAL;
    }
  }
  if (place->identity != own.identity) { /* a hash, of which numbers would say nothing */
    moe_error(
        "%s: the run cannot go on with the same tokens: the format, the sizes of the files, --holdout or the sets "
        "and their shares were others",
        d->in.path);
    return MOE_EINVAL;
  }
  if (place->content != own.content) {
    moe_error(
        "%s: the run cannot go on with the same tokens: the CRC-32 of the first and last %d bytes of the files was "
        "%08x and is %08x",
        d->in.path, PAGE, (unsigned)place->content, (unsigned)own.content);
    return MOE_EINVAL;
  }
  return MOE_OK;
}
