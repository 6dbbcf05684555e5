/* A whole step of the kernels, over many layouts and lengths, against the fp64 reference: loss, balance loss, drops and
   every gradient tensor. Also: fresh memory full of NaN changes no bit, nor does the way by which sums travel. */
#include <cblas.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "drive.h"
#include "moe_store.h"
#include "tests/ref/ref_model.h"

static int failures;

static void ref_config(RefConfig *c, const DriveBatch *b)
{
  ref_config_default(c);
  c->layers = MOE_LAYERS;
  c->hidden = MOE_HIDDEN;
  c->vocab = MOE_VOCAB;
  c->heads = MOE_HEADS;
  c->kv_heads = MOE_KV_HEADS;
  c->head_dim = MOE_HEAD_DIM;
  c->qk_norm = (RefQkNorm)MOE_QK_NORM;
  c->tied = MOE_TIED;
  c->norm_eps = MOE_NORM_EPS;
  c->rope_theta = MOE_ROPE_THETA;
  c->experts = MOE_EXPERTS;
  c->top_k = MOE_TOP_K;
  c->ffn_hidden = MOE_FFN_HIDDEN;
  c->router = (RefRouter)MOE_ROUTER;
  c->capacity = MOE_CAPACITY;
  c->balance_coef = MOE_BALANCE_COEF;
  c->n_route_only = b->n_route_only;
  for (int i = 0; i < b->n_route_only; i++) {
    c->route_only[i] = b->route_only[i];
  }
  c->seq = b->seq;
  ref_config_check(c);
}

static float *put(float *to, const double *from, size_t n)
{
  for (size_t i = 0; i < n; i++) {
    to[i] = (float)from[i];
  }
  return to + n;
}

/* Reference order to buckets. */
static void to_buckets(const RefParams *p, DriveWeights *w)
{
  size_t h = MOE_HIDDEN;
  put(w->embed, p->embed, MOE_VOCAB * h);
  put(w->table, p->head, MOE_VOCAB * h);
  put(w->norm, p->final_norm, h);
  for (size_t l = 0; l < MOE_LAYERS; l++) {
    const RefLayer *layer = &p->layers[l];
    float *at = put(w->att[l], layer->input_norm, h);
    at = put(at, layer->q, MOE_Q_DIM * h);
    at = put(at, layer->k, MOE_KV_DIM * h);
    at = put(at, layer->v, MOE_KV_DIM * h);
    if (MOE_QK_NORM) {
      at = put(at, layer->q_norm, MOE_HEAD_DIM);
      at = put(at, layer->k_norm, MOE_HEAD_DIM);
    }
    at = put(at, layer->o, MOE_Q_DIM * h);
    put(at, layer->router, MOE_EXPERTS * h);
    put(w->gain[l], layer->post_norm, h);
    at = w->experts[l];
    for (size_t e = 0; e < MOE_EXPERTS; e++) {
      at = put(at, layer->experts[e].gate, MOE_FFN_HIDDEN * h);
      at = put(at, layer->experts[e].up, MOE_FFN_HIDDEN * h);
      at = put(at, layer->experts[e].down, MOE_FFN_HIDDEN * h);
    }
  }
}

static void check(const char *what, size_t layer, const float *got, const float *want, size_t n, double tolerance)
{
  double diff = 0;
  double norm = 0;
  for (size_t i = 0; i < n; i++) {
    double d = (double)got[i] - (double)want[i];
    diff += d * d;
    norm += (double)want[i] * (double)want[i];
  }
  double error = norm > 0 ? sqrt(diff / norm) : sqrt(diff);
  if (norm <= 0 && strncmp(what, "expert", 6) == 0) {
    tolerance = 0; /* an idle expert's gradient is not touched at all */
  }
  if (getenv("MOE_VERBOSE")) {
    printf("    %s %zu: %.2g\n", what, layer, error);
  }
  if (!(error <= tolerance)) {
    printf("  %s of layer %zu: error %.3g, norm %.3g\n", what, layer, error, sqrt(norm));
    failures++;
  }
}

static void check_value(const char *what, double got, double want, double tolerance)
{
  if (!(fabs(got - want) <= tolerance * (1 + fabs(want)))) {
    printf("  %s: got %.9g, want %.9g\n", what, got, want);
    failures++;
  }
}

static void check_grads(const DriveWeights *got, const DriveWeights *want, double tolerance)
{
  size_t h = MOE_HIDDEN;
  check("embed_tokens", 0, got->embed, want->embed, MOE_VOCAB * h, tolerance);
  check("lm_head", 0, got->table, want->table, MOE_VOCAB * h, tolerance);
  check("norm", 0, got->norm, want->norm, h, tolerance);
  for (size_t l = 0; l < MOE_LAYERS; l++) {
    const float *a = got->att[l];
    const float *b = want->att[l];
    check("input_layernorm", l, a, b, h, tolerance);
    check("q_proj", l, a + MOE_AT_QKV, b + MOE_AT_QKV, MOE_Q_DIM * h, tolerance);
    check("k_proj", l, a + MOE_AT_QKV + MOE_Q_DIM * h, b + MOE_AT_QKV + MOE_Q_DIM * h, MOE_KV_DIM * h, tolerance);
    size_t v = MOE_AT_QKV + (MOE_Q_DIM + MOE_KV_DIM) * h;
    check("v_proj", l, a + v, b + v, MOE_KV_DIM * h, tolerance);
    check("q_norm", l, a + MOE_AT_QNORM, b + MOE_AT_QNORM, MOE_AT_KNORM - MOE_AT_QNORM, tolerance);
    check("k_norm", l, a + MOE_AT_KNORM, b + MOE_AT_KNORM, MOE_AT_O - MOE_AT_KNORM, tolerance);
    check("o_proj", l, a + MOE_AT_O, b + MOE_AT_O, MOE_Q_DIM * h, tolerance);
    check("router", l, a + MOE_AT_ROUTER, b + MOE_AT_ROUTER, MOE_EXPERTS * h, tolerance);
    check("post_attention_layernorm", l, got->gain[l], want->gain[l], h, tolerance);
    for (size_t e = 0; e < MOE_EXPERTS; e++) {
      size_t at = e * MOE_EXPERT_ELEMS;
      check("expert gate and up", l, got->experts[l] + at, want->experts[l] + at, MOE_AT_DOWN, tolerance);
      at += MOE_AT_DOWN;
      check("expert down", l, got->experts[l] + at, want->experts[l] + at, MOE_FFN_HIDDEN * h, tolerance);
    }
  }
}

static uint64_t random_state = 88172645463325252u;

static uint32_t next_random(void)
{
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return (uint32_t)(random_state >> 32);
}

typedef struct Case {
  DriveBatch batch;
  int32_t *ids;
  RefParams *params, *grads;
  DriveWeights w, want;
  double scalars[MOE_SC_COUNT];
} Case;

/* Weights, batch and reference. Draws weights until no token is near a tie of the router. */
static void case_new(Case *c, int n_seqs, int seq, const int32_t *route_only, int n_route_only)
{
  int n = n_seqs * seq;
  RefConfig config;
  c->ids = malloc(sizeof *c->ids * (size_t)n * 2);
  for (int i = 0; i < n; i++) {
    c->ids[i] = (int32_t)(next_random() % MOE_VOCAB);
    c->ids[n + i] = next_random() % 5 == 0 ? -100 : (int32_t)(next_random() % MOE_VOCAB);
  }
  c->ids[n] = 0; /* at least one counts */
  c->batch = (DriveBatch){.n_seqs = n_seqs,
                          .seq = seq,
                          .tokens = c->ids,
                          .labels = c->ids + n,
                          .route_only = n_route_only > 0 ? route_only : NULL,
                          .n_route_only = n_route_only};
  ref_config(&config, &c->batch);
  c->params = ref_params_new(&config);
  c->grads = ref_params_new(&config);
  RefState *state = ref_state_new(&config, n_seqs, seq);
  RefBatch batch = {.n_seqs = n_seqs, .seq = seq, .tokens = c->batch.tokens, .labels = c->batch.labels};
  for (uint64_t seed = 1;; seed++) {
    ref_params_random(c->params, seed, 0.15);
    for (int64_t i = 0; i < c->params->n; i++) {
      c->params->data[i] = (double)moe_round((float)c->params->data[i]);
    }
    ref_forward(&config, c->params, &batch, state);
    if (state->min_margin > (MOE_BF16 ? 0.0 : 2e-4)) {
      break;
    }
  }
  ref_backward(&config, c->params, &batch, state, c->grads);
  drive_weights_new(&c->w);
  drive_weights_new(&c->want);
  to_buckets(c->params, &c->w);
  to_buckets(c->grads, &c->want);
  memset(c->scalars, 0, sizeof c->scalars);
  c->scalars[MOE_SC_LOSS] = state->loss;
  c->scalars[MOE_SC_BALANCE] = state->balance_loss;
  c->scalars[MOE_SC_TOKENS] = (double)state->valid;
  c->scalars[MOE_SC_DROPPED] = (double)state->dropped;
  ref_state_free(&config, state);
}

static void case_free(Case *c)
{
  drive_weights_free(&c->w);
  drive_weights_free(&c->want);
  ref_params_free(c->params);
  ref_params_free(c->grads);
  free(c->ids);
}

static void case_run(const Case *c, const DriveLayout *layout)
{
  double tolerance = MOE_BF16 ? 0.1 : 3e-5;
  double scalars[2][MOE_SC_COUNT] = {{0}};
  DriveWeights got[2];
  int before = failures;
  printf("seqs %d of %d, attention %d and %d, ffn %d, node %d, micro-batch %d, chunks %d, joins %d, route_only %d\n",
         c->batch.n_seqs, c->batch.seq, layout->n_att[0], layout->n_att[1], layout->n_ffn, layout->node_ranks,
         layout->mb_seqs, layout->chunks, layout->join, c->batch.n_route_only);
  for (int i = 0; i < 2; i++) {
    drive_weights_new(&got[i]);
    drive_step(layout, &c->batch, &c->w, &got[i], scalars[i], i == 0 ? 0 : 0xff);
  }
  check_grads(&got[0], &c->want, tolerance);
  check_value("loss", scalars[0][MOE_SC_LOSS], c->scalars[MOE_SC_LOSS], MOE_BF16 ? 1e-2 : 1e-6);
  check_value("balance loss", scalars[0][MOE_SC_BALANCE], c->scalars[MOE_SC_BALANCE], MOE_BF16 ? 1e-2 : 1e-6);
  check_value("tokens", scalars[0][MOE_SC_TOKENS], c->scalars[MOE_SC_TOKENS], 0);
  check_value("dropped", scalars[0][MOE_SC_DROPPED], c->scalars[MOE_SC_DROPPED], 0);
  check_value("not finite", scalars[0][MOE_SC_NONFINITE], 0, 0);
  if (memcmp(got[0].data, got[1].data, got[0].n * sizeof(float)) != 0 ||
      memcmp(scalars[0], scalars[1], sizeof scalars[0]) != 0) {
    printf("  poisoned memory changes the result\n");
    failures++;
  }
  if (failures > before) {
    printf("  FAILED\n");
  }
  drive_weights_free(&got[0]);
  drive_weights_free(&got[1]);
}

/* Groups of equal size: where a sum is taken and by which way it comes changes no bit. */
static void same_bits(const Case *c)
{
  DriveLayout layout = {{2, 2}, 3, 0, 4, 1, 0};
  double scalars[2][MOE_SC_COUNT] = {{0}};
  DriveWeights got[2];
  for (int i = 0; i < 2; i++) {
    layout.join = i == 0 ? 0 : 3;
    drive_weights_new(&got[i]);
    drive_step(&layout, &c->batch, &c->w, &got[i], scalars[i], 0xff);
  }
  if (memcmp(got[0].data, got[1].data, got[0].n * sizeof(float)) != 0 ||
      memcmp(scalars[0], scalars[1], sizeof scalars[0]) != 0) {
    printf("joins change the result\n");
    failures++;
  }
  drive_weights_free(&got[0]);
  drive_weights_free(&got[1]);
}

int main(void)
{
  static const DriveLayout layouts[] = {
      {{1, 1}, 1, 0, 2, 1, 0}, {{2, 2}, 1, 0, 2, 1, 0}, {{1, 1}, 2, 0, 3, 1, 0}, {{3, 2}, 2, 0, 4, 1, 0},
      {{2, 3}, 4, 2, 3, 1, 0}, {{1, 2}, 4, 4, 2, 1, 0}, {{2, 1}, 3, 2, 5, 1, 0}, {{4, 1}, 2, 1, 3, 1, 0},
      {{2, 2}, 2, 0, 4, 1, 3}, {{1, 1}, 1, 0, 2, 1, 1}, {{3, 2}, 2, 0, 5, 1, 3}, {{2, 3}, 3, 0, 3, 1, 2},
      {{2, 2}, 2, 0, 4, 2, 0}, {{1, 2}, 3, 0, 3, 4, 0}, {{2, 2}, 2, 0, 2, 2, 3}, {{1, 3}, 2, 0, 5, 3, 1},
      {{2, 1}, 4, 2, 3, 1, 3},
  };
  static const int lengths[] = {1, 2, 3, 31, 32, 33, 63, 64, 65, 127, 129, 300};
  int32_t pinned[MOE_EXPERTS];
  Case c;
  openblas_set_num_threads(1);
  setvbuf(stdout, NULL, _IOLBF, 0);
  for (int e = 0; e < MOE_TOP_K; e++) {
    pinned[e] = MOE_EXPERTS - 1 - e; /* exactly as many as are chosen: idle experts, and no ties */
  }
  int n_pinned = MOE_BF16 ? MOE_TOP_K : 0; /* a rounded row may choose otherwise */

  case_new(&c, 5, 9, pinned, n_pinned);
  for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
    case_run(&c, &layouts[i]);
  }
  same_bits(&c);
  case_free(&c);
  case_new(&c, 3, 17, pinned, MOE_TOP_K);
  case_run(&c, &layouts[3]);
  case_run(&c, &layouts[4]);
  case_free(&c);
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
    DriveLayout layout = {{1, 2}, 2, 0, 2, 1, 0};
    case_new(&c, 2, lengths[i], pinned, n_pinned);
    case_run(&c, &layout);
    layout.chunks = 3; /* of which some are empty when there are fewer positions */
    layout.join = 3;
    case_run(&c, &layout);
    case_free(&c);
  }
  printf("%d failures\n", failures);
  return failures > 0;
}
