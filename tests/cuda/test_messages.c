/* Messages: what is packed, and the sums of what is read, are the C twin's to the bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "check.h"
#include "route.h"
#include "tests/cuda/tests.h"

enum { H = MOE_HIDDEN, E = MOE_EXPERTS, K = MOE_TOP_K, MAX_FFN = 5, MAX_CHUNKS = 3 };

static void *poison(size_t bytes)
{
  return memset(aligned_alloc(64, moe_align64(bytes + 1)), 0xff, moe_align64(bytes + 1));
}

/* What an attention rank holds, and its messages. */
typedef struct Sender {
  MoeCall call; /* of the twin */
  MoeAttSaved s;
  size_t n, room; /* tokens; bytes of a message */
  MoeRouteSizes sizes;
  uint16_t *choice;
  uint8_t *dropped;
  float *weight;
  MoeReal *a;
  uint8_t **in; /* gradient messages of the chunk under way */
  MoeRoutePlan plan;
  uint8_t *slot[MAX_FFN];
  float *da, *dw;
  int32_t *status;
} Sender;

static const int32_t nodes[] = {0, 2, 4, 5}; /* of 5 ranks */
static int32_t *device_nodes;

static void sender_new(Sender *t, size_t n_seqs, size_t seq, int n_ffn, bool relayed, int n_chunks)
{
  *t = (Sender){.n = n_seqs * seq};
  t->call = (MoeCall){.step = 3,
                      .layer = 1,
                      .edge = MOE_EDGE_DISPATCH,
                      .relayed = relayed,
                      .seq = (int32_t)seq,
                      .mb_seqs = (int32_t)n_seqs + 2,
                      .seq0 = 2,
                      .n_seqs = (int32_t)n_seqs,
                      .n_ffn = n_ffn,
                      .n_chunks = n_chunks,
                      .node_first = nodes,
                      .n_nodes = 3};
  const MoeAttHead shape = {.seq = (uint32_t)seq, .n_seqs = (uint32_t)n_seqs, .rows = (uint32_t)t->n};
  t->call.saved = poison(moe_att_saved_carve(NULL, &shape, &t->s));
  moe_att_begin(&t->call, 0, &t->s);
  for (size_t i = 0; i < t->n; i++) {
    for (size_t k = 0; k < K; k++) { /* distinct experts; some tokens keep no pair at all */
      t->s.choice[i * K + k] = (uint16_t)((i * 7 + i / 3 + k * (E / K > 0 ? E / K : 1)) % E);
      t->s.dropped[i * K + k] = i % 4 == 3 || (i + k) % 5 == 0;
      t->s.weight[i * K + k] = wave(i * K + k);
    }
  }
  for (size_t i = 0; i < t->n * H; i++) {
    t->s.a[i] = moe_put(wave(i));
  }
  t->sizes = (MoeRouteSizes){seq, n_seqs, 2, n_ffn, 0, n_chunks, relayed ? device_nodes : NULL};
  t->choice = dev_copy(t->s.choice, t->n * K * sizeof *t->choice);
  t->dropped = dev_copy(t->s.dropped, t->n * K);
  t->weight = dev_copy(t->s.weight, t->n * K * sizeof *t->weight);
  t->a = dev_copy(t->s.a, t->n * H * sizeof *t->a);
  t->room = moe_align64(moe_msg_size(t->n, MOE_LIST_HEAD, t->n * K, MOE_LIST_PAIR));
}

static void sender_free(Sender *t)
{
  dev_free(t->choice);
  dev_free(t->dropped);
  dev_free(t->weight);
  dev_free(t->a);
  free(t->call.saved);
}

static void plan(Sender *t)
{
  size_t n_ffn = (size_t)t->sizes.n_ffn;
  t->plan.row = out_new(n_ffn * t->n * sizeof(uint32_t));
  t->plan.pair = out_new(n_ffn * t->n * sizeof(uint32_t));
  t->plan.total = out_new(n_ffn * sizeof *t->plan.total);
  ok(moe_cuda_plan_routes(&t->sizes, t->choice, t->dropped, &t->plan, NULL));
}

static void launch_dispatch(void *c)
{
  Sender *t = c;
  plan(t);
  for (int i = 0; i < t->sizes.n_ffn; i++) {
    uint32_t stamp = moe_stamp(3, (uint32_t)t->sizes.chunk, 1, 0, MOE_EDGE_DISPATCH);
    t->slot[i] = out_new(t->room);
    ok(moe_cuda_pack_dispatch(&t->sizes, t->choice, t->dropped, t->weight, t->a, &t->plan, i, stamp, t->slot[i], NULL));
  }
}

static void launch_dispatch_b(void *c)
{
  static const int32_t fine = MOE_OK;
  Sender *t = c;
  plan(t);
  t->da = out_new(t->n * H * sizeof(float));
  t->dw = out_new(t->n * K * sizeof(float));
  t->status = out_copy(&fine, sizeof fine);
  ok(moe_cuda_take_dispatch_b(&t->sizes, t->choice, t->dropped, &t->plan, (const uint8_t *const *)t->in, t->da, t->dw,
                              t->status, NULL));
}

/* Both ways of one layout: the messages; then gradients that come back, chunk by chunk. */
static void one_dispatch(size_t n_seqs, size_t seq, int n_ffn, bool relayed, int n_chunks)
{
  Sender t;
  MoeIn in[MAX_FFN * MAX_CHUNKS];
  MoeSource source[MAX_FFN * MAX_CHUNKS];
  uint8_t *twin = poison(0);
  sender_new(&t, n_seqs, seq, n_ffn, relayed, n_chunks);
  float *da = poison(t.n * H * sizeof *da);
  float *dw = poison(t.n * K * sizeof *dw);
  for (int chunk = 0; chunk < n_chunks; chunk++) {
    t.sizes.chunk = t.call.chunk = chunk;
    in_all_orders(launch_dispatch, &t);
    for (int i = 0; i < n_ffn; i++) {
      free(twin);
      twin = poison(t.room);
      t.call.peer = i;
      size_t bytes = moe_pack_dispatch(&t.call, twin);
      assert_true(bytes <= t.room);
      check_same("DISPATCH", t.slot[i], twin, t.room);
      const MoeMsgHead *head = (const void *)twin;
      MoeCall back = {.edge = MOE_EDGE_DISPATCH_B};
      uint8_t *grads = dev_new(moe_msg_size(head->rows, MOE_NO_HEAD, head->pairs, MOE_GRAD_PAIR));
      MoeDraft draft = moe_draft(&back, grads, head->rows, MOE_NO_HEAD, head->pairs, MOE_GRAD_PAIR);
      float *values = draft.pairs;
      for (size_t k = 0; k < head->pairs; k++) {
        values[k] = wave(k + (size_t)i);
      }
      for (size_t k = 0; k < (size_t)head->rows * H; k++) {
        draft.rows[k] = moe_put(wave(k * 3 + (size_t)i));
      }
      in[chunk * n_ffn + i] = (MoeIn){grads, chunk * n_ffn + i};
    }
  }
  t.call.in = in;
  t.call.n_in = n_ffn * n_chunks;
  assert_int_equal(moe_open_dispatch_b(&t.call, source), MOE_OK);
  assert_int_equal(moe_take_dispatch_b(&t.call, &t.s, source, 0, t.n, da, dw), MOE_OK);
  for (int chunk = 0; chunk < n_chunks; chunk++) {
    const uint8_t *pointers[MAX_FFN];
    for (int i = 0; i < n_ffn; i++) {
      pointers[i] = in[chunk * n_ffn + i].data;
    }
    t.sizes.chunk = chunk;
    t.in = dev_copy(pointers, (size_t)n_ffn * sizeof *pointers);
    in_all_orders(launch_dispatch_b, &t);
    assert_int_equal(*t.status, MOE_OK);
    for (size_t i = 0; i < t.n; i++) {
      if (moe_part_of((int64_t)seq, n_chunks, (int64_t)(i % seq)) == chunk) {
        check_same("da", t.da + i * H, da + i * H, H * sizeof *da);
        check_same("dw", t.dw + i * K, dw + i * K, K * sizeof *dw);
      }
    }
    MoeMsgHead *head = (void *)(uintptr_t)pointers[0];
    if (head->rows > 0) {
      head->rows--; /* one too few */
      in_all_orders(launch_dispatch_b, &t);
      assert_int_equal(*t.status, MOE_EPROTO);
      head->rows++;
    }
    dev_free(t.in);
  }
  for (int i = 0; i < n_ffn * n_chunks; i++) {
    dev_free((void *)(uintptr_t)in[i].data);
  }
  free(twin);
  free(da);
  free(dw);
  sender_free(&t);
}

static void test_dispatch(void **state)
{
  (void)state;
  device_nodes = dev_copy(nodes, sizeof nodes);
  one_dispatch(1, 1, 1, false, 1);
  one_dispatch(2, 37, 3, false, 1);
  one_dispatch(3, 11, 5, true, 1);
  one_dispatch(2, 13, 2, false, 3);
  one_dispatch(1, 2, 5, true, 3); /* an empty chunk */
  one_dispatch(1, 300, 2, false, 1);
  dev_free(device_nodes);
}

/* Sums of partial rows from several senders. */
typedef struct Sums {
  size_t n_in, n;
  uint32_t first;
  const uint8_t **in;
  MoeReal *x, *dx;
  uint32_t *rows, *token;
  uint8_t *back[MAX_FFN];
  int32_t *status;
  size_t room;
} Sums;

static void launch_combine(void *c)
{
  static const int32_t fine = MOE_OK;
  Sums *t = c;
  uint32_t *where = dev_new(t->n_in * t->n * sizeof *where);
  t->x = out_new(t->n * H * sizeof *t->x);
  t->rows = out_new(t->n_in * sizeof *t->rows);
  t->token = out_new(t->n_in * t->n * sizeof *t->token);
  t->status = out_copy(&fine, sizeof fine);
  ok(moe_cuda_take_combine(t->in, t->n_in, t->first, t->n, t->x, t->rows, t->token, t->n, where, t->status, NULL));
  for (size_t i = 0; i < t->n_in && *t->status == MOE_OK; i++) {
    uint32_t stamp = moe_stamp(3, 0, 1, 0, MOE_EDGE_COMBINE_B);
    t->back[i] = out_new(t->room);
    ok(moe_cuda_pack_combine_b(t->rows + i, t->token + i * t->n, t->n, t->dx, stamp, t->back[i], NULL));
  }
  dev_free(where);
}

static void one_combine(size_t n_in, size_t seq)
{
  MoeIn in[MAX_FFN];
  const uint8_t *pointers[MAX_FFN];
  MoeSource source[MAX_FFN];
  MoeAttSaved s;
  MoeAttWork work;
  size_t n = 2 * seq;
  Sums t = {.n_in = n_in, .n = n, .first = (uint32_t)seq, .room = moe_align64(moe_msg_size(n, MOE_NO_HEAD, 0, 0))};
  MoeCall call = {.step = 3,
                  .layer = 1,
                  .edge = MOE_EDGE_COMBINE_B,
                  .seq = (int32_t)seq,
                  .seq0 = 1,
                  .n_seqs = 2,
                  .n_ffn = (int32_t)n_in,
                  .n_chunks = 1,
                  .in = in,
                  .n_in = (int32_t)n_in};
  const MoeAttHead shape = {.seq = (uint32_t)seq, .n_seqs = 2, .n_src = (uint32_t)n_in, .rows = (uint32_t)n};
  for (size_t i = 0; i < n_in;
       i++) { /* every token has a row from one sender at least; the last but one may have none */
    size_t rows = 0;
    uint8_t *message = dev_new(moe_msg_size(n, MOE_TOKEN_HEAD, 0, 0));
    for (int pass = 0; pass < 2; pass++) {
      MoeDraft draft = {0};
      uint32_t *tokens = NULL;
      if (pass == 1) {
        draft = moe_draft(&call, message, rows, MOE_TOKEN_HEAD, 0, 0);
        tokens = draft.heads;
        rows = 0;
      }
      for (size_t k = 0; k < n; k++) {
        if (i == k % n_in || (i + 2 != n_in && (k * 5 + i) % 3 == 0)) {
          for (size_t j = 0; pass == 1 && j < H; j++) {
            draft.rows[rows * H + j] = moe_put(wave(k * 17 + j + i * 5));
          }
          if (pass == 1) {
            tokens[rows] = t.first + (uint32_t)k;
          }
          rows++;
        }
      }
    }
    in[i] = (MoeIn){message, (int32_t)i};
    pointers[i] = message;
  }
  call.saved = poison(moe_att_saved_carve(NULL, &shape, &s));
  call.work = poison(moe_att_work_carve(NULL, n, &work));
  moe_att_begin(&call, (int32_t)n_in, &s);
  moe_att_work_carve(call.work, n, &work);
  for (size_t i = 0; i < n * H; i++) {
    work.dx[i] = moe_put(wave(i * 11));
  }
  t.dx = dev_copy(work.dx, n * H * sizeof *work.dx);
  t.in = dev_copy(pointers, n_in * sizeof *pointers);
  in_all_orders(launch_combine, &t);
  assert_int_equal(*t.status, MOE_OK);
  assert_int_equal(moe_take_combine(&call, s.x, &s.src, source), MOE_OK);
  check_same("sums", t.x, s.x, n * H * sizeof *s.x);
  check_same("lengths of lists", t.rows, s.src.rows, n_in * sizeof *t.rows);
  for (size_t i = 0; i < n_in; i++) {
    uint8_t *twin = poison(t.room);
    check_same("list", t.token + i * n, s.src.token + i * s.src.stride, t.rows[i] * sizeof *t.token);
    call.peer = (int32_t)i;
    moe_pack_combine_b(&call, twin);
    check_same("COMBINE_B", t.back[i], twin, t.room);
    free(twin);
  }

  uint32_t *tokens = (uint32_t *)(uintptr_t)(pointers[0] + sizeof(MoeMsgHead));
  uint32_t kept = tokens[0];
  tokens[0] = (uint32_t)(t.first + n); /* another rank's */
  in_all_orders(launch_combine, &t);
  assert_int_equal(*t.status, MOE_EPROTO);
  tokens[0] = kept;
  if (n_in == 1) { /* a token without a row */
    ((MoeMsgHead *)(uintptr_t)pointers[0])->rows--;
    in_all_orders(launch_combine, &t);
    assert_int_equal(*t.status, MOE_EPROTO);
  }
  dev_free(t.dx);
  dev_free(t.in);
  for (size_t i = 0; i < n_in; i++) {
    dev_free((void *)(uintptr_t)pointers[i]);
  }
  free(call.saved);
  free(call.work);
}

static void test_combine(void **state)
{
  (void)state;
  one_combine(1, 1);
  one_combine(2, 19);
  one_combine(5, 150);
}

typedef struct Pipe {
  size_t n;
  MoeReal *rows, *x;
  uint8_t *slot;
  int32_t *status;
} Pipe;

static void launch_pipe(void *c)
{
  static const int32_t fine = MOE_OK;
  Pipe *t = c;
  t->slot = out_new(moe_align64(moe_msg_size(t->n, MOE_NO_HEAD, 0, 0)));
  t->x = out_new(t->n * H * sizeof *t->x);
  t->status = out_copy(&fine, sizeof fine);
  ok(moe_cuda_pack_rows(t->rows, t->n, moe_stamp(3, 0, 1, 0, MOE_EDGE_PIPE), t->slot, NULL));
  ok(moe_cuda_take_pipe(t->slot, t->n, t->x, t->status, NULL));
  assert_int_equal(*t->status, MOE_OK);
  ok(moe_cuda_take_pipe(t->slot, t->n + 1, t->x, t->status, NULL));
  assert_int_equal(*t->status, MOE_EPROTO);
}

static void test_pipe(void **state)
{
  (void)state;
  for (size_t n = 0; n < 40; n += 13) {
    MoeReal *rows = real_waves(n * H, 1, 1.0f);
    MoeCall call = {.step = 3, .layer = 1, .edge = MOE_EDGE_PIPE};
    uint8_t *twin = poison(moe_msg_size(n, MOE_NO_HEAD, 0, 0));
    Pipe t = {.n = n, .rows = dev_copy(rows, n * H * sizeof *rows)};
    in_all_orders(launch_pipe, &t);
    MoeDraft draft = moe_draft(&call, twin, n, MOE_NO_HEAD, 0, 0);
    moe_row_put(&draft, draft.rows, rows, n);
    check_same("PIPE", t.slot, twin, moe_draft_end(&draft));
    check_same("rows of PIPE", t.x, rows, n * H * sizeof *rows);
    dev_free(t.rows);
    free(twin);
    free(rows);
  }
}

int test_messages(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_dispatch),
      cmocka_unit_test(test_combine),
      cmocka_unit_test(test_pipe),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
