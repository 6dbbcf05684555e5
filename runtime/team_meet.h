/* Parts of the meeting: process 0's (team_receive.c) and that of the others (team_come.c). */
#ifndef MOE_TEAM_MEET_H
#define MOE_TEAM_MEET_H

#include <netdb.h>

#include "runtime/team.h"

enum { MOE_HELLO_BYTES = 120, MOE_PLACE_TEXT = MOE_HOST_NAME + 16 };

/* What a process says of itself when it comes. */
typedef struct MoeHello {
  uint32_t version, n_ranks, n_processes, process, first, n;
  uint64_t hash, settings, host;
} MoeHello;

typedef struct MoeMeeting {
  MoeTeam *team;
  const MoeMeet *in;
  MoeHello own;
  bool open; /* there is no token */
  int64_t deadline_ns;
  int32_t n_here;
  char refused[300]; /* the last one that was */
} MoeMeeting;

/* Both return when the table of ranks is known to this process. */
MoeStatus moe_team_receive(MoeMeeting *);
MoeStatus moe_team_come(MoeMeeting *);

/* Sockets on which this process's ranks will listen, at team->here. */
MoeStatus moe_team_listen(MoeTeam *);

/* Addresses of the place to meet; *error_p is getaddrinfo()'s. */
MoeStatus moe_team_resolve(const MoeSeat *, struct addrinfo **list_p, int *error_p);

/* That a job without a token meets on this host alone. */
MoeStatus moe_team_check_open(const MoeMeeting *, const uint8_t address[16]);

size_t moe_team_table_bytes(const MoeTeam *);

/* "HOST:PORT" of the place, "rank 3", "ranks 2-3" */
const char *moe_team_place(const MoeSeat *, char *text, size_t n);
const char *moe_team_ranks(int32_t first, int32_t n, char *text, size_t room);

#endif
