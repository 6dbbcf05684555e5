/* Mapped files. One that is cut off while it is mapped cannot be read on, and the machine's only word about it is
   SIGBUS: with moe_mapped_watch() that becomes an error with the file's name, and the process ends with 1. */
#ifndef MOE_MAPPED_H
#define MOE_MAPPED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct MoeMapped {
  uint8_t *base; /* NULL: nothing is mapped */
  size_t bytes;
  const char *path;
  struct MoeMapped *next;
} MoeMapped;

/* Maps the first `bytes` bytes, at least one, of a file; protection: PROT_READ or with PROT_WRITE, shared with forked
   processes. False, with errno. `m` and `path` must stay where they are until moe_unmap(). */
bool moe_map(MoeMapped *m, int fd, size_t bytes, int protection, const char *path);
void moe_unmap(MoeMapped *m);

/* From here on, of this process and those that it forks. */
void moe_mapped_watch(void);

#endif
