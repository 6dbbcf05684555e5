/* The shapes of a program in one rank: an executor each over the same weights, one of them running at a time. Slots of
   messages count the steps of their own shape, so a switch needs no agreement between ranks: one may already run its
   next step in another shape while its peers finish the last. */
#ifndef MOE_SHAPES_H
#define MOE_SHAPES_H

#include "runtime/exec.h"

int32_t moe_n_shapes(const MoeBundle *first);
const MoeBundle *moe_shape_at(const MoeBundle *first, int32_t shape);

/* A mapping of slots for each shape, one after the other in the shared region: [moe_n_shapes()], NULL after an error.
   The last one's shared_end is that of all. */
MoeWiring *moe_wirings_build(const MoeBundle *first, const MoeKernels *);
void moe_wirings_free(MoeWiring *, int32_t n);

typedef struct MoeShapes {
  int32_t n;
  int32_t active; /* -1: none yet */
  MoeExec *execs; /* [n] */
  const MoeDevice *device;
  MoeMem *mems;
  uint64_t *pace_sent;
  MoeShared *shared;
  int32_t rank;
} MoeShapes;

MoeStatus moe_shapes_open(MoeShapes *, const MoeBundle *first, const MoeKernels *, const MoeWiring *, MoeShared *,
                          int32_t rank, const MoeExecOptions *);
void moe_shapes_close(MoeShapes *);

/* The executor of a shape, ready to run steps; the one that ran before is stopped. */
MoeStatus moe_shapes_use(MoeShapes *, int32_t shape, MoeExec **x_p);

#endif
