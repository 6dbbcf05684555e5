/* RefConfig from a .moespec. Features of the language that the reference does not compute are refused by name. */
#include "tests/ref/ref_config.h"

#include <string.h>

#include "lang/spec.h"

static void refuse(bool present, const char *path, const char *feature)
{
  if (present) {
    ref_fail("%s: the reference does not know %s", path, feature);
  }
}

static void refuse_unknown(const ModelSpec *m, const char *path)
{
  refuse(m->attention.kind != ATTENTION_GQA, path, "attention kinds other than gqa");
  refuse(m->attention.qk_norm == QK_NORM_WHOLE, path, "qk_norm = whole");
  refuse(m->attention.bias, path, "attention biases");
  refuse(m->attention.sinks, path, "attention sinks");
  refuse(m->attention.window != 0, path, "attention windows");
  refuse(m->attention.clip_qkv != 0, path, "clip_qkv");
  refuse(m->attention.rope.interleaved, path, "interleaved RoPE");
  refuse(m->attention.rope.yarn, path, "YaRN");
  refuse(m->dense.layers != 0, path, "dense layers");
  refuse(m->moe.router == ROUTER_SIGMOID_BIAS, path, "the sigmoid router");
  refuse(m->moe.router_scale != 1, path, "router_scale");
  refuse(m->moe.groups > 1, path, "expert groups in the router");
  refuse(m->moe.router_bias || m->moe.bias, path, "biases in router or experts");
  refuse(m->moe.activation != ACT_SWIGLU, path, "activations other than swiglu");
  refuse(m->moe.shared != 0, path, "shared experts");
  refuse(m->moe.balance == BALANCE_BATCH || m->moe.balance == BALANCE_BIAS, path,
         "balance kinds other than none and sequence");
  refuse(m->moe.n_route_only > REF_MAX_ROUTE_ONLY, path, "such a long route_only");
}

static RefRouter router_of(RouterKind kind)
{
  return kind == ROUTER_SOFTMAX ? REF_SOFTMAX : kind == ROUTER_TOPK_SOFTMAX ? REF_TOPK_SOFTMAX : REF_SOFTMAX_RENORM;
}

static void copy_model(const ModelSpec *m, RefConfig *c)
{
  c->layers = m->layers;
  c->hidden = m->hidden;
  c->vocab = m->vocab;
  c->norm_eps = m->norm_eps;
  c->init_std = m->init_std;
  c->tied = m->tied;
  c->heads = m->attention.heads;
  c->kv_heads = m->attention.kv_heads;
  c->head_dim = m->attention.head_dim;
  c->qk_norm = m->attention.qk_norm == QK_NORM_HEAD;
  c->rope_theta = m->attention.rope.theta;
  c->experts = m->moe.experts;
  c->top_k = m->moe.top_k;
  c->ffn_hidden = m->moe.hidden;
  c->router = router_of(m->moe.router);
  c->capacity = m->moe.capacity;
  c->balance_coef = m->moe.balance == BALANCE_SEQUENCE ? m->moe.balance_coef : 0;
  c->n_route_only = m->moe.route_only ? m->moe.n_route_only : 0;
  for (int64_t i = 0; i < c->n_route_only; i++) {
    c->route_only[i] = m->moe.route_only[i];
  }
}

static void copy_train(const TrainSpec *t, RefConfig *c)
{
  c->lr = t->lr;
  c->lr_min = t->lr_min;
  c->beta1 = t->beta1;
  c->beta2 = t->beta2;
  c->eps = t->eps;
  c->weight_decay = t->weight_decay;
  c->clip = t->clip;
  c->lr_kind = t->lr_kind == LR_COSINE ? REF_LR_COSINE : t->lr_kind == LR_LINEAR ? REF_LR_LINEAR : REF_LR_CONSTANT;
  c->warmup = t->warmup;
  c->steps = t->steps;
}

void ref_config_read_spec(RefConfig *c, const char *path, const char *shape)
{
  Arena *arena = arena_new();
  Diag *diag = diag_new(arena, stderr);
  Spec spec;
  memset(&spec, 0, sizeof spec);
  const AstFile *ast = ast_parse(arena, diag, path, NULL, 0);
  if (!ast || !spec_build(arena, diag, ast, &spec)) {
    ref_fail("%s: not a valid spec", path);
  }
  refuse_unknown(&spec.model, path);
  copy_model(&spec.model, c);
  copy_train(&spec.train, c);
  int i = 0;
  while (i < spec.n_shapes && shape && strcmp(spec.shapes[i].name, shape) != 0) {
    i++;
  }
  if (i >= spec.n_shapes) {
    ref_fail("%s: no shape %s", path, shape ? shape : "at all");
  }
  c->seq = spec.shapes[i].seq;
  arena_free(arena);
}
