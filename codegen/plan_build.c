/* From an allocation to a plan: groups, ranks, NICs, layer tables, memory. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "codegen/cost_terms.h"
#include "codegen/plan_int.h"
#include "runtime/moe_layout.h"

int side_ranks(const Side *side, int group)
{
  return side->list ? side->list[group] : side->n;
}

int side_total(const Side *side)
{
  int n = 0;
  for (int g = 0; g < side->p; g++) {
    n += side_ranks(side, g);
  }
  return n;
}

Nodes plan_nodes(const Spec *spec)
{
  const ClusterSpec *c = &spec->cluster;
  Nodes n = {.ranks = c->gpus, .count = c->nodes, .nics = c->nics, .total = c->nodes * c->gpus};
  int fake = spec->plan.ranks_per_node;
  if (fake > 0 && fake != c->gpus) {
    n.ranks = fake < n.total ? fake : n.total;
    n.count = n.total / n.ranks;
    n.nics = (int)((int64_t)c->nics * n.ranks / c->gpus);
    n.nics = n.nics == 0 && c->nics > 0 ? 1 : n.nics;
  }
  return n;
}

int plan_default_nics(const Nodes *nodes, int ranks)
{
  int n = (int)((int64_t)nodes->nics * ranks / nodes->ranks);
  return n == 0 && nodes->nics > 0 ? 1 : n;
}

int plan_moe_layers(const Spec *spec)
{
  return spec->model.layers - spec->model.dense.layers;
}

bool plan_shard_allowed(const Spec *spec, OptShard shard)
{
  OptShard pin = spec->plan.optimizer_shard;
  return pin == shard || (pin == OPT_SHARD_AUTO && shard != OPT_SHARD_NONE);
}

int plan_pinned_stages(const Spec *spec, bool att)
{
  const PlanSpec *pin = &spec->plan;
  int stages = att ? pin->attention_stages : pin->ffn_stages, sizes = att ? pin->n_attention_gpus : pin->n_ffn_gpus;
  if (pin->placement == PLACE_COLOCATED && stages == 0 && sizes <= 1) { /* the other side's pins hold for both */
    stages = att ? pin->ffn_stages : pin->attention_stages;
    sizes = att ? pin->n_ffn_gpus : pin->n_attention_gpus;
  }
  return stages > 0 ? stages : sizes > 1 ? sizes : 0;
}

int layer_ffn(const Spec *spec, int layer, int p_ffn, bool colocated)
{
  return (colocated ? layer : layer - spec->model.dense.layers) % p_ffn;
}

int plan_att_seqs(const Plan *plan, const PlanGroup *group)
{
  return (int)moe_part_max(plan->mb_seqs, group->n_ranks);
}

int plan_ffn_experts(const Spec *spec, const PlanGroup *group)
{
  return (int)moe_part_max(spec->model.moe.experts, group->n_ranks);
}

static void place_groups(Arena *arena, const Choice *choice, Plan *plan)
{
  bool both = choice->place == PLACE_COLOCATED;
  plan->n_groups = choice->att.p + (both ? 0 : choice->ffn.p);
  plan->groups = arena_new_array(arena, PlanGroup, (size_t)plan->n_groups);
  int rank = 0;
  for (int i = 0; i < plan->n_groups; i++) {
    bool att = i < choice->att.p;
    PlanGroup *g = &plan->groups[i];
    g->id = i;
    g->role = both ? PLAN_A | PLAN_F : att ? PLAN_A : PLAN_F;
    g->index = att ? i : i - choice->att.p;
    g->n_ranks = att ? side_ranks(&choice->att, g->index) : side_ranks(&choice->ffn, g->index);
    g->first_rank = rank;
    rank += g->n_ranks;
  }
  plan->replica_ranks = rank;
}

static bool spread(const Choice *choice, const Plan *plan)
{
  return choice->place == PLACE_MIXED && plan->replica_ranks > plan->ranks_per_node;
}

/* GPUs in the order of ranks, or in a mixed plan over several nodes one by one to the side that is behind its share: so
   every node has its part of both sides, and those of a side ascend. */
static void seat_ranks(Arena *arena, const Choice *choice, Plan *plan)
{
  int n = plan->replica_ranks;
  int64_t att = side_total(&choice->att), given = 0;
  plan->seat = arena_new_array(arena, int, (size_t)n);
  for (int64_t seat = 0; seat < n; seat++) {
    bool mine = (seat + 1) * att / n > given;
    plan->seat[!spread(choice, plan) ? seat : mine ? given : att + seat - given] = (int)seat;
    given += mine;
  }
}

/* Rank of the replica that is number `i` among the ranks of a side. */
static int rank_of_side(const PlanGroup *groups, int i)
{
  int g = 0;
  while (i >= groups[g].n_ranks) {
    i -= groups[g++].n_ranks;
  }
  return groups[g].first_rank + i;
}

static int by_value(const void *a, const void *b)
{
  return *(const int *)a - *(const int *)b;
}

/* First ranks of a side's NICs. A side with all NICs of its nodes owns them alone, and each node's NICs serve the ranks
   on that node; otherwise NICs are spread evenly over the ranks. */
static void place_side_nics(const PlanGroup *g, const Side *s, const Nodes *cluster, Plan *plan)
{
  int total = side_total(s), per = cluster->ranks;
  int nodes = (total + per - 1) / per;
  bool whole = s->nics == nodes * cluster->nics;
  int parts = whole ? nodes : 1;
  for (int node = 0; node < parts; node++) {
    int64_t first = whole ? (int64_t)node * per : 0;
    int64_t ranks = whole && total - first > per ? per : total - first;
    int64_t nics = s->nics / parts;
    for (int64_t k = 0; k < nics; k++) {
      plan->nic_ranks[plan->n_nics++] = rank_of_side(g, (int)(first + k * ranks / nics));
    }
  }
}

/* A mixed side has an even part of its NICs on every node, and they serve its ranks there. */
static void spread_side_nics(PlanGroup *g, const Side *s, Plan *plan)
{
  int total = side_total(s), nodes = (int)moe_part_max(plan->replica_ranks, plan->ranks_per_node);
  for (int i = 0; i < s->p; i++) {
    g[i].nic_share = INFINITY;
  }
  for (int first = g->first_rank, end = first; first < g->first_rank + total; first = end) {
    int node = plan_node_of(plan, first);
    while (end < g->first_rank + total && plan_node_of(plan, end) == node) {
      end++;
    }
    int64_t nics = moe_part_size(s->nics, nodes, node);
    for (int64_t k = 0; k < nics; k++) {
      plan->nic_ranks[plan->n_nics++] = first + (int)(k * (end - first) / nics);
    }
    for (int i = 0; i < s->p; i++) {
      bool here = g[i].first_rank < end && g[i].first_rank + g[i].n_ranks > first;
      g[i].nic_share = here ? fmin(g[i].nic_share, (double)nics / (end - first)) : g[i].nic_share;
    }
  }
}

static void place_nics(Arena *arena, const Spec *spec, const Choice *choice, Plan *plan)
{
  Nodes cluster = plan_nodes(spec);
  bool both = choice->place == PLACE_COLOCATED;
  plan->nic_ranks = arena_new_array(arena, int, (size_t)(choice->att.nics + choice->ffn.nics) + 1);
  for (int side = 0; side < (both ? 1 : 2); side++) {
    const Side *s = side == 0 ? &choice->att : &choice->ffn;
    PlanGroup *g = plan->groups + (side == 0 ? 0 : choice->att.p);
    int first = plan->n_nics;
    if (spread(choice, plan)) {
      spread_side_nics(g, s, plan);
    } else {
      place_side_nics(g, s, &cluster, plan);
    }
    for (int i = 0, k = first; i < s->p && s->nics > 0; i++) { /* a side's NICs and its groups ascend alike */
      bool own_first = k < plan->n_nics && plan->nic_ranks[k] == g[i].first_rank; /* else it shares an earlier one */
      for (; k < plan->n_nics && plan->nic_ranks[k] < g[i].first_rank + g[i].n_ranks; k++) {
        g[i].nics++;
      }
      g[i].nics += !own_first;
      g[i].nic_share = spread(choice, plan) ? g[i].nic_share : (double)s->nics / (double)side_total(s);
    }
  }
  qsort(plan->nic_ranks, (size_t)plan->n_nics, sizeof(int), by_value);
}

bool plan_aligned(const Plan *plan)
{
  int ranks = plan->replica_ranks, per = plan->ranks_per_node;
  return plan->replicas == 1 || ranks * plan->replicas <= per || ranks % per == 0 || per % ranks == 0;
}

static int last_node(const Plan *plan, const PlanGroup *g)
{
  return plan_node_of(plan, g->first_rank + g->n_ranks - 1);
}

static bool on_node(const Plan *plan, const PlanGroup *g, int node)
{
  return plan_node_of(plan, g->first_rank) == node && last_node(plan, g) == node;
}

/* Relays pay as soon as two ranks of an FFN group share a node that a row would have to enter from outside. */
static Dedup choose_dedup(const Spec *spec, const Plan *plan)
{
  if (spec->plan.dedup != DEDUP_AUTO) {
    return spec->plan.dedup;
  }
  if (!plan_aligned(plan) || plan->chunks > 1) { /* one op table serves all replicas, and nodes would cut them
                                                    differently; relays do not know chunks */
    return DEDUP_RANK;
  }
  for (int w = 0; w < plan->ways; w++) {
    for (int l = spec->model.dense.layers; l < spec->model.layers; l++) {
      const PlanGroup *f = &plan->groups[plan_ffn(spec, plan, w, l)];
      const PlanGroup *a = &plan->groups[plan_att(spec, plan, w, l)];
      const PlanGroup *c = &plan->groups[plan_combine(spec, plan, w, l)];
      int first = plan_node_of(plan, f->first_rank), last = last_node(plan, f);
      if (f->n_ranks > last - first + 1 && (first != last || !on_node(plan, a, first) || !on_node(plan, c, first))) {
        return DEDUP_NODE;
      }
    }
  }
  return DEDUP_RANK;
}

/* Disaggregated: a layer's output goes to the next layer's attention group, that of the last layer to the head's. */
static void deal_layers(Arena *arena, const Spec *spec, bool both, Plan *plan)
{
  int layers = spec->model.layers;
  plan->ways = 1;
  plan->att_group = layer_deal(arena, spec, plan->shape, plan->p_att, both);
  plan->ffn_group = arena_new_array(arena, int, (size_t)layers);
  plan->combine_group = arena_new_array(arena, int, (size_t)layers);
  for (int l = 0; l < layers; l++) {
    plan->ffn_group[l] = spec_layer_is_dense(spec, l)
                             ? plan->att_group[l]
                             : (both ? 0 : plan->p_att) + layer_ffn(spec, l, plan->p_ffn, both);
    plan->combine_group[l] = plan->att_group[l + 1];
  }
}

/* Colocated: runs of layers, and a layer's output stays where it is. */
static void cut_layers(Arena *arena, const Spec *spec, int stages, Plan *plan)
{
  int layers = spec->model.layers;
  plan->ways = plan_system_ways(plan->system);
  plan->n_stages = stages;
  plan->att_group = arena_new_array(arena, int, (size_t)(plan->ways * (layers + 1)));
  plan->ffn_group = arena_new_array(arena, int, (size_t)(plan->ways * layers));
  plan->combine_group = plan->ffn_group;
  for (int w = 0; w < plan->ways; w++) {
    for (int l = 0; l < layers; l++) {
      int g = plan_stage_group(plan, w, (int)moe_part_of(layers, stages, l));
      plan->att_group[w * (layers + 1) + l] = plan->ffn_group[w * layers + l] = g;
    }
    plan->att_group[w * (layers + 1) + layers] = plan->att_group[w * (layers + 1) + layers - 1];
  }
}

void plan_set_batch(Plan *plan)
{
  int most = 0;
  const ShapeSpec *shape = plan->shape;
  int64_t batch = moe_part_max(shape->global_batch, plan->replicas);
  for (int g = 0; g < plan->p_att; g++) {
    most = plan->groups[g].n_ranks > most ? plan->groups[g].n_ranks : most;
  }
  int64_t seqs = (int64_t)shape->micro_batch * most;
  plan->mb_seqs = (int)(seqs < batch ? seqs : batch);
  plan->micro_batches = (int)moe_part_max(batch, plan->mb_seqs);
  plan->in_flight = plan->micro_batches;
}

void plan_build(Arena *arena, const Spec *spec, const ShapeSpec *shape, const Choice *choice, Plan *plan)
{
  bool stages = plan_system_colocated(spec->plan.system);
  memset(plan, 0, sizeof *plan);
  plan->shape = shape;
  plan->system = spec->plan.system == SYSTEM_AUTO ? SYSTEM_AF_PIPE : spec->plan.system;
  plan->placement = choice->place;
  plan->replicas = choice->replicas;
  plan->p_att = choice->att.p;
  plan->p_ffn = choice->ffn.p;
  plan->chunks = stages ? choice->chunks : 1;
  plan->mb_group = stages ? choice->mb_group : 0;
  plan->ranks_per_node = spec->plan.ranks_per_node > 0 ? spec->plan.ranks_per_node : spec->cluster.gpus;
  place_groups(arena, choice, plan);
  seat_ranks(arena, choice, plan);
  place_nics(arena, spec, choice, plan);
  if (stages) {
    cut_layers(arena, spec, choice->stages, plan);
  } else {
    deal_layers(arena, spec, choice->place == PLACE_COLOCATED, plan);
  }
  plan->dedup = choose_dedup(spec, plan);
  plan->recompute = choice->recompute;
  plan->optimizer_shard = choice->shard;
  plan_set_batch(plan);
}

/* ---- times of a plan ---- */

double plan_bottleneck_ns(const Spec *spec, const Plan *plan)
{
  double most = 0;
  int layers = spec->model.layers;
  for (int i = 0; i < plan->n_groups; i++) {
    const PlanGroup *g = &plan->groups[i];
    double busy = 0;
    for (int l = 0; l < layers; l++) {
      if (plan->att_group[l] == g->id) {
        busy += (double)(cost_op_ns(spec, plan, MOE_OP_ATT_FWD, l) + cost_op_ns(spec, plan, MOE_OP_ATT_AGAIN, l) +
                         cost_op_ns(spec, plan, MOE_OP_ATT_DGRAD, l) + cost_op_ns(spec, plan, MOE_OP_ATT_WGRAD, l));
      }
      if (plan->ffn_group[l] == g->id && !spec_layer_is_dense(spec, l)) {
        busy += (double)(cost_op_ns(spec, plan, MOE_OP_FFN_FWD, l) + cost_op_ns(spec, plan, MOE_OP_FFN_DGRAD, l) +
                         cost_op_ns(spec, plan, MOE_OP_FFN_WGRAD, l));
      }
    }
    busy += plan->att_group[layers] == g->id ? (double)cost_op_ns(spec, plan, MOE_OP_HEAD, layers) : 0;
    most = busy > most ? busy : most;
  }
  return most;
}

int plan_in_flight_need(const Spec *spec, const Plan *plan)
{
  static const MoeOpKind ops[] = {MOE_OP_ATT_FWD, MOE_OP_FFN_FWD, MOE_OP_FFN_DGRAD, MOE_OP_ATT_DGRAD};
  static const MoeEdge edges[] = {MOE_EDGE_DISPATCH, MOE_EDGE_COMBINE, MOE_EDGE_COMBINE_B, MOE_EDGE_DISPATCH_B};
  static const MoeEdge relays[] = {MOE_EDGE_FORWARD, MOE_EDGE_GATHER, MOE_EDGE_GATHER_B, MOE_EDGE_FORWARD_B};
  double path = (double)cost_op_ns(spec, plan, MOE_OP_HEAD, spec->model.layers);
  for (int l = 0; l < spec->model.layers; l++) {
    bool dense = spec_layer_is_dense(spec, l);
    for (int i = 0; i < 4; i++) {
      bool ffn = ops[i] == MOE_OP_FFN_FWD || ops[i] == MOE_OP_FFN_DGRAD;
      path += dense && ffn ? 0 : (double)cost_op_ns(spec, plan, ops[i], l);
      path += dense ? 0 : (double)cost_msg(spec, plan, edges[i], l).ns;
      path += !dense && cost_relayed(plan, l) ? (double)cost_msg(spec, plan, relays[i], l).ns : 0;
    }
  }
  double need = ceil(path / plan_bottleneck_ns(spec, plan)) + 1;
  return need < plan->micro_batches ? (int)need : plan->micro_batches;
}
