/* From stage orders to compute tasks, per group. A stage is a run of layers that may be empty. What a forward or a
   backward of a stage waits for and sends follows from the tasks; here is only their order on the group's compute unit,
   and which messages of a backward wait for its weight gradients, as they do where a framework runs both as one. */
#include "codegen/sched_int.h"

#include "codegen/stage_order.h"

typedef struct Expand {
  const SchedNet *net;
  SchedOrder *order; /* of the group at hand */
  uint8_t *marks;
} Expand;

typedef struct Run {
  int begin, end; /* layers */
  int mb;
} Run;

static Run run_of(const Expand *e, const StageStep *step)
{
  const Plan *plan = e->net->plan;
  return (Run){.begin = (int)moe_part_begin(e->net->n_layers, plan->n_stages, step->stage),
               .end = (int)moe_part_begin(e->net->n_layers, plan->n_stages, step->stage + 1),
               .mb = step->mb};
}

static bool first_of_all(Run run)
{
  return run.begin == 0 && run.end > 0;
}

static bool last_of_all(const Expand *e, Run run)
{
  return run.end == e->net->n_layers && run.end > run.begin;
}

static void put_chunk(Expand *e, SchedTask task, int layer, int mb, int chunk, uint8_t marks)
{
  int32_t id = sched_id(e->net, task, layer, mb, chunk);
  e->order->ids[e->order->n++] = id;
  e->marks[id] |= marks;
}

/* Every chunk of a task, if there is such a task. */
static void put(Expand *e, SchedTask task, int layer, int mb, uint8_t marks)
{
  if (!sched_task_exists(e->net, task, layer, sched_way(e->net, mb))) {
    return;
  }
  for (int chunk = 0; chunk < sched_chunks(e->net, task); chunk++) {
    put_chunk(e, task, layer, mb, chunk, marks);
  }
}

/* The messages that carry what the input gradient before this weight gradient made wait for it, too; or those of the
   gradient for a forward that is run again, which begins with that. */
static void hold(Expand *e, SchedTask task, int layer, int mb, int chunk)
{
  int32_t hops[SCHED_MAX_CHUNKS];
  int n = sched_holds(e->net, sched_id(e->net, task, layer, mb, chunk), hops);
  for (int i = 0; i < n; i++) {
    e->marks[hops[i]] |= MARK_HELD;
  }
}

static void forward(Expand *e, Run run)
{
  if (first_of_all(run)) {
    put(e, TASK_EMBED_FWD, 0, run.mb, 0);
  }
  for (int layer = run.begin; layer < run.end; layer++) {
    put(e, TASK_ATT_FWD, layer, run.mb, 0);
    put(e, TASK_FFN_FWD, layer, run.mb, 0);
    put(e, TASK_JOIN_FWD, layer, run.mb, 0);
  }
}

/* The head's forward and backward are one op. It stands with the backward that follows: its gradients leave when that
   begins and not before. */
static void enter_backward(Expand *e, Run run)
{
  if (last_of_all(e, run)) {
    put(e, TASK_HEAD, e->net->n_layers, run.mb, 0);
  }
}

static void backward(Expand *e, Run run)
{
  enter_backward(e, run);
  for (int layer = run.end - 1; layer >= run.begin; layer--) {
    put(e, TASK_JOIN_DGRAD, layer, run.mb, 0);
    put(e, TASK_ATT_AGAIN, layer, run.mb, 0);
    bool moe = sched_task_exists(e->net, TASK_FFN_DGRAD, layer, sched_way(e->net, run.mb));
    if (sched_again(e->net, layer)) {
      hold(e, TASK_ATT_AGAIN, layer, run.mb, 0);
    }
    for (int chunk = 0; moe && chunk < e->net->chunks; chunk++) {
      put_chunk(e, TASK_FFN_DGRAD, layer, run.mb, chunk, 0);
      put_chunk(e, TASK_FFN_WGRAD, layer, run.mb, chunk, 0);
      hold(e, TASK_FFN_WGRAD, layer, run.mb, chunk);
    }
    put(e, TASK_ATT_DGRAD, layer, run.mb, 0);
    put(e, TASK_ATT_WGRAD, layer, run.mb, 0);
    hold(e, TASK_ATT_WGRAD, layer, run.mb, 0);
  }
  if (first_of_all(run)) {
    put(e, TASK_EMBED_WGRAD, 0, run.mb, 0);
  }
}

static void input_gradients(Expand *e, Run run)
{
  enter_backward(e, run);
  for (int layer = run.end - 1; layer >= run.begin; layer--) {
    put(e, TASK_JOIN_DGRAD, layer, run.mb, 0);
    put(e, TASK_ATT_AGAIN, layer, run.mb, 0);
    put(e, TASK_FFN_DGRAD, layer, run.mb, 0);
    put(e, TASK_ATT_DGRAD, layer, run.mb, 0);
  }
}

static void weight_gradients(Expand *e, Run run)
{
  for (int layer = run.end - 1; layer >= run.begin; layer--) {
    put(e, TASK_FFN_WGRAD, layer, run.mb, 0);
    put(e, TASK_ATT_WGRAD, layer, run.mb, 0);
  }
  if (first_of_all(run)) {
    put(e, TASK_EMBED_WGRAD, 0, run.mb, 0);
  }
}

/* Layer i of the forward beside layer i from the end of the backward, so that the messages of one run under the compute
   of the other; where one has more layers, the rest runs alone. A join, which waits for the last combine, comes after
   the gradients that hide it. */
static void merged(Expand *e, Run f, Run b)
{
  enter_backward(e, b);
  if (b.end > b.begin) {
    put(e, TASK_JOIN_DGRAD, b.end - 1, b.mb, 0);
  }
  if (first_of_all(f)) {
    put(e, TASK_EMBED_FWD, 0, f.mb, 0);
  }
  for (int i = 0; i < f.end - f.begin || i < b.end - b.begin; i++) {
    int fl = f.begin + i, bl = b.end - 1 - i;
    bool has_f = fl < f.end, has_b = bl >= b.begin;
    uint8_t mark = has_f && has_b ? MARK_MERGED : 0;
    if (has_b) {
      put(e, TASK_ATT_AGAIN, bl, b.mb, mark);
    }
    if (has_f) {
      put(e, TASK_ATT_FWD, fl, f.mb, mark);
    }
    if (has_b) {
      put(e, TASK_FFN_DGRAD, bl, b.mb, mark);
      put(e, TASK_FFN_WGRAD, bl, b.mb, mark);
    }
    if (has_f) {
      put(e, TASK_FFN_FWD, fl, f.mb, mark);
    }
    if (has_b) {
      put(e, TASK_ATT_DGRAD, bl, b.mb, mark);
      put(e, TASK_ATT_WGRAD, bl, b.mb, mark);
    }
    if (has_b && bl == b.begin) { /* what a pair makes leaves when it ends */
      hold(e, TASK_ATT_WGRAD, bl, b.mb, 0);
    }
    if (has_f) {
      put(e, TASK_JOIN_FWD, fl, f.mb, 0);
    }
  }
  if (first_of_all(b)) {
    put(e, TASK_EMBED_WGRAD, 0, b.mb, 0);
  }
}

static void expand(Expand *e, const StageOrder *stages)
{
  for (int i = 0; i < stages->n; i++) {
    const StageStep *step = &stages->steps[i];
    Run run = run_of(e, step);
    if (step->with_next) {
      merged(e, run, run_of(e, &stages->steps[++i]));
    } else if (step->op == STAGE_F) {
      forward(e, run);
    } else if (step->op == STAGE_B) {
      backward(e, run);
    } else if (step->op == STAGE_I) {
      input_gradients(e, run);
    } else {
      weight_gradients(e, run);
    }
  }
}

bool sched_stage_orders(Arena *arena, Diag *diag, const SchedNet *net, SchedOrder *orders, uint8_t *marks)
{
  StageIn in = stage_in(net->plan);
  const char *why = stage_refuses(arena, &in);
  if (why) {
    diag_error(diag, spec_span(net->spec, "plan", "schedule"), "%s", why);
    return false;
  }
  if (stage_count(&in) != net->plan->n_stages) {
    die("a plan of %d stages on %d pipeline ranks", net->plan->n_stages, net->plan->n_groups);
  }
  StageOrder *stages = stage_orders(arena, &in);
  for (int g = 0; g < net->n_groups; g++) {
    Expand e = {.net = net, .order = &orders[g], .marks = marks};
    expand(&e, &stages[g]);
  }
  return true;
}
