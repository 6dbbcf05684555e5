/* How good and how fast: prints the modelled time of the micro-batches' part of some plans against what no order can
   beat, and the CPU time to build and to check their schedules. Asserts only that they build and check. */
#include "tests/sched/mkplan.h"

#include <string.h>
#include <time.h>

static double seconds(void)
{
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static const char *binds(const SchedBound *b)
{
  return b->ns == b->compute_ns  ? "compute"
         : b->ns == b->link_ns   ? "links"
         : b->ns == b->flight_ns ? "in flight"
                                 : "path";
}

static int run(const char *name, MkPlan mk)
{
  Arena *arena = arena_new();
  Diag *diag = diag_new(arena, stderr);
  Spec spec;
  Plan plan;
  Schedule sched;
  mk_spec(&mk, &spec);
  mk_plan(arena, &mk, &spec, &plan);
  double t0 = seconds();
  bool ok = sched_build(arena, diag, &spec, &plan, &sched);
  double t1 = seconds();
  ok = ok && sched_check(diag, &spec, &plan, &sched);
  double t2 = seconds();
  if (ok) {
    int rows = 0;
    for (int g = 0; g < sched.n_groups; g++) {
      rows += sched.groups[g].n_ops;
    }
    SchedBound b = sched_bound(&spec, &plan);
    printf("%-28s rows %7d end %9.2f ms bound %9.2f (%s): +%.1f %% in flight %d build %.3f s check %.3f s\n", name,
           rows, (double)sched.pipe_ns * 1e-6, (double)b.ns * 1e-6, binds(&b),
           100.0 * ((double)sched.pipe_ns / (double)b.ns - 1), sched.in_flight, t1 - t0, t2 - t1);
  }
  arena_free(arena);
  return ok ? 0 : 1;
}

int main(void)
{
  int bad = 0;
  bad += run("4 layers 1+1", (MkPlan){.layers = 4, .p_att = 1, .p_ffn = 1, .m = {8}, .n = {8}, .micro_batches = 8});
  bad += run("8 layers 1+1", (MkPlan){.layers = 8,
                                      .p_att = 1,
                                      .p_ffn = 1,
                                      .m = {16},
                                      .n = {8},
                                      .micro_batches = 8,
                                      .vocab = 32000,
                                      .node = true,
                                      .seq = 8192});
  bad += run("8 layers 2+2", (MkPlan){.layers = 8,
                                      .p_att = 2,
                                      .p_ffn = 2,
                                      .m = {16},
                                      .n = {8},
                                      .micro_batches = 16,
                                      .vocab = 32000,
                                      .node = true,
                                      .seq = 8192});
  bad += run("24 layers 2+2", (MkPlan){.layers = 24,
                                       .p_att = 2,
                                       .p_ffn = 2,
                                       .m = {16},
                                       .n = {16},
                                       .micro_batches = 16,
                                       .vocab = 32000,
                                       .node = true});
  bad += run(
      "24 layers 4+4",
      (MkPlan){
          .layers = 24, .p_att = 4, .p_ffn = 4, .m = {8}, .n = {8}, .micro_batches = 32, .vocab = 32000, .node = true});
  bad += run("24 layers 2+2 by rank",
             (MkPlan){.layers = 24, .p_att = 2, .p_ffn = 2, .m = {16}, .n = {16}, .micro_batches = 16, .vocab = 32000});
  bad += run("48 layers 4+4", (MkPlan){.layers = 48,
                                       .p_att = 4,
                                       .p_ffn = 4,
                                       .m = {8},
                                       .n = {8},
                                       .micro_batches = 64,
                                       .in_flight = 32,
                                       .vocab = 32000,
                                       .node = true});
  bad += run("94 layers 4+4", (MkPlan){.layers = 94,
                                       .p_att = 4,
                                       .p_ffn = 4,
                                       .m = {16},
                                       .n = {16},
                                       .micro_batches = 64,
                                       .in_flight = 16,
                                       .node = true});
  return bad;
}
