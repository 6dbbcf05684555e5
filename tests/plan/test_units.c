/* Units through the whole front end: the same quantity in other words gives the same plan, a different one does not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "lang/ast.h"
#include "tests/plan/specs.h"

static const char text[] =
    "let S = 128\n"
    "gpu core { flops = 50 GFLOPS;  memory = %s;  hbm = 10 GB/s;  launch = 2 us\n"
    "  efficiency { gemm = 0.7;  grouped_gemm = 0.6;  attention = 0.3;  memory = 0.8 } }\n"
    "node host { gpu = core;  gpus = 4;  nics = 4;  nvlink = 50 GB/s;  nic = %s\n"
    "  nvlink_latency = 5 us;  nic_latency = 5 us }\n"
    "model tiny { layers = 4;  hidden = 64;  vocab = 256;  norm_eps = 1e-6\n"
    "  attention { heads = 4;  kv_heads = 2;  head_dim = 16;  qk_norm = head;  rope { theta = 1e4 } }\n"
    "  moe { experts = 8;  top_k = 2;  hidden = 128;  router = softmax_renorm } }\n"
    "cluster c { nodes = 2;  node = host }\n"
    "shape s { seq = S;  micro_batch = 2;  global_batch = 16 }\n"
    "train { dtype = fp32;  optimizer adamw { lr = 3e-3; betas = 0.9, 0.95; weight_decay = 0.1; clip = 1.0 }  seed = 1 "
    "}\n"
    "plan { schedule = af_pipe;  gap = 0;  replicas = 1;  attention_gpus = 4;  ffn_gpus = 4 }\n";

/* The plan as JSON, without the solver's clock; what was said instead if there is none. */
static char *plan_of(const char *memory, const char *nic)
{
  Arena *arena = arena_new();
  char *said = NULL, *json = NULL;
  size_t n = 0, m = 0;
  static const char path[] = "plan_units.moespec";
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  fprintf(file, text, memory, nic);
  fclose(file);
  FILE *out = open_memstream(&said, &n);
  Diag *diag = diag_new(arena, out);
  Spec spec;
  Plan plan;
  bool infeasible = false;
  AstFile *ast = ast_parse(arena, diag, path, NULL, 0);
  if (ast && spec_build(arena, diag, ast, &spec) &&
      plan_solve(arena, diag, &spec, 0, spec.plan.system, &plan, &infeasible)) {
    FILE *to = open_memstream(&json, &m);
    plan.solver.ms = 0;
    plan_print_json(&spec, &plan, to);
    fclose(to);
  }
  fclose(out);
  arena_free(arena);
  remove(path);
  if (json) {
    free(said);
    return json;
  }
  return said;
}

static void bits_and_bytes_agree(void **state)
{
  (void)state;
  char *a = plan_of("2 GiB", "200 Gbit/s"), *b = plan_of("2 GiB", "25 GB/s"), *c = plan_of("2 GiB", "2 MB/s");
  assert_string_equal(a, b);
  assert_non_null(strstr(a, "\"version\": 1"));
  assert_string_not_equal(a, c);
  free(a);
  free(b);
  free(c);
}

static void decimal_and_binary_differ(void **state)
{
  (void)state;
  char *a = plan_of("2 GB", "25 GB/s"), *b = plan_of("2 GiB", "25 GB/s"), *c = plan_of("2000000000 B", "25 GB/s");
  assert_non_null(strstr(a, "\"limit\": 2000000000"));
  assert_non_null(strstr(b, "\"limit\": 2147483648"));
  assert_string_equal(a, c);
  free(a);
  free(b);
  free(c);
}

/* An error of the planner points into the spec. */
static void a_shortage_points_at_the_memory(void **state)
{
  (void)state;
  char *said = plan_of("1 MiB", "25 GB/s");
  assert_non_null(strstr(said, "plan_units.moespec:2:"));
  assert_non_null(strstr(said, "no plan: GPU memory is"));
  assert_non_null(strstr(said, "smallest change: memory = "));
  free(said);
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(bits_and_bytes_agree),
                                     cmocka_unit_test(decimal_and_binary_differ),
                                     cmocka_unit_test(a_shortage_points_at_the_memory)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
