/* Initial weights from Hugging Face files (train --init). */
#ifndef MOE_HF_LOAD_H
#define MOE_HF_LOAD_H

#include "runtime/hf_names.h"
#include "runtime/safetensors.h"

/* Where a parameter comes from. */
typedef struct MoeHfSource {
  const MoeStTensor *tensor;
  const MoeStTensor *scales; /* of MXFP4, else NULL */
  int64_t base, row_step, col_step;
} MoeHfSource;

typedef struct MoeHfLoad {
  MoeStSet set;
  MoeHfSource *sources; /* [n_params] */
} MoeHfLoad;

/* Opens the files and finds every parameter of the bundle in them, in whatever layout the name table allows. Names what
   is missing, what is there but belongs to no parameter, and what has another shape or a type that is not read; then
   nothing is open. Done before the ranks exist: they share the mapping. */
MoeStatus moe_hf_open(MoeHfLoad *, const MoeBundle *, const char *path);
void moe_hf_close(MoeHfLoad *);

/* Where the folder has a config.json that says another model than this one: one note for each difference that the
   tensors' shapes do not show. */
void moe_hf_check_config(const MoeBundle *, const char *path);

/* Reads all parameters of a bucket, and nothing else, into `values`, the whole bucket. */
void moe_hf_read(const MoeHfLoad *, const MoeBundle *, const MoeBucket *, float *values);

#endif
