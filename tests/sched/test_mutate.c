/* A checker is worth what it catches: every kind of damage below is done to valid schedules of several plans, at every
   place it can be done (or a sample of them), and the checker must refuse each one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/sched/damage.h"
#include "tests/sched/ranks.h"

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
    {.name = "mixed relays",
     .mk = {.layers = 2,
            .p_att = 1,
            .p_ffn = 1,
            .m = {3},
            .n = {5},
            .ranks_per_node = 4,
            .mixed = true,
            .node = true,
            .micro_batches = 2}},
    {.name = "colocated",
     .mk = {.layers = 3, .p_att = 2, .m = {2}, .colocated = true, .tied = true, .replicas = 2, .micro_batches = 3}},
    {.name = "colocated relays",
     .mk =
         {.layers = 2, .p_att = 1, .m = {5}, .colocated = true, .ranks_per_node = 2, .node = true, .micro_batches = 2}},
    {.name = "dense",
     .mk = {.layers = 4, .dense = 2, .p_att = 2, .p_ffn = 1, .m = {2, 1}, .n = {2}, .micro_batches = 2}},
    {.name = "stages",
     .mk = {.system = SYSTEM_MEGATRON, .layers = 4, .p_att = 2, .virtual_stages = 2, .m = {2}, .micro_batches = 2}},
    {.name = "dense stages, tied, overlapped",
     .mk = {.system = SYSTEM_MEGATRON_OVERLAP,
            .layers = 5,
            .dense = 1,
            .p_att = 2,
            .virtual_stages = 2,
            .m = {1},
            .tied = true,
            .replicas = 2,
            .micro_batches = 2}},
    {.name = "relays in stages",
     .mk = {.system = SYSTEM_MEGATRON,
            .layers = 2,
            .p_att = 2,
            .m = {4},
            .ranks_per_node = 2,
            .node = true,
            .micro_batches = 2}},
    {.name = "chunks",
     .mk = {.system = SYSTEM_TUTEL, .layers = 3, .p_att = 2, .m = {2}, .chunks = 2, .micro_batches = 2}},
    {.name = "four chunks of one stage",
     .mk = {.system = SYSTEM_TUTEL, .layers = 2, .p_att = 1, .m = {2}, .chunks = 4, .micro_batches = 2}},
    {.name = "comet", .mk = {.system = SYSTEM_COMET, .layers = 2, .p_att = 2, .m = {2}, .micro_batches = 2}},
    {.name = "two ways", .mk = {.system = SYSTEM_DUALPIPE, .layers = 4, .p_att = 2, .m = {2}, .micro_batches = 4}},
    {.name = "two ways, tied, dense",
     .mk =
         {.system = SYSTEM_DUALPIPE, .layers = 3, .dense = 1, .p_att = 2, .m = {1}, .tied = true, .micro_batches = 4}},
    {.name = "twice",
     .mk = {.layers = 3, .p_att = 2, .p_ffn = 1, .m = {2, 1}, .n = {2}, .micro_batches = 3, .again = true}},
    {.name = "twice through relays, tight",
     .mk = {.layers = 2,
            .p_att = 2,
            .p_ffn = 1,
            .m = {2},
            .n = {4},
            .ranks_per_node = 2,
            .node = true,
            .micro_batches = 4,
            .in_flight = 1,
            .again = true}},
    {.name = "twice on stages, dense",
     .mk = {.system = SYSTEM_MEGATRON,
            .layers = 5,
            .dense = 1,
            .p_att = 2,
            .virtual_stages = 2,
            .m = {2},
            .micro_batches = 2,
            .again = true}},
    {.name = "twice in chunks",
     .mk = {.system = SYSTEM_TUTEL, .layers = 3, .p_att = 2, .m = {2}, .chunks = 2, .micro_batches = 2, .again = true}},
    {.name = "twice in two ways",
     .mk = {.system = SYSTEM_DUALPIPE, .layers = 4, .p_att = 2, .m = {2}, .micro_batches = 4, .again = true}},
    {.name = "folded", .mk = {.system = SYSTEM_DUALPIPEV, .layers = 4, .p_att = 2, .m = {2}, .micro_batches = 4}},
};

static bool accepted(const Case *c, const Schedule *s)
{
  Arena *arena = arena_new();
  bool ok = sched_check(diag_new(arena, c->sink), &c->spec, &c->plan, s);
  arena_free(arena);
  return ok;
}

/* A message may wait for a weight gradient, or for a forward that is run again, because the system that is modelled
   lets it go no earlier: nothing that it carries depends on it. */
static bool held(const Case *c, int g, const MoeOp *op, int k)
{
  const MoeOp *on = &c->good.groups[g].ops[op->wait[k]];
  bool again = on->kind == MOE_OP_ATT_AGAIN && op->edge == MOE_EDGE_COMBINE_B;
  return op->kind == MOE_OP_SEND && op->mb >= 0 &&
         (on->kind == MOE_OP_FFN_WGRAD || on->kind == MOE_OP_ATT_WGRAD || again);
}

/* The dropped wait is implied: on every rank what it waited for is still over before it begins. */
static bool implied(const Case *c, const Schedule *s, int wait, int g, int at)
{
  if (wait < 0) {
    return false;
  }
  const MoeOp *op = &c->good.groups[g].ops[at];
  Arena *arena = arena_new();
  const Ranks *ranks = ranks_new(arena, &c->spec, &c->plan, s);
  bool before = held(c, g, op, wait) || (ranks && ranks_before(arena, ranks, g, op->wait[wait], at));
  arena_free(arena);
  return before;
}

/* How often this kind of damage can be done to the case's schedule; adds to *missed what the checker did not notice. */
static int damage_all(const Case *c, const DamageKind *kind, int *missed)
{
  int done = 0;
  for (int g = 0; g < c->good.n_groups; g++) {
    for (int at = 0; at < c->good.groups[g].n_ops; at++) {
      Arena *arena = arena_new();
      Schedule bad = damage_copy(arena, &c->good);
      if (kind->damage(c, &bad, g, at)) {
        done++;
        if (!kind->times) {
          damage_forget_times(&bad);
        }
        if (accepted(c, &bad) && !implied(c, &bad, kind->wait, g, at)) {
          const MoeOp *op = &c->good.groups[g].ops[at];
          print_error("%s: %s of group %d op %d (%s %s layer %d mb %d chunk %d) went unnoticed\n", c->name, kind->name,
                      g, at, moe_op_name(op->kind), op->edge < MOE_EDGE_COUNT ? moe_edge_name(op->edge) : "", op->layer,
                      op->mb, op->chunk);
          ++*missed;
        }
      }
      arena_free(arena);
    }
  }
  return done;
}

static void build(Case *c)
{
  c->arena = arena_new();
  c->sink = fopen("/dev/null", "w");
  assert_non_null(c->sink);
  mk_spec(&c->mk, &c->spec);
  mk_plan(c->arena, &c->mk, &c->spec, &c->plan);
  Diag *diag = diag_new(c->arena, stderr);
  assert_true(sched_build(c->arena, diag, &c->spec, &c->plan, &c->good));
  assert_true(sched_check(diag, &c->spec, &c->plan, &c->good));
}

static void done_with(Case *c)
{
  fclose(c->sink);
  arena_free(c->arena);
}

static void every_damage_is_caught(void **state)
{
  (void)state;
  int done = 0, missed = 0;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Case *c = &cases[i];
    int here = 0;
    build(c);
    Schedule timeless = damage_copy(c->arena, &c->good);
    damage_forget_times(&timeless);
    assert_true(accepted(c, &timeless));
    for (int d = 0; d < n_damages; d++) {
      here += damage_all(c, &damages[d], &missed);
    }
    print_message("%s: %d damaged schedules\n", c->name, here);
    done += here;
    done_with(c);
  }
  print_message("%d damaged schedules, %d unnoticed\n", done, missed);
  assert_int_equal(missed, 0);
  assert_true(done > 1000);
}

/* Each makes another plan of the case's; false where it would be the same. */
typedef bool Change(Arena *, const Case *, Plan *);

static bool other_chunks(Arena *arena, const Case *c, Plan *plan)
{
  (void)arena;
  plan->chunks = c->plan.chunks % 4 + 1;
  return true;
}

static bool more_micro_batches(Arena *arena, const Case *c, Plan *plan)
{
  (void)arena;
  (void)c;
  plan->micro_batches++;
  return true;
}

static bool fewer_micro_batches(Arena *arena, const Case *c, Plan *plan)
{
  (void)arena;
  (void)c;
  plan->micro_batches--;
  return true;
}

static int *moved(Arena *arena, const int *groups, int n, int by, int of)
{
  int *list = arena_new_array(arena, int, (size_t)n);
  for (int i = 0; i < n; i++) {
    list[i] = (groups[i] + by) % of;
  }
  return list;
}

static bool moved_attention(Arena *arena, const Case *c, Plan *plan)
{
  int n = plan->ways * (c->spec.model.layers + 1);
  plan->att_group = moved(arena, plan->att_group, n, 1, plan->n_groups);
  return plan->n_groups > 1;
}

static bool moved_experts(Arena *arena, const Case *c, Plan *plan)
{
  int n = plan->ways * c->spec.model.layers;
  plan->ffn_group = moved(arena, plan->ffn_group, n, 1, plan->n_groups);
  return plan->n_groups > 1;
}

/* Sums go to the other end of what was a PIPE, or to a group from which a PIPE would be needed. */
static bool moved_sums(Arena *arena, const Case *c, Plan *plan)
{
  int n = plan->ways * c->spec.model.layers;
  plan->combine_group = moved(arena, plan->combine_group, n, 1, plan->n_groups);
  return plan->n_groups > 1;
}

static bool one_way(Arena *arena, const Case *c, Plan *plan)
{
  (void)arena;
  (void)c;
  plan->ways--;
  return plan->ways > 0;
}

static bool without_relays(Arena *arena, const Case *c, Plan *plan)
{
  (void)arena;
  (void)c;
  plan->dedup = DEDUP_RANK;
  return c->plan.dedup == DEDUP_NODE;
}

static bool kept_or_again(Arena *arena, const Case *c, Plan *plan)
{
  (void)arena;
  plan->recompute = plan->recompute == RECOMPUTE_FULL ? RECOMPUTE_SELECTIVE : RECOMPUTE_FULL;
  return c->spec.model.layers > c->spec.model.dense.layers;
}

static bool replicas_too(Arena *arena, const Case *c, Plan *plan)
{
  (void)arena;
  plan->replicas++;
  return c->plan.replicas == 1 && c->plan.ways == 1; /* experts gain a second holder */
}

static bool more_sequences(Arena *arena, const Case *c, Plan *plan)
{
  ShapeSpec *shape = arena_new_of(arena, ShapeSpec);
  *shape = *c->plan.shape;
  shape->global_batch++;
  plan->shape = shape;
  return true;
}

static bool fewer_in_flight(Arena *arena, const Case *c, Plan *plan)
{
  (void)arena;
  int att = plan_att(&c->spec, plan, 0, c->spec.model.layers) == 0;
  for (int layer = 0; layer < c->spec.model.layers; layer++) {
    att += plan_att(&c->spec, plan, 0, layer) == 0;
  }
  plan->in_flight = att ? (c->good.groups[0].att_saved - 1) / att : plan->in_flight;
  return att && plan->n_stages == 0;
}

/* A schedule is good for its own plan alone. */
static void another_plan_is_refused(void **state)
{
  (void)state;
  static const struct {
    const char *name;
    Change *change;
  } changes[] = {{"other chunks", other_chunks},
                 {"more micro-batches", more_micro_batches},
                 {"fewer micro-batches", fewer_micro_batches},
                 {"attention moved", moved_attention},
                 {"experts moved", moved_experts},
                 {"sums moved", moved_sums},
                 {"one way", one_way},
                 {"without relays", without_relays},
                 {"more replicas", replicas_too},
                 {"kept or again", kept_or_again},
                 {"more sequences", more_sequences},
                 {"fewer in flight", fewer_in_flight}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    build(&cases[i]);
    for (size_t k = 0; k < sizeof changes / sizeof *changes; k++) {
      Case other = cases[i];
      if (changes[k].change(other.arena, &cases[i], &other.plan) && accepted(&other, &other.good)) {
        print_error("%s: accepted for another plan: %s\n", other.name, changes[k].name);
        fail();
      }
    }
    done_with(&cases[i]);
  }
}

static uint64_t seed = 11;

static int draw(int low, int high)
{
  seed = seed * 6364136223846793005u + 1442695040888963407u;
  return low + (int)((seed >> 33) % (uint64_t)(high - low + 1));
}

static MkPlan random_plan(void)
{
  MkPlan mk = {.system = (SystemKind)draw(0, SYSTEM_COUNT - 1), .p_att = draw(1, 2), .p_ffn = draw(1, 2)};
  bool stages = plan_system_colocated(mk.system), pairs = mk.system == SYSTEM_DUALPIPE;
  bool folded = mk.system == SYSTEM_DUALPIPEV;
  mk.p_att = pairs ? 2 : mk.system == SYSTEM_AFD ? 1 : mk.p_att;
  mk.p_ffn = mk.system == SYSTEM_AFD ? 1 : mk.p_ffn;
  mk.virtual_stages = pairs || folded || !stages ? 1 : mk.system == SYSTEM_MEGATRON_OVERLAP ? 2 : draw(1, 2);
  mk.layers = mk.p_att * (folded ? 2 : mk.virtual_stages) + draw(1, 2);
  mk.dense = draw(0, 1);
  mk.m[0] = draw(1, 4);
  mk.n[0] = draw(1, 5);
  mk.micro_batches = pairs || folded ? 2 * mk.p_att : mk.p_att * draw(1, 2);
  mk.in_flight = stages ? 0 : draw(1, mk.micro_batches);
  mk.replicas = draw(1, 2);
  mk.tied = draw(0, 1);
  mk.chunks = mk.system == SYSTEM_TUTEL ? draw(1, 3) : 1;
  mk.node = mk.chunks == 1 && draw(0, 1);
  mk.ranks_per_node = draw(2, 3);
  mk.again = draw(0, 1);
  return mk;
}

/* A wait may go if, rank by rank, what it waited for is over all the same; and only then. The checker, which plays a
   few ranks for all, must say so exactly. Waits for messages stay: they also say what an op reads. */
static void waits_agree_with_every_rank(void **state)
{
  (void)state;
  int tried = 0, taken = 0;
  for (int i = 0; i < 60; i++) {
    Case c = {.name = "random", .mk = random_plan()};
    build(&c);
    for (int g = 0; g < c.good.n_groups; g++) {
      for (int at = 0; at < c.good.groups[g].n_ops; at += draw(1, 5)) {
        const MoeOp *op = &c.good.groups[g].ops[at];
        int k = draw(0, 2);
        if (op->mb < 0 || op->wait[k] < 0 || c.good.groups[g].ops[op->wait[k]].kind == MOE_OP_RECV ||
            held(&c, g, op, k)) {
          continue;
        }
        Arena *arena = arena_new();
        Schedule less = damage_copy(arena, &c.good);
        int32_t *waits = less.groups[g].ops[at].wait;
        memmove(&waits[k], &waits[k + 1], (size_t)(MOE_MAX_WAITS - 1 - k) * sizeof *waits);
        waits[MOE_MAX_WAITS - 1] = -1;
        bool over = implied(&c, &less, k, g, at), ok = accepted(&c, &less);
        if (ok != over) {
          print_error("%s layers %d: group %d op %d without wait %d is %s\n", plan_system_name(c.mk.system),
                      c.mk.layers, g, at, k, ok ? "accepted" : "refused");
        }
        assert_true(ok == over);
        tried++;
        taken += ok;
        arena_free(arena);
      }
    }
    done_with(&c);
  }
  print_message("%d waits taken away, %d of them not needed\n", tried, taken);
  assert_true(tried > 200 && taken > 0 && taken < tried);
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_damage_is_caught),
                                     cmocka_unit_test(another_plan_is_refused),
                                     cmocka_unit_test(waits_agree_with_every_rank)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
