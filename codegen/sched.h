/* Schedule: the op table of every plan group, in the runtime's own rows, with modelled times. Generators give the order
   of compute ops per group; shared passes add messages, buffers and the optimizer's part. */
#ifndef CODEGEN_SCHED_H
#define CODEGEN_SCHED_H

#include "codegen/plan.h"
#include "runtime/moe_bundle.h"
#include "runtime/moe_ops.h"

typedef struct SchedGroup {
  MoeOp *ops;
  int n_ops;
  int64_t *start_ns; /* modelled, per op */
  int64_t *end_ns;
  int att_saved, att_work, ffn_saved, ffn_work; /* slots in each pool */
} SchedGroup;

typedef struct Schedule {
  SchedGroup *groups; /* one per plan group */
  int n_groups;
  MoeChan *chans;
  int n_chans;
  int64_t pipe_ns; /* end of the micro-batches' last op; the rest of the step is gradient exchange and optimizer */
  int64_t step_ns;
  int in_flight; /* peak, as scheduled */
} Schedule;

/* Sequences of a micro-batch on the replica that has most of them: those of a full one but for the last, if the global
   batch is no multiple. Its ops and messages take what they would in a plan with that many in every micro-batch. */
int sched_mb_seqs(const Plan *, int mb);

/* Builds the schedule for a plan; micro-batches, in-flight cap and times come from the plan and the cost model. */
bool sched_build(Arena *, Diag *, const Spec *, const Plan *, Schedule *);

/* Step time by one order alone, of those that sched_build would try first: 0 .. SCHED_FIRST_ORDERS - 1; of colocated
   systems there is one. 0 after an error. tail: with the end of the step; else of its micro-batches alone, and without
   the work of making tables. */
enum { SCHED_FIRST_ORDERS = 2 };
int64_t sched_order_ns(Diag *, const Spec *, const Plan *, int order, bool tail);

/* Modelled times of the micro-batches' part of a step (Schedule.pipe_ns) that no order can beat: the longest path of
   one micro-batch; the time that micro-batches hold saved slots, over the slots that there are; the busiest group's
   compute, and the busiest port or link between groups, each with what must come before its first and after its last
   use. `ns` is the largest. */
typedef struct SchedBound {
  int64_t path_ns, flight_ns, compute_ns, link_ns, ns;
} SchedBound;
SchedBound sched_bound(const Spec *, const Plan *);

/* Checks any schedule, whoever made it: every (layer, micro-batch) once and after its inputs; messages of a pair in the
   same order and of equal class on both sides; termination when every send waits for its receive; slots never in two
   hands and within the counts; a symbolic run in which every output holds exactly the promised (token, expert) terms
   and its residual once. Reports what it finds and returns false. Nothing is built from a schedule that fails. */
bool sched_check(Diag *, const Spec *, const Plan *, const Schedule *);

/* Fills the memory of the plan's groups with what the schedule's slots take: what ranks allocate. The plan's own
   numbers have room for any schedule of it. */
void sched_memory(const Spec *, const Schedule *, Plan *);

void sched_print(const Spec *, const Plan *, const Schedule *, FILE *); /* one line per group */
/* The compute orders alone: stages per pipeline rank, or layers per group; one line each, see stage_print(). */
void sched_print_orders(const Spec *, const Plan *, const Schedule *, FILE *);
void sched_print_json(const Spec *, const Plan *, const Schedule *, FILE *);
void sched_print_trace(const Spec *, const Plan *, const Schedule *, FILE *); /* Chrome trace events */

/* What messages can number: 8 bits of layer and 12 of micro-batch; and layers times micro-batches, by the time and
   memory that a schedule takes: half a minute and 1 GiB at this many. GPUs: by the time that the search for a plan
   takes. */
enum { SCHED_MAX_LAYERS = 255, SCHED_MAX_MBS = 4096, SCHED_MAX_PASSES = 1 << 17, SCHED_MAX_GPUS = 1 << 17 };

/* Whether any plan of a shape keeps within that, before one is looked for; false after an error. */
bool sched_in_bounds(Diag *, const Spec *, const ShapeSpec *);
/* step_limit.c: whether its times are numbers of nanoseconds that can be added; false after an error. */
bool sched_in_time(Diag *, const Spec *, const ShapeSpec *);

void sched_print_svg(const Spec *, const Plan *, const Schedule *, FILE *); /* picture of the modelled timeline */

#endif
