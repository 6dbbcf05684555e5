/* The arithmetic of calibration and tuning. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "codegen/calibrate.h"
#include "codegen/tune.h"

static void assert_near(double got, double want, double relative)
{
  if (!(fabs(got - want) <= relative * fabs(want) + 1e-12)) {
    fail_msg("%.12g, not %.12g", got, want);
  }
}

/* Columns of very different size, as times per FLOP and per launch are. */
static void nnls_finds_exact_solutions(void **state)
{
  (void)state;
  Arena *arena = arena_new();
  enum { ROWS = 5, N = 3 };
  const double a[ROWS * N] = {1e12, 2, 0, 3e12, 1, 1e-3, 2e12, 5, 2e-3, 0, 1, 4e-3, 1e12, 0, 1e-3};
  const double want[N] = {3e-12, 2, 500};
  double b[ROWS] = {0}, x[N];
  for (int r = 0; r < ROWS; r++) {
    for (int k = 0; k < N; k++) {
      b[r] += a[r * N + k] * want[k];
    }
  }
  calibrate_nnls(arena, a, b, ROWS, N, x);
  for (int k = 0; k < N; k++) {
    assert_near(x[k], want[k], 1e-6);
  }
  arena_free(arena);
}

/* Where least squares alone would want a negative value: x = (-1, 2) for these rows; with x0 = 0, x1 = 1 by hand. */
static void nnls_stays_non_negative(void **state)
{
  (void)state;
  Arena *arena = arena_new();
  const double a[] = {1, 1, 1, 0, 0, 1}, b[] = {1, -1, 2};
  double x[2];
  calibrate_nnls(arena, a, b, 3, 2, x);
  assert_near(x[0], 0, 0);
  assert_near(x[1], 1.5, 1e-9);
  const double none[] = {0, 1, 0, 2}; /* nothing says anything about the first */
  const double two[] = {1, 2};
  calibrate_nnls(arena, none, two, 2, 2, x);
  assert_near(x[0], 0, 0);
  assert_near(x[1], 1, 1e-9);
  arena_free(arena);
}

static const ClusterSpec first = {.gpus = 8,
                                  .nvlink = 1e9,
                                  .nvlink_ns = 5000,
                                  .gpu = {.flops = 1e12,
                                          .hbm = 1e11,
                                          .launch_ns = 1000,
                                          .eff_gemm = 0.7,
                                          .eff_grouped = 0.6,
                                          .eff_grouped_dgrad = 1,
                                          .eff_grouped_wgrad = 1,
                                          .eff_attention = 0.5,
                                          .eff_memory = 0.8}};

/* Rates per ns that the ops below really had. */
enum { N_OPS = 9 };
static void make_ops(CalOp ops[N_OPS], int run, double rows)
{
  const Work works[N_OPS] = {{.gemm = 1e9, .bytes = 1e5, .rows = rows},
                             {.gemm = 4e9, .attention = 2e9, .bytes = 1e5, .rows = rows, .seq = 512},
                             {.gemm = 4e9, .attention_back = 5e9, .bytes = 2e5, .rows = rows, .seq = 512},
                             {.grouped = 8e9, .bytes = 1e6, .expert_rows = 64},
                             {.bytes = 1e8},
                             {.bytes = 2e3},
                             {.gemm = 1e6, .bytes = 5e7, .rows = rows},
                             {.grouped = 4e9, .grouped_dgrad = 8e9, .bytes = 1e6, .expert_rows = 64},
                             {.grouped_wgrad = 8e9, .bytes = 1e6, .expert_rows = 64}};
  double gemm = rows > 100 ? 500 : 250; /* FLOP per ns */
  for (int i = 0; i < N_OPS; i++) {
    const Work *w = &works[i];
    double flops = w->gemm / gemm + w->grouped / 200 + w->attention / 100 + w->attention_back / 80;
    flops += w->grouped_dgrad / 160 + w->grouped_wgrad / 300;
    ops[i] = (CalOp){.run = run, .kind = MOE_OP_ATT_FWD, .work = *w, .n = 10, .ns = fmax(flops, w->bytes / 40) + 700};
  }
}

static void check_fit(const ClusterSpec *c, double relative)
{
  assert_near(c->gpu.eff_grouped * c->gpu.flops, 200e9, relative);
  assert_near(c->gpu.eff_grouped_dgrad, 0.8, relative);
  assert_near(c->gpu.eff_grouped_wgrad, 1.5, relative);
  assert_near(c->gpu.eff_attention * c->gpu.flops, 100e9, relative);
  assert_int_equal(c->gpu.eff_attention_back_seq.n, 1);
  assert_near(c->gpu.eff_attention_back_seq.y[0] * c->gpu.flops, 80e9, relative);
  assert_near(c->gpu.eff_memory * c->gpu.hbm, 40e9, relative);
  assert_near(c->gpu.launch_ns, 700, 10 * relative);
}

static void fit_takes_the_longer_of_flops_and_bytes(void **state)
{
  (void)state;
  Arena *arena = arena_new();
  CalOp ops[N_OPS];
  CalRun run = {.spec_path = "a"};
  make_ops(ops, 0, 1024);
  Calibration cal = {.runs = &run, .n_runs = 1, .ops = ops, .n_ops = N_OPS};
  ClusterSpec c = first;
  CalFit fit;
  calibrate_fit(arena, &cal, &c, &fit);
  assert_near(c.gpu.eff_gemm * c.gpu.flops, 500e9, 1e-3);
  assert_int_equal(c.gpu.eff_gemm_rows.n, 0);
  check_fit(&c, 1e-3);
  assert_true(fit.gemm && fit.grouped && fit.attention && fit.attention_back && !fit.nvlink && !fit.nic);
  assert_near(c.nvlink, first.nvlink, 0); /* no run says anything about it */
  arena_free(arena);
}

static void fit_makes_curves_of_sizes(void **state)
{
  (void)state;
  Arena *arena = arena_new();
  CalOp ops[2 * N_OPS];
  CalRun runs[2] = {{.spec_path = "a"}, {.spec_path = "b"}};
  make_ops(ops, 0, 1024);
  make_ops(ops + N_OPS, 1, 64);
  Calibration cal = {.runs = runs, .n_runs = 2, .ops = ops, .n_ops = 2 * N_OPS};
  ClusterSpec c = first;
  CalFit fit;
  calibrate_fit(arena, &cal, &c, &fit);
  assert_int_equal(c.gpu.eff_gemm_rows.n, 2);
  assert_near(curve_at(&c.gpu.eff_gemm_rows, 64) * c.gpu.flops, 250e9, 1e-3);
  assert_near(curve_at(&c.gpu.eff_gemm_rows, 1024) * c.gpu.flops, 500e9, 1e-3);
  check_fit(&c, 1e-3);
  arena_free(arena);
}

/* One kind of op that takes three times what the model can say. */
static void fit_holds_outliers_down(void **state)
{
  (void)state;
  Arena *arena = arena_new();
  CalOp ops[N_OPS + 1];
  CalRun run = {.spec_path = "a"};
  make_ops(ops, 0, 1024);
  ops[N_OPS] = ops[3];
  ops[N_OPS].ns *= 3;
  ops[N_OPS].n = 2;
  Calibration cal = {.runs = &run, .n_runs = 1, .ops = ops, .n_ops = N_OPS + 1};
  ClusterSpec c = first;
  CalFit fit;
  calibrate_fit(arena, &cal, &c, &fit);
  assert_near(c.gpu.eff_grouped * c.gpu.flops, 200e9, 0.15);
  assert_near(c.gpu.eff_gemm * c.gpu.flops, 500e9, 0.02);
  arena_free(arena);
}

static void fit_tells_rate_from_latency(void **state)
{
  (void)state;
  Arena *arena = arena_new();
  CalOp ops[N_OPS];
  CalRun run = {.spec_path = "a", .spec = {.cluster = first}};
  make_ops(ops, 0, 1024);
  CalMsg msgs[3];
  for (int i = 0; i < 3; i++) { /* 100 KB, 200 KB and 400 KB at 4 GB/s and 30 us */
    double bytes = 1e5 * (1 << i);
    msgs[i] = (CalMsg){.edge = MOE_EDGE_DISPATCH, .nvlink_ns = bytes / 1.0, .ns = bytes / 4 + 30000, .n = 4};
  }
  Calibration cal = {.runs = &run, .n_runs = 1, .ops = ops, .n_ops = N_OPS, .msgs = msgs, .n_msgs = 3};
  ClusterSpec c = first;
  CalFit fit;
  calibrate_fit(arena, &cal, &c, &fit);
  assert_true(fit.nvlink && !fit.nic);
  assert_near(c.nvlink, 4e9, 1e-3);
  assert_near(c.nvlink_ns, 30000, 1e-3);
  cal.n_msgs = 1; /* one size: the latency stays, and the rate is what is left */
  c = first;
  calibrate_fit(arena, &cal, &c, &fit);
  assert_near(c.nvlink_ns, first.nvlink_ns, 1e-3);
  assert_near(c.nvlink, 1e5 / (1e5 / 4 + 30000 - 5000) * 1e9, 1e-3);
  arena_free(arena);
}

static TuneCandidate plan_of(double att, double ffn, double place)
{
  TuneCandidate c = {.predicted_ns = 1e9 * fmax(att, ffn), .at = {place, -place}};
  c.load.att[PLAN_A - 1] = 1e9 * att;
  c.load.ffn[PLAN_F - 1] = 1e9 * ffn;
  c.load.net = 1e8;
  return c;
}

/* Attention takes twice what the simulator thinks: two trials tell, and plans with more attention GPUs look better. */
static void trials_say_which_constant_is_wrong(void **state)
{
  (void)state;
  Arena *arena = arena_new();
  TuneBelief *b = tune_belief(arena, 8);
  TuneCandidate even = plan_of(1, 1, 0), more_att = plan_of(0.7, 1.4, 1), more_ffn = plan_of(1.4, 0.7, -1);
  double mean, spread, before;
  tune_guess(b, &more_att, &mean, &before);
  assert_true(fabs(mean) < 0.2);
  tune_learn(b, &(TuneTrial){.what = &even, .measured_ns = 2e9});
  tune_learn(b, &(TuneTrial){.what = &more_ffn, .measured_ns = 2.8e9});
  tune_guess(b, &more_att, &mean, &spread);
  assert_true(spread < before);
  double right = exp(mean) * more_att.predicted_ns; /* twice the simulated 1.4 s, if all were as wrong */
  assert_true(right < 2.1e9 && right > 1.2e9);
  tune_guess(b, &even, &mean, &spread); /* what was measured is known */
  assert_near(exp(mean) * even.predicted_ns, 2e9, 0.03);
  assert_true(spread < 0.2 * before);
  arena_free(arena);
}

static void failures_say_that_neighbours_are_worse(void **state)
{
  (void)state;
  Arena *arena = arena_new();
  TuneBelief *b = tune_belief(arena, 8);
  TuneCandidate even = plan_of(1, 1, 0), near = plan_of(0.95, 1.05, 0.1), far = plan_of(0.5, 2, 3);
  double near_mean, far_mean, spread;
  tune_learn(b, &(TuneTrial){.what = &even, .reason = "out of memory"});
  tune_guess(b, &near, &near_mean, &spread);
  tune_guess(b, &far, &far_mean, &spread);
  assert_true(near_mean > 0.5 && near_mean > far_mean + 0.3);
  arena_free(arena);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(nnls_finds_exact_solutions),
      cmocka_unit_test(nnls_stays_non_negative),
      cmocka_unit_test(fit_takes_the_longer_of_flops_and_bytes),
      cmocka_unit_test(fit_makes_curves_of_sizes),
      cmocka_unit_test(fit_holds_outliers_down),
      cmocka_unit_test(fit_tells_rate_from_latency),
      cmocka_unit_test(trials_say_which_constant_is_wrong),
      cmocka_unit_test(failures_say_that_neighbours_are_worse),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
