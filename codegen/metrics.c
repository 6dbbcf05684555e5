/* Rows of a table stand in the order of their start, so unions of intervals are sweeps: first the compute ops as they
   are (one resource: disjoint), then the message rows against the gaps between them. */
#include "codegen/metrics.h"

#include <stdlib.h>

#include "codegen/cost_terms.h"

static bool is_compute(const MoeOp *op)
{
  return op->stream == MOE_STREAM_FWD || op->stream == MOE_STREAM_BWD;
}

static bool is_message(const MoeOp *op)
{
  return op->kind == MOE_OP_SEND || op->kind == MOE_OP_RECV;
}

/* ---- where the time goes ---- */

typedef struct Range {
  int64_t begin, end;
} Range;

static int by_begin(const void *a, const void *b)
{
  const Range *x = a, *y = b;
  return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* Sorts and joins what touches; returns how many are left. */
static int unite(Range *ranges, int n)
{
  int kept = 0;
  if (n > 1) {
    qsort(ranges, (size_t)n, sizeof *ranges, by_begin);
  }
  for (int i = 0; i < n; i++) {
    if (ranges[i].end <= ranges[i].begin) {
      continue;
    }
    if (kept > 0 && ranges[i].begin <= ranges[kept - 1].end) {
      if (ranges[i].end > ranges[kept - 1].end) {
        ranges[kept - 1].end = ranges[i].end;
      }
    } else {
      ranges[kept++] = ranges[i];
    }
  }
  return kept;
}

static int64_t length(const Range *ranges, int n)
{
  int64_t sum = 0;
  for (int i = 0; i < n; i++) {
    sum += ranges[i].end - ranges[i].begin;
  }
  return sum;
}

/* Of two united lists. */
static int64_t common(const Range *a, int n, const Range *b, int m)
{
  int64_t sum = 0;
  for (int i = 0, k = 0; i < n && k < m;) {
    int64_t begin = a[i].begin > b[k].begin ? a[i].begin : b[k].begin;
    int64_t end = a[i].end < b[k].end ? a[i].end : b[k].end;
    sum += end > begin ? end - begin : 0;
    if (a[i].end < b[k].end) {
      i++;
    } else {
      k++;
    }
  }
  return sum;
}

static TimeSplit split_of(const SchedGroup *group, int64_t step)
{
  Range *compute = malloc(((size_t)group->n_ops + 1) * sizeof *compute);
  Range *comm = malloc(((size_t)group->n_ops + 1) * sizeof *comm);
  if (!compute || !comm) {
    die("out of memory");
  }
  int n = 0, m = 0;
  int64_t last = 0;
  for (int i = 0; i < group->n_ops; i++) {
    Range range = {group->start_ns[i], group->end_ns[i]};
    if (is_compute(&group->ops[i])) {
      compute[n++] = range;
      last = range.end > last ? range.end : last;
    } else if (is_message(&group->ops[i])) {
      comm[m++] = range;
    }
  }
  n = unite(compute, n);
  m = unite(comm, m);
  int64_t busy = length(compute, n), moving = length(comm, m), both = common(compute, n, comm, m);
  int64_t wanted = common(&(Range){0, last}, 1, comm, m);
  free(compute);
  free(comm);
  return (TimeSplit){.step_ns = (double)step,
                     .compute_ns = (double)busy,
                     .comm_ns = (double)moving,
                     .overlapped_ns = (double)both,
                     .exposed_ns = (double)(wanted - both),
                     .bubble_ns = (double)(step - busy - (wanted - both))};
}

/* ---- the same tables with messages that take no time ---- */

/* What both ends of a message have in common. */
static uint64_t message_key(const MoeOp *op)
{
  return (uint64_t)op->edge << 56 | (uint64_t)op->bucket << 48 | (uint64_t)(op->layer + 1) << 32 |
         (uint64_t)(op->mb + 1) << 8 | (uint64_t)(uint8_t)op->chunk;
}

typedef struct Row {
  int64_t start;
  uint64_t key; /* of messages, else 0 */
  int64_t done; /* -1: not yet */
  int group, index;
  int turn; /* of rows that start together: SEND, RECV, then others */
} Row;

/* In an order in which nearly every row follows what it waits for: a message that takes no time starts with its
 * receiver. */
static int by_start(const void *a, const void *b)
{
  const Row *x = a, *y = b;
  if (x->start != y->start) {
    return x->start < y->start ? -1 : 1;
  }
  if (x->turn != y->turn) {
    return x->turn < y->turn ? -1 : 1;
  }
  return x->group != y->group ? (x->group < y->group ? -1 : 1) : (x->index > y->index) - (x->index < y->index);
}

typedef struct Sent {
  uint64_t key;
  int row;
} Sent;

static int by_key(const void *a, const void *b)
{
  const Sent *x = a, *y = b;
  if (x->key != y->key) {
    return x->key < y->key ? -1 : 1;
  }
  return (x->row > y->row) - (x->row < y->row);
}

typedef struct Replay {
  const Schedule *sched;
  Row *rows;
  int n;
  Sent *sent;
  int n_sent;
  int **row_of;     /* [group][op] */
  int64_t *free_at; /* [group] its compute */
  int *next;        /* [group] rows of compute ops that ran, so that they run in order */
} Replay;

/* First send with this key. */
static int find_sent(const Replay *r, uint64_t key)
{
  int low = 0, high = r->n_sent;
  while (low < high) {
    int middle = low + (high - low) / 2;
    if (r->sent[middle].key < key) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/* When everything that the row waits for is there, or -1. */
static int64_t ready_at(const Replay *r, const Row *row)
{
  const MoeOp *op = &r->sched->groups[row->group].ops[row->index];
  int64_t ready = 0;
  for (int k = 0; k < MOE_MAX_WAITS; k++) {
    if (op->wait[k] >= 0) {
      int64_t done = r->rows[r->row_of[row->group][op->wait[k]]].done;
      if (done < 0) {
        return -1;
      }
      ready = done > ready ? done : ready;
    }
  }
  for (int k = op->kind == MOE_OP_RECV ? find_sent(r, row->key) : r->n_sent;
       k < r->n_sent && r->sent[k].key == row->key; k++) {
    int64_t done = r->rows[r->sent[k].row].done;
    if (done < 0) {
      return -1;
    }
    ready = done > ready ? done : ready;
  }
  return ready;
}

/* Passes over the rows until all ran; more than one only where rows start at the same time. */
static int64_t replay(Replay *r)
{
  int left = r->n;
  int64_t end = 0;
  for (bool moved = true; left > 0 && moved;) {
    moved = false;
    for (int i = 0; i < r->n; i++) {
      Row *row = &r->rows[i];
      const SchedGroup *group = &r->sched->groups[row->group];
      bool compute = is_compute(&group->ops[row->index]);
      if (row->done >= 0 || (compute && r->next[row->group] != row->index)) {
        continue;
      }
      int64_t at = ready_at(r, row);
      if (at < 0) {
        continue;
      }
      if (compute) {
        at = at > r->free_at[row->group] ? at : r->free_at[row->group];
        at += group->end_ns[row->index] - group->start_ns[row->index];
        r->free_at[row->group] = at;
        int *next = &r->next[row->group];
        do {
          ++*next;
        } while (*next < group->n_ops && !is_compute(&group->ops[*next]));
      }
      row->done = at;
      end = at > end ? at : end;
      left--;
      moved = true;
    }
  }
  return left == 0 ? end : r->sched->step_ns;
}

int64_t metrics_free_messages(const Schedule *sched)
{
  Arena *arena = arena_new();
  Replay r = {.sched = sched};
  for (int g = 0; g < sched->n_groups; g++) {
    r.n += sched->groups[g].n_ops;
  }
  r.rows = arena_new_array(arena, Row, (size_t)r.n + 1);
  r.sent = arena_new_array(arena, Sent, (size_t)r.n + 1);
  r.row_of = arena_new_array(arena, int *, (size_t)sched->n_groups + 1);
  r.free_at = arena_new_array(arena, int64_t, (size_t)sched->n_groups + 1);
  r.next = arena_new_array(arena, int, (size_t)sched->n_groups + 1);
  int n = 0;
  for (int g = 0; g < sched->n_groups; g++) {
    const SchedGroup *group = &sched->groups[g];
    r.row_of[g] = arena_new_array(arena, int, (size_t)group->n_ops + 1);
    for (int i = group->n_ops - 1; i >= 0; i--) {
      r.next[g] = is_compute(&group->ops[i]) ? i : r.next[g];
      int kind = group->ops[i].kind;
      r.rows[n++] = (Row){.start = group->start_ns[i],
                          .done = -1,
                          .group = g,
                          .index = i,
                          .turn = kind == MOE_OP_SEND   ? 0
                                  : kind == MOE_OP_RECV ? 1
                                                        : 2};
    }
  }
  qsort(r.rows, (size_t)n, sizeof *r.rows, by_start);
  for (int i = 0; i < n; i++) {
    const MoeOp *op = &sched->groups[r.rows[i].group].ops[r.rows[i].index];
    r.row_of[r.rows[i].group][r.rows[i].index] = i;
    r.rows[i].key = is_message(op) ? message_key(op) : 0;
    if (op->kind == MOE_OP_SEND) {
      r.sent[r.n_sent++] = (Sent){r.rows[i].key, i};
    }
  }
  qsort(r.sent, (size_t)r.n_sent, sizeof *r.sent, by_key);
  int64_t step = replay(&r);
  arena_free(arena);
  return step;
}

/* Means over the ranks. */
static void average(const Plan *plan, Metrics *m)
{
  double ranks = 0;
  TimeSplit *w = &m->whole;
  *w = (TimeSplit){0};
  for (int g = 0; g < m->n_groups; g++) {
    double n = plan->groups[g].n_ranks;
    const TimeSplit *s = &m->groups[g];
    ranks += n;
    w->step_ns = s->step_ns;
    w->compute_ns += n * s->compute_ns;
    w->comm_ns += n * s->comm_ns;
    w->overlapped_ns += n * s->overlapped_ns;
    w->exposed_ns += n * s->exposed_ns;
    w->bubble_ns += n * s->bubble_ns;
  }
  double *const sums[] = {&w->compute_ns, &w->comm_ns, &w->overlapped_ns, &w->exposed_ns, &w->bubble_ns};
  for (size_t i = 0; i < sizeof sums / sizeof *sums && ranks > 0; i++) {
    *sums[i] /= ranks;
  }
}

void metrics_times(Arena *arena, const Plan *plan, const Schedule *sched, Metrics *m)
{
  m->n_groups = sched->n_groups;
  m->groups = arena_new_array(arena, TimeSplit, (size_t)sched->n_groups + 1);
  for (int g = 0; g < sched->n_groups; g++) {
    m->groups[g] = split_of(&sched->groups[g], sched->step_ns);
  }
  average(plan, m);
  double without = (double)metrics_free_messages(sched);
  m->exposed_step_ns = (double)sched->step_ns - without;
  m->bubble_step_ns = without - m->whole.compute_ns;
}

/* ---- ops that hold their own messages ---- */

/* Moves what fused ops take beyond the experts alone from compute to exposed communication. */
static void split_fused(const Spec *spec, const Plan *plan, const Schedule *sched, Metrics *m)
{
  Plan alone = *plan;
  alone.system = SYSTEM_MEGATRON; /* the same sizes, nothing fused */
  for (int g = 0; g < sched->n_groups; g++) {
    TimeSplit *s = &m->groups[g];
    double beyond = 0, moved = 0;
    for (int i = 0; i < sched->groups[g].n_ops; i++) {
      const MoeOp *op = &sched->groups[g].ops[i];
      if (op->kind != MOE_OP_FFN_FWD && op->kind != MOE_OP_FFN_DGRAD) {
        continue;
      }
      bool forward = op->kind == MOE_OP_FFN_FWD;
      alone.mb_seqs = sched_mb_seqs(plan, op->mb);
      double ns = (double)(sched->groups[g].end_ns[i] - sched->groups[g].start_ns[i]);
      double more = ns - (double)cost_op_ns(spec, &alone, (MoeOpKind)op->kind, op->layer);
      beyond += more > 0 ? more : 0;
      moved += (double)cost_msg(spec, &alone, forward ? MOE_EDGE_DISPATCH : MOE_EDGE_COMBINE_B, op->layer).ns +
               (double)cost_msg(spec, &alone, forward ? MOE_EDGE_COMBINE : MOE_EDGE_DISPATCH_B, op->layer).ns;
      if (!forward && cost_again(spec, plan->recompute, op->layer)) {
        moved += (double)cost_msg(spec, &alone, MOE_EDGE_DISPATCH_AGAIN, op->layer).ns;
      }
    }
    s->compute_ns -= beyond;
    s->exposed_ns += beyond;
    s->comm_ns += moved;
    s->overlapped_ns += moved > beyond ? moved - beyond : 0;
  }
  average(plan, m);
  m->exposed_step_ns = m->whole.step_ns - m->whole.compute_ns - m->bubble_step_ns;
}

/* ---- what travels ---- */

/* Bytes of one class of messages of a layer; between nodes they count in *nic as well. */
static double bytes_of(const Spec *spec, const Plan *plan, MoeEdge edge, int layer, double *nic)
{
  MsgCost c = cost_msg(spec, plan, edge, layer);
  *nic += c.nic_bytes;
  return c.bytes;
}

static Traffic traffic_of(const Spec *spec, const Plan *own, Dedup dedup)
{
  static const MoeEdge gradients[] = {MOE_EDGE_COMBINE_B, MOE_EDGE_DISPATCH_B};
  static const MoeEdge relayed[] = {MOE_EDGE_FORWARD_B, MOE_EDGE_GATHER_B};
  double tokens = (double)own->mb_seqs * (double)own->shape->seq, unused = 0;
  Traffic t = {0};
  Plan whole = *own; /* costs are of a chunk where there are chunks */
  const Plan *plan = &whole;
  whole.chunks = 1;
  whole.dedup = dedup;
  for (int l = 0; l < spec->model.layers; l++) {
    if (!spec_layer_is_dense(spec, l)) {
      t.dispatch += bytes_of(spec, plan, MOE_EDGE_DISPATCH, l, &t.nic);
      t.combine += bytes_of(spec, plan, MOE_EDGE_COMBINE, l, &t.nic);
      bool relays = cost_relayed(plan, l);
      t.dispatch += relays ? bytes_of(spec, plan, MOE_EDGE_FORWARD, l, &t.nic) : 0;
      t.combine += relays ? bytes_of(spec, plan, MOE_EDGE_GATHER, l, &t.nic) : 0;
      for (int i = 0; i < 2; i++) {
        t.backward += bytes_of(spec, plan, gradients[i], l, &unused);
        t.backward += relays ? bytes_of(spec, plan, relayed[i], l, &unused) : 0;
      }
      if (cost_again(spec, plan->recompute, l)) {
        t.backward += bytes_of(spec, plan, MOE_EDGE_DISPATCH_AGAIN, l, &unused);
        t.backward += relays ? bytes_of(spec, plan, MOE_EDGE_FORWARD_AGAIN, l, &unused) : 0;
      }
    }
    if (plan_piped(spec, plan, 0, l)) {
      t.p2p += bytes_of(spec, plan, MOE_EDGE_PIPE, l, &t.nic);
      t.backward += bytes_of(spec, plan, MOE_EDGE_PIPE_B, l, &unused);
    }
  }
  double *const sums[] = {&t.dispatch, &t.combine, &t.p2p, &t.nic, &t.backward};
  for (size_t i = 0; i < sizeof sums / sizeof *sums; i++) {
    *sums[i] /= tokens;
  }
  return t;
}

double traffic_sum(const Traffic *t)
{
  return t->dispatch + t->combine + t->p2p;
}

static void fill_memory(const Plan *plan, Metrics *m)
{
  for (int g = 0; g < plan->n_groups; g++) {
    const MemoryTerms *memory = &plan->groups[g].memory;
    if (memory->total > m->peak_memory) {
      m->peak_memory = memory->total;
      m->memory_limit = memory->limit;
    }
  }
}

void metrics_of(Arena *arena, const Spec *spec, const Plan *plan, const Schedule *sched, Metrics *m)
{
  *m = (Metrics){0};
  metrics_times(arena, plan, sched, m);
  if (plan->system == SYSTEM_COMET) {
    split_fused(spec, plan, sched, m);
  }
  m->tokens_per_s = plan->tokens_per_s;
  m->tokens_per_s_gpu = plan->tokens_per_s / ((double)plan->replicas * plan->replica_ranks);
  m->tokens_per_s_cluster_gpu = plan->tokens_per_s / ((double)spec->cluster.nodes * spec->cluster.gpus);
  m->mfu = plan->mfu;
  m->grad_tail = sched->step_ns > 0 ? (double)(sched->step_ns - sched->pipe_ns) / (double)sched->step_ns : 0;
  fill_memory(plan, m);
  m->traffic = traffic_of(spec, plan, plan->dedup);
  for (int d = 0; d < DEDUP_AUTO; d++) {
    m->by_dedup[d] = traffic_of(spec, plan, (Dedup)d);
  }
  for (int l = 0; l < spec->model.layers; l++) {
    m->piped += plan_piped(spec, plan, 0, l);
  }
}
