/* Saved slots by group: as many as its memory holds, never more taken than there are, and of use even where they are
   not enough for one whole micro-batch more. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "codegen/plan_int.h"
#include "tests/sched/mkplan.h"

static int draw(int from, int to)
{
  return from + rand() % (to - from + 1);
}

static int layers_of(const Built *b, int g)
{
  int att = plan_layers(&b->spec, &b->plan, g, PLAN_A), ffn = plan_layers(&b->spec, &b->plan, g, PLAN_F);
  return att > ffn ? att : ffn;
}

/* A plan with slots for so many quarters of a micro-batch: of attention groups, of FFN groups. */
static void make(Built *b, const MkPlan *mk, const int quarters[2])
{
  *b = (Built){.arena = arena_new()};
  mk_spec(mk, &b->spec);
  mk_plan(b->arena, mk, &b->spec, &b->plan);
  b->plan.in_flight = mk->micro_batches;
  for (int g = 0; g < b->plan.n_groups; g++) {
    int layers = layers_of(b, g), side = b->plan.groups[g].role == PLAN_F, live = layers * quarters[side] / 4;
    b->plan.groups[g].live = live > 0 ? live : 1;
    b->plan.in_flight = live / layers < b->plan.in_flight ? live / layers : b->plan.in_flight;
  }
}

/* Any numbers of slots, from those of one micro-batch on: every schedule ends and passes its checker. */
static void any_slots_do(void **state)
{
  (void)state;
  srand(11);
  int more = 0;
  for (int i = 0; i < 60; i++) {
    MkPlan mk = {.layers = draw(2, 9), .p_att = draw(1, 2), .p_ffn = draw(1, 2), .m = {draw(1, 3)}, .n = {draw(1, 3)}};
    mk.micro_batches = draw(2, 12);
    mk.dense = draw(0, 3) ? 0 : 1;
    mk.p_ffn = mk.layers - mk.dense < mk.p_ffn ? 1 : mk.p_ffn;
    mk.ranks_per_node = draw(1, 4);
    mk.node = draw(0, 1);
    Built b;
    make(&b, &mk, (const int[]){draw(4, 14), draw(4, 14)});
    assert_true(mk_schedule(&b));
    for (int g = 0; g < b.plan.n_groups; g++) {
      bool head = plan_att(&b.spec, &b.plan, 0, mk.layers) == g;
      assert_true(b.sched.groups[g].att_saved <= plan_saved(&b.spec, &b.plan, g, PLAN_A) + head * b.plan.in_flight);
      assert_true(b.sched.groups[g].ffn_saved <= plan_saved(&b.spec, &b.plan, g, PLAN_F));
    }
    more += b.sched.in_flight > b.plan.in_flight;
    arena_free(b.arena);
  }
  print_message("%d of 60 have more micro-batches under way than they have slots for whole\n", more);
  assert_true(more > 20);
}

static int64_t pipe_ns(const MkPlan *mk, int quarters)
{
  Built b;
  make(&b, mk, (const int[]){quarters, quarters});
  assert_true(mk_schedule(&b));
  int64_t ns = b.sched.pipe_ns;
  arena_free(b.arena);
  return ns;
}

static void parts_of_micro_batches_count(void **state)
{
  (void)state;
  MkPlan mk = {
      .layers = 12, .p_att = 2, .p_ffn = 2, .m = {8}, .n = {8}, .micro_batches = 24, .vocab = 32000, .node = true};
  int64_t few = pipe_ns(&mk, 8), part = pipe_ns(&mk, 11), more = pipe_ns(&mk, 16);
  print_message("slots for 2: %.1f ms; for 2 3/4: %.1f; for 4: %.1f\n", 1e-6 * (double)few, 1e-6 * (double)part,
                1e-6 * (double)more);
  assert_true(10 * part < 9 * few && more < part);
}

static int64_t need(const Built *b, int g)
{
  MemIn in = plan_mem_in(&b->spec, &b->plan, &b->plan.groups[g], 1);
  return memory_need(&b->spec, &in, b->plan.groups[g].role);
}

/* One slot more would not fit, or would be of no use; and what a plan saves it has saved. */
static void as_many_as_fit(void **state)
{
  (void)state;
  MkPlan mk = {.layers = 16, .p_att = 2, .p_ffn = 1, .m = {8}, .n = {16}, .micro_batches = 64, .seq = 8192, .dense = 1};
  Built b;
  make(&b, &mk, (const int[]){4, 4});
  b.spec.model.moe.imbalance = 1.2;
  Diag *diag = diag_new(b.arena, stderr);
  assert_true(plan_set_in_flight(diag, &b.spec, &b.plan));
  int want = 2 * plan_in_flight_need(&b.spec, &b.plan), full = 0, least = want;
  for (int g = 0; g < b.plan.n_groups; g++) {
    PlanGroup *group = &b.plan.groups[g];
    int layers = layers_of(&b, g);
    assert_true(need(&b, g) <= b.spec.cluster.gpu.memory && group->live <= want * layers);
    least = group->live / layers < least ? group->live / layers : least;
    if (group->live < want * layers) {
      group->live++;
      assert_true(need(&b, g) > b.spec.cluster.gpu.memory);
      group->live--;
      full++;
    }
    int64_t had = need(&b, g), save = 3 * (had / 100);
    assert_true(plan_save(&b.spec, &b.plan, g, save));
    assert_true(need(&b, g) <= had - save);
  }
  print_message("%d of %d groups are full\n", full, b.plan.n_groups);
  assert_true(full > 0 && full < b.plan.n_groups && b.plan.in_flight <= least);
  assert_true(!plan_save(&b.spec, &b.plan, 0, need(&b, 0)));
  arena_free(b.arena);
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(any_slots_do), cmocka_unit_test(parts_of_micro_batches_count),
                                     cmocka_unit_test(as_many_as_fit)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
