/* The matrix products of training steps and nothing else, by cblas_sgemm on one thread: q, k, v; attention; output
   projection; router; experts; head; each with its input and weight gradients. Causal attention is taken as S x S/2
   products over all query heads of a key head; its backward as four (dP, dV, dQ, dK): scores are not formed again.
   Tokens spread evenly over the experts. Every layer has weights and gradients of its own. Arguments: SPEC STEPS
   [check]; "check" compares an element of every product with a dot product in fp64. Prints seconds of CPU and GFLOP,
   both per step. */
#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lang/spec.h"

extern void openblas_set_num_threads(int n);

typedef struct Matrix {
  float *x;
  size_t ld;
} Matrix;

typedef struct Layer {
  float *qkv, *o, *router, *gate_up, *down; /* gate_up [E, 2 F, H], down [E, H, F] */
} Layer;

typedef struct Work {
  size_t tokens, micro_batches, seq, layers;
  size_t h, q, kv, qkv, d, group, kv_heads, experts, top_k, f, vocab;
  Layer *w, *g;
  float *table, *g_table;
  float *rows_h, *rows_h2, *rows_qkv, *rows_q, *rows_e, *pairs_h, *pairs_f, *pairs_2f, *score, *logits;
  double flops;
  bool check;
} Work;

static _Noreturn void fail(const char *what)
{
  fprintf(stderr, "steps_gemm: %s\n", what);
  exit(1);
}

static float *get(size_t n)
{
  float *x = malloc(n * sizeof *x);
  if (x == NULL) {
    fail("out of memory");
  }
  for (size_t i = 0; i < n; i++) {
    x[i] = 0.01f * (float)((int)(i * 2654435761u >> 16 & 15u) - 7);
  }
  return x;
}

/* C[m, n] = op(A) op(B) + beta C */
static void product(Work *w, bool at, bool bt, size_t m, size_t n, size_t k, Matrix a, Matrix b, float beta, Matrix c)
{
  size_t i = m / 3, j = n / 2;
  double want = beta != 0.0f ? (double)c.x[i * c.ld + j] : 0.0;
  double size = fabs(want) + 1e-6;
  for (size_t l = 0; w->check && l < k; l++) {
    double term = (double)a.x[at ? l * a.ld + i : i * a.ld + l] * (double)b.x[bt ? j * b.ld + l : l * b.ld + j];
    want += term;
    size += fabs(term);
  }
  if (m == 0 || n == 0 || k == 0) {
    return;
  }
  cblas_sgemm(CblasRowMajor, at ? CblasTrans : CblasNoTrans, bt ? CblasTrans : CblasNoTrans, (int)m, (int)n, (int)k,
              1.0f, a.x, (int)a.ld, b.x, (int)b.ld, beta, c.x, (int)c.ld);
  if (w->check && !(fabs((double)c.x[i * c.ld + j] - want) <= 1e-4 * size)) {
    fail("a product is wrong");
  }
  w->flops += 2.0 * (double)m * (double)n * (double)k;
}

/* y[n, out] = x[n, in] W[out, in]^T */
static void forward(Work *w, size_t n, size_t out, size_t in, float *x, float *weight, float *y)
{
  product(w, false, true, n, out, in, (Matrix){x, in}, (Matrix){weight, in}, 0.0f, (Matrix){y, out});
}

/* dx = dy W; dW += dy^T x */
static void backward(Work *w, size_t n, size_t out, size_t in, float *x, float *weight, float *dy, float *dx,
                     float *grad)
{
  product(w, false, false, n, in, out, (Matrix){dy, out}, (Matrix){weight, in}, 0.0f, (Matrix){dx, in});
  product(w, true, false, out, in, n, (Matrix){dy, out}, (Matrix){x, in}, 1.0f, (Matrix){grad, in});
}

/* One sequence, one key head: rows are (position, query head), keys half as many as positions. */
static void attention(Work *w, bool back, float *q, float *k, float *v, float *o)
{
  size_t rows = w->seq * w->group, keys = w->seq / 2, d = w->d;
  Matrix mq = {q, d}, mk = {k, w->qkv}, mv = {v, w->qkv}, mo = {o, d}, s = {w->score, keys};
  if (!back) {
    product(w, false, true, rows, keys, d, mq, mk, 0.0f, s);
    product(w, false, false, rows, d, keys, s, mv, 0.0f, mo);
  } else {
    product(w, false, true, rows, keys, d, mo, mv, 0.0f, s);  /* dP */
    product(w, true, false, keys, d, rows, s, mo, 0.0f, mv);  /* dV */
    product(w, false, false, rows, d, keys, s, mk, 0.0f, mq); /* dQ */
    product(w, true, false, keys, d, rows, s, mq, 0.0f, mk);  /* dK */
  }
}

static void all_heads(Work *w, bool back)
{
  for (size_t at = 0; at < w->tokens; at += w->seq) {
    for (size_t head = 0; head < w->kv_heads; head++) {
      float *row = w->rows_qkv + at * w->qkv;
      float *k = row + w->q + head * w->d;
      size_t rows = at * w->q + head * w->seq * w->group * w->d;
      attention(w, back, w->rows_h2 + rows, k, k + w->kv, w->rows_q + rows);
    }
  }
}

static void experts(Work *w, const Layer *weight, const Layer *grad, bool back)
{
  size_t pairs = w->tokens * w->top_k, matrix = w->h * w->f;
  for (size_t e = 0; e < w->experts; e++) {
    size_t n = pairs * (e + 1) / w->experts - pairs * e / w->experts;
    float *gate_up = weight->gate_up + e * 2 * matrix, *down = weight->down + e * matrix;
    if (!back) {
      forward(w, n, 2 * w->f, w->h, w->pairs_h, gate_up, w->pairs_2f);
      forward(w, n, w->h, w->f, w->pairs_f, down, w->pairs_h);
    } else {
      backward(w, n, w->h, w->f, w->pairs_f, down, w->pairs_h, w->pairs_f, grad->down + e * matrix);
      backward(w, n, 2 * w->f, w->h, w->pairs_h, gate_up, w->pairs_2f, w->pairs_h, grad->gate_up + e * 2 * matrix);
    }
  }
}

static void layer_forward(Work *w, const Layer *weight)
{
  size_t t = w->tokens;
  forward(w, t, w->qkv, w->h, w->rows_h, weight->qkv, w->rows_qkv);
  all_heads(w, false);
  forward(w, t, w->h, w->q, w->rows_q, weight->o, w->rows_h);
  forward(w, t, w->experts, w->h, w->rows_h, weight->router, w->rows_e);
  experts(w, weight, NULL, false);
}

static void layer_backward(Work *w, const Layer *weight, const Layer *grad)
{
  size_t t = w->tokens;
  experts(w, weight, grad, true);
  backward(w, t, w->experts, w->h, w->rows_h, weight->router, w->rows_e, w->rows_h, grad->router);
  backward(w, t, w->h, w->q, w->rows_q, weight->o, w->rows_h, w->rows_q, grad->o);
  all_heads(w, true);
  backward(w, t, w->qkv, w->h, w->rows_h, weight->qkv, w->rows_qkv, w->rows_h, grad->qkv);
}

static void refill(float *x, size_t n)
{
  for (size_t i = 0; i < n; i++) {
    x[i] = 0.01f * (float)((int)(i * 2654435761u >> 16 & 15u) - 7);
  }
}

/* Between layers, so that values neither vanish nor overflow; not timed. */
static void refill_rows(Work *w)
{
  size_t pairs = w->tokens * w->top_k / w->experts + 1;
  refill(w->rows_h, w->tokens * w->h);
  refill(w->rows_h2, w->tokens * w->q);
  refill(w->rows_qkv, w->tokens * w->qkv);
  refill(w->rows_q, w->tokens * w->q);
  refill(w->rows_e, w->tokens * w->experts);
  refill(w->pairs_h, pairs * w->h);
  refill(w->pairs_f, pairs * w->f);
  refill(w->pairs_2f, pairs * 2 * w->f);
}

static double cpu_seconds(void)
{
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* One micro-batch; returns the CPU time of its products. */
static double micro_batch(Work *w)
{
  double spent = 0, begin;
  for (size_t l = 0; l < w->layers; l++) {
    refill_rows(w);
    begin = cpu_seconds();
    layer_forward(w, &w->w[l]);
    spent += cpu_seconds() - begin;
  }
  refill_rows(w);
  begin = cpu_seconds();
  forward(w, w->tokens, w->vocab, w->h, w->rows_h, w->table, w->logits);
  backward(w, w->tokens, w->vocab, w->h, w->rows_h, w->table, w->logits, w->rows_h, w->g_table);
  spent += cpu_seconds() - begin;
  for (size_t l = w->layers; l-- > 0;) {
    refill_rows(w);
    begin = cpu_seconds();
    layer_backward(w, &w->w[l], &w->g[l]);
    spent += cpu_seconds() - begin;
  }
  return spent;
}

static void make_layer(const Work *w, Layer *layer)
{
  layer->qkv = get(w->qkv * w->h);
  layer->o = get(w->h * w->q);
  layer->router = get(w->experts * w->h);
  layer->gate_up = get(w->experts * 2 * w->f * w->h);
  layer->down = get(w->experts * w->h * w->f);
}

static void make(Work *w, const Spec *spec)
{
  const ModelSpec *m = &spec->model;
  const ShapeSpec *s = &spec->shapes[0];
  *w = (Work){.seq = (size_t)s->seq, .layers = (size_t)m->layers, .h = (size_t)m->hidden, .vocab = (size_t)m->vocab};
  w->d = (size_t)m->attention.head_dim;
  w->kv_heads = (size_t)m->attention.kv_heads;
  w->group = (size_t)(m->attention.heads / m->attention.kv_heads);
  w->q = (size_t)m->attention.heads * w->d;
  w->kv = w->kv_heads * w->d;
  w->qkv = w->q + 2 * w->kv;
  w->experts = (size_t)m->moe.experts;
  w->top_k = (size_t)m->moe.top_k;
  w->f = (size_t)m->moe.hidden;
  w->tokens = (size_t)s->micro_batch * w->seq;
  w->micro_batches = (size_t)(s->global_batch / s->micro_batch);
  size_t t = w->tokens, pairs = t * w->top_k / w->experts + 1;
  w->w = calloc(w->layers, sizeof *w->w);
  w->g = calloc(w->layers, sizeof *w->g);
  if (w->w == NULL || w->g == NULL) {
    fail("out of memory");
  }
  for (size_t l = 0; l < w->layers; l++) {
    make_layer(w, &w->w[l]);
    make_layer(w, &w->g[l]);
  }
  w->table = get(w->vocab * w->h);
  w->g_table = get(w->vocab * w->h);
  w->rows_h = get(t * w->h);
  w->rows_h2 = get(t * w->q);
  w->rows_qkv = get(t * w->qkv);
  w->rows_q = get(t * w->q);
  w->rows_e = get(t * w->experts);
  w->pairs_h = get(pairs * w->h);
  w->pairs_f = get(pairs * w->f);
  w->pairs_2f = get(pairs * 2 * w->f);
  w->score = get(w->seq * w->group * w->seq);
  w->logits = get(t * w->vocab);
}

int main(int argc, char **argv)
{
  if (argc < 3 || atoi(argv[2]) < 1) {
    fprintf(stderr, "usage: steps_gemm SPEC STEPS [check]\n");
    return 2;
  }
  Arena *arena = arena_new();
  Diag *diag = diag_new(arena, stderr);
  AstFile *ast = ast_parse(arena, diag, argv[1], NULL, 0);
  Spec spec;
  if (ast == NULL || !spec_build(arena, diag, ast, &spec)) {
    return 1;
  }
  Work w;
  make(&w, &spec);
  w.check = argc > 3 && strcmp(argv[3], "check") == 0;
  openblas_set_num_threads(1);
  (void)micro_batch(&w); /* touches everything once */
  w.flops = 0;
  double spent = 0;
  int steps = atoi(argv[2]);
  for (int i = 0; i < steps; i++) {
    for (size_t mb = 0; mb < w.micro_batches; mb++) {
      spent += micro_batch(&w);
    }
  }
  printf("%.6f %.6f\n", spent / steps, w.flops / steps * 1e-9);
  arena_free(arena);
  return 0;
}
