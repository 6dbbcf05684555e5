#include "codegen/sched_room.h"

enum { ATT, FFN, SIDES };
enum { READERS = 2 }; /* a slot's last two: the weight gradient, and the message that the input gradient becomes */

struct SchedRoom {
  const SchedNet *net;
  int *slots;    /* [groups][SIDES] */
  int *used;     /* the same */
  int *of_mb;    /* the same: layers of one micro-batch */
  int *taken;    /* [mbs][groups][SIDES] slots that a micro-batch has taken so far */
  uint8_t *left; /* [layers][mbs][SIDES] readers to come of a taken slot */
  int32_t *got;  /* [mbs] slots taken, of all pools */
  int keep;
  int all, oldest; /* slots of a micro-batch; the first that has not taken all */
};

static int pool_at(const SchedRoom *room, int side, int layer, int mb)
{
  const SchedNet *net = room->net;
  SchedTask task = side == ATT ? TASK_ATT_FWD : TASK_FFN_FWD;
  return sched_group(net, task, layer, sched_way(net, mb)) * SIDES + side;
}

static bool has_experts(const SchedRoom *room, int layer)
{
  return layer >= room->net->spec->model.dense.layers;
}

SchedRoom *room_new(Arena *arena, const SchedNet *net, int keep)
{
  size_t pools = (size_t)net->n_groups * SIDES, mbs = (size_t)net->n_mbs;
  SchedRoom *room = arena_new_of(arena, SchedRoom);
  room->net = net;
  room->keep = keep;
  room->slots = arena_new_array(arena, int, pools);
  room->used = arena_new_array(arena, int, pools);
  room->of_mb = arena_new_array(arena, int, pools);
  room->taken = arena_new_array(arena, int, mbs *pools);
  room->left = arena_new_array(arena, uint8_t, (size_t)net->n_layers * mbs * SIDES);
  room->got = arena_new_array(arena, int32_t, mbs);
  for (int layer = 0; layer < net->n_layers; layer++) {
    for (int side = 0; side < (has_experts(room, layer) ? SIDES : FFN); side++) {
      room->of_mb[pool_at(room, side, layer, 0)]++;
      room->all++;
    }
  }
  for (int g = 0; g < net->n_groups; g++) {
    room->slots[g * SIDES + ATT] = plan_saved(net->spec, net->plan, g, PLAN_A);
    room->slots[g * SIDES + FFN] = plan_saved(net->spec, net->plan, g, PLAN_F);
  }
  return room;
}

/* The layer whose slots this task takes, or -1. */
static int taker(const SchedRoom *room, int32_t id)
{
  SchedTask task = sched_task(room->net, id);
  int layer = sched_layer(room->net, id);
  return task == TASK_EMBED_FWD || (task == TASK_ATT_FWD && layer > 0) ? layer : -1;
}

bool room_is_oldest(const SchedRoom *room, int mb)
{
  return mb <= room->oldest;
}

static int at(const SchedRoom *room, int mb, int pool)
{
  return mb * room->net->n_groups * SIDES + pool;
}

/* If `mb` takes a slot, are there still enough for the oldest? */
static bool leaves_enough(const SchedRoom *room, int pool, int mb)
{
  int free = room->slots[pool] - room->used[pool] - 1;
  for (int older = room->oldest, left = room->keep; older < mb && left > 0; older++) {
    int need = room->of_mb[pool] - room->taken[at(room, older, pool)];
    free -= need;
    left -= need > 0;
  }
  return free >= 0;
}

bool room_has(const SchedRoom *room, int32_t id)
{
  int layer = taker(room, id), mb = sched_mb(room->net, id);
  for (int side = 0; layer >= 0 && side < (has_experts(room, layer) ? SIDES : FFN); side++) {
    if (!leaves_enough(room, pool_at(room, side, layer, mb), mb)) {
      return false;
    }
  }
  return true;
}

void room_take(SchedRoom *room, int32_t id)
{
  int layer = taker(room, id), mb = sched_mb(room->net, id);
  for (int side = 0; layer >= 0 && side < (has_experts(room, layer) ? SIDES : FFN); side++) {
    int pool = pool_at(room, side, layer, mb);
    room->used[pool]++;
    room->taken[at(room, mb, pool)]++;
    room->got[mb]++;
    room->left[(layer * room->net->n_mbs + mb) * SIDES + side] = READERS;
  }
  while (room->oldest < room->net->n_mbs - 1 && room->got[room->oldest] == room->all) {
    room->oldest++;
  }
}

bool room_give(SchedRoom *room, int32_t id)
{
  int layer = sched_layer(room->net, id), mb = sched_mb(room->net, id), side = ATT;
  switch (sched_task(room->net, id)) {
  case TASK_FFN_WGRAD:
  case TASK_DISPATCH_B:
    side = FFN;
    break;
  case TASK_ATT_WGRAD:
  case TASK_EMBED_WGRAD:
    break;
  case TASK_COMBINE_B: /* leave from the layer above */
  case TASK_PIPE_B:
    layer++;
    break;
  default:
    return false;
  }
  if (layer == room->net->n_layers || --room->left[(layer * room->net->n_mbs + mb) * SIDES + side] > 0) {
    return false; /* the head's slot is not counted here */
  }
  int pool = pool_at(room, side, layer, mb);
  room->used[pool]--;
  return true;
}
