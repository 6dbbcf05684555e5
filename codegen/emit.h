/* Emitter: a checked schedule becomes the files of a bundle, in memory. Templates and contract headers are copied as
   they are; what is generated is one header of sizes and C tables of one row per line. Same input, same bytes. */
#ifndef CODEGEN_EMIT_H
#define CODEGEN_EMIT_H

#include "codegen/sched.h"

typedef struct BundleFile {
  const char *path; /* within the bundle, no folders */
  const char *bytes;
  size_t n_bytes;
} BundleFile;

typedef struct Bundle {
  BundleFile *files; /* sorted by path */
  int n_files;
} Bundle;

typedef enum Target {
  TARGET_CPU,
  TARGET_EMU, /* a rehearsal: modelled durations and sizes in the place of kernels */
  TARGET_CUDA
} Target;

/* By the end of its name. */
typedef enum SourceKind { SOURCE_NONE, SOURCE_C, SOURCE_CUDA, SOURCE_SIMT, SOURCE_KINDS } SourceKind;
SourceKind bundle_source(const char *path); /* SIMT: the emulated device itself */

/* Refuses, by name and place, every feature of the spec that the target's kernels do not have. */
bool emit_supported(Diag *, const Spec *, const Plan *, Target);

/* One program for n shapes, whose plans have one placement of the weights. `home` is the folder that holds templates/
   and runtime/. */
bool emit_bundle(Arena *, Diag *, const Spec *, const Plan *plans, const Schedule *scheds, int n, Target,
                 const char *home, Bundle *);

/* The generated header of sizes alone. */
void emit_config(const Spec *, Recompute, FILE *);

#endif
