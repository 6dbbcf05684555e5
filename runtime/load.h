/* How many tokens chose each expert in a step, and how many of these choices were dropped for want of capacity. Every
   attention rank counts into a part of the shared region of its own, of which there are two, for even and odd steps: no
   rank is two steps ahead of rank 0, which adds them up once it knows the step's totals. */
#ifndef MOE_LOAD_H
#define MOE_LOAD_H

#include <stddef.h>
#include <stdint.h>

#include "runtime/shared.h"
#include "runtime/topo.h"

typedef struct MoeLoad {
  int32_t layers; /* with experts; the first is number `first` of the model */
  int32_t first;
  int32_t experts;
  const uint64_t *cells; /* [layers][2: choices, drops][experts]; NULL: not counted */
} MoeLoad;

/* Cells of one rank's part. */
size_t moe_load_cells(const MoeBundle *);

/* Where a rank counts in step t, zeroed; NULL where nothing is counted. */
uint32_t *moe_load_begin(const MoeShared *, const MoeBundle *, int32_t rank, int64_t t);

/* Sum over the ranks of what was counted in step t, into `cells` of moe_load_cells(). */
MoeLoad moe_load_sum(const MoeShared *, const MoeBundle *, int64_t t, uint64_t *cells);

/* Tokens of the fullest expert of any layer, over the mean of its layer; 0 where nobody counted. */
double moe_load_fullest(const MoeLoad *);

#endif
