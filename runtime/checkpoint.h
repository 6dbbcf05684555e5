/* Checkpoints: a folder DIR/step-000100 with one safetensors file per rank of the plan that wrote it, and a manifest.
     rank-00003-of-00008.safetensors   what that rank owns, F32, under global names: NAME (the weights as the optimizer
                                       has them), NAME.adam_m, NAME.adam_v; of a tensor that several ranks own a part
                                       each, the part, as a list of its elements in C order
     manifest.json                     step, data position, settings of model and training, and of every tensor its
                                       global shape and which elements lie in which file, with a CRC-32 each; its last
                                       key is the CRC-32 of all bytes before it
   Any plan of the same model can read it. A folder that is being written is called step-000100.tmp; it gets its name
   when every file and the manifest are on disk, so a folder without .tmp is whole. Errors are one line that names the
   file. MOE_EIO: the checkpoint is damaged, an older one may be good. MOE_EINVAL: it is whole but not for this program.
 */
#ifndef MOE_CHECKPOINT_H
#define MOE_CHECKPOINT_H

#include <jansson.h>

#include "runtime/data.h"
#include "runtime/exec.h"
#include "runtime/safetensors.h"

/* What is kept of every tensor: its suffix in files, and where a rank holds it (MoeHeld). */
#define MOE_CK_STATES(X)                                                                                               \
  X("", master)                                                                                                        \
  X(".adam_m", m)                                                                                                      \
  X(".adam_v", v)
enum { MOE_CK_STATE_COUNT = 3 };
extern const char *const moe_ck_suffix[MOE_CK_STATE_COUNT];
const float *moe_ck_state(const MoeHeld *, int state); /* [h->n] */

/* Elements [begin, end) of a tensor, in one file. */
typedef struct MoeCkPart {
  int32_t tensor;
  int32_t file; /* rank that wrote it */
  int64_t begin;
  int64_t end;
  uint32_t crc[MOE_CK_STATE_COUNT];
} MoeCkPart;

/* The parts that a rank of this plan owns, by bucket and tensor: `tensor` is the index in bundle->params. Returns their
   number; parts NULL: only that. */
int32_t moe_ck_parts(const MoeBundle *, int32_t rank, MoeCkPart *parts);

typedef struct MoeCkFile {
  uint64_t bytes;
  uint32_t header_crc; /* of everything before the data */
} MoeCkFile;

/* Where the data of a shape stands. A shape that a checkpoint does not know, or knows with another seq, begins with the
   first sequence of its order. */
typedef struct MoeCkShape {
  const char *name;
  int64_t seq;
  bool known;         /* of a shape of the program: whether `place` is; in a manifest all are */
  MoeDataPlace place; /* its seed is the manifest's */
} MoeCkShape;

typedef struct MoeCkTensor {
  const char *name;
  int32_t n_dims;
  int64_t shape[2];
  int32_t first_part;
  int32_t n_parts; /* by ascending elements; they cover the tensor without overlap */
} MoeCkTensor;

typedef struct MoeManifest {
  int64_t step;    /* steps done */
  int64_t updates; /* of them, not skipped: Adam's step count */
  uint64_t seed;   /* of data order */
  uint64_t plan_hash;
  double next_lr;   /* of the step after; for people, it follows from step and settings */
  const char *turn; /* the order of shapes, as --shapes takes it */
  MoeCkShape *shapes;
  int32_t n_shapes;
  json_t *model_keys; /* object of strings */
  json_t *train_keys;
  json_t *options; /* object of strings: moe_options_kept() */
  MoeCkFile *files;
  int32_t n_files;
  MoeCkTensor *tensors;
  int32_t n_tensors;
  MoeCkPart *parts;
  int32_t n_parts;
  json_t *root; /* holds the texts; NULL of a manifest to be written */
} MoeManifest;

/* Names within a checkpoint. */
#define MOE_CK_MANIFEST "manifest.json"
enum { MOE_CK_NAME = 48 };
const char *moe_ck_file_name(char name[MOE_CK_NAME], int32_t rank, int32_t n_files);

/* Size of a rank's file and CRC of its header, as they are on disk. */
MoeStatus moe_ck_read_file(const char *path, MoeCkFile *);

/* "attention.heads = 4\n" lines as an object of strings, for the manifest. */
json_t *moe_ck_keys(const char *lines);

/* The whole file's text. NULL: out of memory. */
char *moe_manifest_text(const MoeManifest *, size_t *n_p);
/* path: for messages. On failure there is nothing to free. */
MoeStatus moe_manifest_parse(MoeManifest *, const char *path, const char *text, size_t n);
void moe_manifest_free(MoeManifest *);
const MoeCkTensor *moe_manifest_find(const MoeManifest *, const char *name); /* NULL: there is none */

/* A checkpoint that is open for reading. Made by the launcher; ranks share the mapping. */
typedef struct MoeCheckpoint {
  char *path;
  MoeManifest manifest;
  MoeStSet *sets;     /* [n_files] */
  int32_t *tensor_of; /* [n_params] of the program it was opened for: index in manifest.tensors */
  bool newest;        /* the newest good one of a folder was asked for, not this one by name */
  bool same_plan;
} MoeCheckpoint;

/* path: a checkpoint, or a folder of checkpoints, of which the newest that is not damaged is taken. Everything is
   checked: manifest, files, the checksum of all data, and that the model is the program's; where settings of the model
   differ, all differences are listed. On failure there is nothing to close. */
MoeStatus moe_checkpoint_open(MoeCheckpoint *, const MoeBundle *, const char *path);
void moe_checkpoint_close(MoeCheckpoint *);

/* Whether the folder is a checkpoint. */
bool moe_ck_is(const char *path);

/* *none_p: the path does not exist, or is a folder without a checkpoint or anything else: a run that has yet to begin.
 */
MoeStatus moe_checkpoint_none(const char *path, bool *none_p);

/* Where the data of a shape of this program stands. */
MoeCkShape moe_checkpoint_shape(const MoeCheckpoint *, const MoeBundle *shape);

/* Sets a rank's weights and optimizer state from it. */
MoeStatus moe_checkpoint_load(const MoeCheckpoint *, MoeExec *);

#endif
