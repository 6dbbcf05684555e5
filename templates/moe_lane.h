/* What the ops have of the device: for each lane a queue, and a word of the host's memory that kernels lower to the
   error they find. For C as well as for CUDA. */
#ifndef MOE_LANE_H
#define MOE_LANE_H

#include "moe_launch.cuh"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct MoeCudaLane {
  MoeQueue queue;
  int32_t *status;
  double *sum, *partial; /* of the host: one value, [MOE_PARTS] */
} MoeCudaLane;

const MoeCudaLane *moe_cuda_lane(MoeLane);

/* Remembers the first error of a lane for the next wait. */
void moe_cuda_note(MoeLane, MoeStatus);

/* A copy on a queue, between any two memories. */
MoeStatus moe_cuda_copy(void *to, const void *from, size_t bytes, MoeQueue);

extern const MoeDevice moe_cuda_device;

#ifdef __cplusplus
}
#endif

#endif
