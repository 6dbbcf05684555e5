/* The logits of one step (train --dump-logits), which exist nowhere as a whole: the head makes them for some tokens at
   a time. The file is mapped before the ranks exist, and each head writes its tokens' rows where they belong. */
#ifndef MOE_LOGITS_H
#define MOE_LOGITS_H

#include "runtime/mapped.h"
#include "runtime/moe_bundle.h"
#include "runtime/safetensors.h"

typedef struct MoeLogits {
  MoeStWriter file; /* "logits", F32 [global_batch, seq, vocab] */
  MoeMapped mapped; /* the whole file, shared with the ranks */
  float *values;    /* NULL: no file */
} MoeLogits;

#define MOE_NO_LOGITS ((MoeLogits){.file = {.file = {.fd = -1}}})

/* Makes the file at its full size, with room on the disk: a mapping has no other way to say that there is none. */
MoeStatus moe_logits_begin(MoeLogits *, const MoeBundle *shape, const char *path);
MoeStatus moe_logits_commit(MoeLogits *);
void moe_logits_abandon(MoeLogits *); /* nothing to do after a commit */

#endif
