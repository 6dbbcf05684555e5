/* The compute thread: runs the compute ops of the table in order, each as soon as what it waits for has finished. */
#include "runtime/exec.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "runtime/emu.h"
#include "runtime/init.h"
#include "runtime/log.h"

/* A sleeping thread looks around this often even if nobody rings. */
#define LOOK_AROUND_NS 100000000

bool moe_exec_ready(const MoeExec *x, int32_t op)
{
  const int32_t *wait = x->info[op].wait;
  uint32_t now = (uint32_t)x->tick + 1;
  for (int32_t k = 0; k < MOE_MAX_WAITS && wait[k] >= 0; k++) {
    if (atomic_load_explicit(&x->done[wait[k]], memory_order_acquire) != now) {
      return false;
    }
  }
  return true;
}

int64_t moe_exec_ready_ns(const MoeExec *x, int32_t op)
{
  const int32_t *wait = x->info[op].wait;
  int64_t ns = x->step.begin_ns;
  for (int32_t k = 0; k < MOE_MAX_WAITS && wait[k] >= 0; k++) {
    ns = x->info[wait[k]].end_ns > ns ? x->info[wait[k]].end_ns : ns;
  }
  return ns;
}

void moe_exec_release(MoeExec *x, int32_t recv_op, int64_t free_ns)
{
  const MoeOpInfo *info = &x->info[recv_op];
  for (int32_t m = 0; m < info->n_msgs; m++) {
    const MoeArrival *a = &x->arrivals[info->first_arrival + m];
    const MoeLink *link = &a->end->link;
    link->transport->release(link, a->msg->slot, moe_msg_generation(a->msg, x->tick), free_ns);
  }
}

static void keep_times(MoeExec *x, int32_t op, int64_t start_ns)
{
  _Atomic int64_t *times = x->shared->times + ((int64_t)x->me.rank * x->shared->max_ops + op) * 2;
  int64_t end_ns = moe_now_ns();
  if (x->bundle->emu != NULL) { /* in modelled time */
    int64_t begin_ns = x->step.begin_ns;
    start_ns = begin_ns + (int64_t)((double)(start_ns - begin_ns) / x->options.scale + 0.5);
    end_ns = begin_ns + (int64_t)((double)(x->info[op].end_ns - begin_ns) / x->options.scale + 0.5);
  }
  atomic_store_explicit(&times[0], start_ns, memory_order_relaxed);
  atomic_store_explicit(&times[1], end_ns, memory_order_relaxed);
}

void moe_exec_finish(MoeExec *x, int32_t op, bool on_comm, int64_t start_ns)
{
  const MoeOpInfo *info = &x->info[op];
  MoeRankState *state = &x->shared->states[x->me.rank];
  if (x->step.trace && x->shared->times != NULL) {
    keep_times(x, op, start_ns);
  }
  atomic_store_explicit(&x->done[op], (uint32_t)x->tick + 1, memory_order_release);
  atomic_fetch_add_explicit(&state->beats, 1, memory_order_relaxed);
  for (int32_t k = 0; k < MOE_MAX_WAITS && info->release[k] >= 0; k++) {
    moe_exec_release(x, info->release[k], info->end_ns);
  }
  if (!on_comm && info->wakes_comm && x->has_thread) {
    moe_bell_ring(x->comm_bell);
  }
  if (on_comm && info->wakes_compute && x->has_thread) {
    moe_bell_ring(x->compute_bell);
  }
}

void moe_exec_delay(MoeExec *x, bool on_comm)
{
  if (x->options.delay_us > 0) {
    uint64_t *state = &x->delay_state[on_comm];
    *state = moe_mix(*state);
    int64_t us = (int64_t)(*state % (uint64_t)(x->options.delay_us + 1));
    moe_sleep_until(moe_now_ns() + us * 1000);
  }
}

static int64_t thread_cpu_ns(void)
{
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Between two compute ops of a serial run: nothing of ours may be under way. */
static MoeStatus serial_wait(MoeExec *x, int32_t op)
{
  for (;;) {
    uint32_t seen = moe_bell_read(x->comm_bell);
    bool moved = false;
    MOE_TRY(moe_comm_pass(x, &moved));
    if (!moe_comm_in_flight(x) && (op < 0 ? x->unfinished == 0 : moe_exec_ready(x, op))) {
      return MOE_OK;
    }
    if (!moved) {
      int64_t limit = moe_now_ns() + LOOK_AROUND_NS;
      moe_bell_wait(x->comm_bell, seen, x->wake_ns < limit ? x->wake_ns : limit);
    }
  }
}

/* Until the op may start; op < 0: until all communication of the step has finished. */
static MoeStatus wait_for(MoeExec *x, int32_t op)
{
  if (!x->has_thread) {
    return serial_wait(x, op);
  }
  for (;;) {
    uint32_t seen = moe_bell_read(x->compute_bell);
    bool ready = op < 0 ? atomic_load(&x->comm_done) == x->tick + 1 : moe_exec_ready(x, op);
    if (ready) {
      return MOE_OK;
    }
    MoeStatus failed = (MoeStatus)atomic_load(&x->failed);
    if (failed != MOE_OK) {
      return failed;
    }
    moe_bell_wait(x->compute_bell, seen, moe_now_ns() + LOOK_AROUND_NS);
  }
}

MoeStatus moe_exec_wait(const MoeExec *x, MoeLane lane, MoeStatus so_far)
{
  MoeStatus status = x->device->wait(lane);
  status = so_far != MOE_OK ? so_far : status;
  if (status != MOE_OK) {
    moe_error("%s", moe_status_text(status)); /* kept only if the kernel itself has said nothing */
  }
  return status;
}

static MoeStatus run_kernel(MoeExec *x, int32_t op)
{
  if (x->kernels->run[x->ops[op].kind] == NULL) {
    return moe_exec_wait(x, MOE_LANE_COMPUTE, moe_tail_run(x, op));
  }
  return moe_exec_wait(x, MOE_LANE_COMPUTE, x->kernels->run[x->ops[op].kind](&x->info[op].call));
}

/* Runs an op that takes a given time: the modelled one, or so many times its own CPU time that ranks which share cores
   take the time they would take alone. The rank is held until then. */
static MoeStatus run_timed(MoeExec *x, int32_t op, int64_t *start_ns_p)
{
  MoeOpInfo *info = &x->info[op];
  int64_t now = moe_now_ns();
  int64_t start = moe_exec_ready_ns(x, op);
  start = x->at_ns > start ? x->at_ns : start;
  start = x->timed ? start : now;
  x->late_ns = now - start > x->late_ns ? now - start : x->late_ns;
  int64_t cpu = thread_cpu_ns();
  MOE_TRY(run_kernel(x, op));
  if (x->bundle->emu != NULL) {
    *start_ns_p = start;
    info->end_ns = start + moe_emu_ns(&x->me, op, x->options.scale);
  } else {
    info->end_ns = start + (int64_t)((double)(thread_cpu_ns() - cpu) * x->options.compute_scale);
  }
  x->at_ns = info->end_ns;
  moe_sleep_until(info->end_ns);
  return MOE_OK;
}

static MoeStatus run_compute(MoeExec *x)
{
  MoeRankState *state = &x->shared->states[x->me.rank];
  for (int32_t i = 0; i < x->n_ops; i++) {
    if (!x->info[i].compute || !x->info[i].mine) {
      continue;
    }
    atomic_store_explicit(&state->compute, (uint32_t)(i + 1) | MOE_WAITING, memory_order_relaxed);
    MOE_TRY(wait_for(x, i));
    atomic_store_explicit(&state->compute, (uint32_t)(i + 1), memory_order_relaxed);
    moe_exec_delay(x, false);
    int64_t start = x->step.trace ? moe_now_ns() : 0;
    MOE_TRY(x->timed || x->options.compute_scale > 0 ? run_timed(x, i, &start) : run_kernel(x, i));
    moe_exec_finish(x, i, false, start);
  }
  atomic_store_explicit(&state->compute, MOE_WAITING, memory_order_relaxed);
  return wait_for(x, -1);
}

/* Number of this rank's first sequence of a micro-batch within the step's global batch. */
static int64_t first_sequence(const MoeExec *x, int32_t mb)
{
  const MoeBundle *b = x->bundle;
  int64_t seqs = moe_mb_seqs(b->global_batch, b->replicas, x->me.replica, b->mb_seqs, mb);
  return moe_mb_first(b->global_batch, b->replicas, x->me.replica, b->mb_seqs, mb) +
         moe_part_begin(seqs, x->me.group->n_ranks, x->me.index);
}

/* What differs from step to step. */
static void set_call(const MoeExec *x, int32_t op)
{
  const MoeBundle *b = x->bundle;
  MoeCall *call = &x->info[op].call;
  call->step = (uint32_t)x->tick;
  call->inv_tokens = x->step.inv_tokens;
  call->load = NULL;
  if (x->ops[op].kind == MOE_OP_ATT_FWD && x->step.load != NULL && call->layer >= b->dense) {
    call->load = x->step.load + (size_t)(call->layer - b->dense) * 2 * (size_t)b->experts;
  }
  if (x->ops[op].kind == MOE_OP_HEAD) {
    call->logits = x->step.logits != NULL ? x->step.logits + first_sequence(x, call->mb) * b->seq * b->vocab : NULL;
  }
}

MoeStatus moe_exec_step(MoeExec *x, const MoeStep *step)
{
  x->step = *step;
  x->tick = x->n_runs++;
  x->step.begin_ns = step->begin_ns > 0 ? step->begin_ns : moe_now_ns();
  x->at_ns = x->step.begin_ns;
  x->late_ns = 0;
  for (int32_t i = 0; i < x->mem.n_held; i++) {
    size_t bytes = (size_t)x->mem.held[i].bucket->elems * sizeof(float);
    MOE_TRY(x->device->fill(MOE_LANE_COMPUTE, x->mem.held[i].g, 0, bytes));
  }
  for (int lane = 0; lane < MOE_LANE_COUNT; lane++) {
    memset(x->mem.scalars[lane], 0, MOE_SC_COUNT * sizeof *x->mem.scalars[lane]);
  }
  memset(x->totals, 0, sizeof x->totals);
  for (int32_t i = 0; i < x->n_ops; i++) {
    set_call(x, i);
  }
  if (x->has_thread) {
    atomic_store(&x->go, x->tick + 1);
    moe_bell_ring(x->comm_bell);
  } else {
    moe_comm_begin(x);
  }
  MOE_TRY(run_compute(x));
  for (int32_t i = 0; i < x->n_unreleased; i++) {
    moe_exec_release(x, x->unreleased[i], x->at_ns);
  }
  atomic_store_explicit(&x->shared->states[x->me.rank].compute, 0, memory_order_relaxed);
  return MOE_OK;
}

/* The progress thread: one pass over all links at a time, asleep between passes that moved nothing. */
static void *comm_main(void *arg)
{
  MoeExec *x = arg;
  (void)prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
  for (uint64_t steps = atomic_load(&x->comm_done);;) {
    uint32_t seen = moe_bell_read(x->comm_bell);
    if (atomic_load(&x->quit)) {
      return NULL;
    }
    if (atomic_load(&x->go) <= steps) {
      moe_bell_wait(x->comm_bell, seen, moe_now_ns() + LOOK_AROUND_NS);
      continue;
    }
    steps = atomic_load(&x->go);
    moe_comm_begin(x);
    while (x->unfinished > 0 && !atomic_load(&x->quit)) {
      seen = moe_bell_read(x->comm_bell);
      bool moved = false;
      MoeStatus status = moe_comm_pass(x, &moved);
      if (status != MOE_OK) {
        atomic_store(&x->failed, status);
        moe_bell_ring(x->compute_bell);
        return NULL;
      }
      if (!moved && x->unfinished > 0) {
        int64_t limit = moe_now_ns() + LOOK_AROUND_NS;
        moe_bell_wait(x->comm_bell, seen, x->wake_ns < limit ? x->wake_ns : limit);
      }
    }
    atomic_store(&x->comm_done, steps);
    moe_bell_ring(x->compute_bell);
  }
}

MoeStatus moe_exec_open(MoeExec *x, const MoeExecIn *in, const MoeBundle *bundle, const MoeWiring *wiring,
                        const MoeMem *mem)
{
  uint64_t seed = in->options->delay_seed + 2 * (uint64_t)in->rank;
  *x = (MoeExec){.bundle = bundle,
                 .kernels = in->kernels,
                 .wiring = wiring,
                 .shared = in->shared,
                 .options = *in->options,
                 .me = moe_rank_of(bundle, in->rank),
                 .device = mem->device,
                 .mem = *mem,
                 .pace_sent = in->pace_sent,
                 .delay_state = {moe_mix(seed), moe_mix(seed + 1)},
                 .comm_bell = &in->shared->comm_bells[in->rank],
                 .compute_bell = &in->shared->compute_bells[in->rank]};
  /* without a progress thread nothing is to overlap: then times are what the clock says */
  x->timed = !x->options.serial && (bundle->emu != NULL || x->options.compute_scale > 0);
  MoeStatus status = moe_exec_build(x);
  if (status != MOE_OK) {
    moe_exec_close(x);
  }
  return status;
}

void moe_exec_close(MoeExec *x)
{
  moe_exec_stop(x);
  moe_exec_unbuild(x);
}

MoeStatus moe_exec_start(MoeExec *x)
{
  (void)prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
  if (x->options.serial || x->has_thread) {
    return MOE_OK;
  }
  atomic_store(&x->quit, false);
  int error = pthread_create(&x->thread, NULL, comm_main, x);
  if (error != 0) {
    moe_error("cannot start the progress thread: %s", strerror(error));
    return MOE_ENOMEM;
  }
  x->has_thread = true;
  return MOE_OK;
}

void moe_exec_stop(MoeExec *x)
{
  if (x->has_thread) {
    atomic_store(&x->quit, true);
    moe_bell_ring(x->comm_bell);
    pthread_join(x->thread, NULL);
    x->has_thread = false;
  }
}

float *moe_exec_new_weights(const MoeExec *x, MoeHeld *h)
{
  float *values = x->device->apart ? malloc((size_t)h->bucket->elems * sizeof *values + 1) : h->g;
  if (values == NULL) {
    moe_error("out of memory for weights on their way to the device");
  }
  return values;
}

static MoeStatus set_weights(const MoeExec *x, MoeHeld *h, const float *values)
{
  if (values != h->g) {
    MOE_TRY(moe_device_move(x->device, h->g, values, (size_t)h->bucket->elems * sizeof *values));
  }
  for (int32_t p = 0; p < h->bucket->n_params; p++) {
    const MoeParam *param = &x->bundle->params[h->bucket->first_param + p];
    void *w = moe_weights_at(&x->mem, h, param->offset);
    size_t n = (size_t)moe_param_elems(param);
    if (param->counts) {
      MOE_TRY(x->device->copy(MOE_LANE_COMPUTE, w, h->g + param->offset, n * sizeof *values));
    } else {
      x->kernels->to_weights(w, h->g + param->offset, n);
    }
  }
  return x->device->wait(MOE_LANE_COMPUTE);
}

MoeStatus moe_exec_set_weights(const MoeExec *x, MoeHeld *h, float *values)
{
  MoeStatus status = set_weights(x, h, values);
  if (values != h->g) {
    free(values);
  }
  atomic_fetch_add_explicit(&x->shared->states[x->me.rank].beats, 1, memory_order_relaxed);
  return status;
}

MoeStatus moe_exec_init_weights(MoeExec *x, uint64_t seed, const MoeHfLoad *load)
{
  for (int32_t i = 0; i < x->mem.n_held; i++) {
    MoeHeld *h = &x->mem.held[i];
    size_t bytes = (size_t)h->n * sizeof(float);
    float *values = moe_exec_new_weights(x, h);
    if (values == NULL) {
      return MOE_ENOMEM;
    }
    if (load != NULL) {
      moe_hf_read(load, x->bundle, h->bucket, values);
    } else {
      moe_init_bucket(x->bundle, h->bucket, seed, values, 0, h->bucket->elems);
    }
    MOE_TRY(moe_exec_set_weights(x, h, values));
    if (h->n > 0) { /* a small bucket of many holders has none for some */
      MOE_TRY(x->device->copy(MOE_LANE_COMPUTE, h->master, h->g + h->begin, bytes));
      MOE_TRY(x->device->fill(MOE_LANE_COMPUTE, h->m, 0, bytes));
      MOE_TRY(x->device->fill(MOE_LANE_COMPUTE, h->v, 0, bytes));
    }
  }
  return x->device->wait(MOE_LANE_COMPUTE);
}

int32_t moe_exec_batch(MoeExec *x, int32_t mb, int64_t *first_p, int32_t **tokens_p, int32_t **labels_p)
{
  const MoeBundle *b = x->bundle;
  if (!(x->me.group->role & MOE_ROLE_A)) {
    return 0;
  }
  int64_t seqs = moe_mb_seqs(b->global_batch, b->replicas, x->me.replica, b->mb_seqs, mb);
  int64_t n = x->me.group->n_ranks;
  int64_t at = mb * moe_part_max(b->mb_seqs, n) * b->seq;
  *first_p = first_sequence(x, mb);
  *tokens_p = x->mem.tokens + at;
  *labels_p = x->mem.labels + at;
  return (int32_t)moe_part_size(seqs, n, x->me.index);
}

bool moe_totals_finite(const double *totals)
{
  return totals[MOE_SC_NONFINITE] == 0 && isfinite(totals[MOE_SC_LOSS]) && isfinite(totals[MOE_SC_SUMSQ]);
}

double moe_totals_norm(const double *totals)
{
  return sqrt(totals[MOE_SC_SUMSQ]);
}

double moe_clip_scale(double norm, double clip)
{
  double scale = clip > 0 ? clip / (norm + 1e-6) : 1.0;
  return scale < 1.0 ? scale : 1.0;
}
