#include "tests/sched/ranks.h"

#include <string.h>

typedef struct Edge {
  int from, to, next;
} Edge;

struct Ranks {
  const Spec *spec;
  const Plan *plan;
  const Schedule *sched;
  int n_ranks, n_rows; /* rows: of the longest table */
  int n_nodes, max_nodes;
  int *head;   /* [nodes] first edge */
  int *degree; /* [nodes] */
  Edge *edges;
  int n_edges, max_edges;
};

static int group_of(const Ranks *r, int rank)
{
  int local = rank % r->plan->replica_ranks;
  for (int g = 0; g < r->plan->n_groups; g++) {
    const PlanGroup *group = &r->plan->groups[g];
    if (local >= group->first_rank && local < group->first_rank + group->n_ranks) {
      return g;
    }
  }
  return -1;
}

static int node(const Ranks *r, int rank, int row, int end)
{
  return (rank * r->n_rows + row) * 2 + end;
}

static void link_nodes(Arena *arena, Ranks *r, int from, int to)
{
  if (r->n_edges == r->max_edges) {
    int max = r->max_edges ? 2 * r->max_edges : 1024;
    Edge *edges = arena_new_array(arena, Edge, (size_t)max);
    if (r->edges) {
      memcpy(edges, r->edges, (size_t)r->n_edges * sizeof *edges);
    }
    r->edges = edges;
    r->max_edges = max;
  }
  r->edges[r->n_edges] = (Edge){from, to, r->head[from]};
  r->head[from] = r->n_edges++;
  r->degree[to]++;
}

static bool holds(const Ranks *r, int rank, const MoeOp *op, int index)
{
  const Plan *plan = r->plan;
  const Spec *spec = r->spec;
  int g = group_of(r, rank), local = rank % plan->replica_ranks, head = spec->model.layers;
  bool held = false;
  for (int way = 0; way < plan->ways; way++) {
    switch (op->bucket) {
    case MOE_BUCKET_EMBED:
      held |= g == plan_att(spec, plan, way, 0) || (spec->model.tied && g == plan_att(spec, plan, way, head));
      break;
    case MOE_BUCKET_HEAD:
      held |= g == plan_att(spec, plan, way, head);
      break;
    case MOE_BUCKET_ATT:
      held |= g == plan_att(spec, plan, way, op->layer);
      break;
    case MOE_BUCKET_GAIN:
      held |= g == plan_att(spec, plan, way, op->layer) || g == plan_ffn(spec, plan, way, op->layer);
      break;
    case MOE_BUCKET_SHARED:
      held |= spec->model.moe.shared > 0 && g == plan_ffn(spec, plan, way, op->layer);
      break;
    default:
      held |= g == plan_ffn(spec, plan, way, op->layer) && local - plan->groups[g].first_rank == index;
      break;
    }
  }
  return held;
}

/* Does the message row of `rank` have a message to or from `peer`? */
static bool meets(const Ranks *r, int rank, int peer, const MoeOp *op)
{
  const Plan *plan = r->plan;
  int g = group_of(r, rank), per = plan->replica_ranks, index = rank % per - plan->groups[g].first_rank;
  switch (moe_edge_pairs(op->edge)) {
  case MOE_PAIRS_GROUPS:
    return rank / per == peer / per && group_of(r, peer) == op->peer;
  case MOE_PAIRS_NODE:
    return rank / per == peer / per && group_of(r, peer) == g &&
           (rank / per * per + plan->seat[rank % per]) / plan->ranks_per_node ==
               (peer / per * per + plan->seat[peer % per]) / plan->ranks_per_node;
  case MOE_PAIRS_HOLDERS:
    return rank != peer && holds(r, rank, op, index) && holds(r, peer, op, index);
  default:
    return ((op->edge == MOE_EDGE_SCALARS_UP) == (op->kind == MOE_OP_SEND) ? peer == 0 : rank == 0) && rank != peer;
  }
}

static int next_message(const Ranks *r, int rank, int peer, MoeOpKind kind, int row)
{
  const SchedGroup *group = &r->sched->groups[group_of(r, rank)];
  while (row < group->n_ops && !(group->ops[row].kind == kind && meets(r, rank, peer, &group->ops[row]))) {
    row++;
  }
  return row;
}

static bool link_pair(Arena *arena, Ranks *r, int src, int dst)
{
  const SchedGroup *from = &r->sched->groups[group_of(r, src)], *to = &r->sched->groups[group_of(r, dst)];
  int send = next_message(r, src, dst, MOE_OP_SEND, 0), recv = next_message(r, dst, src, MOE_OP_RECV, 0), last = -1;
  while (send < from->n_ops && recv < to->n_ops) {
    const MoeOp *a = &from->ops[send], *b = &to->ops[recv];
    if (a->edge != b->edge || a->layer != b->layer || a->mb != b->mb || a->bucket != b->bucket || a->slot != b->slot ||
        a->use != b->use || a->chunk != b->chunk) {
      return false;
    }
    int part = r->n_nodes++;
    link_nodes(arena, r, node(r, src, send, 0), part);
    link_nodes(arena, r, part, node(r, src, send, 1));
    link_nodes(arena, r, part, node(r, dst, recv, 1));
    if (last >= 0) {
      link_nodes(arena, r, last, part);
    }
    last = part;
    send = next_message(r, src, dst, MOE_OP_SEND, send + 1);
    recv = next_message(r, dst, src, MOE_OP_RECV, recv + 1);
  }
  return send == from->n_ops && recv == to->n_ops;
}

static bool acyclic(Arena *arena, const Ranks *r)
{
  int *queue = arena_new_array(arena, int, (size_t)r->n_nodes), head = 0, tail = 0;
  int *degree = arena_new_array(arena, int, (size_t)r->n_nodes);
  memcpy(degree, r->degree, (size_t)r->n_nodes * sizeof *degree);
  for (int i = 0; i < r->n_nodes; i++) {
    if (degree[i] == 0) {
      queue[tail++] = i;
    }
  }
  while (head < tail) {
    for (int e = r->head[queue[head++]]; e >= 0; e = r->edges[e].next) {
      if (--degree[r->edges[e].to] == 0) {
        queue[tail++] = r->edges[e].to;
      }
    }
  }
  return tail == r->n_nodes;
}

Ranks *ranks_new(Arena *arena, const Spec *spec, const Plan *plan, const Schedule *sched)
{
  Ranks *r = arena_new_of(arena, Ranks);
  *r = (Ranks){.spec = spec, .plan = plan, .sched = sched, .n_ranks = plan->replicas * plan->replica_ranks};
  for (int g = 0; g < sched->n_groups; g++) {
    r->n_rows = sched->groups[g].n_ops > r->n_rows ? sched->groups[g].n_ops : r->n_rows;
  }
  r->n_nodes = 2 * r->n_ranks * r->n_rows;
  r->max_nodes = r->n_nodes + r->n_ranks * r->n_ranks * r->n_rows;
  r->head = arena_new_array(arena, int, (size_t)r->max_nodes);
  r->degree = arena_new_array(arena, int, (size_t)r->max_nodes);
  memset(r->head, -1, (size_t)r->max_nodes * sizeof *r->head);
  for (int rank = 0; rank < r->n_ranks; rank++) {
    const SchedGroup *group = &sched->groups[group_of(r, rank)];
    for (int row = 0, compute = -1; row < group->n_ops; row++) {
      const MoeOp *op = &group->ops[row];
      link_nodes(arena, r, node(r, rank, row, 0), node(r, rank, row, 1));
      for (int k = 0; k < MOE_MAX_WAITS; k++) {
        if (op->wait[k] >= 0) {
          link_nodes(arena, r, node(r, rank, op->wait[k], 1), node(r, rank, row, 0));
        }
      }
      if (op->stream == MOE_STREAM_FWD || op->stream == MOE_STREAM_BWD) {
        if (compute >= 0) {
          link_nodes(arena, r, node(r, rank, compute, 1), node(r, rank, row, 0));
        }
        compute = row;
      }
    }
  }
  for (int src = 0; src < r->n_ranks; src++) {
    for (int dst = 0; dst < r->n_ranks; dst++) {
      if (!link_pair(arena, r, src, dst)) {
        return NULL;
      }
    }
  }
  return acyclic(arena, r) ? r : NULL;
}

static bool reaches(Arena *arena, const Ranks *r, int from, int to)
{
  bool *seen = arena_new_array(arena, bool, (size_t)r->n_nodes);
  int *stack = arena_new_array(arena, int, (size_t)r->n_nodes), n = 0;
  stack[n++] = from;
  seen[from] = true;
  while (n > 0 && !seen[to]) {
    for (int e = r->head[stack[--n]]; e >= 0; e = r->edges[e].next) {
      if (!seen[r->edges[e].to]) {
        seen[r->edges[e].to] = true;
        stack[n++] = r->edges[e].to;
      }
    }
  }
  return seen[to];
}

/* A message row is over when all its messages are, whether or not anybody on its rank asks. */
static bool over(Arena *arena, const Ranks *r, int rank, int first, int begin)
{
  int end = node(r, rank, first, 1), messages = 0;
  if (reaches(arena, r, end, begin)) {
    return true;
  }
  for (int e = 0; e < r->n_edges; e++) {
    if (r->edges[e].to == end && r->edges[e].from >= 2 * r->n_ranks * r->n_rows) {
      messages++;
      if (!reaches(arena, r, r->edges[e].from, begin)) {
        return false;
      }
    }
  }
  return messages > 0;
}

bool ranks_before(Arena *arena, const Ranks *r, int group, int first, int second)
{
  for (int rank = 0; rank < r->n_ranks; rank++) {
    if (group_of(r, rank) == group && !over(arena, r, rank, first, node(r, rank, second, 0))) {
      return false;
    }
  }
  return true;
}
