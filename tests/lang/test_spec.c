/* spec_build: values, defaults, derived values, places, hash, shapes, printing back. */
#include "t.h"

static const char hardware[] = "gpu g { flops = 100 TFLOPS;  memory = 80 GiB;  hbm = 1 TB/s }\n"
                               "node n { gpu = g;  gpus = 8;  nics = 4;  nvlink = 100 GB/s;  nic = 200 Gbit/s }\n"
                               "cluster lab { nodes = 2;  node = n }\n";
static const char shapes[] =
    "shape a { seq = 128;  global_batch = 16 }\nshape b { seq = 256;  micro_batch = 2;  global_batch = 8 }\n";
static const char model[] = "model m { layers = 4;  hidden = 128;  vocab = 512\n  attention { heads = 4 }\n"
                            "  moe { experts = 8;  top_k = 2;  hidden = 256 } }\n";

static bool build(T *t, const char *text, Spec *spec)
{
  AstFile *file = t_parse(t, text);
  return file && spec_build(t->arena, t->diag, file, spec);
}

static void must_build(T *t, const char *more, Spec *spec)
{
  const char *text = arena_printf(t->arena, "%s%s%s%s", hardware, shapes, model, more);
  if (!build(t, text, spec)) {
    fail_msg("%s", t_messages(t));
  }
}

static void defaults(void **state)
{
  (void)state;
  T t;
  t_open(&t);
  Spec s;
  must_build(&t, "", &s);
  assert_string_equal(t_messages(&t), "");
  assert_string_equal(s.model.name, "m");
  assert_int_equal(s.model.attention.kind, ATTENTION_GQA);
  assert_int_equal(s.model.attention.kv_heads, 4);
  assert_int_equal(s.model.attention.head_dim, 32);
  assert_int_equal(s.model.attention.window, 0);
  assert_true(s.model.norm_eps == 1e-6);
  assert_true(s.model.attention.rope.theta == 1e4);
  assert_false(s.model.attention.rope.yarn);
  assert_int_equal(s.model.moe.router, ROUTER_SOFTMAX_RENORM);
  assert_int_equal(s.model.moe.balance, BALANCE_NONE);
  assert_int_equal(s.model.moe.groups, 1);
  assert_int_equal(s.model.moe.top_groups, 1);
  assert_null(s.model.moe.route_only);
  assert_int_equal(s.train.dtype, DTYPE_BF16);
  assert_int_equal(s.train.lr_kind, LR_CONSTANT);
  assert_true(s.train.beta1 == 0.9 && s.train.beta2 == 0.95 && s.train.clip == 0.0);
  assert_int_equal(s.train.seed, 1);
  assert_int_equal(s.plan.system, SYSTEM_AF_PIPE);
  assert_int_equal(s.plan.dedup, DEDUP_AUTO);
  assert_int_equal(s.plan.placement, PLACE_AUTO);
  assert_int_equal(s.plan.replicas, 0);
  assert_null(s.plan.attention_gpus);
  assert_int_equal(s.plan.node_limit, 10000);
  assert_int_equal(s.plan.recompute, RECOMPUTE_AUTO);
  assert_int_equal(s.plan.optimizer_shard, OPT_SHARD_AUTO);
  assert_int_equal(s.plan.expert_parallel, 0);
  assert_int_equal(s.plan.chunks, 0);
  assert_false(s.costs.given);
  assert_int_equal(s.cluster.gpu.eff_grouped_rows.n, 0);
  assert_int_equal(s.cluster.nic_bytes.n, 0);
  assert_true(s.cluster.gpu.comm_tax == 0);
  assert_false(spec_layer_is_dense(&s, 0));
  t_close(&t);
}

static void hardware_in_base_units(void **state)
{
  (void)state;
  T t;
  t_open(&t);
  Spec s;
  must_build(&t, "", &s);
  assert_int_equal(s.cluster.nodes, 2);
  assert_int_equal(s.cluster.gpus, 8);
  assert_int_equal(s.cluster.nics, 4);
  assert_true(s.cluster.nic == 25e9);
  assert_true(s.cluster.nvlink == 100e9);
  assert_true(s.cluster.nvlink_ns == 5000);
  assert_string_equal(s.cluster.gpu.name, "g");
  assert_true(s.cluster.gpu.flops == 1e14);
  assert_int_equal(s.cluster.gpu.memory, 85899345920);
  assert_true(s.cluster.gpu.eff_gemm == 0.7);
  assert_true(s.cluster.gpu.launch_ns == 5000);
  t_close(&t);
}

static void pins(void **state)
{
  (void)state;
  T t;
  t_open(&t);
  Spec s;
  must_build(&t, "plan { stages = 2;  attention_gpus = 3, 2;  ffn_gpus = 4;  gap = 5%;  in_flight = auto }", &s);
  assert_int_equal(s.plan.attention_stages, 2);
  assert_int_equal(s.plan.ffn_stages, 2);
  assert_int_equal(s.plan.n_attention_gpus, 2);
  assert_int_equal(s.plan.attention_gpus[0], 3);
  assert_int_equal(s.plan.attention_gpus[1], 2);
  assert_int_equal(s.plan.n_ffn_gpus, 1);
  assert_true(s.plan.gap == 0.05);
  assert_int_equal(s.plan.in_flight, 0);
  Span span = spec_span(&s, "plan", "attention_gpus");
  assert_string_equal(diag_quote(t.diag, span), "'attention_gpus = 3, 2'");
  assert_string_equal(diag_quote(t.diag, spec_span(&s, "plan", "dedup")),
                      "'plan'"); /* not set: where its block begins */
  assert_string_equal(diag_quote(t.diag, spec_span(&s, "plan", "ffn_stages")), "'stages = 2'");
  assert_string_equal(diag_quote(t.diag, spec_span(&s, "gpu", "memory")), "'memory = 80 GiB'");
  assert_string_equal(diag_quote(t.diag, spec_span(&s, "shape", "seq")), "'seq = 128'");
  assert_string_equal(diag_quote(t.diag, spec_span(&s, "moe", NULL)), "'moe'");
  t_close(&t);
}

static void training(void **state)
{
  (void)state;
  T t;
  t_open(&t);
  Spec s;
  must_build(&t,
             "train { dtype = fp32;  seed = 9223372036854775807;  stop_on_nan = true\n"
             "  optimizer adamw { lr = 1e-3;  betas = 0.8, 0.9;  eps = 1e-9;  weight_decay = 0;  clip = 2 }\n"
             "  lr cosine { warmup = 1K;  steps = 1e4;  min = 1e-5 } }",
             &s);
  assert_int_equal(s.train.dtype, DTYPE_FP32);
  assert_int_equal(s.train.seed, INT64_MAX);
  assert_true(s.train.stop_on_nan);
  assert_true(s.train.lr == 1e-3 && s.train.beta1 == 0.8 && s.train.beta2 == 0.9 && s.train.eps == 1e-9);
  assert_true(s.train.weight_decay == 0.0 && s.train.clip == 2.0 && s.train.lr_min == 1e-5);
  assert_int_equal(s.train.lr_kind, LR_COSINE);
  assert_int_equal(s.train.warmup, 1000);
  assert_int_equal(s.train.steps, 10000);
  t_close(&t);
}

static uint64_t hash_of(const char *text)
{
  T t;
  t_open(&t);
  Spec s;
  if (!build(&t, text, &s)) {
    fail_msg("%s", t_messages(&t));
  }
  uint64_t hash = s.hash;
  t_close(&t);
  return hash;
}

static uint64_t hash_with(const char *more)
{
  char text[4000];
  snprintf(text, sizeof text, "%s%s%s%s", hardware, shapes, model, more);
  return hash_of(text);
}

static void hash_is_of_the_content(void **state)
{
  (void)state;
  char other[4000];
  uint64_t hash = hash_with("");
  snprintf(other, sizeof other, "# other order, layout and spelling\n%s\nlet X = 2*2\n%s%s", shapes,
           "model m { hidden = 64 * 2; layers = X  vocab = 512\n moe { top_k = 2; experts = 8; hidden = 256; capacity "
           "= none }\n"
           " attention { head_dim = 32; heads = 4; kv_heads = 4; rope { theta = 10000 } } }\n",
           hardware);
  assert_true(hash == hash_of(other));
  assert_true(hash == hash_with("plan { dedup = auto }  train { seed = 1 }"));
  static const char *const different[] = {"plan { dedup = node }",
                                          "plan { stages = 1 }",
                                          "train { seed = 2 }",
                                          "train { lr cosine { steps = 5 } }",
                                          "plan { ffn_gpus = 2, 3 }",
                                          "plan { attention_gpus = 2, 3 }",
                                          "train { optimizer adamw { betas = 0.9, 0.96 } }",
                                          "shape c { seq = 1;  global_batch = 1 }"};
  size_t n = sizeof different / sizeof different[0];
  uint64_t seen[16] = {hash};
  for (size_t i = 0; i < n; i++) {
    seen[i + 1] = hash_with(different[i]);
    for (size_t j = 0; j <= i; j++) {
      assert_true(seen[i + 1] != seen[j]);
    }
  }
}

static void selects_shapes(void **state)
{
  (void)state;
  T t;
  t_open(&t);
  Spec s;
  must_build(&t, "", &s);
  uint64_t all = s.hash;
  assert_int_equal(s.n_shapes, 2);
  assert_true(spec_select_shapes(t.arena, t.diag, &s, "b,a"));
  assert_int_equal(s.n_shapes, 2);
  assert_string_equal(s.shapes[0].name, "b");
  assert_true(spec_select_shapes(t.arena, t.diag, &s, "a"));
  assert_int_equal(s.n_shapes, 1);
  assert_string_equal(s.shapes[0].name, "a");
  assert_true(s.hash != all);
  assert_false(spec_select_shapes(t.arena, t.diag, &s, "b"));
  assert_false(spec_select_shapes(t.arena, t.diag, &s, ""));
  assert_false(spec_select_shapes(t.arena, t.diag, &s, "a,,a"));
  assert_int_equal(s.n_shapes, 1);
  t_close(&t);
}

static void prints_back(void **state)
{
  (void)state;
  T t;
  t_open(&t);
  Spec s;
  must_build(&t,
             "plan { attention_stages = 2;  ffn_gpus = 3, 2, 1;  gap = 0.1 }\n"
             "train { lr linear { steps = 3 }  optimizer adamw { eps = 1.2345678901234567e-9 } }",
             &s);
  char *text = NULL;
  size_t n = 0;
  FILE *out = open_memstream(&text, &n);
  spec_print(&s, out);
  fclose(out);
  assert_true(hash_of(text) == s.hash);
  free(text);
  t_close(&t);
}

static void one_mistake_gives_one_error(void **state)
{
  (void)state;
  static const char *const wrong[] = {"plan { stages = 0 }", "plan { attention_gpus = 99 }",
                                      "train { lr cosine { steps = x } }", "train { optmizer adamw { lr = 1 } }",
                                      "let A = B"};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    T t;
    t_open(&t);
    Spec s;
    assert_false(build(&t, arena_printf(t.arena, "%s%s%s%s", hardware, shapes, model, wrong[i]), &s));
    assert_int_equal(diag_errors(t.diag), 1);
    t_close(&t);
  }
}

static void same_bandwidth_same_spec(void **state)
{
  (void)state;
  char text[4000];
  snprintf(text, sizeof text, "%s%s%s", hardware, shapes, model);
  uint64_t bits = hash_of(text);
  char *at = strstr(text, "200 Gbit/s");
  assert_non_null(at);
  memcpy(at, "25 GB/s   ", 10);
  assert_true(hash_of(text) == bits);
  memcpy(at, "26 GB/s   ", 10);
  assert_true(hash_of(text) != bits);
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(defaults),
                                     cmocka_unit_test(hardware_in_base_units),
                                     cmocka_unit_test(pins),
                                     cmocka_unit_test(training),
                                     cmocka_unit_test(hash_is_of_the_content),
                                     cmocka_unit_test(selects_shapes),
                                     cmocka_unit_test(prints_back),
                                     cmocka_unit_test(one_mistake_gives_one_error),
                                     cmocka_unit_test(same_bandwidth_same_spec)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
