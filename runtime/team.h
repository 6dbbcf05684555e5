/* The processes of a job, from when they meet until all have ended. Process 0 keeps a connection to each of the others:
   they tell it what their ranks do, it tells all, and whoever is silent for some seconds is gone. */
#ifndef MOE_TEAM_H
#define MOE_TEAM_H

#include "runtime/boot.h"
#include "runtime/conn.h"
#include "runtime/shared.h"

enum { MOE_JOB_ID = 16, MOE_FAIL_TEXT = 700, MOE_TOKEN = 4096 };

typedef struct MoeMember {
  uint64_t host;       /* equal for processes that can share memory */
  uint8_t address[16]; /* all zeros: process 0's, which each reaches by its own name of it */
  int32_t first, n;    /* ranks */
  MoeConn conn;        /* process 0: to it; elsewhere: of member 0 only, to that */
  bool here;           /* it has come, and not gone */
  bool done;           /* its ranks have finished */
} MoeMember;

typedef struct MoeTeam {
  MoeSeat seat;
  uint8_t key[MOE_SHA256];    /* from the token */
  uint8_t job[MOE_JOB_ID];    /* random, of this job alone */
  uint64_t file_id;           /* process 0's, for names of temporary files */
  MoeMember *members;         /* [seat.n_processes] */
  uint16_t *ports;            /* [n_ranks] where each rank listens for others */
  uint64_t *host_of;          /* [n_ranks] */
  int *listeners;             /* [seat.n] of this process's ranks */
  uint8_t here[16];           /* own address, on which they listen */
  uint8_t place[16];          /* process 0's, as this process reaches it */
  MoeShared *shared;          /* of which ranks' states are told and learnt; NULL: not yet */
  int64_t told_ns;            /* when the others were last told that this process lives */
  char failed[MOE_FAIL_TEXT]; /* why the job ends, once it does */
  bool bye;
} MoeTeam;

/* What all processes of a job must have in common. */
typedef struct MoeMeet {
  const MoeSeat *seat;
  const char *token_file; /* NULL: MOE_TOKEN_FILE or MOE_TOKEN, or none, which is for one host alone */
  uint64_t hash;          /* of the bundle */
  uint64_t settings;      /* of what else must be equal */
  double timeout_s;
} MoeMeet;

/* Returns when all processes are there. One line says what is wrong, or who is missing after timeout_s. */
MoeStatus moe_team_meet(MoeTeam *, const MoeMeet *);
void moe_team_close(MoeTeam *);

/* Processes of one host: the lowest of them, and how many. */
int32_t moe_team_leader(const MoeTeam *);
int32_t moe_team_on_host(const MoeTeam *);
bool moe_team_one_host(const MoeTeam *);

/* The process that runs a rank. */
int32_t moe_team_process(const MoeTeam *, int32_t rank);

/* Region of this host's processes. The leader hands over fd, the others get theirs into *fd_p. */
MoeStatus moe_team_share(MoeTeam *, int *fd_p);

/* In a rank: connections of its launcher are not its own, and of the listeners only one. In the launcher (rank -1),
   once all ranks run: no listener is. */
void moe_team_leave(MoeTeam *, int32_t rank);

/* ---- while ranks run (team_watch.c) ---- */

/* From now on a host that is cut off is missed after some seconds. */
void moe_team_guard(const MoeTeam *);

/* Descriptors to poll for reading: at most n_processes. */
int32_t moe_team_fds(const MoeTeam *, int *fds);

/* Looks at all of them, and at the clock; to be called at least five times a second. MOE_AGAIN: go on. MOE_OK: all is
   over, bye. MOE_EPEER: the job has failed elsewhere, which has been told in one line. */
MoeStatus moe_team_turn(MoeTeam *);

/* This process ends without having finished: everybody is told the line, which is not printed here again. */
void moe_team_fail(MoeTeam *, const char *text);

/* This process's ranks have finished. Process 0 waits until those of all have. */
MoeStatus moe_team_done(MoeTeam *);

/* The end: process 0 tells that all went well, the others wait for that. */
MoeStatus moe_team_bye(MoeTeam *);

#endif
