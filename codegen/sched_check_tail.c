/* The end of the step: every bucket reduced once by each holder, after everything that adds to it; one scalar total;
   every bucket updated once, after the total, and shared. Order within a table is compute order or a wait. */
#include "codegen/sched_check_int.h"

typedef struct Seen {
  int32_t send[2], recv[2]; /* REDUCE, SHARE: op in the table, or -1 */
  int32_t reduce, optimizer, in;
} Seen;

typedef struct TailCheck {
  Check *c;
  int group;
  Seen *seen;             /* [bucket kinds][layers] */
  int32_t up[2], down[2]; /* SEND, RECV */
  int32_t scalars;
  int32_t last_compute; /* of the micro-batches */
  int32_t told;         /* first compute op that waits for the totals, or -1 */
  int32_t given_back;   /* the op that releases them, or -1 */
} TailCheck;

static const MoeOp *row(const TailCheck *t, int32_t op)
{
  return &t->c->sched->groups[t->group].ops[op];
}

static bool waits(const TailCheck *t, int32_t op, int32_t on)
{
  for (int k = 0; k < MOE_MAX_WAITS; k++) {
    if (row(t, op)->wait[k] == on) {
      return true;
    }
  }
  return false;
}

/* `first` is over when `second` begins: a wait, or a wait for a compute op at or below `first`, or compute order. */
static bool after(const TailCheck *t, int32_t first, int32_t second)
{
  bool compute = check_is_compute(row(t, first));
  if (waits(t, second, first) || (compute && check_is_compute(row(t, second)) && first < second)) {
    return true;
  }
  for (int k = 0; compute && k < MOE_MAX_WAITS; k++) {
    int32_t wait = row(t, second)->wait[k];
    if (wait > first && check_is_compute(row(t, wait))) {
      return true;
    }
  }
  return false;
}

static void want_after(TailCheck *t, int32_t first, int32_t second)
{
  if (first >= 0 && second >= 0 && !after(t, first, second)) {
    char name[160];
    check_fail(t->c, t->c->base[t->group] + second, "nothing makes it wait for %s",
               check_name(t->c, t->c->base[t->group] + first, name));
  }
}

static void note(TailCheck *t, int32_t *at, int32_t op)
{
  if (*at >= 0) {
    check_fail(t->c, t->c->base[t->group] + op, "already there as op %d", *at);
  }
  *at = op;
}

static void collect(TailCheck *t, int32_t i)
{
  Check *c = t->c;
  const MoeOp *op = row(t, i);
  if (op->mb >= 0) {
    t->last_compute = check_is_compute(op) ? i : t->last_compute;
    return;
  }
  bool recv = op->kind == MOE_OP_RECV;
  if (op->kind == MOE_OP_SCALARS) {
    note(t, &t->scalars, i);
  } else if (check_is_message(op) && op->edge == MOE_EDGE_SCALARS_UP) {
    note(t, &t->up[recv], i);
  } else if (check_is_message(op) && op->edge == MOE_EDGE_SCALARS_DOWN) {
    note(t, &t->down[recv], i);
  } else if (op->bucket < MOE_BUCKET_NONE && op->layer >= 0 && op->layer < c->n_layers) {
    Seen *seen = &t->seen[op->bucket * c->n_layers + op->layer];
    if (check_is_message(op) && (op->edge == MOE_EDGE_REDUCE || op->edge == MOE_EDGE_SHARE)) {
      note(t, &(recv ? seen->recv : seen->send)[op->edge == MOE_EDGE_SHARE], i);
    } else if (op->kind == MOE_OP_GRAD_REDUCE) {
      note(t, &seen->reduce, i);
    } else if (op->kind == MOE_OP_OPTIMIZER) {
      note(t, &seen->optimizer, i);
    } else if (op->kind == MOE_OP_WEIGHTS_IN) {
      note(t, &seen->in, i);
    } else {
      check_fail(c, c->base[t->group] + i, "does not belong to the end of the step");
    }
  } else {
    check_fail(c, c->base[t->group] + i, "does not belong to the end of the step");
  }
}

static void want(TailCheck *t, bool wanted, int32_t op, const char *what, MoeBucketKind kind, int layer)
{
  if (wanted && op < 0) {
    check_fail_all(t->c, "group %d has no %s of bucket %s layer %d", t->group, what, moe_bucket_name(kind), layer);
  }
  if (!wanted && op >= 0) {
    check_fail(t->c, t->c->base[t->group] + op, "not wanted here");
  }
}

/* Does this op add to the gradient of the bucket? */
static bool adds(const Check *c, const MoeOp *op, MoeBucketKind kind, int layer)
{
  switch (op->kind) {
  case MOE_OP_HEAD:
    return kind == MOE_BUCKET_HEAD || (kind == MOE_BUCKET_EMBED && c->spec->model.tied);
  case MOE_OP_EMBED_WGRAD:
    return kind == MOE_BUCKET_EMBED;
  case MOE_OP_FFN_DGRAD:
    return kind == MOE_BUCKET_GAIN && op->layer == layer;
  case MOE_OP_ATT_DGRAD:
    return (kind == MOE_BUCKET_GAIN || kind == MOE_BUCKET_ATT) && op->layer == layer;
  case MOE_OP_FFN_WGRAD:
    return (kind == MOE_BUCKET_EXPERTS || kind == MOE_BUCKET_SHARED) && op->layer == layer;
  case MOE_OP_ATT_WGRAD:
    return kind == MOE_BUCKET_ATT && op->layer == layer;
  default:
    return false;
  }
}

static void check_bucket(TailCheck *t, MoeBucketKind kind, int layer, const int32_t *last_adder)
{
  Check *c = t->c;
  const Seen *seen = &t->seen[(int)kind * c->n_layers + layer];
  bool per_model = kind == MOE_BUCKET_EMBED || kind == MOE_BUCKET_HEAD, held = false;
  int groups[CHECK_MAX_HOLDERS], holders = check_holders(c, kind, layer, groups);
  for (int i = 0; i < CHECK_MAX_HOLDERS; i++) {
    held |= groups[i] == t->group && (!per_model || layer == 0);
  }
  bool shared = held && holders > 1;
  want(t, held, seen->reduce, "GRAD_REDUCE", kind, layer);
  want(t, held, seen->optimizer, "OPTIMIZER", kind, layer);
  want(t, shared, seen->send[0], "SEND REDUCE", kind, layer);
  want(t, shared, seen->recv[0], "RECV REDUCE", kind, layer);
  want(t, shared, seen->send[1], "SEND SHARE", kind, layer);
  want(t, shared, seen->recv[1], "RECV SHARE", kind, layer);
  want(t, shared, seen->in, "WEIGHTS_IN", kind, layer);
  if (!held || c->reported) {
    return;
  }
  int32_t adder = last_adder[(int)kind * c->n_layers + layer];
  want_after(t, adder, seen->reduce);
  want_after(t, adder, seen->send[0]);
  want_after(t, seen->recv[0], seen->reduce);
  want_after(t, seen->reduce, t->up[0]);
  want_after(t, seen->reduce, t->scalars);
  want_after(t, t->scalars, seen->optimizer);
  want_after(t, t->last_compute, seen->optimizer);
  if (t->down[1] >= 0 && (t->told < 0 || t->told > seen->optimizer)) {
    check_fail(c, c->base[t->group] + seen->optimizer, "nothing makes it wait for the totals");
  }
  if (t->given_back >= 0 && t->given_back < seen->optimizer) {
    check_fail(c, c->base[t->group] + t->given_back, "gives the totals back before op %d has read them",
               seen->optimizer);
  }
  want_after(t, seen->optimizer, seen->send[1]);
  want_after(t, seen->recv[1], seen->in);
  want_after(t, seen->optimizer, seen->in);
}

static void check_scalars(TailCheck *t)
{
  Check *c = t->c;
  const Plan *plan = c->plan;
  bool others = plan->replicas * plan->replica_ranks > 1, root = t->group == c->root;
  bool alone = plan->replicas == 1 && plan->groups[t->group].n_ranks == 1; /* only rank 0 */
  bool sends = others && !(root && alone);
  const struct {
    bool wanted;
    int32_t op;
    const char *what;
  } list[] = {{root, t->scalars, "SCALARS"},
              {sends, t->up[0], "SEND SCALARS_UP"},
              {root && others, t->up[1], "RECV SCALARS_UP"},
              {root && others, t->down[0], "SEND SCALARS_DOWN"},
              {sends, t->down[1], "RECV SCALARS_DOWN"}};
  for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
    if (list[i].wanted != (list[i].op >= 0)) {
      check_fail_all(c, "group %d %s %s", t->group, list[i].wanted ? "has no" : "must not have", list[i].what);
    }
  }
  if (c->reported == 0) {
    want_after(t, t->up[1], t->scalars);
    want_after(t, t->scalars, t->down[0]);
  }
}

static void find_totals(TailCheck *t)
{
  int32_t down = t->down[1];
  t->told = t->given_back = -1;
  for (int32_t i = 0; down >= 0 && i < t->c->sched->groups[t->group].n_ops; i++) {
    if (t->told < 0 && check_is_compute(row(t, i)) && waits(t, i, down)) {
      t->told = i;
    }
    for (int k = 0; k < MOE_MAX_WAITS; k++) {
      t->given_back = row(t, i)->release[k] == down ? i : t->given_back;
    }
  }
}

bool check_tail(Check *c)
{
  size_t n = MOE_BUCKET_COUNT * (size_t)c->n_layers;
  for (int g = 0; g < c->n_groups && c->reported == 0; g++) {
    TailCheck t = {.c = c, .group = g, .scalars = -1, .last_compute = -1, .up = {-1, -1}, .down = {-1, -1}};
    t.seen = arena_new_array(c->arena, Seen, n);
    int32_t *last_adder = arena_new_array(c->arena, int32_t, n);
    for (size_t i = 0; i < n; i++) {
      t.seen[i] = (Seen){{-1, -1}, {-1, -1}, -1, -1, -1};
      last_adder[i] = -1;
    }
    for (int32_t i = 0; i < c->sched->groups[g].n_ops; i++) {
      collect(&t, i);
      for (int kind = 0; kind < MOE_BUCKET_COUNT; kind++) {
        const MoeOp *op = row(&t, i);
        int layer = kind == MOE_BUCKET_HEAD || kind == MOE_BUCKET_EMBED ? 0 : op->layer;
        if (op->mb >= 0 && layer < c->n_layers && adds(c, op, (MoeBucketKind)kind, layer)) {
          last_adder[kind * c->n_layers + layer] = i;
        }
      }
    }
    find_totals(&t);
    check_scalars(&t);
    for (int kind = 0; kind < MOE_BUCKET_COUNT; kind++) {
      for (int layer = 0; layer < c->n_layers; layer++) {
        check_bucket(&t, (MoeBucketKind)kind, layer, last_adder);
      }
    }
  }
  return c->reported == 0;
}
