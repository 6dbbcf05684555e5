/* A connection that carries frames: non-blocking, with what has come and what waits to go in buffers of its own. */
#ifndef MOE_CONN_H
#define MOE_CONN_H

#include <netinet/in.h>

#include "runtime/hmac.h"
#include "runtime/wire.h"

typedef struct MoeConn {
  int fd;           /* -1: none */
  int32_t n_ranks;  /* of the job: what sizes of frames depend on */
  uint32_t accepts; /* MOE_FRAME_BITs of what may come */
  uint8_t *in, *out;
  size_t in_used, in_room, out_used, out_room;
  size_t taken;              /* bytes of `in` that the last frame had */
  uint8_t nonce[MOE_SHA256]; /* own, which the other side's proofs are of */
  int64_t since_ns;          /* opened, or last heard of */
} MoeConn;

#define MOE_NO_CONN ((MoeConn){.fd = -1})

/* Takes the socket over. */
void moe_conn_open(MoeConn *, int fd, int32_t n_ranks, uint32_t accepts);
void moe_conn_close(MoeConn *);

/* Queues a frame and sends what goes. False: the connection is lost, or out of memory. */
bool moe_conn_send(MoeConn *, MoeFrameType, const void *body, size_t n);
bool moe_conn_flush(MoeConn *);

/* The next frame, valid until the next call. MOE_AGAIN: none yet; MOE_EPEER: the other side has closed, *errno_p says
   how (0: in order); MOE_EPROTO: no frame that may come. Nothing is logged. */
MoeStatus moe_conn_next(MoeConn *, MoeFrame *, int *errno_p);

/* Random bytes that nobody can guess. */
void moe_random(void *bytes, size_t n);

/* The proof that leads a body of n bytes, of which the first MOE_SHA256 are the proof's own room. */
void moe_prove(const uint8_t *key, MoeFrameType, const uint8_t *nonce, uint8_t *body, size_t n);
bool moe_is_proved(const uint8_t *key, MoeFrameType, const uint8_t *nonce, const uint8_t *body, size_t n);

/* An address as 16 bytes of IPv6, IPv4 mapped; and back with a port. */
void moe_address_bytes(const struct sockaddr_storage *, uint8_t bytes[16]);
socklen_t moe_address_of(const uint8_t bytes[16], uint16_t port, struct sockaddr_storage *);
bool moe_address_loopback(const uint8_t bytes[16]);

/* "10.0.0.1:29500"; n at least MOE_ADDRESS_TEXT. */
enum { MOE_ADDRESS_TEXT = 56 };
const char *moe_address_text(const struct sockaddr_storage *, char *text, size_t n);

/* A socket that listens there, -1 with errno. *port_p: 0 takes any, and is then the one taken. */
int moe_listen(const uint8_t address[16], uint16_t *port_p);

/* Connects, waiting until deadline_ns at most; -1 with errno. */
int moe_connect(const struct sockaddr_storage *, socklen_t, int64_t deadline_ns);

/* poll() of one descriptor until deadline_ns; whether anything happened. */
bool moe_wait_fd(int fd, short events, int64_t deadline_ns);

#endif
