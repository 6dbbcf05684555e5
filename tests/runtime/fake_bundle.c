/* Tables of the fake bundle. Ops are appended in one total order of events (forward by layer and micro-batch, backward
   in reverse, then the tail), so every wait and every slot is satisfied by something earlier: no layout can deadlock.
 */
#include "tests/runtime/fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RANKS = 64, MAX_BUCKETS = 600, MAX_SLOTS = 40, MAX_CHUNKS = 4 };

FakeShape fake_shapes[FAKE_SHAPES];
int fake_n_shapes;
_Thread_local FakeShape *fake;

static char names[FAKE_GROUPS][16];
static MoeBucket buckets[MAX_BUCKETS];
static int32_t holders[MAX_BUCKETS * MAX_RANKS];
static MoeParam params[2 * MAX_BUCKETS];
static char param_names[2 * MAX_BUCKETS][48];
static int n_holders_used;
static struct {
  int slot[FAKE_CHANS][MAX_SLOTS]; /* uses so far, per channel and slot, counted per group */
} uses[FAKE_GROUPS][2];

static int32_t chan_of(MoeEdge edge, MoeBucketKind bucket, int src, int dst, int slots)
{
  for (int i = 0; i < fake->made.n_chans; i++) {
    if (fake->chans[i].edge == edge && fake->chans[i].bucket == bucket && fake->chans[i].src == src &&
        fake->chans[i].dst == dst) {
      return i;
    }
  }
  fake->chans[fake->made.n_chans] =
      (MoeChan){(uint8_t)edge, (uint8_t)bucket, (int16_t)src, (int16_t)dst, (int16_t)slots};
  return fake->made.n_chans++;
}

static MoeOp *add(int g, MoeOpKind kind, int layer, int mb)
{
  MoeOp *op = &fake->ops[g][fake->groups[g].n_ops++];
  *op = (MoeOp){.kind = (uint8_t)kind,
                .edge = MOE_EDGE_NONE,
                .bucket = MOE_BUCKET_NONE,
                .layer = (int16_t)layer,
                .peer = -1,
                .mb = mb,
                .saved = -1,
                .work = -1,
                .chan = -1,
                .slot = -1,
                .wait = {-1, -1, -1, -1, -1, -1, -1, -1},
                .release = {-1, -1, -1, -1, -1, -1, -1, -1}};
  return op;
}

static int id_of(int g, const MoeOp *op)
{
  return (int)(op - fake->ops[g]);
}

static void wait_for(MoeOp *op, int id)
{
  for (int k = 0; k < MOE_MAX_WAITS && id >= 0; k++) {
    if (op->wait[k] < 0) {
      op->wait[k] = id;
      return;
    }
  }
}

static int message(MoeOpKind kind, MoeEdge edge, int g, int other, int layer, int mb, int slots, int slot, int bucket)
{
  bool send = kind == MOE_OP_SEND;
  bool grouped = moe_edge_pairs(edge) == MOE_PAIRS_GROUPS || moe_edge_pairs(edge) == MOE_PAIRS_NODE;
  MoeOp *op = add(g, kind, layer, mb);
  op->stream = send ? MOE_STREAM_SEND : MOE_STREAM_RECV;
  op->edge = (uint8_t)edge;
  op->bucket = (uint8_t)bucket;
  op->peer = (int16_t)(grouped ? other : -1);
  op->chan = (int16_t)chan_of(edge, (MoeBucketKind)bucket, grouped ? (send ? g : other) : -1,
                              grouped ? (send ? other : g) : -1, slots);
  op->slot = (int16_t)slot;
  op->use = uses[g][send].slot[op->chan][slot]++;
  return id_of(g, op);
}

/* Slots of a channel: enough that no message waits behind one that is released much later. */
static int slots_between(void)
{
  return (fake->layout.colocated && fake->layout.mbs > 2 ? fake->layout.mbs : 2) * fake->layout.chunks;
}

/* A micro-batch's chunk on its way through the layers. */
typedef struct Part {
  int mb, chunk;
} Part;

/* Sends on edge from group `from` after op `after` and receives in `to`; returns the RECV's id in `to`. */
static int transfer(MoeEdge edge, int from, int to, int layer, Part p, int after, int saved, int work, int release)
{
  int slots = slots_between();
  int slot = (p.mb * fake->layout.chunks + p.chunk) % slots;
  int s = message(MOE_OP_SEND, edge, from, to, layer, p.mb, slots, slot, MOE_BUCKET_NONE);
  MoeOp *op = &fake->ops[from][s];
  wait_for(op, after);
  wait_for(op, release);
  op->release[0] = release;
  op->saved = saved;
  op->work = work;
  op->chunk = (int16_t)p.chunk;
  int r = message(MOE_OP_RECV, edge, to, from, layer, p.mb, slots, slot, MOE_BUCKET_NONE);
  fake->ops[to][r].chunk = (int16_t)p.chunk;
  return r;
}

/* recv: [n] RECV ops that the op waits for and releases. */
static int compute_all(int g, MoeOpKind kind, MoeStream stream, int layer, int mb, const int *recv, int n, int saved,
                       int work)
{
  MoeOp *op = add(g, kind, layer, mb);
  op->stream = (uint8_t)stream;
  op->saved = saved;
  op->work = work;
  for (int c = 0; c < n; c++) {
    wait_for(op, recv[c]);
    op->release[c] = recv[c];
  }
  return id_of(g, op);
}

static int compute(int g, MoeOpKind kind, MoeStream stream, int layer, int mb, int recv, int saved, int work)
{
  return compute_all(g, kind, stream, layer, mb, &recv, 1, saved, work);
}

static int compute_part(int g, MoeOpKind kind, MoeStream stream, int layer, Part p, int recv, int saved, int work)
{
  int id = compute(g, kind, stream, layer, p.mb, recv, saved, work);
  fake->ops[g][id].chunk = (int16_t)p.chunk;
  return id;
}

static bool relayed(int group)
{
  const MoeGroup *g = &fake->groups[group];
  for (int i = 1; fake->layout.relay && fake->layout.rpn > 0 && i < g->n_ranks; i++) {
    if (fake->seat[g->first_rank + i] / fake->layout.rpn == fake->seat[g->first_rank + i - 1] / fake->layout.rpn) {
      return true;
    }
  }
  return false;
}

static int way_of(int mb)
{
  return moe_way(fake->layout.ways, fake->layout.mbs, mb);
}

int fake_att(int mb, int layer)
{
  return fake->att_group[way_of(mb) * (fake->layout.layers + 1) + layer];
}

int fake_ffn(int mb, int layer)
{
  return fake->ffn_group[way_of(mb) * fake->layout.layers + layer];
}

int fake_combine(int mb, int layer)
{
  return fake->combine_group[way_of(mb) * fake->layout.layers + layer];
}

static bool joined(int mb, int layer)
{
  return fake_combine(mb, layer) != fake_att(mb, layer + 1);
}

static int slot_of(int layer, int mb)
{
  return layer * fake->layout.mbs + mb;
}

static int n_slots(void)
{
  return (fake->layout.layers + 1) * fake->layout.mbs;
}

/* RECV ops that the next op of (layer, micro-batch) waits for, in their group's table: one a chunk, or one of a PIPE.
 */
typedef struct Coming {
  int recv[MAX_CHUNKS];
  int n;
} Coming;

static Coming coming[FAKE_LAYERS + 1][64];

/* One chunk through the experts of layer l; returns the RECV of its COMBINE. */
static int experts(int l, Part p, int att)
{
  int a = fake_att(p.mb, l), f = fake_ffn(p.mb, l), s = slot_of(l, p.mb);
  int t = s * fake->layout.chunks + p.chunk;
  int recv = transfer(MOE_EDGE_DISPATCH, a, f, l, p, att, s, -1, -1);
  if (relayed(f)) {
    MoeOp *relay = add(f, MOE_OP_RELAY, l, p.mb);
    relay->stream = MOE_STREAM_SEND;
    relay->saved = t;
    wait_for(relay, recv);
    recv = transfer(MOE_EDGE_FORWARD, f, f, l, p, id_of(f, relay), t, -1, recv);
  }
  int done = compute_part(f, MOE_OP_FFN_FWD, MOE_STREAM_FWD, l, p, recv, t, t);
  if (relayed(f)) {
    recv = transfer(MOE_EDGE_GATHER, f, f, l, p, done, t, t, -1);
    done = compute(f, MOE_OP_NODE_REDUCE, MOE_STREAM_SEND, l, p.mb, recv, t, t);
    fake->ops[f][done].edge = MOE_EDGE_GATHER;
  }
  return transfer(MOE_EDGE_COMBINE, f, fake_combine(p.mb, l), l, p, done, t, t, -1);
}

static void forward(int l, int mb)
{
  int a = fake_att(mb, l), s = slot_of(l, mb);
  Coming *in = &coming[l][mb], *out = &coming[l + 1][mb];
  if (l == 0) {
    compute(a, MOE_OP_EMBED_FWD, MOE_STREAM_FWD, 0, mb, -1, s, -1);
    in->n = 0;
  }
  int att = compute_all(a, MOE_OP_ATT_FWD, MOE_STREAM_FWD, l, mb, in->recv, in->n, s, -1);
  out->n = fake->layout.chunks;
  for (int c = 0; c < fake->layout.chunks; c++) {
    out->recv[c] = experts(l, (Part){mb, c}, att);
  }
  if (joined(mb, l)) {
    int g = fake_combine(mb, l), w = n_slots() + s;
    int join = compute_all(g, MOE_OP_JOIN_FWD, MOE_STREAM_FWD, l, mb, out->recv, out->n, s, w);
    out->recv[0] = transfer(MOE_EDGE_PIPE, g, fake_att(mb, l + 1), l, (Part){mb, 0}, join, s, w, -1);
    out->n = 1;
  }
}

/* The gradient of the input of layer l + 1, in slots s of group g after op `done`, on its way to the experts of l. */
static void input_gradient(int g, int l, int mb, int done, int s)
{
  Coming *out = &coming[l][mb];
  int saved = s, work = s;
  if (joined(mb, l)) {
    int to = fake_combine(mb, l);
    int recv = transfer(MOE_EDGE_PIPE_B, g, to, l, (Part){mb, 0}, done, s, s, -1);
    g = to;
    saved = slot_of(l, mb);
    work = n_slots() + saved;
    done = compute(g, MOE_OP_JOIN_DGRAD, MOE_STREAM_BWD, l, mb, recv, saved, work);
  }
  out->n = fake->layout.chunks;
  for (int c = 0; c < fake->layout.chunks; c++) {
    out->recv[c] = transfer(MOE_EDGE_COMBINE_B, g, fake_ffn(mb, l), l, (Part){mb, c}, done, saved, work, -1);
  }
}

/* Returns the RECV of DISPATCH_B. */
static int experts_back(int l, Part p)
{
  int a = fake_att(p.mb, l), f = fake_ffn(p.mb, l), t = slot_of(l, p.mb) * fake->layout.chunks + p.chunk;
  int recv = coming[l][p.mb].recv[p.chunk];
  if (relayed(f)) {
    recv = transfer(MOE_EDGE_GATHER_B, f, f, l, p, -1, t, -1, recv);
  }
  int done = compute_part(f, MOE_OP_FFN_DGRAD, MOE_STREAM_BWD, l, p, recv, t, t);
  int grad = done;
  if (relayed(f)) {
    recv = transfer(MOE_EDGE_FORWARD_B, f, f, l, p, done, t, t, -1);
    done = compute(f, MOE_OP_NODE_REDUCE, MOE_STREAM_SEND, l, p.mb, recv, t, t);
    fake->ops[f][done].edge = MOE_EDGE_FORWARD_B;
  }
  recv = transfer(MOE_EDGE_DISPATCH_B, f, a, l, p, done, t, t, -1);
  int w = compute_part(f, MOE_OP_FFN_WGRAD, MOE_STREAM_BWD, l, p, -1, t, t);
  wait_for(&fake->ops[f][w], grad);
  return recv;
}

static void backward(int l, int mb)
{
  int a = fake_att(mb, l), s = slot_of(l, mb);
  int recv[MAX_CHUNKS];
  for (int c = fake->layout.chunks - 1; c >= 0; c--) { /* in reverse, so that releases are not in chunk order */
    recv[fake->layout.chunks - 1 - c] = experts_back(l, (Part){mb, c});
  }
  int dgrad = compute_all(a, MOE_OP_ATT_DGRAD, MOE_STREAM_BWD, l, mb, recv, fake->layout.chunks, s, s);
  if (l > 0) {
    input_gradient(a, l - 1, mb, dgrad, s);
  } else {
    compute(a, MOE_OP_EMBED_WGRAD, MOE_STREAM_BWD, 0, mb, -1, s, s);
  }
  compute(a, MOE_OP_ATT_WGRAD, MOE_STREAM_BWD, l, mb, -1, s, s);
}

static int holding_on(int way, int g, MoeBucketKind kind, int layer)
{
  const int16_t *att = fake->att_group + way * (fake->layout.layers + 1);
  const int16_t *ffn = fake->ffn_group + way * fake->layout.layers;
  switch (kind) {
  case MOE_BUCKET_EMBED:
    return g == att[0];
  case MOE_BUCKET_ATT:
    return g == att[layer];
  case MOE_BUCKET_GAIN:
    return g == att[layer] || g == ffn[layer];
  case MOE_BUCKET_EXPERTS:
    return g == ffn[layer];
  default:
    return g == att[fake->layout.layers];
  }
}

static int holding(int g, MoeBucketKind kind, int layer)
{
  return holding_on(0, g, kind, layer) || (fake->layout.ways > 1 && holding_on(1, g, kind, layer));
}

/* One exchange of a bucket: every holder sends, then every holder receives, then `then` runs. */
static void exchange(MoeEdge edge, MoeBucketKind kind, int layer, MoeOpKind then, const int *after)
{
  bool spans = kind == MOE_BUCKET_GAIN || fake->layout.ways > 1; /* groups that meet on some layers only */
  int slots = spans ? fake->layout.layers : 2;
  int slot = spans ? layer : layer % 2;
  for (int g = 0; g < fake->made.n_groups; g++) {
    if (!holding(g, kind, layer)) {
      continue;
    }
    int s = message(MOE_OP_SEND, edge, g, -1, layer, -1, slots, slot, (int)kind);
    wait_for(&fake->ops[g][s], after[g]);
    int recv = message(MOE_OP_RECV, edge, g, -1, layer, -1, slots, slot, (int)kind);
    int done = compute(g, then, MOE_STREAM_BWD, layer, -1, recv, -1, -1);
    fake->ops[g][done].bucket = (uint8_t)kind;
  }
}

static void in_bucket_order(bool optimizer, const int *down)
{
  static const MoeBucketKind of_layer[] = {MOE_BUCKET_EXPERTS, MOE_BUCKET_GAIN, MOE_BUCKET_ATT};
  int last = 3 * fake->layout.layers + 1;
  for (int i = 0; i <= last; i++) {
    MoeBucketKind kind = i == 0 ? MOE_BUCKET_HEAD : i == last ? MOE_BUCKET_EMBED : of_layer[(i - 1) % 3];
    int layer = i == 0 || i == last ? 0 : fake->layout.layers - 1 - (i - 1) / 3;
    int after[FAKE_GROUPS];
    for (int g = 0; g < fake->made.n_groups; g++) {
      after[g] = -1;
      for (int k = fake->groups[g].n_ops - 1; k >= 0 && after[g] < 0; k--) { /* the last compute op so far */
        if (fake->ops[g][k].kind != MOE_OP_SEND && fake->ops[g][k].kind != MOE_OP_RECV) {
          after[g] = k;
        }
      }
      if (optimizer && holding(g, kind, layer)) {
        MoeOp *op = add(g, MOE_OP_OPTIMIZER, layer, -1);
        op->bucket = (uint8_t)kind;
        op->stream = MOE_STREAM_BWD;
        wait_for(op, down[g]);
        after[g] = id_of(g, op);
      }
    }
    exchange(optimizer ? MOE_EDGE_SHARE : MOE_EDGE_REDUCE, kind, layer,
             optimizer ? MOE_OP_WEIGHTS_IN : MOE_OP_GRAD_REDUCE, after);
  }
}

static void tail(void)
{
  int down[FAKE_GROUPS];
  in_bucket_order(false, NULL);
  for (int g = 0; g < fake->made.n_groups; g++) {
    int last = fake->groups[g].n_ops - 1;
    int s = message(MOE_OP_SEND, MOE_EDGE_SCALARS_UP, g, -1, -1, -1, 1, 0, MOE_BUCKET_NONE);
    wait_for(&fake->ops[g][s], last);
  }
  int up = message(MOE_OP_RECV, MOE_EDGE_SCALARS_UP, 0, -1, -1, -1, 1, 0, MOE_BUCKET_NONE);
  int sum = compute(0, MOE_OP_SCALARS, MOE_STREAM_BWD, -1, -1, up, -1, -1);
  int s = message(MOE_OP_SEND, MOE_EDGE_SCALARS_DOWN, 0, -1, -1, -1, 1, 0, MOE_BUCKET_NONE);
  wait_for(&fake->ops[0][s], sum);
  for (int g = 0; g < fake->made.n_groups; g++) {
    down[g] = message(MOE_OP_RECV, MOE_EDGE_SCALARS_DOWN, g, -1, -1, -1, 1, 0, MOE_BUCKET_NONE);
  }
  int after_sum = fake->groups[0].n_ops;
  in_bucket_order(true, down);
  for (int i = after_sum; i < fake->groups[0].n_ops; i++) {
    if (fake->ops[0][i].kind == MOE_OP_OPTIMIZER) {
      wait_for(&fake->ops[0][i], sum);
    }
  }
}

static void add_param(MoeBucket *b, const char *text, int layer, int64_t rows, int64_t cols)
{
  MoeParam *p = &params[fake->made.n_params];
  snprintf(param_names[fake->made.n_params], sizeof param_names[0], "%s.%d.%d", text, layer, fake->made.n_params);
  *p = (MoeParam){param_names[fake->made.n_params], b->elems, (int32_t)rows, (int32_t)cols, 0.0f, cols > 0, 0};
  b->elems += rows * (cols > 0 ? cols : 1);
  b->n_params++;
  fake->made.n_params++;
}

/* member < 0: all ranks of the holding groups. */
static void add_bucket(MoeBucketKind kind, int layer, int member)
{
  MoeBucket *b = &buckets[fake->made.n_buckets++];
  *b = (MoeBucket){.kind = (uint8_t)kind,
                   .layer = (int16_t)layer,
                   .first_holder = n_holders_used,
                   .first_param = fake->made.n_params};
  for (int q = 0; q < fake->made.replicas; q++) {
    for (int g = 0; g < fake->made.n_groups; g++) {
      for (int r = 0; holding(g, kind, layer) && r < fake->groups[g].n_ranks; r++) {
        if (member < 0 || member == r) {
          holders[n_holders_used++] = q * fake->made.replica_ranks + fake->groups[g].first_rank + r;
          b->n_holders++;
        }
      }
    }
  }
  add_param(b, moe_bucket_name(kind), layer, 7 + layer, 0);
  add_param(b, moe_bucket_name(kind), layer, 5, 3);
}

static void make_buckets(void)
{
  const FakeLayout *l = &fake->layout;
  add_bucket(MOE_BUCKET_EMBED, 0, -1);
  for (int i = 0; i < l->layers; i++) {
    add_bucket(MOE_BUCKET_ATT, i, -1);
  }
  for (int i = 0; i < l->layers; i++) {
    add_bucket(MOE_BUCKET_GAIN, i, -1);
  }
  for (int i = 0; i < l->layers; i++) {
    for (int r = 0; r < fake->groups[fake->ffn_group[i]].n_ranks; r++) {
      add_bucket(MOE_BUCKET_EXPERTS, i, r);
    }
  }
  add_bucket(MOE_BUCKET_HEAD, 0, -1);
}

double fake_gradient(MoeBucketKind kind, int layer)
{
  const FakeLayout *l = &fake->layout;
  int att = fake->groups[fake->att_group[layer]].n_ranks,
      ffn = fake->groups[fake->ffn_group[layer]].n_ranks * l->chunks;
  int head = fake->groups[fake->att_group[l->layers]].n_ranks;
  int adders = kind == MOE_BUCKET_GAIN      ? att + ffn
               : kind == MOE_BUCKET_EXPERTS ? l->chunks
               : kind == MOE_BUCKET_HEAD    ? head
               : kind == MOE_BUCKET_EMBED   ? fake->groups[fake->att_group[0]].n_ranks
                                            : att;
  return (double)adders * l->mbs * l->replicas;
}

static void make_maps(void)
{
  const FakeLayout *l = &fake->layout;
  for (int way = 0; way < l->ways; way++) {
    int16_t *att = fake->att_group + way * (l->layers + 1), *ffn = fake->ffn_group + way * l->layers;
    int16_t *combine = fake->combine_group + way * l->layers;
    for (int i = 0; i <= l->layers; i++) {
      att[i] = (int16_t)(way ? l->pa - 1 - i % l->pa : i % l->pa);
    }
    for (int i = 0; i < l->layers; i++) {
      ffn[i] = l->colocated ? att[i] : (int16_t)(l->pa + (way ? l->pf - 1 - i % l->pf : i % l->pf));
      combine[i] = l->join ? att[i] : att[i + 1];
    }
  }
}

static void make_groups(void)
{
  const FakeLayout *l = &fake->layout;
  int n = l->colocated ? l->pa : l->pa + l->pf;
  int rank = 0;
  for (int g = 0; g < n; g++) {
    bool att = g < l->pa;
    snprintf(names[g], sizeof names[g], "%s%d", l->colocated ? "AF" : att ? "A" : "F", att ? g : g - l->pa);
    int slots = n_slots();
    int role = l->colocated ? MOE_ROLE_A | MOE_ROLE_F : att ? MOE_ROLE_A : MOE_ROLE_F;
    fake->groups[g] = (MoeGroup){.name = names[g],
                                 .role = role,
                                 .first_rank = rank,
                                 .n_ranks = att ? l->a : l->f,
                                 .ops = fake->ops[g],
                                 .att_saved = slots,
                                 .att_work = 2 * slots, /* the second half: joins */
                                 .ffn_saved = slots * l->chunks,
                                 .ffn_work = slots * l->chunks};
    rank += fake->groups[g].n_ranks;
  }
  fake->made.n_groups = n;
  fake->made.replica_ranks = rank;
  int att = l->a * l->pa;
  int given[2] = {0, att};
  for (int seat = 0; seat < rank; seat++) { /* a GPU goes to the side that is behind its share */
    bool of_att = (seat + 1) * att / rank > seat * att / rank;
    fake->seat[l->mixed ? given[!of_att]++ : seat] = seat;
  }
  make_maps();
}

/* Fills `fake`. */
static void make_shape(const FakeLayout *layout, int number)
{
  fake->layout = *layout;
  memset(uses, 0, sizeof uses);
  snprintf(fake->name, sizeof fake->name, "s%d", number);
  fake->made = (MoeBundle){.shape = fake->name,
                           .spec = "none",
                           .model = "fake",
                           .system = "fake",
                           .hash = (uint64_t)layout->hash,
                           .replicas = layout->replicas,
                           .ranks_per_node = layout->rpn,
                           .seat = fake->seat,
                           .groups = fake->groups,
                           .n_layers = layout->layers,
                           .ways = layout->ways,
                           .att_group = fake->att_group,
                           .combine_group = fake->combine_group,
                           .chunks = layout->chunks,
                           .ffn_group = fake->ffn_group,
                           .chans = fake->chans,
                           .buckets = buckets,
                           .holders = holders,
                           .params = params,
                           .experts = 8,
                           .top_k = 1,
                           .vocab = 256,
                           .dedup = layout->relay ? MOE_DEDUP_NODE : MOE_DEDUP_RANK,
                           .seq = layout->seq,
                           .mb_seqs = layout->seqs,
                           .micro_batches = layout->mbs,
                           .global_batch = layout->replicas * (layout->mbs * layout->seqs - layout->short_by),
                           .seed = 1,
                           .lr = 1,
                           .beta1 = 0.9,
                           .beta2 = 0.95,
                           .eps = 1e-8,
                           .stop_on_nan = layout->stop_on_nan};
  make_groups();
  for (int l = 0; l < layout->layers; l++) {
    for (int mb = 0; mb < layout->mbs; mb++) {
      forward(l, mb);
    }
  }
  int last = layout->layers;
  for (int mb = 0; mb < layout->mbs; mb++) {
    int s = slot_of(last, mb), head = fake_att(mb, last);
    const Coming *in = &coming[last][mb];
    int done = compute_all(head, MOE_OP_HEAD, MOE_STREAM_FWD, last, mb, in->recv, in->n, s, s);
    input_gradient(head, last - 1, mb, done, s);
  }
  for (int l = layout->layers - 1; l >= 0; l--) {
    for (int mb = 0; mb < layout->mbs; mb++) {
      backward(l, mb);
    }
  }
  tail();
}

const MoeBundle *fake_bundle(const FakeLayout *layouts, int n)
{
  fake_n_shapes = n;
  for (int i = 0; i < n; i++) {
    fake = &fake_shapes[i];
    make_shape(&layouts[i], i);
    if (i == 0) {
      n_holders_used = 0;
      make_buckets();
    } else {
      fake->made.n_buckets = fake_shapes[0].made.n_buckets;
      fake->made.n_params = fake_shapes[0].made.n_params;
      fake_shapes[i - 1].made.next = &fake->made;
    }
  }
  fake = &fake_shapes[0];
  return &fake->made;
}
