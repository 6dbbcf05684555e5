/* The network of the simulator. Every group has four ports, full duplex: NVLink out and in, NIC out and in. A message
   class between two groups is two flows, of the bytes that stay within nodes and of those that cross, each through one
   outgoing and one incoming port; concurrent flows share the ports by max-min fairness. A flow that meets no other
   takes exactly what its busier port needs. Flows that yield share what the others leave. */
#ifndef CODEGEN_SCHED_FLOW_H
#define CODEGEN_SCHED_FLOW_H

#include "codegen/cost.h"

typedef struct SchedFlows SchedFlows;

SchedFlows *flows_new(int n_groups);
void flows_free(SchedFlows *);
/* A message by its number begins at `now`, never before the time of an earlier call. */
void flows_start(SchedFlows *, int64_t now, int32_t message, int src, int dst, const MsgCost *, bool yields);
/* When the next message will have left, as things stand at `now`; INT64_MAX if none is on its way. */
int64_t flows_next(SchedFlows *, int64_t now);
/* A message that has left by `now`, or -1. */
int32_t flows_pop(SchedFlows *, int64_t now);

#endif
