/* The head: loss, counts and both gradients of some tokens, in pieces, against fp64 and the C twin. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "check.h"
#include "tests/cuda/tests.h"
#include "tests/ref/ref_math.h"

enum { H = MOE_HIDDEN, V = MOE_VOCAB };

typedef struct Head {
  size_t n, chunk;
  double inv_tokens;
  bool keep; /* the logits */
  MoeReal *x, *table;
  int32_t *labels;
  float *gain, *gain0, *g0;
  MoeReal *dx;
  float *g_gain, *g_table, *logits;
  double *scalars;
  int32_t *status;
} Head;

static void launch_head(void *c)
{
  static const double zero[MOE_SC_COUNT];
  static const int32_t fine = MOE_OK;
  Head *t = c;
  size_t chunk = t->chunk;
  t->dx = out_new(t->n * H * sizeof *t->dx);
  t->g_gain = out_copy(t->gain0, H * sizeof *t->g_gain);
  t->g_table = out_copy(t->g0, (size_t)V * H * sizeof *t->g_table);
  t->logits = t->keep ? out_new(t->n * V * sizeof *t->logits) : NULL;
  t->scalars = out_copy(zero, sizeof zero);
  t->status = out_copy(&fine, sizeof fine);
  const MoeHeadIo io = {t->x,      t->labels,  t->gain,   t->table,   t->dx,
                        t->g_gain, t->g_table, t->logits, t->scalars, t->status};
  MoeHeadRoom room = {.chunk = chunk,
                      .y = dev_new(chunk * H * sizeof(MoeReal)),
                      .rstd = dev_new(chunk * sizeof(float)),
                      .logits = dev_new(chunk * V * sizeof(float)),
                      .dlogits = dev_new(chunk * V * sizeof(MoeReal)),
                      .dy = dev_new(chunk * H * sizeof(float)),
                      .dx = dev_new(chunk * H * sizeof(float)),
                      .partial = dev_new(MOE_PARTS * H * sizeof(float)),
                      .losses = dev_new(chunk * MOE_HEAD_LOSS_BYTES)};
  ok(moe_cuda_head(&io, t->n, t->inv_tokens, &room, NULL));
  void *all[] = {room.y, room.rstd, room.logits, room.dlogits, room.dy, room.dx, room.partial, room.losses};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    dev_free(all[i]);
  }
}

typedef struct Want {
  double *dx, *g_gain, *g_table, *logits, loss;
} Want;

static void tokens64(const Head *t, const double *x, const double *gain, const double *table, const int32_t *labels,
                     Want *want)
{
  double p[V];
  for (size_t i = 0; i < t->n; i++) {
    double y[H];
    double dy[H] = {0};
    double *z = want->logits + i * V;
    ref_rmsnorm(y, x + i * H, gain, 1, H, MOE_NORM_EPS);
    ref_linear(z, y, table, 1, H, V);
    if (labels[i] < 0) {
      continue;
    }
    ref_softmax(p, z, V);
    want->loss -= log(p[labels[i]]) * t->inv_tokens;
    for (size_t v = 0; v < V; v++) {
      double d = (p[v] - (v == (size_t)labels[i])) * t->inv_tokens;
      ref_axpy(dy, d, table + v * H, H);
      ref_axpy(want->g_table + v * H, d, y, H);
    }
    ref_rmsnorm_back(want->dx + i * H, want->g_gain, dy, x + i * H, gain, 1, H, MOE_NORM_EPS);
  }
}

typedef struct Twin {
  MoeReal *dx;
  float *g_gain, *g_table, *logits;
  double scalars[MOE_SC_COUNT];
} Twin;

/* embed_head.c on rows that come by PIPE. */
static void head_twin(const Head *t, const MoeReal *x, const float *gain, const float *table, const int32_t *labels,
                      Twin *twin)
{
  MoeAttSaved s;
  MoeAttWork work;
  MoeHeadScratch scratch;
  const MoeAttHead shape = {.seq = (uint32_t)t->n, .n_seqs = 1, .rows = (uint32_t)t->n};
  MoeIn in;
  MoeCall call = {.seq = (int32_t)t->n,
                  .mb_seqs = 1,
                  .n_seqs = 1,
                  .n_chunks = 1,
                  .n_src = 1,
                  .piped = true,
                  .w = gain,
                  .gw = twin->g_gain,
                  .table = table,
                  .g_table = twin->g_table,
                  .logits = twin->logits,
                  .labels = labels,
                  .inv_tokens = t->inv_tokens,
                  .scalars = twin->scalars,
                  .in = &in,
                  .n_in = 1};
  uint8_t *message = aligned_alloc(64, moe_align64(moe_msg_size(t->n, MOE_NO_HEAD, 0, 0)));
  MoeDraft draft = moe_draft(&call, message, t->n, MOE_NO_HEAD, 0, 0);
  memcpy(draft.rows, x, t->n * H * sizeof *x);
  in = (MoeIn){message, 0};
  call.saved = aligned_alloc(64, moe_align64(moe_att_saved_carve(NULL, &shape, &s)));
  call.work = aligned_alloc(64, moe_align64(moe_att_work_carve(NULL, t->n, &work)));
  call.scratch = aligned_alloc(64, moe_align64(moe_head_scratch_carve(NULL, 1, &scratch)));
  assert_int_equal(moe_head(&call), MOE_OK);
  moe_att_work_carve(call.work, t->n, &work);
  memcpy(twin->dx, work.dx, t->n * H * sizeof *work.dx);
  free(message);
  free(call.saved);
  free(call.work);
  free(call.scratch);
}

/* kind 0: some tokens do not count; 1: none does; 2: large logits, all kept. */
static void one_head(size_t n, size_t chunk, int kind)
{
  Head t = {.n = n, .chunk = chunk, .inv_tokens = 1.0 / (double)(n + 2), .keep = kind == 2};
  MoeReal *x = real_waves(n * H, 1, 2.0f);
  float *gain = float_waves(H, 2, 1.0f);
  float *table = float_waves((size_t)V * H, 3, kind == 2 ? 4.0f : 0.5f);
  MoeReal *table_real = real_waves((size_t)V * H, 3, kind == 2 ? 4.0f : 0.5f);
  int32_t *labels = malloc(n * sizeof *labels);
  double counted = 0;
  for (size_t i = 0; i < n; i++) {
    bool skipped = kind == 1 || (kind == 0 && i % 3 == 1);
    labels[i] = skipped ? -100 : i == 0 ? V - 1 : (int32_t)(i * 29 % V);
    counted += labels[i] >= 0;
  }
  t.gain0 = float_waves(H, 4, 0.01f);
  t.g0 = float_waves((size_t)V * H, 5, 0.01f);
  t.x = dev_copy(x, n * H * sizeof *x);
  t.table = dev_copy(table_real, (size_t)V * H * sizeof *table_real);
  t.labels = dev_copy(labels, n * sizeof *labels);
  t.gain = dev_copy(gain, H * sizeof *gain);
  in_all_orders(launch_head, &t);

  Twin twin = {.dx = real_waves(n * H, 0, 0.0f),
               .g_gain = float_waves(H, 4, 0.01f),
               .g_table = float_waves((size_t)V * H, 5, 0.01f),
               .logits = float_waves(n * V, 0, 0.0f)};
  head_twin(&t, x, gain, table, labels, &twin);
  double *x64 = doubles_of_reals(x, n * H);
  double *gain64 = doubles_of(gain, H);
  double *table64 = doubles_of(table, (size_t)V * H);
  Want want = {.dx = calloc(n * H, sizeof(double)),
               .g_gain = doubles_of(t.gain0, H),
               .g_table = doubles_of(t.g0, (size_t)V * H),
               .logits = calloc(n * V, sizeof(double))};
  tokens64(&t, x64, gain64, table64, labels, &want);
  check_reals("dx", t.dx, twin.dx, want.dx, n * H);
  check_floats("gain's gradient", t.g_gain, twin.g_gain, want.g_gain, H);
  check_floats("output table's gradient", t.g_table, twin.g_table, want.g_table, (size_t)V * H);
  if (t.keep) {
    check_floats("logits", t.logits, twin.logits, want.logits, n * V);
  }
  float loss[2] = {(float)t.scalars[MOE_SC_LOSS], (float)twin.scalars[MOE_SC_LOSS]};
  check_floats("loss", &loss[0], &loss[1], &want.loss, 1);
  assert_true(t.scalars[MOE_SC_TOKENS] >= counted && t.scalars[MOE_SC_TOKENS] <= counted);
  assert_true(!(t.scalars[MOE_SC_NONFINITE] > 0) && *t.status == MOE_OK);

  t.labels[n / 2] = V; /* outside */
  in_all_orders(launch_head, &t);
  assert_int_equal(*t.status, MOE_EINVAL);
  t.labels[n / 2] = 0;
  t.x[n / 2 * H] = moe_put(NAN);
  in_all_orders(launch_head, &t);
  assert_true(t.scalars[MOE_SC_NONFINITE] >= 1 && t.scalars[MOE_SC_NONFINITE] <= 1);

  void *device[] = {t.x, t.table, t.labels, t.gain};
  for (size_t i = 0; i < sizeof device / sizeof *device; i++) {
    dev_free(device[i]);
  }
  void *all[] = {x,          gain,    table,       labels,       t.gain0,      t.g0,
                 table_real, twin.dx, twin.g_gain, twin.g_table, twin.logits,  x64,
                 gain64,     table64, want.dx,     want.g_gain,  want.g_table, want.logits};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    free(all[i]);
  }
}

static void test_losses(void **state)
{
  (void)state;
  one_head(1, 1, 0);
  one_head(3, 64, 1);
  one_head(67, 32, 0);
  one_head(13, 13, 2);
}

int test_head(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_losses),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
