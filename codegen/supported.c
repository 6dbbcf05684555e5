/* What a target's kernels do not have: the language and the planner know more models than the kernels of now. */
#include "codegen/emit.h"

enum { CPU = 1 << TARGET_CPU, CUDA = 1 << TARGET_CUDA, BOTH = CPU | CUDA };

typedef struct Missing {
  int targets; /* that lack it */
  bool used;
  const char *block, *key, *what;
} Missing;

bool emit_supported(Diag *diag, const Spec *spec, const Plan *plan, Target target)
{
  const ModelSpec *m = &spec->model;
  bool latent = m->attention.kind == ATTENTION_MLA;
  const Missing missing[] = {
      {CUDA, latent, "attention", "kind", "latent attention"},
      {CUDA, m->attention.bias && !latent, "attention", "bias", "biases in attention"},
      {CUDA, m->attention.sinks, "attention", "sinks", "attention sinks"},
      {CUDA, m->attention.qk_norm == QK_NORM_WHOLE, "attention", "qk_norm", "a norm over all heads of q and of k"},
      {CUDA, m->dense.layers > 0, "dense", NULL, "dense layers"},
      {CUDA, m->moe.shared > 0, "moe", "shared", "shared experts"},
      {CUDA, m->moe.router == ROUTER_SIGMOID_BIAS, "moe", "router", "a sigmoid router"},
      {CUDA, m->moe.top_groups != m->moe.groups, "moe", "groups", "groups of experts"},
      {CUDA, m->moe.router_bias, "moe", "router_bias", "a bias of the router"},
      {CUDA, m->moe.bias, "moe", "bias", "biases in experts"},
      {BOTH, latent && m->attention.bias, "attention", "bias", "biases in latent attention"},
      {BOTH, latent && m->attention.clip_qkv > 0, "attention", "clip_qkv", "a clamp in latent attention"},
      {BOTH, m->moe.balance == BALANCE_BATCH, "balance", "kind", "the balance loss over the batch"},
      {BOTH, spec->train.lr_kind == LR_LINEAR, "lr", NULL, "a linear learning-rate schedule"},
      {BOTH, plan->dedup == DEDUP_FLAT, "plan", "dedup", "flat dispatch"},
      {BOTH, plan->system == SYSTEM_COMET, "plan", "schedule", "messages inside the experts' ops (comet)"},
      {BOTH, plan->optimizer_shard != OPT_SHARD_HOLDERS, "plan", "optimizer_shard",
       "optimizer state that lies elsewhere than with the holders"},
      {BOTH, plan->chunks > 4, "plan", "chunks", "more than 4 chunks"},
      {BOTH, plan->chunks > 1 && plan->dedup == DEDUP_NODE, "plan", "dedup",
       "chunks together with node-deduplicated dispatch"},
  };
  bool ok = true;
  for (size_t i = 0; i < sizeof missing / sizeof *missing; i++) {
    if (missing[i].used && (missing[i].targets >> target & 1)) {
      diag_error(diag, spec_span(spec, missing[i].block, missing[i].key), "target %s has no kernels for %s",
                 target == TARGET_CUDA ? "cuda" : "cpu", missing[i].what);
      ok = false;
    }
  }
  return ok;
}
