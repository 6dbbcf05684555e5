#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>

#include "tests/plan/specs.h"

#define GQA(nq, nkv, d, norm)                                                                                          \
  {                                                                                                                    \
    .kind = ATTENTION_GQA, .heads = (nq), .kv_heads = (nkv), .head_dim = (d), .qk_norm = (norm)                        \
  }
#define MLA(nq)                                                                                                        \
  {                                                                                                                    \
    .kind = ATTENTION_MLA, .heads = (nq), .kv_heads = (nq), .q_lora = 1536, .kv_lora = 512, .nope_dim = 128,           \
    .rope_dim = 64, .v_dim = 128                                                                                       \
  }
#define GPT_OSS                                                                                                        \
  {                                                                                                                    \
    .kind = ATTENTION_GQA, .heads = 64, .kv_heads = 8, .head_dim = 64, .bias = true, .sinks = true, .window = 128,     \
    .window_layers = LAYERS_EVEN                                                                                       \
  }

const Model models[] = {
    {"DeepSeekMoE-16B",
     {.layers = 28,
      .hidden = 2048,
      .vocab = 102400,
      .attention = GQA(16, 16, 128, QK_NORM_NONE),
      .dense = {.layers = 1, .hidden = 10944},
      .moe = {.experts = 64, .top_k = 6, .hidden = 1408, .router = ROUTER_SOFTMAX, .shared = 2816}},
     16375728128.0,
     16777216,
     5.708},
    {"GPT-OSS-120B",
     {.layers = 36,
      .hidden = 2880,
      .vocab = 201088,
      .attention = GPT_OSS,
      .moe = {.experts = 128,
              .top_k = 4,
              .hidden = 2880,
              .router = ROUTER_TOPK_SOFTMAX,
              .router_bias = true,
              .bias = true}},
     116829156672.0,
     26550144,
     10.903},
    {"GPT-OSS-20B",
     {.layers = 24,
      .hidden = 2880,
      .vocab = 201088,
      .attention = GPT_OSS,
      .moe = {.experts = 32,
              .top_k = 4,
              .hidden = 2880,
              .router = ROUTER_TOPK_SOFTMAX,
              .router_bias = true,
              .bias = true}},
     20914757184.0,
     26550144,
     0},
    {"Qwen3-235B-A22B",
     {.layers = 94,
      .hidden = 4096,
      .vocab = 151936,
      .attention = GQA(64, 4, 128, QK_NORM_HEAD),
      .moe = {.experts = 128, .top_k = 8, .hidden = 1536}},
     235093634560.0,
     71303424,
     49.445},
    {"Qwen3-30B-A3B",
     {.layers = 48,
      .hidden = 2048,
      .vocab = 151936,
      .attention = GQA(32, 4, 128, QK_NORM_HEAD),
      .moe = {.experts = 128, .top_k = 8, .hidden = 768}},
     30532122624.0,
     18874624,
     0},
    {"Mixtral-8x7B",
     {.layers = 32,
      .hidden = 4096,
      .vocab = 32000,
      .attention = GQA(32, 8, 128, QK_NORM_NONE),
      .moe = {.experts = 8, .top_k = 2, .hidden = 14336}},
     46702792704.0,
     41943040,
     26.571},
    {"Mixtral-8x22B",
     {.layers = 56,
      .hidden = 6144,
      .vocab = 32000,
      .attention = GQA(48, 8, 128, QK_NORM_NONE),
      .moe = {.experts = 8, .top_k = 2, .hidden = 16384}},
     140620634112.0,
     88080384,
     0},
    {"OLMoE-1B-7B",
     {.layers = 16,
      .hidden = 2048,
      .vocab = 50304,
      .attention = GQA(16, 16, 128, QK_NORM_WHOLE),
      .moe = {.experts = 64, .top_k = 8, .hidden = 1024, .router = ROUTER_SOFTMAX}},
     6919161856.0,
     16781312,
     2.626},
    {"DeepSeek-V3",
     {.layers = 61,
      .hidden = 7168,
      .vocab = 129280,
      .attention = MLA(128),
      .dense = {.layers = 3, .hidden = 18432},
      .moe = {.experts = 256, .top_k = 8, .hidden = 2048, .router = ROUTER_SIGMOID_BIAS, .shared = 2048}},
     671026419200.0,
     187107328,
     83.486},
    {"Kimi-K2",
     {.layers = 61,
      .hidden = 7168,
      .vocab = 163840,
      .attention = MLA(64),
      .dense = {.layers = 1, .hidden = 18432},
      .moe = {.experts = 384, .top_k = 8, .hidden = 2048, .router = ROUTER_SIGMOID_BIAS, .shared = 2048}},
     1026408232448.0,
     101124096,
     68.490},
};
const int n_models = sizeof models / sizeof *models;

Spec small_spec(ShapeSpec *shape)
{
  *shape = (ShapeSpec){.name = "s128", .seq = 128, .micro_batch = 2, .global_batch = 16, .weight = 1};
  return (Spec){
      .model =
          {.name = "small",
           .layers = 4,
           .hidden = 64,
           .vocab = 256,
           .attention = {.kind = ATTENTION_GQA, .heads = 4, .kv_heads = 2, .head_dim = 16, .qk_norm = QK_NORM_HEAD},
           .moe = {.experts = 8, .top_k = 2, .hidden = 128}},
      .cluster = {.name = "desk",
                  .nodes = 1,
                  .gpus = 8,
                  .nics = 8,
                  .gpu = {.name = "core",
                          .flops = 50e9,
                          .memory = (int64_t)2 << 30,
                          .hbm = 10e9,
                          .launch_ns = 2000,
                          .eff_gemm = 0.7,
                          .eff_grouped = 0.6,
                          .eff_grouped_dgrad = 1,
                          .eff_grouped_wgrad = 1,
                          .eff_attention = 0.3,
                          .eff_memory = 0.8},
                  .nvlink = 4e9,
                  .nic = 4e9,
                  .nvlink_ns = 5000,
                  .nic_ns = 5000},
      .shapes = shape,
      .n_shapes = 1,
      .train = {.dtype = DTYPE_FP32},
      .plan = {.dedup = DEDUP_AUTO, .node_limit = 10000, .gap = 0.01},
  };
}

Spec large_spec(ShapeSpec *shape, int nodes)
{
  *shape = (ShapeSpec){.name = "s4k", .seq = 4096, .micro_batch = 1, .global_batch = 32 * nodes, .weight = 1};
  Spec spec = small_spec(shape);
  *shape = (ShapeSpec){.name = "s4k", .seq = 4096, .micro_batch = 1, .global_batch = 32 * nodes, .weight = 1};
  spec.model = models[3].spec;
  spec.model.name = models[3].name;
  spec.model.moe.imbalance = 1.2;
  spec.train.dtype = DTYPE_BF16;
  spec.cluster = (ClusterSpec){.name = "lab",
                               .nodes = nodes,
                               .gpus = 8,
                               .nics = 8,
                               .gpu = {.name = "h800",
                                       .flops = 989.4e12,
                                       .memory = 80000000000,
                                       .hbm = 3.35e12,
                                       .launch_ns = 5000,
                                       .eff_gemm = 0.7,
                                       .eff_grouped = 0.6,
                                       .eff_grouped_dgrad = 1,
                                       .eff_grouped_wgrad = 1,
                                       .eff_attention = 0.5,
                                       .eff_memory = 0.85},
                               .nvlink = 160e9,
                               .nic = 46e9,
                               .nvlink_ns = 3300,
                               .nic_ns = 5600};
  return spec;
}

unsigned next_random(unsigned long long *state)
{
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return (unsigned)(*state >> 33);
}

int in_range(unsigned long long *state, int low, int high)
{
  return low + (int)(next_random(state) % (unsigned)(high - low + 1));
}

Spec spec_with_double(const Spec *spec, int what)
{
  Spec more = *spec;
  more.cluster.gpu.memory *= what == 0 ? 2 : 1;
  more.cluster.nic *= what == 1 ? 2 : 1;
  more.cluster.nvlink *= what == 2 ? 2 : 1;
  more.cluster.gpu.flops *= what == 3 ? 2 : 1;
  more.cluster.gpu.hbm *= what == 4 ? 2 : 1;
  return more;
}

Spec spec_tenfold_times(const Spec *spec)
{
  Spec slow = *spec;
  slow.cluster.gpu.flops /= 10;
  slow.cluster.gpu.hbm /= 10;
  slow.cluster.nvlink /= 10;
  slow.cluster.nic /= 10;
  slow.cluster.gpu.launch_ns *= 10;
  slow.cluster.nvlink_ns *= 10;
  slow.cluster.nic_ns *= 10;
  return slow;
}

Run run_plan(const Spec *spec, SystemKind system, int most)
{
  Run r = {.arena = arena_new()};
  FILE *out = open_memstream(&r.text, &r.length);
  Diag *diag = diag_new(r.arena, out);
  assert_in_range(most, 1, RUN_MOST);
  r.n = plan_candidates(r.arena, diag, spec, 0, system, r.plans, most, &r.infeasible);
  assert_int_equal(r.n > 0, diag_errors(diag) == 0);
  fclose(out);
  return r;
}

void end_run(Run *r)
{
  free(r->text);
  arena_free(r->arena);
}
