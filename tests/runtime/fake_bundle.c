/* Tables of the fake bundle. Ops are appended in one total order of events (forward by layer and micro-batch, backward
   in reverse, then the tail), so every wait and every slot is satisfied by something earlier: no layout can deadlock.
 */
#include "tests/runtime/fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_GROUPS = 8, MAX_OPS = 6000, MAX_CHANS = 400, MAX_LAYERS = 16, MAX_RANKS = 64, MAX_BUCKETS = 600 };

FakeLayout fake_layout;
MoeBundle fake_made;

static MoeOp ops[MAX_GROUPS][MAX_OPS];
static MoeGroup groups[MAX_GROUPS];
static char names[MAX_GROUPS][16];
static MoeChan chans[MAX_CHANS];
static int16_t att_group[MAX_LAYERS + 1], ffn_group[MAX_LAYERS];
static MoeBucket buckets[MAX_BUCKETS];
static int32_t holders[MAX_BUCKETS * MAX_RANKS];
static MoeParam params[2 * MAX_BUCKETS];
static char param_names[2 * MAX_BUCKETS][48];
static int n_holders_used;
static struct {
  int slot[MAX_CHANS][MAX_LAYERS + 2]; /* uses so far, per channel and slot, counted per group */
} uses[MAX_GROUPS][2];

bool fake_parse(FakeLayout *l, const char *text)
{
  *l = (FakeLayout){
      .a = 1, .f = 1, .pa = 1, .pf = 1, .replicas = 1, .layers = 2, .mbs = 2, .seqs = 2, .seq = 8, .row_bytes = 8};
  struct {
    const char *key;
    int *value;
  } keys[] = {{"a", &l->a},
              {"f", &l->f},
              {"pa", &l->pa},
              {"pf", &l->pf},
              {"replicas", &l->replicas},
              {"layers", &l->layers},
              {"mbs", &l->mbs},
              {"seqs", &l->seqs},
              {"short", &l->short_by},
              {"seq", &l->seq},
              {"rpn", &l->rpn},
              {"relay", &l->relay},
              {"colocated", &l->colocated},
              {"row", &l->row_bytes},
              {"spin", &l->spin_us},
              {"nan", &l->nan_step},
              {"stop", &l->stop_on_nan},
              {"wrong", &l->wrong_step},
              {"fail", &l->fail_step},
              {"exit", &l->exit_step}};
  char key[32];
  int value, used;
  while (sscanf(text, " %31[a-z]=%d%n", key, &value, &used) == 2) {
    bool known = false;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
      if (strcmp(key, keys[i].key) == 0) {
        *keys[i].value = value;
        known = true;
      }
    }
    if (!known) {
      return false;
    }
    text += used;
  }
  return text[strspn(text, " ")] == '\0';
}

static int32_t chan_of(MoeEdge edge, MoeBucketKind bucket, int src, int dst, int slots)
{
  for (int i = 0; i < fake_made.n_chans; i++) {
    if (chans[i].edge == edge && chans[i].bucket == bucket && chans[i].src == src && chans[i].dst == dst) {
      return i;
    }
  }
  chans[fake_made.n_chans] = (MoeChan){(uint8_t)edge, (uint8_t)bucket, (int16_t)src, (int16_t)dst, (int16_t)slots};
  return fake_made.n_chans++;
}

static MoeOp *add(int g, MoeOpKind kind, int layer, int mb)
{
  MoeOp *op = &ops[g][groups[g].n_ops++];
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
                .wait = {-1, -1, -1, -1},
                .release = {-1, -1, -1, -1}};
  return op;
}

static int id_of(int g, const MoeOp *op)
{
  return (int)(op - ops[g]);
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

/* Sends on edge from group `from` after op `after` and receives in `to`; returns the RECV's id in `to`. */
static int transfer(MoeEdge edge, int from, int to, int layer, int mb, int after, int saved, int work, int release)
{
  int s = message(MOE_OP_SEND, edge, from, to, layer, mb, 2, mb % 2, MOE_BUCKET_NONE);
  MoeOp *op = &ops[from][s];
  wait_for(op, after);
  wait_for(op, release);
  op->release[0] = release;
  op->saved = saved;
  op->work = work;
  return message(MOE_OP_RECV, edge, to, from, layer, mb, 2, mb % 2, MOE_BUCKET_NONE);
}

static int compute(int g, MoeOpKind kind, MoeStream stream, int layer, int mb, int recv, int saved, int work)
{
  MoeOp *op = add(g, kind, layer, mb);
  op->stream = (uint8_t)stream;
  op->saved = saved;
  op->work = work;
  wait_for(op, recv);
  op->release[0] = recv;
  return id_of(g, op);
}

static bool relayed(int layer)
{
  const MoeGroup *g = &groups[ffn_group[layer]];
  for (int i = 1; fake_layout.relay && fake_layout.rpn > 0 && i < g->n_ranks; i++) {
    if ((g->first_rank + i) / fake_layout.rpn == (g->first_rank + i - 1) / fake_layout.rpn) {
      return true;
    }
  }
  return false;
}

static int slot_of(int layer, int mb)
{
  return layer * fake_layout.mbs + mb;
}

static int coming[MAX_LAYERS + 1][64]; /* RECV that the next op of (layer, micro-batch) waits for */

static void forward(int l, int mb)
{
  int a = att_group[l], f = ffn_group[l], next = att_group[l + 1], s = slot_of(l, mb);
  if (l == 0) {
    compute(a, MOE_OP_EMBED_FWD, MOE_STREAM_FWD, 0, mb, -1, s, -1);
  }
  int att = compute(a, MOE_OP_ATT_FWD, MOE_STREAM_FWD, l, mb, l > 0 ? coming[l][mb] : -1, s, -1);
  int recv = transfer(MOE_EDGE_DISPATCH, a, f, l, mb, att, s, -1, -1);
  if (relayed(l)) {
    MoeOp *relay = add(f, MOE_OP_RELAY, l, mb);
    relay->stream = MOE_STREAM_SEND;
    relay->saved = s;
    wait_for(relay, recv);
    recv = transfer(MOE_EDGE_FORWARD, f, f, l, mb, id_of(f, relay), s, -1, recv);
  }
  int done = compute(f, MOE_OP_FFN_FWD, MOE_STREAM_FWD, l, mb, recv, s, s);
  if (relayed(l)) {
    recv = transfer(MOE_EDGE_GATHER, f, f, l, mb, done, s, s, -1);
    done = compute(f, MOE_OP_NODE_REDUCE, MOE_STREAM_SEND, l, mb, recv, s, s);
    ops[f][done].edge = MOE_EDGE_GATHER;
  }
  coming[l + 1][mb] = transfer(MOE_EDGE_COMBINE, f, next, l, mb, done, s, s, -1);
}

static void backward(int l, int mb)
{
  int a = att_group[l], f = ffn_group[l], s = slot_of(l, mb);
  int recv = coming[l][mb];
  if (relayed(l)) {
    recv = transfer(MOE_EDGE_GATHER_B, f, f, l, mb, -1, s, -1, recv);
  }
  int done = compute(f, MOE_OP_FFN_DGRAD, MOE_STREAM_BWD, l, mb, recv, s, s);
  int grad = done;
  if (relayed(l)) {
    recv = transfer(MOE_EDGE_FORWARD_B, f, f, l, mb, done, s, s, -1);
    done = compute(f, MOE_OP_NODE_REDUCE, MOE_STREAM_SEND, l, mb, recv, s, s);
    ops[f][done].edge = MOE_EDGE_FORWARD_B;
  }
  recv = transfer(MOE_EDGE_DISPATCH_B, f, a, l, mb, done, s, s, -1);
  int w = compute(f, MOE_OP_FFN_WGRAD, MOE_STREAM_BWD, l, mb, -1, s, s);
  wait_for(&ops[f][w], grad);
  int dgrad = compute(a, MOE_OP_ATT_DGRAD, MOE_STREAM_BWD, l, mb, recv, s, s);
  if (l > 0) {
    coming[l - 1][mb] = transfer(MOE_EDGE_COMBINE_B, a, ffn_group[l - 1], l - 1, mb, dgrad, s, s, -1);
  } else {
    compute(a, MOE_OP_EMBED_WGRAD, MOE_STREAM_BWD, 0, mb, -1, s, s);
  }
  compute(a, MOE_OP_ATT_WGRAD, MOE_STREAM_BWD, l, mb, -1, s, s);
}

static int holding(int g, MoeBucketKind kind, int layer)
{
  int head = att_group[fake_layout.layers];
  switch (kind) {
  case MOE_BUCKET_EMBED:
    return g == att_group[0];
  case MOE_BUCKET_ATT:
    return g == att_group[layer];
  case MOE_BUCKET_GAIN:
    return g == att_group[layer] || g == ffn_group[layer];
  case MOE_BUCKET_EXPERTS:
    return g == ffn_group[layer];
  default:
    return g == head;
  }
}

/* One exchange of a bucket: every holder sends, then every holder receives, then `then` runs. */
static void exchange(MoeEdge edge, MoeBucketKind kind, int layer, MoeOpKind then, const int *after)
{
  int slots = kind == MOE_BUCKET_GAIN ? fake_layout.layers : 2;
  int slot = kind == MOE_BUCKET_GAIN ? layer : layer % 2;
  for (int g = 0; g < fake_made.n_groups; g++) {
    if (!holding(g, kind, layer)) {
      continue;
    }
    int s = message(MOE_OP_SEND, edge, g, -1, layer, -1, slots, slot, (int)kind);
    wait_for(&ops[g][s], after[g]);
    int recv = message(MOE_OP_RECV, edge, g, -1, layer, -1, slots, slot, (int)kind);
    int done = compute(g, then, MOE_STREAM_BWD, layer, -1, recv, -1, -1);
    ops[g][done].bucket = (uint8_t)kind;
  }
}

static void in_bucket_order(bool optimizer, const int *down)
{
  static const MoeBucketKind of_layer[] = {MOE_BUCKET_EXPERTS, MOE_BUCKET_GAIN, MOE_BUCKET_ATT};
  int last = 3 * fake_layout.layers + 1;
  for (int i = 0; i <= last; i++) {
    MoeBucketKind kind = i == 0 ? MOE_BUCKET_HEAD : i == last ? MOE_BUCKET_EMBED : of_layer[(i - 1) % 3];
    int layer = i == 0 || i == last ? 0 : fake_layout.layers - 1 - (i - 1) / 3;
    int after[MAX_GROUPS];
    for (int g = 0; g < fake_made.n_groups; g++) {
      after[g] = -1;
      for (int k = groups[g].n_ops - 1; k >= 0 && after[g] < 0; k--) { /* the last compute op so far */
        if (ops[g][k].kind != MOE_OP_SEND && ops[g][k].kind != MOE_OP_RECV) {
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
  int down[MAX_GROUPS];
  in_bucket_order(false, NULL);
  for (int g = 0; g < fake_made.n_groups; g++) {
    int last = groups[g].n_ops - 1;
    int s = message(MOE_OP_SEND, MOE_EDGE_SCALARS_UP, g, -1, -1, -1, 1, 0, MOE_BUCKET_NONE);
    wait_for(&ops[g][s], last);
  }
  int up = message(MOE_OP_RECV, MOE_EDGE_SCALARS_UP, 0, -1, -1, -1, 1, 0, MOE_BUCKET_NONE);
  int sum = compute(0, MOE_OP_SCALARS, MOE_STREAM_BWD, -1, -1, up, -1, -1);
  int s = message(MOE_OP_SEND, MOE_EDGE_SCALARS_DOWN, 0, -1, -1, -1, 1, 0, MOE_BUCKET_NONE);
  wait_for(&ops[0][s], sum);
  for (int g = 0; g < fake_made.n_groups; g++) {
    down[g] = message(MOE_OP_RECV, MOE_EDGE_SCALARS_DOWN, g, -1, -1, -1, 1, 0, MOE_BUCKET_NONE);
  }
  int after_sum = groups[0].n_ops;
  in_bucket_order(true, down);
  for (int i = after_sum; i < groups[0].n_ops; i++) {
    if (ops[0][i].kind == MOE_OP_OPTIMIZER) {
      wait_for(&ops[0][i], sum);
    }
  }
}

static void add_param(MoeBucket *b, const char *text, int layer, int64_t rows, int64_t cols)
{
  MoeParam *p = &params[fake_made.n_params];
  snprintf(param_names[fake_made.n_params], sizeof param_names[0], "%s.%d.%d", text, layer, fake_made.n_params);
  *p = (MoeParam){param_names[fake_made.n_params], b->elems, (int32_t)rows, (int32_t)cols, 0.0f, cols > 0};
  b->elems += rows * (cols > 0 ? cols : 1);
  b->n_params++;
  fake_made.n_params++;
}

/* member < 0: all ranks of the holding groups. */
static void add_bucket(MoeBucketKind kind, int layer, int member)
{
  MoeBucket *b = &buckets[fake_made.n_buckets++];
  *b = (MoeBucket){.kind = (uint8_t)kind,
                   .layer = (int16_t)layer,
                   .first_holder = n_holders_used,
                   .first_param = fake_made.n_params};
  for (int q = 0; q < fake_made.replicas; q++) {
    for (int g = 0; g < fake_made.n_groups; g++) {
      for (int r = 0; holding(g, kind, layer) && r < groups[g].n_ranks; r++) {
        if (member < 0 || member == r) {
          holders[n_holders_used++] = q * fake_made.replica_ranks + groups[g].first_rank + r;
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
  const FakeLayout *l = &fake_layout;
  add_bucket(MOE_BUCKET_EMBED, 0, -1);
  for (int i = 0; i < l->layers; i++) {
    add_bucket(MOE_BUCKET_ATT, i, -1);
  }
  for (int i = 0; i < l->layers; i++) {
    add_bucket(MOE_BUCKET_GAIN, i, -1);
  }
  for (int i = 0; i < l->layers; i++) {
    for (int r = 0; r < groups[ffn_group[i]].n_ranks; r++) {
      add_bucket(MOE_BUCKET_EXPERTS, i, r);
    }
  }
  add_bucket(MOE_BUCKET_HEAD, 0, -1);
}

double fake_gradient(MoeBucketKind kind, int layer)
{
  const FakeLayout *l = &fake_layout;
  int att = groups[att_group[layer]].n_ranks, ffn = groups[ffn_group[layer]].n_ranks;
  int head = groups[att_group[l->layers]].n_ranks;
  int adders = kind == MOE_BUCKET_GAIN      ? att + ffn
               : kind == MOE_BUCKET_EXPERTS ? 1
               : kind == MOE_BUCKET_HEAD    ? head
               : kind == MOE_BUCKET_EMBED   ? groups[att_group[0]].n_ranks
                                            : att;
  return (double)adders * l->mbs * l->replicas;
}

static void make_groups(void)
{
  const FakeLayout *l = &fake_layout;
  int n = l->colocated ? l->pa : l->pa + l->pf;
  int rank = 0;
  for (int g = 0; g < n; g++) {
    bool att = g < l->pa;
    snprintf(names[g], sizeof names[g], "%s%d", l->colocated ? "AF" : att ? "A" : "F", att ? g : g - l->pa);
    int slots = l->layers * l->mbs + l->mbs;
    int role = l->colocated ? MOE_ROLE_A | MOE_ROLE_F : att ? MOE_ROLE_A : MOE_ROLE_F;
    groups[g] = (MoeGroup){.name = names[g],
                           .role = role,
                           .first_rank = rank,
                           .n_ranks = att ? l->a : l->f,
                           .ops = ops[g],
                           .att_saved = slots,
                           .att_work = slots,
                           .ffn_saved = slots,
                           .ffn_work = slots};
    rank += groups[g].n_ranks;
  }
  fake_made.n_groups = n;
  fake_made.replica_ranks = rank;
  for (int i = 0; i <= l->layers; i++) {
    att_group[i] = (int16_t)(i % l->pa);
    if (i < l->layers) {
      ffn_group[i] = (int16_t)(l->colocated ? i % l->pa : l->pa + i % l->pf);
    }
  }
}

const MoeBundle *fake_bundle(const FakeLayout *layout)
{
  fake_layout = *layout;
  memset(uses, 0, sizeof uses);
  n_holders_used = 0;
  fake_made = (MoeBundle){.spec = "none",
                          .model = "fake",
                          .system = "fake",
                          .replicas = layout->replicas,
                          .ranks_per_node = layout->rpn,
                          .groups = groups,
                          .n_layers = layout->layers,
                          .att_group = att_group,
                          .ffn_group = ffn_group,
                          .chans = chans,
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
  int head = att_group[layout->layers];
  for (int mb = 0; mb < layout->mbs; mb++) {
    int s = slot_of(layout->layers, mb);
    int done = compute(head, MOE_OP_HEAD, MOE_STREAM_FWD, layout->layers, mb, coming[layout->layers][mb], s, s);
    int f = ffn_group[layout->layers - 1];
    coming[layout->layers - 1][mb] = transfer(MOE_EDGE_COMBINE_B, head, f, layout->layers - 1, mb, done, s, s, -1);
  }
  for (int l = layout->layers - 1; l >= 0; l--) {
    for (int mb = 0; mb < layout->mbs; mb++) {
      backward(l, mb);
    }
  }
  tail();
  make_buckets();
  return &fake_made;
}
