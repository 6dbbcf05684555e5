/* Process 0's side of the meeting: it listens where the seat says and lets in who belongs to the job. Nobody learns who
   else is in it before all are. */
#include "runtime/team_meet.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/bell.h"
#include "runtime/door.h"
#include "runtime/log.h"

static MoeHello get_hello(MoeCursor *c)
{
  MoeHello h;
  uint32_t *const numbers[] = {&h.version, &h.n_ranks, &h.n_processes, &h.process, &h.first, &h.n};
  for (int i = 0; i < 6; i++) {
    *numbers[i] = (uint32_t)moe_get(c, 4);
  }
  h.hash = moe_get(c, 8);
  h.settings = moe_get(c, 8);
  h.host = moe_get(c, 8);
  (void)moe_get(c, 8);
  return h;
}

/* Why the process is not let in, or an empty text. */
static void judge(const MoeMeeting *m, const MoeHello *h, size_t ports, char *why, size_t n)
{
  const MoeHello *own = &m->own;
  char text[48];
  why[0] = '\0';
  if (h->version != own->version) {
    snprintf(why, n, "it speaks version %u of the protocol, this one %u", h->version, own->version);
  } else if (h->hash != own->hash) {
    snprintf(why, n, "it is of another bundle, %016llx, this one is %016llx", (unsigned long long)h->hash,
             (unsigned long long)own->hash);
  } else if (h->n_ranks != own->n_ranks || h->n_processes != own->n_processes) {
    snprintf(why, n, "its job has %u processes with %u ranks, this one %u with %u", h->n_processes, h->n_ranks,
             own->n_processes, own->n_ranks);
  } else if (h->process == 0 || h->process >= own->n_processes || h->n != own->n || h->first != h->process * own->n ||
             ports != h->n) {
    snprintf(why, n, "its ranks, %u from %u on as process %u, are not what this job gives it", h->n, h->first,
             h->process);
  } else if (h->settings != own->settings) {
    snprintf(why, n, "its flags or the checkpoint that it goes on from are others than those of rank 0");
  } else if (m->team->members[h->process].here) {
    snprintf(why, n, "%s came already", moe_team_ranks((int32_t)h->first, (int32_t)h->n, text, sizeof text));
  }
}

static void admit(void *arg, MoeConn *conn, const MoeFrame *f)
{
  MoeMeeting *m = arg;
  MoeCursor c = {.from = f->body, .n = f->n, .at = 2 * MOE_SHA256};
  MoeHello h = get_hello(&c);
  char why[200], from[MOE_ADDRESS_TEXT], text[48];
  struct sockaddr_storage a = {0};
  socklen_t size = sizeof a;
  if (getpeername(conn->fd, (struct sockaddr *)&a, &size) != 0) {
    return; /* gone */
  }
  judge(m, &h, (f->n - MOE_HELLO_BYTES) / 2, why, sizeof why);
  if (why[0] != '\0') {
    (void)moe_conn_send(conn, MOE_FRAME_REFUSE, why, strlen(why));
    if (h.process < m->own.n_processes) {
      moe_team_ranks((int32_t)(h.process * m->own.n), (int32_t)m->own.n, text, sizeof text);
    } else {
      snprintf(text, sizeof text, "process %u", h.process);
    }
    snprintf(m->refused, sizeof m->refused, "%s from %s: %s", text, moe_address_text(&a, from, sizeof from), why);
    moe_note("refused %s", m->refused);
    return;
  }
  MoeMember *member = &m->team->members[h.process];
  memcpy(member->conn.nonce, f->body + MOE_SHA256, MOE_SHA256); /* theirs: what the table proves itself to */
  member->host = h.host;
  moe_address_bytes(&a, member->address);
  for (uint32_t i = 0; i < h.n; i++) {
    m->team->ports[h.first + i] = (uint16_t)moe_get(&c, 2);
  }
  uint8_t theirs[MOE_SHA256];
  memcpy(theirs, f->body + MOE_SHA256, sizeof theirs);
  member->conn = *conn;
  memcpy(member->conn.nonce, theirs, sizeof theirs);
  member->conn.accepts = 0; /* nothing before the table */
  member->here = true;
  m->n_here++;
  *conn = MOE_NO_CONN;
}

/* Those that came and have gone may come again. */
static void look_who_left(MoeMeeting *m)
{
  MoeTeam *t = m->team;
  for (int32_t p = 1; p < t->seat.n_processes; p++) {
    char byte;
    MoeMember *member = &t->members[p];
    if (member->here && recv(member->conn.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0) {
      moe_conn_close(&member->conn);
      member->here = false;
      m->n_here--;
    }
  }
}

static MoeStatus tell_missing(const MoeMeeting *m, uint64_t strangers)
{
  const MoeTeam *t = m->team;
  char missing[160] = "", place[MOE_PLACE_TEXT], others[64] = "";
  int32_t n = 0;
  for (int32_t p = 1; p < t->seat.n_processes; p++) {
    if (!t->members[p].here) {
      char text[48];
      size_t used = strlen(missing);
      n++;
      if (used < sizeof missing - 40) {
        snprintf(missing + used, sizeof missing - used, "%s%s", used > 0 ? ", " : "",
                 moe_team_ranks(p * t->seat.n, t->seat.n, text, sizeof text));
      } else if (missing[used - 1] != '.') {
        snprintf(missing + used, sizeof missing - used, " ...");
      }
    }
  }
  if (strangers > 0) {
    snprintf(others, sizeof others, "; %llu connections of others were turned away", (unsigned long long)strangers);
  }
  moe_error("after %g s at %s, %d of %d processes are missing: %s%s%s%s", m->in->timeout_s,
            moe_team_place(&t->seat, place, sizeof place), n, t->seat.n_processes, missing,
            m->refused[0] != '\0' ? "; refused " : "", m->refused, others);
  return MOE_EPEER;
}

static MoeStatus send_table(MoeMeeting *m)
{
  MoeTeam *t = m->team;
  size_t n = moe_team_table_bytes(t);
  uint8_t *body = calloc(1, n);
  if (body == NULL) {
    moe_error("out of memory for the table of ranks");
    return MOE_ENOMEM;
  }
  MoeCursor c = {.to = body, .n = n, .at = MOE_SHA256};
  moe_put_bytes(&c, t->job, sizeof t->job);
  moe_put(&c, t->file_id, 8);
  moe_put(&c, 0, 8);
  for (int32_t p = 0; p < t->seat.n_processes; p++) {
    const MoeMember *member = &t->members[p];
    moe_put(&c, member->host, 8);
    moe_put_bytes(&c, member->address, 16);
    moe_put(&c, (uint64_t)member->first, 4);
    moe_put(&c, (uint64_t)member->n, 4);
  }
  for (int32_t r = 0; r < t->seat.n_ranks; r++) {
    moe_put(&c, t->ports[r], 2);
  }
  for (int32_t p = 1; p < t->seat.n_processes; p++) { /* who is gone by now will be missed soon enough */
    MoeConn *conn = &t->members[p].conn;
    moe_prove(t->key, MOE_FRAME_TABLE, conn->nonce, body, n);
    (void)moe_conn_send(conn, MOE_FRAME_TABLE, body, n);
    conn->accepts = MOE_FRAME_BIT(STATE) | MOE_FRAME_BIT(FAIL) | MOE_FRAME_BIT(DONE);
  }
  free(body);
  return MOE_OK;
}

static MoeStatus listen_there(MoeMeeting *m, int *fd_p)
{
  MoeTeam *t = m->team;
  struct addrinfo *list;
  int error;
  char place[MOE_PLACE_TEXT];
  moe_team_place(&t->seat, place, sizeof place);
  if (moe_team_resolve(&t->seat, &list, &error) != MOE_OK) {
    moe_error("cannot listen at %s: %s", place, gai_strerror(error));
    return MOE_EIO;
  }
  *fd_p = -1;
  for (const struct addrinfo *a = list; a != NULL && *fd_p < 0; a = a->ai_next) {
    struct sockaddr_storage s = {0};
    uint16_t port = (uint16_t)t->seat.port;
    memcpy(&s, a->ai_addr, a->ai_addrlen);
    moe_address_bytes(&s, t->here);
    *fd_p = moe_listen(t->here, &port);
    error = errno;
  }
  freeaddrinfo(list);
  if (*fd_p < 0) {
    moe_error("cannot listen at %s: %s%s", place, strerror(error),
              error == EADDRINUSE      ? "; another job may have the port, --meet HOST:PORT names another"
              : error == EADDRNOTAVAIL ? "; it must be an address of the host of rank 0"
                                       : "");
    return MOE_EIO;
  }
  if (!m->open && moe_address_loopback(t->here) && strcmp(t->seat.host, "localhost") != 0 &&
      strspn(t->seat.host, "0123456789.:") != strlen(t->seat.host)) {
    moe_note(
        "%s is an address of this host alone here (/etc/hosts?): if processes of other hosts are to come, --meet with "
        "an address that they reach",
        t->seat.host);
  }
  MoeStatus status = moe_team_check_open(m, t->here);
  if (status != MOE_OK) {
    close(*fd_p);
  }
  return status;
}

MoeStatus moe_team_receive(MoeMeeting *m)
{
  MoeTeam *t = m->team;
  int fd;
  MoeDoor door;
  MOE_TRY(listen_there(m, &fd));
  MoeStatus status = moe_team_listen(t);
  status = status == MOE_OK ? moe_door_open(&door, fd, t->key, MOE_FRAME_HELLO, t->seat.n_ranks) : status;
  if (status != MOE_OK) {
    close(fd);
    return status;
  }
  t->members[0].host = m->own.host;
  t->members[0].here = true;
  m->n_here = 1;
  moe_random(t->job, sizeof t->job);
  t->file_id = (uint64_t)getpid();
  while (m->n_here < t->seat.n_processes && moe_now_ns() < m->deadline_ns) {
    moe_door_turn(&door, m->deadline_ns, admit, m);
    look_who_left(m);
  }
  if (m->n_here < t->seat.n_processes) {
    status = tell_missing(m, door.turned_away);
  } else if (door.turned_away > 0) {
    moe_note("%llu connections of others were turned away while ranks met", (unsigned long long)door.turned_away);
  }
  moe_door_close(&door);
  close(fd);
  return status == MOE_OK ? send_table(m) : status;
}
