/* What YaRN makes of the rotary embedding, from the keys of a rope block. Formulas of the YaRN paper (arXiv 2309.00071)
   with the mscales of DeepSeek-V3. */
#ifndef CODEGEN_ROPE_H
#define CODEGEN_ROPE_H

#include "lang/spec.h"

/* Indices of frequencies: below `low` they stay, above `high` they are divided by the factor. */
typedef struct YarnRamp {
  double low, high;
} YarnRamp;

int rope_dim(const ModelSpec *);       /* entries of a head that turn */
YarnRamp yarn_ramp(const ModelSpec *); /* 0 and 1 without YaRN */
double rope_scale(const ModelSpec *);  /* of cos and sin */
double score_scale(const ModelSpec *); /* of q k^T */

#endif
