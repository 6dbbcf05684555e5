/* The one region that the launcher and all ranks share: state of every rank, doorbells, the link arbiter, trace times
   and message slots. It is mapped before the ranks are forked and has no name, so nothing of it can be left behind. In
   a job of several hosts each has one. */
#ifndef MOE_SHARED_H
#define MOE_SHARED_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/bell.h"
#include "runtime/moe_status.h"
#include "runtime/pace.h"

enum { MOE_ERROR_TEXT = 400 };

typedef enum MoePhase { MOE_PHASE_START, MOE_PHASE_INIT, MOE_PHASE_RUN, MOE_PHASE_SAVE, MOE_PHASE_DONE } MoePhase;

/* What a rank is doing, kept up to date by the rank, read by the launcher. */
typedef struct MoeRankState {
  _Alignas(64) _Atomic uint32_t phase; /* MoePhase */
  _Atomic uint32_t failed;             /* 1: `error` is being written, 2: `error` is complete */
  _Atomic uint64_t step;               /* training step, from 1; 0 before the first */
  _Atomic uint32_t shape;              /* of that step: number in the program */
  _Atomic uint64_t saved;              /* 1 + step of the last checkpoint of which its part is written; 0: none */
  _Atomic uint64_t beats;              /* grows whenever anything was done */
  _Atomic uint32_t compute;            /* op in progress: index + 1, or 0; MOE_WAITING set while it waits to start */
  _Atomic uint32_t comm;               /* the same of the progress thread */
  /* of rehearsals: how many steps the rank has finished, and of the last two (even, odd) when each ended on the rank's
     timeline, the time of day then, and how late its ops began at worst */
  _Atomic uint64_t met;
  _Atomic int64_t met_end_ns[2];
  _Atomic int64_t met_now_ns[2];
  _Atomic int64_t met_late_ns[2];
  char error[MOE_ERROR_TEXT];
} MoeRankState;

#define MOE_WAITING 0x80000000u

typedef struct MoeShared {
  uint8_t *base;
  uint64_t bytes;
  int32_t n_ranks;
  MoeRankState *states; /* [n_ranks] */
  MoeBell *comm_bells;  /* [n_ranks] of the progress threads */
  MoeBell *compute_bells;
  MoePacer *pacer;        /* NULL where links are not paced */
  _Atomic int64_t *times; /* [n_ranks][2 * max_ops] start and end of every op, ns; NULL without --trace */
  int32_t max_ops;
  uint32_t *loads; /* [2][n_ranks][load_cells] of moe_load_begin(); NULL: not counted */
  uint8_t *slabs;
  uint64_t slab_bytes;
  int fd;                  /* of the region */
  const uint64_t *host_of; /* [n_ranks] equal for ranks that can share memory; NULL: all can */
  struct MoeTcp *net;      /* in a rank: its connections to other hosts, or NULL */
} MoeShared;

/* pace_ports 0: links are not paced; max_ops 0: no trace; load_cells 0: experts' tokens are not counted. fd: a region
   of the same sizes that another process of this host has made, or -1. Slots of messages between other hosts lie in it
   too, but are never touched. */
MoeStatus moe_shared_map(MoeShared *, int32_t n_ranks, uint64_t slab_bytes, int32_t pace_ports, int32_t max_ops,
                         size_t load_cells, int fd);
void moe_shared_unmap(MoeShared *);

#endif
