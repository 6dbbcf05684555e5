/* Files that appear whole or not at all: written under a temporary name beside the target, then renamed. */
#ifndef MOE_FILE_H
#define MOE_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "runtime/moe_status.h"

typedef struct MoeFile {
  int fd; /* -1: none */
  const char *path;
  char *target; /* path without links */
  char *temp;
} MoeFile;

#define MOE_NO_FILE ((MoeFile){.fd = -1})

MoeStatus moe_file_begin(MoeFile *, const char *path);
MoeStatus moe_file_write_at(const MoeFile *, const void *bytes, size_t n, uint64_t offset);
MoeStatus moe_file_sync(const MoeFile *); /* what has been written so far is on disk */
MoeStatus moe_file_commit(MoeFile *);     /* syncs, renames, closes */
void moe_file_abandon(MoeFile *);         /* removes; nothing to do after a commit */

#endif
