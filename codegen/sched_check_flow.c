/* Slots and contents. All rows are played in the order of the replay, with slots that hold a tag: which layer and
   micro-batch, and how far. Each op must find the tag its input is promised to have, written by an op that is over in
   every run (sched_check_run.c: clocks), and its messages among those it waits for. When a slot passes to another
   owner, every op of the old owner must be over, in every run, before the new owner's first op begins. */
#include "codegen/sched_check_int.h"

typedef enum State {
  S_EMPTY,
  S_EMBED,     /* saved: token embedding */
  S_ATT,       /* saved: residual, attention, router's choice and lists */
  S_HEAD,      /* saved: as S_ATT, of the head */
  S_LIST,      /* saved: forwarding list */
  S_FFN,       /* saved: rows, routing, lists */
  S_PARTIAL,   /* work: partial sums of one rank */
  S_NODE_SUM,  /* work: partial sums of the node */
  S_DX,        /* work: gradient of the attention layer's input */
  S_DROWS,     /* work: gradient rows of one rank */
  S_NODE_DROWS /* work: gradient rows summed over the node */
} State;

static const char *const state_names[] = {"nothing",
                                          "the embedding",
                                          "attention's results",
                                          "the head's results",
                                          "a relay's list",
                                          "the FFN's results",
                                          "partial sums",
                                          "the node's sums",
                                          "dx",
                                          "gradient rows",
                                          "the node's gradient rows"};

/* What an op reads and writes. Relayed layers have their own entries; of two entries for one op the one that fits the
   layer counts. from: how the layer of the slot differs from the op's (COMBINE_B leaves from the layer above). */
typedef struct Rule {
  int what;
  int relayed;   /* 0 plain, 1 relayed, -1 both */
  MoeEdge reads; /* message, of the layer `reads_layer` less */
  int reads_layer;
  int from;
  State saved_in, saved_out, work_in, work_out;
} Rule;

static const Rule rules[] = {
    {MOE_OP_EMBED_FWD, -1, MOE_EDGE_NONE, 0, 0, S_EMPTY, S_EMBED, S_EMPTY, S_EMPTY},
    {MOE_OP_ATT_FWD, -1, MOE_EDGE_COMBINE, -1, 0, S_EMPTY, S_ATT, S_EMPTY, S_EMPTY}, /* layer 0: see below */
    {WHAT_SEND + MOE_EDGE_DISPATCH, -1, MOE_EDGE_NONE, 0, 0, S_ATT, S_EMPTY, S_EMPTY, S_EMPTY},
    {MOE_OP_RELAY, 1, MOE_EDGE_DISPATCH, 0, 0, S_EMPTY, S_LIST, S_EMPTY, S_EMPTY},
    {WHAT_SEND + MOE_EDGE_FORWARD, 1, MOE_EDGE_DISPATCH, 0, 0, S_LIST, S_EMPTY, S_EMPTY, S_EMPTY},
    {MOE_OP_FFN_FWD, 0, MOE_EDGE_DISPATCH, 0, 0, S_EMPTY, S_FFN, S_EMPTY, S_PARTIAL},
    {MOE_OP_FFN_FWD, 1, MOE_EDGE_FORWARD, 0, 0, S_LIST, S_FFN, S_EMPTY, S_PARTIAL},
    {WHAT_SEND + MOE_EDGE_GATHER, 1, MOE_EDGE_NONE, 0, 0, S_FFN, S_EMPTY, S_PARTIAL, S_EMPTY},
    {WHAT_REDUCE + MOE_EDGE_GATHER, 1, MOE_EDGE_GATHER, 0, 0, S_FFN, S_EMPTY, S_EMPTY, S_NODE_SUM},
    {WHAT_SEND + MOE_EDGE_COMBINE, 0, MOE_EDGE_NONE, 0, 0, S_FFN, S_EMPTY, S_PARTIAL, S_EMPTY},
    {WHAT_SEND + MOE_EDGE_COMBINE, 1, MOE_EDGE_NONE, 0, 0, S_FFN, S_EMPTY, S_NODE_SUM, S_EMPTY},
    {MOE_OP_HEAD, -1, MOE_EDGE_COMBINE, -1, 0, S_EMPTY, S_HEAD, S_EMPTY, S_DX},
    {WHAT_SEND + MOE_EDGE_COMBINE_B, -1, MOE_EDGE_NONE, 0, 1, S_ATT, S_EMPTY, S_DX, S_EMPTY},
    {WHAT_SEND + MOE_EDGE_GATHER_B, 1, MOE_EDGE_COMBINE_B, 0, 0, S_FFN, S_EMPTY, S_EMPTY, S_EMPTY},
    {MOE_OP_FFN_DGRAD, 0, MOE_EDGE_COMBINE_B, 0, 0, S_FFN, S_EMPTY, S_EMPTY, S_DROWS},
    {MOE_OP_FFN_DGRAD, 1, MOE_EDGE_GATHER_B, 0, 0, S_FFN, S_EMPTY, S_EMPTY, S_DROWS},
    {MOE_OP_FFN_WGRAD, -1, MOE_EDGE_NONE, 0, 0, S_FFN, S_EMPTY, S_DROWS, S_EMPTY},
    {WHAT_SEND + MOE_EDGE_FORWARD_B, 1, MOE_EDGE_NONE, 0, 0, S_FFN, S_EMPTY, S_DROWS, S_EMPTY},
    {WHAT_REDUCE + MOE_EDGE_FORWARD_B, 1, MOE_EDGE_FORWARD_B, 0, 0, S_FFN, S_EMPTY, S_EMPTY, S_NODE_DROWS},
    {WHAT_SEND + MOE_EDGE_DISPATCH_B, 0, MOE_EDGE_NONE, 0, 0, S_FFN, S_EMPTY, S_DROWS, S_EMPTY},
    {WHAT_SEND + MOE_EDGE_DISPATCH_B, 1, MOE_EDGE_NONE, 0, 0, S_FFN, S_EMPTY, S_NODE_DROWS, S_EMPTY},
    {MOE_OP_ATT_DGRAD, -1, MOE_EDGE_DISPATCH_B, 0, 0, S_ATT, S_EMPTY, S_EMPTY, S_DX},
    {MOE_OP_ATT_WGRAD, -1, MOE_EDGE_NONE, 0, 0, S_ATT, S_EMPTY, S_DX, S_EMPTY},
    {MOE_OP_EMBED_WGRAD, -1, MOE_EDGE_NONE, 0, 0, S_ATT, S_EMPTY, S_DX, S_EMPTY},
};

typedef struct Tag {
  int layer, mb;
  State state;
  int32_t writer;
  int32_t users[16]; /* rows of this owner */
  int n_users;
} Tag;

typedef struct Flow {
  Check *c;
  CheckClocks *clocks;
  int group;
  Tag *tags[4]; /* att_saved, att_work, ffn_saved, ffn_work */
  int n[4];
} Flow;

static const char *const pool_names[] = {"att_saved", "att_work", "ffn_saved", "ffn_work"};

static bool of_attention(const MoeOp *op)
{
  switch (op->kind) {
  case MOE_OP_EMBED_FWD:
  case MOE_OP_ATT_FWD:
  case MOE_OP_HEAD:
  case MOE_OP_ATT_DGRAD:
  case MOE_OP_ATT_WGRAD:
  case MOE_OP_EMBED_WGRAD:
    return true;
  default:
    return op->edge == MOE_EDGE_DISPATCH || op->edge == MOE_EDGE_COMBINE_B;
  }
}

static Tag *slot_at(Flow *f, int32_t row, int pool, int slot)
{
  if (slot < 0 || slot >= f->n[pool]) {
    check_fail(f->c, row, "slot %d of %s, which has %d", slot, pool_names[pool], f->n[pool]);
    return NULL;
  }
  return &f->tags[pool][slot];
}

static void use(Flow *f, int32_t row, Tag *tag)
{
  if (tag->n_users < 16) {
    tag->users[tag->n_users++] = row;
  } else {
    check_fail(f->c, row, "more than 16 ops use a slot of one owner");
  }
}

/* The op reads what `tag` should hold. */
static void read_tag(Flow *f, int32_t row, int pool, int slot, int layer, State state)
{
  Check *c = f->c;
  const MoeOp *op = check_op(c, row);
  Tag *tag = slot_at(f, row, pool, slot);
  if (!tag) {
    return;
  }
  bool head = state == S_ATT && tag->state == S_HEAD && layer == c->n_layers;
  if ((tag->state != state && !head) || tag->layer != layer || tag->mb != op->mb) {
    check_fail(c, row, "%s slot %d should hold %s of layer %d micro-batch %d, but holds %s of layer %d micro-batch %d",
               pool_names[pool], slot, state_names[state], layer, op->mb, state_names[tag->state], tag->layer, tag->mb);
    return;
  }
  if (!check_before(c, f->clocks, tag->writer, row)) {
    char name[160];
    check_fail(c, row, "nothing makes it wait for %s, whose %s it reads", check_name(c, tag->writer, name),
               state_names[tag->state]);
  }
  use(f, row, tag);
}

/* The op takes the slot over: whoever had it must be done. */
static void take(Flow *f, int32_t row, int pool, int slot, int layer, State state)
{
  Check *c = f->c;
  Tag *tag = slot_at(f, row, pool, slot);
  if (!tag) {
    return;
  }
  for (int i = 0; i < tag->n_users; i++) {
    if (!check_before(c, f->clocks, tag->users[i], row)) {
      char name[160];
      check_fail(c, row, "takes %s slot %d while %s may still use it", pool_names[pool], slot,
                 check_name(c, tag->users[i], name));
    }
  }
  *tag = (Tag){.layer = layer, .mb = check_op(c, row)->mb, .state = state, .writer = row, .users = {row}, .n_users = 1};
}

static void read_message(Flow *f, int32_t row, MoeEdge edge, int layer)
{
  Check *c = f->c;
  const MoeOp *op = check_op(c, row);
  int32_t recv = check_find(c, WHAT_RECV + (int)edge, layer, op->mb);
  for (int k = 0; k < MOE_MAX_WAITS; k++) {
    int32_t wait = op->wait[k] < 0 ? -1 : c->base[f->group] + op->wait[k];
    if (wait >= 0 && check_op(c, wait)->kind == MOE_OP_RECV && wait != recv) {
      char name[160];
      check_fail(c, row, "reads %s, not %s", check_name(c, wait, name), moe_edge_name(edge));
      return;
    }
    if (wait == recv) {
      recv = -2;
    }
  }
  if (recv != -2) {
    char name[160];
    check_fail(c, row, "does not wait for %s, which it reads", check_name(c, recv, name));
    return;
  }
  recv = check_find(c, WHAT_RECV + (int)edge, layer, op->mb);
  if (c->releaser[recv] != row && !check_before(c, f->clocks, row, c->releaser[recv])) {
    char name[160];
    check_fail(c, row, "may still read messages when %s gives them back", check_name(c, c->releaser[recv], name));
  }
}

static void change(Flow *f, int32_t row, int pool, int slot, State state)
{
  Tag *tag = slot_at(f, row, pool, slot);
  if (tag) {
    tag->state = state;
    tag->writer = row;
  }
}

static const Rule *rule_of(const Check *c, const MoeOp *op)
{
  int what = op->kind == MOE_OP_SEND          ? WHAT_SEND + op->edge
             : op->kind == MOE_OP_NODE_REDUCE ? WHAT_REDUCE + op->edge
                                              : op->kind;
  for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
    if (rules[i].what == what &&
        (rules[i].relayed < 0 || rules[i].relayed == (op->layer < c->n_layers && c->relayed[op->layer]))) {
      return &rules[i];
    }
  }
  return NULL;
}

static void play(Flow *f, int32_t row)
{
  Check *c = f->c;
  const MoeOp *op = check_op(c, row);
  if (op->mb < 0 || op->kind == MOE_OP_RECV) {
    return;
  }
  const Rule *rule = rule_of(c, op);
  if (!rule) {
    check_fail(c, row, "nothing is known about this op");
    return;
  }
  int layer = op->layer + rule->from, saved = of_attention(op) ? 0 : 2, work = saved + 1;
  State saved_in = rule->saved_in;
  MoeEdge reads = rule->reads;
  if (op->kind == MOE_OP_ATT_FWD && op->layer == 0) { /* its residual is the embedding, not a message */
    saved_in = S_EMBED;
    reads = MOE_EDGE_NONE;
  }
  if (reads != MOE_EDGE_NONE) {
    read_message(f, row, reads, op->layer + rule->reads_layer);
  }
  bool wants_work = rule->work_in != S_EMPTY || rule->work_out != S_EMPTY;
  if (!wants_work && op->work >= 0) {
    check_fail(c, row, "has work slot %d, but neither reads nor writes one", op->work);
  }
  if (saved_in != S_EMPTY) {
    read_tag(f, row, saved, op->saved, layer, saved_in);
    if (rule->saved_out != S_EMPTY) {
      change(f, row, saved, op->saved, rule->saved_out);
    }
  } else if (rule->saved_out != S_EMPTY) {
    take(f, row, saved, op->saved, layer, rule->saved_out);
  }
  if (rule->work_in != S_EMPTY) {
    read_tag(f, row, work, op->work, layer, rule->work_in);
  } else if (rule->work_out != S_EMPTY) {
    take(f, row, work, op->work, layer, rule->work_out);
  }
}

bool check_dataflow(Check *c)
{
  for (int g = 0; g < c->n_groups; g++) {
    const SchedGroup *group = &c->sched->groups[g];
    Arena *arena = arena_new();
    Flow f = {.c = c, .group = g, .clocks = check_clocks(arena, c, g)};
    int n[4] = {group->att_saved, group->att_work, group->ffn_saved, group->ffn_work};
    for (int pool = 0; pool < 4; pool++) {
      f.n[pool] = n[pool];
      f.tags[pool] = arena_new_array(arena, Tag, (size_t)n[pool] + 1);
    }
    int32_t rows = c->base[c->n_groups];
    for (int32_t i = 0; i < rows; i++) {
      if (c->group[c->order[i]] == g) {
        play(&f, c->order[i]);
      }
    }
    arena_free(arena);
  }
  return c->reported == 0;
}
