/* A checker is worth what it catches: every kind of damage below is done to valid schedules of several plans, at every
   place it can be done (or a sample of them), and the checker must refuse each one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/sched/mkplan.h"
#include "tests/sched/ranks.h"

typedef struct Case {
  const char *name;
  MkPlan mk;
  Arena *arena;
  FILE *sink;
  Spec spec;
  Plan plan;
  Schedule good;
} Case;

static Schedule copy(Arena *arena, const Schedule *s)
{
  Schedule c = *s;
  c.groups = arena_new_array(arena, SchedGroup, (size_t)s->n_groups);
  c.chans = arena_new_array(arena, MoeChan, (size_t)s->n_chans);
  memcpy(c.chans, s->chans, (size_t)s->n_chans * sizeof *s->chans);
  for (int g = 0; g < s->n_groups; g++) {
    size_t n = (size_t)s->groups[g].n_ops + 1; /* room for one more */
    c.groups[g] = s->groups[g];
    c.groups[g].ops = arena_new_array(arena, MoeOp, n);
    c.groups[g].start_ns = arena_new_array(arena, int64_t, n);
    c.groups[g].end_ns = arena_new_array(arena, int64_t, n);
    memcpy(c.groups[g].ops, s->groups[g].ops, (n - 1) * sizeof(MoeOp));
    memcpy(c.groups[g].start_ns, s->groups[g].start_ns, (n - 1) * sizeof(int64_t));
    memcpy(c.groups[g].end_ns, s->groups[g].end_ns, (n - 1) * sizeof(int64_t));
  }
  return c;
}

static bool is_compute(const MoeOp *op)
{
  return op->stream == MOE_STREAM_FWD || op->stream == MOE_STREAM_BWD;
}

static bool is_message(const MoeOp *op)
{
  return op->kind == MOE_OP_SEND || op->kind == MOE_OP_RECV;
}

/* Takes row `at` out, or puts a copy of row `at` in front of row `to`; ids in waits and releases move along. */
static void renumber(SchedGroup *g, int from, int by, int gone)
{
  for (int i = 0; i < g->n_ops; i++) {
    for (int k = 0; k < MOE_MAX_WAITS; k++) {
      int32_t *ids[] = {&g->ops[i].wait[k], &g->ops[i].release[k]};
      for (int j = 0; j < 2; j++) {
        *ids[j] = *ids[j] == gone ? -1 : *ids[j] >= from ? *ids[j] + by : *ids[j];
      }
    }
  }
}

static void drop_row(SchedGroup *g, int at)
{
  size_t n = (size_t)(g->n_ops - at - 1);
  memmove(&g->ops[at], &g->ops[at + 1], n * sizeof(MoeOp));
  memmove(&g->start_ns[at], &g->start_ns[at + 1], n * sizeof(int64_t));
  memmove(&g->end_ns[at], &g->end_ns[at + 1], n * sizeof(int64_t));
  g->n_ops--;
  renumber(g, at + 1, -1, at);
}

static void copy_row(SchedGroup *g, int at)
{
  MoeOp op = g->ops[at];
  renumber(g, at + 1, 1, -2);
  size_t n = (size_t)(g->n_ops - at);
  memmove(&g->ops[at + 1], &g->ops[at], n * sizeof(MoeOp));
  memmove(&g->start_ns[at + 1], &g->start_ns[at], n * sizeof(int64_t));
  memmove(&g->end_ns[at + 1], &g->end_ns[at], n * sizeof(int64_t));
  g->n_ops++;
  g->ops[at + 1] = op;
  memset(g->ops[at + 1].release, -1, sizeof op.release);
}

/* Swaps two rows, and what points at them; the times stay where they are. */
static void swap_rows(SchedGroup *g, int a, int b)
{
  MoeOp t = g->ops[a];
  g->ops[a] = g->ops[b];
  g->ops[b] = t;
  for (int i = 0; i < g->n_ops; i++) {
    for (int k = 0; k < MOE_MAX_WAITS; k++) {
      int32_t *ids[] = {&g->ops[i].wait[k], &g->ops[i].release[k]};
      for (int j = 0; j < 2; j++) {
        *ids[j] = *ids[j] == a ? b : *ids[j] == b ? a : *ids[j];
      }
    }
  }
}

static int next_like(const SchedGroup *g, int at, bool same_peer)
{
  const MoeOp *op = &g->ops[at];
  for (int i = at + 1; i < g->n_ops; i++) {
    const MoeOp *other = &g->ops[i];
    if (other->kind == op->kind && other->mb >= 0 && (!same_peer || other->peer == op->peer)) {
      return i;
    }
  }
  return -1;
}

/* Each returns false where this damage cannot be done to this row. */
typedef bool Damage(const Case *, Schedule *, int g, int at);

static bool drop(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  drop_row(&s->groups[g], at);
  return true;
}

static bool duplicate(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  copy_row(&s->groups[g], at);
  return true;
}

static bool swap_sends(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  int other = next_like(&s->groups[g], at, true);
  if (s->groups[g].ops[at].kind != MOE_OP_SEND || s->groups[g].ops[at].mb < 0 || other < 0) {
    return false;
  }
  swap_rows(&s->groups[g], at, other);
  return true;
}

static bool swap_recvs(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  int other = next_like(&s->groups[g], at, true);
  if (s->groups[g].ops[at].kind != MOE_OP_RECV || s->groups[g].ops[at].mb < 0 || other < 0) {
    return false;
  }
  swap_rows(&s->groups[g], at, other);
  return true;
}

static bool wrong_slot(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  MoeOp *op = &s->groups[g].ops[at];
  op->slot++;
  return is_message(op);
}

static bool wrong_use(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  MoeOp *op = &s->groups[g].ops[at];
  op->use++;
  return is_message(op);
}

/* On both sides alike, so that only the counting shows it. */
static bool wrong_use_both(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  MoeOp send = s->groups[g].ops[at];
  if (send.kind != MOE_OP_SEND || send.mb < 0) {
    return false;
  }
  for (int h = 0; h < s->n_groups; h++) {
    for (int i = 0; i < s->groups[h].n_ops; i++) {
      MoeOp *op = &s->groups[h].ops[i];
      if (is_message(op) && op->edge == send.edge && op->layer == send.layer && op->mb == send.mb) {
        op->use++;
      }
    }
  }
  return true;
}

static bool wrong_chan(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  MoeOp *op = &s->groups[g].ops[at];
  op->chan = (int16_t)(op->chan == 0 ? 1 : 0);
  return is_message(op);
}

static bool wrong_peer(const Case *c, Schedule *s, int g, int at)
{
  MoeOp *op = &s->groups[g].ops[at];
  op->peer = (int16_t)((op->peer + 1) % c->plan.n_groups);
  return is_message(op) && op->mb >= 0 && c->plan.n_groups > 1;
}

static bool wrong_mb(const Case *c, Schedule *s, int g, int at)
{
  MoeOp *op = &s->groups[g].ops[at];
  op->mb = (op->mb + 1) % c->plan.micro_batches;
  return op->mb >= 0 && c->plan.micro_batches > 1 && s->groups[g].ops[at].mb != c->good.groups[g].ops[at].mb &&
         c->good.groups[g].ops[at].mb >= 0;
}

static bool wrong_layer(const Case *c, Schedule *s, int g, int at)
{
  MoeOp *op = &s->groups[g].ops[at];
  op->layer = (int16_t)((op->layer + 1) % (c->spec.model.layers + 1));
  return op->mb >= 0;
}

static bool wrong_group(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  MoeOp op = s->groups[g].ops[at];
  int to = (g + 1) % s->n_groups;
  if (op.mb < 0 || s->n_groups < 2) {
    return false;
  }
  drop_row(&s->groups[g], at);
  int place = 0;
  while (place < s->groups[to].n_ops && s->groups[to].start_ns[place] < c->good.groups[g].start_ns[at]) {
    place++;
  }
  place -= place == s->groups[to].n_ops;
  copy_row(&s->groups[to], place);
  memset(op.wait, -1, sizeof op.wait);
  memset(op.release, -1, sizeof op.release);
  s->groups[to].ops[place + 1] = op;
  return true;
}

/* Drops wait k. Where other waits and messages imply it, that is no damage: see implied(). */
static bool drop_wait(Schedule *s, int g, int at, int k)
{
  MoeOp *op = &s->groups[g].ops[at];
  if (op->wait[k] < 0) {
    return false;
  }
  for (int i = k; i < MOE_MAX_WAITS; i++) {
    op->wait[i] = i + 1 < MOE_MAX_WAITS ? op->wait[i + 1] : -1;
  }
  return true;
}

static bool no_wait_0(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  return drop_wait(s, g, at, 0);
}

static bool no_wait_1(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  return drop_wait(s, g, at, 1);
}

static bool no_wait_2(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  return drop_wait(s, g, at, 2);
}

static bool no_wait_3(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  return drop_wait(s, g, at, 3);
}

static bool no_release(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  MoeOp *op = &s->groups[g].ops[at];
  bool had = op->release[0] >= 0;
  op->release[0] = -1;
  return had;
}

static bool early_release(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  SchedGroup *group = &s->groups[g];
  MoeOp *op = &group->ops[at];
  if (op->release[0] < 0 || op->mb < 0) {
    return false;
  }
  for (int i = at - 1; i > op->release[0]; i--) { /* by another op, which waits for it but is not the last to read */
    if (group->ops[i].kind != MOE_OP_RECV && group->ops[i].mb >= 0 && group->ops[i].wait[2] < 0 &&
        group->ops[i].release[0] < 0 && is_compute(&group->ops[i])) {
      group->ops[i].wait[group->ops[i].wait[0] < 0 ? 0 : group->ops[i].wait[1] < 0 ? 1 : 2] = op->release[0];
      group->ops[i].release[0] = op->release[0];
      op->release[0] = -1;
      return true;
    }
  }
  return false;
}

static bool double_release(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  SchedGroup *group = &s->groups[g];
  if (group->ops[at].release[0] < 0 || at + 1 >= group->n_ops || group->ops[at + 1].release[1] >= 0) {
    return false;
  }
  group->ops[at + 1].release[1] = group->ops[at].release[0];
  return true;
}

static bool wrong_saved(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  MoeOp *op = &s->groups[g].ops[at];
  const SchedGroup *group = &s->groups[g];
  int most = group->att_saved > group->ffn_saved ? group->att_saved : group->ffn_saved;
  bool has = op->saved >= 0;
  op->saved = (op->saved + 1) % (most > 1 ? most : 2);
  return has;
}

static bool wrong_work(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  MoeOp *op = &s->groups[g].ops[at];
  bool has = op->work >= 0;
  op->work++;
  return has;
}

static bool too_few_slots(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  SchedGroup *group = &s->groups[g];
  int *counts[] = {&group->att_saved, &group->att_work, &group->ffn_saved, &group->ffn_work};
  bool had = at < 4 && *counts[at] > 0;
  if (had) {
    --*counts[at];
  }
  return had;
}

static bool fewer_chan_slots(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  if (g != 0 || at >= s->n_chans) {
    return false;
  }
  s->chans[at].slots--;
  return true;
}

/* The next compute op of the same (layer, micro-batch) before its input: they swap places. */
static bool before_input(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  SchedGroup *group = &s->groups[g];
  MoeOp *op = &group->ops[at];
  for (int i = at + 1; i < group->n_ops && is_compute(op) && op->mb >= 0; i++) {
    const MoeOp *other = &group->ops[i];
    if (is_compute(other) && other->mb == op->mb && other->layer == op->layer && other->kind != op->kind) {
      /* weight gradients have an order only with the input gradient they belong to */
      bool ffn = op->kind == MOE_OP_FFN_WGRAD || other->kind == MOE_OP_FFN_WGRAD;
      bool bound = ffn ? op->kind == MOE_OP_FFN_DGRAD : op->kind < MOE_OP_FFN_WGRAD;
      swap_rows(group, at, i);
      return bound;
    }
  }
  return false;
}

/* A compute op waits for a message that only comes after it: a deadlock. */
static bool wait_for_later(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  SchedGroup *group = &s->groups[g];
  MoeOp *op = &group->ops[at];
  for (int i = at + 1; i < group->n_ops && is_compute(op) && op->wait[3] < 0; i++) {
    if (is_compute(&group->ops[i])) {
      for (int k = 3; k > 0; k--) {
        op->wait[k] = op->wait[k - 1];
      }
      op->wait[0] = i;
      return true;
    }
  }
  return false;
}

static bool wait_out_of_range(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  s->groups[g].ops[at].wait[3] = s->groups[g].n_ops;
  return true;
}

static bool wrong_stream(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  MoeOp *op = &s->groups[g].ops[at];
  op->stream = is_compute(op) ? MOE_STREAM_SEND : MOE_STREAM_FWD;
  return true;
}

static bool wrong_bucket(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  MoeOp *op = &s->groups[g].ops[at];
  bool has = op->bucket < MOE_BUCKET_NONE;
  op->bucket = (uint8_t)((op->bucket + 1) % MOE_BUCKET_NONE);
  return has;
}

static bool unsorted(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  s->groups[g].start_ns[at] += INT64_C(1) << 50;
  s->groups[g].end_ns[at] += INT64_C(1) << 50;
  return at + 1 < s->groups[g].n_ops;
}

static bool too_many_in_flight(const Case *c, Schedule *s, int g, int at)
{
  s->in_flight = c->plan.in_flight + 1;
  return g == 0 && at == 0;
}

static const struct {
  const char *name;
  Damage *damage;
} damages[] = {
    {"drop", drop},
    {"duplicate", duplicate},
    {"swap_sends", swap_sends},
    {"swap_recvs", swap_recvs},
    {"wrong_slot", wrong_slot},
    {"wrong_use", wrong_use},
    {"wrong_use_both", wrong_use_both},
    {"wrong_chan", wrong_chan},
    {"wrong_peer", wrong_peer},
    {"wrong_mb", wrong_mb},
    {"wrong_layer", wrong_layer},
    {"wrong_group", wrong_group},
    {"no_wait_0", no_wait_0},
    {"no_wait_1", no_wait_1},
    {"no_wait_2", no_wait_2},
    {"no_wait_3", no_wait_3},
    {"no_release", no_release},
    {"early_release", early_release},
    {"double_release", double_release},
    {"wrong_saved", wrong_saved},
    {"wrong_work", wrong_work},
    {"too_few_slots", too_few_slots},
    {"fewer_chan_slots", fewer_chan_slots},
    {"before_input", before_input},
    {"wait_for_later", wait_for_later},
    {"wait_out_of_range", wait_out_of_range},
    {"wrong_stream", wrong_stream},
    {"wrong_bucket", wrong_bucket},
    {"unsorted", unsorted},
    {"too_many_in_flight", too_many_in_flight},
};

static Case cases[] = {
    {.name = "plain", .mk = {.layers = 3, .p_att = 2, .p_ffn = 1, .m = {2, 1}, .n = {2}, .micro_batches = 3}},
    {.name = "tight",
     .mk = {.layers = 2, .p_att = 1, .p_ffn = 2, .m = {2}, .n = {3}, .micro_batches = 4, .in_flight = 1}},
    {.name = "relays",
     .mk = {.layers = 2,
            .p_att = 1,
            .p_ffn = 1,
            .m = {2},
            .n = {4},
            .ranks_per_node = 2,
            .node = true,
            .micro_batches = 4,
            .in_flight = 2}},
    {.name = "colocated",
     .mk = {.layers = 3, .p_att = 2, .m = {2}, .colocated = true, .tied = true, .replicas = 2, .micro_batches = 3}},
};

static bool accepted(const Case *c, const Schedule *s)
{
  Arena *arena = arena_new();
  bool ok = sched_check(diag_new(arena, c->sink), &c->spec, &c->plan, s);
  arena_free(arena);
  return ok;
}

/* The dropped wait is implied: on every rank what it waited for is still over before it begins. */
static bool implied(const Case *c, const Schedule *s, Damage *damage, int g, int at)
{
  Damage *const waits[] = {no_wait_0, no_wait_1, no_wait_2, no_wait_3};
  for (int k = 0; k < MOE_MAX_WAITS; k++) {
    if (damage == waits[k]) {
      Arena *arena = arena_new();
      const Ranks *ranks = ranks_new(arena, &c->spec, &c->plan, s);
      bool before = ranks && ranks_before(arena, ranks, g, c->good.groups[g].ops[at].wait[k], at);
      arena_free(arena);
      return before;
    }
  }
  return false;
}

static void every_damage_is_caught(void **state)
{
  (void)state;
  int done = 0, missed = 0;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Case *c = &cases[i];
    c->arena = arena_new();
    c->sink = fopen("/dev/null", "w");
    assert_non_null(c->sink);
    mk_spec(&c->mk, &c->spec);
    mk_plan(c->arena, &c->mk, &c->spec, &c->plan);
    Diag *diag = diag_new(c->arena, stderr);
    assert_true(sched_build(c->arena, diag, &c->spec, &c->plan, &c->good));
    assert_true(sched_check(diag, &c->spec, &c->plan, &c->good));
    for (size_t d = 0; d < sizeof damages / sizeof *damages; d++) {
      int here = 0;
      for (int g = 0; g < c->good.n_groups; g++) {
        for (int at = 0; at < c->good.groups[g].n_ops; at++) {
          Arena *arena = arena_new();
          Schedule bad = copy(arena, &c->good);
          if (damages[d].damage(c, &bad, g, at)) {
            here++;
            if (accepted(c, &bad) && !implied(c, &bad, damages[d].damage, g, at)) {
              const MoeOp *op = &c->good.groups[g].ops[at];
              print_error("%s: %s of group %d op %d (%s %s layer %d mb %d) went unnoticed\n", c->name, damages[d].name,
                          g, at, moe_op_name(op->kind), moe_edge_name(op->edge), op->layer, op->mb);
              missed++;
            }
          }
          arena_free(arena);
        }
      }
      done += here;
    }
    fclose(c->sink);
    arena_free(c->arena);
  }
  print_message("%d damaged schedules, %d unnoticed\n", done, missed);
  assert_int_equal(missed, 0);
  assert_true(done > 1000);
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_damage_is_caught)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
