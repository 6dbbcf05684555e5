/* What every plan must be, whatever the spec: a partition, within memory, faithful to its pins, the same each time;
   what is said when there is none; and how plans change when the cluster does. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <jansson.h>

#include "codegen/cost.h"
#include "runtime/moe_layout.h"
#include "tests/plan/specs.h"

/* One plan by the spec's own system. */
static Run run_one(const Spec *spec)
{
  return run_plan(spec, spec->plan.system, 1);
}

static void must_say(const Run *r, bool infeasible, const char *const *words)
{
  assert_false(r->n);
  assert_int_equal(r->infeasible, infeasible);
  for (int i = 0; words[i]; i++) {
    if (!strstr(r->text, words[i])) {
      print_error("\"%s\" is missing in:\n%s", words[i], r->text);
    }
    assert_non_null(strstr(r->text, words[i]));
  }
}

#define MUST_SAY(run, infeasible, ...) must_say(run, infeasible, (const char *const[]){__VA_ARGS__, NULL})

/* ---- partitions ---- */

/* Each layer's attention and FFN once, and parameters of all ranks together those of the model. */
static void assert_partition(const Spec *spec, const Plan *plan)
{
  double params =
      (double)cost_bucket_elems(spec, MOE_BUCKET_EMBED, 0, 0) + (double)cost_bucket_elems(spec, MOE_BUCKET_HEAD, 0, 0);
  for (int l = 0; l < spec->model.layers; l++) {
    bool dense = spec_layer_is_dense(spec, l);
    const PlanGroup *a = &plan->groups[plan->att_group[l]], *f = &plan->groups[plan->ffn_group[l]];
    assert_true(a->role & PLAN_A);
    assert_true(dense ? f == a : (f->role & PLAN_F) != 0);
    assert_int_equal(plan->combine_group[l], plan->att_group[l + 1]);
    params += (double)(cost_bucket_elems(spec, MOE_BUCKET_ATT, l, 0) + cost_bucket_elems(spec, MOE_BUCKET_GAIN, l, 0));
    params += (double)cost_bucket_elems(spec, MOE_BUCKET_SHARED, l, 0);
    for (int r = 0; !dense && r < f->n_ranks; r++) {
      int experts = (int)moe_part_size(spec->model.moe.experts, f->n_ranks, r);
      assert_true(experts >= 1 && experts <= plan_ffn_experts(spec, f));
      params += (double)cost_bucket_elems(spec, MOE_BUCKET_EXPERTS, l, experts);
    }
    if (!dense) {
      assert_int_equal(f->index, (l - spec->model.dense.layers) % plan->p_ffn);
    }
  }
  assert_true(params == cost_model_params(spec));
}

static void any_stages_partition_any_layers(void **state)
{
  (void)state;
  for (int layers = 1; layers <= 70; layers++) {
    for (int stages = 1; stages <= 16; stages++) {
      ShapeSpec shape;
      Spec spec = small_spec(&shape);
      spec.model.layers = layers;
      spec.model.dense.layers = layers > 3 && stages % 3 == 0 ? 2 : 0;
      spec.model.dense.hidden = 96;
      spec.cluster.gpus = 40;
      int ffn = 1 + (stages * 7 + layers) % 5, one[] = {1};
      spec.plan.attention_stages = stages;
      spec.plan.ffn_stages = ffn;
      spec.plan.attention_gpus = spec.plan.ffn_gpus = one;
      spec.plan.n_attention_gpus = spec.plan.n_ffn_gpus = 1;
      Run r = run_one(&spec);
      if (stages <= layers && ffn <= layers - spec.model.dense.layers) {
        assert_true(r.n);
        assert_int_equal(r.plans[0].p_att, stages);
        assert_int_equal(r.plans[0].p_ffn, ffn);
        assert_partition(&spec, &r.plans[0]);
      } else {
        MUST_SAY(&r, false, "stages = ", "layers");
      }
      end_run(&r);
    }
  }
}

static void uneven_experts_and_sequences(void **state)
{
  (void)state;
  for (int m = 1; m <= 5; m++) {
    for (int n = 1; n <= 7; n++) {
      ShapeSpec shape;
      Spec spec = small_spec(&shape);
      spec.model.moe.experts = 7;
      spec.cluster.gpus = 12;
      spec.plan.attention_gpus = &m;
      spec.plan.ffn_gpus = &n;
      spec.plan.n_attention_gpus = spec.plan.n_ffn_gpus = 1;
      Run r = run_one(&spec);
      assert_true(r.n);
      assert_partition(&spec, &r.plans[0]);
      assert_int_equal(r.plans[0].groups[0].n_ranks, m);
      assert_int_equal(r.plans[0].groups[r.plans[0].p_att].n_ranks, n);
      end_run(&r);
    }
  }
}

static void unequal_groups_and_pins_are_kept(void **state)
{
  (void)state;
  int att[] = {2, 1, 3}, ffn[] = {1, 4};
  ShapeSpec shape;
  Spec spec = small_spec(&shape);
  spec.cluster.gpus = 16;
  spec.plan.attention_gpus = att;
  spec.plan.n_attention_gpus = 3;
  spec.plan.ffn_gpus = ffn;
  spec.plan.n_ffn_gpus = 2;
  spec.plan.in_flight = 2;
  spec.plan.replicas = 1;
  spec.plan.ranks_per_node = 4;
  spec.plan.dedup = DEDUP_NODE;
  Run r = run_one(&spec);
  assert_true(r.n);
  assert_partition(&spec, &r.plans[0]);
  for (int g = 0; g < 5; g++) {
    assert_int_equal(r.plans[0].groups[g].n_ranks, g < 3 ? att[g] : ffn[g - 3]);
  }
  assert_int_equal(r.plans[0].mb_seqs, 6);
  assert_int_equal(r.plans[0].micro_batches, 3);
  assert_int_equal(r.plans[0].in_flight, 2);
  assert_int_equal(r.plans[0].ranks_per_node, 4);
  assert_int_equal(r.plans[0].dedup, DEDUP_NODE);
  assert_string_equal(r.plans[0].solver.name, "pinned");
  end_run(&r);
}

static void colocated_groups_have_both_roles(void **state)
{
  (void)state;
  ShapeSpec shape;
  Spec spec = small_spec(&shape);
  spec.plan.placement = PLACE_COLOCATED;
  spec.plan.attention_stages = spec.plan.ffn_stages = 2;
  Run r = run_one(&spec);
  assert_true(r.n);
  assert_string_equal(plan_placement_name(r.plans[0].placement), "colocated");
  assert_int_equal(r.plans[0].n_groups, 2);
  for (int l = 0; l < 4; l++) {
    assert_int_equal(r.plans[0].att_group[l], l % 2);
    assert_int_equal(r.plans[0].ffn_group[l], l % 2);
    assert_int_equal(r.plans[0].groups[l % 2].role, PLAN_A | PLAN_F);
  }
  end_run(&r);
}

/* ---- no plan ---- */

static void one_gpu_is_too_few(void **state)
{
  (void)state;
  ShapeSpec shape;
  Spec spec = small_spec(&shape);
  spec.cluster.gpus = 1;
  Run r = run_one(&spec);
  MUST_SAY(&r, true, "need 2 GPUs", "has 1", "1 too few", "colocated");
  end_run(&r);
  spec.plan.placement = PLACE_COLOCATED;
  r = run_one(&spec);
  assert_true(r.n);
  end_run(&r);
}

/* The smallest memory that the message names is enough, and one MiB less is not. */
static void memory_shortage_is_exact(void **state)
{
  (void)state;
  unsigned long long seed = 3;
  for (int i = 0; i < 40; i++) {
    ShapeSpec shape;
    Spec spec = small_spec(&shape);
    spec.model.vocab = in_range(&seed, 100, 30000);
    spec.model.moe.hidden = in_range(&seed, 100, 3000);
    spec.model.moe.imbalance = in_range(&seed, 0, 1) ? 1.3 : 0;
    spec.cluster.nodes = in_range(&seed, 1, 2);
    spec.cluster.gpu.memory = 1 << 20;
    Run r = run_one(&spec);
    MUST_SAY(&r, true, "GPU memory is", "too little", "smallest change: memory = ");
    long mib = atol(strstr(r.text, "smallest change: memory = ") + strlen("smallest change: memory = "));
    end_run(&r);
    assert_true(mib > 1);
    spec.cluster.gpu.memory = (int64_t)mib << 20;
    r = run_one(&spec);
    assert_true(r.n);
    end_run(&r);
    spec.cluster.gpu.memory = (int64_t)(mib - 1) << 20;
    r = run_one(&spec);
    assert_false(r.n);
    assert_true(r.infeasible);
    end_run(&r);
  }
}

static void a_large_model_does_not_fit_one_node(void **state)
{
  (void)state;
  ShapeSpec shape;
  Spec spec = large_spec(&shape, 1);
  Run r = run_one(&spec);
  MUST_SAY(&r, true, "GPU memory is", "smallest change");
  end_run(&r);
}

static void contradictions_are_named(void **state)
{
  (void)state;
  int three[] = {1, 1, 1}, nine = 9;
  ShapeSpec shape;
  Spec base = small_spec(&shape), spec = base;
  spec.plan.attention_gpus = three;
  spec.plan.n_attention_gpus = 3;
  spec.plan.attention_stages = 2;
  Run r = run_one(&spec);
  MUST_SAY(&r, false, "lists 3 groups", "attention_stages = 2");
  end_run(&r);

  spec = base;
  spec.cluster.gpus = 16;
  spec.plan.ffn_gpus = &nine;
  spec.plan.n_ffn_gpus = 1;
  r = run_one(&spec);
  MUST_SAY(&r, false, "ffn_gpus = 9", "8 experts");
  end_run(&r);

  spec = base;
  spec.cluster.gpus = 64;
  spec.plan.replicas = 17;
  r = run_one(&spec);
  MUST_SAY(&r, false, "replicas = 17", "16 sequences");
  end_run(&r);

  spec = base;
  spec.plan.placement = PLACE_COLOCATED;
  spec.plan.attention_stages = 2;
  spec.plan.ffn_stages = 3;
  r = run_one(&spec);
  MUST_SAY(&r, false, "attention_stages = 2", "ffn_stages = 3");
  end_run(&r);

  spec = base;
  spec.plan.replicas = 5;
  r = run_one(&spec);
  MUST_SAY(&r, true, "need 10 GPUs", "has 8", "2 too few");
  end_run(&r);

  spec = base;
  spec.plan.attention_nics = 5;
  spec.plan.ffn_nics = 4;
  r = run_one(&spec);
  MUST_SAY(&r, true, "= 9", "has 8 NICs");
  end_run(&r);
}

static void nics_are_needed_only_between_nodes(void **state)
{
  (void)state;
  ShapeSpec shape;
  Spec spec = small_spec(&shape);
  spec.cluster.nics = 0;
  Run r = run_one(&spec);
  assert_true(r.n);
  assert_int_equal(r.plans[0].n_nics, 0);
  end_run(&r);
  spec.cluster.nodes = 2;
  spec.plan.attention_stages = spec.plan.ffn_stages = 4;
  int two = 2;
  spec.plan.attention_gpus = spec.plan.ffn_gpus = &two;
  spec.plan.n_attention_gpus = spec.plan.n_ffn_gpus = 1;
  r = run_one(&spec);
  MUST_SAY(&r, true, "0 NICs", "16 GPUs spans nodes of 8");
  end_run(&r);
}

/* ---- solver limits ---- */

static void every_node_limit_gives_a_plan(void **state)
{
  (void)state;
  static const int limits[] = {0, 1, 10, 100, 10000};
  for (int big = 0; big < 2; big++) {
    double last = INFINITY;
    for (int i = 0; i < 5; i++) {
      ShapeSpec shape;
      Spec spec = large_spec(&shape, big ? 128 : 16);
      spec.plan.node_limit = limits[i];
      spec.plan.gap = 0;
      Run r = run_one(&spec);
      assert_true(r.n);
      assert_partition(&spec, &r.plans[0]);
      assert_true(r.plans[0].step_ns <= last * (1 + 1e-9));
      last = r.plans[0].step_ns;
      print_message("%d GPUs, %d nodes: step %.4f s, %s, %.0f ms\n", big ? 1024 : 128, limits[i], last / 1e9,
                    r.plans[0].solver.status, r.plans[0].solver.ms);
      end_run(&r);
    }
  }
}

static void the_cluster_is_used(void **state)
{
  (void)state;
  ShapeSpec shape;
  Spec spec = large_spec(&shape, 32);
  Run r = run_one(&spec);
  assert_true(r.n);
  assert_true(r.plans[0].replicas * r.plans[0].replica_ranks >= 256 * 9 / 10);
  assert_true(r.plans[0].mfu > 0.1 && r.plans[0].mfu < 0.7);
  end_run(&r);
}

/* ---- the cluster changes ---- */

static Spec random_cluster(unsigned long long *seed, ShapeSpec *shape)
{
  Spec s = small_spec(shape);
  s.plan.gap = 0;
  s.cluster.nodes = in_range(seed, 1, 4);
  s.cluster.gpus = 1 << in_range(seed, 1, 3);
  s.cluster.nics = in_range(seed, 1, 8);
  s.cluster.nic = 5e8 * in_range(seed, 1, 20);
  s.cluster.nvlink = s.cluster.nic * in_range(seed, 1, 6);
  s.cluster.gpu.memory = (int64_t)in_range(seed, 24, 200) << 20;
  s.model.layers = in_range(seed, 1, 20);
  s.model.moe.experts = in_range(seed, 2, 16);
  s.model.moe.imbalance = in_range(seed, 0, 1) ? 1.5 : 0;
  shape->global_batch = in_range(seed, 4, 100);
  return s;
}

static bool same_plan(const Plan *a, const Plan *b)
{
  bool same = a->replicas == b->replicas && a->p_att == b->p_att && a->p_ffn == b->p_ffn &&
              a->n_groups == b->n_groups && a->placement == b->placement && a->in_flight == b->in_flight;
  for (int i = 0; same && i < a->n_groups; i++) {
    same = a->groups[i].n_ranks == b->groups[i].n_ranks && a->groups[i].nics == b->groups[i].nics;
  }
  return same;
}

static void scaled_times_keep_the_plan(void **state)
{
  (void)state;
  unsigned long long seed = 5;
  for (int i = 0; i < 60; i++) {
    ShapeSpec shape;
    Spec spec = random_cluster(&seed, &shape), slow = spec_tenfold_times(&spec);
    Run a = run_one(&spec), b = run_one(&slow);
    assert_int_equal(a.n, b.n);
    if (a.n) {
      assert_true(same_plan(&a.plans[0], &b.plans[0]));
      assert_true(fabs(b.plans[0].step_ns - 10 * a.plans[0].step_ns) <= 1e-9 * b.plans[0].step_ns);
    }
    end_run(&a);
    end_run(&b);
  }
}

static void more_of_anything_is_never_slower(void **state)
{
  (void)state;
  unsigned long long seed = 77;
  int solved = 0;
  for (int i = 0; i < 60; i++) {
    ShapeSpec shape;
    Spec spec = random_cluster(&seed, &shape);
    Run base = run_one(&spec);
    for (int what = 0; what < DOUBLES && base.n; what++) {
      Spec more = spec_with_double(&spec, what);
      Run r = run_one(&more);
      assert_true(r.n);
      assert_true(r.plans[0].step_ns <= base.plans[0].step_ns * (1 + 1e-9));
      end_run(&r);
    }
    solved += base.n;
    end_run(&base);
  }
  assert_true(solved > 30);
}

/* ---- output ---- */

static char *as_json(const Spec *spec, Plan *plan)
{
  char *text = NULL;
  size_t size = 0;
  plan->solver.ms = 0;
  FILE *out = open_memstream(&text, &size);
  plan_print_json(spec, plan, out);
  fclose(out);
  return text;
}

static void the_same_spec_gives_the_same_bytes(void **state)
{
  (void)state;
  unsigned long long seed = 9;
  for (int i = 0; i < 20; i++) {
    ShapeSpec shape;
    Spec spec = random_cluster(&seed, &shape);
    Run a = run_one(&spec), b = run_one(&spec);
    assert_string_equal(a.text, b.text);
    if (a.n) {
      char *x = as_json(&spec, &a.plans[0]), *y = as_json(&spec, &b.plans[0]);
      assert_string_equal(x, y);
      free(x);
      free(y);
    }
    end_run(&a);
    end_run(&b);
  }
}

static void assert_keys(json_t *object, const char *const *keys)
{
  int i = 0;
  const char *key;
  json_t *value;
  assert_true(json_is_object(object));
  json_object_foreach(object, key, value)
  {
    assert_non_null(keys[i]);
    assert_string_equal(key, keys[i++]);
  }
  assert_null(keys[i]);
}

static void json_has_the_contracts_keys(void **state)
{
  (void)state;
  static const char *const plan_keys[] = {
      "version",        "shape",     "system",          "replicas",       "p_attention", "p_ffn",
      "attention_gpus", "ffn_gpus",  "attention_nics",  "ffn_nics",       "placement",   "micro_batches",
      "in_flight",      "recompute", "optimizer_shard", "t_attention_ns", "t_ffn_ns",    "step_ns",
      "tokens_per_s",   "mfu",       "groups",          "solver",         NULL};
  static const char *const group_keys[] = {"id", "role", "index", "ranks", "layers", "memory", NULL};
  static const char *const memory_keys[] = {"weights",   "gradients", "optimizer", "activations", "buffers",
                                            "workspace", "total",     "limit",     NULL};
  static const char *const solver_keys[] = {"name", "status", "gap", "ms", NULL};
  ShapeSpec shape;
  Spec spec = small_spec(&shape);
  Run r = run_one(&spec);
  assert_true(r.n);
  char *text = as_json(&spec, &r.plans[0]);
  json_t *o = json_loads(text, 0, NULL);
  assert_keys(o, plan_keys);
  json_t *groups = json_object_get(o, "groups");
  assert_int_equal(json_array_size(groups), r.plans[0].n_groups);
  assert_keys(json_array_get(groups, 0), group_keys);
  assert_keys(json_object_get(json_array_get(groups, 0), "memory"), memory_keys);
  assert_keys(json_object_get(o, "solver"), solver_keys);
  assert_int_equal(json_array_size(json_object_get(o, "ffn_gpus")), r.plans[0].p_ffn);
  json_decref(o);
  free(text);
  text = NULL;
  size_t size = 0;
  FILE *out = open_memstream(&text, &size);
  plan_print(&spec, &r.plans[0], out);
  fclose(out);
  assert_non_null(strstr(text, "binds: "));
  assert_non_null(strstr(text, "MFU"));
  free(text);
  end_run(&r);
}

/* Each kind of damage to a good plan is found. */
static void the_checker_sees_damage(void **state)
{
  (void)state;
  for (int damage = 0; damage <= 14; damage++) {
    ShapeSpec shape;
    Spec spec = small_spec(&shape);
    spec.plan.attention_stages = spec.plan.ffn_stages = 2;
    spec.plan.replicas = 2;
    Run r = run_one(&spec);
    assert_true(r.n);
    Plan *p = &r.plans[0];
    switch (damage) {
    case 1:
      p->groups[1].first_rank = p->groups[0].first_rank;
      break;
    case 2:
      p->att_group[3] = 2;
      break;
    case 3:
      p->ffn_group[1] = 0;
      break;
    case 4:
      p->ffn_group[1] = p->ffn_group[3] = p->ffn_group[0];
      break;
    case 5:
      p->micro_batches--;
      p->in_flight = 1;
      break;
    case 6:
      p->groups[0].memory.weights++;
      break;
    case 7:
      p->groups[2].memory.limit = p->groups[2].memory.total - 1;
      break;
    case 8:
      p->replicas = 3;
      break;
    case 9:
      p->nic_ranks[0] = 99;
      break;
    case 10:
      p->replica_ranks--;
      break;
    case 11:
      p->dedup = DEDUP_AUTO;
      break;
    case 12:
      p->att_group[4] = 9;
      break;
    case 13:
      p->seat[1] = p->seat[0];
      break;
    case 14:
      p->seat[p->replica_ranks - 1] = p->replica_ranks;
      break;
    default:
      break;
    }
    FILE *quiet = tmpfile();
    Diag *diag = diag_new(r.arena, quiet);
    bool good = plan_check(diag, &spec, p);
    if (good != (damage == 0)) {
      print_error("damage %d\n", damage);
    }
    assert_int_equal(good, damage == 0);
    fclose(quiet);
    end_run(&r);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(any_stages_partition_any_layers),
      cmocka_unit_test(uneven_experts_and_sequences),
      cmocka_unit_test(unequal_groups_and_pins_are_kept),
      cmocka_unit_test(colocated_groups_have_both_roles),
      cmocka_unit_test(one_gpu_is_too_few),
      cmocka_unit_test(memory_shortage_is_exact),
      cmocka_unit_test(a_large_model_does_not_fit_one_node),
      cmocka_unit_test(contradictions_are_named),
      cmocka_unit_test(nics_are_needed_only_between_nodes),
      cmocka_unit_test(every_node_limit_gives_a_plan),
      cmocka_unit_test(the_cluster_is_used),
      cmocka_unit_test(scaled_times_keep_the_plan),
      cmocka_unit_test(more_of_anything_is_never_slower),
      cmocka_unit_test(the_same_spec_gives_the_same_bytes),
      cmocka_unit_test(json_has_the_contracts_keys),
      cmocka_unit_test(the_checker_sees_damage),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
