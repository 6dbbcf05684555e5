/* What kinds of damage share. */
#ifndef TESTS_SCHED_DAMAGE_INT_H
#define TESTS_SCHED_DAMAGE_INT_H

#include "tests/sched/damage.h"

static inline bool is_compute(const MoeOp *op)
{
  return op->stream == MOE_STREAM_FWD || op->stream == MOE_STREAM_BWD;
}

static inline bool is_message(const MoeOp *op)
{
  return op->kind == MOE_OP_SEND || op->kind == MOE_OP_RECV;
}

/* Waits and releases follow the rows they name. */
void drop_row(SchedGroup *, int at);
void copy_row(SchedGroup *, int at);        /* the copy is the row below, and releases nothing */
void swap_rows(SchedGroup *, int a, int b); /* the times stay where they are */
/* The next row of the micro-batches of this kind, or -1. */
int next_like(const SchedGroup *, int at, bool same_peer);

#endif
