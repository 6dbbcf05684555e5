/* The end of the step: gradient reduction, scalars, optimizer, sharing of the new weights.

   Buckets go in one order for all groups: HEAD; layers descending, EXPERTS, SHARED, GAIN, ATT of each; EMBED. A message
   exchange of a bucket is one event at all its holders, with one start and one seq, so pairs of ranks that share
   several buckets agree about their order. Gradients leave as soon as the last op that adds to them is done in every
   holder and the exchange before is over in their groups; they are added after the group's last micro-batch, in bucket
   order, and the channel's slots bound how far the messages may run ahead. Slots: where the sets of groups that hold a
   layer's bucket are the same or have nothing in common, the buckets of a set take turns in two slots. GAIN buckets tie
   pairs of groups that share different layers, so each layer has its own slot there (it is small), used once per step.
 */
#include <stdlib.h>

#include "codegen/cost_terms.h"
#include "codegen/sched_int.h"

typedef struct Tail {
  const SchedNet *net;
  SchedRecs *recs;
  Schedule *sched;
  int64_t *free_at; /* [groups] compute */
  int32_t *last;    /* [groups] latest GRAD_REDUCE, then latest OPTIMIZER */
  int32_t *down;    /* [groups] RECV SCALARS_DOWN, or -1 */
  int32_t scalars;  /* SCALARS, in the root's group */
  int root;
  int32_t *pending;    /* [groups] RECV SHARE whose weights are not yet in, or -1 */
  int *pending_bucket; /* [groups] and the number of its bucket */
  int64_t *slot_free;  /* [groups][buckets kinds][2] of the set whose first group it is */
  int32_t *turn;       /* [groups][bucket kinds] exchanges so far of that set */
  int64_t *port_free;  /* [groups] end of the latest exchange */
  bool turns[MOE_BUCKET_COUNT];
} Tail;

/* One bucket and the groups that hold it. */
typedef struct Held {
  MoeBucketKind kind;
  int layer;
  int groups[MOE_BUCKET_GROUPS]; /* ascending */
  int n_groups;                  /* 0: there is no such bucket */
  int holders;                   /* ranks, over all replicas */
} Held;

enum { PER_LAYER = 4 };

static int n_buckets(const SchedNet *net)
{
  return PER_LAYER * net->n_layers + 2;
}

static int bucket_at(const SchedNet *net, int i, MoeBucketKind *kind)
{
  static const MoeBucketKind of_layer[PER_LAYER] = {MOE_BUCKET_EXPERTS, MOE_BUCKET_SHARED, MOE_BUCKET_GAIN,
                                                    MOE_BUCKET_ATT};
  int last = n_buckets(net) - 1;
  *kind = i == 0 ? MOE_BUCKET_HEAD : i == last ? MOE_BUCKET_EMBED : of_layer[(i - 1) % PER_LAYER];
  return i == 0 || i == last ? 0 : net->n_layers - 1 - (i - 1) / PER_LAYER;
}

static int ascending(const void *a, const void *b)
{
  return *(const int *)a - *(const int *)b;
}

static Held held_at(const SchedNet *net, int i)
{
  Held held = {0};
  held.layer = bucket_at(net, i, &held.kind);
  bool of_experts = held.kind == MOE_BUCKET_EXPERTS || held.kind == MOE_BUCKET_SHARED;
  if ((of_experts && spec_layer_is_dense(net->spec, held.layer)) ||
      (held.kind == MOE_BUCKET_SHARED && net->spec->model.moe.shared == 0)) {
    return held;
  }
  held.n_groups = cost_bucket_groups(net->spec, net->plan, held.kind, held.layer, held.groups);
  held.holders = cost_bucket_holders(net->spec, net->plan, held.kind, held.layer);
  qsort(held.groups, (size_t)held.n_groups, sizeof *held.groups, ascending);
  return held;
}

static int64_t op_ns(const SchedNet *net, MoeOpKind kind, const Held *held)
{
  return cost_bucket_op_ns(net->spec, net->plan, kind, held->kind, held->layer);
}

static int32_t later(const Tail *tail, int32_t a, int32_t b)
{
  const SchedRec *recs = tail->recs->recs;
  return a < 0 || (b >= 0 && recs[b].start > recs[a].start) ? b : a;
}

/* The last op of the group that adds to the bucket's gradient. */
static int32_t last_adder(const Tail *tail, const Held *held, int group)
{
  static const struct {
    MoeBucketKind kind;
    SchedTask task;
  } adders[] = {
      {MOE_BUCKET_HEAD, TASK_HEAD},      {MOE_BUCKET_EXPERTS, TASK_FFN_WGRAD}, {MOE_BUCKET_SHARED, TASK_FFN_WGRAD},
      {MOE_BUCKET_GAIN, TASK_FFN_DGRAD}, {MOE_BUCKET_GAIN, TASK_ATT_DGRAD},    {MOE_BUCKET_ATT, TASK_ATT_DGRAD},
      {MOE_BUCKET_ATT, TASK_ATT_WGRAD},  {MOE_BUCKET_EMBED, TASK_EMBED_WGRAD}, {MOE_BUCKET_EMBED, TASK_HEAD},
  };
  const SchedNet *net = tail->net;
  int32_t last = -1;
  for (size_t i = 0; i < sizeof adders / sizeof *adders; i++) {
    SchedTask task = adders[i].task;
    int layer = task == TASK_HEAD ? net->n_layers : held->layer;
    bool adds =
        adders[i].kind == held->kind && (held->kind != MOE_BUCKET_EMBED || task != TASK_HEAD || net->spec->model.tied);
    for (int k = 0; adds && k < net->n_mbs * sched_chunks(net, task); k++) {
      int mb = k / sched_chunks(net, task), way = sched_way(net, mb);
      if (sched_task_exists(net, task, layer, way) && sched_group(net, task, layer, way) == group) {
        last = later(tail, last, tail->recs->by_task[sched_id(net, task, layer, mb, k % sched_chunks(net, task))]);
      }
    }
  }
  return last;
}

static int32_t add_op(Tail *tail, MoeOpKind kind, const Held *held, int group, int64_t start, int64_t ns)
{
  SchedRec rec = {.group = group, .seq = tail->recs->n_seq++, .start = start, .end = start + ns};
  rec.op = sched_op(kind, held ? held->layer : -1, -1);
  rec.op.bucket = (uint8_t)(held ? held->kind : MOE_BUCKET_NONE);
  tail->free_at[group] = rec.end;
  return sched_add(tail->recs, rec);
}

/* One end of an exchange; all ends share start and seq. */
static int32_t add_message(Tail *tail, MoeOpKind kind, MoeEdge edge, const Held *held, int group, int64_t start,
                           int64_t ns, int slot, int use)
{
  SchedRec rec = {.group = group, .seq = tail->recs->n_seq, .start = start, .end = start + ns};
  rec.chain = kind == MOE_OP_RECV;
  rec.op = sched_op(kind, held ? held->layer : -1, -1);
  rec.op.edge = (uint8_t)edge;
  rec.op.bucket = (uint8_t)(held ? held->kind : MOE_BUCKET_NONE);
  rec.op.chan = (int16_t)sched_chan(tail->sched, edge, held ? held->kind : MOE_BUCKET_NONE, -1, -1);
  rec.op.slot = (int16_t)slot;
  rec.op.use = use;
  MoeChan *chan = &tail->sched->chans[rec.op.chan];
  chan->slots = (int16_t)(slot + 1 > chan->slots ? slot + 1 : chan->slots);
  return sched_add(tail->recs, rec);
}

enum { TURNS = 2 };

/* Are the sets of groups that hold a layer's bucket of this kind equal or disjoint? */
static bool sets_are_apart(Arena *arena, const SchedNet *net, MoeBucketKind kind)
{
  int *set = arena_new_array(arena, int, (size_t)net->n_groups);
  for (int i = 1; i < n_buckets(net) - 1; i++) {
    Held held = held_at(net, i);
    for (int k = 0; held.kind == kind && k < held.n_groups; k++) {
      int *of = &set[held.groups[k]], now = 1 + held.groups[0] + net->n_groups * held.groups[held.n_groups - 1];
      if (*of && *of != now) {
        return false;
      }
      *of = now;
    }
  }
  return true;
}

static int64_t later_ns(int64_t a, int64_t b)
{
  return a > b ? a : b;
}

/* SEND and RECV of a bucket at all holders; `ready` and `after` by holder group. Fills the RECV records. */
static void exchange(Tail *tail, MoeEdge edge, const Held *held, const int32_t *after, int64_t ready, int32_t *recvs)
{
  int kind = held->groups[0] * MOE_BUCKET_COUNT + (int)held->kind;
  bool turns = tail->turns[held->kind], layered = held->kind != MOE_BUCKET_HEAD && held->kind != MOE_BUCKET_EMBED;
  int slot = turns ? tail->turn[kind] % TURNS : layered ? held->layer : 0;
  int use = turns ? tail->turn[kind]++ / TURNS : 0;
  int64_t start = turns ? later_ns(ready, tail->slot_free[kind * TURNS + slot]) : ready;
  for (int k = 0; k < held->n_groups; k++) {
    start = later_ns(start, tail->port_free[held->groups[k]]);
  }
  int64_t ns = cost_bucket_msg(tail->net->spec, tail->net->plan, edge, held->kind, held->layer).ns;
  for (int k = 0; k < held->n_groups; k++) {
    tail->port_free[held->groups[k]] = start + ns;
    int32_t send = add_message(tail, MOE_OP_SEND, edge, held, held->groups[k], start, ns, slot, use);
    sched_wait(tail->recs, send, after[k]);
    recvs[k] = add_message(tail, MOE_OP_RECV, edge, held, held->groups[k], start, ns, slot, use);
  }
  tail->recs->n_seq++;
}

/* A holder has read its messages: the slot is free when all have. */
static void free_slot(Tail *tail, const Held *held, int slot, int64_t end)
{
  if (tail->turns[held->kind]) {
    int64_t *at = &tail->slot_free[(held->groups[0] * MOE_BUCKET_COUNT + (int)held->kind) * TURNS + slot];
    *at = later_ns(*at, end);
  }
}

static void reduce_bucket(Tail *tail, const Held *held)
{
  int32_t after[MOE_BUCKET_GROUPS], recvs[MOE_BUCKET_GROUPS] = {-1, -1, -1, -1};
  int64_t ready = 0;
  for (int k = 0; k < held->n_groups; k++) {
    after[k] = last_adder(tail, held, held->groups[k]);
    ready = later_ns(ready, tail->recs->recs[after[k]].end);
  }
  if (held->holders > 1) {
    exchange(tail, MOE_EDGE_REDUCE, held, after, ready, recvs);
  }
  for (int k = 0; k < held->n_groups; k++) {
    int group = held->groups[k];
    int64_t start = later_ns(tail->free_at[group], recvs[k] < 0 ? 0 : tail->recs->recs[recvs[k]].end);
    int64_t ns = op_ns(tail->net, MOE_OP_GRAD_REDUCE, held);
    tail->last[group] = add_op(tail, MOE_OP_GRAD_REDUCE, held, group, start, ns);
    if (recvs[k] >= 0) {
      sched_release(tail->recs, tail->last[group], recvs[k]);
      free_slot(tail, held, tail->recs->recs[recvs[k]].op.slot, start + ns);
    }
  }
}

/* Up to rank 0, total, down again. A message is needed only where some rank of the group is not rank 0 itself. */
static void scalars(Tail *tail)
{
  const Plan *plan = tail->net->plan;
  int64_t start = 0, ns = 1 + (tail->net->spec->costs.given ? 0 : (int64_t)tail->net->spec->cluster.nic_ns);
  bool others = plan->replicas > 1 || plan->replica_ranks > 1;
  bool alone = plan->replicas == 1 && plan->groups[tail->root].n_ranks == 1; /* the root's group is rank 0 */
  for (int g = 0; g < plan->n_groups; g++) {
    start = later_ns(start, later_ns(tail->free_at[g], tail->port_free[g]));
  }
  int32_t up = -1;
  for (int g = 0; others && g < plan->n_groups; g++) {
    if (g != tail->root || !alone) {
      int32_t send = add_message(tail, MOE_OP_SEND, MOE_EDGE_SCALARS_UP, NULL, g, start, ns, 0, 0);
      sched_wait(tail->recs, send, tail->last[g]);
    }
  }
  if (others) {
    up = add_message(tail, MOE_OP_RECV, MOE_EDGE_SCALARS_UP, NULL, tail->root, start, ns, 0, 0);
    tail->recs->n_seq++;
    start += ns;
  }
  tail->scalars =
      add_op(tail, MOE_OP_SCALARS, NULL, tail->root, start, cost_op_ns(tail->net->spec, plan, MOE_OP_SCALARS, -1));
  start = tail->free_at[tail->root];
  if (others) {
    sched_release(tail->recs, tail->scalars, up);
    int32_t send = add_message(tail, MOE_OP_SEND, MOE_EDGE_SCALARS_DOWN, NULL, tail->root, start, ns, 0, 0);
    sched_wait(tail->recs, send, tail->scalars);
  }
  for (int g = 0; others && g < plan->n_groups; g++) {
    if (g != tail->root || !alone) {
      tail->down[g] = add_message(tail, MOE_OP_RECV, MOE_EDGE_SCALARS_DOWN, NULL, g, start, ns, 0, 0);
      tail->free_at[g] = later_ns(tail->free_at[g], start + ns);
    }
  }
  tail->recs->n_seq++;
}

static void weights_in(Tail *tail, int group)
{
  int32_t recv = tail->pending[group];
  if (recv < 0) {
    return;
  }
  Held held = held_at(tail->net, tail->pending_bucket[group]);
  int64_t start = later_ns(tail->free_at[group], tail->recs->recs[recv].end);
  int64_t ns = op_ns(tail->net, MOE_OP_WEIGHTS_IN, &held);
  int slot = tail->recs->recs[recv].op.slot;
  int32_t in = add_op(tail, MOE_OP_WEIGHTS_IN, &held, group, start, ns);
  sched_release(tail->recs, in, recv);
  free_slot(tail, &held, slot, start + ns);
  tail->pending[group] = -1;
}

/* The group's weights of the bucket before come in while this bucket's are on their way. */
static void optimize_bucket(Tail *tail, int number)
{
  Held held = held_at(tail->net, number);
  int32_t after[MOE_BUCKET_GROUPS], recvs[MOE_BUCKET_GROUPS] = {-1, -1, -1, -1};
  int64_t ready = 0;
  for (int k = 0; k < held.n_groups; k++) {
    int group = held.groups[k];
    after[k] =
        add_op(tail, MOE_OP_OPTIMIZER, &held, group, tail->free_at[group], op_ns(tail->net, MOE_OP_OPTIMIZER, &held));
    sched_wait(tail->recs, after[k], group == tail->root ? tail->scalars : -1);
    sched_wait(tail->recs, after[k], tail->down[group]);
    tail->last[group] = after[k];
    ready = later_ns(ready, tail->free_at[group]);
    weights_in(tail, group);
  }
  if (held.holders > 1) {
    exchange(tail, MOE_EDGE_SHARE, &held, after, ready, recvs);
    for (int k = 0; k < held.n_groups; k++) {
      tail->pending[held.groups[k]] = recvs[k];
      tail->pending_bucket[held.groups[k]] = number;
    }
  }
}

static Tail tail_new(Arena *arena, const SchedNet *net, SchedRecs *recs, Schedule *sched)
{
  size_t groups = (size_t)net->n_groups;
  Tail tail = {.net = net, .recs = recs, .sched = sched, .scalars = -1};
  tail.free_at = arena_new_array(arena, int64_t, groups);
  tail.last = arena_new_array(arena, int32_t, groups);
  tail.down = arena_new_array(arena, int32_t, groups);
  tail.pending = arena_new_array(arena, int32_t, groups);
  tail.pending_bucket = arena_new_array(arena, int, groups);
  tail.slot_free = arena_new_array(arena, int64_t, groups * MOE_BUCKET_COUNT * TURNS);
  tail.turn = arena_new_array(arena, int32_t, groups * MOE_BUCKET_COUNT);
  tail.port_free = arena_new_array(arena, int64_t, groups);
  tail.turns[MOE_BUCKET_ATT] = sets_are_apart(arena, net, MOE_BUCKET_ATT);
  tail.turns[MOE_BUCKET_SHARED] = sets_are_apart(arena, net, MOE_BUCKET_SHARED);
  tail.turns[MOE_BUCKET_EXPERTS] = sets_are_apart(arena, net, MOE_BUCKET_EXPERTS);
  for (int g = 0; g < net->n_groups; g++) {
    tail.last[g] = tail.down[g] = tail.pending[g] = -1;
    tail.root = net->plan->groups[g].first_rank == 0 ? g : tail.root;
  }
  for (int i = 0; i < recs->n; i++) {
    const SchedRec *rec = &recs->recs[i];
    if (rec->op.stream == MOE_STREAM_FWD || rec->op.stream == MOE_STREAM_BWD) {
      tail.free_at[rec->group] = later_ns(tail.free_at[rec->group], rec->end);
    }
  }
  return tail;
}

void sched_tail(Arena *arena, const SchedNet *net, SchedRecs *recs, Schedule *sched)
{
  Tail tail = tail_new(arena, net, recs, sched);
  for (int i = 0; i < n_buckets(net); i++) {
    Held held = held_at(net, i);
    reduce_bucket(&tail, &held);
  }
  scalars(&tail);
  for (int i = 0; i < net->n_groups * MOE_BUCKET_COUNT; i++) {
    tail.turn[i] = 0; /* SHARE has slots of its own */
  }
  for (int i = 0; i < n_buckets(net); i++) {
    optimize_bucket(&tail, i);
  }
  for (int g = 0; g < net->n_groups; g++) {
    weights_in(&tail, g);
    if (tail.down[g] >= 0 && tail.last[g] >= 0) {
      recs->recs[tail.last[g]].op.release[0] = tail.down[g];
    }
  }
}
