/* Attention of whole sequences, from raw projections to outputs: norm, rotation and the flash form, against fp64 with
   all scores at once, and against the C twin. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "check.h"
#include "tests/cuda/tests.h"
#include "tests/ref/ref_math.h"

enum { D = MOE_HEAD_DIM, DV = MOE_V_DIM, G = MOE_GROUP, QKV = MOE_QKV_DIM, O = MOE_O_DIM, HEADS = MOE_HEADS };

typedef struct Attention {
  size_t layer, seq, n_seqs;
  MoeReal *qkv;
  float *w;
  MoeReal *o;
  float *lse;
} Attention;

static void launch_attention(void *c)
{
  Attention *t = c;
  size_t n = t->seq * t->n_seqs;
  t->o = out_new(n * O * sizeof *t->o);
  t->lse = out_new(n * HEADS * sizeof *t->lse);
  MoeReal *turned = dev_new(n * QKV * sizeof *turned);
  float *cosp = dev_new(t->seq * D / 2 * sizeof *cosp);
  float *sinp = dev_new(t->seq * D / 2 * sizeof *sinp);
  ok(moe_cuda_rope_tables(t->seq, cosp, sinp, NULL));
  ok(moe_cuda_heads(t->qkv, t->w, cosp, sinp, t->seq, n, turned, NULL));
  ok(moe_cuda_attention(turned, t->w, t->layer, t->seq, t->n_seqs, t->o, t->lse, NULL));
  dev_free(turned);
  dev_free(cosp);
  dev_free(sinp);
}

/* One sequence. qkv and w are raw. */
static void attention64(size_t layer, size_t seq, const double *qkv, const double *w, double *o, double *lse)
{
  double *y = malloc(seq * QKV * sizeof *y);
  double *p = malloc((seq + 1) * sizeof *p);
  bool windowed = MOE_WINDOW > 0 && (MOE_WINDOW_LAYERS == 0 || layer % 2 == (MOE_WINDOW_LAYERS == 2));
  for (size_t at = 0; at < seq * QKV; at += D) {
    double unused[4][D] = {{0}};
    size_t head = at % QKV / D;
    const double *gain = w + (head < HEADS ? MOE_AT_QNORM : MOE_AT_KNORM);
    head64(at / QKV, head < HEADS + MOE_KV_HEADS, qkv + at, gain, unused[0], y + at, unused[1], unused[2]);
  }
  for (size_t q = 0; q < seq; q++) {
    for (size_t head = 0; head < HEADS; head++) {
      size_t first = windowed && q + 1 > MOE_WINDOW ? q + 1 - MOE_WINDOW : 0;
      const double *k = y + MOE_Q_DIM + head / G * D;
      double best = MOE_SINKS ? w[MOE_AT_SINKS + head] : -INFINITY;
      for (size_t j = first; j <= q; j++) {
        p[j] = MOE_SCORE_SCALE * ref_dot(y + q * QKV + head * D, k + j * QKV, D);
        best = fmax(best, p[j]);
      }
      double sum = MOE_SINKS ? exp(w[MOE_AT_SINKS + head] - best) : 0.0;
      double *out = o + q * O + head * DV;
      memset(out, 0, DV * sizeof *out);
      for (size_t j = first; j <= q; j++) {
        p[j] = exp(p[j] - best);
        sum += p[j];
        ref_axpy(out, p[j], k + j * QKV + MOE_KV_DIM, DV);
      }
      for (size_t i = 0; i < DV; i++) {
        out[i] /= sum;
      }
      lse[q * HEADS + head] = best + log(sum);
    }
  }
  free(y);
  free(p);
}

static void attention_twin(size_t layer, size_t seq, const MoeReal *qkv, const float *w, MoeReal *o, float *lse)
{
  MoeAttScratch t;
  uint8_t *room = aligned_alloc(64, moe_align64(moe_att_scratch_carve(NULL, seq, seq, 1, &t)));
  moe_att_scratch_carve(room, seq, seq, 1, &t);
  moe_rope_tables(&t.core, seq);
  moe_attention(&t.core, layer, seq, qkv, w, o, lse);
  free(room);
}

static void one_attention(size_t layer, size_t seq)
{
  size_t n = 2 * seq;
  Attention t = {.layer = layer, .seq = seq, .n_seqs = 2};
  MoeReal *qkv = real_waves(n * QKV, 1, MOE_QK_NORM ? 2.0f : 1.0f);
  float *w = float_waves(MOE_ATT_ELEMS, 2, 1.0f);
  MoeReal *o = malloc(n * O * sizeof *o);
  float *lse = malloc(n * HEADS * sizeof *lse);
  double *o64 = malloc(n * O * sizeof *o64);
  double *lse64 = malloc(n * HEADS * sizeof *lse64);
  double *qkv64 = doubles_of_reals(qkv, n * QKV);
  double *w64 = doubles_of(w, MOE_ATT_ELEMS);
  t.qkv = dev_copy(qkv, n * QKV * sizeof *qkv);
  t.w = dev_copy(w, MOE_ATT_ELEMS * sizeof *w);
  in_all_orders(launch_attention, &t);
  for (size_t at = 0; at < n; at += seq) {
    attention_twin(layer, seq, qkv + at * QKV, w, o + at * O, lse + at * HEADS);
    attention64(layer, seq, qkv64 + at * QKV, w64, o64 + at * O, lse64 + at * HEADS);
  }
  check_reals("attention", t.o, o, o64, n * O);
  check_floats("log of the denominator", t.lse, lse, lse64, n * HEADS);
  dev_free(t.qkv);
  dev_free(t.w);
  void *all[] = {qkv, w, o, lse, o64, lse64, qkv64, w64};
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
