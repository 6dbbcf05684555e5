/* Turns a group's table into what the executor walks: links with message lists, waits without the ops this rank skips,
   and one prepared kernel call per op. All addresses are known now, since slots are numbered statically. */
#include <stdlib.h>
#include <string.h>

#include "runtime/exec.h"
#include "runtime/log.h"

static MoeStatus bad_op(const MoeOp *op, const char *what)
{
  char text[96];
  moe_op_text(op, text, sizeof text);
  moe_error("%s: %s", text, what);
  return MOE_EINVAL;
}

/* Which side of a layer an op belongs to; decides pools and buckets. */
static int32_t side_of(const MoeOp *op)
{
  switch ((MoeOpKind)op->kind) {
  case MOE_OP_EMBED_FWD:
  case MOE_OP_ATT_FWD:
  case MOE_OP_JOIN_FWD:
  case MOE_OP_HEAD:
  case MOE_OP_ATT_AGAIN:
  case MOE_OP_JOIN_DGRAD:
  case MOE_OP_ATT_DGRAD:
  case MOE_OP_ATT_WGRAD:
  case MOE_OP_EMBED_WGRAD:
    return MOE_ROLE_A;
  case MOE_OP_FFN_FWD:
  case MOE_OP_FFN_DGRAD:
  case MOE_OP_FFN_WGRAD:
  case MOE_OP_RELAY:
  case MOE_OP_NODE_REDUCE:
    return MOE_ROLE_F;
  case MOE_OP_SEND:
    if (moe_edge_pairs(op->edge) == MOE_PAIRS_NODE) {
      return MOE_ROLE_F;
    }
    if (moe_edge_pairs(op->edge) == MOE_PAIRS_GROUPS) {
      return op->edge == MOE_EDGE_COMBINE || op->edge == MOE_EDGE_DISPATCH_B ? MOE_ROLE_F : MOE_ROLE_A;
    }
    return 0;
  default:
    return 0;
  }
}

static bool runs_on_comm(const MoeOp *op)
{
  return op->kind == MOE_OP_SEND || op->kind == MOE_OP_RECV || op->kind == MOE_OP_RELAY ||
         op->kind == MOE_OP_NODE_REDUCE;
}

static MoeStatus make_arrays(MoeExec *x)
{
  size_t n = (size_t)x->n_ops + 1;
  size_t ranks = (size_t)x->wiring->n_ranks;
  size_t arrivals = 1;
  for (int32_t i = 0; i < MOE_TRAFFIC_COUNT * x->wiring->n_ranks; i++) {
    arrivals += (size_t)moe_link_plan(x->wiring, (MoeTraffic)(i % MOE_TRAFFIC_COUNT), i / MOE_TRAFFIC_COUNT, x->me.rank)
                    ->n_msgs;
  }
  x->info = calloc(n, sizeof *x->info);
  x->done = calloc(n, sizeof *x->done);
  x->locals = calloc(n, sizeof *x->locals);
  x->unreleased = calloc(n, sizeof *x->unreleased);
  x->arrivals = calloc(arrivals, sizeof *x->arrivals);
  x->ins = calloc(arrivals * 2, sizeof *x->ins); /* a RELAY and the op that releases may look at the same messages */
  x->sends = calloc(MOE_TRAFFIC_COUNT * ranks, sizeof *x->sends);
  x->recvs = calloc(MOE_TRAFFIC_COUNT * ranks, sizeof *x->recvs);
  x->n_nodes = calloc((size_t)x->bundle->n_groups, sizeof *x->n_nodes);
  x->node_first = calloc((size_t)x->bundle->n_groups * ((size_t)x->bundle->replica_ranks + 1), sizeof *x->node_first);
  if (x->info == NULL || x->done == NULL || x->locals == NULL || x->unreleased == NULL || x->arrivals == NULL ||
      x->ins == NULL || x->sends == NULL || x->recvs == NULL || x->n_nodes == NULL || x->node_first == NULL) {
    moe_error("out of memory for the executor's tables");
    return MOE_ENOMEM;
  }
  for (int32_t g = 0; g < x->bundle->n_groups; g++) {
    x->n_nodes[g] = moe_node_first(x->bundle, g, x->node_first + (ptrdiff_t)g * (x->bundle->replica_ranks + 1));
  }
  return MOE_OK;
}

static MoeStatus open_end(MoeExec *x, MoeEnd *end, MoeTraffic traffic, int32_t src, int32_t dst)
{
  const MoeLinkPlan *plan = moe_link_plan(x->wiring, traffic, src, dst);
  int32_t other = src == x->me.rank ? dst : src;
  const uint64_t *host_of = x->shared->host_of;
  MoePeer a = {.rank = x->me.rank, .host = host_of != NULL ? host_of[x->me.rank] : 0};
  MoePeer b = {.rank = other, .host = host_of != NULL ? host_of[other] : 0};
  *end = (MoeEnd){.plan = plan,
                  .traffic = traffic,
                  .other = other,
                  .peer_index = moe_rank_of(x->bundle, other).index,
                  .pace_sent = &x->pace_sent[MOE_TRAFFIC_COUNT * other + (int32_t)traffic]};
  end->link = (MoeLink){.transport = moe_transport_for(&a, &b),
                        .src = src,
                        .dst = dst,
                        .src_bell = &x->shared->comm_bells[src],
                        .dst_bell = &x->shared->comm_bells[dst],
                        .n_slots = plan->n_slots,
                        .slab = src == dst ? x->mem.self_slabs : x->shared->slabs,
                        .offset = plan->offset,
                        .capacity = plan->capacity,
                        .net = x->shared->net};
  if (end->link.transport == NULL) {
    moe_error("no transport reaches rank %d", other);
    return MOE_EPEER;
  }
  end->paced = x->shared->pacer != NULL && src != dst;
  if (src == dst) { /* the counters may have been poisoned; those in shared memory start as zeros */
    for (int32_t s = 0; s < plan->n_slots; s++) {
      memset(end->link.slab + plan->offset[s], 0, sizeof(MoeSlot));
    }
  }
  return MOE_OK;
}

static MoeStatus open_direction(MoeExec *x, MoeEnd *ends, int32_t *n_p, MoeTraffic traffic, int32_t src, int32_t dst)
{
  const MoeLinkPlan *plan = moe_link_plan(x->wiring, traffic, src, dst);
  if (plan->n_msgs == 0) {
    return MOE_OK;
  }
  const MoeMsg *msgs = ends == x->sends ? plan->sends : plan->recvs;
  for (int32_t i = 0; i < plan->n_msgs; i++) {
    x->info[msgs[i].op].n_msgs++;
  }
  return open_end(x, &ends[(*n_p)++], traffic, src, dst);
}

/* Arrivals of each RECV stand together, in rank order of the senders. */
static void list_arrivals(MoeExec *x)
{
  int32_t at = 0;
  for (int32_t i = 0; i < x->n_ops; i++) {
    if (x->ops[i].kind == MOE_OP_RECV) {
      x->info[i].first_arrival = at;
      at += x->info[i].n_msgs;
    }
  }
  for (int32_t r = 0; r < x->n_recvs; r++) {
    const MoeLinkPlan *plan = x->recvs[r].plan;
    for (int32_t i = 0; i < plan->n_msgs; i++) {
      MoeOpInfo *info = &x->info[plan->recvs[i].op];
      x->arrivals[info->first_arrival + info->left++] = (MoeArrival){&x->recvs[r], &plan->recvs[i]};
    }
  }
}

static MoeStatus open_ends(MoeExec *x)
{
  int32_t me = x->me.rank;
  for (int32_t i = 0; i < MOE_TRAFFIC_COUNT * x->wiring->n_ranks; i++) {
    MoeTraffic traffic = (MoeTraffic)(i / x->wiring->n_ranks);
    int32_t r = i % x->wiring->n_ranks;
    MOE_TRY(open_direction(x, x->sends, &x->n_sends, traffic, me, r));
    MOE_TRY(open_direction(x, x->recvs, &x->n_recvs, traffic, r, me));
  }
  list_arrivals(x);
  return MOE_OK;
}

/* Copies the row's waits and releases, leaving out what this rank skips. */
static MoeStatus resolve_op(MoeExec *x, int32_t i)
{
  MoeOpInfo *info = &x->info[i];
  int32_t n_waits = 0;
  int32_t n_releases = 0;
  for (int32_t k = 0; k < MOE_MAX_WAITS; k++) {
    info->wait[k] = info->release[k] = -1;
  }
  for (int32_t k = 0; k < MOE_MAX_WAITS && info->mine; k++) {
    int32_t wait = x->ops[i].wait[k];
    int32_t release = x->ops[i].release[k];
    if (wait >= x->n_ops || release >= x->n_ops || (release >= 0 && x->ops[release].kind != MOE_OP_RECV)) {
      return bad_op(&x->ops[i], "waits for or releases an op that does not exist");
    }
    if (wait >= 0 && x->info[wait].mine) {
      info->wait[n_waits++] = wait;
      x->info[wait].wakes_comm = x->info[wait].wakes_comm || !info->compute;
      x->info[wait].wakes_compute = x->info[wait].wakes_compute || info->compute;
    }
    if (release >= 0 && x->info[release].mine) {
      info->release[n_releases++] = release;
      x->info[release].begun = true; /* until the first step: "somebody releases it" */
    }
  }
  return MOE_OK;
}

static MoeStatus resolve_waits(MoeExec *x)
{
  for (int32_t i = 0; i < x->n_ops; i++) {
    MoeOpInfo *info = &x->info[i];
    const MoeOp *op = &x->ops[i];
    bool message = op->kind == MOE_OP_SEND || op->kind == MOE_OP_RECV;
    info->compute = !runs_on_comm(op);
    info->mine = message ? info->n_msgs > 0 : moe_op_is_mine(&x->me, op);
  }
  for (int32_t i = 0; i < x->n_ops; i++) {
    MOE_TRY(resolve_op(x, i));
    const MoeOpInfo *info = &x->info[i];
    if (info->mine && !info->compute && x->ops[i].kind != MOE_OP_SEND && x->ops[i].kind != MOE_OP_RECV) {
      x->locals[x->n_locals++] = i;
    }
  }
  for (int32_t i = 0; i < x->n_ops; i++) {
    if (x->ops[i].kind == MOE_OP_RECV && x->info[i].mine && !x->info[i].begun) {
      x->unreleased[x->n_unreleased++] = i;
    }
    x->info[i].begun = false;
  }
  return MOE_OK;
}

static MoeStatus fill_memory(MoeExec *x, int32_t i, int32_t side, MoeCall *call)
{
  const MoeOp *op = &x->ops[i];
  const MoeGroup *g = x->me.group;
  const MoeMem *m = &x->mem;
  bool att = side == MOE_ROLE_A;
  if (op->saved >= (att ? g->att_saved : g->ffn_saved) || op->work >= (att ? g->att_work : g->ffn_work)) {
    return bad_op(op, "its slots are not in the group's pools");
  }
  if (op->saved >= 0) {
    call->saved = att ? m->att_saved + (size_t)op->saved * m->att_saved_bytes
                      : m->ffn_saved + (size_t)op->saved * m->ffn_saved_bytes;
    call->note = (att ? m->att_notes : m->ffn_notes) + (size_t)op->saved * MOE_NOTE_BYTES;
  }
  if (op->work >= 0) {
    call->work =
        att ? m->att_work + (size_t)op->work * m->att_work_bytes : m->ffn_work + (size_t)op->work * m->ffn_work_bytes;
  }
  MoeBucketKind kind = !att ? MOE_BUCKET_EXPERTS : op->kind == MOE_OP_HEAD ? MOE_BUCKET_HEAD : MOE_BUCKET_ATT;
  MoeHeld *own = moe_mem_held(m, kind, op->kind == MOE_OP_HEAD ? 0 : op->layer);
  MoeHeld *gain = op->kind == MOE_OP_HEAD ? NULL : moe_mem_held(m, MOE_BUCKET_GAIN, op->layer);
  MoeHeld *shared = att ? NULL : moe_mem_held(m, MOE_BUCKET_SHARED, op->layer);
  MoeHeld *embed = moe_mem_held(m, MOE_BUCKET_EMBED, 0);
  if (own != NULL) {
    call->w = own->w;
    call->gw = own->g;
  }
  if (gain != NULL) {
    call->gain = gain->w;
    call->g_gain = gain->g;
  }
  if (shared != NULL) {
    call->shared = shared->w;
    call->g_shared = shared->g;
  }
  bool embedding = op->kind == MOE_OP_EMBED_FWD || op->kind == MOE_OP_EMBED_WGRAD;
  if (embedding || (op->kind == MOE_OP_HEAD && x->bundle->tied)) {
    if (embed == NULL) {
      return bad_op(op, "this rank does not hold the embedding table");
    }
    call->table = embed->w;
    call->g_table = embed->g;
  } else if (op->kind == MOE_OP_HEAD) {
    if (own == NULL || own->bucket->n_params < 2) {
      return bad_op(op, "this rank does not hold the output table");
    }
    int64_t at = x->bundle->params[own->bucket->first_param + 1].offset;
    call->table = moe_weights_at(m, own, at);
    call->g_table = own->g + at;
  }
  return MOE_OK;
}

static void fill_batch(MoeExec *x, MoeCall *call)
{
  const MoeBundle *b = x->bundle;
  int32_t mb = call->mb < 0 ? 0 : call->mb;
  call->mb_seqs = (int32_t)moe_mb_seqs(b->global_batch, b->replicas, x->me.replica, b->mb_seqs, mb);
  int32_t n = x->me.group->n_ranks;
  call->seq0 = (int32_t)moe_part_begin(call->mb_seqs, n, x->me.index);
  call->n_seqs = (int32_t)moe_part_size(call->mb_seqs, n, x->me.index);
  int64_t at = (int64_t)mb * moe_part_max(b->mb_seqs, n) * b->seq;
  call->tokens = x->mem.tokens + at;
  call->labels = x->mem.labels + at;
}

/* Who sends what an attention, head or join op takes in, and how many ranks a PIPE is cut for. Messages and joins carry
   the layer whose output they speak of, attention ops and the head take in that of the layer before. */
static void fill_senders(const MoeBundle *b, const MoeOp *op, MoeCall *call)
{
  bool join = op->kind == MOE_OP_JOIN_FWD || op->kind == MOE_OP_JOIN_DGRAD;
  int32_t layer = join || op->kind == MOE_OP_SEND ? op->layer : op->layer - 1;
  if (op->edge == MOE_EDGE_PIPE || op->edge == MOE_EDGE_PIPE_B) {
    call->n_dst = b->groups[op->peer].n_ranks;
  }
  bool dense_back =
      op->kind == MOE_OP_ATT_DGRAD && op->layer < b->dense; /* takes the gradient of its output by PIPE_B */
  if (dense_back) {
    call->n_src = b->groups[moe_att_of(b, op->mb, op->layer + 1)].n_ranks;
  }
  if (layer < 0 || dense_back) {
    return;
  }
  call->piped = moe_piped(b, op->mb, layer);
  if (op->kind == MOE_OP_JOIN_DGRAD) {
    call->n_src = b->groups[moe_att_of(b, op->mb, layer + 1)].n_ranks;
  } else if (call->piped && !join && op->kind != MOE_OP_SEND) {
    call->n_src = b->groups[moe_pipe_of(b, op->mb, layer)].n_ranks;
  } else {
    call->n_src = b->chunks * b->groups[moe_ffn_of(b, op->mb, layer)].n_ranks;
  }
}

static MoeStatus fill_call(MoeExec *x, int32_t i)
{
  const MoeBundle *b = x->bundle;
  const MoeOp *op = &x->ops[i];
  MoeCall *call = &x->info[i].call;
  int32_t side = side_of(op);
  MoeLane lane = x->info[i].compute ? MOE_LANE_COMPUTE : MOE_LANE_COMM;
  *call = (MoeCall){.layer = op->layer,
                    .mb = op->mb,
                    .kind = op->kind,
                    .edge = op->edge,
                    .seq = b->seq,
                    .me = x->me.index,
                    .chunk = op->chunk,
                    .n_chunks = b->chunks,
                    .lane = lane,
                    .scratch = x->mem.scratch[lane],
                    .scalars = x->mem.scalars[lane],
                    .inv_seqs = 1.0 / b->global_batch,
                    .route_only = b->n_route_only > 0 ? b->route_only : NULL,
                    .n_route_only = b->n_route_only};
  if (side == 0 || !x->info[i].mine) {
    return MOE_OK;
  }
  bool known = op->kind == MOE_OP_SEND ? x->kernels->pack[op->edge] != NULL : x->kernels->run[op->kind] != NULL;
  if (!known) {
    return bad_op(op, "this bundle's kernels cannot do it");
  }
  fill_batch(x, call);
  int32_t layer = op->layer < b->n_layers ? op->layer : b->n_layers - 1;
  int32_t ffn = moe_ffn_of(b, op->mb, layer);
  call->n_ffn = b->groups[ffn].n_ranks;
  call->node_first = x->node_first + (ptrdiff_t)ffn * (b->replica_ranks + 1);
  call->n_nodes = x->n_nodes[ffn];
  call->relayed = moe_group_relays(b, ffn);
  if (side == MOE_ROLE_A) {
    fill_senders(b, op, call);
  } else {
    call->seq0 = call->n_seqs = 0;
    call->tokens = call->labels = NULL;
    call->n_dst = b->groups[moe_combine_of(b, op->mb, layer)].n_ranks;
  }
  return fill_memory(x, i, side, call);
}

/* Keeps in[0 .. n) ascending by peer: chunks may be listed in any order. */
static void add_in(MoeIn *in, int32_t n, MoeIn one)
{
  while (n > 0 && in[n - 1].peer > one.peer) {
    in[n] = in[n - 1];
    n--;
  }
  in[n] = one;
}

/* `in`: messages of the RECV ops that the op releases, or, for ops that release none, of those it waits for. */
static void fill_ins(MoeExec *x)
{
  int32_t at = 0;
  for (int32_t i = 0; i < x->n_ops; i++) {
    MoeOpInfo *info = &x->info[i];
    if (!info->mine || x->ops[i].kind == MOE_OP_RECV) {
      continue;
    }
    bool releases = info->release[0] >= 0;
    if (!releases && x->ops[i].kind != MOE_OP_RELAY) {
      continue;
    }
    const int32_t *from = releases ? info->release : info->wait;
    MoeIn *in = &x->ins[at];
    info->call.in = in;
    for (int32_t k = 0; k < MOE_MAX_WAITS && from[k] >= 0; k++) {
      const MoeOpInfo *recv = &x->info[from[k]];
      if (x->ops[from[k]].kind != MOE_OP_RECV) {
        continue;
      }
      for (int32_t m = 0; m < recv->n_msgs; m++) {
        const MoeArrival *a = &x->arrivals[recv->first_arrival + m];
        int32_t peer = moe_source_index(&x->me, &x->ops[from[k]], a->end->other);
        add_in(in, info->call.n_in++, (MoeIn){a->end->link.transport->data(&a->end->link, a->msg->slot), peer});
        at++;
      }
    }
  }
}

MoeStatus moe_exec_build(MoeExec *x)
{
  x->ops = x->me.group->ops;
  x->n_ops = x->me.group->n_ops;
  MOE_TRY(make_arrays(x));
  MOE_TRY(open_ends(x));
  MOE_TRY(resolve_waits(x));
  for (int32_t i = 0; i < x->n_ops; i++) {
    MOE_TRY(fill_call(x, i));
  }
  fill_ins(x);
  return MOE_OK;
}

void moe_exec_unbuild(MoeExec *x)
{
  free(x->info);
  free((void *)x->done);
  free(x->locals);
  free(x->unreleased);
  free(x->arrivals);
  free(x->ins);
  free(x->sends);
  free(x->recvs);
  free(x->n_nodes);
  free(x->node_first);
}
