/* What the cpu target's kernels do not have: the language and the planner know more models than the kernels of now. */
#include "codegen/emit.h"

typedef struct Missing {
  bool used;
  const char *block, *key, *what;
} Missing;

bool emit_supported(Diag *diag, const Spec *spec, const Plan *plan)
{
  const ModelSpec *m = &spec->model;
  const Missing missing[] = {
      {m->attention.kind == ATTENTION_MLA, "attention", "kind", "multi-head latent attention"},
      {m->attention.qk_norm == QK_NORM_WHOLE, "attention", "qk_norm", "qk-norm over the whole vector"},
      {m->attention.bias, "attention", "bias", "attention biases"},
      {m->attention.sinks, "attention", "sinks", "attention sinks"},
      {m->attention.window > 0, "attention", "window", "sliding windows"},
      {m->attention.clip_qkv > 0, "attention", "clip_qkv", "clipped q, k and v"},
      {m->attention.rope.yarn, "rope", "yarn", "YaRN"},
      {m->attention.rope.interleaved, "rope", "interleaved", "interleaved RoPE"},
      {m->dense.layers > 0, "dense", "layers", "dense layers"},
      {m->moe.router == ROUTER_SIGMOID_BIAS, "moe", "router", "the sigmoid router"},
      {m->moe.router_bias, "moe", "router_bias", "router biases"},
      {m->moe.bias, "moe", "bias", "expert biases"},
      {m->moe.groups > 1, "moe", "groups", "group-limited routing"},
      {m->moe.router_scale != 1.0, "moe", "router_scale", "a router scale"},
      {m->moe.activation != ACT_SWIGLU, "moe", "activation", "the clamped activation"},
      {m->moe.shared > 0, "moe", "shared", "shared experts"},
      {m->moe.balance == BALANCE_BATCH, "balance", "kind", "the balance loss over the batch"},
      {m->moe.balance == BALANCE_BIAS, "balance", "kind", "balancing by selection bias"},
      {spec->train.lr_kind == LR_LINEAR, "lr", NULL, "a linear learning-rate schedule"},
      {plan->recompute != RECOMPUTE_NONE, "plan", "recompute", "recomputation"},
      {plan->dedup == DEDUP_FLAT, "plan", "dedup", "flat dispatch"},
      {plan->system == SYSTEM_COMET, "plan", "schedule", "messages inside the experts' ops (comet)"},
      {plan->optimizer_shard != OPT_SHARD_HOLDERS, "plan", "optimizer_shard",
       "optimizer state that lies elsewhere than with the holders"},
      {plan->chunks > 4, "plan", "chunks", "more than 4 chunks"},
      {plan->chunks > 1 && plan->dedup == DEDUP_NODE, "plan", "dedup",
       "chunks together with node-deduplicated dispatch"},
  };
  bool ok = true;
  for (size_t i = 0; i < sizeof missing / sizeof *missing; i++) {
    if (missing[i].used) {
      diag_error(diag, spec_span(spec, missing[i].block, missing[i].key), "target cpu has no kernels for %s",
                 missing[i].what);
      ok = false;
    }
  }
  return ok;
}
