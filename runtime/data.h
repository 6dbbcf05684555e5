/* The tokens that a run trains on, in whatever form they lie on disk, as one shape cuts them in samples of seq + 1
   tokens (the last one only as a label). A first part trains, a last part is held out for evaluation.
     bytes, uint16, uint32   headerless files. Sample k of a file's part covers its tokens [k * seq, k * seq + seq].
                             Every epoch visits each sample once, in an order that depends on (seed, epoch) alone.
     llmc                    shards with a header of 256 int32 (data_find.c), in the order of their names and of their
                             tokens: a step takes the next batch * seq tokens of a shard and the one after; what is
                             left of a shard is dropped.
     indexed                 PREFIX.bin with PREFIX.idx (data_index.h), in the order of data_order.h. The parts are
                             whole sequences.
   A path may be a pattern: then its files, sorted by name, are read as one after the other, samples never across two.
 */
#ifndef MOE_DATA_H
#define MOE_DATA_H

#include "runtime/data_order.h"

typedef enum MoeFormat {
  MOE_FORMAT_AUTO, /* what the files say they are */
  MOE_FORMAT_BYTES,
  MOE_FORMAT_UINT16,
  MOE_FORMAT_UINT32,
  MOE_FORMAT_LLMC,
  MOE_FORMAT_INDEXED
} MoeFormat;

enum { MOE_N_FORMATS = 6 };
extern const char *const moe_format_names[MOE_N_FORMATS];

/* What is wanted of the data. */
typedef struct MoeDataIn {
  const char *path; /* file, pattern, or PREFIX */
  MoeFormat format;
  double holdout; /* fraction that is held out */
  int32_t seq;
  int32_t vocab;
  int32_t batch; /* sequences of a step */
  uint64_t seed;
  int64_t samples;    /* training sequences of the whole run: on it depends where the order of `indexed` begins anew */
  int64_t mask_token; /* labels with this id do not count, and it may lie outside the vocabulary; else MOE_NO_TOKEN */
  int64_t mask_after; /* labels that follow this id do not count; else MOE_NO_TOKEN */
} MoeDataIn;

/* The tokens of a file that belong to one part. */
typedef struct MoePiece {
  int32_t file;
  int64_t first;
  int64_t tokens;
  int64_t sample; /* the piece's first, counted over the part */
  int64_t n_samples;
} MoePiece;

/* Where the sequences of a blend come from. */
typedef struct MoeBlend {
  uint8_t *part;
  uint32_t *number; /* among those of the part */
} MoeBlend;

typedef struct MoeData {
  MoeDataIn in;
  MoeFormat format; /* never AUTO, but in a blend */
  MoeTokenFile *files;
  int32_t n_files;
  int64_t tokens;
  int64_t train_tokens; /* the rest is held out */
  int64_t n_train;      /* samples */
  int64_t n_eval;
  uint32_t content;    /* see MoeDataPlace */
  MoePiece *pieces[2]; /* [n_files] of training, held out; NULL of indexed data */
  char *index_path;
  MoeIndex index;
  MoeOrder orders[2];
  /* a blend has parts and nothing of the above but counts */
  struct MoeData *parts;
  int32_t n_parts;
  char *text;         /* the parts' paths */
  MoeBlend blends[2]; /* of the run's samples; of the sequences of an evaluation */
  int64_t eval_seqs;  /* of a part: how many sequences of an evaluation are its */
} MoeData;

/* Finds out what the files are, opens and checks them: kind, sizes, enough tokens for a sample (llmc: for a step), and,
   below 64 MB, every id against the vocabulary. Forked processes share what it has opened. */
MoeStatus moe_data_open(MoeData *, const MoeDataIn *);
void moe_data_close(MoeData *);

/* "indexed, 120 sequences of uint16, 20000 tokens, 18000 of them for training" */
void moe_data_describe(const MoeData *, char *text, size_t n);

/* Whether the path leads to one of the files, which an output must not replace. */
bool moe_data_holds(const MoeData *, const char *path);

/* Sample index of the number-th training sequence of the run. */
int64_t moe_data_sample(const MoeData *, uint64_t number);

/* Of `n_seqs` sequences of an evaluation step: held-out sample of the i-th, spread evenly over the held-out part; -1
   when there are fewer samples than sequences and this one has none. */
int64_t moe_data_eval_sample(const MoeData *, int64_t n_seqs, int64_t i);

/* Reads seq + 1 tokens as they are in the file. Fails at an id outside the vocabulary, naming file, offset, id and
   vocabulary. */
MoeStatus moe_data_read(const MoeData *, bool held_out, int64_t sample, int32_t *tokens);

/* Whether some label may not count, and what token i of such a sample is for the model and for the loss: an id that is
   only a mask is embedded as token 0; a label that does not count is -1. */
bool moe_data_masks(const MoeData *);
int32_t moe_data_token(const MoeData *, const int32_t *tokens, int64_t i);
int32_t moe_data_label(const MoeData *, const int32_t *tokens, int64_t i);

/* Where the data stands: all that a run must know to go on with the same tokens. */
typedef struct MoeDataPlace {
  uint64_t next; /* number of the next training sequence of this shape */
  uint64_t
      samples; /* what the order was made for (0: it does not depend on that); goes into MoeDataIn of the resumed run */
  uint64_t seed;
  uint64_t identity; /* of format, files' sizes, parts and sample length */
  uint32_t content;  /* CRC-32 of the first and the last 4096 bytes of every file, indices too */
} MoeDataPlace;

MoeDataPlace moe_data_place(const MoeData *, uint64_t next);

/* EINVAL, with both numbers, unless `place` was taken of the same data in the same order. */
MoeStatus moe_data_check_place(const MoeData *, const MoeDataPlace *place);

/* A permutation of [0, n) for each key. Stateless: a four-round Feistel network over the next even number of bits,
   walked along its cycle until the value is below n. */
uint64_t moe_permute(uint64_t key, uint64_t n, uint64_t i);

#endif
