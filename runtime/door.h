/* Where a job lets its own in. Whoever connects is greeted with a nonce and must answer with one frame of one type
   whose proof is right; until then it has a few kilobytes and a few seconds, and strangers cannot hold more than a
   fixed number of places. Nothing that they send is looked at beyond its size and proof. */
#ifndef MOE_DOOR_H
#define MOE_DOOR_H

#include "runtime/conn.h"

enum { MOE_DOOR_PLACES = 256 };

typedef struct MoeDoor {
  int fd; /* listens; -1: none */
  const uint8_t *key;
  MoeFrameType type; /* of the frame that opens */
  int32_t n_ranks;
  MoeConn *waiting; /* [MOE_DOOR_PLACES] oldest first */
  int32_t n_waiting;
  uint64_t turned_away; /* strangers so far */
} MoeDoor;

/* fd: stays the caller's. */
MoeStatus moe_door_open(MoeDoor *, int fd, const uint8_t *key, MoeFrameType, int32_t n_ranks);
void moe_door_close(MoeDoor *);

/* Waits until something happens or until deadline_ns, and looks at everybody once. `admit` gets each proved frame with
   its connection, and takes that over (leaving MOE_NO_CONN) or leaves it, to be closed. */
void moe_door_turn(MoeDoor *, int64_t deadline_ns, void (*admit)(void *arg, MoeConn *, const MoeFrame *), void *arg);

/* The other side: connects to a door, is greeted, and sends `body` of n bytes, of which room for the proof and then the
   own nonce come first and are filled in. On MOE_OK *c waits for what `accepts` says. MOE_EPEER: not (yet) there, with
   errno; MOE_EPROTO: something else answers there. Nothing is logged. */
MoeStatus moe_knock(MoeConn *c, const struct sockaddr_storage *, socklen_t, const uint8_t *key, MoeFrameType,
                    uint8_t *body, size_t n, int32_t n_ranks, uint32_t accepts, int64_t deadline_ns);

#endif
