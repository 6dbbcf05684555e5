/* What lies where in the slots and in scratch. One function per kind gives both pointers and size, so they cannot
   disagree. A slot starts with a head that holds the counts its layout depends on; the first op of the slot writes it.
 */
#ifndef MOE_SLOTS_H
#define MOE_SLOTS_H

#include "moe_message.h"
#include "moe_model.h"
#include "moe_store.h"

/* Cuts aligned pieces off a slot; with base NULL it only counts. */
typedef struct MoeCarve {
  uint8_t *base;
  size_t at;
} MoeCarve;

static inline void *moe_carve(MoeCarve *c, size_t n, size_t size)
{
  void *piece = c->base == NULL ? NULL : c->base + c->at;
  c->at = moe_align64(c->at + n * size);
  return piece;
}

/* Attention slots: T = n_seqs * seq tokens of this rank. */

typedef struct MoeAttHead {
  uint32_t seq, n_seqs, seq0;
  uint32_t n_src;  /* COMBINE messages whose lists are kept: those that the layer's input was summed from */
  uint32_t n_join; /* the same of its output, where this rank sums that too */
  uint32_t rows;   /* most rows that one of these messages has */
} MoeAttHead;

/* Who sent which tokens in n COMBINE messages; their gradients go back along these lists. */
typedef struct MoeSenders {
  size_t n;
  size_t stride;
  uint32_t *peer;  /* [n] */
  uint32_t *rows;  /* [n] */
  uint32_t *token; /* [n, stride] relative to this rank's first */
} MoeSenders;

/* The pieces from rstd_in to prob are what attention makes of x. With full recomputation they lie in the work slot: of
   ATT_FWD until they have been sent, of ATT_AGAIN for the gradients. */
typedef struct MoeAttSaved {
  size_t tokens;
  MoeAttHead *head;
  MoeReal *x;       /* [T, H] residual stream at the layer's input */
  float *rstd_in;   /* [T] of the input norm */
  MoeReal *qkv;     /* [T, QKV] projections, before head norm and rotation */
  MoeReal *o;       /* [T, O] attention output, before its projection */
  float *lse;       /* [T, heads] log of the softmax denominator */
  MoeReal *a;       /* [T, H] x + attention, what travels */
  float *rstd_post; /* [T] of the post-attention norm */
  float *prob;      /* [T, E] router softmax over all experts; sigmoids */
  float *weight;    /* [T, K] of the chosen, descending */
  uint32_t *picks;  /* [n_seqs, E] choices per sequence, before drops */
  uint16_t *choice; /* [T, K] chosen experts */
  uint8_t *dropped; /* [T, K] 1: over the capacity */
  MoeSenders src;   /* of the input */
  MoeSenders join;  /* of the output; written after all else, by JOIN_FWD */
} MoeAttSaved;

static inline void moe_senders_carve(MoeCarve *c, size_t n, size_t stride, MoeSenders *s)
{
  s->n = n;
  s->stride = stride;
  s->peer = moe_carve(c, n, sizeof *s->peer);
  s->rows = moe_carve(c, n, sizeof *s->rows);
  s->token = moe_carve(c, n * stride, sizeof *s->token);
}

static inline void moe_att_made_carve(MoeCarve *c, size_t t, MoeAttSaved *s)
{
  s->rstd_in = moe_carve(c, t, sizeof *s->rstd_in);
  s->qkv = moe_carve(c, t * MOE_QKV_DIM, sizeof *s->qkv);
  s->o = moe_carve(c, t * MOE_O_DIM, sizeof *s->o);
  s->lse = moe_carve(c, t * MOE_HEADS, sizeof *s->lse);
  s->a = moe_carve(c, t * MOE_HIDDEN, sizeof *s->a);
  s->rstd_post = moe_carve(c, t, sizeof *s->rstd_post);
  s->prob = moe_carve(c, t * MOE_EXPERTS, sizeof *s->prob);
}

static inline size_t moe_att_saved_carve(uint8_t *base, const MoeAttHead *shape, MoeAttSaved *s)
{
  MoeCarve c = {base, 0};
  size_t n_seqs = shape->n_seqs;
  size_t t = n_seqs * shape->seq;
  s->tokens = t;
  s->head = moe_carve(&c, 1, sizeof *s->head);
  s->x = moe_carve(&c, t * MOE_HIDDEN, sizeof *s->x);
  if (MOE_RECOMPUTE < 2) {
    moe_att_made_carve(&c, t, s);
  }
  s->weight = moe_carve(&c, t * MOE_TOP_K, sizeof *s->weight);
  s->picks = moe_carve(&c, n_seqs * MOE_EXPERTS, sizeof *s->picks);
  s->choice = moe_carve(&c, t * MOE_TOP_K, sizeof *s->choice);
  s->dropped = moe_carve(&c, t * MOE_TOP_K, sizeof *s->dropped);
  moe_senders_carve(&c, shape->n_src, shape->rows, &s->src);
  moe_senders_carve(&c, shape->n_join, shape->rows, &s->join);
  return c.at;
}

typedef struct MoeAttWork {
  MoeReal *dx;   /* [T, H] gradient of the layer's input; of the head: of its input; of joins: their rows */
  MoeReal *da;   /* [T, H] gradient of a, complete */
  MoeReal *dqkv; /* [T, QKV] */
  float *dz;     /* [T, E] gradient of the router logits */
  size_t made;   /* where what attention makes of x lies, with full recomputation */
} MoeAttWork;

static inline size_t moe_att_work_carve(uint8_t *base, size_t tokens, MoeAttWork *w)
{
  MoeCarve c = {base, 0};
  w->dx = moe_carve(&c, tokens * MOE_HIDDEN, sizeof *w->dx);
  w->da = moe_carve(&c, tokens * MOE_HIDDEN, sizeof *w->da);
  w->dqkv = moe_carve(&c, tokens * MOE_QKV_DIM, sizeof *w->dqkv);
  w->dz = moe_carve(&c, tokens * MOE_EXPERTS, sizeof *w->dz);
  w->made = c.at;
  if (MOE_RECOMPUTE == 2) {
    MoeAttSaved s;
    moe_att_made_carve(&c, tokens, &s);
  }
  return c.at;
}

/* Finds what attention made of x in the call's work slot, if it lies there; of calls without one it is not known. */
static inline void moe_att_find_made(const MoeCall *call, MoeAttSaved *s)
{
  if (MOE_RECOMPUTE == 2) {
    MoeAttWork w;
    moe_att_work_carve(NULL, s->tokens, &w);
    MoeCarve c = {call->work, w.made};
    moe_att_made_carve(&c, s->tokens, s);
  }
}

/* Lays out the slot of an op that takes in n_src COMBINE messages. */
static inline void moe_att_begin(const MoeCall *call, int32_t n_src, MoeAttSaved *s)
{
  size_t positions = (size_t)moe_part_max(call->seq, call->n_chunks);
  const MoeAttHead head = {.seq = (uint32_t)call->seq,
                           .n_seqs = (uint32_t)call->n_seqs,
                           .seq0 = (uint32_t)call->seq0,
                           .n_src = (uint32_t)n_src,
                           .rows = (uint32_t)((size_t)call->n_seqs * positions)};
  moe_att_saved_carve(call->saved, &head, s);
  *s->head = head;
  moe_att_find_made(call, s);
}

/* The slot as its first op laid it out. */
static inline void moe_att_saved(const MoeCall *call, MoeAttSaved *s)
{
  const MoeAttHead *head = (const void *)call->saved;
  moe_att_saved_carve(call->saved, head, s);
  moe_att_find_made(call, s);
}

/* FFN slots. The forwarding list of a relay, where there is one, stands before the rank's own rows and has the room of
   the whole micro-batch, so that writing one part never moves the other. */

typedef struct MoeListHead {
  uint32_t rows, pairs;
} MoeListHead;

/* Rows in the order of their arrival: sender after sender, tokens ascending within each. */
typedef struct MoeList {
  MoeListHead *head;
  MoeRowHead *rows; /* [rows] */
  MoePair *pairs;   /* [pairs] row after row */
  uint16_t *src;    /* [rows] sender */
} MoeList;

static inline void moe_list_carve(MoeCarve *c, size_t rows, size_t pairs, MoeList *list)
{
  list->head = moe_carve(c, 1, sizeof *list->head);
  list->rows = moe_carve(c, rows, sizeof *list->rows);
  list->pairs = moe_carve(c, pairs, sizeof *list->pairs);
  list->src = moe_carve(c, rows, sizeof *list->src);
}

static inline size_t moe_relay_carve(uint8_t *base, size_t mb_tokens, MoeList *list)
{
  MoeCarve c = {base, 0};
  moe_list_carve(&c, mb_tokens, mb_tokens * MOE_TOP_K, list);
  return c.at;
}

static inline size_t moe_mb_tokens(const MoeCall *call)
{
  return (size_t)call->mb_seqs * (size_t)call->seq;
}

/* Tokens of the call's chunk. */
static inline size_t moe_chunk_tokens(const MoeCall *call)
{
  return (size_t)call->mb_seqs * (size_t)moe_part_size(call->seq, call->n_chunks, call->chunk);
}

/* With full recomputation the rows lie in the work slot, with any recomputation gate and up. */
typedef struct MoeFfnSaved {
  MoeList list;
  MoeReal *a;           /* [rows, H] */
  float *rstd;          /* [rows] */
  uint32_t *first;      /* [E + 1] where each local expert's pairs begin in the grouped order */
  uint32_t *group_pair; /* [pairs] grouped order: index in list.pairs */
  uint32_t *group_row;  /* [pairs] grouped order: row */
  MoeReal *shared;  /* [rows, 2 Fs] gate and up of the shared expert, for rows with their home here, in order; backward
                       their gradients */
  MoeReal *gate_up; /* [pairs, 2 F] grouped order; FFN_DGRAD leaves its gradient there */
} MoeFfnSaved;

static inline size_t moe_ffn_saved_carve(uint8_t *base, size_t rows, size_t pairs, MoeFfnSaved *s)
{
  MoeCarve c = {base, 0};
  moe_list_carve(&c, rows, pairs, &s->list);
  s->first = moe_carve(&c, MOE_EXPERTS + 1, sizeof *s->first);
  s->group_pair = moe_carve(&c, pairs, sizeof *s->group_pair);
  s->group_row = moe_carve(&c, pairs, sizeof *s->group_row);
  if (MOE_RECOMPUTE < 2) {
    s->a = moe_carve(&c, rows * MOE_HIDDEN, sizeof *s->a);
    s->rstd = moe_carve(&c, rows, sizeof *s->rstd);
  }
  if (MOE_RECOMPUTE < 1) {
    s->shared = moe_carve(&c, rows * 2 * MOE_SHARED, sizeof *s->shared);
    s->gate_up = moe_carve(&c, pairs * 2 * MOE_FFN_HIDDEN, sizeof *s->gate_up);
  }
  return c.at;
}

/* Work of FFN_FWD (rows: partial sums), of NODE_REDUCE (rows: sums; dw: in the order of the relay's pairs) and of
   FFN_DGRAD (rows: gradient of a; the last two are for FFN_WGRAD). */
typedef struct MoeFfnWork {
  MoeReal *rows;       /* [rows, H] */
  float *dw;           /* [pairs] gradient of the routing weights */
  MoeReal *dx;         /* [rows, H] gradient of the layer's output, as it arrived */
  MoeReal *act;        /* [pairs, F] grouped order: the activation */
  MoeReal *shared_act; /* [rows, Fs] that of the shared expert, for rows with their home here, in order */
  size_t made;         /* where what is not kept lies */
} MoeFfnWork;

/* What recomputation does not keep. */
static inline void moe_ffn_made_carve(MoeCarve *c, size_t rows, size_t pairs, MoeFfnSaved *s)
{
  if (MOE_RECOMPUTE == 2) {
    s->a = moe_carve(c, rows * MOE_HIDDEN, sizeof *s->a);
    s->rstd = moe_carve(c, rows, sizeof *s->rstd);
  }
  if (MOE_RECOMPUTE > 0) {
    s->shared = moe_carve(c, rows * 2 * MOE_SHARED, sizeof *s->shared);
    s->gate_up = moe_carve(c, pairs * 2 * MOE_FFN_HIDDEN, sizeof *s->gate_up);
  }
}

static inline size_t moe_ffn_work_carve(uint8_t *base, size_t rows, size_t pairs, MoeFfnWork *w)
{
  MoeCarve c = {base, 0};
  w->rows = moe_carve(&c, rows * MOE_HIDDEN, sizeof *w->rows);
  w->dw = moe_carve(&c, pairs, sizeof *w->dw);
  w->dx = moe_carve(&c, rows * MOE_HIDDEN, sizeof *w->dx);
  w->act = moe_carve(&c, pairs * MOE_FFN_HIDDEN, sizeof *w->act);
  w->shared_act = moe_carve(&c, rows * MOE_SHARED, sizeof *w->shared_act);
  w->made = c.at;
  MoeFfnSaved s;
  moe_ffn_made_carve(&c, rows, pairs, &s);
  return c.at;
}

static inline uint8_t *moe_ffn_saved_base(const MoeCall *call)
{
  MoeList relay;
  return call->saved + (call->relayed ? moe_relay_carve(NULL, moe_mb_tokens(call), &relay) : 0);
}

/* Lays both slots of an op out; of calls without a work slot what would lie there is not known. */
static inline void moe_ffn_begin(const MoeCall *call, size_t rows, size_t pairs, MoeFfnSaved *s)
{
  MoeFfnWork w;
  moe_ffn_saved_carve(moe_ffn_saved_base(call), rows, pairs, s);
  moe_ffn_work_carve(NULL, rows, pairs, &w);
  MoeCarve c = {call->work, w.made};
  moe_ffn_made_carve(&c, rows, pairs, s);
}

/* The slots as FFN_FWD laid them out. */
static inline void moe_ffn_saved(const MoeCall *call, MoeFfnSaved *s)
{
  const MoeListHead *head = (const void *)moe_ffn_saved_base(call);
  moe_ffn_begin(call, head->rows, head->pairs, s);
}

static inline size_t moe_sum_work_carve(uint8_t *base, size_t rows, size_t pairs, MoeFfnWork *w)
{
  MoeCarve c = {base, 0};
  w->rows = moe_carve(&c, rows * MOE_HIDDEN, sizeof *w->rows);
  w->dw = moe_carve(&c, pairs, sizeof *w->dw);
  w->dx = NULL;
  w->act = w->shared_act = NULL;
  w->made = 0;
  return c.at;
}

/* Scratch. Buffers that only bf16 needs, because its rows are not floats, take no room in fp32. */

#define MOE_IF_BF16(n) (MOE_BF16 ? (n) : 0)

typedef struct MoeCore {
  float *cos, *sin; /* [seq, rope_dim / 2] */
  float *q, *d_o;   /* [TILE_R, d], [TILE_R, v_dim] of the query heads that share one key head */
  float *k, *v;     /* [seq, d], [seq, v_dim] */
  float *dk, *dv;
  float *d_turn;            /* [seq, rope_dim] latents: gradient of the keys' shared part, summed over the heads */
  float *rstd_q, *rstd_k;   /* [seq] of the norms over all heads of q, of k */
  float *p, *dp;            /* [TILE_R, TILE_K] */
  float *acc;               /* [TILE_R, max(d, v_dim)] output; gradient of q */
  float *row_max, *row_sum; /* [TILE_R] */
} MoeCore;

typedef struct MoeAttScratch {
  float *h0, *h1;    /* [ATT_TILE, H] */
  float *wide;       /* [ATT_TILE, QKV] */
  float *latent;     /* [ATT_TILE, max(q_lora, kv_lora)] */
  float *dw;         /* [ATT_TILE, K] */
  MoeSource *source; /* [senders] */
  float *act;        /* [ATT_TILE, Fd] of dense layers */
  float *gate_up;    /* [ATT_TILE, 2 Fd] */
  MoeCore core;
} MoeAttScratch;

static inline size_t moe_att_scratch_carve(uint8_t *base, size_t tokens, size_t seq, size_t senders, MoeAttScratch *s)
{
  MoeCarve c = {base, 0};
  size_t whole = MOE_QK_NORM == 2 ? seq : 0;
  size_t tile = moe_min(tokens, MOE_ATT_TILE);
  size_t rows = (size_t)MOE_TILE_R;
  s->h0 = moe_carve(&c, tile * MOE_HIDDEN, sizeof(float));
  s->h1 = moe_carve(&c, tile * MOE_HIDDEN, sizeof(float));
  s->wide = moe_carve(&c, tile * MOE_QKV_DIM, sizeof(float));
  s->latent = moe_carve(&c, tile * (size_t)(MOE_Q_LORA > MOE_KV_LORA ? MOE_Q_LORA : MOE_KV_LORA), sizeof(float));
  s->dw = moe_carve(&c, tile * MOE_TOP_K, sizeof(float));
  s->source = moe_carve(&c, senders, sizeof *s->source);
  s->act = moe_carve(&c, tile * MOE_DENSE_HIDDEN, sizeof(float));
  s->gate_up = moe_carve(&c, tile * 2 * MOE_DENSE_HIDDEN, sizeof(float));
  s->core.cos = moe_carve(&c, seq * MOE_ROPE_DIM / 2, sizeof(float));
  s->core.sin = moe_carve(&c, seq * MOE_ROPE_DIM / 2, sizeof(float));
  s->core.q = moe_carve(&c, rows * MOE_HEAD_DIM, sizeof(float));
  s->core.d_o = moe_carve(&c, rows * MOE_V_DIM, sizeof(float));
  s->core.k = moe_carve(&c, seq * MOE_HEAD_DIM, sizeof(float));
  s->core.v = moe_carve(&c, seq * MOE_V_DIM, sizeof(float));
  s->core.dk = moe_carve(&c, seq * MOE_HEAD_DIM, sizeof(float));
  s->core.dv = moe_carve(&c, seq * MOE_V_DIM, sizeof(float));
  s->core.d_turn = moe_carve(&c, MOE_LATENT ? seq * MOE_ROPE_DIM : 0, sizeof(float));
  s->core.rstd_q = moe_carve(&c, whole, sizeof(float));
  s->core.rstd_k = moe_carve(&c, whole, sizeof(float));
  s->core.p = moe_carve(&c, rows * MOE_TILE_K, sizeof(float));
  s->core.dp = moe_carve(&c, rows * MOE_TILE_K, sizeof(float));
  s->core.acc = moe_carve(&c, rows * moe_max(MOE_HEAD_DIM, MOE_V_DIM), sizeof(float));
  s->core.row_max = moe_carve(&c, rows, sizeof(float));
  s->core.row_sum = moe_carve(&c, rows, sizeof(float));
  return c.at;
}

typedef struct MoeHeadScratch {
  float *y, *dy;     /* [HEAD_CHUNK, H] */
  float *logits;     /* [HEAD_CHUNK, V] */
  float *rstd;       /* [HEAD_CHUNK] */
  MoeSource *source; /* [senders] */
} MoeHeadScratch;

static inline size_t moe_head_scratch_carve(uint8_t *base, size_t senders, MoeHeadScratch *s)
{
  MoeCarve c = {base, 0};
  s->y = moe_carve(&c, MOE_HEAD_CHUNK * MOE_HIDDEN, sizeof(float));
  s->dy = moe_carve(&c, MOE_HEAD_CHUNK * MOE_HIDDEN, sizeof(float));
  s->logits = moe_carve(&c, MOE_HEAD_CHUNK * MOE_VOCAB, sizeof(float));
  s->rstd = moe_carve(&c, MOE_HEAD_CHUNK, sizeof(float));
  s->source = moe_carve(&c, senders, sizeof *s->source);
  return c.at;
}

typedef struct MoeFfnScratch {
  float *x;       /* [FFN_TILE, H] rows of one expert's pairs, or its results */
  float *act;     /* [FFN_TILE, max(F, Fs)] */
  float *gate_up; /* [FFN_TILE, 2 max(F, Fs)] bf16 */
  float *sum;     /* [FFN_ROWS, H] */
} MoeFfnScratch;

static inline size_t moe_ffn_scratch_carve(uint8_t *base, size_t rows, MoeFfnScratch *s)
{
  MoeCarve c = {base, 0};
  size_t tile = moe_min(rows, MOE_FFN_TILE);
  s->x = moe_carve(&c, tile * MOE_HIDDEN, sizeof(float));
  size_t f = moe_max(MOE_FFN_HIDDEN, MOE_SHARED);
  s->act = moe_carve(&c, tile * f, sizeof(float));
  s->gate_up = moe_carve(&c, MOE_IF_BF16(tile * 2 * f), sizeof(float));
  s->sum = moe_carve(&c, moe_min(rows, MOE_FFN_ROWS) * MOE_HIDDEN, sizeof(float));
  return c.at;
}

/* Node sums and joins: one source per message. */
static inline size_t moe_source_scratch_carve(uint8_t *base, size_t senders, MoeSource **source_p)
{
  MoeCarve c = {base, 0};
  *source_p = moe_carve(&c, senders, sizeof **source_p);
  return c.at;
}

#endif
