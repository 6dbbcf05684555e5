/* Heads between projections and scores, and back: norms, clamps, turns, latents. */
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
  D = MOE_HEAD_DIM,
  DV = MOE_V_DIM,
  TURN = MOE_ROPE_DIM,
  HALF = TURN / 2,
  NOPE = MOE_NOPE,
  KVB = NOPE + DV,
  QKV = MOE_QKV_DIM,
  HEADS = MOE_HEADS,
  KV = MOE_KV_HEADS,
  G = MOE_GROUP,
  TURNED = MOE_TURNED_DIM,
  NORMED = (HEADS + KV) * D /* queries and keys */
};

typedef struct Heads {
  size_t seq, n;
  MoeReal *qkv;
  float *w, *d, *gw0;
  MoeReal *out, *dqkv;
  float *gw, *cosp, *sinp;
} Heads;

static void launch_heads(void *c)
{
  Heads *t = c;
  t->cosp = out_new(t->seq * HALF * sizeof(float));
  t->sinp = out_new(t->seq * HALF * sizeof(float));
  t->out = out_new(t->n * TURNED * sizeof(MoeReal));
  t->dqkv = out_new(t->n * QKV * sizeof(MoeReal));
  t->gw = out_copy(t->gw0, MOE_ATT_ELEMS * sizeof(float));
  float *partial = dev_new((size_t)MOE_PARTS * (MOE_QNORM_DIM + MOE_KNORM_DIM) * sizeof(float));
  ok(moe_cuda_rope_tables(t->seq, t->cosp, t->sinp, NULL));
  ok(moe_cuda_heads(t->qkv, t->w, t->cosp, t->sinp, t->seq, t->n, t->out, NULL));
  ok(moe_cuda_heads_back(t->qkv, t->w, t->cosp, t->sinp, t->seq, t->n, t->d, t->dqkv, t->gw, partial, NULL));
  dev_free(partial);
}

/* What heads.c makes of one sequence. d and dqkv as in Heads. */
static void heads_twin(size_t seq, const MoeReal *qkv, const float *w, const float *d, MoeReal *out, MoeReal *dqkv,
                       float *gw)
{
  MoeAttScratch t;
  uint8_t *room = aligned_alloc(64, moe_align64(moe_att_scratch_carve(NULL, seq, seq, 1, &t)));
  moe_att_scratch_carve(room, seq, seq, 1, &t);
  MoeCore core = t.core;
  core.q = malloc(seq * G * D * sizeof *core.q); /* of all positions at once */
  core.acc = malloc(seq * G * D * sizeof *core.acc);
  moe_rope_tables(&core, seq);
  moe_heads_open(&core, seq, qkv);
  for (size_t kv = 0; kv < KV; kv++) {
    size_t k = (HEADS + kv) * D;
    size_t v = NORMED + kv * DV;
    moe_load_keys(&core, seq, qkv, w, kv);
    moe_load_queries(&core, 0, seq, qkv, w, kv);
    for (size_t p = 0; p < seq; p++) {
      moe_keep_row(out + p * TURNED + kv * G * D, core.q + p * G * D, (size_t)G * D);
      moe_keep_row(out + p * TURNED + k, core.k + p * D, D);
      moe_keep_row(out + p * TURNED + v, core.v + p * DV, DV);
      memcpy(core.acc + p * G * D, d + p * TURNED + kv * G * D, (size_t)G * D * sizeof *d);
      memcpy(core.dk + p * D, d + p * TURNED + k, D * sizeof *d);
      memcpy(core.dv + p * DV, d + p * TURNED + v, DV * sizeof *d);
    }
    moe_store_queries(&core, 0, seq, qkv, w, kv, dqkv, gw);
    moe_store_keys(&core, seq, qkv, w, kv, dqkv, gw);
  }
  moe_heads_close(&core, seq, qkv, w, dqkv, gw);
  free(core.q);
  free(core.acc);
  free(room);
}

/* y [TURN] from x, or with by = -1 the gradient of x from that of y. */
static void turn64(size_t pos, double by, const double *x, double *y)
{
  for (size_t i = 0; i < HALF; i++) {
    double angle = (double)pos * pow(MOE_ROPE_THETA, -(double)i / HALF);
    size_t a = MOE_ROPE_PAIRS ? 2 * i : i;
    size_t b = MOE_ROPE_PAIRS ? 2 * i + 1 : i + HALF;
    y[a] = x[a] * cos(angle) - by * x[b] * sin(angle);
    y[b] = x[b] * cos(angle) + by * x[a] * sin(angle);
  }
}

static void latent_heads64(size_t pos, const double *x, const double *d, double *y, double *dx)
{
  double sum[TURN] = {0};
  for (size_t h = 0; h < HEADS; h++) {
    size_t q = h * D;
    size_t k = (HEADS + h) * D;
    size_t v = NORMED + h * DV;
    size_t own = MOE_KVB_COL + h * KVB;
    memcpy(y + q, x + MOE_Q_COL + q, NOPE * sizeof *y);
    turn64(pos, 1, x + MOE_Q_COL + q + NOPE, y + q + NOPE);
    memcpy(y + k, x + own, NOPE * sizeof *y);
    turn64(pos, 1, x + MOE_R_COL, y + k + NOPE);
    memcpy(y + v, x + own + NOPE, DV * sizeof *y);
    memcpy(dx + MOE_Q_COL + q, d + q, NOPE * sizeof *y);
    turn64(pos, -1, d + q + NOPE, dx + MOE_Q_COL + q + NOPE);
    memcpy(dx + own, d + k, NOPE * sizeof *y);
    memcpy(dx + own + NOPE, d + v, DV * sizeof *y);
    ref_axpy(sum, 1.0, d + k + NOPE, TURN);
  }
  turn64(pos, -1, sum, dx + MOE_R_COL);
}

static double clamp64(double x)
{
  return MOE_CLIP_QKV > 0.0 ? fmin(fmax(x, -MOE_CLIP_QKV), MOE_CLIP_QKV) : x;
}

void heads64(size_t pos, const double *x, const double *w, const double *d, double *y, double *dx, double *gw)
{
  static const size_t width = MOE_QK_NORM == 2 ? 0 : D; /* of a norm; 0: of all heads */
  double normed[NORMED];
  double dn[NORMED];
  if (MOE_LATENT) {
    latent_heads64(pos, x, d, y, dx);
    return;
  }
  memcpy(normed, x, sizeof normed);
  for (size_t at = 0, n; MOE_QK_NORM && at < NORMED; at += n) {
    bool is_q = at < MOE_Q_DIM;
    n = width > 0 ? width : is_q ? MOE_Q_DIM : MOE_KV_DIM;
    ref_rmsnorm(normed + at, x + at, w + (is_q ? MOE_AT_QNORM : MOE_AT_KNORM), 1, (int64_t)n, MOE_NORM_EPS);
  }
  for (size_t at = 0; at < NORMED; at += D) {
    double c[D];
    for (size_t i = 0; i < D; i++) {
      c[i] = clamp64(normed[at + i]);
    }
    turn64(pos, 1, c, y + at);
    turn64(pos, -1, d + at, dn + at);
    for (size_t i = 0; i < D; i++) {
      dn[at + i] = fabs(c[i] - normed[at + i]) > 0 ? 0.0 : dn[at + i];
    }
  }
  for (size_t i = NORMED; i < QKV; i++) {
    y[i] = clamp64(x[i]);
    dx[i] = fabs(y[i] - x[i]) > 0 ? 0.0 : d[i];
  }
  memcpy(dx, dn, sizeof dn);
  for (size_t at = 0, n; MOE_QK_NORM && at < NORMED; at += n) {
    bool is_q = at < MOE_Q_DIM;
    size_t gain = is_q ? MOE_AT_QNORM : MOE_AT_KNORM;
    n = width > 0 ? width : is_q ? MOE_Q_DIM : MOE_KV_DIM;
    memset(dx + at, 0, n * sizeof *dx);
    ref_rmsnorm_back(dx + at, gw + gain, dn + at, x + at, w + gain, 1, (int64_t)n, MOE_NORM_EPS);
  }
}

static void test_tokens(void **state)
{
  (void)state;
  static const size_t seqs[] = {1, 3, 37};
  for (size_t i = 0; i < sizeof seqs / sizeof *seqs; i++) {
    size_t seq = seqs[i];
    size_t n = 2 * seq;
    size_t from = MOE_LATENT ? MOE_R_COL : 0; /* latents have no part in this */
    Heads t = {.seq = seq, .n = n};
    MoeReal *qkv = real_waves(n * QKV, 1, 2.0f);
    float *w = float_waves(MOE_ATT_ELEMS, 2, 1.0f);
    float *d = float_waves(n * TURNED, 3, 0.5f);
    float *gw = float_waves(MOE_ATT_ELEMS, 4, 0.1f);
    MoeReal *out = real_waves(n * TURNED, 0, 0.0f);
    MoeReal *dqkv = real_waves(n * QKV, 0, 0.0f);
    double *x64 = doubles_of_reals(qkv, n * QKV);
    double *d64 = doubles_of(d, n * TURNED);
    double *w64 = doubles_of(w, MOE_ATT_ELEMS);
    double *gw64 = doubles_of(gw, MOE_ATT_ELEMS);
    double *y64 = malloc(n * TURNED * sizeof *y64);
    double *dx64 = calloc(n * QKV, sizeof *dx64);
    t.qkv = dev_copy(qkv, n * QKV * sizeof *qkv);
    t.w = dev_copy(w, MOE_ATT_ELEMS * sizeof *w);
    t.d = dev_copy(d, n * TURNED * sizeof *d);
    t.gw0 = gw;
    in_all_orders(launch_heads, &t);

    for (size_t at = 0; at < n; at += seq) {
      heads_twin(seq, qkv + at * QKV, w, d + at * TURNED, out + at * TURNED, dqkv + at * QKV, gw);
    }
    for (size_t at = 0; at < n; at++) {
      heads64(at % seq, x64 + at * QKV, w64, d64 + at * TURNED, y64 + at * TURNED, dx64 + at * QKV, gw64);
    }
    check_reals("heads", t.out, out, y64, n * TURNED);
    check_columns("dqkv", t.dqkv, dqkv, dx64, n, QKV, from, QKV - from);
    check_floats("gains' gradients", t.gw, gw, gw64, MOE_ATT_ELEMS);

    dev_free(t.qkv);
    dev_free(t.w);
    dev_free(t.d);
    void *all[] = {qkv, w, d, gw, out, dqkv, x64, d64, w64, gw64, y64, dx64};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
      free(all[k]);
    }
  }
}

/* -- latents -- */

enum { RQ = MOE_Q_LORA, RKV = MOE_KV_LORA, WIDEST = RQ > RKV ? RQ : RKV, IN = MOE_IN_DIM };

typedef struct Latent {
  size_t n;
  MoeReal *qkv0, *dqkv0, *w; /* the device's w */
  float *gains, *gw0;
  MoeReal *qkv, *dqkv;
  float *gw;
} Latent;

static void launch_latent(void *c)
{
  Latent *t = c;
  t->qkv = out_copy(t->qkv0, t->n * QKV * sizeof *t->qkv);
  t->dqkv = out_copy(t->dqkv0, t->n * QKV * sizeof *t->dqkv);
  t->gw = out_copy(t->gw0, MOE_ATT_ELEMS * sizeof *t->gw);
  MoeReal *latent = dev_new(t->n * WIDEST * sizeof *latent);
  float *d_latent = dev_new(t->n * WIDEST * sizeof *d_latent);
  float *partial = dev_new((size_t)MOE_PARTS * WIDEST * sizeof *partial);
  ok(moe_cuda_latent(t->w, t->gains, t->n, t->qkv, latent, NULL));
  ok(moe_cuda_latent_back(t->qkv, t->w, t->gains, t->n, t->dqkv, t->gw, d_latent, partial, NULL));
  ok(moe_cuda_latent_wgrad(t->qkv, t->gains, t->n, t->dqkv, t->gw, latent, NULL));
  dev_free(latent);
  dev_free(d_latent);
  dev_free(partial);
}

/* One latent of one token: x to y [to] by norm and w, and back from dy, which is that of y. */
static void expand64(size_t rank, size_t to, size_t gain, size_t at, const double *w, const double *x, double *y,
                     const double *dy, double *dx, double *gw)
{
  double c[WIDEST + 1];
  double dc[WIDEST + 1] = {0};
  ref_rmsnorm(c, x, w + gain, 1, (int64_t)rank, 1e-6);
  ref_linear(y, c, w + at, 1, (int64_t)rank, (int64_t)to);
  ref_linear_dx(dc, dy, w + at, 1, (int64_t)rank, (int64_t)to);
  ref_linear_dw(gw + at, dy, c, 1, (int64_t)rank, (int64_t)to);
  memset(dx, 0, rank * sizeof *dx);
  ref_rmsnorm_back(dx, gw + gain, dc, x, w + gain, 1, (int64_t)rank, 1e-6);
}

static void one_latent(size_t n)
{
  Latent t = {.n = n, .qkv0 = real_waves(n * QKV, 1, 1.0f), .dqkv0 = real_waves(n * QKV, 2, 1.0f)};
  float *w = float_waves(MOE_ATT_ELEMS, 3, 0.5f);
  MoeReal *w_real = real_waves(MOE_ATT_ELEMS, 3, 0.5f);
  float *gw = float_waves(MOE_ATT_ELEMS, 4, 0.1f);
  t.gw0 = float_waves(MOE_ATT_ELEMS, 4, 0.1f);
  double *w64 = doubles_of(w, MOE_ATT_ELEMS);
  double *gw64 = doubles_of(gw, MOE_ATT_ELEMS);
  double *x64 = doubles_of_reals(t.qkv0, n * QKV);
  double *d64 = doubles_of_reals(t.dqkv0, n * QKV);
  t.w = dev_copy(w_real, MOE_ATT_ELEMS * sizeof *w_real);
  t.gains = dev_copy(w, MOE_ATT_ELEMS * sizeof *w);
  in_all_orders(launch_latent, &t);

  float *rows = malloc(n * QKV * sizeof *rows);
  float *wide = malloc(n * QKV * sizeof *wide);
  float *latent = malloc(n * WIDEST * sizeof *latent + 1);
  MoeReal *qkv = malloc(n * QKV * sizeof *qkv);
  MoeReal *dqkv = real_waves(n * QKV, 2, 1.0f);
  moe_read_row(t.qkv0, n * QKV, rows);
  moe_latent(w, n, rows, latent);
  moe_keep_row(qkv, rows, n * QKV);
  moe_latent_back(qkv, w, n, dqkv, gw, wide, latent);
  moe_latent_wgrad(qkv, w, n, moe_floats(dqkv, n * QKV, wide), gw, latent);
  for (size_t i = 0; i < n; i++) {
    double *x = x64 + i * QKV;
    double *d = d64 + i * QKV;
    if (RQ > 0) {
      expand64(RQ, MOE_Q_DIM, MOE_AT_QNORM, MOE_AT_QB, w64, x, x + MOE_Q_COL, d + MOE_Q_COL, d, gw64);
    }
    expand64(RKV, MOE_KVB_DIM, MOE_AT_KNORM, MOE_AT_KVB, w64, x + MOE_C_COL, x + MOE_KVB_COL, d + MOE_KVB_COL,
             d + MOE_C_COL, gw64);
  }
  check_reals("expansions", t.qkv, qkv, x64, n * QKV);
  check_columns("gradients of latents", t.dqkv, dqkv, d64, n, QKV, 0, IN);
  check_floats("weights of latents", t.gw, gw, gw64, MOE_ATT_ELEMS);
  dev_free(t.w);
  dev_free(t.gains);
  void *all[] = {t.qkv0, t.dqkv0, t.gw0, w, w_real, gw, w64, gw64, x64, d64, rows, wide, latent, qkv, dqkv};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    free(all[i]);
  }
}

static void test_latents(void **state)
{
  (void)state;
  if (MOE_LATENT) {
    one_latent(1);
    one_latent(71);
  }
}

int test_heads(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_tokens),
      cmocka_unit_test(test_latents),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
