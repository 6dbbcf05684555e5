/* Schedules of many plans are built and pass the checker; their printers, limits and errors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>
#include <jansson.h>

#include "tests/sched/mkplan.h"
#include "tests/sched/ranks.h"

static void build(const MkPlan *mk, Built *b)
{
  bool ok = mk_build(mk, b);
  if (!ok) {
    print_error(
        "layers %d groups %d+%d ranks %d:%d micro-batches %d in flight %d replicas %d node %d/%d colocated %d\n",
        mk->layers, mk->p_att, mk->p_ffn, mk->m[0], mk->n[0], mk->micro_batches, mk->in_flight, mk->replicas, mk->node,
        mk->ranks_per_node, mk->colocated);
  }
  assert_true(ok);
}

static int most_work, most_chan;

/* Saved slots are bounded by what the plan's micro-batches in flight fill; all work is bounded by few slots. */
static void check_limits(const Built *b)
{
  for (int g = 0; g < b->plan.n_groups; g++) {
    int att = b->plan.att_group[b->spec.model.layers] == g, ffn = 0;
    for (int layer = 0; layer < b->spec.model.layers; layer++) {
      att += b->plan.att_group[layer] == g;
      ffn += b->plan.ffn_group[layer] == g;
    }
    most_work = b->sched.groups[g].att_work > most_work ? b->sched.groups[g].att_work : most_work;
    most_work = b->sched.groups[g].ffn_work > most_work ? b->sched.groups[g].ffn_work : most_work;
    assert_in_range(b->sched.groups[g].att_saved, att > 0, (unsigned)(att * b->plan.in_flight));
    assert_in_range(b->sched.groups[g].ffn_saved, ffn > 0, (unsigned)(ffn * b->plan.in_flight));
  }
  for (int i = 0; i < b->sched.n_chans; i++) {
    if (b->sched.chans[i].src >= 0) {
      most_chan = b->sched.chans[i].slots > most_chan ? b->sched.chans[i].slots : most_chan;
    }
  }
}

static void compile_time_grid(void **state)
{
  (void)state;
  static const int ratios[][2] = {{1, 1}, {2, 1}, {4, 2}, {1, 2}, {3, 2}, {2, 3}, {5, 2}, {1, 8}};
  int n = 0;
  for (int stages = 1; stages <= 8; stages++) {
    for (int mbs = 1; mbs <= 16; mbs++) {
      for (int r = 0; r < 8; r++) {
        MkPlan mk = {
            .layers = stages + (mbs + r) % (stages + 1), .p_att = stages, .p_ffn = stages, .micro_batches = mbs};
        mk.m[0] = ratios[r][0];
        mk.n[0] = ratios[r][1];
        mk.in_flight = r % 3 == 0 ? mbs : r % 3 == 1 ? (mbs + 1) / 2 : 1;
        mk.seq = 64 << 3 * (n % 4);
        mk.again = n % 7 > 4;
        Built b;
        build(&mk, &b);
        check_limits(&b);
        arena_free(b.arena);
        n++;
      }
    }
  }
  print_message("%d plans, at most %d work slots and %d message slots\n", n, most_work, most_chan);
}

static void layers_and_groups(void **state)
{
  (void)state;
  int n = 0;
  for (int layers = 1; layers <= 12; layers++) {
    for (int pa = 1; pa <= 4 && pa <= layers + 1; pa++) {
      for (int pf = 1; pf <= 4 && pf <= layers; pf++) {
        for (int kind = 0; kind < 6; kind++) {
          MkPlan mk = {.layers = layers, .p_att = pa, .p_ffn = pf, .m = {2, 1, 3}, .n = {2, 4, 3}};
          mk.micro_batches = 1 + (layers + kind + pa) % 6;
          mk.node = kind % 2;
          mk.ranks_per_node = kind == 1 ? 2 : kind == 3 ? 3 : 8;
          mk.replicas = kind >= 4 ? 2 : 1;
          mk.tied = kind == 2 || kind == 5;
          mk.in_flight = kind == 3 ? 1 : kind == 4 ? 2 : 0;
          mk.in_flight = mk.in_flight > mk.micro_batches ? mk.micro_batches : mk.in_flight;
          mk.seq = 16 << 2 * (n % 6);
          mk.seqs = 1 + n % 3;
          mk.again = n % 5 > 2;
          Built b;
          build(&mk, &b);
          check_limits(&b);
          arena_free(b.arena);
          n++;
        }
      }
    }
  }
  print_message("%d plans, at most %d work slots and %d message slots\n", n, most_work, most_chan);
}

static void colocated_groups(void **state)
{
  (void)state;
  for (int layers = 1; layers <= 8; layers++) {
    for (int p = 1; p <= 4 && p <= layers; p++) {
      for (int kind = 0; kind < 4; kind++) {
        MkPlan mk = {
            .layers = layers, .p_att = p, .colocated = true, .m = {kind == 2 ? 1 : 4}, .micro_batches = layers};
        mk.node = kind == 1;
        mk.ranks_per_node = 2;
        mk.replicas = kind == 3 ? 2 : 1;
        mk.tied = kind == 3;
        mk.in_flight = 1 + layers / 2;
        mk.again = (layers + p) % 3 == 0;
        Built b;
        build(&mk, &b);
        check_limits(&b);
        arena_free(b.arena);
      }
    }
  }
}

/* What the checker says of groups, the brute force over all ranks confirms: pairs match and nothing waits in a circle.
 */
static void ranks_agree(void **state)
{
  (void)state;
  for (int kind = 0; kind < 12; kind++) {
    MkPlan mk = {
        .layers = 3, .p_att = 1 + kind % 2, .p_ffn = 1 + kind % 3, .m = {2, 3}, .n = {3, 2, 1}, .micro_batches = 3};
    mk.node = kind >= 4;
    mk.ranks_per_node = 2 + kind % 2;
    mk.replicas = 1 + kind % 2;
    mk.tied = kind % 5 == 0;
    mk.colocated = kind >= 10;
    mk.in_flight = 1 + kind % 3;
    mk.again = kind % 4 > 1;
    Built b;
    build(&mk, &b);
    assert_non_null(ranks_new(b.arena, &b.spec, &b.plan, &b.sched));
    arena_free(b.arena);
  }
}

static char *printed(const Built *b, void (*print)(const Spec *, const Plan *, const Schedule *, FILE *), size_t *size)
{
  char *text = NULL;
  FILE *out = open_memstream(&text, size);
  assert_non_null(out);
  print(&b->spec, &b->plan, &b->sched, out);
  fclose(out);
  return text;
}

static void same_bytes_twice(void **state)
{
  (void)state;
  MkPlan mk = {.layers = 5,
               .p_att = 2,
               .p_ffn = 2,
               .m = {4, 2},
               .n = {4},
               .ranks_per_node = 2,
               .node = true,
               .micro_batches = 6};
  Built a, b;
  build(&mk, &a);
  build(&mk, &b);
  assert_int_equal(a.sched.n_chans, b.sched.n_chans);
  assert_memory_equal(a.sched.chans, b.sched.chans, (size_t)a.sched.n_chans * sizeof *a.sched.chans);
  for (int g = 0; g < a.sched.n_groups; g++) {
    size_t n = (size_t)a.sched.groups[g].n_ops;
    assert_int_equal(n, b.sched.groups[g].n_ops);
    assert_memory_equal(a.sched.groups[g].ops, b.sched.groups[g].ops, n * sizeof(MoeOp));
    assert_memory_equal(a.sched.groups[g].start_ns, b.sched.groups[g].start_ns, n * sizeof(int64_t));
  }
  void (*const printers[])(const Spec *, const Plan *, const Schedule *, FILE *) = {sched_print, sched_print_json,
                                                                                    sched_print_trace};
  for (int i = 0; i < 3; i++) {
    size_t na, nb;
    char *x = printed(&a, printers[i], &na), *y = printed(&b, printers[i], &nb);
    assert_int_equal(na, nb);
    assert_memory_equal(x, y, na);
    free(x);
    free(y);
  }
  arena_free(a.arena);
  arena_free(b.arena);
}

static void prints_well(void **state)
{
  (void)state;
  MkPlan mk = {.layers = 2, .p_att = 1, .p_ffn = 1, .m = {2}, .n = {2}, .micro_batches = 2};
  Built b;
  build(&mk, &b);
  size_t n;
  char *text = printed(&b, sched_print, &n);
  assert_non_null(strstr(text, "A0: e0.0 a0.0"));
  assert_non_null(strstr(text, "\nF0: f0.0"));
  assert_non_null(strstr(text, "gATT.1"));
  for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
    assert_in_range(strlen(line), 1, 120);
  }
  free(text);

  json_error_t error;
  text = printed(&b, sched_print_json, &n);
  json_t *root = json_loads(text, 0, &error);
  assert_non_null(root);
  assert_int_equal(json_integer_value(json_object_get(root, "version")), 1);
  assert_string_equal(json_string_value(json_object_get(root, "system")), "af_pipe");
  json_t *ops = json_object_get(root, "ops"), *op;
  size_t i;
  assert_int_equal(json_array_size(ops), b.sched.groups[0].n_ops + b.sched.groups[1].n_ops);
  json_array_foreach(ops, i, op)
  {
    assert_int_equal(json_integer_value(json_object_get(op, "id")), i);
    assert_true(json_integer_value(json_object_get(op, "end_ns")) >=
                json_integer_value(json_object_get(op, "start_ns")));
  }
  json_decref(root);
  free(text);

  text = printed(&b, sched_print_trace, &n);
  root = json_loads(text, 0, &error);
  assert_non_null(root);
  /* per group one process name, four thread names and its ops */
  assert_int_equal(json_array_size(json_object_get(root, "traceEvents")),
                   b.sched.groups[0].n_ops + b.sched.groups[1].n_ops + 10);
  json_decref(root);
  free(text);
  arena_free(b.arena);
}

static void refused(const MkPlan *mk, void (*change)(Spec *, Plan *), const char *word)
{
  Arena *arena = arena_new();
  Spec spec;
  Plan plan;
  Schedule sched;
  mk_spec(mk, &spec);
  mk_plan(arena, mk, &spec, &plan);
  if (change) {
    change(&spec, &plan);
  }
  char *text = NULL;
  size_t size;
  FILE *out = open_memstream(&text, &size);
  assert_false(sched_build(arena, diag_new(arena, out), &spec, &plan, &sched));
  fclose(out);
  assert_non_null(strstr(text, word));
  free(text);
  arena_free(arena);
}

static void no_micro_batches(Spec *spec, Plan *plan)
{
  (void)spec;
  plan->micro_batches = 0;
}

static void says_what_it_cannot(void **state)
{
  (void)state;
  MkPlan mk = {.layers = 3, .p_att = 1, .p_ffn = 1, .m = {1}, .n = {1}, .micro_batches = 2};
  refused(&mk, no_micro_batches, "0 micro-batches");
  mk.p_ffn = 4;
  refused(&mk, NULL, "has no layer");
}

/* Printed, not asserted: time to build and check, which should grow with the number of rows. */
static void growth_of_time(void **state)
{
  (void)state;
  for (int layers = 8; layers <= 64; layers *= 2) {
    MkPlan mk = {.layers = layers,
                 .p_att = 4,
                 .p_ffn = 4,
                 .m = {8},
                 .n = {8},
                 .micro_batches = 32,
                 .in_flight = 16,
                 .node = true};
    struct timespec t0, t1;
    clock_gettime(CLOCK_MONOTONIC, &t0);
    Built b;
    build(&mk, &b);
    clock_gettime(CLOCK_MONOTONIC, &t1);
    int rows = 0;
    for (int g = 0; g < b.sched.n_groups; g++) {
      rows += b.sched.groups[g].n_ops;
    }
    print_message("%d layers: %d rows, %.0f ms\n", layers, rows,
                  1e3 * (double)(t1.tv_sec - t0.tv_sec) + 1e-6 * (double)(t1.tv_nsec - t0.tv_nsec));
    arena_free(b.arena);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(compile_time_grid),   cmocka_unit_test(layers_and_groups), cmocka_unit_test(colocated_groups),
      cmocka_unit_test(ranks_agree),         cmocka_unit_test(same_bytes_twice),  cmocka_unit_test(prints_well),
      cmocka_unit_test(says_what_it_cannot), cmocka_unit_test(growth_of_time),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
