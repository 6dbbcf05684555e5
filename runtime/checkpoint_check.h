/* Whether a checkpoint is whole: what moe_checkpoint_open() looks at beside the program. */
#ifndef MOE_CHECKPOINT_CHECK_H
#define MOE_CHECKPOINT_CHECK_H

#include "runtime/checkpoint.h"

/* Reads c->manifest of c->path. */
MoeStatus moe_ck_read_manifest(MoeCheckpoint *);

/* Opens every file that the manifest names, and compares sizes, headers and the checksums of all data with it; refuses
   further files of ranks. */
MoeStatus moe_ck_check_files(MoeCheckpoint *);

/* The data of a part of the named tensor; NULL if its file has no such tensor of that size. */
const uint8_t *moe_ck_data(const MoeCheckpoint *, const char *tensor, const MoeCkPart *, int state);

#endif
