/* The launcher's side of a run: checks what can be checked before any rank exists, maps the shared region, starts the
   ranks, and gives files their names when all have finished. */
#include "runtime/job.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/launch.h"
#include "runtime/log.h"
#include "runtime/run.h"
#include "runtime/tensors.h"
#include "runtime/trace.h"

static void print_layers(const MoeBundle *b, const int16_t *group_of, int32_t n, int32_t group)
{
  bool any = false;
  for (int32_t l = 0; l < n; l++) {
    if (group_of[l] != group) {
      continue;
    }
    int32_t end = l;
    while (end + 1 < n && group_of[end + 1] == group) {
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

static void print_plan(const MoeBundle *b)
{
  printf("%s, schedule %s, from %s\n", b->model, b->system, b->spec);
  printf("%d ranks: %d replicas of %d; %d micro-batches of up to %d sequences of %d tokens, %d sequences a step\n",
         moe_n_ranks(b), b->replicas, b->replica_ranks, b->micro_batches, b->mb_seqs, b->seq, b->global_batch);
  for (int32_t g = 0; g < b->n_groups; g++) {
    const MoeGroup *group = &b->groups[g];
    printf("%-4s ranks %d-%d  ops %d", group->name, group->first_rank, group->first_rank + group->n_ranks - 1,
           group->n_ops);
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

static MoeStatus print_memory(const MoeBundle *b, const MoeKernels *kernels, const MoeWiring *wiring)
{
  printf("rank group      weights    gradients    optimizer  activations      buffers    workspace        total\n");
  for (int32_t r = 0; r < moe_n_ranks(b); r++) {
    MoeRank me = moe_rank_of(b, r);
    MoeMem m;
    MOE_TRY(moe_mem_size(&m, &me, kernels, wiring));
    unsigned long long total = m.weights + m.gradients + m.optimizer + m.activations + m.buffers + m.workspace;
    printf("%4d %-5s %12llu %12llu %12llu %12llu %12llu %12llu %12llu\n", r, me.group->name,
           (unsigned long long)m.weights, (unsigned long long)m.gradients, (unsigned long long)m.optimizer,
           (unsigned long long)m.activations, (unsigned long long)m.buffers, (unsigned long long)m.workspace, total);
    moe_mem_unmap(&m);
  }
  return MOE_OK;
}

/* The last step's tokens, as every attention rank has read them. */
static MoeStatus write_batch(const MoeFile *f, const MoeRun *run)
{
  const MoeBundle *b = run->bundle;
  size_t n = (size_t)b->seq + 1;
  int32_t *tokens = malloc(n * sizeof *tokens);
  MoeStatus status = tokens == NULL ? MOE_ENOMEM : MOE_OK;
  for (int64_t g = 0; status == MOE_OK && g < b->global_batch; g++) {
    uint64_t number = (uint64_t)((run->options->steps - 1) * b->global_batch + g);
    status = moe_data_read(&run->data, false, moe_data_sample(&run->data, number), tokens);
    if (status == MOE_OK) {
      status = moe_file_write_at(f, tokens, n * sizeof *tokens, (uint64_t)g * n * sizeof *tokens);
    }
  }
  free(tokens);
  return status;
}

static MoeStatus open_data(MoeRun *run)
{
  const MoeOptions *o = run->options;
  if (o->steps == 0) {
    return MOE_OK;
  }
  MOE_TRY(moe_data_open(&run->data, o->data, o->format, o->holdout, run->bundle->seq, run->bundle->vocab, o->seed));
  int64_t held = run->data.tokens - run->data.train_tokens;
  if (run->data.n_eval == 0 && o->eval_every_given) {
    moe_error("--eval-every: the held-out part has %lld tokens, but one sample needs %d", (long long)held,
              run->bundle->seq + 1);
    return MOE_EINVAL;
  }
  if (run->data.n_eval == 0 && o->holdout > 0) {
    moe_note("the held-out part has %lld tokens, fewer than one sample needs (%d): no evaluation", (long long)held,
             run->bundle->seq + 1);
  }
  return MOE_OK;
}

static MoeStatus open_log(MoeRun *run)
{
  run->report = (MoeReport){.log_fd = -1,
                            .log_path = run->options->log,
                            .live = isatty(STDERR_FILENO) == 1,
                            .steps = run->options->steps,
                            .flops_per_token = run->bundle->flops_per_token,
                            .peak_flops = run->bundle->peak_flops};
  if (run->options->log != NULL) {
    run->report.log_fd = open(run->options->log, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
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
  int32_t max_ops = 0;
  for (int32_t g = 0; g < run->bundle->n_groups && o->trace != NULL; g++) {
    max_ops = run->bundle->groups[g].n_ops > max_ops ? run->bundle->groups[g].n_ops : max_ops;
  }
  int32_t n = moe_n_ranks(run->bundle);
  MOE_TRY(moe_shared_map(run->shared, n, run->wiring->shared_bytes, o->link > 0, max_ops));
  if (o->link > 0) {
    moe_pace_init(run->shared->pacer, n, o->link);
  }
  for (int32_t i = 0; o->exec.poison && i < n * n; i++) {
    const MoeLinkPlan *link = &run->wiring->links[i];
    for (int32_t s = 0; i / n != i % n && s < link->n_slots; s++) {
      memset(run->shared->slabs + link->offset[s] + sizeof(MoeSlot), 0xff, moe_align64(link->capacity[s]));
    }
  }
  return MOE_OK;
}

/* Makes every file now, so that a wrong path is found before the training and not after it. */
static MoeStatus begin_files(MoeRun *run, MoeFile *trace, MoeFile *batch)
{
  const MoeOptions *o = run->options;
  MOE_TRY(open_log(run));
  if (o->dump_grads != NULL) {
    MOE_TRY(moe_tensors_begin(&run->grads, run->bundle, o->dump_grads));
  }
  if (o->dump_weights != NULL) {
    MOE_TRY(moe_tensors_begin(&run->weights, run->bundle, o->dump_weights));
  }
  if (o->trace != NULL) {
    MOE_TRY(moe_file_begin(trace, o->trace));
  }
  if (o->dump_batch != NULL) {
    MOE_TRY(moe_file_begin(batch, o->dump_batch));
  }
  return MOE_OK;
}

static MoeStatus commit_files(MoeRun *run, MoeFile *trace, MoeFile *batch)
{
  if (trace->fd >= 0) {
    MOE_TRY(moe_trace_write(trace, run->bundle, run->shared));
  }
  if (batch->fd >= 0) {
    MOE_TRY(write_batch(batch, run));
  }
  MOE_TRY(moe_file_commit(&run->grads));
  MOE_TRY(moe_file_commit(&run->weights));
  MOE_TRY(moe_file_commit(trace));
  return moe_file_commit(batch);
}

static int run_job(MoeRun *run)
{
  MoeFile trace = MOE_NO_FILE;
  MoeFile batch = MOE_NO_FILE;
  int code = 1;
  if (open_data(run) == MOE_OK && begin_files(run, &trace, &batch) == MOE_OK && map_shared(run) == MOE_OK) {
    MoeLaunch launch = {.bundle = run->bundle,
                        .shared = run->shared,
                        .timeout_s = run->options->timeout_s,
                        .run = moe_run_rank,
                        .arg = run};
    code = moe_launch(&launch);
    if (code == 0 && commit_files(run, &trace, &batch) != MOE_OK) {
      code = 1;
    }
  }
  moe_file_abandon(&run->grads);
  moe_file_abandon(&run->weights);
  moe_file_abandon(&trace);
  moe_file_abandon(&batch);
  moe_data_close(&run->data);
  if (run->report.log_fd >= 0) {
    close(run->report.log_fd);
  }
  moe_shared_unmap(run->shared);
  return code;
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
  MoeWiring wiring;
  MoeShared shared = {0};
  int code = 1;
  if (moe_wiring_build(bundle, kernels, &wiring) == MOE_OK) {
    if (options.memory) {
      code = print_memory(bundle, kernels, &wiring) == MOE_OK && fflush(stdout) == 0 ? 0 : 1;
    } else {
      MoeRun run = {.bundle = bundle,
                    .kernels = kernels,
                    .options = &options,
                    .wiring = &wiring,
                    .shared = &shared,
                    .grads = MOE_NO_FILE,
                    .weights = MOE_NO_FILE,
                    .report = {.log_fd = -1}};
      code = run_job(&run);
    }
  }
  moe_wiring_free(&wiring);
  return code;
}
