/* Which files a data path means, and what they are. */
#ifndef MOE_DATA_FIND_H
#define MOE_DATA_FIND_H

#include "runtime/data.h"

/* Fills in format, files with their layout, and of indexed data the index. What was opened before an error is left in
   `d`, for moe_data_close(). */
MoeStatus moe_data_find(MoeData *d);

/* The header of llm.c's shards: int32 magic (20240520 with version 1 and uint16 tokens, 20240801 with version 7 and
   uint32 tokens), version, number of tokens; then zeros up to 1024 bytes. *found_p: whether it has such a header and
   its size is what that says. EINVAL if it has the header but not the size, or is another of llm.c's files, unless
   `lenient`. */
MoeStatus moe_llmc_read(MoeTokenFile *, bool lenient, bool *found_p);

#endif
