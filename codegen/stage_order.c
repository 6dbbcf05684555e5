/* The published orders, as rules. Interleaved 1F1B: Megatron-LM's schedules.py, its merged variant after
   combined_1f1b.py; megatron, tutel and comet share it. DualPipe and DualPipeV: the step lists of the authors' code.
   Nothing here looks at times. */
#include "codegen/stage_order.h"

static int min(int a, int b)
{
  return a < b ? a : b;
}

bool stage_dual(SystemKind system)
{
  return system == SYSTEM_DUALPIPE || system == SYSTEM_DUALPIPEV;
}

static int mb_group(const StageIn *in)
{
  return in->mb_group ? in->mb_group : in->ranks;
}

StageIn stage_in(const Plan *plan)
{
  StageIn in = {.system = plan->system,
                .ranks = plan->n_groups,
                .virtual_stages = plan->n_stages / plan->n_groups,
                .micro_batches = plan->micro_batches,
                .mb_group = plan->mb_group};
  return in;
}

static StageRefusal refuse(StageFault fault, int lacks, const char *why)
{
  return (StageRefusal){why, fault, lacks};
}

static StageRefusal refusal_interleaved(Arena *arena, const StageIn *in, const char *name)
{
  int p = in->ranks, v = in->virtual_stages, m = in->micro_batches, g = mb_group(in);
  if (v < 1) {
    return refuse(STAGE_BAD_CUT, 0, arena_printf(arena, "%s: %d virtual stages, at least 1", name, v));
  }
  if (in->system == SYSTEM_MEGATRON_OVERLAP && p > 1 && v < 2) {
    return refuse(STAGE_BAD_CUT, 0,
                  arena_printf(arena,
                               "%s: %d virtual stage, at least 2 (on %d pipeline ranks, a merged pair needs two)", name,
                               v, p));
  }
  if (v == 1) {
    return (StageRefusal){0};
  }
  if (g < p) {
    return refuse(STAGE_BAD_TURN, 0,
                  arena_printf(arena, "%s: turns of %d micro-batch%s, at least %d (the pipeline ranks)", name, g,
                               g == 1 ? "" : "es", p));
  }
  if (m < g) {
    return refuse(STAGE_FEW_MBS, g - m,
                  arena_printf(arena, "%s: %d micro-batch%s, at least %d (one turn of a virtual stage)", name, m,
                               m == 1 ? "" : "es", g));
  }
  if (m % g && m % g < p) {
    return refuse(STAGE_FEW_MBS, p - m % g,
                  arena_printf(arena,
                               "%s: %d micro-batches in turns of %d leave a last turn of %d, at least %d (the ranks)",
                               name, m, g, m % g, p));
  }
  return (StageRefusal){0};
}

StageRefusal stage_refusal(Arena *arena, const StageIn *in)
{
  const char *name = plan_system_name(in->system);
  int p = in->ranks, m = in->micro_batches;
  if (p < 1) {
    return refuse(STAGE_BAD_RANKS, 0, arena_printf(arena, "%s: %d pipeline ranks, at least 1", name, p));
  }
  if (m < 1) {
    return refuse(STAGE_FEW_MBS, 1, arena_printf(arena, "%s: %d micro-batches, at least 1", name, m));
  }
  if (!stage_dual(in->system)) {
    return refusal_interleaved(arena, in, name);
  }
  if (in->system == SYSTEM_DUALPIPE && p % 2) {
    return refuse(
        STAGE_BAD_RANKS, 0,
        arena_printf(arena, "%s: %d pipeline rank%s, an even number such as %d", name, p, p == 1 ? "" : "s", p + 1));
  }
  if (m < 2 * p) {
    return refuse(STAGE_FEW_MBS, 2 * p - m,
                  arena_printf(arena, "%s: %d micro-batch%s, at least %d (twice the pipeline ranks)", name, m,
                               m == 1 ? "" : "es", 2 * p));
  }
  if (in->system == SYSTEM_DUALPIPE && m % 2) {
    return refuse(STAGE_FEW_MBS, 1,
                  arena_printf(arena, "%s: %d micro-batches, an even number such as %d", name, m, m + 1));
  }
  return (StageRefusal){0};
}

const char *stage_refuses(Arena *arena, const StageIn *in)
{
  return stage_refusal(arena, in).why;
}

int stage_count(const StageIn *in)
{
  if (stage_dual(in->system)) {
    return in->system == SYSTEM_DUALPIPE ? in->ranks : 2 * in->ranks;
  }
  return in->ranks * in->virtual_stages;
}

static void step(StageOrder *order, StageOp op, int mb, int stage)
{
  order->steps[order->n++] = (StageStep){.op = (uint8_t)op, .stage = (int16_t)stage, .mb = mb};
}

/* ---- interleaved 1F1B ---- */

typedef struct Interleaved {
  int p, v, m, g;
  int rank;
  bool merged;
} Interleaved;

/* Virtual micro-batch k of the table that all ranks share: groups of g micro-batches (the last one shorter), in each
   group chunk 0 of all its micro-batches, then chunk 1, ... Backward walks the same table with the chunks mirrored. */
static void virtual_step(const Interleaved *in, StageOrder *order, StageOp op, int k)
{
  int first = k / (in->g * in->v) * in->g;
  int wide = min(in->g, in->m - first), within = k - first * in->v;
  int chunk = within / wide;
  chunk = op == STAGE_F ? chunk : in->v - 1 - chunk;
  step(order, op, first + within % wide, chunk * in->p + in->rank);
}

static void interleaved(const Interleaved *in, StageOrder *order)
{
  int n = in->m * in->v, behind = in->p - in->rank - 1;
  int warm = in->v == 1 ? behind : 2 * behind + (in->v - 1) * in->g;
  warm = min(warm + in->merged, n); /* one more, so that the two of a merged pair never depend on each other */
  for (int k = 0; k < warm; k++) {
    virtual_step(in, order, STAGE_F, k);
  }
  for (int k = 0; k < n - warm; k++) {
    virtual_step(in, order, STAGE_F, k + warm);
    order->steps[order->n - 1].with_next = in->merged;
    virtual_step(in, order, STAGE_B, k);
  }
  for (int k = n - warm; k < n; k++) {
    virtual_step(in, order, STAGE_B, k);
  }
}

/* ---- DualPipe and DualPipeV ---- */

/* One rank's two phases: 0 is the one whose micro-batches reach the rank earlier. */
typedef struct Dual {
  StageOrder *order;
  int first[2], stage[2];      /* first micro-batch and stage of a phase */
  int forward[2], backward[2]; /* how many micro-batches of a phase had theirs */
  int oldest;                  /* where to look for the oldest input gradient whose weight part waits */
} Dual;

static void forward(Dual *d, int phase)
{
  step(d->order, STAGE_F, d->first[phase] + d->forward[phase]++, d->stage[phase]);
}

static void backward(Dual *d, int phase, StageOp op)
{
  step(d->order, op, d->first[phase] + d->backward[phase]++, d->stage[phase]);
}

static void pair(Dual *d, int phase)
{
  forward(d, phase);
  d->order->steps[d->order->n - 1].with_next = true;
  backward(d, 1 - phase, STAGE_B);
}

static void weight(Dual *d)
{
  while (d->order->steps[d->oldest].op != STAGE_I) {
    d->oldest++;
  }
  const StageStep *queued = &d->order->steps[d->oldest++];
  step(d->order, STAGE_W, queued->mb, queued->stage);
}

/* `half` ranks lie between the rank's entrance and the turning point, `near` of them before this one; n micro-batches
   per phase. At a turning point the first pair is not merged: the forward feeds the backward. */
static void dual(Dual *d, int half, int near, int n)
{
  int rest = half - near - 1;
  for (int i = 0; i < 2 * rest; i++) {
    forward(d, 0);
  }
  for (int i = 0; i <= near; i++) {
    forward(d, 0);
    forward(d, 1);
  }
  for (int i = 0; i < rest; i++) {
    backward(d, 1, STAGE_I);
    weight(d);
    forward(d, 1);
  }
  for (int i = 0; i < n - 2 * half + near + 1; i++) {
    pair(d, 0);
    if (i == 0 && rest == 0) {
      d->order->steps[d->order->n - 2].with_next = false;
    }
    pair(d, 1);
  }
  for (int i = 0; i < rest; i++) {
    backward(d, 1, STAGE_B);
    pair(d, 1);
  }
  int split = near + 1; /* halfway through the 2 (near + 1) gradients the weight parts begin to wait */
  for (int i = 0; i <= near; i++) {
    backward(d, 1, 2 * i < split ? STAGE_B : STAGE_I);
    backward(d, 0, 2 * i + 1 < split ? STAGE_B : STAGE_I);
  }
  for (int i = 0; i < rest; i++) {
    weight(d);
    backward(d, 0, STAGE_I);
  }
  for (int i = 0; i <= near; i++) {
    weight(d);
  }
}

static void dualpipe(const StageIn *in, int rank, StageOrder *order)
{
  int p = in->ranks, half = p / 2, n = in->micro_batches / 2;
  Dual d = {.order = order};
  for (int direction = 0; direction < 2; direction++) {
    int phase = rank < half ? direction : 1 - direction;
    d.first[phase] = direction * n;
    d.stage[phase] = direction == 0 ? rank : p - 1 - rank;
  }
  dual(&d, half, min(rank, p - 1 - rank), n);
}

static void dualpipev(const StageIn *in, int rank, StageOrder *order)
{
  int p = in->ranks;
  Dual d = {.order = order, .stage = {rank, 2 * p - 1 - rank}};
  dual(&d, p, rank, in->micro_batches);
}

StageOrder *stage_orders(Arena *arena, const StageIn *in)
{
  StageOrder *orders = arena_new_array(arena, StageOrder, (size_t)in->ranks);
  size_t held = stage_dual(in->system) ? 2 : (size_t)in->virtual_stages;
  for (int rank = 0; rank < in->ranks; rank++) {
    StageOrder *order = &orders[rank];
    order->steps = arena_new_array(arena, StageStep, 3 * held * (size_t)in->micro_batches);
    if (in->system == SYSTEM_DUALPIPE) {
      dualpipe(in, rank, order);
    } else if (in->system == SYSTEM_DUALPIPEV) {
      dualpipev(in, rank, order);
    } else {
      Interleaved rule = {.p = in->ranks,
                          .v = in->virtual_stages,
                          .m = in->micro_batches,
                          .g = in->virtual_stages > 1 ? mb_group(in) : in->micro_batches,
                          .rank = rank,
                          .merged = in->system == SYSTEM_MEGATRON_OVERLAP};
      interleaved(&rule, order);
    }
  }
  return orders;
}

int stage_live(const StageOrder *order)
{
  int live = 0, most = 0;
  for (int i = 0; i < order->n; i++) {
    StageOp op = order->steps[i].op;
    live += op == STAGE_F;
    most = live > most ? live : most;
    live -= op == STAGE_B || op == STAGE_W;
  }
  return most;
}

int stage_owed(const StageOrder *order)
{
  int owed = 0, most = 0;
  for (int i = 0; i < order->n; i++) {
    StageOp op = order->steps[i].op;
    owed += op == STAGE_I;
    most = owed > most ? owed : most;
    owed -= op == STAGE_W;
  }
  return most;
}

void stage_print(const StageOrder *order, FILE *out)
{
  for (int i = 0; i < order->n; i++) {
    const StageStep *s = &order->steps[i];
    char end = s->with_next ? '&' : i + 1 < order->n ? ' ' : '\n';
    fprintf(out, "%c%d.%d%c", "FBbw"[s->op], (int)s -> mb, s -> stage, end);
  }
}
