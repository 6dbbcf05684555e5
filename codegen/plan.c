/* The planner's front: pins are checked against each other and the cluster, the search finds an allocation, and the
   plan made from it is completed (micro-batches in flight by memory, times) and checked without the search's help. */
#include <math.h>
#include <string.h>
#include <time.h>

#include "codegen/arith.h"
#include "codegen/plan_int.h"
#include "lang/spec_keys.h"
#include "runtime/moe_layout.h"

/* ---- what is missing ---- */

static void explain(Diag *diag, const Spec *spec, const Shortage *s)
{
  const GpuSpec *gpu = &spec->cluster.gpu;
  static const double gib = 1024.0 * 1024 * 1024;
  if (!s->any) {
    diag_error(diag, plan_span(spec, NULL),
               "no plan: no allocation keeps both sides within %d nodes of %d GPUs under these pins",
               plan_nodes(spec).count, plan_nodes(spec).ranks);
    diag_note(diag, plan_span(spec, NULL), "smallest change: leave one of replicas, stages or GPUs to the planner");
    return;
  }
  double need = (double)s->need / gib, have = (double)gpu->memory / gib;
  diag_error(diag, spec_span(spec, "gpu", "memory"),
             "no plan: GPU memory is %.4g GiB, but the leanest allocation needs %.4g GiB on its fullest %s rank "
             "(%.4g GiB too little)",
             have, need, plan_role_name(s->role), need - have);
  diag_note(diag, plan_span(spec, NULL),
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

/* Bytes on the fullest rank of a group if it had so many saved slots on each side. */
static int64_t need_with(const Spec *spec, const PlanGroup *g, MemIn in, int live)
{
  in.live = live;
  return memory_need(spec, &in, g->role);
}

/* The most slots that fit, up to `most`; 0: not even one. */
static int slots_that_fit(const Spec *spec, const Plan *plan, const PlanGroup *g, int most)
{
  MemIn in = plan_mem_in(spec, plan, g, 1);
  int fit = 0, not = most + 1;
  while (not -fit > 1) {
    int middle = fit == 0 && not > most ? most : fit + (not -fit) / 2;
    bool fits = need_with(spec, g, in, middle) <= spec->cluster.gpu.memory;
    fit = fits ? middle : fit;
    not = fits ? not : middle;
  }
  return fit;
}

/* Of the side that has more of them; 1 for the head alone. */
static int most_layers(const Spec *spec, const Plan *plan, int group)
{
  int att = plan_layers(spec, plan, group, PLAN_A), ffn = plan_layers(spec, plan, group, PLAN_F);
  return att > ffn ? att : ffn > 0 ? ffn : 1;
}

bool plan_save(const Spec *spec, Plan *plan, int group, int64_t bytes)
{
  PlanGroup *g = &plan->groups[group];
  int layers = most_layers(spec, plan, group);
  MemIn in = plan_mem_in(spec, plan, g, 1);
  int64_t most = need_with(spec, g, in, g->live) - bytes;
  while (g->live >= layers && need_with(spec, g, in, g->live) > most) {
    g->live--;
  }
  int whole = g->live / layers, least = spec->plan.in_flight < plan->micro_batches ? spec->plan.in_flight : 1;
  plan->in_flight = whole < plan->in_flight ? whole : plan->in_flight;
  return plan->in_flight >= least && plan->in_flight >= 1;
}

/* Slots for twice as many micro-batches as would keep the busiest group busy if none ever waited for another, or for
   the pinned number of them; of each group as many as its memory holds. */
bool plan_set_in_flight(Diag *diag, const Spec *spec, Plan *plan)
{
  int pinned = spec->plan.in_flight, want = pinned > 0 ? pinned : 2 * plan_in_flight_need(spec, plan);
  want = want < plan->micro_batches ? want : plan->micro_batches;
  int cap = want, of_tight = 0;
  PlanGroup *tight = NULL;
  for (int i = 0; i < plan->n_groups; i++) {
    PlanGroup *g = &plan->groups[i];
    int layers = most_layers(spec, plan, i);
    g->live = slots_that_fit(spec, plan, g, want * layers);
    if (g->live / layers < cap) {
      cap = g->live / layers;
      tight = g;
      of_tight = layers;
    }
  }
  plan->in_flight = cap;
  if (cap < (pinned > 0 ? want : 1)) {
    int least = pinned > 0 ? want : 1;
    MemIn in = plan_mem_in(spec, plan, tight, 1);
    int64_t need = need_with(spec, tight, in, least * of_tight), have = spec->cluster.gpu.memory;
    diag_error(
        diag, plan_span(spec, pinned > 0 ? "in_flight" : NULL),
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

/* Roofline of the two sides for one layer and micro-batch, forward: compute or the busiest port, whichever is more. */
void plan_set_sides(const Spec *spec, Plan *plan)
{
  int l = spec->model.dense.layers;
  MsgCost dispatch = cost_msg(spec, plan, MOE_EDGE_DISPATCH, l), combine = cost_msg(spec, plan, MOE_EDGE_COMBINE, l);
  plan->t_att_ns = (double)max64(cost_op_ns(spec, plan, MOE_OP_ATT_FWD, l), max64(dispatch.src_ns, combine.dst_ns));
  plan->t_ffn_ns = (double)max64(cost_op_ns(spec, plan, MOE_OP_FFN_FWD, l), max64(dispatch.dst_ns, combine.src_ns));
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
    diag_error(diag, plan_span(spec, "dedup"),
               "dedup = node needs replicas that lie alike on the nodes, but a replica has %d ranks and a node %d",
               ranks, per);
    return false;
  }
  return true;
}

/* Groups, memory and times of one allocation of a disaggregated system. */
static bool complete(Arena *arena, Diag *diag, const Spec *spec, const ShapeSpec *shape, const Found *found, Plan *plan,
                     bool *infeasible)
{
  *infeasible = false;
  plan_build(arena, spec, shape, &found->choice, plan);
  if (!check_node_pin(diag, spec, plan)) {
    return false;
  }
  *infeasible = true;
  if (!plan_set_in_flight(diag, spec, plan)) {
    return false;
  }
  cost_memory(spec, plan);
  plan_set_sides(spec, plan);
  plan_set_step(spec, plan, found->choice.estimate);
  plan->solver.name = found->pinned ? "pinned" : "glpk";
  plan->solver.status = !found->proved ? "nodes" : spec->plan.gap > 0 && !found->pinned ? "gap" : "optimal";
  plan->solver.gap = found->pinned ? 0 : found->gap;
  plan->solver.ms = found->ms;
  *infeasible = false;
  return plan_check(diag, spec, plan);
}

/* A list of groups that are all alike says no more than their number and one size. */
static void shorten_list(const int *list, int *n, int *stages)
{
  for (int i = 1; i < *n; i++) {
    if (list[i] != list[0]) {
      return;
    }
  }
  if (*n > 1) {
    *stages = *n;
    *n = 1;
  }
}

static int disaggregated(Arena *arena, Diag *diag, Spec *spec, const ShapeSpec *shape, Plan *plans, int most,
                         bool *infeasible)
{
  Shortage shortage;
  PlanSpec *pin = &spec->plan;
  *infeasible = false;
  if (!plan_check_pins(diag, spec, shape)) {
    return 0;
  }
  shorten_list(pin->attention_gpus, &pin->n_attention_gpus, &pin->attention_stages);
  shorten_list(pin->ffn_gpus, &pin->n_ffn_gpus, &pin->ffn_stages);
  *infeasible = true;
  if (!plan_check_cluster(diag, spec)) {
    return 0;
  }
  Arena *scratch = arena_new();
  Found *found = arena_new_array(scratch, Found, (size_t)most);
  int n = plan_search(scratch, spec, shape, found, most, &shortage), done = 0;
  if (n == 0) {
    explain(diag, spec, &shortage);
  }
  while (done < n && complete(arena, diag, spec, shape, &found[done], &plans[done], infeasible)) {
    done++;
  }
  arena_free(scratch);
  return done;
}

int plan_candidates(Arena *arena, Diag *diag, const Spec *spec, int shape, SystemKind system, Plan *plans, int most,
                    bool *infeasible)
{
  Spec *view = arena_new_of(arena, Spec); /* the spec with what the system itself pins */
  *view = *spec;
  view->plan.system = system;
  *infeasible = false;
  if (plan_system_colocated(system)) {
    return plan_colocated(arena, diag, view, &spec->shapes[shape], plans, most, infeasible);
  }
  if (system == SYSTEM_AFD) {
    if (!plan_check_afd(diag, spec)) {
      return 0;
    }
    view->plan.attention_stages = view->plan.ffn_stages = 1;
  }
  return disaggregated(arena, diag, view, &spec->shapes[shape], plans, most, infeasible);
}

bool plan_solve(Arena *arena, Diag *diag, const Spec *spec, int shape, SystemKind system, Plan *plan, bool *infeasible)
{
  return plan_candidates(arena, diag, spec, shape, system, plan, 1, infeasible) > 0;
}

double plan_now_ms(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static const struct {
  const char *name;
  bool colocated;
  int ways;
} systems[] = {
#define SYSTEM(id, name, colocated, ways, doc) {name, colocated, ways},
#include "lang/systems.def"
#undef SYSTEM
};

const char *plan_system_name(SystemKind system)
{
  return system < SYSTEM_COUNT ? systems[system].name : "auto";
}

bool plan_system_colocated(SystemKind system)
{
  return system < SYSTEM_COUNT && systems[system].colocated;
}

int plan_system_ways(SystemKind system)
{
  return system < SYSTEM_COUNT ? systems[system].ways : 1;
}

const char *plan_placement_name(Placement placement)
{
  return key_rows[K_plan_placement].words.words[placement];
}

const char *plan_dedup_name(Dedup dedup)
{
  return key_rows[K_plan_dedup].words.words[dedup];
}

const char *plan_recompute_name(Recompute recompute)
{
  return key_rows[K_plan_recompute].words.words[recompute];
}

const char *plan_shard_name(OptShard shard)
{
  return key_rows[K_plan_optimizer_shard].words.words[shard];
}

const char *plan_role_letters(int role)
{
  return role == PLAN_A ? "A" : role == PLAN_F ? "F" : "AF";
}

const char *plan_role_name(int role)
{
  return role == PLAN_A ? "attention" : role == PLAN_F ? "FFN" : "attention and FFN";
}

int plan_nics(const Plan *plan, int role)
{
  int n = 0;
  for (int k = 0; k < plan->n_nics; k++) {
    for (int i = 0; i < plan->n_groups; i++) {
      const PlanGroup *g = &plan->groups[i];
      int rank = plan->nic_ranks[k] - g->first_rank;
      n += (g->role & role) && rank >= 0 && rank < g->n_ranks;
    }
  }
  return n;
}

int plan_node_of(const Plan *plan, int rank)
{
  int own = rank % plan->replica_ranks;
  return (int)(((int64_t)rank - own + plan->seat[own]) / plan->ranks_per_node);
}

int plan_node_begin(const Plan *plan, const PlanGroup *g, int replica, int node)
{
  int first = replica * plan->replica_ranks + g->first_rank, low = 0, high = g->n_ranks;
  while (low < high) {
    int middle = (low + high) / 2;
    if (plan_node_of(plan, first + middle) < node) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

int plan_way(const Plan *plan, int mb)
{
  return moe_way(plan->ways, plan->micro_batches, mb);
}

int plan_att(const Spec *spec, const Plan *plan, int way, int layer)
{
  return plan->att_group[way * (spec->model.layers + 1) + layer];
}

int plan_ffn(const Spec *spec, const Plan *plan, int way, int layer)
{
  return plan->ffn_group[way * spec->model.layers + layer];
}

int plan_layers(const Spec *spec, const Plan *plan, int group, int side)
{
  int n = 0;
  for (int l = 0; l < spec->model.layers; l++) {
    n += side == PLAN_A ? plan_att(spec, plan, 0, l) == group
                        : !spec_layer_is_dense(spec, l) && plan_ffn(spec, plan, 0, l) == group;
  }
  return n;
}

int plan_saved(const Spec *spec, const Plan *plan, int group, int side)
{
  int layers = plan_layers(spec, plan, group, side), live = plan->groups[group].live;
  int most = live > 0 ? plan->micro_batches * layers : plan->in_flight * layers;
  return live > 0 && live < most ? live : most;
}

int plan_combine(const Spec *spec, const Plan *plan, int way, int layer)
{
  return plan->combine_group[way * spec->model.layers + layer];
}

bool plan_piped(const Spec *spec, const Plan *plan, int way, int layer)
{
  return layer < spec->model.dense.layers ||
         plan_combine(spec, plan, way, layer) != plan_att(spec, plan, way, layer + 1);
}

int plan_stage_group(const Plan *plan, int way, int stage)
{
  int p = plan->n_groups;
  if (plan->system == SYSTEM_DUALPIPEV) {
    return stage < p ? stage : 2 * p - 1 - stage;
  }
  return way ? p - 1 - stage : stage % p;
}
