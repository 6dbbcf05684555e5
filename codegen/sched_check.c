/* The checker's entry and its reports. */
#include "codegen/sched_check_int.h"

#include <stdarg.h>
#include <string.h>

enum { MAX_REPORTS = 20 };

static const char *group_name(const Check *c, int g, char buffer[32])
{
  const PlanGroup *group = &c->plan->groups[g];
  snprintf(buffer, 32, "%s%s%d", group->role & PLAN_A ? "A" : "", group->role & PLAN_F ? "F" : "", group->index);
  return buffer;
}

const char *check_name(const Check *c, int32_t row, char buffer[160])
{
  const MoeOp *op = check_op(c, row);
  char group[32];
  int n = snprintf(buffer, 160, "group %s op %d %s", group_name(c, c->group[row], group), row - c->base[c->group[row]],
                   op->kind < MOE_OP_COUNT ? moe_op_name(op->kind) : "?");
  if (op->edge < MOE_EDGE_COUNT) {
    n += snprintf(buffer + n, (size_t)(160 - n), " %s", moe_edge_name(op->edge));
  }
  if (op->bucket < MOE_BUCKET_COUNT) {
    n += snprintf(buffer + n, (size_t)(160 - n), " %s", moe_bucket_name(op->bucket));
  }
  n += snprintf(buffer + n, (size_t)(160 - n), " layer %d", op->layer);
  if (op->mb >= 0) {
    n += snprintf(buffer + n, (size_t)(160 - n), " micro-batch %d", op->mb);
  }
  if (c->n_chunks > 1 && op->mb >= 0 && check_chunked(check_what(op))) {
    snprintf(buffer + n, (size_t)(160 - n), " chunk %d", op->chunk);
  }
  return buffer;
}

static void report(Check *c, const char *where, const char *format, va_list args)
{
  char text[512];
  vsnprintf(text, sizeof text, format, args);
  if (c->reported++ < MAX_REPORTS) {
    diag_error(c->diag, (Span){0}, "schedule: %s%s", where, text);
  }
}

void check_fail(Check *c, int32_t row, const char *format, ...)
{
  char where[160], prefix[168];
  snprintf(prefix, sizeof prefix, "%s: ", check_name(c, row, where));
  va_list args;
  va_start(args, format);
  report(c, prefix, format, args);
  va_end(args);
}

void check_fail_all(Check *c, const char *format, ...)
{
  va_list args;
  va_start(args, format);
  report(c, "", format, args);
  va_end(args);
}

static void note_waiters(Check *c)
{
  int32_t rows = c->base[c->n_groups];
  memset(c->waiters, -1, 2 * (size_t)rows * sizeof *c->waiters);
  for (int32_t row = 0; row < rows; row++) {
    const MoeOp *op = check_op(c, row);
    for (int k = 0; k < MOE_MAX_WAITS; k++) {
      if (op->wait[k] >= 0) {
        int32_t *list = &c->waiters[2 * (c->base[c->group[row]] + op->wait[k])];
        list[list[0] >= 0] = row;
      }
    }
  }
}

/* A group has no more saved slots than the plan has memory for; the head, of which the plan knows no number, may have
   one for each micro-batch in flight. Orders of colocated systems hold what their authors decided, and the plan's
   memory counts their slots one by one. */
static void check_slots(Check *c)
{
  const Plan *plan = c->plan;
  for (int g = 0; g < c->n_groups && plan->n_stages == 0; g++) {
    bool head = plan_att(c->spec, plan, 0, c->n_layers) == g;
    int att = plan_saved(c->spec, plan, g, PLAN_A) + head * plan->in_flight, ffn = plan_saved(c->spec, plan, g, PLAN_F);
    const SchedGroup *group = &c->sched->groups[g];
    if (group->att_saved > att || group->ffn_saved > ffn) {
      check_fail_all(c, "group %d has %d attention and %d FFN slots; the plan has %d and %d", g, group->att_saved,
                     group->ffn_saved, att, ffn);
    }
  }
}

bool sched_check(Diag *diag, const Spec *spec, const Plan *plan, const Schedule *sched)
{
  Check c = {.diag = diag, .spec = spec, .plan = plan, .sched = sched, .arena = arena_new()};
  c.n_layers = spec->model.layers;
  c.n_mbs = plan->micro_batches;
  c.n_groups = plan->n_groups;
  c.n_ways = plan->ways;
  c.n_chunks = plan->chunks;
  if (sched->n_groups != plan->n_groups) {
    check_fail_all(&c, "%d tables for %d plan groups", sched->n_groups, plan->n_groups);
    arena_free(c.arena);
    return false;
  }
  c.base = arena_new_array(c.arena, int, (size_t)c.n_groups + 1);
  for (int g = 0; g < c.n_groups; g++) {
    c.base[g + 1] = c.base[g] + sched->groups[g].n_ops;
    c.root = plan->groups[g].first_rank == 0 ? g : c.root;
  }
  size_t rows = (size_t)c.base[c.n_groups];
  c.group = arena_new_array(c.arena, int32_t, rows);
  c.releaser = arena_new_array(c.arena, int32_t, rows);
  c.order = arena_new_array(c.arena, int32_t, rows);
  c.waiters = arena_new_array(c.arena, int32_t, 2 * rows);
  for (int g = 0; g < c.n_groups; g++) {
    for (int row = c.base[g]; row < c.base[g + 1]; row++) {
      c.group[row] = g;
    }
  }
  check_layers(&c);
  bool ok = c.reported == 0 && check_rows(&c);
  if (ok) {
    note_waiters(&c);
    ok = check_tail(&c) && check_pairs(&c) && check_replay(&c) && check_times(&c) && check_dataflow(&c) &&
         check_terms(&c);
  }
  check_slots(&c);
  if (c.reported > MAX_REPORTS) {
    diag_note(diag, (Span){0}, "%d more errors of this schedule", c.reported - MAX_REPORTS);
  }
  arena_free(c.arena);
  return ok && c.reported == 0;
}
