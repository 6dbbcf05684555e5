/* A step whose last micro-batch is short, the global batch being no multiple: every op and message takes what it would
   in a plan of its micro-batch's own size, no order beats the bound, and the step is shorter than a full one (not of
   DualPipe: the other direction decides). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "codegen/cost.h"
#include "tests/sched/mkplan.h"

static const MkPlan plans[] = {
    {.layers = 6, .p_att = 1, .p_ffn = 1, .m = {8}, .n = {8}, .seqs = 2, .micro_batches = 6, .node = true},
    {.layers = 6, .p_att = 2, .p_ffn = 3, .m = {8}, .n = {4}, .seqs = 2, .micro_batches = 9, .replicas = 2},
    {.layers = 8, .p_att = 2, .m = {8}, .seqs = 2, .micro_batches = 8, .system = SYSTEM_DUALPIPE},
    {.layers = 8, .p_att = 2, .m = {8}, .seqs = 2, .micro_batches = 8, .system = SYSTEM_TUTEL, .chunks = 2},
};

/* Builds the plan with so many sequences of a replica lacking from its last micro-batch. */
static void build(const MkPlan *mk, int lacking, Built *b)
{
  b->arena = arena_new();
  mk_spec(mk, &b->spec);
  mk_plan(b->arena, mk, &b->spec, &b->plan);
  ShapeSpec *shape = arena_new_of(b->arena, ShapeSpec);
  *shape = *b->plan.shape;
  shape->global_batch -= lacking * b->plan.replicas;
  b->plan.shape = shape;
  assert_true(mk_schedule(b));
}

static bool computes(const MoeOp *op)
{
  return op->stream == MOE_STREAM_FWD || op->stream == MOE_STREAM_BWD;
}

static const double merged = 132.0 / 112; /* of ops that DualPipe runs beside messages */

/* Ops and lone messages of the last micro-batch against the costs of a plan that has only such. */
static void check_rows(const Built *b, int lacking)
{
  Plan small = b->plan;
  small.mb_seqs -= lacking;
  small.ways = 1; /* both directions have the same costs here */
  int checked = 0;
  for (int g = 0; g < b->sched.n_groups; g++) {
    for (int i = 0; i < b->sched.groups[g].n_ops; i++) {
      const MoeOp *op = &b->sched.groups[g].ops[i];
      int64_t ns = b->sched.groups[g].end_ns[i] - b->sched.groups[g].start_ns[i];
      bool is_last = op->mb == b->plan.micro_batches - 1;
      const Plan *of = is_last ? &small : &b->plan;
      if (op->mb >= 0 && computes(op)) {
        int64_t alone = cost_op_ns(&b->spec, of, (MoeOpKind)op->kind, op->layer);
        assert_true(ns == alone || (b->plan.ways == 2 && ns == llround((double)alone * merged)));
        checked += is_last;
      } else if (op->mb >= 0 && op->kind == MOE_OP_RECV) {
        assert_true(ns >= cost_msg(&b->spec, of, (MoeEdge)op->edge, op->layer).ns);
      }
    }
  }
  assert_true(checked > 10);
}

static void takes_its_own_time(void **state)
{
  (void)state;
  for (size_t k = 0; k < sizeof plans / sizeof *plans; k++) {
    Built full, less;
    int lacking = 12;
    build(&plans[k], 0, &full);
    build(&plans[k], lacking, &less);
    check_rows(&full, 0);
    check_rows(&less, lacking);
    SchedBound all = sched_bound(&full.spec, &full.plan), most = sched_bound(&less.spec, &less.plan);
    double saved = 1 - (double)less.sched.pipe_ns / (double)full.sched.pipe_ns;
    print_message("plan %zu: %d of %d sequences in the last micro-batch: %.1f %% less, the bound %.1f %%\n", k,
                  less.plan.mb_seqs - lacking, less.plan.mb_seqs, 100 * saved,
                  100 - 100 * (double)most.ns / (double)all.ns);
    assert_true(saved >= (less.plan.ways == 2 ? 0 : 0.02) && most.ns <= less.sched.pipe_ns && most.ns < all.ns);
    arena_free(full.arena);
    arena_free(less.arena);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(takes_its_own_time)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
