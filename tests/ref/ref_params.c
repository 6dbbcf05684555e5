/* The table of tensors: names, shapes, files, random weights. */
#include "tests/ref/ref_model.h"

#include <inttypes.h>
#include <stdarg.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ref/ref_math.h"

/* Appends one tensor; `data` is set once all sizes are known. cols 0: a vector. */
__attribute__((format(printf, 4, 5))) static void add(RefParams *p, int64_t rows, int64_t cols, const char *format, ...)
{
  RefTensor *t = &p->tensors[p->n_tensors++];
  va_list args;
  va_start(args, format);
  vsnprintf(t->name, sizeof t->name, format, args);
  va_end(args);
  t->n_dims = cols ? 2 : 1;
  t->shape[0] = rows;
  t->shape[1] = cols;
  t->n = cols ? rows * cols : rows;
  p->n += t->n;
}

static void list_layer(const RefConfig *c, RefParams *p, int64_t l)
{
  int64_t h = c->hidden;
  int64_t q = c->heads * c->head_dim;
  int64_t kv = c->kv_heads * c->head_dim;
  char prefix[REF_NAME_BYTES / 2];
  snprintf(prefix, sizeof prefix, "model.layers.%" PRId64, l);
  add(p, h, 0, "%s.input_layernorm.weight", prefix);
  add(p, q, h, "%s.self_attn.q_proj.weight", prefix);
  add(p, kv, h, "%s.self_attn.k_proj.weight", prefix);
  add(p, kv, h, "%s.self_attn.v_proj.weight", prefix);
  if (c->qk_norm) {
    add(p, c->head_dim, 0, "%s.self_attn.q_norm.weight", prefix);
    add(p, c->head_dim, 0, "%s.self_attn.k_norm.weight", prefix);
  }
  add(p, h, q, "%s.self_attn.o_proj.weight", prefix);
  add(p, h, 0, "%s.post_attention_layernorm.weight", prefix);
  add(p, c->experts, h, "%s.mlp.gate.weight", prefix);
  for (int64_t e = 0; e < c->experts; e++) {
    add(p, c->ffn_hidden, h, "%s.mlp.experts.%" PRId64 ".gate_proj.weight", prefix, e);
    add(p, c->ffn_hidden, h, "%s.mlp.experts.%" PRId64 ".up_proj.weight", prefix, e);
    add(p, h, c->ffn_hidden, "%s.mlp.experts.%" PRId64 ".down_proj.weight", prefix, e);
  }
}

/* Hands the tensors out in the order in which list_layer() made them. */
static RefTensor *bind_layer(const RefConfig *c, RefLayer *layer, RefExpert *experts, RefTensor *t)
{
  layer->input_norm = (t++)->data;
  layer->q = (t++)->data;
  layer->k = (t++)->data;
  layer->v = (t++)->data;
  if (c->qk_norm) {
    layer->q_norm = (t++)->data;
    layer->k_norm = (t++)->data;
  }
  layer->o = (t++)->data;
  layer->post_norm = (t++)->data;
  layer->router = (t++)->data;
  layer->experts = experts;
  for (int64_t e = 0; e < c->experts; e++) {
    layer->experts[e].gate = (t++)->data;
    layer->experts[e].up = (t++)->data;
    layer->experts[e].down = (t++)->data;
  }
  return t;
}

RefParams *ref_params_new(const RefConfig *c)
{
  RefParams *p = ref_alloc(1, sizeof *p);
  p->tensors = ref_alloc(3 + c->layers * (9 + 3 * c->experts), sizeof(RefTensor));
  add(p, c->vocab, c->hidden, "model.embed_tokens.weight");
  for (int64_t l = 0; l < c->layers; l++) {
    list_layer(c, p, l);
  }
  add(p, c->hidden, 0, "model.norm.weight");
  if (!c->tied) {
    add(p, c->vocab, c->hidden, "lm_head.weight");
  }
  p->data = ref_alloc(p->n, sizeof(double));
  double *at = p->data;
  for (int i = 0; i < p->n_tensors; i++) {
    p->tensors[i].data = at;
    at += p->tensors[i].n;
  }
  RefTensor *t = p->tensors;
  p->embed = (t++)->data;
  p->layers = ref_alloc(c->layers, sizeof(RefLayer));
  RefExpert *experts = ref_alloc(c->layers * c->experts, sizeof(RefExpert));
  for (int64_t l = 0; l < c->layers; l++) {
    t = bind_layer(c, &p->layers[l], experts + l * c->experts, t);
  }
  p->final_norm = (t++)->data;
  p->head = c->tied ? p->embed : t->data;
  return p;
}

void ref_params_free(RefParams *p)
{
  if (!p) {
    return;
  }
  free(p->layers[0].experts); /* one array for all layers */
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
      t->data[j] = (double)(float)(t->n_dims == 1 ? 1 + 0.1 * normal : std * normal);
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
