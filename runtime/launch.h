/* Starts a process's ranks as processes of this machine, watches them, and ends all of them together. */
#ifndef MOE_LAUNCH_H
#define MOE_LAUNCH_H

#include "runtime/shared.h"
#include "runtime/team.h"
#include "runtime/topo.h"

typedef struct MoeLaunch {
  const MoeBundle *bundle;
  MoeShared *shared;
  int32_t first, n;                    /* ranks to start */
  MoeTeam *team;                       /* the job's other processes, or NULL */
  double timeout_s;                    /* no rank did anything for this long: give up */
  int (*run)(void *arg, int32_t rank); /* a rank's life; its result is the exit code */
  void *arg;
} MoeLaunch;

/* Forks the ranks, passes their output on line by line and waits. Returns 0 when all have finished their last step, 1
   after a failure, here or elsewhere (told in one line that names the rank), 128 + n after signal n. No process is left
   when it returns, and none survives this process, however it ends. */
int moe_launch(const MoeLaunch *);

#endif
