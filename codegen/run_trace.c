#include "codegen/run_trace.h"

#include <ctype.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "codegen/output.h"

enum { MOST_PROCESSES = 1 << 17 };
static const double most_us = 1e12; /* 12 days, so that sums of ns are numbers */

typedef struct Reader {
  Arena *arena;
  Diag *diag;
  const char *path;
  RunTrace *trace;
  int (*rooms)[LANES]; /* of the processes' lanes */
} Reader;

static bool wrong(Reader *r, size_t event, const char *what)
{
  diag_error(r->diag, (Span){0}, "%s: event %zu: %s", r->path, event + 1, what);
  return false;
}

static json_int_t pid_of(const json_t *event)
{
  const json_t *pid = json_object_get(event, "pid");
  json_int_t n = json_is_integer(pid) ? json_integer_value(pid) : -1;
  return n < MOST_PROCESSES ? n : -1;
}

/* "A0" or "rank 3 A0". */
static bool read_process(Reader *r, size_t at, const json_t *event)
{
  const char *name = json_string_value(json_object_get(json_object_get(event, "args"), "name"));
  json_int_t pid = pid_of(event);
  const char *blank = name ? strrchr(name, ' ') : NULL, *group = blank ? blank + 1 : name;
  size_t n = group ? strlen(group) : 0;
  if (pid < 0 || pid >= r->trace->n || n == 0 || n >= sizeof r->trace->processes->group) {
    return wrong(r, at, "a process without the name of a group: not a trace of moec");
  }
  for (size_t i = 0; i < n; i++) {
    if (!isalnum((unsigned char)group[i])) {
      return wrong(r, at, "the name of a group has a character that is neither letter nor digit");
    }
  }
  TraceProcess *p = &r->trace->processes[pid];
  memcpy(p->group, group, n + 1);
  p->rank = blank ? (int)pid : -1;
  return true;
}

/* The op of an event as far as drawing it needs; false: it is none of ours. */
static bool read_op(const json_t *event, MoeOp *op)
{
  const char *kind = json_string_value(json_object_get(event, "cat"));
  const char *name = json_string_value(json_object_get(event, "name"));
  const json_t *args = json_object_get(event, "args");
  json_int_t tid = json_integer_value(json_object_get(event, "tid"));
  *op = (MoeOp){.kind = MOE_OP_COUNT, .edge = MOE_EDGE_COUNT, .stream = (uint8_t)tid};
  for (int k = 0; kind && k < MOE_OP_COUNT; k++) {
    op->kind = strcmp(kind, moe_op_name((MoeOpKind)k)) == 0 ? (uint8_t)k : op->kind;
  }
  const char *edge = name ? strchr(name, ' ') : NULL;
  size_t n = edge ? strcspn(edge + 1, " ") : 0;
  for (int e = 0; edge && e < MOE_EDGE_COUNT; e++) {
    const char *known = moe_edge_name((MoeEdge)e);
    op->edge = strlen(known) == n && memcmp(edge + 1, known, n) == 0 ? (uint8_t)e : op->edge;
  }
  op->layer = (int16_t)json_integer_value(json_object_get(args, "layer"));
  op->mb = (int32_t)json_integer_value(json_object_get(args, "mb"));
  return op->kind < MOE_OP_COUNT && tid >= 0 && tid < MOE_STREAM_COUNT;
}

static bool read_event(Reader *r, size_t at, const json_t *event)
{
  RunTrace *t = r->trace;
  json_int_t pid = pid_of(event);
  double ts = json_number_value(json_object_get(event, "ts")), dur = json_number_value(json_object_get(event, "dur"));
  MoeOp op;
  if (pid < 0 || pid >= t->n || !t->processes[pid].group[0] || !read_op(event, &op)) {
    return wrong(r, at, "not an op of a process that is named: not a trace of moec");
  }
  if (!(ts >= 0 && ts <= most_us && dur >= 0 && dur <= most_us)) {
    return wrong(r, at,
                 arena_printf(r->arena, "begins at %g us and takes %g; both are from 0 to %g", ts, dur, most_us));
  }
  int lane = draw_lane(&op);
  DrawLane *l = &t->processes[pid].lanes[lane];
  DrawRect rect = {.begin = llround(ts * 1e3),
                   .end = llround((ts + dur) * 1e3),
                   .kind = (uint8_t)draw_class(&op),
                   .n = 1,
                   .layer = op.layer,
                   .mb = op.mb};
  t->step_ns = rect.end > t->step_ns ? rect.end : t->step_ns;
  t->kind_n[op.kind]++;
  l->rects = arena_grow(r->arena, l->rects, l->n, &r->rooms[pid][lane], sizeof *l->rects);
  l->rects[l->n++] = rect;
  return true;
}

static int ranks_of(const RunTrace *t, const char *group)
{
  int n = 0;
  for (int p = 0; p < t->n; p++) {
    n += strcmp(t->processes[p].group, group) == 0;
  }
  return n;
}

/* The times of ops, by kind. */
static void add_kinds(RunTrace *t, const json_t *events)
{
  Arena *scratch = arena_new();
  double *weights = arena_new_array(scratch, double, (size_t)t->n + 1);
  for (int p = 0; p < t->n; p++) {
    weights[p] = t->processes[p].group[0] ? 1.0 / ranks_of(t, t->processes[p].group) : 0;
  }
  size_t i;
  json_t *event;
  json_array_foreach(events, i, event)
  {
    MoeOp op;
    const char *phase = json_string_value(json_object_get(event, "ph"));
    if (phase && strcmp(phase, "X") == 0 && read_op(event, &op)) {
      t->kind_ns[op.kind] += json_number_value(json_object_get(event, "dur")) * 1e3 * weights[pid_of(event)];
    }
  }
  arena_free(scratch);
}

static bool read_events(Reader *r, const json_t *events)
{
  RunTrace *t = r->trace;
  size_t i;
  json_t *event;
  json_array_foreach(events, i, event)
  {
    int pid = (int)pid_of(event);
    t->n = pid >= t->n ? pid + 1 : t->n;
  }
  t->processes = arena_new_array(r->arena, TraceProcess, (size_t)t->n + 1);
  memset(t->processes, 0, ((size_t)t->n + 1) * sizeof *t->processes);
  r->rooms = arena_array(r->arena, (size_t)t->n + 1, sizeof *r->rooms);
  memset(r->rooms, 0, ((size_t)t->n + 1) * sizeof *r->rooms);
  for (int pass = 0; pass < 2; pass++) { /* names, then ops */
    json_array_foreach(events, i, event)
    {
      const char *phase = json_string_value(json_object_get(event, "ph"));
      const char *name = json_string_value(json_object_get(event, "name"));
      if (pass == 0 && name && strcmp(name, "process_name") == 0 && !read_process(r, i, event)) {
        return false;
      }
      if (pass == 1 && phase && strcmp(phase, "X") == 0 && !read_event(r, i, event)) {
        return false;
      }
    }
  }
  if (t->step_ns == 0) {
    diag_error(r->diag, (Span){0}, "%s: there are no ops in it", r->path);
    return false;
  }
  add_kinds(t, events);
  return true;
}

bool run_trace_read(Arena *arena, Diag *diag, const char *path, RunTrace *trace)
{
  *trace = (RunTrace){0};
  Reader r = {.arena = arena, .diag = diag, .path = path, .trace = trace};
  json_error_t error;
  json_t *root = json_load_file(path, 0, &error);
  if (!root) {
    diag_error(diag, (Span){0}, "%s:%d: %s", path, error.line, error.text);
    return false;
  }
  const json_t *events = json_object_get(root, "traceEvents");
  bool ok = json_is_array(events);
  if (!ok) {
    diag_error(diag, (Span){0}, "%s: it has no \"traceEvents\": not a Chrome trace", path);
  }
  ok = ok && read_events(&r, events);
  json_decref(root);
  return ok;
}

/* ---- one over the other ---- */

typedef struct Rows {
  const TraceProcess **list;
  int n;
} Rows;

/* The processes of a group; first: only the first of them. */
static void add_group(Rows *rows, const RunTrace *t, const char *group, bool first)
{
  for (int p = 0, found = 0; t && p < t->n; p++) {
    if (strcmp(t->processes[p].group, group) == 0 && !(first && found++)) {
      rows->list[rows->n++] = &t->processes[p];
    }
  }
}

static bool had_before(const RunTrace *t, int p)
{
  for (int q = 0; q < p; q++) {
    if (strcmp(t->processes[q].group, t->processes[p].group) == 0) {
      return true;
    }
  }
  return false;
}

static void order(Rows *rows, const RunTrace *measured, const RunTrace *predicted, bool first)
{
  const RunTrace *all[] = {predicted, measured};
  rows->n = 0;
  for (int k = 0; k < 2; k++) {
    for (int p = 0; all[k] && p < all[k]->n; p++) {
      const char *group = all[k]->processes[p].group;
      if (group[0] && !had_before(all[k], p) && !(k == 1 && predicted && ranks_of(predicted, group) > 0)) {
        add_group(rows, predicted, group, first);
        add_group(rows, measured, group, first);
      }
    }
  }
}

int run_trace_timeline(Arena *arena, const RunTrace *measured, const RunTrace *predicted, int most_rows, int most_rects,
                       Timeline *t)
{
  int all = (measured ? measured->n : 0) + (predicted ? predicted->n : 0);
  Arena *scratch = arena_new();
  Rows rows = {arena_new_array(scratch, const TraceProcess *, (size_t)all + 1), 0};
  order(&rows, measured, predicted, all > most_rows);
  rows.n = rows.n < most_rows ? rows.n : most_rows;
  int64_t ends[] = {measured ? measured->step_ns : 0, predicted ? predicted->step_ns : 0};
  *t = (Timeline){.n_groups = rows.n, .step_ns = ends[0] > ends[1] ? ends[0] : ends[1]};
  t->names = (char(*)[16])arena_array(arena, (size_t)rows.n + 1, sizeof *t->names);
  DrawLane *full = arena_new_array(scratch, DrawLane, (size_t)rows.n * LANES + 1);
  for (int i = 0; i < rows.n; i++) {
    const TraceProcess *p = rows.list[i];
    if (p->rank < 0) {
      snprintf(t->names[i], sizeof t->names[i], "%.8s model", p->group);
    } else {
      snprintf(t->names[i], sizeof t->names[i], "%.4s rank %u", p->group, (unsigned)p->rank % 100000u);
    }
    for (int l = 0; l < LANES; l++) {
      full[i * LANES + l] = p->lanes[l];
    }
  }
  timeline_join(arena, full, most_rects, t);
  arena_free(scratch);
  return all - rows.n;
}
