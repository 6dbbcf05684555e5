/* The experts of one FFN rank, forward and both gradients, from the rows that arrive to the rows that leave: against
   fp64 and the C twin, for empty groups, one full group and no rows at all. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "check.h"
#include "tests/cuda/tests.h"
#include "tests/ref/ref_math.h"

enum { H = MOE_HIDDEN, F = MOE_FFN_HIDDEN, E = MOE_EXPERTS, K = MOE_TOP_K };

typedef struct Ffn {
  size_t rows, pairs, experts; /* experts: of this rank */
  size_t first_expert;
  MoeRowHead *heads;
  MoePair *pair;
  MoeReal *a, *dx;
  float *w, *gain;    /* [experts, EXPERT_ELEMS], [H] */
  float *gw0, *gain0; /* what gradients are added to */
  /* on the device */
  MoeReal *dev_a, *dev_dx, *dev_w;
  float *dev_gain;
  MoeFfnList list;
  MoeReal *out;
  float *da, *dw, *gw, *g_gain;
} Ffn;

static const MoePair no_pair;

static void launch_group(Ffn *t)
{
  t->list.first = out_new((E + 1) * sizeof(uint32_t));
  t->list.row_pair = out_new((t->rows + 1) * sizeof(uint32_t));
  t->list.pair_row = out_new(t->pairs * sizeof(uint32_t));
  t->list.group_pair = out_new(t->pairs * sizeof(uint32_t));
  t->list.group_row = out_new(t->pairs * sizeof(uint32_t));
  t->list.place = out_new(t->pairs * sizeof(uint32_t));
  ok(moe_cuda_group_pairs(&t->list, NULL));
}

static void launch_ffn(void *c)
{
  Ffn *t = c;
  const MoeFfnList *l = &t->list;
  size_t n = t->pairs;
  launch_group(t);
  t->out = out_new(t->rows * H * sizeof(MoeReal));
  t->da = out_new(t->rows * H * sizeof(float));
  t->dw = out_new(n * sizeof(float));
  t->gw = out_copy(t->gw0, t->experts * MOE_EXPERT_ELEMS * sizeof(float));
  t->g_gain = out_copy(t->gain0, H * sizeof(float));
  float *rstd = dev_new(t->rows * sizeof *rstd);
  MoeReal *normed = dev_new(t->rows * H * sizeof *normed);
  MoeReal *x = dev_new(n * H * sizeof *x);
  MoeReal *gate_up = dev_new(n * 2 * F * sizeof *gate_up);
  MoeReal *act = dev_new(n * F * sizeof *act);
  float *y = dev_new(n * H * sizeof *y);
  float *d = dev_new(n * F * sizeof *d);
  float *dh = dev_new(t->rows * H * sizeof *dh);
  float *partial = dev_new(MOE_PARTS * H * sizeof *partial);
  ok(moe_cuda_norm(t->dev_a, t->dev_gain, t->rows, normed, rstd, NULL));
  ok(moe_cuda_norm_rows(t->dev_a, t->dev_gain, rstd, l->group_row, n, x, NULL));
  ok(moe_cuda_group_nt(l, x, H, t->dev_w, gate_up, 2 * F, NULL));
  ok(moe_cuda_activate(l, gate_up, act, NULL));
  ok(moe_cuda_group_nt_float(l, act, F, t->dev_w + MOE_AT_DOWN, y, H, NULL));
  ok(moe_cuda_sum_outputs(l, y, t->dev_a, 1, t->out, NULL));

  ok(moe_cuda_gather_rows(l, t->dev_dx, false, x, NULL));
  ok(moe_cuda_group_nn_float(l, x, H, t->dev_w + MOE_AT_DOWN, d, F, NULL));
  ok(moe_cuda_activate_back(l, d, gate_up, act, t->dw, NULL));
  ok(moe_cuda_group_nn_float(l, gate_up, 2 * F, t->dev_w, y, H, NULL));
  ok(moe_cuda_sum_grads(l, y, dh, NULL));
  ok(moe_cuda_start_sums(l, t->dev_dx, 1, t->da, NULL));
  ok(moe_cuda_norm_back(t->dev_a, t->dev_gain, rstd, dh, t->rows, t->da, t->g_gain, partial, NULL));

  ok(moe_cuda_gather_rows(l, t->dev_dx, true, x, NULL));
  ok(moe_cuda_group_tn(l, x, H, act, F, t->gw + MOE_AT_DOWN, NULL));
  ok(moe_cuda_norm_rows(t->dev_a, t->dev_gain, rstd, l->group_row, n, x, NULL));
  ok(moe_cuda_group_tn(l, gate_up, 2 * F, x, H, t->gw, NULL));
  void *all[] = {rstd, normed, x, gate_up, act, y, d, dh, partial};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    dev_free(all[i]);
  }
}

typedef struct Twin {
  MoeReal *out, *da;
  float *dw, *gw, *g_gain;
} Twin;

/* experts.c on the same rows: a message comes in, another brings the gradient. */
static void run_twin(const Ffn *t, Twin *twin)
{
  MoeIn in[1];
  double scalars[MOE_SC_COUNT];
  MoeFfnWork work;
  MoeDims dims = {
      .seq = (int32_t)t->rows + 1, .mb_seqs = 1, .n_ffn = 2, .ffn_experts = (int32_t)t->experts, .chunks = 1};
  MoeCall call = {.layer = 1,
                  .seq = dims.seq,
                  .mb_seqs = 1,
                  .n_ffn = 2,
                  .me = 1,
                  .n_dst = 1,
                  .n_chunks = 1,
                  .w = t->w,
                  .gw = twin->gw,
                  .gain = t->gain,
                  .g_gain = twin->g_gain,
                  .scalars = scalars,
                  .in = in,
                  .n_in = 1};
  call.saved = aligned_alloc(64, moe_kernels.ffn_saved_bytes(&dims));
  call.work = aligned_alloc(64, moe_kernels.ffn_work_bytes(&dims));
  call.scratch = aligned_alloc(64, moe_kernels.scratch_bytes(&dims));
  uint8_t *message = aligned_alloc(64, moe_kernels.msg_bytes(MOE_EDGE_DISPATCH, dims.seq, 1, (int32_t)t->experts));
  uint8_t *grads = aligned_alloc(64, moe_kernels.msg_bytes(MOE_EDGE_COMBINE_B, dims.seq, 1, (int32_t)t->experts));
  MoeDraft draft = moe_draft(&call, message, t->rows, MOE_LIST_HEAD, t->pairs, MOE_LIST_PAIR);
  MoeDraft back = moe_draft(&call, grads, t->rows, MOE_NO_HEAD, 0, 0);
  memcpy(draft.heads, t->heads, t->rows * sizeof *t->heads);
  memcpy(draft.pairs, t->pair, t->pairs * sizeof *t->pair);
  memcpy(draft.rows, t->a, t->rows * H * sizeof *t->a);
  memcpy(back.rows, t->dx, t->rows * H * sizeof *t->dx);
  in[0] = (MoeIn){message, 0};
  assert_int_equal(moe_ffn_fwd(&call), MOE_OK);
  moe_ffn_work_carve(call.work, t->rows, t->pairs, &work);
  memcpy(twin->out, work.rows, t->rows * H * sizeof *twin->out);
  in[0] = (MoeIn){grads, 0};
  assert_int_equal(moe_ffn_dgrad(&call), MOE_OK);
  memcpy(twin->da, work.rows, t->rows * H * sizeof *twin->da);
  memcpy(twin->dw, work.dw, t->pairs * sizeof *twin->dw);
  call.n_in = 0;
  assert_int_equal(moe_ffn_wgrad(&call), MOE_OK);
  MoeFfnSaved s;
  moe_ffn_saved(&call, &s);
  check_same("beginnings of groups", t->list.first, s.first, (E + 1) * sizeof *s.first);
  check_same("grouped pairs", t->list.group_pair, s.group_pair, t->pairs * sizeof *s.group_pair);
  check_same("grouped rows", t->list.group_row, s.group_row, t->pairs * sizeof *s.group_row);
  free(call.saved);
  free(call.work);
  free(call.scratch);
  free(message);
  free(grads);
}

typedef struct Want {
  double *out, *da, *dw, *gw, *g_gain;
  double *dw_size; /* dw with all terms positive */
} Want;

/* One pair in fp64: adds to the row's output and dh, and to the expert's gradients. */
static void pair64(const double *w, double *gw, double weight, const double *h, const double *dx, double *out,
                   double *dh, double *dw, double *dw_size)
{
  double act[F];
  double gate[2 * F];
  ref_linear(gate, h, w, 1, H, 2 * F);
  for (size_t j = 0; j < F; j++) {
    act[j] = gate[j] / (1 + exp(-gate[j])) * gate[F + j];
  }
  for (size_t i = 0; i < H; i++) {
    double y = ref_dot(w + MOE_AT_DOWN + i * F, act, F);
    out[i] += weight * y;
    *dw += dx[i] * y;
    *dw_size += fabs(dx[i] * y);
    ref_axpy(gw + MOE_AT_DOWN + i * F, weight * dx[i], act, F);
  }
  for (size_t j = 0; j < F; j++) {
    double s = 1 / (1 + exp(-gate[j]));
    double d = 0;
    for (size_t i = 0; i < H; i++) {
      d += weight * dx[i] * w[MOE_AT_DOWN + i * F + j];
    }
    double dg = d * gate[F + j] * s * (1 + gate[j] * (1 - s));
    double du = d * gate[j] * s;
    ref_axpy(gw + j * H, dg, h, H);
    ref_axpy(gw + (F + j) * H, du, h, H);
    ref_axpy(dh, dg, w + j * H, H);
    ref_axpy(dh, du, w + (F + j) * H, H);
  }
}

static void run64(const Ffn *t, Want *want)
{
  double *w = doubles_of(t->w, t->experts * MOE_EXPERT_ELEMS);
  double *gain = doubles_of(t->gain, H);
  double *a = doubles_of_reals(t->a, t->rows * H);
  double *dx = doubles_of_reals(t->dx, t->rows * H);
  size_t p = 0;
  for (size_t r = 0; r < t->rows; r++) {
    double h[H];
    double dh[H] = {0};
    double *out = want->out + r * H;
    double *da = want->da + r * H;
    bool home = t->heads[r].home == 1;
    ref_rmsnorm(h, a + r * H, gain, 1, H, MOE_NORM_EPS);
    for (size_t i = 0; i < H; i++) {
      out[i] = home ? a[r * H + i] : 0.0;
      da[i] = home ? dx[r * H + i] : 0.0;
    }
    for (size_t k = 0; k < t->heads[r].pairs; k++, p++) {
      size_t at = (t->pair[p].expert - t->first_expert) * MOE_EXPERT_ELEMS;
      pair64(w + at, want->gw + at, (double)t->pair[p].weight, h, dx + r * H, out, dh, want->dw + p, want->dw_size + p);
    }
    ref_rmsnorm_back(da, want->g_gain, dh, a + r * H, gain, 1, H, MOE_NORM_EPS);
  }
  free(w);
  free(gain);
  free(a);
  free(dx);
}

/* kind 0: spread, with empty groups; 1: all in one group; 2: rows without pairs among the others. */
static void one_ffn(size_t rows, int kind)
{
  Ffn t = {.rows = rows,
           .first_expert = (size_t)moe_part_begin(E, 2, 1),
           .experts = (size_t)moe_part_size(E, 2, 1),
           .heads = calloc(rows + 1, sizeof *t.heads),
           .pair = calloc(rows * K + 1, sizeof *t.pair)};
  size_t most = moe_min(K, t.experts);
  for (size_t r = 0; r < rows; r++) {
    size_t n = kind == 1 ? 1 : kind == 2 && r % 3 == 1 ? 0 : 1 + r % most;
    t.heads[r] = (MoeRowHead){(uint32_t)r, (uint16_t)n, (uint16_t)(r % 2)};
    for (size_t k = 0; k < n; k++) { /* from high to low, so that the list's order is not that of the experts */
      size_t e = kind == 1 ? t.experts - 1 : (t.experts + r * 5 % 7 % t.experts - k) % t.experts;
      t.pair[t.pairs++] = (MoePair){(uint32_t)(t.first_expert + e), 0.5f + 0.4f * wave(r * K + k)};
    }
  }
  size_t n_w = t.experts * MOE_EXPERT_ELEMS;
  t.a = real_waves(rows * H, 1, 1.0f);
  t.dx = real_waves(rows * H, 2, 1.0f);
  t.w = float_waves(n_w, 3, 0.2f);
  t.gain = float_waves(H, 4, 1.0f);
  t.gw0 = float_waves(n_w, 5, 0.1f);
  t.gain0 = float_waves(H, 6, 0.1f);
  MoeReal *w_real = real_waves(n_w, 3, 0.2f);
  t.dev_a = dev_copy(t.a, rows * H * sizeof *t.a);
  t.dev_dx = dev_copy(t.dx, rows * H * sizeof *t.dx);
  t.dev_w = dev_copy(w_real, n_w * sizeof *w_real);
  t.dev_gain = dev_copy(t.gain, H * sizeof *t.gain);
  MoeRowHead *heads = dev_copy(t.heads, rows * sizeof *heads);
  MoePair *pair = dev_copy(t.pairs > 0 ? t.pair : &no_pair, t.pairs * sizeof *pair);
  t.list = (MoeFfnList){.n_rows = rows,
                        .n_pairs = t.pairs,
                        .first_expert = (int32_t)t.first_expert,
                        .n_experts = (int32_t)t.experts,
                        .rows = heads,
                        .pairs = pair};
  in_all_orders(launch_ffn, &t);

  Twin twin = {.out = real_waves(rows * H, 0, 0.0f),
               .da = real_waves(rows * H, 0, 0.0f),
               .dw = float_waves(t.pairs, 0, 0.0f),
               .gw = float_waves(n_w, 5, 0.1f),
               .g_gain = float_waves(H, 6, 0.1f)};
  Want want = {.out = calloc(rows * H + 1, sizeof(double)),
               .da = calloc(rows * H + 1, sizeof(double)),
               .dw = calloc(t.pairs + 1, sizeof(double)),
               .dw_size = calloc(t.pairs + 1, sizeof(double)),
               .gw = doubles_of(t.gw0, n_w),
               .g_gain = doubles_of(t.gain0, H)};
  MoeReal *da = real_waves(rows * H, 0, 0.0f);
  moe_keep_row(da, t.da, rows * H);
  run_twin(&t, &twin);
  run64(&t, &want);
  check_reals("FFN output", t.out, twin.out, want.out, rows * H);
  check_reals("FFN input gradient", da, twin.da, want.da, rows * H);
  check_sums("dweight", t.dw, twin.dw, want.dw, want.dw_size, t.pairs);
  check_floats("gain's gradient", t.g_gain, twin.g_gain, want.g_gain, H);
  for (size_t e = 0; e < t.experts; e++) {
    size_t at = e * MOE_EXPERT_ELEMS;
    check_floats("expert's gradient", t.gw + at, twin.gw + at, want.gw + at, MOE_EXPERT_ELEMS);
    if (t.list.first[e] == t.list.first[e + 1]) {
      check_same("idle expert's gradient", t.gw + at, t.gw0 + at, MOE_EXPERT_ELEMS * sizeof(float));
    }
  }
  void *device[] = {t.dev_a, t.dev_dx, t.dev_w, t.dev_gain, heads, pair};
  for (size_t i = 0; i < sizeof device / sizeof *device; i++) {
    dev_free(device[i]);
  }
  void *all[] = {t.heads,     t.pair,   t.a,     t.dx,     t.w,     t.gain,      t.gw0,
                 t.gain0,     w_real,   da,      twin.out, twin.da, twin.dw,     twin.gw,
                 twin.g_gain, want.out, want.da, want.dw,  want.gw, want.g_gain, want.dw_size};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    free(all[i]);
  }
}

static void test_ffn(void **state)
{
  (void)state;
  one_ffn(0, 0);
  one_ffn(1, 0);
  one_ffn(67, 1);
  one_ffn(41, 2);
}

int test_experts(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_ffn),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
