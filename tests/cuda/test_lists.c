/* Lists of FFN ranks and relays: what is taken in, and every message along a list, is the C twin's to the bit; messages
   that contradict it are refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "check.h"
#include "route.h"
#include "tests/cuda/tests.h"

enum { H = MOE_HIDDEN, E = MOE_EXPERTS, K = MOE_TOP_K, MOST = 5 };

static const int32_t nodes[] = {0, 2, 4, 5}; /* of 5 ranks */

typedef struct Layout {
  int32_t seq, mb_seqs, n_src, n_ffn, n_dst, n_chunks, chunk, me;
  bool relayed;
} Layout;

/* One FFN rank or relay. */
typedef struct Rank {
  Layout at;
  MoeCall call; /* the twin's */
  MoeList list;
  size_t rows, pairs, n_in;
  int32_t first, last; /* ranks whose experts the list has */
  MoeIn in[MOST];      /* DISPATCH */
  uint8_t *again[MOST], *grads[MOST], *parts[MOST], *part_grads[MOST];
  MoeReal *sums; /* [rows, H], what goes out */
  float *dw;     /* [pairs] */
  /* on the device */
  const uint8_t **dev_in, **dev_again, **dev_grads, **dev_parts, **dev_part_grads;
  MoeReal *dev_sums;
  float *dev_dw;
  MoeTakeSizes sizes;
  MoeTaken taken;
  MoeRuns src, dst;
  MoeRelayPlan plan;
  MoeReal *dx, *a_again, *reduced[2];
  float *reduced_dw;
  uint8_t *out[4][MOST];
  int32_t *status;
} Rank;

static void *poison(size_t bytes)
{
  return memset(aligned_alloc(64, moe_align64(bytes + 1)), 0xff, moe_align64(bytes + 1));
}

/* Most bytes of any message here. */
static size_t room_of(const Layout *l)
{
  size_t tokens = (size_t)l->mb_seqs * (size_t)l->seq;
  return moe_align64(moe_msg_size(tokens, MOE_LIST_HEAD, tokens * K, MOE_LIST_PAIR));
}

static MoeCall call_of(const Layout *l)
{
  return (MoeCall){.step = 3,
                   .layer = 1,
                   .seq = l->seq,
                   .mb_seqs = l->mb_seqs,
                   .n_ffn = l->n_ffn,
                   .n_dst = l->n_dst,
                   .n_chunks = l->n_chunks,
                   .chunk = l->chunk,
                   .me = l->me,
                   .relayed = l->relayed,
                   .node_first = nodes,
                   .n_nodes = 3};
}

/* What attention rank i sends to this one, by DISPATCH or DISPATCH_AGAIN; on the device, exactly as long as it is. */
static uint8_t *dispatch(const Layout *l, int32_t i, MoeEdge edge)
{
  MoeAttSaved s;
  MoeCall call = call_of(l);
  call.seq0 = (int32_t)moe_part_begin(l->mb_seqs, l->n_src, i);
  call.n_seqs = (int32_t)moe_part_size(l->mb_seqs, l->n_src, i);
  call.edge = (uint8_t)edge;
  call.peer = l->me;
  size_t n = (size_t)call.n_seqs * (size_t)l->seq;
  const MoeAttHead shape = {.seq = (uint32_t)l->seq, .n_seqs = (uint32_t)call.n_seqs, .rows = (uint32_t)n};
  call.saved = poison(moe_att_saved_carve(NULL, &shape, &s));
  moe_att_begin(&call, 0, &s);
  for (size_t t = 0; t < n; t++) {
    size_t token = (size_t)call.seq0 * (size_t)l->seq + t;
    for (size_t k = 0; k < K; k++) { /* distinct experts; some tokens keep no pair at all */
      s.choice[t * K + k] = (uint16_t)((token * 7 + token / 3 + k * (E / K > 0 ? E / K : 1)) % E);
      s.dropped[t * K + k] = token % 4 == 3 || (token + k) % 5 == 0;
      s.weight[t * K + k] = wave(token * K + k);
    }
  }
  for (size_t k = 0; k < n * H; k++) {
    s.a[k] = moe_put(wave(k * 3 + (size_t)i));
  }
  uint8_t *message = poison(room_of(l));
  size_t bytes =
      edge == MOE_EDGE_DISPATCH ? moe_pack_dispatch(&call, message) : moe_pack_dispatch_again(&call, message);
  uint8_t *copy = dev_copy(message, bytes);
  free(message);
  free(call.saved);
  return copy;
}

/* A message of rows, and of pairs where pair_bytes is not 0. */
static uint8_t *some_rows(size_t rows, size_t pairs, size_t pair_bytes, size_t seed)
{
  MoeCall call = {.edge = MOE_EDGE_COMBINE_B};
  uint8_t *message = dev_new(moe_msg_size(rows, MOE_NO_HEAD, pairs, pair_bytes));
  MoeDraft draft = moe_draft(&call, message, rows, MOE_NO_HEAD, pairs, pair_bytes);
  float *values = draft.pairs;
  for (size_t i = 0; i < rows * H; i++) {
    draft.rows[i] = moe_put(wave(i * 5 + seed));
  }
  for (size_t i = 0; i < pairs; i++) {
    values[i] = wave(i + seed * 3);
  }
  return message;
}

/* -- the rank as the twin has it -- */

static void rank_new(Rank *r, Layout l)
{
  MoeFfnSaved s;
  MoeFfnWork work;
  *r = (Rank){.at = l, .call = call_of(&l), .n_in = (size_t)l.n_src, .first = l.me, .last = l.me + 1};
  for (size_t n = 0; l.relayed && n < 3; n++) {
    if (nodes[n] <= l.me && l.me < nodes[n + 1]) {
      r->first = nodes[n];
      r->last = nodes[n + 1];
    }
  }
  for (int32_t i = 0; i < l.n_src; i++) {
    r->in[i] = (MoeIn){dispatch(&l, i, MOE_EDGE_DISPATCH), i};
    r->again[i] = dispatch(&l, i, MOE_EDGE_DISPATCH_AGAIN);
  }
  r->call.in = r->in;
  r->call.n_in = l.n_src;
  assert_int_equal(moe_count_list(&r->call, (size_t)r->first, (size_t)r->last, &r->rows, &r->pairs), MOE_OK);
  if (l.relayed) {
    r->call.saved = poison(moe_relay_carve(NULL, moe_mb_tokens(&r->call), &r->list));
    moe_relay_carve(r->call.saved, moe_mb_tokens(&r->call), &r->list);
  } else {
    r->call.saved = poison(moe_ffn_saved_carve(NULL, r->rows, r->pairs, &s));
    moe_ffn_saved_carve(r->call.saved, r->rows, r->pairs, &s);
    r->list = s.list;
  }
  moe_copy_list(&r->call, r->rows, r->pairs, &r->list);
  r->call.work = poison(moe_sum_work_carve(NULL, r->rows, r->pairs, &work));
  moe_sum_work_carve(r->call.work, r->rows, r->pairs, &work);
  r->sums = work.rows;
  r->dw = work.dw;
  for (int32_t i = 0; i < l.n_dst; i++) {
    MoeRun run = moe_dst_run(&r->call, &r->list, i);
    r->grads[i] = some_rows(run.row_end - run.row, 0, 0, (size_t)i);
  }
}

static const uint8_t **to_device(uint8_t *const *messages, size_t n)
{
  return dev_copy(messages, n * sizeof *messages);
}

static void rank_to_device(Rank *r)
{
  const Layout *l = &r->at;
  uint8_t *in[MOST];
  for (int32_t i = 0; i < l->n_src; i++) {
    in[i] = (void *)(uintptr_t)r->in[i].data;
  }
  for (size_t i = 0; i < r->rows * H; i++) {
    r->sums[i] = moe_put(wave(i * 7));
  }
  for (size_t i = 0; i < r->pairs; i++) {
    r->dw[i] = wave(i * 9);
  }
  r->dev_in = to_device(in, (size_t)l->n_src);
  r->dev_again = to_device(r->again, (size_t)l->n_src);
  r->dev_grads = to_device(r->grads, (size_t)l->n_dst);
  r->dev_sums = dev_copy(r->sums, r->rows * H * sizeof *r->sums);
  r->dev_dw = dev_copy(r->dw, r->pairs * sizeof *r->dw);
  r->sizes = (MoeTakeSizes){moe_mb_tokens(&r->call),
                            (size_t)l->seq,
                            r->rows,
                            r->pairs,
                            l->n_ffn,
                            l->chunk,
                            l->n_chunks,
                            (int32_t)moe_part_begin(E, l->n_ffn, r->first),
                            (int32_t)moe_part_begin(E, l->n_ffn, r->last)};
}

static void rank_free(Rank *r)
{
  for (size_t i = 0; i < MOST; i++) {
    void *messages[] = {(void *)(uintptr_t)r->in[i].data, r->again[i], r->grads[i], r->parts[i], r->part_grads[i]};
    for (size_t k = 0; k < sizeof messages / sizeof *messages; k++) {
      if (messages[k] != NULL) {
        dev_free(messages[k]);
      }
    }
  }
  void *all[] = {r->dev_in, r->dev_again, r->dev_grads, r->dev_sums, r->dev_dw};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    dev_free(all[i]);
  }
  if (r->dev_parts != NULL) {
    dev_free(r->dev_parts);
    dev_free(r->dev_part_grads);
  }
  free(r->call.saved);
  free(r->call.work);
}

/* -- the rank on the device -- */

static uint32_t stamp_of(const Rank *r, MoeEdge edge)
{
  return moe_stamp(3, (uint32_t)r->at.chunk, 1, 0, edge);
}

static MoeRuns runs_new(int32_t n)
{
  MoeRuns runs = {out_new(((size_t)n + 1) * sizeof(uint32_t)), out_new(((size_t)n + 1) * sizeof(uint32_t))};
  return runs;
}

static void launch_take(void *c)
{
  static const int32_t fine = MOE_OK;
  Rank *r = c;
  r->taken = (MoeTaken){out_new(r->rows * sizeof(MoeRowHead)), out_new(r->pairs * sizeof(MoePair)),
                        out_new(r->rows * sizeof(uint16_t)),
                        r->at.relayed ? NULL : out_new(r->rows * H * sizeof(MoeReal)), runs_new(r->at.n_src)};
  r->status = out_copy(&fine, sizeof fine);
  ok(moe_cuda_take_list(&r->sizes, r->dev_in, r->n_in, &r->taken, r->status, NULL));
}

/* take_list, the runs, and rows that come along them. */
static void launch_list(void *c)
{
  Rank *r = c;
  const Layout *l = &r->at;
  launch_take(c);
  r->src = runs_new(l->n_src);
  r->dst = runs_new(l->n_dst);
  r->dx = out_new(r->rows * H * sizeof(MoeReal));
  r->a_again = out_new(r->rows * H * sizeof(MoeReal));
  ok(moe_cuda_src_runs(r->taken.rows, r->taken.src, r->rows, l->n_src, &r->src, NULL));
  ok(moe_cuda_dst_runs(r->taken.rows, r->rows, l->mb_seqs, (size_t)l->seq, l->n_dst, &r->dst, NULL));
  ok(moe_cuda_take_rows(r->dev_grads, (size_t)l->n_dst, &r->dst, r->rows, r->dx, r->status, NULL));
  ok(moe_cuda_take_rows(r->dev_again, r->n_in, &r->src, r->rows, r->a_again, r->status, NULL));
}

/* COMBINE to each receiver and DISPATCH_B to each sender, along runs that launch_list() has left. */
static void launch_packs(void *c)
{
  Rank *r = c;
  for (int32_t i = 0; i < r->at.n_dst; i++) {
    r->out[0][i] = out_new(room_of(&r->at));
    ok(moe_cuda_pack_run(&r->dst, i, r->taken.rows, NULL, r->dev_sums, r->rows, stamp_of(r, MOE_EDGE_COMBINE),
                         r->out[0][i], NULL));
  }
  for (int32_t i = 0; i < r->at.n_src; i++) {
    r->out[1][i] = out_new(room_of(&r->at));
    ok(moe_cuda_pack_run(&r->src, i, NULL, r->dev_dw, r->dev_sums, r->rows, stamp_of(r, MOE_EDGE_DISPATCH_B),
                         r->out[1][i], NULL));
  }
}

static void check_packed(Rank *r, const char *what, int part, int32_t peer, MoeEdge edge,
                         size_t (*pack)(MoeCall *, void *))
{
  uint8_t *twin = poison(room_of(&r->at));
  r->call.peer = peer;
  r->call.edge = (uint8_t)edge;
  size_t bytes = pack(&r->call, twin);
  assert_true(bytes >= sizeof(MoeMsgHead) && bytes <= room_of(&r->at));
  check_same(what, r->out[part][peer], twin, room_of(&r->at));
  free(twin);
}

static void check_list(Rank *r)
{
  assert_int_equal(*r->status, MOE_OK);
  check_same("rows of the list", r->taken.rows, r->list.rows, r->rows * sizeof *r->list.rows);
  check_same("pairs of the list", r->taken.pairs, r->list.pairs, r->pairs * sizeof *r->list.pairs);
  check_same("senders of the list", r->taken.src, r->list.src, r->rows * sizeof *r->list.src);
  for (int32_t i = 0; i < r->at.n_src; i++) {
    MoeRun run = moe_src_run(&r->list, i);
    assert_int_equal(r->taken.runs.row[i + 1] - r->taken.runs.row[i], run.row_end - run.row);
    assert_true(r->src.row[i + 1] == r->taken.runs.row[i + 1] && r->src.pair[i + 1] == r->taken.runs.pair[i + 1]);
    assert_int_equal(r->src.pair[i + 1] - r->src.pair[i], run.pair_end - run.pair);
  }
  for (int32_t i = 0; i < r->at.n_dst; i++) {
    MoeRun run = moe_dst_run(&r->call, &r->list, i);
    assert_int_equal(r->dst.row[i + 1] - r->dst.row[i], run.row_end - run.row);
    assert_int_equal(r->dst.pair[i + 1] - r->dst.pair[i], run.pair_end - run.pair);
  }
}

/* The list and what comes along it, against moe_view() and the twin's rows. */
static void check_rows(Rank *r)
{
  MoeIn in[MOST];
  MoeReal *rows = malloc((r->rows * H + 1) * sizeof *rows);
  size_t at = 0;
  for (int32_t i = 0; !r->at.relayed && i < r->at.n_src; i++) {
    MoeView view = {0};
    assert_int_equal(moe_view(&r->in[i], MOE_LIST_HEAD, MOE_LIST_PAIR, &view), MOE_OK);
    check_same("rows", r->taken.a + at * H, view.rows, view.n_rows * H * sizeof *view.rows);
    at += view.n_rows;
  }
  MoeCall call = r->call;
  call.in = in;
  call.relayed = false;
  call.n_in = r->at.n_dst;
  for (int32_t i = 0; i < r->at.n_dst; i++) {
    in[i] = (MoeIn){r->grads[i], i};
  }
  assert_int_equal(moe_take_grads(&call, &r->list, rows), MOE_OK);
  check_same("gradients along the list", r->dx, rows, r->rows * H * sizeof *rows);
  call.n_in = r->at.n_src;
  for (int32_t i = 0; i < r->at.n_src; i++) {
    in[i] = (MoeIn){r->again[i], i};
  }
  assert_int_equal(moe_take_again(&call, &r->list, rows), MOE_OK);
  check_same("rows that come again", r->a_again, rows, r->rows * H * sizeof *rows);
  free(rows);
}

/* Copies what launch_list() has left to where the next launches do not throw it away. */
static void keep(void *p, size_t bytes)
{
  void **at = p;
  *at = dev_copy(*at, bytes);
}

static void keep_list(Rank *r)
{
  size_t n_src = (size_t)r->at.n_src + 1;
  size_t n_dst = (size_t)r->at.n_dst + 1;
  keep(&r->taken.rows, r->rows * sizeof *r->taken.rows);
  keep(&r->taken.pairs, r->pairs * sizeof *r->taken.pairs);
  keep(&r->src.row, n_src * sizeof(uint32_t));
  keep(&r->src.pair, n_src * sizeof(uint32_t));
  keep(&r->dst.row, n_dst * sizeof(uint32_t));
  keep(&r->dst.pair, n_dst * sizeof(uint32_t));
}

static void drop_list(Rank *r)
{
  void *all[] = {r->taken.rows, r->taken.pairs, r->src.row, r->src.pair, r->dst.row, r->dst.pair};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    dev_free(all[i]);
  }
}

/* -- relays -- */

static MoeRelaySizes relay_sizes(const Rank *r)
{
  return (MoeRelaySizes){r->rows, r->at.n_ffn, r->first, r->last};
}

static void launch_relay(void *c)
{
  static const int32_t fine = MOE_OK;
  static const MoeEdge edges[3] = {MOE_EDGE_FORWARD, MOE_EDGE_FORWARD_AGAIN, MOE_EDGE_GATHER_B};
  Rank *r = c;
  const MoeRelaySizes s = relay_sizes(r);
  const uint8_t **in[3] = {r->dev_in, r->dev_again, r->dev_grads};
  size_t n_in[3] = {r->n_in, r->n_in, (size_t)r->at.n_dst};
  const MoeRuns *runs[3] = {&r->src, &r->src, &r->dst};
  size_t ranks = (size_t)(r->last - r->first);
  r->plan = (MoeRelayPlan){out_new(ranks * r->rows * sizeof(uint32_t)), out_new(ranks * r->rows * sizeof(uint32_t)),
                           out_new(r->rows * sizeof(uint32_t)), out_new(ranks * sizeof(MoeRouteTotal))};
  r->status = out_copy(&fine, sizeof fine);
  ok(moe_cuda_plan_relay(&s, r->taken.rows, r->taken.pairs, &r->plan, NULL));
  for (int part = 0; part < 3; part++) {
    for (int32_t i = r->first; i < r->last; i++) {
      r->out[part][i] = out_new(room_of(&r->at));
      ok(moe_cuda_pack_forward(&s, r->taken.rows, r->taken.pairs, &r->plan, i, in[part], n_in[part], runs[part],
                               part == 0, stamp_of(r, edges[part]), r->out[part][i], r->status, NULL));
    }
  }
}

static void launch_reduce(void *c)
{
  static const int32_t fine = MOE_OK;
  Rank *r = c;
  const MoeRelaySizes s = relay_sizes(r);
  MoeRelayPlan plan;
  size_t ranks = (size_t)(r->last - r->first);
  plan = (MoeRelayPlan){dev_new(ranks * r->rows * sizeof(uint32_t)), dev_new(ranks * r->rows * sizeof(uint32_t)),
                        dev_new(r->rows * sizeof(uint32_t)), dev_new(ranks * sizeof(MoeRouteTotal))};
  r->status = out_copy(&fine, sizeof fine);
  r->reduced[0] = out_new(r->rows * H * sizeof(MoeReal));
  r->reduced[1] = out_new(r->rows * H * sizeof(MoeReal));
  r->reduced_dw = out_new(r->pairs * sizeof(float));
  ok(moe_cuda_plan_relay(&s, r->taken.rows, r->taken.pairs, &plan, NULL));
  ok(moe_cuda_node_reduce(&s, r->taken.rows, r->taken.pairs, &plan, r->dev_parts, r->reduced[0], NULL, r->status,
                          NULL));
  ok(moe_cuda_node_reduce(&s, r->taken.rows, r->taken.pairs, &plan, r->dev_part_grads, r->reduced[1], r->reduced_dw,
                          r->status, NULL));
  void *all[] = {plan.row, plan.pair, plan.row_pair, plan.total};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    dev_free(all[i]);
  }
}

static void check_reduce(Rank *r, int grad, uint8_t *const *parts)
{
  MoeIn in[MOST];
  MoeSource *source;
  MoeFfnWork work;
  MoeCall call = r->call;
  for (int32_t i = r->first; i < r->last; i++) {
    in[i - r->first] = (MoeIn){parts[i - r->first], i};
  }
  call.in = in;
  call.n_in = r->last - r->first;
  call.edge = grad ? MOE_EDGE_FORWARD_B : MOE_EDGE_GATHER;
  call.work = poison(moe_sum_work_carve(NULL, r->rows, r->pairs, &work));
  call.scratch = poison(moe_source_scratch_carve(NULL, MOST, &source));
  moe_sum_work_carve(call.work, r->rows, r->pairs, &work);
  assert_int_equal(moe_node_reduce(&call), MOE_OK);
  check_same("sums of a node", r->reduced[grad], work.rows, r->rows * H * sizeof *work.rows);
  if (grad) {
    check_same("gradients of weights", r->reduced_dw, work.dw, r->pairs * sizeof *work.dw);
  }
  free(call.work);
  free(call.scratch);
}

static void check_relay(Rank *r)
{
  size_t ranks = (size_t)(r->last - r->first);
  in_all_orders(launch_relay, r);
  assert_int_equal(*r->status, MOE_OK);
  for (int32_t i = r->first; i < r->last; i++) {
    MoeIn in[MOST];
    check_packed(r, "FORWARD", 0, i, MOE_EDGE_FORWARD, moe_pack_forward);
    MoeCall call = r->call;
    r->call.in = in;
    for (int32_t k = 0; k < r->at.n_src; k++) {
      in[k] = (MoeIn){r->again[k], k};
    }
    check_packed(r, "FORWARD_AGAIN", 1, i, MOE_EDGE_FORWARD_AGAIN, moe_pack_gather_b);
    r->call.n_in = r->at.n_dst;
    for (int32_t k = 0; k < r->at.n_dst; k++) {
      in[k] = (MoeIn){r->grads[k], k};
    }
    check_packed(r, "GATHER_B", 2, i, MOE_EDGE_GATHER_B, moe_pack_gather_b);
    r->call = call;
    const MoeMsgHead *head = (const void *)r->out[0][i];
    r->parts[i - r->first] = some_rows(head->rows, 0, 0, (size_t)i);
    r->part_grads[i - r->first] = some_rows(head->rows, head->pairs, MOE_GRAD_PAIR, (size_t)i + 5);
  }
  r->dev_parts = to_device(r->parts, ranks);
  r->dev_part_grads = to_device(r->part_grads, ranks);
  in_all_orders(launch_reduce, r);
  assert_int_equal(*r->status, MOE_OK);
  check_reduce(r, 0, r->parts);
  check_reduce(r, 1, r->part_grads);
  MoeMsgHead *head = (void *)r->parts[0];
  head->rows++; /* one too many */
  in_all_orders(launch_reduce, r);
  assert_int_equal(*r->status, MOE_EPROTO);
  head->rows--;
}

/* Messages that contradict what there is room for, or themselves. */
static void check_refused(const Rank *of)
{
  Rank copy = *of; /* launches leave their outputs there */
  Rank *r = &copy;
  for (int32_t i = 0; i < r->at.n_src; i++) {
    MoeMsgHead *head = (void *)(uintptr_t)r->in[i].data;
    MoeRowHead *rows = (void *)(head + 1);
    MoePair *pairs = (void *)(rows + head->rows);
    for (int kind = 0; kind < 5; kind++) {
      uint8_t kept[sizeof(MoeRowHead)];
      uint32_t counts = r->in[i].data != NULL ? head->rows : 0;
      if (counts == 0 || (kind == 3 && head->pairs == 0)) {
        continue;
      }
      memcpy(kept, kind == 3 ? (void *)pairs : rows, sizeof kept);
      static_assert(sizeof(MoePair) == sizeof kept, "either is kept");
      rows->token = kind == 0 ? (uint32_t)r->sizes.mb_tokens : rows->token;
      rows->home = kind == 1 ? (uint16_t)r->at.n_ffn : rows->home;
      rows->pairs = kind == 2 ? (uint16_t)(rows->pairs + 1) : rows->pairs;
      if (kind == 3) {
        pairs->expert = (uint32_t)r->sizes.end_expert;
      }
      r->sizes.n_rows -= kind == 4; /* less room than rows: nothing is written past it */
      in_all_orders(launch_take, r);
      assert_int_equal(*r->status, MOE_EPROTO);
      r->sizes.n_rows += kind == 4;
      memcpy(kind == 3 ? (void *)pairs : rows, kept, sizeof kept);
    }
  }
}

static void one_list(Layout l)
{
  for (l.chunk = 0; l.chunk < l.n_chunks; l.chunk++) {
    for (l.me = 0; l.me < l.n_ffn; l.me++) {
      Rank r;
      rank_new(&r, l);
      rank_to_device(&r);
      in_all_orders(launch_list, &r);
      check_list(&r);
      check_rows(&r);
      keep_list(&r);
      in_all_orders(launch_packs, &r);
      for (int32_t i = 0; i < l.n_dst; i++) {
        check_packed(&r, "COMBINE", 0, i, MOE_EDGE_COMBINE, moe_pack_combine);
      }
      for (int32_t i = 0; i < l.n_src; i++) {
        check_packed(&r, "DISPATCH_B", 1, i, MOE_EDGE_DISPATCH_B, moe_pack_dispatch_b);
      }
      if (l.relayed) {
        check_relay(&r);
      }
      if (l.me == 0) {
        check_refused(&r);
      }
      drop_list(&r);
      rank_free(&r);
    }
  }
}

static void test_lists_and_relays(void **state)
{
  (void)state;
  one_list((Layout){.seq = 1, .mb_seqs = 1, .n_src = 1, .n_ffn = 1, .n_dst = 1, .n_chunks = 1});
  one_list((Layout){.seq = 37, .mb_seqs = 3, .n_src = 2, .n_ffn = 3, .n_dst = 3, .n_chunks = 1});
  one_list((Layout){.seq = 11, .mb_seqs = 4, .n_src = 3, .n_ffn = 2, .n_dst = 1, .n_chunks = 3});
  one_list((Layout){.seq = 5, .mb_seqs = 1, .n_src = 3, .n_ffn = 5, .n_dst = 2, .n_chunks = 1}); /* empty senders */
  one_list((Layout){.seq = 13, .mb_seqs = 5, .n_src = 2, .n_ffn = 5, .n_dst = 3, .n_chunks = 1, .relayed = true});
  one_list((Layout){.seq = 2, .mb_seqs = 1, .n_src = 1, .n_ffn = 5, .n_dst = 2, .n_chunks = 1, .relayed = true});
}

int test_lists(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_lists_and_relays),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
