/* Why a plan is as it is: compute against the network on each side, in words and as a picture. */
#ifndef CODEGEN_PLAN_EXPLAIN_H
#define CODEGEN_PLAN_EXPLAIN_H

#include "codegen/plan.h"

/* One side of a plan over a whole micro-batch and layer, forward and backward: a rank of its first group with experts.
   A plan whose groups have both roles has one side. */
typedef struct SideView {
  int role;
  double flops, bytes;           /* of a rank; bytes in the busier direction of the slower port */
  double compute_ns, network_ns; /* what each takes */
  double peak, rate;             /* FLOP/s of a rank; bytes/s of its share of the port */
  bool nic;                      /* that port is a NIC, not NVLink */
  double intensity, turning;     /* flops / bytes; peak / rate: below it the network binds */
} SideView;

/* role: PLAN_A or PLAN_F; a colocated plan's is of both whatever is asked. */
SideView plan_side(const Spec *, const Plan *, int role);

/* What a micro-batch, forward and backward, takes of a group: compute of all its layers and the head, and messages in
   the busier direction of the slower port. plan_pace: of the group of a side that takes longest. */
typedef struct Pace {
  int group;
  double compute_ns, network_ns;
} Pace;
Pace plan_pace(const Spec *, const Plan *, int role);
double pace_ns(Pace);
const char *pace_binds(Pace); /* "compute" or "network" */

/* plans[0] is the one that was chosen, the others the candidates after it. */
void plan_explain(const Spec *, const Plan *plans, int n, FILE *);

/* The roofline of both sides, one plan for each shape. */
void plan_roofline_svg(const Spec *, const Plan *plans, int n, FILE *);

#endif
