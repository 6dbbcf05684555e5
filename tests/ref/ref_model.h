/* The reference model: one process, fp64, every intermediate kept. It shares no code with what it checks. */
#ifndef REF_MODEL_H
#define REF_MODEL_H

#include "tests/ref/ref_config.h"
#include "tests/ref/safetensors.h"

/* T = n_seqs * seq tokens, H hidden, V vocabulary, E experts, K top_k, F hidden of an MLP. Attention has nq query heads
   and nk key heads; q and k are dq wide, v is dv wide: nk = kv_heads, dq = dv = head_dim, or with latent attention nk =
   nq, dq = nope_dim + rope_dim, dv = v_dim. */

enum { REF_NAME_BYTES = 128, REF_OWNED = 40 };

typedef enum RefKind {
  REF_MATRIX,
  REF_GAIN,
  REF_BIAS,
  REF_SELECTION /* a bias that only choices see: its "gradient" is the choices of each expert, no optimizer moves it */
} RefKind;

typedef struct RefTensor {
  char name[REF_NAME_BYTES]; /* as in a Hugging Face file */
  RefKind kind;
  int n_dims; /* 1: gain or bias, 2: matrix */
  int64_t shape[2];
  int64_t n;
  double *data;
  double **slot; /* where the owner keeps `data` */
} RefTensor;

/* down(act(gate x) * up x), biases where they are not NULL. */
typedef struct RefMlp {
  double *gate, *up;           /* [F, H] */
  double *down;                /* [H, F] */
  double *gate_bias, *up_bias; /* [F] */
  double *down_bias;           /* [H] */
} RefMlp;

typedef struct RefLayer {
  double *input_norm;                        /* [H] */
  double *q, *k, *v;                         /* [nq dq, H], [nk dq, H], [nk dv, H] */
  double *q_bias, *k_bias, *v_bias, *o_bias; /* NULL without */
  double *q_norm, *k_norm;                   /* [dq], or [nq dq] and [nk dq] over the whole vector; NULL without */
  double *o;                                 /* [H, nq dv] */
  double *sinks;                             /* [nq] or NULL */
  double *q_a, *q_a_norm, *q_b;              /* [rq, H], [rq], [nq dq, rq]; NULL without a query latent */
  double *kv_a, *kv_a_norm, *kv_b; /* [rkv + dr, H], [rkv], [nq (dn + dv), rkv]; NULL without latent attention */
  double *post_norm;               /* [H] */
  double *router;                  /* [E, H] */
  double *router_bias;             /* [E]; of the sigmoid router: only in the choice */
  RefMlp *experts;                 /* [E] */
  RefMlp shared, dense;            /* all NULL without */
} RefLayer;

/* Weights, or their gradients: all tensors lie one after the other in `data`. */
typedef struct RefParams {
  int n_tensors;
  RefTensor *tensors;
  int64_t n;
  double *data;
  double *embed;      /* [V, H] */
  double *final_norm; /* [H] */
  double *head;       /* [V, H]; tied: the same memory as `embed` */
  RefLayer *layers;
  RefMlp *experts; /* of all layers */
} RefParams;

RefParams *ref_params_new(const RefConfig *); /* all zero */
void ref_params_free(RefParams *);

/* Gains 1 + 0.1 N(0,1), all else std N(0,1); a function of (seed, tensor name, index) alone, rounded to fp32 so that
   files of either type hold the same numbers. */
void ref_params_random(RefParams *, uint64_t seed, double std);

/* The file must hold exactly the model's tensors. */
void ref_params_load(RefParams *, const char *path);
void ref_params_save(const RefParams *, const char *path, StDtype dtype); /* ST_F64 or ST_F32 */

/* The sequences of one global batch. */
typedef struct RefBatch {
  int64_t n_seqs, seq;
  const int32_t *tokens; /* [T] */
  const int32_t *labels; /* [T]; negative: does not count */
  const int32_t *pinned; /* [layers, T, K] expert choices that replace the router's; NULL: the router chooses */
} RefBatch;

/* What an MLP keeps for `rows` inputs. */
typedef struct RefMlpState {
  double *gate, *up; /* [rows, F] before the activation, biases included */
  double *y;         /* [rows, H] its output; unset where dropped */
} RefMlpState;

typedef struct RefLayerState {
  double *x;                 /* [T, H] input of the layer */
  double *x_norm;            /* [T, H] after the input norm */
  double *q_raw, *k_raw;     /* [T, nq dq], [T, nk dq] projections, before qk-norm */
  double *q_mid, *k_mid;     /* after it, before clamp and RoPE */
  double *v_mid;             /* [T, nk dv] before the clamp */
  double *q, *k, *v;         /* what the scores are made of */
  double *q_latent, *c_q;    /* [T, rq] before and after its norm */
  double *kv_latent, *c_kv;  /* [T, rkv + dr], and [T, rkv] normed */
  double *kv;                /* [T, nq (dn + dv)] expanded keys and values */
  double *o;                 /* [T, nq dv] heads' outputs */
  double *a;                 /* [T, H] x + attention */
  double *h;                 /* [T, H] after the post-attention norm: what router and experts read */
  double *logits;            /* [T, E] */
  double *probs;             /* [T, E] softmax over all experts; of the sigmoid router the sigmoids */
  int32_t *experts;          /* [T, K] choices, by descending score */
  double *weights;           /* [T, K] */
  bool *kept;                /* [T, K] false: dropped by the capacity */
  RefMlpState pairs;         /* of T K rows */
  RefMlpState shared, dense; /* of T rows */
  /* written by the backward pass */
  double *dx;       /* [T, H] gradient of x */
  double *da;       /* [T, H] gradient of a */
  double *dweights; /* [T, K] gradient of the routing weights; 0 where dropped */
  double *dlogits;  /* [T, E] */
  int n_owned;
  void *owned[REF_OWNED]; /* all of the above, to be freed */
} RefLayerState;

typedef struct RefState {
  RefLayerState *layers;
  double *x;           /* [T, H] output of the last layer */
  double *x_norm;      /* [T, H] after the final norm */
  double *logits;      /* [T, V] */
  double *probs;       /* [T, V] their softmax */
  double *dx;          /* [T, H] gradient of x */
  double loss;         /* mean cross-entropy over the valid tokens */
  double balance_loss; /* coefficient included; the gradients are those of loss + balance_loss */
  int64_t valid;       /* labels that count */
  int64_t dropped;     /* (token, expert) pairs */
  double min_margin;   /* smallest gap between the K-th and the next score of a router (logits; with the sigmoid router
                          sigmoids with bias), of groups too; infinite if all are chosen */
} RefState;

RefState *ref_state_new(const RefConfig *, int64_t n_seqs, int64_t seq);
void ref_state_free(const RefConfig *, RefState *);
RefLayerState ref_layer_state_new(const RefConfig *, int64_t layer, int64_t n_tokens);

void ref_forward(const RefConfig *, const RefParams *, const RefBatch *, RefState *);

/* After ref_forward with the same arguments. Overwrites `grads`. */
void ref_backward(const RefConfig *, const RefParams *, const RefBatch *, RefState *, RefParams *grads);

/* Its parts. a = x + attention(norm(x)) of one layer; and from da to dx. */
void ref_attention(const RefConfig *, const RefLayer *, const RefBatch *, int64_t layer, RefLayerState *);
void ref_attention_back(const RefConfig *, const RefLayer *, const RefLayer *grads, const RefBatch *, int64_t layer,
                        RefLayerState *);
/* From h to choices, weights, drops and the layer's balance loss; and from dweights to dlogits, balance included. */
void ref_route(const RefConfig *, const RefLayer *, const RefBatch *, int64_t layer, RefState *);
void ref_route_back(const RefConfig *, const RefBatch *, RefLayerState *);
/* y of one row x [H], kept in row `row` of the state; and from dy to dx and the gradients, both added to. `clamped`:
   the activation of gpt-oss. */
void ref_mlp(const RefConfig *, const RefMlp *, int64_t hidden, bool clamped, const double *x, int64_t row,
             RefMlpState *);
void ref_mlp_back(const RefConfig *, const RefMlp *, const RefMlp *grads, int64_t hidden, bool clamped, const double *x,
                  const double *dy, int64_t row, const RefMlpState *, double *dx);

bool ref_is_dense(const RefConfig *, int64_t layer);
int64_t ref_key_heads(const RefConfig *); /* nk, dq, dv */
int64_t ref_qk_dim(const RefConfig *);
int64_t ref_v_dim(const RefConfig *);

/* Most pairs that one expert takes from one sequence; `seq * top_k` without a capacity. */
int64_t ref_capacity(const RefConfig *, int64_t seq);

typedef struct RefAdam {
  int64_t step;  /* updates done */
  double *m, *v; /* [n] */
} RefAdam;

double ref_lr(const RefConfig *, int64_t step);
double ref_grad_norm(const RefParams *grads);

/* One AdamW update: clips by the global norm, corrects the bias, decays matrices only (w -= lr weight_decay w). */
void ref_adamw(const RefConfig *, RefParams *, const RefParams *grads, RefAdam *);

/* After an update: every selection bias moves by bias_rate * sign(mean load - load of its expert). */
void ref_move_bias(const RefConfig *, RefParams *, const RefParams *grads);

#endif
