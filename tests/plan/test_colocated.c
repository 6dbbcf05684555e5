/* Plans of the colocated systems: what each must be, what is said when there is none, and the closed forms against the
   values that their publications and the rules of the orders give. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "codegen/plan_stage.h"
#include "runtime/moe_layout.h"
#include "tests/plan/specs.h"

static const SystemKind colocated[] = {SYSTEM_MEGATRON, SYSTEM_MEGATRON_OVERLAP, SYSTEM_TUTEL,
                                       SYSTEM_COMET,    SYSTEM_DUALPIPE,         SYSTEM_DUALPIPEV};
enum { N_COLOCATED = sizeof colocated / sizeof *colocated };

/* ---- plans ---- */

/* Stages are contiguous and in order, each on the group that the order says, in every direction; the ways mirror each
   other; every layer's experts and attention are together. */
static void assert_stages(const Spec *spec, const Plan *p)
{
  int layers = spec->model.layers;
  assert_int_equal(p->ways, plan_system_ways(p->system));
  for (int w = 0; w < p->ways; w++) {
    for (int l = 0; l < layers; l++) {
      int stage = (int)moe_part_of(layers, p->n_stages, l), g = plan_stage_group(p, w, stage);
      assert_int_equal(plan_att(spec, p, w, l), g);
      assert_int_equal(plan_ffn(spec, p, w, l), g);
      assert_int_equal(plan_combine(spec, p, w, l), g);
    }
    assert_int_equal(plan_att(spec, p, w, layers), plan_att(spec, p, w, layers - 1));
  }
  for (int g = 0; g < p->n_groups; g++) {
    assert_int_equal(p->groups[g].role, PLAN_A | PLAN_F);
    assert_int_equal(p->groups[g].n_ranks, p->groups[0].n_ranks);
    assert_int_equal(p->groups[g].first_rank, g * p->groups[0].n_ranks);
    assert_true(p->groups[g].live > 0);
    assert_true(p->groups[g].memory.total <= spec->cluster.gpu.memory);
  }
}

static StageIn order_of(const Plan *p)
{
  return (StageIn){.system = p->system,
                   .ranks = p->n_groups,
                   .virtual_stages =
                       p->system == SYSTEM_DUALPIPE || p->system == SYSTEM_DUALPIPEV ? 1 : p->n_stages / p->n_groups,
                   .micro_batches = p->micro_batches,
                   .mb_group = p->mb_group};
}

static Spec random_spec(unsigned long long *seed, ShapeSpec *shape)
{
  Spec s = small_spec(shape);
  s.shapes = shape;
  s.cluster.nodes = in_range(seed, 1, 4);
  s.cluster.gpus = in_range(seed, 2, 8);
  s.cluster.nics = s.cluster.gpus;
  s.cluster.nic = 1e8 * in_range(seed, 1, 40);
  s.cluster.gpu.memory = (int64_t)in_range(seed, 40, 400) << 20;
  s.model.layers = in_range(seed, 2, 12);
  s.model.dense.layers = in_range(seed, 0, 3) == 0;
  s.model.dense.hidden = 200;
  s.model.moe.experts = in_range(seed, 2, 16);
  s.plan.recompute = RECOMPUTE_AUTO;
  shape->micro_batch = in_range(seed, 1, 2);
  shape->global_batch = in_range(seed, 4, 200);
  return s;
}

static void every_system_gives_sound_plans(void **state)
{
  (void)state;
  unsigned long long seed = 4242;
  int found[N_COLOCATED] = {0}, deep = 0;
  for (int i = 0; i < 60; i++) {
    ShapeSpec shape;
    Spec spec = random_spec(&seed, &shape);
    spec.shapes = &shape;
    for (int k = 0; k < N_COLOCATED; k++) {
      Run r = run_plan(&spec, colocated[k], 4), again = run_plan(&spec, colocated[k], 1);
      assert_int_equal(r.n > 0, again.n > 0);
      if (r.n == 0 && !r.infeasible) {
        print_error("case %d, %s:\n%s", i, plan_system_name(colocated[k]), r.text);
      }
      assert_true(r.n > 0 || r.infeasible);
      for (int c = 0; c < r.n; c++) {
        const Plan *p = &r.plans[c];
        StageIn in = order_of(p);
        assert_int_equal(p->system, colocated[k]);
        assert_null(stage_refuses(r.arena, &in));
        assert_int_equal(stage_count(&in), p->n_stages);
        assert_stages(&spec, p);
        assert_true(c == 0 || p->step_ns >= r.plans[c - 1].step_ns);
        deep += p->n_groups > 1;
      }
      if (r.n) {
        assert_true(again.plans[0].step_ns == r.plans[0].step_ns);
        assert_int_equal(again.plans[0].n_stages, r.plans[0].n_stages);
      }
      found[k] += r.n > 0;
      end_run(&r);
      end_run(&again);
    }
  }
  for (int k = 0; k < N_COLOCATED; k++) {
    print_message("%s: %d of 60\n", plan_system_name(colocated[k]), found[k]);
    assert_true(found[k] > 20);
  }
  assert_true(deep > 100);
}

static void pins_are_kept(void **state)
{
  (void)state;
  ShapeSpec shape;
  Spec spec = small_spec(&shape);
  shape.global_batch = 64;
  spec.model.layers = 8;
  spec.plan.attention_stages = spec.plan.ffn_stages = 2;
  spec.plan.expert_parallel = 2;
  spec.plan.virtual_stages = 2;
  spec.plan.chunks = 2;
  spec.plan.mb_group = 4;
  spec.plan.replicas = 2;
  for (int k = 0; k < N_COLOCATED; k++) {
    Run r = run_plan(&spec, colocated[k], 8);
    bool dual = colocated[k] == SYSTEM_DUALPIPE || colocated[k] == SYSTEM_DUALPIPEV;
    assert_int_equal(r.n, 1);
    const Plan *p = &r.plans[0];
    assert_int_equal(p->n_groups, 2);
    assert_int_equal(p->groups[0].n_ranks, 2);
    assert_int_equal(p->replicas, 2);
    assert_int_equal(p->chunks, colocated[k] == SYSTEM_TUTEL ? 2 : 1);
    assert_int_equal(p->n_stages, colocated[k] == SYSTEM_DUALPIPE ? 2 : 4);
    assert_int_equal(p->mb_group, 4);
    assert_int_equal(p->recompute, RECOMPUTE_NONE);
    assert_true(dual || p->n_stages == 4);
    assert_string_equal(p->solver.name, "pinned");
    end_run(&r);
  }
}

static void must_say(const Spec *spec, SystemKind system, bool infeasible, const char *a, const char *b)
{
  Run r = run_plan(spec, system, 1);
  assert_int_equal(r.n, 0);
  if (r.infeasible != infeasible || !strstr(r.text, a) || !strstr(r.text, b)) {
    print_error("%s: infeasible %d, wanted \"%s\" and \"%s\":\n%s", plan_system_name(system), r.infeasible, a, b,
                r.text);
  }
  assert_int_equal(r.infeasible, infeasible);
  assert_non_null(strstr(r.text, a));
  assert_non_null(strstr(r.text, b));
  end_run(&r);
}

static void refusals_name_what_is_missing(void **state)
{
  (void)state;
  ShapeSpec shape;
  Spec base = small_spec(&shape), spec = base;
  spec.plan.attention_stages = spec.plan.ffn_stages = 3;
  must_say(&spec, SYSTEM_DUALPIPE, true, "3 pipeline ranks", "even");
  spec.plan.attention_stages = spec.plan.ffn_stages = 4;
  spec.plan.expert_parallel = 2;
  must_say(&spec, SYSTEM_DUALPIPE, true, "4 micro-batches", "at least 8");
  spec.plan.replicas = 2;
  must_say(&spec, SYSTEM_MEGATRON, true, "16 GPUs", "8 too few");
  /* of what the planner may choose, what comes closest: not one pipeline rank, which nobody asked for */
  spec = base;
  spec.plan.expert_parallel = 4;
  must_say(&spec, SYSTEM_DUALPIPE, true, "2 micro-batches, at least 4", "1 replica ");
  spec = base;
  spec.plan.replicas = 8;
  must_say(&spec, SYSTEM_DUALPIPE, true, "ask for 16 GPUs", "8 too few");
  spec = base;
  spec.plan.attention_stages = spec.plan.ffn_stages = 1;
  must_say(&spec, SYSTEM_DUALPIPE, true, "1 pipeline rank,", "such as 2");
  spec = base;
  spec.model.layers = 1;
  must_say(&spec, SYSTEM_DUALPIPE, false, "2 runs", "1 layer:");
  must_say(&spec, SYSTEM_DUALPIPEV, false, "2 runs", "1 layer:");
  spec = base;
  spec.plan.attention_stages = spec.plan.ffn_stages = 4;
  must_say(&spec, SYSTEM_MEGATRON_OVERLAP, true, "1 virtual stage, at least 2", "4 layers leave each pipeline rank 1");
  spec = base;
  spec.plan.chunks = 4;
  shape.seq = 2;
  must_say(&spec, SYSTEM_TUTEL, false, "chunks = 4", "2 tokens");
  shape.seq = 64;
  spec = base;
  spec.plan.virtual_stages = 5;
  must_say(&spec, SYSTEM_MEGATRON, false, "5 runs", "4 layers");
  spec = base;
  spec.plan.expert_parallel = 9;
  must_say(&spec, SYSTEM_TUTEL, false, "expert_parallel = 9", "8 experts");
  spec = base;
  spec.plan.attention_stages = 2;
  spec.plan.ffn_stages = 1;
  must_say(&spec, SYSTEM_COMET, false, "attention_stages = 2", "ffn_stages = 1");
  spec = base;
  spec.cluster.gpu.memory = 1 << 20;
  for (int k = 0; k < N_COLOCATED; k++) {
    must_say(&spec, colocated[k], true, "GPU memory is", "smallest change: memory = ");
  }
  spec = base;
  spec.plan.attention_stages = 2;
  must_say(&spec, SYSTEM_AFD, false, "afd has one group", "attention_stages asks for 2");
}

/* The memory that the error names is enough. */
static void memory_shortage_is_exact(void **state)
{
  (void)state;
  for (int k = 0; k < N_COLOCATED; k++) {
    ShapeSpec shape;
    Spec spec = small_spec(&shape);
    shape.global_batch = 64;
    spec.cluster.gpu.memory = 1 << 20;
    Run r = run_plan(&spec, colocated[k], 1);
    const char *at = strstr(r.text, "smallest change: memory = ");
    assert_non_null(at);
    long mib = strtol(at + strlen("smallest change: memory = "), NULL, 10);
    end_run(&r);
    spec.cluster.gpu.memory = (int64_t)mib << 20;
    r = run_plan(&spec, colocated[k], 1);
    assert_int_equal(r.n, 1);
    end_run(&r);
    spec.cluster.gpu.memory = (int64_t)(mib - 1) << 20;
    r = run_plan(&spec, colocated[k], 1);
    assert_int_equal(r.n, 0);
    end_run(&r);
  }
}

static void afd_has_two_groups(void **state)
{
  (void)state;
  ShapeSpec shape;
  Spec spec = small_spec(&shape);
  Run r = run_plan(&spec, SYSTEM_AFD, 4);
  assert_true(r.n > 0);
  for (int i = 0; i < r.n; i++) {
    assert_int_equal(r.plans[i].system, SYSTEM_AFD);
    assert_int_equal(r.plans[i].n_groups, 2);
    assert_int_equal(r.plans[i].p_att, 1);
    assert_int_equal(r.plans[i].p_ffn, 1);
  }
  end_run(&r);
}

/* ---- closed forms ---- */

/* Forward f and backward b of one layer per stage, all compute, nothing else. */
static double unit_step(SystemKind system, int p, int v, int m, double f, double b, double w)
{
  ShapeSpec shape;
  Spec spec = small_spec(&shape);
  int stages = system == SYSTEM_DUALPIPE ? p : system == SYSTEM_DUALPIPEV ? 2 * p : p * v;
  spec.model.layers = stages;
  spec.model.dense.layers = 0;
  spec.plan.system = system;
  spec.costs.given = true; /* no gradient exchange */
  StageTimes t = {.att_fwd = f, .att_dgrad = b - w, .att_wgrad = w, .chunks = 1};
  StageLayout at = {.stages = stages, .virtual_stages = v, .p = p, .n = 1, .replicas = 1, .micro_batches = m};
  at.mb_group = p;
  return stage_step_ns(&spec, &at, &t);
}

static void published_steps(void **state)
{
  (void)state;
  static const struct {
    SystemKind system;
    int p, v, m;
    double f, b, w, step;
  } cases[] = {
      {SYSTEM_MEGATRON, 2, 2, 4, 1, 2, 1, 27},         {SYSTEM_MEGATRON, 4, 2, 8, 1, 2, 1, 57},
      {SYSTEM_MEGATRON, 8, 2, 16, 1, 2, 1, 117},       {SYSTEM_MEGATRON, 8, 1, 20, 1, 2, 1, 81},
      {SYSTEM_MEGATRON_OVERLAP, 4, 2, 8, 1, 2, 1, 57}, /* compute alone does not overlap: FB = f + b */
      {SYSTEM_DUALPIPE, 4, 1, 8, 1, 2, 1, 26},         {SYSTEM_DUALPIPE, 8, 1, 20, 1, 2, 1, 66},
      {SYSTEM_DUALPIPE, 16, 1, 32, 1, 2, 1, 110},      {SYSTEM_DUALPIPEV, 4, 1, 20, 1, 2, 1, 126},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    double got = unit_step(cases[i].system, cases[i].p, cases[i].v, cases[i].m, cases[i].f, cases[i].b, cases[i].w);
    if (fabs(got - cases[i].step) > 1e-9) {
      print_error("%s p%d v%d M%d: %g, published %g\n", plan_system_name(cases[i].system), cases[i].p, cases[i].v,
                  cases[i].m, got, cases[i].step);
    }
    assert_true(fabs(got - cases[i].step) <= 1e-9);
  }
}

/* Merged pairs of four layers, per layer: attention, experts, dispatch, combine. */
static void published_pairs(void **state)
{
  (void)state;
  static const double rows[][5] = {{1, 1, 0.5, 0.5, 6.0}, {1, 1, 1, 1, 6.0},      {1, 0.8, 1, 1, 5.4},
                                   {1, 0.5, 1, 1, 5.0},   {2, 0.5, 1, 1, 8.0},    {1, 1, 1.5, 1.5, 6.125},
                                   {1, 1, 2, 2, 8.0},     {0.5, 1, 1.5, 1.5, 6.0}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const double *x = rows[i];
    StageTimes t = {.att_fwd = x[0],
                    .att_dgrad = x[0],
                    .att_wgrad = x[0],
                    .ffn_fwd = x[1],
                    .ffn_dgrad = x[1],
                    .ffn_wgrad = x[1],
                    .dispatch = x[2],
                    .dispatch_b = x[2],
                    .combine = x[3],
                    .combine_b = x[3]};
    double per = stage_merged_ns(&t, 4, 0) / 4;
    if (fabs(per - x[4]) > 0.26) {
      print_error("row %zu: %g per layer, published %g\n", i, per, x[4]);
    }
    assert_true(fabs(per - x[4]) <= 0.26);
  }
}

/* What the search assumes that a rank keeps is what its order keeps. */
static void live_stages_follow_the_orders(void **state)
{
  (void)state;
  Arena *arena = arena_new();
  for (int k = 0; k < N_COLOCATED; k++) {
    for (int p = 1; p <= 8; p++) {
      for (int v = 1; v <= 4; v++) {
        for (int m = 1; m <= 33; m += 4) {
          StageIn in = {.system = colocated[k], .ranks = p, .virtual_stages = v, .micro_batches = m, .mb_group = p};
          if (stage_refuses(arena, &in)) {
            continue;
          }
          StageLayout at = {.p = p, .virtual_stages = v, .micro_batches = m, .mb_group = p};
          const StageOrder *orders = stage_orders(arena, &in);
          for (int r = 0; r < p; r++) {
            int live = stage_live(&orders[r]), bound = stage_live_bound(colocated[k], &at, r);
            if (live > bound || live + 1 < bound) {
              print_error("%s p%d v%d M%d rank %d: %d, assumed %d\n", plan_system_name(colocated[k]), p, v, m, r, live,
                          bound);
            }
            assert_true(live <= bound && live + 1 >= bound);
            assert_int_equal(stage_owed(&orders[r]), stage_owed_bound(colocated[k], &at, r));
          }
        }
      }
    }
  }
  arena_free(arena);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_system_gives_sound_plans),
      cmocka_unit_test(pins_are_kept),
      cmocka_unit_test(refusals_name_what_is_missing),
      cmocka_unit_test(memory_shortage_is_exact),
      cmocka_unit_test(afd_has_two_groups),
      cmocka_unit_test(published_steps),
      cmocka_unit_test(published_pairs),
      cmocka_unit_test(live_stages_follow_the_orders),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
