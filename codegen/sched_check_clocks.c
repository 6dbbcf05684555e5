/* Clocks: which rows of a group are over, in every possible run, when another row of the same rank begins. The replay
   is one run among many, so this needs an order that holds in all: waits, compute order, and messages, per rank. A rank
   hears of its own sends only through answers.

   One rank of a group is observed. What another group's rank can know of it does not depend on which rank
   that is: all of them run one table, hear from the same ranks and from themselves. So every other group is played by
   one rank; a message of the observed rank to such a group is over once that rank is known to have it, because whoever
   hears from one rank of a group in the same row hears from all. The observed group is played by the observed rank, one
   for its node mates, and, where it has both messages within nodes and messages to all of its ranks, one for the ranks
   of other nodes, which a message within the node says nothing about. */
#include "codegen/sched_check_int.h"

#include <string.h>

/* Played ranks of the observed group. */
enum { OBSERVED, MATE, FAR, MAX_PLAYED };

/* A row of the micro-batches as the walk wants it, in the order of the replay. */
typedef struct Step {
  int32_t row, group;
  int32_t part; /* of a message, else -1 */
  int32_t first_wait;
  uint8_t n_waits;
  bool compute, send;
} Step;

struct CheckSteps {
  int32_t n;
  Step *steps;
  int32_t *waits;   /* rows */
  int32_t *pair_of; /* [parts] number of the ordered pair of groups */
  int32_t n_pairs;
  /* Room of the walks, kept from one to the next. Clocks lie in the order of the replay, as they are needed. */
  Arena *arena;
  int32_t *row_at;  /* [rows] first clock of a row */
  int32_t *part_at; /* [parts] */
  int32_t *clocks;
  size_t room;
};

/* An observed group. Of its components in a clock the first counts the observed rank's compute ops, the others its
   messages to a group: one for another group, one per played rank for its own. */
typedef struct Observed {
  int at, dims;     /* its components */
  int *peer;        /* [groups] component of messages to a group, counted from `at`, or 0 */
  int32_t *begin;   /* [rows of the group][dims] what is over when a row of the observed rank begins */
  int32_t *compute; /* [rows of the group] number of the compute op, from 1 */
} Observed;

/* Of several groups at once, whose components stand side by side, as far as memory allows. */
struct CheckClocks {
  const Check *c;
  int first, end;     /* the observed groups */
  Observed *observed; /* [end - first] */
  int *played;        /* [groups] ranks that play a group */
  int dims;           /* of a clock, all components */
};

typedef struct Walk {
  CheckClocks *clocks;
  const CheckSteps *steps;
  int32_t *ends; /* [clocks][dims] of each played rank of a row: what is over when it ends; of each of a part: what its
                    sender knows */
  int32_t *pair; /* [pairs][MAX_PLAYED][dims] what the latest message of a pair knows */
  int32_t *latest; /* [groups][MAX_PLAYED][dims] latest compute op */
} Walk;

enum {
  LANES = 4,
  CLOCK_BYTES = 48 << 20
}; /* dims are a multiple of LANES; clocks of one walk, unless one group's need more */

CheckSteps *check_steps(Arena *arena, const Check *c)
{
  CheckSteps *s = arena_new_of(arena, CheckSteps);
  int32_t rows = c->base[c->n_groups], n_waits = 0;
  s->steps = arena_new_array(arena, Step, (size_t)rows);
  s->pair_of = arena_new_array(arena, int32_t, (size_t)c->n_parts + 1);
  s->row_at = arena_new_array(arena, int32_t, (size_t)rows);
  s->part_at = arena_new_array(arena, int32_t, (size_t)c->n_parts + 1);
  s->arena = arena_new();
  for (int32_t row = 0; row < rows; row++) {
    for (int k = 0; k < MOE_MAX_WAITS; k++) {
      n_waits += check_op(c, row)->wait[k] >= 0;
    }
  }
  s->waits = arena_new_array(arena, int32_t, (size_t)n_waits + 1);
  n_waits = 0;
  for (int32_t i = 0; i < rows; i++) {
    int32_t row = c->order[i];
    const MoeOp *op = check_op(c, row);
    if (op->mb < 0) {
      continue; /* nothing of the tail is asked about but compute order and waits */
    }
    Step *step = &s->steps[s->n++];
    *step = (Step){.row = row, .group = c->group[row], .part = -1, .first_wait = n_waits};
    step->compute = check_is_compute(op);
    step->send = op->kind == MOE_OP_SEND;
    if (c->first_part[row] < c->first_part[row + 1]) {
      step->part = c->part_ids[c->first_part[row]]; /* one peer group, one part */
    }
    for (int k = 0; k < MOE_MAX_WAITS; k++) {
      if (op->wait[k] >= 0) {
        s->waits[n_waits++] = c->base[step->group] + op->wait[k];
        step->n_waits++;
      }
    }
  }
  for (int32_t i = 0; i < c->n_parts; i++) {
    s->n_pairs += c->parts[i].nth == 0;
    s->pair_of[i] = s->n_pairs - 1;
  }
  return s;
}

void check_steps_free(CheckSteps *s)
{
  arena_free(s->arena);
}

static inline void join(int32_t *restrict into, const int32_t *restrict from, int dims)
{
  for (int i = 0; i < dims; i += LANES) {
    for (int k = 0; k < LANES; k++) {
      into[i + k] = from[i + k] > into[i + k] ? from[i + k] : into[i + k];
    }
  }
}

static inline void raise_to(int32_t *clock, int32_t value)
{
  *clock = value > *clock ? value : *clock;
}

/* NULL if the group is not observed in this walk. */
static inline const Observed *observed(const CheckClocks *k, int group)
{
  return group >= k->first && group < k->end ? &k->observed[group - k->first] : NULL;
}

static inline int32_t *end_of(const Walk *w, int32_t row, int rank)
{
  return &w->ends[(size_t)(w->steps->row_at[row] + rank) * (size_t)w->clocks->dims];
}

static inline int32_t *part_of(const Walk *w, int32_t part, int rank)
{
  return &w->ends[(size_t)(w->steps->part_at[part] + rank) * (size_t)w->clocks->dims];
}

static bool within_node(const Check *c, const CheckPart *part)
{
  return moe_edge_pairs(check_op(c, part->send)->edge) == MOE_PAIRS_NODE;
}

/* Played ranks between which a message of an observed group to itself goes. */
static bool meet(bool node, int from, int to)
{
  return !node || (from == FAR) == (to == FAR);
}

/* What the observed rank's message says besides what its sender knew: that it is there. */
static void mark(const Observed *o, int32_t *clock, const CheckPart *part, int to)
{
  raise_to(&clock[o->at + o->peer[part->dst] + (part->dst == part->src ? to : 0)], part->nth + 1);
}

static void walk_send(Walk *w, const Step *step, int rank, int32_t *end)
{
  CheckClocks *k = w->clocks;
  const CheckPart *part = &k->c->parts[step->part];
  const Observed *o = observed(k, part->src);
  size_t bytes = (size_t)k->dims * sizeof *end;
  int32_t *pair = &w->pair[((size_t)w->steps->pair_of[step->part] * MAX_PLAYED + (size_t)rank) * (size_t)k->dims];
  join(pair, end, k->dims);
  memcpy(part_of(w, step->part, rank), pair, bytes);
  memcpy(end, pair, bytes);
  if (!o || rank != OBSERVED) {
    return;
  }
  bool own = part->dst == part->src, node = own && within_node(k->c, part);
  for (int to = 0; to < (own ? k->played[part->dst] : 1); to++) {
    if (meet(node, rank, to)) {
      mark(o, end, part, to);
    }
  }
}

static void walk_recv(Walk *w, const Step *step, int rank, int32_t *end)
{
  CheckClocks *k = w->clocks;
  const CheckPart *part = &k->c->parts[step->part];
  const Observed *o = observed(k, part->src);
  bool node = o && part->dst == part->src && within_node(k->c, part);
  for (int from = 0; from < k->played[part->src]; from++) {
    if (!meet(node, from, rank)) {
      continue;
    }
    join(end, part_of(w, step->part, from), k->dims);
    if (o && from == OBSERVED) {
      mark(o, end, part, rank);
    }
  }
}

static void walk_step(Walk *w, const Step *step, int rank)
{
  CheckClocks *k = w->clocks;
  size_t bytes = (size_t)k->dims * sizeof *w->ends;
  int32_t *end = end_of(w, step->row, rank);
  int32_t *latest = &w->latest[((size_t)step->group * MAX_PLAYED + (size_t)rank) * (size_t)k->dims];
  const int32_t *waits = &w->steps->waits[step->first_wait];
  const Observed *o = rank == OBSERVED ? observed(k, step->group) : NULL;
  memset(end, 0, bytes);
  for (int i = 0; i < step->n_waits; i++) {
    join(end, end_of(w, waits[i], rank), k->dims);
  }
  if (step->compute) {
    join(end, latest, k->dims);
  }
  if (o) {
    size_t at = (size_t)(step->row - k->c->base[step->group]);
    memcpy(&o->begin[at * (size_t)o->dims], &end[o->at], (size_t)o->dims * sizeof *end);
    end[o->at] = step->compute ? o->compute[at] : end[o->at];
  }
  if (step->compute) {
    memcpy(latest, end, bytes);
  }
  if (step->part >= 0 && step->send) {
    walk_send(w, step, rank, end);
  } else if (step->part >= 0) {
    walk_recv(w, step, rank, end);
  }
}

/* Components of a group and the ranks that play it while it is observed: by what messages it has. */
static int set_up(const Check *c, int group, Observed *o)
{
  const PlanGroup *ranks = &c->plan->groups[group];
  bool own = false, node = false, spread = false;
  o->dims = 1;
  for (int32_t row = c->base[group]; row < c->base[group + 1]; row++) {
    const MoeOp *op = check_op(c, row);
    if (op->kind != MOE_OP_SEND || op->mb < 0) {
      continue;
    }
    if (op->peer != group && !o->peer[op->peer]) {
      o->peer[op->peer] = o->dims++;
    } else if (op->peer == group) {
      bool within = moe_edge_pairs(op->edge) == MOE_PAIRS_NODE;
      own |= !within;
      node |= within;
    }
  }
  for (int q = 0; q < c->plan->replicas; q++) {
    int first = q * c->plan->replica_ranks + ranks->first_rank;
    spread |= plan_node_of(c->plan, first) != plan_node_of(c->plan, first + ranks->n_ranks - 1);
  }
  int played = ranks->n_ranks == 1 ? 1 : own && node && spread ? MAX_PLAYED : MATE + 1;
  o->peer[group] = o->dims;
  o->dims += own || node ? played : 0;
  return played;
}

/* Takes groups from `first` on while their clocks fit. */
static void choose(Arena *arena, CheckClocks *k)
{
  const Check *c = k->c;
  int64_t clocks = c->base[c->n_groups] + c->n_parts, dims = 0;
  k->observed = arena_new_array(arena, Observed, (size_t)(c->n_groups - k->first));
  k->played = arena_new_array(arena, int, (size_t)c->n_groups);
  for (int g = 0; g < c->n_groups; g++) {
    k->played[g] = 1;
  }
  for (k->end = k->first; k->end < c->n_groups; k->end++) {
    Observed *o = &k->observed[k->end - k->first];
    o->peer = arena_new_array(arena, int, (size_t)c->n_groups);
    int played = set_up(c, k->end, o);
    int64_t more = clocks + (int64_t)(played - 1) * 2 * (c->base[k->end + 1] - c->base[k->end]);
    if (k->end > k->first && more * (dims + o->dims) * (int64_t)sizeof(int32_t) > CLOCK_BYTES) {
      break;
    }
    clocks = more;
    k->played[k->end] = played;
    o->at = (int)dims;
    dims += o->dims;
  }
  k->dims = (int)(dims + LANES - 1) / LANES * LANES;
}

/* Lays the clocks of a walk out and makes room for them. */
static void lay_out(CheckSteps *s, const CheckClocks *k)
{
  int32_t n = MAX_PLAYED; /* the first: of a row outside the micro-batches, of which nothing is known */
  for (int32_t i = 0; i < s->n; i++) {
    const Step *step = &s->steps[i];
    s->row_at[step->row] = n;
    n += k->played[step->group];
    if (step->part >= 0 && step->send) {
      s->part_at[step->part] = n;
      n += k->played[step->group];
    }
  }
  size_t need = (size_t)n * (size_t)k->dims;
  if (need > s->room) {
    arena_free(s->arena);
    s->arena = arena_new();
    s->clocks = arena_new_array(s->arena, int32_t, need);
    s->room = need;
  }
  memset(s->clocks, 0, MAX_PLAYED * (size_t)k->dims * sizeof *s->clocks);
}

CheckClocks *check_clocks(Arena *arena, const Check *c, CheckSteps *steps, int first, int *end)
{
  CheckClocks *k = arena_new_of(arena, CheckClocks);
  *k = (CheckClocks){.c = c, .first = first};
  choose(arena, k);
  for (int g = k->first; g < k->end; g++) {
    Observed *o = &k->observed[g - k->first];
    size_t rows = (size_t)(c->base[g + 1] - c->base[g]);
    int32_t n = 0;
    o->begin = arena_new_array(arena, int32_t, rows * (size_t)o->dims);
    o->compute = arena_new_array(arena, int32_t, rows);
    for (size_t i = 0; i < rows; i++) {
      o->compute[i] = check_is_compute(check_op(c, c->base[g] + (int32_t)i)) ? ++n : n;
    }
  }
  Arena *scratch = arena_new();
  size_t each = MAX_PLAYED * (size_t)k->dims;
  lay_out(steps, k);
  Walk w = {.clocks = k, .steps = steps, .ends = steps->clocks};
  w.pair = arena_new_array(scratch, int32_t, (size_t)steps->n_pairs * each);
  w.latest = arena_new_array(scratch, int32_t, (size_t)c->n_groups * each);
  for (int32_t i = 0; i < steps->n; i++) {
    const Step *step = &steps->steps[i];
    for (int rank = 0; rank < k->played[step->group]; rank++) {
      walk_step(&w, step, rank);
    }
  }
  arena_free(scratch);
  *end = k->end;
  return k;
}

/* Messages of a SEND that are over when `clock` is read: all of them, or at least one. */
static bool sent(const CheckClocks *k, int32_t row, const int32_t *clock, bool all)
{
  const Check *c = k->c;
  int over = 0, n = 0;
  for (int32_t p = c->first_part[row]; p < c->first_part[row + 1]; p++) {
    const CheckPart *part = &c->parts[c->part_ids[p]];
    bool own = part->dst == part->src, node = own && within_node(c, part);
    int peer = observed(k, c->group[row])->peer[part->dst];
    for (int to = 0; part->send == row && to < (own ? k->played[part->dst] : 1); to++) {
      if (meet(node, OBSERVED, to)) {
        over += clock[peer + to] > part->nth;
        n++;
      }
    }
  }
  return all ? n > 0 && over == n : over > 0;
}

bool check_before(const CheckClocks *k, int32_t first, int32_t second)
{
  const Check *c = k->c;
  const MoeOp *a = check_op(c, first), *b = check_op(c, second);
  int base = c->base[c->group[second]];
  const Observed *o = observed(k, c->group[second]);
  const int32_t *clock = &o->begin[(size_t)(second - base) * (size_t)o->dims];
  if (first == second) {
    return false;
  }
  for (int i = 0; i < MOE_MAX_WAITS; i++) {
    if (b->wait[i] >= 0 && base + b->wait[i] == first) {
      return true;
    }
  }
  if (check_is_compute(a)) {
    return clock[0] >= o->compute[first - base];
  }
  if (a->kind == MOE_OP_SEND) {
    return sent(k, first, clock, true);
  }
  /* RECV, RELAY, NODE_REDUCE: over once a row that waited for it has begun, which one message of a SEND shows */
  for (int i = 0; i < 2; i++) {
    int32_t waiter = c->waiters[2 * first + i];
    if (waiter >= 0 && (check_before(k, waiter, second) ||
                        (check_op(c, waiter)->kind == MOE_OP_SEND && sent(k, waiter, clock, false)))) {
      return true;
    }
  }
  return false;
}
