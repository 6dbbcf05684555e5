/* Room for what micro-batches leave behind between forward and backward: saved slots, counted per group and side. A
   micro-batch early in its forward or late in its backward needs few of them, so more micro-batches than the pools
   could hold whole may be under way. One may take a slot only if that leaves all that the oldest few have still to take
   of the pool, of those that have: they never wait for younger ones, so every schedule ends. */
#ifndef CODEGEN_SCHED_ROOM_H
#define CODEGEN_SCHED_ROOM_H

#include "codegen/sched_int.h"

typedef struct SchedRoom SchedRoom;

/* Pools with the plan's saved slots; keep: for how many of the oldest, at least 1. */
SchedRoom *room_new(Arena *, const SchedNet *, int keep);

/* May this forward task start? Tasks that take no slots always may. EMBED_FWD takes those of layer 0, ATT_FWD of a
   later layer takes its own and its experts'. */
bool room_has(const SchedRoom *, int32_t id);
void room_take(SchedRoom *, int32_t id);

/* An op has ended, or a message has left. Returns true if that gave slots back. */
bool room_give(SchedRoom *, int32_t id);

/* No older one is still on its way forward. */
bool room_is_oldest(const SchedRoom *, int mb);

#endif
