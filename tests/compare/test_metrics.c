/* Metrics of schedules written by hand, whose answer is known, and their invariants on one that the compiler makes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "codegen/fastest.h"
#include "codegen/human.h"
#include "codegen/metrics.h"
#include "codegen/timeline.h"
#include "lang/ast.h"
#include "runtime/moe_layout.h"

enum { MOST = 16 };

/* A table under construction. */
typedef struct Table {
  MoeOp ops[MOST];
  int64_t start[MOST], end[MOST];
  int n;
} Table;

static int add(Table *t, MoeOpKind kind, MoeEdge edge, int64_t start, int64_t end)
{
  MoeOp op = {.kind = (uint8_t)kind, .edge = (uint8_t)edge, .bucket = MOE_BUCKET_NONE, .peer = -1, .chan = -1};
  op.stream = kind == MOE_OP_SEND   ? MOE_STREAM_SEND
              : kind == MOE_OP_RECV ? MOE_STREAM_RECV
                                    : (uint8_t)(edge == MOE_EDGE_NONE ? MOE_STREAM_FWD : MOE_STREAM_SEND);
  for (int k = 0; k < MOE_MAX_WAITS; k++) {
    op.wait[k] = op.release[k] = -1;
  }
  t->ops[t->n] = op;
  t->start[t->n] = start;
  t->end[t->n] = end;
  return t->n++;
}

static void wait_for(Table *t, int op, int on)
{
  int k = 0;
  while (t->ops[op].wait[k] >= 0) {
    k++;
  }
  t->ops[op].wait[k] = on;
}

/* Two groups, of one and of three ranks. */
typedef struct Hand {
  Table tables[2];
  SchedGroup groups[2];
  PlanGroup plan_groups[2];
  Schedule sched;
  Plan plan;
} Hand;

static void finish(Hand *h, int64_t step)
{
  for (int g = 0; g < 2; g++) {
    h->groups[g] = (SchedGroup){
        .ops = h->tables[g].ops, .n_ops = h->tables[g].n, .start_ns = h->tables[g].start, .end_ns = h->tables[g].end};
    h->plan_groups[g] = (PlanGroup){.id = g, .role = g ? PLAN_F : PLAN_A, .n_ranks = g ? 3 : 1};
  }
  h->sched = (Schedule){.groups = h->groups, .n_groups = 2, .step_ns = step, .pipe_ns = step};
  h->plan = (Plan){.groups = h->plan_groups, .n_groups = 2, .replicas = 1, .replica_ranks = 4};
}

/* Attention, dispatch, experts, combine, head, one after the other: nothing is overlapped. */
static void serial(Hand *h)
{
  Table *a = &h->tables[0], *f = &h->tables[1];
  int attention = add(a, MOE_OP_ATT_FWD, MOE_EDGE_NONE, 0, 100);
  int dispatch = add(a, MOE_OP_SEND, MOE_EDGE_DISPATCH, 100, 150);
  int back = add(a, MOE_OP_RECV, MOE_EDGE_COMBINE, 200, 260);
  int head = add(a, MOE_OP_HEAD, MOE_EDGE_NONE, 260, 300);
  int arrived = add(f, MOE_OP_RECV, MOE_EDGE_DISPATCH, 100, 160);
  int experts = add(f, MOE_OP_FFN_FWD, MOE_EDGE_NONE, 160, 200);
  int combine = add(f, MOE_OP_SEND, MOE_EDGE_COMBINE, 200, 250);
  wait_for(a, dispatch, attention);
  wait_for(a, head, back);
  wait_for(f, experts, arrived);
  wait_for(f, combine, experts);
  finish(h, 300);
}

static void test_serial(void **state)
{
  (void)state;
  Hand h = {0};
  Metrics m = {0};
  Arena *arena = arena_new();
  serial(&h);
  metrics_times(arena, &h.plan, &h.sched, &m);
  assert_int_equal(m.n_groups, 2);
  const double want[2][6] = {{300, 140, 110, 0, 110, 50}, {300, 40, 110, 0, 60, 200}};
  for (int g = 0; g < 2; g++) {
    const TimeSplit *s = &m.groups[g];
    const double got[] = {s->step_ns, s->compute_ns, s->comm_ns, s->overlapped_ns, s->exposed_ns, s->bubble_ns};
    for (int i = 0; i < 6; i++) {
      assert_true(got[i] == want[g][i]);
    }
  }
  /* three of four ranks are the second group's */
  assert_true(m.whole.compute_ns == (140 + 3 * 40) / 4.0);
  assert_true(m.whole.exposed_ns == (110 + 3 * 60) / 4.0);
  assert_true(m.whole.bubble_ns == (50 + 3 * 200) / 4.0);
  /* 100 + 40 + 40 without messages */
  assert_true(metrics_free_messages(&h.sched) == 180);
  assert_true(m.exposed_step_ns == 120);
  assert_true(m.bubble_step_ns == 180 - m.whole.compute_ns);
  arena_free(arena);
}

/* Messages under compute, two of them at a time, one half in a gap, one after the last compute op. */
static void test_overlap(void **state)
{
  (void)state;
  Hand h = {0};
  Metrics m = {0};
  Arena *arena = arena_new();
  Table *a = &h.tables[0];
  add(a, MOE_OP_ATT_FWD, MOE_EDGE_NONE, 0, 100);
  add(a, MOE_OP_SEND, MOE_EDGE_DISPATCH, 20, 60);
  add(a, MOE_OP_RECV, MOE_EDGE_COMBINE, 40, 80);
  add(a, MOE_OP_RECV, MOE_EDGE_COMBINE, 90, 130);
  add(a, MOE_OP_ATT_FWD, MOE_EDGE_NONE, 150, 200);
  add(a, MOE_OP_SEND, MOE_EDGE_DISPATCH, 190, 240);
  finish(&h, 250);
  metrics_times(arena, &h.plan, &h.sched, &m);
  const TimeSplit *s = &m.groups[0];
  assert_true(s->compute_ns == 150);
  assert_true(s->comm_ns == 60 + 40 + 50);
  assert_true(s->overlapped_ns == 60 + 10 + 10);
  assert_true(s->exposed_ns == 30);
  assert_true(s->bubble_ns == 250 - 150 - 30);
  assert_true(m.groups[1].bubble_ns == 250);
  arena_free(arena);
}

/* A send that is held by compute, and a message whose two ends are in one group. */
static void test_free_messages(void **state)
{
  (void)state;
  Hand h = {0};
  Table *f = &h.tables[1];
  int experts = add(f, MOE_OP_FFN_FWD, MOE_EDGE_NONE, 0, 70);
  int send = add(f, MOE_OP_SEND, MOE_EDGE_GATHER, 70, 170);
  int arrived = add(f, MOE_OP_RECV, MOE_EDGE_GATHER, 70, 190);
  int reduce = add(f, MOE_OP_NODE_REDUCE, MOE_EDGE_GATHER, 190, 200);
  int next = add(f, MOE_OP_FFN_DGRAD, MOE_EDGE_NONE, 200, 230);
  wait_for(f, send, experts);
  wait_for(f, reduce, arrived);
  wait_for(f, next, reduce);
  finish(&h, 230);
  assert_true(metrics_free_messages(&h.sched) == 100);
  /* what can never run leaves the step as it is */
  wait_for(f, experts, next);
  assert_true(metrics_free_messages(&h.sched) == 230);
}

/* The small spec, planned and scheduled. */
typedef struct Small {
  Arena *arena;
  Spec spec;
  Plan plan;
  Schedule sched;
} Small;

static void make_small(Small *s)
{
  const char *specs = getenv("MOEC_SPECS");
  bool infeasible;
  assert_non_null(specs);
  s->arena = arena_new();
  Diag *diag = diag_new(s->arena, stderr);
  AstFile *ast = ast_parse(s->arena, diag, arena_printf(s->arena, "%s/tiny.moespec", specs), NULL, 0);
  assert_non_null(ast);
  assert_true(spec_build(s->arena, diag, ast, &s->spec));
  assert_true(plan_solve(s->arena, diag, &s->spec, 0, SYSTEM_AF_PIPE, &s->plan, &infeasible));
  assert_true(sched_build(s->arena, diag, &s->spec, &s->plan, &s->sched));
}

static void test_invariants(void **state)
{
  (void)state;
  Small small;
  Metrics m;
  make_small(&small);
  plan_set_step(&small.spec, &small.plan, (double)small.sched.step_ns);
  metrics_of(small.arena, &small.spec, &small.plan, &small.sched, &m);
  for (int g = 0; g < m.n_groups; g++) {
    const TimeSplit *s = &m.groups[g];
    assert_true(s->compute_ns + s->exposed_ns + s->bubble_ns == s->step_ns);
    assert_true(s->overlapped_ns + s->exposed_ns <= s->comm_ns);
    assert_true(s->compute_ns > 0 && s->bubble_ns >= 0);
  }
  assert_true(m.exposed_step_ns >= 0 && m.exposed_step_ns < m.whole.step_ns);
  assert_true(m.mfu > 0 && m.mfu < 1);
  assert_true(m.peak_memory > 0 && m.peak_memory <= m.memory_limit);
  /* flat: a row and a pair per chosen expert and layer; the N2M carries the residual */
  double row = (double)small.spec.model.hidden * sizeof(float),
         copies = (double)small.spec.model.moe.top_k * small.spec.model.layers;
  const Traffic *flat = &m.by_dedup[DEDUP_FLAT];
  assert_true(flat->dispatch == copies * (row + sizeof(MoeRowHead) + sizeof(MoePair)));
  assert_true(flat->combine == copies * (row + sizeof(uint32_t)));
  assert_true(flat->p2p == 0 && m.piped == 0);
  assert_true(m.by_dedup[DEDUP_RANK].dispatch < flat->dispatch);
  assert_true(memcmp(&m.traffic, &m.by_dedup[small.plan.dedup], sizeof m.traffic) == 0);
  arena_free(small.arena);
}

/* Joined rectangles stay within the limit, cover the same ops, and keep their order. */
static void test_timeline(void **state)
{
  (void)state;
  Small small;
  make_small(&small);
  int ops[2] = {0};
  for (int pass = 0; pass < 2; pass++) {
    Timeline t;
    int most = pass ? 100 : 1 << 20, rects = 0;
    timeline_of(small.arena, &small.plan, &small.sched, most, &t);
    assert_int_equal(t.n_groups, small.plan.n_groups);
    assert_string_equal(t.names[0], "A0");
    for (int i = 0; i < t.n_groups * LANES; i++) {
      for (int k = 0; k < t.lanes[i].n; k++) {
        const DrawRect *r = &t.lanes[i].rects[k];
        ops[pass] += r->n;
        rects++;
        assert_true(r->end > r->begin && r->end <= t.step_ns);
        assert_true(k == 0 || r->begin >= t.lanes[i].rects[k - 1].begin);
      }
    }
    assert_true(rects <= most);
    assert_true((t.joined_ns > 0) == (pass == 1));
  }
  assert_int_equal(ops[0], ops[1]);
  arena_free(small.arena);
}

static void test_human(void **state)
{
  (void)state;
  char text[HUMAN_MAX];
  assert_string_equal(human_time(text, 0), "0 ns");
  assert_string_equal(human_time(text, 12), "12 ns");
  assert_string_equal(human_time(text, 999.6), "1.00 us");
  assert_string_equal(human_time(text, 12.34e6), "12.3 ms");
  assert_string_equal(human_time(text, 123.4e9), "123 s");
  assert_string_equal(human_bytes(text, 1536), "1.50 KiB");
  assert_string_equal(human_bytes(text, 80.0 * 1024 * 1024 * 1024), "80.0 GiB");
  assert_string_equal(human_count(text, 0), "0");
  assert_string_equal(human_count(text, 12345), "12.3K");
  assert_string_equal(human_percent(text, 0.1234), "12.3 %");
}

static void says(const char *want, Contender a, Contender b, Contender c)
{
  const Contender list[] = {a, b, c};
  Arena *arena = arena_new();
  const char *text = fastest_text(arena, list, 3);
  assert_string_equal(text ? text : "none", want);
  arena_free(arena);
}

static Contender one(SystemKind system, double ns)
{
  return (Contender){system, ns};
}

/* What is the same in three decimals is called so; the first of equals is the one that was taken. */
static void test_fastest(void **state)
{
  (void)state;
  says("tutel, 1.500x faster than afd, the next", one(SYSTEM_AF_PIPE, 200), one(SYSTEM_AFD, 150),
       one(SYSTEM_TUTEL, 100));
  says("af_pipe, as fast as afd, 1.001x faster than tutel, the next", one(SYSTEM_AF_PIPE, 10000),
       one(SYSTEM_AFD, 10000), one(SYSTEM_TUTEL, 10006));
  says("af_pipe, as fast as afd and tutel", one(SYSTEM_AF_PIPE, 10000), one(SYSTEM_AFD, 10000),
       one(SYSTEM_TUTEL, 10004));
  says("afd, as fast as af_pipe", one(SYSTEM_AF_PIPE, 10004), one(SYSTEM_AFD, 10000), one(SYSTEM_TUTEL, 0));
  says("tutel, the only one that can run this", one(SYSTEM_AF_PIPE, 0), one(SYSTEM_AFD, 0), one(SYSTEM_TUTEL, 5));
  says("none", one(SYSTEM_AF_PIPE, 0), one(SYSTEM_AFD, 0), one(SYSTEM_TUTEL, 0));
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_serial),        cmocka_unit_test(test_overlap),
                                     cmocka_unit_test(test_free_messages), cmocka_unit_test(test_invariants),
                                     cmocka_unit_test(test_timeline),      cmocka_unit_test(test_human),
                                     cmocka_unit_test(test_fastest)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
