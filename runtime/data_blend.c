#include "runtime/data_blend.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "runtime/log.h"

enum { MAX_PARTS = 64 };

/* The number at the start of one share, and where its path begins; 0 if there is none. */
static double share_at(const char *text, const char **path_p)
{
  char *end;
  double share = strtod(text, &end);
  *path_p = end + 1;
  return end != text && *end == ':' && text[strspn(text, "0123456789.")] == ':' ? share : 0;
}

bool moe_blend_is(const char *path)
{
  struct stat st;
  const char *rest;
  return stat(path, &st) != 0 && path[strspn(path, "0123456789.")] == ':' && path[0] != ':' &&
         (share_at(path, &rest) > 0 || strchr(path, ',') != NULL);
}

/* Cuts the text in the parts' paths and their shares, which then add up to 1. */
static MoeStatus parse(MoeData *d, char *text, double *shares)
{
  double sum = 0;
  for (char *word = text, *next; word != NULL; word = next) {
    const char *path;
    next = strchr(word, ',');
    if (next != NULL) {
      *next++ = '\0';
    }
    double share = share_at(word, &path);
    if (!(share > 0 && share < HUGE_VAL) || *path == '\0' || moe_blend_is(path) || d->n_parts == MAX_PARTS) {
      moe_error("part %d of --data, '%.100s': expected at most %d of SHARE:PATH, each share above 0", d->n_parts + 1,
                word, MAX_PARTS);
      return MOE_EINVAL;
    }
    shares[d->n_parts] = share;
    d->parts[d->n_parts++].in.path = path;
    sum += share;
  }
  for (int32_t p = 0; p < d->n_parts; p++) {
    shares[p] /= sum;
  }
  return MOE_OK;
}

/* Hands out n sequences: to which part each belongs, and which of that part's it is. Counts go into `taken`. */
static MoeStatus hand_out(MoeBlend *blend, int64_t n, const double *shares, int32_t n_parts, int64_t *taken)
{
  blend->part = malloc((size_t)n);
  blend->number = malloc((size_t)n * sizeof *blend->number);
  if (blend->part == NULL || blend->number == NULL) {
    moe_error("out of memory for the order of %lld samples", (long long)n);
    return MOE_ENOMEM;
  }
  for (int64_t i = 0; i < n; i++) {
    int32_t next = 0;
    double most = -HUGE_VAL;
    for (int32_t p = 0; p < n_parts; p++) {
      double behind = shares[p] * (double)(i > 0 ? i : 1) - (double)taken[p];
      if (behind > most) {
        most = behind;
        next = p;
      }
    }
    blend->part[i] = (uint8_t)next;
    blend->number[i] = (uint32_t)taken[next]++;
  }
  return MOE_OK;
}

static MoeStatus open_part(const MoeData *d, MoeData *part, double share)
{
  MoeDataIn in = d->in;
  in.path = part->in.path;
  double samples = ceil((double)d->in.samples * share);
  in.samples = (int64_t)ceil(samples * (1 + 0.005));
  return moe_data_open(part, &in);
}

MoeStatus moe_blend_open(MoeData *d)
{
  double shares[MAX_PARTS];
  int64_t taken[MAX_PARTS] = {0};
  d->text = strdup(d->in.path);
  d->parts = calloc(MAX_PARTS, sizeof *d->parts);
  if (d->text == NULL || d->parts == NULL) {
    moe_error("out of memory for the names of data files");
    return MOE_ENOMEM;
  }
  MOE_TRY(parse(d, d->text, shares));
  if (d->in.samples >= UINT32_MAX) {
    moe_error("--data %s: %lld samples are more than 2^32; take fewer steps", d->in.path, (long long)d->in.samples);
    return MOE_EINVAL;
  }
  for (int32_t p = 0; p < d->n_parts; p++) {
    MOE_TRY(open_part(d, &d->parts[p], shares[p]));
    d->tokens += d->parts[p].tokens;
    d->train_tokens += d->parts[p].train_tokens;
  }
  d->n_train = d->in.samples > 0 ? d->in.samples : 1;
  MOE_TRY(hand_out(&d->blends[0], d->n_train, shares, d->n_parts, taken));
  memset(taken, 0, sizeof taken);
  MOE_TRY(hand_out(&d->blends[1], d->in.batch, shares, d->n_parts, taken));
  for (int32_t p = 0; p < d->n_parts; p++) {
    d->parts[p].eval_seqs = taken[p];
    d->n_eval += d->parts[p].n_eval < taken[p] ? d->parts[p].n_eval : taken[p];
  }
  return MOE_OK;
}

void moe_blend_close(MoeData *d)
{
  for (int32_t p = 0; p < d->n_parts; p++) {
    moe_data_close(&d->parts[p]);
  }
  for (int part = 0; part < 2; part++) {
    free(d->blends[part].part);
    free(d->blends[part].number);
  }
  free(d->parts);
  free(d->text);
}

int64_t moe_blend_sample(const MoeData *d, uint64_t number)
{
  uint64_t i = number % (uint64_t)d->n_train;
  int32_t p = d->blends[0].part[i];
  return moe_data_sample(&d->parts[p], d->blends[0].number[i]) * d->n_parts + p;
}

int64_t moe_blend_eval_sample(const MoeData *d, int64_t i)
{
  int32_t p = d->blends[1].part[i];
  const MoeData *part = &d->parts[p];
  int64_t sample = moe_data_eval_sample(part, part->eval_seqs, d->blends[1].number[i]);
  return sample < 0 ? -1 : sample * d->n_parts + p;
}
