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
static MoePacer *map_pacer(int32_t ports)
{
  void *p = mmap(NULL, moe_pace_bytes(RANKS, ports), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert_true(p != MAP_FAILED);
  moe_pace_init(p, RANKS, ports, NULL);
  return p;
}

static MoePacer *make(double rate)
{
  MoePacer *p = map_pacer(2 * RANKS);
  moe_pace_even(p, rate);
  return p;
}

static void drop_pacer(MoePacer *p, int32_t ports)
{
  munmap(p, moe_pace_bytes(RANKS, ports));
}

static void drop(MoePacer *p)
{
  drop_pacer(p, 2 * RANKS);
}

/* When message `number` of the pair arrives, on a clock that jumps from one announced event to the next; -1: not within
   a second. */
static int64_t arrival(MoePacer *p, MoeTraffic traffic, int src, int dst, uint64_t number)
{
  MoePaced m;
  for (int64_t t = 0; t < 1000 * (int64_t)MS;) {
    int64_t next = moe_pace_poll(p, src, t);
    if (moe_pace_message(p, traffic, src, dst, number, &m)) {
      return m.arrival_ns;
    }
    t = next > t && next < INT64_MAX ? next : t + 1;
  }
  return -1;
}

static bool about(int64_t ns, double ms)
{
  return fabs((double)ns - ms * MS) < 2000;
}

static void buckets_take_what_is_left(void **state)
{
  (void)state;
  MoePacer *p = make(1e6);
  assert_true(moe_pace_start(p, MOE_TRAFFIC_BUCKETS, 0, 1, 3000, 0, 0)); /* 1 ms of it, then it stands for 2 */
  assert_true(
      moe_pace_start(p, MOE_TRAFFIC_STEP, 0, 1, 1000, 0, MS)); /* between the same ranks, and is not behind it */
  assert_true(moe_pace_start(p, MOE_TRAFFIC_STEP, 2, 1, 500, 0, MS));
  assert_true(
      moe_pace_start(p, MOE_TRAFFIC_STEP, 2, 3, 1000, 0, MS)); /* 0.5 of out of 2 each, half of into 1 is left */
  assert_true(moe_pace_start(p, MOE_TRAFFIC_BUCKETS, 3, 2, 500, 0, 0));
  MoePaced m;
  assert_true(about(arrival(p, MOE_TRAFFIC_BUCKETS, 3, 2, 0), 0.5));
  assert_int_equal(moe_pace_poll(p, 0, 3 * MS / 2), 3 * MS);
  assert_false(moe_pace_message(p, MOE_TRAFFIC_BUCKETS, 0, 1, 0, &m));
  assert_true(m.arrival_ns == INT64_MAX); /* nothing of the port is left for it */
  assert_true(about(arrival(p, MOE_TRAFFIC_STEP, 0, 1, 0), 2.5));
  assert_true(about(arrival(p, MOE_TRAFFIC_STEP, 2, 1, 0), 2));
  assert_true(about(arrival(p, MOE_TRAFFIC_BUCKETS, 0, 1, 0), 4.5));
  drop(p);
}

static void one_flow(void **state)
{
  (void)state;
  MoePacer *p = make(1e6);
  assert_true(moe_pace_start(p, MOE_TRAFFIC_STEP, 0, 1, 5000, 0, 0));
  assert_true(about(arrival(p, MOE_TRAFFIC_STEP, 0, 1, 0), 5));
  drop(p);
}

static void two_flows_share_a_port_and_full_duplex(void **state)
{
  (void)state;
  MoePacer *p = make(1e6);
  assert_true(moe_pace_start(p, MOE_TRAFFIC_STEP, 0, 1, 1000, 0, 0)); /* out of 0: half of the rate each */
  assert_true(moe_pace_start(p, MOE_TRAFFIC_STEP, 0, 2, 2000, 0, 0));
  assert_true(moe_pace_start(p, MOE_TRAFFIC_STEP, 1, 0, 1000, 0, 0)); /* the other direction is free */
  assert_true(about(arrival(p, MOE_TRAFFIC_STEP, 1, 0, 0), 1));
  assert_true(about(arrival(p, MOE_TRAFFIC_STEP, 0, 1, 0), 2)); /* 1000 bytes at half rate */
  assert_true(about(arrival(p, MOE_TRAFFIC_STEP, 0, 2, 0), 3)); /* then alone */
  drop(p);
}

static void max_min(void **state)
{
  (void)state;
  MoePacer *p = make(1e6);
  /* Three flows into 3 get a third each; 0 -> 1 takes the two thirds that 0's out port has left. */
  assert_true(moe_pace_start(p, MOE_TRAFFIC_STEP, 0, 3, 1000, 0, 0));
  assert_true(moe_pace_start(p, MOE_TRAFFIC_STEP, 1, 3, 1000, 0, 0));
  assert_true(moe_pace_start(p, MOE_TRAFFIC_STEP, 2, 3, 1000, 0, 0));
  assert_true(moe_pace_start(p, MOE_TRAFFIC_STEP, 0, 1, 1000, 0, 0));
  assert_true(about(arrival(p, MOE_TRAFFIC_STEP, 0, 1, 0), 1.5));
  assert_true(about(arrival(p, MOE_TRAFFIC_STEP, 0, 3, 0), 3));
  assert_true(about(arrival(p, MOE_TRAFFIC_STEP, 2, 3, 0), 3));
  drop(p);
}

static void ports_shared_by_ranks(void **state)
{
  (void)state;
  enum { NVLINK = 2 * RANKS, PORTS = 2 * RANKS + 4 };
  MoePacer *p = map_pacer(PORTS);
  moe_pace_even(p, 4e6); /* ranks 0 and 1, and 2 and 3, are nodes of one NIC each */
  for (int32_t k = 0; k < 4; k++) {
    moe_pace_port(p, NVLINK + k, 1e6);
  }
  for (int32_t i = 0; i < RANKS * RANKS; i++) {
    int32_t a = i / RANKS / 2;
    int32_t b = i % RANKS / 2;
    if (a != b) {
      moe_pace_route(p, i / RANKS, i % RANKS, NVLINK + 2 * a, NVLINK + 2 * b + 1);
    }
  }
  assert_true(moe_pace_start(p, MOE_TRAFFIC_STEP, 0, 2, 1000, MS, 0)); /* both through one NIC */
  assert_true(moe_pace_start(p, MOE_TRAFFIC_STEP, 1, 3, 1000, 0, 0));
  assert_true(moe_pace_start(p, MOE_TRAFFIC_STEP, 0, 1, 1000, 0, 0)); /* within the node, on a port of its own */
  assert_true(about(arrival(p, MOE_TRAFFIC_STEP, 0, 1, 0), 0.25));
  assert_true(about(arrival(p, MOE_TRAFFIC_STEP, 1, 3, 0), 2));
  assert_true(about(arrival(p, MOE_TRAFFIC_STEP, 0, 2, 0), 3)); /* and a latency of 1 ms */
  drop_pacer(p, PORTS);
}

static void messages_of_a_pair_queue_without_gaps(void **state)
{
  (void)state;
  MoePacer *p = make(1e6);
  MoePaced m;
  for (int i = 0; i < MOE_PACE_QUEUE; i++) {
    assert_true(moe_pace_start(p, MOE_TRAFFIC_STEP, 0, 1, 1000, MS / 4, 0));
  }
  assert_false(moe_pace_start(p, MOE_TRAFFIC_STEP, 0, 1, 1000, 0, 0));
  int64_t next = moe_pace_poll(p, 0, 7 * MS + MS / 2); /* looked at once, late: the ends do not shift */
  assert_true(about(next, 8.25));
  assert_false(moe_pace_message(p, MOE_TRAFFIC_STEP, 0, 1, 7, &m));
  assert_true(about(m.sent_ns, 8) && about(m.arrival_ns, 8.25));
  assert_true(moe_pace_message(p, MOE_TRAFFIC_STEP, 0, 1, 6, &m));
  assert_true(about(m.start_ns, 6) && about(m.sent_ns, 7) && about(m.arrival_ns, 7.25));
  assert_true(moe_pace_start(p, MOE_TRAFFIC_STEP, 0, 1, 1000, 0, 7 * MS + MS / 2));
  assert_true(about(arrival(p, MOE_TRAFFIC_STEP, 0, 1, 8), 9));
  drop(p);
}

static void an_empty_message_passes_at_once(void **state)
{
  (void)state;
  MoePacer *p = make(1e6);
  MoePaced m;
  assert_true(moe_pace_start(p, MOE_TRAFFIC_STEP, 0, 1, 0, 0, 100));
  assert_true(moe_pace_poll(p, 0, 100) == INT64_MAX);
  assert_true(moe_pace_message(p, MOE_TRAFFIC_STEP, 0, 1, 0, &m) && m.arrival_ns == 100);
  drop(p);
}

/* A sender that reports late does not delay its message, whether the model's clock has passed the time or not. */
static void late_reports_are_credited(void **state)
{
  (void)state;
  MoePacer *p = make(1e6);
  MoePaced m;
  assert_true(moe_pace_start(p, MOE_TRAFFIC_STEP, 0, 1, 1000, 0, 0));
  assert_true(about(arrival(p, MOE_TRAFFIC_STEP, 0, 1, 0), 1));            /* the clock stands at 1 ms */
  assert_true(moe_pace_start(p, MOE_TRAFFIC_STEP, 0, 1, 3000, 0, MS / 2)); /* queued behind it since 0.5 ms */
  assert_true(about(arrival(p, MOE_TRAFFIC_STEP, 0, 1, 1), 4));
  assert_true(moe_pace_start(p, MOE_TRAFFIC_STEP, 2, 3, 2000, 0, 3 * MS)); /* 1 of its 2 ms has passed */
  assert_true(about(arrival(p, MOE_TRAFFIC_STEP, 2, 3, 0), 5));
  assert_true(moe_pace_start(p, MOE_TRAFFIC_STEP, 2, 1, 500, 0, 4 * MS)); /* all of it */
  assert_true(moe_pace_poll(p, 2, 5 * MS) == INT64_MAX);
  assert_true(moe_pace_message(p, MOE_TRAFFIC_STEP, 2, 1, 0, &m) && about(m.arrival_ns, 4.5));
  drop(p);
}

/* ---- against another solver ----
   Rates by water filling in small steps of the common level instead of by ports: all open flows rise together until a
   port is full, then its flows stand still; then those of buckets in what is left. Time goes forward by a fixed small
   step instead of by events. */

typedef struct Flow {
  MoeTraffic traffic;
  int src, dst;
  double left, start, end;
} Flow;

static void fill_levels(const Flow *flows, int n, MoeTraffic traffic, double now, double rate, double *used,
                        double *speed)
{
  const double step = rate / 240;
  bool open[64];
  for (int f = 0; f < n; f++) {
    open[f] = flows[f].traffic == traffic && flows[f].left > 0 && flows[f].start <= now;
  }
  for (bool any = true; any;) {
    any = false;
    double more[2 * RANKS] = {0};
    for (int f = 0; f < n; f++) {
      more[flows[f].src] += open[f] ? step : 0;
      more[RANKS + flows[f].dst] += open[f] ? step : 0;
    }
    for (int f = 0; f < n; f++) {
      open[f] = open[f] && used[flows[f].src] + more[flows[f].src] <= rate * 1.0001 &&
                used[RANKS + flows[f].dst] + more[RANKS + flows[f].dst] <= rate * 1.0001;
    }
    for (int f = 0; f < n; f++) {
      if (open[f]) {
        speed[f] += step;
        used[flows[f].src] += step;
        used[RANKS + flows[f].dst] += step;
        any = true;
      }
    }
  }
}

static void solve(Flow *flows, int n, double rate)
{
  const double dt = 2e-6;
  int left = n;
  for (double now = 0; left > 0; now += dt) {
    double speed[64] = {0}, used[2 * RANKS] = {0};
    fill_levels(flows, n, MOE_TRAFFIC_STEP, now, rate, used, speed);
    fill_levels(flows, n, MOE_TRAFFIC_BUCKETS, now, rate, used, speed);
    for (int f = 0; f < n; f++) {
      if (flows[f].left > 0 && speed[f] > 0) {
        flows[f].left -= speed[f] * dt;
        flows[f].end = now + dt;
        left -= flows[f].left <= 0;
      }
    }
  }
}

static void equals_another_solver(void **state)
{
  (void)state;
  srand(7);
  for (int round = 0; round < 12; round++) {
    const double rate = 1e6;
    Flow flows[MOE_TRAFFIC_COUNT * RANKS * RANKS];
    int n = 0;
    MoePacer *p = make(rate);
    for (int src = 0; src < RANKS; src++) {
      for (int dst = 0; dst < RANKS; dst++) {
        for (MoeTraffic traffic = 0; traffic < MOE_TRAFFIC_COUNT; traffic++) {
          if (src != dst && rand() % 4 != 0 && (traffic == MOE_TRAFFIC_STEP || round % 2)) {
            flows[n++] = (Flow){traffic, src, dst, 500 + rand() % 3000, 1e-6 * (rand() % 2000), 0};
          }
        }
      }
    }
    for (int done = 0; done < n;) { /* in the order of their starts */
      int first = -1;
      for (int f = 0; f < n; f++) {
        first = flows[f].end == 0 && (first < 0 || flows[f].start < flows[first].start) ? f : first;
      }
      int64_t start = (int64_t)(flows[first].start * 1e9);
      if (rand() % 2) {
        (void)moe_pace_poll(p, rand() % RANKS, start); /* polls move nothing but events */
      }
      assert_true(
          moe_pace_start(p, flows[first].traffic, flows[first].src, flows[first].dst, flows[first].left, 0, start));
      flows[first].end = -1;
      done++;
    }
    solve(flows, n, rate);
    (void)moe_pace_poll(p, 0, 1000 * (int64_t)MS);
    for (int f = 0; f < n; f++) {
      MoePaced m;
      assert_true(moe_pace_message(p, flows[f].traffic, flows[f].src, flows[f].dst, 0, &m));
      double error = fabs((double)m.arrival_ns * 1e-9 - flows[f].end) / flows[f].end;
      if (error > 0.01) {
        print_error("round %d, %d -> %d: %f ms, expected %f ms\n", round, flows[f].src, flows[f].dst,
                    (double)m.arrival_ns * 1e-6, flows[f].end * 1e3);
      }
      assert_true(error <= 0.01);
    }
    drop(p);
  }
}

/* Sends messages of `bytes` for about `ns`; returns how many have arrived. */
static uint64_t send_for(MoePacer *p, int src, int dst, double bytes, int64_t ns)
{
  (void)prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
  MoePaced m;
  int64_t begin = moe_now_ns();
  uint64_t done = 0;
  uint64_t started = 0;
  for (int64_t now = begin; now - begin < ns; now = moe_now_ns()) {
    while (started < done + 2) {
      (void)moe_pace_start(p, MOE_TRAFFIC_STEP, src, dst, bytes, 0, now);
      started++;
    }
    int64_t next = moe_pace_poll(p, src, now);
    if (moe_pace_message(p, MOE_TRAFFIC_STEP, src, dst, done, &m)) {
      done++;
    } else {
      moe_sleep_until(next);
    }
  }
  return done;
}

static void goodput_of_two_processes_on_one_port(void **state)
{
  (void)state;
  const double rate = 50e6;
  const double bytes = 250000; /* 5 ms alone, 10 ms shared */
  const int64_t ns = 400 * (int64_t)MS;
  MoePacer *p = make(rate);
  _Atomic uint64_t *count = mmap(NULL, 64, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  int64_t begin = moe_now_ns();
  pid_t child = fork();
  if (child == 0) {
    count[0] = send_for(p, 0, 2, bytes, ns);
    _exit(0);
  }
  count[1] = send_for(p, 1, 2, bytes, ns);
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  double seconds = (double)(moe_now_ns() - begin) * 1e-9;
  double sent = (double)(count[0] + count[1]) * bytes;
  /* Each process may have one message under way that does not count. */
  assert_true(sent <= rate * seconds * 1.05);
  assert_true(sent >= rate * (double)ns * 1e-9 * 0.95 - 2.0 * bytes);
  munmap((void *)count, 64);
  drop(p);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(one_flow),
      cmocka_unit_test(buckets_take_what_is_left),
      cmocka_unit_test(two_flows_share_a_port_and_full_duplex),
      cmocka_unit_test(max_min),
      cmocka_unit_test(ports_shared_by_ranks),
      cmocka_unit_test(messages_of_a_pair_queue_without_gaps),
      cmocka_unit_test(an_empty_message_passes_at_once),
      cmocka_unit_test(late_reports_are_credited),
      cmocka_unit_test(equals_another_solver),
      cmocka_unit_test(goodput_of_two_processes_on_one_port),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
