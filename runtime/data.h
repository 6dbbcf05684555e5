/* Token files. The first part of the file trains, the last part is held out for evaluation. Sample k of a part covers
   its tokens [k * seq, k * seq + seq] (the last one only as a label), so a part of T tokens has (T - 1) / seq samples.
   Every epoch visits each sample once, in an order that depends on (seed, epoch) alone; when an epoch ends within a
   step, the step goes on with the next one. */
#ifndef MOE_DATA_H
#define MOE_DATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/moe_status.h"

typedef enum MoeFormat { MOE_FORMAT_BYTES, MOE_FORMAT_UINT16, MOE_FORMAT_UINT32 } MoeFormat; /* little endian */

typedef struct MoeData {
  const char *path;
  MoeFormat format;
  uint8_t *base; /* mapped read-only; shared with forked processes */
  size_t bytes;
  int64_t tokens;
  int32_t seq;
  int32_t vocab;
  uint64_t seed;
  int64_t train_tokens; /* the rest is held out */
  int64_t n_train;      /* samples */
  int64_t n_eval;
} MoeData;

/* Maps and checks the file: kind, size, enough tokens for one sample, and, below 64 MB, every id against the
   vocabulary. holdout: fraction of the tokens that is held out. */
MoeStatus moe_data_open(MoeData *, const char *path, MoeFormat, double holdout, int32_t seq, int32_t vocab,
                        uint64_t seed);
void moe_data_close(MoeData *);

/* Sample index of the number-th training sequence of the run. */
int64_t moe_data_sample(const MoeData *, uint64_t number);

/* Of `n_seqs` sequences of an evaluation step: held-out sample of the i-th, spread evenly over the held-out part; -1
   when there are fewer samples than sequences and this one has none. */
int64_t moe_data_eval_sample(const MoeData *, int64_t n_seqs, int64_t i);

/* Reads seq + 1 tokens. Fails at an id outside the vocabulary, naming file, offset, id and vocabulary. */
MoeStatus moe_data_read(const MoeData *, bool held_out, int64_t sample, int32_t *tokens);

/* A permutation of [0, n) for each key. Stateless: a four-round Feistel network over the next even number of bits,
   walked along its cycle until the value is below n. */
uint64_t moe_permute(uint64_t key, uint64_t n, uint64_t i);

#endif
