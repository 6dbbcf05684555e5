/* A timeline of a large step has more ops than a page can hold or an eye tell apart. Neighbours are then joined over
   gaps below a limit, if they are of one class or the later one is shorter than the limit itself; the limit doubles
   until few enough rectangles are left. What is joined has the class of its longest op. */
#include "codegen/timeline.h"

#include <stdlib.h>

static const struct {
  const char *name, *colour;
} classes[DRAW_COUNT] = {
    [DRAW_FORWARD] = {"forward", "#4f83e6"},      [DRAW_HEAD] = {"head and loss", "#8a63d2"},
    [DRAW_DGRAD] = {"input gradient", "#2f9e68"}, [DRAW_WGRAD] = {"weight gradient", "#94d0ab"},
    [DRAW_UPDATE] = {"optimizer", "#8d949e"},     [DRAW_MESSAGE] = {"dispatch, combine", "#e39a4f"},
    [DRAW_PIPE] = {"stage to stage", "#d45d79"},  [DRAW_EXCHANGE] = {"gradients, weights", "#bfb6a8"},
};

DrawClass draw_class(const MoeOp *op)
{
  switch ((MoeOpKind)op->kind) {
  case MOE_OP_EMBED_FWD:
  case MOE_OP_ATT_FWD:
  case MOE_OP_ATT_AGAIN:
  case MOE_OP_FFN_FWD:
  case MOE_OP_JOIN_FWD:
    return DRAW_FORWARD;
  case MOE_OP_HEAD:
    return DRAW_HEAD;
  case MOE_OP_JOIN_DGRAD:
  case MOE_OP_FFN_DGRAD:
  case MOE_OP_ATT_DGRAD:
    return DRAW_DGRAD;
  case MOE_OP_FFN_WGRAD:
  case MOE_OP_ATT_WGRAD:
  case MOE_OP_EMBED_WGRAD:
    return DRAW_WGRAD;
  case MOE_OP_SEND:
  case MOE_OP_RECV:
    return op->edge == MOE_EDGE_PIPE || op->edge == MOE_EDGE_PIPE_B ? DRAW_PIPE
           : op->mb < 0                                             ? DRAW_EXCHANGE
                                                                    : DRAW_MESSAGE;
  case MOE_OP_RELAY:
  case MOE_OP_NODE_REDUCE:
    return DRAW_MESSAGE;
  default:
    return DRAW_UPDATE;
  }
}

const char *draw_colour(DrawClass c)
{
  return classes[c].colour;
}

const char *draw_name(DrawClass c)
{
  return classes[c].name;
}

int draw_lane(const MoeOp *op)
{
  return op->stream == MOE_STREAM_SEND ? LANE_SEND : op->stream == MOE_STREAM_RECV ? LANE_RECV : LANE_COMPUTE;
}

static int by_begin(const void *a, const void *b)
{
  const DrawRect *x = a, *y = b;
  if (x->begin != y->begin) {
    return x->begin < y->begin ? -1 : 1;
  }
  return (x->end > y->end) - (x->end < y->end);
}

/* Rects of one lane; ops of no length are left out. Returns how many. */
static int collect(const SchedGroup *group, int lane, DrawRect *rects)
{
  int n = 0;
  for (int i = 0; i < group->n_ops; i++) {
    const MoeOp *op = &group->ops[i];
    if (draw_lane(op) == lane && group->end_ns[i] > group->start_ns[i]) {
      rects[n++] = (DrawRect){.begin = group->start_ns[i],
                              .end = group->end_ns[i],
                              .kind = (uint8_t)draw_class(op),
                              .n = 1,
                              .layer = op->layer,
                              .mb = op->mb};
    }
  }
  return n;
}

/* Joins neighbours over gaps below `gap`. `to` may be `from`; NULL only counts. */
static int join(const DrawRect *from, int n, int64_t gap, DrawRect *to)
{
  int kept = 0;
  DrawRect last = {0};
  int64_t of_class[DRAW_COUNT] = {0}, busy = 0; /* in `last` */
  for (int i = 0; i < n; i++) {
    DrawRect r = from[i];
    int64_t ns = r.end - r.begin;
    if (kept > 0 && gap > 0 && r.begin - last.end < gap && (r.kind == last.kind || ns < gap || busy < gap)) {
      last.end = r.end > last.end ? r.end : last.end;
      last.n += r.n;
      last.layer = -1;
      last.mb = -1;
    } else {
      for (int k = 0; k < DRAW_COUNT; k++) {
        of_class[k] = 0;
      }
      last = r;
      busy = 0;
      kept++;
    }
    busy += ns;
    of_class[r.kind] += ns;
    last.kind = of_class[r.kind] > of_class[last.kind] ? r.kind : last.kind;
    if (to) {
      to[kept - 1] = last;
    }
  }
  return kept;
}

void timeline_join(Arena *arena, DrawLane *full, int most, Timeline *t)
{
  int n_lanes = t->n_groups * LANES, all = 0;
  t->lanes = arena_new_array(arena, DrawLane, (size_t)n_lanes + 1);
  for (int i = 0; i < n_lanes; i++) {
    if (full[i].n > 1) {
      qsort(full[i].rects, (size_t)full[i].n, sizeof *full[i].rects, by_begin);
    }
    all += full[i].n;
  }
  for (int64_t gap = t->step_ns / 50000 + 1; all > most && gap < t->step_ns; gap += gap / 4 + 1) {
    t->joined_ns = gap;
    all = 0;
    for (int i = 0; i < n_lanes; i++) {
      all += join(full[i].rects, full[i].n, gap, NULL);
    }
  }
  for (int i = 0; i < n_lanes; i++) {
    t->lanes[i].n = join(full[i].rects, full[i].n, t->joined_ns, full[i].rects);
    t->lanes[i].rects = arena_new_array(arena, DrawRect, (size_t)t->lanes[i].n + 1);
    for (int k = 0; k < t->lanes[i].n; k++) {
      t->lanes[i].rects[k] = full[i].rects[k];
    }
  }
}

void timeline_of(Arena *arena, const Plan *plan, const Schedule *sched, int most, Timeline *t)
{
  int n_lanes = sched->n_groups * LANES;
  *t = (Timeline){.n_groups = sched->n_groups, .step_ns = sched->step_ns};
  t->names = (char(*)[16])arena_array(arena, (size_t)sched->n_groups + 1, sizeof *t->names);
  Arena *scratch = arena_new();
  DrawLane *full = arena_new_array(scratch, DrawLane, (size_t)n_lanes + 1);
  for (int i = 0; i < n_lanes; i++) {
    const SchedGroup *group = &sched->groups[i / LANES];
    full[i].rects = arena_new_array(scratch, DrawRect, (size_t)group->n_ops + 1);
    full[i].n = collect(group, i % LANES, full[i].rects);
  }
  timeline_join(arena, full, most, t);
  for (int g = 0; g < sched->n_groups; g++) {
    const PlanGroup *group = &plan->groups[g];
    snprintf(t->names[g], sizeof t->names[g], "%s%s%d", group->role & PLAN_A ? "A" : "",
             group->role & PLAN_F ? "F" : "", group->index);
  }
  arena_free(scratch);
}
