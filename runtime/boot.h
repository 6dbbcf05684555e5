/* Who am I in the job, and where do its processes meet? Answered from flags and from the variables of launchers
   (boot_vars.def), without a word to anybody else. */
#ifndef MOE_BOOT_H
#define MOE_BOOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/moe_status.h"

enum { MOE_HOST_NAME = 256 };

/* Flags; -1 or NULL where one is not given. They stand for MOE_RANK, MOE_WORLD_SIZE, MOE_NODE, MOE_NODES, MOE_ADDRESS.
 */
typedef struct MoeBootFlags {
  int64_t rank, world_size, node, nodes;
  const char *meet; /* HOST:PORT */
} MoeBootFlags;

/* A process's place. Processes are numbered from 0; each runs a run of ranks, process 0 the first. */
typedef struct MoeSeat {
  const char *launcher; /* NULL: this process runs all ranks and meets nobody */
  int32_t n_ranks;      /* of the job */
  int32_t process, n_processes;
  int32_t first, n;         /* ranks of this process */
  int32_t local_rank;       /* of this process among those of its launcher on this host; -1: not told */
  char host[MOE_HOST_NAME]; /* where process 0 listens */
  int32_t port;
} MoeSeat;

/* n_ranks: the plan's. One line, and MOE_EINVAL, if variables contradict each other, are half a set, or do not fit the
   plan. */
MoeStatus moe_boot_seat(MoeSeat *, const MoeBootFlags *, int32_t n_ranks);

/* Slurm's compressed lists. "gnode[10,20,25-27],login3": number of hosts, or -1 if it is not such a list; the name of
   host i of them, counted from 0. */
int32_t moe_slurm_hosts(const char *list);
bool moe_slurm_host(const char *list, int32_t i, char *name, size_t n);

/* "2(x3),1": number of hosts, or -1; *at_p: tasks of host i, 0 if there is none; *total_p: of all. */
int32_t moe_slurm_tasks(const char *text, int32_t i, int32_t *at_p, int32_t *total_p);

/* "HOST:PORT", "[ADDRESS]:PORT"; false if it is not that. */
bool moe_boot_address(const char *text, char *host, size_t n, int32_t *port_p);

/* A port that differs from job to job and is the same for all of one. */
int32_t moe_boot_port(const char *text);

/* The process that started this one and those beside it: the nearest ancestor without the variable `mark`, which
   wrappers between the two have too. */
long moe_boot_parent(const char *mark);

#endif
