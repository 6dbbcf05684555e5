/* A plan as a table for people and as JSON for tools. */
#include <jansson.h>
#include <string.h>

#include "codegen/plan_explain.h"
#include "codegen/plan_int.h"
#include "lang/printed.h"

static bool has_layer(const Spec *spec, const Plan *plan, const PlanGroup *g, int layer)
{
  for (int w = 0; w < plan->ways; w++) {
    if (((g->role & PLAN_A) && plan_att(spec, plan, w, layer) == g->id) ||
        ((g->role & PLAN_F) && plan_ffn(spec, plan, w, layer) == g->id && !spec_layer_is_dense(spec, layer))) {
      return true;
    }
  }
  return false;
}

static bool has_head(const Spec *spec, const Plan *plan, const PlanGroup *g)
{
  bool has = false;
  for (int w = 0; w < plan->ways; w++) {
    has = has || plan_att(spec, plan, w, spec->model.layers) == g->id;
  }
  return has && (g->role & PLAN_A);
}

/* ---- table ---- */

static void print_bytes(FILE *out, int64_t bytes)
{
  static const char *const units[] = {"B  ", "KiB", "MiB", "GiB", "TiB"};
  double n = (double)bytes;
  int u = 0;
  while (n >= 1024 && u < 4) {
    n /= 1024;
    u++;
  }
  fprintf(out, " %6.*f %s", n < 10 ? 2 : n < 100 ? 1 : 0, n, units[u]);
}

static void print_time(FILE *out, double ns)
{
  if (ns < 1e3) {
    fprintf(out, "%.0f ns", ns);
  } else if (ns < 1e6) {
    fprintf(out, "%.1f us", ns / 1e3);
  } else if (ns < 1e9) {
    fprintf(out, "%.2f ms", ns / 1e6);
  } else {
    fprintf(out, "%.2f s", ns / 1e9);
  }
}

/* Layers of a group: "0 2 4 6", with an ellipsis where there are many. */
static void print_layers(const Spec *spec, const Plan *plan, const PlanGroup *g, FILE *out)
{
  int n = 0, last = -1, shown = 0;
  for (int l = 0; l < spec->model.layers; l++) {
    n += has_layer(spec, plan, g, l);
    last = has_layer(spec, plan, g, l) ? l : last;
  }
  for (int l = 0; l < spec->model.layers; l++) {
    if (!has_layer(spec, plan, g, l)) {
      continue;
    }
    if (n <= 6 || shown < 3 || l == last) {
      fprintf(out, "%s%d", shown ? " " : "", l);
    } else if (shown == 3) {
      fprintf(out, " ..");
    }
    shown++;
  }
  if (has_head(spec, plan, g)) {
    fprintf(out, shown ? " head" : "head");
  }
  if (n) {
    fprintf(out, " (%d)", n);
  }
}

/* And what binds: the compute or the network of the group that a micro-batch takes longest. */
static void print_times(const Spec *spec, const Plan *plan, FILE *out)
{
  Pace slow = plan_pace(spec, plan, PLAN_A | PLAN_F);
  fprintf(out, "per layer and micro-batch, forward: T_a ");
  print_time(out, plan->t_att_ns);
  fprintf(out, ", T_f ");
  print_time(out, plan->t_ffn_ns);
  fprintf(out, "\nbinds: %s %s", plan_role_name(plan->groups[slow.group].role), pace_binds(slow));
  double fullest = 0;
  const PlanGroup *tight = NULL;
  for (int i = 0; i < plan->n_groups; i++) {
    double share = (double)plan->groups[i].memory.total / (double)plan->groups[i].memory.limit;
    tight = share > fullest ? &plan->groups[i] : tight;
    fullest = share > fullest ? share : fullest;
  }
  if (tight) {
    fprintf(out, "; fullest memory: %s%d at %.0f %%", plan_role_letters(tight->role), tight->index, 100 * fullest);
  }
  fprintf(out, "\n");
}

static void print_total(const Plan *plan, FILE *out)
{
  int ranks = plan->replicas * plan->replica_ranks;
  fprintf(out, "predicted: step ");
  print_time(out, plan->step_ns);
  fprintf(out, ", %.0f tokens/s (%.1f per GPU), MFU %.1f %%\n", plan->tokens_per_s, plan->tokens_per_s / ranks,
          100 * plan->mfu);
}

/* Groups, tokens and micro-batches. */
static void print_head(const Spec *spec, const Plan *plan, FILE *out)
{
  static const char *const dedups[] = {
      [DEDUP_RANK] = "rank", [DEDUP_NODE] = "node", [DEDUP_FLAT] = "expert", [DEDUP_AUTO] = "auto"};
  static const char *const shards[] = {[OPT_SHARD_HOLDERS] = "",
                                       [OPT_SHARD_NONE] = "; the whole optimizer on every holder",
                                       [OPT_SHARD_ALL] = "; optimizer state on all ranks",
                                       [OPT_SHARD_AUTO] = ""};
  const ShapeSpec *shape = plan->shape;
  int ranks = plan->replicas * plan->replica_ranks;
  fprintf(out, "plan of %s for shape %s (seq %lld, micro_batch %d, global_batch %d)\n", spec->model.name, shape->name,
          (long long)shape->seq, shape->micro_batch, shape->global_batch);
  fprintf(out, "%s, %s: %d replica%s x %d ranks = %d of %d GPUs; ", plan_system_name(plan->system),
          plan_placement_name(plan->placement), plan->replicas, plan->replicas == 1 ? "" : "s", plan->replica_ranks,
          ranks, spec->cluster.nodes * spec->cluster.gpus);
  if (plan->n_stages > 0) {
    fprintf(out, "%d pipeline rank%s of %d GPU%s, the layers in %d run%s\n", plan->n_groups,
            plan->n_groups == 1 ? "" : "s", plan->groups[0].n_ranks, plan->groups[0].n_ranks == 1 ? "" : "s",
            plan->n_stages, plan->n_stages == 1 ? "" : "s");
  } else {
    fprintf(out, "%d attention and %d FFN group%s per replica\n", plan->p_att, plan->p_ffn,
            plan->p_att + plan->p_ffn == 2 ? "" : "s");
  }
  fprintf(out, "dispatch once per %s%s; %d micro-batch%s of %d sequence%s, ", dedups[plan->dedup],
          plan->chunks > 1 ? " in chunks" : "", plan->micro_batches, plan->micro_batches == 1 ? "" : "es",
          plan->mb_seqs, plan->mb_seqs == 1 ? "" : "s");
  if (plan->n_stages > 0) {
    int live = 0;
    for (int i = 0; i < plan->n_groups; i++) {
      live = plan->groups[i].live > live ? plan->groups[i].live : live;
    }
    fprintf(out, "a rank keeps at most %d pair%s of layer and micro-batch", live, live == 1 ? "" : "s");
  } else {
    fprintf(out, "room for %d in flight", plan->in_flight);
  }
  if (plan->recompute != RECOMPUTE_NONE) {
    fprintf(out, "; %s recomputation", plan_recompute_name(plan->recompute));
  }
  fprintf(out, "%s\n\n", shards[plan->optimizer_shard]);
}

/* "3": every node has so many ranks of a side; "3-4": as many or between. */
static void print_on_nodes(const Plan *plan, int role, FILE *out)
{
  int least = 0, most = 0, on = 0, node = -1;
  for (int rank = 0; rank <= plan->replica_ranks; rank++) {
    const PlanGroup *g = plan->groups;
    while (rank < plan->replica_ranks && rank >= g->first_rank + g->n_ranks) {
      g++;
    }
    bool mine = rank < plan->replica_ranks && (g->role & role);
    int here = mine ? plan_node_of(plan, rank) : -1;
    if (here != node && node >= 0) {
      least = least == 0 || on < least ? on : least;
      most = on > most ? on : most;
    }
    on = here == node ? on + 1 : 1;
    node = here;
  }
  fprintf(out, least == most ? "%d" : "%d-%d", least, most);
}

static void print_nodes(const Plan *plan, FILE *out)
{
  if (plan->placement != PLACE_MIXED || plan->replica_ranks <= plan->ranks_per_node) {
    return;
  }
  fprintf(out, "on each node: ");
  print_on_nodes(plan, PLAN_A, out);
  fprintf(out, " attention and ");
  print_on_nodes(plan, PLAN_F, out);
  fprintf(out, " FFN GPUs; NICs of all nodes: %d and %d\n\n", plan_nics(plan, PLAN_A), plan_nics(plan, PLAN_F));
}

void plan_print(const Spec *spec, const Plan *plan, FILE *out)
{
  print_head(spec, plan, out);
  print_nodes(plan, out);
  fprintf(out, "%-6s %-9s %4s  %-28s %10s %10s %10s %10s %10s %10s %10s\n", "group", "ranks", "NICs", "layers",
          "weights", "gradients", "optimizer", "activat.", "buffers", "workspace", "total");
  for (int i = 0; i < plan->n_groups; i++) {
    const PlanGroup *g = &plan->groups[i];
    char name[32], span[32];
    Printed layers;
    printed_open(&layers);
    print_layers(spec, plan, g, layers.to);
    fflush(layers.to);
    snprintf(name, sizeof name, "%s%d", plan_role_letters(g->role), g->index);
    snprintf(span, sizeof span, g->n_ranks > 1 ? "%d..%d" : "%d", g->first_rank, g->first_rank + g->n_ranks - 1);
    fprintf(out, "%-6s %-9s %4d  %-28s", name, span, g->nics, layers.text);
    printed_drop(&layers);
    const MemoryTerms *m = &g->memory;
    const int64_t terms[] = {m->weights, m->gradients, m->optimizer, m->activations,
                             m->buffers, m->workspace, m->total};
    for (size_t k = 0; k < sizeof terms / sizeof *terms; k++) {
      print_bytes(out, terms[k]);
    }
    fprintf(out, "\n");
  }
  fprintf(out, "memory is per rank, the fullest of its group; each GPU has");
  print_bytes(out, spec->cluster.gpu.memory);
  fprintf(out, "\n\n");
  print_times(spec, plan, out);
  print_total(plan, out);
  fprintf(out, "solver: %s, %s, gap %.2g %%", plan->solver.name, plan->solver.status, 100 * plan->solver.gap);
  if (plan->solver.ms > 0) {
    fprintf(out, ", %.0f ms", plan->solver.ms);
  }
  fprintf(out, "\n");
}

/* ---- JSON ---- */

static json_t *sizes(const Plan *plan, int role)
{
  json_t *list = json_array();
  for (int i = 0; i < plan->n_groups; i++) {
    if (plan->groups[i].role & role) {
      json_array_append_new(list, json_integer(plan->groups[i].n_ranks));
    }
  }
  return list;
}

static json_t *memory_json(const MemoryTerms *m)
{
  json_t *o = json_object();
  json_object_set_new(o, "weights", json_integer(m->weights));
  json_object_set_new(o, "gradients", json_integer(m->gradients));
  json_object_set_new(o, "optimizer", json_integer(m->optimizer));
  json_object_set_new(o, "activations", json_integer(m->activations));
  json_object_set_new(o, "buffers", json_integer(m->buffers));
  json_object_set_new(o, "workspace", json_integer(m->workspace));
  json_object_set_new(o, "total", json_integer(m->total));
  json_object_set_new(o, "limit", json_integer(m->limit));
  return o;
}

static json_t *group_json(const Spec *spec, const Plan *plan, const PlanGroup *g)
{
  json_t *o = json_object(), *ranks = json_array(), *layers = json_array();
  for (int r = 0; r < g->n_ranks; r++) {
    json_array_append_new(ranks, json_integer(g->first_rank + r));
  }
  for (int l = 0; l < spec->model.layers; l++) {
    if (has_layer(spec, plan, g, l)) {
      json_array_append_new(layers, json_integer(l));
    }
  }
  json_object_set_new(o, "id", json_integer(g->id));
  json_object_set_new(o, "role", json_string(plan_role_letters(g->role)));
  json_object_set_new(o, "index", json_integer(g->index));
  json_object_set_new(o, "ranks", ranks);
  if (plan->placement == PLACE_MIXED) {
    json_t *nodes = json_array();
    for (int r = 0; r < g->n_ranks; r++) {
      json_array_append_new(nodes, json_integer(plan_node_of(plan, g->first_rank + r)));
    }
    json_object_set_new(o, "nodes", nodes);
  }
  json_object_set_new(o, "layers", layers);
  json_object_set_new(o, "memory", memory_json(&g->memory));
  return o;
}

void plan_print_json(const Spec *spec, const Plan *plan, FILE *out)
{
  json_t *o = json_object(), *groups = json_array(), *solver = json_object();
  json_object_set_new(o, "version", json_integer(1));
  json_object_set_new(o, "shape", json_string(plan->shape->name));
  json_object_set_new(o, "system", json_string(plan_system_name(plan->system)));
  json_object_set_new(o, "replicas", json_integer(plan->replicas));
  json_object_set_new(o, "p_attention", json_integer(plan->p_att));
  json_object_set_new(o, "p_ffn", json_integer(plan->p_ffn));
  json_object_set_new(o, "attention_gpus", sizes(plan, PLAN_A));
  json_object_set_new(o, "ffn_gpus", sizes(plan, PLAN_F));
  json_object_set_new(o, "attention_nics", json_integer(plan_nics(plan, PLAN_A)));
  json_object_set_new(o, "ffn_nics", json_integer(plan_nics(plan, PLAN_F)));
  json_object_set_new(o, "placement", json_string(plan_placement_name(plan->placement)));
  json_object_set_new(o, "micro_batches", json_integer(plan->micro_batches));
  json_object_set_new(o, "in_flight", json_integer(plan->in_flight));
  json_object_set_new(o, "recompute", json_string(plan_recompute_name(plan->recompute)));
  json_object_set_new(o, "optimizer_shard", json_string(plan_shard_name(plan->optimizer_shard)));
  json_object_set_new(o, "t_attention_ns", json_real(plan->t_att_ns));
  json_object_set_new(o, "t_ffn_ns", json_real(plan->t_ffn_ns));
  json_object_set_new(o, "step_ns", json_real(plan->step_ns));
  json_object_set_new(o, "tokens_per_s", json_real(plan->tokens_per_s));
  json_object_set_new(o, "mfu", json_real(plan->mfu));
  for (int i = 0; i < plan->n_groups; i++) {
    json_array_append_new(groups, group_json(spec, plan, &plan->groups[i]));
  }
  json_object_set_new(o, "groups", groups);
  json_object_set_new(solver, "name", json_string(plan->solver.name));
  json_object_set_new(solver, "status", json_string(plan->solver.status));
  json_object_set_new(solver, "gap", json_real(plan->solver.gap));
  json_object_set_new(solver, "ms", json_real(plan->solver.ms));
  json_object_set_new(o, "solver", solver);
  json_dumpf(o, out, JSON_INDENT(1) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(12));
  fputc('\n', out);
  json_decref(o);
}
