/* Runs the kernels of one micro-batch after the other in one process: every rank's slots are separate allocations of
   the promised size, messages go from pack to the receiving op by memory. No runtime is involved. */
#ifndef KERNELS_DRIVE_H
#define KERNELS_DRIVE_H

#include "moe_model.h"

typedef struct DriveLayout {
  int n_att[2]; /* ranks of the attention groups of even and odd layers; the head's is that of layer L */
  int n_ffn;
  int node_ranks; /* 0: no relays */
  int mb_seqs;
  int chunks; /* parts of the tokens, by position; 0: whole */
  int join;   /* 1: even layers, 2: odd layers, 3: all have their output summed at its origin, then sent on */
} DriveLayout;

/* Weights or gradients, bucket by bucket. */
typedef struct DriveWeights {
  float *embed;               /* [V, H] */
  float *att[MOE_LAYERS];     /* [ATT_ELEMS] */
  float *gain[MOE_LAYERS];    /* [H] */
  float *experts[MOE_LAYERS]; /* [E, EXPERT_ELEMS] */
  float *norm;                /* [H] */
  float *table;               /* [V, H]; tied: embed */
  size_t n;
  float *data;
} DriveWeights;

typedef struct DriveBatch {
  int n_seqs, seq;
  const int32_t *tokens, *labels; /* [n_seqs, seq] */
  const int32_t *route_only;
  int n_route_only;
} DriveBatch;

void drive_weights_new(DriveWeights *);
void drive_weights_free(DriveWeights *);

/* Adds to grads and scalars [MOE_SC_COUNT]. All fresh memory is filled with the byte `fill`. Ends the program if a
   kernel fails or writes more than it said. Returns the seconds that the kernels took. */
double drive_step(const DriveLayout *, const DriveBatch *, const DriveWeights *, DriveWeights *grads, double *scalars,
                  int fill);

#endif
