/* A rehearsal: the bundle's tables give every op its modelled duration and every message its modelled size, and real
   time runs `scale` times slower than modelled time. */
#ifndef MOE_EMU_H
#define MOE_EMU_H

#include "runtime/pace.h"
#include "runtime/shared.h"
#include "runtime/topo.h"
#include "runtime/wiring.h"

/* Duration of an op, in real ns. */
int64_t moe_emu_ns(const MoeRank *, int32_t op, double scale);

/* Modelled bytes of a SEND's message to a peer, and its latency in real ns. */
double moe_emu_message(const MoeRank *, int32_t op, int32_t peer_rank, double scale, int64_t *latency_ns_p);

/* Ports of the modelled network, for moe_pace_init(); their rates and the way of every pair of ranks. */
int32_t moe_emu_ports(const MoeBundle *);
void moe_emu_network(const MoeBundle *, double scale, MoePacer *);

/* A time scale at which this machine should keep up with all ranks: typical ops last long against the precision of
   timers, and the work of moving messages fills at most half of the cores. */
double moe_emu_scale(const MoeBundle *, const MoeWiring *);

/* What all ranks have learned when all have ended a step. */
typedef struct MoeMeeting {
  int64_t end_ns;  /* end of the step's last op of all ranks, on the common timeline */
  int64_t next_ns; /* when the next step may begin */
  int64_t late_ns; /* most by which an op began too late for want of a core */
} MoeMeeting;

/* Waits until all ranks are here. meeting: 0, 1, ... */
MoeMeeting moe_emu_meet(const MoeShared *, int32_t rank, uint64_t meeting, int64_t end_ns, int64_t late_ns);

#endif
