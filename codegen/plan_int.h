/* Between the files of the planner. */
#ifndef CODEGEN_PLAN_INT_H
#define CODEGEN_PLAN_INT_H

#include "codegen/memory.h"

/* One side of an allocation. */
typedef struct Side {
  int p;           /* groups */
  int n;           /* ranks per group; of the largest when `list` is given */
  const int *list; /* [p] ranks of each group, or NULL */
  int nics;        /* of all groups together */
} Side;

/* An allocation: what the search decides. */
typedef struct Choice {
  int replicas;
  Placement place;
  Recompute recompute;
  OptShard shard;
  int stages, mb_group, chunks; /* colocated systems */
  Side att, ffn;                /* colocated: ffn is att */
  double z;        /* ns the busiest side needs for a step, or the longest dependent chain if that is more */
  double estimate; /* z plus the time to fill and drain the pipeline */
} Choice;

int side_ranks(const Side *, int group);
int side_total(const Side *);

/* The cluster as the planner sees it: fake nodes where the plan block asks for them. */
typedef struct Nodes {
  int ranks, count, nics; /* ranks per node, nodes, NICs per node */
  int total;              /* ranks of the cluster */
} Nodes;
Nodes plan_nodes(const Spec *);

/* NICs of a side that owns `ranks` ranks, when nothing else is decided. */
int plan_default_nics(const Nodes *, int ranks);

int plan_moe_layers(const Spec *);

/* Where the optimizer's state may lie: as pinned, or with the holders or all ranks. */
bool plan_shard_allowed(const Spec *, OptShard);

/* Groups of a side as the spec pins them, by number or by a list of their sizes; 0: free. */
int plan_pinned_stages(const Spec *, bool att);

/* [layers + 1] attention group of each layer, and of the head. Layers take turns, and the head is on the group that has
   the least to do otherwise: its layers, forward and backward with one sequence on a rank and nothing recomputed. Where
   that leaves the busiest group with a hundredth more than it need have, as when a head weighs several layers or every
   other layer has a window, layers are shared out by what they take, in turns as even as that allows. `turns`: never
   so; the FFN of colocated groups goes by turns. */
int *layer_deal(Arena *, const Spec *, const ShapeSpec *, int p_att, bool turns);
/* FFN group of a layer: (ordinal among the MoE layers) mod p_ffn, in a colocated plan the group of its attention. */
int layer_ffn(const Spec *, int layer, int p_ffn, bool colocated);

/* Everything but solver, memory and times. */
void plan_build(Arena *, const Spec *, const ShapeSpec *, const Choice *, Plan *);

/* Micro-batches of the plan's shape; all of them in flight. */
void plan_set_batch(Plan *);

/* Micro-batches in flight: the pinned number, or as many as are of use, if memory holds them; else an error. */
bool plan_set_in_flight(Diag *, const Spec *, Plan *);

/* Takes slots from a group that add up to so many bytes. Returns false where it cannot hold one micro-batch, or the
   pinned number of them, with what is left. */
bool plan_save(const Spec *, Plan *, int group, int64_t bytes);

/* Roofline of the two sides for one layer and micro-batch, forward: compute or the busiest port, whichever is more. */
void plan_set_sides(const Spec *, Plan *);

/* Colocated systems: the same; layers of the longest run that a group has. */
void plan_set_stage_sides(const Spec *, Plan *);
int plan_deepest_run(const Spec *, const Plan *, int group);

/* Of a clock that only runs forward. */
double plan_now_ms(void);

/* Nodes cut every replica at the same ranks. */
bool plan_aligned(const Plan *);

/* Micro-batches that may be under way, as far as memory counts slots for dense layers; not of colocated systems. */
int plan_under_way(const Spec *, const Plan *);

/* Sizes that decide a group's memory. */
MemIn plan_mem_in(const Spec *, const Plan *, const PlanGroup *, int in_flight);

/* ---- pins: false after an error ---- */

/* Place of a pin; without a plan block, of the cluster that is too small or too large for something. */
Span plan_span(const Spec *, const char *key);
bool plan_check_pins(Diag *, const Spec *, const ShapeSpec *);
bool plan_check_cluster(Diag *, const Spec *);
bool plan_check_afd(Diag *, const Spec *);

/* plan_candidates of the colocated systems; spec.plan.system says which. */
int plan_colocated(Arena *, Diag *, const Spec *, const ShapeSpec *, Plan *plans, int most, bool *infeasible);

/* ---- search: which allocations are tried, and what they cost ---- */

/* One candidate of a side (or, when no side can be chosen alone, of both): ranks per group and NICs. Its cost may
   depend on the other side's ranks; a column is valid while those are in [lo, hi], and stands for one value of the
   cost. */
typedef struct Column {
  bool att, ffn;
  int att_n, ffn_n;       /* per group */
  int att_nics, ffn_nics; /* of the side */
  int ranks;              /* all groups */
  double z_att, z_ffn; /* ns per step; of an attention column z_ffn is what its micro-batches add to the other side */
  int lo, hi;          /* of the other side's ranks per group */
} Column;

typedef struct Milp {
  const Column *columns;
  int n;
  int ranks;    /* budget of a replica */
  bool exact;   /* all of it must be used */
  double floor; /* z is at least this */
  int node_limit;
  double gap;
} Milp;

typedef struct MilpResult {
  int att, ffn; /* chosen columns; the same one if it is of both sides */
  double z;
  double gap;
  bool proved; /* optimal, or within the gap asked for; else the node limit came first */
} MilpResult;

/* Smallest z, and among the choices that reach it the fewest ranks, then the smallest sum of both sides' times. Returns
   false if no choice is feasible. */
bool milp_solve(const Milp *, MilpResult *);

typedef struct Shortage {
  bool any;     /* some allocation was short of memory only */
  int64_t need; /* bytes on the fullest rank of the allocation that needs least */
  int role;     /* of that rank */
  int replicas, p_att, p_ffn, att_n, ffn_n;
} Shortage;

typedef struct Found {
  Choice choice;
  bool proved;
  double gap;
  bool pinned; /* nothing was left to choose */
  double ms;
} Found;

/* Up to `most` allocations, smallest estimate first, all different. Returns how many. */
int plan_search(Arena *, const Spec *, const ShapeSpec *, Found *, int most, Shortage *);

/* Longest dependent chain of one micro-batch over the time its busiest group works on it, as a plan's cost says: how
   many micro-batches keep that group busy. */
int plan_in_flight_need(const Spec *, const Plan *);
double plan_bottleneck_ns(const Spec *, const Plan *); /* busiest rank, one micro-batch, forward and backward */

#endif
