#include "codegen/sched_reduce.h"

#include "codegen/sched_buckets.h"

/* Numbers of one bucket: flows of the groups that hold it, its arrival, sums of these groups. */
enum { ARRIVAL = MOE_BUCKET_GROUPS, SUM = ARRIVAL + 1, NUMBERS = SUM + MOE_BUCKET_GROUPS };

struct SchedReduce {
  const SchedNet *net;
  SchedFlows *flows;
  Heap *events;
  SchedTimes *times;
  int32_t base;  /* of the numbers */
  int32_t *left; /* [buckets] what has still to end: tasks that add to it, then flows, then sums */
  int *waiting;  /* buckets that want to be exchanged, in the order in which they came */
  int n_waiting;
  bool stirred;  /* one of them may be able to begin */
  Heap *sums;    /* [groups] sums that can run, by the number of their event */
  bool *busy;    /* [groups] an exchange is under way */
  int32_t *turn; /* [sets] exchanges so far */
  int *held;     /* [sets][BUCKET_TURNS] sums to come of the bucket that has the slot */
};

SchedReduce *reduce_new(Arena *arena, const SchedNet *net, SchedFlows *flows, Heap *events, SchedTimes *times)
{
  SchedReduce *r = arena_new_of(arena, SchedReduce);
  size_t groups = (size_t)net->n_groups, sets = (size_t)sched_bucket_sets(net), buckets = (size_t)net->n_buckets;
  *r = (SchedReduce){.net = net, .flows = flows, .events = events, .times = times, .base = sched_ids(net)};
  r->left = arena_new_array(arena, int32_t, buckets);
  r->waiting = arena_new_array(arena, int, buckets);
  r->sums = arena_new_array(arena, Heap, groups);
  r->busy = arena_new_array(arena, bool, groups);
  r->turn = arena_new_array(arena, int32_t, sets);
  r->held = arena_new_array(arena, int, sets *BUCKET_TURNS);
  for (SchedTask task = 0; task < TASK_N_COMPUTE; task++) {
    for (int at = 0; at < net->ways * (net->n_layers + 1); at++) {
      int way = at / (net->n_layers + 1), layer = at % (net->n_layers + 1), numbers[SCHED_MAX_ADDS];
      int n = sched_task_exists(net, task, layer, way) ? sched_adds(net, task, layer, numbers) : 0;
      for (int i = 0; i < n; i++) {
        r->left[numbers[i]] += sched_way_mbs(net, way) * sched_chunks(net, task);
      }
    }
  }
  return r;
}

void reduce_free(SchedReduce *r)
{
  for (int g = 0; g < r->net->n_groups; g++) {
    free(r->sums[g].keys);
  }
}

bool reduce_has(const SchedReduce *r, int32_t number)
{
  return number >= r->base;
}

static int32_t number_of(const SchedReduce *r, int bucket, int what)
{
  return r->base + bucket * NUMBERS + what;
}

/* All of it is there, or there is only the group's own. */
static void can_sum(SchedReduce *r, int bucket)
{
  const SchedBucket *b = &r->net->buckets[bucket];
  r->left[bucket] = b->n_groups;
  for (int k = 0; k < b->n_groups; k++) {
    int32_t number = number_of(r, bucket, SUM + k);
    heap_push(&r->sums[b->groups[k]], number, number);
  }
}

void reduce_added(SchedReduce *r, int32_t id)
{
  int numbers[SCHED_MAX_ADDS], n = sched_adds(r->net, sched_task(r->net, id), sched_layer(r->net, id), numbers);
  for (int i = 0; i < n; i++) {
    if (--r->left[numbers[i]] > 0) {
      continue;
    }
    if (r->net->buckets[numbers[i]].exchanged) {
      r->waiting[r->n_waiting++] = numbers[i];
      r->stirred = true;
    } else {
      can_sum(r, numbers[i]);
    }
  }
}

/* The sums that hold the slot which the bucket's exchange would take, or NULL if nobody else uses it. */
static int *slot_of(SchedReduce *r, const SchedBucket *b, int32_t turn)
{
  return b->set < 0 ? NULL : &r->held[b->set * BUCKET_TURNS + turn % BUCKET_TURNS];
}

static bool can_begin(SchedReduce *r, const SchedBucket *b)
{
  const int *held = b->set < 0 ? NULL : slot_of(r, b, r->turn[b->set]);
  bool can = !held || *held == 0;
  for (int k = 0; k < b->n_groups; k++) {
    can &= !r->busy[b->groups[k]];
  }
  return can;
}

static void begin(SchedReduce *r, int64_t now, int bucket)
{
  const SchedBucket *b = &r->net->buckets[bucket];
  SchedBucketTimes *t = &r->times->buckets[bucket];
  int *held = b->set < 0 ? NULL : slot_of(r, b, r->turn[b->set]);
  if (held) {
    *held = b->n_groups;
  }
  sched_bucket_slot(b, r->turn, &t->slot, &t->use);
  t->start = now;
  t->seq = r->times->n_seq++;
  r->left[bucket] = b->n_groups;
  for (int k = 0; k < b->n_groups; k++) {
    r->busy[b->groups[k]] = true;
    flows_start(r->flows, now, number_of(r, bucket, k), b->groups[k], b->groups[k], &b->msg, true);
  }
}

void reduce_exchange(SchedReduce *r, int64_t now)
{
  int n = 0;
  for (int i = 0; r->stirred && i < r->n_waiting; i++) {
    if (can_begin(r, &r->net->buckets[r->waiting[i]])) {
      begin(r, now, r->waiting[i]);
    } else {
      r->waiting[n++] = r->waiting[i];
    }
  }
  r->n_waiting = r->stirred ? n : r->n_waiting;
  r->stirred = false;
}

void reduce_left(SchedReduce *r, int64_t now, int32_t number)
{
  int bucket = (number - r->base) / NUMBERS;
  const SchedBucket *b = &r->net->buckets[bucket];
  SchedBucketTimes *t = &r->times->buckets[bucket];
  if (--r->left[bucket] > 0) {
    return;
  }
  for (int k = 0; k < b->n_groups; k++) {
    r->busy[b->groups[k]] = false;
  }
  r->stirred = true;
  t->sent = now;
  t->end = now + b->msg.latency;
  heap_push(r->events, t->end, number_of(r, bucket, ARRIVAL));
}

const SchedBucket *reduce_event(SchedReduce *r, int32_t number)
{
  int bucket = (number - r->base) / NUMBERS;
  const SchedBucket *b = &r->net->buckets[bucket];
  if ((number - r->base) % NUMBERS == ARRIVAL) {
    can_sum(r, bucket);
  } else if (b->exchanged && b->set >= 0) {
    --r->held[b->set * BUCKET_TURNS + r->times->buckets[bucket].slot];
    r->stirred = true;
  }
  return b;
}

int64_t reduce_run(SchedReduce *r, int64_t now, int group)
{
  if (r->sums[group].n == 0) {
    return now;
  }
  int32_t number = (int32_t)heap_pop(&r->sums[group]), at = number - r->base;
  SchedBucketTimes *t = &r->times->buckets[at / NUMBERS];
  int64_t end = now + r->net->buckets[at / NUMBERS].reduce_ns;
  t->reduce[at % NUMBERS - SUM] = now;
  t->reduce_seq[at % NUMBERS - SUM] = r->times->n_seq++;
  heap_push(r->events, end, number);
  return end;
}
