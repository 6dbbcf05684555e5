#include "codegen/plan_shape.h"

#include <string.h>

#include "codegen/plan_stage.h"

/* ---- one shape on another's placement ---- */

static bool runs_in_order(Arena *arena, Diag *diag, const Spec *spec, Plan *plan)
{
  StageIn in = stage_in(plan);
  const char *why = stage_refuses(arena, &in);
  if (!why && plan->chunks > plan->shape->seq) {
    why = arena_printf(arena, "%d chunks of %lld positions", plan->chunks, (long long)plan->shape->seq);
  }
  if (why) {
    diag_error(diag, plan->shape->span, "no plan: %s", why);
    return false;
  }
  Arena *scratch = arena_new();
  StageOrder *orders = stage_orders(scratch, &in);
  for (int g = 0; g < plan->n_groups; g++) {
    int deepest = plan_deepest_run(spec, plan, g);
    plan->groups[g].live = stage_live(&orders[g]) * deepest;
    plan->groups[g].work = stage_work(plan->system, stage_owed(&orders[g]), deepest);
  }
  arena_free(scratch);
  return true;
}

/* Until a schedule says better. */
static double rough_step_ns(const Spec *spec, const Plan *plan)
{
  return plan_bottleneck_ns(spec, plan) * plan->micro_batches;
}

void plan_copy_groups(Arena *arena, Plan *plan)
{
  PlanGroup *own = arena_new_array(arena, PlanGroup, (size_t)plan->n_groups);
  memcpy(own, plan->groups, (size_t)plan->n_groups * sizeof *own);
  plan->groups = own;
}

bool plan_for_shape(Arena *arena, Diag *diag, const Spec *spec, const Plan *base, int shape, Plan *out)
{
  Spec *view = arena_new_of(arena, Spec);
  *view = *spec;
  view->plan.system = base->system;
  *out = *base;
  out->shape = &spec->shapes[shape];
  plan_copy_groups(arena, out);
  if (out->replicas > out->shape->global_batch) {
    diag_error(diag, out->shape->span, "no plan: %d replicas share a step of %d sequences: some replica would get none",
               out->replicas, out->shape->global_batch);
    return false;
  }
  plan_set_batch(out);
  bool stages = plan_system_colocated(out->system);
  if (stages ? !runs_in_order(arena, diag, view, out) : !plan_set_in_flight(diag, view, out)) {
    return false;
  }
  cost_memory(view, out);
  if (stages) {
    plan_set_stage_sides(view, out);
  } else {
    plan_set_sides(view, out);
  }
  plan_set_step(view, out, rough_step_ns(view, out));
  return plan_check(diag, spec, out);
}

/* ---- comparing plans ---- */

static bool same_ints(const int *a, const int *b, int n)
{
  return memcmp(a, b, (size_t)n * sizeof *a) == 0;
}

bool plan_same_placement(const Spec *spec, const Plan *a, const Plan *b)
{
  int layers = spec->model.layers;
  if (a->replicas != b->replicas || a->replica_ranks != b->replica_ranks || a->n_groups != b->n_groups ||
      a->ways != b->ways || a->ranks_per_node != b->ranks_per_node ||
      !same_ints(a->att_group, b->att_group, a->ways * (layers + 1)) ||
      !same_ints(a->ffn_group, b->ffn_group, a->ways * layers) ||
      !same_ints(a->combine_group, b->combine_group, a->ways * layers)) {
    return false;
  }
  if (!same_ints(a->seat, b->seat, a->replica_ranks)) {
    return false;
  }
  for (int g = 0; g < a->n_groups; g++) {
    const PlanGroup *x = &a->groups[g], *y = &b->groups[g];
    if (x->role != y->role || x->first_rank != y->first_rank || x->n_ranks != y->n_ranks) {
      return false;
    }
  }
  return true;
}

bool plan_same_layout(const Spec *spec, const Plan *a, const Plan *b)
{
  return plan_same_placement(spec, a, b) && a->system == b->system && a->chunks == b->chunks &&
         a->n_stages == b->n_stages && a->mb_group == b->mb_group && a->dedup == b->dedup &&
         a->recompute == b->recompute && a->optimizer_shard == b->optimizer_shard && a->n_nics == b->n_nics &&
         same_ints(a->nic_ranks, b->nic_ranks, a->n_nics);
}

/* ---- memory of the program ---- */

bool plan_share_memory(Plan *plans, int n)
{
  bool fits = true;
  for (int g = 0; g < plans[0].n_groups; g++) {
    MemoryTerms all = plans[0].groups[g].memory;
    all.buffers = 0;
    for (int i = 0; i < n; i++) {
      const MemoryTerms *m = &plans[i].groups[g].memory;
      all.buffers += m->buffers;
      if (m->activations + m->workspace > all.activations + all.workspace) {
        all.activations = m->activations;
        all.workspace = m->workspace;
      }
    }
    all.total = all.weights + all.gradients + all.optimizer + all.activations + all.buffers + all.workspace;
    fits = fits && all.total <= all.limit;
    for (int i = 0; i < n; i++) {
      plans[i].groups[g].memory = all;
    }
  }
  return fits;
}
