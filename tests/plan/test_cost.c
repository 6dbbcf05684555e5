/* Closed forms against the published counts, and the rules that any cost must keep. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "codegen/cost_terms.h"
#include "codegen/plan_int.h"
#include "runtime/moe_layout.h"
#include "tests/plan/specs.h"

static void close_to(double got, double want, double relative)
{
  if (fabs(got - want) > relative * fabs(want)) {
    print_error("got %.12g, want %.12g\n", got, want);
  }
  assert_true(fabs(got - want) <= relative * fabs(want));
}

static void parameters_match_publishers(void **state)
{
  (void)state;
  for (int i = 0; i < n_models; i++) {
    Spec spec = {.model = models[i].spec};
    int moe = spec.model.dense.layers;
    close_to(cost_model_params(&spec), models[i].params, 0);
    double routers = (double)spec.model.moe.experts * spec.model.hidden;
    routers += spec.model.moe.router_bias || spec.model.moe.router == ROUTER_SIGMOID_BIAS ? spec.model.moe.experts : 0;
    double att = (double)cost_bucket_elems(&spec, MOE_BUCKET_ATT, moe, 0) - spec.model.hidden - routers;
    close_to(att, models[i].attention, 0);
  }
}

/* What all buckets hold together is the model: each layer's experts dealt to any number of ranks. */
static void buckets_hold_the_model(void **state)
{
  (void)state;
  for (int i = 0; i < n_models; i++) {
    Spec spec = {.model = models[i].spec};
    const ModelSpec *m = &spec.model;
    for (int ranks = 1; ranks <= 10; ranks += 3) {
      double n = (double)cost_bucket_elems(&spec, MOE_BUCKET_EMBED, 0, 0) +
                 (double)cost_bucket_elems(&spec, MOE_BUCKET_HEAD, 0, 0);
      for (int l = 0; l < m->layers; l++) {
        n += (double)(cost_bucket_elems(&spec, MOE_BUCKET_ATT, l, 0) + cost_bucket_elems(&spec, MOE_BUCKET_GAIN, l, 0));
        n += (double)cost_bucket_elems(&spec, MOE_BUCKET_SHARED, l, 0);
        for (int r = 0; r < ranks && l >= m->dense.layers; r++) {
          int experts = (int)moe_part_size(m->moe.experts, ranks, r);
          n += (double)cost_bucket_elems(&spec, MOE_BUCKET_EXPERTS, l, experts);
        }
      }
      close_to(n, models[i].params, 0);
    }
  }
}

static void flops_match_table(void **state)
{
  (void)state;
  for (int i = 0; i < n_models; i++) {
    Spec spec = {.model = models[i].spec};
    if (models[i].flops_per_token > 0) {
      close_to(cost_flops_per_token(&spec, 4096), 3e9 * models[i].flops_per_token, 2e-4);
    }
  }
  Spec qwen = {.model = models[3].spec};
  Work att = work_att(&qwen, MOE_OP_ATT_FWD, 0, 4096, 1, RECOMPUTE_NONE),
       ffn = work_ffn(&qwen, MOE_OP_FFN_FWD, 1, 8, 0, 0, 0, RECOMPUTE_NONE);
  double router = 2.0 * 128 * 4096;
  close_to(att.gemm / 4096, 142.61e6 + router, 1e-4);
  close_to(att.attention / 4096, 67.13e6, 1e-4);
  close_to(ffn.grouped + router, 303.04e6, 1e-4);
}

/* The windowed core counts exactly the pairs that a loop over queries and keys finds. */
static void window_counts_pairs(void **state)
{
  (void)state;
  Spec spec = {.model = models[1].spec};
  for (int64_t seq = 1; seq <= 300; seq += 23) {
    double pairs = 0;
    for (int64_t q = 0; q < seq; q++) {
      for (int64_t k = 0; k <= q; k++) {
        pairs += k > q - 128;
      }
    }
    close_to(work_att(&spec, MOE_OP_ATT_FWD, 0, seq, 3, RECOMPUTE_NONE).attention, 3 * 4 * 64.0 * 64 * pairs, 1e-12);
    close_to(work_att(&spec, MOE_OP_ATT_FWD, 1, seq, 3, RECOMPUTE_NONE).attention,
             3 * 4 * 64.0 * 64 * (double)(seq * (seq + 1)) / 2, 1e-12);
  }
}

static void backward_is_split(void **state)
{
  (void)state;
  for (int i = 0; i < n_models; i++) {
    Spec spec = {.model = models[i].spec};
    int l = spec.model.layers - 1;
    Work fwd = work_att(&spec, MOE_OP_ATT_FWD, l, 512, 2, RECOMPUTE_NONE),
         dgrad = work_att(&spec, MOE_OP_ATT_DGRAD, l, 512, 2, RECOMPUTE_NONE);
    Work wgrad = work_att(&spec, MOE_OP_ATT_WGRAD, l, 512, 2, RECOMPUTE_NONE);
    close_to(dgrad.gemm, fwd.gemm, 0);
    close_to(wgrad.gemm, fwd.gemm, 0);
    close_to(dgrad.attention_back, 2.5 * fwd.attention, 1e-12);
    assert_true(wgrad.attention == 0 && wgrad.attention_back == 0 && dgrad.attention == 0);
  }
}

/* Gradients' products count the same FLOPs and take as much longer as the hardware says; what is computed again is
   forward work. */
static void rates_of_expert_gradients(void **state)
{
  (void)state;
  ShapeSpec shape;
  Spec even = large_spec(&shape, 16), spec = even;
  spec.cluster.gpu.eff_grouped_dgrad = 0.5;
  spec.cluster.gpu.eff_grouped_wgrad = 1.25;
  static const double longer[] = {1, 2, 1 / 1.25}, again[] = {1, (2 * 6 + 4) / 10., 1 / 1.25};
  static const MoeOpKind kinds[] = {MOE_OP_FFN_FWD, MOE_OP_FFN_DGRAD, MOE_OP_FFN_WGRAD};
  for (int i = 0; i < 3; i++) {
    Work w = work_ffn(&spec, kinds[i], 1000, 8000, 125, 0, 0, RECOMPUTE_NONE);
    close_to(work_flops(w), 6.0 * 8000 * spec.model.hidden * spec.model.moe.hidden, 1e-12);
    close_to(work_flop_ns(&spec, w), longer[i] * work_flop_ns(&even, w), 1e-12);
    w = work_ffn(&spec, kinds[i], 1000, 8000, 125, 0, 0, RECOMPUTE_SELECTIVE);
    close_to(work_flop_ns(&spec, w), again[i] * work_flop_ns(&even, w), 1e-12);
  }
}

/* Of `parts` equal parts of the experts, those that a token with k of them touches on average. */
static double distinct(int experts, int parts, int k)
{
  Spec spec = {.model.moe = {.experts = experts, .top_k = k}};
  return parts * cost_touch(&spec, experts / parts);
}

static void distinct_destinations(void **state)
{
  (void)state;
  close_to(distinct(128, 128, 8), 8, 1e-9);    /* flat */
  close_to(distinct(128, 16, 8), 6.6, 1e-2);   /* per rank */
  close_to(distinct(128, 2, 8), 1.9938, 1e-4); /* per node: about 2 */
  close_to(distinct(64, 1, 6), 1, 1e-12);
  close_to(distinct(8, 2, 8), 2, 1e-12);
}

/* Against the mean over all subsets: E = 9, k = 3, every split into ranks, also uneven ones. */
static void touch_is_exact(void **state)
{
  (void)state;
  ShapeSpec shape;
  Spec spec = small_spec(&shape);
  spec.model.moe.experts = 9;
  spec.model.moe.top_k = 3;
  for (int hits = 0; hits <= 9; hits++) {
    int all = 0, touched = 0;
    for (int a = 0; a < 9; a++) {
      for (int b = a + 1; b < 9; b++) {
        for (int c = b + 1; c < 9; c++) {
          all++;
          touched += a < hits;
        }
      }
    }
    close_to(cost_touch(&spec, hits) + 1, 1 + (double)touched / all, 1e-12);
  }
}

static Plan make_plan(Arena *arena, const Spec *spec, int p_att, int p_ffn, int m, int n, Placement place)
{
  Plan plan;
  Choice choice = {
      .replicas = 1, .place = place, .att = {p_att, m, NULL, p_att * m}, .ffn = {p_ffn, n, NULL, p_ffn * n}};
  plan_build(arena, spec, &spec->shapes[0], &choice, &plan);
  return plan;
}

/* Rows that travel between nodes per token, Qwen3 with EP 16 over two nodes: 6.6 per rank, about 2 per node. */
static void dedup_saves_traffic(void **state)
{
  (void)state;
  Arena *arena = arena_new();
  ShapeSpec shape;
  Spec spec = large_spec(&shape, 4);
  spec.model.moe.imbalance = 0;
  double row = (double)cost_row_bytes(&spec), tokens;
  spec.plan.dedup = DEDUP_RANK;
  Plan plan = make_plan(arena, &spec, 1, 1, 16, 16, PLACE_SEPARATE);
  tokens = (double)(plan.mb_seqs * shape.seq);
  MsgCost per_rank = cost_msg(&spec, &plan, MOE_EDGE_COMBINE_B, 0);
  close_to(per_rank.bytes / row / tokens, 6.6, 0.01);
  spec.plan.dedup = DEDUP_AUTO;
  plan = make_plan(arena, &spec, 1, 1, 16, 16, PLACE_SEPARATE);
  assert_int_equal(plan.dedup, DEDUP_NODE);
  MsgCost per_node = cost_msg(&spec, &plan, MOE_EDGE_COMBINE_B, 0);
  close_to(per_node.bytes / row / tokens, 2, 0.01);
  assert_true(3 * per_node.ns < per_rank.ns);
  /* one rank's share of the tokens over one NIC each */
  close_to((double)per_node.src_ns, tokens / 16 * 1.9938 * row / 46e9 * 1e9, 0.01);
  arena_free(arena);
}

/* Out of all senders is into all receivers; a message costs at least what its bytes need on the ports of its side. */
static void ports_are_consistent(void **state)
{
  (void)state;
  unsigned long long seed = 11;
  static const MoeEdge edges[] = {MOE_EDGE_DISPATCH, MOE_EDGE_COMBINE, MOE_EDGE_COMBINE_B, MOE_EDGE_DISPATCH_B};
  Arena *arena = arena_new();
  for (int i = 0; i < 300; i++) {
    ShapeSpec shape;
    Spec spec = small_spec(&shape);
    int m = in_range(&seed, 1, 5), n = in_range(&seed, 1, 7), pa = in_range(&seed, 1, 3), pf = in_range(&seed, 1, 3);
    spec.plan.ranks_per_node = in_range(&seed, 1, 9);
    spec.plan.dedup = in_range(&seed, 0, 1) ? DEDUP_RANK : DEDUP_NODE;
    Plan plan = make_plan(arena, &spec, pa, pf, m, n, PLACE_SEPARATE);
    for (int l = 0; l < 4; l++) {
      for (int e = 0; e < 4; e++) {
        MsgCost c = cost_msg(&spec, &plan, edges[e], l);
        bool to_ffn = edges[e] == MOE_EDGE_DISPATCH || edges[e] == MOE_EDGE_COMBINE_B;
        double best = spec.cluster.nvlink > spec.cluster.nic ? spec.cluster.nvlink : spec.cluster.nic;
        int src = to_ffn ? m : n, dst = to_ffn ? n : m;
        assert_true((double)c.src_ns * 1.0000001 + 1 >= c.bytes / src / best * 1e9 * 0.5);
        assert_true((double)c.dst_ns * 1.0000001 + 1 >= c.bytes / dst / best * 1e9 * 0.5);
        assert_true(c.ns >= c.src_ns && c.ns >= c.dst_ns && c.ns >= 1);
      }
    }
  }
  arena_free(arena);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(parameters_match_publishers), cmocka_unit_test(buckets_hold_the_model),
      cmocka_unit_test(flops_match_table),           cmocka_unit_test(window_counts_pairs),
      cmocka_unit_test(backward_is_split),           cmocka_unit_test(rates_of_expert_gradients),
      cmocka_unit_test(distinct_destinations),       cmocka_unit_test(touch_is_exact),
      cmocka_unit_test(dedup_saves_traffic),         cmocka_unit_test(ports_are_consistent),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
