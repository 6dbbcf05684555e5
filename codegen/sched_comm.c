/* Rows of the micro-batches: every task becomes an op, every hop a SEND at one end and a RECV at the other, with the
   waits and releases that the threads of a rank need. Compute ops run in table order, so a compute op waits only for
   what other threads do: the messages it reads (here) and the sends that still read a slot it overwrites
   (sched_slots.c). Ops of the progress thread wait for the op that made their data. Both ends of a message have one
   start and one seq, so a pair of ranks sees its messages in the same order on both sides; everything a row depends on
   started earlier. */
#include "codegen/sched_int.h"

#include <stdlib.h>
#include <string.h>

int32_t sched_add(SchedRecs *recs, SchedRec rec)
{
  if (recs->n == recs->cap) {
    die("schedule: more rows than counted (%d)", recs->cap);
  }
  for (int i = 0; i < MOE_MAX_WAITS; i++) {
    rec.op.wait[i] = rec.op.release[i] = -1;
  }
  recs->recs[recs->n] = rec;
  return recs->n++;
}

static void push(int32_t *list, int32_t value)
{
  for (int i = 0; i < MOE_MAX_WAITS; i++) {
    if (list[i] == value) {
      return;
    }
    if (list[i] < 0) {
      list[i] = value;
      return;
    }
  }
  die("schedule: an op needs more than %d waits", MOE_MAX_WAITS);
}

void sched_wait(SchedRecs *recs, int32_t rec, int32_t on)
{
  if (on >= 0) {
    push(recs->recs[rec].op.wait, on);
  }
}

void sched_release(SchedRecs *recs, int32_t rec, int32_t recv)
{
  sched_wait(recs, rec, recv);
  push(recs->recs[rec].op.release, recv);
  recs->recs[recv].freed = recs->recs[rec].end;
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

MoeOp sched_op(MoeOpKind kind, int layer, int mb)
{
  return (MoeOp){.kind = (uint8_t)kind,
                 .stream = (uint8_t)stream_of(kind),
                 .edge = MOE_EDGE_NONE,
                 .bucket = MOE_BUCKET_NONE,
                 .layer = (int16_t)layer,
                 .peer = -1,
                 .mb = mb,
                 .saved = -1,
                 .work = -1,
                 .chan = -1,
                 .slot = -1};
}

static void add_task(const SchedNet *net, const SchedTimes *times, SchedRecs *recs, int32_t id)
{
  SchedTask task = sched_task(net, id);
  int layer = sched_layer(net, id), way = sched_way(net, sched_mb(net, id));
  SchedRec rec = {.group = sched_group(net, task, layer, way), .seq = times->seq[id], .start = times->start[id]};
  rec.end = times->end[id];
  rec.op = sched_op(sched_kind(task), layer, sched_mb(net, id));
  rec.op.chunk = (int16_t)sched_chunk(net, id);
  rec.op.edge = (uint8_t)sched_edge(task);
  if (task < TASK_DISPATCH) {
    recs->by_task[id] = sched_add(recs, rec);
    return;
  }
  rec.op.peer = (int16_t)sched_dst(net, task, layer, way);
  rec.end = times->sent[id];
  recs->by_task[id] = sched_add(recs, rec);
  rec.op.kind = MOE_OP_RECV;
  rec.op.stream = MOE_STREAM_RECV;
  rec.op.peer = (int16_t)rec.group;
  rec.group = sched_dst(net, task, layer, way);
  rec.chain = 1;
  rec.end = times->end[id];
  recs->recv_of[id] = sched_add(recs, rec);
}

/* A task reads the messages, and a task beside the compute waits for the op, that come before it; compute ops follow
   compute ops in table order. A relay's dispatch is read twice, by RELAY and then by SEND FORWARD, which gives it back.
   A held message waits for the weight gradient, too. Rows that arrive at a relay twice go on along a list, which is
   there when the experts have seen them once. */
static void link_tasks(const SchedNet *net, SchedRecs *recs, int32_t id)
{
  int32_t next[SCHED_MAX_NEXT];
  int n = sched_nexts(net, id, next);
  SchedTask task = sched_task(net, id);
  for (int i = 0; i < n; i++) {
    SchedTask then = sched_task(net, next[i]);
    int32_t me = recs->by_task[next[i]];
    if (task >= TASK_DISPATCH && then == TASK_RELAY) {
      sched_wait(recs, me, recs->recv_of[id]);
    } else if (task >= TASK_DISPATCH) {
      sched_release(recs, me, recs->recv_of[id]);
    } else if (then >= TASK_N_COMPUTE) {
      sched_wait(recs, me, recs->by_task[id]);
    }
    if (task == TASK_RELAY) {
      sched_release(
          recs, me,
          recs->recv_of[sched_id(net, TASK_DISPATCH, sched_layer(net, id), sched_mb(net, id), sched_chunk(net, id))]);
    }
  }
  if (task == TASK_FFN_FWD && sched_again(net, sched_layer(net, id)) &&
      net->relayed[sched_at(net, sched_way(net, sched_mb(net, id)), sched_layer(net, id))]) {
    sched_wait(
        recs,
        recs->by_task[sched_id(net, TASK_FORWARD_AGAIN, sched_layer(net, id), sched_mb(net, id), sched_chunk(net, id))],
        recs->by_task[id]);
  }
  int32_t holder = sched_holder(net, id);
  if (holder >= 0) {
    sched_wait(recs, recs->by_task[id], recs->by_task[holder]);
  }
}

void sched_comm(Arena *arena, const SchedNet *net, const SchedTimes *times, SchedRecs *recs)
{
  size_t ids = (size_t)sched_ids(net);
  recs->by_task = arena_new_array(arena, int32_t, ids);
  recs->recv_of = arena_new_array(arena, int32_t, ids);
  memset(recs->by_task, -1, ids * sizeof *recs->by_task);
  memset(recs->recv_of, -1, ids * sizeof *recs->recv_of);
  for (size_t id = 0; id < ids; id++) {
    recs->cap += times->start[id] < 0 ? 0 : sched_task(net, (int32_t)id) >= TASK_DISPATCH ? 2 : 1;
  }
  /* and the end of the step: of each bucket two exchanges and three ops in its groups, two per way; scalars */
  recs->cap += (3 * net->n_layers + 2) * 2 * net->ways * 7 + 5 * net->n_groups;
  recs->recs = arena_new_array(arena, SchedRec, (size_t)recs->cap);
  recs->n_seq = times->n_seq;
  for (size_t id = 0; id < ids; id++) {
    if (times->start[id] >= 0) {
      add_task(net, times, recs, (int32_t)id);
    }
  }
  for (size_t id = 0; id < ids; id++) {
    if (times->start[id] >= 0) {
      link_tasks(net, recs, (int32_t)id);
    }
  }
}

/* What rows are sorted by, apart from them: they are large. */
typedef struct RowKey {
  int64_t start;
  int32_t seq, chain;
  int32_t rec;
} RowKey;

static int by_start(const void *a, const void *b)
{
  const RowKey *x = a, *y = b;
  if (x->start != y->start) {
    return x->start < y->start ? -1 : 1;
  }
  if (x->seq != y->seq) {
    return x->seq < y->seq ? -1 : 1;
  }
  return x->chain - y->chain;
}

/* Keys of the records of each group, one group after the other, each in the order of its table. */
static RowKey *sort_rows(SchedRecs *recs, Schedule *sched)
{
  RowKey *keys = malloc((size_t)recs->n * sizeof *keys);
  int *at = malloc((size_t)sched->n_groups * sizeof *at);
  if (!keys || !at) {
    die("out of memory");
  }
  for (int i = 0; i < recs->n; i++) {
    sched->groups[recs->recs[i].group].n_ops++;
  }
  for (int g = 0, first = 0; g < sched->n_groups; g++) {
    at[g] = first;
    first += sched->groups[g].n_ops;
  }
  for (int i = 0; i < recs->n; i++) {
    const SchedRec *rec = &recs->recs[i];
    keys[at[rec->group]++] = (RowKey){rec->start, rec->seq, rec->chain, i};
  }
  for (int g = 0; g < sched->n_groups; g++) {
    int n = sched->groups[g].n_ops, first = at[g] - n;
    qsort(&keys[first], (size_t)n, sizeof *keys, by_start);
    for (int i = 0; i < n; i++) {
      recs->recs[keys[first + i].rec].index = i;
    }
  }
  free(at);
  return keys;
}

void sched_rows(Arena *arena, SchedRecs *recs, Schedule *sched)
{
  RowKey *sorted = sort_rows(recs, sched);
  int at = 0;
  for (int g = 0; g < sched->n_groups; g++) {
    SchedGroup *group = &sched->groups[g];
    size_t n = (size_t)group->n_ops;
    group->ops = arena_new_array(arena, MoeOp, n);
    group->start_ns = arena_new_array(arena, int64_t, n);
    group->end_ns = arena_new_array(arena, int64_t, n);
    for (int i = 0; i < group->n_ops; i++) {
      const SchedRec *rec = &recs->recs[sorted[at + i].rec];
      MoeOp *op = &group->ops[i];
      *op = rec->op;
      for (int k = 0; k < MOE_MAX_WAITS && (op->wait[k] >= 0 || op->release[k] >= 0); k++) {
        op->wait[k] = op->wait[k] < 0 ? -1 : recs->recs[op->wait[k]].index;
        op->release[k] = op->release[k] < 0 ? -1 : recs->recs[op->release[k]].index;
      }
      group->start_ns[i] = rec->start;
      group->end_ns[i] = rec->end;
      sched->step_ns = rec->end > sched->step_ns ? rec->end : sched->step_ns;
      sched->pipe_ns = rec->op.mb >= 0 && rec->end > sched->pipe_ns ? rec->end : sched->pipe_ns;
    }
    at += group->n_ops;
  }
  free(sorted);
}
