/* The table of tensors: names, shapes, files, random weights. */
#include "tests/ref/ref_model.h"

#include <inttypes.h>
#include <stdarg.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ref/ref_math.h"

/* Appends one tensor; its data is set once all sizes are known. cols 0: a vector. */
__attribute__((format(printf, 6, 7))) static void add(RefParams *p, double **slot, RefKind kind, int64_t rows,
                                                      int64_t cols, const char *format, ...)
{
  RefTensor *t = &p->tensors[p->n_tensors++];
  va_list args;
  va_start(args, format);
  vsnprintf(t->name, sizeof t->name, format, args);
  va_end(args);
  t->kind = kind;
  t->slot = slot;
  t->n_dims = cols ? 2 : 1;
  t->shape[0] = rows;
  t->shape[1] = cols;
  t->n = cols ? rows * cols : rows;
  p->n += t->n;
}

static void add_linear(RefParams *p, double **weight, double **bias, int64_t out, int64_t in, const char *prefix,
                       const char *name)
{
  add(p, weight, REF_MATRIX, out, in, "%s.%s.weight", prefix, name);
  if (bias) {
    add(p, bias, REF_BIAS, out, 0, "%s.%s.bias", prefix, name);
  }
}

static void add_mlp(RefParams *p, RefMlp *mlp, int64_t h, int64_t f, bool bias, const char *prefix)
{
  add_linear(p, &mlp->gate, bias ? &mlp->gate_bias : NULL, f, h, prefix, "gate_proj");
  add_linear(p, &mlp->up, bias ? &mlp->up_bias : NULL, f, h, prefix, "up_proj");
  add_linear(p, &mlp->down, bias ? &mlp->down_bias : NULL, h, f, prefix, "down_proj");
}

static void add_latent(const RefConfig *c, RefParams *p, RefLayer *l, const char *prefix)
{
  int64_t nq = c->heads * (c->nope_dim + c->rope_dim);
  if (c->q_lora > 0) {
    add_linear(p, &l->q_a, NULL, c->q_lora, c->hidden, prefix, "self_attn.q_a_proj");
    add(p, &l->q_a_norm, REF_GAIN, c->q_lora, 0, "%s.self_attn.q_a_layernorm.weight", prefix);
    add_linear(p, &l->q_b, NULL, nq, c->q_lora, prefix, "self_attn.q_b_proj");
  } else {
    add_linear(p, &l->q, NULL, nq, c->hidden, prefix, "self_attn.q_proj");
  }
  add_linear(p, &l->kv_a, NULL, c->kv_lora + c->rope_dim, c->hidden, prefix, "self_attn.kv_a_proj_with_mqa");
  add(p, &l->kv_a_norm, REF_GAIN, c->kv_lora, 0, "%s.self_attn.kv_a_layernorm.weight", prefix);
  add_linear(p, &l->kv_b, NULL, c->heads * (c->nope_dim + c->v_dim), c->kv_lora, prefix, "self_attn.kv_b_proj");
}

static void add_grouped(const RefConfig *c, RefParams *p, RefLayer *l, const char *prefix)
{
  bool bias = c->attention_bias;
  int64_t nq = c->heads * c->head_dim;
  int64_t nk = c->kv_heads * c->head_dim;
  add_linear(p, &l->q, bias ? &l->q_bias : NULL, nq, c->hidden, prefix, "self_attn.q_proj");
  add_linear(p, &l->k, bias ? &l->k_bias : NULL, nk, c->hidden, prefix, "self_attn.k_proj");
  add_linear(p, &l->v, bias ? &l->v_bias : NULL, nk, c->hidden, prefix, "self_attn.v_proj");
  if (c->qk_norm != REF_QK_NONE) {
    bool head = c->qk_norm == REF_QK_HEAD;
    add(p, &l->q_norm, REF_GAIN, head ? c->head_dim : nq, 0, "%s.self_attn.q_norm.weight", prefix);
    add(p, &l->k_norm, REF_GAIN, head ? c->head_dim : nk, 0, "%s.self_attn.k_norm.weight", prefix);
  }
}

static void add_layer(const RefConfig *c, RefParams *p, int64_t index)
{
  RefLayer *l = &p->layers[index];
  int64_t h = c->hidden;
  char prefix[REF_NAME_BYTES / 2];
  snprintf(prefix, sizeof prefix, "model.layers.%" PRId64, index);
  add(p, &l->input_norm, REF_GAIN, h, 0, "%s.input_layernorm.weight", prefix);
  if (c->mla) {
    add_latent(c, p, l, prefix);
  } else {
    add_grouped(c, p, l, prefix);
  }
  add_linear(p, &l->o, c->attention_bias ? &l->o_bias : NULL, h, c->heads * ref_v_dim(c), prefix, "self_attn.o_proj");
  if (c->sinks) {
    add(p, &l->sinks, REF_BIAS, c->heads, 0, "%s.self_attn.sinks", prefix);
  }
  add(p, &l->post_norm, REF_GAIN, h, 0, "%s.post_attention_layernorm.weight", prefix);
  strncat(prefix, ".mlp", sizeof prefix - strlen(prefix) - 1);
  if (ref_is_dense(c, index)) {
    add_mlp(p, &l->dense, h, c->dense_hidden, false, prefix);
    return;
  }
  add_linear(p, &l->router, c->router_bias ? &l->router_bias : NULL, c->experts, h, prefix, "gate");
  if (c->router == REF_SIGMOID_BIAS) {
    add(p, &l->router_bias, REF_SELECTION, c->experts, 0, "%s.gate.e_score_correction_bias", prefix);
  }
  l->experts = p->experts + index * c->experts;
  for (int64_t e = 0; e < c->experts; e++) {
    char name[REF_NAME_BYTES - 32];
    snprintf(name, sizeof name, "%s.experts.%" PRId64, prefix, e);
    add_mlp(p, &l->experts[e], h, c->ffn_hidden, c->expert_bias, name);
  }
  if (c->shared > 0) {
    strncat(prefix, ".shared_experts", sizeof prefix - strlen(prefix) - 1);
    add_mlp(p, &l->shared, h, c->shared, false, prefix);
  }
}

RefParams *ref_params_new(const RefConfig *c)
{
  RefParams *p = ref_alloc(1, sizeof *p);
  p->tensors = ref_alloc(3 + c->layers * (24 + 6 * c->experts), sizeof(RefTensor));
  p->layers = ref_alloc(c->layers, sizeof(RefLayer));
  p->experts = ref_alloc(c->layers * c->experts, sizeof(RefMlp));
  add(p, &p->embed, REF_MATRIX, c->vocab, c->hidden, "model.embed_tokens.weight");
  for (int64_t l = 0; l < c->layers; l++) {
    add_layer(c, p, l);
  }
  add(p, &p->final_norm, REF_GAIN, c->hidden, 0, "model.norm.weight");
  if (!c->tied) {
    add(p, &p->head, REF_MATRIX, c->vocab, c->hidden, "lm_head.weight");
  }
  p->data = ref_alloc(p->n, sizeof(double));
  double *at = p->data;
  for (int i = 0; i < p->n_tensors; i++) {
    p->tensors[i].data = *p->tensors[i].slot = at;
    at += p->tensors[i].n;
  }
  if (c->tied) {
    p->head = p->embed;
  }
  return p;
}

void ref_params_free(RefParams *p)
{
  if (!p) {
    return;
  }
  free(p->experts);
  free(p->layers);
  free(p->tensors);
  free(p->data);
  free(p);
}

static uint64_t mix(uint64_t x)
{
  x += UINT64_C(0x9e3779b97f4a7c15);
  x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
  return x ^ x >> 31;
}

/* Number in (0, 1]. */
static double uniform(uint64_t bits)
{
  return ((double)(bits >> 11) + 1) / 9007199254740992.0;
}

void ref_params_random(RefParams *p, uint64_t seed, double std)
{
  for (int i = 0; i < p->n_tensors; i++) {
    RefTensor *t = &p->tensors[i];
    uint64_t key = mix(seed);
    for (const char *s = t->name; *s; s++) {
      key = mix(key ^ (unsigned char)*s);
    }
    for (int64_t j = 0; j < t->n; j++) {
      double radius = sqrt(-2 * log(uniform(mix(key + 2 * (uint64_t)j))));
      double normal = radius * cos(6.283185307179586 * uniform(mix(key + 2 * (uint64_t)j + 1)));
      t->data[j] = (double)(float)(t->kind == REF_GAIN ? 1 + 0.1 * normal : std * normal);
    }
  }
}

void ref_params_load(RefParams *p, const char *path)
{
  char error[ST_ERROR_BYTES];
  StFile file;
  if (!st_read(path, &file, error)) {
    ref_fail("%s", error);
  }
  for (int i = 0; i < p->n_tensors; i++) {
    RefTensor *t = &p->tensors[i];
    const StTensor *s = st_find(&file, t->name);
    if (!s) {
      ref_fail("%s: %s is missing", path, t->name);
    }
    if (s->n_dims != t->n_dims || s->shape[0] != t->shape[0] || (t->n_dims == 2 && s->shape[1] != t->shape[1])) {
      ref_fail("%s: %s has another shape than the model's", path, t->name);
    }
    for (int64_t j = 0; j < t->n; j++) {
      t->data[j] = st_value(s, j);
    }
  }
  if (file.n != p->n_tensors) {
    ref_fail("%s: holds %d tensors, the model has %d", path, file.n, p->n_tensors);
  }
  st_free(&file);
}

void ref_params_save(const RefParams *p, const char *path, StDtype dtype)
{
  StTensor *tensors = ref_alloc(p->n_tensors, sizeof(StTensor));
  float *narrow = dtype == ST_F32 ? ref_alloc(p->n, sizeof(float)) : NULL;
  for (int64_t i = 0; narrow && i < p->n; i++) {
    narrow[i] = (float)p->data[i];
  }
  for (int i = 0; i < p->n_tensors; i++) {
    RefTensor *t = &p->tensors[i];
    tensors[i] = (StTensor){.name = t->name,
                            .dtype = dtype,
                            .n_dims = t->n_dims,
                            .shape = {t->shape[0], t->shape[1]},
                            .n = t->n,
                            .data = (const uint8_t *)t->data};
    if (narrow) {
      tensors[i].data = (const uint8_t *)(narrow + (t->data - p->data));
    }
  }
  char error[ST_ERROR_BYTES];
  if (!st_write(path, tensors, p->n_tensors, error)) {
    ref_fail("%s", error);
  }
  free(narrow);
  free(tensors);
}
