/* Pins of the plan block against the system that it asks for. With `auto` every pin may stand: each system takes those
   that concern it. */
#include <inttypes.h>
#include <string.h>

#include "lang/spec_rules.h"

typedef struct SystemRow {
  const char *name;
  bool colocated;
} SystemRow;

static const SystemRow systems[SYSTEM_COUNT] = {
#define SYSTEM(id, name, colocated, ways, doc) {name, colocated},
#include "lang/systems.def"
#undef SYSTEM
};

bool system_is(SystemKind system, bool colocated)
{
  return system != SYSTEM_AUTO && systems[system].colocated == colocated;
}

static bool is_interleaved(SystemKind system)
{
  return system_is(system, true) && system != SYSTEM_DUALPIPE && system != SYSTEM_DUALPIPEV;
}

/* "af_pipe and afd" */
static const char *list_systems(Arena *arena, bool (*has)(SystemKind))
{
  int left = 0;
  for (int s = 0; s < SYSTEM_COUNT; s++) {
    left += has((SystemKind)s);
  }
  const char *text = "";
  for (int s = 0; s < SYSTEM_COUNT; s++) {
    if (has((SystemKind)s)) {
      left--;
      text = arena_printf(arena, "%s%s%s", text, systems[s].name, left == 0 ? "" : left == 1 ? " and " : ", ");
    }
  }
  return text;
}

static bool is_colocated(SystemKind system)
{
  return system_is(system, true);
}

static bool has_sides(SystemKind system)
{
  return system_is(system, false);
}

static bool is_tutel(SystemKind system)
{
  return system == SYSTEM_TUTEL;
}

/* Set, and not to `auto`. */
static bool is_pinned(const Reader *reader, const PlanKeys *keys, KeyId key)
{
  const KeyRow *row = &key_rows[key];
  int value;
  memcpy(&value, (const char *)keys + (row->type == TYPE_INTS ? row->second : row->offset), sizeof value);
  return rule_set(reader, key) && value > 0;
}

/* `key` is set although only systems that `has` it take it. One error; further rules about the key stay silent. */
static void belongs(Reader *reader, KeyId key, const PlanKeys *keys, bool (*has)(SystemKind), const char *instead)
{
  SystemKind system = keys->plan.system;
  if (system == SYSTEM_AUTO || has(system) || !is_pinned(reader, keys, key)) {
    return;
  }
  diag_error(reader->diag, rule_at(reader, key), "%s is a pin of %s, but schedule is %s%s", key_rows[key].name,
             list_systems(reader->arena, has), systems[system].name, instead);
  rule_note(reader, K_plan_schedule);
  reader->state[key] = KEY_BAD;
}

static void pins_of_others(Reader *reader, const PlanKeys *keys)
{
  belongs(reader, K_plan_attention_stages, keys, has_sides, ": set stages");
  belongs(reader, K_plan_ffn_stages, keys, has_sides, ": set stages");
  belongs(reader, K_plan_attention_gpus, keys, has_sides, ": set expert_parallel");
  belongs(reader, K_plan_ffn_gpus, keys, has_sides, ": set expert_parallel");
  belongs(reader, K_plan_attention_nics, keys, has_sides, ", where every GPU does both");
  belongs(reader, K_plan_ffn_nics, keys, has_sides, ", where every GPU does both");
  belongs(reader, K_plan_in_flight, keys, has_sides, ", whose order says how many there are");
  belongs(reader, K_plan_expert_parallel, keys, is_colocated, ": set attention_gpus and ffn_gpus");
  belongs(reader, K_plan_virtual_stages, keys, is_interleaved, "");
  belongs(reader, K_plan_mb_group, keys, is_interleaved, "");
  belongs(reader, K_plan_chunks, keys, is_tutel, "");
}

static void placement(Reader *reader, const PlanSpec *plan)
{
  Placement place = plan->placement;
  if (!rule_set(reader, K_plan_placement) || place == PLACE_AUTO) {
    return;
  }
  const char *word = key_rows[K_plan_placement].words.words[place];
  bool wrong =
      system_is(plan->system, true) ? place != PLACE_COLOCATED : plan->system == SYSTEM_AFD && place == PLACE_COLOCATED;
  if (wrong) {
    diag_error(reader->diag, rule_at(reader, K_plan_placement), "placement = %s, but every GPU of %s does %s", word,
               systems[plan->system].name, plan->system == SYSTEM_AFD ? "either attention or experts" : "both sides");
    rule_note(reader, K_plan_schedule);
  }
}

/* One group on each side. */
static void afd_stages(Reader *reader, const PlanKeys *keys)
{
  const struct {
    KeyId key;
    int stages;
  } pins[] = {{K_plan_stages, keys->stages},
              {K_plan_attention_stages, keys->plan.attention_stages},
              {K_plan_ffn_stages, keys->plan.ffn_stages}};
  for (size_t i = 0; i < sizeof pins / sizeof pins[0]; i++) {
    if (rule_set(reader, pins[i].key) && pins[i].stages > 1) {
      diag_error(reader->diag, rule_at(reader, pins[i].key),
                 "afd has one attention group and one FFN group that hold all layers, but %s is %d",
                 key_rows[pins[i].key].name, pins[i].stages);
      rule_note(reader, K_plan_schedule);
    }
  }
}

static void expert_parallel(Reader *reader, const PlanKeys *keys)
{
  const PlanSpec *plan = &keys->plan;
  const ClusterSpec *cluster = &reader->spec->cluster;
  if (!is_pinned(reader, keys, K_plan_expert_parallel)) {
    return;
  }
  if (rule_set(reader, K_moe_experts) && plan->expert_parallel > reader->spec->model.moe.experts) {
    diag_error(reader->diag, rule_at(reader, K_plan_expert_parallel),
               "expert_parallel (%d) exceeds experts (%d): some ranks would hold none", plan->expert_parallel,
               reader->spec->model.moe.experts);
    rule_note(reader, K_moe_experts);
    return;
  }
  int64_t have = (int64_t)cluster->nodes * cluster->gpus;
  int64_t stages = system_is(plan->system, true) && keys->stages > 0 ? keys->stages : 1;
  int64_t replicas = plan->replicas > 0 ? plan->replicas : 1;
  if (have > 0 && plan->expert_parallel * stages * replicas > have) {
    diag_error(reader->diag, rule_at(reader, K_plan_expert_parallel),
               "the pins ask for %" PRId64 " GPUs (expert_parallel %d, pipeline ranks %" PRId64 ", replicas %" PRId64
               "), but the cluster has %" PRId64,
               plan->expert_parallel * stages * replicas, plan->expert_parallel, stages, replicas, have);
    rule_note(reader, K_cluster_nodes);
  }
}

static void virtual_stages(Reader *reader, const PlanKeys *keys)
{
  int layers = reader->spec->model.layers;
  int64_t ranks = keys->stages > 0 ? keys->stages : 1;
  int64_t stages = ranks * keys->plan.virtual_stages;
  if (rule_set(reader, K_plan_virtual_stages) && is_interleaved(keys->plan.system) &&
      rule_set(reader, K_model_layers) && ranks <= layers && stages > layers) {
    diag_error(reader->diag, rule_at(reader, K_plan_virtual_stages),
               "%" PRId64 " virtual stages (pipeline ranks %" PRId64 " x virtual_stages %d) need as many layers, but "
               "layers is %d",
               stages, ranks, keys->plan.virtual_stages, layers);
    rule_note(reader, K_model_layers);
  }
}

void rules_system(Reader *reader, const PlanKeys *keys)
{
  const PlanSpec *plan = &keys->plan;
  if (!rule_good(reader, K_plan_schedule)) {
    return;
  }
  pins_of_others(reader, keys);
  placement(reader, plan);
  expert_parallel(reader, keys);
  virtual_stages(reader, keys);
  if (plan->system == SYSTEM_AFD) {
    afd_stages(reader, keys);
  }
  if (plan->system == SYSTEM_TUTEL && rule_set(reader, K_plan_chunks) && plan->chunks > 1 &&
      rule_set(reader, K_plan_dedup) && plan->dedup == DEDUP_NODE) {
    diag_error(reader->diag, rule_at(reader, K_plan_dedup),
               "dedup = node relays whole messages, but chunks is %d: set dedup = rank", plan->chunks);
    rule_note(reader, K_plan_chunks);
  }
}
