/* Attention of whole sequences, from raw projections to outputs and back: norm, rotation and the flash form, against
   fp64 with all scores at once, and against the C twin. */
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
  G = MOE_GROUP,
  QKV = MOE_QKV_DIM,
  TURNED = MOE_TURNED_DIM,
  O = MOE_O_DIM,
  HEADS = MOE_HEADS
};

typedef struct Attention {
  size_t layer, seq, n_seqs;
  MoeReal *qkv, *d_o;
  float *w, *gw0;
  MoeReal *o, *dqkv;
  float *lse, *gw;
} Attention;

static void launch_attention(void *c)
{
  Attention *t = c;
  size_t n = t->seq * t->n_seqs;
  t->o = out_new(n * O * sizeof *t->o);
  t->lse = out_new(n * HEADS * sizeof *t->lse);
  t->dqkv = out_new(n * QKV * sizeof *t->dqkv);
  t->gw = out_copy(t->gw0, MOE_ATT_ELEMS * sizeof *t->gw);
  MoeReal *turned = dev_new(n * MOE_TURNED_DIM * sizeof *turned);
  float *d = dev_new(n * MOE_TURNED_DIM * sizeof *d);
  float *cosp = dev_new(t->seq * MOE_ROPE_DIM / 2 * sizeof *cosp);
  float *sinp = dev_new(t->seq * MOE_ROPE_DIM / 2 * sizeof *sinp);
  float *delta = dev_new(n * HEADS * sizeof *delta);
  float *partial = dev_new((size_t)MOE_PARTS * (HEADS + MOE_QNORM_DIM + MOE_KNORM_DIM) * sizeof *partial);
  ok(moe_cuda_rope_tables(t->seq, cosp, sinp, NULL));
  ok(moe_cuda_heads(t->qkv, t->w, cosp, sinp, t->seq, n, turned, NULL));
  ok(moe_cuda_attention(turned, t->w, t->layer, t->seq, t->n_seqs, t->o, t->lse, NULL));
  ok(moe_cuda_attention_back(turned, t->w, t->layer, t->seq, t->n_seqs, t->o, t->lse, t->d_o, d, t->gw, delta, partial,
                             NULL));
  ok(moe_cuda_heads_back(t->qkv, t->w, cosp, sinp, t->seq, n, d, t->dqkv, t->gw, partial, NULL));
  void *all[] = {turned, d, cosp, sinp, delta, partial};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    dev_free(all[i]);
  }
}

typedef struct Twin {
  MoeReal *o, *dqkv;
  float *lse, *gw;
} Twin;

typedef struct Want {
  double *o, *dqkv, *lse, *gw;
  double *sinks_size; /* of the sinks' gradients with all terms positive */
} Want;

/* One query of one head: y and dy [seq, TURNED] are its sequence's heads and their gradients. */
static void query64(size_t q, size_t head, size_t first, const double *y, const double *w, const double *d_o, double *o,
                    double *lse, double *dy, Want *want)
{
  size_t k = MOE_Q_DIM + head / G * D;
  size_t v = MOE_Q_DIM + MOE_KV_HEADS * D + head / G * DV;
  const double *query = y + q * TURNED + head * D;
  double *p = malloc((q + 1) * sizeof *p);
  double best = MOE_SINKS ? w[MOE_AT_SINKS + head] : -INFINITY;
  double sum = 0;
  memset(o, 0, DV * sizeof *o);
  for (size_t j = first; j <= q; j++) {
    p[j] = MOE_SCORE_SCALE * ref_dot(query, y + j * TURNED + k, D);
    best = fmax(best, p[j]);
  }
  for (size_t j = first; j <= q; j++) {
    p[j] = exp(p[j] - best);
    sum += p[j];
  }
  sum += MOE_SINKS ? exp(w[MOE_AT_SINKS + head] - best) : 0.0;
  *lse = best + log(sum);
  for (size_t j = first; j <= q; j++) {
    p[j] /= sum;
    ref_axpy(o, p[j], y + j * TURNED + v, DV);
  }
  double delta = ref_dot(d_o, o, DV);
  for (size_t j = first; j <= q; j++) {
    double ds = MOE_SCORE_SCALE * p[j] * (ref_dot(d_o, y + j * TURNED + v, DV) - delta);
    ref_axpy(dy + q * TURNED + head * D, ds, y + j * TURNED + k, D);
    ref_axpy(dy + j * TURNED + k, ds, query, D);
    ref_axpy(dy + j * TURNED + v, p[j], d_o, DV);
  }
  if (MOE_SINKS) {
    double term = exp(w[MOE_AT_SINKS + head] - *lse) * delta;
    want->gw[MOE_AT_SINKS + head] -= term;
    want->sinks_size[head] += fabs(term);
  }
  free(p);
}

/* The sequence whose first token is `at`. qkv and w are raw. */
static void attention64(size_t layer, size_t at, size_t seq, const double *qkv, const double *w, const double *d_o,
                        Want *want)
{
  double *y = malloc(seq * TURNED * sizeof *y);
  double *dy = calloc(seq * TURNED, sizeof *dy);
  double *unused = calloc(MOE_ATT_ELEMS, sizeof *unused);
  bool windowed = MOE_WINDOW > 0 && (MOE_WINDOW_LAYERS == 0 || layer % 2 == (MOE_WINDOW_LAYERS == 2));
  for (int back = 0; back < 2; back++) {
    for (size_t i = 0; i < seq; i++) {
      heads64(i, qkv + (at + i) * QKV, w, dy + i * TURNED, y + i * TURNED, want->dqkv + (at + i) * QKV,
              back ? want->gw : unused);
    }
    for (size_t q = 0; back == 0 && q < seq; q++) {
      for (size_t head = 0; head < HEADS; head++) {
        size_t first = windowed && q + 1 > MOE_WINDOW ? q + 1 - MOE_WINDOW : 0;
        size_t out = (at + q) * O + head * DV;
        query64(q, head, first, y, w, d_o + out, want->o + out, want->lse + (at + q) * HEADS + head, dy, want);
      }
    }
  }
  free(y);
  free(dy);
  free(unused);
}

/* As att_layer.c calls it: the gradient of o waits in columns of dqkv. */
static void attention_twin(const Attention *t, size_t at, const MoeReal *qkv, const float *w, const MoeReal *d_o,
                           Twin *twin)
{
  MoeAttScratch s;
  uint8_t *room = aligned_alloc(64, moe_align64(moe_att_scratch_carve(NULL, t->seq, t->seq, 1, &s)));
  moe_att_scratch_carve(room, t->seq, t->seq, 1, &s);
  for (size_t i = at; i < at + t->seq; i++) {
    for (size_t head = 0; head < HEADS; head++) {
      memcpy(twin->dqkv + i * QKV + moe_out_col(head), d_o + i * O + head * DV, DV * sizeof *d_o);
    }
  }
  qkv += at * QKV;
  moe_rope_tables(&s.core, t->seq);
  moe_attention(&s.core, t->layer, t->seq, qkv, w, twin->o + at * O, twin->lse + at * HEADS);
  moe_attention_back(&s.core, t->layer, t->seq, qkv, w, twin->o + at * O, twin->lse + at * HEADS, twin->dqkv + at * QKV,
                     twin->gw);
  free(room);
}

static void one_attention(size_t layer, size_t seq)
{
  size_t n = 2 * seq;
  Attention t = {.layer = layer, .seq = seq, .n_seqs = 2};
  MoeReal *qkv = real_waves(n * QKV, 1, MOE_QK_NORM ? 2.0f : 1.0f);
  MoeReal *d_o = real_waves(n * O, 3, 1.0f);
  float *w = float_waves(MOE_ATT_ELEMS, 2, 1.0f);
  t.gw0 = float_waves(MOE_ATT_ELEMS, 4, 0.1f);
  Twin twin = {real_waves(n * O, 0, 0.0f), real_waves(n * QKV, 0, 0.0f), float_waves(n * HEADS, 0, 0.0f),
               float_waves(MOE_ATT_ELEMS, 4, 0.1f)};
  double *qkv64 = doubles_of_reals(qkv, n * QKV);
  double *d_o64 = doubles_of_reals(d_o, n * O);
  double *w64 = doubles_of(w, MOE_ATT_ELEMS);
  Want want = {calloc(n * O, sizeof(double)), calloc(n * QKV, sizeof(double)), calloc(n * HEADS, sizeof(double)),
               doubles_of(t.gw0, MOE_ATT_ELEMS), calloc(HEADS, sizeof(double))};
  t.qkv = dev_copy(qkv, n * QKV * sizeof *qkv);
  t.d_o = dev_copy(d_o, n * O * sizeof *d_o);
  t.w = dev_copy(w, MOE_ATT_ELEMS * sizeof *w);
  in_all_orders(launch_attention, &t);
  for (size_t at = 0; at < n; at += seq) {
    attention_twin(&t, at, qkv, w, d_o, &twin);
    attention64(layer, at, seq, qkv64, w64, d_o64, &want);
  }
  check_reals("attention", t.o, twin.o, want.o, n * O);
  check_floats("log of the denominator", t.lse, twin.lse, want.lse, n * HEADS);
  const size_t parts[3][2] = {
      {MOE_Q_COL, MOE_Q_DIM},
      {MOE_LATENT ? MOE_R_COL : MOE_Q_DIM, MOE_LATENT ? MOE_ROPE_DIM : MOE_KV_DIM},
      {MOE_LATENT ? MOE_KVB_COL : MOE_Q_DIM + MOE_KV_DIM, MOE_LATENT ? MOE_KVB_DIM : MOE_KV_DIM}};
  for (size_t part = 0; part < 3; part++) { /* each by itself, so that none hides behind another */
    static const char *const names[] = {"dq", "dk", "dv"};
    check_columns(names[part], t.dqkv, twin.dqkv, want.dqkv, n, QKV, parts[part][0], parts[part][1]);
  }
  if (MOE_SINKS) {
    check_sums("sinks' gradients", t.gw + MOE_AT_SINKS, twin.gw + MOE_AT_SINKS, want.gw + MOE_AT_SINKS, want.sinks_size,
               HEADS);
  }
  check_floats("gains' gradients", t.gw, twin.gw, want.gw, MOE_ATT_ELEMS);
  dev_free(t.qkv);
  dev_free(t.d_o);
  dev_free(t.w);
  void *all[] = {qkv,   d_o, w,     t.gw0,  twin.o,    twin.dqkv, twin.lse, twin.gw,
                 qkv64, w64, d_o64, want.o, want.dqkv, want.lse,  want.gw,  want.sinks_size};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    free(all[i]);
  }
}

static void test_lengths(void **state)
{
  (void)state;
  static const size_t seqs[] = {1, 2, 31, 33, 67};
  for (size_t i = 0; i < sizeof seqs / sizeof *seqs; i++) {
    one_attention(0, seqs[i]);
    if (MOE_WINDOW > 0) {
      one_attention(1, seqs[i]);
    }
  }
}

int test_attention(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_lengths),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
