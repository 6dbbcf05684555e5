/* What a group computes next: by the policy's rule, or along a given order. */
#include "codegen/sched_sim.h"

/* Messages that stand before the one this task would send. */
static int backlog(Sim *sim, int32_t id)
{
  int32_t next[SCHED_MAX_NEXT];
  if (sched_nexts(sim->net, id, next) == 0 || sched_task(sim->net, next[0]) < TASK_DISPATCH) {
    return 0;
  }
  const Pair *pair = sim_pair_of(sim, next[0]);
  return pair->waiting + pair->busy;
}

/* Brings the first forward that has room to the top of its heap, if any has. */
static void find_room(Sim *sim, Group *group)
{
  Heap *heap = &group->ready[READY_FWD];
  int best = -1;
  for (int i = 0; i < heap->n; i++) {
    int32_t id = (int32_t)heap->keys[2 * i + 1];
    bool room = room_has(sim->room, id);
    group->no_room |= !room;
    if (room && sim_has_work(sim, id) && (best < 0 || heap->keys[2 * i] < heap->keys[2 * best])) {
      best = i;
    }
  }
  if (best > 0) {
    int64_t id = heap->keys[2 * best + 1];
    heap_remove(heap, best);
    heap_push(heap, -1, id);
  }
}

/* Index of the heap to take from, or -1. */
static int choose_heap(Sim *sim, Group *group)
{
  const SchedPolicy *policy = sim->policy;
  bool can[READY_COUNT];
  if (sim->room) {
    find_room(sim, group);
  }
  for (int i = 0; i < READY_COUNT; i++) {
    int32_t id = group->ready[i].n ? (int32_t)group->ready[i].keys[1] : -1;
    can[i] = id >= 0 && sim_has_work(sim, id) && (i != READY_FWD || !sim->room || room_has(sim->room, id));
  }
  bool forward_first = policy->turn == TURN_FORWARD || (policy->turn == TURN_BOTH && group->latest == READY_GRAD);
  if (group->ready[READY_WGRAD].n > policy->wgrads && !(can[READY_GRAD] && policy->turn == TURN_GRAD)) {
    return READY_WGRAD;
  }
  int first = forward_first ? READY_FWD : READY_GRAD, second = READY_GRAD + READY_FWD - first;
  int pick = can[first] ? first : can[second] ? second : -1;
  if (pick < 0 ||
      (can[READY_WGRAD] && policy->backlog && backlog(sim, (int32_t)group->ready[pick].keys[1]) >= policy->backlog)) {
    return can[READY_WGRAD] ? READY_WGRAD : -1;
  }
  return pick;
}

int32_t sim_choose(Sim *sim, int g)
{
  Group *group = &sim->groups[g];
  if (sim->given) {
    const SchedOrder *order = &sim->given[g];
    int32_t id = group->cursor < order->n ? order->ids[group->cursor] : -1;
    if (id < 0 || !sim->ready[id] || !sim_has_work(sim, id)) {
      return -1;
    }
    group->cursor++;
    return id;
  }
  int heap = choose_heap(sim, group);
  group->latest = heap == READY_FWD || heap == READY_GRAD ? heap : group->latest;
  return heap < 0 ? -1 : (int32_t)heap_pop(&group->ready[heap]);
}
