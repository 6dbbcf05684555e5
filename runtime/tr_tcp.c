/* Plain sockets rather than a communication library: what strangers send reaches no parser but ours, and that only
   after the token, and a message goes from the socket into the slot that the schedule has for it. The thread that moves
   bytes, and the transport's functions. Messages are handed over by the progress thread, credits by either of a rank's
   threads: a lock guards the queues, held for one entry at a time. */
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "runtime/door.h"
#include "runtime/log.h"
#include "runtime/tcp.h"

enum { LINK_BYTES = 72, GONE_MS = 8000, EVENTS = 64 };

#define CONNECT_NS 60000000000
#define GRACE_NS   8000000000 /* for the word of who has died, before a lost connection itself is called the reason */

struct MoeTcp {
  MoeTcpLine *lines; /* [n_lines] */
  int32_t n_lines;
  int32_t *line_of; /* [n_ranks] -1: none */
  int32_t n_ranks;
  MoeBell *bell; /* of the progress thread */
  pthread_mutex_t lock;
  pthread_t thread;
  bool has_thread;
  int epoll, wake;
  _Atomic bool rung; /* `wake` has been written and not yet read */
  _Atomic bool quit; /* send what is left, then end */
  int64_t lost_ns;   /* when a connection was lost; 0: none was */
  int32_t lost_rank;
  int lost_error;
};

/* ---- the thread ---- */

static _Noreturn void give_up(int32_t rank, const char *why)
{
  moe_error("the connection to rank %d is lost: %s", rank, why);
  _exit(1); /* the other threads may wait for what will never come */
}

static void lose(MoeTcp *t, MoeTcpLine *l, int error)
{
  if (t->lost_ns == 0) {
    t->lost_ns = moe_now_ns();
    t->lost_rank = l->rank;
    t->lost_error = error;
  }
  close(l->fd);
  l->fd = -1;
}

static void receive(MoeTcp *t, MoeTcpLine *l)
{
  bool rang = false;
  while (l->fd >= 0 && !l->ended) {
    size_t room;
    uint8_t *to = moe_tcp_line_room(l, &room);
    ssize_t n = recv(l->fd, to, room, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      break;
    }
    if (n < 0 || (n == 0 && (l->in_message || l->got > 0))) {
      lose(t, l, n < 0 ? errno : ECONNRESET);
      break;
    }
    if (n == 0) { /* it has finished; if not, its launcher knows */
      l->ended = true;
      break;
    }
    if (moe_tcp_line_filled(l, (size_t)n, &rang) != MOE_OK) {
      give_up(l->rank, "what came over it is no message that may come now");
    }
  }
  if (rang) {
    moe_bell_ring(t->bell);
  }
}

static bool next_pieces(MoeTcp *t, MoeTcpLine *l, struct iovec *pieces, int *n_p)
{
  pthread_mutex_lock(&t->lock);
  *n_p = moe_tcp_line_next(l, pieces);
  pthread_mutex_unlock(&t->lock);
  return *n_p > 0;
}

static void send_some(MoeTcp *t, MoeTcpLine *l)
{
  struct iovec pieces[2];
  int n;
  while (l->fd >= 0 && next_pieces(t, l, pieces, &n)) {
    struct msghdr m = {.msg_iov = pieces, .msg_iovlen = (size_t)n};
    ssize_t sent = sendmsg(l->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) {
      continue;
    }
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return;
    }
    if (sent < 0) {
      lose(t, l, errno);
      return;
    }
    pthread_mutex_lock(&t->lock);
    moe_tcp_line_gone(l, (size_t)sent);
    pthread_mutex_unlock(&t->lock);
  }
}

/* All has gone; then tells the other sides that no more comes. Returns whether they have said so too. */
static bool is_over(MoeTcp *t, bool *told)
{
  bool empty = true, closed = true;
  pthread_mutex_lock(&t->lock);
  for (int32_t i = 0; i < t->n_lines; i++) {
    empty = empty && (t->lines[i].fd < 0 || t->lines[i].first == t->lines[i].end);
    closed = closed && (t->lines[i].fd < 0 || t->lines[i].ended);
  }
  pthread_mutex_unlock(&t->lock);
  for (int32_t i = 0; empty && !*told && i < t->n_lines; i++) {
    if (t->lines[i].fd >= 0) {
      (void)shutdown(t->lines[i].fd, SHUT_WR);
    }
  }
  *told = *told || empty;
  return *told && closed;
}

static void *tcp_main(void *arg)
{
  MoeTcp *t = arg;
  bool told = false;
  (void)prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
  for (;;) {
    struct epoll_event events[EVENTS];
    uint64_t count;
    int n = epoll_wait(t->epoll, events, EVENTS, 200);
    for (int i = 0; i < n; i++) {
      if (events[i].data.ptr != NULL) {
        receive(t, events[i].data.ptr);
      } else if (read(t->wake, &count, sizeof count) < 0) {
        continue; /* it was read before */
      }
    }
    atomic_store(&t->rung, false);
    for (int32_t i = 0; i < t->n_lines; i++) {
      send_some(t, &t->lines[i]);
    }
    if (t->lost_ns != 0 && moe_now_ns() - t->lost_ns > GRACE_NS) {
      give_up(t->lost_rank, strerror(t->lost_error));
    }
    if (atomic_load(&t->quit) && is_over(t, &told)) {
      return NULL;
    }
  }
}

/* ---- the transport ---- */

static void hand_over(MoeTcp *t, int32_t rank, MoeTcpItem item)
{
  uint64_t one = 1;
  pthread_mutex_lock(&t->lock);
  moe_tcp_line_push(&t->lines[t->line_of[rank]], item);
  pthread_mutex_unlock(&t->lock);
  if (!atomic_exchange(&t->rung, true) && write(t->wake, &one, sizeof one) < 0) {
    return; /* it is full of wakes already */
  }
}

static bool tcp_reaches(const MoePeer *me, const MoePeer *other)
{
  return me->host != other->host;
}

static MoeStatus tcp_put(const MoeLink *link, uint32_t slot, uint64_t generation, size_t bytes, MoeSpan span)
{
  MoeSlot *s = (MoeSlot *)(void *)(link->slab + link->offset[slot]);
  (void)span; /* of this host's clock */
  moe_slot_publish(s, generation);
  hand_over(link->net, link->dst, (MoeTcpItem){MOE_TCP_MESSAGE, (uint32_t)bytes, link->offset[slot], generation});
  return MOE_OK;
}

static void tcp_release(const MoeLink *link, uint32_t slot, uint64_t generation, int64_t free_ns)
{
  moe_transport_shm.release(link, slot, generation, free_ns);
  hand_over(link->net, link->src, (MoeTcpItem){MOE_TCP_CREDIT, 0, link->offset[slot], generation});
}

static void tcp_take(const MoeLink *link, uint32_t slot, uint64_t generation)
{
  moe_transport_shm.take(link, slot, generation);
  hand_over(link->net, link->src, (MoeTcpItem){MOE_TCP_TAKEN, 0, link->offset[slot], generation});
}

static uint8_t *tcp_slot(const MoeLink *link, uint32_t slot)
{
  return moe_transport_shm.slot(link, slot);
}

static bool tcp_acquire(const MoeLink *link, uint32_t slot, uint64_t generation, int64_t *free_ns_p)
{
  return moe_transport_shm.acquire(link, slot, generation, free_ns_p);
}

static bool tcp_arrived(const MoeLink *link, uint32_t slot, uint64_t generation, MoeSpan *span_p)
{
  return moe_transport_shm.arrived(link, slot, generation, span_p);
}

static const uint8_t *tcp_data(const MoeLink *link, uint32_t slot)
{
  return moe_transport_shm.data(link, slot);
}

static bool tcp_taken(const MoeLink *link, uint32_t slot, uint64_t generation)
{
  return moe_transport_shm.taken(link, slot, generation);
}

const MoeTransport moe_transport_tcp = {
    .name = "tcp",
    .reaches = tcp_reaches,
    .slot = tcp_slot,
    .acquire = tcp_acquire,
    .put = tcp_put,
    .arrived = tcp_arrived,
    .data = tcp_data,
    .release = tcp_release,
    .take = tcp_take,
    .taken = tcp_taken,
};

/* ---- connecting ---- */

typedef struct Opening {
  MoeTcp *tcp;
  const MoeTeam *team;
  int32_t rank;
  uint8_t key[MOE_SHA256]; /* of this job's links */
  int32_t missing;
} Opening;

static MoeTcpLine *line_of(MoeTcp *t, uint64_t rank)
{
  return rank < (uint64_t)t->n_ranks && t->line_of[rank] >= 0 ? &t->lines[t->line_of[rank]] : NULL;
}

static void admit(void *arg, MoeConn *conn, const MoeFrame *f)
{
  Opening *o = arg;
  MoeCursor c = {.from = f->body, .n = f->n, .at = 2 * MOE_SHA256};
  uint64_t src = moe_get(&c, 4), dst = moe_get(&c, 4);
  MoeTcpLine *l = line_of(o->tcp, src);
  uint8_t answer[MOE_SHA256];
  if (dst != (uint64_t)o->rank || src <= dst || l == NULL || l->fd >= 0) {
    return;
  }
  moe_prove(o->key, MOE_FRAME_LINKED, f->body + MOE_SHA256, answer, sizeof answer);
  if (conn->in_used != conn->taken || !moe_conn_send(conn, MOE_FRAME_LINKED, answer, sizeof answer) ||
      conn->out_used > 0) {
    return;
  }
  l->fd = conn->fd;
  conn->fd = -1;
  o->missing--;
}

static MoeStatus link_to(Opening *o, MoeTcpLine *l, int64_t deadline_ns)
{
  static const uint8_t none[16] = {0};
  const MoeMember *m = &o->team->members[moe_team_process(o->team, l->rank)];
  const uint8_t *address = memcmp(m->address, none, 16) == 0 ? o->team->place : m->address;
  struct sockaddr_storage a;
  socklen_t n = moe_address_of(address, o->team->ports[l->rank], &a);
  uint8_t body[LINK_BYTES];
  MoeCursor c = {.to = body, .n = sizeof body, .at = 2 * MOE_SHA256};
  moe_put(&c, (uint64_t)o->rank, 4);
  moe_put(&c, (uint64_t)l->rank, 4);
  MoeConn conn;
  MoeFrame f;
  int error = 0;
  MoeStatus status = moe_knock(&conn, &a, n, o->key, MOE_FRAME_LINK, body, sizeof body, o->team->seat.n_ranks,
                               MOE_FRAME_BIT(LINKED), deadline_ns);
  if (status != MOE_OK) {
    return status;
  }
  status = MOE_AGAIN;
  while (status == MOE_AGAIN && moe_wait_fd(conn.fd, POLLIN, deadline_ns)) {
    status = moe_conn_next(&conn, &f, &error);
  }
  if (status == MOE_OK && moe_is_proved(o->key, MOE_FRAME_LINKED, conn.nonce, f.body, f.n)) {
    l->fd = conn.fd; /* moe_conn_next() reads no further than a frame */
    conn.fd = -1;
  } else {
    status = status == MOE_OK ? MOE_EPROTO : MOE_EPEER;
    errno = error;
  }
  moe_conn_close(&conn);
  return status;
}

static MoeStatus link_to_lower(Opening *o, int64_t deadline_ns)
{
  for (int32_t i = 0; i < o->tcp->n_lines; i++) {
    MoeTcpLine *l = &o->tcp->lines[i];
    MoeStatus status = l->rank < o->rank ? MOE_EPEER : MOE_OK;
    while (status != MOE_OK) {
      status = link_to(o, l, deadline_ns);
      if (status != MOE_OK && moe_now_ns() > deadline_ns) {
        moe_error("cannot connect to rank %d: %s", l->rank, errno != 0 ? strerror(errno) : "it closes the connection");
        return MOE_EPEER;
      }
      if (status != MOE_OK) {
        moe_sleep_until(moe_now_ns() + 50000000);
      }
    }
  }
  return MOE_OK;
}

static MoeStatus wait_for_higher(Opening *o, int fd, int64_t deadline_ns)
{
  MoeDoor door;
  for (int32_t i = 0; i < o->tcp->n_lines; i++) {
    o->missing += o->tcp->lines[i].rank > o->rank;
  }
  MOE_TRY(moe_door_open(&door, fd, o->key, MOE_FRAME_LINK, o->team->seat.n_ranks));
  while (o->missing > 0 && moe_now_ns() < deadline_ns) {
    moe_door_turn(&door, deadline_ns, admit, o);
  }
  moe_door_close(&door);
  for (int32_t i = 0; i < o->tcp->n_lines && o->missing > 0; i++) {
    if (o->tcp->lines[i].fd < 0) {
      moe_error("rank %d does not connect", o->tcp->lines[i].rank);
      return MOE_EPEER;
    }
  }
  return MOE_OK;
}

static MoeStatus start(MoeTcp *t)
{
  struct epoll_event event = {.events = EPOLLIN};
  t->epoll = epoll_create1(EPOLL_CLOEXEC);
  t->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  bool ok = t->epoll >= 0 && t->wake >= 0 && epoll_ctl(t->epoll, EPOLL_CTL_ADD, t->wake, &event) == 0;
  for (int32_t i = 0; i < t->n_lines && ok; i++) {
    const struct {
      int level, name, value;
    } options[] = {{IPPROTO_TCP, TCP_NODELAY, 1},  {SOL_SOCKET, SO_KEEPALIVE, 1},
                   {IPPROTO_TCP, TCP_KEEPIDLE, 2}, {IPPROTO_TCP, TCP_KEEPINTVL, 2},
                   {IPPROTO_TCP, TCP_KEEPCNT, 3},  {IPPROTO_TCP, TCP_USER_TIMEOUT, GONE_MS}};
    for (size_t k = 0; k < sizeof options / sizeof *options; k++) {
      (void)setsockopt(t->lines[i].fd, options[k].level, options[k].name, &options[k].value, sizeof(int));
    }
    event = (struct epoll_event){.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = &t->lines[i]};
    ok = epoll_ctl(t->epoll, EPOLL_CTL_ADD, t->lines[i].fd, &event) == 0;
  }
  int error = ok ? pthread_create(&t->thread, NULL, tcp_main, t) : errno;
  if (error != 0) {
    moe_error("cannot start the thread for other hosts: %s", strerror(error));
    return MOE_EIO;
  }
  t->has_thread = true;
  return MOE_OK;
}

/* A connection for each rank elsewhere with which some shape exchanges messages. */
static MoeStatus make_lines(MoeTcp *t, const MoeTeam *team, MoeShared *shared, const MoeWiring *wirings, int32_t n,
                            int32_t rank)
{
  for (int32_t r = 0; r < t->n_ranks; r++) {
    bool talks = false;
    t->line_of[r] = -1;
    for (int32_t k = 0; k < MOE_TRAFFIC_COUNT * n && team->host_of[r] != team->host_of[rank]; k++) {
      const MoeWiring *w = &wirings[k / MOE_TRAFFIC_COUNT];
      MoeTraffic traffic = (MoeTraffic)(k % MOE_TRAFFIC_COUNT);
      talks = talks || moe_link_plan(w, traffic, r, rank)->n_msgs > 0 || moe_link_plan(w, traffic, rank, r)->n_msgs > 0;
    }
    if (talks) {
      t->line_of[r] = t->n_lines;
      MOE_TRY(moe_tcp_line_open(&t->lines[t->n_lines++], shared->slabs, wirings, n, rank, r));
    }
  }
  return MOE_OK;
}

MoeStatus moe_tcp_open(MoeTcp **t_p, const MoeTeam *team, MoeShared *shared, const MoeWiring *wirings, int32_t n,
                       int32_t rank)
{
  int32_t ranks = team->seat.n_ranks;
  int listener = team->listeners[rank - team->seat.first];
  Opening o = {.team = team, .rank = rank};
  MoeTcp *t = calloc(1, sizeof *t);
  *t_p = t;
  if (t != NULL) {
    *t = (MoeTcp){.n_ranks = ranks, .bell = &shared->comm_bells[rank], .epoll = -1, .wake = -1};
    pthread_mutex_init(&t->lock, NULL);
    t->lines = calloc((size_t)ranks, sizeof *t->lines);
    t->line_of = calloc((size_t)ranks, sizeof *t->line_of);
  }
  if (t == NULL || t->lines == NULL || t->line_of == NULL) {
    moe_error("out of memory for connections");
    return MOE_ENOMEM;
  }
  o.tcp = t;
  moe_hmac(team->key, "link", 4, team->job, sizeof team->job, o.key);
  int64_t deadline_ns = moe_now_ns() + CONNECT_NS;
  MoeStatus status = make_lines(t, team, shared, wirings, n, rank);
  status = status == MOE_OK ? link_to_lower(&o, deadline_ns) : status;
  status = status == MOE_OK ? wait_for_higher(&o, listener, deadline_ns) : status;
  close(listener);
  return status == MOE_OK && t->n_lines > 0 ? start(t) : status;
}

void moe_tcp_close(MoeTcp *t, bool in_order)
{
  if (t == NULL) {
    return;
  }
  if (!in_order && t->has_thread) {
    return; /* the process ends with its thread */
  }
  if (t->has_thread) {
    uint64_t one = 1;
    atomic_store(&t->quit, true);
    (void)!write(t->wake, &one, sizeof one);
    pthread_join(t->thread, NULL);
  }
  for (int32_t i = 0; t->lines != NULL && i < t->n_lines; i++) {
    if (t->lines[i].fd >= 0) {
      close(t->lines[i].fd);
    }
    moe_tcp_line_close(&t->lines[i]);
  }
  if (t->epoll >= 0) {
    close(t->epoll);
  }
  if (t->wake >= 0) {
    close(t->wake);
  }
  pthread_mutex_destroy(&t->lock);
  free(t->lines);
  free(t->line_of);
  free(t);
}
