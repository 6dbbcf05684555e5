/* What the planner decides beside the split: recomputation, candidates, sharding of the optimizer, rates by size; costs
   that a spec gives itself; and how plans of every system change when the cluster does. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "codegen/cost_terms.h"
#include "codegen/memory.h"
#include "codegen/plan_int.h"
#include "tests/plan/specs.h"

enum { MOST = 6 };

/* ---- recomputation ---- */

/* Free to choose, the planner is never slower than with any pin; with less memory it is never faster, and in the end it
   recomputes where keeping everything no longer fits. */
static void recomputation_is_a_choice(void **state)
{
  (void)state;
  static const SystemKind systems[] = {SYSTEM_AF_PIPE, SYSTEM_MEGATRON, SYSTEM_DUALPIPEV};
  for (size_t k = 0; k < sizeof systems / sizeof *systems; k++) {
    double last = 0;
    bool recomputed = false, kept = false;
    for (double gb = 1000; gb > 30; gb *= 0.8) {
      ShapeSpec shape;
      Spec spec = large_spec(&shape, 16);
      spec.plan.gap = 0;
      spec.cluster.gpu.memory = (int64_t)(gb * 1e9);
      spec.plan.recompute = RECOMPUTE_AUTO;
      Run free_choice = run_plan(&spec, systems[k], 1);
      for (int r = RECOMPUTE_NONE; r <= RECOMPUTE_FULL; r++) {
        spec.plan.recompute = (Recompute)r;
        Run pinned = run_plan(&spec, systems[k], 1);
        assert_true(free_choice.n >= pinned.n);
        if (pinned.n) {
          assert_int_equal(pinned.plans[0].recompute, r);
          assert_true(free_choice.plans[0].step_ns <= pinned.plans[0].step_ns * (1 + 1e-9));
        }
        end_run(&pinned);
      }
      if (free_choice.n) {
        assert_true(free_choice.plans[0].step_ns >= last * (1 - 1e-9));
        last = free_choice.plans[0].step_ns;
        recomputed = recomputed || free_choice.plans[0].recompute != RECOMPUTE_NONE;
        kept = kept || free_choice.plans[0].recompute == RECOMPUTE_NONE;
      }
      end_run(&free_choice);
    }
    assert_true(kept && recomputed);
  }
}

static void recomputation_costs_time_and_saves_memory(void **state)
{
  (void)state;
  ShapeSpec shape;
  Spec spec = large_spec(&shape, 4);
  MemIn in = {.seq = 4096, .mb_seqs = 8, .att_seqs = 1, .att_ranks = 8, .ffn_ranks = 8, .own_ranks = 8, .replicas = 1};
  in.att_moe = in.ffn_layers = 4;
  in.in_flight = 4;
  in.experts = 16;
  in.node_ranks = 1;
  int64_t last = INT64_MAX;
  double fwd[3], att[3], ffn[3];
  for (int r = RECOMPUTE_NONE; r <= RECOMPUTE_FULL; r++) {
    in.recompute = (Recompute)r;
    int64_t need = memory_need(&spec, &in, PLAN_A | PLAN_F);
    assert_true(need < last);
    last = need;
    fwd[r] = work_ns(&spec, work_att(&spec, MOE_OP_ATT_FWD, 0, 4096, 1, (Recompute)r));
    att[r] = work_ns(&spec, work_att(&spec, MOE_OP_ATT_DGRAD, 0, 4096, 1, (Recompute)r));
    att[r] += cost_again(&spec, (Recompute)r, 0) ? work_ns(&spec, work_att(&spec, MOE_OP_ATT_AGAIN, 0, 4096, 1, r)) : 0;
    ffn[r] = work_ns(&spec, work_ffn(&spec, MOE_OP_FFN_DGRAD, 4096, 32768, 16, 0, 0, (Recompute)r));
  }
  assert_true(fwd[0] == fwd[2] && att[0] == att[1] && att[2] == att[1] + fwd[0]);
  assert_true(ffn[1] > ffn[0] && ffn[2] == ffn[1]);
}

/* ---- candidates ---- */

static void candidates_are_sorted_and_different(void **state)
{
  (void)state;
  for (int s = 0; s < SYSTEM_COUNT; s++) {
    ShapeSpec shape;
    Spec spec = small_spec(&shape);
    shape.global_batch = 96;
    spec.model.layers = 8;
    Run r = run_plan(&spec, (SystemKind)s, MOST), one = run_plan(&spec, (SystemKind)s, 1);
    assert_true(r.n > 1);
    assert_int_equal(one.n, 1);
    assert_true(one.plans[0].step_ns == r.plans[0].step_ns);
    for (int i = 0; i < r.n; i++) {
      assert_int_equal(r.plans[i].system, s);
      for (int j = 0; j < i; j++) {
        const Plan *a = &r.plans[i], *b = &r.plans[j];
        assert_true(a->step_ns >= b->step_ns * (1 - 1e-9));
        assert_true(a->replicas != b->replicas || a->n_groups != b->n_groups || a->p_att != b->p_att ||
                    a->groups[0].n_ranks != b->groups[0].n_ranks || a->n_stages != b->n_stages ||
                    a->chunks != b->chunks || a->recompute != b->recompute ||
                    a->groups[a->n_groups - 1].n_ranks != b->groups[b->n_groups - 1].n_ranks ||
                    a->replica_ranks != b->replica_ranks);
      }
    }
    end_run(&r);
    end_run(&one);
  }
}

/* ---- optimizer state ---- */

static void shards_of_the_optimizer(void **state)
{
  (void)state;
  ShapeSpec shape;
  Spec spec = small_spec(&shape);
  MemIn in = {.seq = 64, .mb_seqs = 4, .att_seqs = 1, .att_ranks = 4, .ffn_ranks = 4, .own_ranks = 4, .replicas = 2};
  in.att_moe = in.ffn_layers = 2;
  in.in_flight = 1;
  in.experts = 2;
  in.node_ranks = 1;
  in.total_ranks = 32;
  MemoryTerms holders, none, all;
  memory_terms(&spec, &in, PLAN_A | PLAN_F, &holders);
  in.shard = OPT_SHARD_NONE;
  memory_terms(&spec, &in, PLAN_A | PLAN_F, &none);
  in.shard = OPT_SHARD_ALL;
  memory_terms(&spec, &in, PLAN_A | PLAN_F, &all);
  assert_true(all.optimizer < holders.optimizer && holders.optimizer < none.optimizer);
  assert_int_equal(none.optimizer, 3 * none.weights);
  assert_int_equal(holders.weights, none.weights);
  assert_int_equal(holders.gradients, all.gradients);
}

/* Free to choose, the optimizer's state makes no plan slower than with either pin; where memory is ample it stays with
   the weights, and where experts have few holders it gives room to plans that would not fit. */
static void the_shard_is_a_choice(void **state)
{
  (void)state;
  bool all = false;
  for (double gb = 1000; gb > 40; gb *= 0.8) {
    ShapeSpec shape;
    Spec spec = large_spec(&shape, 16);
    spec.plan.gap = 0;
    spec.plan.replicas = 1;
    spec.cluster.gpu.memory = (int64_t)(gb * 1e9);
    spec.plan.optimizer_shard = OPT_SHARD_AUTO;
    Run either = run_plan(&spec, SYSTEM_AF_PIPE, 1);
    for (OptShard pin = OPT_SHARD_HOLDERS; pin < OPT_SHARD_AUTO; pin++) {
      spec.plan.optimizer_shard = pin;
      Run one = run_plan(&spec, SYSTEM_AF_PIPE, 1);
      assert_true(one.n == 0 || one.plans[0].optimizer_shard == pin);
      assert_true(pin == OPT_SHARD_NONE || one.n == 0 || either.n == 1);
      assert_true(pin == OPT_SHARD_NONE || one.n == 0 || either.plans[0].step_ns <= one.plans[0].step_ns * (1 + 1e-9));
      end_run(&one);
    }
    if (either.n > 0) {
      assert_int_not_equal(either.plans[0].optimizer_shard, OPT_SHARD_AUTO);
      assert_true(gb < 900 || either.plans[0].optimizer_shard == OPT_SHARD_HOLDERS);
      all = all || either.plans[0].optimizer_shard == OPT_SHARD_ALL;
    }
    end_run(&either);
  }
  assert_true(all);
}

/* ---- head ---- */

/* Attention of a group's layers, one sequence, forward and backward. */
static double load_of(const Spec *spec, const Plan *plan, int group)
{
  double ns = 0;
  for (int l = 0; l < spec->model.layers; l++) {
    for (MoeOpKind op = MOE_OP_ATT_FWD; op <= MOE_OP_ATT_WGRAD && plan->att_group[l] == group; op++) {
      bool att = op == MOE_OP_ATT_FWD || op == MOE_OP_ATT_DGRAD || op == MOE_OP_ATT_WGRAD;
      ns += att ? work_ns(spec, work_att(spec, op, l, plan->shape->seq, 1, RECOMPUTE_NONE)) : 0;
    }
  }
  return ns;
}

/* No group has less to do than the head's has otherwise, and of equal ones it is that of layer L in turn. */
static void assert_head(const Spec *spec, const Plan *plan)
{
  int head = plan->att_group[spec->model.layers], in_turn = spec->model.layers % plan->p_att;
  double load = load_of(spec, plan, head);
  for (int g = 0; g < plan->p_att; g++) {
    double other = load_of(spec, plan, g);
    assert_true(load <= other * (1 + 1e-6));
    assert_true(g != in_turn || head == g || load < other * (1 - 1e-10));
  }
}

static void the_head_goes_where_least_is_to_do(void **state)
{
  (void)state;
  for (int dense = 0; dense <= 3; dense++) {
    for (int p = 1; p <= 5; p++) {
      ShapeSpec shape;
      Spec spec = large_spec(&shape, 16);
      spec.model.layers = 40 + dense;
      spec.model.dense.layers = dense;
      spec.model.dense.hidden = 12288;
      spec.model.attention.window = dense == 3 ? 128 : 0;
      spec.model.attention.window_layers = LAYERS_EVEN;
      spec.plan.attention_stages = p;
      Run r = run_plan(&spec, SYSTEM_AF_PIPE, 1);
      assert_int_equal(r.n, 1);
      assert_head(&spec, &r.plans[0]);
      assert_int_equal(r.plans[0].combine_group[spec.model.layers - 1], r.plans[0].att_group[spec.model.layers]);
      end_run(&r);
    }
  }
}

/* ---- rates by size ---- */

static void curves_replace_the_constants(void **state)
{
  (void)state;
  ShapeSpec shape;
  Spec spec = large_spec(&shape, 16), flat = spec, steep = spec;
  flat.cluster.gpu.eff_grouped_rows = (Curve){.n = 2, .x = {1, 1e6}, .y = {0.6, 0.6}};
  flat.cluster.gpu.eff_gemm_rows = (Curve){.n = 1, .x = {1}, .y = {0.7}};
  flat.cluster.gpu.eff_attention_seq = (Curve){.n = 1, .x = {1}, .y = {0.5}};
  flat.cluster.gpu.eff_attention_back_seq = (Curve){.n = 1, .x = {1}, .y = {0.5}};
  Run a = run_plan(&spec, SYSTEM_AF_PIPE, 1), b = run_plan(&flat, SYSTEM_AF_PIPE, 1);
  assert_int_equal(a.n + b.n, 2);
  assert_true(fabs(a.plans[0].step_ns - b.plans[0].step_ns) <= 1e-9 * a.plans[0].step_ns);
  assert_int_equal(a.plans[0].p_att, b.plans[0].p_att);
  steep.cluster.gpu.eff_grouped_rows = (Curve){.n = 3, .x = {64, 512, 4096}, .y = {0.05, 0.2, 0.6}};
  Work few = work_ffn(&steep, MOE_OP_FFN_FWD, 1000, 8000, 125, 0, 0, RECOMPUTE_NONE), many = few;
  many.expert_rows = 4096;
  assert_true(few.expert_rows == 64);
  assert_true(fabs(work_flop_ns(&steep, few) / work_flop_ns(&steep, many) - 12) < 1e-6);
  few.expert_rows = 0; /* not known: the best */
  assert_true(work_flop_ns(&steep, few) == work_flop_ns(&steep, many));
  Run c = run_plan(&steep, SYSTEM_AF_PIPE, 1);
  assert_int_equal(c.n, 1);
  assert_true(c.plans[0].step_ns >= a.plans[0].step_ns);
  end_run(&a);
  end_run(&b);
  end_run(&c);
}

/* ---- given times ---- */

static void given_times_are_taken(void **state)
{
  (void)state;
  ShapeSpec shape;
  Spec spec = small_spec(&shape);
  shape.global_batch = 64;
  spec.plan.chunks = 2;
  spec.costs = (CostsSpec){.given = true, .att_fwd = 1000, .att_dgrad = 1500, .att_wgrad = 700, .ffn_fwd = 600};
  spec.costs.ffn_dgrad = 610;
  spec.costs.ffn_wgrad = 620;
  for (int s = 0; s < SYSTEM_COUNT; s++) {
    Run r = run_plan(&spec, (SystemKind)s, 1);
    assert_int_equal(r.n, 1);
    const Plan *p = &r.plans[0];
    assert_int_equal(cost_op_ns(&spec, p, MOE_OP_ATT_FWD, 1), 1000);
    assert_int_equal(cost_op_ns(&spec, p, MOE_OP_ATT_DGRAD, 1), 1500);
    assert_int_equal(cost_op_ns(&spec, p, MOE_OP_ATT_WGRAD, 1), 700);
    assert_int_equal(cost_op_ns(&spec, p, MOE_OP_FFN_FWD, 1), 600 / p->chunks);
    assert_int_equal(cost_op_ns(&spec, p, MOE_OP_FFN_DGRAD, 1), 610 / p->chunks);
    assert_int_equal(cost_op_ns(&spec, p, MOE_OP_FFN_WGRAD, 1), 620 / p->chunks);
    assert_int_equal(cost_op_ns(&spec, p, MOE_OP_HEAD, spec.model.layers), 1);
    assert_int_equal(cost_op_ns(&spec, p, MOE_OP_OPTIMIZER, 1), 1);
    assert_int_equal(p->chunks, s == SYSTEM_TUTEL ? 2 : 1);
    end_run(&r);
  }
}

/* ---- the cluster changes ---- */

static Spec random_cluster(unsigned long long *seed, ShapeSpec *shape)
{
  Spec s = small_spec(shape);
  s.plan.gap = 0;
  s.plan.recompute = RECOMPUTE_AUTO;
  s.cluster.nodes = in_range(seed, 1, 3);
  s.cluster.gpus = 1 << in_range(seed, 1, 3);
  s.cluster.nics = s.cluster.gpus;
  s.cluster.nic = 5e8 * in_range(seed, 1, 20);
  s.cluster.nvlink = s.cluster.nic * in_range(seed, 1, 6);
  s.cluster.gpu.memory = (int64_t)in_range(seed, 24, 200) << 20;
  s.model.layers = in_range(seed, 2, 12);
  s.model.moe.experts = in_range(seed, 2, 16);
  shape->global_batch = in_range(seed, 4, 100);
  return s;
}

static void more_of_anything_is_never_slower(void **state)
{
  (void)state;
  unsigned long long seed = 99;
  int solved = 0;
  for (int i = 0; i < 25; i++) {
    ShapeSpec shape;
    Spec spec = random_cluster(&seed, &shape);
    spec.shapes = &shape;
    for (int s = 0; s < SYSTEM_COUNT; s++) {
      Run base = run_plan(&spec, (SystemKind)s, 1);
      for (int what = 0; what < DOUBLES && base.n; what++) {
        Spec more = spec_with_double(&spec, what);
        Run r = run_plan(&more, (SystemKind)s, 1);
        assert_int_equal(r.n, 1);
        if (r.plans[0].step_ns > base.plans[0].step_ns * (1 + 1e-6)) {
          print_error("case %d, %s, %d: %.9g became %.9g\n", i, plan_system_name((SystemKind)s), what,
                      base.plans[0].step_ns, r.plans[0].step_ns);
        }
        assert_true(r.plans[0].step_ns <= base.plans[0].step_ns * (1 + 1e-6)); /* op times are whole ns */
        end_run(&r);
      }
      solved += base.n;
      end_run(&base);
    }
  }
  assert_true(solved > 100);
}

static void scaled_times_keep_the_plan(void **state)
{
  (void)state;
  unsigned long long seed = 7;
  for (int i = 0; i < 25; i++) {
    ShapeSpec shape;
    Spec spec = random_cluster(&seed, &shape), slow = spec_tenfold_times(&spec);
    spec.shapes = slow.shapes = &shape;
    for (int s = 0; s < SYSTEM_COUNT; s++) {
      Run a = run_plan(&spec, (SystemKind)s, 1), b = run_plan(&slow, (SystemKind)s, 1);
      assert_int_equal(a.n, b.n);
      if (a.n) { /* op times are rounded to whole ns, so near ties may fall the other way */
        assert_true(fabs(b.plans[0].step_ns - 10 * a.plans[0].step_ns) <= 1e-3 * b.plans[0].step_ns);
        assert_int_equal(a.plans[0].replicas * a.plans[0].replica_ranks,
                         b.plans[0].replicas * b.plans[0].replica_ranks);
      }
      end_run(&a);
      end_run(&b);
    }
  }
}

/* GPUs are alike: a plan whose groups stand on other whole nodes costs the same, op by op and message by message. */
static void order_of_gpus_does_not_matter(void **state)
{
  (void)state;
  static const MoeEdge edges[] = {MOE_EDGE_DISPATCH, MOE_EDGE_COMBINE, MOE_EDGE_COMBINE_B, MOE_EDGE_DISPATCH_B};
  ShapeSpec shape;
  Spec spec = large_spec(&shape, 8);
  int sixteen = 16;
  spec.plan.attention_gpus = spec.plan.ffn_gpus = &sixteen;
  spec.plan.n_attention_gpus = spec.plan.n_ffn_gpus = 1;
  spec.plan.attention_stages = spec.plan.ffn_stages = 2;
  spec.plan.replicas = 1;
  spec.cluster.gpu.memory = (int64_t)1 << 44;
  Run r = run_plan(&spec, SYSTEM_AF_PIPE, 1);
  assert_int_equal(r.n, 1);
  Plan moved = r.plans[0];
  moved.groups = arena_new_array(r.arena, PlanGroup, 4);
  for (int g = 0; g < 4; g++) {
    moved.groups[g] = r.plans[0].groups[g];
    moved.groups[g].first_rank = (g * 3 + 2) % 4 * 16;
  }
  for (int l = 0; l < spec.model.layers; l++) {
    for (int k = 0; k < MOE_OP_COUNT; k++) {
      assert_int_equal(cost_op_ns(&spec, &moved, (MoeOpKind)k, l), cost_op_ns(&spec, &r.plans[0], (MoeOpKind)k, l));
    }
    for (size_t e = 0; e < sizeof edges / sizeof *edges; e++) {
      MsgCost a = cost_msg(&spec, &moved, edges[e], l), b = cost_msg(&spec, &r.plans[0], edges[e], l);
      assert_int_equal(a.ns, b.ns);
      assert_true(a.bytes == b.bytes && a.nic_bytes == b.nic_bytes);
    }
  }
  end_run(&r);
}

/* ---- layouts and places ---- */

/* Nodes of a mixed plan: how many ranks of a side are on each, and that a group is a run of them. */
static void check_spread(const Plan *plan, int role, const int *wanted, int nodes)
{
  int on[16] = {0};
  for (int g = 0; g < plan->n_groups; g++) {
    const PlanGroup *group = &plan->groups[g];
    for (int r = 0; (group->role & role) && r < group->n_ranks; r++) {
      int rank = group->first_rank + r;
      on[plan_node_of(plan, rank)]++;
      assert_true(r == 0 || plan_node_of(plan, rank) >= plan_node_of(plan, rank - 1));
      assert_in_range(plan->seat[rank], 0, plan->replica_ranks - 1);
    }
  }
  for (int node = 0; node < nodes; node++) {
    assert_int_equal(on[node], wanted[node]);
  }
}

static void mixed_puts_both_sides_on_every_node(void **state)
{
  (void)state;
  static const struct {
    int per, att, ffn, stages, att_on[4], ffn_on[4];
  } cases[] = {{2, 2, 2, 2, {1, 1, 1, 1}, {1, 1, 1, 1}},
               {4, 2, 6, 1, {1, 1}, {3, 3}},
               {4, 3, 5, 1, {1, 2}, {3, 2}},
               {8, 1, 3, 2, {2}, {6}}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    ShapeSpec shape;
    Spec spec = small_spec(&shape);
    int att[] = {cases[i].att}, ffn[] = {cases[i].ffn};
    spec.plan.placement = PLACE_MIXED;
    spec.plan.ranks_per_node = cases[i].per;
    spec.plan.attention_gpus = att;
    spec.plan.ffn_gpus = ffn;
    spec.plan.n_attention_gpus = spec.plan.n_ffn_gpus = 1;
    spec.plan.attention_stages = spec.plan.ffn_stages = cases[i].stages;
    spec.plan.replicas = 1;
    Run r = run_plan(&spec, SYSTEM_AF_PIPE, 1);
    assert_int_equal(r.n, 1);
    assert_string_equal(plan_placement_name(r.plans[0].placement), "mixed");
    check_spread(&r.plans[0], PLAN_A, cases[i].att_on, 8 / cases[i].per);
    check_spread(&r.plans[0], PLAN_F, cases[i].ffn_on, 8 / cases[i].per);
    end_run(&r);
  }
}

static char *errors_of(const char *plan_block, int gpus)
{
  Arena *arena = arena_new();
  char *text = NULL, source[1024];
  size_t n = 0;
  snprintf(source, sizeof source,
           "gpu g { flops = 1 TFLOPS; memory = 4 GiB; hbm = 1 TB/s }\n"
           "node h { gpu = g; gpus = %d; nics = 1; nvlink = 1 GB/s; nic = 1 GB/s }\n"
           "model m { layers = 2; hidden = 64; vocab = 64\n"
           "  attention { heads = 4; rope { theta = 1e4 } }\n"
           "  moe { experts = 4; top_k = 2; hidden = 64 } }\n"
           "cluster c { nodes = 1; node = h }\n"
           "shape s { seq = 64; global_batch = 4 }\n%s\n",
           gpus, plan_block);
  FILE *out = open_memstream(&text, &n);
  Diag *diag = diag_new(arena, out);
  Spec spec;
  Plan plan;
  bool infeasible = false;
  AstFile *ast = ast_parse_text(arena, diag, "places", source, strlen(source), true, NULL, 0);
  assert_non_null(ast);
  assert_true(spec_build(arena, diag, ast, &spec));
  assert_false(plan_solve(arena, diag, &spec, 0, SYSTEM_AF_PIPE, &plan, &infeasible));
  fclose(out);
  arena_free(arena);
  return text;
}

/* Without a plan block errors point at the cluster; a list that is too long is blamed itself. */
static void errors_have_a_place(void **state)
{
  (void)state;
  char *one = errors_of("", 1), *list = errors_of("plan { attention_gpus = 1, 2, 1; ffn_gpus = 1 }", 8);
  assert_non_null(strstr(one, "places:6:"));
  assert_non_null(strstr(one, "need 2 GPUs"));
  assert_non_null(strstr(list, "places:8:8"));
  assert_non_null(strstr(list, "attention_gpus lists 3 groups, but the model has 2 layers"));
  free(one);
  free(list);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(recomputation_is_a_choice),
      cmocka_unit_test(recomputation_costs_time_and_saves_memory),
      cmocka_unit_test(candidates_are_sorted_and_different),
      cmocka_unit_test(shards_of_the_optimizer),
      cmocka_unit_test(the_shard_is_a_choice),
      cmocka_unit_test(the_head_goes_where_least_is_to_do),
      cmocka_unit_test(curves_replace_the_constants),
      cmocka_unit_test(given_times_are_taken),
      cmocka_unit_test(more_of_anything_is_never_slower),
      cmocka_unit_test(scaled_times_keep_the_plan),
      cmocka_unit_test(order_of_gpus_does_not_matter),
      cmocka_unit_test(mixed_puts_both_sides_on_every_node),
      cmocka_unit_test(errors_have_a_place),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
