/* Stage orders of the colocated systems against published orders, counts and step times. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/sched/stagesim.h"

static uint64_t seed = 1;

static int draw(int low, int high)
{
  seed = seed * 6364136223846793005u + 1442695040888963407u;
  return low + (int)((seed >> 33) % (uint64_t)(high - low + 1));
}

/* ---- published orders ---- */

static void expect(const StageIn *in, const char *const *lines)
{
  Arena *arena = arena_new();
  StageOrder *orders = stagesim_orders(arena, in);
  for (int rank = 0; rank < in->ranks; rank++) {
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    stage_print(&orders[rank], out);
    fclose(out);
    assert_true(size > 0 && text[size - 1] == '\n');
    text[size - 1] = 0;
    assert_string_equal(text, lines[rank]);
    free(text);
  }
  arena_free(arena);
}

static void golden_orders(void **state)
{
  (void)state;
  static const SystemKind same[] = {SYSTEM_MEGATRON, SYSTEM_TUTEL, SYSTEM_COMET};
  for (int i = 0; i < 3; i++) {
    for (int g = 0; g <= 2; g += 2) {
      StageIn in = {.system = same[i], .ranks = 2, .virtual_stages = 2, .micro_batches = 4, .mb_group = g};
      expect(&in,
             (const char *const[]){"F0.0 F1.0 F0.2 F1.2 F2.0 B0.2 F3.0 B1.2 F2.2 B0.0 F3.2 B1.0 B2.2 B3.2 B2.0 B3.0",
                                   "F0.1 F1.1 F0.3 B0.3 F1.3 B1.3 F2.1 B0.1 F3.1 B1.1 F2.3 B2.3 F3.3 B3.3 B2.1 B3.1"});
    }
  }
  StageIn dual = {.system = SYSTEM_DUALPIPE, .ranks = 4, .micro_batches = 8};
  expect(&dual, (const char *const[]){
                    "F0.0 F1.0 F2.0 F4.3 b4.3 w4.3 F5.3 F3.0&B5.3 F6.3&B0.0 B6.3 F7.3&B1.0 B7.3 b2.0 w2.0 b3.0 w3.0",
                    "F0.1 F4.2 F1.1 F5.2 F2.1 B4.2 F6.2&B0.1 F3.1&B5.2 F7.2&B1.1 B6.2 B2.1 b7.2 b3.1 w7.2 w3.1",
                    "F4.1 F0.2 F5.1 F1.2 F6.1 B0.2 F2.2&B4.1 F7.1&B1.2 F3.2&B5.1 B2.2 B6.1 b3.2 b7.1 w3.2 w7.1",
                    "F4.0 F5.0 F6.0 F0.3 b0.3 w0.3 F1.3 F7.0&B1.3 F2.3&B4.0 B2.3 F3.3&B5.0 B3.3 b6.0 w6.0 b7.0 w7.0"});
  StageIn plain = {.system = SYSTEM_MEGATRON, .ranks = 3, .virtual_stages = 1, .micro_batches = 4};
  expect(&plain,
         (const char *const[]){"F0.0 F1.0 F2.0 B0.0 F3.0 B1.0 B2.0 B3.0", "F0.1 F1.1 B0.1 F2.1 B1.1 F3.1 B2.1 B3.1",
                               "F0.2 B0.2 F1.2 B1.2 F2.2 B2.2 F3.2 B3.2"});
  StageIn alone = {.system = SYSTEM_MEGATRON_OVERLAP, .ranks = 1, .virtual_stages = 1, .micro_batches = 3};
  expect(&alone, (const char *const[]){"F0.0 F1.0&B0.0 F2.0&B1.0 B2.0"});
  /* the table of groups of 3 over 5 micro-batches, 2 chunks, as far as the last rank's forwards show it */
  StageIn uneven = {.system = SYSTEM_MEGATRON, .ranks = 2, .virtual_stages = 2, .micro_batches = 5, .mb_group = 3};
  Arena *arena = arena_new();
  StageOrder *orders = stagesim_orders(arena, &uneven);
  static const int mbs[] = {0, 1, 2, 0, 1, 2, 3, 4, 3, 4}, chunks[] = {0, 0, 0, 1, 1, 1, 0, 0, 1, 1};
  for (int rank = 0; rank < 2; rank++) {
    int k = 0, back = 0;
    for (int i = 0; i < orders[rank].n; i++) {
      const StageStep *s = &orders[rank].steps[i];
      int *at = s->op == STAGE_F ? &k : &back;
      assert_int_equal(s->mb, mbs[*at]);
      assert_int_equal(s->stage, 2 * (s->op == STAGE_F ? chunks[*at] : 1 - chunks[*at]) + rank);
      ++*at;
    }
    assert_int_equal(k, 10);
    assert_int_equal(back, 10);
  }
  arena_free(arena);
}

/* Forwards before a rank's first backward, which is one more than the warm-up. */
static void counts(const StageIn *in, const int *warm_up, const int *live)
{
  Arena *arena = arena_new();
  StageOrder *orders = stagesim_orders(arena, in);
  for (int rank = 0; rank < in->ranks; rank++) {
    int n = 0;
    while (orders[rank].steps[n].op == STAGE_F) {
      n++;
    }
    if (warm_up) {
      assert_int_equal(n - 1, warm_up[rank]);
    }
    assert_int_equal(stage_live(&orders[rank]), live[rank]);
  }
  arena_free(arena);
}

static void warm_up_and_memory(void **state)
{
  (void)state;
  StageIn in = {.system = SYSTEM_MEGATRON, .ranks = 4, .virtual_stages = 2, .micro_batches = 8, .mb_group = 4};
  counts(&in, (const int[]){10, 8, 6, 4}, (const int[]){11, 9, 7, 5});
  in.system = SYSTEM_MEGATRON_OVERLAP;
  counts(&in, (const int[]){11, 9, 7, 5}, (const int[]){12, 10, 8, 6});
  in = (StageIn){.system = SYSTEM_MEGATRON, .ranks = 8, .virtual_stages = 2, .micro_batches = 16};
  counts(&in, NULL, (const int[]){23, 21, 19, 17, 15, 13, 11, 9});
  in = (StageIn){.system = SYSTEM_MEGATRON, .ranks = 8, .virtual_stages = 1, .micro_batches = 20};
  counts(&in, (const int[]){7, 6, 5, 4, 3, 2, 1, 0}, (const int[]){8, 7, 6, 5, 4, 3, 2, 1});
  for (int p = 2; p <= 16; p += 2) { /* the same on every rank, unlike 1F1B */
    for (int m = 2 * p; m <= 2 * p + 8; m += 2) {
      int live[16];
      for (int rank = 0; rank < p; rank++) {
        live[rank] = p + 1;
      }
      in = (StageIn){.system = SYSTEM_DUALPIPE, .ranks = p, .micro_batches = m};
      counts(&in, NULL, live);
      for (int rank = 0; rank < p / 2; rank++) {
        live[rank] = p + 1;
      }
      in = (StageIn){.system = SYSTEM_DUALPIPEV, .ranks = p / 2, .micro_batches = m};
      counts(&in, NULL, live);
    }
  }
}

/* ---- step times ---- */

static void check_values(void **state)
{
  (void)state;
  static const struct {
    SystemKind system;
    int p, v, m;
    int64_t pair, step;
  } cases[] = {
      {SYSTEM_MEGATRON, 2, 2, 4, 0, 27},          {SYSTEM_MEGATRON, 4, 2, 8, 0, 57},
      {SYSTEM_MEGATRON, 8, 2, 16, 0, 117},        {SYSTEM_MEGATRON, 8, 1, 20, 0, 81},
      {SYSTEM_MEGATRON_OVERLAP, 4, 2, 8, 2, 46},  {SYSTEM_MEGATRON_OVERLAP, 4, 4, 16, 2, 150},
      {SYSTEM_MEGATRON_OVERLAP, 8, 2, 16, 2, 94}, {SYSTEM_MEGATRON_OVERLAP, 8, 4, 32, 2, 302},
      {SYSTEM_DUALPIPE, 4, 1, 8, 3, 26},          {SYSTEM_DUALPIPE, 8, 1, 20, 3, 66},
      {SYSTEM_DUALPIPE, 16, 1, 32, 3, 110},       {SYSTEM_DUALPIPEV, 4, 1, 20, 3, 126},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    StageIn in = {cases[i].system, cases[i].p, cases[i].v, cases[i].m, 0};
    StagesimTimes t = {.f = 1, .b = 2, .i = 1, .w = 1, .pair = cases[i].pair};
    assert_int_equal(stagesim(&in, &t), cases[i].step);
  }
}

/* A random case of interleaved 1F1B. */
static StageIn random_interleaved(SystemKind system, int least_p, int least_v)
{
  Arena *arena = arena_new();
  StageIn in;
  do {
    in = (StageIn){system, draw(least_p, 8), draw(least_v, 5), draw(1, 40), 0};
    in.mb_group = draw(0, 2) ? draw(in.ranks, in.ranks + 8) : 0;
  } while (stage_refuses(arena, &in));
  arena_free(arena);
  return in;
}

static void same(const StageIn *in, const StagesimTimes *t, int64_t got, int64_t want)
{
  if (got != want) {
    print_error("p %d v %d M %d G %d, f %d b %d i %d w %d pair %d hop %d: %lld ns, want %lld\n", in->ranks,
                in->virtual_stages, in->micro_batches, in->mb_group, (int)t->f, (int)t->b, (int)t->i, (int)t->w,
                (int)t->pair, (int)t->hop, (long long)got, (long long)want);
  }
  assert_int_equal(got, want);
}

static StagesimTimes random_times(void)
{
  StagesimTimes t = {
      .f = draw(1, 1000), .b = draw(1, 2000), .i = draw(1, 1000), .w = draw(1, 1000), .pair = draw(1, 3000)};
  return t;
}

static int least(int64_t a, int64_t b)
{
  return (int)(a < b ? a : b);
}

static void interleaved_closed_form(void **state)
{
  (void)state;
  for (int i = 0; i < 300; i++) {
    StagesimTimes t = random_times();
    StageIn in = random_interleaved(SYSTEM_MEGATRON, 1, 1);
    int64_t n = (int64_t)in.micro_batches * in.virtual_stages, p = in.ranks;
    same(&in, &t, stagesim(&in, &t), (n + p - 1) * (t.f + t.b));
  }
}

/* Latency of hops in turns of p micro-batches. Exact while a hop is no longer than the shorter of the two passes,
   which is a third of both where backward is twice forward. */
static void hops_of_short_turns(void **state)
{
  (void)state;
  for (int i = 0; i < 300; i++) {
    StagesimTimes t = random_times();
    t.hop = draw(0, least(t.f, t.b));
    StageIn in = {SYSTEM_MEGATRON, draw(2, 8), draw(2, 5), 0, 0};
    in.mb_group = draw(0, 1) ? in.ranks : 0;
    in.micro_batches = in.ranks * draw(1, 5);
    int64_t n = (int64_t)in.micro_batches * in.virtual_stages, p = in.ranks, v = in.virtual_stages;
    same(&in, &t, stagesim(&in, &t), (n + p - 1) * (t.f + t.b) + 2 * (v * p - 1) * t.hop);
  }
}

/* Turns of p + 2 and more, the last one too, leave only the hops of fill and drain. */
static void hops_of_long_turns(void **state)
{
  (void)state;
  int n_cases = 0;
  while (n_cases < 300) {
    StagesimTimes t = random_times();
    StageIn in = random_interleaved(SYSTEM_MEGATRON, 2, 2);
    int64_t n = (int64_t)in.micro_batches * in.virtual_stages, p = in.ranks, g = in.mb_group;
    if (g < p + 2 || (in.micro_batches % g && in.micro_batches % g < p + 2)) {
      continue;
    }
    t.hop = draw(0, least(t.f, t.b) / 20);
    same(&in, &t, stagesim(&in, &t), (n + p - 1) * (t.f + t.b) + 2 * (p - 1) * t.hop);
    n_cases++;
  }
}

static void hops_of_plain_1f1b(void **state)
{
  (void)state;
  for (int i = 0; i < 200; i++) {
    StagesimTimes t = random_times();
    t.hop = draw(0, least(t.f, t.b) / 20);
    StageIn in = {SYSTEM_MEGATRON, draw(2, 8), 1, 0, 0};
    in.micro_batches = in.ranks * draw(1, 5);
    int64_t m = in.micro_batches, p = in.ranks;
    int64_t want = (m + p - 1) * (t.f + t.b) + (2 * (p - 1) * m / p + 2 * (p - 2)) * t.hop;
    same(&in, &t, stagesim(&in, &t), want);
  }
}

static void merged_closed_form(void **state)
{
  (void)state;
  for (int i = 0; i < 400; i++) {
    StagesimTimes t = random_times();
    StageIn in = {SYSTEM_MEGATRON_OVERLAP, draw(1, 8), draw(1, 5), 0, 0};
    in.virtual_stages += in.ranks > 1 && in.virtual_stages == 1;
    in.micro_batches = in.ranks * draw(1, 6);
    t.pair = t.f + t.b - draw(0, (int)(t.f < t.b ? t.f : t.b));
    int64_t m = in.micro_batches, p = in.ranks, v = in.virtual_stages;
    int64_t got = stagesim(&in, &t), want = (m * v - (v - 1) * p - 1) * t.pair + v * p * (t.f + t.b);
    same(&in, &t, got, want);
  }
}

static void dualpipe_closed_form(void **state)
{
  (void)state;
  for (int i = 0; i < 400; i++) {
    int64_t p = 2 * draw(1, 8), c = 2 * p + 2 * draw(0, 10);
    StagesimTimes t = {.f = draw(1, 1000)};
    t.i = t.f;
    t.w = draw(1, (int)t.f);
    t.b = t.i + t.w;
    t.pair = draw((int)t.b, (int)(t.f + t.b));
    StageIn in = {SYSTEM_DUALPIPE, (int)p, 1, (int)c, 0};
    int64_t got = stagesim(&in, &t);
    int64_t want = (p + 1) * (t.f + t.b) + (c - p - 1) * t.pair + (p / 2 - 1) * (t.pair + t.b - 3 * t.w);
    same(&in, &t, got, want);
  }
}

static void v_is_dualpipe_folded(void **state)
{
  (void)state;
  for (int i = 0; i < 200; i++) {
    StagesimTimes t = random_times();
    StageIn in = {SYSTEM_DUALPIPEV, draw(1, 8), 1, 0, 0};
    in.micro_batches = 2 * in.ranks + draw(0, 20);
    StageIn dual = {SYSTEM_DUALPIPE, 2 * in.ranks, 1, 2 * in.micro_batches, 0};
    int64_t got = stagesim(&in, &t), want = stagesim(&dual, &t);
    same(&in, &t, got, want);
  }
}

/* Hops of the asynchronous model as the sum of forward and backward waits: 9 for 4 ranks and 8 micro-batches, ... */
static void dualpipe_hops(void **state)
{
  (void)state;
  static const int cases[][3] = {{4, 8, 9}, {4, 16, 15}, {8, 16, 23}, {8, 32, 37}, {16, 64, 81}};
  for (int i = 0; i < 5; i++) {
    StageIn in = {SYSTEM_DUALPIPE, cases[i][0], 1, cases[i][1], 0};
    StagesimTimes t = {.f = 1000, .b = 2000, .i = 1000, .w = 1000, .pair = 3000};
    int64_t without = stagesim(&in, &t);
    t.hop = 1;
    print_message("%d ranks, %d micro-batches: %d hops\n", cases[i][0], cases[i][1],
                  (int)(stagesim(&in, &t) - without));
    assert_int_equal(stagesim(&in, &t) - without, cases[i][2]);
  }
}

/* ---- what cannot run ---- */

static void refused(StageIn in, const char *words)
{
  Arena *arena = arena_new();
  const char *why = stage_refuses(arena, &in);
  assert_non_null(why);
  if (!strstr(why, words)) {
    print_error("%s, which lacks \"%s\"\n", why, words);
  }
  assert_non_null(strstr(why, words));
  assert_null(strchr(why, '\n'));
  arena_free(arena);
}

static void refusals(void **state)
{
  (void)state;
  refused((StageIn){SYSTEM_DUALPIPE, 4, 1, 6, 0}, "dualpipe: 6 micro-batches, at least 8 (twice the pipeline ranks)");
  refused((StageIn){SYSTEM_DUALPIPE, 3, 1, 8, 0}, "dualpipe: 3 pipeline ranks, an even number such as 4");
  refused((StageIn){SYSTEM_DUALPIPE, 4, 1, 9, 0}, "9 micro-batches, an even number such as 10");
  refused((StageIn){SYSTEM_DUALPIPEV, 3, 1, 5, 0}, "dualpipev: 5 micro-batches, at least 6");
  refused((StageIn){SYSTEM_MEGATRON, 4, 2, 3, 0}, "megatron: 3 micro-batches, at least 4");
  refused((StageIn){SYSTEM_TUTEL, 4, 2, 8, 3}, "tutel: turns of 3 micro-batches, at least 4");
  refused((StageIn){SYSTEM_COMET, 4, 2, 8, 9}, "comet: 8 micro-batches, at least 9");
  refused((StageIn){SYSTEM_MEGATRON, 4, 2, 13, 5}, "13 micro-batches in turns of 5 leave a last turn of 3, at least 4");
  refused((StageIn){SYSTEM_MEGATRON_OVERLAP, 4, 1, 8, 0}, "megatron_overlap: 1 virtual stage, at least 2");
  refused((StageIn){SYSTEM_MEGATRON, 0, 1, 8, 0}, "0 pipeline ranks");
  refused((StageIn){SYSTEM_MEGATRON, 2, 0, 8, 0}, "0 virtual stages");
  refused((StageIn){SYSTEM_MEGATRON, 2, 1, 0, 0}, "0 micro-batches");
  for (int p = 1; p <= 6; p++) { /* the published condition, all over */
    for (int g = 1; g <= 14; g++) {
      for (int m = 1; m <= 20; m++) {
        Arena *arena = arena_new();
        StageIn in = {SYSTEM_MEGATRON, p, 3, m, g};
        bool legal = p <= g && g <= m && (m % g == 0 || m % g >= p);
        assert_int_equal(stage_refuses(arena, &in) == NULL, legal);
        arena_free(arena);
      }
    }
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(golden_orders),        cmocka_unit_test(warm_up_and_memory),
      cmocka_unit_test(check_values),         cmocka_unit_test(interleaved_closed_form),
      cmocka_unit_test(hops_of_short_turns),  cmocka_unit_test(hops_of_long_turns),
      cmocka_unit_test(hops_of_plain_1f1b),   cmocka_unit_test(merged_closed_form),
      cmocka_unit_test(dualpipe_closed_form), cmocka_unit_test(v_is_dualpipe_folded),
      cmocka_unit_test(dualpipe_hops),        cmocka_unit_test(refusals),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
