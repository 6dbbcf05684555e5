/* Files that appear whole or not at all: written under a temporary name beside the target, then renamed; and what
   folders of such files need. */
#ifndef MOE_FILE_H
#define MOE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/moe_status.h"

typedef struct MoeFile {
  int fd; /* -1: none */
  const char *path;
  char *target; /* path without links */
  char *temp;
  bool joined; /* another process has made it and will name it */
} MoeFile;

#define MOE_NO_FILE ((MoeFile){.fd = -1})

MoeStatus moe_file_begin(MoeFile *, const char *path);

/* From now on moe_file_begin() opens what the process of this id, on whichever host, has begun; 0: own files again. */
void moe_file_join(uint64_t id);
MoeStatus moe_file_write_at(const MoeFile *, const void *bytes, size_t n, uint64_t offset);
MoeStatus moe_file_sync(const MoeFile *); /* what has been written so far is on disk */
MoeStatus moe_file_commit(MoeFile *);     /* syncs, renames, closes */
void moe_file_abandon(MoeFile *);         /* removes; nothing to do after a commit */

MoeStatus moe_file_put(const char *path, const void *bytes, size_t n); /* a whole file at once */

/* fsync() of a file or a folder; false, with errno. File systems that have no such thing are no error. The names in a
   folder outlive a crash only once the folder itself is on the disk. */
bool moe_sync(int fd);

/* Removes what runs that were killed have left of this file or folder: PATH.tmpPID whose process is gone and that
   nobody holds. Each is told. */
void moe_file_sweep(const char *path);

/* Held as long as this process or a child of it has the descriptor, so that moe_file_sweep() of another leaves it. */
void moe_file_hold(int fd);

/* Whether the path leads to a file in the folder, by whatever names and links. */
bool moe_folder_holds(const char *folder, const char *path);

/* "FOLDER/NAME"; malloc'd, NULL: out of memory. */
char *moe_path_in(const char *folder, const char *name);

/* Removes a folder and the files in it; false, with errno, if something is left. */
bool moe_folder_remove(const char *path);

#endif
