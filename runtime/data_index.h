/* Sequences of tokens in a pair PREFIX.bin, PREFIX.idx, as the usual preprocessing tools of large-model training write
   them. The .idx, little endian, its arrays at odd addresses:
     bytes 0..8    "MMIDIDX\0\0"
     9..16         u64 version, 1
     17            u8 type of the tokens: 1 uint8, 2 int8, 3 int16, 4 int32, 5 int64, 6 and 7 floats, 8 uint16
     18..25        u64 number of sequences n
     26..33        u64 length of the document array: documents + 1
     34            i32 [n] tokens of each sequence, i64 [n] byte of the .bin where each starts, i64 [documents + 1]
   sequence at which each document starts, the last one being n; sets of more than text add i8 [n] modes. */
#ifndef MOE_DATA_INDEX_H
#define MOE_DATA_INDEX_H

#include <stdbool.h>

#include "runtime/data_tokens.h"
#include "runtime/mapped.h"

typedef struct MoeIndex {
  const char *path;
  MoeMapped mapped; /* read-only; shared with forked processes */
  const uint8_t *base;
  size_t bytes;
  MoeTokenType type;
  int64_t n_seqs;
  int64_t n_docs; /* documents + 1 */
} MoeIndex;

/* Maps the file and checks it as far as that goes without the .bin. `path` must live on. */
MoeStatus moe_index_open(MoeIndex *, const char *path);
void moe_index_close(MoeIndex *);

/* Whether the file starts as an .idx does; false too if it cannot be read. */
bool moe_index_sniff(const char *path);

/* Every sequence lies in the .bin, on whole tokens, and the last one ends where the .bin does. */
MoeStatus moe_index_check(const MoeIndex *, const MoeTokenFile *bin);

int64_t moe_index_length(const MoeIndex *, int64_t seq); /* tokens */
int64_t moe_index_offset(const MoeIndex *, int64_t seq); /* bytes */

#endif
