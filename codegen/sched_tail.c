/* The end of the step: gradient reduction, scalars, optimizer, sharing of the new weights.

   A message exchange of a bucket is one event at all its holders, with one start and one seq, so pairs of ranks that
   share several buckets agree about their order. When gradients are exchanged and added, beside the micro-batches' own
   work, is what the simulation says (sched_reduce.h). The rest comes when all of that is over, bucket after bucket in
   their order: the weights of one come in while the next is updated and those of the next are on their way. GAIN
   buckets tie pairs of groups that share different layers; they come first, where nothing waits for them, and each
   layer has its own slot.
 */
#include "codegen/sched_buckets.h"

#include <stdlib.h>

typedef struct Tail {
  const SchedNet *net;
  const SchedTimes *times;
  SchedRecs *recs;
  Schedule *sched;
  int64_t *free_at; /* [groups] compute */
  int32_t *last;    /* [groups] latest GRAD_REDUCE in the table, then latest OPTIMIZER */
  int32_t *down;    /* [groups] RECV SCALARS_DOWN, or -1 */
  int32_t scalars;  /* SCALARS, in the root's group */
  int root;
  int32_t *pending;    /* [groups] RECV SHARE whose weights are not yet in, or -1 */
  int *pending_bucket; /* [groups] and the number of its bucket */
  int64_t *slot_free;  /* [sets][BUCKET_TURNS] */
  int32_t *turn;       /* [sets] shared so far */
  int64_t *port_free;  /* [groups] end of the latest exchange */
} Tail;

static int64_t op_ns(const SchedNet *net, MoeOpKind kind, const SchedBucket *held)
{
  return cost_bucket_op_ns(net->spec, net->plan, kind, held->kind, held->layer);
}

static int32_t later(const Tail *tail, int32_t a, int32_t b)
{
  const SchedRec *recs = tail->recs->recs;
  return a < 0 || (b >= 0 && recs[b].start > recs[a].start) ? b : a;
}

/* The last op of the group that adds to the bucket's gradient. */
static int32_t last_adder(const Tail *tail, const SchedBucket *held, int group)
{
  const SchedNet *net = tail->net;
  int32_t last = -1;
  for (SchedTask task = TASK_HEAD; task <= TASK_EMBED_WGRAD; task++) {
    int layer = task == TASK_HEAD ? net->n_layers : held->layer, numbers[SCHED_MAX_ADDS];
    bool adds = false;
    for (int i = sched_adds(net, task, layer, numbers) - 1; i >= 0; i--) {
      adds |= &net->buckets[numbers[i]] == held;
    }
    for (int k = 0; adds && k < net->n_mbs * sched_chunks(net, task); k++) {
      int mb = k / sched_chunks(net, task), way = sched_way(net, mb);
      if (sched_task_exists(net, task, layer, way) && sched_group(net, task, layer, way) == group) {
        last = later(tail, last, tail->recs->by_task[sched_id(net, task, layer, mb, k % sched_chunks(net, task))]);
      }
    }
  }
  return last;
}

static int32_t add_op(Tail *tail, MoeOpKind kind, const SchedBucket *held, int group, int32_t seq, int64_t start,
                      int64_t ns)
{
  SchedRec rec = {.group = group, .seq = seq, .start = start, .end = start + ns};
  rec.op = sched_op(kind, held ? held->layer : -1, -1);
  rec.op.bucket = (uint8_t)(held ? held->kind : MOE_BUCKET_NONE);
  tail->free_at[group] = rec.end > tail->free_at[group] ? rec.end : tail->free_at[group];
  return sched_add(tail->recs, rec);
}

static int32_t add_next(Tail *tail, MoeOpKind kind, const SchedBucket *held, int group, int64_t start, int64_t ns)
{
  return add_op(tail, kind, held, group, tail->recs->n_seq++, start, ns);
}

/* One end of an exchange; all ends share start and seq. */
static int32_t add_message(Tail *tail, MoeOpKind kind, MoeEdge edge, const SchedBucket *held, int group, int32_t seq,
                           int64_t start, int64_t end, int slot, int use)
{
  SchedRec rec = {.group = group, .seq = seq, .start = start, .end = end};
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

static int64_t later_ns(int64_t a, int64_t b)
{
  return a > b ? a : b;
}

/* SEND and RECV of a bucket at all holders, with the next seq; `after` by holder group. Fills the RECV records. */
static void exchange(Tail *tail, MoeEdge edge, const SchedBucket *held, const int32_t *after, SchedBucketTimes at,
                     int32_t *recvs)
{
  for (int k = 0; k < held->n_groups; k++) {
    int group = held->groups[k];
    int32_t send = add_message(tail, MOE_OP_SEND, edge, held, group, at.seq, at.start, at.sent, at.slot, at.use);
    sched_wait(tail->recs, send, after[k]);
    recvs[k] = add_message(tail, MOE_OP_RECV, edge, held, group, at.seq, at.start, at.end, at.slot, at.use);
    tail->port_free[group] = later_ns(tail->port_free[group], at.end);
  }
}

static void reduce_bucket(Tail *tail, int number)
{
  const SchedBucket *held = &tail->net->buckets[number];
  const SchedBucketTimes *at = &tail->times->buckets[number];
  int32_t after[MOE_BUCKET_GROUPS], recvs[MOE_BUCKET_GROUPS] = {-1, -1, -1, -1};
  for (int k = 0; k < held->n_groups; k++) {
    after[k] = last_adder(tail, held, held->groups[k]);
  }
  if (held->exchanged) {
    exchange(tail, MOE_EDGE_REDUCE, held, after, *at, recvs);
  }
  for (int k = 0; k < held->n_groups; k++) {
    int group = held->groups[k];
    int32_t sum = add_op(tail, MOE_OP_GRAD_REDUCE, held, group, at->reduce_seq[k], at->reduce[k], held->reduce_ns);
    tail->last[group] = later(tail, tail->last[group], sum);
    if (recvs[k] >= 0) {
      sched_release(tail->recs, sum, recvs[k]);
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
  int32_t up = -1, seq = tail->recs->n_seq++;
  for (int g = 0; others && g < plan->n_groups; g++) {
    if (g != tail->root || !alone) {
      int32_t send = add_message(tail, MOE_OP_SEND, MOE_EDGE_SCALARS_UP, NULL, g, seq, start, start + ns, 0, 0);
      sched_wait(tail->recs, send, tail->last[g]);
    }
  }
  if (others) {
    up = add_message(tail, MOE_OP_RECV, MOE_EDGE_SCALARS_UP, NULL, tail->root, seq, start, start + ns, 0, 0);
    start += ns;
  }
  tail->scalars =
      add_next(tail, MOE_OP_SCALARS, NULL, tail->root, start, cost_op_ns(tail->net->spec, plan, MOE_OP_SCALARS, -1));
  start = tail->free_at[tail->root];
  seq = tail->recs->n_seq++;
  if (others) {
    sched_release(tail->recs, tail->scalars, up);
    int32_t send =
        add_message(tail, MOE_OP_SEND, MOE_EDGE_SCALARS_DOWN, NULL, tail->root, seq, start, start + ns, 0, 0);
    sched_wait(tail->recs, send, tail->scalars);
  }
  for (int g = 0; others && g < plan->n_groups; g++) {
    if (g != tail->root || !alone) {
      tail->down[g] = add_message(tail, MOE_OP_RECV, MOE_EDGE_SCALARS_DOWN, NULL, g, seq, start, start + ns, 0, 0);
      tail->free_at[g] = later_ns(tail->free_at[g], start + ns);
    }
  }
}

static void weights_in(Tail *tail, int group)
{
  int32_t recv = tail->pending[group];
  if (recv < 0) {
    return;
  }
  const SchedBucket *held = &tail->net->buckets[tail->pending_bucket[group]];
  int64_t start = later_ns(tail->free_at[group], tail->recs->recs[recv].end);
  int64_t ns = op_ns(tail->net, MOE_OP_WEIGHTS_IN, held);
  sched_release(tail->recs, add_next(tail, MOE_OP_WEIGHTS_IN, held, group, start, ns), recv);
  if (held->set >= 0) { /* when all holders have read their messages */
    int64_t *at = &tail->slot_free[held->set * BUCKET_TURNS + tail->recs->recs[recv].op.slot];
    *at = later_ns(*at, start + ns);
  }
  tail->pending[group] = -1;
}

/* The updated slices of a bucket leave when they are ready, the ports of its groups are free and so is the slot. */
static void share_bucket(Tail *tail, const SchedBucket *held, const int32_t *after, int64_t ready, int32_t *recvs)
{
  MsgCost cost = cost_bucket_msg(tail->net->spec, tail->net->plan, MOE_EDGE_SHARE, held->kind, held->layer);
  SchedBucketTimes at = {.start = ready, .seq = tail->recs->n_seq++};
  sched_bucket_slot(held, tail->turn, &at.slot, &at.use);
  if (held->set >= 0) {
    at.start = later_ns(ready, tail->slot_free[held->set * BUCKET_TURNS + at.slot]);
  }
  for (int k = 0; k < held->n_groups; k++) {
    at.start = later_ns(at.start, tail->port_free[held->groups[k]]);
  }
  at.sent = at.end = at.start + cost.ns;
  exchange(tail, MOE_EDGE_SHARE, held, after, at, recvs);
}

/* The group's weights of the bucket before come in while this bucket's are on their way. */
static void optimize_bucket(Tail *tail, int number)
{
  const SchedBucket *held = &tail->net->buckets[number];
  int32_t after[MOE_BUCKET_GROUPS], recvs[MOE_BUCKET_GROUPS] = {-1, -1, -1, -1};
  int64_t ready = 0;
  for (int k = 0; k < held->n_groups; k++) {
    int group = held->groups[k];
    after[k] =
        add_next(tail, MOE_OP_OPTIMIZER, held, group, tail->free_at[group], op_ns(tail->net, MOE_OP_OPTIMIZER, held));
    sched_wait(tail->recs, after[k], group == tail->root ? tail->scalars : -1);
    sched_wait(tail->recs, after[k], tail->down[group]);
    tail->last[group] = after[k];
    ready = later_ns(ready, tail->free_at[group]);
    weights_in(tail, group);
  }
  if (held->exchanged) {
    share_bucket(tail, held, after, ready, recvs);
    for (int k = 0; k < held->n_groups; k++) {
      tail->pending[held->groups[k]] = recvs[k];
      tail->pending_bucket[held->groups[k]] = number;
    }
  }
}

static Tail tail_new(Arena *arena, const SchedNet *net, const SchedTimes *times, SchedRecs *recs, Schedule *sched)
{
  size_t groups = (size_t)net->n_groups, sets = (size_t)sched_bucket_sets(net);
  Tail tail = {.net = net, .times = times, .recs = recs, .sched = sched, .scalars = -1};
  tail.free_at = arena_new_array(arena, int64_t, groups);
  tail.last = arena_new_array(arena, int32_t, groups);
  tail.down = arena_new_array(arena, int32_t, groups);
  tail.pending = arena_new_array(arena, int32_t, groups);
  tail.pending_bucket = arena_new_array(arena, int, groups);
  tail.slot_free = arena_new_array(arena, int64_t, sets * BUCKET_TURNS);
  tail.turn = arena_new_array(arena, int32_t, sets);
  tail.port_free = arena_new_array(arena, int64_t, groups);
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

void sched_tail(Arena *arena, const SchedNet *net, const SchedTimes *times, SchedRecs *recs, Schedule *sched)
{
  Tail tail = tail_new(arena, net, times, recs, sched);
  for (int i = 0; i < net->n_buckets; i++) {
    reduce_bucket(&tail, i);
  }
  scalars(&tail);
  for (int i = 0; i < net->n_buckets; i++) {
    optimize_bucket(&tail, i);
  }
  for (int g = 0; g < net->n_groups; g++) {
    weights_in(&tail, g);
    if (tail.down[g] >= 0 && tail.last[g] >= 0) {
      recs->recs[tail.last[g]].op.release[0] = tail.down[g];
    }
  }
}
