/* Plans of the colocated systems: pipeline ranks that each hold a few runs of layers, attention and experts alike. The
   number of them, the ranks of each (expert parallelism), virtual stages, chunks and recomputation are enumerated; the
   closed form of the system's schedule ranks them, memory decides which stand. */
#include <math.h>
#include <stdlib.h>

#include "codegen/plan_stage.h"
#include "runtime/moe_layout.h"

enum {
  ALL_RANKS = 64,        /* on clusters up to this size a pipeline rank may have any number of ranks */
  ALL_STAGES = 16,       /* up to here every number of pipeline ranks and of virtual stages is tried */
  MEMORY_TRIALS = 20000, /* layouts whose memory is looked at */
  MOST_CHUNKS = 4,
  ALIKE = 2 /* candidates that differ in virtual stages alone */
};

typedef struct Search {
  Arena *arena;
  const Spec *spec;
  const ShapeSpec *shape;
  Nodes nodes;
  SystemKind system;
  StageLayout *list;
  int n, room;
  /* what stood in the way, for the error */
  StageRefusal refusal; /* of the schedule, of the layout that came closest */
  StageLayout refused;  /* that layout */
  int64_t least_ranks;  /* GPUs of the smallest layout, if none fits; else 0 */
  int64_t need;         /* bytes of the leanest layout, if none fits */
  StageLayout leanest;
  int fullest; /* its pipeline rank */
} Search;

static bool dual(SystemKind system)
{
  return system == SYSTEM_DUALPIPE || system == SYSTEM_DUALPIPEV;
}

static StageIn order_in(const Search *s, const StageLayout *at)
{
  return (StageIn){.system = s->system,
                   .ranks = at->p,
                   .virtual_stages = at->virtual_stages,
                   .micro_batches = at->micro_batches,
                   .mb_group = at->mb_group};
}

/* ---- pins ---- */

static int pinned_ranks(const Spec *spec)
{
  const PlanSpec *pin = &spec->plan;
  return pin->attention_stages > 0 ? pin->attention_stages : pin->ffn_stages;
}

static const char *stages_key(const Spec *spec)
{
  return spec->plan.attention_stages > 0 ? "attention_stages" : "ffn_stages";
}

static bool check_pins(Diag *diag, const Spec *spec, const ShapeSpec *shape)
{
  const PlanSpec *pin = &spec->plan;
  const char *name = plan_system_name(pin->system);
  int p = pinned_ranks(spec), layers = spec->model.layers;
  bool cut = pin->virtual_stages && !dual(pin->system);
  int64_t runs = (int64_t)(p                                ? p
                           : pin->system == SYSTEM_DUALPIPE ? 2
                                                            : 1) *
                 (cut ? pin->virtual_stages : 1) * (pin->system == SYSTEM_DUALPIPEV ? 2 : 1);
  bool ok = true;
  if (pin->attention_stages && pin->ffn_stages && pin->attention_stages != pin->ffn_stages) {
    diag_error(diag, plan_span(spec, "ffn_stages"),
               "%s has attention and experts on the same groups, but attention_stages = %d and ffn_stages = %d", name,
               pin->attention_stages, pin->ffn_stages);
    ok = false;
  }
  if (runs > layers) {
    diag_error(diag,
               cut ? plan_span(spec, "virtual_stages")
               : p ? plan_span(spec, stages_key(spec))
                   : spec_span(spec, "model", "layers"),
               "%s cuts the layers in %lld runs, but the model has %d layer%s: some run would have none", name,
               (long long)runs, layers, layers == 1 ? "" : "s");
    ok = false;
  }
  if (pin->expert_parallel > spec->model.moe.experts) {
    diag_error(diag, plan_span(spec, "expert_parallel"),
               "expert_parallel = %d, but a layer has %d experts: some GPU would have none", pin->expert_parallel,
               spec->model.moe.experts);
    ok = false;
  }
  if (pin->system == SYSTEM_TUTEL && pin->chunks > 1 && pin->dedup == DEDUP_NODE) {
    diag_error(diag, plan_span(spec, "chunks"), "chunks = %d and dedup = node: relays forward whole micro-batches only",
               pin->chunks);
    ok = false;
  }
  if (pin->system == SYSTEM_TUTEL && pin->chunks > shape->seq) {
    diag_error(diag, plan_span(spec, "chunks"),
               "chunks = %d, but a sequence has %lld token%s: some chunk would have none", pin->chunks,
               (long long)shape->seq, shape->seq == 1 ? "" : "s");
    diag_note(diag, shape->span, "that is the shape whose seq is %lld", (long long)shape->seq);
    ok = false;
  }
  if (pin->replicas > shape->global_batch) {
    diag_error(diag, plan_span(spec, "replicas"),
               "replicas = %d, but a step has %d sequences: some replica would get none", pin->replicas,
               shape->global_batch);
    ok = false;
  }
  return ok;
}

/* ---- layouts ---- */

static void batch(const Search *s, StageLayout *at)
{
  int share = (int)moe_part_max(s->shape->global_batch, at->replicas);
  int64_t seqs = (int64_t)s->shape->micro_batch * at->n;
  at->mb_seqs = (int)(seqs < share ? seqs : share);
  at->micro_batches = (int)moe_part_max(share, at->mb_seqs);
}

/* Keeps the refusal that says most about what the user asked for. Where the planner is free to choose the number that
   is to blame it tries others, and those say more. */
static void note_refusal(Search *s, const StageLayout *at, StageRefusal r)
{
  bool fewer_ranks = pinned_ranks(s->spec) == 0 && r.fault != STAGE_FEW_MBS;
  bool more_runs = r.fault == STAGE_BAD_CUT && s->spec->plan.virtual_stages == 0 && at->p <= s->spec->model.layers / 2;
  if (fewer_ranks || more_runs || (s->refusal.why && s->refusal.lacks <= r.lacks)) {
    return;
  }
  s->refusal = r;
  s->refused = *at;
}

static void note_ranks(Search *s, int64_t ranks)
{
  s->least_ranks = s->least_ranks == 0 || ranks < s->least_ranks ? ranks : s->least_ranks;
}

/* Replicas of p x n ranks: as many as the cluster has room for and the schedule has micro-batches for. */
static bool find_replicas(Search *s, StageLayout *at)
{
  int least = s->spec->plan.replicas > 0 ? s->spec->plan.replicas : 1;
  int64_t ranks = (int64_t)at->p * at->n;
  if (ranks * least > s->nodes.total) {
    note_ranks(s, ranks * least);
    return false;
  }
  int most = s->spec->plan.replicas > 0 ? least : (int)(s->nodes.total / ranks);
  most = most < s->shape->global_batch ? most : s->shape->global_batch;
  for (at->replicas = most; at->replicas >= least; at->replicas--) {
    batch(s, at);
    StageIn in = order_in(s, at);
    StageRefusal refusal = stage_refusal(s->arena, &in);
    if (!refusal.why) {
      return true;
    }
    note_refusal(s, at, refusal);
  }
  return false;
}

/* One op table serves all replicas, so nodes must cut them alike, unless the user has fixed all numbers. */
static bool aligned(const Search *s, const StageLayout *at)
{
  int ranks = at->p * at->n, per = s->nodes.ranks;
  bool fixed = s->spec->plan.expert_parallel > 0 && pinned_ranks(s->spec) > 0;
  return fixed || at->replicas == 1 || ranks * at->replicas <= per || ranks % per == 0 || per % ranks == 0;
}

static void add(Search *s, const StageLayout *at)
{
  s->list = arena_grow(s->arena, s->list, s->n, &s->room, sizeof *s->list);
  s->list[s->n++] = *at;
}

/* Virtual stages that make a difference: the smallest for each depth of the deepest run. */
static bool useful(int layers, int p, int v, int pinned)
{
  if (pinned > 0 || p == 1) { /* one rank runs its layers one after the other, however they are cut */
    return v == (pinned > 0 ? pinned : 1);
  }
  return v <= ALL_STAGES / 2 || moe_part_max(layers, (int64_t)p * v) != moe_part_max(layers, (int64_t)p * (v - 1));
}

/* All cuts of p ranks' layers. */
static void price_layouts(Search *s, StageLayout at, const StageTimes *t)
{
  int layers = s->spec->model.layers, pinned = s->spec->plan.virtual_stages;
  int most = dual(s->system) ? 1 : layers / at.p;
  at.mb_group = s->spec->plan.mb_group > 0 ? s->spec->plan.mb_group : at.p;
  for (int v = 1; v <= most; v++) {
    if (!dual(s->system) && !useful(layers, at.p, v, pinned)) {
      continue;
    }
    at.virtual_stages = v;
    StageIn in = order_in(s, &at);
    at.stages = stage_count(&in);
    if (at.stages <= layers && find_replicas(s, &at) && aligned(s, &at)) {
      for (at.shard = OPT_SHARD_HOLDERS; at.shard < OPT_SHARD_AUTO; at.shard++) {
        if (plan_shard_allowed(s->spec, at.shard)) {
          at.estimate = stage_step_ns(s->spec, &at, t);
          add(s, &at);
        }
      }
    }
  }
}

static Choice choice_of(const Search *s, const StageLayout *at)
{
  Choice c = {.replicas = at->replicas,
              .place = PLACE_COLOCATED,
              .recompute = at->recompute,
              .shard = at->shard,
              .stages = at->stages,
              .mb_group = at->mb_group,
              .chunks = at->chunks,
              .estimate = at->estimate};
  c.att = (Side){.p = at->p, .n = at->n, .nics = plan_default_nics(&s->nodes, at->p * at->n)};
  c.ffn = c.att;
  return c;
}

static int divisor(int a, int b)
{
  return b == 0 ? a : divisor(b, a % b);
}

/* Times on pipeline ranks of n ranks each. Nodes cut every k-th group alike. */
static void times_of(const Search *s, StageLayout at, StageTimes *t)
{
  int layers = s->spec->model.layers, k = s->nodes.ranks / divisor(s->nodes.ranks, at.n);
  int room = s->nodes.total / at.n;
  k = k < 2 ? 2 : k;
  k = k < room ? k : room;
  k = k < layers ? k : layers;
  if (dual(s->system)) {
    k = k > 2 ? k - k % 2 : k;
  }
  at.p = at.stages = k;
  at.replicas = at.virtual_stages = 1;
  Spec view = *s->spec;
  view.plan.system = SYSTEM_MEGATRON; /* one direction is enough */
  Choice choice = choice_of(s, &at);
  Plan plan;
  plan_build(s->arena, &view, s->shape, &choice, &plan);
  plan.system = s->system == SYSTEM_TUTEL ? s->system : SYSTEM_MEGATRON;
  stage_times(&view, &plan, t);
}

static bool rank_count(const Search *s, int n)
{
  int pinned = s->spec->plan.expert_parallel, per = s->nodes.ranks;
  if (pinned > 0) {
    return n == pinned;
  }
  return s->nodes.total <= ALL_RANKS || per % n == 0 || n % per == 0;
}

static void list_layouts(Search *s)
{
  const PlanSpec *pin = &s->spec->plan;
  int pinned = pinned_ranks(s->spec), layers = s->spec->model.layers, experts = s->spec->model.moe.experts;
  int most = pin->expert_parallel > 0 ? pin->expert_parallel : s->nodes.total < experts ? s->nodes.total : experts;
  bool tutel = s->system == SYSTEM_TUTEL;
  if (pin->expert_parallel > s->nodes.total) {
    note_ranks(s, pin->expert_parallel);
  }
  for (int n = 1; n <= most; n++) {
    for (int r = RECOMPUTE_NONE; r <= RECOMPUTE_FULL; r++) {
      for (int d = 1; d <= MOST_CHUNKS; d *= 2) {
        int chunks = tutel && pin->chunks > 0 ? pin->chunks : d;
        if (!rank_count(s, n) || n > s->nodes.total ||
            (pin->recompute != RECOMPUTE_AUTO && pin->recompute != (Recompute)r) ||
            (d > 1 && (!tutel || pin->chunks > 0 || pin->dedup == DEDUP_NODE)) || chunks > s->shape->seq) {
          continue;
        }
        StageLayout at = {.n = n, .recompute = (Recompute)r, .chunks = chunks};
        StageTimes t;
        times_of(s, at, &t);
        for (int p = pinned ? pinned : 1; p <= (pinned ? pinned : layers); p++) {
          if (pinned || p <= ALL_STAGES || moe_part_max(layers, p) != moe_part_max(layers, p - 1)) {
            at.p = p;
            price_layouts(s, at, &t);
          }
        }
      }
    }
  }
}

/* ---- memory ---- */

int plan_deepest_run(const Spec *spec, const Plan *plan, int group)
{
  int64_t deepest = 0;
  for (int w = 0; w < plan->ways; w++) {
    for (int st = 0; st < plan->n_stages; st++) {
      int64_t n = moe_part_size(spec->model.layers, plan->n_stages, st);
      deepest = plan_stage_group(plan, w, st) == group && n > deepest ? n : deepest;
    }
  }
  return (int)deepest;
}

/* Fills `live` and `work` of the groups: slots for the pairs of layer and micro-batch that each may have to keep, and
   for work under way. */
static void set_live(const Search *s, const StageLayout *at, Plan *plan, const StageOrder *orders)
{
  for (int r = 0; r < plan->n_groups; r++) {
    int deepest = plan_deepest_run(s->spec, plan, r);
    int live = orders ? stage_live(&orders[r]) : stage_live_bound(s->system, at, r);
    int owed = orders ? stage_owed(&orders[r]) : stage_owed_bound(s->system, at, r);
    plan->groups[r].live = live * deepest;
    plan->groups[r].work = stage_work(s->system, owed, deepest);
  }
}

/* Bytes on the fullest rank of a group. */
static int64_t group_need(const Search *s, const Plan *plan, int g)
{
  MemIn in = plan_mem_in(s->spec, plan, &plan->groups[g], plan->in_flight);
  return memory_need(s->spec, &in, PLAN_A | PLAN_F);
}

/* The first pipeline rank keeps most micro-batches, the last has the head, others may have a layer more. */
static int64_t layout_need(Search *s, const StageLayout *at, int *fullest)
{
  Plan plan;
  Choice choice = choice_of(s, at);
  plan_build(s->arena, s->spec, s->shape, &choice, &plan);
  set_live(s, at, &plan, NULL);
  int64_t most = 0;
  for (int g = 0; g < plan.n_groups; g++) {
    bool look = g == 0 || g == plan.n_groups - 1 || plan.groups[g].live > plan.groups[g - 1].live ||
                plan.groups[g].work > plan.groups[g - 1].work;
    int64_t need = look ? group_need(s, &plan, g) : 0;
    if (need > most) {
      most = need;
      *fullest = g;
    }
  }
  return most;
}

static int by_estimate(const void *a, const void *b)
{
  const StageLayout *x = a, *y = b;
  if (x->estimate != y->estimate) {
    return x->estimate < y->estimate ? -1 : 1;
  }
  const int keys[][2] = {{x->replicas * x->p * x->n, y->replicas * y->p * y->n},
                         {x->p, y->p},
                         {x->stages, y->stages},
                         {x->chunks, y->chunks},
                         {(int)x->recompute, (int)y->recompute},
                         {(int)x->shard, (int)y->shard},
                         {x->n, y->n}};
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
    if (keys[i][0] != keys[i][1]) {
      return keys[i][0] < keys[i][1] ? -1 : 1;
    }
  }
  return 0;
}

/* Enough cuts of the same ranks are among those kept: the next should differ in more. */
static bool crowded(const StageLayout *kept, int n, const StageLayout *at)
{
  int alike = 0;
  for (int i = 0; i < n; i++) {
    alike += kept[i].p == at->p && kept[i].n == at->n && kept[i].chunks == at->chunks &&
             kept[i].recompute == at->recompute && kept[i].shard == at->shard;
  }
  return alike >= ALIKE;
}

/* ---- plans ---- */

void plan_set_stage_sides(const Spec *spec, Plan *plan)
{
  StageTimes t;
  stage_times(spec, plan, &t);
  plan->t_att_ns = fmax(t.att_fwd, fmax(t.dispatch, t.combine));
  plan->t_ffn_ns = fmax(t.ffn_fwd, fmax(t.dispatch, t.combine));
}

static bool complete(Arena *arena, Diag *diag, const Search *s, const StageLayout *at, Plan *plan, bool *fits)
{
  StageIn in = order_in(s, at);
  Choice choice = choice_of(s, at);
  plan_build(arena, s->spec, s->shape, &choice, plan);
  Arena *scratch = arena_new();
  set_live(s, at, plan, stage_orders(scratch, &in));
  arena_free(scratch);
  cost_memory(s->spec, plan);
  *fits = true;
  for (int g = 0; g < plan->n_groups; g++) {
    *fits = *fits && plan->groups[g].memory.total <= plan->groups[g].memory.limit;
  }
  if (!*fits) {
    return true;
  }
  plan_set_stage_sides(s->spec, plan);
  plan_set_step(s->spec, plan, at->estimate);
  bool pinned = s->spec->plan.expert_parallel > 0 && pinned_ranks(s->spec) > 0 && s->spec->plan.replicas > 0;
  plan->solver.name = pinned ? "pinned" : "enumeration";
  plan->solver.status = "optimal";
  return plan_check(diag, s->spec, plan);
}

/* ---- what is missing ---- */

/* Place of the pin that leaves a step so few micro-batches, or else of the shape. */
static Span batch_span(const Search *s)
{
  const PlanSpec *pin = &s->spec->plan;
  const char *key = pin->expert_parallel > 1    ? "expert_parallel"
                    : pin->replicas > 1         ? "replicas"
                    : pinned_ranks(s->spec) > 1 ? stages_key(s->spec)
                                                : NULL;
  return key ? spec_span(s->spec, "plan", key) : s->shape->span;
}

static Span refusal_span(const Search *s)
{
  const PlanSpec *pin = &s->spec->plan;
  switch (s->refusal.fault) {
  case STAGE_BAD_CUT:
    return plan_span(s->spec, pin->virtual_stages ? "virtual_stages" : stages_key(s->spec));
  case STAGE_BAD_TURN:
    return plan_span(s->spec, "mb_group");
  case STAGE_FEW_MBS:
    return pin->mb_group && !dual(s->system) ? plan_span(s->spec, "mb_group") : batch_span(s);
  default:
    return plan_span(s->spec, stages_key(s->spec));
  }
}

static void explain_refusal(Diag *diag, const Search *s)
{
  const StageLayout *at = &s->refused;
  const ShapeSpec *shape = s->shape;
  diag_error(diag, refusal_span(s), "no plan: %s", s->refusal.why);
  if (s->refusal.fault == STAGE_FEW_MBS) {
    diag_note(diag, shape->span,
              "a step has %d sequence%s; with %d replica%s and %d for each of a pipeline rank's %d GPU%s a micro-batch "
              "has %d",
              shape->global_batch, shape->global_batch == 1 ? "" : "s", at->replicas, at->replicas == 1 ? "" : "s",
              shape->micro_batch, at->n, at->n == 1 ? "" : "s", at->mb_seqs);
  } else if (s->refusal.fault == STAGE_BAD_CUT && s->spec->plan.virtual_stages == 0) {
    diag_note(diag, spec_span(s->spec, "model", "layers"), "%d layers leave each pipeline rank %d",
              s->spec->model.layers, s->spec->model.layers / at->p);
  }
}

static void explain(Diag *diag, const Search *s)
{
  const char *name = plan_system_name(s->system);
  const GpuSpec *gpu = &s->spec->cluster.gpu;
  static const double gib = 1024.0 * 1024 * 1024;
  if (s->need > 0) {
    const StageLayout *at = &s->leanest;
    double need = (double)s->need / gib, have = (double)gpu->memory / gib;
    diag_error(diag, spec_span(s->spec, "gpu", "memory"),
               "no plan: GPU memory is %.4g GiB, but the leanest layout of %s needs %.4g GiB on its fullest rank (%.4g "
               "GiB too little)",
               have, name, need, need - have);
    diag_note(diag, plan_span(s->spec, NULL),
              "that is pipeline rank %d of %d, with %d GPUs each, %d run%s of layers on each and %d replica%s",
              s->fullest, at->p, at->n, at->stages / at->p, at->stages == at->p ? "" : "s", at->replicas,
              at->replicas == 1 ? "" : "s");
    diag_note(diag, spec_span(s->spec, "gpu", "memory"), "smallest change: memory = %.0f MiB",
              ceil((double)s->need / 1048576));
    return;
  }
  if (s->refusal.why) {
    explain_refusal(diag, s);
    return;
  }
  if (s->least_ranks > s->nodes.total) {
    int per = s->spec->cluster.gpus;
    diag_error(diag, batch_span(s), "no plan: the pins ask for %lld GPUs, the cluster has %d (%lld too few)",
               (long long)s->least_ranks, s->nodes.total, (long long)s->least_ranks - s->nodes.total);
    diag_note(diag, spec_span(s->spec, "cluster", "nodes"), "smallest change: nodes = %lld (of %d GPUs each)",
              (long long)moe_part_max(s->least_ranks, per), per);
    return;
  }
  diag_error(diag, plan_span(s->spec, NULL), "no plan: no layout of %s fits %d nodes of %d GPUs under these pins", name,
             s->nodes.count, s->nodes.ranks);
  diag_note(diag, plan_span(s->spec, NULL),
            "smallest change: leave one of replicas, stages or expert_parallel to the planner");
}

int plan_colocated(Arena *arena, Diag *diag, const Spec *spec, const ShapeSpec *shape, Plan *plans, int most,
                   bool *infeasible)
{
  *infeasible = false;
  if (!check_pins(diag, spec, shape)) {
    return 0;
  }
  double begin = plan_now_ms();
  int n = 0;
  bool ok = true;
  Arena *scratch = arena_new(), *trial = arena_new();
  StageLayout *kept = arena_new_array(scratch, StageLayout, (size_t)most);
  Search s = {.arena = scratch, .spec = spec, .shape = shape, .nodes = plan_nodes(spec), .system = spec->plan.system};
  if (s.nodes.ranks < 1 || s.nodes.total < 1 || spec->model.layers < 1 || shape->global_batch < 1 ||
      shape->micro_batch < 1) {
    die("a spec without layers, GPUs or sequences"); /* all divisions below are by these or by parts of them */
  }
  list_layouts(&s);
  if (s.n) {
    qsort(s.list, (size_t)s.n, sizeof *s.list, by_estimate);
  }
  for (int i = 0; i < s.n && i < MEMORY_TRIALS && n < most && ok; i++) {
    int fullest = 0;
    bool fits = false;
    if (crowded(kept, n, &s.list[i])) {
      continue;
    }
    s.arena = trial;
    int64_t need = layout_need(&s, &s.list[i], &fullest);
    if (i % 64 == 63) { /* plans that were only looked at */
      arena_free(trial);
      trial = arena_new();
    }
    if (need <= spec->cluster.gpu.memory) {
      kept[n] = s.list[i];
      ok = complete(arena, diag, &s, &s.list[i], &plans[n], &fits);
      n += ok && fits;
    } else if (s.need == 0 || need < s.need) {
      s.need = need;
      s.leanest = s.list[i];
      s.fullest = fullest;
    }
  }
  for (int i = 0; i < n; i++) {
    plans[i].solver.ms = plan_now_ms() - begin;
  }
  if (ok && n == 0) {
    *infeasible = true;
    explain(diag, &s);
  }
  arena_free(trial);
  arena_free(scratch);
  return ok ? n : 0;
}
