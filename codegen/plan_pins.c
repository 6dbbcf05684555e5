/* Pins of the plan block against each other, the model, the batch and the cluster. */
#include <string.h>

#include "codegen/plan_int.h"

Span plan_span(const Spec *spec, const char *key)
{
  Span span = spec_span(spec, "plan", key);
  return span.source ? span : spec_span(spec, "cluster", "nodes");
}

static int sum(const int *list, int n, int groups)
{
  int total = 0;
  for (int i = 0; i < groups; i++) {
    total += list[n > 1 ? i : 0];
  }
  return total;
}

static bool check_list(Diag *diag, const Spec *spec, const char *key, const int *list, int n, const char *stages_key,
                       int stages)
{
  for (int i = 0; i < n; i++) {
    if (list[i] < 1) {
      diag_error(diag, plan_span(spec, key), "%s: group %d has %d GPUs; every group needs at least 1", key, i, list[i]);
      return false;
    }
  }
  if (n > 1 && stages > 0 && stages != n) {
    diag_error(diag, plan_span(spec, key), "%s lists %d groups, but %s = %d", key, n, stages_key, stages);
    diag_note(diag, plan_span(spec, stages_key), "give one number for all groups, or one per group");
    return false;
  }
  return true;
}

static bool check_stages(Diag *diag, const Spec *spec, const char *key, int stages, int layers, const char *what)
{
  if (stages > layers) {
    const char *verb = strstr(key, "gpus") ? "lists" : "=";
    diag_error(diag, plan_span(spec, key), "%s %s %d%s, but the model has %d %s: some group would have none", key, verb,
               stages, *verb == 'l' ? " groups" : "", layers, what);
    return false;
  }
  return true;
}

static bool check_colocated(Diag *diag, const Spec *spec)
{
  const PlanSpec *pin = &spec->plan;
  if (pin->attention_stages && pin->ffn_stages && pin->attention_stages != pin->ffn_stages) {
    diag_error(diag, plan_span(spec, "ffn_stages"),
               "placement = colocated has the same groups on both sides, but attention_stages = %d and ffn_stages = %d",
               pin->attention_stages, pin->ffn_stages);
    return false;
  }
  for (int i = 0; i < pin->n_ffn_gpus && pin->n_attention_gpus; i++) {
    int a = pin->attention_gpus[pin->n_attention_gpus > 1 && i < pin->n_attention_gpus ? i : 0];
    if (a != pin->ffn_gpus[i] || (pin->n_attention_gpus != pin->n_ffn_gpus)) {
      diag_error(diag, plan_span(spec, "ffn_gpus"),
                 "placement = colocated has the same groups on both sides, but group %d has attention_gpus = %d and "
                 "ffn_gpus = %d",
                 i, a, pin->ffn_gpus[i]);
      return false;
    }
  }
  return true;
}

/* Contradictions between pins, and between a pin and the model or the batch. */
bool plan_check_pins(Diag *diag, const Spec *spec, const ShapeSpec *shape)
{
  const PlanSpec *pin = &spec->plan;
  int layers = spec->model.layers, experts = spec->model.moe.experts;
  bool ok = check_stages(diag, spec, pin->attention_stages ? "attention_stages" : "attention_gpus",
                         plan_pinned_stages(spec, true), layers, "layers");
  ok &= check_stages(diag, spec, pin->ffn_stages ? "ffn_stages" : "ffn_gpus", plan_pinned_stages(spec, false),
                     plan_moe_layers(spec), "MoE layers");
  ok &= check_list(diag, spec, "attention_gpus", pin->attention_gpus, pin->n_attention_gpus, "attention_stages",
                   pin->attention_stages);
  ok &= check_list(diag, spec, "ffn_gpus", pin->ffn_gpus, pin->n_ffn_gpus, "ffn_stages", pin->ffn_stages);
  for (int i = 0; i < pin->n_ffn_gpus; i++) {
    if (pin->ffn_gpus[i] > experts) {
      diag_error(diag, plan_span(spec, "ffn_gpus"),
                 "ffn_gpus = %d, but a layer has %d experts: some GPU would have none", pin->ffn_gpus[i], experts);
      ok = false;
    }
  }
  if (pin->replicas > shape->global_batch) {
    diag_error(diag, plan_span(spec, "replicas"),
               "replicas = %d, but a step has %d sequences: some replica would get none", pin->replicas,
               shape->global_batch);
    ok = false;
  }
  if (pin->placement == PLACE_COLOCATED) {
    ok &= check_colocated(diag, spec);
  }
  return ok;
}

/* Pins that ask for more than the cluster has. Stages and GPUs count one where they are free. */
bool plan_check_cluster(Diag *diag, const Spec *spec)
{
  const PlanSpec *pin = &spec->plan;
  Nodes nodes = plan_nodes(spec);
  bool both = pin->placement == PLACE_COLOCATED;
  int p_att = plan_pinned_stages(spec, true), p_ffn = plan_pinned_stages(spec, false);
  p_att = p_att ? p_att : 1;
  p_ffn = p_ffn ? p_ffn : 1;
  int att = pin->n_attention_gpus ? sum(pin->attention_gpus, pin->n_attention_gpus, p_att) : p_att;
  int ffn = both ? 0 : pin->n_ffn_gpus ? sum(pin->ffn_gpus, pin->n_ffn_gpus, p_ffn) : p_ffn;
  int replicas = pin->replicas ? pin->replicas : 1;
  int64_t ranks = (int64_t)(att + ffn) * replicas;
  if (ranks > nodes.total) {
    const char *key = pin->replicas           ? "replicas"
                      : pin->n_attention_gpus ? "attention_gpus"
                      : pin->n_ffn_gpus       ? "ffn_gpus"
                                              : "attention_stages";
    diag_error(
        diag, plan_span(spec, key),
        "no plan: %d replica%s of %d attention and %d FFN GPUs need %lld GPUs, the cluster has %d (%lld too few)",
        replicas, replicas == 1 ? "" : "s", att, ffn, (long long)ranks, nodes.total, (long long)ranks - nodes.total);
    int per = spec->cluster.gpus, need = (int)((ranks + per - 1) / per);
    if (!both && ranks == 2 && nodes.total == 1) {
      diag_note(diag, plan_span(spec, "placement"),
                "smallest change: a second GPU, or placement = colocated, where one GPU holds both sides");
    } else {
      diag_note(diag, spec_span(spec, "cluster", "nodes"), "smallest change: nodes = %d (of %d GPUs each)", need, per);
    }
    return false;
  }
  int nics = nodes.nics * nodes.count;
  if (pin->attention_nics + pin->ffn_nics > nics) {
    diag_error(diag, plan_span(spec, pin->attention_nics ? "attention_nics" : "ffn_nics"),
               "no plan: attention_nics + ffn_nics = %d, the cluster has %d NICs", pin->attention_nics + pin->ffn_nics,
               nics);
    return false;
  }
  if (nics == 0 && nodes.count > 1 && (int64_t)(att + ffn) > nodes.ranks) {
    diag_error(diag, spec_span(spec, "cluster", "nics"),
               "no plan: a replica of %d GPUs spans nodes of %d, and the nodes have 0 NICs", att + ffn, nodes.ranks);
    return false;
  }
  return true;
}

bool plan_check_afd(Diag *diag, const Spec *spec)
{
  static const char *const keys[] = {"attention_stages", "ffn_stages"};
  for (int i = 0; i < 2; i++) {
    int pinned = plan_pinned_stages(spec, i == 0);
    if (pinned > 1) {
      bool stages = (i == 0 ? spec->plan.attention_stages : spec->plan.ffn_stages) > 0;
      const char *key = stages ? keys[i] : i == 0 ? "attention_gpus" : "ffn_gpus";
      diag_error(diag, plan_span(spec, key), "schedule = afd has one group on each side, but %s asks for %d", key,
                 pinned);
      return false;
    }
  }
  return true;
}
