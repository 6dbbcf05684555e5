/* The checker's entry, its reports, and the first question: is every op there once, where the plan wants it? */
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
    snprintf(buffer + n, (size_t)(160 - n), " micro-batch %d", op->mb);
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

int32_t check_find(const Check *c, int what, int layer, int mb)
{
  return c->row_of[((size_t)what * (size_t)(c->n_layers + 1) + (size_t)layer) * (size_t)c->n_mbs + (size_t)mb];
}

static int what_of(const MoeOp *op)
{
  if (op->kind == MOE_OP_SEND || op->kind == MOE_OP_RECV) {
    return (op->kind == MOE_OP_SEND ? WHAT_SEND : WHAT_RECV) + op->edge;
  }
  return op->kind == MOE_OP_NODE_REDUCE ? WHAT_REDUCE + op->edge : op->kind;
}

typedef struct Place {
  int group, peer; /* -1: not in this layer */
} Place;

static Place edge_place(const Check *c, MoeEdge edge, int layer, bool send)
{
  Place none = {-1, -1};
  if (layer >= c->n_layers) {
    return none;
  }
  int att = c->plan->att_group[layer], ffn = c->plan->ffn_group[layer], next = c->plan->att_group[layer + 1];
  Place place = none;
  switch (edge) {
  case MOE_EDGE_DISPATCH:
    place = (Place){att, ffn};
    break;
  case MOE_EDGE_COMBINE:
    place = (Place){ffn, next};
    break;
  case MOE_EDGE_COMBINE_B:
    place = (Place){next, ffn};
    break;
  case MOE_EDGE_DISPATCH_B:
    place = (Place){ffn, att};
    break;
  case MOE_EDGE_FORWARD:
  case MOE_EDGE_GATHER:
  case MOE_EDGE_GATHER_B:
  case MOE_EDGE_FORWARD_B:
    return c->relayed[layer] ? (Place){ffn, ffn} : none;
  default:
    return none;
  }
  return send ? place : (Place){place.peer, place.group};
}

/* Where the plan wants it. */
static Place expected(const Check *c, int what, int layer)
{
  Place none = {-1, -1};
  int att = c->plan->att_group[layer], ffn = layer < c->n_layers ? c->plan->ffn_group[layer] : -1;
  bool inner = layer < c->n_layers;
  switch (what) {
  case MOE_OP_EMBED_FWD:
  case MOE_OP_EMBED_WGRAD:
    return layer == 0 ? (Place){att, -1} : none;
  case MOE_OP_ATT_FWD:
  case MOE_OP_ATT_DGRAD:
  case MOE_OP_ATT_WGRAD:
    return inner ? (Place){att, -1} : none;
  case MOE_OP_FFN_FWD:
  case MOE_OP_FFN_DGRAD:
  case MOE_OP_FFN_WGRAD:
    return (Place){ffn, -1};
  case MOE_OP_HEAD:
    return inner ? none : (Place){att, -1};
  case MOE_OP_RELAY:
  case WHAT_REDUCE + MOE_EDGE_GATHER:
  case WHAT_REDUCE + MOE_EDGE_FORWARD_B:
    return inner && c->relayed[layer] ? (Place){ffn, -1} : none;
  default:
    break;
  }
  if (what >= WHAT_SEND && what < WHAT_REDUCE) {
    bool send = what < WHAT_RECV;
    return edge_place(c, (MoeEdge)(what - (send ? WHAT_SEND : WHAT_RECV)), layer, send);
  }
  return none;
}

static const char *what_name(int what)
{
  return what < WHAT_SEND     ? moe_op_name((MoeOpKind)what)
         : what < WHAT_REDUCE ? moe_edge_name((MoeEdge)((what - WHAT_SEND) % MOE_EDGE_COUNT))
                              : "NODE_REDUCE";
}

static MoeStream stream_of(MoeOpKind kind)
{
  static const MoeStream streams[] = {
#define MOE_OP(kind, letters, stream, doc) MOE_STREAM_##stream,
#include "runtime/ops.def"
#undef MOE_OP
  };
  return streams[kind];
}

static bool fields_ok(Check *c, int32_t row)
{
  const MoeOp *op = check_op(c, row);
  const SchedGroup *group = &c->sched->groups[c->group[row]];
  int32_t me = row - c->base[c->group[row]];
  if (op->kind >= MOE_OP_COUNT || op->edge > MOE_EDGE_NONE || op->bucket > MOE_BUCKET_NONE || op->layer > c->n_layers ||
      op->mb >= c->n_mbs || op->peer >= c->n_groups || (check_is_message(op) && op->edge == MOE_EDGE_NONE) ||
      (op->mb >= 0 && op->layer < 0)) {
    check_fail(c, row, "kind %d, edge %d, bucket %d, layer %d, micro-batch %d or peer %d out of range", op->kind,
               op->edge, op->bucket, op->layer, op->mb, op->peer);
    return false;
  }
  if (op->stream != stream_of(op->kind) && !(check_is_compute(op) && stream_of(op->kind) <= MOE_STREAM_BWD)) {
    check_fail(c, row, "stream %d, but its ops run on stream %d", op->stream, stream_of(op->kind));
  }
  for (int k = 0; k < MOE_MAX_WAITS; k++) {
    int32_t wait = op->wait[k], release = op->release[k];
    if (wait < -1 || wait >= group->n_ops || wait == me) {
      check_fail(c, row, "waits for op %d of %d", wait, group->n_ops);
      return false;
    }
    if (release < -1 || release >= group->n_ops || (release >= 0 && group->ops[release].kind != MOE_OP_RECV)) {
      check_fail(c, row, "releases op %d, which is not a RECV of its table (%d ops)", release, group->n_ops);
      return false;
    }
  }
  if (me > 0 && group->start_ns[me] < group->start_ns[me - 1]) {
    check_fail(c, row, "starts at %lld ns, before the row above it (%lld ns)", (long long)group->start_ns[me],
               (long long)group->start_ns[me - 1]);
  }
  if (group->end_ns[me] < group->start_ns[me]) {
    check_fail(c, row, "ends at %lld ns, before its start at %lld ns", (long long)group->end_ns[me],
               (long long)group->start_ns[me]);
  }
  return true;
}

bool check_rows(Check *c)
{
  int32_t rows = c->base[c->n_groups];
  size_t layers = (size_t)c->n_layers + 1, mbs = (size_t)c->n_mbs;
  memset(c->row_of, -1, (size_t)WHAT_COUNT * layers * mbs * sizeof *c->row_of);
  bool fields = true;
  for (int32_t row = 0; row < rows; row++) {
    fields &= fields_ok(c, row);
  }
  if (!fields) {
    return false;
  }
  for (int32_t row = 0; row < rows; row++) {
    const MoeOp *op = check_op(c, row);
    if (op->mb < 0) {
      continue; /* the tail */
    }
    int what = what_of(op);
    Place place = expected(c, what, op->layer);
    if (place.group < 0) {
      check_fail(c, row, "no such op in this layer");
    } else if (place.group != c->group[row]) {
      check_fail(c, row, "the plan wants it in group %d, not %d", place.group, c->group[row]);
    } else if (place.peer != op->peer) {
      check_fail(c, row, "its peer is group %d, not %d", place.peer, op->peer);
    }
    int32_t *at = &c->row_of[((size_t)what * layers + (size_t)op->layer) * mbs + (size_t)op->mb];
    if (*at >= 0) {
      check_fail(c, row, "already there as op %d", *at - c->base[c->group[*at]]);
    }
    *at = row;
  }
  for (int what = 0; what < WHAT_COUNT; what++) {
    for (int layer = 0; layer <= c->n_layers; layer++) {
      bool wanted = expected(c, what, layer).group >= 0;
      for (int mb = 0; wanted && mb < c->n_mbs; mb++) {
        if (check_find(c, what, layer, mb) < 0) {
          check_fail_all(c, "layer %d micro-batch %d has no %s%s", layer, mb,
                         what >= WHAT_RECV && what < WHAT_REDUCE ? "RECV "
                         : what >= WHAT_SEND                     ? "SEND "
                                                                 : "",
                         what_name(what));
        }
      }
    }
  }
  return c->reported == 0;
}

static bool relayed_layer(const Plan *plan, int layer)
{
  const PlanGroup *group = &plan->groups[plan->ffn_group[layer]];
  for (int q = 0; plan->dedup == DEDUP_NODE && q < plan->replicas; q++) {
    for (int r = 0; r + 1 < group->n_ranks; r++) {
      int rank = q * plan->replica_ranks + group->first_rank + r;
      if (rank / plan->ranks_per_node == (rank + 1) / plan->ranks_per_node) {
        return true;
      }
    }
  }
  return false;
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

bool sched_check(Diag *diag, const Spec *spec, const Plan *plan, const Schedule *sched)
{
  Check c = {.diag = diag, .spec = spec, .plan = plan, .sched = sched, .arena = arena_new()};
  c.n_layers = spec->model.layers;
  c.n_mbs = plan->micro_batches;
  c.n_groups = plan->n_groups;
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
  c.relayed = arena_new_array(c.arena, bool, (size_t)c.n_layers);
  c.row_of = arena_new_array(c.arena, int32_t, (size_t)WHAT_COUNT * ((size_t)c.n_layers + 1) * (size_t)c.n_mbs);
  for (int g = 0; g < c.n_groups; g++) {
    for (int row = c.base[g]; row < c.base[g + 1]; row++) {
      c.group[row] = g;
    }
  }
  for (int layer = 0; layer < c.n_layers; layer++) {
    c.relayed[layer] = relayed_layer(plan, layer);
  }
  bool ok = check_rows(&c);
  if (ok) {
    note_waiters(&c);
    ok = check_tail(&c) && check_pairs(&c) && check_replay(&c) && check_dataflow(&c) && check_terms(&c);
  }
  if (sched->in_flight > plan->in_flight) {
    check_fail_all(&c, "%d micro-batches in flight, the plan has room for %d", sched->in_flight, plan->in_flight);
  }
  if (c.reported > MAX_REPORTS) {
    diag_note(diag, (Span){0}, "%d more errors of this schedule", c.reported - MAX_REPORTS);
  }
  arena_free(c.arena);
  return ok && c.reported == 0;
}
