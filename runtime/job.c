/* The launcher's side of a run: checks what can be checked before any rank exists, maps the shared region, starts the
   ranks, and gives files their names when all have finished. */
#include "runtime/job.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/checkpoint_dir.h"
#include "runtime/checkpoint_save.h"
#include "runtime/emu.h"
#include "runtime/job_team.h"
#include "runtime/launch.h"
#include "runtime/log.h"
#include "runtime/mapped.h"
#include "runtime/run.h"
#include "runtime/shapes.h"
#include "runtime/tensors.h"
#include "runtime/trace.h"

enum { NO_DEVICE = 4 }; /* exit code */

/* group_of: [ways][n]. Whether the group holds layer l in some direction. */
static bool holds(const MoeBundle *b, const int16_t *group_of, int32_t n, int32_t l, int32_t group)
{
  bool any = false;
  for (int32_t way = 0; way < b->ways; way++) {
    any = any || group_of[way * n + l] == group;
  }
  return any;
}

static void print_layers(const MoeBundle *b, const int16_t *group_of, int32_t n, int32_t group)
{
  bool any = false;
  for (int32_t l = 0; l < n; l++) {
    if (!holds(b, group_of, n, l, group)) {
      continue;
    }
    int32_t end = l;
    while (end + 1 < n && holds(b, group_of, n, end + 1, group)) {
      end++;
    }
    bool head = end == b->n_layers;
    int32_t last = head ? end - 1 : end;
    if (last > l) {
      printf("%s%d-%d", any ? "," : "", l, last);
    } else if (last == l) {
      printf("%s%d", any ? "," : "", l);
    }
    if (head) {
      printf("%shead", any || last >= l ? "," : "");
    }
    any = true;
    l = end;
  }
}

static const char *plural(int32_t n, const char *ending)
{
  return n == 1 ? "" : ending;
}

static void print_plan(const MoeBundle *b)
{
  printf("%s, schedule %s, from %s\n", b->model, b->system, b->spec);
  printf("%d rank%s: %d replica%s of %d\n", moe_n_ranks(b), plural(moe_n_ranks(b), "s"), b->replicas,
         plural(b->replicas, "s"), b->replica_ranks);
  for (const MoeBundle *s = b; s != NULL; s = s->next) {
    printf("shape %s: %d micro-batch%s of up to %d sequence%s of %d token%s, %d sequence%s a step\n", s->shape,
           s->micro_batches, plural(s->micro_batches, "es"), s->mb_seqs, plural(s->mb_seqs, "s"), s->seq,
           plural(s->seq, "s"), s->global_batch, plural(s->global_batch, "s"));
  }
  if (b->emu != NULL) {
    printf("a rehearsal without kernels; a step is simulated to take %.3f ms\n", b->emu->step_ns * 1e-6);
  }
  for (int32_t g = 0; g < b->n_groups; g++) {
    const MoeGroup *group = &b->groups[g];
    printf("%-4s ranks %d-%d  ops", group->name, group->first_rank, group->first_rank + group->n_ranks - 1);
    for (const MoeBundle *s = b; s != NULL; s = s->next) {
      printf("%s%d", s == b ? " " : ", ", s->groups[g].n_ops);
    }
    if (group->role & MOE_ROLE_A) {
      printf("  attention layers ");
      print_layers(b, b->att_group, b->n_layers + 1, g);
    }
    if (group->role & MOE_ROLE_F) {
      printf("  expert layers ");
      print_layers(b, b->ffn_group, b->n_layers, g);
      printf("%s", moe_group_relays(b, g) ? "  (relayed)" : "");
    }
    printf("\n");
  }
}

static MoeStatus print_memory(const MoeBundle *b, const MoeKernels *kernels, const MoeWiring *wirings, bool saves)
{
  MoeStatus status = MOE_OK;
  MoeMem *mems = calloc((size_t)moe_n_shapes(b), sizeof *mems);
  if (mems == NULL) {
    moe_error("out of memory");
    return MOE_ENOMEM;
  }
  printf("rank group      weights    gradients    optimizer  activations      buffers    workspace%s        total\n",
         saves ? "       saving" : "");
  for (int32_t r = 0; r < moe_n_ranks(b) && status == MOE_OK; r++) {
    MoeRank me = moe_rank_of(b, r);
    status = moe_mem_size(mems, b, r, kernels, wirings);
    MoeMem m = mems[0];
    uint64_t saving = saves ? moe_saver_bytes(b, r) : 0;
    const uint64_t terms[] = {m.weights, m.gradients, m.optimizer, m.activations, m.buffers, m.workspace, saving};
    uint64_t total = 0;
    printf("%4d %-5s", r, me.group->name);
    for (int i = 0; i < (saves ? 7 : 6); i++) {
      printf(" %12llu", (unsigned long long)terms[i]);
      total += terms[i];
    }
    printf(" %12llu\n", (unsigned long long)total);
    moe_mem_unmap(mems);
  }
  free(mems);
  return status;
}

/* The last step's tokens, as every attention rank has read them. */
static MoeStatus write_batch(const MoeFile *f, const MoeRun *run)
{
  int64_t t = run->options->steps - 1;
  int32_t shape = moe_options_turn(run->options, t);
  int64_t first = moe_run_sequence(run, shape, t);
  const MoeBundle *b = moe_shape_at(run->bundle, shape);
  const MoeData *data = &run->data[shape];
  size_t n = (size_t)b->seq + 1;
  int32_t *tokens = malloc(n * sizeof *tokens);
  MoeStatus status = tokens == NULL ? MOE_ENOMEM : MOE_OK;
  for (int64_t g = 0; status == MOE_OK && g < b->global_batch; g++) {
    uint64_t number = (uint64_t)(first + g);
    status = moe_data_read(data, false, moe_data_sample(data, number), tokens);
    if (status == MOE_OK) {
      status = moe_file_write_at(f, tokens, n * sizeof *tokens, (uint64_t)g * n * sizeof *tokens);
    }
  }
  free(tokens);
  return status;
}

/* Whether some step has this shape. */
static bool in_use(const MoeOptions *o, int32_t shape)
{
  bool any = false;
  for (int32_t i = 0; i < o->n_turns; i++) {
    any = any || o->turns[i].shape == shape;
  }
  return any;
}

/* How many training sequences of its order the shape needs until the run's end. */
static MoeStatus count_sequences(const MoeRun *run, const MoeBundle *b, int32_t shape, int64_t *n_p)
{
  const MoeOptions *o = run->options;
  int64_t steps = moe_options_steps_of(o, shape, o->steps) - moe_options_steps_of(o, shape, run->first_step);
  int64_t before = (int64_t)run->places[shape].place.next;
  if (__builtin_mul_overflow(steps, (int64_t)b->global_batch, n_p) || __builtin_add_overflow(*n_p, before, n_p)) {
    moe_error("--steps %lld of %d sequences are too many", (long long)o->steps, b->global_batch);
    return MOE_EINVAL;
  }
  return MOE_OK;
}

/* The data as one shape cuts it in samples, where it has been left. */
static MoeStatus open_place(MoeRun *run, const MoeBundle *b, int32_t shape)
{
  const MoeOptions *o = run->options;
  MoeData *data = &run->data[shape];
  MoeCkShape *at = &run->places[shape];
  MoeDataIn in = {.path = o->data,
                  .format = o->format,
                  .holdout = o->holdout,
                  .seq = b->seq,
                  .vocab = b->vocab,
                  .batch = b->global_batch,
                  .seed = o->seed,
                  .mask_token = o->mask_token,
                  .mask_after = o->mask_after};
  MOE_TRY(count_sequences(run, b, shape, &in.samples));
  if (at->known && at->place.samples > 0) { /* the order was made for so many */
    if ((uint64_t)in.samples > at->place.samples) {
      moe_error("--steps %lld take %lld sequences, but the order of the data in %s is made for %llu: begin such a run "
                "with the --steps that it is to have in the end",
                (long long)o->steps, (long long)in.samples, run->resume->path, (unsigned long long)at->place.samples);
      return MOE_EINVAL;
    }
    in.samples = (int64_t)at->place.samples;
  }
  MOE_TRY(moe_data_open(data, &in));
  if (at->known) {
    return moe_data_check_place(data, &at->place);
  }
  at->known = true;
  at->place = moe_data_place(data, 0);
  return MOE_OK;
}

static MoeStatus open_view(MoeRun *run, const MoeBundle *b, int32_t shape)
{
  const MoeOptions *o = run->options;
  const MoeData *data = &run->data[shape];
  MOE_TRY(open_place(run, b, shape));
  MOE_TRY(moe_options_spare_data(o, data));
  int64_t held = data->tokens - data->train_tokens;
  if (data->n_eval == 0 && moe_options_given(o, "eval-every")) {
    moe_error("--eval-every: the held-out part has %lld tokens, but one sample needs %d", (long long)held, b->seq + 1);
    return MOE_EINVAL;
  }
  if (data->n_eval == 0 && o->holdout > 0) {
    moe_note("the held-out part has %lld tokens, fewer than one sample needs (%d): no evaluation", (long long)held,
             b->seq + 1);
  }
  return MOE_OK;
}

static MoeStatus open_data(MoeRun *run)
{
  const MoeOptions *o = run->options;
  int32_t k = 0;
  bool told = false;
  if (o->steps <= run->first_step || run->bundle->emu != NULL) {
    return MOE_OK;
  }
  for (const MoeBundle *b = run->bundle; b != NULL; b = b->next, k++) {
    if (!in_use(o, k)) {
      continue;
    }
    MOE_TRY(open_view(run, b, k));
    if (!told) {
      char text[160];
      moe_data_describe(&run->data[k], text, sizeof text);
      moe_note("%s: %s", o->data, text);
      told = true;
    }
  }
  return MOE_OK;
}

static MoeStatus open_log(MoeRun *run)
{
  run->report = (MoeReport){.log_experts = run->options->log_experts,
                            .log_fd = -1,
                            .log_path = run->options->log,
                            .live = isatty(STDERR_FILENO) == 1,
                            .steps = run->options->steps,
                            .first_step = run->first_step,
                            .peak_flops = run->bundle->peak_flops};
  run->metrics = (MoeMetrics){.path = run->options->metrics,
                              .model = run->bundle->model,
                              .system = run->bundle->system,
                              .steps = run->options->steps,
                              .held_out = NAN};
  if (run->options->log != NULL && run->seat->process == 0) {
    int fresh = run->resume != NULL ? 0 : O_TRUNC;
    run->report.log_fd = open(run->options->log, O_WRONLY | O_CREAT | fresh | O_APPEND | O_CLOEXEC, 0666);
    if (run->report.log_fd < 0) {
      moe_error("cannot create %s: %s", run->options->log, strerror(errno));
      return MOE_EIO;
    }
  }
  return MOE_OK;
}

static MoeStatus map_shared(MoeRun *run)
{
  const MoeOptions *o = run->options;
  const MoeBundle *first = run->bundle;
  int32_t max_ops = 0, shapes = moe_n_shapes(first);
  for (const MoeBundle *b = first; b != NULL && o->trace != NULL; b = b->next) {
    for (int32_t g = 0; g < b->n_groups; g++) {
      max_ops = b->groups[g].n_ops > max_ops ? b->groups[g].n_ops : max_ops;
    }
  }
  int32_t n = moe_n_ranks(first), fd = -1;
  MoeTeam *team = run->team;
  bool leads = team == NULL || moe_team_leader(team) == run->seat->process; /* of this host's processes */
  int32_t ports = first->emu != NULL ? moe_emu_ports(first) : o->link > 0 ? 2 * n : 0;
  size_t load_cells = moe_job_counts(run) ? moe_load_cells(first) : 0;
  MOE_TRY(leads ? MOE_OK : moe_team_share(team, &fd));
  MOE_TRY(moe_shared_map(run->shared, n, run->wirings[shapes - 1].shared_end, ports, max_ops, load_cells, fd));
  if (team != NULL) {
    run->shared->host_of = team->host_of;
    team->shared = run->shared;
  }
  if (!leads) {
    return MOE_OK;
  }
  if (ports > 0) {
    moe_pace_init(run->shared->pacer, n, ports, run->shared->comm_bells);
  }
  if (first->emu != NULL) {
    moe_emu_network(first, o->exec.scale, run->shared->pacer);
  } else if (o->link > 0) {
    moe_pace_even(run->shared->pacer, o->link);
  }
  for (int32_t k = 0; o->exec.poison && k < shapes; k++) {
    moe_wiring_poison(&run->wirings[k], run->shared->slabs);
  }
  return team != NULL ? moe_team_share(team, &run->shared->fd) : MOE_OK;
}

/* Makes every file now, so that a wrong path is found before the training and not after it. Of a job's processes the
   first makes them, the others open those that their ranks write into. */
static MoeStatus begin_files(MoeRun *run, MoeFile *trace, MoeFile *batch)
{
  const MoeOptions *o = run->options;
  bool makes = run->seat->process == 0;
  if (makes) {
    moe_options_sweep(o);
  } else {
    moe_file_join(run->team->file_id);
  }
  MOE_TRY(open_log(run));
  if (o->dump_grads != NULL) {
    MOE_TRY(moe_tensors_begin(&run->grads, run->bundle, o->dump_grads));
  }
  if (o->dump_logits != NULL) {
    int32_t shape = moe_options_turn(o, o->steps - 1);
    MOE_TRY(moe_logits_begin(&run->logits, moe_shape_at(run->bundle, shape), o->dump_logits));
  }
  if (o->dump_weights != NULL) {
    MOE_TRY(moe_tensors_begin(&run->weights, run->bundle, o->dump_weights));
  }
  if (o->save_hf != NULL) {
    MOE_TRY(moe_hf_save_begin(&run->hf, run->bundle, o->save_hf, o->shard_bytes));
  }
  moe_file_join(0);
  if (o->trace != NULL && makes) {
    MOE_TRY(moe_file_begin(trace, o->trace));
  }
  if (o->dump_batch != NULL && makes) {
    MOE_TRY(moe_file_begin(batch, o->dump_batch));
  }
  return MOE_OK;
}

static MoeStatus commit_files(MoeRun *run, MoeFile *trace, MoeFile *batch)
{
  if (trace->fd >= 0) {
    int32_t shape = moe_options_turn(run->options, run->options->trace_step - 1);
    MOE_TRY(moe_trace_write(trace, moe_shape_at(run->bundle, shape), run->shared));
  }
  if (batch->fd >= 0) {
    MOE_TRY(write_batch(batch, run));
  }
  MOE_TRY(moe_hf_save_commit(&run->hf, run->bundle));
  MOE_TRY(moe_st_commit(&run->grads));
  MOE_TRY(moe_st_commit(&run->weights));
  MOE_TRY(moe_logits_commit(&run->logits));
  MOE_TRY(moe_file_commit(trace));
  return moe_file_commit(batch);
}

static MoeStatus refuse_checkpoint(const char *path)
{
  int64_t *steps = NULL;
  int32_t n = 0;
  struct stat status;
  bool folder = stat(path, &status) == 0 && S_ISDIR(status.st_mode);
  bool one = folder && moe_ck_is(path);
  MOE_TRY(folder && !one ? moe_ck_steps(path, &steps, &n, NULL) : MOE_OK);
  free(steps);
  if (one || n > 0) {
    moe_error("--init %s: %s; --resume goes on from it, and --save-hf there writes what --init reads", path,
              one ? "it is a checkpoint" : "it holds checkpoints");
    return MOE_EINVAL;
  }
  return MOE_OK;
}

static MoeStatus open_init(MoeRun *run, MoeHfLoad *init)
{
  if (run->options->init == NULL || run->resume != NULL) {
    return MOE_OK;
  }
  const char *path = run->options->init;
  MOE_TRY(refuse_checkpoint(path));
  MOE_TRY(moe_hf_open(init, run->bundle, path));
  MOE_TRY(moe_options_spare_folder(run->options, "init", path));
  moe_hf_check_config(run->bundle, path);
  run->init = init;
  return MOE_OK;
}

/* Where the run begins, and that it can be saved. */
static MoeStatus open_checkpoints(MoeRun *run, MoeOptions *o, MoeCheckpoint *c, int *lock_p)
{
  bool begins = false;
  if (o->resume != NULL && moe_options_restarts(o)) {
    MOE_TRY(moe_checkpoint_none(o->resume, &begins));
    if (begins) {
      moe_note("%s holds no checkpoint yet: beginning with step 1", o->resume);
    }
  }
  if (o->resume != NULL && !begins) {
    MOE_TRY(moe_checkpoint_open(c, run->bundle, o->resume));
    const MoeManifest *m = &c->manifest;
    MOE_TRY(moe_options_spare_folder(o, "resume", c->path));
    MOE_TRY(moe_options_resume(o, m->options, c->path));
    run->resume = c;
    run->first_step = m->step;
    if (moe_options_given(o, "seed") && o->seed != m->seed) {
      moe_error("--seed %llu: the run of %s has seed %llu, on which the order of its data depends",
                (unsigned long long)o->seed, c->path, (unsigned long long)m->seed);
      return MOE_EINVAL;
    }
    o->seed = m->seed;
    if (moe_options_of_step(o) && o->trace_step <= m->step) {
      moe_error("%s is of step %lld, and step %lld was to be traced or dumped", c->path, (long long)m->step,
                (long long)o->trace_step);
      return MOE_EINVAL;
    }
    if (strcmp(m->turn, moe_run_turn(run)) != 0) {
      moe_note("%s was trained on shapes %s, here %s", c->path, m->turn, moe_run_turn(run));
    }
    if (m->step >= o->steps) {
      moe_note("nothing is left to train: --steps %lld", (long long)o->steps);
    }
  }
  run->kept = moe_options_kept(o);
  int32_t k = 0;
  for (const MoeBundle *b = run->bundle; b != NULL; b = b->next, k++) {
    run->places[k] = run->resume != NULL ? moe_checkpoint_shape(c, b) : (MoeCkShape){.name = b->shape, .seq = b->seq};
  }
  if (o->save == NULL) {
    return MOE_OK;
  }
  if (run->seat->process == 0) {
    MOE_TRY(moe_ck_prepare(o->save, c->path, run->first_step, c->newest, lock_p));
  }
  run->save_first = c->path == NULL || !moe_ck_lies_in(c->path, o->save);
  return MOE_OK;
}

/* The ranks' life, and the end of it. */
static int launch_all(MoeRun *run, MoeFile *trace, MoeFile *batch)
{
  MoeLaunch launch = {.bundle = run->bundle,
                      .shared = run->shared,
                      .first = run->seat->first,
                      .n = run->seat->n,
                      .team = run->team,
                      .timeout_s = run->options->timeout_s,
                      .run = moe_run_rank,
                      .arg = run};
  int code = moe_launch(&launch);
  if (code == 0 && run->team != NULL && moe_team_done(run->team) != MOE_OK) {
    code = 1;
  }
  if (code == 0 && run->seat->process == 0 && commit_files(run, trace, batch) != MOE_OK) {
    code = 1;
  }
  return code == 0 && run->team != NULL && moe_team_bye(run->team) != MOE_OK ? 1 : code;
}

static int run_job(MoeRun *run)
{
  if (!moe_device_here(moe_device_of(run->kernels))) {
    return NO_DEVICE;
  }
  MoeHfLoad init = {0};
  MoeTeam team = {0};
  MoeFile trace = MOE_NO_FILE;
  MoeFile batch = MOE_NO_FILE;
  int code = 1;
  bool first = run->seat->process == 0; /* its files are there when the others hear of it */
  if (open_data(run) == MOE_OK && open_init(run, &init) == MOE_OK &&
      (!first || begin_files(run, &trace, &batch) == MOE_OK) && moe_job_meet(run, &team) == MOE_OK &&
      (first || begin_files(run, &trace, &batch) == MOE_OK) && map_shared(run) == MOE_OK) {
    code = launch_all(run, &trace, &batch);
  }
  moe_job_part(run, code);
  moe_hf_close(&init);
  moe_st_abandon(&run->grads);
  moe_st_abandon(&run->weights);
  moe_logits_abandon(&run->logits);
  moe_hf_save_abandon(&run->hf);
  moe_file_abandon(&trace);
  moe_file_abandon(&batch);
  for (int32_t k = 0; k < moe_n_shapes(run->bundle); k++) {
    moe_data_close(&run->data[k]);
  }
  if (run->report.log_fd >= 0) {
    close(run->report.log_fd);
  }
  moe_shared_unmap(run->shared);
  return code;
}

/* A time scale that suits every shape in use. */
static double largest_scale(const MoeOptions *o, const MoeBundle *first, const MoeWiring *wirings)
{
  double scale = 0;
  int32_t k = 0;
  for (const MoeBundle *b = first; b != NULL; b = b->next, k++) {
    double own = in_use(o, k) ? moe_emu_scale(b, &wirings[k]) : 0;
    scale = own > scale ? own : scale;
  }
  return scale;
}

/* With a closed stdin, stdout or stderr, the next file to be opened would take its number, and our messages go into it.
 */
static void hold_standard_files(void)
{
  int fd;
  do {
    fd = open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) {
    close(fd);
  }
}

int moe_train(const MoeBundle *bundle, const MoeKernels *kernels, int argc, char **argv)
{
  hold_standard_files();
  signal(SIGXFSZ, SIG_IGN); /* a file over the limit is an error like a full disk; ranks inherit that */
  moe_mapped_watch();
  MoeOptions options;
  if (moe_options_parse(&options, bundle, argc, argv) != MOE_OK) {
    return 2;
  }
  if (options.help || options.plan) {
    if (options.help) {
      moe_options_help();
    } else {
      print_plan(bundle);
    }
    return fflush(stdout) == 0 ? 0 : 1;
  }
  MoeShared shared = {0};
  MoeSeat seat;
  if (!options.memory && moe_job_seat(&seat, &options, bundle) != MOE_OK) {
    return 2;
  }
  int code = 1;
  int32_t shapes = moe_n_shapes(bundle);
  MoeWiring *wirings = moe_wirings_build(bundle, kernels);
  MoeData *data = calloc((size_t)shapes, sizeof *data);
  MoeCkShape *places = calloc((size_t)shapes, sizeof *places);
  if (wirings != NULL && data != NULL && places != NULL) {
    if (options.memory) {
      code = print_memory(bundle, kernels, wirings, options.save != NULL) == MOE_OK && fflush(stdout) == 0 ? 0 : 1;
    } else {
      if (bundle->emu != NULL && options.exec.scale == 0) {
        options.exec.scale = largest_scale(&options, bundle, wirings);
        options.exec.settle = true;
      }
      MoeRun run = {.bundle = bundle,
                    .kernels = kernels,
                    .options = &options,
                    .wirings = wirings,
                    .data = data,
                    .places = places,
                    .shared = &shared,
                    .seat = &seat,
                    .grads = MOE_NO_ST_WRITER,
                    .weights = MOE_NO_ST_WRITER,
                    .logits = MOE_NO_LOGITS,
                    .report = {.log_fd = -1}};
      if (shapes > 1 && options.shape == NULL && options.shapes == NULL) {
        moe_note("all steps take shape %s, the first of %d (--shape and --shapes choose others)", bundle->shape,
                 shapes);
      }
      MoeCheckpoint checkpoint = {0};
      int lock = -1;
      code = open_checkpoints(&run, &options, &checkpoint, &lock) == MOE_OK ? run_job(&run) : 1;
      json_decref(run.kept);
      moe_checkpoint_close(&checkpoint);
      if (lock >= 0) {
        close(lock);
      }
    }
  }
  moe_wirings_free(wirings, shapes);
  free(data);
  free(places);
  return code;
}
