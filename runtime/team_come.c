/* The meeting as all but process 0 see it: they come again and again until they are let in, refused, or time is up. */
#include "runtime/team_meet.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/bell.h"
#include "runtime/door.h"
#include "runtime/log.h"

static void put_hello(const MoeMeeting *m, uint8_t *body)
{
  const MoeHello *h = &m->own;
  MoeCursor c = {.to = body, .n = MOE_HELLO_BYTES + 2 * (size_t)h->n, .at = 2 * MOE_SHA256};
  const uint32_t numbers[] = {h->version, h->n_ranks, h->n_processes, h->process, h->first, h->n};
  for (int i = 0; i < 6; i++) {
    moe_put(&c, numbers[i], 4);
  }
  moe_put(&c, h->hash, 8);
  moe_put(&c, h->settings, 8);
  moe_put(&c, h->host, 8);
  moe_put(&c, 0, 8);
  for (uint32_t i = 0; i < h->n; i++) {
    moe_put(&c, m->team->ports[h->first + i], 2);
  }
}

static MoeStatus bad_table(const MoeMeeting *m)
{
  char place[MOE_PLACE_TEXT];
  moe_error("what %s answers is not this job's table of ranks", moe_team_place(&m->team->seat, place, sizeof place));
  return MOE_EPROTO;
}

static MoeStatus take_table(MoeMeeting *m, const MoeFrame *f, const uint8_t *nonce)
{
  MoeTeam *t = m->team;
  if (f->n != moe_team_table_bytes(t) || !moe_is_proved(t->key, MOE_FRAME_TABLE, nonce, f->body, f->n)) {
    return bad_table(m);
  }
  MoeCursor c = {.from = f->body, .n = f->n, .at = MOE_SHA256};
  moe_get_bytes(&c, t->job, sizeof t->job);
  t->file_id = moe_get(&c, 8);
  (void)moe_get(&c, 8);
  for (int32_t p = 0; p < t->seat.n_processes; p++) {
    MoeMember *member = &t->members[p];
    member->host = moe_get(&c, 8);
    moe_get_bytes(&c, member->address, 16);
    uint64_t first = moe_get(&c, 4), n = moe_get(&c, 4);
    member->here = true;
    if (first != (uint64_t)member->first || n != (uint64_t)member->n) {
      return bad_table(m);
    }
  }
  for (int32_t r = 0; r < t->seat.n_ranks; r++) {
    t->ports[r] = (uint16_t)moe_get(&c, 2);
  }
  return MOE_OK;
}

/* Waits to be let in. MOE_EPEER: process 0 has gone, with errno. */
static MoeStatus await_table(MoeMeeting *m, MoeConn *conn)
{
  MoeFrame f;
  int error = 0;
  char place[MOE_PLACE_TEXT], text[400];
  MoeStatus status = MOE_AGAIN;
  /* process 0 gives up at its own deadline and says who is missing: some seconds more let that be heard */
  while (status == MOE_AGAIN && moe_wait_fd(conn->fd, POLLIN, m->deadline_ns + 5000000000)) {
    status = moe_conn_next(conn, &f, &error);
  }
  if (status == MOE_OK && f.type == MOE_FRAME_TABLE) {
    return take_table(m, &f, conn->nonce);
  }
  if (status == MOE_OK) {
    MoeCursor c = {.from = f.body, .n = f.n};
    moe_get_text(&c, text, sizeof text);
    moe_error("rank 0 at %s refuses this process: %s", moe_team_place(&m->team->seat, place, sizeof place), text);
    return MOE_EINVAL;
  }
  if (status == MOE_EPROTO) {
    return bad_table(m);
  }
  errno = error;
  return MOE_EPEER;
}

/* The address of this host from which the other is reached. Nothing is sent. MOE_EPEER, with errno: it is not. */
static MoeStatus find_own_address(const struct sockaddr_storage *to, socklen_t n, uint8_t here[16])
{
  struct sockaddr_storage own = {0};
  socklen_t size = sizeof own;
  int fd = socket(to->ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  bool known = fd >= 0 && connect(fd, (const struct sockaddr *)to, n) == 0 &&
               getsockname(fd, (struct sockaddr *)&own, &size) == 0;
  int error = errno;
  if (fd >= 0) {
    close(fd);
  }
  errno = error;
  moe_address_bytes(&own, here);
  return known ? MOE_OK : MOE_EPEER;
}

/* One try at one address. MOE_EPEER, with errno: again later. */
static MoeStatus try_address(MoeMeeting *m, const struct addrinfo *a, uint8_t *hello)
{
  MoeTeam *t = m->team;
  MoeConn *conn = &t->members[0].conn;
  struct sockaddr_storage to = {0};
  memcpy(&to, a->ai_addr, a->ai_addrlen);
  moe_address_bytes(&to, t->place);
  MOE_TRY(moe_team_check_open(m, t->place));
  if (t->listeners[0] < 0) {
    MOE_TRY(find_own_address(&to, a->ai_addrlen, t->here));
    MOE_TRY(moe_team_listen(t));
  }
  put_hello(m, hello);
  int64_t soon = moe_now_ns() + 5000000000;
  MoeStatus status = moe_knock(
      conn, &to, a->ai_addrlen, t->key, MOE_FRAME_HELLO, hello, MOE_HELLO_BYTES + 2 * (size_t)t->seat.n,
      t->seat.n_ranks, MOE_FRAME_BIT(TABLE) | MOE_FRAME_BIT(REFUSE), soon < m->deadline_ns ? soon : m->deadline_ns);
  if (status != MOE_OK) {
    errno = status == MOE_EPROTO ? EPROTO : errno;
    return MOE_EPEER;
  }
  status = await_table(m, conn);
  if (status == MOE_OK) {
    conn->accepts = MOE_FRAME_BIT(STATE) | MOE_FRAME_BIT(FAIL) | MOE_FRAME_BIT(BYE);
    conn->since_ns = moe_now_ns();
  } else {
    int error = errno;
    moe_conn_close(conn);
    errno = error;
  }
  return status;
}

static MoeStatus try_once(MoeMeeting *m, uint8_t *hello, char *why, size_t n)
{
  struct addrinfo *list;
  int error;
  MoeStatus status = moe_team_resolve(&m->team->seat, &list, &error);
  if (status != MOE_OK) {
    snprintf(why, n, "%s", gai_strerror(error));
    return MOE_EPEER;
  }
  status = MOE_EPEER;
  for (const struct addrinfo *a = list; a != NULL && status == MOE_EPEER; a = a->ai_next) {
    errno = 0;
    status = try_address(m, a, hello);
    if (status == MOE_EPEER) {
      snprintf(why, n, "%s",
               errno == EPROTO ? "what answers there is no training job"
               : errno == 0    ? "the connection was closed"
                               : strerror(errno));
    }
  }
  freeaddrinfo(list);
  return status;
}

MoeStatus moe_team_come(MoeMeeting *m)
{
  char why[160] = "", place[MOE_PLACE_TEXT];
  uint8_t *hello = calloc(1, MOE_HELLO_BYTES + 2 * (size_t)m->team->seat.n);
  MoeStatus status = hello != NULL ? MOE_EPEER : MOE_ENOMEM;
  int64_t pause = 50000000;
  while (status == MOE_EPEER) {
    status = try_once(m, hello, why, sizeof why);
    if (status == MOE_EPEER && moe_now_ns() + pause > m->deadline_ns) {
      moe_error("rank 0 was not met at %s within %g s: %s", moe_team_place(&m->team->seat, place, sizeof place),
                m->in->timeout_s, why);
      break;
    }
    if (status == MOE_EPEER) {
      moe_sleep_until(moe_now_ns() + pause);
      pause = pause < 500000000 ? pause * 2 : pause;
    }
  }
  free(hello);
  return status;
}
