/* Ranks, groups, nodes and holders. Rank r of a group in replica q is q * replica_ranks + first_rank + r; a node is
   ranks_per_node GPUs in a row, of which `seat` gives each rank one. */
#include "runtime/topo.h"

#include <stdio.h>

int32_t moe_n_ranks(const MoeBundle *b)
{
  return b->replicas * b->replica_ranks;
}

MoeRank moe_rank_of(const MoeBundle *b, int32_t rank)
{
  int32_t replica = rank / b->replica_ranks;
  int32_t local = rank % b->replica_ranks;
  MoeRank me = {.bundle = b, .rank = rank, .replica = replica, .first_of_replica = replica * b->replica_ranks};
  for (int32_t g = 0; g < b->n_groups; g++) {
    const MoeGroup *group = &b->groups[g];
    if (local >= group->first_rank && local < group->first_rank + group->n_ranks) {
      me.group = group;
      me.group_id = g;
      me.index = local - group->first_rank;
    }
  }
  return me;
}

int32_t moe_rank_in(const MoeRank *me, int32_t group_id, int32_t index)
{
  return me->first_of_replica + me->bundle->groups[group_id].first_rank + index;
}

int32_t moe_node_of(const MoeBundle *b, int32_t group_id, int32_t index)
{
  return b->ranks_per_node > 0 ? b->seat[b->groups[group_id].first_rank + index] / b->ranks_per_node : 0;
}

int32_t moe_node_first(const MoeBundle *b, int32_t group_id, int32_t *node_first)
{
  int32_t n = 0;
  int32_t last = -1;
  for (int32_t i = 0; i < b->groups[group_id].n_ranks; i++) {
    int32_t node = moe_node_of(b, group_id, i);
    if (node != last) {
      node_first[n++] = i;
      last = node;
    }
  }
  node_first[n] = b->groups[group_id].n_ranks;
  return n;
}

static int32_t way_of(const MoeBundle *b, int32_t mb)
{
  return moe_way(b->ways, b->micro_batches, mb);
}

int32_t moe_att_of(const MoeBundle *b, int32_t mb, int32_t layer)
{
  return b->att_group[way_of(b, mb) * (b->n_layers + 1) + layer];
}

int32_t moe_ffn_of(const MoeBundle *b, int32_t mb, int32_t layer)
{
  return b->ffn_group[way_of(b, mb) * b->n_layers + layer];
}

int32_t moe_combine_of(const MoeBundle *b, int32_t mb, int32_t layer)
{
  return b->combine_group[way_of(b, mb) * b->n_layers + layer];
}

bool moe_piped(const MoeBundle *b, int32_t mb, int32_t layer)
{
  return layer >= 0 && layer < b->n_layers &&
         (layer < b->dense || moe_combine_of(b, mb, layer) != moe_att_of(b, mb, layer + 1));
}

int32_t moe_pipe_of(const MoeBundle *b, int32_t mb, int32_t layer)
{
  return layer < b->dense ? moe_att_of(b, mb, layer) : moe_combine_of(b, mb, layer);
}

bool moe_group_relays(const MoeBundle *b, int32_t group_id)
{
  if (b->dedup != MOE_DEDUP_NODE || !(b->groups[group_id].role & MOE_ROLE_F)) {
    return false;
  }
  for (int32_t i = 1; i < b->groups[group_id].n_ranks; i++) {
    if (moe_node_of(b, group_id, i) == moe_node_of(b, group_id, i - 1)) {
      return true;
    }
  }
  return false;
}

int32_t moe_holder_index(const MoeBundle *b, const MoeBucket *bucket, int32_t rank)
{
  for (int32_t k = 0; k < bucket->n_holders; k++) {
    if (b->holders[bucket->first_holder + k] == rank) {
      return k;
    }
  }
  return -1;
}

const MoeBucket *moe_bucket_of(const MoeRank *me, MoeBucketKind kind, int32_t layer)
{
  const MoeBundle *b = me->bundle;
  for (int32_t i = 0; i < b->n_buckets; i++) {
    const MoeBucket *bucket = &b->buckets[i];
    if (bucket->kind == kind && bucket->layer == layer && moe_holder_index(b, bucket, me->rank) >= 0) {
      return bucket;
    }
  }
  return NULL;
}

bool moe_op_is_mine(const MoeRank *me, const MoeOp *op)
{
  switch ((MoeOpKind)op->kind) {
  case MOE_OP_SCALARS:
    return me->rank == 0;
  case MOE_OP_GRAD_REDUCE:
  case MOE_OP_OPTIMIZER:
  case MOE_OP_WEIGHTS_IN:
    return moe_bucket_of(me, op->bucket, op->layer) != NULL;
  case MOE_OP_SEND:
  case MOE_OP_RECV:
    switch (moe_edge_pairs(op->edge)) {
    case MOE_PAIRS_GROUPS:
    case MOE_PAIRS_NODE:
      return true;
    case MOE_PAIRS_HOLDERS: {
      const MoeBucket *bucket = moe_bucket_of(me, op->bucket, op->layer);
      return bucket != NULL && bucket->n_holders > 1;
    }
    case MOE_PAIRS_ROOT: {
      bool up = op->edge == MOE_EDGE_SCALARS_UP;
      bool send = op->kind == MOE_OP_SEND;
      return moe_n_ranks(me->bundle) > 1 && (me->rank == 0) == (up != send);
    }
    }
    return true;
  default:
    return true;
  }
}

int32_t moe_op_peers(const MoeRank *me, const MoeOp *op, int32_t *peers)
{
  const MoeBundle *b = me->bundle;
  int32_t n = 0;
  if (!moe_op_is_mine(me, op)) {
    return 0;
  }
  switch (moe_edge_pairs(op->edge)) {
  case MOE_PAIRS_GROUPS:
    for (int32_t i = 0; i < b->groups[op->peer].n_ranks; i++) {
      peers[n++] = moe_rank_in(me, op->peer, i);
    }
    break;
  case MOE_PAIRS_NODE:
    for (int32_t i = 0; i < b->groups[op->peer].n_ranks; i++) {
      if (moe_node_of(b, op->peer, i) == moe_node_of(b, me->group_id, me->index)) {
        peers[n++] = moe_rank_in(me, op->peer, i);
      }
    }
    break;
  case MOE_PAIRS_HOLDERS: {
    const MoeBucket *bucket = moe_bucket_of(me, op->bucket, op->layer);
    for (int32_t k = 0; k < bucket->n_holders; k++) {
      int32_t holder = b->holders[bucket->first_holder + k];
      if (holder != me->rank) {
        peers[n++] = holder;
      }
    }
    break;
  }
  case MOE_PAIRS_ROOT:
    if (me->rank != 0) {
      peers[n++] = 0;
      break;
    }
    for (int32_t r = 1; r < moe_n_ranks(b); r++) {
      peers[n++] = r;
    }
    break;
  }
  return n;
}

int32_t moe_peer_index(const MoeRank *me, const MoeOp *op, int32_t peer)
{
  switch (moe_edge_pairs(op->edge)) {
  case MOE_PAIRS_HOLDERS:
    return moe_holder_index(me->bundle, moe_bucket_of(me, op->bucket, op->layer), peer);
  case MOE_PAIRS_ROOT:
    return peer;
  default:
    return moe_rank_of(me->bundle, peer).index;
  }
}

int32_t moe_source_index(const MoeRank *me, const MoeOp *recv, int32_t peer)
{
  int32_t index = moe_peer_index(me, recv, peer);
  bool whole = recv->edge == MOE_EDGE_COMBINE || recv->edge == MOE_EDGE_DISPATCH_B;
  return whole ? recv->chunk * me->bundle->groups[recv->peer].n_ranks + index : index;
}

/* Experts that messages to or from an FFN rank may speak of: its own, or its node's if it relays. */
static int32_t msg_experts(const MoeBundle *b, const MoeRank *ffn, bool of_node)
{
  const MoeGroup *group = ffn->group;
  int64_t n = 0;
  for (int32_t i = 0; i < group->n_ranks; i++) {
    bool same =
        of_node ? moe_node_of(b, ffn->group_id, i) == moe_node_of(b, ffn->group_id, ffn->index) : i == ffn->index;
    if (same) {
      n += moe_part_size(b->experts, group->n_ranks, i);
    }
  }
  return (int32_t)n;
}

/* Sequences of a PIPE message: those that both ranks hold. */
static int32_t pipe_seqs(const MoeBundle *b, const MoeRank *from, const MoeRank *to, int32_t mb)
{
  int64_t begin;
  int64_t seqs = moe_mb_seqs(b->global_batch, b->replicas, from->replica, b->mb_seqs, mb);
  int64_t first = moe_part_begin(seqs, to->group->n_ranks, to->index);
  int64_t size = moe_part_size(seqs, to->group->n_ranks, to->index);
  return (int32_t)moe_part_overlap(seqs, from->group->n_ranks, from->index, first, size, &begin);
}

size_t moe_op_msg_bytes(const MoeBundle *b, const MoeKernels *kernels, const MoeOp *op, int32_t src, int32_t dst)
{
  MoeRank from = moe_rank_of(b, src);
  MoeRank to = moe_rank_of(b, dst);
  const MoeRank *att = NULL;
  const MoeRank *ffn = NULL;
  switch ((MoeEdge)op->edge) {
  case MOE_EDGE_REDUCE:
  case MOE_EDGE_SHARE: {
    const MoeBucket *bucket = moe_bucket_of(&from, op->bucket, op->layer);
    int32_t owner = moe_holder_index(b, bucket, op->edge == MOE_EDGE_REDUCE ? dst : src);
    return 64 + (size_t)moe_part_size(bucket->elems, bucket->n_holders, owner) * sizeof(float);
  }
  case MOE_EDGE_SCALARS_UP:
  case MOE_EDGE_SCALARS_DOWN:
    return 64 + MOE_SC_COUNT * sizeof(double);
  case MOE_EDGE_PIPE:
  case MOE_EDGE_PIPE_B:
    return kernels->msg_bytes(op->edge, b->seq, pipe_seqs(b, &from, &to, op->mb), 0);
  case MOE_EDGE_FORWARD:
  case MOE_EDGE_FORWARD_AGAIN:
  case MOE_EDGE_GATHER_B: /* relay to member: rows may come from every sequence of the micro-batch */
    return kernels->msg_bytes(op->edge, b->seq, b->mb_seqs, msg_experts(b, &to, false));
  case MOE_EDGE_GATHER:
  case MOE_EDGE_FORWARD_B:
    return kernels->msg_bytes(op->edge, b->seq, b->mb_seqs, msg_experts(b, &from, false));
  case MOE_EDGE_DISPATCH:
  case MOE_EDGE_DISPATCH_AGAIN:
  case MOE_EDGE_COMBINE_B:
    att = &from;
    ffn = &to;
    break;
  default:
    att = &to;
    ffn = &from;
    break;
  }
  int32_t seqs = (int32_t)moe_part_max(b->mb_seqs, att->group->n_ranks);
  int32_t positions = (int32_t)moe_part_size(b->seq, b->chunks, op->chunk);
  return kernels->msg_bytes(op->edge, positions, seqs, msg_experts(b, ffn, moe_group_relays(b, ffn->group_id)));
}

static void grow(int32_t *most, int32_t n)
{
  *most = n > *most ? n : *most;
}

MoeDims moe_dims(const MoeBundle *b, int32_t group_id)
{
  const MoeGroup *group = &b->groups[group_id];
  MoeDims d = {.seq = b->seq, .mb_seqs = b->mb_seqs, .chunks = b->chunks};
  if (group->role & MOE_ROLE_A) {
    d.att_seqs = (int32_t)moe_part_max(b->mb_seqs, group->n_ranks);
  }
  if (group->role & MOE_ROLE_F) {
    d.ffn_experts = (int32_t)moe_part_max(b->experts, group->n_ranks);
    d.n_ffn = group->n_ranks;
    d.relay = moe_group_relays(b, group_id);
  }
  for (int32_t way = 0; way < b->ways; way++) {
    int32_t mb = way == 0 ? 0 : b->micro_batches - 1; /* one that goes this way */
    for (int32_t l = 0; l <= b->n_layers; l++) {
      bool att = moe_att_of(b, mb, l) == group_id;
      if (att && l > 0 && !moe_piped(b, mb, l - 1)) {
        grow(&d.n_src, b->chunks * b->groups[moe_ffn_of(b, mb, l - 1)].n_ranks);
      }
      if (l >= b->dense && l < b->n_layers && moe_ffn_of(b, mb, l) == group_id) {
        /* rows that come again, and gradients: both from other groups, or both from relays */
        grow(&d.n_ffn_in, b->groups[moe_att_of(b, mb, l)].n_ranks + b->groups[moe_combine_of(b, mb, l)].n_ranks);
        grow(&d.n_ffn_in, 2 * group->n_ranks);
      }
      if (att && l < b->n_layers) {
        grow(&d.n_ffn, b->groups[moe_ffn_of(b, mb, l)].n_ranks);
      }
      if (l >= b->dense && moe_piped(b, mb, l) && moe_combine_of(b, mb, l) == group_id) {
        grow(&d.n_join, b->chunks * b->groups[moe_ffn_of(b, mb, l)].n_ranks);
      }
    }
  }
  return d;
}

void moe_rank_text(const MoeBundle *b, int32_t rank, char *text, size_t n)
{
  MoeRank me = moe_rank_of(b, rank);
  const char *role = me.group->role == MOE_ROLE_A   ? "attention"
                     : me.group->role == MOE_ROLE_F ? "FFN"
                                                    : "attention+FFN";
  if (b->replicas > 1) {
    snprintf(text, n, "rank %d (%s group %s, member %d, replica %d)", rank, role, me.group->name, me.index, me.replica);
  } else {
    snprintf(text, n, "rank %d (%s group %s, member %d)", rank, role, me.group->name, me.index);
  }
}

void moe_op_text(const MoeOp *op, char *text, size_t n)
{
  int used = snprintf(text, n, "%s", moe_op_name(op->kind));
  if (op->edge < MOE_EDGE_COUNT && used > 0 && (size_t)used < n) {
    used += snprintf(text + used, n - (size_t)used, " %s", moe_edge_name(op->edge));
  }
  if (op->bucket < MOE_BUCKET_COUNT && used > 0 && (size_t)used < n) {
    used += snprintf(text + used, n - (size_t)used, " %s", moe_bucket_name(op->bucket));
  }
  if (op->layer >= 0 && used > 0 && (size_t)used < n) {
    used += snprintf(text + used, n - (size_t)used, " layer %d", op->layer);
  }
  if (op->mb >= 0 && used > 0 && (size_t)used < n) {
    used += snprintf(text + used, n - (size_t)used, " micro-batch %d", op->mb);
  }
  if (op->chunk > 0 && used > 0 && (size_t)used < n) {
    snprintf(text + used, n - (size_t)used, " chunk %d", op->chunk);
  }
}
