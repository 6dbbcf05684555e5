/* How a schedule is taken apart: what every kind of damage is made of. */
#include "tests/sched/damage_int.h"

#include <string.h>

Schedule damage_copy(Arena *arena, const Schedule *s)
{
  Schedule c = *s;
  c.groups = arena_new_array(arena, SchedGroup, (size_t)s->n_groups);
  c.chans = arena_new_array(arena, MoeChan, (size_t)s->n_chans);
  memcpy(c.chans, s->chans, (size_t)s->n_chans * sizeof *s->chans);
  for (int g = 0; g < s->n_groups; g++) {
    size_t n = (size_t)s->groups[g].n_ops + 1; /* room for one more */
    c.groups[g] = s->groups[g];
    c.groups[g].ops = arena_new_array(arena, MoeOp, n);
    c.groups[g].start_ns = arena_new_array(arena, int64_t, n);
    c.groups[g].end_ns = arena_new_array(arena, int64_t, n);
    memcpy(c.groups[g].ops, s->groups[g].ops, (n - 1) * sizeof(MoeOp));
    memcpy(c.groups[g].start_ns, s->groups[g].start_ns, (n - 1) * sizeof(int64_t));
    memcpy(c.groups[g].end_ns, s->groups[g].end_ns, (n - 1) * sizeof(int64_t));
  }
  return c;
}

void damage_forget_times(Schedule *s)
{
  for (int g = 0; g < s->n_groups; g++) {
    memset(s->groups[g].start_ns, 0, (size_t)s->groups[g].n_ops * sizeof(int64_t));
    memset(s->groups[g].end_ns, 0, (size_t)s->groups[g].n_ops * sizeof(int64_t));
  }
  s->step_ns = s->pipe_ns = 0;
}

/* Takes row `at` out, or puts a copy of row `at` in front of row `to`; ids in waits and releases move along. */
static void renumber(SchedGroup *g, int from, int by, int gone)
{
  for (int i = 0; i < g->n_ops; i++) {
    for (int k = 0; k < MOE_MAX_WAITS; k++) {
      int32_t *ids[] = {&g->ops[i].wait[k], &g->ops[i].release[k]};
      for (int j = 0; j < 2; j++) {
        *ids[j] = *ids[j] == gone ? -1 : *ids[j] >= from ? *ids[j] + by : *ids[j];
      }
    }
  }
}

void drop_row(SchedGroup *g, int at)
{
  size_t n = (size_t)(g->n_ops - at - 1);
  memmove(&g->ops[at], &g->ops[at + 1], n * sizeof(MoeOp));
  memmove(&g->start_ns[at], &g->start_ns[at + 1], n * sizeof(int64_t));
  memmove(&g->end_ns[at], &g->end_ns[at + 1], n * sizeof(int64_t));
  g->n_ops--;
  renumber(g, at + 1, -1, at);
}

void copy_row(SchedGroup *g, int at)
{
  MoeOp op = g->ops[at];
  renumber(g, at + 1, 1, -2);
  size_t n = (size_t)(g->n_ops - at);
  memmove(&g->ops[at + 1], &g->ops[at], n * sizeof(MoeOp));
  memmove(&g->start_ns[at + 1], &g->start_ns[at], n * sizeof(int64_t));
  memmove(&g->end_ns[at + 1], &g->end_ns[at], n * sizeof(int64_t));
  g->n_ops++;
  g->ops[at + 1] = op;
  memset(g->ops[at + 1].release, -1, sizeof op.release);
}

void swap_rows(SchedGroup *g, int a, int b)
{
  MoeOp t = g->ops[a];
  g->ops[a] = g->ops[b];
  g->ops[b] = t;
  for (int i = 0; i < g->n_ops; i++) {
    for (int k = 0; k < MOE_MAX_WAITS; k++) {
      int32_t *ids[] = {&g->ops[i].wait[k], &g->ops[i].release[k]};
      for (int j = 0; j < 2; j++) {
        *ids[j] = *ids[j] == a ? b : *ids[j] == b ? a : *ids[j];
      }
    }
  }
}

int next_like(const SchedGroup *g, int at, bool same_peer)
{
  const MoeOp *op = &g->ops[at];
  for (int i = at + 1; i < g->n_ops; i++) {
    const MoeOp *other = &g->ops[i];
    if (other->kind == op->kind && other->mb >= 0 && (!same_peer || other->peer == op->peer)) {
      return i;
    }
  }
  return -1;
}
