/* Traces: Chrome trace events, one per op and rank, named and numbered as in the schedule. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "codegen/calibrate.h"
#include "codegen/median.h"
#include "lang/ast.h"
#include "runtime/moe_layout.h"

typedef struct Reader {
  Arena *arena;
  Diag *diag;
  Calibration *cal;
  CalRun *run;
  int index; /* of the run */
  Evaluation plan;
} Reader;

/* A process of the trace: a rank, or in modelled timelines a group. */
typedef struct Process {
  int group;
  int rank; /* -1: of a whole group */
} Process;

/* Line of an element of "traceEvents", 1 for the first of the file; 0: it cannot be found. */
static int line_of_event(const char *path, size_t index)
{
  FILE *file = fopen(path, "rb");
  const char *key = "\"traceEvents\"", *match = key;
  bool text = false, escaped = false;
  int line = 1, found = 0, depth = 0;
  for (int c; file && !found && (c = getc(file)) != EOF;) {
    line += c == '\n';
    if (*match) { /* the key before the list */
      match = c == *match ? match + 1 : c == *key ? key + 1 : key;
    } else if (text) {
      text = escaped || c != '"';
      escaped = !escaped && c == '\\';
    } else if (c == '"') {
      text = true;
    } else if (c == '[' || c == '{') {
      found = depth == 1 && index == 0 ? line : 0;
      depth++;
    } else if (c == ']' || c == '}') {
      depth--;
    } else if (c == ',' && depth == 1) {
      index--;
    }
  }
  if (file) {
    fclose(file);
  }
  return found;
}

static bool wrong(Reader *r, const char *what)
{
  diag_error(r->diag, (Span){0}, "%s: %s", r->run->trace_path, what);
  return false;
}

/* The same of the event at an index of the trace: with its line, which the JSON reader does not keep. */
static bool wrong_event(Reader *r, size_t index, const char *what)
{
  diag_error(r->diag, (Span){0}, "%s:%d: %s", r->run->trace_path, line_of_event(r->run->trace_path, index), what);
  return false;
}

static bool is_group(const PlanGroup *g, const char *name)
{
  char own[32];
  snprintf(own, sizeof own, "%s%d", plan_role_letters(g->role), g->index);
  return strcmp(own, name) == 0;
}

/* "rank 3 F0" or "F0" */
static bool read_process(Reader *r, size_t at, const json_t *event, Process *processes, int n)
{
  json_int_t pid = json_integer_value(json_object_get(event, "pid"));
  const char *name = json_string_value(json_object_get(json_object_get(event, "args"), "name"));
  const char *group = name ? strrchr(name, ' ') : NULL;
  group = group ? group + 1 : name;
  if (!group || pid < 0 || pid >= n) {
    return wrong_event(r, at,
                       arena_printf(r->arena, "a process %lld, but the spec's plan has %d ranks", (long long)pid, n));
  }
  for (int g = 0; g < r->plan.plan.n_groups; g++) {
    if (is_group(&r->plan.plan.groups[g], group)) {
      processes[pid] = (Process){g, group == name ? -1 : (int)pid};
      return true;
    }
  }
  return wrong_event(
      r, at, arena_printf(r->arena, "it has a group %s, but the plan of %s has none", group, r->run->spec_path));
}

/* The rank does as much as the fullest of its group in this op, so that the modelled work is its own. */
static bool is_full(const Reader *r, const Process *p, const MoeOp *op)
{
  const Plan *plan = &r->plan.plan;
  const Spec *spec = &r->run->spec;
  const PlanGroup *g = &plan->groups[p->group];
  if (op->mb >= 0) {
    int replica = p->rank < 0 ? 0 : p->rank / plan->replica_ranks;
    if (moe_mb_seqs(plan->shape->global_batch, plan->replicas, replica, plan->mb_seqs, op->mb) < plan->mb_seqs) {
      return false;
    }
  }
  if (p->rank < 0) {
    return true;
  }
  int i = p->rank % plan->replica_ranks - g->first_rank;
  bool ffn = op->kind == MOE_OP_FFN_FWD || op->kind == MOE_OP_FFN_DGRAD || op->kind == MOE_OP_FFN_WGRAD;
  return ffn ? cost_hits(spec, moe_part_begin(spec->model.moe.experts, g->n_ranks, i),
                         moe_part_begin(spec->model.moe.experts, g->n_ranks, i + 1)) == cost_hits_max(spec, g->n_ranks)
             : op->mb < 0 || moe_part_size(plan->mb_seqs, g->n_ranks, i) == moe_part_max(plan->mb_seqs, g->n_ranks);
}

/* Room for a time more; lists grow at powers of 2. */
static void add_time(Arena *arena, double **times, int *n, double ns)
{
  if ((*n & (*n - 1)) == 0) {
    double *list = arena_new_array(arena, double, *n ? 2 * (size_t)*n : 1);
    if (*n) {
      memcpy(list, *times, (size_t)*n * sizeof *list);
    }
    *times = list;
  }
  (*times)[(*n)++] = ns;
}

static void add_op(Reader *r, const MoeOp *op, double ns)
{
  Calibration *cal = r->cal;
  const Plan *plan = &r->plan.plan;
  MoeOpKind kind = op->kind;
  bool tail = kind == MOE_OP_GRAD_REDUCE || kind == MOE_OP_OPTIMIZER || kind == MOE_OP_WEIGHTS_IN;
  Work work = tail ? cost_bucket_terms(&r->run->spec, plan, kind, op->bucket, op->layer)
                   : cost_op_terms(&r->run->spec, plan, kind, op->layer < 0 ? 0 : op->layer);
  CalOp *found = NULL;
  for (int i = cal->n_ops - 1; i >= 0 && cal->ops[i].run == r->index && !found; i--) {
    CalOp *o = &cal->ops[i];
    found = o->kind == kind && memcmp(&o->work, &work, sizeof work) == 0 ? o : NULL;
  }
  if (!found) {
    cal->ops = arena_grow(r->arena, cal->ops, cal->n_ops, &cal->room_ops, sizeof *cal->ops);
    found = &cal->ops[cal->n_ops++];
    *found = (CalOp){.run = r->index, .kind = kind, .work = work};
  }
  add_time(r->arena, &found->times, &found->n, ns);
}

static void add_msg(Reader *r, const MoeOp *op, double ns)
{
  Calibration *cal = r->cal;
  const Plan *plan = &r->plan.plan;
  const Spec *spec = &r->run->spec;
  bool bucket = op->edge == MOE_EDGE_REDUCE || op->edge == MOE_EDGE_SHARE;
  MsgCost c =
      bucket ? cost_bucket_msg(spec, plan, op->edge, op->bucket, op->layer) : cost_msg(spec, plan, op->edge, op->layer);
  double nvlink = (double)(c.out_nvlink > c.in_nvlink ? c.out_nvlink : c.in_nvlink);
  double nic = (double)(c.out_nic > c.in_nic ? c.out_nic : c.in_nic);
  if (c.bytes <= 0 || c.ns <= 1) {
    return; /* within one group, or a few bytes */
  }
  CalMsg *found = NULL;
  for (int i = cal->n_msgs - 1; i >= 0 && cal->msgs[i].run == r->index && !found; i--) {
    CalMsg *m = &cal->msgs[i];
    found = m->edge == op->edge && m->nvlink_ns == nvlink && m->nic_ns == nic ? m : NULL;
  }
  if (!found) {
    cal->msgs = arena_grow(r->arena, cal->msgs, cal->n_msgs, &cal->room_msgs, sizeof *cal->msgs);
    found = &cal->msgs[cal->n_msgs++];
    *found = (CalMsg){
        .run = r->index, .edge = op->edge, .nvlink_ns = nvlink, .nic_ns = nic, .far = c.nic_bytes > 0 || nic > 0};
  }
  add_time(r->arena, &found->times, &found->n, ns);
}

/* No op takes longer, or it is no time: 30 years, so that sums of them can be told from none. */
#define MOST_NS 1e18

/* A measured duration in ns; a message may take none. False after an error. */
static bool read_duration(Reader *r, size_t at, const json_t *event, bool message, const char *title, double *ns)
{
  json_t *dur = json_object_get(event, "dur");
  *ns = json_number_value(dur) * 1e3;
  if (json_is_number(dur) && (*ns > 0 || (message && *ns == 0)) && *ns <= MOST_NS) {
    return true;
  }
  char *value = dur ? json_dumps(dur, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(12)) : NULL;
  wrong_event(r, at,
              value ? arena_printf(r->arena, "\"dur\" of %s is %s; a measured op takes more than 0 us and at most %g",
                                   title, value, MOST_NS / 1e3)
                    : arena_printf(r->arena, "%s has no \"dur\", the us that it took", title));
  free(value);
  return false;
}

static bool read_event(Reader *r, size_t at, const json_t *event, const Process *processes, int n)
{
  json_int_t pid = json_integer_value(json_object_get(event, "pid"));
  json_t *index = json_object_get(json_object_get(event, "args"), "op");
  const char *name = json_string_value(json_object_get(event, "name"));
  if (pid < 0 || pid >= n || processes[pid].group < 0 || !json_is_integer(index) || !name) {
    return wrong_event(r, at,
                       "an event without a rank, a name or the number of its op: not a trace of `train --trace`");
  }
  const Process *p = &processes[pid];
  const SchedGroup *group = &r->plan.sched.groups[p->group];
  char title[80];
  json_int_t i = json_integer_value(index);
  if (i >= 0 && i < group->n_ops) {
    moe_op_title(&group->ops[i], title, sizeof title);
  }
  if (i < 0 || i >= group->n_ops || strcmp(title, name) != 0) {
    return wrong_event(r, at,
                       arena_printf(r->arena, "op %lld of process %lld is %s; by %s it is %s: not the same program",
                                    (long long)i, (long long)pid, name, r->run->spec_path,
                                    i < 0 || i >= group->n_ops ? "none" : title));
  }
  const MoeOp *op = &group->ops[i];
  bool message = op->kind == MOE_OP_RECV || op->kind == MOE_OP_SEND;
  double ns;
  if (!read_duration(r, at, event, message, title, &ns)) {
    return false;
  }
  r->run->events++;
  if (ns == 0 || !is_full(r, p, op)) {
    return true;
  }
  if (op->kind == MOE_OP_RECV) { /* a SEND also counts how long it queued */
    add_msg(r, op, ns);
  } else if (op->kind != MOE_OP_SCALARS && op->kind != MOE_OP_SEND) {
    add_op(r, op, ns);
  }
  return true;
}

static void summarize(Calibration *cal, int run)
{
  for (int i = 0; i < cal->n_ops; i++) {
    CalOp *o = &cal->ops[i];
    if (o->run == run) {
      o->ns = median_of(o->times, o->n);
    }
  }
  for (int i = 0; i < cal->n_msgs; i++) {
    CalMsg *m = &cal->msgs[i];
    if (m->run == run) {
      sort_numbers(m->times, m->n);
      m->ns = m->times[m->n / 10];
    }
  }
}

static bool read_trace(Reader *r, json_t *root)
{
  json_t *events = json_object_get(root, "traceEvents"), *event;
  const Plan *plan = &r->plan.plan;
  int n = plan->replicas * plan->replica_ranks;
  Process *processes = arena_new_array(r->arena, Process, (size_t)n);
  size_t i;
  r->run->ranks = n;
  for (int k = 0; k < n; k++) {
    processes[k].group = -1;
  }
  json_array_foreach(events, i, event)
  {
    const char *name = json_string_value(json_object_get(event, "name"));
    if (name && strcmp(name, "process_name") == 0 && !read_process(r, i, event, processes, n)) {
      return false;
    }
  }
  json_array_foreach(events, i, event)
  {
    const char *phase = json_string_value(json_object_get(event, "ph"));
    if (phase && strcmp(phase, "X") == 0 && !read_event(r, i, event, processes, n)) {
      return false;
    }
  }
  return r->run->events > 0 || wrong(r, "there are no ops in it");
}

bool calibrate_read(Arena *arena, Diag *diag, Calibration *cal, const char *spec_path, const char *trace_path)
{
  int room = cal->n_runs;
  cal->runs = arena_grow(arena, cal->runs, cal->n_runs, &room, sizeof *cal->runs);
  Reader r = {.arena = arena, .diag = diag, .cal = cal, .run = &cal->runs[cal->n_runs], .index = cal->n_runs};
  *r.run = (CalRun){.spec_path = spec_path, .trace_path = trace_path};
  AstFile *ast = ast_parse(arena, diag, spec_path, NULL, 0);
  if (!ast || !spec_build(arena, diag, ast, &r.run->spec)) {
    return false;
  }
  if (r.run->spec.costs.given) {
    diag_error(diag, spec_span(&r.run->spec, "costs", "attention_forward"),
               "the spec gives its times, so none are modelled that could be calibrated");
    return false;
  }
  json_error_t error;
  json_t *root = json_load_file(trace_path, 0, &error);
  if (!root) {
    diag_error(diag, (Span){0}, "%s:%d: %s", trace_path, error.line, error.text);
    return false;
  }
  bool ok = evaluate_shape(diag, &r.run->spec, 0, r.run->spec.plan.system, &r.plan) == 0;
  r.run->system = r.plan.plan.system;
  ok = ok && read_trace(&r, root);
  if (ok) {
    summarize(cal, r.index);
    cal->n_runs++;
  }
  evaluation_free(&r.plan);
  json_decref(root);
  return ok;
}
