#include "runtime/door.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/bell.h"
#include "runtime/log.h"

#define PATIENCE_NS 5000000000 /* for a stranger's first frame */

MoeStatus moe_door_open(MoeDoor *d, int fd, const uint8_t *key, MoeFrameType type, int32_t n_ranks)
{
  *d = (MoeDoor){.fd = fd, .key = key, .type = type, .n_ranks = n_ranks};
  d->waiting = calloc(MOE_DOOR_PLACES, sizeof *d->waiting);
  if (d->waiting == NULL) {
    moe_error("out of memory for connections");
    return MOE_ENOMEM;
  }
  return MOE_OK;
}

void moe_door_close(MoeDoor *d)
{
  for (int32_t i = 0; i < d->n_waiting; i++) {
    moe_conn_close(&d->waiting[i]);
  }
  free(d->waiting);
  *d = (MoeDoor){.fd = -1};
}

static void forget(MoeDoor *d, int32_t i)
{
  moe_conn_close(&d->waiting[i]);
  d->n_waiting--;
  memmove(&d->waiting[i], &d->waiting[i + 1], (size_t)(d->n_waiting - i) * sizeof *d->waiting);
}

static void turn_away(MoeDoor *d, int32_t i)
{
  d->turned_away++;
  forget(d, i);
}

/* A full room loses its oldest: one of the job comes again, and needs no longer than a message there and back. */
static void let_wait(MoeDoor *d)
{
  for (int k = 0; k < MOE_DOOR_PLACES; k++) { /* then the others get their turn */
    int fd = accept4(d->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
      return;
    }
    if (d->n_waiting == MOE_DOOR_PLACES) {
      turn_away(d, 0);
    }
    MoeConn *c = &d->waiting[d->n_waiting++];
    moe_conn_open(c, fd, d->n_ranks, 1u << d->type);
    if (!moe_conn_send(c, MOE_FRAME_GREET, c->nonce, sizeof c->nonce)) {
      forget(d, d->n_waiting - 1);
    }
  }
}

void moe_door_turn(MoeDoor *d, int64_t deadline_ns, void (*admit)(void *arg, MoeConn *, const MoeFrame *), void *arg)
{
  struct pollfd polls[MOE_DOOR_PLACES + 1];
  int64_t left = deadline_ns - moe_now_ns();
  polls[0] = (struct pollfd){.fd = d->fd, .events = POLLIN};
  for (int32_t i = 0; i < d->n_waiting; i++) {
    polls[i + 1] = (struct pollfd){.fd = d->waiting[i].fd, .events = POLLIN};
  }
  left = left < 0 ? 0 : left > 200000000 ? 200000000 : left; /* for those whose time runs out */
  (void)poll(polls, (nfds_t)d->n_waiting + 1, (int)((left + 999999) / 1000000));
  for (int32_t i = d->n_waiting - 1; i >= 0; i--) {
    MoeConn *c = &d->waiting[i];
    MoeFrame f;
    int error;
    MoeStatus status = moe_conn_next(c, &f, &error);
    if (status == MOE_AGAIN && moe_now_ns() - c->since_ns < PATIENCE_NS) {
      continue;
    }
    if (status != MOE_OK) {
      turn_away(d, i);
      continue;
    }
    if (!moe_is_proved(d->key, f.type, c->nonce, f.body, f.n)) {
      static const char why[] = "the job's token is another one here";
      (void)moe_conn_send(c, MOE_FRAME_REFUSE, why, sizeof why - 1);
      turn_away(d, i);
      continue;
    }
    admit(arg, c, &f);
    forget(d, i);
  }
  let_wait(d);
}

MoeStatus moe_knock(MoeConn *c, const struct sockaddr_storage *address, socklen_t size, const uint8_t *key,
                    MoeFrameType type, uint8_t *body, size_t n, int32_t n_ranks, uint32_t accepts, int64_t deadline_ns)
{
  MoeFrame f;
  int error = 0;
  int fd = moe_connect(address, size, deadline_ns);
  *c = MOE_NO_CONN;
  if (fd < 0) {
    return MOE_EPEER;
  }
  moe_conn_open(c, fd, n_ranks, MOE_FRAME_BIT(GREET));
  MoeStatus status = MOE_AGAIN;
  while (status == MOE_AGAIN && moe_wait_fd(fd, POLLIN, deadline_ns)) {
    status = moe_conn_next(c, &f, &error);
  }
  if (status == MOE_OK) {
    memcpy(body + MOE_SHA256, c->nonce, MOE_SHA256);
    moe_prove(key, type, f.body, body, n);
    c->accepts = accepts;
    status = moe_conn_send(c, type, body, n) ? MOE_OK : MOE_EPEER;
    error = status == MOE_OK ? 0 : errno;
  } else if (status == MOE_AGAIN) {
    status = MOE_EPROTO; /* it is silent */
  }
  if (status != MOE_OK) {
    moe_conn_close(c);
    errno = error;
  }
  return status;
}
