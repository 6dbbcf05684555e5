/* The link arbiter: messages under way between ranks share ports by max-min fairness; those of buckets share what the
   others leave. A pair of ranks has an outgoing and an incoming port, full duplex; several ranks may share a port, as
   they share a NIC. One instance in shared memory; whoever calls brings the model up to the present. */
#ifndef MOE_PACE_H
#define MOE_PACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/bell.h"
#include "runtime/moe_ops.h"

enum { MOE_PACE_QUEUE = 8 }; /* messages of one pair and class of traffic under way; they travel one after the other */

typedef struct MoePacer MoePacer;

/* One message: when it began to travel, when its last byte left the port, when it arrives. */
typedef struct MoePaced {
  int64_t start_ns;
  int64_t sent_ns;
  int64_t arrival_ns;
} MoePaced;

size_t moe_pace_bytes(int32_t n_ranks, int32_t n_ports);

/* `pacer` is zeroed memory of moe_pace_bytes(). bells [n_ranks] of the progress threads: a rank is rung when one of its
   messages will arrive earlier than moe_pace_poll() has told it. NULL: nobody is. */
void moe_pace_init(MoePacer *pacer, int32_t n_ranks, int32_t n_ports, MoeBell *bells);
void moe_pace_port(MoePacer *, int32_t port, double rate); /* bytes per second */
void moe_pace_route(MoePacer *, int32_t src, int32_t dst, int32_t out_port, int32_t in_port);

/* Every rank r has a port 2 r for what it sends and a port 2 r + 1 for what it receives, all of one rate. */
void moe_pace_even(MoePacer *, double rate);

/* Starts the next message of a pair and class of traffic; false if its queue is full. It was ready at `ready_ns` of
   moe_now_ns(): a sender that is late by a little does not delay it. It arrives latency_ns after its last byte has
   left. */
bool moe_pace_start(MoePacer *, MoeTraffic, int32_t src, int32_t dst, double bytes, int64_t latency_ns,
                    int64_t ready_ns);

/* Brings the model up to now. Returns when to poll again if nobody rings: the earliest end of the messages of `rank`,
   INT64_MAX if it has none under way. */
int64_t moe_pace_poll(MoePacer *, int32_t rank, int64_t now_ns);

/* Message `number` of the pair and class of traffic, counted from 0, one of the last MOE_PACE_QUEUE: whether its last
   byte has left, as of the last poll. If not, the times are what they will be if nothing changes; INT64_MAX for a
   message that queues or finds its port taken. */
bool moe_pace_message(const MoePacer *, MoeTraffic, int32_t src, int32_t dst, uint64_t number, MoePaced *);

#endif
