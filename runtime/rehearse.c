/* All ranks begin a step at one time and meet when it has ended, so that its length can be compared with the simulated
   one: steps do not run into each other. */
#include "runtime/rehearse.h"

#include <math.h>

#include "runtime/emu.h"

/* Trials double the scale until a step's length changes by less than this from one to the next. */
#define SETTLED 0.01
enum { MOST_TRIALS = 5 };

typedef struct Rehearsal {
  MoeRun *run;
  MoeShapes *shapes;
  MoeExec *x; /* of the present step's shape */
  uint64_t meetings;
  MoeMeeting meeting; /* the last one */
} Rehearsal;

static void meet(Rehearsal *r, int64_t end_ns, int64_t late_ns)
{
  r->meeting = moe_emu_meet(r->x->shared, r->x->me.rank, r->meetings++, end_ns, late_ns);
}

/* Runs a step; every rank gets the same result. */
static MoeStatus run_step(Rehearsal *r, bool trace, MoeRehearsedStep *result)
{
  MoeExec *x = r->x;
  double scale = x->options.scale;
  MoeStep step = {.update = true, .trace = trace, .inv_tokens = 1, .begin_ns = r->meeting.next_ns};
  moe_sleep_until(step.begin_ns);
  MOE_TRY(moe_exec_step(x, &step));
  meet(r, x->at_ns > x->last_ns ? x->at_ns : x->last_ns, x->late_ns);
  *result = (MoeRehearsedStep){.executed_ns = (double)(r->meeting.end_ns - step.begin_ns) / scale,
                               .modelled_ns = x->bundle->emu->step_ns,
                               .late_ns = (double)r->meeting.late_ns / scale,
                               .scale = scale,
                               .real_ns = moe_now_ns() - step.begin_ns};
  return MOE_OK;
}

/* On a busy machine ops begin late. Lateness does not add up, but messages that are reported late share ports a little
   differently; the larger the scale, the less that matters. */
static MoeStatus settle(Rehearsal *r)
{
  double before = 0;
  for (int trial = 0; trial < MOST_TRIALS; trial++) {
    MoeRehearsedStep result;
    MOE_TRY(run_step(r, false, &result));
    if (fabs(result.executed_ns / before - 1) < SETTLED) {
      break;
    }
    before = result.executed_ns;
    for (int32_t i = 0; i < r->shapes->n; i++) {
      r->shapes->execs[i].options.scale *= trial + 1 < MOST_TRIALS ? 2 : 1;
    }
    if (r->x->me.rank == 0) { /* nothing is under way: all have met */
      moe_emu_network(r->x->bundle, r->x->options.scale, r->x->shared->pacer);
    }
    meet(r, 0, 0);
  }
  return MOE_OK;
}

/* The step with index t runs on its shape from here on. */
static MoeStatus use_shape(Rehearsal *r, int64_t t)
{
  return moe_shapes_use(r->shapes, moe_options_turn(r->run->options, t), &r->x);
}

MoeStatus moe_rehearse(MoeRun *run, MoeShapes *shapes)
{
  const MoeOptions *o = run->options;
  Rehearsal r = {.run = run, .shapes = shapes};
  MOE_TRY(use_shape(&r, 0));
  meet(&r, 0, 0);
  if (r.x->options.settle && o->steps > 0) {
    MOE_TRY(settle(&r));
  }
  for (int64_t t = 0; t < o->steps; t++) {
    MoeRehearsedStep result;
    MOE_TRY(use_shape(&r, t));
    atomic_store(&run->shared->states[shapes->rank].step, (uint64_t)t + 1);
    MOE_TRY(run_step(&r, o->trace != NULL && t + 1 == o->trace_step, &result));
    result.step = t + 1;
    result.shape = shapes->n > 1 ? r.x->bundle->shape : NULL;
    if (shapes->rank == 0) {
      MOE_TRY(moe_report_rehearsed(&run->report, &result));
    }
  }
  return MOE_OK;
}
