/* How good and how fast: prints the modelled makespan of some plans against its lower bounds, and the CPU time to build
   and to check their schedules. Asserts only that they build and check. */
#include "codegen/cost.h"
#include "tests/sched/mkplan.h"

#include <string.h>
#include <time.h>

static double seconds(void)
{
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
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
    int64_t end = 0, busiest = 0, begin = INT64_MAX, bound = 0;
    for (int g = 0; g < sched.n_groups; g++) {
      const SchedGroup *group = &sched.groups[g];
      int64_t busy = 0, first = INT64_MAX;
      int64_t out = 0, in = 0;
      rows += group->n_ops;
      for (int i = 0; i < group->n_ops; i++) {
        const MoeOp *op = &group->ops[i];
        if (op->mb < 0) {
          continue;
        }
        if (group->end_ns[i] > end) {
          end = group->end_ns[i];
        }
        if (op->stream <= MOE_STREAM_BWD) {
          busy += group->end_ns[i] - group->start_ns[i];
          first = group->start_ns[i] < first ? group->start_ns[i] : first;
        } else if (moe_edge_pairs(op->edge) == MOE_PAIRS_NODE) {
          continue;
        } else if (op->kind == MOE_OP_SEND) {
          out += cost_msg(&spec, &plan, op->edge, op->layer).src_ns;
        } else if (op->kind == MOE_OP_RECV) {
          in += cost_msg(&spec, &plan, op->edge, op->layer).dst_ns;
        }
      }
      begin = first < begin ? first : begin;
      busiest = busy > busiest ? busy : busiest;
      bound = busy + first > bound ? busy + first : bound;
      bound = out > bound ? out : bound;
      bound = in > bound ? in : bound;
    }
    printf("%-28s rows %7d end %9.2f ms bound %9.2f: +%.1f %% in flight %d build %.3f s check %.3f s\n", name, rows,
           (double)end * 1e-6, (double)bound * 1e-6, 100.0 * ((double)end / (double)bound - 1), sched.in_flight,
           t1 - t0, t2 - t1);
  }
  arena_free(arena);
  return ok ? 0 : 1;
}

int main(void)
{
  int bad = 0;
  bad += run("4 layers 1+1", (MkPlan){.layers = 4, .p_att = 1, .p_ffn = 1, .m = {8}, .n = {8}, .micro_batches = 8});
  bad += run("8 layers 1+1 compute binds", (MkPlan){.layers = 8,
                                                    .p_att = 1,
                                                    .p_ffn = 1,
                                                    .m = {16},
                                                    .n = {8},
                                                    .micro_batches = 8,
                                                    .vocab = 32000,
                                                    .node = true,
                                                    .seq = 8192});
  bad += run("8 layers 2+2 compute binds", (MkPlan){.layers = 8,
                                                    .p_att = 2,
                                                    .p_ffn = 2,
                                                    .m = {16},
                                                    .n = {8},
                                                    .micro_batches = 16,
                                                    .vocab = 32000,
                                                    .node = true,
                                                    .seq = 8192});
  bad += run("24 layers 2+2 compute binds", (MkPlan){.layers = 24,
                                                     .p_att = 2,
                                                     .p_ffn = 2,
                                                     .m = {16},
                                                     .n = {16},
                                                     .micro_batches = 16,
                                                     .vocab = 32000,
                                                     .node = true});
  bad += run(
      "24 layers 4+4 compute binds",
      (MkPlan){
          .layers = 24, .p_att = 4, .p_ffn = 4, .m = {8}, .n = {8}, .micro_batches = 32, .vocab = 32000, .node = true});
  bad += run("24 layers 2+2 links bind",
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
