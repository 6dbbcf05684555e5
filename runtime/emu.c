#include "runtime/emu.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

/* What scales are chosen by: a typical op lasts at least this long, ... */
#define TYPICAL_NS 1e6
/* ... and an op or a message costs about this much of a core, wake-ups included. */
#define EVENT_NS   30e3

enum { MARGIN_NS = 2000000, LOOK_NS = 200000 };

int64_t moe_emu_ns(const MoeRank *me, int32_t op, double scale)
{
  return (int64_t)((double)me->bundle->emu->op_ns[me->group_id][op] * scale + 0.5);
}

/* Whether two ranks share a node. Within a replica nodes are counted from its first GPU on, as everywhere. */
static bool near(const MoeBundle *b, int32_t rank, int32_t other)
{
  int32_t n = b->replica_ranks;
  int32_t per = b->emu->ranks_per_node;
  bool same_replica = rank / n == other / n;
  int32_t gpu = b->seat[rank % n];
  int32_t other_gpu = b->seat[other % n];
  return same_replica ? gpu / per == other_gpu / per : (rank / n * n + gpu) / per == (other / n * n + other_gpu) / per;
}

double moe_emu_message(const MoeRank *me, int32_t op, int32_t peer_rank, double scale, int64_t *latency_ns_p)
{
  const MoeEmu *emu = me->bundle->emu;
  int32_t index = emu->op_msgs[me->group_id][op];
  *latency_ns_p = 0;
  if (index < 0) {
    return 0;
  }
  const MoeEmuMsg *msg = &emu->msgs[index];
  int64_t latency_ns = near(me->bundle, me->rank, peer_rank) ? msg->near_ns : msg->far_ns;
  *latency_ns_p = (int64_t)((double)latency_ns * scale);
  return msg->bytes[msg->n_src == 0 ? 0 : me->index * msg->n_dst + moe_rank_of(me->bundle, peer_rank).index];
}

int32_t moe_emu_ports(const MoeBundle *b)
{
  return 2 * (moe_n_ranks(b) + b->replicas * b->emu->n_nics);
}

void moe_emu_network(const MoeBundle *b, double scale, MoePacer *pacer)
{
  const MoeEmu *emu = b->emu;
  int32_t n = moe_n_ranks(b);
  for (int32_t i = 0; i < 2 * n; i++) {
    moe_pace_port(pacer, i, emu->nvlink / scale);
  }
  for (int32_t i = 0; i < b->replicas * emu->n_nics; i++) {
    moe_pace_port(pacer, 2 * (n + i), emu->nic[i % emu->n_nics] / scale);
    moe_pace_port(pacer, 2 * (n + i) + 1, emu->nic[i % emu->n_nics] / scale);
  }
  for (int32_t src = 0; src < n; src++) {
    for (int32_t dst = 0; dst < n; dst++) {
      bool on_node = near(b, src, dst);
      int32_t from = on_node ? src : n + src / b->replica_ranks * emu->n_nics + emu->nic_of[src % b->replica_ranks];
      int32_t to = on_node ? dst : n + dst / b->replica_ranks * emu->n_nics + emu->nic_of[dst % b->replica_ranks];
      moe_pace_route(pacer, src, dst, 2 * from, 2 * to + 1);
    }
  }
}

static int by_value(const void *a, const void *b)
{
  int64_t x = *(const int64_t *)a;
  int64_t y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

/* Median of the ops of micro-batches, which are the ones that repeat. */
static double typical_ns(const MoeBundle *b)
{
  double typical = INFINITY;
  for (int32_t g = 0; g < b->n_groups; g++) {
    const MoeGroup *group = &b->groups[g];
    int64_t *ns = calloc((size_t)group->n_ops + 1, sizeof *ns);
    int32_t n = 0;
    for (int32_t i = 0; ns != NULL && i < group->n_ops; i++) {
      bool computes = group->ops[i].stream == MOE_STREAM_FWD || group->ops[i].stream == MOE_STREAM_BWD;
      if (computes && group->ops[i].mb >= 0 && b->emu->op_ns[g][i] > 0) {
        ns[n++] = b->emu->op_ns[g][i];
      }
    }
    if (n > 0) {
      qsort(ns, (size_t)n, sizeof *ns, by_value);
      typical = fmin(typical, (double)ns[n / 2]);
    }
    free(ns);
  }
  return typical;
}

double moe_emu_scale(const MoeBundle *b, const MoeWiring *wiring)
{
  double events = 0;
  for (int32_t i = 0; i < moe_n_links(wiring); i++) {
    events += wiring->links[i].n_msgs;
  }
  for (int32_t r = 0; r < wiring->n_ranks; r++) {
    events += moe_rank_of(b, r).group->n_ops;
  }
  long cores = sysconf(_SC_NPROCESSORS_ONLN);
  double work_ns = 2 * events * EVENT_NS / (double)(cores > 0 ? cores : 1);
  double scale = fmax(TYPICAL_NS / typical_ns(b), work_ns / b->emu->step_ns);
  double unit = pow(10, floor(log10(scale)) - 1);
  return ceil(scale / unit) * unit;
}

MoeMeeting moe_emu_meet(const MoeShared *s, int32_t rank, uint64_t meeting, int64_t end_ns, int64_t late_ns)
{
  MoeMeeting all = {0};
  uint64_t k = meeting % 2;
  MoeRankState *mine = &s->states[rank];
  atomic_store_explicit(&mine->met_end_ns[k], end_ns, memory_order_relaxed);
  atomic_store_explicit(&mine->met_now_ns[k], moe_now_ns(), memory_order_relaxed);
  atomic_store_explicit(&mine->met_late_ns[k], late_ns, memory_order_relaxed);
  atomic_store_explicit(&mine->met, meeting + 1, memory_order_release);
  for (int32_t r = 0; r < s->n_ranks; r++) {
    MoeRankState *state = &s->states[r];
    while (atomic_load_explicit(&state->met, memory_order_acquire) <= meeting) {
      moe_sleep_until(moe_now_ns() + LOOK_NS);
    }
    int64_t end = atomic_load_explicit(&state->met_end_ns[k], memory_order_relaxed);
    int64_t now = atomic_load_explicit(&state->met_now_ns[k], memory_order_relaxed);
    int64_t late = atomic_load_explicit(&state->met_late_ns[k], memory_order_relaxed);
    all.end_ns = end > all.end_ns ? end : all.end_ns;
    all.next_ns = now + MARGIN_NS > all.next_ns ? now + MARGIN_NS : all.next_ns;
    all.late_ns = late > all.late_ns ? late : all.late_ns;
  }
  return all;
}
