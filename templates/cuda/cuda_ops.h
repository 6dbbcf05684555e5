/* What the ops share: where a call's lane and slots are, scratch, and messages as kernels take them. Slots are laid out
   as on the host (moe_slots.h), but what their heads say stands in the call's note: the host cannot read a slot. */
#ifndef CUDA_OPS_H
#define CUDA_OPS_H

#include "moe_lane.h"
#include "moe_slots.h"

static_assert(sizeof(MoeAttHead) <= MOE_NOTE_BYTES && 2 * sizeof(MoeListHead) <= MOE_NOTE_BYTES,
              "a note holds the head of a slot; of an FFN slot those of its own list and of the relay's");

/* Weights as the device holds them: every element of a bucket in the storage type. */
static inline const MoeReal *moe_reals(const float *w)
{
  return (const void *)w;
}

static inline MoeQueue moe_queue(const MoeCall *call)
{
  return moe_cuda_lane(call->lane)->queue;
}

static inline int32_t *moe_status(const MoeCall *call)
{
  return moe_cuda_lane(call->lane)->status;
}

/* ---- slots ---- */

static inline void cuda_att_begin(const MoeCall *call, int32_t n_src, MoeAttSaved *s)
{
  MoeAttHead *head = (void *)call->note;
  size_t positions = (size_t)moe_part_max(call->seq, call->n_chunks);
  *head = (MoeAttHead){.seq = (uint32_t)call->seq,
                       .n_seqs = (uint32_t)call->n_seqs,
                       .seq0 = (uint32_t)call->seq0,
                       .n_src = (uint32_t)n_src,
                       .rows = (uint32_t)((size_t)call->n_seqs * positions)};
  moe_att_saved_carve(call->saved, head, s);
  s->head = head;
  moe_att_find_made(call, s);
}

static inline void cuda_att_saved(const MoeCall *call, MoeAttSaved *s)
{
  MoeAttHead *head = (void *)call->note;
  moe_att_saved_carve(call->saved, head, s);
  s->head = head;
  moe_att_find_made(call, s);
}

/* counts: to be kept in the note; NULL: what the note has. */
static inline void cuda_ffn_slot(const MoeCall *call, const MoeListHead *counts, MoeFfnSaved *s)
{
  MoeListHead *head = (void *)call->note;
  if (counts != NULL) {
    *head = *counts;
  }
  moe_ffn_begin(call, head->rows, head->pairs, s);
  s->list.head = head;
}

static inline void cuda_ffn_saved(const MoeCall *call, MoeFfnSaved *s)
{
  cuda_ffn_slot(call, NULL, s);
}

/* The relay's list in an FFN slot. counts: as above. */
static inline void cuda_relay_list(const MoeCall *call, const MoeListHead *counts, MoeList *list)
{
  MoeListHead *head = (MoeListHead *)(void *)call->note + 1;
  if (counts != NULL) {
    *head = *counts;
  }
  moe_relay_carve(call->saved, moe_mb_tokens(call), list);
  list->head = head;
}

/* First and one past the last FFN rank of this rank's node. */
typedef struct CudaNode {
  int32_t first, last;
} CudaNode;

static inline CudaNode cuda_node(const MoeCall *call)
{
  const int32_t *node = call->node_first;
  while (node[1] <= call->me) {
    node++;
  }
  return (CudaNode){node[0], node[1]};
}

/* ---- scratch ---- */

/* Of attention ops, T tokens, n_in messages, n_ffn FFN ranks. */
typedef struct CudaAttScratch {
  const uint8_t **in;  /* [n_in] */
  int32_t *route_only; /* [E] */
  uint32_t *where;     /* [n_in, T] */
  int32_t *nodes;      /* [n_ffn + 1] */
  MoeRoutePlan plan;   /* [n_ffn, T] */
  MoeReal *h;          /* [T, H] normed rows */
  MoeReal *turned;     /* [T, TURNED] */
  MoeReal *d_o;        /* [T, O] */
  float *d;            /* [T, TURNED] */
  float *wide, *da;    /* [T, H] */
  float *dw;           /* [T, K] */
  float *delta;        /* [T, heads] */
  MoeReal *dz;         /* bf16: [T, E] */
  float *cosp, *sinp;  /* [seq, D / 2] */
  float *partial;      /* [PARTS, largest sum] */
  double *sums;        /* [n_seqs, 2] */
  float *gains;        /* bf16: [H + QNORM + KNORM], as floats */
} CudaAttScratch;

/* Of ops of FFN ranks, for at most n_in messages. */
typedef struct CudaFfnScratch {
  const uint8_t **in; /* [n_in], or of some of them */
  MoeRuns runs;       /* [n_in + 1] */
  uint32_t *row_pair, *pair_row, *place;
  MoeReal *h;     /* [rows, H] */
  MoeReal *x;     /* [pairs, H] in the grouped order */
  float *y;       /* [pairs, H] */
  float *d;       /* [pairs, F] */
  float *dh, *da; /* [rows, H] */
  float *partial; /* [PARTS, H] */
  float *gains;   /* bf16: [H] */
} CudaFfnScratch;

/* Of the head, HEAD_CHUNK tokens of T. */
typedef struct CudaHeadScratch {
  const uint8_t **in;
  uint32_t *where;
  MoeHeadRoom room;
  float *logits; /* [HEAD_CHUNK, V] on their way to the host */
  float *gains;  /* bf16: [H] */
} CudaHeadScratch;

/* Of the progress thread: routes of T tokens to n_ffn ranks; `in` and runs of a list for n ranks; and of a relay with
   so many rows what goes to each of n_ffn ranks. */
typedef struct CudaPackScratch {
  int32_t *nodes;
  MoeRoutePlan plan;
  const uint8_t **in; /* [n] */
  MoeRuns runs;       /* [n + 1] */
  MoeRelayPlan relay;
} CudaPackScratch;

size_t cuda_pack_scratch(uint8_t *base, size_t n_ffn, size_t tokens, size_t n, size_t relay_rows, CudaPackScratch *);
size_t cuda_att_scratch(uint8_t *base, size_t seq, size_t n_seqs, size_t n_in, size_t n_ffn, CudaAttScratch *);
size_t cuda_head_scratch(uint8_t *base, size_t tokens, size_t n_in, CudaHeadScratch *);
size_t cuda_ffn_scratch(uint8_t *base, size_t rows, size_t pairs, size_t n_in, CudaFfnScratch *);

/* ---- what ops have in common ---- */

/* n gains as floats, which kernels read: themselves, or in `room` of the device. */
MoeStatus cuda_gains(const MoeCall *, const float *w, size_t n, float *room, const float **gains_p);

/* Who sends what: the routes of the call's slot in one chunk. nodes: room on the device for [n_ffn + 1]. */
MoeStatus cuda_routes(const MoeCall *, const MoeAttSaved *, int32_t chunk, int32_t *nodes, MoeRouteSizes *);

static inline uint32_t cuda_stamp(const MoeCall *call)
{
  return moe_stamp(call->step, (uint32_t)call->chunk, (uint32_t)call->layer, (uint32_t)call->mb, call->edge);
}

/* cuda_messages.c. Lists in `in`, of the device, where the call's messages lie: of those that are of the kind, which
   must be of senders first, first + 1, ...; *n_p (may be NULL) is their number. EPROTO: a size contradicts its counts.
 */
typedef struct CudaKind {
  size_t head_bytes, pair_bytes;
  bool again; /* DISPATCH_AGAIN, FORWARD_AGAIN */
} CudaKind;
MoeStatus cuda_inputs(const MoeCall *, CudaKind, int32_t first, const uint8_t **in, size_t *n_p);
/* Rows and pairs of the call's DISPATCH or FORWARD messages, as they say; EOVERFLOW: more than `rows`, or than a row
   may have on the ranks first .. last of the group. */
MoeStatus cuda_count_list(const MoeCall *, size_t rows, int32_t first, int32_t last, MoeListHead *counts);
/* The rows of COMBINE summed into x [T, H]; the senders' lists are kept. where [n_in, T]. */
MoeStatus cuda_take_combine(const MoeCall *, const MoeSenders *, const uint8_t **in, uint32_t *where, MoeReal *x);
/* The rows of PIPE or PIPE_B into x [T, H]. */
MoeStatus cuda_take_pipe(const MoeCall *, MoeReal *x);
/* DISPATCH or FORWARD into the slot's list and rows, in the order of their arrival. */
MoeStatus cuda_take_list(const MoeCall *, const MoeFfnSaved *, const CudaFfnScratch *);
/* The rows of COMBINE_B or GATHER_B, or those that come again, one for each row of the list. */
MoeStatus cuda_take_rows(const MoeCall *, const MoeFfnSaved *, const CudaFfnScratch *, bool again, MoeReal *to);
/* What a pack returns: errors come with the wait, and the size with the head. */
size_t cuda_packed(const MoeCall *, MoeStatus);

MoeStatus cuda_embed_fwd(MoeCall *);
MoeStatus cuda_embed_wgrad(MoeCall *);
MoeStatus cuda_head(MoeCall *);
MoeStatus cuda_att_fwd(MoeCall *);
MoeStatus cuda_att_again(MoeCall *);
MoeStatus cuda_att_dgrad(MoeCall *);
MoeStatus cuda_att_wgrad(MoeCall *);
MoeStatus cuda_ffn_fwd(MoeCall *);
MoeStatus cuda_ffn_dgrad(MoeCall *);
MoeStatus cuda_ffn_wgrad(MoeCall *);
MoeStatus cuda_join_fwd(MoeCall *);
MoeStatus cuda_join_dgrad(MoeCall *);
size_t cuda_pack_dispatch(MoeCall *, void *slot);
size_t cuda_pack_dispatch_again(MoeCall *, void *slot);
size_t cuda_pack_combine(MoeCall *, void *slot);
size_t cuda_pack_combine_b(MoeCall *, void *slot);
size_t cuda_pack_dispatch_b(MoeCall *, void *slot);
size_t cuda_pack_pipe(MoeCall *, void *slot);
MoeStatus cuda_relay(MoeCall *);
MoeStatus cuda_node_reduce(MoeCall *);
size_t cuda_pack_forward(MoeCall *, void *slot);
size_t cuda_pack_gather(MoeCall *, void *slot);

#endif
