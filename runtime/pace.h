/* The link arbiter: every rank has an out port and an in port of one rate, full duplex; messages under way share ports
   by max-min fairness. One instance in shared memory; whoever calls brings the model up to the present. */
#ifndef MOE_PACE_H
#define MOE_PACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/bell.h"

enum { MOE_PACE_QUEUE = 8 }; /* messages of one pair under way; they travel one after the other */

typedef struct MoePacer MoePacer;

size_t moe_pace_bytes(int32_t n_ranks);

/* rate: bytes per second of each port and direction. `pacer` is zeroed memory of moe_pace_bytes(). */
void moe_pace_init(MoePacer *pacer, int32_t n_ranks, double rate);

/* Starts message number moe_pace_started() of the pair; false if its queue is full. `now_ns` of moe_now_ns(). */
bool moe_pace_start(MoePacer *, int32_t src, int32_t dst, size_t bytes, int64_t now_ns);

/* How many messages of the pair have arrived by now. *next_ns_p: when to ask again, if nothing else starts:
   the earliest end of any message; INT64_MAX if the pair has none under way. */
uint64_t moe_pace_done(MoePacer *, int32_t src, int32_t dst, int64_t now_ns, int64_t *next_ns_p);

/* When message `number` of the pair (one of the last MOE_PACE_QUEUE) began to travel. */
int64_t moe_pace_start_ns(MoePacer *, int32_t src, int32_t dst, uint64_t number);

/* Grows with every start: a prediction of moe_pace_done() holds while it stays the same. */
uint32_t moe_pace_epoch(const MoePacer *);

/* Writes the ranks that have messages under way to `ranks`, returns their number: those whose predictions a start may
   have changed. */
int32_t moe_pace_senders(MoePacer *, int32_t *ranks);

#endif
