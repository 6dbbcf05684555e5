/* The order of a schedule's ops rank by rank, by brute force: what the checker derives from groups and two ranks each,
   here from every rank and every message between two ranks. For small plans. */
#ifndef TESTS_SCHED_RANKS_H
#define TESTS_SCHED_RANKS_H

#include "codegen/sched.h"

typedef struct Ranks Ranks;

/* NULL if the messages of some pair of ranks do not match, or if there is a cycle. */
Ranks *ranks_new(Arena *, const Spec *, const Plan *, const Schedule *);
/* On every rank of the group: is op `first` over before op `second` begins, whatever the timing? */
bool ranks_before(Arena *, const Ranks *, int group, int first, int second);

#endif
