/* Rules between keys of the model and the hardware. Every message names both numbers of the relation it is about. */
#include "lang/spec_keys.h"
#include "lang/spec_rules.h"

bool rule_good(const Reader *reader, KeyId key)
{
  return reader->state[key] != KEY_BAD;
}

bool rule_set(const Reader *reader, KeyId key)
{
  return reader->state[key] == KEY_SET;
}

Span rule_at(const Reader *reader, KeyId key)
{
  Span span = reader->spans.key[key];
  return span.source ? span : reader->spans.block[key_rows[key].block];
}

void rule_note(Reader *reader, KeyId key)
{
  if (rule_set(reader, key)) {
    diag_note(reader->diag, reader->spans.key[key], "%s is set here", key_rows[key].name);
  }
}

void rule_no_effect(Reader *reader, KeyId key, const char *because)
{
  if (rule_set(reader, key)) {
    BlockId block = key_rows[key].block;
    while (block_rows[block].parent != B_root) {
      block = block_rows[block].parent;
    }
    read_reset(key, block == B_model ? (void *)&reader->spec->model : (void *)&reader->spec->train);
    diag_warn(reader->diag, rule_at(reader, key), "%s has no effect: %s", key_rows[key].name, because);
  }
}

void rule_needs(Reader *reader, KeyId key, const char *because)
{
  if (reader->state[key] == KEY_UNSET) {
    reader->state[key] = KEY_BAD;
    diag_error(reader->diag, reader->spans.block[key_rows[key].block], "'%s' lacks %s, %s: %s",
               block_rows[key_rows[key].block].name, key_rows[key].name, because, key_rows[key].doc);
  }
}

static void heads(Reader *reader)
{
  ModelSpec *model = &reader->spec->model;
  int n = model->attention.heads;
  int kv = model->attention.kv_heads;
  bool known = rule_good(reader, K_attention_heads) && n > 0;
  if (!rule_set(reader, K_attention_kv_heads)) {
    model->attention.kv_heads = n;
  } else if (known && n % kv != 0) {
    diag_error(reader->diag, rule_at(reader, K_attention_kv_heads), "kv_heads (%d) must divide heads (%d)", kv, n);
    rule_note(reader, K_attention_heads);
  }
  if (rule_set(reader, K_attention_head_dim)) {
    if (model->attention.head_dim % 2 != 0) {
      diag_error(reader->diag, rule_at(reader, K_attention_head_dim),
                 "head_dim (%d) is odd, but RoPE rotates pairs: it must be even", model->attention.head_dim);
    }
  } else if (known && rule_good(reader, K_attention_head_dim) && rule_set(reader, K_model_hidden)) {
    if (model->hidden % n != 0) {
      diag_error(reader->diag, rule_at(reader, K_attention_heads),
                 "heads (%d) does not divide hidden (%d): set head_dim to say how large a head is", n, model->hidden);
      rule_note(reader, K_model_hidden);
    } else if (model->hidden / n % 2 != 0) {
      diag_error(reader->diag, rule_at(reader, K_attention_heads),
                 "hidden / heads = %d / %d = %d is odd, but RoPE rotates pairs: set an even head_dim", model->hidden, n,
                 model->hidden / n);
    } else {
      model->attention.head_dim = model->hidden / n;
    }
  }
}

static void latent_attention(Reader *reader)
{
  static const KeyId needed[] = {K_attention_kv_lora, K_attention_nope_dim, K_attention_rope_dim, K_attention_v_dim};
  static const KeyId useless[] = {K_attention_kv_heads, K_attention_head_dim, K_attention_qk_norm};
  ModelSpec *model = &reader->spec->model;
  for (int i = 0; i < 4; i++) {
    rule_needs(reader, needed[i], "which kind = mla needs");
  }
  for (int i = 0; i < 3; i++) {
    rule_no_effect(reader, useless[i], "kind = mla has its own head sizes and norms");
  }
  if (rule_set(reader, K_attention_rope_dim) && model->attention.rope_dim % 2 != 0) {
    diag_error(reader->diag, rule_at(reader, K_attention_rope_dim),
               "rope_dim (%d) is odd, but RoPE rotates pairs: it must be even", model->attention.rope_dim);
  }
  model->attention.kv_heads = model->attention.heads;
  model->attention.head_dim = model->attention.nope_dim + model->attention.rope_dim;
  model->attention.qk_norm = QK_NORM_NONE;
}

static void attention(Reader *reader)
{
  static const KeyId latent[] = {K_attention_q_lora, K_attention_kv_lora, K_attention_nope_dim, K_attention_rope_dim,
                                 K_attention_v_dim};
  ModelSpec *model = &reader->spec->model;
  if (!reader->present[B_attention]) {
    return;
  }
  if (rule_good(reader, K_attention_kind) && model->attention.kind == ATTENTION_MLA) {
    latent_attention(reader);
  } else {
    for (int i = 0; i < 5; i++) {
      rule_no_effect(reader, latent[i], "it belongs to kind = mla");
    }
    heads(reader);
  }
  if (model->attention.window == 0 && rule_good(reader, K_attention_window)) {
    rule_no_effect(reader, K_attention_window_layers, "there is no window");
  }
  model->attention.rope.yarn = reader->present[B_yarn];
  const RopeSpec *rope = &model->attention.rope;
  if (rope->yarn && rule_good(reader, K_yarn_beta_fast) && rule_good(reader, K_yarn_beta_slow) &&
      rope->beta_slow > rope->beta_fast) {
    diag_error(reader->diag, rule_at(reader, K_yarn_beta_slow), "beta_slow (%g) must not be above beta_fast (%g)",
               rope->beta_slow, rope->beta_fast);
    rule_note(reader, K_yarn_beta_fast);
  }
  if (rope->yarn && rope->factor == 1.0) {
    rule_no_effect(reader, K_yarn_factor, "a factor of 1 does not scale");
  }
}

static void dense_layers(Reader *reader)
{
  const ModelSpec *model = &reader->spec->model;
  if (rule_set(reader, K_dense_layers) && rule_set(reader, K_model_layers) && model->dense.layers >= model->layers) {
    diag_error(reader->diag, rule_at(reader, K_dense_layers),
               "dense layers (%d) leave no layer of %d with experts: at most %d can be dense", model->dense.layers,
               model->layers, model->layers - 1);
    rule_note(reader, K_model_layers);
  }
}

static void router_groups(Reader *reader)
{
  ModelSpec *model = &reader->spec->model;
  int groups = model->moe.groups;
  if (!rule_set(reader, K_moe_top_groups)) {
    model->moe.top_groups = groups;
  }
  if (!rule_good(reader, K_moe_groups) || !rule_good(reader, K_moe_top_groups)) {
    return;
  }
  if (model->moe.top_groups > groups) {
    diag_error(reader->diag, rule_at(reader, K_moe_top_groups), "top_groups (%d) exceeds groups (%d)",
               model->moe.top_groups, groups);
    rule_note(reader, K_moe_groups);
  } else if (rule_set(reader, K_moe_experts) && model->moe.experts % groups != 0) {
    diag_error(reader->diag, rule_at(reader, K_moe_groups), "groups (%d) must divide experts (%d)", groups,
               model->moe.experts);
    rule_note(reader, K_moe_experts);
  } else if (rule_set(reader, K_moe_experts) && rule_set(reader, K_moe_top_k) &&
             model->moe.top_k <= model->moe.experts) {
    int reach = model->moe.experts / groups * model->moe.top_groups;
    if (model->moe.top_k > reach) {
      diag_error(reader->diag, rule_at(reader, K_moe_top_k),
                 "top_k (%d) exceeds the %d experts of top_groups = %d of %d groups", model->moe.top_k, reach,
                 model->moe.top_groups, groups);
      rule_note(reader, K_moe_top_groups);
    }
  }
}

static void route_only(Reader *reader)
{
  const ModelSpec *model = &reader->spec->model;
  int n = model->moe.n_route_only;
  if (!rule_set(reader, K_moe_route_only) || n == 0 || !rule_set(reader, K_moe_experts)) {
    return;
  }
  Span span = rule_at(reader, K_moe_route_only);
  bool *seen = arena_new_array(reader->arena, bool, (size_t)model->moe.experts);
  for (int i = 0; i < n; i++) {
    int expert = model->moe.route_only[i];
    if (expert >= model->moe.experts) {
      diag_error(reader->diag, span, "route_only names expert %d, but experts (%d) are numbered 0 to %d", expert,
                 model->moe.experts, model->moe.experts - 1);
      return;
    }
    if (seen[expert]) {
      diag_error(reader->diag, span, "route_only names expert %d twice", expert);
      return;
    }
    seen[expert] = true;
  }
  if (rule_set(reader, K_moe_top_k) && n < model->moe.top_k) {
    diag_error(reader->diag, span, "route_only names %d expert%s, fewer than top_k (%d)", n, n == 1 ? "" : "s",
               model->moe.top_k);
    rule_note(reader, K_moe_top_k);
  }
  if (model->moe.groups > 1) {
    diag_error(reader->diag, span, "route_only and groups (%d) cannot be combined", model->moe.groups);
  }
}

static void balance(Reader *reader)
{
  const ModelSpec *model = &reader->spec->model;
  if (!reader->present[B_balance] || !rule_good(reader, K_balance_kind)) {
    return;
  }
  BalanceKind kind = model->moe.balance;
  if (kind == BALANCE_SEQUENCE || kind == BALANCE_BATCH) {
    rule_needs(reader, K_balance_coef, "which this kind needs");
  }
  if (kind == BALANCE_NONE) {
    rule_no_effect(reader, K_balance_coef, "kind = none has no loss");
  }
  if (kind != BALANCE_BIAS) {
    rule_no_effect(reader, K_balance_rate, "it belongs to kind = bias");
  } else if (rule_good(reader, K_moe_router) && model->moe.router != ROUTER_SIGMOID_BIAS) {
    diag_error(reader->diag, rule_at(reader, K_balance_kind),
               "kind = bias moves a selection bias, which only router = sigmoid_bias has");
    rule_note(reader, K_moe_router);
  }
}

static void router_bias(Reader *reader)
{
  const ModelSpec *model = &reader->spec->model;
  if (model->moe.router_bias && rule_good(reader, K_moe_router) && model->moe.router == ROUTER_SIGMOID_BIAS) {
    diag_error(reader->diag, rule_at(reader, K_moe_router_bias),
               "router = sigmoid_bias has a bias of its own, for the choice alone, and none on its logits");
    rule_note(reader, K_moe_router);
  }
}

static void experts(Reader *reader)
{
  ModelSpec *model = &reader->spec->model;
  if (!reader->present[B_moe]) {
    return;
  }
  bool counts = rule_set(reader, K_moe_experts) && rule_set(reader, K_moe_top_k);
  if (counts && model->moe.top_k > model->moe.experts) {
    diag_error(reader->diag, rule_at(reader, K_moe_top_k), "top_k (%d) exceeds experts (%d)", model->moe.top_k,
               model->moe.experts);
    rule_note(reader, K_moe_experts);
  }
  router_groups(reader);
  route_only(reader);
  balance(reader);
  router_bias(reader);
  if (rule_good(reader, K_moe_activation) && model->moe.activation != ACT_SWIGLU_CLAMPED) {
    rule_no_effect(reader, K_moe_act_limit, "it belongs to activation = swiglu_clamped");
    rule_no_effect(reader, K_moe_act_alpha, "it belongs to activation = swiglu_clamped");
  }
  bool renormalised = model->moe.router == ROUTER_SOFTMAX_RENORM || model->moe.router == ROUTER_TOPK_SOFTMAX;
  if (counts && model->moe.top_k == 1 && model->moe.experts > 1 && rule_good(reader, K_moe_router) && renormalised) {
    diag_warn(reader->diag, rule_at(reader, K_moe_top_k),
              "with top_k = 1 the renormalised weight is always 1, so the router gets no gradient: consider router = "
              "softmax");
  }
  if (counts && rule_set(reader, K_moe_capacity) && model->moe.top_k > 0 &&
      model->moe.capacity >= (double)model->moe.experts / model->moe.top_k) {
    diag_warn(reader->diag, rule_at(reader, K_moe_capacity),
              "capacity %g drops nothing: from experts / top_k = %d / %d up, one expert could take every token",
              model->moe.capacity, model->moe.experts, model->moe.top_k);
  }
}

void rules_model(Reader *reader)
{
  attention(reader);
  dense_layers(reader);
  experts(reader);
}

void rules_node(Reader *reader, const AstItem *item, const NodeKeys *node)
{
  (void)item;
  if (rule_set(reader, K_node_gpus) && node->part.gpus > 1) {
    rule_needs(reader, K_node_nvlink, "which several GPUs need");
  }
  if (rule_set(reader, K_node_nics) && node->part.nics > 0) {
    rule_needs(reader, K_node_nic, "which network cards need");
  }
  if (rule_set(reader, K_node_nic) && node->part.nic > 1e12) {
    diag_warn(reader->diag, rule_at(reader, K_node_nic),
              "nic is %g TB/s per card; cards reach some 0.1 TB/s: is it GB/s or Gbit/s that is meant?",
              node->part.nic / 1e12);
  }
  if (rule_set(reader, K_node_nvlink) && node->part.nvlink > 2e13) {
    diag_warn(reader->diag, rule_at(reader, K_node_nvlink),
              "nvlink is %g TB/s per direction; is it GB/s that is meant?", node->part.nvlink / 1e12);
  }
  if (rule_set(reader, K_node_nic_latency) && node->part.nic_ns >= 1e7) {
    diag_warn(reader->diag, rule_at(reader, K_node_nic_latency),
              "a latency of %g ms between nodes; is it us that is meant?", node->part.nic_ns / 1e6);
  }
}

void rules_gpu(Reader *reader, const AstItem *item, const GpuSpec *gpu)
{
  (void)item;
  if (rule_set(reader, K_gpu_hbm) && rule_set(reader, K_gpu_flops) && gpu->flops / gpu->hbm > 5000) {
    diag_warn(reader->diag, rule_at(reader, K_gpu_hbm),
              "hbm of %g GB/s is one byte for %.0f FLOPs; GPUs have some 100 to 500: is it TB/s that is meant?",
              gpu->hbm / 1e9, gpu->flops / gpu->hbm);
  } else if (rule_set(reader, K_gpu_hbm) && gpu->hbm > 1e14) {
    diag_warn(reader->diag, rule_at(reader, K_gpu_hbm), "hbm of %g TB/s; is it GB/s that is meant?", gpu->hbm / 1e12);
  }
  if (rule_set(reader, K_gpu_flops) && gpu->flops < 1e8) {
    diag_warn(reader->diag, rule_at(reader, K_gpu_flops), "flops of %g FLOPS; is it TFLOPS that is meant?", gpu->flops);
  } else if (rule_set(reader, K_gpu_flops) && gpu->flops > 2e16) {
    diag_warn(reader->diag, rule_at(reader, K_gpu_flops), "flops of %g TFLOPS per GPU; is it GFLOPS that is meant?",
              gpu->flops / 1e12);
  }
  if (rule_set(reader, K_gpu_memory) && gpu->memory < 16 << 20) {
    diag_warn(reader->diag, rule_at(reader, K_gpu_memory), "memory of %g MB; is it GB that is meant?",
              (double)gpu->memory / 1e6);
  } else if (rule_set(reader, K_gpu_memory) && gpu->memory > (int64_t)4 << 40) {
    diag_warn(reader->diag, rule_at(reader, K_gpu_memory), "memory of %g TB per GPU; is it GB that is meant?",
              (double)gpu->memory / 1e12);
  }
  if (rule_set(reader, K_gpu_launch) && gpu->launch_ns >= 1e7) {
    diag_warn(reader->diag, rule_at(reader, K_gpu_launch), "%g ms to launch a kernel; is it us that is meant?",
              gpu->launch_ns / 1e6);
  }
}
