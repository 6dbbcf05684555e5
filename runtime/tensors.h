/* Safetensors files of all parameters under their global names, F32, written by all ranks together: the launcher makes
   the file, every rank writes the slices it owns, the launcher commits it when all have ended. */
#ifndef MOE_TENSORS_H
#define MOE_TENSORS_H

#include "runtime/mem.h"
#include "runtime/safetensors.h"

/* Creates the file; its tensors are the bundle's parameters, in their order. */
MoeStatus moe_tensors_begin(MoeStWriter *, const MoeBundle *, const char *path);

/* Writes this rank's slice of one bucket. values: the whole bucket (weights or gradients). */
MoeStatus moe_tensors_write(const MoeStWriter *, const MoeBundle *, const MoeHeld *, const float *values);

#endif
