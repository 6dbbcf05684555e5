/* Kernels of the fake bundle. A token t belongs to FFN rank t mod n; every message must hold exactly the tokens that
   its edge, sender and receiver imply, tagged with the step. A broken promise is EPROTO. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/runtime/fake.h"

#include "runtime/log.h"

/* Tells this thread's helpers which shape runs. */
static void at_shape(const MoeCall *c)
{
  fake = &fake_shapes[0];
  while (fake < fake_shapes + fake_n_shapes - 1 && fake->layout.seq != c->seq) {
    fake++;
  }
}

static int32_t owner_of(const MoeCall *c, int32_t t)
{
  return t % c->n_ffn;
}

static int32_t addressee_of(const MoeCall *c, int32_t t)
{
  int32_t owner = owner_of(c, t);
  for (int32_t k = 0; c->relayed && k < c->n_nodes; k++) {
    if (owner >= c->node_first[k] && owner < c->node_first[k + 1]) {
      return c->node_first[k] + t % (c->node_first[k + 1] - c->node_first[k]);
    }
  }
  return owner;
}

static int32_t ranks_of(int group)
{
  return fake->made.groups[group].n_ranks;
}

/* Member of a group of n ranks that holds token t. */
static int32_t holder_of(const MoeCall *c, int32_t n, int32_t t)
{
  return (int32_t)moe_part_of(c->mb_seqs, n, t / c->seq);
}

static int32_t att_of(const MoeCall *c, int32_t layer, int32_t t)
{
  return holder_of(c, ranks_of(fake_att(c->mb, layer)), t);
}

static int32_t joiner_of(const MoeCall *c, int32_t layer, int32_t t)
{
  return holder_of(c, ranks_of(fake_combine(c->mb, layer)), t);
}

/* Whether token t travels from member `from` to member `to` on this edge of this layer. */
static bool goes(const MoeCall *c, MoeEdge edge, int32_t layer, int32_t t, int32_t from, int32_t to)
{
  int32_t owner = owner_of(c, t);
  int32_t addressee = addressee_of(c, t);
  switch (edge) {
  case MOE_EDGE_DISPATCH:
    return att_of(c, layer, t) == from && addressee == to;
  case MOE_EDGE_FORWARD:
  case MOE_EDGE_GATHER_B:
    return addressee == from && owner == to;
  case MOE_EDGE_GATHER:
  case MOE_EDGE_FORWARD_B:
    return owner == from && addressee == to;
  case MOE_EDGE_COMBINE:
    return addressee == from && joiner_of(c, layer, t) == to;
  case MOE_EDGE_COMBINE_B:
    return joiner_of(c, layer, t) == from && addressee == to;
  case MOE_EDGE_PIPE:
    return joiner_of(c, layer, t) == from && att_of(c, layer + 1, t) == to;
  case MOE_EDGE_PIPE_B:
    return att_of(c, layer + 1, t) == from && joiner_of(c, layer, t) == to;
  default:
    return addressee == from && att_of(c, layer, t) == to;
  }
}

/* Whether the edge's messages are cut in chunks, and hold the whole micro-batch's tokens only together. */
static bool in_chunks(MoeEdge edge)
{
  return edge != MOE_EDGE_PIPE && edge != MOE_EDGE_PIPE_B;
}

static bool in_chunk(const MoeCall *c, MoeEdge edge, int32_t chunk, int32_t t)
{
  return !in_chunks(edge) || moe_part_of(c->seq, fake->layout.chunks, t % c->seq) == chunk;
}

static uint32_t tag_of(const MoeCall *c, MoeEdge edge, int32_t chunk, int32_t layer, int32_t t)
{
  return c->step * 2654435761u ^ (uint32_t)layer << 24 ^ (uint32_t)c->mb << 16 ^ (uint32_t)edge << 12 ^
         (uint32_t)chunk << 9 ^ (uint32_t)t;
}

static size_t row_bytes(void)
{
  return (size_t)fake_shapes[0].layout.row_bytes;
}

static MoeStatus complain(const char *what, const MoeCall *c)
{
  moe_error("fake kernel: %s in %s %s layer %d micro-batch %d", what, moe_op_name(c->kind), moe_edge_name(c->edge),
            c->layer, c->mb);
  return MOE_EPROTO;
}

/* The saved slot names its (step, layer, micro-batch, chunk): nobody else may write there meanwhile. */
static MoeStatus saved(const MoeCall *c, int32_t layer, int32_t chunk, bool write)
{
  uint32_t id[4] = {c->step, (uint32_t)layer, (uint32_t)c->mb, (uint32_t)chunk};
  if (write) {
    memcpy(c->saved, id, sizeof id);
  }
  return memcmp(c->saved, id, sizeof id) == 0 ? MOE_OK : complain("saved slot was overwritten", c);
}

/* The work slot names the op whose results it holds, until they have been packed. */
static MoeStatus work(const MoeCall *c, MoeOpKind kind, int32_t layer, bool write)
{
  uint32_t id[4] = {c->step, kind, (uint32_t)layer, (uint32_t)c->mb};
  if (write) {
    memcpy(c->work, id, sizeof id);
  }
  return memcmp(c->work, id, sizeof id) == 0 ? MOE_OK : complain("work slot was overwritten", c);
}

/* What a pack's slots must hold. */
static MoeStatus check_slots(const MoeCall *c)
{
  bool head = c->layer + 1 == fake->made.n_layers;
  MoeOpKind grad = head ? MOE_OP_HEAD : MOE_OP_ATT_DGRAD;
  switch ((MoeEdge)c->edge) {
  case MOE_EDGE_DISPATCH:
    return saved(c, c->layer, 0, false);
  case MOE_EDGE_PIPE:
    MOE_TRY(work(c, MOE_OP_JOIN_FWD, c->layer, false));
    return saved(c, c->layer, 0, false);
  case MOE_EDGE_PIPE_B:
    MOE_TRY(work(c, grad, c->layer + 1, false));
    return saved(c, c->layer + 1, 0, false);
  case MOE_EDGE_COMBINE_B:
    MOE_TRY(c->piped ? work(c, MOE_OP_JOIN_DGRAD, c->layer, false) : work(c, grad, c->layer + 1, false));
    return saved(c, c->piped ? c->layer : c->layer + 1, 0, false);
  default:
    return saved(c, c->layer, c->chunk, false);
  }
}

static size_t pack(MoeCall *c, void *slot)
{
  uint8_t *at = (uint8_t *)slot + 64;
  uint32_t rows = 0;
  bool piped = c->edge == MOE_EDGE_PIPE || c->edge == MOE_EDGE_PIPE_B;
  at_shape(c);
  if (check_slots(c) != MOE_OK || c->n_chunks != fake->layout.chunks ||
      (piped && c->n_dst != ranks_of(c->edge == MOE_EDGE_PIPE ? fake_att(c->mb, c->layer + 1)
                                                              : fake_combine(c->mb, c->layer)))) {
    (void)complain("wrong call", c);
    return 0;
  }
  for (int32_t t = 0; t < c->mb_seqs * c->seq; t++) {
    if (goes(c, c->edge, c->layer, t, c->me, c->peer) && in_chunk(c, c->edge, c->chunk, t)) {
      uint32_t row[2] = {(uint32_t)t, tag_of(c, c->edge, c->chunk, c->layer, t)};
      memset(at, 0, row_bytes());
      memcpy(at, row, sizeof row);
      at += row_bytes();
      rows++;
    }
  }
  bool wrong = fake->layout.wrong_step == (int)c->step + 1 && c->edge == MOE_EDGE_DISPATCH && c->me == 0;
  MoeMsgHead head = {.rows = rows,
                     .stamp =
                         moe_stamp(c->step, (uint32_t)c->chunk, (uint32_t)c->layer, (uint32_t)c->mb + wrong, c->edge),
                     .bytes = (uint32_t)(64 + rows * row_bytes())};
  memcpy(slot, &head, sizeof head);
  return head.bytes;
}

/* All arrived messages must be of `edge` and hold what their senders owe us. Attention ops take all chunks at once, and
   senders are numbered chunk by chunk, `ranks` a chunk. */
static MoeStatus check_in(const MoeCall *c, MoeEdge edge, int32_t layer, int32_t n_expected, int32_t ranks)
{
  bool whole = edge == MOE_EDGE_COMBINE || edge == MOE_EDGE_DISPATCH_B;
  if (c->n_in != n_expected * (whole ? fake->layout.chunks : 1)) {
    return complain("wrong number of messages", c);
  }
  for (int32_t i = 0; i < c->n_in; i++) {
    MoeMsgHead head;
    memcpy(&head, c->in[i].data, sizeof head);
    uint32_t row = 0;
    int32_t chunk = whole ? c->in[i].peer / ranks : c->chunk;
    int32_t peer = whole ? c->in[i].peer % ranks : c->in[i].peer;
    if (i > 0 && c->in[i].peer <= c->in[i - 1].peer) {
      return complain("senders out of order", c);
    }
    for (int32_t t = 0; t < c->mb_seqs * c->seq; t++) {
      if (!goes(c, edge, layer, t, peer, c->me) || !in_chunk(c, edge, chunk, t)) {
        continue;
      }
      uint32_t got[2];
      memcpy(got, c->in[i].data + 64 + row * row_bytes(), sizeof got);
      if (row >= head.rows || got[0] != (uint32_t)t || got[1] != tag_of(c, edge, chunk, layer, t)) {
        return complain("wrong row", c);
      }
      row++;
    }
    if (row != head.rows) {
      return complain("too many rows", c);
    }
  }
  return MOE_OK;
}

/* What an op that follows layer - 1 takes in: the sums of a PIPE, or partial rows of COMBINE. */
static MoeStatus check_input(const MoeCall *c)
{
  int32_t from = c->layer - 1;
  if (from < 0) {
    return c->n_in == 0 && c->n_src == 0 ? MOE_OK : complain("input of the first layer", c);
  }
  bool piped = fake_combine(c->mb, from) != fake_att(c->mb, c->layer);
  int32_t n = ranks_of(piped ? fake_combine(c->mb, from) : fake_ffn(c->mb, from));
  if (c->piped != piped || c->n_src != n * (piped ? 1 : fake->layout.chunks)) {
    return complain("wrong number of senders", c);
  }
  return check_in(c, piped ? MOE_EDGE_PIPE : MOE_EDGE_COMBINE, from, n, n);
}

static int32_t node_ranks(const MoeCall *c)
{
  for (int32_t k = 0; k < c->n_nodes; k++) {
    if (c->me >= c->node_first[k] && c->me < c->node_first[k + 1]) {
      return c->node_first[k + 1] - c->node_first[k];
    }
  }
  return 0;
}

static void spin(void)
{
  struct timespec t;
  int64_t begin = -1;
  for (;;) {
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    int64_t now = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
    begin = begin < 0 ? now : begin;
    if (now - begin >= (int64_t)fake->layout.spin_us * 1000) {
      return;
    }
  }
}

/* Every element holds 1 plus one gradient per step, of whatever shape (there are no evaluations in these tests). */
static double weight_now(const MoeCall *c, MoeBucketKind kind, int32_t layer)
{
  FakeShape *now = fake;
  double sum = 1, turn = now->layout.turn, cycles = turn > 0 ? floor(c->step / turn) : 0;
  for (fake = fake_shapes; fake < fake_shapes + fake_n_shapes; fake++) {
    double steps = fake == now ? (double)c->step + now->layout.done : (cycles + (fake < now)) * fake->layout.turn;
    sum += steps * fake_gradient(kind, layer);
  }
  fake = now;
  return sum;
}

static MoeStatus weights(const MoeCall *c, const float *w, MoeBucketKind kind, int32_t layer)
{
  int64_t n = 7 + layer + 15;
  float expected = (float)weight_now(c, kind, layer);
  for (int64_t i = 0; w != NULL && fake->layout.nan_step == 0 && i < n; i++) {
    if (w[i] != expected) {
      return complain("wrong weights", c);
    }
  }
  return w == NULL ? complain("no weights", c) : MOE_OK;
}

static void add_one(float *g, int32_t layer)
{
  for (int64_t i = 0; i < 7 + layer + 15; i++) {
    g[i] += 1;
  }
}

/* The two threads must not share scratch: mark it, work, look again. */
static MoeStatus scratch(const MoeCall *c)
{
  uint32_t mark[4] = {c->step, c->kind, (uint32_t)c->layer, (uint32_t)c->mb};
  memcpy(c->scratch, mark, sizeof mark);
  spin();
  return memcmp(c->scratch, mark, sizeof mark) == 0 ? MOE_OK : complain("scratch is shared", c);
}

static MoeStatus embed(MoeCall *c)
{
  at_shape(c);
  if (c->table == NULL || c->tokens == NULL || (c->kind == MOE_OP_EMBED_WGRAD && c->g_table == NULL)) {
    return complain("no table or tokens", c);
  }
  for (int32_t i = 0; i < c->n_seqs * c->seq; i++) {
    if (c->tokens[i] < 0 || c->tokens[i] > 255) {
      return complain("tokens were not loaded", c);
    }
  }
  if (c->kind == MOE_OP_EMBED_WGRAD) {
    add_one(c->g_table, 0);
  }
  return weights(c, c->table, MOE_BUCKET_EMBED, 0);
}

static MoeStatus att(MoeCall *c)
{
  at_shape(c);
  if (c->kind == MOE_OP_ATT_FWD) {
    MOE_TRY(check_input(c));
    MOE_TRY(weights(c, c->w, MOE_BUCKET_ATT, c->layer));
    MOE_TRY(weights(c, c->gain, MOE_BUCKET_GAIN, c->layer));
  } else if (c->kind == MOE_OP_ATT_DGRAD) {
    MOE_TRY(check_in(c, MOE_EDGE_DISPATCH_B, c->layer, c->n_ffn, c->n_ffn));
    MOE_TRY(work(c, MOE_OP_ATT_DGRAD, c->layer, true));
    add_one(c->g_gain, c->layer);
  } else {
    add_one(c->gw, c->layer);
  }
  MOE_TRY(saved(c, c->layer, 0, c->kind == MOE_OP_ATT_FWD));
  return scratch(c);
}

static MoeStatus join(MoeCall *c)
{
  at_shape(c);
  bool back = c->kind == MOE_OP_JOIN_DGRAD;
  int32_t n = ranks_of(back ? fake_att(c->mb, c->layer + 1) : fake_ffn(c->mb, c->layer));
  MOE_TRY(check_in(c, back ? MOE_EDGE_PIPE_B : MOE_EDGE_COMBINE, c->layer, n, n));
  if (!c->piped || c->n_src != n * (back ? 1 : fake->layout.chunks)) {
    return complain("wrong number of senders", c);
  }
  MOE_TRY(saved(c, c->layer, 0, false));
  MOE_TRY(work(c, c->kind, c->layer, true));
  return scratch(c);
}

static MoeStatus ffn(MoeCall *c)
{
  at_shape(c);
  int32_t n_att = ranks_of(fake_att(c->mb, c->layer));
  if (fake->layout.fail_step == (int)c->step + 1) {
    return MOE_EOVERFLOW;
  }
  if (fake->layout.exit_step == (int)c->step + 1) {
    exit(0);
  }
  if (c->kind == MOE_OP_FFN_FWD) {
    MOE_TRY(check_in(c, c->relayed ? MOE_EDGE_FORWARD : MOE_EDGE_DISPATCH, c->layer, c->relayed ? node_ranks(c) : n_att,
                     0));
    MOE_TRY(weights(c, c->w, MOE_BUCKET_EXPERTS, c->layer));
    MOE_TRY(weights(c, c->gain, MOE_BUCKET_GAIN, c->layer));
  } else if (c->kind == MOE_OP_FFN_DGRAD) {
    MOE_TRY(check_in(c, c->relayed ? MOE_EDGE_GATHER_B : MOE_EDGE_COMBINE_B, c->layer,
                     c->relayed ? node_ranks(c) : ranks_of(fake_combine(c->mb, c->layer)), 0));
    add_one(c->g_gain, c->layer);
  } else {
    add_one(c->gw, c->layer);
  }
  if (c->n_dst != ranks_of(fake_combine(c->mb, c->layer))) {
    return complain("wrong number of receivers", c);
  }
  MOE_TRY(saved(c, c->layer, c->chunk, c->kind == MOE_OP_FFN_FWD && !c->relayed));
  return scratch(c);
}

static MoeStatus relay(MoeCall *c)
{
  at_shape(c);
  MOE_TRY(check_in(c, MOE_EDGE_DISPATCH, c->layer, ranks_of(fake_att(c->mb, c->layer)), 0));
  MOE_TRY(saved(c, c->layer, 0, true));
  return scratch(c);
}

static MoeStatus node_reduce(MoeCall *c)
{
  at_shape(c);
  MOE_TRY(check_in(c, c->edge, c->layer, node_ranks(c), 0));
  MOE_TRY(saved(c, c->layer, 0, false));
  return scratch(c);
}

static MoeStatus head(MoeCall *c)
{
  at_shape(c);
  MOE_TRY(check_input(c));
  MOE_TRY(weights(c, c->w, MOE_BUCKET_HEAD, 0));
  MOE_TRY(saved(c, c->layer, 0, true));
  MOE_TRY(work(c, MOE_OP_HEAD, c->layer, true));
  if (c->table == NULL || c->table != c->w + 7) {
    return complain("wrong output table", c);
  }
  add_one(c->gw, 0);
  for (int32_t i = 0; i < c->n_seqs * c->seq; i++) {
    c->scalars[MOE_SC_LOSS] += c->labels[i] >= 0 ? c->inv_tokens : 0;
    if (c->logits != NULL) {
      c->logits[(ptrdiff_t)i * fake->made.vocab] = (float)c->tokens[i];
      c->logits[(ptrdiff_t)(i + 1) * fake->made.vocab - 1] = (float)c->labels[i];
    }
  }
  c->scalars[MOE_SC_TOKENS] += c->n_seqs * c->seq;
  if (fake->layout.nan_step == (int)c->step + 1) {
    c->scalars[MOE_SC_LOSS] = NAN;
  }
  return scratch(c);
}

static size_t slot_bytes(const MoeDims *d)
{
  (void)d;
  return 64;
}

static size_t msg_bytes(MoeEdge edge, int32_t seq, int32_t att_seqs, int32_t experts)
{
  (void)edge;
  (void)experts;
  return 64 + (size_t)seq * (size_t)att_seqs * row_bytes();
}

static void add_floats(float *sum, const float *x, size_t n)
{
  for (size_t i = 0; i < n; i++) {
    sum[i] += x[i];
  }
}

static double sumsq(const float *x, size_t n)
{
  double sum = 0;
  for (size_t i = 0; i < n; i++) {
    sum += (double)x[i] * x[i];
  }
  return sum;
}

/* Not Adam: adds the gradient, so that the weights count the steps. */
static void adamw(const MoeAdam *a, float *w, float *master, float *m, float *v, const float *g, size_t n, bool decay)
{
  (void)decay;
  for (size_t i = 0; i < n; i++) {
    master[i] += a->scale * g[i];
    m[i] += g[i];
    v[i] += 1;
    w[i] = master[i];
  }
}

static void to_weights(float *w, const float *master, size_t n)
{
  memmove(w, master, n * sizeof(float));
}

const MoeKernels fake_kernels = {
    .weight_bytes = sizeof(float),
    .att_saved_bytes = slot_bytes,
    .att_work_bytes = slot_bytes,
    .ffn_saved_bytes = slot_bytes,
    .ffn_work_bytes = slot_bytes,
    .scratch_bytes = slot_bytes,
    .comm_scratch_bytes = slot_bytes,
    .msg_bytes = msg_bytes,
    .run = {[MOE_OP_EMBED_FWD] = embed,
            [MOE_OP_EMBED_WGRAD] = embed,
            [MOE_OP_ATT_FWD] = att,
            [MOE_OP_ATT_DGRAD] = att,
            [MOE_OP_ATT_WGRAD] = att,
            [MOE_OP_FFN_FWD] = ffn,
            [MOE_OP_FFN_DGRAD] = ffn,
            [MOE_OP_FFN_WGRAD] = ffn,
            [MOE_OP_HEAD] = head,
            [MOE_OP_JOIN_FWD] = join,
            [MOE_OP_JOIN_DGRAD] = join,
            [MOE_OP_RELAY] = relay,
            [MOE_OP_NODE_REDUCE] = node_reduce},
    .pack = {[MOE_EDGE_DISPATCH] = pack,
             [MOE_EDGE_FORWARD] = pack,
             [MOE_EDGE_GATHER] = pack,
             [MOE_EDGE_COMBINE] = pack,
             [MOE_EDGE_COMBINE_B] = pack,
             [MOE_EDGE_GATHER_B] = pack,
             [MOE_EDGE_FORWARD_B] = pack,
             [MOE_EDGE_DISPATCH_B] = pack,
             [MOE_EDGE_PIPE] = pack,
             [MOE_EDGE_PIPE_B] = pack},
    .add = add_floats,
    .sumsq = sumsq,
    .adamw = adamw,
    .to_weights = to_weights,
};
