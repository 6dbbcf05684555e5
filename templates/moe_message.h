/* Reading and writing messages: one place that knows where heads, pairs and rows lie. */
#ifndef MOE_MESSAGE_H
#define MOE_MESSAGE_H

#include "moe_model.h"
#include "moe_store.h"
#include "moe_stream.h"

/* Bytes before the rows, per row and per pair, of each kind of message. */
enum {
  MOE_LIST_HEAD = sizeof(MoeRowHead), /* DISPATCH, FORWARD */
  MOE_LIST_PAIR = sizeof(MoePair),
  MOE_TOKEN_HEAD = sizeof(uint32_t), /* COMBINE */
  MOE_GRAD_PAIR = sizeof(float),     /* DISPATCH_B, FORWARD_B */
  MOE_NO_HEAD = 0
};

typedef struct MoeView {
  size_t n_rows, n_pairs;
  const void *heads;
  const void *pairs;
  const MoeReal *rows; /* [n_rows, H] */
} MoeView;

/* A message that is being read row by row. */
typedef struct MoeSource {
  MoeView view;
  size_t row, pair; /* next */
} MoeSource;

typedef struct MoeDraft {
  size_t bytes;
  void *heads;
  void *pairs;
  MoeReal *rows;
} MoeDraft;

static inline size_t moe_msg_size(size_t rows, size_t head_bytes, size_t pairs, size_t pair_bytes)
{
  return moe_msg_rows_at(rows, head_bytes, pairs, pair_bytes) + rows * MOE_HIDDEN * sizeof(MoeReal);
}

/* EPROTO if the size that the message states is not that of its counts. */
static inline MoeStatus moe_view(const MoeIn *in, size_t head_bytes, size_t pair_bytes, MoeView *view_p)
{
  const MoeMsgHead *head = (const void *)in->data;
  const uint8_t *at = in->data + sizeof *head;
  if (head->bytes != moe_msg_size(head->rows, head_bytes, head->pairs, pair_bytes) ||
      (pair_bytes == 0 && head->pairs != 0)) {
    return MOE_EPROTO;
  }
  view_p->n_rows = head->rows;
  view_p->n_pairs = head->pairs;
  view_p->heads = at;
  view_p->pairs = at + head->rows * head_bytes;
  view_p->rows = (const void *)(in->data + moe_msg_rows_at(head->rows, head_bytes, head->pairs, pair_bytes));
  return MOE_OK;
}

/* Opens every message of the call. */
static inline MoeStatus moe_sources(const MoeCall *call, size_t head_bytes, size_t pair_bytes, MoeSource *source)
{
  for (int32_t i = 0; i < call->n_in; i++) {
    source[i].row = 0;
    source[i].pair = 0;
    MOE_TRY(moe_view(&call->in[i], head_bytes, pair_bytes, &source[i].view));
  }
  return MOE_OK;
}

/* Whether every row and pair has been read. */
static inline bool moe_sources_done(const MoeCall *call, const MoeSource *source)
{
  for (int32_t i = 0; i < call->n_in; i++) {
    if (source[i].row != source[i].view.n_rows || source[i].pair != source[i].view.n_pairs) {
      return false;
    }
  }
  return true;
}

/* Starts a message of known counts: writes its head and clears the padding. */
static inline MoeDraft moe_draft(const MoeCall *call, void *slot, size_t rows, size_t head_bytes, size_t pairs,
                                 size_t pair_bytes)
{
  uint8_t *base = slot;
  size_t lists = sizeof(MoeMsgHead) + rows * head_bytes + pairs * pair_bytes;
  size_t rows_at = moe_msg_rows_at(rows, head_bytes, pairs, pair_bytes);
  MoeMsgHead *head = slot;
  MoeDraft d = {.bytes = moe_msg_size(rows, head_bytes, pairs, pair_bytes),
                .heads = base + sizeof *head,
                .pairs = base + sizeof *head + rows * head_bytes,
                .rows = (void *)(base + rows_at)};
  head->rows = (uint32_t)rows;
  head->pairs = (uint32_t)pairs;
  head->stamp = moe_stamp(call->step, (uint32_t)call->chunk, (uint32_t)call->layer, (uint32_t)call->mb, call->edge);
  head->bytes = (uint32_t)d.bytes;
  memset(base + lists, 0, rows_at - lists);
  return d;
}

/* sum = row, or sum += row. */
static inline void moe_row_add(float *sum, const MoeReal *row, bool first)
{
  if (first) {
    moe_read_row(row, MOE_HIDDEN, sum);
  } else {
    for (size_t i = 0; i < MOE_HIDDEN; i++) {
      sum[i] += moe_get(row[i]);
    }
  }
}

/* Rows into a message. */
static inline void moe_row_put(const MoeDraft *draft, MoeReal *to, const MoeReal *from, size_t rows)
{
  if (rows > 0 && draft->bytes >= MOE_STREAM_MIN) {
    moe_stream_copy(to, from, rows * MOE_HIDDEN * sizeof *to);
  } else if (rows > 0) {
    memcpy(to, from, rows * MOE_HIDDEN * sizeof *to);
  }
}

/* The message is whole; returns its bytes. */
static inline size_t moe_draft_end(const MoeDraft *draft)
{
  if (draft->bytes >= MOE_STREAM_MIN) {
    moe_stream_end();
  }
  return draft->bytes;
}

/* Rows out of a message. */
static inline void moe_row_copy(MoeReal *to, const MoeReal *from, size_t rows)
{
  if (rows > 0) {
    memcpy(to, from, rows * MOE_HIDDEN * sizeof *to);
  }
}

#endif
