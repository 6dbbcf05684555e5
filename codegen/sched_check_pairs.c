/* Both ends of every ordered pair of groups: the same messages in the same order. All ranks of a group share one table,
   so the sequence of a pair of ranks is the sequence of its pair of groups, less the classes of message that this pair
   does not exchange (other nodes, other replicas, not rank 0). Comparing the whole sequences once per pair of groups is
   therefore at least as strict as comparing every pair of ranks, and costs nothing as ranks grow. */
#include "codegen/sched_check_int.h"

#include <stdlib.h>
#include <string.h>

/* Adds a group to the list unless it is there. */
static void hold(int groups[CHECK_MAX_HOLDERS], int group)
{
  int i = 0;
  while (i < CHECK_MAX_HOLDERS && groups[i] >= 0 && groups[i] != group) {
    i++;
  }
  if (i < CHECK_MAX_HOLDERS) {
    groups[i] = group;
  }
}

/* A rank's experts are on no other rank of its group; where optimizer state lies with all ranks, the group's ranks
   stand for those that their slices go to. */
static bool one_each(const Plan *plan, MoeBucketKind kind)
{
  return kind == MOE_BUCKET_EXPERTS && plan->optimizer_shard != OPT_SHARD_ALL;
}

int check_holders(const Check *c, MoeBucketKind kind, int layer, int groups[CHECK_MAX_HOLDERS])
{
  const Plan *plan = c->plan;
  int ranks = 0;
  for (int i = 0; i < CHECK_MAX_HOLDERS; i++) {
    groups[i] = -1;
  }
  for (int way = 0; way < c->n_ways; way++) {
    switch (kind) {
    case MOE_BUCKET_EMBED:
      hold(groups, plan_att(c->spec, plan, way, 0));
      if (c->spec->model.tied) {
        hold(groups, plan_att(c->spec, plan, way, c->n_layers));
      }
      break;
    case MOE_BUCKET_HEAD:
      hold(groups, plan_att(c->spec, plan, way, c->n_layers));
      break;
    case MOE_BUCKET_ATT:
      hold(groups, plan_att(c->spec, plan, way, layer));
      break;
    case MOE_BUCKET_GAIN: /* of a dense layer both are its attention group */
      hold(groups, plan_att(c->spec, plan, way, layer));
      hold(groups, plan_ffn(c->spec, plan, way, layer));
      break;
    default:
      if (!spec_layer_is_dense(c->spec, layer) && (kind != MOE_BUCKET_SHARED || c->spec->model.moe.shared > 0)) {
        hold(groups, plan_ffn(c->spec, plan, way, layer));
      }
      break;
    }
  }
  for (int i = 0; i < CHECK_MAX_HOLDERS && groups[i] >= 0; i++) {
    ranks += one_each(plan, kind) ? 1 : plan->groups[groups[i]].n_ranks;
  }
  return ranks * plan->replicas;
}

/* Groups at the other end of a message row. */
static int peers_of(const Check *c, int32_t row, int *peers)
{
  const MoeOp *op = check_op(c, row);
  int me = c->group[row], n = 0;
  switch (moe_edge_pairs(op->edge)) {
  case MOE_PAIRS_GROUPS:
  case MOE_PAIRS_NODE:
    peers[n++] = op->peer;
    break;
  case MOE_PAIRS_HOLDERS: {
    int groups[CHECK_MAX_HOLDERS];
    check_holders(c, op->bucket, op->layer, groups);
    for (int k = 0; k < CHECK_MAX_HOLDERS; k++) {
      bool one = c->plan->groups[me].n_ranks == 1 || one_each(c->plan, op->bucket);
      bool alone = groups[k] == me && c->plan->replicas == 1 && one;
      if (groups[k] >= 0 && !alone) {
        peers[n++] = groups[k];
      }
    }
    break;
  }
  case MOE_PAIRS_ROOT: {
    bool to_root = (op->edge == MOE_EDGE_SCALARS_UP) == (op->kind == MOE_OP_SEND);
    for (int g = 0; g < c->n_groups; g++) {
      bool alone = g == me && c->plan->replicas == 1 && c->plan->groups[me].n_ranks == 1;
      if ((to_root ? g == c->root : true) && !alone) {
        peers[n++] = g;
      }
    }
    break;
  }
  }
  return n;
}

/* Rows of each ordered pair, sends and receives apart: lists by (src, dst) in table order. */
typedef struct Ends {
  int32_t *first; /* [groups * groups + 1] */
  int32_t *rows;
} Ends;

static Ends list_ends(Check *c, MoeOpKind kind)
{
  size_t pairs = (size_t)c->n_groups * (size_t)c->n_groups;
  int *peers = arena_new_array(c->arena, int, (size_t)c->n_groups + CHECK_MAX_HOLDERS);
  Ends ends = {.first = arena_new_array(c->arena, int32_t, pairs + 2)};
  int32_t rows = c->base[c->n_groups];
  for (int pass = 0; pass < 2; pass++) {
    for (int32_t row = 0; row < rows; row++) {
      if (check_op(c, row)->kind != kind) {
        continue;
      }
      int n = peers_of(c, row, peers);
      for (int k = 0; k < n; k++) {
        int src = kind == MOE_OP_SEND ? c->group[row] : peers[k], dst = kind == MOE_OP_SEND ? peers[k] : c->group[row];
        int32_t *at = &ends.first[src * c->n_groups + dst + 1 + !pass];
        if (pass) {
          ends.rows[*at] = row;
        }
        ++*at;
      }
    }
    for (size_t i = 0; !pass && i <= pairs; i++) {
      ends.first[i + 1] += ends.first[i];
    }
    if (!pass) {
      ends.rows = arena_new_array(c->arena, int32_t, (size_t)ends.first[pairs + 1] + 1);
    }
  }
  return ends;
}

static bool same_message(Check *c, int32_t send, int32_t recv)
{
  const MoeOp *a = check_op(c, send), *b = check_op(c, recv);
  char name[160];
  if (a->edge != b->edge || a->layer != b->layer || a->mb != b->mb || a->bucket != b->bucket || a->chunk != b->chunk) {
    check_fail(c, send, "at its place in the pair's order the other side has %s", check_name(c, recv, name));
    return false;
  }
  if (a->chan != b->chan || a->slot != b->slot || a->use != b->use) {
    check_fail(c, send, "channel %d slot %d use %d, but %s has channel %d slot %d use %d", a->chan, a->slot, a->use,
               check_name(c, recv, name), b->chan, b->slot, b->use);
    return false;
  }
  return true;
}

/* The channel's row is right, the slot exists and its uses count up. */
static void check_slot(Check *c, int32_t row, int32_t *uses, const int *first_slot)
{
  const MoeOp *op = check_op(c, row);
  if (op->chan < 0 || op->chan >= c->sched->n_chans) {
    check_fail(c, row, "channel %d of %d", op->chan, c->sched->n_chans);
    return;
  }
  const MoeChan *chan = &c->sched->chans[op->chan];
  bool grouped = op->peer >= 0;
  int src = !grouped ? -1 : c->group[row], dst = !grouped ? -1 : op->peer;
  if (chan->edge != op->edge || chan->bucket != op->bucket || chan->src != src || chan->dst != dst) {
    check_fail(c, row, "channel %d is edge %d bucket %d from group %d to %d, not edge %d bucket %d from %d to %d",
               op->chan, chan->edge, chan->bucket, chan->src, chan->dst, op->edge, op->bucket, src, dst);
    return;
  }
  if (op->slot < 0 || op->slot >= chan->slots) {
    check_fail(c, row, "slot %d of %d", op->slot, chan->slots);
    return;
  }
  int32_t *use = &uses[first_slot[op->chan] + op->slot];
  if (op->use != *use) {
    check_fail(c, row, "use %d of slot %d, but it is number %d", op->use, op->slot, *use);
  }
  ++*use;
}

static void check_releases(Check *c)
{
  int32_t rows = c->base[c->n_groups];
  memset(c->releaser, -1, (size_t)rows * sizeof *c->releaser);
  for (int32_t row = 0; row < rows; row++) {
    const MoeOp *op = check_op(c, row);
    for (int k = 0; k < MOE_MAX_WAITS; k++) {
      if (op->release[k] < 0) {
        continue;
      }
      int32_t recv = c->base[c->group[row]] + op->release[k];
      bool waits = false;
      for (int i = 0; i < MOE_MAX_WAITS; i++) {
        waits |= op->wait[i] == op->release[k];
      }
      if (!waits) {
        check_fail(c, row, "releases op %d without waiting for it", op->release[k]);
      }
      if (c->releaser[recv] >= 0) {
        check_fail(c, recv, "released by op %d and by op %d", c->releaser[recv] - c->base[c->group[row]],
                   row - c->base[c->group[row]]);
      }
      c->releaser[recv] = row;
    }
  }
  for (int32_t row = 0; row < rows; row++) {
    if (check_op(c, row)->kind == MOE_OP_RECV && c->releaser[row] < 0) {
      check_fail(c, row, "no op releases its slots");
    }
  }
}

static void index_parts(Check *c)
{
  int32_t rows = c->base[c->n_groups];
  c->first_part = arena_new_array(c->arena, int32_t, (size_t)rows + 2);
  c->part_ids = arena_new_array(c->arena, int32_t, 2 * (size_t)c->n_parts + 1);
  for (int i = 0; i < c->n_parts; i++) {
    c->first_part[c->parts[i].send + 2]++;
    c->first_part[c->parts[i].recv + 2]++;
  }
  for (int32_t row = 0; row <= rows; row++) {
    c->first_part[row + 1] += c->first_part[row];
  }
  for (int i = 0; i < c->n_parts; i++) {
    c->part_ids[c->first_part[c->parts[i].send + 1]++] = i;
    c->part_ids[c->first_part[c->parts[i].recv + 1]++] = i;
  }
}

bool check_pairs(Check *c)
{
  Ends sends = list_ends(c, MOE_OP_SEND), recvs = list_ends(c, MOE_OP_RECV);
  int pairs = c->n_groups * c->n_groups, n_slots = 0;
  int *first_slot = arena_new_array(c->arena, int, (size_t)c->sched->n_chans + 1);
  for (int i = 0; i < c->sched->n_chans; i++) {
    first_slot[i] = n_slots;
    n_slots += c->sched->chans[i].slots;
  }
  int32_t *uses = arena_new_array(c->arena, int32_t, (size_t)n_slots + 1);
  c->parts = arena_new_array(c->arena, CheckPart, (size_t)sends.first[pairs] + 1);
  for (int pair = 0; pair < pairs; pair++) {
    int32_t n = sends.first[pair + 1] - sends.first[pair], m = recvs.first[pair + 1] - recvs.first[pair];
    if (n > 0) {
      memset(uses, 0, (size_t)n_slots * sizeof *uses);
    }
    if (n != m) {
      check_fail_all(c, "group %d sends %d messages to group %d, which receives %d", pair / c->n_groups, n,
                     pair % c->n_groups, m);
    }
    for (int32_t k = 0; k < n && k < m; k++) {
      int32_t send = sends.rows[sends.first[pair] + k], recv = recvs.rows[recvs.first[pair] + k];
      if (!same_message(c, send, recv)) {
        break; /* whatever follows is shifted */
      }
      check_slot(c, send, uses, first_slot);
      c->parts[c->n_parts++] =
          (CheckPart){.send = send, .recv = recv, .src = pair / c->n_groups, .dst = pair % c->n_groups, .nth = k};
    }
  }
  check_releases(c);
  index_parts(c);
  return c->reported == 0;
}
