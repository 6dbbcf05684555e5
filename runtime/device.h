/* The host as a device, and what is done with whichever device a bundle's kernels run on. */
#ifndef MOE_RUNTIME_DEVICE_H
#define MOE_RUNTIME_DEVICE_H

#include "runtime/moe_device.h"
#include "runtime/moe_kernels.h"

/* Memory of this process; everything is done at once. */
extern const MoeDevice moe_host_device;

const MoeDevice *moe_device_of(const MoeKernels *);

/* Whether this machine has what the kernels run on; if not, one line has said so. Asks in a child process. */
bool moe_device_here(const MoeDevice *);

/* A copy that has been made on return. For the compute thread. */
MoeStatus moe_device_move(const MoeDevice *, void *to, const void *from, size_t bytes);

#endif
