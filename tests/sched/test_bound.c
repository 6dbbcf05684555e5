/* The bound never exceeds the best of all orders: of tiny plans, one layer and two micro-batches on one attention and
   one FFN group, every pair of orders of compute ops that ends is simulated, with slots for all of them. Compute, links
   and both bind in turn, and the last micro-batch may be short. Also how close the bound is to that best. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "codegen/sched_int.h"
#include "tests/sched/mkplan.h"

/* What a micro-batch does, in the order of its dataflow; the last two are not ordered by it. */
static const SchedTask chain[] = {TASK_EMBED_FWD, TASK_ATT_FWD,   TASK_FFN_FWD,   TASK_HEAD,       TASK_FFN_DGRAD,
                                  TASK_FFN_WGRAD, TASK_ATT_DGRAD, TASK_ATT_WGRAD, TASK_EMBED_WGRAD};
enum { CHAIN = 9, MBS = 2, GROUPS = 2 };

static int place(SchedTask task)
{
  int i = 0;
  while (chain[i] != task) {
    i++;
  }
  return i;
}

/* The one that must be done before it, as a place in the chain; -1: none. */
static int before(int at)
{
  static const int of[CHAIN] = {-1, 0, 1, 2, 3, 4, 4, 6, 6};
  return of[at];
}

typedef struct All {
  SchedNet net;
  SchedOrder orders[GROUPS];
  int32_t *lists[GROUPS][8192]; /* every order of a group's tasks that keeps to the dataflow within it */
  int n_lists[GROUPS], n[GROUPS];
  int64_t best;
  int tried;
} All;

/* Lengthens list of group g by every task that may come next. */
static void lengthen(Arena *arena, All *all, int g, int32_t *list, int n)
{
  const SchedNet *net = &all->net;
  bool done[MBS][CHAIN] = {{false}}, any = false;
  for (int i = 0; i < n; i++) {
    done[sched_mb(net, list[i])][place(sched_task(net, list[i]))] = true;
  }
  for (int mb = 0; mb < MBS; mb++) {
    for (int at = 0; at < CHAIN; at++) {
      int layer = chain[at] == TASK_HEAD, from = before(at);
      while (from >= 0 && sched_group(net, chain[from], chain[from] == TASK_HEAD, 0) != g) {
        from = before(from);
      }
      if (sched_group(net, chain[at], layer, 0) != g || done[mb][at] || (from >= 0 && !done[mb][from])) {
        continue;
      }
      any = true;
      list[n] = sched_id(net, chain[at], layer, mb, 0);
      lengthen(arena, all, g, list, n + 1);
    }
  }
  if (!any) {
    int32_t *copy = arena_new_array(arena, int32_t, (size_t)n);
    memcpy(copy, list, (size_t)n * sizeof *copy);
    assert_true(all->n_lists[g] < 8192);
    all->lists[g][all->n_lists[g]++] = copy;
    all->n[g] = n;
  }
}

/* Whether both groups get to the end of their orders. */
static bool ends(const All *all)
{
  bool done[MBS][CHAIN] = {{false}}, moved = true;
  int at[GROUPS] = {0};
  while (moved) {
    moved = false;
    for (int g = 0; g < GROUPS; g++) {
      while (at[g] < all->n[g]) {
        int32_t id = all->orders[g].ids[at[g]];
        int mb = sched_mb(&all->net, id), task = place(sched_task(&all->net, id)), from = before(task);
        if (from >= 0 && !done[mb][from]) {
          break;
        }
        done[mb][task] = moved = true;
        at[g]++;
      }
    }
  }
  return at[0] == all->n[0] && at[1] == all->n[1];
}

static void try_all(All *all)
{
  static const SchedPolicy plenty = {.cap = MBS, .work_slots = 64, .chan_slots = 64};
  Arena *arena = arena_new();
  SchedTimes times = sched_times_new(arena, &all->net);
  for (int i = 0; i < all->n_lists[0] * all->n_lists[1]; i++) {
    all->orders[0] = (SchedOrder){all->lists[0][i % all->n_lists[0]], all->n[0]};
    all->orders[1] = (SchedOrder){all->lists[1][i / all->n_lists[0]], all->n[1]};
    if (ends(all)) {
      Arena *scratch = arena_new();
      if (sched_simulate(scratch, &all->net, &plenty, all->orders, all->best - 1, &times)) {
        all->best = times.makespan;
      }
      all->tried++;
      arena_free(scratch);
    }
  }
  arena_free(arena);
}

static void no_order_beats_it(void **state)
{
  (void)state;
  static const struct {
    double nic;
    int seq, vocab, m, n, lacking;
  } cases[] = {{46e9, 4096, 1000, 8, 8, 0}, {400e9, 4096, 1000, 8, 8, 0},   {10e9, 4096, 1000, 16, 8, 0},
               {80e9, 4096, 1000, 8, 4, 0}, {46e9, 16384, 32000, 8, 16, 0}, {46e9, 4096, 1000, 8, 8, 12},
               {80e9, 4096, 1000, 8, 4, 9}, {150e9, 16384, 32000, 4, 16, 5}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Arena *arena = arena_new();
    Spec spec;
    Plan plan;
    MkPlan mk = {.layers = 1, .p_att = 1, .p_ffn = 1, .m = {cases[i].m}, .n = {cases[i].n}, .micro_batches = MBS};
    mk.vocab = cases[i].vocab;
    mk.seq = cases[i].seq;
    mk.seqs = 2;
    mk_spec(&mk, &spec);
    spec.cluster.nic = cases[i].nic;
    mk_plan(arena, &mk, &spec, &plan);
    ShapeSpec shape = *plan.shape;
    shape.global_batch -= cases[i].lacking;
    plan.shape = &shape;
    All *all = arena_new_of(arena, All);
    all->best = INT64_MAX;
    all->net = sched_net(arena, &spec, &plan);
    int32_t list[MBS * CHAIN];
    for (int g = 0; g < GROUPS; g++) {
      lengthen(arena, all, g, list, 0);
    }
    try_all(all);
    SchedBound b = sched_bound(&spec, &plan);
    print_message(
        "case %zu: best of %d orders %.3f ms, bound %.3f (compute %.3f, links %.3f, path %.3f): %.1f %% above\n", i,
        all->tried, (double)all->best * 1e-6, (double)b.ns * 1e-6, (double)b.compute_ns * 1e-6,
        (double)b.link_ns * 1e-6, (double)b.path_ns * 1e-6, 100 * ((double)all->best / (double)b.ns - 1));
    assert_true(all->tried > 100 && b.ns <= all->best);
    assert_true((double)all->best < 1.1 * (double)b.ns);
    arena_free(arena);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(no_order_beats_it)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
