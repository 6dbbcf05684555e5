/* Plans in words and pictures. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "codegen/cost.h"
#include "codegen/plan_explain.h"
#include "tests/plan/specs.h"

static void explanations_name_what_binds(void **state)
{
  (void)state;
  for (int s = 0; s < SYSTEM_COUNT; s++) {
    ShapeSpec shape;
    Spec spec = small_spec(&shape);
    shape.global_batch = 64;
    spec.plan.expert_parallel = plan_system_colocated((SystemKind)s) ? 2 : 0;
    Run r = run_plan(&spec, (SystemKind)s, 3);
    char *text = NULL, *svg = NULL;
    size_t n = 0, m = 0;
    FILE *out = open_memstream(&text, &n), *picture = open_memstream(&svg, &m);
    plan_explain(&spec, r.plans, r.n, out);
    plan_roofline_svg(&spec, r.plans, 1, picture);
    fclose(out);
    fclose(picture);
    static const char *const words[] = {"why: ", "turning point", "binds", "memory: ", "a token travels once per "};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
      if (!strstr(text, words[i])) {
        print_error("\"%s\" is missing in:\n%s", words[i], text);
      }
      assert_non_null(strstr(text, words[i]));
    }
    assert_null(strstr(text, "nan"));
    if (plan_system_colocated((SystemKind)s)) {
      assert_null(strstr(text, "both sides"));
    }
    assert_null(strstr(svg, "nan"));
    assert_null(strstr(svg, "inf\""));
    assert_non_null(strstr(svg, "</svg>"));
    assert_non_null(strstr(svg, "<circle"));
    free(text);
    free(svg);
    end_run(&r);
  }
}

/* The table and the reasons name the same side and the same limit, whatever binds; over both sides and both limits. */
static void table_and_reasons_agree_on_what_binds(void **state)
{
  (void)state;
  unsigned long long seed = 7;
  int seen[2][2] = {{0}};
  for (int i = 0; i < 120; i++) {
    ShapeSpec shape;
    Spec spec = small_spec(&shape);
    shape.global_batch = 64;
    spec.model.vocab = in_range(&seed, 0, 1) ? 64 : 20000;
    spec.cluster.nodes = in_range(&seed, 1, 3);
    spec.cluster.gpus = in_range(&seed, 2, 8);
    spec.cluster.nic *= in_range(&seed, 0, 1) ? 1 : 0.01;
    spec.model.moe.hidden = 16 * in_range(&seed, 1, 40);
    Run r = run_plan(&spec, SYSTEM_AF_PIPE, 1);
    char *text = NULL, word[2][32], limit[2][32];
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    assert_true(r.n);
    plan_print(&spec, &r.plans[0], out);
    plan_explain(&spec, r.plans, r.n, out);
    fclose(out);
    const char *table = strstr(text, "binds: "), *reasons = strstr(text, "  the "),
               *its = strstr(text, "per micro-batch, its ");
    assert_true(table && reasons && its);
    assert_int_equal(sscanf(table, "binds: %31s %31[a-z]", word[0], limit[0]), 2);
    assert_int_equal(sscanf(reasons, "  the %31s", word[1]), 1);
    assert_int_equal(sscanf(its, "per micro-batch, its %31[a-z]", limit[1]), 1);
    assert_string_equal(word[0], word[1]);
    assert_string_equal(limit[0], limit[1]);
    seen[word[0][0] == 'F'][limit[0][0] == 'n']++;
    free(text);
    end_run(&r);
  }
  assert_true(seen[0][0] && seen[1][0] && seen[0][1] + seen[1][1]);
}

/* A group that has all layers of its side takes as long as all of them, whatever runs again. */
static void pace_counts_what_runs_again(void **state)
{
  (void)state;
  for (Recompute r = RECOMPUTE_NONE; r <= RECOMPUTE_FULL; r++) {
    ShapeSpec shape;
    Spec spec = small_spec(&shape);
    spec.plan.attention_stages = spec.plan.ffn_stages = 1;
    spec.plan.recompute = r;
    Run run = run_plan(&spec, SYSTEM_AF_PIPE, 1);
    assert_int_equal(run.n, 1);
    const Plan *plan = &run.plans[0];
    double head = (double)cost_op_ns(&spec, plan, MOE_OP_HEAD, spec.model.layers), layers = spec.model.layers;
    double att = plan_side(&spec, plan, PLAN_A).compute_ns, ffn = plan_side(&spec, plan, PLAN_F).compute_ns;
    assert_true(fabs(plan_pace(&spec, plan, PLAN_A).compute_ns / (layers * att + head) - 1) < 1e-12);
    assert_true(fabs(plan_pace(&spec, plan, PLAN_F).compute_ns / (layers * ffn) - 1) < 1e-12);
    end_run(&run);
  }
}

/* Text of a colocated plan that keeps to a dedup. */
static char *explained(Spec *spec, Dedup dedup)
{
  spec->plan.dedup = dedup;
  spec->plan.expert_parallel = 2;
  Run r = run_plan(spec, SYSTEM_MEGATRON, 1);
  char *text = NULL;
  size_t n = 0;
  FILE *out = open_memstream(&text, &n);
  plan_explain(spec, r.plans, r.n, out);
  fclose(out);
  end_run(&r);
  return text;
}

/* Half of the rows stay on a rank that has half of the experts: 1 of 2 leaves, without dedup and as what dedup is
   measured by. A pair of experts of 8, 4 of them here: 1 - (4 * 3) / (8 * 7) of the tokens need the other rank. */
static void rows_that_leave_are_compared_with_rows_that_leave(void **state)
{
  (void)state;
  ShapeSpec shape;
  Spec spec = small_spec(&shape);
  assert_int_equal(spec.model.moe.experts, 8);
  assert_int_equal(spec.model.moe.top_k, 2);
  char *flat = explained(&spec, DEDUP_FLAT), *rank = explained(&spec, DEDUP_RANK);
  assert_non_null(strstr(flat, "once per chosen expert: of its 2 rows 1 leave the rank"));
  assert_non_null(strstr(rank, "once per rank: 0.786 rows leave its rank instead of 1, "));
  free(flat);
  free(rank);
}

static void given_times_have_no_roofline(void **state)
{
  (void)state;
  ShapeSpec shape;
  Spec spec = small_spec(&shape);
  spec.costs = (CostsSpec){.given = true,
                           .att_fwd = 1e3,
                           .att_dgrad = 1e3,
                           .att_wgrad = 1e3,
                           .ffn_fwd = 1e3,
                           .ffn_dgrad = 1e3,
                           .ffn_wgrad = 1e3,
                           .dispatch = 4e3,
                           .combine = 4e3};
  char *text = explained(&spec, DEDUP_RANK);
  assert_non_null(strstr(text, "the spec's own times"));
  assert_null(strstr(text, "FLOP"));
  assert_null(strstr(text, "turning point"));
  free(text);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(explanations_name_what_binds),
      cmocka_unit_test(table_and_reasons_agree_on_what_binds),
      cmocka_unit_test(pace_counts_what_runs_again),
      cmocka_unit_test(rows_that_leave_are_compared_with_rows_that_leave),
      cmocka_unit_test(given_times_have_no_roofline),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
