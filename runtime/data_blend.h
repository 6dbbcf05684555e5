/* Several data sets in given shares: "0.7:first,0.3:second". Which set a training sequence comes from follows the rule
   of the tools that indexed data comes from, so that a run can be compared with theirs: the set that is furthest behind
   its share takes the next one, the first of equals; each set goes through its own order, which is made for its share
   of the run's samples and a two-hundredth more. */
#ifndef MOE_DATA_BLEND_H
#define MOE_DATA_BLEND_H

#include "runtime/data.h"

/* Whether the path names shares. A file of that very name is that file. */
bool moe_blend_is(const char *path);

/* Opens the parts and lays out the order. Sample s of the blend is sample s / n_parts of part s % n_parts. */
MoeStatus moe_blend_open(MoeData *);
void moe_blend_close(MoeData *);

int64_t moe_blend_sample(const MoeData *, uint64_t number);
int64_t moe_blend_eval_sample(const MoeData *, int64_t i);

#endif
