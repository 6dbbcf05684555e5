/* Relays: a node-deduplicated layer sends a token once per node, to one of its ranks there, which forwards to each
   other rank its part, sums what comes back, and does the same for gradients. */
#include "moe_parts.h"
#include "route.h"

static void relay_list(const MoeCall *call, MoeList *list)
{
  moe_relay_carve(call->saved, moe_mb_tokens(call), list);
}

/* First and one past the last rank of this rank's node. */
static void node_ranks(const MoeCall *call, size_t *first_p, size_t *last_p)
{
  const int32_t *node = call->node_first;
  while (node[1] <= call->me) {
    node++;
  }
  *first_p = (size_t)node[0];
  *last_p = (size_t)node[1];
}

MoeStatus moe_relay(MoeCall *call)
{
  MoeList list;
  size_t first, last, rows, pairs;
  relay_list(call, &list);
  node_ranks(call, &first, &last);
  MOE_TRY(moe_count_list(call, first, last, &rows, &pairs));
  moe_copy_list(call, rows, pairs, &list);
  return MOE_OK;
}

/* Counts the rows of the list that go to the call's peer, and their pairs there. */
static void count_for_peer(const MoeCall *call, const MoeList *list, const uint16_t *owner, size_t *rows_p,
                           size_t *pairs_p)
{
  const MoePair *pair = list->pairs;
  size_t rows = 0;
  size_t pairs = 0;
  for (size_t r = 0; r < list->head->rows; r++) {
    size_t n;
    rows += moe_row_goes_to(owner, &list->rows[r], pair, (uint16_t)call->peer, &n);
    pairs += n;
    pair += list->rows[r].pairs;
  }
  *rows_p = rows;
  *pairs_p = pairs;
}

/* Calls of FORWARD, FORWARD_AGAIN and GATHER_B read the rows of the list out of the arrived messages, one after the
 * other. */
typedef struct Arrived {
  const MoeCall *call;
  size_t head_bytes, pair_bytes;
  int32_t next;
  size_t left;
  const MoeReal *row;
} Arrived;

static const MoeReal *next_row(Arrived *a)
{
  while (a->left == 0) {
    MoeView view;
    if (a->next == a->call->n_in || moe_view(&a->call->in[a->next++], a->head_bytes, a->pair_bytes, &view) != MOE_OK) {
      return NULL;
    }
    a->left = view.n_rows;
    a->row = view.rows;
  }
  const MoeReal *row = a->row;
  a->left--;
  a->row += MOE_HIDDEN;
  return row;
}

size_t moe_pack_forward(MoeCall *call, void *slot)
{
  MoeList list;
  uint16_t owner[MOE_EXPERTS];
  size_t rows, pairs;
  relay_list(call, &list);
  moe_owners(call->n_ffn, owner);
  count_for_peer(call, &list, owner, &rows, &pairs);
  MoeDraft draft = moe_draft(call, slot, rows, MOE_LIST_HEAD, pairs, MOE_LIST_PAIR);
  MoeRowHead *heads = draft.heads;
  MoePair *out = draft.pairs;
  MoeReal *to = draft.rows;
  const MoePair *pair = list.pairs;
  Arrived in = {.call = call, .head_bytes = MOE_LIST_HEAD, .pair_bytes = MOE_LIST_PAIR};
  for (size_t r = 0; r < list.head->rows; r++) {
    const MoeRowHead *row = &list.rows[r];
    const MoeReal *from = next_row(&in);
    size_t n;
    if (from == NULL) {
      return 0;
    }
    if (moe_row_goes_to(owner, row, pair, (uint16_t)call->peer, &n)) {
      *heads++ = (MoeRowHead){row->token, (uint16_t)n, row->home};
      for (size_t k = 0; k < row->pairs; k++) {
        if (owner[pair[k].expert] == call->peer) {
          *out++ = pair[k];
        }
      }
      moe_row_put(&draft, to, from, 1);
      to += MOE_HIDDEN;
    }
    pair += row->pairs;
  }
  return moe_draft_end(&draft);
}

size_t moe_pack_gather_b(MoeCall *call, void *slot)
{
  MoeList list;
  uint16_t owner[MOE_EXPERTS];
  size_t rows, pairs;
  relay_list(call, &list);
  moe_owners(call->n_ffn, owner);
  for (int32_t i = 0; i < call->n_in; i++) {
    const MoeMsgHead *head = (const void *)call->in[i].data;
    int32_t peer = call->in[i].peer;
    MoeRun run = call->edge == MOE_EDGE_GATHER_B ? moe_dst_run(call, &list, peer) : moe_src_run(&list, peer);
    if (head->rows != run.row_end - run.row) {
      return 0;
    }
  }
  count_for_peer(call, &list, owner, &rows, &pairs);
  MoeDraft draft = moe_draft(call, slot, rows, MOE_NO_HEAD, 0, 0);
  MoeReal *to = draft.rows;
  const MoePair *pair = list.pairs;
  Arrived in = {.call = call, .head_bytes = MOE_NO_HEAD, .pair_bytes = 0};
  for (size_t r = 0; r < list.head->rows; r++) {
    const MoeReal *from = next_row(&in);
    size_t n;
    if (from == NULL) {
      return 0;
    }
    if (moe_row_goes_to(owner, &list.rows[r], pair, (uint16_t)call->peer, &n)) {
      moe_row_put(&draft, to, from, 1);
      to += MOE_HIDDEN;
    }
    pair += list.rows[r].pairs;
  }
  return moe_draft_end(&draft);
}

size_t moe_pack_gather(MoeCall *call, void *slot)
{
  MoeFfnSaved s;
  MoeFfnWork work;
  moe_ffn_saved(call, &s);
  moe_ffn_work_carve(call->work, s.list.head->rows, s.list.head->pairs, &work);
  MoeRun run = moe_src_run(&s.list, call->peer);
  MoeDraft draft = moe_draft(call, slot, run.row_end - run.row, MOE_NO_HEAD, 0, 0);
  moe_row_put(&draft, draft.rows, work.rows + run.row * MOE_HIDDEN, run.row_end - run.row);
  return moe_draft_end(&draft);
}

size_t moe_pack_forward_b(MoeCall *call, void *slot)
{
  MoeFfnSaved s;
  MoeFfnWork work;
  moe_ffn_saved(call, &s);
  moe_ffn_work_carve(call->work, s.list.head->rows, s.list.head->pairs, &work);
  MoeRun run = moe_src_run(&s.list, call->peer);
  size_t pairs = run.pair_end - run.pair;
  MoeDraft draft = moe_draft(call, slot, run.row_end - run.row, MOE_NO_HEAD, pairs, MOE_GRAD_PAIR);
  if (pairs > 0) {
    memcpy(draft.pairs, work.dw + run.pair, pairs * sizeof(float));
  }
  moe_row_put(&draft, draft.rows, work.rows + run.row * MOE_HIDDEN, run.row_end - run.row);
  return moe_draft_end(&draft);
}

/* Sums one row of the list over the node's ranks that hold a part of it, and places their weight gradients, if any. */
static MoeStatus sum_row(MoeSource *source, size_t first, const uint16_t *owner, const MoeRowHead *row,
                         const MoePair *pair, float *sum, float *dw)
{
  uint16_t rank[MOE_TOP_K];
  size_t n = moe_row_ranks(owner, row, pair, rank);
  for (size_t i = 0; i < n; i++) {
    MoeSource *from = &source[rank[i] - first];
    const float *values = from->view.pairs;
    if (from->row == from->view.n_rows) {
      return MOE_EPROTO;
    }
    moe_row_add(sum, from->view.rows + from->row++ * MOE_HIDDEN, i == 0);
    for (size_t k = 0; dw != NULL && k < row->pairs; k++) {
      if (owner[pair[k].expert] == rank[i]) {
        if (from->pair == from->view.n_pairs) {
          return MOE_EPROTO;
        }
        dw[k] = values[from->pair++];
      }
    }
  }
  return MOE_OK;
}

MoeStatus moe_node_reduce(MoeCall *call)
{
  bool grad = call->edge == MOE_EDGE_FORWARD_B;
  MoeList list;
  MoeFfnWork work;
  MoeSource *source;
  uint16_t owner[MOE_EXPERTS];
  float buf[MOE_HIDDEN];
  size_t first, last;
  relay_list(call, &list);
  node_ranks(call, &first, &last);
  moe_owners(call->n_ffn, owner);
  moe_sum_work_carve(call->work, list.head->rows, list.head->pairs, &work);
  moe_source_scratch_carve(call->scratch, last - first, &source);
  if ((size_t)call->n_in != last - first) {
    return MOE_EPROTO;
  }
  MOE_TRY(moe_sources(call, MOE_NO_HEAD, grad ? MOE_GRAD_PAIR : 0, source));
  for (size_t i = 0; i < last - first; i++) {
    if ((size_t)call->in[i].peer != first + i) {
      return MOE_EPROTO;
    }
  }
  size_t pair = 0;
  for (size_t r = 0; r < list.head->rows; r++) {
    MoeReal *to = work.rows + r * MOE_HIDDEN;
    float *sum = moe_target(to, buf);
    const MoeRowHead *row = &list.rows[r];
    MOE_TRY(sum_row(source, first, owner, row, list.pairs + pair, sum, grad ? work.dw + pair : NULL));
    moe_keep(to, sum, MOE_HIDDEN);
    pair += row->pairs;
  }
  return moe_sources_done(call, source) ? MOE_OK : MOE_EPROTO;
}
