/* Doorbells: a word in (shared) memory on which one thread sleeps until another thread or process rings. A ring costs
   one atomic add while the owner is awake and a system call only when it sleeps. */
#ifndef MOE_BELL_H
#define MOE_BELL_H

#include <stdatomic.h>
#include <stdint.h>

typedef struct MoeBell {
  _Alignas(64) _Atomic uint32_t word; /* grows with every ring */
  _Atomic uint32_t asleep;            /* 1 while its owner sleeps or is about to */
} MoeBell;

void moe_bell_ring(MoeBell *);

/* What moe_bell_wait() compares with; read it before looking at whatever the bell announces. */
uint32_t moe_bell_read(const MoeBell *);

/* Sleeps until somebody has rung since `seen` was read, or until `deadline_ns` of moe_now_ns(). One owner per bell. May
   also return for no reason. */
void moe_bell_wait(MoeBell *, uint32_t seen, int64_t deadline_ns);

/* CLOCK_MONOTONIC, the same for all processes of a host. */
int64_t moe_now_ns(void);

/* Sleeps until an absolute time. Absolute deadlines do not add up their overshoots. */
void moe_sleep_until(int64_t deadline_ns);

/* A lock between processes, for the few places off the step path that need one. 0 is free. */
typedef _Atomic uint32_t MoeLock;
void moe_lock(MoeLock *);
void moe_unlock(MoeLock *);

#endif
