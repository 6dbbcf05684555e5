/* The step loop. Every rank computes the same sequence of steps and, since all see the same totals, takes the same
   decisions about skipping and stopping. */
#include "runtime/run.h"

#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/checkpoint_save.h"
#include "runtime/job.h"
#include "runtime/log.h"
#include "runtime/rehearse.h"
#include "runtime/shapes.h"
#include "runtime/tcp.h"
#include "runtime/tensors.h"

/* Present only if the bundle's kernels use OpenBLAS. One thread per rank: ranks are the parallelism. */
extern void openblas_set_num_threads(int n) __attribute__((weak));

double moe_learning_rate(const MoeBundle *b, int64_t t)
{
  const double pi = 3.14159265358979323846;
  if (t < b->warmup) {
    return b->lr * (double)(t + 1) / (double)b->warmup;
  }
  if (b->lr_steps == 0) {
    return b->lr;
  }
  if (t >= b->lr_steps) {
    return b->lr_min;
  }
  int64_t span = b->lr_steps - b->warmup > 1 ? b->lr_steps - b->warmup : 1;
  return b->lr_min + (b->lr - b->lr_min) * 0.5 * (1 + cos(pi * (double)(t - b->warmup) / (double)span));
}

static void set_phase(MoeExec *x, MoePhase phase)
{
  atomic_store(&x->shared->states[x->me.rank].phase, (uint32_t)phase);
}

int64_t moe_run_sequence(const MoeRun *run, int32_t shape, int64_t t)
{
  const MoeBundle *b = moe_shape_at(run->bundle, shape);
  int64_t steps =
      moe_options_steps_of(run->options, shape, t) - moe_options_steps_of(run->options, shape, run->first_step);
  return (int64_t)run->places[shape].place.next + steps * b->global_batch;
}

const char *moe_run_turn(const MoeRun *run)
{
  const MoeOptions *o = run->options;
  return o->shapes != NULL ? o->shapes : moe_shape_at(run->bundle, o->turns[0].shape)->shape;
}

/* The step at hand. */
typedef struct Now {
  MoeExec *x;
  const MoeData *data; /* as its shape cuts it in samples */
  int64_t t;           /* index among all steps */
  int64_t sequence;    /* number of its first training sequence */
  const char *shape;   /* NULL: the program has one only */
} Now;

/* Reads one sequence of the step's global batch. Of an evaluation with too few samples, the rest does not count:
 *counts_p is then false. */
static MoeStatus read_sequence(const Now *now, bool held_out, int64_t g, bool *counts_p)
{
  const MoeBundle *b = now->x->bundle;
  int64_t sample = held_out ? moe_data_eval_sample(now->data, b->global_batch, g)
                            : moe_data_sample(now->data, (uint64_t)(now->sequence + g));
  *counts_p = sample >= 0;
  if (sample < 0) {
    memset(now->x->mem.sample, 0, ((size_t)b->seq + 1) * sizeof(int32_t));
    return MOE_OK;
  }
  return moe_data_read(now->data, held_out, sample, now->x->mem.sample);
}

static MoeStatus load_sequence(const Now *now, bool held_out, int64_t g, int32_t *tokens, int32_t *labels)
{
  const int32_t *read = now->x->mem.sample;
  bool counts;
  MOE_TRY(read_sequence(now, held_out, g, &counts));
  for (int32_t i = 0; i < now->x->bundle->seq; i++) {
    tokens[i] = moe_data_token(now->data, read, i);
    labels[i] = counts ? moe_data_label(now->data, read, i) : -1;
  }
  return MOE_OK;
}

/* 1 / labels of the global batch that count, by which the mean over tokens divides in every layout. Where labels may be
   masked, each attention rank counts those of the whole batch: that takes no message, and reads what another rank's
   read has brought into memory. */
static MoeStatus count_labels(const Now *now, bool held_out, double *inv_p)
{
  const MoeBundle *b = now->x->bundle;
  int64_t n_eval = now->data->n_eval < b->global_batch ? now->data->n_eval : b->global_batch;
  int64_t n = (held_out ? n_eval : b->global_batch) * b->seq;
  if (moe_data_masks(now->data) && now->x->mem.tokens != NULL) {
    n = 0;
    for (int64_t g = 0; g < b->global_batch; g++) {
      bool counts;
      MOE_TRY(read_sequence(now, held_out, g, &counts));
      for (int32_t i = 0; counts && i < b->seq; i++) {
        n += moe_data_label(now->data, now->x->mem.sample, i) >= 0;
      }
    }
  }
  *inv_p = n > 0 ? 1.0 / (double)n : 0.0;
  return MOE_OK;
}

static MoeStatus load_batch(const Now *now, bool held_out)
{
  const MoeBundle *b = now->x->bundle;
  for (int32_t mb = 0; mb < b->micro_batches; mb++) {
    int64_t first = 0;
    int32_t *tokens = NULL;
    int32_t *labels = NULL;
    int32_t n = moe_exec_batch(now->x, mb, &first, &tokens, &labels);
    for (int32_t i = 0; i < n; i++) {
      int64_t at = (int64_t)i * b->seq;
      MOE_TRY(load_sequence(now, held_out, first + i, tokens + at, labels + at));
    }
  }
  return MOE_OK;
}

static MoeStatus dump(const MoeRun *run, MoeExec *x, const MoeStWriter *file, bool gradients)
{
  if (file->file.fd < 0) {
    return MOE_OK;
  }
  set_phase(x, MOE_PHASE_SAVE);
  for (int32_t i = 0; i < x->mem.n_held; i++) {
    const MoeHeld *h = &x->mem.held[i];
    const float *values =
        gradients ? moe_values_of(&x->mem, h->g, h->bucket->elems) : moe_values_of_weights(&x->mem, h);
    MoeStatus status = values != NULL ? moe_tensors_write(file, run->bundle, h, values) : MOE_ENOMEM;
    moe_values_done(&x->mem, values);
    MOE_TRY(status);
  }
  set_phase(x, MOE_PHASE_RUN);
  return MOE_OK;
}

static MoeStatus save_hf(const MoeRun *run, MoeExec *x)
{
  if (run->hf.path == NULL) {
    return MOE_OK;
  }
  set_phase(x, MOE_PHASE_SAVE);
  for (int32_t i = 0; i < x->mem.n_held; i++) {
    const MoeHeld *h = &x->mem.held[i];
    const float *values = moe_values_of_weights(&x->mem, h);
    MoeStatus status = values != NULL ? moe_hf_save_bucket(&run->hf, run->bundle, h, values) : MOE_ENOMEM;
    moe_values_done(&x->mem, values);
    MOE_TRY(status);
  }
  set_phase(x, MOE_PHASE_RUN);
  return MOE_OK;
}

static MoeStatus evaluate(MoeRun *run, const Now *now)
{
  MoeExec *x = now->x;
  MoeStep eval = {0};
  MOE_TRY(load_batch(now, true));
  MOE_TRY(count_labels(now, true, &eval.inv_tokens));
  MOE_TRY(moe_exec_step(x, &eval));
  if (x->me.rank == 0) {
    moe_metrics_eval(&run->metrics, x->totals[MOE_SC_LOSS]);
  }
  return x->me.rank == 0 ? moe_report_eval(&run->report, now->t + 1, now->shape, x->totals[MOE_SC_LOSS]) : MOE_OK;
}

static MoeStatus train_step(MoeRun *run, const Now *now, int64_t *updates)
{
  MoeExec *x = now->x;
  const MoeBundle *b = x->bundle;
  const MoeOptions *o = run->options;
  int64_t begin = moe_now_ns(), t = now->t;
  double lr = moe_learning_rate(b, t), inv_tokens = 0;
  MOE_TRY(load_batch(now, false));
  MOE_TRY(count_labels(now, false, &inv_tokens));
  MoeStep step = {.update = true,
                  .trace = o->trace != NULL && t + 1 == o->trace_step,
                  .inv_tokens = inv_tokens,
                  .load = moe_load_begin(x->shared, b, x->me.rank, t),
                  .logits = t + 1 == o->steps ? run->logits.values : NULL,
                  .adam = {.lr = (float)lr,
                           .beta1 = (float)b->beta1,
                           .beta2 = (float)b->beta2,
                           .eps = (float)b->eps,
                           .weight_decay = (float)b->weight_decay,
                           .bias1 = (float)(1 - pow(b->beta1, (double)(*updates + 1))),
                           .bias2 = (float)(1 - pow(b->beta2, (double)(*updates + 1)))}};
  MOE_TRY(moe_exec_step(x, &step));
  bool finite = moe_totals_finite(x->totals);
  *updates += finite;
  if (!finite && b->stop_on_nan) {
    moe_error("step %lld: loss %g or gradient norm %g is not finite, and the spec says to stop", (long long)t + 1,
              x->totals[MOE_SC_LOSS], moe_totals_norm(x->totals));
    return MOE_ENAN;
  }
  if (x->me.rank != 0) {
    return MOE_OK;
  }
  if (!finite) {
    moe_note("step %lld: loss or gradient is not finite; all ranks skip its update", (long long)t + 1);
  }
  MoeStepResult result = {.step = t + 1,
                          .shape = now->shape,
                          .flops_per_token = b->flops_per_token,
                          .loss = x->totals[MOE_SC_LOSS],
                          .balance_loss = x->totals[MOE_SC_BALANCE],
                          .grad_norm = moe_totals_norm(x->totals),
                          .lr = lr,
                          .tokens = (int64_t)b->global_batch * b->seq,
                          .step_ns = moe_now_ns() - begin,
                          .skipped = !finite,
                          .dropped = x->totals[MOE_SC_DROPPED],
                          .load = moe_load_sum(x->shared, b, t, run->load)};
  MOE_TRY(moe_report_step(&run->report, &result));
  return moe_metrics_step(&run->metrics, &result, run->report.peak_flops);
}

/* Tells what has become of the save under way. wait: until it has ended. */
static MoeStatus check_saver(MoeRun *run, MoeSaver *saver, MoeExec *x, bool wait)
{
  MoeSaved saved;
  if (wait) {
    set_phase(x, MOE_PHASE_SAVE);
  }
  MoeStatus status = moe_saver_check(saver, wait, &saved);
  set_phase(x, status == MOE_OK ? MOE_PHASE_RUN : MOE_PHASE_SAVE);
  if (saved.step >= 0 && saver->rank == 0) {
    moe_report_saved(&run->report, saved.step, saved.bytes, saved.seconds);
  }
  return status;
}

/* Of a state after `step` steps. A save waits for the one before. */
static MoeStatus save(MoeRun *run, MoeSaver *saver, MoeExec *x, int64_t step, int64_t updates)
{
  const MoeOptions *o = run->options;
  int32_t n = moe_n_shapes(run->bundle);
  MoeCkShape *shapes = calloc((size_t)n, sizeof *shapes);
  MoeStatus status = shapes != NULL ? check_saver(run, saver, x, true) : MOE_ENOMEM;
  int32_t n_known = 0;
  for (int32_t k = 0; k < n && status == MOE_OK; k++) {
    if (run->places[k].known) {
      shapes[n_known] = run->places[k];
      shapes[n_known++].place.next = (uint64_t)moe_run_sequence(run, k, step);
    }
  }
  MoeMoment moment = {.step = step,
                      .updates = updates,
                      .seed = o->seed,
                      .next_lr = moe_learning_rate(run->bundle, step),
                      .turn = moe_run_turn(run),
                      .options = run->kept,
                      .shapes = shapes,
                      .n_shapes = n_known};
  status = status == MOE_OK ? moe_saver_begin(saver, x, &moment) : status;
  free(shapes);
  return status;
}

static MoeStatus run_steps(MoeRun *run, MoeShapes *shapes, MoeSaver *saver)
{
  const MoeOptions *o = run->options;
  int64_t updates = run->resume != NULL ? run->resume->manifest.updates : 0;
  int64_t at_save = run->save_first ? -1 : run->first_step;
  MoeExec *x = &shapes->execs[0];
  for (int64_t t = run->first_step; t < o->steps; t++) {
    bool last = t + 1 == o->steps;
    int32_t shape = moe_options_turn(o, t);
    Now now = {.t = t, .sequence = moe_run_sequence(run, shape, t)};
    MOE_TRY(moe_shapes_use(shapes, shape, &x));
    now.x = x;
    now.data = &run->data[shape];
    now.shape = shapes->n > 1 ? x->bundle->shape : NULL;
    atomic_store(&run->shared->states[shapes->rank].step, (uint64_t)t + 1);
    MOE_TRY(train_step(run, &now, &updates));
    if (last) {
      MOE_TRY(dump(run, x, &run->grads, true));
    }
    MOE_TRY(check_saver(run, saver, x, false));
    if (o->save_every > 0 && (t + 1) % o->save_every == 0) {
      MOE_TRY(save(run, saver, x, t + 1, updates));
      at_save = t + 1;
    }
    bool due = last || (o->eval_every > 0 && (t + 1) % o->eval_every == 0);
    if (due && now.data->n_eval > 0) {
      MOE_TRY(evaluate(run, &now));
    }
  }
  int64_t end = o->steps > run->first_step ? o->steps : run->first_step;
  if (saver->dir != NULL && at_save != end) {
    MOE_TRY(save(run, saver, x, end, updates));
  }
  MOE_TRY(dump(run, x, &run->weights, false));
  MOE_TRY(save_hf(run, x));
  return check_saver(run, saver, x, true);
}

int moe_run_rank(void *arg, int32_t rank)
{
  MoeRun *run = arg;
  MoeShapes shapes;
  if (openblas_set_num_threads != NULL) {
    openblas_set_num_threads(1);
  }
  if (rank != 0) { /* its copy of the descriptor is of no use */
    run->report.log_fd = -1;
  }
  int32_t n_shapes = moe_n_shapes(run->bundle);
  if (run->team != NULL &&
      moe_tcp_open(&run->shared->net, run->team, run->shared, run->wirings, n_shapes, rank) != MOE_OK) {
    return 1;
  }
  if (moe_shapes_open(&shapes, run->bundle, run->kernels, run->wirings, run->shared, rank, &run->options->exec) !=
      MOE_OK) {
    return 1;
  }
  MoeExec *first = &shapes.execs[0]; /* weights are the same in all */
  run->report.begin_ns = moe_now_ns();
  set_phase(first, MOE_PHASE_INIT);
  MoeStatus status = run->resume != NULL ? moe_checkpoint_load(run->resume, first)
                                         : moe_exec_init_weights(first, run->options->seed, run->init);
  MoeSaver saver = {0};
  if (status == MOE_OK) {
    status = moe_saver_open(&saver, first, run->options->save, run->options->keep_last);
  }
  if (rank == 0 && run->shared->loads != NULL) {
    run->load = calloc(moe_load_cells(run->bundle), sizeof *run->load);
  }
  set_phase(first, MOE_PHASE_RUN);
  if (status == MOE_OK) {
    status = run->bundle->emu != NULL ? moe_rehearse(run, &shapes) : run_steps(run, &shapes, &saver);
  }
  if (status == MOE_OK && rank == 0) {
    moe_report_end(&run->report);
    status = moe_metrics_end(&run->metrics, run->report.peak_flops);
  }
  if (status == MOE_OK) {
    set_phase(first, MOE_PHASE_DONE);
  }
  free(run->load);
  moe_saver_close(&saver);
  moe_shapes_close(&shapes);
  moe_tcp_close(run->shared->net, status == MOE_OK);
  return status == MOE_OK ? 0 : 1;
}
