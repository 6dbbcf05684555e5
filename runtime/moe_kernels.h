/* What a bundle's kernels look like to the executor: one call structure, one table of functions. The executor knows op
   tables and buffers; only the kernels know the model. All sizes are in elements unless the name says bytes. */
#ifndef MOE_KERNELS_H
#define MOE_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "moe_device.h"
#include "moe_layout.h"
#include "moe_ops.h"
#include "moe_status.h"

/* Largest sizes that a rank's buffers must hold. */
typedef struct MoeDims {
  int32_t seq;         /* positions per sequence */
  int32_t mb_seqs;     /* sequences of a full micro-batch of one replica */
  int32_t att_seqs;    /* most sequences one rank of its attention group holds of it (0 if it has no attention) */
  int32_t n_src;       /* most COMBINE messages that one attention or head op of it takes: ranks times chunks */
  int32_t n_ffn;       /* ranks of its FFN group (FFN role), or the largest FFN group it dispatches to */
  int32_t ffn_experts; /* most experts of a layer that it holds (0 if it has no FFN role) */
  int32_t n_ffn_in;    /* most messages that one FFN op of it takes (0 if it has no FFN role) */
  int32_t n_join;      /* most COMBINE messages that a JOIN of it takes (0: it has none) */
  int32_t chunks;      /* parts of a micro-batch's tokens, at least 1; FFN slots and messages hold one of them */
  int32_t relay;       /* 1 if it relays for its node, so its FFN slots hold forwarding lists and sums */
} MoeDims;

enum { MOE_NOTE_BYTES = 64 };

enum { MOE_SC_LOSS, MOE_SC_BALANCE, MOE_SC_SUMSQ, MOE_SC_TOKENS, MOE_SC_DROPPED, MOE_SC_NONFINITE, MOE_SC_COUNT };

/* One arrived message; data stays valid until the op that releases its RECV has finished. */
typedef struct MoeIn {
  const uint8_t *data; /* starts with a MoeMsgHead */
  int32_t peer;        /* index of the sender within its group; of chunked messages at the attention side
                          chunk * ranks of the sending group + that index */
} MoeIn;

typedef struct MoeCall {
  /* which op */
  uint32_t step;
  int32_t layer;
  int32_t mb;
  uint8_t kind; /* MoeOpKind; of a pack: SEND */
  uint8_t edge; /* MoeEdge of a pack */
  bool relayed; /* the layer's dispatch is node-deduplicated: FFN ranks take FORWARD, not DISPATCH */

  /* which tokens: micro-batch `mb` has `mb_seqs` sequences; this attention rank holds n_seqs of them, from seq0 on.
     Of an FFN op seq0 and n_seqs are 0. tokens and labels: [n_seqs * seq], labels < 0 do not count. */
  int32_t seq;
  int32_t mb_seqs;
  int32_t seq0;
  int32_t n_seqs;
  const int32_t *tokens;
  const int32_t *labels;

  /* which ranks */
  int32_t me;                /* index within the group that runs this op */
  int32_t n_ffn;             /* ranks of this layer's FFN group */
  int32_t n_src;             /* attention, head, join: COMBINE messages that come, or ranks that send PIPE, PIPE_B */
  bool piped;                /* ATT ops, HEAD: the input comes by PIPE, not by COMBINE. Pack of COMBINE_B: a JOIN's */
  int32_t n_dst;             /* ranks of the group this layer's COMBINE goes to (FFN ops), or the PIPE (its pack) */
  int32_t chunk, n_chunks;   /* FFN ops and messages: positions of part `chunk` of `n_chunks` of every sequence;
                                n_chunks is at least 1 and the same for all ops */
  const int32_t *node_first; /* [n_nodes + 1]: FFN ranks node_first[k] .. node_first[k+1]-1 share node k */
  int32_t n_nodes;
  int32_t peer; /* pack: index of the receiver within its group */

  /* memory: of the device, but for note, tokens, labels, logits, messages, scalars and the small tables above */
  MoeLane lane;
  uint8_t *saved;    /* slot of this (layer, micro-batch); layout is the kernels' own */
  uint8_t *note;     /* [MOE_NOTE_BYTES] that belong to `saved`, for what must be known before a kernel is launched */
  uint8_t *work;     /* slot of results or gradients under way */
  uint8_t *scratch;  /* of this thread, contents undefined between ops */
  const float *w;    /* bucket of the op: ATT, EXPERTS or HEAD; weights, here and below, may be of another type than
                        float: weight_bytes of MoeKernels */
  float *gw;         /* its gradient, added to */
  const float *gain; /* bucket GAIN of the layer (H floats) */
  float *g_gain;
  const float *shared; /* bucket SHARED of the layer, if the model has a shared expert */
  float *g_shared;
  const float *table; /* EMBED ops: embedding table; HEAD: output table. [vocab, H] */
  float *g_table;
  float *logits;   /* HEAD: [n_seqs * seq, vocab] to be kept, or NULL */
  const MoeIn *in; /* messages of the RECV ops this op releases (RELAY: waits for), senders in rank order */
  int32_t n_in;

  /* scales and sums */
  double inv_tokens; /* 1 / valid tokens of the global batch */
  double inv_seqs;   /* 1 / sequences of the global batch */
  double *scalars;   /* [MOE_SC_COUNT], added to */
  uint32_t *load;    /* ATT_FWD: [2: tokens that chose an expert, of them dropped][experts], added to; or NULL */
  const int32_t *route_only; /* experts the router may choose from, or NULL for all */
  int32_t n_route_only;
} MoeCall;

typedef struct MoeAdam {
  float lr, beta1, beta2, eps, weight_decay; /* decoupled decay: w -= lr * weight_decay * w */
  float bias1, bias2;                        /* 1 - beta^t */
  float scale;                               /* gradient multiplier of clipping */
} MoeAdam;

typedef struct MoeKernels {
  const MoeDevice *device; /* NULL: the host */
  size_t weight_bytes;     /* of an element of a bucket's weights: 4 is fp32, 2 is bf16 */
  /* Bytes of one slot, of the compute thread's scratch and of that of the progress thread, which runs RELAY and
     NODE_REDUCE alone, for these largest sizes. Multiples of 64. */
  size_t (*att_saved_bytes)(const MoeDims *);
  size_t (*att_work_bytes)(const MoeDims *);
  size_t (*ffn_saved_bytes)(const MoeDims *);
  size_t (*ffn_work_bytes)(const MoeDims *);
  size_t (*scratch_bytes)(const MoeDims *);
  size_t (*comm_scratch_bytes)(const MoeDims *);
  /* Largest message of an edge from one rank to one other, header included. att_seqs: most sequences the attention rank
     at one of its ends holds (NODE edges: sequences of a micro-batch); experts: most experts of the FFN rank, or of its
     node where dispatches are relayed. */
  size_t (*msg_bytes)(MoeEdge edge, int32_t seq, int32_t att_seqs, int32_t experts);
  /* The compute ops, RELAY and NODE_REDUCE; NULL for ops that the executor does itself. All functions put work on the
     call's lane; those of vectors on that of the compute thread, with errors told when it is waited for. */
  MoeStatus (*run[MOE_OP_COUNT])(MoeCall *);
  /* Writes one message for call->peer, head included, into `slot`; returns its bytes, or 0: the head will say. NULL for
     HOLDERS and ROOT edges. */
  size_t (*pack[MOE_EDGE_COUNT])(MoeCall *, void *slot);
  /* Vector work of gradient reduction and optimizer. Fixed order: the same input gives the same bits. w is the first of
     the elements meant. */
  void (*add)(float *sum, const float *x, size_t n);
  double (*sumsq)(const float *x, size_t n);
  void (*adamw)(const MoeAdam *, float *w, float *master, float *m, float *v, const float *g, size_t n, bool decay);
  void (*to_weights)(float *w, const float *master, size_t n); /* rounds to the storage type */
} MoeKernels;

extern const MoeKernels moe_kernels;

#endif
