/* The order of indexed sequences against vectors that order.py made; and what else follows from an order: parts, a run
   that goes on where another stopped, where that is refused. Usage: test_order order.txt */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/data.h"
#include "runtime/log.h"

enum { MAX_SEQS = 2000 };

static const char *vectors;
static char error[400];
static _Atomic uint32_t failed;

typedef struct Case {
  unsigned long long seed;
  int seq, samples, first, n_lengths;
  int32_t lengths[MAX_SEQS];
  int64_t tokens; /* of all sequences */
} Case;

static void put(FILE *f, uint64_t value, int n)
{
  for (int i = 0; i < n; i++) {
    assert_int_not_equal(fputc((int)(value >> 8 * i & 255), f), EOF);
  }
}

/* unit_order.bin, in which token i is i, and its index. */
static void write_set(Case *c)
{
  c->tokens = 0;
  FILE *f = fopen("unit_order.idx", "wb");
  assert_non_null(f);
  assert_int_equal(fwrite("MMIDIDX\0\0", 1, 9, f), 9);
  put(f, 1, 8);
  put(f, 4, 1);
  put(f, (uint64_t)c->n_lengths, 8);
  put(f, (uint64_t)c->n_lengths + 1, 8);
  for (int i = 0; i < c->n_lengths; i++) {
    put(f, (uint64_t)c->lengths[i], 4);
  }
  for (int i = 0; i < c->n_lengths; i++) {
    put(f, (uint64_t)c->tokens * 4, 8);
    c->tokens += c->lengths[i];
  }
  for (int i = 0; i <= c->n_lengths; i++) {
    put(f, (uint64_t)i, 8);
  }
  fclose(f);
  f = fopen("unit_order.bin", "wb");
  assert_non_null(f);
  for (int64_t i = 0; i < c->tokens; i++) {
    put(f, (uint64_t)i, 4);
  }
  fclose(f);
}

static bool read_case(FILE *f, Case *c)
{
  *c = (Case){0};
  if (fscanf(f, " case %llu %d %d %d", &c->seed, &c->seq, &c->samples, &c->first) != 4) {
    return false;
  }
  do {
    assert_true(c->n_lengths < MAX_SEQS);
    assert_int_equal(fscanf(f, "%d", &c->lengths[c->n_lengths++]), 1);
  } while (fgetc(f) == ',');
  write_set(c);
  return true;
}

static uint64_t hash_tokens(uint64_t h, const int32_t *tokens, int n)
{
  for (int i = 0; i < n; i++) {
    h = (h ^ (uint64_t)tokens[i]) * 0x100000001b3u;
  }
  return h;
}

static void order_equals_the_vectors(void **state)
{
  (void)state;
  Case c;
  MoeIndex index;
  MoeTokenFile bin;
  int n_cases = 0;
  FILE *f = fopen(vectors, "r");
  assert_non_null(f);
  for (; read_case(f, &c); n_cases++) {
    MoeOrder order;
    int epochs, total;
    unsigned long long hash = 0;
    assert_int_equal(fscanf(f, " total %d %d", &epochs, &total), 2);
    bool hashed = fscanf(f, " hash %llu", &hash) == 1;
    assert_int_equal(moe_index_open(&index, "unit_order.idx"), MOE_OK);
    assert_int_equal(moe_tokens_open(&bin, "unit_order.bin"), MOE_OK);
    assert_int_equal(moe_index_check(&index, &bin), MOE_OK);
    assert_int_equal(moe_tokens_layout(&bin, index.type, 0), MOE_OK);
    assert_int_equal(moe_order_build(&order, &index, c.first, c.n_lengths, c.seq, c.samples, c.seed), MOE_OK);
    assert_int_equal(order.epochs, epochs);
    assert_int_equal(order.n_samples, total);
    MoeTokenRange range = {(int32_t)c.tokens, MOE_NO_TOKEN};
    uint64_t own = 0xcbf29ce484222325u;
    for (int i = 0; i < total; i++) {
      int32_t tokens[64];
      int64_t sample = moe_order_sample(&order, i);
      assert_int_equal(moe_order_read(&order, &index, &bin, &range, sample, c.seq, tokens), MOE_OK);
      own = hash_tokens(own, tokens, c.seq + 1);
      for (int k = 0; k <= c.seq && !hashed; k++) {
        int expected;
        assert_int_equal(fscanf(f, "%d", &expected), 1);
        assert_int_equal(tokens[k], expected);
      }
    }
    assert_true(!hashed || own == hash);
    moe_order_free(&order);
    moe_tokens_close(&bin);
    moe_index_close(&index);
  }
  assert_true(feof(f));
  fclose(f);
  assert_int_equal(n_cases, 24);
}

static MoeStatus open_set(MoeData *d, double holdout, int64_t samples, uint64_t seed)
{
  MoeDataIn in = {.path = "unit_order",
                  .holdout = holdout,
                  .seq = 8,
                  .vocab = 1 << 20,
                  .batch = 4,
                  .seed = seed,
                  .samples = samples,
                  .mask_token = MOE_NO_TOKEN,
                  .mask_after = MOE_NO_TOKEN};
  error[0] = '\0';
  failed = 0;
  return moe_data_open(d, &in);
}

static void even_set(int n)
{
  Case c = {.n_lengths = n};
  for (int i = 0; i < n; i++) {
    c.lengths[i] = 12;
  }
  write_set(&c);
}

/* Parts are whole sequences; the held-out one is read as it lies. */
static void parts(void **state)
{
  (void)state;
  static const struct {
    double holdout;
    int64_t train, eval;
  } cases[] = {{0, 15 * 12, 0},
               {0.1, 14 * 12, 1},  /* 13.5: to the even one */
               {0.3, 10 * 12, 7},  /* 10.5 */
               {0.5, 8 * 12, 10}}; /* 7.5 */
  even_set(15);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    MoeData d;
    int32_t tokens[9];
    assert_int_equal(open_set(&d, cases[i].holdout, 3, 1), MOE_OK);
    assert_int_equal(d.format, MOE_FORMAT_INDEXED);
    assert_int_equal(d.train_tokens, cases[i].train);
    assert_int_equal(d.n_eval, cases[i].eval);
    for (int64_t k = 0; k < d.n_eval; k++) {
      assert_int_equal(moe_data_read(&d, true, k, tokens), MOE_OK);
      for (int t = 0; t < 9; t++) {
        assert_int_equal(tokens[t], cases[i].train + k * 8 + t);
      }
    }
    moe_data_close(&d);
  }
}

/* A run that goes on from a place reads what the run that was not stopped reads; other data is refused. */
static void places(void **state)
{
  (void)state;
  MoeData whole, rest;
  int32_t a[9], b[9];
  even_set(10);
  assert_int_equal(open_set(&whole, 0, 40, 7), MOE_OK);
  MoeDataPlace place = moe_data_place(&whole, 13);
  assert_int_equal(open_set(&rest, 0, (int64_t)place.samples, place.seed), MOE_OK);
  assert_int_equal(moe_data_check_place(&rest, &place), MOE_OK);
  for (uint64_t i = place.next; i < 40; i++) {
    assert_int_equal(moe_data_read(&whole, false, moe_data_sample(&whole, i), a), MOE_OK);
    assert_int_equal(moe_data_read(&rest, false, moe_data_sample(&rest, i), b), MOE_OK);
    assert_memory_equal(a, b, sizeof a);
  }
  moe_data_close(&rest);
  assert_int_equal(open_set(&rest, 0, 41, 7), MOE_OK);
  assert_int_equal(moe_data_check_place(&rest, &place), MOE_EINVAL);
  assert_non_null(strstr(error, "was 40 and is 41"));
  moe_data_close(&rest);
  assert_int_equal(open_set(&rest, 0, 40, 8), MOE_OK);
  assert_int_equal(moe_data_check_place(&rest, &place), MOE_EINVAL);
  assert_non_null(strstr(error, "seed of the order was 7 and is 8"));
  moe_data_close(&rest);
  MoeDataPlace other = place;
  other.content ^= 1;
  assert_int_equal(open_set(&rest, 0, 40, 7), MOE_OK);
  assert_int_equal(moe_data_check_place(&rest, &other), MOE_EINVAL);
  assert_non_null(strstr(error, "first and last 4096 bytes"));
  moe_data_close(&rest);
  even_set(11);
  assert_int_equal(open_set(&rest, 0, 40, 7), MOE_OK);
  assert_int_equal(moe_data_check_place(&rest, &place), MOE_EINVAL);
  moe_data_close(&rest);
  moe_data_close(&whole);
}

static void refused(void **state)
{
  (void)state;
  static const struct {
    int64_t samples;
    uint64_t seed;
    const char *said;
  } cases[] = {{3, 1ull << 32, "4294967296: the order of unit_order.idx is drawn from a seed below 2^32"},
               {INT64_MAX, 1, "more than 2^32 entries"},
               {1ll << 60, 1, "more than 2^32 entries"},
               {1ll << 33, 1, "more than 2^32 entries"}};
  even_set(10);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    MoeData d;
    assert_int_equal(open_set(&d, 0, cases[i].samples, cases[i].seed), MOE_EINVAL);
    assert_non_null(strstr(error, cases[i].said));
    moe_data_close(&d);
  }
}

int main(int argc, char **argv)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(order_equals_the_vectors),
      cmocka_unit_test(parts),
      cmocka_unit_test(places),
      cmocka_unit_test(refused),
  };
  if (argc != 2) {
    return 2;
  }
  vectors = argv[1];
  moe_log_to(error, sizeof error, &failed);
  int code = cmocka_run_group_tests(tests, NULL, NULL);
  unlink("unit_order.bin");
  unlink("unit_order.idx");
  return code;
}
