/* What the reference trains: dimensions of a Qwen3-MoE style model, the token shape and the optimizer, as plain
 * numbers. */
#ifndef REF_CONFIG_H
#define REF_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

typedef enum RefRouter {
  REF_SOFTMAX_RENORM, /* softmax over all experts, top-k, weights divided by their sum */
  REF_SOFTMAX,        /* softmax over all experts, top-k, weights as they are */
  REF_TOPK_SOFTMAX    /* top-k of the logits, softmax over the chosen */
} RefRouter;

typedef enum RefLrKind { REF_LR_CONSTANT, REF_LR_COSINE, REF_LR_LINEAR } RefLrKind;

enum { REF_MAX_ROUTE_ONLY = 1024 };

typedef struct RefConfig {
  int64_t layers, hidden, vocab;
  int64_t heads, kv_heads, head_dim;
  bool qk_norm; /* RMSNorm over head_dim on q and k, before RoPE */
  bool tied;    /* output table is the embedding table */
  double norm_eps, rope_theta;
  int64_t experts, top_k, ffn_hidden;
  RefRouter router;
  double capacity;      /* factor over the even share, per sequence and expert; 0: no drops */
  double balance_coef;  /* of the per-sequence balance loss; 0: none */
  int64_t n_route_only; /* 0: the router may choose any expert */
  int64_t route_only[REF_MAX_ROUTE_ONLY];
  int64_t seq;     /* positions per sequence */
  double init_std; /* of --init-random */

  double lr, lr_min, beta1, beta2, eps, weight_decay;
  double clip; /* bound of the global gradient norm; 0: none */
  RefLrKind lr_kind;
  int64_t warmup, steps; /* of the learning-rate schedule */
} RefConfig;

void ref_config_default(RefConfig *);

/* Sets one field by its name, from text. Ends the program with one line if name or value is wrong. */
void ref_config_set(RefConfig *, const char *key, const char *value);

/* Reads lines `key = value`; `#` starts a comment. */
void ref_config_read(RefConfig *, const char *path);

/* Reads a .moespec; `shape` names the shape to use, NULL: the first. Model features that the reference does not know
   end the program by name. */
void ref_config_read_spec(RefConfig *, const char *path, const char *shape);

/* Ends the program if the numbers do not fit together. */
void ref_config_check(const RefConfig *);

/* A wrong input: prints one line on stderr and exits with 1. */
_Noreturn void ref_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
