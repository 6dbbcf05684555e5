#include "tests/sched/damage_int.h"

#include <string.h>

static bool drop(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  drop_row(&s->groups[g], at);
  return true;
}

static bool duplicate(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  copy_row(&s->groups[g], at);
  return true;
}

static bool swap_sends(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  int other = next_like(&s->groups[g], at, true);
  if (s->groups[g].ops[at].kind != MOE_OP_SEND || s->groups[g].ops[at].mb < 0 || other < 0) {
    return false;
  }
  swap_rows(&s->groups[g], at, other);
  return true;
}

static bool swap_recvs(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  int other = next_like(&s->groups[g], at, true);
  if (s->groups[g].ops[at].kind != MOE_OP_RECV || s->groups[g].ops[at].mb < 0 || other < 0) {
    return false;
  }
  swap_rows(&s->groups[g], at, other);
  return true;
}

static bool wrong_slot(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  MoeOp *op = &s->groups[g].ops[at];
  op->slot++;
  return is_message(op);
}

static bool wrong_use(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  MoeOp *op = &s->groups[g].ops[at];
  op->use++;
  return is_message(op);
}

/* On both sides alike, so that only the counting shows it. */
static bool wrong_use_both(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  MoeOp send = s->groups[g].ops[at];
  if (send.kind != MOE_OP_SEND || send.mb < 0) {
    return false;
  }
  for (int h = 0; h < s->n_groups; h++) {
    for (int i = 0; i < s->groups[h].n_ops; i++) {
      MoeOp *op = &s->groups[h].ops[i];
      if (is_message(op) && op->edge == send.edge && op->layer == send.layer && op->mb == send.mb) {
        op->use++;
      }
    }
  }
  return true;
}

static bool wrong_chan(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  MoeOp *op = &s->groups[g].ops[at];
  op->chan = (int16_t)(op->chan == 0 ? 1 : 0);
  return is_message(op);
}

static bool wrong_peer(const Case *c, Schedule *s, int g, int at)
{
  MoeOp *op = &s->groups[g].ops[at];
  op->peer = (int16_t)((op->peer + 1) % c->plan.n_groups);
  return is_message(op) && op->mb >= 0 && c->plan.n_groups > 1;
}

static bool wrong_mb(const Case *c, Schedule *s, int g, int at)
{
  MoeOp *op = &s->groups[g].ops[at];
  op->mb = (op->mb + 1) % c->plan.micro_batches;
  return op->mb >= 0 && c->plan.micro_batches > 1 && s->groups[g].ops[at].mb != c->good.groups[g].ops[at].mb &&
         c->good.groups[g].ops[at].mb >= 0;
}

static bool wrong_layer(const Case *c, Schedule *s, int g, int at)
{
  MoeOp *op = &s->groups[g].ops[at];
  op->layer = (int16_t)((op->layer + 1) % (c->spec.model.layers + 1));
  return op->mb >= 0;
}

static bool wrong_group(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  MoeOp op = s->groups[g].ops[at];
  int to = (g + 1) % s->n_groups;
  if (op.mb < 0 || s->n_groups < 2) {
    return false;
  }
  drop_row(&s->groups[g], at);
  int place = 0;
  while (place < s->groups[to].n_ops && s->groups[to].start_ns[place] < c->good.groups[g].start_ns[at]) {
    place++;
  }
  place -= place == s->groups[to].n_ops;
  copy_row(&s->groups[to], place);
  memset(op.wait, -1, sizeof op.wait);
  memset(op.release, -1, sizeof op.release);
  s->groups[to].ops[place + 1] = op;
  return true;
}

/* Drops wait k. Where other waits and messages imply it, that is no damage: see implied(). */
static bool drop_wait(Schedule *s, int g, int at, int k)
{
  MoeOp *op = &s->groups[g].ops[at];
  if (op->wait[k] < 0) {
    return false;
  }
  for (int i = k; i < MOE_MAX_WAITS; i++) {
    op->wait[i] = i + 1 < MOE_MAX_WAITS ? op->wait[i + 1] : -1;
  }
  return true;
}

static bool no_wait_0(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  return drop_wait(s, g, at, 0);
}

static bool no_wait_1(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  return drop_wait(s, g, at, 1);
}

static bool no_wait_2(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  return drop_wait(s, g, at, 2);
}

static bool no_wait_3(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  return drop_wait(s, g, at, 3);
}

static bool no_wait_4(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  return drop_wait(s, g, at, 4);
}

static bool no_wait_5(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  return drop_wait(s, g, at, 5);
}

static bool no_wait_6(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  return drop_wait(s, g, at, 6);
}

static bool no_wait_7(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  return drop_wait(s, g, at, 7);
}

/* One that is given back by nobody; the others of the op move up. */
static bool drop_release(Schedule *s, int g, int at, int k)
{
  MoeOp *op = &s->groups[g].ops[at];
  bool had = op->release[k] >= 0;
  for (int i = k; i < MOE_MAX_WAITS; i++) {
    op->release[i] = i + 1 < MOE_MAX_WAITS ? op->release[i + 1] : -1;
  }
  return had;
}

static bool no_release(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  return drop_release(s, g, at, 0);
}

static bool no_second_release(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  return drop_release(s, g, at, 1);
}

static bool wrong_chunk(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  s->groups[g].ops[at].chunk++;
  return true;
}

/* Two rows that differ in their chunk alone take each other's. */
static bool swap_chunks(const Case *c, Schedule *s, int g, int at)
{
  SchedGroup *group = &s->groups[g];
  MoeOp *op = &group->ops[at];
  for (int i = at + 1; i < group->n_ops && op->mb >= 0 && c->plan.chunks > 1; i++) {
    MoeOp *other = &group->ops[i];
    if (other->kind == op->kind && other->edge == op->edge && other->layer == op->layer && other->mb == op->mb) {
      int16_t chunk = op->chunk;
      op->chunk = other->chunk;
      other->chunk = chunk;
      return true;
    }
  }
  return false;
}

static bool early_release(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  SchedGroup *group = &s->groups[g];
  MoeOp *op = &group->ops[at];
  if (op->release[0] < 0 || op->mb < 0) {
    return false;
  }
  for (int i = at - 1; i > op->release[0]; i--) { /* by another op, which waits for it but is not the last to read */
    if (group->ops[i].kind != MOE_OP_RECV && group->ops[i].mb >= 0 && group->ops[i].wait[2] < 0 &&
        group->ops[i].release[0] < 0 && is_compute(&group->ops[i])) {
      group->ops[i].wait[group->ops[i].wait[0] < 0 ? 0 : group->ops[i].wait[1] < 0 ? 1 : 2] = op->release[0];
      group->ops[i].release[0] = op->release[0];
      op->release[0] = -1;
      return true;
    }
  }
  return false;
}

static bool double_release(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  SchedGroup *group = &s->groups[g];
  if (group->ops[at].release[0] < 0 || at + 1 >= group->n_ops || group->ops[at + 1].release[1] >= 0) {
    return false;
  }
  group->ops[at + 1].release[1] = group->ops[at].release[0];
  return true;
}

static bool wrong_saved(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  MoeOp *op = &s->groups[g].ops[at];
  const SchedGroup *group = &s->groups[g];
  int most = group->att_saved > group->ffn_saved ? group->att_saved : group->ffn_saved;
  bool has = op->saved >= 0;
  op->saved = (op->saved + 1) % (most > 1 ? most : 2);
  return has;
}

static bool wrong_work(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  MoeOp *op = &s->groups[g].ops[at];
  bool has = op->work >= 0;
  op->work++;
  return has;
}

static bool too_few_slots(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  SchedGroup *group = &s->groups[g];
  int *counts[] = {&group->att_saved, &group->att_work, &group->ffn_saved, &group->ffn_work};
  bool had = at < 4 && *counts[at] > 0;
  if (had) {
    --*counts[at];
  }
  return had;
}

static bool fewer_chan_slots(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  if (g != 0 || at >= s->n_chans) {
    return false;
  }
  s->chans[at].slots--;
  return true;
}

/* The next compute op of the same (layer, micro-batch) before its input: they swap places. */
static bool before_input(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  SchedGroup *group = &s->groups[g];
  MoeOp *op = &group->ops[at];
  for (int i = at + 1; i < group->n_ops && is_compute(op) && op->mb >= 0; i++) {
    const MoeOp *other = &group->ops[i];
    if (is_compute(other) && other->mb == op->mb && other->layer == op->layer && other->kind != op->kind &&
        (other->chunk == op->chunk || other->kind != MOE_OP_FFN_WGRAD)) {
      /* weight gradients have an order only with the input gradient they belong to */
      bool ffn = op->kind == MOE_OP_FFN_WGRAD || other->kind == MOE_OP_FFN_WGRAD;
      bool bound = ffn ? op->kind == MOE_OP_FFN_DGRAD : op->kind < MOE_OP_FFN_WGRAD;
      /* nor has a forward that is run again one with the gradient of the sum */
      bool apart = (op->kind == MOE_OP_ATT_AGAIN && other->kind == MOE_OP_JOIN_DGRAD) ||
                   (op->kind == MOE_OP_JOIN_DGRAD && other->kind == MOE_OP_ATT_AGAIN);
      swap_rows(group, at, i);
      return bound && !apart;
    }
  }
  return false;
}

/* A compute op waits for a message that only comes after it: a deadlock. */
static bool wait_for_later(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  SchedGroup *group = &s->groups[g];
  MoeOp *op = &group->ops[at];
  for (int i = at + 1; i < group->n_ops && is_compute(op) && op->wait[3] < 0; i++) {
    if (is_compute(&group->ops[i])) {
      for (int k = 3; k > 0; k--) {
        op->wait[k] = op->wait[k - 1];
      }
      op->wait[0] = i;
      return true;
    }
  }
  return false;
}

static bool wait_out_of_range(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  s->groups[g].ops[at].wait[3] = s->groups[g].n_ops;
  return true;
}

static bool wrong_stream(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  MoeOp *op = &s->groups[g].ops[at];
  op->stream = is_compute(op) ? MOE_STREAM_SEND : MOE_STREAM_FWD;
  return true;
}

static bool wrong_bucket(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  MoeOp *op = &s->groups[g].ops[at];
  bool has = op->bucket < MOE_BUCKET_NONE;
  op->bucket = (uint8_t)((op->bucket + 1) % MOE_BUCKET_NONE);
  return has;
}

static bool unsorted(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  s->groups[g].start_ns[at] += INT64_C(1) << 50;
  s->groups[g].end_ns[at] += INT64_C(1) << 50;
  return at + 1 < s->groups[g].n_ops;
}

/* Ends long after what follows it has begun. */
static bool late_end(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  SchedGroup *group = &s->groups[g];
  bool before = false;
  for (int i = 0; i < group->n_ops; i++) {
    before |= i > at && is_compute(&group->ops[at]) && is_compute(&group->ops[i]);
    for (int k = 0; k < MOE_MAX_WAITS; k++) {
      before |= group->ops[i].wait[k] == at;
    }
  }
  group->end_ns[at] += INT64_C(1) << 50;
  s->step_ns = group->end_ns[at];
  s->pipe_ns = group->ops[at].mb >= 0 ? s->step_ns : s->pipe_ns;
  return before;
}

static bool early_arrival(const Case *c, Schedule *s, int g, int at)
{
  SchedGroup *group = &s->groups[g];
  if (group->ops[at].kind != MOE_OP_RECV || c->good.groups[g].start_ns[at] == 0) {
    return false;
  }
  group->end_ns[at] = group->start_ns[at] = at > 0 ? group->start_ns[at - 1] : 0;
  return group->end_ns[at] < c->good.groups[g].start_ns[at];
}

static bool wrong_step(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  ++*(at == 0 ? &s->step_ns : &s->pipe_ns);
  return g == 0 && at < 2;
}

/* More slots than the micro-batches in flight fill; stages take what their order takes. */
static bool too_many_slots(const Case *c, Schedule *s, int g, int at)
{
  int layers = c->spec.model.layers + 1;
  *(at == 0 ? &s->groups[g].att_saved : &s->groups[g].ffn_saved) = c->plan.in_flight * layers + 1;
  return at < 2 && c->plan.n_stages == 0;
}

/* Two ops of a kind read each other's messages. */
static bool swap_reads(const Case *c, Schedule *s, int g, int at)
{
  (void)c;
  SchedGroup *group = &s->groups[g];
  int other = next_like(group, at, false);
  if (group->ops[at].mb < 0 || group->ops[at].release[0] < 0 || other < 0 || group->ops[other].release[0] < 0) {
    return false;
  }
  int32_t a = group->ops[at].release[0], b = group->ops[other].release[0];
  group->ops[at].release[0] = b;
  group->ops[other].release[0] = a;
  for (int k = 0; k < MOE_MAX_WAITS; k++) {
    int32_t *x = &group->ops[at].wait[k], *y = &group->ops[other].wait[k];
    *x = *x == a ? b : *x;
    *y = *y == b ? a : *y;
  }
  return true;
}

/* Two micro-batches of different directions change names everywhere. */
static bool swap_ways(const Case *c, Schedule *s, int g, int at)
{
  int a = s->groups[g].ops[at].mb, b = c->plan.micro_batches - 1;
  if (a < 0 || plan_way(&c->plan, a) == plan_way(&c->plan, b)) {
    return false;
  }
  for (int h = 0; h < s->n_groups; h++) {
    for (int i = 0; i < s->groups[h].n_ops; i++) {
      int32_t *mb = &s->groups[h].ops[i].mb;
      *mb = *mb == a ? b : *mb == b ? a : *mb;
    }
  }
  return true;
}

/* A gradient is reduced before the last op that adds to it. */
static bool early_reduce(const Case *c, Schedule *s, int g, int at)
{
  static const MoeOpKind adders[] = {[MOE_BUCKET_EMBED] = MOE_OP_EMBED_WGRAD, [MOE_BUCKET_ATT] = MOE_OP_ATT_WGRAD,
                                     [MOE_BUCKET_GAIN] = MOE_OP_ATT_DGRAD,    [MOE_BUCKET_SHARED] = MOE_OP_FFN_WGRAD,
                                     [MOE_BUCKET_EXPERTS] = MOE_OP_FFN_WGRAD, [MOE_BUCKET_HEAD] = MOE_OP_HEAD};
  (void)c;
  SchedGroup *group = &s->groups[g];
  const MoeOp *op = &group->ops[at];
  for (int i = at - 1; i > 0 && op->kind == MOE_OP_GRAD_REDUCE; i--) {
    bool head = op->bucket == MOE_BUCKET_HEAD;
    if (group->ops[i].kind == adders[op->bucket] && (head || group->ops[i].layer == op->layer)) {
      swap_rows(group, i, at);
      return true;
    }
  }
  return false;
}

const DamageKind damages[] = {
    {"drop", drop, -1, false},
    {"duplicate", duplicate, -1, false},
    {"swap_sends", swap_sends, -1, false},
    {"swap_recvs", swap_recvs, -1, false},
    {"wrong_slot", wrong_slot, -1, false},
    {"wrong_use", wrong_use, -1, false},
    {"wrong_use_both", wrong_use_both, -1, false},
    {"wrong_chan", wrong_chan, -1, false},
    {"wrong_peer", wrong_peer, -1, false},
    {"wrong_mb", wrong_mb, -1, false},
    {"wrong_layer", wrong_layer, -1, false},
    {"wrong_group", wrong_group, -1, false},
    {"no_wait_0", no_wait_0, 0, false},
    {"no_wait_1", no_wait_1, 1, false},
    {"no_wait_2", no_wait_2, 2, false},
    {"no_wait_3", no_wait_3, 3, false},
    {"no_wait_4", no_wait_4, 4, false},
    {"no_wait_5", no_wait_5, 5, false},
    {"no_wait_6", no_wait_6, 6, false},
    {"no_wait_7", no_wait_7, 7, false},
    {"no_release", no_release, -1, false},
    {"no_second_release", no_second_release, -1, false},
    {"wrong_chunk", wrong_chunk, -1, false},
    {"swap_chunks", swap_chunks, -1, false},
    {"swap_reads", swap_reads, -1, false},
    {"swap_ways", swap_ways, -1, false},
    {"early_reduce", early_reduce, -1, false},
    {"early_release", early_release, -1, false},
    {"double_release", double_release, -1, false},
    {"wrong_saved", wrong_saved, -1, false},
    {"wrong_work", wrong_work, -1, false},
    {"too_few_slots", too_few_slots, -1, false},
    {"fewer_chan_slots", fewer_chan_slots, -1, false},
    {"before_input", before_input, -1, false},
    {"wait_for_later", wait_for_later, -1, false},
    {"wait_out_of_range", wait_out_of_range, -1, false},
    {"wrong_stream", wrong_stream, -1, false},
    {"wrong_bucket", wrong_bucket, -1, false},
    {"unsorted", unsorted, -1, true},
    {"late_end", late_end, -1, true},
    {"early_arrival", early_arrival, -1, true},
    {"wrong_step", wrong_step, -1, true},
    {"too_many_slots", too_many_slots, -1, false},
};

const int n_damages = (int)(sizeof damages / sizeof *damages);
