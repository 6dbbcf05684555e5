/* An independent look at a finished plan: own arithmetic, no call into the planner or the cost model. */
#include <stdlib.h>
#include <string.h>

#include "codegen/plan.h"

typedef struct Check {
  Diag *diag;
  const Spec *spec;
  const Plan *plan;
  bool ok;
} Check;

#define FAIL(c, ...) ((c)->ok = false, diag_error((c)->diag, (Span){0}, "plan: " __VA_ARGS__))

static char letter(const PlanGroup *g)
{
  return (g->role & PLAN_A) ? 'A' : 'F';
}

/* Groups tile the ranks of a replica, and all replicas fit the cluster. */
static void check_ranks(Check *c)
{
  const Plan *plan = c->plan;
  int total = 0;
  for (int i = 0; i < plan->n_groups; i++) {
    const PlanGroup *g = &plan->groups[i];
    if (g->id != i || g->n_ranks < 1 || g->first_rank < 0 || g->first_rank + g->n_ranks > plan->replica_ranks) {
      FAIL(c, "group %c%d has ranks %d..%d of a replica of %d", letter(g), g->index, g->first_rank,
           g->first_rank + g->n_ranks - 1, plan->replica_ranks);
    }
    for (int j = 0; j < i; j++) {
      const PlanGroup *o = &plan->groups[j];
      if (g->first_rank < o->first_rank + o->n_ranks && o->first_rank < g->first_rank + g->n_ranks) {
        FAIL(c, "groups %c%d and %c%d share ranks", letter(o), o->index, letter(g), g->index);
      }
    }
    total += g->n_ranks;
  }
  if (total != plan->replica_ranks) {
    FAIL(c, "groups have %d ranks, the replica %d", total, plan->replica_ranks);
  }
  int64_t have = (int64_t)c->spec->cluster.nodes * c->spec->cluster.gpus;
  if ((int64_t)plan->replicas * plan->replica_ranks > have || plan->replicas < 1) {
    FAIL(c, "%d replicas of %d ranks on %lld GPUs", plan->replicas, plan->replica_ranks, (long long)have);
  }
}

/* Group that must hold a layer of a colocated system in a direction: runs of layers go to the pipeline ranks in turn,
   in a V for dualpipev, and mirrored for the second way. */
static int stage_home(const Check *c, int way, int layer)
{
  const Plan *plan = c->plan;
  int layers = c->spec->model.layers, s = 0, p = plan->n_groups;
  while ((int64_t)layers * (s + 1) / plan->n_stages <= layer) {
    s++;
  }
  if (plan->system == SYSTEM_DUALPIPEV) {
    return s < p ? s : 2 * p - 1 - s;
  }
  return way == 0 ? s % p : p - 1 - s;
}

/* One layer in one direction. Returns false where a group number is out of range. */
static bool check_layer(Check *c, int w, int l)
{
  const Plan *plan = c->plan;
  int layers = c->spec->model.layers, a = plan->att_group[w * (layers + 1) + l];
  bool stages = plan->n_stages > 0;
  if (a < 0 || a >= plan->n_groups || !(plan->groups[a].role & PLAN_A)) {
    FAIL(c, "attention of layer %d is on group %d, which is no attention group", l, a);
    return false;
  }
  if (l == layers) {
    if (stages && a != plan->att_group[w * (layers + 1) + l - 1]) {
      FAIL(c, "the head is on group %d, the last layer is not", a);
    }
    return true;
  }
  int f = plan->ffn_group[w * layers + l], to = plan->combine_group[w * layers + l];
  int next = plan->att_group[w * (layers + 1) + l + 1];
  bool dense = spec_layer_is_dense(c->spec, l);
  if (f < 0 || f >= plan->n_groups || (dense ? f != a : !(plan->groups[f].role & PLAN_F))) {
    FAIL(c, "FFN of layer %d is on group %d", l, f);
    return false;
  }
  if (to != (stages ? a : next) || (stages && (f != a || a != stage_home(c, w, l)))) {
    FAIL(c, "layer %d is on groups %d and %d and its output on %d", l, a, f, to);
  }
  return true;
}

/* Every layer has its attention on one attention group and its FFN on one FFN group (a dense layer's on the attention
   group) in each direction, no group is idle, and every expert of a layer is on exactly one rank of its group. */
static void check_layers(Check *c)
{
  const Plan *plan = c->plan;
  int layers = c->spec->model.layers, experts = c->spec->model.moe.experts;
  if (plan->ways < 1 || plan->ways > 2 || plan->chunks < 1 || plan->n_stages < 0) {
    FAIL(c, "%d directions, %d chunks, %d stages", plan->ways, plan->chunks, plan->n_stages);
    return;
  }
  for (int w = 0; w < plan->ways; w++) {
    for (int l = 0; l <= layers; l++) {
      if (!check_layer(c, w, l)) {
        return;
      }
    }
  }
  for (int i = 0; i < plan->n_groups; i++) {
    const PlanGroup *g = &plan->groups[i];
    int att = 0, ffn = 0;
    for (int w = 0; w < plan->ways; w++) {
      for (int l = 0; l <= layers; l++) { /* the head is one, too */
        att += plan->att_group[w * (layers + 1) + l] == i;
        ffn += l < layers && plan->ffn_group[w * layers + l] == i && !spec_layer_is_dense(c->spec, l);
      }
    }
    bool idle = plan->n_stages > 0 ? att == 0 : ((g->role & PLAN_A) && att == 0) || ((g->role & PLAN_F) && ffn == 0);
    if (idle) {
      FAIL(c, "group %c%d has no layer", letter(g), g->index);
    }
    if ((g->role & PLAN_F) && g->n_ranks > experts) {
      FAIL(c, "group %c%d has %d ranks for %d experts", letter(g), g->index, g->n_ranks, experts);
    }
    int64_t held = 0;
    for (int64_t r = 0; r < g->n_ranks; r++) {
      held += experts * (r + 1) / g->n_ranks - experts * r / g->n_ranks;
    }
    if (held != experts) {
      FAIL(c, "ranks of group %c%d hold %lld of %d experts", letter(g), g->index, (long long)held, experts);
    }
  }
}

/* The step's sequences are all dealt out, none twice. */
static void check_batch(Check *c)
{
  const Plan *plan = c->plan;
  int64_t batch = plan->shape->global_batch, seen = 0;
  if (plan->mb_seqs < 1 || plan->micro_batches < 1 || plan->in_flight < 1 || plan->in_flight > plan->micro_batches) {
    FAIL(c, "%d micro-batches of %d sequences, %d in flight", plan->micro_batches, plan->mb_seqs, plan->in_flight);
    return;
  }
  for (int64_t r = 0; r < plan->replicas; r++) {
    int64_t left = batch * (r + 1) / plan->replicas - batch * r / plan->replicas;
    for (int mb = 0; mb < plan->micro_batches; mb++) {
      int64_t n = left < plan->mb_seqs ? left : plan->mb_seqs;
      left -= n;
      seen += n;
    }
  }
  if (seen != batch) {
    FAIL(c, "the micro-batches take %lld of %lld sequences", (long long)seen, (long long)batch);
  }
}

static void check_nics(Check *c)
{
  const Plan *plan = c->plan;
  int last = 0;
  for (int i = 0; i < plan->n_nics; i++) {
    if (plan->nic_ranks[i] < last || plan->nic_ranks[i] >= plan->replica_ranks) {
      FAIL(c, "NIC %d is used from rank %d on, after %d of %d", i, plan->nic_ranks[i], last, plan->replica_ranks);
    }
    last = plan->nic_ranks[i];
  }
  for (int i = 0; i < plan->n_groups; i++) {
    const PlanGroup *g = &plan->groups[i];
    int begin = 0; /* NICs that begin with one of its ranks; one more may have begun before */
    for (int k = 0; k < plan->n_nics; k++) {
      begin += plan->nic_ranks[k] >= g->first_rank && plan->nic_ranks[k] < g->first_rank + g->n_ranks;
    }
    if (g->nics < begin || g->nics > begin + 1 || (plan->n_nics > 0 && g->nics == 0)) {
      FAIL(c, "group %c%d uses %d NICs, the map gives it %d", letter(g), g->index, g->nics, begin);
    }
  }
}

/* Every GPU of a replica has one rank, and ranks of a group ascend. */
static void check_seats(Check *c)
{
  const Plan *plan = c->plan;
  int n = plan->replica_ranks;
  char *taken = calloc((size_t)n + 1, 1);
  for (int r = 0; r < n && taken; r++) {
    if (plan->seat[r] < 0 || plan->seat[r] >= n || taken[plan->seat[r]]++) {
      FAIL(c, "rank %d has GPU %d of %d, or another rank has it, too", r, plan->seat[r], n);
      break;
    }
  }
  free(taken);
  for (int i = 0; i < plan->n_groups; i++) {
    const PlanGroup *g = &plan->groups[i];
    for (int r = g->first_rank + 1; r < g->first_rank + g->n_ranks; r++) {
      if (plan->seat[r] <= plan->seat[r - 1]) {
        FAIL(c, "group %c%d: rank %d has GPU %d, after GPU %d", letter(g), g->index, r, plan->seat[r],
             plan->seat[r - 1]);
      }
    }
  }
}

/* A replica of several nodes uses no more NICs of a node than it has. */
static void check_node_nics(Check *c)
{
  const Plan *plan = c->plan;
  const ClusterSpec *cluster = &c->spec->cluster;
  int per = plan->ranks_per_node, have = per == cluster->gpus ? cluster->nics : cluster->nics * per / cluster->gpus;
  bool pinned = c->spec->plan.attention_nics || c->spec->plan.ffn_nics;
  have = have < 1 ? 1 : have;
  int *lent = calloc((size_t)plan->replica_ranks, sizeof *lent); /* by nodes */
  for (int i = 0; i < plan->n_nics && plan->replica_ranks > per && !pinned && lent; i++) {
    int node = plan->seat[plan->nic_ranks[i]] / per;
    if (++lent[node] > have) {
      FAIL(c, "node %d lends %d NICs and has %d", node, lent[node], have);
    }
  }
  free(lent);
}

static void check_memory(Check *c)
{
  for (int i = 0; i < c->plan->n_groups; i++) {
    const PlanGroup *g = &c->plan->groups[i];
    const MemoryTerms *m = &g->memory;
    int64_t total = m->weights + m->gradients + m->optimizer + m->activations + m->buffers + m->workspace;
    if (total != m->total || m->total > m->limit || m->limit != c->spec->cluster.gpu.memory || m->weights <= 0 ||
        m->buffers < 0 || m->activations < 0 || m->workspace < 0) {
      FAIL(c, "group %c%d needs %lld bytes of %lld", letter(g), g->index, (long long)total, (long long)m->limit);
    }
  }
}

static void check_stage_pins(Check *c)
{
  const PlanSpec *pin = &c->spec->plan;
  const Plan *plan = c->plan;
  int p = pin->attention_stages ? pin->attention_stages : pin->ffn_stages;
  bool dual = plan->system == SYSTEM_DUALPIPE || plan->system == SYSTEM_DUALPIPEV;
  if ((p && p != plan->n_groups) || (pin->expert_parallel && pin->expert_parallel != plan->groups[0].n_ranks) ||
      (pin->virtual_stages && !dual && pin->virtual_stages * plan->n_groups != plan->n_stages) ||
      (pin->chunks && plan->chunks != 1 && pin->chunks != plan->chunks) ||
      (pin->mb_group && pin->mb_group != plan->mb_group)) {
    FAIL(c, "a pin of the spec was not kept");
  }
}

/* What the spec pins is what the plan has. */
static void check_pins(Check *c)
{
  const PlanSpec *pin = &c->spec->plan;
  const Plan *plan = c->plan;
  if ((pin->replicas && pin->replicas != plan->replicas) || plan->dedup == DEDUP_AUTO ||
      (pin->dedup != DEDUP_AUTO && pin->dedup != plan->dedup) || plan->recompute == RECOMPUTE_AUTO ||
      (pin->recompute != RECOMPUTE_AUTO && pin->recompute != plan->recompute) ||
      plan->optimizer_shard == OPT_SHARD_AUTO ||
      (pin->optimizer_shard != OPT_SHARD_AUTO && pin->optimizer_shard != plan->optimizer_shard)) {
    FAIL(c, "a pin of the spec was not kept");
  }
  if (plan->n_stages > 0) {
    check_stage_pins(c);
    return;
  }
  if ((pin->attention_stages && pin->attention_stages != plan->p_att) ||
      (pin->ffn_stages && pin->ffn_stages != plan->p_ffn) || (pin->in_flight && pin->in_flight < plan->in_flight)) {
    FAIL(c, "a pin of the spec was not kept");
  }
  for (int i = 0; i < plan->n_groups; i++) {
    const PlanGroup *g = &plan->groups[i];
    int n = g->role & PLAN_A ? pin->n_attention_gpus : pin->n_ffn_gpus;
    const int *list = g->role & PLAN_A ? pin->attention_gpus : pin->ffn_gpus;
    if (n > 0 && list[n > 1 ? g->index : 0] != g->n_ranks) {
      FAIL(c, "group %c%d has %d ranks, pinned are %d", letter(g), g->index, g->n_ranks, list[n > 1 ? g->index : 0]);
    }
  }
}

bool plan_check(Diag *diag, const Spec *spec, const Plan *plan)
{
  Check c = {diag, spec, plan, true};
  check_ranks(&c);
  check_layers(&c);
  if (c.ok) {
    check_seats(&c);
  }
  if (c.ok) {
    check_batch(&c);
    check_nics(&c);
    check_node_nics(&c);
    check_memory(&c);
    check_pins(&c);
  }
  return c.ok;
}
