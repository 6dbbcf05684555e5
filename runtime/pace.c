/* A fluid model: between two events every active pair sends at a constant rate; an event is a message's end or a start.
   Ends are computed, not observed, so a late caller does not slow a link down: a message that waited in its pair's
   queue starts when its forerunner ended, whenever anybody looks. The model's clock moves only by events and stays
   behind the real one, so that a message which was ready at t, and is reported a little later, still starts at t. If
   the clock has passed t, the message is credited with what its present rate would have moved since. */
#include "runtime/pace.h"

#include <string.h>

/* Ends this close together are one event: the messages of one op to its peers are of equal size up to rounding. */
#define SAME_EVENT_NS 500
/* Less of a port than this is rounding: nothing moves. */
#define NO_ROOM       1e-9

/* Of one class of traffic. */
typedef struct Pair {
  double left;                 /* bytes of the first message in the queue */
  double rate;                 /* bytes per ns */
  _Atomic int64_t expected_ns; /* its end at the present rate */
  int64_t last_ns;             /* when the message before it ended */
  int32_t out_port, in_port;
  _Atomic uint64_t ended; /* messages whose last byte has left */
  uint32_t waiting;       /* messages in the queue, the first included */
  bool late;              /* it started before the model's time: credit is due */
  bool yields;
  bool fixed; /* scratch of share_ports() */
  double bytes[MOE_PACE_QUEUE];
  int64_t start_ns[MOE_PACE_QUEUE]; /* until it starts: when it was ready */
  int64_t end_ns[MOE_PACE_QUEUE];
  int64_t latency_ns[MOE_PACE_QUEUE];
} Pair;

typedef struct Port {
  double rate;          /* bytes per ns */
  double room;          /* scratch from here on */
  int32_t users, first; /* active pairs */
  int32_t open;         /* of them without a rate yet, in the class that is filled */
} Port;

struct MoePacer {
  MoeLock lock;
  bool stale; /* a pair was added or removed since rates were shared */
  int32_t n_ranks, n_ports;
  int32_t n_active;
  int64_t now_ns;     /* the model's time */
  int64_t next_ns;    /* earliest end */
  ptrdiff_t bells_at; /* from the pacer on, since processes see it at different addresses; 0: there are none */
  size_t active_at, port_at, used_at, member_at, told_at, ring_at, pair_at;
};

static size_t align64(size_t bytes)
{
  return (bytes + 63u) & ~(size_t)63u;
}

static size_t layout(MoePacer *p, size_t ranks, size_t ports)
{
  size_t at = align64(sizeof(MoePacer));
  p->active_at = at;
  at += align64(MOE_TRAFFIC_COUNT * ranks * ranks * sizeof(int32_t));
  p->port_at = at;
  at += align64(ports * sizeof(Port));
  p->used_at = at;
  at += align64(ports * sizeof(int32_t));
  p->member_at = at;
  at += align64(2 * MOE_TRAFFIC_COUNT * ranks * ranks * sizeof(int32_t));
  p->told_at = at;
  at += align64(ranks * sizeof(int64_t));
  p->ring_at = at;
  at += align64(ranks * sizeof(bool));
  p->pair_at = at;
  return at + MOE_TRAFFIC_COUNT * ranks * ranks * sizeof(Pair);
}

/* When the first message of the queue will arrive. */
static int64_t first_arrival(const Pair *pair)
{
  int64_t end = atomic_load_explicit(&pair->expected_ns, memory_order_relaxed);
  return end == INT64_MAX ? end : end + pair->latency_ns[atomic_load(&pair->ended) % MOE_PACE_QUEUE];
}

static void *at(const MoePacer *p, size_t offset)
{
  return (uint8_t *)(uintptr_t)p + offset;
}

static int32_t pair_index(const MoePacer *p, MoeTraffic traffic, int32_t src, int32_t dst)
{
  return ((int32_t)traffic * p->n_ranks + src) * p->n_ranks + dst;
}

static Pair *pair_of(const MoePacer *p, MoeTraffic traffic, int32_t src, int32_t dst)
{
  return (Pair *)at(p, p->pair_at) + pair_index(p, traffic, src, dst);
}

size_t moe_pace_bytes(int32_t n_ranks, int32_t n_ports)
{
  MoePacer p;
  return layout(&p, (size_t)n_ranks, (size_t)n_ports);
}

void moe_pace_init(MoePacer *p, int32_t n_ranks, int32_t n_ports, MoeBell *bells)
{
  (void)layout(p, (size_t)n_ranks, (size_t)n_ports);
  p->n_ranks = n_ranks;
  p->n_ports = n_ports;
  p->bells_at = bells != NULL ? (uint8_t *)bells - (uint8_t *)p : 0;
  p->next_ns = INT64_MAX;
  int64_t *told = at(p, p->told_at);
  for (int32_t r = 0; r < n_ranks; r++) {
    told[r] = INT64_MAX;
  }
}

void moe_pace_port(MoePacer *p, int32_t port, double rate)
{
  ((Port *)at(p, p->port_at))[port].rate = rate * 1e-9;
}

void moe_pace_route(MoePacer *p, int32_t src, int32_t dst, int32_t out_port, int32_t in_port)
{
  for (MoeTraffic traffic = 0; traffic < MOE_TRAFFIC_COUNT; traffic++) {
    Pair *pair = pair_of(p, traffic, src, dst);
    pair->out_port = out_port;
    pair->in_port = in_port;
    pair->yields = traffic == MOE_TRAFFIC_BUCKETS;
  }
}

void moe_pace_even(MoePacer *p, double rate)
{
  for (int32_t i = 0; i < p->n_ports; i++) {
    moe_pace_port(p, i, rate);
  }
  for (int32_t src = 0; src < p->n_ranks; src++) {
    for (int32_t dst = 0; dst < p->n_ranks; dst++) {
      moe_pace_route(p, src, dst, 2 * src, 2 * dst + 1);
    }
  }
}

/* Lists the active pairs of every port and the ports in use. Returns how many are. */
static int32_t list_ports(MoePacer *p, Pair *pairs, const int32_t *active, Port *ports, int32_t *used, int32_t *member)
{
  int32_t n_used = 0, first = 0;
  for (int32_t i = 0; i < p->n_active; i++) {
    Pair *pair = &pairs[active[i]];
    pair->fixed = false;
    for (int k = 0; k < 2; k++) {
      Port *port = &ports[k ? pair->in_port : pair->out_port];
      if (port->users++ == 0) {
        port->room = port->rate;
        used[n_used++] = (int32_t)(port - ports);
      }
    }
  }
  for (int32_t i = 0; i < n_used; i++) {
    Port *port = &ports[used[i]];
    port->first = first;
    first += port->users;
    port->users = 0;
  }
  for (int32_t i = 0; i < p->n_active; i++) {
    for (int k = 0; k < 2; k++) {
      Port *port = &ports[k ? pairs[active[i]].in_port : pairs[active[i]].out_port];
      member[port->first + port->users++] = active[i];
    }
  }
  return n_used;
}

/* Pairs without a rate in one class, port by port. Returns how many there are. */
static int32_t open_pairs(const MoePacer *p, const Pair *pairs, const int32_t *active, Port *ports, const int32_t *used,
                          int32_t n_used, bool yields)
{
  int32_t n = 0;
  for (int32_t i = 0; i < n_used; i++) {
    ports[used[i]].open = 0;
  }
  for (int32_t i = 0; i < p->n_active; i++) {
    const Pair *pair = &pairs[active[i]];
    if (pair->yields == yields) {
      ports[pair->out_port].open++;
      ports[pair->in_port].open++;
      n++;
    }
  }
  return n;
}

/* The port's open pairs of a class get their share. Returns how many they were. */
static int32_t fix_pairs(Pair *pairs, Port *ports, Port *port, const int32_t *member, bool yields, double share)
{
  int32_t n = 0;
  for (int32_t i = port->first; port->open > 0; i++) {
    Pair *pair = &pairs[member[i]];
    if (pair->fixed || pair->yields != yields) {
      continue;
    }
    Port *out = &ports[pair->out_port], *in = &ports[pair->in_port];
    pair->fixed = true;
    pair->rate = share > NO_ROOM * port->rate ? share : 0;
    out->room = out->room > share ? out->room - share : 0;
    in->room = in->room > share ? in->room - share : 0;
    out->open--;
    in->open--;
    n++;
  }
  return n;
}

/* Progressive filling: the port with the smallest fair share fixes the rate of its pairs; repeat with the rest. Then
   the same with what is left for those that yield. */
static void share_ports(MoePacer *p)
{
  Pair *pairs = at(p, p->pair_at);
  Port *ports = at(p, p->port_at);
  int32_t *active = at(p, p->active_at), *used = at(p, p->used_at), *member = at(p, p->member_at);
  int32_t n_used = list_ports(p, pairs, active, ports, used, member);
  for (int yields = 0; yields <= 1; yields++) {
    for (int32_t left = open_pairs(p, pairs, active, ports, used, n_used, yields); left > 0;) {
      double share = -1;
      for (int32_t i = 0; i < n_used; i++) {
        const Port *port = &ports[used[i]];
        if (port->open > 0 && (share < 0 || port->room < share * port->open)) {
          share = port->room / port->open;
        }
      }
      for (int32_t i = 0; i < n_used; i++) {
        Port *port = &ports[used[i]];
        if (port->open > 0 && port->room <= share * port->open * (1 + 1e-9)) {
          left -= fix_pairs(pairs, ports, port, member, yields, share);
        }
      }
    }
  }
  for (int32_t i = 0; i < n_used; i++) {
    ports[used[i]].users = 0;
  }
}

/* Shares the ports anew; predicts every pair's end. Ranks that must look earlier than they were told are marked. */
static void refresh(MoePacer *p)
{
  Pair *pairs = at(p, p->pair_at);
  int32_t *active = at(p, p->active_at);
  int64_t *told = at(p, p->told_at);
  bool *ring = at(p, p->ring_at);
  share_ports(p);
  p->next_ns = INT64_MAX;
  p->stale = false;
  for (int32_t i = 0; i < p->n_active; i++) {
    Pair *pair = &pairs[active[i]];
    int64_t from = p->now_ns;
    if (pair->late) {
      int64_t start = pair->start_ns[atomic_load(&pair->ended) % MOE_PACE_QUEUE];
      double credit = (double)(p->now_ns - start) * pair->rate;
      pair->late = false;
      if (credit >= pair->left) {
        from = start;
      } else {
        pair->left -= credit;
      }
    }
    int64_t end = pair->rate > 0 ? from + (int64_t)(pair->left / pair->rate + 0.5) : INT64_MAX;
    atomic_store_explicit(&pair->expected_ns, end, memory_order_relaxed);
    p->next_ns = end < p->next_ns ? end : p->next_ns;
    int32_t src = active[i] / p->n_ranks % p->n_ranks;
    if (first_arrival(pair) < told[src]) {
      told[src] = first_arrival(pair);
      ring[src] = true;
    }
  }
}

static void flow_until(MoePacer *p, int64_t t)
{
  Pair *pairs = at(p, p->pair_at);
  int32_t *active = at(p, p->active_at);
  for (int32_t i = 0; i < p->n_active && t > p->now_ns; i++) {
    Pair *pair = &pairs[active[i]];
    pair->left -= pair->rate * (double)(t - p->now_ns);
    pair->left = pair->left > 0 ? pair->left : 0;
  }
  p->now_ns = t > p->now_ns ? t : p->now_ns;
}

/* Puts the pair's first message on the way. */
static void begin_first(MoePacer *p, Pair *pair)
{
  size_t first = atomic_load(&pair->ended) % MOE_PACE_QUEUE;
  if (pair->start_ns[first] < pair->last_ns) {
    pair->start_ns[first] = pair->last_ns;
  }
  pair->left = pair->bytes[first];
  pair->late = pair->start_ns[first] < p->now_ns;
  p->stale = true;
}

static void end_first(MoePacer *p, Pair *pair)
{
  uint64_t number = atomic_load(&pair->ended);
  pair->last_ns = atomic_load_explicit(&pair->expected_ns, memory_order_relaxed);
  pair->end_ns[number % MOE_PACE_QUEUE] = pair->last_ns;
  atomic_store_explicit(&pair->expected_ns, INT64_MAX, memory_order_relaxed);
  atomic_store_explicit(&pair->ended, number + 1, memory_order_release);
  if (--pair->waiting > 0) {
    begin_first(p, pair);
  }
}

/* Takes in every end until `to`. */
static void advance(MoePacer *p, int64_t to)
{
  Pair *pairs = at(p, p->pair_at);
  int32_t *active = at(p, p->active_at);
  for (;;) {
    if (p->stale) {
      refresh(p);
    }
    if (p->n_active == 0 || p->next_ns > to) {
      return;
    }
    int64_t limit = p->next_ns + SAME_EVENT_NS;
    flow_until(p, p->next_ns);
    for (int32_t i = 0; i < p->n_active;) {
      Pair *pair = &pairs[active[i]];
      if (atomic_load_explicit(&pair->expected_ns, memory_order_relaxed) > limit) {
        i++;
        continue;
      }
      end_first(p, pair);
      if (pair->waiting > 0) {
        i++;
      } else {
        active[i] = active[--p->n_active];
      }
    }
    p->stale = true;
    if (p->n_active == 0) {
      p->next_ns = INT64_MAX;
      p->stale = false;
    }
  }
}

bool moe_pace_start(MoePacer *p, MoeTraffic traffic, int32_t src, int32_t dst, double bytes, int64_t latency_ns,
                    int64_t ready_ns)
{
  Pair *pair = pair_of(p, traffic, src, dst);
  moe_lock(&p->lock);
  bool ok = pair->waiting < MOE_PACE_QUEUE;
  if (ok) {
    size_t last = (size_t)((atomic_load(&pair->ended) + pair->waiting) % MOE_PACE_QUEUE);
    pair->bytes[last] = bytes;
    pair->start_ns[last] = ready_ns;
    pair->latency_ns[last] = latency_ns;
    if (pair->waiting == 0) {
      int64_t start = ready_ns > pair->last_ns ? ready_ns : pair->last_ns;
      if (start > p->now_ns) {
        advance(p, start);
        flow_until(p, start);
      }
      atomic_store_explicit(&pair->expected_ns, INT64_MAX, memory_order_relaxed);
      ((int32_t *)at(p, p->active_at))[p->n_active++] = pair_index(p, traffic, src, dst);
      begin_first(p, pair);
    }
    pair->waiting++;
  }
  moe_unlock(&p->lock);
  return ok;
}

int64_t moe_pace_poll(MoePacer *p, int32_t rank, int64_t now_ns)
{
  int64_t *told = at(p, p->told_at);
  bool *ring = at(p, p->ring_at);
  int64_t next = INT64_MAX;
  moe_lock(&p->lock);
  advance(p, now_ns);
  for (int32_t i = 0; i < MOE_TRAFFIC_COUNT * p->n_ranks; i++) {
    const Pair *pair = pair_of(p, (MoeTraffic)(i % MOE_TRAFFIC_COUNT), rank, i / MOE_TRAFFIC_COUNT);
    if (pair->waiting > 0 && first_arrival(pair) < next) {
      next = first_arrival(pair);
    }
  }
  told[rank] = next;
  ring[rank] = false;
  for (int32_t r = 0; r < p->n_ranks; r++) {
    if (ring[r] && p->bells_at != 0) {
      moe_bell_ring((MoeBell *)(void *)((uint8_t *)p + p->bells_at) + r);
    }
    ring[r] = false;
  }
  moe_unlock(&p->lock);
  return next;
}

bool moe_pace_message(const MoePacer *p, MoeTraffic traffic, int32_t src, int32_t dst, uint64_t number, MoePaced *m)
{
  const Pair *pair = pair_of(p, traffic, src, dst);
  size_t i = (size_t)(number % MOE_PACE_QUEUE);
  uint64_t ended = atomic_load_explicit(&pair->ended, memory_order_acquire);
  bool over = ended > number;
  int64_t end = over             ? pair->end_ns[i]
                : ended < number ? INT64_MAX
                                 : atomic_load_explicit(&pair->expected_ns, memory_order_relaxed);
  *m = (MoePaced){
      .start_ns = pair->start_ns[i], .sent_ns = end, .arrival_ns = end == INT64_MAX ? end : end + pair->latency_ns[i]};
  return over;
}
