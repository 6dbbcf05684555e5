/* Messages to ranks of other hosts: one connection to each. A slot of the schedule exists on both sides at the same
   offset of the hosts' regions: the sender packs into its own, whose bytes then go into the receiver's, and the release
   comes back as a credit. So both ends look at memory alone, as within a host; a thread of its own moves the bytes. */
#ifndef MOE_TCP_H
#define MOE_TCP_H

#include "runtime/team.h"
#include "runtime/transport.h"
#include "runtime/wiring.h"

typedef struct MoeTcp MoeTcp;

/* Connects the rank with all ranks of other hosts with which it exchanges messages; its listener is closed then.
   Returns once all are there, or after a minute with one line. wirings: of all shapes, n of them. */
MoeStatus moe_tcp_open(MoeTcp **, const MoeTeam *, MoeShared *, const MoeWiring *wirings, int32_t n, int32_t rank);

/* in_order: after all that was handed over has gone and the other sides have closed too, else at once. */
void moe_tcp_close(MoeTcp *, bool in_order);

/* ---- one connection (tcp_line.c) ---- */

typedef struct MoeTcpSlot {
  uint64_t offset;
  size_t capacity;
} MoeTcpSlot;

enum { MOE_TCP_HEAD = 24 };

typedef enum MoeTcpKind { MOE_TCP_MESSAGE, MOE_TCP_CREDIT, MOE_TCP_TAKEN } MoeTcpKind;

typedef struct MoeTcpItem {
  uint32_t kind;   /* MoeTcpKind */
  uint32_t bytes;  /* of the message that follows; 0 for the others */
  uint64_t offset; /* of the slot in the region */
  uint64_t generation;
} MoeTcpItem;

typedef struct MoeTcpLine {
  int fd; /* -1: closed */
  int32_t rank;
  bool ended; /* nothing more comes; own credits may still go */
  uint8_t *slabs;
  MoeTcpSlot *in, *out; /* by offset: slots for messages from and to the other side */
  int32_t n_in, n_out;

  uint8_t head[MOE_TCP_HEAD]; /* of what is coming */
  size_t got;                 /* bytes of it, then of the message */
  MoeTcpItem item;
  bool in_message;
  int64_t start_ns; /* when its first bytes came */

  MoeTcpItem *queue; /* [room] waiting to go; each slot and credit can be in it once, so it never overflows */
  uint32_t room;
  uint64_t first, end; /* counters of those that have begun to go and of all */
  uint8_t out_head[MOE_TCP_HEAD];
  size_t sent; /* of the first one's head and message; its head is made while this is 0 */
} MoeTcpLine;

/* Lists the slots of both directions in all shapes. */
MoeStatus moe_tcp_line_open(MoeTcpLine *, uint8_t *slabs, const MoeWiring *wirings, int32_t n, int32_t me,
                            int32_t other);
void moe_tcp_line_close(MoeTcpLine *);

/* Where the next bytes from the other side belong, and how many of them at most; and that n of them have been put
   there. MOE_EPROTO: they are none that may come now; nothing outside of slots that are free was written. *rang_p:
   something is complete. Nothing is logged. */
uint8_t *moe_tcp_line_room(MoeTcpLine *, size_t *n_p);
MoeStatus moe_tcp_line_filled(MoeTcpLine *, size_t n, bool *rang_p);

/* One more to go. */
void moe_tcp_line_push(MoeTcpLine *, MoeTcpItem);

/* The bytes to send next, in up to two pieces; and that n of them are gone. Returns how many pieces, 0: none. */
struct iovec;
int moe_tcp_line_next(MoeTcpLine *, struct iovec *pieces);
void moe_tcp_line_gone(MoeTcpLine *, size_t n);

#endif
