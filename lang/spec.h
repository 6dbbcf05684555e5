/* Spec: what a .moespec says, typed, in base units, all defaults filled in. Bytes, seconds' fractions and rates are in
   bytes, nanoseconds, bytes per second and FLOP per second. Nothing here points into the AST. */
#ifndef LANG_SPEC_H
#define LANG_SPEC_H

#include <stdbool.h>
#include <stdint.h>

#include "lang/arena.h"
#include "lang/ast.h"
#include "lang/diag.h"

/* Who published the model, for its Hugging Face files: model_type of config.json. */
typedef enum Family {
  FAMILY_AUTO, /* by its features: hf_family() */
  FAMILY_QWEN3_MOE,
  FAMILY_MIXTRAL,
  FAMILY_OLMOE,
  FAMILY_DEEPSEEK,
  FAMILY_DEEPSEEK_V3,
  FAMILY_KIMI_K2,
  FAMILY_GPT_OSS
} Family;
typedef enum AttentionKind { ATTENTION_GQA, ATTENTION_MLA } AttentionKind;
typedef enum QkNorm { QK_NORM_NONE, QK_NORM_HEAD, QK_NORM_WHOLE } QkNorm;
typedef enum LayerPattern { LAYERS_ALL, LAYERS_EVEN, LAYERS_ODD } LayerPattern; /* which layers have the window */
typedef enum RouterKind { ROUTER_SOFTMAX_RENORM, ROUTER_SOFTMAX, ROUTER_TOPK_SOFTMAX, ROUTER_SIGMOID_BIAS } RouterKind;
typedef enum Activation { ACT_SWIGLU, ACT_SWIGLU_CLAMPED } Activation;
typedef enum BalanceKind { BALANCE_NONE, BALANCE_SEQUENCE, BALANCE_BATCH, BALANCE_BIAS } BalanceKind;
typedef enum Dtype { DTYPE_FP32, DTYPE_BF16 } Dtype;
typedef enum Dedup { DEDUP_RANK, DEDUP_NODE, DEDUP_FLAT, DEDUP_AUTO } Dedup;
typedef enum Placement { PLACE_AUTO, PLACE_SEPARATE, PLACE_MIXED, PLACE_COLOCATED } Placement;
typedef enum Recompute { RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL, RECOMPUTE_AUTO } Recompute;
/* Who keeps the optimizer's state of a bucket: a part each holder of it, all of it every holder, or a part any rank of
   the plan, whether it holds the bucket or not. */
typedef enum OptShard { OPT_SHARD_HOLDERS, OPT_SHARD_NONE, OPT_SHARD_ALL, OPT_SHARD_AUTO } OptShard;
typedef enum SystemKind {
#define SYSTEM(id, name, colocated, ways, doc) SYSTEM_##id,
#include "lang/systems.def"
#undef SYSTEM
  SYSTEM_AUTO, /* the fastest of them in simulation */
  SYSTEM_COUNT = SYSTEM_AUTO
} SystemKind;
typedef enum LrKind { LR_CONSTANT, LR_COSINE, LR_LINEAR } LrKind;

typedef struct RopeSpec {
  double theta;
  bool interleaved;
  bool yarn;
  double factor, beta_fast, beta_slow, mscale, mscale_all_dim, attention_factor; /* attention_factor 0: by formula */
  int64_t original;                                                              /* positions trained without scaling */
  bool truncate;
} RopeSpec;

typedef struct ModelSpec {
  const char *name;
  int layers, hidden, vocab;
  double norm_eps, init_std;
  bool tied; /* output table is the embedding table */
  Family family;
  struct {
    AttentionKind kind;
    int heads, kv_heads, head_dim;
    QkNorm qk_norm;
    bool bias, sinks;
    int64_t window; /* 0: none */
    LayerPattern window_layers;
    double clip_qkv;                                /* 0: none */
    int q_lora, kv_lora, nope_dim, rope_dim, v_dim; /* MLA */
    RopeSpec rope;
  } attention;
  struct {
    int layers; /* the first `layers` layers are dense */
    int hidden;
  } dense;
  struct {
    int experts, top_k, hidden;
    RouterKind router;
    double router_scale;
    int groups, top_groups; /* group-limited top-k; 1, 1: none */
    bool router_bias, bias;
    Activation activation;
    double act_limit, act_alpha;
    int shared;       /* hidden size of the shared expert, in all; 0: none */
    double capacity;  /* factor over the even share, per sequence and expert; 0: no drops */
    double imbalance; /* fullest rank over the mean that buffers and stage times assume; 0: worst case for buffers, 1
                         for times */
    BalanceKind balance;
    double balance_coef;
    double bias_rate; /* BALANCE_BIAS: step of the selection bias */
    int *route_only;  /* experts the router may choose from (tests, benchmarks); NULL: all */
    int n_route_only;
  } moe;
} ModelSpec;

/* A share in (0, 1] by size: points with x ascending. n is 0 where a spec has only the constant. */
enum { CURVE_POINTS = 16 };
typedef struct Curve {
  int n;
  double x[CURVE_POINTS], y[CURVE_POINTS];
} Curve;

/* Linear in log2 x between the points, constant outside them; 0 without points. x > 0. */
double curve_at(const Curve *, double x);

typedef struct GpuSpec {
  const char *name;
  double flops; /* dense peak in the training dtype */
  int64_t memory;
  double hbm;       /* bytes/s */
  double launch_ns; /* per kernel */
  /* sustained share of the peak, by class of op */
  double eff_gemm, eff_grouped, eff_attention, eff_memory;
  double eff_grouped_dgrad, eff_grouped_wgrad; /* relative to forward */
  /* instead of the constants, where given */
  Curve eff_gemm_rows;          /* by rows (tokens) of the product */
  Curve eff_grouped_rows;       /* by rows per expert */
  Curve eff_attention_seq;      /* forward, by sequence length */
  Curve eff_attention_back_seq; /* backward */
  double comm_tax;              /* share of the compute units that overlapped communication kernels take */
} GpuSpec;

typedef struct ClusterSpec {
  const char *name;
  int nodes;
  int gpus, nics; /* per node */
  GpuSpec gpu;
  double nvlink;                 /* bytes/s per GPU and direction, effective */
  double nic;                    /* bytes/s per NIC and direction, effective */
  double nvlink_ns, nic_ns;      /* latency of a message */
  Curve nvlink_bytes, nic_bytes; /* share of the rate by bytes of one rank's message to one peer; none: 1 */
} ClusterSpec;

typedef struct ShapeSpec {
  const char *name;
  int64_t seq;
  int micro_batch;  /* sequences per attention rank */
  int global_batch; /* sequences per step */
  double weight;
  Span span;
} ShapeSpec;

typedef struct TrainSpec {
  Dtype dtype;
  double lr, lr_min, beta1, beta2, eps, weight_decay, clip;
  LrKind lr_kind;
  int64_t warmup, steps; /* of the learning-rate schedule */
  uint64_t seed;
  bool stop_on_nan;
} TrainSpec;

/* Times that a spec gives itself instead of having them modelled, in ns, of one layer and one full micro-batch on its
   group; `given` is false without a costs block. What is not an entry here then takes 1 ns. Backward: input gradient
   and weight gradient apart; a gradient message takes as long as its forward twin (combine's like a dispatch, and the
   other way round). */
typedef struct CostsSpec {
  bool given;
  double att_fwd, att_dgrad, att_wgrad;
  double ffn_fwd, ffn_dgrad, ffn_wgrad;
  double dispatch, combine;
  double p2p; /* latency of a pipeline send */
} CostsSpec;

/* Pins of the plan block; 0 or NULL means: the planner decides. */
typedef struct PlanSpec {
  SystemKind system;
  Placement placement;
  Dedup dedup;
  Dedup colocated_dedup; /* of colocated systems; DEDUP_AUTO: dedup */
  Recompute recompute;
  int replicas;
  int attention_stages, ffn_stages;
  int *attention_gpus; /* GPUs per attention group: one number for all, or one per group */
  int n_attention_gpus;
  int *ffn_gpus;
  int n_ffn_gpus;
  int attention_nics, ffn_nics; /* of one replica, all groups of the side together */
  int in_flight;                /* micro-batches */
  int expert_parallel;          /* colocated systems: ranks per group; `stages` are their pipeline ranks (PP) */
  int virtual_stages;           /* colocated systems: runs of layers per pipeline rank (VPP) */
  int chunks;                   /* tutel: parts of a layer's tokens */
  int mb_group;                 /* interleaved 1F1B: micro-batches per turn of a virtual stage; 0: the pipeline ranks */
  OptShard optimizer_shard;
  int ranks_per_node; /* fake nodes of this size instead of the cluster's */
  bool no_fused;      /* no key: the target lacks kernels that move messages themselves; auto leaves such systems out */
  int node_limit;     /* of the solver's tree */
  double gap;         /* relative, at which the solver may stop */
} PlanSpec;

typedef struct Spec {
  const char *path;
  uint64_t hash; /* of the typed content: equal specs hash equal, whatever their layout */
  ModelSpec model;
  ClusterSpec cluster;
  ShapeSpec *shapes;
  int n_shapes;
  TrainSpec train;
  PlanSpec plan;
  CostsSpec costs;
  const struct SpecSpans *spans; /* where each key was set: spec_span() */
  bool misread; /* after an error: some key has a value that it cannot have, whatever stands beside it */
} Spec;

/* AST to Spec: resolves names, units, `use` and `let` done by the parser, checks every key against keys.def and the
   rules between keys. Reports every error it finds and returns false if there was one. */
bool spec_build(Arena *, Diag *, const AstFile *, Spec *);

/* Where a key was set, or where its block begins; for errors of later stages ("plan", "attention_gpus"). */
Span spec_span(const Spec *, const char *block, const char *key);

bool spec_layer_is_dense(const Spec *, int layer);

/* Keeps only the shapes of a comma list, in its order; an unknown name is an error. Other shapes are counted out of the
   hash as well. */
bool spec_select_shapes(Arena *, Diag *, Spec *, const char *names);

/* Prints what the compiler reads back: every setting that is not the default, in base units and in the usual layout. */
void spec_print(const Spec *, FILE *);
/* Its model block alone. */
void spec_print_model(const Spec *, FILE *);

/* Every setting of the model, and of the training, that a checkpoint's weights depend on, defaults included; a line
   each, "attention.heads = 4". */
void spec_print_model_keys(const Spec *, FILE *);
void spec_print_train_keys(const Spec *, FILE *);

/* The language itself, from keys.def: the key reference of specs/LANGUAGE.md (Markdown), all words for completion (one
   a line), and a dictionary for fuzzers. */
void spec_print_reference(FILE *);
void spec_print_words(FILE *);
void spec_print_dictionary(FILE *);

/* The same for editors: a syntax file for Vim, a TextMate grammar (JSON). */
void spec_print_vim(FILE *);
void spec_print_textmate(FILE *);

#endif
