/* The link arbiter: exact times on a clock of our own, then goodput against the real one. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/pace.h"

enum { RANKS = 4, MS = 1000000 };

/* 1e6 bytes per second: a byte takes a microsecond, 1000 bytes a millisecond. */
static MoePacer *make(double rate)
{
  void *p = mmap(NULL, moe_pace_bytes(RANKS), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert_true(p != MAP_FAILED);
  moe_pace_init(p, RANKS, rate);
  return p;
}

static void drop(MoePacer *p)
{
  munmap(p, moe_pace_bytes(RANKS));
}

static int64_t arrival(MoePacer *p, int src, int dst, uint64_t count)
{
  int64_t next = 0;
  for (int64_t t = 0; t < 1000 * (int64_t)MS;) {
    if (moe_pace_done(p, src, dst, t, &next) >= count) {
      return t;
    }
    t = next > t ? next : t + 1;
  }
  return -1;
}

static bool about(int64_t ns, double ms)
{
  return fabs((double)ns - ms * MS) < 2000;
}

static void one_flow(void **state)
{
  (void)state;
  MoePacer *p = make(1e6);
  assert_true(moe_pace_start(p, 0, 1, 5000, 0));
  assert_true(about(arrival(p, 0, 1, 1), 5));
  drop(p);
}

static void two_flows_share_a_port_and_full_duplex(void **state)
{
  (void)state;
  MoePacer *p = make(1e6);
  assert_true(moe_pace_start(p, 0, 1, 1000, 0)); /* out of 0: half of the rate each */
  assert_true(moe_pace_start(p, 0, 2, 2000, 0));
  assert_true(moe_pace_start(p, 1, 0, 1000, 0)); /* the other direction is free */
  assert_true(about(arrival(p, 1, 0, 1), 1));
  assert_true(about(arrival(p, 0, 1, 1), 2)); /* 1000 bytes at half rate */
  assert_true(about(arrival(p, 0, 2, 1), 3)); /* then alone */
  drop(p);
}

static void max_min(void **state)
{
  (void)state;
  MoePacer *p = make(1e6);
  /* Three flows into 3 get a third each; 0 -> 1 takes the two thirds that 0's out port has left. */
  assert_true(moe_pace_start(p, 0, 3, 1000, 0));
  assert_true(moe_pace_start(p, 1, 3, 1000, 0));
  assert_true(moe_pace_start(p, 2, 3, 1000, 0));
  assert_true(moe_pace_start(p, 0, 1, 1000, 0));
  assert_true(about(arrival(p, 0, 1, 1), 1.5));
  assert_true(about(arrival(p, 0, 3, 1), 3));
  int64_t next;
  assert_int_equal(moe_pace_done(p, 2, 3, 3 * MS + 1000, &next), 1);
  drop(p);
}

static void messages_of_a_pair_queue_without_gaps(void **state)
{
  (void)state;
  MoePacer *p = make(1e6);
  for (int i = 0; i < MOE_PACE_QUEUE; i++) {
    assert_true(moe_pace_start(p, 0, 1, 1000, 0));
  }
  assert_false(moe_pace_start(p, 0, 1, 1000, 0));
  int64_t next;
  assert_int_equal(moe_pace_done(p, 0, 1, 7 * MS + MS / 2, &next), 7); /* looked at once, late: the ends do not shift */
  assert_true(about(next, 8));
  assert_true(about(moe_pace_start_ns(p, 0, 1, 6), 6));
  assert_true(moe_pace_start(p, 0, 1, 1000, 7 * MS + MS / 2));
  assert_true(about(arrival(p, 0, 1, 9), 9));
  drop(p);
}

static void an_empty_message_passes_at_once(void **state)
{
  (void)state;
  MoePacer *p = make(1e6);
  int64_t next;
  assert_true(moe_pace_start(p, 0, 1, 0, 100));
  assert_int_equal(moe_pace_done(p, 0, 1, 100, &next), 1);
  assert_true(next == INT64_MAX);
  drop(p);
}

/* Sends messages of `bytes` for about `ns`; the exit code is of no interest, the count is. */
static uint64_t send_for(MoePacer *p, int dst, size_t bytes, int64_t ns)
{
  (void)prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
  int64_t begin = moe_now_ns();
  uint64_t done = 0;
  uint64_t started = 0;
  int64_t now = begin;
  while (now - begin < ns) {
    int64_t next;
    done = moe_pace_done(p, 0, dst, now, &next);
    while (started < done + 2) {
      (void)moe_pace_start(p, 0, dst, bytes, now);
      started++;
    }
    (void)moe_pace_done(p, 0, dst, now, &next);
    moe_sleep_until(next);
    now = moe_now_ns();
  }
  return done;
}

static void goodput_of_two_processes_on_one_port(void **state)
{
  (void)state;
  const double rate = 50e6;
  const size_t bytes = 250000; /* 5 ms alone, 10 ms shared */
  const int64_t ns = 400 * (int64_t)MS;
  MoePacer *p = make(rate);
  _Atomic uint64_t *count = mmap(NULL, 64, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  int64_t begin = moe_now_ns();
  pid_t child = fork();
  if (child == 0) {
    count[0] = send_for(p, 1, bytes, ns);
    _exit(0);
  }
  count[1] = send_for(p, 2, bytes, ns);
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  double seconds = (double)(moe_now_ns() - begin) * 1e-9;
  double sent = (double)(count[0] + count[1]) * (double)bytes;
  /* Each process may have one message under way that does not count. */
  assert_true(sent <= rate * seconds * 1.05);
  assert_true(sent >= rate * (double)ns * 1e-9 * 0.95 - 2.0 * (double)bytes);
  munmap((void *)count, 64);
  drop(p);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(one_flow),
      cmocka_unit_test(two_flows_share_a_port_and_full_duplex),
      cmocka_unit_test(max_min),
      cmocka_unit_test(messages_of_a_pair_queue_without_gaps),
      cmocka_unit_test(an_empty_message_passes_at_once),
      cmocka_unit_test(goodput_of_two_processes_on_one_port),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
