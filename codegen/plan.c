/* The planner's front: pins are checked against each other and the cluster, the search finds an allocation, and the
   plan made from it is completed (micro-batches in flight by memory, times) and checked without the search's help. */
#include <math.h>
#include <string.h>

#include "codegen/plan_int.h"
#include "runtime/moe_layout.h"

/* ---- pins ---- */

static Span pin_span(const Spec *spec, const char *key)
{
  return spec_span(spec, "plan", key);
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
      diag_error(diag, pin_span(spec, key), "%s: group %d has %d GPUs; every group needs at least 1", key, i, list[i]);
      return false;
    }
  }
  if (n > 1 && stages > 0 && stages != n) {
    diag_error(diag, pin_span(spec, key), "%s lists %d groups, but %s = %d", key, n, stages_key, stages);
    diag_note(diag, pin_span(spec, stages_key), "give one number for all groups, or one per group");
    return false;
  }
  return true;
}

static bool check_stages(Diag *diag, const Spec *spec, const char *key, int stages, int layers, const char *what)
{
  if (stages > layers) {
    diag_error(diag, pin_span(spec, key), "%s = %d, but the model has %d %s: some group would have none", key, stages,
               layers, what);
    return false;
  }
  return true;
}

static bool check_colocated(Diag *diag, const Spec *spec)
{
  const PlanSpec *pin = &spec->plan;
  if (pin->attention_stages && pin->ffn_stages && pin->attention_stages != pin->ffn_stages) {
    diag_error(diag, pin_span(spec, "ffn_stages"),
               "placement = colocated has the same groups on both sides, but attention_stages = %d and ffn_stages = %d",
               pin->attention_stages, pin->ffn_stages);
    return false;
  }
  for (int i = 0; i < pin->n_ffn_gpus && pin->n_attention_gpus; i++) {
    int a = pin->attention_gpus[pin->n_attention_gpus > 1 && i < pin->n_attention_gpus ? i : 0];
    if (a != pin->ffn_gpus[i] || (pin->n_attention_gpus != pin->n_ffn_gpus)) {
      diag_error(diag, pin_span(spec, "ffn_gpus"),
                 "placement = colocated has the same groups on both sides, but group %d has attention_gpus = %d and "
                 "ffn_gpus = %d",
                 i, a, pin->ffn_gpus[i]);
      return false;
    }
  }
  return true;
}

/* Contradictions between pins, and between a pin and the model or the batch. */
static bool check_pins(Diag *diag, const Spec *spec, const ShapeSpec *shape)
{
  const PlanSpec *pin = &spec->plan;
  int layers = spec->model.layers, experts = spec->model.moe.experts;
  bool ok = check_stages(diag, spec, "attention_stages", plan_pinned_stages(spec, true), layers, "layers");
  ok &= check_stages(diag, spec, "ffn_stages", plan_pinned_stages(spec, false), plan_moe_layers(spec), "MoE layers");
  ok &= check_list(diag, spec, "attention_gpus", pin->attention_gpus, pin->n_attention_gpus, "attention_stages",
                   pin->attention_stages);
  ok &= check_list(diag, spec, "ffn_gpus", pin->ffn_gpus, pin->n_ffn_gpus, "ffn_stages", pin->ffn_stages);
  for (int i = 0; i < pin->n_ffn_gpus; i++) {
    if (pin->ffn_gpus[i] > experts) {
      diag_error(diag, pin_span(spec, "ffn_gpus"),
                 "ffn_gpus = %d, but a layer has %d experts: some GPU would have none", pin->ffn_gpus[i], experts);
      ok = false;
    }
  }
  if (pin->replicas > shape->global_batch) {
    diag_error(diag, pin_span(spec, "replicas"),
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
static bool check_cluster(Diag *diag, const Spec *spec)
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
        diag, pin_span(spec, key),
        "no plan: %d replica%s of %d attention and %d FFN GPUs need %lld GPUs, the cluster has %d (%lld too few)",
        replicas, replicas == 1 ? "" : "s", att, ffn, (long long)ranks, nodes.total, (long long)ranks - nodes.total);
    int per = spec->cluster.gpus, need = (int)((ranks + per - 1) / per);
    if (!both && ranks == 2 && nodes.total == 1) {
      diag_note(diag, pin_span(spec, "placement"),
                "smallest change: a second GPU, or placement = colocated, where one GPU holds both sides");
    } else {
      diag_note(diag, spec_span(spec, "cluster", "nodes"), "smallest change: nodes = %d (of %d GPUs each)", need, per);
    }
    return false;
  }
  int nics = nodes.nics * nodes.count;
  if (pin->attention_nics + pin->ffn_nics > nics) {
    diag_error(diag, pin_span(spec, pin->attention_nics ? "attention_nics" : "ffn_nics"),
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

/* ---- what is missing ---- */

static void explain(Diag *diag, const Spec *spec, const Shortage *s)
{
  const GpuSpec *gpu = &spec->cluster.gpu;
  static const double gib = 1024.0 * 1024 * 1024;
  if (!s->any) {
    diag_error(diag, pin_span(spec, NULL),
               "no plan: no allocation keeps both sides within %d nodes of %d GPUs under these pins",
               plan_nodes(spec).count, plan_nodes(spec).ranks);
    diag_note(diag, pin_span(spec, NULL), "smallest change: leave one of replicas, stages or GPUs to the planner");
    return;
  }
  const char *who = s->role == PLAN_A ? "attention" : s->role == PLAN_F ? "FFN" : "attention and FFN";
  double need = (double)s->need / gib, have = (double)gpu->memory / gib;
  diag_error(diag, spec_span(spec, "gpu", "memory"),
             "no plan: GPU memory is %.4g GiB, but the leanest allocation needs %.4g GiB on its fullest %s rank "
             "(%.4g GiB too little)",
             have, need, who, need - have);
  diag_note(diag, pin_span(spec, NULL),
            "that is %d replica%s of %d x %d attention and %d x %d FFN GPUs, with %s in flight", s->replicas,
            s->replicas == 1 ? "" : "s", s->p_att, s->att_n, s->p_ffn, s->ffn_n,
            spec->plan.in_flight ? "the pinned number of micro-batches" : "one micro-batch");
  diag_note(diag, spec_span(spec, "gpu", "memory"), "smallest change: memory = %.0f MiB",
            ceil((double)s->need / 1048576));
  if (spec->model.moe.imbalance <= 0 && spec->model.moe.capacity <= 0 && (s->role & PLAN_F)) {
    diag_note(diag, spec_span(spec, "moe", "imbalance"),
              "or declare an imbalance: without one, every FFN rank has room for all tokens of a micro-batch");
  }
}

/* ---- completion ---- */

/* As many micro-batches in flight as keep the busiest group busy, if memory holds them. */
static bool set_in_flight(Diag *diag, const Spec *spec, Plan *plan)
{
  int pinned = spec->plan.in_flight, want = plan_in_flight_need(spec, plan), cap = plan->micro_batches;
  const PlanGroup *tight = NULL;
  for (int i = 0; i < plan->n_groups; i++) {
    MemIn in = plan_mem_in(spec, plan, &plan->groups[i], 1);
    int fits = memory_cap(spec, &in, plan->groups[i].role);
    tight = fits < cap ? &plan->groups[i] : tight;
    cap = fits < cap ? fits : cap;
  }
  plan->in_flight = pinned > 0   ? (pinned < plan->micro_batches ? pinned : plan->micro_batches)
                    : want < cap ? want
                                 : cap;
  if (plan->in_flight > cap || cap == 0) {
    int least = pinned > 0 ? plan->in_flight : 1;
    MemIn in = plan_mem_in(spec, plan, tight, least);
    int64_t need = memory_need(spec, &in, tight->role), have = spec->cluster.gpu.memory;
    diag_error(
        diag, pin_span(spec, pinned > 0 ? "in_flight" : NULL),
        "no plan: %d micro-batch%s in flight need%s %lld bytes on a rank of group %s%d, its GPU has %lld (%lld too "
        "few)",
        least, least == 1 ? "" : "es", least == 1 ? "s" : "", (long long)need, tight->role == PLAN_F ? "F" : "A",
        tight->index, (long long)have, (long long)(need - have));
    diag_note(diag, spec_span(spec, "gpu", "memory"), "smallest change: memory = %.0f MiB%s",
              ceil((double)need / 1048576), cap > 0 ? ", or a smaller in_flight" : "");
    return false;
  }
  return true;
}

static int64_t max3(int64_t a, int64_t b, int64_t c)
{
  return a > b ? (a > c ? a : c) : (b > c ? b : c);
}

/* Roofline of the two sides for one layer and micro-batch, forward: compute or the busiest port, whichever is more. */
static void set_sides(const Spec *spec, Plan *plan)
{
  int l = spec->model.dense.layers;
  MsgCost dispatch = cost_msg(spec, plan, MOE_EDGE_DISPATCH, l), combine = cost_msg(spec, plan, MOE_EDGE_COMBINE, l);
  plan->t_att_ns = (double)max3(cost_op_ns(spec, plan, MOE_OP_ATT_FWD, l), dispatch.src_ns, combine.dst_ns);
  plan->t_ffn_ns = (double)max3(cost_op_ns(spec, plan, MOE_OP_FFN_FWD, l), dispatch.dst_ns, combine.src_ns);
  if (cost_relayed(plan, l)) {
    MsgCost forward = cost_msg(spec, plan, MOE_EDGE_FORWARD, l), gather = cost_msg(spec, plan, MOE_EDGE_GATHER, l);
    plan->t_ffn_ns = fmax(plan->t_ffn_ns, (double)(forward.dst_ns + gather.dst_ns));
  }
}

void plan_set_step(const Spec *spec, Plan *plan, double step_ns)
{
  double tokens = (double)plan->shape->global_batch * (double)plan->shape->seq;
  double ranks = (double)plan->replicas * plan->replica_ranks;
  plan->step_ns = step_ns;
  plan->tokens_per_s = tokens / step_ns * 1e9;
  plan->mfu = plan->tokens_per_s * cost_flops_per_token(spec, plan->shape->seq) / (ranks * spec->cluster.gpu.flops);
}

static bool check_node_pin(Diag *diag, const Spec *spec, const Plan *plan)
{
  int per = plan->ranks_per_node, ranks = plan->replica_ranks;
  bool aligned = plan_aligned(plan);
  if (spec->plan.dedup == DEDUP_NODE && !aligned) {
    diag_error(diag, pin_span(spec, "dedup"),
               "dedup = node needs replicas that lie alike on the nodes, but a replica has %d ranks and a node %d",
               ranks, per);
    return false;
  }
  return true;
}

bool plan_solve(Arena *arena, Diag *diag, const Spec *spec, int index, Plan *plan, bool *infeasible)
{
  const ShapeSpec *shape = &spec->shapes[index];
  Arena *scratch;
  Found found;
  Shortage shortage;
  *infeasible = false;
  if (!check_pins(diag, spec, shape)) {
    return false;
  }
  *infeasible = true;
  if (!check_cluster(diag, spec)) {
    return false;
  }
  scratch = arena_new();
  bool ok = plan_search(scratch, spec, shape, &found, &shortage);
  if (!ok) {
    explain(diag, spec, &shortage);
    arena_free(scratch);
    return false;
  }
  plan_build(arena, spec, shape, &found.choice, plan);
  arena_free(scratch);
  if (!check_node_pin(diag, spec, plan)) {
    *infeasible = false;
    return false;
  }
  if (!set_in_flight(diag, spec, plan)) {
    return false;
  }
  cost_memory(spec, plan);
  set_sides(spec, plan);
  plan_set_step(spec, plan, found.choice.estimate);
  plan->solver.name = found.pinned ? "pinned" : "glpk";
  plan->solver.status = !found.proved ? "nodes" : spec->plan.gap > 0 && !found.pinned ? "gap" : "optimal";
  plan->solver.gap = found.pinned ? 0 : found.gap;
  plan->solver.ms = found.ms;
  *infeasible = false;
  return plan_check(diag, spec, plan);
}
