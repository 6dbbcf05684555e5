/* Messages between attention and FFN ranks: DISPATCH, COMBINE and their gradients. Sums over senders run token by token
   in rank order, so they do not depend on when messages arrive. */
#include "moe_parts.h"
#include "route.h"

MoeRun moe_src_run(const MoeList *list, int32_t src)
{
  MoeRun run = {0};
  size_t n = list->head->rows;
  while (run.row < n && list->src[run.row] != src) {
    run.pair += list->rows[run.row++].pairs;
  }
  run.row_end = run.row;
  run.pair_end = run.pair;
  while (run.row_end < n && list->src[run.row_end] == src) {
    run.pair_end += list->rows[run.row_end++].pairs;
  }
  return run;
}

MoeRun moe_dst_run(const MoeCall *call, const MoeList *list, int32_t dst)
{
  MoeRun run = {0};
  size_t n = list->head->rows;
  size_t begin = (size_t)(moe_part_begin(call->mb_seqs, call->n_dst, dst) * call->seq);
  size_t end = (size_t)(moe_part_begin(call->mb_seqs, call->n_dst, dst + 1) * call->seq);
  while (run.row < n && list->rows[run.row].token < begin) {
    run.pair += list->rows[run.row++].pairs;
  }
  run.row_end = run.row;
  run.pair_end = run.pair;
  while (run.row_end < n && list->rows[run.row_end].token < end) {
    run.pair_end += list->rows[run.row_end++].pairs;
  }
  return run;
}

/* The rows of all messages with token t: whether there was one. Adds them up in sender order. */
static bool sum_token(MoeSource *source, int32_t n, uint32_t token, float *sum)
{
  bool found = false;
  for (int32_t i = 0; i < n; i++) {
    MoeSource *s = &source[i];
    const uint32_t *tokens = s->view.heads;
    if (s->row < s->view.n_rows && tokens[s->row] == token) {
      moe_row_add(sum, s->view.rows + s->row * MOE_HIDDEN, !found);
      s->row++;
      found = true;
    }
  }
  return found;
}

MoeStatus moe_take_combine(MoeCall *call, MoeReal *x, const MoeSenders *senders, MoeSource *source)
{
  uint32_t first = (uint32_t)call->seq0 * (uint32_t)call->seq;
  size_t n_tokens = (size_t)call->n_seqs * (size_t)call->seq;
  float buf[MOE_HIDDEN];
  MOE_TRY(moe_sources(call, MOE_TOKEN_HEAD, 0, source));
  for (size_t t = 0; t < n_tokens; t++) {
    MoeReal *row = x + t * MOE_HIDDEN;
    float *sum = moe_target(row, buf);
    if (!sum_token(source, call->n_in, first + (uint32_t)t, sum)) {
      return MOE_EPROTO;
    }
    moe_keep(row, sum, MOE_HIDDEN);
  }
  if (!moe_sources_done(call, source)) { /* a token of another rank, or out of order */
    return MOE_EPROTO;
  }
  for (size_t i = 0; i < senders->n; i++) {
    const uint32_t *tokens = source[i].view.heads;
    if (source[i].view.n_rows > senders->stride) { /* tokens of another chunk */
      return MOE_EPROTO;
    }
    senders->peer[i] = (uint32_t)call->in[i].peer;
    senders->rows[i] = (uint32_t)source[i].view.n_rows;
    for (size_t r = 0; r < source[i].view.n_rows; r++) {
      senders->token[i * senders->stride + r] = tokens[r] - first;
    }
  }
  return MOE_OK;
}

static void route_of(const MoeAttSaved *s, const uint16_t *owner, size_t t, uint32_t token, MoeRoute *route)
{
  moe_route(owner, s->choice + t * MOE_TOP_K, s->dropped + t * MOE_TOP_K, token, route);
}

/* NULL: not relayed. */
static const int32_t *nodes_of(const MoeCall *call)
{
  return call->relayed ? call->node_first : NULL;
}

static int64_t chunk_of(const MoeCall *call, uint32_t token)
{
  return call->n_chunks == 1 ? 0 : moe_part_of(call->seq, call->n_chunks, token % (uint32_t)call->seq);
}

MoeStatus moe_open_dispatch_b(const MoeCall *call, MoeSource *source)
{
  if (call->n_in != call->n_ffn * call->n_chunks) {
    return MOE_EPROTO;
  }
  MOE_TRY(moe_sources(call, MOE_NO_HEAD, MOE_GRAD_PAIR, source));
  for (int32_t i = 0; i < call->n_in; i++) {
    if (call->in[i].peer != i) {
      return MOE_EPROTO;
    }
  }
  return MOE_OK;
}

MoeStatus moe_take_dispatch_b(const MoeCall *call, const MoeAttSaved *s, MoeSource *source, size_t first, size_t n,
                              float *da, float *dw)
{
  uint16_t owner[MOE_EXPERTS];
  moe_owners(call->n_ffn, owner);
  for (size_t t = first; t < first + n; t++, da += MOE_HIDDEN, dw += MOE_TOP_K) {
    uint32_t token = s->head->seq0 * s->head->seq + (uint32_t)t;
    const uint16_t *choice = s->choice + t * MOE_TOP_K;
    const uint8_t *dropped = s->dropped + t * MOE_TOP_K;
    MoeRoute route;
    MoeTarget target[MOE_TOP_K];
    route_of(s, owner, t, token, &route);
    size_t n_targets = moe_targets(nodes_of(call), &route, token, target);
    MoeSource *chunk = source + chunk_of(call, token) * call->n_ffn;
    for (size_t k = 0; k < MOE_TOP_K; k++) {
      dw[k] = 0.0f;
    }
    for (size_t i = 0; i < n_targets; i++) {
      MoeSource *from = &chunk[target[i].rank];
      const float *values = from->view.pairs;
      if (from->row == from->view.n_rows) {
        return MOE_EPROTO;
      }
      moe_row_add(da, from->view.rows + from->row++ * MOE_HIDDEN, i == 0);
      for (size_t k = 0; k < MOE_TOP_K; k++) {
        if (!dropped[k] && moe_in_target(&target[i], owner[choice[k]])) {
          if (from->pair == from->view.n_pairs) {
            return MOE_EPROTO;
          }
          dw[k] = values[from->pair++];
        }
      }
    }
  }
  return MOE_OK;
}

/* One message of a list: its rows ascend, its pairs belong to the ranks and are as many as the rows say. */
static bool list_valid(const MoeCall *call, const MoeView *view, int64_t first_expert, int64_t last_expert)
{
  const MoeRowHead *rows = view->heads;
  const MoePair *pairs = view->pairs;
  size_t n = 0;
  for (size_t r = 0; r < view->n_rows; r++) {
    if (rows[r].token >= moe_mb_tokens(call) || chunk_of(call, rows[r].token) != call->chunk ||
        (r > 0 && rows[r].token <= rows[r - 1].token) || rows[r].pairs > MOE_TOP_K || rows[r].home >= call->n_ffn) {
      return false;
    }
    n += rows[r].pairs;
  }
  if (n != view->n_pairs) {
    return false;
  }
  for (size_t p = 0; p < n; p++) {
    if (pairs[p].expert < first_expert || pairs[p].expert >= last_expert) {
      return false;
    }
  }
  return true;
}

MoeStatus moe_count_list(const MoeCall *call, size_t first, size_t last, size_t *rows_p, size_t *pairs_p)
{
  int64_t first_expert = moe_part_begin(MOE_EXPERTS, call->n_ffn, (int64_t)first);
  int64_t last_expert = moe_part_begin(MOE_EXPERTS, call->n_ffn, (int64_t)last);
  size_t rows = 0;
  size_t pairs = 0;
  for (int32_t i = 0; i < call->n_in; i++) {
    MoeView view;
    MOE_TRY(moe_view(&call->in[i], MOE_LIST_HEAD, MOE_LIST_PAIR, &view));
    rows += view.n_rows;
    pairs += view.n_pairs;
    if (rows > moe_chunk_tokens(call)) {
      return MOE_EOVERFLOW;
    }
    if (!list_valid(call, &view, first_expert, last_expert)) {
      return MOE_EPROTO;
    }
  }
  if (pairs > rows * moe_min(MOE_TOP_K, (size_t)(last_expert - first_expert))) {
    return MOE_EOVERFLOW;
  }
  *rows_p = rows;
  *pairs_p = pairs;
  return MOE_OK;
}

void moe_copy_list(const MoeCall *call, size_t rows, size_t pairs, const MoeList *list)
{
  size_t row = 0;
  size_t pair = 0;
  list->head->rows = (uint32_t)rows;
  list->head->pairs = (uint32_t)pairs;
  for (int32_t i = 0; i < call->n_in; i++) {
    const MoeMsgHead *head = (const void *)call->in[i].data;
    const uint8_t *heads = call->in[i].data + sizeof *head;
    memcpy(list->rows + row, heads, head->rows * sizeof *list->rows);
    memcpy(list->pairs + pair, heads + head->rows * sizeof *list->rows, head->pairs * sizeof *list->pairs);
    for (size_t r = 0; r < head->rows; r++) {
      list->src[row + r] = (uint16_t)call->in[i].peer;
    }
    row += head->rows;
    pair += head->pairs;
  }
}

/* Where the rows of a list are among an op's messages, that come in twice: first those of *_AGAIN. */
static bool is_again(const MoeIn *in)
{
  MoeMsgHead head;
  memcpy(&head, in->data, sizeof head);
  uint32_t edge = head.stamp & 0xfu;
  return edge == MOE_EDGE_DISPATCH_AGAIN || edge == MOE_EDGE_FORWARD_AGAIN;
}

/* Rows along the list, of messages from those who sent it, or from those who got sums along it. */
static MoeStatus take_rows(const MoeCall *call, const MoeList *list, bool again, MoeReal *to)
{
  size_t row = 0;
  for (int32_t i = 0; i < call->n_in; i++) {
    MoeView view;
    int32_t peer = call->in[i].peer;
    if (is_again(&call->in[i]) != again) {
      continue;
    }
    MoeRun run = again || call->relayed ? moe_src_run(list, peer) : moe_dst_run(call, list, peer);
    MOE_TRY(moe_view(&call->in[i], MOE_NO_HEAD, 0, &view));
    if (view.n_rows != run.row_end - run.row || (view.n_rows > 0 && run.row != row)) {
      return MOE_EPROTO;
    }
    moe_row_copy(to + row * MOE_HIDDEN, view.rows, view.n_rows);
    row += view.n_rows;
  }
  return row == list->head->rows ? MOE_OK : MOE_EPROTO;
}

MoeStatus moe_take_grads(const MoeCall *call, const MoeList *list, MoeReal *dx)
{
  return take_rows(call, list, false, dx);
}

MoeStatus moe_take_again(const MoeCall *call, const MoeList *list, MoeReal *a)
{
  return take_rows(call, list, true, a);
}

/* A DISPATCH message under way; without a draft its rows and pairs are only counted. The second time it has rows alone.
 */
typedef struct Letter {
  MoeDraft draft;
  MoeRowHead *heads;
  MoePair *pairs;
  size_t n_rows, n_pairs;
} Letter;

/* Adds what of token t goes to the call's peer. */
static void add_token(const MoeCall *call, const MoeAttSaved *s, const uint16_t *owner, size_t t, Letter *letter)
{
  uint32_t token = s->head->seq0 * s->head->seq + (uint32_t)t;
  MoeRoute route;
  MoeTarget target[MOE_TOP_K];
  route_of(s, owner, t, token, &route);
  size_t n = moe_targets(nodes_of(call), &route, token, target);
  for (size_t i = 0; i < n; i++) {
    if (target[i].rank != call->peer) {
      continue;
    }
    size_t first_pair = letter->n_pairs;
    for (size_t j = t * MOE_TOP_K; j < (t + 1) * MOE_TOP_K; j++) {
      if (!s->dropped[j] && moe_in_target(&target[i], owner[s->choice[j]])) {
        if (letter->pairs != NULL) {
          letter->pairs[letter->n_pairs] = (MoePair){s->choice[j], s->weight[j]};
        }
        letter->n_pairs++;
      }
    }
    if (letter->heads != NULL) {
      letter->heads[letter->n_rows] = (MoeRowHead){token, (uint16_t)(letter->n_pairs - first_pair), route.home};
    }
    if (letter->draft.rows != NULL) {
      moe_row_put(&letter->draft, letter->draft.rows + letter->n_rows * MOE_HIDDEN, s->a + t * MOE_HIDDEN, 1);
    }
    letter->n_rows++;
  }
}

static size_t pack_dispatch(MoeCall *call, void *slot, bool again)
{
  MoeAttSaved s;
  uint16_t owner[MOE_EXPERTS];
  Letter letter = {0};
  size_t begin = (size_t)moe_part_begin(call->seq, call->n_chunks, call->chunk);
  size_t end = (size_t)moe_part_begin(call->seq, call->n_chunks, call->chunk + 1);
  moe_att_saved(call, &s);
  moe_owners(call->n_ffn, owner);
  for (int pass = 0; pass < 2; pass++) { /* counts first: the lists stand before the rows */
    for (size_t at = 0; at < s.tokens; at += s.head->seq) {
      for (size_t t = at + begin; t < at + end; t++) {
        add_token(call, &s, owner, t, &letter);
      }
    }
    if (pass == 0) {
      MoeDraft draft = again ? moe_draft(call, slot, letter.n_rows, MOE_NO_HEAD, 0, 0)
                             : moe_draft(call, slot, letter.n_rows, MOE_LIST_HEAD, letter.n_pairs, MOE_LIST_PAIR);
      letter = (Letter){.draft = draft, .heads = again ? NULL : draft.heads, .pairs = again ? NULL : draft.pairs};
    }
  }
  return moe_draft_end(&letter.draft);
}

size_t moe_pack_dispatch(MoeCall *call, void *slot)
{
  return pack_dispatch(call, slot, false);
}

size_t moe_pack_dispatch_again(MoeCall *call, void *slot)
{
  return pack_dispatch(call, slot, true);
}

/* The list that COMBINE and DISPATCH_B speak of: the relay's where there are relays, else the rank's own. */
static void outer_list(const MoeCall *call, MoeList *list)
{
  if (call->relayed) {
    moe_relay_carve(call->saved, moe_mb_tokens(call), list);
  } else {
    MoeFfnSaved s;
    moe_ffn_saved(call, &s);
    *list = s.list;
  }
}

size_t moe_pack_combine(MoeCall *call, void *slot)
{
  MoeList list;
  MoeFfnWork work;
  outer_list(call, &list);
  moe_sum_work_carve(call->work, list.head->rows, list.head->pairs, &work);
  MoeRun run = moe_dst_run(call, &list, call->peer);
  size_t n = run.row_end - run.row;
  MoeDraft draft = moe_draft(call, slot, n, MOE_TOKEN_HEAD, 0, 0);
  uint32_t *tokens = draft.heads;
  for (size_t r = 0; r < n; r++) {
    tokens[r] = list.rows[run.row + r].token;
  }
  moe_row_put(&draft, draft.rows, work.rows + run.row * MOE_HIDDEN, n);
  return moe_draft_end(&draft);
}

size_t moe_pack_combine_b(MoeCall *call, void *slot)
{
  MoeAttSaved s;
  MoeAttWork work;
  moe_att_saved(call, &s);
  moe_att_work_carve(call->work, s.tokens, &work);
  const MoeSenders *to = call->piped ? &s.join : &s.src;
  uint32_t peer = (uint32_t)(call->chunk * call->n_ffn + call->peer);
  size_t i = 0;
  while (i < to->n && to->peer[i] != peer) {
    i++;
  }
  size_t n = i < to->n ? to->rows[i] : 0;
  MoeDraft draft = moe_draft(call, slot, n, MOE_NO_HEAD, 0, 0);
  for (size_t r = 0; r < n; r++) {
    moe_row_put(&draft, draft.rows + r * MOE_HIDDEN, work.dx + to->token[i * to->stride + r] * MOE_HIDDEN, 1);
  }
  return moe_draft_end(&draft);
}

size_t moe_pack_dispatch_b(MoeCall *call, void *slot)
{
  MoeList list;
  MoeFfnWork work;
  outer_list(call, &list);
  moe_sum_work_carve(call->work, list.head->rows, list.head->pairs, &work);
  MoeRun run = moe_src_run(&list, call->peer);
  size_t n = run.row_end - run.row;
  size_t pairs = run.pair_end - run.pair;
  MoeDraft draft = moe_draft(call, slot, n, MOE_NO_HEAD, pairs, MOE_GRAD_PAIR);
  if (pairs > 0) {
    memcpy(draft.pairs, work.dw + run.pair, pairs * sizeof(float));
  }
  moe_row_put(&draft, draft.rows, work.rows + run.row * MOE_HIDDEN, n);
  return moe_draft_end(&draft);
}
