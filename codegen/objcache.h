/* Object cache: where the compiled form of a source lies, by the content of everything that decides it. */
#ifndef CODEGEN_OBJCACHE_H
#define CODEGEN_OBJCACHE_H

#include "codegen/emit.h"

typedef struct ObjCache {
  const char *folder;
  uint64_t base[2]; /* hash of headers, flags, compiler and processor */
} ObjCache;

/* flags: all that the compiler is given beside the source. */
bool objcache_open(Arena *, Diag *, const Bundle *, const char *compiler, const char *flags, ObjCache *);

/* Path of the object of one source, whether it exists or not. */
const char *objcache_path(Arena *, const ObjCache *, const BundleFile *);

#endif
