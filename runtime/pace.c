/* A fluid model: between two events every active pair sends at a constant rate; an event is a message's end or a start.
   Ends are computed, not observed, so a late caller does not slow the link down: a message that waited in its pair's
   queue starts when its forerunner ended, whenever anybody looks. */
#include "runtime/pace.h"

#include <string.h>

typedef struct Pair {
  double left; /* bytes of the first message in the queue */
  double rate;
  uint64_t done;    /* messages that arrived */
  uint32_t waiting; /* messages in the queue, the first included */
  bool fixed;       /* scratch of share_ports() */
  double bytes[MOE_PACE_QUEUE];
  int64_t start_ns[MOE_PACE_QUEUE];
} Pair;

struct MoePacer {
  MoeLock lock;
  _Atomic uint32_t epoch;
  int32_t n_ranks;
  int32_t n_active;
  double rate;
  int64_t now_ns; /* the model's time */
  size_t active_at, port_at, pair_at;
};

static int32_t *active_of(MoePacer *p)
{
  return (int32_t *)(void *)((uint8_t *)p + p->active_at);
}

static Pair *pairs_of(MoePacer *p)
{
  return (Pair *)(void *)((uint8_t *)p + p->pair_at);
}

static size_t align64(size_t bytes)
{
  return (bytes + 63u) & ~(size_t)63u;
}

static size_t layout(MoePacer *p, size_t n)
{
  size_t at = align64(sizeof(MoePacer));
  p->active_at = at;
  at += align64(n * n * sizeof(int32_t));
  p->port_at = at;
  at += align64(2 * n * (sizeof(double) + sizeof(double)));
  p->pair_at = at;
  return at + n * n * sizeof(Pair);
}

size_t moe_pace_bytes(int32_t n_ranks)
{
  MoePacer p;
  return layout(&p, (size_t)n_ranks);
}

void moe_pace_init(MoePacer *p, int32_t n_ranks, double rate)
{
  (void)layout(p, (size_t)n_ranks);
  p->n_ranks = n_ranks;
  p->rate = rate;
}

/* Progressive filling: the port with the smallest fair share fixes the rate of its pairs; repeat with the rest. */
static void share_ports(MoePacer *p)
{
  int32_t n_ports = 2 * p->n_ranks; /* out ports, then in ports */
  double *room = (double *)(void *)((uint8_t *)p + p->port_at);
  double *users = room + n_ports;
  int32_t *active = active_of(p);
  Pair *pairs = pairs_of(p);
  for (int32_t i = 0; i < n_ports; i++) {
    room[i] = p->rate;
    users[i] = 0;
  }
  for (int32_t i = 0; i < p->n_active; i++) {
    pairs[active[i]].fixed = false;
    users[active[i] / p->n_ranks] += 1;
    users[p->n_ranks + active[i] % p->n_ranks] += 1;
  }
  for (int32_t left = p->n_active; left > 0;) {
    int32_t tight = -1;
    for (int32_t i = 0; i < n_ports; i++) {
      if (users[i] > 0 && (tight < 0 || room[i] * users[tight] < room[tight] * users[i])) {
        tight = i;
      }
    }
    double share = room[tight] / users[tight];
    for (int32_t i = 0; i < p->n_active; i++) {
      Pair *pair = &pairs[active[i]];
      int32_t out = active[i] / p->n_ranks;
      int32_t in = p->n_ranks + active[i] % p->n_ranks;
      if (pair->fixed || (out != tight && in != tight)) {
        continue;
      }
      pair->fixed = true;
      pair->rate = share;
      room[out] -= share;
      room[in] -= share;
      users[out] -= 1;
      users[in] -= 1;
      left--;
    }
    users[tight] = 0;
  }
}

/* Time at which the first active message ends, at present rates. */
static int64_t next_end(const MoePacer *p, const int32_t *active, const Pair *pairs, int32_t *which)
{
  int64_t end = INT64_MAX;
  for (int32_t i = 0; i < p->n_active; i++) {
    const Pair *pair = &pairs[active[i]];
    int64_t t = p->now_ns + (int64_t)(pair->left / pair->rate * 1e9 + 0.5);
    if (t < end) {
      end = t;
      *which = i;
    }
  }
  return end;
}

static void flow_until(MoePacer *p, int64_t t)
{
  int32_t *active = active_of(p);
  Pair *pairs = pairs_of(p);
  double seconds = (double)(t - p->now_ns) * 1e-9;
  for (int32_t i = 0; i < p->n_active; i++) {
    pairs[active[i]].left -= pairs[active[i]].rate * seconds;
    if (pairs[active[i]].left < 0) {
      pairs[active[i]].left = 0;
    }
  }
  p->now_ns = t;
}

static void advance(MoePacer *p, int64_t now_ns)
{
  int32_t *active = active_of(p);
  Pair *pairs = pairs_of(p);
  while (p->n_active > 0) {
    int32_t which = 0;
    int64_t end = next_end(p, active, pairs, &which);
    if (end > now_ns) {
      break;
    }
    flow_until(p, end);
    Pair *pair = &pairs[active[which]];
    pair->done++;
    pair->waiting--;
    if (pair->waiting > 0) {
      size_t next = pair->done % MOE_PACE_QUEUE;
      pair->left = pair->bytes[next];
      pair->start_ns[next] = end;
    } else {
      active[which] = active[--p->n_active];
      share_ports(p);
    }
  }
  if (now_ns > p->now_ns) {
    flow_until(p, now_ns);
  }
}

bool moe_pace_start(MoePacer *p, int32_t src, int32_t dst, size_t bytes, int64_t now_ns)
{
  int32_t id = src * p->n_ranks + dst;
  Pair *pair = &pairs_of(p)[id];
  moe_lock(&p->lock);
  advance(p, now_ns);
  bool ok = pair->waiting < MOE_PACE_QUEUE;
  if (ok) {
    size_t at = (size_t)((pair->done + pair->waiting) % MOE_PACE_QUEUE);
    pair->bytes[at] = (double)bytes;
    pair->start_ns[at] = now_ns;
    if (pair->waiting++ == 0) {
      pair->left = (double)bytes;
      active_of(p)[p->n_active++] = id;
      share_ports(p);
    }
    atomic_fetch_add(&p->epoch, 1);
  }
  moe_unlock(&p->lock);
  return ok;
}

uint64_t moe_pace_done(MoePacer *p, int32_t src, int32_t dst, int64_t now_ns, int64_t *next_ns_p)
{
  int32_t id = src * p->n_ranks + dst;
  Pair *pair = &pairs_of(p)[id];
  moe_lock(&p->lock);
  advance(p, now_ns);
  uint64_t done = pair->done;
  /* Another message's end may change this pair's rate, so the earliest end of all is when to look again. */
  int32_t which = 0;
  *next_ns_p = pair->waiting == 0 ? INT64_MAX : next_end(p, active_of(p), pairs_of(p), &which);
  moe_unlock(&p->lock);
  return done;
}

int64_t moe_pace_start_ns(MoePacer *p, int32_t src, int32_t dst, uint64_t number)
{
  return pairs_of(p)[src * p->n_ranks + dst].start_ns[number % MOE_PACE_QUEUE];
}

uint32_t moe_pace_epoch(const MoePacer *p)
{
  return atomic_load(&p->epoch);
}

int32_t moe_pace_senders(MoePacer *p, int32_t *ranks)
{
  int32_t n = 0;
  moe_lock(&p->lock);
  for (int32_t i = 0; i < p->n_active; i++) {
    int32_t src = active_of(p)[i] / p->n_ranks;
    bool known = false;
    for (int32_t k = 0; k < n; k++) {
      known = known || ranks[k] == src;
    }
    if (!known) {
      ranks[n++] = src;
    }
  }
  moe_unlock(&p->lock);
  return n;
}
