/* What the reference trains: a model's dimensions and features, the token shape and the optimizer, as plain numbers. */
#ifndef REF_CONFIG_H
#define REF_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

typedef enum RefRouter {
  REF_SOFTMAX_RENORM, /* softmax over all experts, top-k, weights divided by their sum */
  REF_SOFTMAX,        /* softmax over all experts, top-k, weights as they are */
  REF_TOPK_SOFTMAX,   /* top-k of the logits, softmax over the chosen */
  REF_SIGMOID_BIAS    /* top-k of sigmoid + bias, the sigmoids of the chosen divided by their sum */
} RefRouter;

typedef enum RefQkNorm { REF_QK_NONE, REF_QK_HEAD, REF_QK_WHOLE } RefQkNorm;
typedef enum RefLayers { REF_LAYERS_ALL, REF_LAYERS_EVEN, REF_LAYERS_ODD } RefLayers;

typedef enum RefLrKind { REF_LR_CONSTANT, REF_LR_COSINE, REF_LR_LINEAR } RefLrKind;

enum { REF_MAX_ROUTE_ONLY = 1024 };

typedef struct RefConfig {
  int64_t layers, hidden, vocab;
  int64_t heads, kv_heads, head_dim;
  RefQkNorm qk_norm; /* RMSNorm on q and k before RoPE: over each head, or over all of them together */
  bool tied;         /* output table is the embedding table */
  double norm_eps;
  bool attention_bias, sinks;
  int64_t window; /* keys a token sees, itself included; 0: all */
  RefLayers window_layers;
  double clip_qkv; /* 0: none */
  bool mla;        /* latent attention; kv_heads and head_dim do not count */
  int64_t q_lora;  /* 0: one full query projection */
  int64_t kv_lora, nope_dim, rope_dim, v_dim;
  double rope_theta;
  bool rope_interleaved, yarn, yarn_truncate;
  double yarn_factor, yarn_beta_fast, yarn_beta_slow;
  double yarn_mscale, yarn_mscale_all_dim, yarn_attention_factor; /* 0: not given */
  int64_t yarn_original;
  int64_t dense_layers, dense_hidden; /* the first layers have one plain MLP */
  int64_t experts, top_k, ffn_hidden;
  int64_t shared; /* hidden size of the expert that sees every token; 0: none */
  RefRouter router;
  double router_scale;
  int64_t groups, top_groups; /* groups of experts, and how many of them a token may use */
  bool router_bias, expert_bias;
  bool clamped; /* activation (u + 1) g sigmoid(alpha g), g and u clamped */
  double act_limit, act_alpha;
  double capacity;      /* factor over the even share, per sequence and expert; 0: no drops */
  double balance_coef;  /* of the per-sequence balance loss; 0: none */
  double bias_rate;     /* step of the selection bias after each update; 0: it stays */
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
