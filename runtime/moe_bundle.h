/* What the compiler hands to the runtime: constant tables, one instance per shape; the first is named moe_bundle. */
#ifndef MOE_BUNDLE_H
#define MOE_BUNDLE_H

#include "moe_kernels.h"
#include "moe_ops.h"

enum { MOE_ROLE_A = 1, MOE_ROLE_F = 2 }; /* a group's role is a set of these */

/* A plan group: ranks with the same layers. Rank r of replica q is q * replica_ranks + first_rank + r. */
typedef struct MoeGroup {
  const char *name; /* "A0", "F1", "AF0" */
  int32_t role;
  int32_t first_rank; /* within a replica */
  int32_t n_ranks;
  const MoeOp *ops;
  int32_t n_ops;
  int32_t att_saved; /* slots in each pool */
  int32_t att_work;
  int32_t ffn_saved;
  int32_t ffn_work;
} MoeGroup;

/* Message slots between every pair of ranks of the kind the edge says. chan.src == chan.dst is legal (a rank may be its
   own peer). HOLDERS and ROOT channels have src = dst = -1. */
typedef struct MoeChan {
  uint8_t edge;   /* MoeEdge */
  uint8_t bucket; /* MoeBucketKind of HOLDERS channels, else NONE */
  int16_t src;    /* plan groups */
  int16_t dst;
  int16_t slots;
} MoeChan;

/* A bucket: `elems` floats held by ranks holders[first_holder .. + n_holders), ascending, over all replicas. Holder k
   owns part k of n_holders (moe_part_begin) for the optimizer. */
typedef struct MoeBucket {
  uint8_t kind;  /* MoeBucketKind */
  int16_t layer; /* 0 for per-model buckets */
  int32_t first_holder;
  int32_t n_holders;
  int64_t elems;
  int32_t first_param;
  int32_t n_params;
} MoeBucket;

/* MoeParam.std of what starts at zero. */
#define MOE_STD_ZERO (-1.0f)

/* A tensor, by its global name; parameters of a bucket lie back to back. Initial values depend on (seed, name, index in
   the tensor) alone: std > 0 normal with that deviation, std == 0 all ones, MOE_STD_ZERO all zeros. */
typedef struct MoeParam {
  const char *name; /* "model.layers.0.self_attn.q_proj.weight" */
  int64_t offset;   /* in its bucket */
  int32_t rows;     /* [rows, cols]; cols = 0 for a vector of `rows` */
  int32_t cols;
  float std;
  uint8_t decay;  /* weight decay applies */
  uint8_t counts; /* a selection bias: its gradient is each expert's choices, and it moves against them (bias_rate) */
} MoeParam;

/* The messages of one SEND as modelled. bytes: [n_src][n_dst] by index within the two groups; one number for all where
   both counts are 0. */
typedef struct MoeEmuMsg {
  int32_t n_src;
  int32_t n_dst;
  const double *bytes;
  int64_t near_ns; /* latency within a node, between nodes */
  int64_t far_ns;
} MoeEmuMsg;

/* A rehearsal: what a bundle without kernels needs in order to take the modelled time. Ranks of one node talk through
   their NVLink ports, others through their NICs, both full duplex. */
typedef struct MoeEmu {
  double step_ns;                /* of the whole step, as simulated */
  const int64_t *const *op_ns;   /* [n_groups][n_ops] duration of an op; of messages 0 */
  const int32_t *const *op_msgs; /* [n_groups][n_ops] index in msgs of a SEND, else -1 */
  const MoeEmuMsg *msgs;
  int32_t ranks_per_node; /* as the network sees it */
  double nvlink;          /* bytes per second of a rank's port */
  const int32_t *nic_of;  /* [replica_ranks] NIC port that a rank uses, counted within the replica */
  const double *nic;      /* [n_nics] bytes per second of a port: of all NICs that its ranks share */
  int32_t n_nics;
} MoeEmu;

/* How the model stands in Hugging Face files. */
typedef struct MoeHf {
  const char *family; /* model_type of its config.json, which decides names and layouts: runtime/hf_names.def */
  const char *dtype;  /* of the tensors that are written: "BF16" or "F32" */
  const char *config; /* text of config.json; NULL where that family has no such model */
  const char *why;    /* then: what it does not have */
} MoeHf;

/* One batch shape of the program: its schedule, and what does not depend on the shape. All shapes of a program have the
   same ranks, groups but for their ops and pools, layers' groups, buckets, holders and parameters. */
typedef struct MoeBundle {
  const char *shape;
  const struct MoeBundle *next; /* the program's next shape, or NULL */

  const char *spec; /* path it was made from, as given */
  const char *model;
  const char *system; /* schedule's name; the runtime only prints it */
  uint64_t hash;      /* of spec and plan */
  /* Settings that a checkpoint's weights depend on, a line each, "attention.heads = 4": of the model, which must be the
     same where it is read, and of the training, which may differ. */
  const char *model_keys;
  const char *train_keys;

  int32_t replicas;
  int32_t replica_ranks;
  int32_t ranks_per_node;
  /* [replica_ranks] GPU of the replica that a rank has; of all GPUs, replica q's are q * replica_ranks and on, and a
     node is ranks_per_node of them in a row. */
  const int32_t *seat;
  int32_t n_groups;
  const MoeGroup *groups;
  int32_t n_layers;
  int32_t ways;             /* directions in which micro-batches cross the groups; see moe_way() */
  const int16_t *att_group; /* [ways][n_layers + 1]: attention group of a layer; entry n_layers: the head's */
  const int16_t *ffn_group; /* [ways][n_layers] */
  /* [ways][n_layers] group that receives the layer's COMBINE. Where it is not the next layer's attention group,
     JOIN_FWD sums there and PIPE carries the sum on. */
  const int16_t *combine_group;
  int32_t dense;  /* the first layers have no experts: their output goes from their attention group on by PIPE */
  int32_t chunks; /* parts of a micro-batch's tokens, by position, that dispatch, experts and combine take in turn */
  int32_t n_chans;
  const MoeChan *chans;
  int32_t n_buckets;
  const MoeBucket *buckets; /* ordered by kind, then layer, then first holder */
  const int32_t *holders;
  const MoeParam *params;
  int32_t n_params;

  int32_t experts, top_k, vocab, tied;
  int32_t dedup; /* MoeDedup */
  int32_t seq, mb_seqs, micro_batches, global_batch;
  const int32_t *route_only;
  int32_t n_route_only;

  uint64_t seed;
  double lr, lr_min, beta1, beta2, eps, weight_decay, clip; /* clip 0: off */
  double bias_rate; /* step of a selection bias: up where its expert had less than the mean of the choices, else down */
  int64_t warmup, lr_steps; /* cosine from lr to lr_min over lr_steps, after a linear warm-up */
  int32_t stop_on_nan;      /* else the step is skipped by all ranks together */

  double flops_per_token; /* model FLOPs, 3 x forward, for MFU */
  double peak_flops;      /* of all ranks */

  const MoeHf *hf;   /* NULL: the model is in no such files */
  const MoeEmu *emu; /* NULL: the kernels compute */
} MoeBundle;

extern const MoeBundle moe_bundle;

#endif
