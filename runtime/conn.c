#include "runtime/conn.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/bell.h"
#include "runtime/log.h"

void moe_conn_open(MoeConn *c, int fd, int32_t n_ranks, uint32_t accepts)
{
  int on = 1;
  *c = (MoeConn){.fd = fd, .n_ranks = n_ranks, .accepts = accepts, .since_ns = moe_now_ns()};
  moe_random(c->nonce, sizeof c->nonce);
  (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

void moe_conn_close(MoeConn *c)
{
  if (c->fd >= 0) {
    close(c->fd);
  }
  free(c->in);
  free(c->out);
  *c = MOE_NO_CONN;
}

static bool make_room(uint8_t **bytes, size_t *room, size_t n)
{
  if (n <= *room) {
    return true;
  }
  uint8_t *more = realloc(*bytes, n);
  if (more != NULL) {
    *bytes = more;
    *room = n;
  }
  return more != NULL;
}

bool moe_conn_flush(MoeConn *c)
{
  size_t at = 0;
  while (at < c->out_used) {
    ssize_t n = send(c->fd, c->out + at, c->out_used - at, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {
      return false;
    }
    if (n <= 0) {
      break;
    }
    at += (size_t)n;
  }
  if (at > 0) {
    memmove(c->out, c->out + at, c->out_used - at);
    c->out_used -= at;
  }
  return true;
}

bool moe_conn_send(MoeConn *c, MoeFrameType type, const void *body, size_t n)
{
  if (c->fd < 0 || !make_room(&c->out, &c->out_room, c->out_used + MOE_FRAME_HEAD + n)) {
    return false;
  }
  moe_frame_head(c->out + c->out_used, type, (uint32_t)n);
  if (n > 0) {
    memcpy(c->out + c->out_used + MOE_FRAME_HEAD, body, n);
  }
  c->out_used += MOE_FRAME_HEAD + n;
  return moe_conn_flush(c);
}

MoeStatus moe_conn_next(MoeConn *c, MoeFrame *f, int *errno_p)
{
  if (c->taken > 0) {
    memmove(c->in, c->in + c->taken, c->in_used - c->taken);
    c->in_used -= c->taken;
    c->taken = 0;
  }
  *errno_p = 0;
  for (;;) {
    size_t need;
    MoeStatus status = moe_frame_read(c->in, c->in_used, c->accepts, c->n_ranks, f, &need);
    if (status != MOE_AGAIN) {
      c->taken = status == MOE_OK ? need : 0;
      return status;
    }
    if (!make_room(&c->in, &c->in_room, need)) {
      *errno_p = ENOMEM;
      return MOE_EPEER;
    }
    ssize_t n = recv(c->fd, c->in + c->in_used, need - c->in_used, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return MOE_AGAIN;
    }
    if (n <= 0) {
      *errno_p = n < 0 ? errno : 0;
      return MOE_EPEER;
    }
    c->in_used += (size_t)n;
  }
}

/* ---- proofs ---- */

void moe_random(void *bytes, size_t n)
{
  uint8_t *to = bytes;
  while (n > 0) {
    ssize_t some = getrandom(to, n, 0);
    if (some > 0) {
      to += some;
      n -= (size_t)some;
    } else if (errno != EINTR) {
      moe_error("no random numbers: %s", strerror(errno));
      abort(); /* whatever a guess would let in is worse */
    }
  }
}

static void proof(const uint8_t *key, MoeFrameType type, const uint8_t *nonce, const uint8_t *body, size_t n,
                  uint8_t digest[MOE_SHA256])
{
  uint8_t label[1 + MOE_SHA256];
  label[0] = (uint8_t)type;
  memcpy(label + 1, nonce, MOE_SHA256);
  moe_hmac(key, label, sizeof label, body + MOE_SHA256, n - MOE_SHA256, digest);
}

void moe_prove(const uint8_t *key, MoeFrameType type, const uint8_t *nonce, uint8_t *body, size_t n)
{
  proof(key, type, nonce, body, n, body);
}

bool moe_is_proved(const uint8_t *key, MoeFrameType type, const uint8_t *nonce, const uint8_t *body, size_t n)
{
  uint8_t digest[MOE_SHA256];
  proof(key, type, nonce, body, n, digest);
  return moe_same_digest(digest, body);
}

/* ---- addresses and sockets ---- */

void moe_address_bytes(const struct sockaddr_storage *a, uint8_t bytes[16])
{
  static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
  if (a->ss_family == AF_INET) {
    memcpy(bytes, mapped, 12);
    memcpy(bytes + 12, &((const struct sockaddr_in *)(const void *)a)->sin_addr, 4);
  } else {
    memcpy(bytes, &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr, 16);
  }
}

static bool is_mapped(const uint8_t bytes[16])
{
  struct in6_addr a;
  memcpy(&a, bytes, 16);
  return IN6_IS_ADDR_V4MAPPED(&a);
}

socklen_t moe_address_of(const uint8_t bytes[16], uint16_t port, struct sockaddr_storage *a)
{
  *a = (struct sockaddr_storage){0};
  if (is_mapped(bytes)) {
    struct sockaddr_in *v4 = (struct sockaddr_in *)(void *)a;
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    memcpy(&v4->sin_addr, bytes + 12, 4);
    return sizeof *v4;
  }
  struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)(void *)a;
  v6->sin6_family = AF_INET6;
  v6->sin6_port = htons(port);
  memcpy(&v6->sin6_addr, bytes, 16);
  return sizeof *v6;
}

bool moe_address_loopback(const uint8_t bytes[16])
{
  struct in6_addr a;
  memcpy(&a, bytes, 16);
  return is_mapped(bytes) ? bytes[12] == 127 : IN6_IS_ADDR_LOOPBACK(&a);
}

const char *moe_address_text(const struct sockaddr_storage *a, char *text, size_t n)
{
  char host[INET6_ADDRSTRLEN] = "?";
  const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)a;
  const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)a;
  if (a->ss_family == AF_INET) {
    inet_ntop(AF_INET, &v4->sin_addr, host, sizeof host);
    snprintf(text, n, "%s:%d", host, ntohs(v4->sin_port));
  } else {
    inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof host);
    snprintf(text, n, "[%s]:%d", host, ntohs(v6->sin6_port));
  }
  return text;
}

int moe_listen(const uint8_t address[16], uint16_t *port_p)
{
  struct sockaddr_storage a;
  int on = 1;
  socklen_t n = moe_address_of(address, *port_p, &a);
  int fd = socket(a.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) {
    return -1;
  }
  (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on); /* connections of an earlier job may linger */
  if (bind(fd, (const struct sockaddr *)&a, n) != 0 || listen(fd, 1024) != 0 ||
      getsockname(fd, (struct sockaddr *)&a, &n) != 0) {
    int error = errno;
    close(fd);
    errno = error;
    return -1;
  }
  *port_p = ntohs(a.ss_family == AF_INET ? ((struct sockaddr_in *)(void *)&a)->sin_port
                                         : ((struct sockaddr_in6 *)(void *)&a)->sin6_port);
  return fd;
}

bool moe_wait_fd(int fd, short events, int64_t deadline_ns)
{
  for (;;) {
    int64_t left = deadline_ns - moe_now_ns();
    struct pollfd p = {.fd = fd, .events = events};
    int n = poll(&p, 1, left > 0 ? (int)(left / 1000000 < 1000 ? left / 1000000 + 1 : 1000) : 0);
    if (n > 0) {
      return true;
    }
    if (n < 0 && errno != EINTR) {
      return false;
    }
    if (left <= 0) {
      errno = ETIMEDOUT;
      return false;
    }
  }
}

/* Where nobody listens on a port that the kernel also gives to those who connect, it may connect to itself. */
static bool is_itself(int fd)
{
  struct sockaddr_storage here = {0}, there = {0};
  socklen_t n = sizeof here, m = sizeof there;
  return getsockname(fd, (struct sockaddr *)&here, &n) == 0 && getpeername(fd, (struct sockaddr *)&there, &m) == 0 &&
         n == m && memcmp(&here, &there, n) == 0;
}

int moe_connect(const struct sockaddr_storage *a, socklen_t n, int64_t deadline_ns)
{
  int fd = socket(a->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  int error = 0;
  socklen_t size = sizeof error;
  if (fd < 0) {
    return -1;
  }
  error = connect(fd, (const struct sockaddr *)a, n) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    error = moe_wait_fd(fd, POLLOUT, deadline_ns) && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0
                ? error
                : ETIMEDOUT;
  }
  error = error == 0 && is_itself(fd) ? ECONNREFUSED : error;
  if (error != 0) {
    close(fd);
    errno = error;
    return -1;
  }
  return fd;
}
