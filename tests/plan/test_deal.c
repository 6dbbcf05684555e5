/* Which attention group gets which layer, and the head. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "codegen/cost_terms.h"
#include "tests/plan/specs.h"

/* Attention of a layer, or the head, of one sequence. */
static double load_of(const Spec *spec, int layer)
{
  static const MoeOpKind ops[] = {MOE_OP_ATT_FWD, MOE_OP_ATT_DGRAD, MOE_OP_ATT_WGRAD};
  bool head = layer == spec->model.layers;
  double ns = 0;
  for (int i = 0; i < (head ? 1 : 3); i++) {
    MoeOpKind op = head ? MOE_OP_HEAD : ops[i];
    ns += work_ns(spec, work_att(spec, op, head ? 0 : layer, spec->shapes[0].seq, 1, RECOMPUTE_NONE));
  }
  return ns;
}

/* Layers of attention in turns, or else shared out so that the busiest group has less: no more than the mean and one
   layer. Whose head it is: with turns that of a group with least to do. Returns whether they take no turns. */
static bool assert_dealt(const Spec *spec, const Plan *plan)
{
  double sum[64] = {0}, turns[64] = {0}, most = 0, turns_most = 0, mean = 0, largest = 0, least = INFINITY;
  int layers = spec->model.layers, p = plan->p_att;
  bool taken = true;
  assert_int_equal(plan->att_group[0], 0);
  for (int l = 0; l <= layers; l++) {
    double ns = load_of(spec, l);
    taken = taken && (l == layers || plan->att_group[l] == l % p);
    sum[plan->att_group[l]] += ns;
    turns[l % p] += l < layers ? ns : 0;
    largest = l < layers && ns > largest ? ns : largest;
    mean += ns / p;
  }
  for (int g = 0; g < p; g++) {
    most = sum[g] > most ? sum[g] : most;
    turns_most = turns[g] > turns_most ? turns[g] : turns_most;
    least = turns[g] < least ? turns[g] : least;
  }
  double head = load_of(spec, layers), busiest = least + head > turns_most ? least + head : turns_most;
  if (taken) {
    assert_true(most <= busiest * (1 + 1e-9));
  } else {
    assert_true(most < busiest * 0.99);
    assert_true(most <= (mean + largest > head ? mean + largest : head) * (1 + 1e-9));
  }
  return !taken;
}

static void no_group_is_busier_than_need_be(void **state)
{
  (void)state;
  int dealt = 0, one[] = {1};
  for (int layers = 1; layers <= 70; layers++) {
    for (int stages = 1; stages <= 16 && stages <= layers; stages++) {
      ShapeSpec shape;
      Spec spec = small_spec(&shape);
      spec.model.layers = layers;
      spec.model.dense.layers = layers > 3 && stages % 3 == 0 ? 2 : 0;
      spec.model.dense.hidden = 96;
      spec.model.attention.window = layers % 3 ? 0 : 8;
      spec.model.attention.window_layers = LAYERS_EVEN;
      spec.model.vocab *= layers % 2 ? 1 : 20;
      spec.cluster.gpus = 40;
      spec.plan.attention_stages = stages;
      spec.plan.ffn_stages = 1;
      spec.plan.attention_gpus = spec.plan.ffn_gpus = one;
      spec.plan.n_attention_gpus = spec.plan.n_ffn_gpus = 1;
      Run r = run_plan(&spec, SYSTEM_AF_PIPE, 1);
      assert_true(r.n);
      dealt += assert_dealt(&spec, &r.plans[0]);
      end_run(&r);
    }
  }
  assert_true(dealt > 50);
}

/* Qwen3's head takes as long as eight of its layers: with turns, one group of six had half more than the others. */
static void a_heavy_head_has_fewer_layers_beside_it(void **state)
{
  (void)state;
  ShapeSpec shape;
  Spec spec = small_spec(&shape);
  int one[] = {1};
  spec.model.layers = 12;
  spec.model.dense.layers = 0;
  spec.cluster.gpus = 8;
  spec.plan.attention_stages = 3;
  spec.plan.ffn_stages = 1;
  spec.plan.attention_gpus = spec.plan.ffn_gpus = one;
  spec.plan.n_attention_gpus = spec.plan.n_ffn_gpus = 1;
  while (load_of(&spec, 12) < 6 * load_of(&spec, 0)) {
    spec.model.vocab += 1000;
  }
  Run r = run_plan(&spec, SYSTEM_AF_PIPE, 1);
  assert_true(r.n);
  assert_true(assert_dealt(&spec, &r.plans[0]));
  assert_int_equal(plan_layers(&spec, &r.plans[0], 0, PLAN_A), 6);
  assert_int_equal(plan_layers(&spec, &r.plans[0], r.plans[0].att_group[12], PLAN_A), 0);
  end_run(&r);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(no_group_is_busier_than_need_be),
      cmocka_unit_test(a_heavy_head_has_fewer_layers_beside_it),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
