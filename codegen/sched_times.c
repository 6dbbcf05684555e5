/* Modelled times by task: where the simulator writes them, and the micro-batches in flight that they show. */
#include "codegen/sched_buckets.h"

#include <stdlib.h>
#include <string.h>

typedef struct Step {
  int64_t time;
  int change;
} Step;

static int by_time(const void *a, const void *b)
{
  const Step *x = a, *y = b;
  return x->time != y->time ? (x->time < y->time ? -1 : 1) : x->change - y->change;
}

void sched_times_count(Arena *arena, const SchedNet *net, SchedTimes *times)
{
  size_t n = (size_t)net->n_mbs, at = 0;
  Step *steps = arena_new_array(arena, Step, 2 * n);
  for (int mb = 0; mb < net->n_mbs; mb++) {
    int64_t end = 0;
    for (int layer = 0; layer < net->n_layers; layer++) {
      for (SchedTask task = TASK_FFN_WGRAD; task <= TASK_EMBED_WGRAD; task++) {
        for (int c = 0; c < sched_chunks(net, task); c++) {
          int64_t t = times->end[sched_id(net, task, layer, mb, c)];
          end = t > end ? t : end;
        }
      }
    }
    steps[at++] = (Step){times->start[sched_id(net, TASK_EMBED_FWD, 0, mb, 0)], 1};
    steps[at++] = (Step){end, -1};
  }
  qsort(steps, 2 * n, sizeof *steps, by_time);
  int now = 0;
  for (size_t i = 0; i < 2 * n; i++) {
    now += steps[i].change;
    times->in_flight = now > times->in_flight ? now : times->in_flight;
  }
}

SchedTimes sched_times_new(Arena *arena, const SchedNet *net)
{
  size_t ids = (size_t)sched_ids(net);
  return (SchedTimes){.start = arena_new_array(arena, int64_t, ids),
                      .end = arena_new_array(arena, int64_t, ids),
                      .sent = arena_new_array(arena, int64_t, ids),
                      .seq = arena_new_array(arena, int32_t, ids),
                      .buckets = arena_new_array(arena, SchedBucketTimes, (size_t)net->n_buckets)};
}

void sched_times_clear(const SchedNet *net, SchedTimes *times)
{
  size_t ids = (size_t)sched_ids(net);
  memset(times->start, -1, ids * sizeof *times->start);
  memset(times->end, -1, ids * sizeof *times->end);
  memset(times->sent, -1, ids * sizeof *times->sent);
  memset(times->seq, -1, ids * sizeof *times->seq);
  times->n_seq = times->in_flight = 0;
  times->makespan = 0;
  times->lacked = false;
}
