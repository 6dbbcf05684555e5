/* Candidates are ranked by short steps: what is chosen must be close to the best of all candidates, each simulated in
   full, and the same every time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "codegen/evaluate.h"
#include "tests/plan/specs.h"

enum { MOST = 20 };

static Spec memory_bound(ShapeSpec *shape, int nodes, int layers, double gb)
{
  Spec spec = large_spec(shape, nodes);
  spec.model.layers = layers;
  spec.model.moe.imbalance = 1.1;
  spec.cluster.gpu.memory = (int64_t)(gb * 1e9);
  spec.plan.optimizer_shard = OPT_SHARD_AUTO;
  spec.plan.recompute = RECOMPUTE_AUTO;
  shape->global_batch = 256;
  return spec;
}

static int64_t best_of_all(const Spec *spec, SystemKind system)
{
  Arena *arena = arena_new();
  FILE *quiet = tmpfile();
  Diag *diag = diag_new(arena, quiet);
  Plan plans[MOST];
  bool infeasible = false;
  int n = plan_candidates(arena, diag, spec, 0, system, plans, MOST, &infeasible);
  int64_t best = 0;
  for (int i = 0; i < n; i++) {
    Arena *own = arena_new();
    Schedule sched;
    if (sched_build(own, diag, spec, &plans[i], &sched) && (best == 0 || sched.step_ns < best)) {
      best = sched.step_ns;
    }
    arena_free(own);
  }
  fclose(quiet);
  arena_free(arena);
  return best;
}

static void the_choice_is_near_the_best_candidate(void **state)
{
  (void)state;
  static const struct {
    int nodes, layers;
    double gb;
    SystemKind system;
  } cases[] = {{4, 12, 80, SYSTEM_AF_PIPE}, {4, 12, 40, SYSTEM_AF_PIPE},  {2, 10, 40, SYSTEM_AF_PIPE},
               {4, 12, 80, SYSTEM_AFD},     {2, 12, 60, SYSTEM_MEGATRON}, {2, 12, 60, SYSTEM_DUALPIPE}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    ShapeSpec shape;
    Spec spec = memory_bound(&shape, cases[i].nodes, cases[i].layers, cases[i].gb);
    Evaluation a, b = {0};
    evaluate_quietly(&spec, 0, cases[i].system, &a);
    int64_t best = best_of_all(&spec, cases[i].system);
    assert_true(a.ran);
    if (i == 0) {
      evaluate_quietly(&spec, 0, cases[i].system, &b);
      assert_int_equal(a.sched.step_ns, b.sched.step_ns);
    }
    print_message("%s: %d plans, %d in full; %.3f ms, the best of all %.3f ms\n", plan_system_name(cases[i].system),
                  a.n_plans, a.tried, (double)a.sched.step_ns * 1e-6, (double)best * 1e-6);
    assert_true((double)a.sched.step_ns <= 1.03 * (double)best);
    evaluation_free(&a);
    if (b.arena) {
      evaluation_free(&b);
    }
  }
}

/* One group a side is a plan of af_pipe, so af_pipe never loses to afd. */
static void single_groups_are_tried(void **state)
{
  (void)state;
  for (double gb = 80; gb > 30; gb -= 15) {
    ShapeSpec shape;
    Spec spec = memory_bound(&shape, 2, 6, gb);
    Evaluation pipe, afd;
    evaluate_quietly(&spec, 0, SYSTEM_AF_PIPE, &pipe);
    evaluate_quietly(&spec, 0, SYSTEM_AFD, &afd);
    assert_true(!afd.ran || (pipe.ran && pipe.sched.step_ns <= afd.sched.step_ns));
    assert_true(!pipe.ran || pipe.plan.system == SYSTEM_AF_PIPE);
    evaluation_free(&pipe);
    evaluation_free(&afd);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(the_choice_is_near_the_best_candidate),
                                     cmocka_unit_test(single_groups_are_tried)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
