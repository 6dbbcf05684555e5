/* Plan: which ranks hold which layers' attention and experts, for one shape of a spec, and what that costs. A plan is a
   map from chunks (component, layer) to groups of ranks; a group may hold any set of chunks, so the colocated layout is
   a plan whose groups have both roles. All replicas are alike; ranks and groups below are those of one replica. */
#ifndef CODEGEN_PLAN_H
#define CODEGEN_PLAN_H

#include "lang/spec.h"

/* Work slots of one side of a group, and message slots of a channel between groups, that schedules keep to unless a
   plan cannot end with so few; then SchedGroup and MoeChan have more. The memory model counts these. */
enum { PLAN_WORK_SLOTS = 4, PLAN_CHAN_SLOTS = 4 };

enum { PLAN_A = 1, PLAN_F = 2 }; /* roles, a set; the same bits as MOE_ROLE_A and MOE_ROLE_F */

/* Bytes on one rank of a group, the fullest one. */
typedef struct MemoryTerms {
  int64_t weights, gradients, optimizer, activations, buffers, workspace, total, limit;
} MemoryTerms;

typedef struct PlanGroup {
  int id;         /* index in Plan.groups */
  int role;       /* PLAN_A, PLAN_F or both */
  int index;      /* within its side: g of A_g or F_g */
  int first_rank; /* of the replica */
  int n_ranks;
  int nics; /* NICs its ranks use, together; one that a neighbour group of the side uses too counts */
  MemoryTerms memory;
  int live; /* (layer, micro-batch) pairs that each of its sides has saved slots for; 0: in_flight for each layer */
  double nic_share; /* NICs per rank, below 1 where ranks share one; 0: nics / n_ranks */
  int work;         /* colocated systems: slots that its order needs for work under way; 0: PLAN_WORK_SLOTS */
} PlanGroup;

typedef struct Plan {
  const ShapeSpec *shape;
  SystemKind system;   /* never SYSTEM_AUTO */
  Placement placement; /* never PLACE_AUTO */
  int replicas;
  int p_att, p_ffn; /* groups of each side */
  int replica_ranks;
  int ranks_per_node;
  /* [replica_ranks] which GPU of its replica a rank has, a permutation: replica q's GPUs are q * replica_ranks and on,
     and ranks_per_node of them in a row are a node. Ranks of a group ascend. */
  int *seat;
  PlanGroup *groups; /* attention groups first, then FFN groups; colocated: one list with both roles */
  int n_groups;
  int ways;       /* maps of layers to groups, one per direction; plan_way() tells which one a micro-batch takes */
  int *att_group; /* [ways][layers + 1] group of a layer's attention; entry `layers`: final norm, head and loss */
  int *ffn_group; /* [ways][layers] group of a layer's FFN; a dense layer's is its attention group */
  /* [ways][layers] group that receives the layer's COMBINE: the next attention group, or in colocated systems the
     layer's own. Where it is not att_group[layer + 1], and after every dense layer, PIPE carries the residual on. */
  int *combine_group;
  int chunks;     /* parts of a micro-batch that dispatch, experts and combine take in turn; 1: whole */
  int n_stages;   /* colocated systems: runs of layers, [moe_part_begin(layers, n_stages, s), ...); else 0 */
  int mb_group;   /* interleaved 1F1B: micro-batches per turn of a virtual stage */
  int *nic_ranks; /* [n_nics] first rank of the replica that uses NIC i */
  int n_nics;
  Dedup dedup;              /* never DEDUP_AUTO */
  int mb_seqs;              /* sequences of one full micro-batch: micro_batch x ranks of the largest attention group */
  int micro_batches;        /* per replica and step; the last may be short */
  int in_flight;            /* micro-batches that every group has saved slots for with all of its layers */
  Recompute recompute;      /* never RECOMPUTE_AUTO */
  OptShard optimizer_shard; /* never OPT_SHARD_AUTO */

  double t_att_ns, t_ffn_ns; /* phase 1: roofline time of the two sides per layer and micro-batch, forward */
  double step_ns;            /* predicted; filled from the schedule */
  double tokens_per_s, mfu;
  struct {
    const char *name;   /* "glpk", "pinned" */
    const char *status; /* "optimal", "gap", "nodes" */
    double gap, ms;     /* ms is for people only; it is never part of a file */
  } solver;
} Plan;

/* Plans spec->shapes[shape] for a system (never SYSTEM_AUTO; the spec's own choice of one is not looked at). Pins of
   the spec's plan block are kept. Returns false after an error that says which constraint fails, by how much, and the
   smallest change that helps; *infeasible tells such errors from bad input. */
bool plan_solve(Arena *, Diag *, const Spec *, int shape, SystemKind, Plan *, bool *infeasible);

/* The same, up to `most` plans that fit, smallest estimate first; plan_solve gives the first of them. Returns how many;
   0 after an error. */
int plan_candidates(Arena *, Diag *, const Spec *, int shape, SystemKind, Plan *plans, int most, bool *infeasible);

/* Checks a plan without the solver's help: partition of layers and experts, ranks, memory. Every plan passes through
 * it. */
bool plan_check(Diag *, const Spec *, const Plan *);

/* Fills step_ns, tokens_per_s and mfu from a step time: plan_solve's own estimate, or the schedule's. */
void plan_set_step(const Spec *, Plan *, double step_ns);

void plan_print(const Spec *, const Plan *, FILE *);
void plan_print_json(const Spec *, const Plan *, FILE *);

const char *plan_system_name(SystemKind);
bool plan_system_colocated(SystemKind);
int plan_system_ways(SystemKind);

/* The spec's words for what a plan has chosen. */
const char *plan_placement_name(Placement);
const char *plan_dedup_name(Dedup);
const char *plan_recompute_name(Recompute);
const char *plan_shard_name(OptShard);

/* "A", "F" or "AF"; "attention", "FFN" or both. */
const char *plan_role_letters(int role);
const char *plan_role_name(int role);

/* NICs of the groups of a role, by the first rank that uses each: one shared by two groups counts once. */
int plan_nics(const Plan *, int role);

/* Node of a rank of the whole plan; first member of a group in a replica on that node or a later one, n_ranks if none.
 */
int plan_node_of(const Plan *, int rank);
int plan_node_begin(const Plan *, const PlanGroup *, int replica, int node);

/* Direction of a micro-batch; groups of a layer in a direction. */
int plan_way(const Plan *, int mb);
int plan_att(const Spec *, const Plan *, int way, int layer);
int plan_ffn(const Spec *, const Plan *, int way, int layer);
int plan_combine(const Spec *, const Plan *, int way, int layer);
/* The layer's output reaches the next layer by PIPE: it is dense, or its COMBINE goes elsewhere. */
bool plan_piped(const Spec *, const Plan *, int way, int layer);
/* Colocated systems: group of a stage in a direction. */
int plan_stage_group(const Plan *, int way, int stage);

/* Of systems that are not colocated: layers of one side (PLAN_A or PLAN_F) of a group, the head not among them, and the
   saved slots that it has for them. */
int plan_layers(const Spec *, const Plan *, int group, int side);
int plan_saved(const Spec *, const Plan *, int group, int side);

/* Most sequences of a full micro-batch on one rank of a group; most experts of a layer on one rank of a group. */
int plan_att_seqs(const Plan *, const PlanGroup *);
int plan_ffn_experts(const Spec *, const PlanGroup *);

#endif
