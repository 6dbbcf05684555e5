/* Parts of the schedule's checker. It reads Spec, Plan and the rows of a Schedule, and shares nothing with the passes
   that make schedules: who should do what is written down a second time here, from the dataflow of a layer. */
#ifndef CODEGEN_SCHED_CHECK_INT_H
#define CODEGEN_SCHED_CHECK_INT_H

#include "codegen/sched.h"

/* What a row of the micro-batches is: op kind, and the edge where that is not enough. */
enum { WHAT_SEND = MOE_OP_COUNT, WHAT_RECV = WHAT_SEND + MOE_EDGE_COUNT, WHAT_REDUCE = WHAT_RECV + MOE_EDGE_COUNT };
enum { WHAT_COUNT = WHAT_REDUCE + MOE_EDGE_COUNT };

/* One message between two groups: one send row and one receive row, by number over all groups. */
typedef struct CheckPart {
  int32_t send, recv;
  int32_t src, dst; /* groups */
  int32_t nth;      /* of its ordered pair of groups */
} CheckPart;

typedef struct Check {
  Diag *diag;
  const Spec *spec;
  const Plan *plan;
  const Schedule *sched;
  Arena *arena;
  int n_layers, n_mbs, n_groups, n_ways, n_chunks, root;
  int reported;
  int *base;                       /* [groups + 1] number of a group's row 0 */
  int32_t *group;                  /* [rows] */
  uint8_t *traits;                 /* [ways][layers + 1] sets of LAYER_* */
  int32_t *row_of;                 /* of each what: [layers + 1][mbs][chunks, or 1] row number, or -1 */
  size_t first_of[WHAT_COUNT + 1]; /* where a what begins in row_of */
  CheckPart *parts;
  int n_parts;
  int32_t *first_part; /* [rows + 1] parts of a message row, in part_ids */
  int32_t *part_ids;
  int32_t *releaser; /* [rows] row that gives a RECV's slots back, or -1 */
  int32_t *order;    /* [rows] rows as they finished in the replay */
  int32_t *waiters;  /* [rows][2] first two rows that wait for a row, or -1 */
} Check;

static inline const MoeOp *check_op(const Check *c, int32_t row)
{
  int32_t g = c->group[row];
  return &c->sched->groups[g].ops[row - c->base[g]];
}

/* How a layer's output gets on, by direction. */
enum {
  LAYER_DENSE = 1,
  LAYER_RELAYED = 2,
  LAYER_JOINED = 4, /* summed at its own group, and piped from there */
  LAYER_PIPED = 8,  /* dense or joined */
  LAYER_AGAIN = 16  /* only its input and lists are kept; its forward is run again */
};

/* Traits of a layer (or, at n_layers, of the head: none) for a micro-batch. */
static inline unsigned check_traits(const Check *c, int layer, int mb)
{
  return c->traits[plan_way(c->plan, mb) * (c->n_layers + 1) + layer];
}

static inline bool check_is_compute(const MoeOp *op)
{
  return op->stream == MOE_STREAM_FWD || op->stream == MOE_STREAM_BWD;
}

static inline bool check_is_message(const MoeOp *op)
{
  return op->kind == MOE_OP_SEND || op->kind == MOE_OP_RECV;
}

/* Reports about a row: "group F0 op 12 SEND COMBINE layer 1 micro-batch 0: ...". After a score of errors it only
 * counts. */
void check_fail(Check *, int32_t row, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* The same without a row. */
void check_fail_all(Check *, const char *format, ...) __attribute__((format(printf, 2, 3)));
const char *check_name(const Check *, int32_t row, char buffer[160]);
int check_what(const MoeOp *);
bool check_chunked(int what); /* exists once per chunk */
int32_t check_find(const Check *, int what, int layer, int mb, int chunk);
/* Ranks that hold a bucket (0: it does not exist), and its groups, each once; -1 fills up. */
enum { CHECK_MAX_HOLDERS = 4 };
int check_holders(const Check *, MoeBucketKind, int layer, int groups[CHECK_MAX_HOLDERS]);

/* Each returns false if it found an error; later ones rely on what earlier ones established. */
void check_layers(Check *);   /* traits; reports what no schedule can do */
bool check_rows(Check *);     /* fields in range, everything there once, where the plan wants it */
bool check_tail(Check *);     /* reduction, scalars, optimizer */
bool check_pairs(Check *);    /* both ends of every pair agree; slots and uses; releases */
bool check_replay(Check *);   /* terminates; fills order */
bool check_times(Check *);    /* modelled times fit the order */
bool check_dataflow(Check *); /* slots and contents */
bool check_terms(Check *);    /* token and expert terms of every layer, by ranks */

/* Order that holds in every run: rows of one group, as seen by one rank. */
typedef struct CheckSteps CheckSteps;   /* the rows, made once */
typedef struct CheckClocks CheckClocks; /* of a few observed groups */
CheckSteps *check_steps(Arena *, const Check *);
void check_steps_free(CheckSteps *);
/* Of groups from `first` to before *end, which it chooses. */
CheckClocks *check_clocks(Arena *, const Check *, CheckSteps *, int first, int *end);
/* Both rows of one of these groups. */
bool check_before(const CheckClocks *, int32_t first, int32_t second);

#endif
