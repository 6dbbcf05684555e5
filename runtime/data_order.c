#include "runtime/data_order.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/log.h"

enum { KEYS = 624, SHIFT = 397 };

typedef struct Twister {
  uint32_t key[KEYS];
  int32_t at;
} Twister;

static void seed_twister(Twister *t, uint32_t seed)
{
  for (uint32_t i = 0; i < KEYS; i++) {
    t->key[i] = seed;
    seed = 1812433253u * (seed ^ seed >> 30) + i + 1;
  }
  t->at = KEYS;
}

static void refill(Twister *t)
{
  for (int i = 0; i < KEYS; i++) {
    uint32_t y = (t->key[i] & 0x80000000u) | (t->key[(i + 1) % KEYS] & 0x7fffffffu);
    t->key[i] = t->key[(i + SHIFT) % KEYS] ^ y >> 1 ^ (y & 1 ? 0x9908b0dfu : 0);
  }
  t->at = 0;
}

static uint32_t next_number(Twister *t)
{
  if (t->at == KEYS) {
    refill(t);
  }
  uint32_t y = t->key[t->at++];
  y ^= y >> 11;
  y ^= y << 7 & 0x9d2c5680u;
  y ^= y << 15 & 0xefc60000u;
  return y ^ y >> 18;
}

static void shuffle(Twister *t, uint32_t *x, int64_t n)
{
  uint32_t mask = UINT32_MAX;
  for (int64_t i = n - 1; i > 0; i--) {
    while (mask >> 1 >= (uint32_t)i) {
      mask >>= 1;
    }
    uint32_t j = next_number(t) & mask;
    while (j > (uint32_t)i) {
      j = next_number(t) & mask;
    }
    uint32_t moved = x[i];
    x[i] = x[j];
    x[j] = moved;
  }
}

/* Samples before the last epoch and behind, if it is shuffled by itself; else all of them and 0. */
typedef struct Split {
  int64_t epochs[2];
  int64_t samples[2];
} Split;

static Split split_epochs(const MoeOrder *o, int32_t seq, int64_t samples)
{
  Split all = {{o->epochs, 0}, {o->n_samples, 0}};
  if (o->epochs == 1) {
    return all;
  }
  int64_t before = ((o->epochs - 1) * o->tokens - 1) / seq;
  int64_t per_epoch = (o->tokens - 1) / seq;
  bool apart = samples - before < (int64_t)(0.80 * (double)per_epoch);
  return apart ? (Split){{o->epochs - 1, 1}, {before, o->n_samples - before}} : all;
}

/* How many epochs, samples and entries there are. Each fits 32 bits, which the arrays are of. */
static MoeStatus count_epochs(MoeOrder *o, const MoeIndex *x, int32_t seq, int64_t samples)
{
  int64_t needed;
  bool huge = __builtin_mul_overflow(samples, (int64_t)seq, &needed) || needed > INT64_MAX / 2 - o->tokens;
  o->epochs = 1;
  if (!huge && needed + 1 > o->tokens) {
    o->epochs = (needed + o->tokens) / o->tokens;
  }
  o->n_samples = (o->epochs * o->tokens - 1) / seq;
  if (huge || o->n_samples >= UINT32_MAX || o->epochs > UINT32_MAX / o->n_seqs) {
    moe_error(
        "%s: an order of %lld samples of %d tokens out of %lld sequences of %lld in all has more than 2^32 entries; "
        "take fewer steps",
        x->path, (long long)samples, seq, (long long)o->n_seqs, (long long)o->tokens);
    return MOE_EINVAL;
  }
  return MOE_OK;
}

static MoeStatus make_array(uint32_t **array, int64_t n)
{
  *array = malloc((size_t)n * sizeof **array);
  if (*array == NULL) {
    moe_error("out of memory for the order of %lld samples", (long long)n);
    return MOE_ENOMEM;
  }
  return MOE_OK;
}

static MoeStatus shuffle_all(MoeOrder *o, const Split *s, uint32_t seed)
{
  Twister twister;
  seed_twister(&twister, seed);
  MOE_TRY(make_array(&o->documents, o->epochs * o->n_seqs));
  MOE_TRY(make_array(&o->shuffle, o->n_samples));
  for (int64_t i = 0; i < o->epochs * o->n_seqs; i++) {
    o->documents[i] = (uint32_t)(i % o->n_seqs);
  }
  for (int64_t i = 0; i < o->n_samples; i++) {
    o->shuffle[i] = (uint32_t)i;
  }
  shuffle(&twister, o->documents, s->epochs[0] * o->n_seqs);
  shuffle(&twister, o->documents + s->epochs[0] * o->n_seqs, s->epochs[1] * o->n_seqs);
  shuffle(&twister, o->shuffle, s->samples[0]);
  shuffle(&twister, o->shuffle + s->samples[0], s->samples[1]);
  return MOE_OK;
}

static int64_t sequence_at(const MoeOrder *o, int64_t at)
{
  return o->first_seq + (o->documents != NULL ? (int64_t)o->documents[at] : at);
}

/* Where every sample starts: its first token is the last one of the sample before, seq tokens on. */
static MoeStatus lay_samples(MoeOrder *o, const MoeIndex *x, int32_t seq)
{
  int64_t at = 0, offset = 0;
  MOE_TRY(make_array(&o->at, o->n_samples));
  MOE_TRY(make_array(&o->offset, o->n_samples));
  for (int64_t i = 0; i < o->n_samples; i++) {
    int64_t length = moe_index_length(x, sequence_at(o, at));
    while (offset >= length) {
      offset -= length;
      length = moe_index_length(x, sequence_at(o, ++at));
    }
    o->at[i] = (uint32_t)at;
    o->offset[i] = (uint32_t)offset;
    offset += seq;
  }
  return MOE_OK;
}

MoeStatus moe_order_build(MoeOrder *o, const MoeIndex *x, int64_t first, int64_t end, int32_t seq, int64_t samples,
                          uint64_t seed)
{
  *o = (MoeOrder){.first_seq = first, .n_seqs = end - first};
  for (int64_t i = first; i < end; i++) {
    o->tokens += moe_index_length(x, i);
  }
  if (o->tokens < (int64_t)seq + 1) {
    return MOE_OK;
  }
  MOE_TRY(count_epochs(o, x, seq, samples));
  if (samples > 0 && seed > UINT32_MAX) {
    moe_error("--seed %llu: the order of %s is drawn from a seed below 2^32", (unsigned long long)seed, x->path);
    return MOE_EINVAL;
  }
  if (samples > 0) {
    Split split = split_epochs(o, seq, samples);
    MOE_TRY(shuffle_all(o, &split, (uint32_t)seed));
  }
  return lay_samples(o, x, seq);
}

void moe_order_free(MoeOrder *o)
{
  free(o->documents);
  free(o->shuffle);
  free(o->at);
  free(o->offset);
  *o = (MoeOrder){0};
}

int64_t moe_order_sample(const MoeOrder *o, int64_t number)
{
  return o->shuffle != NULL ? (int64_t)o->shuffle[number] : number;
}

MoeStatus moe_order_read(const MoeOrder *o, const MoeIndex *x, const MoeTokenFile *bin, const MoeTokenRange *range,
                         int64_t sample, int32_t seq, int32_t *tokens)
{
  int64_t at = o->at[sample], offset = o->offset[sample];
  for (int64_t left = (int64_t)seq + 1; left > 0; at++) {
    int64_t s = sequence_at(o, at);
    int64_t n = moe_index_length(x, s) - offset;
    n = n < left ? n : left;
    MOE_TRY(moe_tokens_read(bin, moe_index_offset(x, s) / moe_token_width(x->type) + offset, n, range, tokens));
    tokens += n;
    left -= n;
    offset = 0;
  }
  return MOE_OK;
}
