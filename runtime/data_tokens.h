/* A file of token ids: one integer type from some byte on. It is read by pread() into the caller's buffer, not through
   a mapping: a file may then be larger than the address space a job is allowed, and one that is cut off while the run
   goes on is an error with a name instead of a signal. */
#ifndef MOE_DATA_TOKENS_H
#define MOE_DATA_TOKENS_H

#include <stddef.h>
#include <stdint.h>

#include "runtime/bytes.h"
#include "runtime/moe_status.h"

typedef enum MoeTokenType { /* little endian */
                            MOE_TOKEN_U8,
                            MOE_TOKEN_I8,
                            MOE_TOKEN_I16,
                            MOE_TOKEN_I32,
                            MOE_TOKEN_I64,
                            MOE_TOKEN_U16,
                            MOE_TOKEN_U32
} MoeTokenType;

typedef struct MoeTokenFile {
  char *path; /* owned */
  int fd;
  int64_t bytes;
  MoeTokenType type;
  int64_t begin;  /* byte of the first token */
  int64_t tokens; /* from there to the end of the file */
} MoeTokenFile;

#define MOE_NO_TOKEN INT64_MIN /* where an id of 32 bits could stand: none */

/* Which ids are allowed: [0, vocab) and the mask, which is no token of the model. */
typedef struct MoeTokenRange {
  int32_t vocab;
  int64_t mask;
} MoeTokenRange;

int64_t moe_token_width(MoeTokenType); /* bytes */
const char *moe_token_type_name(MoeTokenType);

/* Opens a regular file that holds nothing but tokens; type and begin may be changed by moe_tokens_layout(). */
MoeStatus moe_tokens_open(MoeTokenFile *, const char *path);
void moe_tokens_close(MoeTokenFile *);

/* Says how the file is to be read. EINVAL unless what follows `begin` is a whole number of tokens. */
MoeStatus moe_tokens_layout(MoeTokenFile *, MoeTokenType, int64_t begin);

/* Bytes [at, at + n) of the file, or fewer at its end; -1 after an error, which is logged. */
int64_t moe_tokens_bytes(const MoeTokenFile *, int64_t at, void *bytes, int64_t n);

/* Reads tokens [first, first + n); ids NULL: only checks them. Fails at an id outside the range, naming file, token,
   byte, id and vocabulary. */
MoeStatus moe_tokens_read(const MoeTokenFile *, int64_t first, int64_t n, const MoeTokenRange *, int32_t *ids);

#endif
