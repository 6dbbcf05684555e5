/* The reference model: one process, fp64, every intermediate kept. It shares no code with what it checks. */
#ifndef REF_MODEL_H
#define REF_MODEL_H

#include "tests/ref/ref_config.h"
#include "tests/ref/safetensors.h"

/* T = n_seqs * seq tokens, H hidden, V vocabulary, nq and nkv heads, d head_dim, E experts, K top_k, F ffn_hidden. */

enum { REF_NAME_BYTES = 96 };

typedef struct RefTensor {
  char name[REF_NAME_BYTES]; /* as in a Hugging Face file */
  int n_dims;                /* 1: norm gain, 2: matrix */
  int64_t shape[2];
  int64_t n;
  double *data;
} RefTensor;

typedef struct RefExpert {
  double *gate, *up; /* [F, H] */
  double *down;      /* [H, F] */
} RefExpert;

typedef struct RefLayer {
  double *input_norm;      /* [H] */
  double *q, *k, *v;       /* [nq d, H], [nkv d, H], [nkv d, H] */
  double *q_norm, *k_norm; /* [d], NULL without qk_norm */
  double *o;               /* [H, nq d] */
  double *post_norm;       /* [H] */
  double *router;          /* [E, H] */
  RefExpert *experts;      /* [E] */
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
} RefParams;

RefParams *ref_params_new(const RefConfig *); /* all zero */
void ref_params_free(RefParams *);

/* Gains 1 + 0.1 N(0,1), matrices std N(0,1); a function of (seed, tensor name, index) alone, rounded to fp32 so that
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

typedef struct RefLayerState {
  double *x;             /* [T, H] input of the layer */
  double *x_norm;        /* [T, H] after the input norm */
  double *q_raw, *k_raw; /* [T, nq d], [T, nkv d] projections, before qk-norm and RoPE */
  double *q, *k, *v;
  double *o;         /* [T, nq d] heads' outputs */
  double *a;         /* [T, H] x + attention */
  double *h;         /* [T, H] after the post-attention norm: what router and experts read */
  double *logits;    /* [T, E] */
  double *probs;     /* [T, E] softmax over all experts */
  int32_t *experts;  /* [T, K] choices, by descending score */
  double *weights;   /* [T, K] */
  bool *kept;        /* [T, K] false: dropped by the capacity */
  double *gate, *up; /* [T, K, F] before the activation */
  double *y;         /* [T, K, H] outputs of the experts, before the weight; unset where dropped */
  /* written by the backward pass */
  double *dx;       /* [T, H] gradient of x */
  double *da;       /* [T, H] gradient of a */
  double *dweights; /* [T, K] gradient of the routing weights; 0 where dropped */
  double *dlogits;  /* [T, E] */
} RefLayerState;

typedef struct RefState {
  RefLayerState *layers;
  double *x;           /* [T, H] output of the last layer */
  double *x_norm;      /* [T, H] after the final norm */
  double *probs;       /* [T, V] softmax of the logits */
  double *dx;          /* [T, H] gradient of x */
  double loss;         /* mean cross-entropy over the valid tokens */
  double balance_loss; /* coefficient included; the gradients are those of loss + balance_loss */
  int64_t valid;       /* labels that count */
  int64_t dropped;     /* (token, expert) pairs */
  double min_margin;   /* smallest gap between the K-th and the next router logit; infinite if all are chosen */
} RefState;

RefState *ref_state_new(const RefConfig *, int64_t n_seqs, int64_t seq);
void ref_state_free(const RefConfig *, RefState *);

void ref_forward(const RefConfig *, const RefParams *, const RefBatch *, RefState *);

/* After ref_forward with the same arguments. Overwrites `grads`. */
void ref_backward(const RefConfig *, const RefParams *, const RefBatch *, RefState *, RefParams *grads);

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

#endif
