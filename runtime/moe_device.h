/* Where a rank's memory lies and who runs its kernels, as the executor sees it. Work is put on lanes: what one lane is
   given runs in that order, lanes run beside each other, and a call returns before its work is done unless it says
   otherwise. A device belongs to a process: open() comes after the fork. */
#ifndef MOE_DEVICE_H
#define MOE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "moe_status.h"

/* One of the compute thread and one of the progress thread; each thread uses its own alone. */
typedef enum MoeLane { MOE_LANE_COMPUTE, MOE_LANE_COMM, MOE_LANE_COUNT } MoeLane;

typedef struct MoeDevice {
  const char *name;
  bool apart; /* alloc() gives memory that only kernels and copy() reach */
  /* How many such devices this machine has; of none `why` says why. NULL: there is always one. May take hold of the
     process, which then cannot fork ranks: asked in a process of its own. */
  int (*count)(char *why, size_t n);
  /* Takes device `number` of this machine, counted round and round, and makes the lanes. */
  MoeStatus (*open)(int32_t number);
  void (*close)(void);
  void *(*alloc)(size_t bytes); /* NULL: no memory, which has been logged. Contents are undefined */
  void (*free)(void *, size_t bytes);
  /* Lets kernels read and write memory of the host, under the same addresses. */
  MoeStatus (*share)(void *, size_t bytes);
  void (*unshare)(void *);
  /* From and to memory of either side. Memory of the host must stay as it is until the lane has been waited for. */
  MoeStatus (*copy)(MoeLane, void *to, const void *from, size_t bytes);
  MoeStatus (*fill)(MoeLane, void *, int byte, size_t bytes);
  /* Until the lane has done all it was given; the first error since the last wait, which has been logged unless it is
     one of a kernel (EINVAL, EPROTO, EOVERFLOW). */
  MoeStatus (*wait)(MoeLane);
} MoeDevice;

#endif
