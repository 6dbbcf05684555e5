/* What the systems, given times and tables of shares add to the language. */
#include "t.h"

#include "lang/spec_keys.h"

#include <math.h>

static const char base[] = "model m { layers = 8;  hidden = 128;  vocab = 512\n  attention { heads = 4 }\n"
                           "  moe { experts = 8;  top_k = 2;  hidden = 256 } }\n"
                           "cluster lab { nodes = 4;  node = n }\nshape a { seq = 128;  global_batch = 16 }\n";
static const char node[] = "node n { gpu = g;  gpus = 8;  nics = 8;  nvlink = 100 GB/s;  nic = 25 GB/s }\n";
static const char gpu[] = "gpu g { flops = 100 TFLOPS;  memory = 80 GiB;  hbm = 1 TB/s }\n";

static bool build(T *t, const char *text, Spec *spec)
{
  AstFile *file = t_parse(t, text);
  return file && spec_build(t->arena, t->diag, file, spec);
}

static void must_build(T *t, const char *text, Spec *spec)
{
  if (!build(t, text, spec)) {
    fail_msg("%s", t_messages(t));
  }
  assert_string_equal(t_messages(t), "");
}

/* Printed and read back it is the same. */
static void must_print_back(T *t, const Spec *spec)
{
  char *text = NULL;
  size_t n = 0;
  FILE *out = open_memstream(&text, &n);
  spec_print(spec, out);
  fclose(out);
  Spec again;
  const char *kept = arena_printf(t->arena, "%s", text);
  free(text);
  must_build(t, kept, &again);
  if (again.hash != spec->hash) {
    fail_msg("reads back differently:\n%s", kept);
  }
}

static void both_lists_of_systems_agree(void **state)
{
  (void)state;
  static const char *const systems[] = {
#define SYSTEM(id, name, colocated, ways, doc) name,
#include "lang/systems.def"
#undef SYSTEM
      "auto"};
  WordList words = key_rows[K_plan_schedule].words;
  assert_int_equal(words.n, SYSTEM_COUNT + 1);
  assert_int_equal(words.n, sizeof systems / sizeof systems[0]);
  for (int i = 0; i < words.n; i++) {
    assert_string_equal(words.words[i], systems[i]);
  }
  assert_true(system_is(SYSTEM_TUTEL, true) && !system_is(SYSTEM_TUTEL, false));
  assert_true(system_is(SYSTEM_AFD, false) && !system_is(SYSTEM_AFD, true));
  assert_false(system_is(SYSTEM_AUTO, true) || system_is(SYSTEM_AUTO, false));
}

static void systems_take_their_pins(void **state)
{
  (void)state;
  static const char *const right[] = {
      "schedule = af_pipe;  attention_stages = 2;  ffn_stages = 1;  attention_gpus = 3, 2;  in_flight = 4",
      "schedule = af_pipe;  placement = colocated;  stages = 2",
      "schedule = afd;  stages = 1;  attention_gpus = 4;  ffn_gpus = 8",
      "schedule = megatron;  stages = 4;  expert_parallel = 8;  virtual_stages = 2;  mb_group = 8",
      "schedule = megatron_overlap;  placement = colocated;  stages = 8",
      "schedule = tutel;  stages = 2;  chunks = 4;  dedup = rank",
      "schedule = tutel;  chunks = 1;  dedup = node",
      "schedule = tutel;  chunks = auto;  dedup = node",
      "schedule = dualpipe;  stages = 4;  expert_parallel = 3;  replicas = 2",
      "schedule = dualpipev;  virtual_stages = auto;  in_flight = auto;  chunks = auto;  attention_gpus = auto",
      "schedule = auto;  stages = 4;  attention_gpus = 2;  expert_parallel = 8;  virtual_stages = 2;  chunks = 2;  "
      "mb_group = 4;  in_flight = 3",
      "recompute = none;  optimizer_shard = all",
      "recompute = selective;  optimizer_shard = none"};
  uint64_t seen[sizeof right / sizeof right[0]];
  for (size_t i = 0; i < sizeof right / sizeof right[0]; i++) {
    T t;
    t_open(&t);
    Spec s;
    must_build(&t, arena_printf(t.arena, "%s%s%splan { %s }", base, node, gpu, right[i]), &s);
    must_print_back(&t, &s);
    seen[i] = s.hash;
    for (size_t j = 0; j < i; j++) {
      assert_true(seen[j] != seen[i]);
    }
    t_close(&t);
  }
}

static void pins_reach_the_plan(void **state)
{
  (void)state;
  T t;
  t_open(&t);
  Spec s;
  must_build(&t,
             arena_printf(t.arena,
                          "%s%s%splan { schedule = tutel;  stages = 4;  expert_parallel = 8;  virtual_stages = 2;  "
                          "chunks = 4;  mb_group = 6;  recompute = full;  optimizer_shard = all }",
                          base, node, gpu),
             &s);
  assert_int_equal(s.plan.system, SYSTEM_TUTEL);
  assert_int_equal(s.plan.attention_stages, 4);
  assert_int_equal(s.plan.ffn_stages, 4);
  assert_int_equal(s.plan.expert_parallel, 8);
  assert_int_equal(s.plan.virtual_stages, 2);
  assert_int_equal(s.plan.chunks, 4);
  assert_int_equal(s.plan.mb_group, 6);
  assert_int_equal(s.plan.recompute, RECOMPUTE_FULL);
  assert_int_equal(s.plan.optimizer_shard, OPT_SHARD_ALL);
  t_close(&t);
}

static void given_times(void **state)
{
  (void)state;
  T t;
  t_open(&t);
  Spec s;
  must_build(&t,
             arena_printf(t.arena,
                          "%s%s%scosts { attention_forward = 2 us;  ffn_forward = 3 us;  ffn_weight = 0 ns;  "
                          "attention_input = 1 ms;  combine = 5 ns }",
                          base, node, gpu),
             &s);
  assert_true(s.costs.given);
  assert_true(s.costs.att_fwd == 2000 && s.costs.att_dgrad == 1e6 && s.costs.att_wgrad == 2000);
  assert_true(s.costs.ffn_fwd == 3000 && s.costs.ffn_dgrad == 3000 && s.costs.ffn_wgrad == 0);
  assert_true(s.costs.dispatch == 0 && s.costs.combine == 5 && s.costs.p2p == 0);
  must_print_back(&t, &s);
  uint64_t hash = s.hash;
  must_build(&t, arena_printf(t.arena, "%s%s%s", base, node, gpu), &s);
  assert_false(s.costs.given);
  assert_true(s.hash != hash);
  hash = s.hash;
  must_build(
      &t, arena_printf(t.arena, "%s%s%scosts { attention_forward = 0 ns;  ffn_forward = 0 ns }", base, node, gpu), &s);
  assert_true(s.hash != hash); /* no time is not the modelled time */
  must_print_back(&t, &s);
  t_close(&t);
}

static void tables(void **state)
{
  (void)state;
  T t;
  t_open(&t);
  Spec s;
  must_build(
      &t,
      arena_printf(t.arena,
                   "%slet ROWS = 512\n"
                   "gpu g { flops = 100 TFLOPS;  memory = 80 GiB;  hbm = 1 TB/s\n  efficiency { comm_tax = 0.15\n"
                   "    grouped_gemm_rows = 64: 5%%, ROWS: 0.2,\n 4*ROWS: 0.55  # by rows\n"
                   "    attention_seq = 1Ki: 0.43;  attention_back_seq = 0.5*1Ki: 1, 1025: 0.1234567890123\n"
                   "    gemm_rows = none } }\n"
                   "node n { gpu = g;  gpus = 8;  nics = 8;  nvlink = 100 GB/s;  nic = 25 GB/s\n"
                   "         nic_bytes = 64 KiB: 0.3, 1 MB: 0.9;  nvlink_bytes = 1 B: 0.01 }",
                   base),
      &s);
  const GpuSpec *g = &s.cluster.gpu;
  assert_int_equal(g->eff_grouped_rows.n, 3);
  assert_true(g->eff_grouped_rows.x[0] == 64 && g->eff_grouped_rows.y[0] == 0.05);
  assert_true(g->eff_grouped_rows.x[2] == 2048 && g->eff_grouped_rows.y[2] == 0.55);
  assert_int_equal(g->eff_attention_seq.n, 1);
  assert_int_equal(g->eff_attention_back_seq.n, 2);
  assert_int_equal(g->eff_gemm_rows.n, 0);
  assert_true(g->comm_tax == 0.15);
  assert_true(s.cluster.nic_bytes.n == 2 && s.cluster.nic_bytes.x[0] == 65536 && s.cluster.nic_bytes.x[1] == 1e6);
  assert_true(s.cluster.nvlink_bytes.n == 1);
  must_print_back(&t, &s);
  uint64_t hash = s.hash;
  GpuSpec changed = *g;
  changed.eff_grouped_rows.y[1] = 0.21;
  s.cluster.gpu = changed;
  assert_true(spec_hash(&s) != hash);
  t_close(&t);
}

static void between_points(void **state)
{
  (void)state;
  Curve none = {0};
  assert_true(curve_at(&none, 100) == 0);
  Curve one = {.n = 1, .x = {64}, .y = {0.5}};
  assert_true(curve_at(&one, 1) == 0.5 && curve_at(&one, 64) == 0.5 && curve_at(&one, 1e9) == 0.5);
  Curve c = {.n = 3, .x = {64, 256, 1024}, .y = {0.1, 0.5, 0.4}};
  assert_true(curve_at(&c, 0) == 0.1 && curve_at(&c, 1) == 0.1 && curve_at(&c, 64) == 0.1);
  assert_true(curve_at(&c, 256) == 0.5 && curve_at(&c, 1024) == 0.4 && curve_at(&c, 1e12) == 0.4);
  assert_true(fabs(curve_at(&c, 128) - 0.3) < 1e-12); /* half way in log2 */
  assert_true(fabs(curve_at(&c, 512) - 0.45) < 1e-12);
  for (double x = 1; x < 1e5; x *= 1.01) {
    assert_true(curve_at(&c, x) >= 0.1 && curve_at(&c, x) <= 0.5);
  }
}

/* Sixteen points are allowed, seventeen are not. */
static void most_points(void **state)
{
  (void)state;
  for (int n = 15; n <= 18; n++) {
    T t;
    t_open(&t);
    const char *list = "";
    for (int i = 1; i <= n; i++) {
      list = arena_printf(t.arena, "%s%s%d: 0.5", list, i > 1 ? ", " : "", i);
    }
    Spec s;
    bool good = build(&t,
                      arena_printf(t.arena,
                                   "%s%sgpu g { flops = 100 TFLOPS;  memory = 80 GiB;  hbm = 1 TB/s\n"
                                   " efficiency { gemm_rows = %s } }",
                                   base, node, list),
                      &s);
    assert_true(good == (n <= CURVE_POINTS));
    assert_int_equal(diag_errors(t.diag), good ? 0 : 1);
    t_close(&t);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(both_lists_of_systems_agree),
                                     cmocka_unit_test(systems_take_their_pins),
                                     cmocka_unit_test(pins_reach_the_plan),
                                     cmocka_unit_test(given_times),
                                     cmocka_unit_test(tables),
                                     cmocka_unit_test(between_points),
                                     cmocka_unit_test(most_points)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
