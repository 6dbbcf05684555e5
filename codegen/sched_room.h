/* Room for what micro-batches leave behind between forward and backward: saved slots, counted per group and side. A
   micro-batch early in its forward or late in its backward needs few of them, so more micro-batches than the pools
   could hold whole may be under way. One may take a slot only if all older ones can still finish after it, one after
   the other, with what is free and what those before them give back (the banker's rule). */
#ifndef CODEGEN_SCHED_ROOM_H
#define CODEGEN_SCHED_ROOM_H

#include "codegen/sched_int.h"

typedef struct SchedRoom SchedRoom;

/* Pools that hold `whole` micro-batches with all their layers. */
SchedRoom *room_new(Arena *, const SchedNet *, int whole);

/* May this forward task start? Tasks that take no slots always may. EMBED_FWD takes those of layer 0, ATT_FWD of a
   later layer takes its own and its experts'. */
bool room_has(const SchedRoom *, int32_t id);
void room_take(SchedRoom *, int32_t id);

/* An op has ended, or a message has left. Returns true if that gave slots back. */
bool room_give(SchedRoom *, int32_t id);

bool room_is_oldest(const SchedRoom *, int mb);

#endif
