#include "runtime/job_team.h"

#include <stdio.h>

#include "runtime/log.h"

MoeStatus moe_job_seat(MoeSeat *seat, const MoeOptions *o, const MoeBundle *bundle)
{
  MOE_TRY(moe_boot_seat(seat, &o->boot, moe_n_ranks(bundle)));
  if (seat->launcher != NULL && o->save_hf != NULL) {
    moe_error("--save-hf is for a program that runs all ranks itself; save a checkpoint, and write the folder from it "
              "by --nodes 1 --resume");
    return MOE_EINVAL;
  }
  if (seat->launcher != NULL && seat->process > 0) {
    moe_log_errors_only();
  }
  return MOE_OK;
}

/* What goes through memory that all ranks share. Every process finds the same; the first of each host says so. */
static MoeStatus check_hosts(const MoeRun *run)
{
  const MoeOptions *o = run->options;
  const char *what = run->bundle->emu != NULL ? "a rehearsal"
                     : o->link > 0            ? "--link"
                     : o->trace != NULL       ? "--trace"
                     : o->dump_logits != NULL ? "--dump-logits"
                                              : NULL;
  if (what == NULL || moe_team_one_host(run->team)) {
    return MOE_OK;
  }
  snprintf(run->team->failed, sizeof run->team->failed, "%s needs all ranks on one host", what);
  if (run->seat->process == moe_team_leader(run->team)) {
    moe_error("%s needs all ranks on one host", what);
  }
  return MOE_EINVAL;
}

/* Ranks of which the plan thinks that they share a node, but that run on several hosts, are told: messages between them
   take longer than planned. */
static void check_nodes(const MoeRun *run)
{
  const MoeBundle *b = run->bundle;
  const uint64_t *host_of = run->team->host_of;
  int32_t first = 0, last = -1;
  for (int32_t r = 0; r < moe_n_ranks(b) && b->ranks_per_node > 0; r++) {
    MoeRank me = moe_rank_of(b, r);
    int32_t node = (me.first_of_replica + b->seat[r - me.first_of_replica]) / b->ranks_per_node;
    if (node == last && host_of[r] != host_of[first]) {
      moe_note("ranks %d and %d share a node in the plan, but run on two hosts", first, r);
      return;
    }
    first = node != last ? r : first;
    last = node;
  }
}

bool moe_job_counts(const MoeRun *run)
{
  const MoeOptions *o = run->options;
  const char *why = run->kernels->device != NULL                         ? "kernels of a device do not count"
                    : run->team != NULL && !moe_team_one_host(run->team) ? "rank 0 sees no counts of other hosts"
                                                                         : NULL;
  if (why != NULL && o->log_experts > 0) {
    moe_note("--log-experts has no effect here: %s", why);
  }
  return why == NULL && run->bundle->emu == NULL && (o->log != NULL || o->metrics != NULL);
}

MoeStatus moe_job_meet(MoeRun *run, MoeTeam *team)
{
  const MoeOptions *o = run->options;
  if (run->seat->launcher == NULL) {
    return MOE_OK;
  }
  MoeMeet meet = {.seat = run->seat,
                  .token_file = o->token_file,
                  .hash = run->bundle->hash,
                  .settings = moe_options_digest(o) + (uint64_t)run->first_step * 0x9e3779b97f4a7c15u,
                  .timeout_s = o->join_timeout_s};
  MOE_TRY(moe_team_meet(team, &meet));
  run->team = team;
  moe_team_guard(team);
  check_nodes(run);
  return check_hosts(run);
}

void moe_job_part(MoeRun *run, int code)
{
  char text[96];
  if (run->team == NULL) {
    return;
  }
  if (code != 0) {
    snprintf(text, sizeof text, "the process of rank %d could not go on; the other ranks are ended", run->seat->first);
    moe_team_fail(run->team, text);
  }
  moe_team_close(run->team);
  run->team = NULL;
}
