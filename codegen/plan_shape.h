/* Several shapes over one placement of the weights. */
#ifndef CODEGEN_PLAN_SHAPE_H
#define CODEGEN_PLAN_SHAPE_H

#include "codegen/plan.h"

/* The plan of another shape with the placement of `base`: groups, replicas, layers, NICs, chunks, recomputation and
   deduplication stay; micro-batches, how many of them are in flight, memory and times are the shape's. Returns false
   after an error where the shape cannot run that way. */
bool plan_for_shape(Arena *, Diag *, const Spec *, const Plan *base, int shape, Plan *out);

/* Gives a copy of a plan groups of its own: their memory and slots are what changes. */
void plan_copy_groups(Arena *, Plan *);

/* Whether every weight lies on the same ranks; and whether the plans differ at all but for their shape. */
bool plan_same_placement(const Spec *, const Plan *, const Plan *);
bool plan_same_layout(const Spec *, const Plan *, const Plan *);

/* Gives each of the plans the memory of a program that has them all: weights once, pools of the largest shape, every
   shape's message slots. Returns false where that is more than a GPU has. */
bool plan_share_memory(Plan *plans, int n);

#endif
