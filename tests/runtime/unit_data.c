/* Data order, token files, initial weights, learning rate, rates on the command line. */
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/data.h"
#include "runtime/init.h"
#include "runtime/job.h"
#include "runtime/log.h"
#include "runtime/options.h"

static char error[400];
static _Atomic uint32_t failed;

static void write_file(const char *path, const void *bytes, size_t n)
{
  FILE *f = fopen(path, "wb");
  assert_non_null(f);
  assert_int_equal(fwrite(bytes, 1, n, f), n);
  fclose(f);
}

static void forget_error(void)
{
  error[0] = '\0';
  failed = 0;
}

static MoeStatus open_data(MoeData *d, MoeFormat format, double holdout, int32_t seq, int32_t vocab)
{
  MoeDataIn in = {.path = "unit_data.bin",
                  .format = format,
                  .holdout = holdout,
                  .seq = seq,
                  .vocab = vocab,
                  .batch = 1,
                  .seed = 1,
                  .mask_token = MOE_NO_TOKEN,
                  .mask_after = MOE_NO_TOKEN};
  return moe_data_open(d, &in);
}

static void permutation_is_a_bijection(void **state)
{
  (void)state;
  static const uint64_t sizes[] = {1, 2, 3, 4, 5, 7, 16, 17, 100, 255, 256, 257, 1000, 4095, 4097, 10007};
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
    for (uint64_t key = 0; key < 3; key++) {
      uint64_t n = sizes[s];
      uint8_t *seen = calloc(n, 1);
      for (uint64_t i = 0; i < n; i++) {
        uint64_t p = moe_permute(key, n, i);
        assert_true(p < n);
        assert_false(seen[p]);
        seen[p] = 1;
      }
      free(seen);
    }
  }
}

static void epochs_visit_every_sample_in_other_orders(void **state)
{
  (void)state;
  MoeData d = {.in = {.seed = 3}, .n_train = 50};
  int visits[2][50] = {{0}};
  int same = 0;
  for (uint64_t i = 0; i < 50; i++) {
    visits[0][moe_data_sample(&d, i)]++;
    visits[1][moe_data_sample(&d, 50 + i)]++;
    same += moe_data_sample(&d, i) == moe_data_sample(&d, 50 + i);
  }
  for (int i = 0; i < 50; i++) {
    assert_int_equal(visits[0][i], 1);
    assert_int_equal(visits[1][i], 1);
  }
  assert_true(same < 10);
}

static void formats(void **state)
{
  (void)state;
  const uint16_t two[] = {1, 2, 3, 400, 5, 6, 7};
  const uint32_t four[] = {1, 2, 3, 70000, 5, 6, 7};
  MoeData d;
  int32_t tokens[4];
  write_file("unit_data.bin", two, sizeof two);
  assert_int_equal(open_data(&d, MOE_FORMAT_UINT16, 0, 3, 401), MOE_OK);
  assert_int_equal(d.n_train, 2);
  assert_int_equal(moe_data_read(&d, false, 1, tokens), MOE_OK);
  assert_memory_equal(tokens, ((int32_t[]){400, 5, 6, 7}), sizeof tokens);
  moe_data_close(&d);
  write_file("unit_data.bin", four, sizeof four);
  assert_int_equal(open_data(&d, MOE_FORMAT_UINT32, 0, 3, 70001), MOE_OK);
  assert_int_equal(moe_data_read(&d, false, 0, tokens), MOE_OK);
  assert_memory_equal(tokens, ((int32_t[]){1, 2, 3, 70000}), sizeof tokens);
  moe_data_close(&d);
  forget_error();
  assert_int_equal(open_data(&d, MOE_FORMAT_UINT32, 0, 3, 70000), MOE_EINVAL);
  assert_string_equal(error, "unit_data.bin: token 3 (byte 12) is id 70000, but the model's vocabulary has 70000");
  moe_data_close(&d);
  unlink("unit_data.bin");
}

static void sizes_and_parts(void **state)
{
  (void)state;
  static const struct {
    size_t bytes;
    double holdout;
    int64_t n_train, n_eval; /* n_train 0: refused */
  } cases[] = {{0, 0, 0, 0},  {1, 0, 0, 0},   {8, 0, 0, 0},    {9, 0, 1, 0},      {10, 0, 1, 0},    {16, 0, 1, 0},
               {17, 0, 2, 0}, {9, 0.1, 1, 0}, {10, 0.5, 0, 0}, {100, 0.1, 11, 1}, {90, 0.1, 10, 1}, {80, 0.1, 8, 0}};
  char *bytes = calloc(1, 200);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    MoeData d;
    write_file("unit_data.bin", bytes, cases[i].bytes);
    forget_error();
    MoeStatus status = open_data(&d, MOE_FORMAT_BYTES, cases[i].holdout, 8, 256);
    assert_int_equal(status, cases[i].n_train > 0 ? MOE_OK : MOE_EINVAL);
    assert_true(status == MOE_OK || (strstr(error, "9") != NULL && strstr(error, "tokens") != NULL));
    if (status == MOE_OK) {
      assert_int_equal(d.n_train, cases[i].n_train);
      assert_int_equal(d.n_eval, cases[i].n_eval);
    }
    moe_data_close(&d);
  }
  free(bytes);
  unlink("unit_data.bin");
}

static void evaluation_spreads(void **state)
{
  (void)state;
  MoeData d = {.n_eval = 10};
  assert_int_equal(moe_data_eval_sample(&d, 5, 0), 0);
  assert_int_equal(moe_data_eval_sample(&d, 5, 4), 8);
  assert_int_equal(moe_data_eval_sample(&d, 12, 9), 9);
  assert_int_equal(moe_data_eval_sample(&d, 12, 10), -1);
}

static void initial_weights(void **state)
{
  (void)state;
  enum { N = 200000 };
  uint64_t key = moe_init_key(1, "model.embed_tokens.weight");
  assert_true(key != moe_init_key(2, "model.embed_tokens.weight") && key != moe_init_key(1, "lm_head.weight"));
  double sum = 0, sum2 = 0, sum4 = 0;
  for (uint64_t i = 0; i < N; i++) {
    double z = moe_init_normal(key, i);
    sum += z;
    sum2 += z * z;
    sum4 += z * z * z * z;
  }
  assert_true(fabs(sum / N) < 0.01 && fabs(sum2 / N - 1) < 0.02 && fabs(sum4 / N - 3) < 0.15);
  MoeParam params[] = {{"norm", 0, 3, 0, 0.0f, 0, 0}, {"table", 3, 4, 2, 0.5f, 1, 0}};
  MoeBundle b = {.params = params, .n_params = 2};
  MoeBucket bucket = {.elems = 11, .n_params = 2};
  float whole[11] = {0};
  float parts[11] = {0};
  moe_init_bucket(&b, &bucket, 1, whole, 0, 11);
  moe_init_bucket(&b, &bucket, 1, parts, 0, 4);
  moe_init_bucket(&b, &bucket, 1, parts, 4, 11);
  assert_memory_equal(whole, parts, sizeof whole);
  assert_true(whole[2] == 1.0f && whole[3] == (float)(0.5 * moe_init_normal(moe_init_key(1, "table"), 0)));
}

static void learning_rate(void **state)
{
  (void)state;
  MoeBundle b = {.lr = 1.0, .lr_min = 0.1, .warmup = 4, .lr_steps = 14};
  static const struct {
    int64_t t;
    double lr;
  } cases[] = {{0, 0.25}, {3, 1.0}, {4, 1.0}, {9, 0.55}, {14, 0.1}, {1000, 0.1}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    assert_true(fabs(moe_learning_rate(&b, cases[i].t) - cases[i].lr) < 1e-12);
  }
  b.lr_steps = 0;
  assert_true(moe_learning_rate(&b, 1000) == 1.0);
  assert_true(moe_clip_scale(2.0, 1.0) < 0.5 && moe_clip_scale(0.5, 1.0) == 1.0 && moe_clip_scale(9, 0) == 1.0);
}

static void rates(void **state)
{
  (void)state;
  assert_true(moe_parse_rate("100MB/s") == 100e6 && moe_parse_rate("1Gbit/s") == 125e6);
  assert_true(moe_parse_rate("2.5 GiB/s") == 2.5 * 0x1p30 && moe_parse_rate("8bit/s") == 1);
  static const char *const wrong[] = {"",     "100",    "MB/s",   "100MB",    "100mb/s", "-1MB/s",
                                      "0B/s", "nanB/s", "infB/s", "1e400B/s", "1MB/sec"};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    assert_true(moe_parse_rate(wrong[i]) == 0);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(permutation_is_a_bijection),
      cmocka_unit_test(epochs_visit_every_sample_in_other_orders),
      cmocka_unit_test(formats),
      cmocka_unit_test(sizes_and_parts),
      cmocka_unit_test(evaluation_spreads),
      cmocka_unit_test(initial_weights),
      cmocka_unit_test(learning_rate),
      cmocka_unit_test(rates),
  };
  moe_log_to(error, sizeof error, &failed);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
