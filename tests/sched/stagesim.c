#include "tests/sched/stagesim.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

StageOrder *stagesim_orders(Arena *arena, const StageIn *in)
{
  const char *why = stage_refuses(arena, in);
  if (why) {
    print_error("%s\n", why);
  }
  assert_null(why);
  return stage_orders(arena, in);
}

typedef struct Pipe {
  const StageIn *in;
  const StageOrder *orders;
  const StagesimTimes *times;
  int stages;
  int *rank_of;  /* [2 directions][stages] */
  int64_t *done; /* [2: forward, backward][stages][micro-batches]; -1: not yet */
} Pipe;

static int64_t *done(const Pipe *pipe, bool backward, int stage, int mb)
{
  return &pipe->done[((backward ? pipe->stages : 0) + stage) * pipe->in->micro_batches + mb];
}

static bool other_way(const StageIn *in, int mb)
{
  return in->system == SYSTEM_DUALPIPE && mb >= in->micro_batches / 2;
}

/* When the step's inputs are there, or -1. */
static int64_t inputs(const Pipe *pipe, const StageStep *s)
{
  bool backward = s->op != STAGE_F;
  const int *rank_of = &pipe->rank_of[other_way(pipe->in, s->mb) ? pipe->stages : 0];
  int from = backward ? s->stage + 1 : s->stage - 1;
  int64_t at = backward ? *done(pipe, false, s->stage, s->mb) : 0;
  if (s->op == STAGE_W) {
    return *done(pipe, true, s->stage, s->mb);
  }
  if (at >= 0 && from >= 0 && from < pipe->stages) {
    int64_t end = *done(pipe, backward, from, s->mb);
    if (end < 0) {
      return -1;
    }
    end += rank_of[from] != rank_of[s->stage] ? pipe->times->hop : 0;
    at = end > at ? end : at;
  }
  return at;
}

static int64_t duration(const Pipe *pipe, const StageStep *s)
{
  const StagesimTimes *t = pipe->times;
  return s->with_next ? t->pair : s->op == STAGE_F ? t->f : s->op == STAGE_B ? t->b : s->op == STAGE_I ? t->i : t->w;
}

/* Runs as many steps of a rank as can run; returns how many. */
static int run_rank(Pipe *pipe, int rank, int *at, int64_t *now)
{
  const StageOrder *order = &pipe->orders[rank];
  int from = *at;
  while (*at < order->n) {
    const StageStep *s = &order->steps[*at];
    int n = s->with_next ? 2 : 1;
    int64_t start = *now;
    for (int k = 0; k < n; k++) {
      int64_t in = inputs(pipe, &s[k]);
      if (in < 0) {
        return *at - from;
      }
      start = in > start ? in : start;
    }
    *now = start + duration(pipe, s);
    for (int k = 0; k < n; k++) {
      if (s[k].op != STAGE_W) {
        assert_int_equal(*done(pipe, s[k].op != STAGE_F, s[k].stage, s[k].mb), -1);
        *done(pipe, s[k].op != STAGE_F, s[k].stage, s[k].mb) = *now;
      }
    }
    *at += n;
  }
  return *at - from;
}

int64_t stagesim(const StageIn *in, const StagesimTimes *times)
{
  Arena *arena = arena_new();
  int p = in->ranks, stages = stage_count(in), left = 0;
  Pipe pipe = {.in = in, .orders = stagesim_orders(arena, in), .times = times, .stages = stages};
  size_t n_done = 2 * (size_t)stages * (size_t)in->micro_batches;
  pipe.rank_of = arena_new_array(arena, int, 2 * (size_t)stages);
  pipe.done = arena_new_array(arena, int64_t, n_done);
  memset(pipe.done, -1, n_done * sizeof *pipe.done);
  memset(pipe.rank_of, -1, 2 * (size_t)stages * sizeof *pipe.rank_of);
  for (int rank = 0; rank < p; rank++) {
    left += pipe.orders[rank].n;
    for (int i = 0; i < pipe.orders[rank].n; i++) {
      const StageStep *s = &pipe.orders[rank].steps[i];
      int *holder = &pipe.rank_of[(other_way(in, s->mb) ? stages : 0) + s->stage];
      assert_true(*holder < 0 || *holder == rank); /* a stage has one place per direction */
      *holder = rank;
    }
  }
  int *at = arena_new_array(arena, int, (size_t)p);
  int64_t *now = arena_new_array(arena, int64_t, (size_t)p), end = 0;
  for (int moved = 1; moved; left -= moved) {
    moved = 0;
    for (int rank = 0; rank < p; rank++) {
      moved += run_rank(&pipe, rank, &at[rank], &now[rank]);
      end = now[rank] > end ? now[rank] : end;
    }
  }
  assert_int_equal(left, 0);
  for (size_t i = 0; i < n_done; i++) { /* every forward and backward once */
    assert_true(pipe.done[i] >= 0);
  }
  arena_free(arena);
  return end;
}
