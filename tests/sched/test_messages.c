/* Costs of messages: pipeline sends rank by rank, ports, curves, given times, chunks, directions. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "codegen/cost_terms.h"
#include "tests/sched/mkplan.h"

static Spec spec;
static Plan plan;

static Arena *make(MkPlan mk)
{
  Arena *arena = arena_new();
  mk_spec(&mk, &spec);
  mk_plan(arena, &mk, &spec, &plan);
  return arena;
}

static void close_to(double got, double want)
{
  assert_true(fabs(got - want) <= 1e-6 * fabs(want) + 1);
}

/* Every pair of ranks, sequence by sequence. */
static void pipe_rank_by_rank(void **state)
{
  (void)state;
  static const int sizes[][2] = {{4, 4}, {8, 8}, {16, 16}, {3, 5}, {12, 8}, {5, 16}, {1, 6}};
  for (int i = 0; i < 7; i++) {
    for (int per = 3; per <= 8; per += 5) {
      MkPlan mk = {.layers = 2, .p_att = 2, .p_ffn = 1, .m = {sizes[i][0], sizes[i][1]}, .n = {4}, .micro_batches = 2};
      mk.dense = 1; /* the first layer sends its output on */
      mk.ranks_per_node = per;
      mk.seqs = 3;
      Arena *arena = make(mk);
      const PlanGroup *a = &plan.groups[0], *b = &plan.groups[1];
      double row = (double)(cost_row_bytes(&spec) * plan.shape->seq), near[2] = {0}, far[2] = {0}, crossing = 0;
      double each[2][16][2] = {{{0}}};
      for (int s = 0; s < plan.mb_seqs; s++) {
        int from = (int)moe_part_of(plan.mb_seqs, a->n_ranks, s), to = (int)moe_part_of(plan.mb_seqs, b->n_ranks, s);
        int nic = (a->first_rank + from) / per != (b->first_rank + to) / per;
        each[0][from][nic] += row;
        each[1][to][nic] += row;
        crossing += nic ? row : 0;
      }
      for (int side = 0; side < 2; side++) {
        for (int r = 0; r < 16; r++) {
          near[side] = fmax(near[side], each[side][r][0]);
          far[side] = fmax(far[side], each[side][r][1]);
        }
      }
      for (int back = 0; back < 2; back++) {
        MsgCost c = cost_msg(&spec, &plan, back ? MOE_EDGE_PIPE_B : MOE_EDGE_PIPE, 0);
        close_to(c.bytes, row * plan.mb_seqs);
        close_to(c.nic_bytes, crossing);
        close_to((double)c.out_nvlink, near[back] / spec.cluster.nvlink * 1e9);
        close_to((double)c.in_nvlink, near[!back] / spec.cluster.nvlink * 1e9);
        close_to((double)c.out_nic, far[back] / spec.cluster.nic * 1e9);
        close_to((double)c.in_nic, far[!back] / spec.cluster.nic * 1e9);
        close_to((double)c.latency, crossing > 0 ? spec.cluster.nic_ns : spec.cluster.nvlink_ns);
      }
      arena_free(arena);
    }
  }
}

static int64_t most_of(MsgCost c)
{
  int64_t out = c.out_nvlink > c.out_nic ? c.out_nvlink : c.out_nic,
          in = c.in_nvlink > c.in_nic ? c.in_nvlink : c.in_nic;
  assert_int_equal(c.src_ns, out);
  assert_int_equal(c.dst_ns, in);
  return out > in ? out : in;
}

static void ports_and_totals(void **state)
{
  (void)state;
  for (int dedup = 0; dedup < 3; dedup++) {
    Arena *arena = make((MkPlan){.layers = 2, .p_att = 1, .p_ffn = 1, .m = {12}, .n = {16}, .micro_batches = 2});
    plan.dedup = (Dedup)dedup;
    for (MoeEdge edge = 0; edge < MOE_EDGE_REDUCE; edge++) {
      if (edge == MOE_EDGE_PIPE || edge == MOE_EDGE_PIPE_B) {
        continue;
      }
      MsgCost c = cost_msg(&spec, &plan, edge, 0);
      assert_int_equal(c.ns, most_of(c) + c.latency);
      assert_true(c.nic_bytes <= c.bytes);
      if (moe_edge_pairs(edge) == MOE_PAIRS_NODE) {
        assert_true(c.out_nic == 0 && c.in_nic == 0 && c.nic_bytes == 0);
      }
    }
    arena_free(arena);
  }
}

static void curves_slow_small_messages(void **state)
{
  (void)state;
  Arena *arena = make((MkPlan){.layers = 1, .p_att = 1, .p_ffn = 1, .m = {8}, .n = {8}, .micro_batches = 1});
  MsgCost before = cost_msg(&spec, &plan, MOE_EDGE_DISPATCH, 0);
  double size = before.nic_bytes / 64; /* of a rank's message to a peer */
  spec.cluster.nic_bytes = (Curve){.n = 2, .x = {size / 2, size * 2}, .y = {0.25, 0.75}};
  MsgCost after = cost_msg(&spec, &plan, MOE_EDGE_DISPATCH, 0);
  close_to((double)after.out_nic, (double)before.out_nic / 0.5);
  spec.cluster.nic_bytes = (Curve){.n = 1, .x = {1}, .y = {1}};
  assert_int_equal(cost_msg(&spec, &plan, MOE_EDGE_DISPATCH, 0).ns, before.ns);
  arena_free(arena);
}

static void given_times(void **state)
{
  (void)state;
  MkPlan mk = {.system = SYSTEM_TUTEL, .layers = 4, .p_att = 2, .m = {4}, .micro_batches = 4, .chunks = 2};
  Arena *arena = make(mk);
  MsgCost half = cost_msg(&spec, &plan, MOE_EDGE_DISPATCH, 0);
  plan.chunks = 1;
  close_to(2 * half.bytes, cost_msg(&spec, &plan, MOE_EDGE_DISPATCH, 0).bytes);
  spec.costs = (CostsSpec){.given = true, .dispatch = 1000, .combine = 600, .p2p = 50};
  static const struct {
    MoeEdge edge;
    int64_t port, latency;
  } wants[] = {{MOE_EDGE_DISPATCH, 1000, 0}, {MOE_EDGE_DISPATCH_B, 1000, 0}, {MOE_EDGE_COMBINE, 600, 0},
               {MOE_EDGE_COMBINE_B, 600, 0}, {MOE_EDGE_PIPE, 0, 50},         {MOE_EDGE_PIPE_B, 0, 50}};
  for (int chunks = 1; chunks <= 2; chunks++) {
    plan.chunks = chunks;
    for (int i = 0; i < 6; i++) {
      MsgCost c = cost_msg(&spec, &plan, wants[i].edge, 1); /* the last of its stage */
      assert_int_equal(c.out_nic, wants[i].port / chunks);
      assert_int_equal(c.in_nic, wants[i].port / chunks);
      assert_int_equal(c.out_nvlink + c.in_nvlink, 0);
      assert_int_equal(c.latency, wants[i].latency);
      assert_true(c.bytes > 0);
    }
  }
  assert_int_equal(cost_msg(&spec, &plan, MOE_EDGE_PIPE, 0).latency, 0); /* stays in its group */
  arena_free(arena);
}

static void holders_of_both_directions(void **state)
{
  (void)state;
  int groups[MOE_BUCKET_GROUPS];
  Arena *arena = make((MkPlan){.system = SYSTEM_DUALPIPE, .layers = 8, .p_att = 4, .m = {2}, .micro_batches = 8});
  assert_int_equal(cost_bucket_groups(&spec, &plan, MOE_BUCKET_EXPERTS, 1, groups), 2);
  assert_int_equal(groups[0] + groups[1], 3);
  assert_int_equal(cost_bucket_holders(&spec, &plan, MOE_BUCKET_EXPERTS, 1), 2);
  assert_int_equal(cost_bucket_holders(&spec, &plan, MOE_BUCKET_ATT, 1), 4);
  assert_int_equal(cost_bucket_holders(&spec, &plan, MOE_BUCKET_GAIN, 1), 4);
  plan.replicas = 3;
  assert_int_equal(cost_bucket_holders(&spec, &plan, MOE_BUCKET_EMBED, 0), 12);
  spec.model.tied = true; /* the head's groups are the same two, the other way round */
  assert_int_equal(cost_bucket_holders(&spec, &plan, MOE_BUCKET_EMBED, 0), 12);
  arena_free(arena);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(pipe_rank_by_rank),          cmocka_unit_test(ports_and_totals),
      cmocka_unit_test(curves_slow_small_messages), cmocka_unit_test(given_times),
      cmocka_unit_test(holders_of_both_directions),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
