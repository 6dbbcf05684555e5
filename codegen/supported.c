/* What the cpu target's kernels do not have: the language and the planner know more models than the kernels of now. */
#include "codegen/emit.h"

typedef struct Missing {
  bool used;
  const char *block, *key, *what;
} Missing;

bool emit_supported(Diag *diag, const Spec *spec, const Plan *plan)
{
  const ModelSpec *m = &spec->model;
  bool latent = m->attention.kind == ATTENTION_MLA;
  const Missing missing[] = {
      {latent && m->attention.bias, "attention", "bias", "biases in latent attention"},
      {latent && m->attention.clip_qkv > 0, "attention", "clip_qkv", "a clamp in latent attention"},
      {m->moe.balance == BALANCE_BATCH, "balance", "kind", "the balance loss over the batch"},
      {spec->train.lr_kind == LR_LINEAR, "lr", NULL, "a linear learning-rate schedule"},
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
