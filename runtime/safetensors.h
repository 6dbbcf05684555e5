/* Safetensors files: a strict reader, memory-mapped, and a writer whose files appear whole or not at all.
   Format: 8 bytes of header length N, little endian; N bytes of JSON, {"name": {"dtype", "shape", "data_offsets"}, ...,
   "__metadata__": {text: text}}, padded with spaces; then the tensors' bytes in C order, little endian, back to back.
   Whatever is wrong with a file is one line that names it (moe_error), and MOE_EINVAL or MOE_EIO. */
#ifndef MOE_SAFETENSORS_H
#define MOE_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/file.h"

/* Element types and their bits, in the format's own order (files hold wide types first). */
#define MOE_ST_DTYPES(X)                                                                                               \
  X(BOOL, 8)                                                                                                           \
  X(F4, 4)                                                                                                             \
  X(F6_E2M3, 6)                                                                                                        \
  X(F6_E3M2, 6)                                                                                                        \
  X(U8, 8)                                                                                                             \
  X(I8, 8)                                                                                                             \
  X(F8_E5M2, 8)                                                                                                        \
  X(F8_E4M3, 8)                                                                                                        \
  X(F8_E8M0, 8)                                                                                                        \
  X(F8_E4M3FNUZ, 8)                                                                                                    \
  X(F8_E5M2FNUZ, 8)                                                                                                    \
  X(I16, 16)                                                                                                           \
  X(U16, 16)                                                                                                           \
  X(F16, 16)                                                                                                           \
  X(BF16, 16)                                                                                                          \
  X(I32, 32)                                                                                                           \
  X(U32, 32)                                                                                                           \
  X(F32, 32)                                                                                                           \
  X(C64, 64)                                                                                                           \
  X(F64, 64)                                                                                                           \
  X(I64, 64)                                                                                                           \
  X(U64, 64)

typedef enum MoeStDtype {
#define MOE_ST_DTYPE(name, bits) MOE_ST_##name,
  MOE_ST_DTYPES(MOE_ST_DTYPE)
#undef MOE_ST_DTYPE
      MOE_ST_DTYPE_COUNT
} MoeStDtype;

const char *moe_st_dtype_name(MoeStDtype); /* "BF16" */

/* What a tensor is; the same for reading and writing. */
typedef struct MoeStTensor {
  const char *name;
  MoeStDtype dtype;
  int32_t n_dims; /* 0: a scalar */
  const int64_t *shape;
  uint64_t bytes;      /* reading: of its data; ignored in moe_st_create() */
  const uint8_t *data; /* reading: in the mapping, not necessarily aligned; NULL where bytes is 0 */
  const char *file;    /* reading: the file that holds it, for messages */
} MoeStTensor;

enum { MOE_ST_SHAPE_TEXT = 96 };
/* "[128, 64]" into text [MOE_ST_SHAPE_TEXT]; returns text. */
const char *moe_st_shape_text(int32_t n_dims, const int64_t *shape, char *text);

/* Bytes of such a tensor, or -1 if they are not a whole number, a size is negative, or the product passes 2^63. */
int64_t moe_st_tensor_bytes(MoeStDtype, int32_t n_dims, const int64_t *shape);

/* ---- reading ---- */

/* One file, or all files of a folder, as one set of tensors by ascending name. Everything is checked at once; data is
   only touched where a caller reads it, and children of the process share the mapping. */
typedef struct MoeStSet {
  const char *path; /* as given */
  int32_t n;
  MoeStTensor *tensors; /* by name (strcmp) */
  struct MoeStFile *files;
  int32_t n_files;
} MoeStSet;

/* path: a safetensors file; an index (its name ends in ".json"); or a folder with model.safetensors.index.json or
   model.safetensors. An index names files of its own folder and decides alone which of them holds a tensor. On failure
   there is nothing to close. */
MoeStatus moe_st_open(MoeStSet *, const char *path);
void moe_st_close(MoeStSet *);
const MoeStTensor *moe_st_find(const MoeStSet *, const char *name); /* NULL: there is none */

/* Value of a key of the first file's __metadata__, or NULL. */
const char *moe_st_metadata(const MoeStSet *, const char *key);

/* ---- writing ---- */

/* A file in the making. Made by one process; after that any process that has inherited it may write pieces, in any
   order and several at once where they do not overlap; the first one commits. Unwritten bytes are zero. */
typedef struct MoeStWriter {
  MoeFile file;
  uint64_t *begin; /* [n] where a tensor's data begins, by the order of moe_st_create()'s list */
  uint64_t *bytes; /* [n] */
  int32_t n;
} MoeStWriter;

#define MOE_NO_ST_WRITER ((MoeStWriter){.file = {.fd = -1}})

/* Creates the file with its header and full size. Tensors lie in the order of the reference writer: wide types first,
   then by name. metadata: key, value, key, value, ..., NULL; or NULL for none. */
MoeStatus moe_st_create(MoeStWriter *, const char *path, const MoeStTensor *tensors, int32_t n,
                        const char *const *metadata);

/* Writes n bytes at `offset` within the data of tensor `i` of the list. */
MoeStatus moe_st_write(const MoeStWriter *, int32_t i, const void *bytes, uint64_t n, uint64_t offset);

MoeStatus moe_st_commit(MoeStWriter *); /* syncs and renames; on failure it is still to be abandoned */
void moe_st_abandon(MoeStWriter *);     /* removes the file; nothing to do after a commit */

#endif
