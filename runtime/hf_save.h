/* Weights as a folder that Hugging Face's Transformers load (train --save-hf): config.json, safetensors of bounded size
   and, where there are several, their index. The launcher makes the folder under another name, every rank writes its
   share of the tensors from its own copy of the weights, the launcher gives the folder its name. */
#ifndef MOE_HF_SAVE_H
#define MOE_HF_SAVE_H

#include "runtime/hf_names.h"
#include "runtime/mem.h"
#include "runtime/safetensors.h"

/* Where a parameter goes. */
typedef struct MoeHfTarget {
  int32_t tensor; /* index in MoeHfSave.tensors */
  int64_t base, row_step, col_step;
  int64_t unit_begin, unit_rows, unit_cols; /* see MoeHfPlace */
} MoeHfTarget;

typedef struct MoeHfSave {
  const char *path; /* NULL: nothing is saved */
  char *target;     /* where links in it lead */
  char *temp;       /* folder in the making */
  int lock;         /* its descriptor, while it is one */
  MoeStTensor *tensors;
  int64_t (*shapes)[4];
  char (*names)[MOE_HF_NAME];
  int32_t *shard; /* [n_tensors] file of a tensor, and its index in that file */
  int32_t *index;
  int32_t n_tensors;
  MoeHfTarget *targets; /* [n_params] */
  MoeStWriter *writers; /* [n_shards] */
  char **files;         /* their paths */
  int32_t n_shards;
  uint64_t bytes; /* of all tensors */
  int64_t chunk;  /* bytes that a rank turns into the file's layout at a time, but one row at least */
} MoeHfSave;

/* Makes all files at their full size. The folder must not exist yet, or be empty. shard_bytes: most that a file's
   tensors take together, unless one alone takes more. */
MoeStatus moe_hf_save_begin(MoeHfSave *, const MoeBundle *, const char *path, int64_t shard_bytes);

/* Writes this rank's share of one bucket. Of the holders of a bucket, which all hold it whole, each writes every n-th
 * part. */
MoeStatus moe_hf_save_bucket(const MoeHfSave *, const MoeBundle *, const MoeHeld *, const float *weights);

MoeStatus moe_hf_save_commit(MoeHfSave *, const MoeBundle *);
void moe_hf_save_abandon(MoeHfSave *); /* frees; removes what is not committed */

#endif
