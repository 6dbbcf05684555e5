/* How the compiler's time grows: parse, plan, schedule and check of Qwen3-like specs made on the fly, swept over
   layers, micro-batches and GPUs, one after the other and all together. The memory of the made-up GPU is large enough
   that every point has a plan. Times are CPU time, medians of a few compiles. The last line of a sweep is the
   least-squares slope of log time over log of what grows: 1 is linear. With --smoke only a few small points. */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "codegen/sched.h"

enum { TIMES = 4, MAX_REPEATS = 3, MAX_POINTS = 8, TEXT_BYTES = 4096 };

static const char *const time_names[TIMES] = {"parse", "plan", "schedule", "check"};

/* stages 0: the planner decides everything, and the global batch is `batch` sequences per GPU. Otherwise one replica of
   so many groups of each side, which share the GPUs evenly, and `micro_batches` of one sequence per attention rank. */
typedef struct Point {
  int layers, gpus, stages, micro_batches, batch;
} Point;

typedef struct Sweep {
  const char *title;
  int n;
  Point points[MAX_POINTS];
} Sweep;

typedef struct Result {
  double ms[TIMES];
  int micro_batches, replicas, groups, rows;
} Result;

static const Sweep sweeps[] = {
    {"layers (16 micro-batches, 32 GPUs, 2 + 2 groups)",
     6,
     {{4, 32, 2, 16, 0},
      {8, 32, 2, 16, 0},
      {16, 32, 2, 16, 0},
      {32, 32, 2, 16, 0},
      {64, 32, 2, 16, 0},
      {94, 32, 2, 16, 0}}},
    {"micro-batches (32 layers, 32 GPUs, 2 + 2 groups)",
     5,
     {{32, 32, 2, 4, 0}, {32, 32, 2, 8, 0}, {32, 32, 2, 16, 0}, {32, 32, 2, 32, 0}, {32, 32, 2, 64, 0}}},
    {"GPUs (32 layers, 16 micro-batches, 2 + 2 groups)",
     8,
     {{32, 8, 2, 16, 0},
      {32, 16, 2, 16, 0},
      {32, 32, 2, 16, 0},
      {32, 64, 2, 16, 0},
      {32, 128, 2, 16, 0},
      {32, 256, 2, 16, 0},
      {32, 512, 2, 16, 0},
      {32, 1024, 2, 16, 0}}},
    {"GPUs (32 layers, 4 sequences per GPU, nothing pinned)",
     8,
     {{32, 8, 0, 0, 4},
      {32, 16, 0, 0, 4},
      {32, 32, 0, 0, 4},
      {32, 64, 0, 0, 4},
      {32, 128, 0, 0, 4},
      {32, 256, 0, 0, 4},
      {32, 512, 0, 0, 4},
      {32, 1024, 0, 0, 4}}},
    {"GPUs (94 layers, 64 micro-batches; groups of 16, 64 and 512)",
     3,
     {{94, 128, 4, 64, 0}, {94, 1024, 8, 64, 0}, {94, 16384, 16, 64, 0}}},
    {"GPUs (94 layers, 32 sequences per GPU, nothing pinned)", 2, {{94, 128, 0, 0, 32}, {94, 1024, 0, 0, 32}}},
    {"layers, micro-batches and GPUs together, 2 + 2 groups; over their product",
     5,
     {{4, 8, 2, 4, 0}, {8, 32, 2, 8, 0}, {24, 128, 2, 16, 0}, {48, 512, 2, 32, 0}, {94, 1024, 2, 64, 0}}},
};

static const Sweep smoke[] = {
    {"layers (4 micro-batches, 16 GPUs, 2 + 2 groups)", 2, {{4, 16, 2, 4, 0}, {8, 16, 2, 4, 0}}},
    {"GPUs (4 layers, nothing pinned)", 2, {{4, 8, 0, 0, 4}, {4, 16, 0, 0, 4}}},
};

/* Of CPU: others may use the machine, and the compiler has one thread. */
static double now_ms(void)
{
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static const char model_text[] =
    "gpu big { flops = 989.4 TFLOPS;  memory = 4 TB;  hbm = 3.35 TB/s;  launch = 5 us\n"
    "  efficiency { gemm = 0.7;  grouped_gemm = 0.6;  attention = 0.5;  memory = 0.85 } }\n"
    "node eight { gpu = big;  gpus = 8;  nics = 8;  nvlink = 160 GB/s;  nic = 46 GB/s\n"
    "  nvlink_latency = 3.3 us;  nic_latency = 5.6 us }\n"
    "model qwen3_like { layers = %d;  hidden = 4096;  vocab = 151936;  norm_eps = 1e-6\n"
    "  attention { heads = 64;  kv_heads = 4;  head_dim = 128;  qk_norm = head;  rope { theta = 1e6 } }\n"
    "  moe { experts = 512;  top_k = 8;  hidden = 1536;  router = softmax_renorm;  imbalance = 1.2\n"
    "    balance { kind = sequence;  coef = 0.001 } } }\n"
    "cluster lab { nodes = %d;  node = eight }\n"
    "shape s4k { seq = 4096;  micro_batch = 1;  global_batch = %d }\n"
    "train { dtype = bf16;  seed = 1 }\n";

static void make_text(const Point *p, char *text)
{
  int side = p->stages > 0 ? p->gpus / (2 * p->stages) : 0; /* ranks of a group */
  int batch = p->stages > 0 ? p->micro_batches * side : p->batch * p->gpus;
  int n = snprintf(text, TEXT_BYTES, model_text, p->layers, p->gpus / 8, batch);
  if (p->stages > 0) {
    snprintf(text + n, (size_t)(TEXT_BYTES - n),
             "plan { schedule = af_pipe;  placement = separate;  replicas = 1;  stages = %d;  attention_gpus = %d;  "
             "ffn_gpus = %d }\n",
             p->stages, side, side);
  } else {
    snprintf(text + n, (size_t)(TEXT_BYTES - n), "plan { schedule = af_pipe }\n");
  }
}

/* One compile; false after an error, or if it is not what was asked for. */
static bool compile(const Point *p, const char *text, Result *result)
{
  Arena *arena = arena_new();
  Diag *diag = diag_new(arena, stderr);
  Spec spec;
  Plan plan;
  Schedule sched;
  bool infeasible;
  double t0 = now_ms();
  AstFile *ast = ast_parse_text(arena, diag, "growth", text, strlen(text), true, NULL, 0);
  bool ok = ast != NULL && spec_build(arena, diag, ast, &spec);
  double t1 = now_ms();
  ok = ok && plan_solve(arena, diag, &spec, 0, SYSTEM_AF_PIPE, &plan, &infeasible) && plan_check(diag, &spec, &plan);
  double t2 = now_ms();
  ok = ok && sched_build(arena, diag, &spec, &plan, &sched);
  double t3 = now_ms();
  ok = ok && sched_check(diag, &spec, &plan, &sched);
  double t4 = now_ms();
  if (ok) {
    *result = (Result){.ms = {t1 - t0, t2 - t1, t3 - t2, t4 - t3},
                       .micro_batches = plan.micro_batches,
                       .replicas = plan.replicas,
                       .groups = plan.n_groups};
    for (int g = 0; g < sched.n_groups; g++) {
      result->rows += sched.groups[g].n_ops;
    }
    ok =
        result->rows > 4 * p->layers * plan.micro_batches && (p->stages == 0 || plan.micro_batches == p->micro_batches);
  }
  arena_free(arena);
  return ok;
}

static int ascending(const void *a, const void *b)
{
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static bool measure(const Point *p, int repeats, Result *result)
{
  char text[TEXT_BYTES];
  double ms[TIMES][MAX_REPEATS];
  int n = 0;
  make_text(p, text);
  for (double begin = now_ms(); n < repeats && (n == 0 || now_ms() - begin < 4000); n++) {
    if (!compile(p, text, result)) {
      fprintf(stderr, "growth: this spec does not compile as it should:\n%s", text);
      return false;
    }
    for (int t = 0; t < TIMES; t++) {
      ms[t][n] = result->ms[t];
    }
  }
  for (int t = 0; t < TIMES; t++) {
    qsort(ms[t], (size_t)n, sizeof *ms[t], ascending);
    result->ms[t] = ms[t][n / 2];
  }
  return true;
}

/* What grows from point to point: the product of layers, GPUs and micro-batches or sequences. */
static double size_of(const Point *p)
{
  return (double)p->layers * p->gpus * (p->stages > 0 ? p->micro_batches : 1);
}

static double slope(const double *x, const double *y, int n)
{
  double mx = 0, my = 0, xy = 0, xx = 0;
  for (int i = 0; i < n; i++) {
    mx += log(x[i]) / n;
    my += log(y[i]) / n;
  }
  for (int i = 0; i < n; i++) {
    xy += (log(x[i]) - mx) * (log(y[i]) - my);
    xx += (log(x[i]) - mx) * (log(x[i]) - mx);
  }
  return xy / xx;
}

static bool run_sweep(const Sweep *s, int repeats)
{
  double x[MAX_POINTS], y[TIMES][MAX_POINTS];
  printf("\n%s\n%7s %6s %6s %9s %7s %8s", s->title, "layers", "GPUs", "mbs", "replicas", "groups", "rows");
  for (int t = 0; t < TIMES; t++) {
    printf(" %8s ms", time_names[t]);
  }
  printf("\n");
  for (int i = 0; i < s->n; i++) {
    Result r;
    const Point *p = &s->points[i];
    if (!measure(p, repeats, &r)) {
      return false;
    }
    x[i] = size_of(p);
    printf("%7d %6d %6d %9d %7d %8d", p->layers, p->gpus, r.micro_batches, r.replicas, r.groups, r.rows);
    for (int t = 0; t < TIMES; t++) {
      y[t][i] = r.ms[t];
      printf(" %11.2f", r.ms[t]);
    }
    printf("\n");
    fflush(stdout);
  }
  printf("%-49s", "exponent");
  for (int t = 0; t < TIMES; t++) {
    printf(" %11.2f", slope(x, y[t], s->n));
  }
  printf("\n");
  return true;
}

int main(int argc, char **argv)
{
  bool quick = argc > 1 && strcmp(argv[1], "--smoke") == 0;
  if (argc > 1 && !quick) {
    fprintf(stderr, "usage: growth [--smoke]\n");
    return 2;
  }
  const Sweep *list = quick ? smoke : sweeps;
  size_t n = quick ? sizeof smoke / sizeof *smoke : sizeof sweeps / sizeof *sweeps;
  for (size_t i = 0; i < n; i++) {
    if (!run_sweep(&list[i], quick ? 1 : MAX_REPEATS)) {
      return 1;
    }
  }
  return 0;
}
