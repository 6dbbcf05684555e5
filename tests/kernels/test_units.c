/* What a whole step does not reach: accuracy of the vector functions, rounding, the optimizer, groups without rows,
   ties, and messages that contradict the lists. */
#include <cblas.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "moe_parts.h"
#include "moe_vec.h"
#include "route.h"

enum { H = MOE_HIDDEN, F = MOE_FFN_HIDDEN, E = MOE_EXPERTS, K = MOE_TOP_K };

static void *fresh(size_t bytes)
{
  void *p = aligned_alloc(64, moe_align64(bytes > 0 ? bytes : 1));
  assert_non_null(p);
  memset(p, 0xff, moe_align64(bytes > 0 ? bytes : 1));
  return p;
}

/* A value of the pattern i, in [-1, 1). */
static float wave(size_t i)
{
  return (float)((i * 2654435761u >> 7) % 2048) / 1024.0f - 1.0f;
}

static void test_exp(void **state)
{
  (void)state;
  double worst = 0;
  for (float x = -86.9f; x < 87.9f; x += 0.00037f) {
    double want = exp((double)x);
    worst = fmax(worst, fabs((double)moe_exp(x) - want) / want);
  }
  assert_true(worst < 2e-7);
  assert_true(moe_exp(0.0f) >= 1.0f && moe_exp(0.0f) <= 1.0f);
  assert_true(moe_exp(-200.0f) <= 0.0f);
  assert_true(moe_exp(-INFINITY) <= 0.0f);
  assert_true(isfinite(moe_exp(1000.0f)));
  assert_true(isnan(moe_exp(NAN)));
}

static void test_vectors(void **state)
{
  (void)state;
  for (size_t n = 1; n < 70; n++) {
    float x[70];
    float y[70];
    double dot = 0;
    double best = -9;
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
      x[i] = wave(i + 7 * n);
      y[i] = wave(i * 3 + n);
      dot += (double)x[i] * (double)y[i];
      best = fmax(best, (double)x[i]);
      sum += exp(2.0 * (double)x[i] - 1.0);
    }
    assert_true(fabs((double)moe_dot(x, y, n) - dot) < 1e-5);
    assert_true(fabs((double)moe_vec_max(x, n) - best) < 1e-9);
    assert_true(fabs((double)moe_exp_row(x, 2.0f, 1.0f, n, y) - sum) < 1e-5 * sum);
  }
}

/* Nearest of the two neighbours, ties to the one with an even last bit. */
static void test_bf16(void **state)
{
  (void)state;
  for (uint32_t high = 0; high < 0x7f80u; high++) {
    static const uint32_t low[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    for (size_t i = 0; i < sizeof low / sizeof *low; i++) {
      bool up = low[i] > 0x8000 || (low[i] == 0x8000 && (high & 1));
      assert_int_equal(moe_to_bf16(moe_float(high << 16 | low[i])), high + up);
      assert_int_equal(moe_to_bf16(-moe_float(high << 16 | low[i])), 0x8000u | (high + up));
    }
  }
  assert_int_equal(moe_to_bf16(INFINITY), 0x7f80);
  assert_true((moe_to_bf16(moe_float(0x7f800001u)) & 0x7fff) > 0x7f80); /* still a NaN */
  assert_true((moe_to_bf16(moe_float(0x7fffffffu)) & 0x7fff) > 0x7f80);
}

static void test_optimizer(void **state)
{
  (void)state;
  enum { N = 77 };
  const MoeAdam adam = {.lr = 1e-2f,
                        .beta1 = 0.9f,
                        .beta2 = 0.95f,
                        .eps = 1e-8f,
                        .weight_decay = 0.1f,
                        .scale = 0.5f,
                        .bias1 = 0.19f,
                        .bias2 = 0.0975f};
  float w[N], master[N], m[N], v[N], g[N], same[N], m2[N], v2[N], sum[N];
  double squares = 0;
  for (size_t decay = 0; decay < 2; decay++) {
    for (size_t i = 0; i < N; i++) {
      master[i] = same[i] = wave(i);
      m[i] = m2[i] = wave(i + 100);
      v[i] = v2[i] = fabsf(wave(i + 200));
      g[i] = wave(i + 300);
    }
    moe_kernels.adamw(&adam, w, master, m, v, g, N, decay > 0);
    moe_kernels.adamw(&adam, same, same, m2, v2, g, N, decay > 0);
    squares = 0;
    for (size_t i = 0; i < N; i++) {
      double x = (double)wave(i);
      double grad = 0.5 * (double)g[i];
      double mean = 0.9 * (double)wave(i + 100) + 0.1 * grad;
      double square = 0.95 * fabs((double)wave(i + 200)) + 0.05 * grad * grad;
      double step = mean / 0.19 / (sqrt(square / 0.0975) + 1e-8) + (decay > 0 ? 0.1 * x : 0.0);
      assert_true(fabs((double)m[i] - mean) < 1e-6 && fabs((double)v[i] - square) < 1e-6);
      assert_true(fabs((double)master[i] - (x - 1e-2 * step)) < 1e-6);
      assert_true(w[i] >= moe_round(master[i]) && w[i] <= moe_round(master[i]));
      assert_true(same[i] >= w[i] && same[i] <= w[i]);
      squares += (double)g[i] * (double)g[i];
    }
  }
  assert_true(fabs(moe_kernels.sumsq(g, N) - squares) < 1e-12);
  assert_true(moe_kernels.sumsq(g, 0) <= 0);
  memcpy(sum, g, sizeof sum);
  moe_kernels.add(sum, m, N);
  assert_true(sum[5] >= g[5] + m[5] && sum[5] <= g[5] + m[5]);
  moe_kernels.to_weights(w, master, N);
  assert_true(w[9] >= moe_round(master[9]) && w[9] <= moe_round(master[9]));
}

/* One FFN rank that holds every expert, `count[e]` rows for expert e alone. */
typedef struct Ffn {
  MoeCall call;
  MoeIn in[2];
  uint8_t *message, *grads;
  double scalars[MOE_SC_COUNT];
  float *w, *gw, *gain, *g_gain;
  int32_t rows;
} Ffn;

static void ffn_new(Ffn *f, const int *count)
{
  *f = (Ffn){0};
  for (size_t e = 0; e < E; e++) {
    f->rows += count[e];
  }
  size_t n = (size_t)f->rows;
  MoeDims dims = {.seq = f->rows > 0 ? f->rows : 1, .mb_seqs = 1, .n_ffn = 1, .ffn_experts = E, .chunks = 1};
  f->w = fresh(E * MOE_EXPERT_ELEMS * sizeof(float));
  f->gw = fresh(E * MOE_EXPERT_ELEMS * sizeof(float));
  f->gain = fresh(H * sizeof(float));
  f->g_gain = fresh(H * sizeof(float));
  for (size_t i = 0; i < E * MOE_EXPERT_ELEMS; i++) {
    f->w[i] = moe_round(0.2f * wave(i));
    f->gw[i] = 0.25f;
  }
  for (size_t i = 0; i < H; i++) {
    f->gain[i] = moe_round(1.0f + 0.1f * wave(i + 5));
    f->g_gain[i] = 0;
  }
  f->call = (MoeCall){.layer = 1,
                      .seq = dims.seq,
                      .mb_seqs = 1,
                      .n_ffn = 1,
                      .n_dst = 1,
                      .n_chunks = 1,
                      .w = f->w,
                      .gw = f->gw,
                      .gain = f->gain,
                      .g_gain = f->g_gain,
                      .scalars = f->scalars,
                      .in = f->in,
                      .n_in = 1};
  f->call.saved = fresh(moe_kernels.ffn_saved_bytes(&dims));
  f->call.work = fresh(moe_kernels.ffn_work_bytes(&dims));
  f->call.scratch = fresh(moe_kernels.scratch_bytes(&dims));
  f->message = fresh(moe_kernels.msg_bytes(MOE_EDGE_DISPATCH, dims.seq, 1, E));
  f->grads = fresh(moe_kernels.msg_bytes(MOE_EDGE_COMBINE_B, dims.seq, 1, E));
  MoeDraft draft = moe_draft(&f->call, f->message, n, MOE_LIST_HEAD, n, MOE_LIST_PAIR);
  MoeDraft grads = moe_draft(&f->call, f->grads, n, MOE_NO_HEAD, 0, 0);
  MoeRowHead *heads = draft.heads;
  MoePair *pairs = draft.pairs;
  uint32_t e = 0;
  int left = count[0];
  for (size_t r = 0; r < n; r++) {
    while (left == 0) {
      left = count[++e];
    }
    left--;
    heads[r] = (MoeRowHead){(uint32_t)r, 1, 0};
    pairs[r] = (MoePair){e, 0.5f + 0.4f * wave(r)};
    for (size_t i = 0; i < H; i++) {
      draft.rows[r * H + i] = moe_put(wave(r * H + i));
      grads.rows[r * H + i] = moe_put(wave(r * H + i + 999));
    }
  }
  f->in[0] = (MoeIn){f->message, 0};
}

static void ffn_free(Ffn *f)
{
  free(f->call.saved);
  free(f->call.work);
  free(f->call.scratch);
  free(f->message);
  free(f->grads);
  free(f->w);
  free(f->gw);
  free(f->gain);
  free(f->g_gain);
}

static void near(double got, double want)
{
  if (!(fabs(got - want) <= (MOE_BF16 ? 8e-2 : 2e-5) * (1 + fabs(want)))) {
    fail_msg("got %.9g, want %.9g", got, want);
  }
}

/* The naive expert of row r, its hidden layer and its gradients, in fp64; checks output, dweight and down's gradient.
 */
static void check_row(const Ffn *f, size_t r, const MoeReal *out, double *g_down)
{
  const MoeRowHead *heads = (const void *)(f->message + sizeof(MoeMsgHead));
  const MoePair *pair = (const void *)(heads + f->rows);
  const MoeReal *a =
      (const void *)(f->message + moe_msg_rows_at((size_t)f->rows, sizeof *heads, (size_t)f->rows, sizeof *pair));
  const MoeReal *dx = (const void *)(f->grads + moe_msg_rows_at((size_t)f->rows, 0, 0, 0));
  const float *w = f->w + pair[r].expert * MOE_EXPERT_ELEMS;
  double h[H];
  double act[F];
  double square = 0;
  double dweight = 0;
  for (size_t i = 0; i < H; i++) {
    h[i] = (double)moe_get(a[r * H + i]);
    square += h[i] * h[i];
  }
  for (size_t i = 0; i < H; i++) {
    h[i] *= (double)f->gain[i] / sqrt(square / H + MOE_NORM_EPS);
  }
  for (size_t j = 0; j < F; j++) {
    double gate = 0;
    double up = 0;
    for (size_t i = 0; i < H; i++) {
      gate += (double)w[j * H + i] * h[i];
      up += (double)w[(F + j) * H + i] * h[i];
    }
    act[j] = gate / (1 + exp(-gate)) * up;
  }
  for (size_t i = 0; i < H; i++) {
    double y = 0;
    double g = (double)moe_get(dx[r * H + i]);
    for (size_t j = 0; j < F; j++) {
      y += (double)w[MOE_AT_DOWN + i * F + j] * act[j];
      g_down[i * F + j] += (double)pair[r].weight * g * act[j];
    }
    near((double)moe_get(out[r * H + i]), (double)moe_get(a[r * H + i]) + (double)pair[r].weight * y);
    dweight += g * y;
  }
  MoeFfnWork work;
  moe_ffn_work_carve(f->call.work, (size_t)f->rows, (size_t)f->rows, &work);
  if (!MOE_BF16) {
    near((double)work.dw[r], dweight);
  }
}

static void test_groups(void **state)
{
  (void)state;
  static const int counts[][8] = {{0, 17, 0, 0, 1, 0, 128, 0}, {0}, {3, 0, 0, 0, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 0, 0, 5}};
  for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
    Ffn f;
    MoeFfnWork work;
    double *g_down = calloc((size_t)E * H * F, sizeof *g_down);
    ffn_new(&f, counts[c]);
    size_t n = (size_t)f.rows;
    MoeReal *out = fresh(n * H * sizeof *out);
    assert_int_equal(moe_kernels.run[MOE_OP_FFN_FWD](&f.call), MOE_OK);
    moe_ffn_work_carve(f.call.work, n, n, &work);
    memcpy(out, work.rows, n * H * sizeof *out);
    f.in[0].data = f.grads;
    assert_int_equal(moe_kernels.run[MOE_OP_FFN_DGRAD](&f.call), MOE_OK);
    f.call.n_in = 0;
    assert_int_equal(moe_kernels.run[MOE_OP_FFN_WGRAD](&f.call), MOE_OK);
    size_t row = 0;
    for (size_t e = 0; e < E; e++) {
      for (int r = 0; r < counts[c][e]; r++) {
        check_row(&f, row++, out, g_down + e * H * F);
      }
      for (size_t i = 0; i < MOE_EXPERT_ELEMS; i++) {
        float g = f.gw[e * MOE_EXPERT_ELEMS + i];
        assert_true(isfinite(g));
        assert_true(counts[c][e] > 0 || (g >= 0.25f && g <= 0.25f));
      }
      for (size_t i = 0; i < (size_t)H * F && !MOE_BF16; i++) {
        near((double)f.gw[e * MOE_EXPERT_ELEMS + MOE_AT_DOWN + i], 0.25 + g_down[e * H * F + i]);
      }
    }
    free(out);
    free(g_down);
    ffn_free(&f);
  }
}

static void test_bad_messages(void **state)
{
  (void)state;
  static const int count[8] = {2, 0, 3, 0, 0, 0, 0, 0};
  Ffn f;
  ffn_new(&f, count);
  MoeMsgHead *head = (void *)f.message;
  MoeRowHead *rows = (void *)(head + 1);
  MoePair *pairs = (void *)(rows + 5);
  assert_int_equal(moe_kernels.run[MOE_OP_FFN_FWD](&f.call), MOE_OK);

  head->bytes++;
  assert_int_equal(moe_kernels.run[MOE_OP_FFN_FWD](&f.call), MOE_EPROTO);
  head->bytes--;
  rows[1].pairs = 2;
  assert_int_equal(moe_kernels.run[MOE_OP_FFN_FWD](&f.call), MOE_EPROTO);
  rows[1].pairs = 1;
  rows[1].token = rows[0].token;
  assert_int_equal(moe_kernels.run[MOE_OP_FFN_FWD](&f.call), MOE_EPROTO);
  rows[1].token = 1;
  pairs[2].expert = E;
  assert_int_equal(moe_kernels.run[MOE_OP_FFN_FWD](&f.call), MOE_EPROTO);
  pairs[2].expert = 2;
  f.call.chunk = 1; /* rows of the other chunk */
  f.call.n_chunks = 2;
  assert_int_equal(moe_kernels.run[MOE_OP_FFN_FWD](&f.call), MOE_EOVERFLOW);
  f.call.chunk = 0;
  f.call.n_chunks = 1;
  f.in[1] = f.in[0];
  f.call.n_in = 2; /* more rows than the micro-batch has tokens */
  assert_int_equal(moe_kernels.run[MOE_OP_FFN_FWD](&f.call), MOE_EOVERFLOW);
  f.call.n_in = 1;
  assert_int_equal(moe_kernels.run[MOE_OP_FFN_FWD](&f.call), MOE_OK);

  moe_draft(&f.call, f.grads, 4, MOE_NO_HEAD, 0, 0); /* one row too few */
  f.in[0].data = f.grads;
  assert_int_equal(moe_kernels.run[MOE_OP_FFN_DGRAD](&f.call), MOE_EPROTO);
  ffn_free(&f);
}

/* Sums that come by PIPE: whole runs of sequences, each sender's part after the other's, or nothing is taken. */
static void test_pipe(void **state)
{
  (void)state;
  enum { SEQ = 3, SEQS = 5, SENDERS = 3 };
  MoeIn in[SENDERS];
  MoeDims dims = {.seq = SEQ, .mb_seqs = SEQS, .att_seqs = SEQS, .n_join = 1, .chunks = 1};
  MoeCall from = {.layer = 1, .seq = SEQ, .mb_seqs = SEQS, .n_dst = 2, .n_chunks = 1, .edge = MOE_EDGE_PIPE};
  MoeCall to = {.layer = 1, .seq = SEQ, .mb_seqs = SEQS, .n_src = SENDERS, .n_chunks = 1, .in = in, .n_in = SENDERS};
  to.work = fresh(moe_kernels.att_work_bytes(&dims));
  for (int32_t me = 0; me < 2; me++) {
    to.seq0 = (int32_t)moe_part_begin(SEQS, 2, me);
    to.n_seqs = (int32_t)moe_part_size(SEQS, 2, me);
    for (int32_t i = 0; i < SENDERS; i++) {
      MoeAttSaved s;
      MoeAttWork work;
      int64_t begin;
      from.seq0 = (int32_t)moe_part_begin(SEQS, SENDERS, i);
      from.n_seqs = (int32_t)moe_part_size(SEQS, SENDERS, i);
      from.peer = me;
      from.saved = fresh(moe_kernels.att_saved_bytes(&dims));
      from.work = fresh(moe_kernels.att_work_bytes(&dims));
      moe_att_begin(&from, 0, &s);
      moe_att_work_carve(from.work, s.tokens, &work);
      for (size_t k = 0; k < s.tokens * H; k++) {
        work.dx[k] = moe_put(wave((size_t)(from.seq0 * SEQ) * H + k));
      }
      int64_t seqs = moe_part_overlap(SEQS, SENDERS, i, to.seq0, to.n_seqs, &begin);
      size_t room = moe_kernels.msg_bytes(MOE_EDGE_PIPE, SEQ, (int32_t)seqs, 0);
      uint8_t *slot = fresh(room);
      assert_true(moe_kernels.pack[MOE_EDGE_PIPE](&from, slot) <= room);
      assert_int_equal(((const MoeMsgHead *)(const void *)slot)->rows, seqs * SEQ);
      in[i] = (MoeIn){slot, i};
      free(from.saved);
      free(from.work);
    }
    MoeAttWork work;
    moe_att_work_carve(to.work, (size_t)(to.n_seqs * SEQ), &work);
    assert_int_equal(moe_kernels.run[MOE_OP_JOIN_DGRAD](&to), MOE_OK);
    for (size_t k = 0; k < (size_t)(to.n_seqs * SEQ) * H; k++) {
      MoeReal want = moe_put(wave((size_t)(to.seq0 * SEQ) * H + k));
      assert_memory_equal(&work.dx[k], &want, sizeof want);
    }
    to.n_in--; /* a sender is missing */
    assert_int_equal(moe_kernels.run[MOE_OP_JOIN_DGRAD](&to), MOE_EPROTO);
    to.n_in++;
    to.seq0++; /* rows of other sequences */
    assert_int_equal(moe_kernels.run[MOE_OP_JOIN_DGRAD](&to), MOE_EPROTO);
    for (int32_t i = 0; i < SENDERS; i++) {
      free((void *)(uintptr_t)in[i].data);
    }
  }
  free(to.work);
}

/* Ties go to the lower index, NaN still gives distinct experts, too short a route_only is refused. */
static void test_router(void **state)
{
  (void)state;
  static const int32_t reversed[] = {7, 5, 3, 1};
  double scalars[MOE_SC_COUNT] = {0};
  MoeAttSaved s;
  const MoeAttHead shape = {.seq = 3, .n_seqs = 1};
  size_t bytes = moe_att_saved_carve(NULL, &shape, &s);
  uint8_t *slot = fresh(bytes);
  MoeCall call = {.seq = 3, .n_seqs = 1, .n_ffn = 1, .inv_seqs = 1, .scalars = scalars};
  moe_att_saved_carve(slot, &shape, &s);
  for (size_t i = 0; i < 3 * E; i++) {
    s.prob[i] = i < E ? 0.5f : i < 2 * E ? wave(i) : NAN;
  }
  assert_int_equal(moe_router(&call, &s), MOE_OK);
  for (size_t k = 0; k < K; k++) {
    assert_int_equal(s.choice[k], k);
    assert_true(fabsf(s.weight[k] - 1.0f / K) < 1e-6f);
    assert_true(s.choice[2 * K + k] < E && (k == 0 || s.choice[2 * K + k] != s.choice[2 * K]));
  }
  for (size_t i = 0; i < 3 * E; i++) {
    s.prob[i] = i < E ? 0.5f : wave(i);
  }
  call.route_only = reversed;
  call.n_route_only = 4;
  assert_int_equal(moe_router(&call, &s), MOE_OK);
  assert_int_equal(s.choice[0], 1);
  assert_int_equal(s.choice[1], 3);
  call.n_route_only = K - 1;
  assert_int_equal(moe_router(&call, &s), MOE_EINVAL);
  free(slot);
}

static void test_rope(void **state)
{
  (void)state;
  enum { SEQ = 1000, HALF = MOE_HEAD_DIM / 2 };
  MoeCore core = {.cos = fresh(SEQ * HALF * sizeof(float)), .sin = fresh(SEQ * HALF * sizeof(float))};
  moe_rope_tables(&core, SEQ);
  for (size_t p = 0; p < SEQ; p++) {
    for (size_t i = 0; i < HALF; i++) {
      double angle = (double)p * pow(MOE_ROPE_THETA, -(double)i / HALF);
      assert_true(fabs((double)core.cos[p * HALF + i] - cos(angle)) < 1e-7);
      assert_true(fabs((double)core.sin[p * HALF + i] - sin(angle)) < 1e-7);
    }
  }
  free(core.cos);
  free(core.sin);
}

/* Every pair of a token lies in exactly one target, whatever the nodes, and the home goes round the ranks. */
static void test_routes(void **state)
{
  (void)state;
  for (int32_t n_ffn = 1; n_ffn <= 12; n_ffn++) {
    for (int32_t size = 1; size <= n_ffn; size++) {
      int32_t node[14] = {0};
      int32_t n_nodes = 0;
      uint16_t owner[E];
      moe_owners(n_ffn, owner);
      for (int32_t at = 0; at < n_ffn; at += size) {
        node[++n_nodes] = at + size < n_ffn ? at + size : n_ffn;
      }
      for (uint32_t token = 0; token < 60; token++) {
        uint16_t choice[K] = {(uint16_t)(token % E), (uint16_t)((token + 1 + token / E % (E - 1)) % E)};
        uint8_t dropped[K] = {token % 3 == 0, token % 5 == 0};
        MoeRoute route;
        MoeTarget target[K];
        moe_route(owner, choice, dropped, token, &route);
        size_t n = moe_targets(token % 2 ? node : NULL, &route, token, target);
        assert_int_equal(route.home, route.rank[token % route.n]);
        for (size_t i = 0; i < route.n; i++) {
          size_t hits = 0;
          for (size_t j = 0; j < n; j++) {
            hits += moe_in_target(&target[j], route.rank[i]);
          }
          assert_int_equal(hits, 1);
        }
        for (size_t j = 0; j < n; j++) {
          assert_true(moe_in_target(&target[j], target[j].rank));
          assert_true(j == 0 || target[j - 1].rank < target[j].rank);
        }
        for (size_t k = 0; k < K; k++) {
          size_t hits = 0;
          for (size_t j = 0; j < n; j++) {
            hits += moe_in_target(&target[j], owner[choice[k]]);
          }
          assert_true(dropped[k] || hits == 1);
        }
      }
    }
  }
}

int main(void)
{
  openblas_set_num_threads(1);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_exp),       cmocka_unit_test(test_vectors), cmocka_unit_test(test_bf16),
      cmocka_unit_test(test_optimizer), cmocka_unit_test(test_groups),  cmocka_unit_test(test_bad_messages),
      cmocka_unit_test(test_router),    cmocka_unit_test(test_rope),    cmocka_unit_test(test_routes),
      cmocka_unit_test(test_pipe),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
