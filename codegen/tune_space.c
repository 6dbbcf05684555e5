/* Plans near a plan. A move changes one thing by one step: the GPUs of a side, GPUs from one side to the other, the
   groups of a side or of both with their GPUs kept, NICs from one side to the other, micro-batches in flight; of
   colocated systems GPUs or pipeline ranks, one for the other, virtual stages, chunks. A step goes to the next value
   that the planner accepts. What the spec pins stays; what neither it nor the move says the planner chooses anew. */
#include <math.h>
#include <string.h>

#include "codegen/listener.h"
#include "codegen/tune.h"

enum { MOST_CANDIDATES = 1024, LEAST_TRIES = 16 };

/* ---- a plan as pins ---- */

static int *one(Arena *arena, int n)
{
  int *list = arena_new_array(arena, int, 1);
  list[0] = n;
  return list;
}

/* GPUs of the groups of a role: one number, or one for each where they differ. */
static int *gpus_of(Arena *arena, const Plan *plan, int role, int *n)
{
  int *list = arena_new_array(arena, int, (size_t)plan->n_groups);
  bool even = true;
  *n = 0;
  for (int i = 0; i < plan->n_groups; i++) {
    if (plan->groups[i].role & role) {
      even = even && (*n == 0 || plan->groups[i].n_ranks == list[0]);
      list[(*n)++] = plan->groups[i].n_ranks;
    }
  }
  *n = even ? 1 : *n;
  return list;
}

static bool interleaved(SystemKind system)
{
  return plan_system_colocated(system) && plan_system_ways(system) == 1;
}

static PlanSpec pins_of(Arena *arena, const PlanSpec *base, const Plan *plan, bool with_nics)
{
  PlanSpec pins = *base;
  pins.system = plan->system;
  pins.dedup = plan->dedup;
  pins.recompute = plan->recompute;
  pins.replicas = plan->replicas;
  pins.attention_stages = pins.ffn_stages = plan->p_att;
  if (plan_system_colocated(plan->system)) {
    pins.placement = PLACE_AUTO;
    pins.n_attention_gpus = pins.n_ffn_gpus = pins.attention_nics = pins.ffn_nics = pins.in_flight = 0;
    pins.expert_parallel = plan->groups[0].n_ranks;
    pins.virtual_stages = interleaved(plan->system) ? plan->n_stages / plan->n_groups : 0;
    pins.mb_group = interleaved(plan->system) ? plan->mb_group : 0;
    pins.chunks = plan->system == SYSTEM_TUTEL ? plan->chunks : 0;
    return pins;
  }
  pins.expert_parallel = pins.virtual_stages = pins.mb_group = pins.chunks = 0;
  pins.placement = plan->placement;
  pins.ffn_stages = plan->p_ffn;
  pins.attention_gpus = gpus_of(arena, plan, PLAN_A, &pins.n_attention_gpus);
  pins.ffn_gpus = gpus_of(arena, plan, PLAN_F, &pins.n_ffn_gpus);
  pins.attention_nics = with_nics ? plan_nics(plan, PLAN_A) : base->attention_nics;
  pins.ffn_nics = with_nics ? plan_nics(plan, PLAN_F) : base->ffn_nics;
  pins.in_flight = plan->in_flight;
  return pins;
}

static bool same_ints(const int *a, int n, const int *b, int m)
{
  return n == m && (n == 0 || memcmp(a, b, (size_t)n * sizeof *a) == 0);
}

static bool same_pins(const PlanSpec *a, const PlanSpec *b)
{
  return a->system == b->system && a->placement == b->placement && a->dedup == b->dedup &&
         a->recompute == b->recompute && a->replicas == b->replicas && a->attention_stages == b->attention_stages &&
         a->ffn_stages == b->ffn_stages && a->attention_nics == b->attention_nics && a->ffn_nics == b->ffn_nics &&
         a->in_flight == b->in_flight && a->expert_parallel == b->expert_parallel &&
         a->virtual_stages == b->virtual_stages && a->mb_group == b->mb_group && a->chunks == b->chunks &&
         same_ints(a->attention_gpus, a->n_attention_gpus, b->attention_gpus, b->n_attention_gpus) &&
         same_ints(a->ffn_gpus, a->n_ffn_gpus, b->ffn_gpus, b->n_ffn_gpus);
}

/* Plans with the pins alone, in `scratch`. */
static bool solve(Arena *scratch, const Spec *spec, const PlanSpec *pins, Plan *plan)
{
  Spec view = *spec;
  bool infeasible = false;
  view.plan = *pins;
  Listener *l = listener_new(scratch);
  bool ok = plan_solve(scratch, l->diag, &view, 0, pins->system, plan, &infeasible);
  listener_heard(scratch, l);
  return ok;
}

static void set_place(TuneCandidate *c, const Plan *plan)
{
  int ranks_a = 0, ranks_f = 0;
  for (int i = 0; i < plan->n_groups; i++) {
    ranks_a += plan->groups[i].role & PLAN_A ? plan->groups[i].n_ranks : 0;
    ranks_f += plan->groups[i].role & PLAN_F ? plan->groups[i].n_ranks : 0;
  }
  const PlanSpec *p = &c->pins;
  const double at[TUNE_FEATURES] = {log2(ranks_a),
                                    log2(ranks_f),
                                    log2(plan->p_att),
                                    log2(plan->p_ffn),
                                    c->on_nics ? log2(1 + plan_nics(plan, PLAN_A)) : 0,
                                    c->on_nics ? log2(1 + plan_nics(plan, PLAN_F)) : 0,
                                    0.15 * log2(plan->in_flight > 0 ? plan->in_flight : 1),
                                    0.5 * (double)p->recompute,
                                    p->placement == PLACE_MIXED ? 1 : 0,
                                    log2(p->virtual_stages > 0 ? p->virtual_stages : 1),
                                    log2(p->chunks > 0 ? p->chunks : 1),
                                    2.0 * (double)p->system};
  memcpy(c->at, at, sizeof at);
}

TuneCandidate *tune_add(TunePool *pool, const PlanSpec *asked, const Plan *plan)
{
  Arena *scratch = arena_new();
  const PlanSpec *base = &pool->spec->plan;
  TuneCandidate *c = arena_new_of(pool->arena, TuneCandidate), *found = NULL;
  c->on_nics = plan->replica_ranks > plan->ranks_per_node && !plan_system_colocated(plan->system);
  c->asked = *asked;
  c->trial = c->moves = -1;
  c->estimate_ns = plan->step_ns;
  bool again = false;
  for (int nics = c->on_nics; nics >= 0 && !again; nics--) { /* NICs may be shared in a way that no pin says */
    c->pins = pins_of(pool->arena, base, plan, nics);
    Plan second;
    PlanSpec pins;
    again = solve(scratch, pool->spec, &c->pins, &second);
    if (again) {
      pins = pins_of(scratch, base, &second, nics);
      again = same_pins(&c->pins, &pins) && plan_nics(&second, PLAN_A) == plan_nics(plan, PLAN_A) &&
              plan_nics(&second, PLAN_F) == plan_nics(plan, PLAN_F);
    }
  }
  for (int i = 0; i < pool->n && again && !found; i++) {
    found = same_pins(&pool->list[i]->pins, &c->pins) ? pool->list[i] : NULL;
  }
  if (again && !found && pool->n < MOST_CANDIDATES) {
    set_place(c, plan);
    Spec view = *pool->spec;
    view.plan = c->pins;
    c->load = tune_load(scratch, &view, plan);
    pool->list = arena_grow(pool->arena, pool->list, pool->n, &pool->room, sizeof(TuneCandidate *));
    pool->list[pool->n++] = found = c;
  }
  arena_free(scratch);
  return found;
}

/* ---- moves ---- */

typedef struct Walk {
  TunePool *pool;
  TuneCandidate *from;
} Walk;

/* Plans with these pins and adds the plan. False if there is none. */
static bool land(Walk *w, const PlanSpec *asked)
{
  Arena *scratch = arena_new();
  Plan plan;
  bool ok = solve(scratch, w->pool->spec, asked, &plan);
  TuneCandidate *c = ok ? tune_add(w->pool, asked, &plan) : NULL;
  if (c && w->from->n_near < TUNE_MOVES) {
    w->from->near[w->from->n_near++] = c;
  }
  arena_free(scratch);
  return c != NULL;
}

/* Where a move begins: the shape of the plan is pinned, the rest as in the spec. */
static PlanSpec start_of(const Walk *w)
{
  PlanSpec p = w->pool->spec->plan;
  const PlanSpec *own = &w->from->pins;
  p.system = own->system;
  p.replicas = own->replicas;
  p.attention_stages = own->attention_stages;
  p.ffn_stages = own->ffn_stages;
  p.attention_gpus = own->attention_gpus;
  p.n_attention_gpus = own->n_attention_gpus;
  p.ffn_gpus = own->ffn_gpus;
  p.n_ffn_gpus = own->n_ffn_gpus;
  p.expert_parallel = own->expert_parallel;
  p.virtual_stages = own->virtual_stages;
  p.chunks = own->chunks;
  p.mb_group = own->mb_group ? p.mb_group : 0;
  if (plan_system_colocated(own->system)) {
    p.attention_nics = p.ffn_nics = p.in_flight = 0;
    p.placement = PLACE_AUTO;
  } else if (p.placement == PLACE_COLOCATED && w->pool->spec->plan.system == SYSTEM_AUTO) {
    p.placement = PLACE_AUTO;
  }
  return p;
}

/* GPUs that a step may add or take: up to a node's, since sides of several nodes have whole ones. */
static int most_tries(const Walk *w)
{
  int gpus = w->pool->spec->cluster.gpus;
  return gpus > LEAST_TRIES ? gpus : LEAST_TRIES;
}

/* GPUs of the sides change by `att` and `ffn` times the smallest number that the planner accepts. */
static void move_gpus(Walk *w, int att, int ffn)
{
  const PlanSpec *own = &w->from->pins, *base = &w->pool->spec->plan;
  if ((att && (base->n_attention_gpus || own->n_attention_gpus != 1)) ||
      (ffn && (base->n_ffn_gpus || own->n_ffn_gpus != 1))) {
    return;
  }
  int p_att = own->attention_stages, p_ffn = own->ffn_stages;
  for (int k = 1, tries = 0; tries < most_tries(w) && k <= 64 * most_tries(w); k++) {
    PlanSpec p = start_of(w);
    if ((att && k % p_att) || (ffn && k % p_ffn)) {
      continue;
    }
    tries++;
    int n_att = own->attention_gpus[0] + att * k / p_att, n_ffn = own->ffn_gpus[0] + ffn * k / p_ffn;
    if (n_att < 1 || n_ffn < 1) {
      return;
    }
    if (att) {
      p.attention_gpus = one(w->pool->arena, n_att);
    }
    if (ffn) {
      p.ffn_gpus = one(w->pool->arena, n_ffn);
    }
    if (land(w, &p)) {
      return;
    }
  }
}

/* Next number of groups into which `gpus` GPUs divide; 0: none. */
static int next_stages(int gpus, int stages, int by, int most)
{
  for (int p = stages + by; p >= 1 && p <= gpus && p <= most; p += by) {
    if (gpus % p == 0) {
      return p;
    }
  }
  return 0;
}

static void move_stages(Walk *w, bool att, bool ffn, int by)
{
  const PlanSpec *own = &w->from->pins, *base = &w->pool->spec->plan;
  int layers = w->pool->spec->model.layers;
  PlanSpec p = start_of(w);
  if ((att && (base->attention_stages || base->n_attention_gpus || own->n_attention_gpus != 1)) ||
      (ffn && (base->ffn_stages || base->n_ffn_gpus || own->n_ffn_gpus != 1)) ||
      (att && ffn && own->attention_stages != own->ffn_stages) || own->system == SYSTEM_AFD) {
    return;
  }
  int gpus_a = own->attention_gpus[0] * own->attention_stages, gpus_f = own->ffn_gpus[0] * own->ffn_stages;
  for (int next = own->attention_stages; att;) {
    next = next_stages(gpus_a, next, by, layers);
    if (next == 0 || !ffn || gpus_f % next == 0) {
      p.attention_stages = next;
      break;
    }
  }
  if (ffn) {
    p.ffn_stages = att ? p.attention_stages : next_stages(gpus_f, own->ffn_stages, by, layers);
  }
  if (p.attention_stages == 0 || p.ffn_stages == 0) {
    return;
  }
  if (att) {
    p.attention_gpus = one(w->pool->arena, gpus_a / p.attention_stages);
  }
  if (ffn) {
    p.ffn_gpus = one(w->pool->arena, gpus_f / p.ffn_stages);
  }
  land(w, &p);
}

static void move_nics(Walk *w, int att, int ffn)
{
  const PlanSpec *base = &w->pool->spec->plan;
  PlanSpec p = w->from->asked;
  if (!w->from->on_nics || (att && base->attention_nics) || (ffn && base->ffn_nics)) {
    return;
  }
  for (int k = 1; k <= LEAST_TRIES; k++) {
    p.attention_nics = w->from->pins.attention_nics + att * k;
    p.ffn_nics = w->from->pins.ffn_nics + ffn * k;
    if (p.attention_nics < 1 || p.ffn_nics < 1 || land(w, &p)) {
      return;
    }
  }
}

static void move_in_flight(Walk *w, int by)
{
  PlanSpec p = w->from->asked;
  p.in_flight = w->from->pins.in_flight + by;
  if (!w->pool->spec->plan.in_flight && p.in_flight >= 1) {
    land(w, &p);
  }
}

/* Colocated systems: expert_parallel and stages by so many steps; with both, their product is kept. */
static void move_ranks(Walk *w, int ep, int pp)
{
  const PlanSpec *own = &w->from->pins, *base = &w->pool->spec->plan;
  if ((ep && base->expert_parallel) || (pp && base->attention_stages)) {
    return;
  }
  const Spec *spec = w->pool->spec;
  int ranks = own->expert_parallel * own->attention_stages, gpus = spec->cluster.nodes * spec->cluster.gpus;
  for (int k = 1; k <= most_tries(w); k++) {
    PlanSpec p = start_of(w);
    p.expert_parallel = own->expert_parallel + ep * k;
    p.attention_stages = own->attention_stages + pp * k;
    if (ep && pp) {
      p.attention_stages = p.expert_parallel > 0 && ranks % p.expert_parallel == 0 ? ranks / p.expert_parallel : 0;
    }
    p.ffn_stages = p.attention_stages;
    if (p.expert_parallel < 1 || (p.attention_stages < 1 && !(ep && pp))) {
      return;
    }
    if (p.attention_stages >= 1 && p.expert_parallel <= spec->model.moe.experts &&
        (int64_t)p.expert_parallel * p.attention_stages * p.replicas <= gpus && land(w, &p)) {
      return;
    }
  }
}

static void move_colocated_rest(Walk *w, int virtual, int chunks)
{
  const PlanSpec *own = &w->from->pins, *base = &w->pool->spec->plan;
  if ((virtual && (base->virtual_stages || own->virtual_stages == 0)) ||
      (chunks && (base->chunks || own->chunks == 0))) {
    return;
  }
  for (int k = 1; k <= LEAST_TRIES; k++) {
    PlanSpec p = start_of(w);
    p.virtual_stages = own->virtual_stages + virtual * k;
    p.chunks = own->chunks + chunks * k;
    int64_t stages = (int64_t)p.virtual_stages * p.attention_stages;
    if ((virtual && (p.virtual_stages < 1 || stages > w->pool->spec->model.layers)) ||
        (chunks && (p.chunks < 1 || p.chunks > 4)) || land(w, &p)) {
      return;
    }
  }
}

static void move_all(Walk *w)
{
  for (int by = 1; by >= -1; by -= 2) {
    if (plan_system_colocated(w->from->pins.system)) {
      move_ranks(w, by, -by);
      move_ranks(w, by, 0);
      move_ranks(w, 0, by);
      move_colocated_rest(w, by, 0);
      move_colocated_rest(w, 0, by);
      continue;
    }
    move_gpus(w, by, -by);
    move_gpus(w, by, 0);
    move_gpus(w, 0, by);
    move_stages(w, true, true, by);
    move_stages(w, true, false, by);
    move_stages(w, false, true, by);
    move_nics(w, by, -by);
    move_nics(w, by, 0);
    move_nics(w, 0, by);
    move_in_flight(w, by);
  }
}

void tune_neighbours(TunePool *pool, TuneCandidate *from, int radius)
{
  for (int i = 0; i < pool->n; i++) {
    pool->list[i]->moves = -1;
  }
  from->moves = 0;
  for (int d = 0; d < radius; d++) {
    for (int i = 0, n = pool->n; i < n; i++) {
      TuneCandidate *c = pool->list[i];
      if (c->moves != d) {
        continue;
      }
      if (!c->expanded) {
        c->expanded = true;
        move_all(&(Walk){pool, c});
      }
      for (int k = 0; k < c->n_near; k++) {
        if (c->near[k]->moves < 0) {
          c->near[k]->moves = d + 1;
        }
      }
    }
  }
}

void tune_predict(TunePool *pool, TuneCandidate *c)
{
  Arena *scratch = arena_new();
  Spec view = *pool->spec;
  Plan plan;
  Schedule sched;
  bool infeasible = false;
  view.plan = c->pins;
  Listener *l = listener_new(scratch);
  bool ok = plan_solve(scratch, l->diag, &view, 0, c->pins.system, &plan, &infeasible) &&
            (!pool->cpu || emit_supported(l->diag, &view, &plan, TARGET_CPU)) &&
            sched_build(scratch, l->diag, &view, &plan, &sched);
  listener_heard(scratch, l);
  c->refused = !ok;
  c->predicted_ns = ok ? (double)sched.step_ns : INFINITY;
  arena_free(scratch);
}
