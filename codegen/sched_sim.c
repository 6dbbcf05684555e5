/* The event simulation behind the schedule. Resources: one compute unit per group; the ports of the network
   (sched_flow.c); work slots per group and side; message slots per channel. Messages of one ordered pair of groups go
   one after the other, as the runtime's links send them; those of different pairs share the ports. Time is integer
   nanoseconds; all events of one instant are taken in before anything new starts, so whatever ends at t is finished for
   everything that starts at t. Run with a priority rule it makes an order; run with an order it gives the times.

   Slots are few, as the memory model wants, and can run into each other's arms: gradients on their way down wait for
   slots that are held by gradients further down. When nothing moves, the first blocked channel, or else the first
   blocked pool, gets one slot more. So every order ends, and memory grows only where it must. */
#include "codegen/sched_sim.h"

#include <string.h>

#include "codegen/sched_buckets.h"

static void stir_group(Sim *sim, int g)
{
  if (!sim->groups[g].stirred) {
    sim->groups[g].stirred = true;
    sim->stirred_groups[sim->n_stirred_groups++] = g;
  }
}

static void stir_pair(Sim *sim, Pair *pair)
{
  if (!pair->stirred) {
    pair->stirred = true;
    sim->stirred_pairs[sim->n_stirred_pairs++] = (int32_t)(pair - sim->pairs);
  }
}

Pair *sim_pair_of(Sim *sim, int32_t id)
{
  const SchedNet *net = sim->net;
  SchedTask task = sched_task(net, id);
  int layer = sched_layer(net, id), way = sched_way(net, sched_mb(net, id));
  int src = sched_group(net, task, layer, way), dst = sched_dst(net, task, layer, way);
  int node = moe_edge_pairs(sched_edge(task)) == MOE_PAIRS_NODE;
  int32_t *at = &sim->pair_of[(node * net->n_groups + src) * net->n_groups + dst];
  if (*at < 0) {
    *at = sim->n_pairs++;
    Pair *pair = &sim->pairs[*at];
    pair->src = src;
    pair->dst = dst;
    for (int i = 0; i < N_HOPS; i++) {
      pair->chans[i].slots = sim->policy->chan_slots;
    }
  }
  return &sim->pairs[*at];
}

static Chan *chan_of(Sim *sim, int32_t id)
{
  return &sim_pair_of(sim, id)->chans[sched_task(sim->net, id) - TASK_DISPATCH];
}

/* ---- slots ---- */

static Pool *pool_of(Sim *sim, int32_t id)
{
  int side = sched_work_side(sim->net, id);
  return side < 0 ? NULL : &sim->groups[sched_group_of(sim->net, id)].pools[side];
}

/* Where micro-batches are not admitted whole, the last slot of a kind is for the oldest on its way forward, so that it
   can go on. */
static int younger(const Sim *sim, int32_t id)
{
  return sim->room && !room_is_oldest(sim->room, sched_mb(sim->net, id));
}

bool sim_has_work(Sim *sim, int32_t id)
{
  const Pool *pool = pool_of(sim, id);
  SchedTask task = sched_task(sim->net, id);
  bool forward = task == TASK_FFN_FWD || task == TASK_REDUCE_FWD || task == TASK_JOIN_FWD || task == TASK_ATT_FWD;
  bool has = !pool || pool->used < pool->slots - (forward ? younger(sim, id) : 0);
  sim->times->lacked |= !has;
  return has;
}

/* The tasks that read what `id` makes are readers of the slot of `owner`. */
static void add_readers(Sim *sim, int32_t id, int32_t owner)
{
  const SchedNet *net = sim->net;
  int32_t next[SCHED_MAX_NEXT];
  int n = sched_nexts(net, id, next);
  if (sched_task(net, id) == TASK_ATT_AGAIN) {
    next[n++] = sched_id(net, TASK_ATT_DGRAD, sched_layer(net, id), sched_mb(net, id), 0);
  }
  for (int i = 0; i < n; i++) {
    if (sched_task(net, next[i]) != TASK_ATT_AGAIN) {
      sim->readers[owner]++;
      sim->owner[next[i]] = owner;
    }
  }
}

static void take_work(Sim *sim, int32_t id)
{
  Pool *pool = pool_of(sim, id);
  if (pool) {
    pool->used++;
    add_readers(sim, id, id);
  } else if (sched_task(sim->net, id) == TASK_ATT_DGRAD) {
    add_readers(sim, id, sim->owner[id]);
  }
}

static void drop_work(Sim *sim, int32_t reader)
{
  int32_t owner = sim->owner[reader];
  if (owner >= 0 && --sim->readers[owner] == 0) {
    pool_of(sim, owner)->used--;
    stir_group(sim, sched_group_of(sim->net, owner));
  }
}

/* A message slot is free when the op that reads it last is done; a relay's when the relay has sent on. */
static void drop_messages(Sim *sim, int32_t reader)
{
  int32_t hops[SCHED_MAX_CHUNKS];
  for (int i = 0, n = sched_frees(sim->net, reader, hops); i < n; i++) {
    chan_of(sim, hops[i])->used--;
    stir_pair(sim, sim_pair_of(sim, hops[i]));
  }
}

/* ---- readiness ---- */

static void record_start(Sim *sim, int32_t id)
{
  sim->times->start[id] = sim->now;
  sim->times->seq[id] = sim->times->n_seq++;
}

/* Slots that an op or a message has given back may be what forwards anywhere wait for. */
static void give_room(Sim *sim, int32_t id)
{
  if (sim->room && room_give(sim->room, id)) {
    for (int g = 0; g < sim->net->n_groups; g++) {
      if (sim->groups[g].no_room) {
        sim->groups[g].no_room = false;
        stir_group(sim, g);
      }
    }
  }
}

static void start_op(Sim *sim, int32_t id)
{
  take_work(sim, id);
  if (sim->room) {
    room_take(sim->room, id);
  }
  record_start(sim, id);
  sim->times->end[id] = sim->now + sched_op_ns(sim->net, id);
  heap_push(&sim->events, sim->times->end[id], id);
}

static void queue_hop(Sim *sim, int32_t id)
{
  const SchedNet *net = sim->net;
  SchedTask task = sched_task(net, id);
  int64_t key = sim->now;
  if (sim->policy->oldest_sends) { /* the micro-batch that is furthest behind in what it has left */
    int64_t layer = sched_layer(net, id), depth = task >= TASK_PIPE_B ? 2 * net->n_layers - layer : layer;
    key = sched_mb(net, id) * (2 * net->n_layers + INT64_C(1)) - depth + 2 * net->n_layers;
  }
  if (task < TASK_PIPE_B && !sim->given) {
    key += INT64_C(1) << 61; /* gradients first */
  }
  Pair *pair = sim_pair_of(sim, id);
  heap_push(&chan_of(sim, id)->queue, key, id);
  pair->waiting++;
  stir_pair(sim, pair);
}

static void queue_compute(Sim *sim, int32_t id)
{
  const SchedNet *net = sim->net;
  SchedTask task = sched_task(net, id);
  int g = sched_group_of(net, id), layer = sched_layer(net, id), mb = sched_mb(net, id);
  int64_t L = net->n_layers, n = net->n_mbs, depth = task == TASK_EMBED_FWD ? 0 : 1 + layer;
  Heap *heaps = sim->groups[g].ready;
  stir_group(sim, g);
  if (sim->given) {
    sim->ready[id] = 1;
  } else if (task >= TASK_FFN_WGRAD) {
    heap_push(&heaps[READY_WGRAD], mb * (L + 1) + (task == TASK_EMBED_WGRAD ? 0 : layer), id);
  } else if (task >= TASK_HEAD) {
    heap_push(&heaps[READY_GRAD], sim->policy->last_grads ? (L - layer) * n + mb : mb * (L + 1) + layer, id);
  } else {
    heap_push(&heaps[READY_FWD], (sim->policy->first_forwards ? depth : L - depth) * n + mb, id);
  }
}

/* One more of the tasks before it is done. */
static void come(Sim *sim, int32_t id)
{
  const SchedNet *net = sim->net;
  SchedTask task = sched_task(net, id);
  if (++sim->come[id] < sched_n_before(net, id)) {
    return;
  }
  if (task >= TASK_DISPATCH) {
    queue_hop(sim, id);
  } else if (task == TASK_RELAY) { /* helper ops take their time beside the compute */
    start_op(sim, id);
  } else if (task >= TASK_N_COMPUTE) {
    int g = sched_group_of(net, id);
    heap_push(&sim->groups[g].reduces, sim->now, id);
    stir_group(sim, g);
  } else {
    queue_compute(sim, id);
  }
}

static void admit(Sim *sim)
{
  while (sim->admitted < sim->net->n_mbs && sim->admitted - sim->retired < sim->policy->cap) {
    queue_compute(sim, sched_id(sim->net, TASK_EMBED_FWD, 0, sim->admitted++, 0));
  }
}

static void finish(Sim *sim, int32_t id)
{
  const SchedNet *net = sim->net;
  if (reduce_has(sim->reduce, id)) {
    const SchedBucket *bucket = reduce_event(sim->reduce, id);
    for (int k = 0; k < bucket->n_groups; k++) {
      stir_group(sim, bucket->groups[k]);
    }
    return;
  }
  SchedTask task = sched_task(net, id);
  int32_t next[SCHED_MAX_NEXT];
  sim->times->makespan = sim->now;
  reduce_added(sim->reduce, id);
  if (task < TASK_DISPATCH) {
    stir_group(sim, sched_group_of(net, id));
    drop_work(sim, id);
    drop_messages(sim, id);
    give_room(sim, id);
  }
  int n = sched_nexts(net, id, next);
  for (int i = 0; i < n; i++) {
    come(sim, next[i]);
  }
  int32_t hops[SCHED_MAX_CHUNKS];
  n = net->marks ? sched_holds(net, id, hops) : 0;
  for (int i = 0; i < n; i++) {
    if (sched_holder(net, hops[i]) == id) {
      come(sim, hops[i]);
    }
  }
  if (task < TASK_FFN_WGRAD || task > TASK_EMBED_WGRAD) {
    return;
  }
  if (--sim->left[sched_mb(net, id)] == 0) {
    sim->retired++;
    admit(sim);
  }
}

/* ---- what starts ---- */

static void start_compute(Sim *sim)
{
  for (int i = 0; i < sim->n_stirred_groups; i++) {
    int g = sim->stirred_groups[i];
    Group *group = &sim->groups[g];
    group->stirred = false;
    while (group->reduces.n && sim_has_work(sim, (int32_t)group->reduces.keys[1])) {
      start_op(sim, (int32_t)heap_pop(&group->reduces));
    }
    if (group->free_at > sim->now) {
      continue;
    }
    int32_t id = sim_choose(sim, g);
    if (id >= 0) {
      start_op(sim, id);
      group->free_at = sim->times->end[id];
    } else {
      group->free_at = reduce_run(sim->reduce, sim->now, g);
    }
  }
  sim->n_stirred_groups = 0;
}

/* The channel of a pair whose first message goes next, or NULL. */
static Chan *next_chan(const Sim *sim, Pair *pair)
{
  Chan *best = NULL;
  for (int i = 0; i < N_HOPS; i++) {
    Chan *chan = &pair->chans[i];
    bool forward = i + TASK_DISPATCH<TASK_PIPE_B, waits = chan->queue.n> 0;
    bool has = !waits || chan->used < chan->slots - (forward ? younger(sim, (int32_t)chan->queue.keys[1]) : 0);
    sim->times->lacked |= !has;
    if (waits && has &&
        (!best || chan->queue.keys[0] < best->queue.keys[0] ||
         (chan->queue.keys[0] == best->queue.keys[0] && chan->queue.keys[1] < best->queue.keys[1]))) {
      best = chan;
    }
  }
  return best;
}

static void start_messages(Sim *sim)
{
  reduce_exchange(sim->reduce, sim->now);
  for (int i = 0; i < sim->n_stirred_pairs; i++) {
    Pair *pair = &sim->pairs[sim->stirred_pairs[i]];
    pair->stirred = false;
    Chan *chan = pair->busy ? NULL : next_chan(sim, pair);
    if (chan) {
      int32_t id = (int32_t)heap_pop(&chan->queue);
      pair->busy = true;
      pair->waiting--;
      chan->used++;
      record_start(sim, id);
      flows_start(sim->flows, sim->now, id, pair->src, pair->dst, sched_msg(sim->net, id), false);
    }
  }
  sim->n_stirred_pairs = 0;
}

/* The last byte has left: the pair is free, and what the message was packed from. It arrives a latency later. */
static void leave(Sim *sim, int32_t id)
{
  if (reduce_has(sim->reduce, id)) {
    reduce_left(sim->reduce, sim->now, id);
    return;
  }
  Pair *pair = sim_pair_of(sim, id);
  pair->busy = false;
  stir_pair(sim, pair);
  sim->times->sent[id] = sim->now;
  sim->times->end[id] = sim->now + sched_msg(sim->net, id)->latency;
  drop_work(sim, id);
  drop_messages(sim, id);
  give_room(sim, id);
  heap_push(&sim->events, sim->times->end[id], id);
}

static void run_until_still(Sim *sim, int64_t most)
{
  for (;;) {
    start_messages(sim);
    start_compute(sim);
    int64_t flow = flows_next(sim->flows, sim->now), event = sim->events.n ? sim->events.keys[0] : INT64_MAX;
    int64_t next = flow < event ? flow : event;
    if (next == INT64_MAX || (next > most && sim->retired < sim->net->n_mbs)) {
      return;
    }
    sim->now = next;
    for (int32_t id = flows_pop(sim->flows, next); id >= 0; id = flows_pop(sim->flows, next)) {
      leave(sim, id);
    }
    while (sim->events.n && sim->events.keys[0] == next) {
      finish(sim, (int32_t)heap_pop(&sim->events));
    }
  }
}

/* Nothing moves: one slot more for the first channel or pool that stands in the way. */
static bool grow(Sim *sim)
{
  Chan *best = NULL;
  Pair *of = NULL;
  for (int i = 0; i < sim->n_pairs; i++) {
    for (int k = 0; k < N_HOPS; k++) {
      Chan *chan = &sim->pairs[i].chans[k];
      if (chan->queue.n && (!best || chan->queue.keys[0] < best->queue.keys[0])) {
        best = chan;
        of = &sim->pairs[i];
      }
    }
  }
  if (best) {
    best->slots++;
    stir_pair(sim, of);
    return true;
  }
  for (int g = 0; g < sim->net->n_groups; g++) {
    const Group *group = &sim->groups[g];
    int32_t wants = group->reduces.n ? (int32_t)group->reduces.keys[1] : -1;
    for (int i = 0; !sim->given && i < READY_COUNT; i++) {
      for (int k = 0; wants < 0 && k < group->ready[i].n; k++) {
        int32_t id = (int32_t)group->ready[i].keys[2 * k + 1];
        wants = !sim_has_work(sim, id) && (!sim->room || room_has(sim->room, id)) ? id : -1;
      }
    }
    if (wants < 0 && sim->given && group->cursor < sim->given[g].n && sim->ready[sim->given[g].ids[group->cursor]]) {
      wants = sim->given[g].ids[group->cursor];
    }
    if (wants >= 0 && pool_of(sim, wants)) {
      pool_of(sim, wants)->slots++;
      stir_group(sim, g);
      return true;
    }
  }
  return false;
}

/* ---- all of it ---- */

/* At most this many pairs of groups talk. */
static size_t count_pairs(const SchedNet *net)
{
  size_t all = 2 * (size_t)net->n_groups * (size_t)net->n_groups;
  size_t hops = (size_t)(N_HOPS * net->ways * (net->n_layers + 1));
  return hops < all ? hops : all;
}

static Sim sim_new(Arena *arena, const SchedNet *net, const SchedPolicy *policy)
{
  size_t ids = (size_t)sched_ids(net), groups = (size_t)net->n_groups, pairs = count_pairs(net);
  Sim sim = {.net = net, .policy = policy, .flows = flows_new(net->n_groups)};
  sim.groups = arena_new_array(arena, Group, groups);
  sim.pairs = arena_new_array(arena, Pair, pairs);
  sim.pair_of = arena_new_array(arena, int32_t, 2 * groups * groups);
  memset(sim.pair_of, -1, 2 * groups * groups * sizeof *sim.pair_of);
  sim.stirred_pairs = arena_new_array(arena, int32_t, pairs);
  sim.stirred_groups = arena_new_array(arena, int32_t, groups);
  sim.come = arena_new_array(arena, uint8_t, ids);
  sim.ready = arena_new_array(arena, uint8_t, ids);
  sim.owner = arena_new_array(arena, int32_t, ids);
  memset(sim.owner, -1, ids * sizeof *sim.owner);
  sim.readers = arena_new_array(arena, int8_t, ids);
  for (size_t g = 0; g < groups; g++) {
    sim.groups[g].pools[0].slots = sim.groups[g].pools[1].slots = policy->work_slots;
  }
  sim.left = arena_new_array(arena, int32_t, (size_t)net->n_mbs);
  for (int mb = 0; mb < net->n_mbs; mb++) {
    sim.left[mb] = (net->n_layers - net->spec->model.dense.layers) * net->chunks + net->n_layers + 1;
  }
  return sim;
}

static void sim_free(Sim *sim)
{
  for (int g = 0; g < sim->net->n_groups; g++) {
    for (int i = 0; i < READY_COUNT; i++) {
      free(sim->groups[g].ready[i].keys);
    }
    free(sim->groups[g].reduces.keys);
  }
  for (int i = 0; i < sim->n_pairs; i++) {
    for (int k = 0; k < N_HOPS; k++) {
      free(sim->pairs[i].chans[k].queue.keys);
    }
  }
  reduce_free(sim->reduce);
  flows_free(sim->flows);
  free(sim->events.keys);
}

bool sched_simulate(Arena *arena, const SchedNet *net, const SchedPolicy *policy, const SchedOrder *given, int64_t most,
                    SchedTimes *times)
{
  sched_times_clear(net, times);
  Sim sim = sim_new(arena, net, policy);
  sim.given = given;
  sim.times = times;
  sim.reduce = reduce_new(arena, net, sim.flows, &sim.events, times);
  sim.room = policy->keep ? room_new(arena, net, policy->keep) : NULL;
  admit(&sim);
  do { /* the first instant, and again whenever nothing moves: one slot more */
    run_until_still(&sim, most);
  } while (sim.retired < net->n_mbs && !sim.events.n && flows_next(sim.flows, sim.now) == INT64_MAX && grow(&sim));
  bool late = sim.events.n || flows_next(sim.flows, sim.now) < INT64_MAX;
  if (sim.retired < net->n_mbs && !late) {
    die("the order of compute ops does not terminate: %d of %d micro-batches done", sim.retired, net->n_mbs);
  }
  if (!late) {
    sched_times_count(arena, net, times);
  }
  sim_free(&sim);
  return !late;
}
