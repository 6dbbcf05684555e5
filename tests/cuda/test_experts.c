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

enum {
  H = MOE_HIDDEN,
  F = MOE_FFN_HIDDEN,
  FS = MOE_SHARED,
  SHARED_ELEMS = 3 * FS * H,
  BIAS = MOE_EXPERT_BIAS,
  E = MOE_EXPERTS,
  K = MOE_TOP_K
};

typedef struct Ffn {
  size_t rows, pairs, experts; /* experts: of this rank */
  size_t first_expert;
  MoeRowHead *heads;
  MoePair *pair;
  MoeReal *a, *dx;
  float *w, *gain;    /* [experts, EXPERT_ELEMS], [H] */
  float *gw0, *gain0; /* what gradients are added to */
  float *shared, *shared0;
  /* on the device */
  MoeReal *dev_a, *dev_dx, *dev_w, *dev_shared;
  float *dev_gain;
  MoeFfnList list;
  MoeReal *out;
  float *da, *dw, *gw, *g_gain, *g_shared;
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

/* What the shared expert keeps between the ops, and its results in the order of its rows. */
typedef struct Shared {
  MoeHomes homes;
  MoeFfnList list;
  MoeReal *x, *gate_up, *act;
  float *y, *d;
} Shared;

static void shared_new(const Ffn *t, Shared *s)
{
  size_t n = t->rows;
  s->homes = (MoeHomes){dev_new(2 * sizeof(uint32_t)), dev_new(n * sizeof(uint32_t)), dev_new(n * sizeof(uint32_t))};
  s->list = moe_homes_list(&t->list, &s->homes);
  s->x = dev_new(n * H * sizeof *s->x);
  s->gate_up = dev_new(n * 2 * FS * sizeof *s->gate_up);
  s->act = dev_new(n * FS * sizeof *s->act);
  s->y = dev_new(n * H * sizeof *s->y);
  s->d = dev_new(n * FS * sizeof *s->d);
}

static void shared_free(Shared *s)
{
  void *all[] = {s->homes.first, s->homes.row, s->homes.place, s->x, s->gate_up, s->act, s->y, s->d};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    dev_free(all[i]);
  }
}

static void shared_fwd(const Ffn *t, Shared *s, const float *rstd)
{
  const MoeFfnList *l = &s->list;
  ok(moe_cuda_find_homes(&t->list, 1, &s->homes, NULL));
  ok(moe_cuda_norm_rows(t->dev_a, t->dev_gain, rstd, l->group_row, l->n_pairs, s->x, NULL));
  ok(moe_cuda_group_nt(l, s->x, H, t->dev_shared, s->gate_up, (size_t)2 * FS, NULL));
  ok(moe_cuda_mlp_act(s->gate_up, FS, l->n_pairs, s->act, NULL));
  ok(moe_cuda_group_nt_float(l, s->act, FS, t->dev_shared + (size_t)2 * FS * H, s->y, H, NULL));
}

/* To y and to g_shared. */
static void shared_back(const Ffn *t, Shared *s, const float *rstd)
{
  const MoeFfnList *l = &s->list;
  const MoeReal *down = t->dev_shared + (size_t)2 * FS * H;
  ok(moe_cuda_gather_rows(l, t->dev_dx, false, s->x, NULL));
  ok(moe_cuda_group_nn_float(l, s->x, H, down, s->d, FS, NULL));
  ok(moe_cuda_mlp_act_back(s->d, FS, l->n_pairs, s->gate_up, s->act, NULL));
  ok(moe_cuda_group_nn_float(l, s->gate_up, (size_t)2 * FS, t->dev_shared, s->y, H, NULL));
  ok(moe_cuda_group_tn(l, s->x, H, s->act, FS, t->g_shared + (size_t)2 * FS * H, NULL));
  ok(moe_cuda_norm_rows(t->dev_a, t->dev_gain, rstd, l->group_row, l->n_pairs, s->x, NULL));
  ok(moe_cuda_group_tn(l, s->gate_up, (size_t)2 * FS, s->x, H, t->g_shared, NULL));
}

typedef struct Room {
  float *rstd, *y, *d, *dh, *partial;
  MoeReal *normed, *x, *gate_up, *act;
} Room;

static void forward(Ffn *t, const Room *m, Shared *shared)
{
  const MoeFfnList *l = &t->list;
  const MoeReal *w = t->dev_w;
  ok(moe_cuda_norm(t->dev_a, t->dev_gain, t->rows, m->normed, m->rstd, NULL));
  ok(moe_cuda_norm_rows(t->dev_a, t->dev_gain, m->rstd, l->group_row, t->pairs, m->x, NULL));
  if (BIAS) {
    ok(moe_cuda_group_nt_bias(l, m->x, H, w, w + MOE_AT_GU_BIAS, m->gate_up, 2 * F, NULL));
  } else {
    ok(moe_cuda_group_nt(l, m->x, H, w, m->gate_up, 2 * F, NULL));
  }
  ok(moe_cuda_activate(l, m->gate_up, m->act, NULL));
  if (BIAS) {
    ok(moe_cuda_group_nt_bias_float(l, m->act, F, w + MOE_AT_DOWN, w + MOE_AT_DOWN_BIAS, m->y, H, NULL));
  } else {
    ok(moe_cuda_group_nt_float(l, m->act, F, w + MOE_AT_DOWN, m->y, H, NULL));
  }
  if (FS > 0) {
    shared_fwd(t, shared, m->rstd);
    ok(moe_cuda_sum_outputs_shared(l, m->y, t->dev_a, 1, &shared->homes, shared->y, t->out, NULL));
  } else {
    ok(moe_cuda_sum_outputs(l, m->y, t->dev_a, 1, t->out, NULL));
  }
}

static void backward(Ffn *t, const Room *m, Shared *shared)
{
  const MoeFfnList *l = &t->list;
  ok(moe_cuda_gather_rows(l, t->dev_dx, false, m->x, NULL));
  ok(moe_cuda_group_nn_float(l, m->x, H, t->dev_w + MOE_AT_DOWN, m->d, F, NULL));
  ok(moe_cuda_activate_back(l, m->d, m->gate_up, m->act, t->dw, NULL));
  if (BIAS) {
    ok(moe_cuda_bias_weights(l, m->x, t->dev_w + MOE_AT_DOWN_BIAS, t->dw, NULL));
  }
  ok(moe_cuda_group_nn_float(l, m->gate_up, 2 * F, t->dev_w, m->y, H, NULL));
  if (FS > 0) {
    shared_back(t, shared, m->rstd);
    ok(moe_cuda_sum_grads_shared(l, m->y, &shared->homes, shared->y, m->dh, NULL));
  } else {
    ok(moe_cuda_sum_grads(l, m->y, m->dh, NULL));
  }
  ok(moe_cuda_start_sums(l, t->dev_dx, 1, t->da, NULL));
  ok(moe_cuda_norm_back(t->dev_a, t->dev_gain, m->rstd, m->dh, t->rows, t->da, t->g_gain, m->partial, NULL));

  ok(moe_cuda_gather_rows(l, t->dev_dx, true, m->x, NULL));
  ok(moe_cuda_group_tn(l, m->x, H, m->act, F, t->gw + MOE_AT_DOWN, NULL));
  if (BIAS) {
    ok(moe_cuda_group_bias_back(l, m->x, H, t->gw + MOE_AT_DOWN_BIAS, NULL));
    ok(moe_cuda_group_bias_back(l, m->gate_up, 2 * F, t->gw + MOE_AT_GU_BIAS, NULL));
  }
  ok(moe_cuda_norm_rows(t->dev_a, t->dev_gain, m->rstd, l->group_row, t->pairs, m->x, NULL));
  ok(moe_cuda_group_tn(l, m->gate_up, 2 * F, m->x, H, t->gw, NULL));
}

static void launch_ffn(void *c)
{
  Ffn *t = c;
  size_t n = t->pairs;
  Shared shared;
  launch_group(t);
  t->out = out_new(t->rows * H * sizeof(MoeReal));
  t->da = out_new(t->rows * H * sizeof(float));
  t->dw = out_new(n * sizeof(float));
  t->gw = out_copy(t->gw0, t->experts * MOE_EXPERT_ELEMS * sizeof(float));
  t->g_gain = out_copy(t->gain0, H * sizeof(float));
  t->g_shared = out_copy(t->shared0, SHARED_ELEMS * sizeof(float));
  const Room m = {.rstd = dev_new(t->rows * sizeof(float)),
                  .y = dev_new(n * H * sizeof(float)),
                  .d = dev_new(n * F * sizeof(float)),
                  .dh = dev_new(t->rows * H * sizeof(float)),
                  .partial = dev_new(MOE_PARTS * H * sizeof(float)),
                  .normed = dev_new(t->rows * H * sizeof(MoeReal)),
                  .x = dev_new(n * H * sizeof(MoeReal)),
                  .gate_up = dev_new(n * 2 * F * sizeof(MoeReal)),
                  .act = dev_new(n * F * sizeof(MoeReal))};
  shared_new(t, &shared);
  forward(t, &m, &shared);
  backward(t, &m, &shared);
  shared_free(&shared);
  void *all[] = {m.rstd, m.y, m.d, m.dh, m.partial, m.normed, m.x, m.gate_up, m.act};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    dev_free(all[i]);
  }
}

typedef struct Twin {
  MoeReal *out, *da;
  float *dw, *gw, *g_gain, *g_shared;
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
                  .shared = t->shared,
                  .g_shared = twin->g_shared,
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
  double *out, *da, *dw, *gw, *g_gain, *g_shared;
  double *dw_size; /* dw with all terms positive */
} Want;

/* The activation and its derivatives. */
static double act64(bool clamped, double gate, double up, double *dg, double *du)
{
  double alpha = clamped ? MOE_ACT_ALPHA : 1.0;
  double g = clamped ? fmin(gate, MOE_ACT_LIMIT) : gate;
  double u = clamped ? fmax(fmin(up, MOE_ACT_LIMIT), -MOE_ACT_LIMIT) + 1.0 : up;
  double s = 1 / (1 + exp(-alpha * g));
  *dg = clamped && gate > MOE_ACT_LIMIT ? 0.0 : u * s * (1 + alpha * g * (1 - s));
  *du = clamped && fabs(up) > MOE_ACT_LIMIT ? 0.0 : g * s;
  return u * g * s;
}

/* An MLP of f hidden, gate and up [2 f, H] then down [H, f], and their biases or NULL; adds weight times its output and
   what that gives to gradients. */
static void mlp64(size_t f, const double *w, const double *gu_bias, const double *down_bias, bool clamped,
                  double weight, const double *h, const double *dx, double *gw, double *g_gu, double *g_down,
                  double *out, double *dh, double *dw, double *dw_size)
{
  double *act = calloc(5 * f + 1, sizeof *act);
  double *gate = act + f;
  double *d = gate + 2 * f;
  const double *down = w + 2 * f * H;
  ref_linear(gate, h, w, 1, H, (int64_t)(2 * f));
  for (size_t j = 0; j < f; j++) {
    double up = gate[f + j] + (gu_bias != NULL ? gu_bias[f + j] : 0.0);
    act[j] = act64(clamped, gate[j] + (gu_bias != NULL ? gu_bias[j] : 0.0), up, &d[j], &d[f + j]);
  }
  for (size_t i = 0; i < H; i++) {
    double y = ref_dot(down + i * f, act, (int64_t)f) + (down_bias != NULL ? down_bias[i] : 0.0);
    out[i] += weight * y;
    *dw += dx[i] * y;
    *dw_size += fabs(dx[i] * y);
    ref_axpy(gw + (2 * H + i) * f, weight * dx[i], act, (int64_t)f);
    if (down_bias != NULL) {
      g_down[i] += weight * dx[i];
    }
  }
  for (size_t j = 0; j < 2 * f; j++) {
    double by_act = 0;
    for (size_t i = 0; i < H; i++) {
      by_act += weight * dx[i] * down[i * f + j % f];
    }
    ref_axpy(gw + j * H, by_act * d[j], h, H);
    ref_axpy(dh, by_act * d[j], w + j * H, H);
    if (gu_bias != NULL) {
      g_gu[j] += by_act * d[j];
    }
  }
  free(act);
}

static void run64(const Ffn *t, Want *want)
{
  double *w = doubles_of(t->w, t->experts * MOE_EXPERT_ELEMS);
  double *gain = doubles_of(t->gain, H);
  double *shared = doubles_of(t->shared, SHARED_ELEMS);
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
      const double *bias = BIAS ? w + at : NULL;
      mlp64(F, w + at, BIAS ? bias + MOE_AT_GU_BIAS : NULL, BIAS ? bias + MOE_AT_DOWN_BIAS : NULL, MOE_CLAMPED,
            (double)t->pair[p].weight, h, dx + r * H, want->gw + at, want->gw + at + (BIAS ? MOE_AT_GU_BIAS : 0),
            want->gw + at + (BIAS ? MOE_AT_DOWN_BIAS : 0), out, dh, want->dw + p, want->dw_size + p);
    }
    if (FS > 0 && home) {
      double unused[2] = {0};
      mlp64(FS, shared, NULL, NULL, false, 1.0, h, dx + r * H, want->g_shared, NULL, NULL, out, dh, unused, unused + 1);
    }
    ref_rmsnorm_back(da, want->g_gain, dh, a + r * H, gain, 1, H, MOE_NORM_EPS);
  }
  free(w);
  free(gain);
  free(shared);
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
  t.shared = float_waves(SHARED_ELEMS, 7, 0.2f);
  t.shared0 = float_waves(SHARED_ELEMS, 8, 0.1f);
  MoeReal *shared_real = real_waves(SHARED_ELEMS, 7, 0.2f);
  t.dev_shared = dev_copy(shared_real, SHARED_ELEMS * sizeof *shared_real);
  free(shared_real);
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
               .g_gain = float_waves(H, 6, 0.1f),
               .g_shared = float_waves(SHARED_ELEMS, 8, 0.1f)};
  Want want = {.out = calloc(rows * H + 1, sizeof(double)),
               .da = calloc(rows * H + 1, sizeof(double)),
               .dw = calloc(t.pairs + 1, sizeof(double)),
               .dw_size = calloc(t.pairs + 1, sizeof(double)),
               .gw = doubles_of(t.gw0, n_w),
               .g_gain = doubles_of(t.gain0, H),
               .g_shared = doubles_of(t.shared0, SHARED_ELEMS)};
  MoeReal *da = real_waves(rows * H, 0, 0.0f);
  moe_keep_row(da, t.da, rows * H);
  run_twin(&t, &twin);
  run64(&t, &want);
  check_reals("FFN output", t.out, twin.out, want.out, rows * H);
  check_reals("FFN input gradient", da, twin.da, want.da, rows * H);
  check_sums("dweight", t.dw, twin.dw, want.dw, want.dw_size, t.pairs);
  check_floats("gain's gradient", t.g_gain, twin.g_gain, want.g_gain, H);
  check_floats("shared expert's gradient", t.g_shared, twin.g_shared, want.g_shared, SHARED_ELEMS);
  for (size_t e = 0; e < t.experts; e++) {
    size_t at = e * MOE_EXPERT_ELEMS;
    check_floats("expert's gradient", t.gw + at, twin.gw + at, want.gw + at, MOE_EXPERT_ELEMS);
    if (t.list.first[e] == t.list.first[e + 1]) {
      check_same("idle expert's gradient", t.gw + at, t.gw0 + at, MOE_EXPERT_ELEMS * sizeof(float));
    }
  }
  void *device[] = {t.dev_a, t.dev_dx, t.dev_w, t.dev_gain, t.dev_shared, heads, pair};
  for (size_t i = 0; i < sizeof device / sizeof *device; i++) {
    dev_free(device[i]);
  }
  void *all[] = {t.heads, t.pair,      t.a,          t.dx,     t.w,       t.gain,        t.gw0,        t.gain0, w_real,
                 da,      twin.out,    twin.da,      twin.dw,  twin.gw,   twin.g_gain,   want.out,     want.da, want.dw,
                 want.gw, want.g_gain, want.dw_size, t.shared, t.shared0, twin.g_shared, want.g_shared};
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

/* -- a plain MLP -- */

enum { FD = 29, MLP_ELEMS = 3 * FD * H };

typedef struct Mlp {
  size_t n;
  MoeReal *h, *dy, *w; /* the device's */
  float *g0;
  float *y, *dh, *g;
} Mlp;

static void launch_mlp(void *c)
{
  Mlp *t = c;
  MoeReal *gate_up = dev_new(t->n * 2 * FD * sizeof *gate_up);
  MoeReal *act = dev_new(t->n * FD * sizeof *act);
  float *d = dev_new(t->n * FD * sizeof *d);
  t->y = out_new(t->n * H * sizeof *t->y);
  t->dh = out_new(t->n * H * sizeof *t->dh);
  t->g = out_copy(t->g0, MLP_ELEMS * sizeof *t->g);
  ok(moe_cuda_mlp_inner(t->w, FD, t->h, t->n, gate_up, NULL));
  ok(moe_cuda_mlp_outer(t->w, FD, gate_up, t->n, act, t->y, NULL));
  ok(moe_cuda_mlp_dgrad_outer(t->w, FD, t->dy, t->n, d, gate_up, act, NULL));
  ok(moe_cuda_mlp_wgrad_outer(FD, t->dy, act, t->n, t->g, NULL));
  ok(moe_cuda_mlp_wgrad_inner(FD, gate_up, t->h, t->n, t->g, NULL));
  ok(moe_cuda_mlp_dgrad_inner(t->w, FD, gate_up, t->n, t->dh, NULL));
  dev_free(gate_up);
  dev_free(act);
  dev_free(d);
}

static void one_mlp(size_t n)
{
  MoeReal *h = real_waves(n * H, 1, 1.0f);
  MoeReal *dy = real_waves(n * H, 2, 1.0f);
  MoeReal *w = real_waves(MLP_ELEMS, 3, 0.2f);
  float *h_float = float_waves(n * H, 1, 1.0f);
  float *dy_float = float_waves(n * H, 2, 1.0f);
  float *w_float = float_waves(MLP_ELEMS, 3, 0.2f);
  float *g = float_waves(MLP_ELEMS, 4, 0.1f);
  Mlp t = {n,
           dev_copy(h, n * H * sizeof *h),
           dev_copy(dy, n * H * sizeof *dy),
           dev_copy(w, MLP_ELEMS * sizeof *w),
           float_waves(MLP_ELEMS, 4, 0.1f),
           NULL,
           NULL,
           NULL};
  in_all_orders(launch_mlp, &t);
  float *room = malloc((n * (3 * FD + 2 * H) + 1) * sizeof *room);
  float *gate_up = room;
  float *act = gate_up + n * 2 * FD;
  float *y = act + n * FD;
  float *dh = y + n * H;
  moe_mlp_inner(w_float, FD, h_float, n, gate_up);
  moe_mlp_outer(w_float, FD, gate_up, n, act, y);
  moe_mlp_dgrad_outer(w_float, FD, dy_float, n, gate_up, act);
  moe_mlp_wgrad_outer(FD, dy_float, act, n, g);
  moe_mlp_wgrad_inner(FD, gate_up, h_float, n, g);
  moe_mlp_dgrad_inner(w_float, FD, gate_up, n, dh);
  double *h64 = doubles_of(h_float, n * H);
  double *dy64 = doubles_of(dy_float, n * H);
  double *w64 = doubles_of(w_float, MLP_ELEMS);
  double *g64 = doubles_of(t.g0, MLP_ELEMS);
  double *y64 = calloc(n * H + 1, sizeof *y64);
  double *dh64 = calloc(n * H + 1, sizeof *dh64);
  for (size_t r = 0; r < n; r++) {
    double unused[2] = {0};
    mlp64(FD, w64, NULL, NULL, false, 1.0, h64 + r * H, dy64 + r * H, g64, NULL, NULL, y64 + r * H, dh64 + r * H,
          unused, unused + 1);
  }
  check_floats("MLP", t.y, y, y64, n * H);
  check_floats("MLP's input gradient", t.dh, dh, dh64, n * H);
  check_floats("MLP's weights", t.g, g, g64, MLP_ELEMS);
  dev_free(t.h);
  dev_free(t.dy);
  dev_free(t.w);
  void *all[] = {h, dy, w, h_float, dy_float, w_float, g, t.g0, room, h64, dy64, w64, g64, y64, dh64};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    free(all[i]);
  }
}

static void test_mlp(void **state)
{
  (void)state;
  one_mlp(0);
  one_mlp(1);
  one_mlp(67);
}

int test_experts(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_ffn),
      cmocka_unit_test(test_mlp),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
