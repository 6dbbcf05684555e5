/* Replay: does the schedule end when every send waits for its receive, and when it waits for its slot? Rows and
   messages become nodes of a graph whose edges are all that may block: waits, table order of the compute thread, order
   of a pair of groups, the matching receive, the release of the slot's previous use. Groups stand for their ranks: any
   wait between two ranks is an edge between their groups, so a cycle of ranks would be a cycle here. What is left when
   nothing more can run is the deadlock, and is printed.

   Clocks: which rows of a group are over, in every possible run, when another row of the same rank begins. The replay
   is one run among many, so this needs an order that holds in all: waits, compute order, and messages, per rank. A rank
   hears of its own sends only through answers; groups whose ranks talk among themselves are therefore played by two
   ranks, the observed one and one that stands for all others of its node (all are alike). */
#include "codegen/sched_check_int.h"

#include <stdlib.h>
#include <string.h>

typedef struct Graph {
  int32_t n;      /* nodes: rows, then parts */
  int32_t *first; /* [n + 1] successors */
  int32_t *next;
  int32_t *open; /* [n] predecessors not yet done */
  bool count_only;
} Graph;

static void edge(Graph *graph, int32_t from, int32_t to)
{
  if (graph->count_only) {
    graph->first[from + 2]++;
  } else {
    graph->next[graph->first[from + 1]++] = to;
    graph->open[to]++;
  }
}

enum { MODE_RENDEZVOUS = 1, MODE_SLOTS = 2 };

/* Row of the latest earlier use of the slot of a part, in this pair: its parts come in pair order. */
static void slot_edges(const Check *c, Graph *graph, int32_t rows)
{
  int n_slots = 0;
  int *first_slot = arena_new_array(c->arena, int, (size_t)c->sched->n_chans + 1);
  for (int i = 0; i < c->sched->n_chans; i++) {
    first_slot[i] = n_slots;
    n_slots += c->sched->chans[i].slots;
  }
  int32_t *last = arena_new_array(c->arena, int32_t, (size_t)n_slots + 1);
  for (int32_t i = 0; i < c->n_parts; i++) {
    const MoeOp *op = check_op(c, c->parts[i].send);
    if (c->parts[i].nth == 0) {
      memset(last, -1, (size_t)n_slots * sizeof *last);
    }
    int32_t *at = &last[first_slot[op->chan] + op->slot];
    if (*at >= 0) {
      edge(graph, c->releaser[c->parts[*at].recv], rows + i);
    }
    *at = i;
  }
}

static void add_edges(const Check *c, Graph *graph, unsigned mode)
{
  int32_t rows = c->base[c->n_groups];
  for (int g = 0; g < c->n_groups; g++) {
    int32_t compute = -1;
    for (int32_t row = c->base[g]; row < c->base[g + 1]; row++) {
      const MoeOp *op = check_op(c, row);
      if (check_is_compute(op)) {
        if (compute >= 0) {
          edge(graph, compute, row);
        }
        compute = row;
      }
      bool has_parts = c->first_part[row] < c->first_part[row + 1];
      for (int k = 0; k < MOE_MAX_WAITS; k++) {
        if (op->wait[k] < 0) {
          continue;
        }
        if (!has_parts) {
          edge(graph, c->base[g] + op->wait[k], row);
        }
        for (int32_t p = c->first_part[row]; p < c->first_part[row + 1]; p++) {
          bool sends = c->parts[c->part_ids[p]].send == row;
          if (sends || (mode & MODE_RENDEZVOUS)) {
            edge(graph, c->base[g] + op->wait[k], rows + c->part_ids[p]);
          }
        }
      }
    }
  }
  for (int32_t i = 0; i < c->n_parts; i++) {
    if (c->parts[i].nth > 0) {
      edge(graph, rows + i - 1, rows + i);
    }
    edge(graph, rows + i, c->parts[i].send);
    edge(graph, rows + i, c->parts[i].recv);
  }
  if (mode & MODE_SLOTS) {
    slot_edges(c, graph, rows);
  }
}

/* Runs to the end or to the deadlock; returns how many nodes finished. Finished rows go to c->order. */
static int32_t run(Check *c, unsigned mode, Graph *graph)
{
  int32_t rows = c->base[c->n_groups], done = 0, head = 0, tail = 0, n_order = 0;
  *graph = (Graph){.n = rows + c->n_parts, .count_only = true};
  graph->first = arena_new_array(c->arena, int32_t, (size_t)graph->n + 2);
  graph->open = arena_new_array(c->arena, int32_t, (size_t)graph->n);
  add_edges(c, graph, mode);
  for (int32_t i = 0; i <= graph->n; i++) {
    graph->first[i + 1] += graph->first[i];
  }
  graph->next = arena_new_array(c->arena, int32_t, (size_t)graph->first[graph->n + 1] + 1);
  graph->count_only = false;
  add_edges(c, graph, mode);
  int32_t *queue = arena_new_array(c->arena, int32_t, (size_t)graph->n);
  for (int32_t i = 0; i < graph->n; i++) {
    if (graph->open[i] == 0) {
      queue[tail++] = i;
    }
  }
  while (head < tail) {
    int32_t node = queue[head++];
    done++;
    if (node < rows) {
      c->order[n_order++] = node;
    }
    for (int32_t k = graph->first[node]; k < graph->first[node + 1]; k++) {
      if (--graph->open[graph->next[k]] == 0) {
        queue[tail++] = graph->next[k];
      }
    }
  }
  return done;
}

/* What a row that never finished waits for, in words. */
static void explain(Check *c, const Graph *graph, int32_t row)
{
  char name[160];
  int32_t rows = c->base[c->n_groups];
  const MoeOp *op = check_op(c, row);
  for (int k = 0; k < MOE_MAX_WAITS; k++) {
    if (op->wait[k] >= 0 && graph->open[c->base[c->group[row]] + op->wait[k]] > 0) {
      check_fail(c, row, "waits for %s", check_name(c, c->base[c->group[row]] + op->wait[k], name));
      return;
    }
  }
  for (int32_t p = c->first_part[row]; p < c->first_part[row + 1]; p++) {
    int32_t i = c->part_ids[p];
    const CheckPart *part = &c->parts[i];
    if (graph->open[rows + i] == 0) {
      continue;
    }
    if (part->nth > 0 && graph->open[rows + i - 1] > 0) {
      check_fail(c, row, "comes after %s on its pair", check_name(c, c->parts[i - 1].send, name));
    } else if (part->recv == row) {
      check_fail(c, row, "waits for %s", check_name(c, part->send, name));
    } else {
      check_fail(c, row, "waits for the release of slot %d before use %d", op->slot, op->use);
    }
    return;
  }
  check_fail(c, row, "waits for the compute op above it");
}

bool check_replay(Check *c)
{
  Graph graph;
  if (run(c, MODE_RENDEZVOUS | MODE_SLOTS, &graph) == graph.n) {
    return true;
  }
  if (run(c, MODE_RENDEZVOUS, &graph) == graph.n) {
    check_fail_all(c, "deadlock: ends with rendezvous sends, but not with the slots of its channels");
    run(c, MODE_RENDEZVOUS | MODE_SLOTS, &graph);
  } else {
    check_fail_all(c, "deadlock: does not end when every send waits for its receive");
  }
  for (int g = 0, left = 8; g < c->n_groups && left > 0; g++) {
    int each = 3;
    for (int32_t row = c->base[g]; row < c->base[g + 1] && each > 0 && left > 0; row++) {
      if (graph.open[row] > 0) {
        explain(c, &graph, row);
        each--;
        left--;
      }
    }
  }
  return false;
}

/* Clocks of the observed rank: component 0 counts its compute ops, component 1 + k its messages to peer rank k. A row's
   clock is what is over when it begins; `end` what is over when it ends. */
struct CheckClocks {
  int group;
  int dims;
  int32_t *begin;    /* [rows of the group][dims] */
  int32_t *end;      /* [rows][2 ranks][dims] */
  int32_t *compute;  /* [rows of the group] number of the compute op, from 1 */
  int32_t *part_nth; /* [parts] number in its pair, from 1 */
  int *peer;         /* [groups] component of a peer group's observed rank, or 0; the other rank's is one more */
};

static void join(int32_t *into, const int32_t *from, int dims)
{
  for (int i = 0; i < dims; i++) {
    into[i] = from[i] > into[i] ? from[i] : into[i];
  }
}

typedef struct Walk {
  Check *c;
  CheckClocks *clocks;
  int32_t *pair;    /* [groups][groups][2][2][dims] latest message of a pair of ranks */
  int32_t *part;    /* [parts][2][2][dims] */
  int32_t *compute; /* [groups][2][dims] latest compute op */
  int32_t *now;     /* [dims] */
} Walk;

static int n_ranks(const Check *c, int group)
{
  return c->plan->groups[group].n_ranks > 1 ? 2 : 1;
}

static void walk_send(Walk *w, int32_t row, int rank)
{
  Check *c = w->c;
  CheckClocks *k = w->clocks;
  int dims = k->dims, src = c->group[row];
  for (int32_t p = c->first_part[row]; p < c->first_part[row + 1]; p++) {
    int32_t i = c->part_ids[p];
    const CheckPart *part = &c->parts[i];
    if (part->send != row) {
      continue;
    }
    for (int to = 0; to < n_ranks(c, part->dst); to++) {
      size_t pair = (((size_t)src * (size_t)c->n_groups + (size_t)part->dst) * 2 + (size_t)rank) * 2 + (size_t)to;
      int32_t *latest = &w->pair[pair * (size_t)dims];
      join(latest, w->now, dims);
      if (src == k->group && rank == 0) {
        latest[k->peer[part->dst] + to] = part->nth + 1;
      }
      memcpy(&w->part[(((size_t)i * 2 + (size_t)rank) * 2 + (size_t)to) * (size_t)dims], latest,
             (size_t)dims * sizeof *latest);
    }
  }
}

static void walk_row(Walk *w, int32_t row, int rank)
{
  Check *c = w->c;
  CheckClocks *k = w->clocks;
  const MoeOp *op = check_op(c, row);
  int dims = k->dims, g = c->group[row];
  size_t bytes = (size_t)dims * sizeof *w->now;
  memset(w->now, 0, bytes);
  for (int i = 0; i < MOE_MAX_WAITS; i++) {
    if (op->wait[i] >= 0) {
      join(w->now, &k->end[((size_t)(c->base[g] + op->wait[i]) * 2 + (size_t)rank) * (size_t)dims], dims);
    }
  }
  int32_t *compute = &w->compute[((size_t)g * 2 + (size_t)rank) * (size_t)dims];
  if (check_is_compute(op)) {
    join(w->now, compute, dims);
  }
  if (g == k->group && rank == 0) {
    memcpy(&k->begin[(size_t)(row - c->base[g]) * (size_t)dims], w->now, bytes);
  }
  int32_t *end = &k->end[((size_t)row * 2 + (size_t)rank) * (size_t)dims];
  if (check_is_compute(op)) {
    if (g == k->group && rank == 0) {
      w->now[0] = k->compute[row - c->base[g]];
    }
    memcpy(compute, w->now, bytes);
  }
  memcpy(end, w->now, bytes);
  if (op->mb < 0) {
    return; /* nothing of the tail is asked about but compute order and waits */
  }
  if (op->kind == MOE_OP_SEND) {
    walk_send(w, row, rank);
  }
  for (int32_t p = c->first_part[row]; p < c->first_part[row + 1]; p++) {
    int32_t i = c->part_ids[p];
    const CheckPart *part = &c->parts[i];
    bool sends = op->kind == MOE_OP_SEND;
    if (sends != (part->send == row)) {
      continue;
    }
    for (int other = 0; other < n_ranks(c, sends ? part->dst : part->src); other++) {
      size_t from = sends ? (size_t)rank : (size_t)other, to = sends ? (size_t)other : (size_t)rank;
      join(end, &w->part[(((size_t)i * 2 + from) * 2 + to) * (size_t)dims], dims);
    }
  }
}

CheckClocks *check_clocks(Arena *arena, Check *c, int group)
{
  CheckClocks *k = arena_new_of(arena, CheckClocks);
  size_t rows = (size_t)c->base[c->n_groups], groups = (size_t)c->n_groups;
  k->group = group;
  k->dims = 1;
  k->peer = arena_new_array(arena, int, groups);
  for (int32_t i = 0; i < c->n_parts; i++) {
    const CheckPart *part = &c->parts[i];
    if (part->src == group && !k->peer[part->dst]) {
      k->peer[part->dst] = k->dims;
      k->dims += 2;
    }
  }
  size_t dims = (size_t)k->dims, mine = (size_t)(c->base[group + 1] - c->base[group]);
  k->begin = arena_new_array(arena, int32_t, mine * dims);
  k->compute = arena_new_array(arena, int32_t, mine);
  k->end = arena_new_array(arena, int32_t, rows * 2 * dims);
  int32_t n = 0;
  for (size_t i = 0; i < mine; i++) {
    k->compute[i] = check_is_compute(check_op(c, c->base[group] + (int32_t)i)) ? ++n : n;
  }
  Walk w = {.c = c, .clocks = k};
  w.pair = arena_new_array(arena, int32_t, groups * groups * 4 * dims);
  w.part = arena_new_array(arena, int32_t, (size_t)c->n_parts * 4 * dims);
  w.compute = arena_new_array(arena, int32_t, groups * 2 * dims);
  w.now = arena_new_array(arena, int32_t, dims);
  for (size_t i = 0; i < rows; i++) {
    for (int rank = 0; rank < n_ranks(c, c->group[c->order[i]]); rank++) {
      walk_row(&w, c->order[i], rank);
    }
  }
  return k;
}

/* Messages of a SEND that are over when `clock` is read: all of them, or at least one. */
static bool sent(const Check *c, const CheckClocks *k, int32_t row, const int32_t *clock, bool all)
{
  int over = 0, n = 0;
  for (int32_t p = c->first_part[row]; p < c->first_part[row + 1]; p++) {
    const CheckPart *part = &c->parts[c->part_ids[p]];
    for (int to = 0; part->send == row && to < n_ranks(c, part->dst); to++, n++) {
      over += clock[k->peer[part->dst] + to] > part->nth;
    }
  }
  return all ? n > 0 && over == n : over > 0;
}

bool check_before(const Check *c, const CheckClocks *k, int32_t first, int32_t second)
{
  const MoeOp *a = check_op(c, first), *b = check_op(c, second);
  const int32_t *clock = &k->begin[(size_t)(second - c->base[k->group]) * (size_t)k->dims];
  if (first == second) {
    return false;
  }
  for (int i = 0; i < MOE_MAX_WAITS; i++) {
    if (b->wait[i] >= 0 && c->base[k->group] + b->wait[i] == first) {
      return true;
    }
  }
  if (check_is_compute(a)) {
    return clock[0] >= k->compute[first - c->base[k->group]];
  }
  if (a->kind == MOE_OP_SEND) {
    return sent(c, k, first, clock, true);
  }
  /* RECV, RELAY, NODE_REDUCE: over once a row that waited for it has begun, which one message of a SEND shows */
  for (int i = 0; i < 2; i++) {
    int32_t waiter = c->waiters[2 * first + i];
    if (waiter >= 0 && (check_before(c, k, waiter, second) ||
                        (check_op(c, waiter)->kind == MOE_OP_SEND && sent(c, k, waiter, clock, false)))) {
      return true;
    }
  }
  return false;
}
