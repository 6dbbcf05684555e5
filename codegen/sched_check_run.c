/* Replay: does the schedule end when every send waits for its receive, and when it waits for its slot? Rows and
   messages become nodes of a graph whose edges are all that may block: waits, table order of the compute thread, order
   of a pair of groups, the matching receive, the release of the slot's previous use. Groups stand for their ranks: any
   wait between two ranks is an edge between their groups, so a cycle of ranks would be a cycle here. What is left when
   nothing more can run is the deadlock, and is printed. */
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

/* Modelled times agree with the order they model: nothing starts before what it waits for has ended, compute ops of a
   group do not overlap, nothing arrives before it leaves, and the sums that are reported are those of the rows. */
bool check_times(Check *c)
{
  int64_t step_ns = 0, pipe_ns = 0;
  char name[160];
  for (int g = 0; g < c->n_groups; g++) {
    const SchedGroup *group = &c->sched->groups[g];
    int32_t compute = -1;
    for (int32_t i = 0; i < group->n_ops; i++) {
      const MoeOp *op = &group->ops[i];
      int32_t late = -1;
      for (int k = 0; k < MOE_MAX_WAITS; k++) {
        late = op->wait[k] >= 0 && group->end_ns[op->wait[k]] > group->start_ns[i] ? op->wait[k] : late;
      }
      if (check_is_compute(op)) {
        late = compute >= 0 && group->end_ns[compute] > group->start_ns[i] ? compute : late;
        compute = i;
      }
      if (late >= 0) {
        check_fail(c, c->base[g] + i, "starts at %lld ns, but %s ends at %lld ns", (long long)group->start_ns[i],
                   check_name(c, c->base[g] + late, name), (long long)group->end_ns[late]);
      }
      step_ns = group->end_ns[i] > step_ns ? group->end_ns[i] : step_ns;
      pipe_ns = op->mb >= 0 && group->end_ns[i] > pipe_ns ? group->end_ns[i] : pipe_ns;
    }
  }
  for (int32_t i = 0; i < c->n_parts; i++) {
    int32_t send = c->parts[i].send, recv = c->parts[i].recv, from = c->parts[i].src, to = c->parts[i].dst;
    int64_t leaves = c->sched->groups[from].start_ns[send - c->base[from]];
    int64_t arrives = c->sched->groups[to].end_ns[recv - c->base[to]];
    if (arrives < leaves) {
      check_fail(c, recv, "arrives at %lld ns, before it leaves (%lld ns)", (long long)arrives, (long long)leaves);
    }
  }
  if (step_ns != c->sched->step_ns || pipe_ns != c->sched->pipe_ns) {
    check_fail_all(c, "%lld ns, of them %lld ns for the micro-batches, but its last ops end after %lld and %lld ns",
                   (long long)c->sched->step_ns, (long long)c->sched->pipe_ns, (long long)step_ns, (long long)pipe_ns);
  }
  return c->reported == 0;
}
