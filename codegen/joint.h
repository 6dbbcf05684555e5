/* One program for all shapes of a spec: the placement of the weights that they share, and a schedule of each. */
#ifndef CODEGEN_JOINT_H
#define CODEGEN_JOINT_H

#include "codegen/evaluate.h"

typedef struct Joint {
  Arena *arena; /* holds what is below, and dies with joint_free() */
  Arena **sched_arenas;
  int n;
  Plan *plans; /* [n] one placement; memory is that of the program */
  Schedule *scheds;
  bool *taken; /* those are the shape's own evaluation's, and live as long as that */
  double loss; /* weighted mean of step time over that of the shape alone, less 1 */
  int tried;   /* layouts */
} Joint;

/* Of the placements that the shapes would choose alone (own: [spec->n_shapes], all of which ran), those that came next,
   and those of shapes half-way between two of them, takes the one with the least sum over shapes of weight times
   simulated step time, each step time in relation to that of the shape alone. Every schedule is checked. Returns 0, or
   after an error 1 or 3 (no placement serves all). */
int evaluate_joint(Diag *, const Spec *, SystemKind, const Evaluation *own, Joint *);
void joint_free(Joint *);

/* What each shape loses. */
void joint_print(const Spec *, const Evaluation *own, const Joint *, FILE *);

#endif
