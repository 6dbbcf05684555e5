/* What no schedule of a plan can beat. Three limits: a micro-batch takes at least its longest path; the
   saved slots of a group hold only so many of its layers at once; and a resource does one thing at a time: whatever set
   of its uses one takes, it cannot begin before the earliest of them can, and something follows the one that happens to
   be last. Resources are the compute of a group, each of its ports, and the link of an ordered pair of groups. */
#include "codegen/arith.h"
#include "codegen/sched_int.h"

#include <stdlib.h>
#include <string.h>

/* One kind of use of a resource: of one task, by all micro-batches of a way and size. */
typedef struct Use {
  int64_t head, tail; /* before it can begin, after it has ended; alone in the cluster */
  int64_t ns, times;
} Use;

typedef struct Bound {
  const SchedNet *net;
  int mb;         /* one micro-batch of its way and size */
  int64_t times;  /* how many there are */
  int32_t *order; /* its task ids, each after those before it */
  int n;
  int64_t *head, *tail; /* [task ids] */
  Use *uses;            /* of the resource at hand */
  int n_uses;
} Bound;

static int64_t task_ns(const SchedNet *net, int32_t id)
{
  if (sched_task(net, id) < TASK_DISPATCH) {
    return sched_op_ns(net, id);
  }
  const MsgCost *cost = sched_msg(net, id);
  return (cost->src_ns > cost->dst_ns ? cost->src_ns : cost->dst_ns) + cost->latency;
}

/* Heads and tails of the micro-batch by one walk along the dataflow and one back. */
static void walk(Bound *b, uint8_t *come)
{
  const SchedNet *net = b->net;
  int32_t next[SCHED_MAX_NEXT];
  b->n = 0;
  b->order[b->n++] = sched_id(net, TASK_EMBED_FWD, 0, b->mb, 0);
  for (int i = 0; i < b->n; i++) {
    int32_t id = b->order[i];
    int64_t end = b->head[id] + task_ns(net, id);
    for (int k = 0, n = sched_nexts(net, id, next); k < n; k++) {
      b->head[next[k]] = end > b->head[next[k]] ? end : b->head[next[k]];
      if (++come[next[k]] == sched_n_before(net, next[k])) {
        b->order[b->n++] = next[k];
      }
    }
  }
  for (int i = b->n - 1; i >= 0; i--) {
    int32_t id = b->order[i];
    for (int k = 0, n = sched_nexts(net, id, next); k < n; k++) {
      int64_t after = task_ns(net, next[k]) + b->tail[next[k]];
      b->tail[id] = after > b->tail[id] ? after : b->tail[id];
    }
  }
}

static int by_tail(const void *a, const void *b)
{
  const Use *x = a, *y = b;
  return x->tail != y->tail ? (x->tail > y->tail ? -1 : 1) : 0;
}

/* The largest over sets "begins no earlier than, and followed by no less than". */
static int64_t one_machine(Bound *b)
{
  int64_t most = 0;
  qsort(b->uses, (size_t)b->n_uses, sizeof *b->uses, by_tail);
  for (int i = 0; i < b->n_uses; i++) {
    int64_t head = b->uses[i].head, sum = 0;
    for (int k = 0; k < b->n_uses; k++) {
      if (b->uses[k].head >= head) {
        sum += b->uses[k].ns * b->uses[k].times;
        int64_t all = head + sum + b->uses[k].tail;
        most = all > most ? all : most;
      }
    }
  }
  return most;
}

enum { PORT_KINDS = 4 };

static int64_t port_ns(const MsgCost *cost, int kind)
{
  const int64_t ns[PORT_KINDS] = {cost->out_nvlink, cost->in_nvlink, cost->out_nic, cost->in_nic};
  return ns[kind];
}

static void add_use(Bound *b, int32_t id, int64_t ns, int64_t latency)
{
  if (ns > 0) {
    b->uses[b->n_uses++] = (Use){b->head[id], b->tail[id] + latency, ns, b->times};
  }
}

/* kind: 0 compute, 1 + k the ports; `group` is who sends where the port is an outgoing one. */
static void collect(Bound *b, int kind, int group)
{
  const SchedNet *net = b->net;
  for (int i = 0; i < b->n; i++) {
    int32_t id = b->order[i];
    SchedTask task = sched_task(net, id);
    int way = sched_way(net, sched_mb(net, id)), layer = sched_layer(net, id);
    if (kind == 0 && task < TASK_N_COMPUTE && sched_group(net, task, layer, way) == group) {
      add_use(b, id, sched_op_ns(net, id), 0);
    } else if (kind > 0 && task >= TASK_DISPATCH) {
      bool in = (kind - 1) % 2;
      if ((in ? sched_dst(net, task, layer, way) : sched_group(net, task, layer, way)) == group) {
        add_use(b, id, port_ns(sched_msg(net, id), kind - 1), sched_msg(net, id)->latency);
      }
    }
  }
}

static void collect_pair(Bound *b, int src, int dst, bool node)
{
  const SchedNet *net = b->net;
  for (int i = 0; i < b->n; i++) {
    int32_t id = b->order[i];
    SchedTask task = sched_task(net, id);
    int way = sched_way(net, sched_mb(net, id)), layer = sched_layer(net, id);
    if (task >= TASK_DISPATCH && sched_group(net, task, layer, way) == src && sched_dst(net, task, layer, way) == dst &&
        (moe_edge_pairs(sched_edge(task)) == MOE_PAIRS_NODE) == node) {
      int64_t latency = sched_msg(net, id)->latency;
      add_use(b, id, task_ns(net, id) - latency, latency);
    }
  }
}

/* ---- the opening ---- */

enum { LINK = PORT_KINDS, RESOURCES }; /* the ports of a group, and the link among its own ranks */

/* A forward of the group at hand, and what messages of its micro-batch take of the group's resources after the forward
   before it and before this one. */
typedef struct Forward {
  double ns, times, need[RESOURCES];
} Forward;

typedef struct Opening {
  const Bound *b;
  int group;
  Forward *list;
  int n;
  int64_t first[RESOURCES]; /* head of the first message */
  int64_t total;            /* all compute */
  int64_t gradient;         /* head of the first op that is no forward */
} Opening;

static void add_need(Opening *o, int32_t id, double need[RESOURCES])
{
  const SchedNet *net = o->b->net;
  SchedTask task = sched_task(net, id);
  int layer = sched_layer(net, id), way = sched_way(net, sched_mb(net, id));
  bool from = sched_group(net, task, layer, way) == o->group, to = sched_dst(net, task, layer, way) == o->group;
  const MsgCost *cost = sched_msg(net, id);
  for (int r = 0; r < RESOURCES; r++) {
    int64_t ns = r == LINK             ? (from && to && moe_edge_pairs(sched_edge(task)) == MOE_PAIRS_NODE
                                              ? (cost->src_ns > cost->dst_ns ? cost->src_ns : cost->dst_ns)
                                              : 0)
                 : (r % 2 ? to : from) ? port_ns(cost, r)
                                       : 0;
    need[r] += (double)ns;
    o->first[r] = ns > 0 && o->b->head[id] < o->first[r] ? o->b->head[id] : o->first[r];
  }
}

static void collect_opening(Opening *o)
{
  const Bound *b = o->b;
  const SchedNet *net = b->net;
  double need[RESOURCES] = {0};
  for (int i = 0; i < b->n; i++) {
    int32_t id = b->order[i];
    SchedTask task = sched_task(net, id);
    if (task >= TASK_DISPATCH && task < TASK_PIPE_B) {
      add_need(o, id, need);
    }
    if (task >= TASK_N_COMPUTE || sched_group_of(net, id) != o->group) {
      continue;
    }
    o->total += sched_op_ns(net, id) * b->times;
    if (task < TASK_HEAD) {
      Forward *f = &o->list[o->n++];
      f->ns = (double)sched_op_ns(net, id);
      f->times = (double)b->times;
      for (int r = 0; r < RESOURCES; r++) {
        f->need[r] = need[r];
        need[r] = 0;
      }
    } else {
      o->gradient = b->head[id] < o->gradient ? b->head[id] : o->gradient;
    }
  }
}

/* Forward work that can be done before the first gradient as far as one resource goes: what needs none of it, and then
   what has most work for its need. */
static double forward_work(const Opening *o, int resource)
{
  double work = 0, room = o->first[resource] < o->gradient ? (double)(o->gradient - o->first[resource]) : 0;
  bool *taken = calloc((size_t)o->n + 1, sizeof *taken);
  if (!taken) {
    die("out of memory");
  }
  for (int k = 0; k < o->n; k++) {
    int best = -1;
    for (int i = 0; i < o->n; i++) {
      const Forward *f = &o->list[i], *than = best < 0 ? NULL : &o->list[best];
      if (!taken[i] && (!than || f->ns * than->need[resource] > than->ns * f->need[resource])) {
        best = i;
      }
    }
    double need = o->list[best].need[resource], many = o->list[best].times;
    taken[best] = true;
    if (need > 0) {
      many = need * many < room ? many : room / need;
      room -= many * need;
    }
    work += many * o->list[best].ns;
  }
  free(taken);
  return work;
}

/* One for each way and size of micro-batch. */
typedef struct Walks {
  Bound of[2 * SCHED_SIZES];
  int n;
} Walks;

/* The end of a group's compute, seen from the first gradient. */
static int64_t opening(const Walks *w, Forward *list, int group)
{
  Opening o = {.group = group, .list = list, .gradient = INT64_MAX};
  for (int r = 0; r < RESOURCES; r++) {
    o.first[r] = INT64_MAX;
  }
  for (int i = 0; i < w->n; i++) {
    o.b = &w->of[i];
    collect_opening(&o);
  }
  int64_t most = 0;
  for (int r = 0; r < RESOURCES && o.gradient < INT64_MAX; r++) {
    double work = forward_work(&o, r);
    work = work < (double)o.gradient ? work : (double)o.gradient;
    most = max64(most, o.gradient + o.total - (int64_t)work);
  }
  return most;
}

/* All walks' uses of one resource; pair < 0: a group's compute or port. */
static int64_t resource(Walks *w, int kind, int group, int dst)
{
  Bound *b = &w->of[0];
  b->n_uses = 0;
  for (int i = 0; i < w->n; i++) {
    Bound with = w->of[i];
    with.uses = b->uses;
    with.n_uses = b->n_uses;
    if (dst < 0) {
      collect(&with, kind, group);
    } else {
      collect_pair(&with, group, dst, kind);
    }
    b->n_uses = with.n_uses;
  }
  return one_machine(b);
}

/* Every micro-batch holds a slot of one side of a group for each of its layers, from its forward to its weight
 * gradient.
 */
static int64_t slot_time(const Walks *w, int group, int side)
{
  const SchedNet *net = w->of[0].net;
  SchedTask forward = side == PLAN_A ? TASK_ATT_FWD : TASK_FFN_FWD,
            wgrad = side == PLAN_A ? TASK_ATT_WGRAD : TASK_FFN_WGRAD;
  int64_t held = 0, slots = plan_saved(net->spec, net->plan, group, side);
  for (int i = 0; i < w->n * net->n_layers; i++) {
    const Bound *b = &w->of[i / net->n_layers];
    int layer = i % net->n_layers, way = sched_way(net, b->mb);
    if (sched_task_exists(net, forward, layer, way) && sched_group(net, forward, layer, way) == group) {
      int32_t first = sched_id(net, forward, layer, b->mb, 0), last = sched_id(net, wgrad, layer, b->mb, 0);
      held += (b->head[last] + sched_op_ns(net, last) - b->head[first]) * b->times;
    }
  }
  return slots > 0 ? held / slots : 0;
}

SchedBound sched_bound(const Spec *spec, const Plan *plan)
{
  Arena *arena = arena_new();
  SchedNet net = sched_net(arena, spec, plan);
  SchedBound bound = {0};
  size_t ids = (size_t)sched_ids(&net), tasks = (size_t)(TASK_COUNT * (net.n_layers + 1) * net.chunks);
  int64_t *head = arena_new_array(arena, int64_t, ids), *tail = arena_new_array(arena, int64_t, ids);
  uint8_t *come = arena_new_array(arena, uint8_t, ids);
  Forward *forwards = arena_new_array(arena, Forward, tasks * SCHED_SIZES);
  Walks w = {0};
  for (int mb = 0; mb < net.n_mbs; mb++) { /* the first of each way and size */
    Bound *last = w.n ? &w.of[w.n - 1] : NULL;
    if (last && sched_way(&net, last->mb) == sched_way(&net, mb) &&
        sched_size(&net, last->mb) == sched_size(&net, mb)) {
      last->times++;
      continue;
    }
    Bound *b = &w.of[w.n++];
    *b = (Bound){.net = &net, .mb = mb, .times = 1, .head = head, .tail = tail};
    b->order = arena_new_array(arena, int32_t, tasks);
    b->uses = arena_new_array(arena, Use, tasks * 2 * SCHED_SIZES);
    walk(b, come);
    bound.path_ns = max64(bound.path_ns, task_ns(&net, b->order[0]) + tail[b->order[0]]);
  }
  for (int g = 0; g < net.n_groups; g++) {
    bound.compute_ns = max64(bound.compute_ns, resource(&w, 0, g, -1));
    if (net.ways == 1 && net.chunks == 1) {
      bound.compute_ns = max64(bound.compute_ns, opening(&w, forwards, g));
    }
    for (int kind = 1; kind <= PORT_KINDS; kind++) {
      bound.link_ns = max64(bound.link_ns, resource(&w, kind, g, -1));
    }
    for (int dst = 0; dst < net.n_groups; dst++) {
      bound.link_ns = max64(bound.link_ns, resource(&w, 0, g, dst));
      bound.link_ns = max64(bound.link_ns, resource(&w, 1, g, dst));
    }
  }
  if (!plan_system_colocated(plan->system)) { /* given orders take as many slots as they like */
    for (int g = 0; g < net.n_groups; g++) {
      bound.flight_ns = max64(bound.flight_ns, slot_time(&w, g, PLAN_A));
      bound.flight_ns = max64(bound.flight_ns, slot_time(&w, g, PLAN_F));
    }
  }
  bound.ns = max64(max64(bound.path_ns, bound.flight_ns), max64(bound.compute_ns, bound.link_ns));
  arena_free(arena);
  return bound;
}
