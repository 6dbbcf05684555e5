/* Processes of one host that no common parent has forked get one memory all the same: the lowest of them makes it and
   hands its descriptor over through a socket without a place in any file system. Its name holds the job's random id,
   and the kernel vouches for the user at the other end. */
#include "runtime/team.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "runtime/bell.h"
#include "runtime/log.h"

#define PATIENCE_NS 60000000000

static socklen_t name_socket(const MoeTeam *t, struct sockaddr_un *a)
{
  *a = (struct sockaddr_un){.sun_family = AF_UNIX}; /* sun_path[0] is 0: abstract */
  size_t at = 1;
  for (int i = 0; i < MOE_JOB_ID; i++, at += 2) {
    snprintf(a->sun_path + at, 3, "%02x", t->job[i]);
  }
  at += (size_t)snprintf(a->sun_path + at, 20, "-%016llx", (unsigned long long)t->members[t->seat.process].host);
  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + at);
}

static bool is_own_user(int fd)
{
  struct ucred who;
  socklen_t n = sizeof who;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) == 0 && who.uid == getuid();
}

typedef union Control {
  char bytes[CMSG_SPACE(sizeof(int))];
  struct cmsghdr align;
} Control;

static bool hand_over(int to, int fd)
{
  char byte = 0;
  Control control = {0};
  struct iovec one = {.iov_base = &byte, .iov_len = 1};
  struct msghdr m = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control};
  struct cmsghdr *c = CMSG_FIRSTHDR(&m);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(sizeof fd);
  memcpy(CMSG_DATA(c), &fd, sizeof fd);
  return sendmsg(to, &m, MSG_NOSIGNAL) == 1;
}

static int take(int from)
{
  char byte;
  int fd = -1;
  Control control;
  struct iovec one = {.iov_base = &byte, .iov_len = 1};
  struct msghdr m = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control};
  if (recvmsg(from, &m, MSG_CMSG_CLOEXEC) != 1) {
    return -1;
  }
  for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c != NULL; c = CMSG_NXTHDR(&m, c)) {
    if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(sizeof fd)) {
      memcpy(&fd, CMSG_DATA(c), sizeof fd);
    }
  }
  return fd;
}

/* Waits for the socket, and hears meanwhile what has become of the others. */
static MoeStatus await(MoeTeam *t, int fd, int64_t deadline_ns)
{
  while (!moe_wait_fd(fd, POLLIN, moe_now_ns() + 100000000)) {
    if (moe_now_ns() > deadline_ns) {
      errno = ETIMEDOUT;
      return MOE_AGAIN;
    }
    if (moe_team_turn(t) != MOE_AGAIN) {
      return MOE_EPEER;
    }
  }
  return MOE_OK;
}

static MoeStatus give(MoeTeam *t, int own, int fd, int64_t deadline_ns)
{
  int32_t left = moe_team_on_host(t) - 1;
  while (left > 0) {
    MoeStatus status = await(t, own, deadline_ns);
    MOE_TRY(status);
    int to = status == MOE_OK ? accept4(own, NULL, NULL, SOCK_CLOEXEC) : -1;
    if (to < 0) {
      moe_error("%d processes of this host did not fetch its shared memory: %s", left, strerror(errno));
      return MOE_EPEER;
    }
    left -= is_own_user(to) && hand_over(to, fd);
    close(to);
  }
  return MOE_OK;
}

static MoeStatus fetch(MoeTeam *t, int own, const struct sockaddr_un *a, socklen_t n, int *fd_p, int64_t deadline_ns)
{
  while (connect(own, (const struct sockaddr *)a, n) != 0) {
    int error = errno;
    if ((error != ECONNREFUSED && error != EINTR && error != EAGAIN) || moe_now_ns() > deadline_ns) {
      moe_error("the first process of this host does not hand over its shared memory: %s", strerror(error));
      return MOE_EPEER;
    }
    if (moe_team_turn(t) != MOE_AGAIN) {
      return MOE_EPEER;
    }
    moe_sleep_until(moe_now_ns() + 10000000);
  }
  MoeStatus status = await(t, own, deadline_ns);
  MOE_TRY(status);
  *fd_p = status == MOE_OK && is_own_user(own) ? take(own) : -1;
  if (*fd_p < 0) {
    moe_error("the first process of this host hands over no shared memory");
    return MOE_EPEER;
  }
  return MOE_OK;
}

MoeStatus moe_team_share(MoeTeam *t, int *fd_p)
{
  struct sockaddr_un a;
  socklen_t n = name_socket(t, &a);
  int64_t deadline_ns = moe_now_ns() + PATIENCE_NS;
  bool leads = moe_team_leader(t) == t->seat.process;
  if (moe_team_on_host(t) == 1) {
    return MOE_OK;
  }
  int own = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (own < 0 || (leads && (bind(own, (const struct sockaddr *)&a, n) != 0 || listen(own, 1024) != 0))) {
    moe_error("cannot make a socket for this host's shared memory: %s", strerror(errno));
    if (own >= 0) {
      close(own);
    }
    return MOE_EIO;
  }
  MoeStatus status = leads ? give(t, own, *fd_p, deadline_ns) : fetch(t, own, &a, n, fd_p, deadline_ns);
  close(own);
  return status;
}
