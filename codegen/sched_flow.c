#include "codegen/sched_flow.h"

#include <math.h>
#include <string.h>

#include "codegen/sched_heap.h"

/* When a flow ends that finds its ports taken: others leave them before. */
#define NEVER 4e18

/* One half of a message. Rates are fractions of the rate it would have alone. */
typedef struct Flow {
  int32_t message;
  int32_t port[2];  /* outgoing, incoming */
  int32_t at[2];    /* its place in the port's list */
  double weight[2]; /* share of the port that it takes per byte/ns */
  double left;      /* ns alone, as of `since` */
  double rate;
  int64_t since, end;
  int32_t version; /* of its end, in the heap */
  int32_t other;   /* the message's other flow, or -1; done ones are -1 to each other */
  int32_t seen;
  bool yields; /* takes what others leave */
  bool frozen;
} Flow;

typedef struct Port {
  int32_t *flows;
  int32_t n, cap;
  int32_t seen;
  int32_t open;    /* filling: flows whose rate is not known yet */
  double used, of; /* share taken by known rates; sum of weights of the open ones */
} Port;

struct SchedFlows {
  int n_groups;
  Port *ports; /* [2 nic][2 in][groups] */
  Flow *flows;
  int32_t n_flows, cap;
  int32_t *free; /* numbers of unused flows */
  int32_t n_free, free_cap;
  Heap ends; /* (end, version << 32 | flow) */
  Heap left; /* messages without any flow: (time, message) */
  int32_t *dirty;
  int32_t n_dirty, dirty_cap;
  int32_t *comp; /* flows of the component that is filled */
  int32_t n_comp, comp_cap;
  int32_t *comp_ports;
  int32_t n_comp_ports, comp_ports_cap;
  Heap fill; /* ports by the level at which they are full */
  int32_t seen;
};

static void *grown(void *list, int32_t *cap, size_t size)
{
  *cap = *cap ? 2 * *cap : 16;
  list = realloc(list, (size_t)*cap * size);
  if (!list) {
    die("out of memory");
  }
  return list;
}

#define PUSH(list, n, cap, value)                                                                                      \
  do {                                                                                                                 \
    if ((n) == (cap)) {                                                                                                \
      (list) = grown((list), &(cap), sizeof *(list));                                                                  \
    }                                                                                                                  \
    (list)[(n)++] = (value);                                                                                           \
  } while (0)

SchedFlows *flows_new(int n_groups)
{
  SchedFlows *f = calloc(1, sizeof *f);
  Port *ports = calloc(4 * (size_t)n_groups, sizeof *ports);
  if (!f || !ports) {
    die("out of memory");
  }
  f->n_groups = n_groups;
  f->ports = ports;
  return f;
}

void flows_free(SchedFlows *f)
{
  for (int i = 0; i < 4 * f->n_groups; i++) {
    free(f->ports[i].flows);
  }
  free(f->ports);
  free(f->flows);
  free(f->free);
  free(f->ends.keys);
  free(f->left.keys);
  free(f->dirty);
  free(f->comp);
  free(f->comp_ports);
  free(f->fill.keys);
  free(f);
}

static int32_t flow_new(SchedFlows *f)
{
  if (f->n_free) {
    return f->free[--f->n_free];
  }
  PUSH(f->flows, f->n_flows, f->cap, ((Flow){0}));
  return f->n_flows - 1;
}

static int32_t start(SchedFlows *f, int64_t now, int32_t message, const int32_t port[2], const int64_t ns[2],
                     double bytes, bool yields)
{
  int32_t number = flow_new(f);
  Flow *flow = &f->flows[number];
  *flow = (Flow){.message = message, .since = now, .end = -1, .version = flow->version + 1, .other = -1};
  flow->yields = yields;
  flow->left = (double)(ns[0] > ns[1] ? ns[0] : ns[1]);
  for (int k = 0; k < 2; k++) {
    Port *at = &f->ports[port[k]];
    flow->port[k] = port[k];
    flow->weight[k] = (double)ns[k] / (bytes > 0 ? bytes : flow->left);
    flow->at[k] = at->n;
    PUSH(at->flows, at->n, at->cap, number);
    PUSH(f->dirty, f->n_dirty, f->dirty_cap, port[k]);
  }
  return number;
}

void flows_start(SchedFlows *f, int64_t now, int32_t message, int src, int dst, const MsgCost *cost, bool yields)
{
  int n = f->n_groups;
  const int32_t near[2] = {src, n + dst}, far[2] = {2 * n + src, 3 * n + dst};
  const int64_t near_ns[2] = {cost->out_nvlink, cost->in_nvlink}, far_ns[2] = {cost->out_nic, cost->in_nic};
  bool any_near = near_ns[0] > 0 || near_ns[1] > 0, any_far = far_ns[0] > 0 || far_ns[1] > 0;
  int32_t a = any_near ? start(f, now, message, near, near_ns, cost->bytes - cost->nic_bytes, yields) : -1;
  int32_t b = any_far ? start(f, now, message, far, far_ns, cost->nic_bytes, yields) : -1;
  if (a >= 0 && b >= 0) {
    f->flows[a].other = b;
    f->flows[b].other = a;
  } else if (a < 0 && b < 0) {
    heap_push(&f->left, now, message);
  }
}

static void remove_from(SchedFlows *f, Flow *flow, int k)
{
  Port *port = &f->ports[flow->port[k]];
  int32_t last = port->flows[--port->n];
  port->flows[flow->at[k]] = last;
  f->flows[last].at[k] = flow->at[k];
  PUSH(f->dirty, f->n_dirty, f->dirty_cap, flow->port[k]);
}

/* ---- rates ---- */

static void set_rate(SchedFlows *f, int32_t number, int64_t now, double rate)
{
  Flow *flow = &f->flows[number];
  rate = rate > 1 - 1e-9 ? 1 : rate;
  if (rate == flow->rate) {
    return;
  }
  flow->left -= (double)(now - flow->since) * flow->rate;
  flow->left = flow->left > 0 ? flow->left : 0;
  flow->since = now;
  flow->rate = rate;
  double wait = ceil(flow->left / rate - 1e-6);
  flow->end = wait < NEVER - (double)now ? now + (int64_t)wait : (int64_t)NEVER;
  flow->version++;
  heap_push(&f->ends, flow->end, (int64_t)flow->version << 32 | number);
}

static void see_port(SchedFlows *f, int32_t number)
{
  Port *port = &f->ports[number];
  if (port->seen != f->seen) {
    port->seen = f->seen;
    port->used = 0;
    PUSH(f->comp_ports, f->n_comp_ports, f->comp_ports_cap, number);
  }
}

/* All flows that share ports, directly or through others, with the ports that changed. */
static void find_component(SchedFlows *f)
{
  f->seen++;
  f->n_comp = f->n_comp_ports = 0;
  for (int32_t i = 0; i < f->n_dirty; i++) {
    see_port(f, f->dirty[i]);
  }
  f->n_dirty = 0;
  for (int32_t i = 0; i < f->n_comp_ports; i++) {
    const Port *port = &f->ports[f->comp_ports[i]];
    for (int32_t k = 0; k < port->n; k++) {
      Flow *flow = &f->flows[port->flows[k]];
      if (flow->seen != f->seen) {
        flow->seen = f->seen;
        flow->frozen = false;
        PUSH(f->comp, f->n_comp, f->comp_cap, port->flows[k]);
        see_port(f, flow->port[0]);
        see_port(f, flow->port[1]);
      }
    }
  }
}

/* Positive doubles order like the integers of their bits. */
static int64_t bits(double x)
{
  int64_t i;
  memcpy(&i, &x, sizeof i);
  return i;
}

static double level(const Port *port)
{
  return port->used < 1 ? (1 - port->used) / port->of : 0;
}

/* Progressive filling: the level of all open flows rises until a port is full, whose flows then keep their rate. A
   port's level only rises as others freeze, so what the heap has is a lower bound. Flows that yield are filled last. */
static void fill(SchedFlows *f, int64_t now, bool yields)
{
  f->fill.n = 0;
  for (int32_t i = 0; i < f->n_comp_ports; i++) {
    f->ports[f->comp_ports[i]].open = 0;
    f->ports[f->comp_ports[i]].of = 0;
  }
  for (int32_t i = 0; i < f->n_comp; i++) {
    const Flow *flow = &f->flows[f->comp[i]];
    for (int k = 0; k < 2 && flow->yields == yields; k++) {
      f->ports[flow->port[k]].of += flow->weight[k];
      f->ports[flow->port[k]].open++;
    }
  }
  for (int32_t i = 0; i < f->n_comp_ports; i++) {
    const Port *port = &f->ports[f->comp_ports[i]];
    if (port->open && port->of > 0) {
      heap_push(&f->fill, bits(level(port)), f->comp_ports[i]);
    }
  }
  while (f->fill.n) {
    int64_t key = f->fill.keys[0];
    int32_t number = (int32_t)heap_pop(&f->fill);
    const Port *port = &f->ports[number];
    if (!port->open) {
      continue;
    }
    double x = level(port);
    if (bits(x) > key) {
      heap_push(&f->fill, bits(x), number);
      continue;
    }
    for (int32_t i = 0; i < port->n; i++) {
      Flow *flow = &f->flows[port->flows[i]];
      if (flow->frozen || flow->yields != yields) {
        continue;
      }
      flow->frozen = true;
      for (int k = 0; k < 2; k++) {
        Port *at = &f->ports[flow->port[k]];
        at->open--;
        at->used += x * flow->weight[k];
        at->of -= flow->weight[k];
        at->of = at->of > 0 ? at->of : 1e-300;
      }
      double most = flow->weight[0] > flow->weight[1] ? flow->weight[0] : flow->weight[1];
      set_rate(f, port->flows[i], now, x * most > 1e-9 ? x * most : 1e-9);
    }
  }
}

int64_t flows_next(SchedFlows *f, int64_t now)
{
  if (f->n_dirty) {
    find_component(f);
    fill(f, now, false);
    fill(f, now, true);
  }
  while (f->ends.n) {
    int64_t value = f->ends.keys[1];
    if (f->flows[value & INT32_MAX].version == value >> 32) {
      break;
    }
    heap_pop(&f->ends);
  }
  int64_t next = f->ends.n ? f->ends.keys[0] : INT64_MAX;
  return f->left.n && f->left.keys[0] < next ? f->left.keys[0] : next;
}

int32_t flows_pop(SchedFlows *f, int64_t now)
{
  if (f->left.n && f->left.keys[0] <= now) {
    return (int32_t)heap_pop(&f->left);
  }
  while (f->ends.n && f->ends.keys[0] <= now) {
    int64_t value = heap_pop(&f->ends);
    int32_t number = (int32_t)(value & INT32_MAX);
    Flow *flow = &f->flows[number];
    if (flow->version != value >> 32) {
      continue;
    }
    int32_t message = flow->message, other = flow->other;
    flow->version++;
    remove_from(f, flow, 0);
    remove_from(f, flow, 1);
    PUSH(f->free, f->n_free, f->free_cap, number);
    if (other < 0) {
      return message;
    }
    f->flows[other].other = -1;
  }
  return -1;
}
