/* The meeting: what every process knows of itself, and the tables that it gets. */
#include "runtime/team_meet.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/bell.h"
#include "runtime/door.h"
#include "runtime/log.h"

enum { SHORTEST_TOKEN = 16 };

/* ---- token ---- */

static MoeStatus read_token(const char *path, char *token, size_t room)
{
  struct stat status;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t n = fd >= 0 ? read(fd, token, room) : -1;
  if (n < 0 || fstat(fd, &status) != 0) {
    moe_error("cannot read the job's token from %s: %s", path, strerror(errno));
    if (fd >= 0) {
      close(fd);
    }
    return MOE_EIO;
  }
  close(fd);
  if ((size_t)n == room) {
    moe_error("%s: a job's token has at most %zu bytes", path, room - 1);
    return MOE_EINVAL;
  }
  while (n > 0 && (token[n - 1] == '\n' || token[n - 1] == '\r')) {
    n--;
  }
  token[n] = '\0';
  if ((status.st_mode & (S_IROTH | S_IWOTH)) != 0) {
    moe_note("%s, the job's token, is open to other users of this host", path);
  }
  return MOE_OK;
}

static MoeStatus make_key(MoeMeeting *m)
{
  char token[MOE_TOKEN + 1] = "";
  const char *path = m->in->token_file != NULL ? m->in->token_file : getenv("MOE_TOKEN_FILE");
  const char *direct = getenv("MOE_TOKEN");
  MoeStatus status = MOE_OK;
  if (path != NULL && *path != '\0') {
    status = read_token(path, token, sizeof token);
  } else if (direct != NULL && *direct != '\0') {
    snprintf(token, sizeof token, "%s", direct);
  } else {
    m->open = true;
  }
  if (status == MOE_OK && !m->open && strlen(token) < SHORTEST_TOKEN) {
    moe_error("the job's token has %zu bytes, at least %d are needed", strlen(token), SHORTEST_TOKEN);
    status = MOE_EINVAL;
  }
  MoeSha256 s;
  moe_sha256_begin(&s);
  moe_sha256_add(&s, token, strlen(token));
  moe_sha256_end(&s, m->team->key);
  explicit_bzero(token, sizeof token);
  return status;
}

/* ---- who we are ---- */

static uint64_t mix_text(uint64_t h, const char *text)
{
  for (; *text != '\0'; text++) {
    h = (h ^ (unsigned char)*text) * 0x100000001b3u;
  }
  return h;
}

/* Processes with the same one can hand each other memory: same boot of the same kernel, same network namespace (by
   whose sockets it is handed over), same user. MOE_TEST_HOST makes others of them, for tests. */
static uint64_t host_id(void)
{
  char text[64] = "", more[160];
  struct stat net = {0};
  int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  if (fd >= 0) {
    ssize_t n = read(fd, text, sizeof text - 1);
    text[n > 0 ? n : 0] = '\0';
    close(fd);
  }
  const char *test = getenv("MOE_TEST_HOST");
  (void)stat("/proc/self/ns/net", &net);
  snprintf(more, sizeof more, "/%lu/%lu/%lu/%s", (unsigned long)net.st_dev, (unsigned long)net.st_ino,
           (unsigned long)getuid(), test != NULL ? test : "");
  return mix_text(mix_text(0xcbf29ce484222325u, text), more);
}

const char *moe_team_ranks(int32_t first, int32_t n, char *text, size_t room)
{
  if (n == 1) {
    snprintf(text, room, "rank %d", first);
  } else {
    snprintf(text, room, "ranks %d-%d", first, first + n - 1);
  }
  return text;
}

const char *moe_team_place(const MoeSeat *s, char *text, size_t n)
{
  snprintf(text, n, strchr(s->host, ':') != NULL ? "[%s]:%d" : "%s:%d", s->host, s->port);
  return text;
}

MoeStatus moe_team_listen(MoeTeam *t)
{
  for (int32_t i = 0; i < t->seat.n; i++) {
    t->listeners[i] = moe_listen(t->here, &t->ports[t->seat.first + i]);
    if (t->listeners[i] < 0) {
      moe_error("rank %d cannot listen: %s", t->seat.first + i, strerror(errno));
      return MOE_EIO;
    }
  }
  return MOE_OK;
}

MoeStatus moe_team_resolve(const MoeSeat *s, struct addrinfo **list_p, int *error_p)
{
  char port[8];
  struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
  snprintf(port, sizeof port, "%d", s->port);
  *error_p = getaddrinfo(s->host, port, &hints, list_p);
  return *error_p == 0 ? MOE_OK : MOE_AGAIN;
}

/* Without a token anybody who reaches the port could join, so it must be one that only this host reaches. */
MoeStatus moe_team_check_open(const MoeMeeting *m, const uint8_t address[16])
{
  char place[MOE_PLACE_TEXT];
  moe_team_place(&m->team->seat, place, sizeof place);
  if (m->open && !moe_address_loopback(address)) {
    moe_error(
        "ranks that meet at %s need a token that no one else has: give every process the same file by --token-file "
        "or MOE_TOKEN_FILE (head -c 32 /dev/urandom | base64 >FILE), or MOE_TOKEN",
        place);
    return MOE_EINVAL;
  }
  if (m->open && m->team->seat.process == 0) {
    moe_note("no token: ranks meet at %s, which only this machine reaches; its users are trusted", place);
  }
  return MOE_OK;
}

size_t moe_team_table_bytes(const MoeTeam *t)
{
  return 64 + 32 * (size_t)t->seat.n_processes + 2 * (size_t)t->seat.n_ranks;
}

/* ---- all ---- */

MoeStatus moe_team_meet(MoeTeam *t, const MoeMeet *in)
{
  const MoeSeat *s = in->seat;
  MoeMeeting m = {.team = t,
                  .in = in,
                  .deadline_ns = moe_now_ns() + (int64_t)(in->timeout_s * 1e9),
                  .own = {.version = MOE_PROTOCOL,
                          .n_ranks = (uint32_t)s->n_ranks,
                          .n_processes = (uint32_t)s->n_processes,
                          .process = (uint32_t)s->process,
                          .first = (uint32_t)s->first,
                          .n = (uint32_t)s->n,
                          .hash = in->hash,
                          .settings = in->settings,
                          .host = host_id()}};
  *t = (MoeTeam){.seat = *s};
  t->members = calloc((size_t)s->n_processes, sizeof *t->members);
  t->ports = calloc((size_t)s->n_ranks, sizeof *t->ports);
  t->host_of = calloc((size_t)s->n_ranks, sizeof *t->host_of);
  t->listeners = calloc((size_t)s->n, sizeof *t->listeners);
  MoeStatus status = MOE_ENOMEM;
  if (t->members == NULL || t->ports == NULL || t->host_of == NULL || t->listeners == NULL) {
    moe_error("out of memory for the list of processes");
  } else {
    for (int32_t p = 0; p < s->n_processes; p++) {
      t->members[p] = (MoeMember){.first = p * s->n, .n = s->n, .conn = MOE_NO_CONN};
    }
    for (int32_t i = 0; i < s->n; i++) {
      t->listeners[i] = -1;
    }
    status = make_key(&m);
  }
  status = status != MOE_OK ? status : s->process == 0 ? moe_team_receive(&m) : moe_team_come(&m);
  for (int32_t r = 0; status == MOE_OK && r < s->n_ranks; r++) {
    t->host_of[r] = t->members[moe_team_process(t, r)].host;
  }
  if (status != MOE_OK) {
    moe_team_close(t);
  }
  return status;
}

void moe_team_leave(MoeTeam *t, int32_t rank)
{
  for (int32_t p = 0; p < t->seat.n_processes && rank >= 0; p++) {
    moe_conn_close(&t->members[p].conn);
  }
  for (int32_t i = 0; i < t->seat.n; i++) {
    if (t->listeners[i] >= 0 && t->seat.first + i != rank) {
      close(t->listeners[i]);
      t->listeners[i] = -1;
    }
  }
}

/* Closed with something unread, a connection is reset, and what was sent last may be lost: so the other side first. */
static void part(const MoeConn *c, int64_t deadline_ns)
{
  char bytes[4096];
  ssize_t n = 1;
  if (c->fd < 0 || shutdown(c->fd, SHUT_WR) != 0) {
    return;
  }
  while (n > 0 && moe_wait_fd(c->fd, POLLIN, deadline_ns)) {
    n = recv(c->fd, bytes, sizeof bytes, MSG_DONTWAIT);
  }
}

void moe_team_close(MoeTeam *t)
{
  int64_t soon = moe_now_ns() + 2000000000;
  for (int32_t p = 0; t->members != NULL && !t->bye && p < t->seat.n_processes; p++) {
    part(&t->members[p].conn, soon);
  }
  for (int32_t p = 0; t->members != NULL && p < t->seat.n_processes; p++) {
    moe_conn_close(&t->members[p].conn);
  }
  for (int32_t i = 0; t->listeners != NULL && i < t->seat.n; i++) {
    if (t->listeners[i] >= 0) {
      close(t->listeners[i]);
    }
  }
  free(t->members);
  free(t->ports);
  free(t->host_of);
  free(t->listeners);
  explicit_bzero(t, sizeof *t);
}

int32_t moe_team_process(const MoeTeam *t, int32_t rank)
{
  return rank / t->seat.n;
}

int32_t moe_team_leader(const MoeTeam *t)
{
  int32_t p = 0;
  while (t->members[p].host != t->members[t->seat.process].host) {
    p++;
  }
  return p;
}

int32_t moe_team_on_host(const MoeTeam *t)
{
  int32_t n = 0;
  for (int32_t p = 0; p < t->seat.n_processes; p++) {
    n += t->members[p].host == t->members[t->seat.process].host;
  }
  return n;
}

bool moe_team_one_host(const MoeTeam *t)
{
  return moe_team_on_host(t) == t->seat.n_processes;
}
