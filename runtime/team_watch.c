/* While ranks run. A process that is killed closes its connection; of a host that dies, or is cut off, the kernel says
   so after some seconds, since it sends probes and waits for answers whether a process is busy or not. */
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "runtime/bell.h"
#include "runtime/log.h"
#include "runtime/team_meet.h"

enum { STATE_BYTES = 44, GONE_MS = 6000, PROBE_S = 2 };

#define TELL_NS 250000000
#define TOLD    0x80000000u /* in FAIL's process: its own host has been told */

/* ---- failure ---- */

/* Of each host one process prints: its lowest, but for the culprit; on the culprit's host none if that has done so. */
static bool prints(const MoeTeam *t, int32_t culprit, bool told)
{
  uint64_t host = t->members[t->seat.process].host;
  if (told && t->members[culprit].host == host) {
    return false;
  }
  for (int32_t p = 0; p < t->seat.n_processes; p++) {
    if (t->members[p].host == host && p != culprit) {
      return p == t->seat.process;
    }
  }
  return true; /* it is the culprit itself that has been missed */
}

static void tell_all(MoeTeam *t, int32_t culprit, bool told, const char *text)
{
  uint8_t body[4 + MOE_FAIL_TEXT];
  size_t length = strnlen(text, MOE_FAIL_TEXT - 1);
  MoeCursor c = {.to = body, .n = sizeof body};
  moe_put(&c, (uint32_t)culprit | (told ? TOLD : 0), 4);
  moe_put_bytes(&c, text, length);
  for (int32_t p = 0; p < t->seat.n_processes; p++) {
    if (t->members[p].conn.fd >= 0) {
      (void)moe_conn_send(&t->members[p].conn, MOE_FRAME_FAIL, body, c.at);
    }
  }
}

static MoeStatus fail(MoeTeam *t, int32_t culprit, bool told, const char *text)
{
  if (t->failed[0] == '\0') {
    snprintf(t->failed, sizeof t->failed, "%s", text);
    if (prints(t, culprit, told)) {
      moe_error("%s", text);
    }
    if (t->seat.process == 0) {
      tell_all(t, culprit, told, text);
    }
  }
  return MOE_EPEER;
}

/* A process whose connection has ended without a word. */
static MoeStatus lose(MoeTeam *t, int32_t p, const char *how)
{
  char text[MOE_FAIL_TEXT], ranks[48], where[MOE_PLACE_TEXT];
  const MoeMember *m = &t->members[p];
  struct sockaddr_storage a;
  unsigned long long step = 0;
  moe_address_of(m->address, 0, &a);
  moe_address_text(&a, where, sizeof where);
  if (p == 0) {
    snprintf(where, sizeof where, "%s:", t->seat.host);
  }
  *strrchr(where, ':') = '\0';
  for (int32_t i = 0; t->shared != NULL && i < m->n; i++) {
    unsigned long long own = atomic_load(&t->shared->states[m->first + i].step);
    step = own > step ? own : step;
  }
  snprintf(text, sizeof text, "the process of %s on %s is gone in step %llu (%s); the other ranks are ended",
           moe_team_ranks(m->first, m->n, ranks, sizeof ranks), where, step, how);
  return fail(t, p, false, text);
}

/* ---- states ---- */

static void put_state(MoeCursor *c, const MoeTeam *t, int32_t rank)
{
  const MoeRankState *s = &t->shared->states[rank];
  moe_put(c, (uint64_t)rank, 4);
  moe_put(c, atomic_load(&s->phase), 4);
  moe_put(c, atomic_load(&s->shape), 4);
  moe_put(c, atomic_load(&s->compute), 4);
  moe_put(c, atomic_load(&s->comm), 4);
  moe_put(c, atomic_load(&s->step), 8);
  moe_put(c, atomic_load(&s->saved), 8);
  moe_put(c, atomic_load(&s->beats), 8);
}

/* Of ranks on this host the memory itself tells. */
static bool take_states(MoeTeam *t, int32_t from, const MoeFrame *f)
{
  const MoeMember *m = &t->members[from];
  MoeCursor c = {.from = f->body, .n = f->n};
  while (c.at < c.n) {
    uint32_t rank = (uint32_t)moe_get(&c, 4);
    uint32_t phase = (uint32_t)moe_get(&c, 4), shape = (uint32_t)moe_get(&c, 4);
    uint32_t compute = (uint32_t)moe_get(&c, 4), comm = (uint32_t)moe_get(&c, 4);
    uint64_t step = moe_get(&c, 8), saved = moe_get(&c, 8), beats = moe_get(&c, 8);
    bool its = from == 0 || (rank >= (uint32_t)m->first && rank < (uint32_t)(m->first + m->n));
    if (c.bad || rank >= (uint32_t)t->seat.n_ranks || !its || phase > MOE_PHASE_DONE) {
      return false;
    }
    if (t->shared == NULL || t->host_of[rank] == t->members[t->seat.process].host) {
      continue;
    }
    MoeRankState *s = &t->shared->states[rank];
    atomic_store(&s->shape, shape);
    atomic_store(&s->compute, compute);
    atomic_store(&s->comm, comm);
    atomic_store(&s->step, step);
    atomic_store(&s->beats, beats);
    atomic_store(&s->phase, phase);
    atomic_store(&s->saved, saved);
  }
  return true;
}

static void tell_states(MoeTeam *t)
{
  int64_t now = moe_now_ns();
  if (now - t->told_ns < TELL_NS || t->shared == NULL) {
    return;
  }
  t->told_ns = now;
  bool first = t->seat.process == 0;
  int32_t n = first ? t->seat.n_ranks : t->seat.n;
  uint8_t *body = malloc((size_t)n * STATE_BYTES);
  MoeCursor c = {.to = body, .n = (size_t)n * STATE_BYTES};
  for (int32_t i = 0; body != NULL && i < n; i++) {
    put_state(&c, t, first ? i : t->seat.first + i);
  }
  for (int32_t p = 0; body != NULL && p < t->seat.n_processes; p++) {
    MoeConn *conn = &t->members[p].conn;
    if (conn->fd >= 0 && conn->out_used == 0) { /* who reads slowly hears less often */
      (void)moe_conn_send(conn, MOE_FRAME_STATE, body, c.at);
    }
  }
  free(body);
}

/* ---- the turn ---- */

static MoeStatus take(MoeTeam *t, int32_t p, const MoeFrame *f)
{
  MoeCursor c = {.from = f->body, .n = f->n};
  char text[MOE_FAIL_TEXT];
  uint32_t who;
  switch (f->type) {
  case MOE_FRAME_STATE:
    return take_states(t, p, f) ? MOE_AGAIN : lose(t, p, "it speaks of ranks that are not its own");
  case MOE_FRAME_DONE:
    t->members[p].done = true;
    return MOE_AGAIN;
  case MOE_FRAME_BYE:
    t->bye = true;
    return MOE_OK;
  case MOE_FRAME_FAIL:
    who = (uint32_t)moe_get(&c, 4);
    moe_get_text(&c, text, sizeof text);
    if ((who & ~TOLD) >= (uint32_t)t->seat.n_processes || (p != 0 && (who & ~TOLD) != (uint32_t)p)) {
      return lose(t, p, "it speaks of a process that does not exist");
    }
    return fail(t, (int32_t)(who & ~TOLD), (who & TOLD) != 0, text);
  default:
    return lose(t, p, "it says what it may not");
  }
}

/* Everything that has come from one process. */
static MoeStatus hear(MoeTeam *t, int32_t p)
{
  MoeConn *conn = &t->members[p].conn;
  MoeStatus status = MOE_AGAIN;
  while (status == MOE_AGAIN && conn->fd >= 0) {
    MoeFrame f;
    int error;
    MoeStatus got = moe_conn_next(conn, &f, &error);
    if (got == MOE_AGAIN) {
      return moe_conn_flush(conn) ? MOE_AGAIN : lose(t, p, strerror(errno));
    }
    status = got == MOE_OK      ? take(t, p, &f)
             : got == MOE_EPEER ? lose(t, p, error == 0 ? "its connection was closed" : strerror(error))
                                : lose(t, p, "its connection carried no frame of this job");
  }
  return status;
}

int32_t moe_team_fds(const MoeTeam *t, int *fds)
{
  int32_t n = 0;
  for (int32_t p = 0; p < t->seat.n_processes; p++) {
    if (t->members[p].conn.fd >= 0) {
      fds[n++] = t->members[p].conn.fd;
    }
  }
  return n;
}

MoeStatus moe_team_turn(MoeTeam *t)
{
  MoeStatus status = t->failed[0] != '\0' ? MOE_EPEER : MOE_AGAIN;
  for (int32_t p = 0; p < t->seat.n_processes && status == MOE_AGAIN; p++) {
    status = hear(t, p);
  }
  if (status == MOE_AGAIN) {
    tell_states(t);
  }
  return status;
}

void moe_team_guard(const MoeTeam *t)
{
  const struct {
    int level, name, value;
  } options[] = {{SOL_SOCKET, SO_KEEPALIVE, 1},
                 {IPPROTO_TCP, TCP_KEEPIDLE, PROBE_S},
                 {IPPROTO_TCP, TCP_KEEPINTVL, 1},
                 {IPPROTO_TCP, TCP_KEEPCNT, GONE_MS / 1000 - PROBE_S},
                 {IPPROTO_TCP, TCP_USER_TIMEOUT, GONE_MS}};
  for (int32_t p = 0; p < t->seat.n_processes; p++) {
    for (size_t i = 0; t->members[p].conn.fd >= 0 && i < sizeof options / sizeof *options; i++) {
      (void)setsockopt(t->members[p].conn.fd, options[i].level, options[i].name, &options[i].value, sizeof(int));
    }
  }
}

/* Turns until `over`, or until deadline_ns. */
static MoeStatus wait_until(MoeTeam *t, bool (*over)(const MoeTeam *), int64_t deadline_ns)
{
  struct pollfd *polls = calloc((size_t)t->seat.n_processes, sizeof *polls);
  int *fds = calloc((size_t)t->seat.n_processes, sizeof *fds);
  MoeStatus status = polls != NULL && fds != NULL ? MOE_AGAIN : MOE_ENOMEM;
  while (status == MOE_AGAIN && !over(t) && moe_now_ns() < deadline_ns) {
    int32_t n = moe_team_fds(t, fds);
    for (int32_t i = 0; i < n; i++) {
      polls[i] = (struct pollfd){.fd = fds[i], .events = POLLIN};
    }
    (void)poll(polls, (nfds_t)n, 100);
    status = moe_team_turn(t);
  }
  free(polls);
  free(fds);
  return status == MOE_AGAIN ? MOE_OK : status;
}

static bool all_done(const MoeTeam *t)
{
  bool all = true;
  for (int32_t p = 1; p < t->seat.n_processes; p++) {
    all = all && t->members[p].done;
  }
  return all;
}

static bool said_bye(const MoeTeam *t)
{
  return t->bye;
}

void moe_team_fail(MoeTeam *t, const char *text)
{
  if (t->failed[0] != '\0') {
    return; /* it fails because the job does */
  }
  tell_all(t, t->seat.process, true, text);
  snprintf(t->failed, sizeof t->failed, "%s", text);
}

MoeStatus moe_team_done(MoeTeam *t)
{
  if (t->seat.process == 0) {
    return wait_until(t, all_done, INT64_MAX);
  }
  return moe_conn_send(&t->members[0].conn, MOE_FRAME_DONE, NULL, 0) ? MOE_OK : lose(t, 0, strerror(errno));
}

MoeStatus moe_team_bye(MoeTeam *t)
{
  if (t->seat.process != 0) {
    return wait_until(t, said_bye, INT64_MAX);
  }
  for (int32_t p = 1; p < t->seat.n_processes; p++) {
    (void)moe_conn_send(&t->members[p].conn, MOE_FRAME_BYE, NULL, 0);
  }
  return MOE_OK;
}
