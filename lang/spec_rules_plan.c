/* Rules between keys of shapes, training and the planner's pins. */
#include <inttypes.h>
#include <string.h>

#include "lang/spec_rules.h"

void rules_shape(Reader *reader, const AstItem *item, const ShapeSpec *shape)
{
  (void)item;
  if (rule_good(reader, K_shape_micro_batch) && rule_set(reader, K_shape_global_batch) &&
      shape->micro_batch > shape->global_batch) {
    diag_error(reader->diag, rule_at(reader, K_shape_micro_batch), "micro_batch (%d) exceeds global_batch (%d)",
               shape->micro_batch, shape->global_batch);
    rule_note(reader, K_shape_global_batch);
  }
  if (rule_set(reader, K_shape_seq) && rule_good(reader, K_shape_micro_batch) &&
      shape->seq > INT32_MAX / shape->micro_batch) {
    diag_error(reader->diag, rule_at(reader, K_shape_seq),
               "seq x micro_batch = %" PRId64 " x %d tokens exceeds 2147483647", shape->seq, shape->micro_batch);
    rule_note(reader, K_shape_micro_batch);
  }
}

/* A window that no shape reaches, seen once the shapes are known. */
static void window(Reader *reader)
{
  const Spec *spec = reader->spec;
  int64_t longest = 0;
  for (int i = 0; i < spec->n_shapes; i++) {
    longest = spec->shapes[i].seq > longest ? spec->shapes[i].seq : longest;
  }
  if (longest > 0 && rule_set(reader, K_attention_window) && spec->model.attention.window >= longest) {
    diag_warn(reader->diag, rule_at(reader, K_attention_window),
              "a window of %" PRId64 " has no effect: no sequence is longer than %" PRId64,
              spec->model.attention.window, longest);
  }
}

void rules_train(Reader *reader)
{
  TrainSpec *train = &reader->spec->train;
  window(reader);
  train->lr_kind = LR_CONSTANT;
  if (!reader->present[B_lr] || reader->words[B_lr] < 0) {
    return;
  }
  train->lr_kind = (LrKind)reader->words[B_lr];
  if (train->lr_kind == LR_CONSTANT) {
    rule_no_effect(reader, K_lr_steps, "a constant rate has no end");
    rule_no_effect(reader, K_lr_min, "a constant rate does not fall");
    return;
  }
  rule_needs(reader, K_lr_steps, "which this kind needs");
  if (rule_set(reader, K_lr_steps) && rule_good(reader, K_lr_warmup) && train->warmup > train->steps) {
    diag_error(reader->diag, rule_at(reader, K_lr_warmup),
               "warmup (%" PRId64 ") exceeds steps (%" PRId64 "), of which it is a part", train->warmup, train->steps);
    rule_note(reader, K_lr_steps);
  }
  if (rule_good(reader, K_optimizer_lr) && rule_good(reader, K_lr_min) && train->lr_min > train->lr) {
    diag_error(reader->diag, rule_at(reader, K_lr_min), "min (%g) is above the peak rate lr (%g)", train->lr_min,
               train->lr);
    rule_note(reader, K_optimizer_lr);
  }
}

/* A gradient that has no time of its own takes the forward time. */
void rules_costs(Reader *reader, CostsSpec *costs)
{
  costs->given = true;
  const struct {
    KeyId key;
    double *time, forward;
  } derived[] = {{K_costs_attention_input, &costs->att_dgrad, costs->att_fwd},
                 {K_costs_attention_weight, &costs->att_wgrad, costs->att_fwd},
                 {K_costs_ffn_input, &costs->ffn_dgrad, costs->ffn_fwd},
                 {K_costs_ffn_weight, &costs->ffn_wgrad, costs->ffn_fwd}};
  for (size_t i = 0; i < sizeof derived / sizeof derived[0]; i++) {
    if (!rule_set(reader, derived[i].key)) {
      *derived[i].time = derived[i].forward;
    }
  }
}

/* `stages` is both sides' count; beside it a side's own count contradicts or repeats it. */
static void spread_stages(Reader *reader, PlanKeys *keys)
{
  if (keys->stages == 0) {
    return;
  }
  static const KeyId side[] = {K_plan_attention_stages, K_plan_ffn_stages};
  for (int i = 0; i < 2; i++) {
    if (rule_set(reader, side[i])) {
      diag_error(reader->diag, rule_at(reader, side[i]), "%s is already set by stages", key_rows[side[i]].name);
      rule_note(reader, K_plan_stages);
    }
    reader->spans.key[side[i]] = reader->spans.key[K_plan_stages];
    reader->state[side[i]] = KEY_SET;
  }
  keys->plan.attention_stages = keys->stages;
  keys->plan.ffn_stages = keys->stages;
}

static void layers_per_stage(Reader *reader, const PlanSpec *plan)
{
  const ModelSpec *model = &reader->spec->model;
  if (!rule_set(reader, K_model_layers) || !rule_good(reader, K_dense_layers) || model->dense.layers >= model->layers) {
    return;
  }
  int moe_layers = model->layers - model->dense.layers;
  if (plan->attention_stages > model->layers) {
    diag_error(reader->diag, rule_at(reader, K_plan_attention_stages), "%d %s need as many layers, but layers is %d",
               plan->attention_stages, system_is(plan->system, true) ? "pipeline ranks" : "attention stages",
               model->layers);
    rule_note(reader, K_model_layers);
  }
  if (plan->ffn_stages > moe_layers && !system_is(plan->system, true)) {
    diag_error(reader->diag, rule_at(reader, K_plan_ffn_stages),
               "%d FFN stages need as many layers with experts, but there are %d (layers %d, dense %d)",
               plan->ffn_stages, moe_layers, model->layers, model->dense.layers);
    rule_note(reader, K_model_layers);
  }
}

/* A list of GPUs per group must have one entry, or one per stage. */
static void list_per_group(Reader *reader, KeyId gpus, KeyId stages, int n, int n_stages)
{
  if (rule_set(reader, gpus) && rule_good(reader, stages) && n > 1 && n_stages > 0 && n != n_stages) {
    diag_error(reader->diag, rule_at(reader, gpus), "%s lists %d groups, but %s is %d", key_rows[gpus].name, n,
               key_rows[stages].name, n_stages);
    rule_note(reader, stages);
  }
}

/* GPUs of one side as far as the pins say; at least one group. */
static int64_t side_gpus(const int *gpus, int n, int stages)
{
  int64_t sum = 0;
  for (int i = 0; i < n; i++) {
    sum += gpus[i];
  }
  return n == 1 && stages > 1 ? sum * stages : sum;
}

static void gpus_in_cluster(Reader *reader, const PlanSpec *plan)
{
  const ClusterSpec *cluster = &reader->spec->cluster;
  int64_t have = (int64_t)cluster->nodes * cluster->gpus;
  int64_t replicas = plan->replicas > 0 ? plan->replicas : 1;
  int64_t attention = side_gpus(plan->attention_gpus, plan->n_attention_gpus, plan->attention_stages);
  int64_t ffn = plan->placement == PLACE_COLOCATED ? 0 : side_gpus(plan->ffn_gpus, plan->n_ffn_gpus, plan->ffn_stages);
  KeyId key = ffn > attention ? K_plan_ffn_gpus : K_plan_attention_gpus;
  if (have > 0 && (attention + ffn) * replicas > have) {
    diag_error(reader->diag, rule_at(reader, key),
               "the pins ask for %" PRId64 " GPUs (attention %" PRId64 ", FFN %" PRId64 ", replicas %" PRId64
               "), but the cluster has %" PRId64,
               (attention + ffn) * replicas, attention, ffn, replicas, have);
    rule_note(reader, K_cluster_nodes);
  } else if (have > 0 && replicas > have) {
    diag_error(reader->diag, rule_at(reader, K_plan_replicas),
               "replicas (%" PRId64 ") exceeds the cluster's GPUs (%" PRId64 ")", replicas, have);
  }
}

static void ranks_with_experts(Reader *reader, const PlanSpec *plan)
{
  const ModelSpec *model = &reader->spec->model;
  for (int i = 0; i < plan->n_ffn_gpus && rule_set(reader, K_moe_experts); i++) {
    if (plan->ffn_gpus[i] > model->moe.experts) {
      diag_error(reader->diag, rule_at(reader, K_plan_ffn_gpus),
                 "ffn_gpus (%d) exceeds experts (%d): some ranks would hold none", plan->ffn_gpus[i],
                 model->moe.experts);
      rule_note(reader, K_moe_experts);
      return;
    }
  }
}

static void nics_in_cluster(Reader *reader, const PlanSpec *plan)
{
  const ClusterSpec *cluster = &reader->spec->cluster;
  int64_t have = (int64_t)cluster->nodes * cluster->nics;
  int64_t want = ((int64_t)plan->attention_nics + plan->ffn_nics) * (plan->replicas > 0 ? plan->replicas : 1);
  if (cluster->nodes > 0 && want > have) {
    diag_error(reader->diag,
               rule_at(reader, plan->ffn_nics > plan->attention_nics ? K_plan_ffn_nics : K_plan_attention_nics),
               "the pins ask for %" PRId64 " network cards, but the cluster has %" PRId64, want, have);
    rule_note(reader, K_cluster_nodes);
  }
  if (cluster->nodes > 1 && cluster->nics == 0 && rule_set(reader, K_node_nics)) {
    diag_error(reader->diag, rule_at(reader, K_node_nics), "%d nodes cannot reach each other: nics is 0",
               cluster->nodes);
    rule_note(reader, K_cluster_nodes);
  }
}

static void pretend_nodes(Reader *reader, const PlanSpec *plan)
{
  const ClusterSpec *cluster = &reader->spec->cluster;
  if (plan->ranks_per_node > 1 && cluster->gpus == 1 && cluster->nvlink == 0 && rule_set(reader, K_node_gpus)) {
    diag_error(reader->diag, rule_at(reader, K_plan_ranks_per_node),
               "ranks_per_node (%d) puts several GPUs on a node, but nodes of 1 GPU have no nvlink",
               plan->ranks_per_node);
    rule_note(reader, K_node_gpus);
  }
}

void rules_plan(Reader *reader, PlanKeys *keys)
{
  PlanSpec *plan = &keys->plan;
  if (!reader->present[B_plan]) {
    nics_in_cluster(reader, plan);
    return;
  }
  rules_system(reader, keys);
  spread_stages(reader, keys);
  layers_per_stage(reader, plan);
  list_per_group(reader, K_plan_attention_gpus, K_plan_attention_stages, plan->n_attention_gpus,
                 plan->attention_stages);
  list_per_group(reader, K_plan_ffn_gpus, K_plan_ffn_stages, plan->n_ffn_gpus, plan->ffn_stages);
  if (rule_good(reader, K_plan_attention_gpus) && rule_good(reader, K_plan_ffn_gpus)) {
    gpus_in_cluster(reader, plan);
  }
  ranks_with_experts(reader, plan);
  nics_in_cluster(reader, plan);
  pretend_nodes(reader, plan);
}
