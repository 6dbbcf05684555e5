/* RefConfig from a .moespec. What the reference does not compute is refused by name. */
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
  refuse(m->moe.balance == BALANCE_BATCH, path, "the balance loss over the batch");
  refuse(m->moe.n_route_only > REF_MAX_ROUTE_ONLY, path, "such a long route_only");
}

static RefRouter router_of(RouterKind kind)
{
  switch (kind) {
  case ROUTER_SOFTMAX:
    return REF_SOFTMAX;
  case ROUTER_TOPK_SOFTMAX:
    return REF_TOPK_SOFTMAX;
  case ROUTER_SIGMOID_BIAS:
    return REF_SIGMOID_BIAS;
  default:
    return REF_SOFTMAX_RENORM;
  }
}

static void copy_attention(const ModelSpec *m, RefConfig *c)
{
  const RopeSpec *rope = &m->attention.rope;
  c->heads = m->attention.heads;
  c->kv_heads = m->attention.kv_heads;
  c->head_dim = m->attention.head_dim;
  c->qk_norm = m->attention.qk_norm == QK_NORM_HEAD    ? REF_QK_HEAD
               : m->attention.qk_norm == QK_NORM_WHOLE ? REF_QK_WHOLE
                                                       : REF_QK_NONE;
  c->attention_bias = m->attention.bias;
  c->sinks = m->attention.sinks;
  c->window = m->attention.window;
  c->window_layers = m->attention.window_layers == LAYERS_EVEN  ? REF_LAYERS_EVEN
                     : m->attention.window_layers == LAYERS_ODD ? REF_LAYERS_ODD
                                                                : REF_LAYERS_ALL;
  c->clip_qkv = m->attention.clip_qkv;
  c->mla = m->attention.kind == ATTENTION_MLA;
  c->q_lora = m->attention.q_lora;
  c->kv_lora = m->attention.kv_lora;
  c->nope_dim = m->attention.nope_dim;
  c->rope_dim = m->attention.rope_dim;
  c->v_dim = m->attention.v_dim;
  c->rope_theta = rope->theta;
  c->rope_interleaved = rope->interleaved;
  c->yarn = rope->yarn;
  c->yarn_truncate = rope->truncate;
  c->yarn_factor = rope->factor;
  c->yarn_beta_fast = rope->beta_fast;
  c->yarn_beta_slow = rope->beta_slow;
  c->yarn_mscale = rope->mscale;
  c->yarn_mscale_all_dim = rope->mscale_all_dim;
  c->yarn_attention_factor = rope->attention_factor;
  c->yarn_original = rope->original;
}

static void copy_model(const ModelSpec *m, RefConfig *c)
{
  c->layers = m->layers;
  c->hidden = m->hidden;
  c->vocab = m->vocab;
  c->norm_eps = m->norm_eps;
  c->init_std = m->init_std;
  c->tied = m->tied;
  c->dense_layers = m->dense.layers;
  c->dense_hidden = m->dense.hidden;
  c->experts = m->moe.experts;
  c->top_k = m->moe.top_k;
  c->ffn_hidden = m->moe.hidden;
  c->shared = m->moe.shared;
  c->router = router_of(m->moe.router);
  c->router_scale = m->moe.router_scale;
  c->groups = m->moe.groups;
  c->top_groups = m->moe.top_groups;
  c->router_bias = m->moe.router_bias;
  c->expert_bias = m->moe.bias;
  c->clamped = m->moe.activation == ACT_SWIGLU_CLAMPED;
  c->act_limit = m->moe.act_limit;
  c->act_alpha = m->moe.act_alpha;
  c->capacity = m->moe.capacity;
  c->balance_coef = m->moe.balance == BALANCE_SEQUENCE || m->moe.balance == BALANCE_BIAS ? m->moe.balance_coef : 0;
  c->bias_rate = m->moe.balance == BALANCE_BIAS ? m->moe.bias_rate : 0;
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
  copy_attention(&spec.model, c);
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
