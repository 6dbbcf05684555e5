/* One loop over a signal descriptor and the ranks' output pipes. The first rank that ends without having finished
   decides: it is named, the others get SIGTERM, and SIGKILL a second later. Ranks ignore the terminal's signals, which
   reach the whole process group: ending the job is the launcher's task. A rank whose launcher dies is killed by the
   kernel. */
#include "runtime/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/log.h"
#include "runtime/shapes.h"

enum { LINE_BYTES = 4096, GRACE_NS = 1000000000, POLL_MS = 200 };

typedef struct Pipe {
  int fd; /* -1: closed */
  int to;
  size_t used;
  char line[LINE_BYTES];
} Pipe;

typedef struct Child {
  pid_t pid; /* 0: gone */
  Pipe out[2];
} Child;

typedef struct Job {
  const MoeLaunch *launch;
  Child *children;
  struct pollfd *polls; /* signals, then two pipes per rank, then other processes of the job */
  int *team_fds;
  int32_t first; /* of the ranks that run here; children[i] is rank first + i */
  int32_t n;
  int32_t alive;
  int signals;
  sigset_t old_mask;
  uint64_t beats; /* of all ranks when they last changed */
  int64_t beats_ns;
} Job;

/* ---- output ---- */

static void flush_pipe(Pipe *p, size_t n)
{
  for (size_t at = 0; at < n;) {
    ssize_t done = write(p->to, p->line + at, n - at);
    if (done <= 0 && errno != EINTR) {
      break; /* whoever read it is gone; the job goes on */
    }
    at += done > 0 ? (size_t)done : 0;
  }
  memmove(p->line, p->line + n, p->used - n);
  p->used -= n;
}

/* Passes on whole lines; a progress line ends in a carriage return. Returns false at the end. */
static bool drain_pipe(Pipe *p)
{
  for (;;) {
    ssize_t n = read(p->fd, p->line + p->used, LINE_BYTES - p->used);
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n <= 0) {
      bool ended = n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
      if (ended) {
        flush_pipe(p, p->used);
        close(p->fd);
        p->fd = -1;
      }
      return !ended;
    }
    p->used += (size_t)n;
    size_t whole = 0;
    for (size_t i = 0; i < p->used; i++) {
      if (p->line[i] == '\n' || p->line[i] == '\r') {
        whole = i + 1;
      }
    }
    flush_pipe(p, whole == 0 && p->used == LINE_BYTES ? p->used : whole);
  }
}

static void drain_child(Child *c)
{
  for (int k = 0; k < 2; k++) {
    if (c->out[k].fd >= 0) {
      (void)drain_pipe(&c->out[k]);
    }
  }
}

/* ---- start ---- */

static _Noreturn void be_rank(const Job *job, int32_t rank, pid_t launcher, int fds[2])
{
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != launcher) {
    _exit(1); /* it died before the line above */
  }
  signal(SIGINT, SIG_IGN);
  signal(SIGHUP, SIG_IGN);
  signal(SIGTERM, SIG_DFL);
  signal(SIGPIPE, SIG_DFL);
  sigprocmask(SIG_SETMASK, &job->old_mask, NULL);
  close(job->signals);
  for (int32_t i = 0; i < rank - job->first; i++) {
    close(job->children[i].out[0].fd);
    close(job->children[i].out[1].fd);
  }
  if (job->launch->team != NULL) {
    moe_team_leave(job->launch->team, rank);
  }
  dup2(fds[0], STDOUT_FILENO);
  dup2(fds[1], STDERR_FILENO);
  close(fds[0]);
  close(fds[1]);
  MoeRankState *state = &job->launch->shared->states[rank];
  moe_log_to(state->error, sizeof state->error, &state->failed);
  int code = job->launch->run(job->launch->arg, rank);
  exit(code);
}

static bool start_rank(Job *job, int32_t rank)
{
  int out[2] = {-1, -1};
  int err[2] = {-1, -1};
  pid_t launcher = getpid();
  pid_t pid = -1;
  if (pipe2(out, O_CLOEXEC) == 0 && pipe2(err, O_CLOEXEC) == 0) {
    pid = fork();
  }
  if (pid == 0) {
    close(out[0]);
    close(err[0]);
    be_rank(job, rank, launcher, (int[2]){out[1], err[1]});
  }
  if (pid < 0) {
    moe_error("cannot start rank %d: %s", rank, strerror(errno));
    for (int k = 0; k < 2; k++) {
      if (out[k] >= 0) {
        close(out[k]);
      }
      if (err[k] >= 0) {
        close(err[k]);
      }
    }
    return false;
  }
  close(out[1]);
  close(err[1]);
  fcntl(out[0], F_SETFL, O_NONBLOCK);
  fcntl(err[0], F_SETFL, O_NONBLOCK);
  Child *c = &job->children[rank - job->first];
  c->pid = pid;
  c->out[0].fd = out[0];
  c->out[0].to = STDOUT_FILENO;
  c->out[1].fd = err[0];
  c->out[1].to = STDERR_FILENO;
  job->alive++;
  return true;
}

/* ---- what a rank was doing ---- */

static void doing(const Job *job, int32_t rank, char *text, size_t n)
{
  const MoeRankState *s = &job->launch->shared->states[rank];
  const MoeBundle *bundle = job->launch->bundle;
  uint32_t shape = atomic_load(&s->shape); /* of another host's rank: what that said */
  bundle = shape < (uint32_t)moe_n_shapes(bundle) ? moe_shape_at(bundle, (int32_t)shape) : bundle;
  const MoeGroup *group = moe_rank_of(bundle, rank).group;
  unsigned long long step = atomic_load(&s->step);
  uint32_t compute = atomic_load(&s->compute);
  uint32_t comm = atomic_load(&s->comm);
  bool waiting = (compute & MOE_WAITING) != 0;
  uint32_t op = waiting && comm != 0 ? comm : compute & ~MOE_WAITING;
  char what[96] = "";
  if (op > 0 && op <= (uint32_t)group->n_ops) {
    moe_op_text(&group->ops[op - 1], what, sizeof what);
  }
  switch ((MoePhase)atomic_load(&s->phase)) {
  case MOE_PHASE_START:
    snprintf(text, n, "while starting");
    break;
  case MOE_PHASE_INIT:
    snprintf(text, n, "while setting initial weights");
    break;
  case MOE_PHASE_RUN:
    if (what[0] == '\0') {
      snprintf(text, n, "in step %llu, %s", step, waiting ? "waiting for its last messages" : "between ops");
    } else {
      snprintf(text, n, "in step %llu, %s %s", step, waiting && comm == 0 ? "waiting to run" : "running", what);
    }
    break;
  case MOE_PHASE_SAVE:
    snprintf(text, n, "after step %llu, while writing files", step);
    break;
  case MOE_PHASE_DONE:
    snprintf(text, n, "after its last step, %llu", step);
    break;
  }
}

/* Why the job ends, once on this process's stderr and to the others. */
__attribute__((format(printf, 2, 3))) static void give_reason(const Job *job, const char *format, ...)
{
  char text[MOE_FAIL_TEXT];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  moe_error("%s", text);
  if (job->launch->team != NULL) {
    moe_team_fail(job->launch->team, text);
  }
}

static void tell_end(const Job *job, int32_t rank, int status)
{
  const MoeRankState *s = &job->launch->shared->states[rank];
  char who[96];
  char what[192];
  moe_rank_text(job->launch->bundle, rank, who, sizeof who);
  doing(job, rank, what, sizeof what);
  if (WIFSIGNALED(status)) {
    int sig = WTERMSIG(status);
    give_reason(job, "%s was killed by signal %d (%s) %s; the other ranks are ended", who, sig, strsignal(sig), what);
  } else if (atomic_load(&s->failed) == 2) {
    give_reason(job, "%s failed %s: %s", who, what, s->error);
  } else {
    give_reason(job, "%s ended with exit code %d %s; the other ranks are ended", who, WEXITSTATUS(status), what);
  }
}

/* ---- end ---- */

static void signal_all(const Job *job, int sig)
{
  for (int32_t r = 0; r < job->n; r++) {
    if (job->children[r].pid > 0) {
      kill(job->children[r].pid, sig);
    }
  }
}

/* Reaps what has ended; returns the first rank found that ended without having finished, or -1. */
static int32_t reap(Job *job, int *status_p)
{
  int32_t failed = -1;
  for (int32_t r = 0; r < job->n; r++) {
    int status;
    Child *c = &job->children[r];
    if (c->pid <= 0 || waitpid(c->pid, &status, WNOHANG) != c->pid) {
      continue;
    }
    c->pid = 0;
    job->alive--;
    drain_child(c);
    const MoeRankState *s = &job->launch->shared->states[job->first + r];
    bool finished = WIFEXITED(status) && WEXITSTATUS(status) == 0 && atomic_load(&s->phase) == MOE_PHASE_DONE;
    if (!finished && failed < 0) {
      failed = job->first + r;
      *status_p = status;
    }
  }
  return failed;
}

static void end_all(Job *job)
{
  int status;
  signal_all(job, SIGTERM);
  int64_t limit = moe_now_ns() + GRACE_NS;
  while (job->alive > 0 && moe_now_ns() < limit) {
    (void)reap(job, &status);
    for (int32_t r = 0; r < job->n; r++) {
      drain_child(&job->children[r]);
    }
    moe_sleep_until(moe_now_ns() + 2000000);
  }
  signal_all(job, SIGKILL);
  while (job->alive > 0) {
    (void)reap(job, &status);
    moe_sleep_until(moe_now_ns() + 1000000);
  }
}

/* ---- silence ---- */

static bool is_stopped(pid_t pid)
{
  char path[64];
  char text[512];
  snprintf(path, sizeof path, "/proc/%ld/stat", (long)pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return false;
  }
  ssize_t n = read(fd, text, sizeof text - 1);
  close(fd);
  text[n > 0 ? n : 0] = '\0';
  const char *end = strrchr(text, ')');
  return end != NULL && end[1] == ' ' && end[2] == 'T';
}

static pid_t pid_of(const Job *job, int32_t rank)
{
  int32_t i = rank - job->first;
  return i >= 0 && i < job->n ? job->children[i].pid : 0;
}

/* Of ranks that all wait, the culprit is one that is stopped, else one that is in the middle of an op, else one that is
   furthest behind. */
static int32_t find_silent(const Job *job)
{
  const MoeRankState *states = job->launch->shared->states;
  int32_t behind = -1;
  for (int32_t r = 0; r < job->launch->shared->n_ranks; r++) {
    if (pid_of(job, r) > 0 && is_stopped(pid_of(job, r))) {
      return r;
    }
  }
  for (int32_t r = 0; r < job->launch->shared->n_ranks; r++) {
    if (atomic_load(&states[r].phase) == MOE_PHASE_DONE) {
      continue;
    }
    bool busy = (atomic_load(&states[r].compute) & MOE_WAITING) == 0 || atomic_load(&states[r].comm) != 0;
    if (busy) {
      return r;
    }
    if (behind < 0 || atomic_load(&states[r].step) < atomic_load(&states[behind].step)) {
      behind = r;
    }
  }
  return behind < 0 ? 0 : behind;
}

static bool all_silent(Job *job)
{
  uint64_t beats = 0;
  for (int32_t r = 0; r < job->launch->shared->n_ranks; r++) {
    const MoeRankState *s = &job->launch->shared->states[r];
    beats += atomic_load(&s->beats) + atomic_load(&s->phase) + atomic_load(&s->step);
  }
  int64_t now = moe_now_ns();
  if (beats != job->beats || job->beats_ns == 0) {
    job->beats = beats;
    job->beats_ns = now;
  }
  return (double)(now - job->beats_ns) * 1e-9 > job->launch->timeout_s;
}

/* ---- the loop ---- */

static void tell_signal(const Job *job, int sig)
{
  char text[160];
  snprintf(text, sizeof text, "the process of rank %d got signal %d (%s); the other ranks are ended", job->first, sig,
           strsignal(sig));
  if (job->launch->team != NULL) {
    moe_team_fail(job->launch->team, text);
  }
}

static int watch(Job *job)
{
  while (job->alive > 0) {
    job->polls[0] = (struct pollfd){.fd = job->signals, .events = POLLIN};
    for (int32_t i = 0; i < 2 * job->n; i++) {
      job->polls[i + 1] = (struct pollfd){.fd = job->children[i / 2].out[i % 2].fd, .events = POLLIN};
    }
    int32_t n = 2 * job->n + 1;
    int32_t others = job->launch->team != NULL ? moe_team_fds(job->launch->team, job->team_fds) : 0;
    for (int32_t i = 0; i < others; i++) {
      job->polls[n++] = (struct pollfd){.fd = job->team_fds[i], .events = POLLIN};
    }
    if (poll(job->polls, (nfds_t)n, POLL_MS) < 0 && errno != EINTR) {
      moe_error("cannot wait for the ranks: %s", strerror(errno));
      return 1;
    }
    struct signalfd_siginfo info;
    while (read(job->signals, &info, sizeof info) == (ssize_t)sizeof info) {
      if (info.ssi_signo != SIGCHLD) {
        int sig = (int)info.ssi_signo;
        moe_note("signal %d (%s): ending all ranks", sig, strsignal(sig));
        tell_signal(job, sig);
        return 128 + sig;
      }
    }
    for (int32_t r = 0; r < job->n; r++) {
      drain_child(&job->children[r]);
    }
    int status = 0;
    int32_t failed = reap(job, &status);
    if (failed >= 0) {
      tell_end(job, failed, status);
      return 1;
    }
    if (job->launch->team != NULL && moe_team_turn(job->launch->team) != MOE_AGAIN) {
      return 1; /* it has been told */
    }
    if (job->first == 0 && all_silent(job)) {
      int32_t rank = find_silent(job);
      char who[96];
      char what[192];
      moe_rank_text(job->launch->bundle, rank, who, sizeof who);
      doing(job, rank, what, sizeof what);
      bool stopped = pid_of(job, rank) > 0 && is_stopped(pid_of(job, rank));
      give_reason(job, "no rank did anything for %.0f s; the silent one seems to be %s%s %s", job->launch->timeout_s,
                  who, stopped ? ", which is stopped," : "", what);
      return 1;
    }
  }
  return 0;
}

static int run_job(Job *job)
{
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGCHLD);
  sigaddset(&mask, SIGINT);
  sigaddset(&mask, SIGTERM);
  sigaddset(&mask, SIGHUP);
  sigprocmask(SIG_BLOCK, &mask, &job->old_mask);
  job->signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
  void (*old_pipe)(int) = signal(SIGPIPE, SIG_IGN);
  int code = job->signals < 0 ? 1 : 0;
  if (code != 0) {
    moe_error("cannot receive signals: %s", strerror(errno));
  }
  for (int32_t r = 0; code == 0 && r < job->n; r++) {
    code = start_rank(job, job->first + r) ? 0 : 1;
  }
  if (job->launch->team != NULL) {
    moe_team_leave(job->launch->team, -1);
  }
  if (code == 0) {
    code = watch(job);
  }
  end_all(job);
  for (int32_t r = 0; r < job->n; r++) {
    drain_child(&job->children[r]);
    for (int k = 0; k < 2; k++) {
      if (job->children[r].out[k].fd >= 0) {
        close(job->children[r].out[k].fd);
      }
    }
  }
  if (job->signals >= 0) {
    close(job->signals);
  }
  signal(SIGPIPE, old_pipe);
  sigprocmask(SIG_SETMASK, &job->old_mask, NULL);
  return code;
}

int moe_launch(const MoeLaunch *launch)
{
  int32_t n = launch->n;
  size_t others = launch->team != NULL ? (size_t)launch->team->seat.n_processes : 0;
  Job job = {.launch = launch, .first = launch->first, .n = n, .signals = -1};
  job.children = calloc((size_t)n, sizeof *job.children);
  job.polls = calloc(2 * (size_t)n + 1 + others, sizeof *job.polls);
  job.team_fds = calloc(others + 1, sizeof *job.team_fds);
  int code = 1;
  if (job.children == NULL || job.polls == NULL || job.team_fds == NULL) {
    moe_error("out of memory for the list of ranks");
  } else {
    for (int32_t r = 0; r < n; r++) {
      job.children[r].out[0].fd = job.children[r].out[1].fd = -1;
    }
    fflush(NULL);
    code = run_job(&job);
  }
  free(job.children);
  free(job.polls);
  free(job.team_fds);
  return code;
}
