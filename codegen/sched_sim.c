/* The event simulation behind the schedule. Resources: one compute unit per group; per group an outgoing and an
   incoming port for messages between groups and another pair for messages within a node; work slots per group and side;
   message slots per channel. Time is integer nanoseconds; all events of one instant are taken in before anything new
   starts, so whatever ends at t is finished for everything that starts at t. Run with a priority rule it makes an
   order; run with an order it gives the times.

   Slots are few, as the memory model wants, and can run into each other's arms: gradients on their way down wait for
   slots that are held by gradients further down. When nothing moves, the first blocked channel, or else the first
   blocked pool, gets one slot more. So every order ends, and memory grows only where it must. */
#include "codegen/sched_int.h"

#include <stdlib.h>
#include <string.h>

typedef struct Heap {
  int64_t *keys; /* pairs (key, value) */
  int n, cap;
} Heap;

static void heap_push(Heap *heap, int64_t key, int64_t value)
{
  if (heap->n == heap->cap) {
    heap->cap = heap->cap ? 2 * heap->cap : 16;
    int64_t *keys = realloc(heap->keys, (size_t)heap->cap * 2 * sizeof *keys);
    if (!keys) {
      die("out of memory");
    }
    heap->keys = keys;
  }
  int i = heap->n++;
  while (i > 0) {
    int up = (i - 1) / 2;
    int64_t k = heap->keys[2 * up], v = heap->keys[2 * up + 1];
    if (k < key || (k == key && v <= value)) {
      break;
    }
    heap->keys[2 * i] = k;
    heap->keys[2 * i + 1] = v;
    i = up;
  }
  heap->keys[2 * i] = key;
  heap->keys[2 * i + 1] = value;
}

static int64_t heap_pop(Heap *heap)
{
  int64_t top = heap->keys[1];
  int n = --heap->n;
  int64_t key = heap->keys[2 * n], value = heap->keys[2 * n + 1];
  int i = 0;
  for (;;) {
    int child = 2 * i + 1;
    if (child >= n) {
      break;
    }
    int64_t *c = &heap->keys[2 * child];
    if (child + 1 < n && (c[2] < c[0] || (c[2] == c[0] && c[3] < c[1]))) {
      c += 2;
      child++;
    }
    if (key < c[0] || (key == c[0] && value <= c[1])) {
      break;
    }
    heap->keys[2 * i] = c[0];
    heap->keys[2 * i + 1] = c[1];
    i = child;
  }
  heap->keys[2 * i] = key;
  heap->keys[2 * i + 1] = value;
  return top;
}

/* Events: id * EV_COUNT + what; EV_PORT alone when a port becomes free. Values order equal times: any fixed order will
 * do. */
enum { EV_DONE, EV_SENT, EV_PORT, EV_COUNT };

enum { READY_GRAD, READY_FWD, READY_WGRAD, READY_COUNT };

/* A message channel and the messages that want to start. */
typedef struct Link {
  int src, dst;
  bool node; /* ports within the node */
  int used, slots;
  Heap queue;
} Link;

/* Work slots of one side of a group: of attention ops, of FFN ops. */
typedef struct Pool {
  int used, slots;
} Pool;

typedef struct Sim {
  const SchedNet *net;
  const SchedPolicy *policy;
  SchedOrder *made; /* filled when there is no given order */
  const SchedOrder *given;
  int *cursor;             /* [groups] next in the given order */
  bool *ready;             /* [ids] with a given order */
  Heap *heaps;             /* [groups][READY_COUNT] otherwise */
  int64_t *free_at;        /* [groups] compute */
  int64_t *out_at, *in_at; /* [2][groups] ports */
  Link *links;
  int n_links;
  int32_t *link_of; /* [hops][groups][groups] */
  int *latest;      /* [groups] which of READY_GRAD and READY_FWD ran last */
  bool *stirred;    /* [groups] something changed that may let it start a compute op or a NODE_REDUCE */
  bool links_stirred;
  Pool *pools;     /* [groups][2] */
  Heap *reduces;   /* [groups] NODE_REDUCE tasks that want a work slot */
  int8_t *readers; /* [ids] of a task with a work slot: last users to come */
  Heap events;
  SchedTimes *times;
  int64_t now;
  int admitted, retired;
  int32_t *left; /* [mbs] weight gradients still to come */
  int n_wgrads;
} Sim;

static void make_ready(Sim *sim, int32_t id);

static void admit(Sim *sim)
{
  int cap = sim->policy->cap;
  while (sim->admitted < sim->net->n_mbs && sim->admitted - sim->retired < cap) {
    make_ready(sim, sched_id(sim->net, TASK_EMBED_FWD, 0, sim->admitted++));
  }
}

static Link *link_of(Sim *sim, int32_t id)
{
  const SchedNet *net = sim->net;
  SchedTask task = sched_task(net, id);
  int layer = sched_layer(net, id), src = sched_group(net, task, layer), dst = sched_dst(net, task, layer);
  int32_t *link = &sim->link_of[(((int)task - (int)TASK_DISPATCH) * net->n_groups + src) * net->n_groups + dst];
  if (*link < 0) {
    bool node = moe_edge_pairs(sched_edge(task)) == MOE_PAIRS_NODE;
    *link = sim->n_links++;
    sim->links[*link] = (Link){.src = src, .dst = dst, .node = node, .slots = sim->policy->chan_slots};
  }
  return &sim->links[*link];
}

static void queue_hop(Sim *sim, int32_t id)
{
  const SchedNet *net = sim->net;
  SchedTask task = sched_task(net, id);
  int64_t key = sim->now;
  if (sim->policy->oldest_sends) { /* the micro-batch that is furthest behind in what it has left */
    int64_t layer = sched_layer(net, id), depth = task >= TASK_COMBINE_B ? 2 * net->n_layers - layer : layer;
    key = sched_mb(net, id) * (2 * net->n_layers + INT64_C(1)) - depth + 2 * net->n_layers;
  }
  if (task < TASK_COMBINE_B) {
    key += INT64_C(1) << 61; /* gradients first */
  }
  heap_push(&link_of(sim, id)->queue, key, id);
  sim->links_stirred = true;
}

static Pool *pool_of(Sim *sim, int32_t id)
{
  const SchedNet *net = sim->net;
  SchedTask task = sched_task(net, id);
  bool ffn = task == TASK_FFN_FWD || task == TASK_FFN_DGRAD || task == TASK_REDUCE_FWD || task == TASK_REDUCE_BWD;
  bool att = task == TASK_HEAD || task == TASK_ATT_DGRAD;
  return ffn || att ? &sim->pools[2 * sched_group(net, task, sched_layer(net, id)) + ffn] : NULL;
}

/* The task whose work slot this one reads last, or one of the last, or -1. */
static int32_t work_owner(const Sim *sim, int32_t id)
{
  const SchedNet *net = sim->net;
  int layer = sched_layer(net, id), mb = sched_mb(net, id);
  bool relayed = layer < net->n_layers && net->relayed[layer];
  switch (sched_task(net, id)) {
  case TASK_GATHER:
    return sched_id(net, TASK_FFN_FWD, layer, mb);
  case TASK_COMBINE:
    return sched_id(net, relayed ? TASK_REDUCE_FWD : TASK_FFN_FWD, layer, mb);
  case TASK_COMBINE_B:
    return sched_id(net, layer + 1 < net->n_layers ? TASK_ATT_DGRAD : TASK_HEAD, layer + 1, mb);
  case TASK_FORWARD_B:
  case TASK_FFN_WGRAD:
    return sched_id(net, TASK_FFN_DGRAD, layer, mb);
  case TASK_DISPATCH_B:
    return sched_id(net, relayed ? TASK_REDUCE_BWD : TASK_FFN_DGRAD, layer, mb);
  case TASK_ATT_WGRAD:
  case TASK_EMBED_WGRAD:
    return sched_id(net, TASK_ATT_DGRAD, layer, mb);
  default:
    return -1;
  }
}

static void take_work(Sim *sim, int32_t id)
{
  Pool *pool = pool_of(sim, id);
  if (pool) {
    SchedTask task = sched_task(sim->net, id);
    pool->used++;
    sim->readers[id] = task == TASK_FFN_DGRAD || task == TASK_ATT_DGRAD ? 2 : 1;
  }
}

static void drop_work(Sim *sim, int32_t reader)
{
  int32_t owner = work_owner(sim, reader);
  if (owner >= 0 && --sim->readers[owner] == 0) {
    pool_of(sim, owner)->used--;
    sim->stirred[sched_group(sim->net, sched_task(sim->net, owner), sched_layer(sim->net, owner))] = true;
  }
}

/* A message slot is free when the op that reads it last is done; a relay's when the relay has sent on. */
static void drop_message(Sim *sim, int32_t reader)
{
  const SchedNet *net = sim->net;
  int layer = sched_layer(net, reader), mb = sched_mb(net, reader);
  bool relayed = layer < net->n_layers && net->relayed[layer];
  SchedTask read;
  switch (sched_task(net, reader)) {
  case TASK_ATT_FWD:
  case TASK_HEAD:
    read = TASK_COMBINE;
    layer--;
    break;
  case TASK_FFN_FWD:
    read = relayed ? TASK_FORWARD : TASK_DISPATCH;
    break;
  case TASK_FORWARD:
    read = TASK_DISPATCH;
    break;
  case TASK_REDUCE_FWD:
    read = TASK_GATHER;
    break;
  case TASK_FFN_DGRAD:
    read = relayed ? TASK_GATHER_B : TASK_COMBINE_B;
    break;
  case TASK_GATHER_B:
    read = TASK_COMBINE_B;
    break;
  case TASK_REDUCE_BWD:
    read = TASK_FORWARD_B;
    break;
  case TASK_ATT_DGRAD:
    read = TASK_DISPATCH_B;
    break;
  default:
    return;
  }
  if (layer >= 0) {
    link_of(sim, sched_id(net, read, layer, mb))->used--;
    sim->links_stirred = true;
  }
}

static void start_helper(Sim *sim, int32_t id)
{
  const SchedNet *net = sim->net;
  take_work(sim, id);
  sim->times->start[id] = sim->now;
  sim->times->end[id] = sim->now + net->op_ns[sched_task(net, id)][sched_layer(net, id)];
  sim->times->seq[id] = sim->times->n_seq++;
  heap_push(&sim->events, sim->times->end[id], (int64_t)id * EV_COUNT + EV_DONE);
}

static void make_ready(Sim *sim, int32_t id)
{
  const SchedNet *net = sim->net;
  SchedTask task = sched_task(net, id);
  if (task >= TASK_DISPATCH) {
    queue_hop(sim, id);
    return;
  }
  int layer = sched_layer(net, id), mb = sched_mb(net, id);
  if (task == TASK_RELAY) { /* helper ops take their time beside the compute */
    start_helper(sim, id);
    return;
  }
  sim->stirred[sched_group(net, task, layer)] = true;
  if (task >= TASK_N_COMPUTE) {
    heap_push(&sim->reduces[sched_group(net, task, layer)], sim->now, id);
    return;
  }
  if (sim->given) {
    sim->ready[id] = true;
    return;
  }
  Heap *heaps = &sim->heaps[sched_group(net, task, layer) * READY_COUNT];
  int64_t L = net->n_layers, n = net->n_mbs;
  if (task == TASK_HEAD || task == TASK_FFN_DGRAD || task == TASK_ATT_DGRAD) {
    heap_push(&heaps[READY_GRAD], mb * (L + 1) + layer, id);
  } else if (task >= TASK_FFN_WGRAD) {
    heap_push(&heaps[READY_WGRAD], mb * (L + 1) + (task == TASK_EMBED_WGRAD ? 0 : layer), id);
  } else {
    int64_t depth = task == TASK_EMBED_FWD ? L : L - 1 - layer;
    heap_push(&heaps[READY_FWD], depth * n + mb, id);
  }
}

static void finish(Sim *sim, int32_t id)
{
  const SchedNet *net = sim->net;
  SchedTask task = sched_task(net, id);
  int32_t next = sched_next(net, id), wgrad = sched_wgrad(net, id);
  if (task < TASK_DISPATCH) {
    sim->stirred[sched_group(net, task, sched_layer(net, id))] = true;
    drop_work(sim, id);
    drop_message(sim, id);
  }
  if (next >= 0) {
    make_ready(sim, next);
  }
  if (wgrad >= 0) {
    make_ready(sim, wgrad);
  }
  if (task >= TASK_FFN_WGRAD && task <= TASK_EMBED_WGRAD && --sim->left[sched_mb(net, id)] == 0) {
    sim->retired++;
    admit(sim);
  }
}

static bool has_work(Sim *sim, int32_t id)
{
  const Pool *pool = pool_of(sim, id);
  return !pool || pool->used < pool->slots;
}

/* Index of the heap to take from, or -1. `latest`: whether a gradient or a forward ran last. */
static int choose_heap(Sim *sim, const Heap *heaps, int latest)
{
  bool can[READY_COUNT];
  for (int i = 0; i < READY_COUNT; i++) {
    can[i] = heaps[i].n && has_work(sim, (int32_t)heaps[i].keys[1]);
  }
  bool forward_first = sim->policy->turn == TURN_FORWARD || (sim->policy->turn == TURN_BOTH && latest == READY_GRAD);
  if (heaps[READY_WGRAD].n > sim->policy->wgrads && !(can[READY_GRAD] && sim->policy->turn == TURN_GRAD)) {
    return READY_WGRAD;
  }
  int first = forward_first ? READY_FWD : READY_GRAD, second = READY_GRAD + READY_FWD - first;
  return can[first] ? first : can[second] ? second : can[READY_WGRAD] ? READY_WGRAD : -1;
}

static int32_t choose(Sim *sim, int g)
{
  if (sim->given) {
    const SchedOrder *order = &sim->given[g];
    int at = sim->cursor[g];
    if (at == order->n || !sim->ready[order->ids[at]] || !has_work(sim, order->ids[at])) {
      return -1;
    }
    sim->cursor[g]++;
    return order->ids[at];
  }
  Heap *heaps = &sim->heaps[g * READY_COUNT];
  int heap = choose_heap(sim, heaps, sim->latest[g]);
  sim->latest[g] = heap == READY_FWD || heap == READY_GRAD ? heap : sim->latest[g];
  return heap < 0 ? -1 : (int32_t)heap_pop(&heaps[heap]);
}

static void start_compute(Sim *sim)
{
  const SchedNet *net = sim->net;
  for (int g = 0; g < net->n_groups; g++) {
    if (!sim->stirred[g]) {
      continue;
    }
    sim->stirred[g] = false;
    while (sim->reduces[g].n && has_work(sim, (int32_t)sim->reduces[g].keys[1])) {
      start_helper(sim, (int32_t)heap_pop(&sim->reduces[g]));
    }
    if (sim->free_at[g] > sim->now) {
      continue;
    }
    int32_t id = choose(sim, g);
    if (id < 0) {
      continue;
    }
    int64_t end = sim->now + net->op_ns[sched_task(net, id)][sched_layer(net, id)];
    take_work(sim, id);
    sim->times->start[id] = sim->now;
    sim->times->end[id] = end;
    sim->times->seq[id] = sim->times->n_seq++;
    sim->free_at[g] = end;
    if (sim->made) {
      sim->made[g].ids[sim->made[g].n++] = id;
    }
    heap_push(&sim->events, end, (int64_t)id * EV_COUNT + EV_DONE);
  }
}

static int64_t *port(Sim *sim, int64_t *ports, const Link *link, int group)
{
  return &ports[(link->node ? sim->net->n_groups : 0) + group];
}

/* A message needs the sender's outgoing and the receiver's incoming port at once. Of the links that could start, the
   one whose first message comes first goes. */
static Link *next_link(Sim *sim)
{
  Link *best = NULL;
  for (int i = 0; i < sim->n_links; i++) {
    Link *link = &sim->links[i];
    if (link->queue.n && link->used < link->slots && *port(sim, sim->out_at, link, link->src) <= sim->now &&
        *port(sim, sim->in_at, link, link->dst) <= sim->now && (!best || link->queue.keys[0] < best->queue.keys[0])) {
      best = link;
    }
  }
  return best;
}

static void start_messages(Sim *sim)
{
  if (!sim->links_stirred) {
    return;
  }
  sim->links_stirred = false;
  for (Link *link = next_link(sim); link; link = next_link(sim)) {
    int32_t id = (int32_t)heap_pop(&link->queue);
    MsgCost cost = sim->net->msg[sched_task(sim->net, id)][sched_layer(sim->net, id)];
    int64_t out = sim->now + cost.src_ns, in = sim->now + cost.dst_ns;
    *port(sim, sim->out_at, link, link->src) = out;
    *port(sim, sim->in_at, link, link->dst) = in;
    sim->times->start[id] = sim->now;
    sim->times->sent[id] = out;
    sim->times->end[id] = sim->now + cost.ns;
    sim->times->seq[id] = sim->times->n_seq++;
    link->used++;
    heap_push(&sim->events, sim->times->end[id], (int64_t)id * EV_COUNT + EV_DONE);
    heap_push(&sim->events, out, (int64_t)id * EV_COUNT + EV_SENT);
    heap_push(&sim->events, in, EV_PORT);
  }
}

static void take_event(Sim *sim, int64_t event)
{
  int32_t id = (int32_t)(event / EV_COUNT);
  if (event % EV_COUNT == EV_DONE) {
    finish(sim, id);
    return;
  }
  sim->links_stirred = true;
  if (event % EV_COUNT == EV_SENT) {
    drop_work(sim, id);
    drop_message(sim, id);
  }
}

static void count_in_flight(const SchedNet *net, SchedTimes *times)
{
  Heap ends = {0};
  times->in_flight = 0;
  for (int mb = 0; mb < net->n_mbs; mb++) { /* a starts order: first forwards run on one group, lowest first */
    int64_t start = times->start[sched_id(net, TASK_EMBED_FWD, 0, mb)], end = 0;
    for (int layer = 0; layer < net->n_layers; layer++) {
      for (SchedTask task = TASK_FFN_WGRAD; task <= TASK_EMBED_WGRAD; task++) {
        int64_t t = times->end[sched_id(net, task, layer, mb)];
        end = t > end ? t : end;
      }
    }
    while (ends.n && ends.keys[0] <= start) {
      heap_pop(&ends);
    }
    heap_push(&ends, end, mb);
    times->in_flight = ends.n > times->in_flight ? ends.n : times->in_flight;
  }
  free(ends.keys);
}

/* Nothing moves: one slot more for the first channel or pool that stands in the way. */
static bool grow(Sim *sim)
{
  Link *best = NULL;
  for (int i = 0; i < sim->n_links; i++) {
    Link *link = &sim->links[i];
    if (link->queue.n && (!best || link->queue.keys[0] < best->queue.keys[0])) {
      best = link;
    }
  }
  if (best) {
    best->slots++;
    sim->links_stirred = true;
    return true;
  }
  for (int g = 0; g < sim->net->n_groups; g++) {
    int32_t wants = sim->reduces[g].n ? (int32_t)sim->reduces[g].keys[1] : -1;
    for (int i = 0; wants < 0 && !sim->given && i < READY_COUNT; i++) {
      wants = sim->heaps[g * READY_COUNT + i].n ? (int32_t)sim->heaps[g * READY_COUNT + i].keys[1] : -1;
    }
    if (wants < 0 && sim->given && sim->cursor[g] < sim->given[g].n && sim->ready[sim->given[g].ids[sim->cursor[g]]]) {
      wants = sim->given[g].ids[sim->cursor[g]];
    }
    if (wants >= 0 && pool_of(sim, wants)) {
      pool_of(sim, wants)->slots++;
      sim->stirred[g] = true;
      return true;
    }
  }
  return false;
}

static void sim_free(Sim *sim)
{
  for (int i = 0; i < sim->net->n_groups * READY_COUNT; i++) {
    free(sim->heaps[i].keys);
  }
  for (int i = 0; i < sim->n_links; i++) {
    free(sim->links[i].queue.keys);
  }
  for (int g = 0; g < sim->net->n_groups; g++) {
    free(sim->reduces[g].keys);
  }
  free(sim->events.keys);
}

static void times_new(Arena *arena, size_t ids, SchedTimes *times)
{
  *times = (SchedTimes){0};
  times->start = arena_new_array(arena, int64_t, ids);
  times->end = arena_new_array(arena, int64_t, ids);
  times->sent = arena_new_array(arena, int64_t, ids);
  times->seq = arena_new_array(arena, int32_t, ids);
  memset(times->start, -1, ids * sizeof *times->start);
  memset(times->end, -1, ids * sizeof *times->end);
  memset(times->seq, -1, ids * sizeof *times->seq);
}

static Sim sim_new(Arena *arena, const SchedNet *net, const SchedPolicy *policy)
{
  size_t ids = (size_t)sched_ids(net), groups = (size_t)net->n_groups;
  size_t links = (TASK_COUNT - TASK_DISPATCH) * groups * groups;
  Sim sim = {.net = net, .policy = policy};
  sim.free_at = arena_new_array(arena, int64_t, groups);
  sim.out_at = arena_new_array(arena, int64_t, 2 * groups);
  sim.in_at = arena_new_array(arena, int64_t, 2 * groups);
  sim.links = arena_new_array(arena, Link, links);
  sim.link_of = arena_new_array(arena, int32_t, links);
  memset(sim.link_of, -1, links * sizeof *sim.link_of);
  sim.reduces = arena_new_array(arena, Heap, groups);
  sim.readers = arena_new_array(arena, int8_t, ids);
  sim.stirred = arena_new_array(arena, bool, groups);
  sim.latest = arena_new_array(arena, int, groups);
  sim.pools = arena_new_array(arena, Pool, 2 * groups);
  for (size_t i = 0; i < 2 * groups; i++) {
    sim.pools[i].slots = policy->work_slots;
  }
  sim.left = arena_new_array(arena, int32_t, (size_t)net->n_mbs);
  for (int mb = 0; mb < net->n_mbs; mb++) {
    sim.left[mb] = 2 * net->n_layers + 1;
  }
  sim.cursor = arena_new_array(arena, int, groups);
  sim.ready = arena_new_array(arena, bool, ids);
  sim.heaps = arena_new_array(arena, Heap, groups * READY_COUNT);
  return sim;
}

void sched_simulate(Arena *arena, const SchedNet *net, const SchedPolicy *policy, SchedOrder *made,
                    const SchedOrder *given, SchedTimes *times)
{
  times_new(arena, (size_t)sched_ids(net), times);
  Sim sim = sim_new(arena, net, policy);
  sim.made = made;
  sim.given = given;
  sim.times = times;
  for (int g = 0; made && g < net->n_groups; g++) {
    made[g].n = 0;
  }
  admit(&sim);
  do { /* the first instant, and again whenever nothing moves: one slot more */
    start_messages(&sim);
    start_compute(&sim);
    while (sim.events.n) {
      sim.now = sim.events.keys[0];
      while (sim.events.n && sim.events.keys[0] == sim.now) {
        take_event(&sim, heap_pop(&sim.events));
      }
      start_messages(&sim);
      start_compute(&sim);
    }
  } while (sim.retired < net->n_mbs && grow(&sim));
  times->makespan = sim.now;
  if (sim.retired < net->n_mbs) {
    die("the order of compute ops does not terminate: %d of %d micro-batches done", sim.retired, net->n_mbs);
  }
  count_in_flight(net, times);
  sim_free(&sim);
}
