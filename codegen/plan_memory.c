/* What a finished plan needs in memory: the sizes that decide it, group by group. */
#include <stdlib.h>
#include <string.h>

#include "codegen/plan_int.h"
#include "runtime/moe_layout.h"

/* Groups that stand at the other end of one edge. */
typedef struct Peers {
  const Plan *plan;
  char *seen;
} Peers;

static int count(const Peers *p)
{
  int n = 0;
  for (int i = 0; i < p->plan->n_groups; i++) {
    n += p->seen[i];
    p->seen[i] = 0;
  }
  return n;
}

static int most_on_node(const Plan *plan, const PlanGroup *g)
{
  int most = 0, on = 0;
  for (int r = 0; r < g->n_ranks; r++) {
    int rank = g->first_rank + r;
    on = r > 0 && plan_node_of(plan, rank) == plan_node_of(plan, rank - 1) ? on + 1 : 1;
    most = on > most ? on : most;
  }
  return most;
}

static void grow(int *n, int value)
{
  *n = value > *n ? value : *n;
}

/* Layers of the group, and the most ranks at the other end of each kind of list. */
static void count_layers(const Spec *spec, const Plan *plan, const PlanGroup *g, MemIn *in)
{
  int layers = spec->model.layers;
  for (int w = 0; w < plan->ways; w++) {
    for (int l = 0; l < layers; l++) {
      bool dense = spec_layer_is_dense(spec, l), mine = plan_att(spec, plan, w, l) == g->id;
      const PlanGroup *f = &plan->groups[plan_ffn(spec, plan, w, l)];
      in->att_dense += mine && dense;
      in->att_moe += mine && !dense;
      in->ffn_layers += !dense && f == g;
      if (mine && !dense) {
        grow(&in->ffn_ranks, f->n_ranks);
      }
      if (!dense && plan_att(spec, plan, w, l + 1) == g->id && !plan_piped(spec, plan, w, l)) {
        grow(&in->n_src, plan->chunks * f->n_ranks);
        grow(&in->ffn_ranks, f->n_ranks);
      }
      if (!dense && plan_combine(spec, plan, w, l) == g->id && plan_piped(spec, plan, w, l)) {
        grow(&in->n_join, plan->chunks * f->n_ranks);
      }
      bool near = f == g || mine || plan_combine(spec, plan, w, l) == g->id;
      if (!dense && near && cost_relayed(plan, l)) {
        in->relayed = in->relayed || f == g;
        in->relays = true;
        grow(&in->node_ranks, most_on_node(plan, f));
      }
    }
    in->embed = in->embed || plan_att(spec, plan, w, 0) == g->id;
    in->head = in->head || plan_att(spec, plan, w, layers) == g->id;
  }
}

/* One receiving edge of the group: how many groups send it. `at` fills the sender of a layer in a way, or -1. */
typedef enum Inbound { IN_DISPATCH, IN_COMBINE, IN_DISPATCH_B, IN_COMBINE_B, IN_PIPE, IN_PIPE_B, IN_COUNT } Inbound;

static int sender(const Spec *spec, const Plan *plan, Inbound edge, int w, int l, int *receiver)
{
  int a = plan_att(spec, plan, w, l), f = plan_ffn(spec, plan, w, l), c = plan_combine(spec, plan, w, l);
  int next = plan_att(spec, plan, w, l + 1), last = spec_layer_is_dense(spec, l) ? a : c;
  bool dense = spec_layer_is_dense(spec, l), piped = plan_piped(spec, plan, w, l);
  switch (edge) {
  case IN_DISPATCH:
    *receiver = f;
    return dense ? -1 : a;
  case IN_DISPATCH_B:
    *receiver = a;
    return dense ? -1 : f;
  case IN_COMBINE:
    *receiver = c;
    return dense ? -1 : f;
  case IN_COMBINE_B:
    *receiver = f;
    return dense ? -1 : c;
  case IN_PIPE:
    *receiver = next;
    return piped ? last : -1;
  default:
    *receiver = last;
    return piped ? next : -1;
  }
}

static void count_peers(const Spec *spec, const Plan *plan, const PlanGroup *g, MemIn *in)
{
  char small[256], *seen = plan->n_groups <= (int)sizeof small ? small : calloc((size_t)plan->n_groups, 1);
  int *const into[IN_COUNT] = {
      [IN_DISPATCH] = &in->dispatch_from,   [IN_COMBINE] = &in->combine_from, [IN_DISPATCH_B] = &in->dispatch_b_from,
      [IN_COMBINE_B] = &in->combine_b_from, [IN_PIPE] = &in->pipe_from,       [IN_PIPE_B] = &in->pipe_b_from};
  if (!seen) {
    die("out of memory");
  }
  memset(seen, 0, (size_t)plan->n_groups);
  Peers p = {plan, seen};
  for (Inbound e = 0; e < IN_COUNT; e++) {
    for (int w = 0; w < plan->ways; w++) {
      for (int l = 0; l < spec->model.layers; l++) {
        int to, from = sender(spec, plan, e, w, l, &to);
        if (from >= 0 && to == g->id) {
          seen[from] = 1;
        }
      }
    }
    *into[e] = count(&p);
  }
  if (seen != small) {
    free(seen);
  }
}

int plan_under_way(const Spec *spec, const Plan *plan)
{
  int least = plan->micro_batches;
  for (int i = 0; i < plan->n_groups; i++) {
    MemIn in = plan_mem_in(spec, plan, &plan->groups[i], plan->in_flight);
    in.live = plan_saved(spec, plan, i, PLAN_A);
    int n = in.att_dense > 0 ? memory_under_way(&in) : least;
    least = n < least ? n : least;
  }
  return least;
}

MemIn plan_mem_in(const Spec *spec, const Plan *plan, const PlanGroup *g, int in_flight)
{
  int fewest = 0;
  MemIn in = {.seq = plan->shape->seq,
              .mb_seqs = plan->mb_seqs,
              .replicas = plan->replicas,
              .recompute = plan->recompute,
              .shard = plan->optimizer_shard,
              .chunks = plan->chunks,
              .ways = plan->ways,
              .micro_batches = plan->micro_batches,
              .total_ranks = plan->replicas * plan->replica_ranks,
              .in_flight = in_flight,
              .live = g->live,
              .work = g->work,
              .own_ranks = g->n_ranks,
              .node_ranks = 1};
  for (int i = 0; i < plan->n_groups; i++) {
    const PlanGroup *o = &plan->groups[i];
    if (o->role & PLAN_A) {
      grow(&in.att_ranks, o->n_ranks);
      fewest = fewest == 0 || o->n_ranks < fewest ? o->n_ranks : fewest;
    }
  }
  /* an FFN group's messages come from attention ranks with the most sequences */
  in.att_seqs = (int)moe_part_max(plan->mb_seqs, g->role == PLAN_F ? fewest : g->n_ranks);
  count_layers(spec, plan, g, &in);
  count_peers(spec, plan, g, &in);
  grow(&in.ffn_ranks, 1); /* a group of dense layers alone meets no FFN rank */
  if (g->role & PLAN_F) {
    grow(&in.ffn_ranks, g->n_ranks);
    in.experts = plan_ffn_experts(spec, g);
  }
  return in;
}

void cost_memory(const Spec *spec, Plan *plan)
{
  for (int i = 0; i < plan->n_groups; i++) {
    PlanGroup *g = &plan->groups[i];
    MemIn in = plan_mem_in(spec, plan, g, plan->in_flight);
    memory_terms(spec, &in, g->role, &g->memory);
  }
}
