/* The network of the simulator: times that can be worked out by hand, and what holds for any flows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "codegen/sched_flow.h"

static uint64_t seed = 1;

static int draw(int low, int high)
{
  seed = seed * 6364136223846793005u + 1442695040888963407u;
  return low + (int)((seed >> 33) % (uint64_t)(high - low + 1));
}

static MsgCost near(double bytes, int64_t out, int64_t in)
{
  return (MsgCost){.bytes = bytes, .out_nvlink = out, .in_nvlink = in};
}

static MsgCost far(double bytes, int64_t out, int64_t in)
{
  return (MsgCost){.bytes = bytes, .nic_bytes = bytes, .out_nic = out, .in_nic = in};
}

/* Time at which the next message leaves; *which is its number. */
static int64_t wait_for(SchedFlows *flows, int64_t now, int32_t *which)
{
  int32_t id = flows_pop(flows, now);
  while (id < 0) {
    now = flows_next(flows, now);
    assert_true(now < INT64_MAX);
    id = flows_pop(flows, now);
  }
  *which = id;
  return now;
}

static void want(SchedFlows *flows, int64_t *now, int64_t end, int32_t which)
{
  int32_t id;
  *now = wait_for(flows, *now, &id);
  assert_int_equal(*now, end);
  assert_int_equal(id, which);
}

static void alone_is_exact(void **state)
{
  (void)state;
  SchedFlows *flows = flows_new(4);
  int64_t now = 0;
  for (int i = 0; i < 5000; i++) {
    int64_t t[4] = {0}, most = 0;
    for (int k = 0; k < 4; k++) {
      t[k] = draw(0, 2) ? draw(1, 1 << draw(1, 30)) : 0;
      most = t[k] > most ? t[k] : most;
    }
    MsgCost cost = {.bytes = draw(2, 1 << 30), .out_nvlink = t[0], .in_nvlink = t[1], .out_nic = t[2], .in_nic = t[3]};
    cost.nic_bytes = cost.bytes / 2;
    int64_t start = now += draw(0, 100);
    flows_start(flows, start, i, draw(0, 3), draw(0, 3), &cost, false);
    want(flows, &now, start + most, i);
  }
  flows_free(flows);
}

static void fair_shares(void **state)
{
  (void)state;
  int64_t now = 0;
  SchedFlows *flows = flows_new(5);
  MsgCost same = far(1000, 100, 100);
  flows_start(flows, 0, 1, 0, 1, &same, false); /* two from one sender: each at half */
  flows_start(flows, 0, 2, 0, 2, &same, false);
  MsgCost other = near(1000, 70, 70); /* other ports, other groups, opposite direction: nobody's business */
  flows_start(flows, 0, 3, 0, 1, &other, false);
  flows_start(flows, 0, 4, 3, 4, &same, false);
  MsgCost back = far(1000, 90, 90);
  flows_start(flows, 0, 5, 1, 0, &back, false);
  want(flows, &now, 70, 3);
  want(flows, &now, 90, 5);
  want(flows, &now, 100, 4);
  int32_t id;
  assert_int_equal(wait_for(flows, now, &id), 200);
  assert_int_equal(wait_for(flows, 200, &id), 200);
  now = 200;

  /* 10 bytes/ns out of group 0; group 1 takes 3 of them: the other flow has the remaining 7, and then all */
  MsgCost slow = far(300, 30, 100), fast = far(1000, 100, 10);
  flows_start(flows, now, 1, 0, 1, &slow, false);
  flows_start(flows, now, 2, 0, 2, &fast, false);
  want(flows, &now, 300, 1);
  want(flows, &now, 330, 2);

  /* one joins half-way */
  MsgCost long_one = far(1000, 100, 100);
  flows_start(flows, now, 1, 0, 1, &long_one, false);
  assert_int_equal(flows_next(flows, now), now + 100);
  now += 50;
  flows_start(flows, now, 2, 2, 1, &long_one, false);
  want(flows, &now, 480, 1);
  want(flows, &now, 530, 2);

  /* nothing on the wire */
  MsgCost none = {.latency = 5};
  flows_start(flows, now, 7, 0, 1, &none, false);
  want(flows, &now, 530, 7);
  assert_int_equal(flows_next(flows, now), INT64_MAX);
  flows_free(flows);
}

/* A port is never idle while it has something to do: flows between two groups end when their sum is through, whatever
   their sizes and starts; and twice the same calls give the same times. */
static void ports_are_kept_busy(void **state)
{
  (void)state;
  enum { N = 40 };
  for (int round = 0; round < 200; round++) {
    uint64_t again = seed;
    int64_t ends[2][N], total = 0, now;
    for (int turn = 0; turn < 2; turn++) {
      SchedFlows *flows = flows_new(2);
      int32_t id;
      seed = again;
      total = now = 0;
      for (int i = 0; i < N; i++) {
        int64_t ns = draw(1, 100000);
        MsgCost cost = far((double)ns * 46, ns, ns);
        flows_start(flows, 0, i, 0, 1, &cost, draw(0, 1));
        total += ns;
      }
      for (int i = 0; i < N; i++) {
        now = wait_for(flows, now, &id);
        ends[turn][id] = now;
      }
      assert_in_range(now, total, total + N);
      flows_free(flows);
    }
    assert_memory_equal(ends[0], ends[1], sizeof ends[0]);
  }
}

/* Many groups at random: everything ends, nothing before its time alone, and no port carries more than it can. */
static void many_groups(void **state)
{
  (void)state;
  enum { N = 400, GROUPS = 12 };
  for (int round = 0; round < 20; round++) {
    SchedFlows *flows = flows_new(GROUPS);
    int64_t now = 0, starts[N], ns[N], out[GROUPS] = {0}, in[GROUPS] = {0}, end = 0;
    int32_t id;
    int done = 0;
    for (int i = 0; i < N; i++) {
      int src = draw(0, GROUPS - 1), dst = draw(0, GROUPS - 1);
      ns[i] = draw(1, 10000);
      for (int64_t next; (next = flows_next(flows, now)) <= now + draw(0, 300);) {
        now = next;
        while ((id = flows_pop(flows, now)) >= 0) {
          assert_true(now - starts[id] >= ns[id]);
          done++;
        }
      }
      starts[i] = now;
      MsgCost cost = far((double)ns[i], ns[i], ns[i]);
      flows_start(flows, now, i, src, dst, &cost, false);
      out[src] += ns[i];
      in[dst] += ns[i];
    }
    for (; done < N; done++) {
      end = now = wait_for(flows, now, &id);
      assert_true(now - starts[id] >= ns[id]);
    }
    for (int g = 0; g < GROUPS; g++) {
      assert_true(out[g] <= end + N && in[g] <= end + N);
    }
    flows_free(flows);
  }
}

/* Flows that yield take what others leave. */
static void yields(void **state)
{
  (void)state;
  int64_t now = 0;
  SchedFlows *flows = flows_new(4);
  MsgCost cost = far(1000, 100, 100);
  flows_start(flows, 0, 1, 0, 0, &cost, true);
  assert_int_equal(flows_next(flows, now), 100);
  now = 40;
  flows_start(flows, now, 2, 0, 1, &cost, false); /* all of what goes out of group 0 */
  MsgCost half = far(500, 50, 100);
  flows_start(flows, now, 3, 3, 2, &half, true); /* half of what goes out of group 3, all of what comes into 2 */
  want(flows, &now, 140, 2);
  want(flows, &now, 140, 3);
  flows_start(flows, now, 4, 2, 0, &half, false); /* all of what comes into group 0 */
  want(flows, &now, 240, 4);
  want(flows, &now, 300, 1);
  flows_free(flows);
}

/* Whatever yields, the others end when they would end without it. */
static void yielding_changes_nothing(void **state)
{
  (void)state;
  enum { N = 60, GROUPS = 5 };
  for (int round = 0; round < 100; round++) {
    uint64_t again = seed;
    int64_t ends[2][2 * N] = {{0}};
    for (int turn = 0; turn < 2; turn++) { /* the second time with others that yield */
      SchedFlows *flows = flows_new(GROUPS);
      int64_t now = 0, at = 0;
      int32_t id;
      int left = N;
      seed = again;
      for (int i = 0; i < N; i++) {
        at += draw(0, 200);
        for (int64_t next; (next = flows_next(flows, now)) <= at;) {
          now = next;
          while ((id = flows_pop(flows, now)) >= 0) {
            ends[turn][id] = now;
            left -= id < N;
          }
        }
        now = at;
        for (int k = 0; k < 2; k++) {
          int src = draw(0, GROUPS - 1), dst = draw(0, GROUPS - 1), ns = draw(1, 1000);
          MsgCost cost = far((double)ns, ns, ns);
          if (k == 0 || turn == 1) {
            flows_start(flows, now, i + k * N, src, dst, &cost, k);
          }
        }
      }
      while (left > 0) {
        now = wait_for(flows, now, &id);
        ends[turn][id] = now;
        left -= id < N;
      }
      flows_free(flows);
    }
    for (int i = 0; i < N; i++) { /* a few ns: ends are rounded up where rates change, which they now do more often */
      assert_in_range(ends[1][i] + 2 * N - ends[0][i], 0, 4 * N);
    }
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(alone_is_exact), cmocka_unit_test(fair_shares), cmocka_unit_test(ports_are_kept_busy),
      cmocka_unit_test(many_groups),    cmocka_unit_test(yields),      cmocka_unit_test(yielding_changes_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
