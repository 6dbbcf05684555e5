/* Safetensors files of all parameters under their global names, F32, written by all ranks together: the launcher makes
   the file and its header, every rank writes the slices it owns, the launcher renames it when all have ended. */
#ifndef MOE_TENSORS_H
#define MOE_TENSORS_H

#include "runtime/file.h"
#include "runtime/mem.h"

/* Creates the file with its header and full size. */
MoeStatus moe_tensors_begin(MoeFile *, const MoeBundle *, const char *path);

/* Writes this rank's slice of one bucket. values: the whole bucket (weights or gradients). */
MoeStatus moe_tensors_write(const MoeFile *, const MoeBundle *, const MoeHeld *, const float *values);

#endif
