/* Plans and specs for the schedule's tests, made from a handful of numbers. */
#ifndef TESTS_SCHED_MKPLAN_H
#define TESTS_SCHED_MKPLAN_H

#include "codegen/sched.h"

enum { MK_MAX_GROUPS = 16 };

typedef struct MkPlan {
  int layers;
  int p_att, p_ffn;
  int m[MK_MAX_GROUPS]; /* ranks of each attention group; 0: as the one before */
  int n[MK_MAX_GROUPS]; /* ranks of each FFN group */
  int replicas;         /* 0: 1 */
  int micro_batches;
  int in_flight;      /* 0: all */
  int ranks_per_node; /* 0: 8 */
  bool mixed;         /* every node hosts its share of both sides */
  bool node;          /* node-deduplicated */
  bool colocated;     /* groups have both roles; p_ffn and n are not read */
  bool tied;
  int seqs;   /* per attention rank; 0: 1 */
  int seq;    /* positions; 0: 4096 */
  int vocab;  /* 0: 151936 */
  int dense;  /* first layers without experts */
  bool again; /* full recomputation */
  /* A colocated system: p_att pipeline ranks with m[] ranks each, sums go back to their origin. 0: af_pipe. */
  SystemKind system;
  int virtual_stages; /* 0: 1 */
  int chunks;         /* 0: 1 */
  int mb_group;
} MkPlan;

/* A model of Qwen3-235B's layers on H800 nodes, cut to the wanted number of layers. */
void mk_spec(const MkPlan *, Spec *);
void mk_plan(Arena *, const MkPlan *, const Spec *, Plan *);

/* A plan with its schedule. */
typedef struct Built {
  Arena *arena;
  Spec spec;
  Plan plan;
  Schedule sched;
} Built;

/* Spec, plan and schedule. False, and why on stderr, if the schedule cannot be built or does not pass its checker. */
bool mk_build(const MkPlan *, Built *);
/* The same from a plan that is there. */
bool mk_schedule(Built *);

#endif
