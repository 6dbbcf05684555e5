/* Measured times of one step as Chrome trace events: pid is the rank, tid the stream, times in us from the step's first
   op. */
#ifndef MOE_TRACE_H
#define MOE_TRACE_H

#include "runtime/file.h"
#include "runtime/shared.h"
#include "runtime/topo.h"

MoeStatus moe_trace_write(const MoeFile *, const MoeBundle *, const MoeShared *);

#endif
