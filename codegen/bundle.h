/* Bundles on disk. A bundle appears whole or not at all: it is made in a temporary folder
   beside its place and moved in by renames; what the user keeps in the folder stays. */
#ifndef CODEGEN_BUNDLE_H
#define CODEGEN_BUNDLE_H

#include <signal.h>

#include "codegen/emit.h"

/* What the CUDA sources of a bundle, if it has any, are compiled for. */
typedef enum BundleDevice {
  DEVICE_GPU,     /* by nvcc */
  DEVICE_EMULATED /* by g++, with the device that comes along */
} BundleDevice;

typedef struct BuildOptions {
  const char *out;    /* folder of the bundle */
  const char *cc;     /* compiler command, one word; NULL: "cc" */
  const char *cflags; /* added to compile and link lines, words split at blanks; may be NULL */
  BundleDevice device;
  const char *nvcc;        /* path; NULL: bundle_find_nvcc() */
  const char *arch;        /* "sm_90"; several with commas */
  const char *runtime_lib; /* path of the runtime library */
  bool sources_only;       /* write the files, do not compile */
  bool progress;           /* show progress on stderr */
  /* Once it is not 0, no more compilers are started and the build fails; may be NULL. */
  const volatile sig_atomic_t *stop;
} BuildOptions;

typedef struct BuildResult {
  int compiled; /* sources compiled */
  int reused;   /* objects taken from the cache */
} BuildResult;

/* $CUDA_HOME/bin/nvcc, or that of PATH, or /usr/local/cuda/bin/nvcc; NULL: there is none. */
const char *bundle_find_nvcc(Arena *);

/* Writes the bundle's files, compiles and links `train`. Objects are cached by the content of source, headers, flags
   and compiler in $MOEC_CACHE, else $XDG_CACHE_HOME/moec, else ~/.cache/moec. On failure nothing at `out` has changed.
 */
bool bundle_build(Arena *, Diag *, const Bundle *, const BuildOptions *, BuildResult *);

#endif
