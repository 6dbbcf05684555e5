/* Runs a comparison: one evaluation at a time, of which only numbers and rectangles are kept. */
#include "codegen/compare.h"

#include <string.h>

#include "codegen/fastest.h"

const char *const compare_rules[] = {
    "every system trains the same sequences per step: the shape's global_batch",
    "each takes the settings that are fastest in simulation among those that fit its memory; pins of the spec hold for "
    "all that know them",
    "one cost model, one network and one simulator; no constant is a system's own",
    "dispatch addresses tokens as the spec's dedup says, of colocated systems as its colocated_dedup, if set",
    "every schedule passed the checker before it was timed",
    NULL};

CompareRow *compare_row(const Comparison *c, int point, int shape, int system)
{
  return &c->rows[((size_t)point * (size_t)c->n_shapes + (size_t)shape) * (size_t)c->n_systems + (size_t)system];
}

const CompareRow *compare_fastest(const Comparison *c, int point, int shape, const CompareRow *but)
{
  const CompareRow *best = NULL;
  for (int k = 0; k < c->n_systems; k++) {
    const CompareRow *row = compare_row(c, point, shape, k);
    if (row->ran && row != but && (!best || row->metrics.whole.step_ns < best->metrics.whole.step_ns)) {
      best = row;
    }
  }
  return best;
}

const char *compare_verdict(Arena *arena, const Comparison *c, int point, int shape)
{
  Contender list[SYSTEM_COUNT];
  for (int k = 0; k < c->n_systems; k++) {
    const CompareRow *row = compare_row(c, point, shape, k);
    list[k] = (Contender){row->system, row->ran ? row->metrics.whole.step_ns : 0};
  }
  return fastest_text(arena, list, c->n_systems);
}

/* "6,6,8" as "6 6 8", or one number where all are equal. */
static const char *sizes_of(Arena *arena, const Plan *plan, int role)
{
  const char *text = "";
  int first = 0, n = 0;
  bool same = true;
  for (int g = 0; g < plan->n_groups; g++) {
    if (plan->groups[g].role & role) {
      first = n++ ? first : plan->groups[g].n_ranks;
      same = same && plan->groups[g].n_ranks == first;
      text = arena_printf(arena, "%s%s%d", text, n > 1 ? "+" : "", plan->groups[g].n_ranks);
    }
  }
  return same ? arena_printf(arena, "%dx%d", n, first) : text;
}

/* What is kept and where, if not all activations on their ranks and the optimizer's state with the weights. */
static const char *memory_of(Arena *arena, const Plan *plan)
{
  static const char *const shards[] = {"", ", whole optimizer", ", optimizer on all", ""};
  const char *shard = shards[plan->optimizer_shard];
  return plan->recompute == RECOMPUTE_NONE
             ? shard
             : arena_printf(arena, ", %s recompute%s", plan_recompute_name(plan->recompute), shard);
}

static const char *settings_of(Arena *arena, const Plan *plan)
{
  const char *memory = memory_of(arena, plan);
  if (plan_system_colocated(plan->system)) {
    int stages = plan->n_stages / (plan->n_groups ? plan->n_groups : 1);
    const char *chunks = plan->chunks > 1 ? arena_printf(arena, ", %d chunks", plan->chunks) : "";
    return arena_printf(arena, "%d x PP%d EP%d VPP%d, %d mb%s%s", plan->replicas, plan->n_groups,
                        plan->groups[0].n_ranks, stages, plan->micro_batches, chunks, memory);
  }
  return arena_printf(arena, "%d x A %s F %s, %d mb, %d in flight%s", plan->replicas, sizes_of(arena, plan, PLAN_A),
                      sizes_of(arena, plan, PLAN_F), plan->micro_batches, plan->in_flight, memory);
}

static void run_row(Arena *arena, CompareRow *row, int shape, int timeline_rects)
{
  Evaluation e;
  evaluate_quietly(&row->point->spec, shape, row->system, &e);
  row->ran = e.ran;
  if (e.ran) {
    metrics_of(arena, &row->point->spec, &e.plan, &e.sched, &row->metrics);
    row->settings = settings_of(arena, &e.plan);
    row->plan = e.plan;
    if (timeline_rects > 0) {
      timeline_of(arena, &e.plan, &e.sched, timeline_rects, &row->timeline);
    }
    row->plan.groups = NULL;
    row->plan.att_group = row->plan.ffn_group = row->plan.combine_group = NULL;
    row->plan.nic_ranks = row->plan.seat = NULL;
  } else {
    row->reason = arena_strndup(arena, e.reason, strlen(e.reason));
  }
  evaluation_free(&e);
}

/* Rows of one point and shape against each other. */
static void relate(CompareRow *rows, int n)
{
  const CompareRow *megatron = NULL;
  for (int i = 0; i < n; i++) {
    megatron = rows[i].ran && rows[i].system == SYSTEM_MEGATRON ? &rows[i] : megatron;
  }
  for (int i = 0; i < n; i++) {
    double mine = rows[i].metrics.whole.step_ns, best = 0;
    for (int k = 0; k < n && rows[i].ran; k++) {
      double step = rows[k].metrics.whole.step_ns;
      best = k != i && rows[k].ran && (best == 0 || step < best) ? step : best;
    }
    rows[i].vs_best_other = rows[i].ran && mine > 0 ? best / mine : 0;
    rows[i].vs_megatron = rows[i].ran && megatron && mine > 0 ? megatron->metrics.whole.step_ns / mine : 0;
  }
}

void compare_run(Arena *arena, const SweepPoint *points, int n_points, const SystemKind *systems, int n_systems,
                 int timeline_rects, CompareProgress *progress, Comparison *c)
{
  *c = (Comparison){.points = points, .n_points = n_points, .systems = systems, .n_systems = n_systems};
  c->n_shapes = points[0].spec.n_shapes;
  int n = n_points * c->n_shapes * n_systems, done = 0;
  c->rows = arena_new_array(arena, CompareRow, (size_t)n + 1);
  for (int p = 0; p < n_points; p++) {
    for (int s = 0; s < c->n_shapes; s++) {
      for (int k = 0; k < n_systems; k++) {
        CompareRow *row = compare_row(c, p, s, k);
        *row = (CompareRow){.point = &points[p], .shape = &points[p].spec.shapes[s], .system = systems[k]};
        if (progress) {
          progress(row, done, n);
        }
        if (points[p].reason) {
          row->reason = points[p].reason;
        } else {
          run_row(arena, row, s, timeline_rects);
        }
        done++;
      }
      relate(compare_row(c, p, s, 0), n_systems);
    }
  }
}
