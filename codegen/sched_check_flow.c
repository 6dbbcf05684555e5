/* Slots and contents. All rows are played in the order of the replay, with slots that hold a tag: which layer and
   micro-batch, and how far. Each op must find the tag its input is promised to have, written by an op that is over in
   every run (sched_check_clocks.c), and its messages among those it waits for. When a slot passes to another
   owner, every op of the old owner must be over, in every run, before the new owner's first op begins. */
#include "codegen/sched_check_int.h"

typedef enum State {
  S_EMPTY,
  S_EMBED,     /* saved: token embedding */
  S_ATT,       /* saved: residual, attention, router's choice and lists */
  S_JOINED,    /* saved: as S_ATT, with the lists of who sent sums */
  S_HEAD,      /* saved: as S_ATT, of the head */
  S_BACK,      /* saved, in rules: which of the three above it is for the backward pass */
  S_LIST,      /* saved: forwarding list */
  S_FFN,       /* saved: rows, routing, lists */
  S_PARTIAL,   /* work: partial sums of one rank */
  S_NODE_SUM,  /* work: partial sums of the node */
  S_OUT,       /* work: attention's output, on its way to the experts */
  S_AGAIN,     /* work: all that attention makes of its input, once more */
  S_X,         /* work: the next layer's input */
  S_DX,        /* work: gradient of the attention layer's input */
  S_DSUM,      /* work: gradient of the joined sum */
  S_DROWS,     /* work: gradient rows of one rank */
  S_NODE_DROWS /* work: gradient rows summed over the node */
} State;

static const char *const state_names[] = {"nothing",
                                          "the embedding",
                                          "attention's results",
                                          "attention's results with the sum's lists",
                                          "the head's results",
                                          "what the backward pass needs",
                                          "a relay's list",
                                          "the FFN's results",
                                          "partial sums",
                                          "the node's sums",
                                          "attention's output",
                                          "attention's results once more",
                                          "the next layer's input",
                                          "dx",
                                          "the sum's gradient",
                                          "gradient rows",
                                          "the node's gradient rows"};

/* Which layers a rule is for: a bit of `with` is in the layer's traits, all of `without` are not. */
typedef struct Rule {
  int what;
  unsigned with, without;
  MoeEdge reads; /* messages of the op's layer: of its chunk, or of all if the op has no chunks; see also more_of() */
  int from;      /* how the layer of the slot differs from the op's: gradients leave from the layer above */
  State saved_in, saved_out, work_in, work_out;
} Rule;

#define ANY      0, 0
#define PLAIN    0, LAYER_RELAYED
#define RELAYED  LAYER_RELAYED, 0
#define KEPT     0, LAYER_DENSE | LAYER_AGAIN
#define AGAIN    LAYER_AGAIN, 0
#define ONCE     0, LAYER_AGAIN
#define DENSE    LAYER_DENSE, 0
#define JOINED   LAYER_JOINED, 0
#define UNJOINED 0, LAYER_JOINED
#define NOTHING  MOE_EDGE_NONE, 0

/* What an op reads and writes; of ATT_FWD and HEAD the input apart, see input_of(). */
static const Rule rules[] = {
    {MOE_OP_EMBED_FWD, ANY, NOTHING, S_EMPTY, S_EMBED, S_EMPTY, S_EMPTY},
    {MOE_OP_ATT_FWD, KEPT, NOTHING, S_EMPTY, S_ATT, S_EMPTY, S_EMPTY},
    {MOE_OP_ATT_FWD, AGAIN, NOTHING, S_EMPTY, S_ATT, S_EMPTY, S_OUT},
    {MOE_OP_ATT_FWD, DENSE, NOTHING, S_EMPTY, S_ATT, S_EMPTY, S_X},
    {WHAT_SEND + MOE_EDGE_DISPATCH, ONCE, NOTHING, S_ATT, S_EMPTY, S_EMPTY, S_EMPTY},
    {WHAT_SEND + MOE_EDGE_DISPATCH, AGAIN, NOTHING, S_ATT, S_EMPTY, S_OUT, S_EMPTY},
    {MOE_OP_RELAY, ANY, MOE_EDGE_DISPATCH, 0, S_EMPTY, S_LIST, S_EMPTY, S_EMPTY},
    {WHAT_SEND + MOE_EDGE_FORWARD, ANY, MOE_EDGE_DISPATCH, 0, S_LIST, S_EMPTY, S_EMPTY, S_EMPTY},
    {MOE_OP_FFN_FWD, PLAIN, MOE_EDGE_DISPATCH, 0, S_EMPTY, S_FFN, S_EMPTY, S_PARTIAL},
    {MOE_OP_FFN_FWD, RELAYED, MOE_EDGE_FORWARD, 0, S_LIST, S_FFN, S_EMPTY, S_PARTIAL},
    {WHAT_SEND + MOE_EDGE_GATHER, ANY, NOTHING, S_FFN, S_EMPTY, S_PARTIAL, S_EMPTY},
    {WHAT_REDUCE + MOE_EDGE_GATHER, ANY, MOE_EDGE_GATHER, 0, S_FFN, S_EMPTY, S_EMPTY, S_NODE_SUM},
    {WHAT_SEND + MOE_EDGE_COMBINE, PLAIN, NOTHING, S_FFN, S_EMPTY, S_PARTIAL, S_EMPTY},
    {WHAT_SEND + MOE_EDGE_COMBINE, RELAYED, NOTHING, S_FFN, S_EMPTY, S_NODE_SUM, S_EMPTY},
    {MOE_OP_JOIN_FWD, ANY, MOE_EDGE_COMBINE, 0, S_ATT, S_JOINED, S_EMPTY, S_X},
    {WHAT_SEND + MOE_EDGE_PIPE, JOINED, NOTHING, S_JOINED, S_EMPTY, S_X, S_EMPTY},
    {WHAT_SEND + MOE_EDGE_PIPE, DENSE, NOTHING, S_ATT, S_EMPTY, S_X, S_EMPTY},
    {MOE_OP_HEAD, ANY, NOTHING, S_EMPTY, S_HEAD, S_EMPTY, S_DX},
    {MOE_OP_ATT_AGAIN, ANY, NOTHING, S_BACK, S_EMPTY, S_EMPTY, S_AGAIN},
    {WHAT_SEND + MOE_EDGE_DISPATCH_AGAIN, ANY, NOTHING, S_BACK, S_EMPTY, S_AGAIN, S_EMPTY},
    {WHAT_SEND + MOE_EDGE_FORWARD_AGAIN, ANY, MOE_EDGE_DISPATCH_AGAIN, 0, S_FFN, S_EMPTY, S_EMPTY, S_EMPTY},
    {WHAT_SEND + MOE_EDGE_PIPE_B, ANY, MOE_EDGE_NONE, 1, S_BACK, S_EMPTY, S_DX, S_EMPTY},
    {MOE_OP_JOIN_DGRAD, ANY, MOE_EDGE_PIPE_B, 0, S_JOINED, S_EMPTY, S_EMPTY, S_DSUM},
    {WHAT_SEND + MOE_EDGE_COMBINE_B, JOINED, NOTHING, S_JOINED, S_EMPTY, S_DSUM, S_EMPTY},
    {WHAT_SEND + MOE_EDGE_COMBINE_B, UNJOINED, MOE_EDGE_NONE, 1, S_BACK, S_EMPTY, S_DX, S_EMPTY},
    {WHAT_SEND + MOE_EDGE_GATHER_B, ANY, MOE_EDGE_COMBINE_B, 0, S_FFN, S_EMPTY, S_EMPTY, S_EMPTY},
    {MOE_OP_FFN_DGRAD, PLAIN, MOE_EDGE_COMBINE_B, 0, S_FFN, S_EMPTY, S_EMPTY, S_DROWS},
    {MOE_OP_FFN_DGRAD, RELAYED, MOE_EDGE_GATHER_B, 0, S_FFN, S_EMPTY, S_EMPTY, S_DROWS},
    {MOE_OP_FFN_WGRAD, ANY, NOTHING, S_FFN, S_EMPTY, S_DROWS, S_EMPTY},
    {WHAT_SEND + MOE_EDGE_FORWARD_B, ANY, NOTHING, S_FFN, S_EMPTY, S_DROWS, S_EMPTY},
    {WHAT_REDUCE + MOE_EDGE_FORWARD_B, ANY, MOE_EDGE_FORWARD_B, 0, S_FFN, S_EMPTY, S_EMPTY, S_NODE_DROWS},
    {WHAT_SEND + MOE_EDGE_DISPATCH_B, PLAIN, NOTHING, S_FFN, S_EMPTY, S_DROWS, S_EMPTY},
    {WHAT_SEND + MOE_EDGE_DISPATCH_B, RELAYED, NOTHING, S_FFN, S_EMPTY, S_NODE_DROWS, S_EMPTY},
    {MOE_OP_ATT_DGRAD, KEPT, MOE_EDGE_DISPATCH_B, 0, S_BACK, S_EMPTY, S_EMPTY, S_DX},
    {MOE_OP_ATT_DGRAD, AGAIN, MOE_EDGE_DISPATCH_B, 0, S_BACK, S_EMPTY, S_AGAIN, S_DX},
    {MOE_OP_ATT_DGRAD, DENSE, MOE_EDGE_PIPE_B, 0, S_BACK, S_EMPTY, S_EMPTY, S_DX},
    {MOE_OP_ATT_WGRAD, ANY, NOTHING, S_BACK, S_EMPTY, S_DX, S_EMPTY},
    {MOE_OP_EMBED_WGRAD, ANY, NOTHING, S_BACK, S_EMPTY, S_DX, S_EMPTY},
};

/* An attention slot has every chunk's sends among its users: 6 kinds of message of up to MOE_MAX_WAITS chunks. */
enum { MAX_USERS = 6 * MOE_MAX_WAITS + 9 };

typedef struct Tag {
  int layer, mb, chunk;
  State state;
  int32_t writer;
  int32_t users[MAX_USERS]; /* rows of this owner */
  int n_users;
} Tag;

typedef struct Flow {
  Check *c;
  const CheckClocks *clocks;
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
  case MOE_OP_JOIN_FWD:
  case MOE_OP_HEAD:
  case MOE_OP_ATT_AGAIN:
  case MOE_OP_JOIN_DGRAD:
  case MOE_OP_ATT_DGRAD:
  case MOE_OP_ATT_WGRAD:
  case MOE_OP_EMBED_WGRAD:
    return true;
  default:
    return op->edge == MOE_EDGE_DISPATCH || op->edge == MOE_EDGE_DISPATCH_AGAIN || op->edge == MOE_EDGE_COMBINE_B ||
           op->edge == MOE_EDGE_PIPE || op->edge == MOE_EDGE_PIPE_B;
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
  if (tag->n_users < MAX_USERS) {
    tag->users[tag->n_users++] = row;
  } else {
    check_fail(f->c, row, "more than %d ops use a slot of one owner", MAX_USERS);
  }
}

/* Slots of the experts belong to one chunk. */
static int slot_chunk(const MoeOp *op, int pool)
{
  return pool >= 2 ? op->chunk : 0;
}

/* What the attention slot of a layer holds once its forward is over. */
static State final_state(const Check *c, int layer, int mb)
{
  return layer == c->n_layers ? S_HEAD : check_traits(c, layer, mb) & LAYER_JOINED ? S_JOINED : S_ATT;
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
  state = state == S_BACK ? final_state(c, layer, op->mb) : state;
  int chunk = slot_chunk(op, pool);
  if (tag->state != state || tag->layer != layer || tag->mb != op->mb || tag->chunk != chunk) {
    check_fail(c, row,
               "%s slot %d should hold %s of layer %d micro-batch %d chunk %d, but holds %s of layer %d micro-batch "
               "%d chunk %d",
               pool_names[pool], slot, state_names[state], layer, op->mb, chunk, state_names[tag->state], tag->layer,
               tag->mb, tag->chunk);
    return;
  }
  if (!check_before(f->clocks, tag->writer, row)) {
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
  const MoeOp *op = check_op(c, row);
  Tag *tag = slot_at(f, row, pool, slot);
  if (!tag) {
    return;
  }
  for (int i = 0; i < tag->n_users; i++) {
    if (!check_before(f->clocks, tag->users[i], row)) {
      char name[160];
      check_fail(c, row, "takes %s slot %d while %s may still use it", pool_names[pool], slot,
                 check_name(c, tag->users[i], name));
    }
  }
  tag->layer = layer;
  tag->mb = op->mb;
  tag->chunk = slot_chunk(op, pool);
  tag->state = state;
  tag->writer = tag->users[0] = row;
  tag->n_users = 1;
}

/* One RECV that the op reads: waited for, and given back by this op or a later one. */
static void read_recv(Flow *f, int32_t row, int32_t recv)
{
  Check *c = f->c;
  const MoeOp *op = check_op(c, row);
  char name[160];
  bool waits = false;
  for (int k = 0; k < MOE_MAX_WAITS; k++) {
    waits |= op->wait[k] >= 0 && c->base[f->group] + op->wait[k] == recv;
  }
  if (!waits) {
    check_fail(c, row, "does not wait for %s, which it reads", check_name(c, recv, name));
  } else if (c->releaser[recv] != row && !check_before(f->clocks, row, c->releaser[recv])) {
    check_fail(c, row, "may still read messages when %s gives them back", check_name(c, c->releaser[recv], name));
  }
}

/* The op reads the messages of an edge, or of two, and no others: of its own chunk, or of all. */
static void read_messages(Flow *f, int32_t row, MoeEdge edge, MoeEdge more, int layer)
{
  Check *c = f->c;
  const MoeOp *op = check_op(c, row);
  int what = WHAT_RECV + (int)edge, first = op->chunk, n = 1;
  if (check_chunked(what) && !check_chunked(check_what(op))) {
    first = 0;
    n = c->n_chunks;
  }
  int32_t also = more == MOE_EDGE_NONE ? -1 : check_find(c, WHAT_RECV + (int)more, layer, op->mb, op->chunk);
  if (also >= 0) {
    read_recv(f, row, also);
  }
  for (int k = 0; k < MOE_MAX_WAITS; k++) {
    int32_t wait = op->wait[k] < 0 ? -1 : c->base[f->group] + op->wait[k];
    bool known = wait < 0 || wait == also || check_op(c, wait)->kind != MOE_OP_RECV;
    for (int chunk = first; !known && chunk < first + n; chunk++) {
      known = wait == check_find(c, what, layer, op->mb, chunk);
    }
    if (!known) {
      char name[160];
      check_fail(c, row, "reads %s, not %s", check_name(c, wait, name), moe_edge_name(edge));
      return;
    }
  }
  for (int chunk = first; chunk < first + n; chunk++) {
    read_recv(f, row, check_find(c, what, layer, op->mb, chunk));
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
  int what = check_what(op);
  unsigned traits = check_traits(c, op->layer, op->mb);
  for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
    const Rule *rule = &rules[i];
    if (rule->what == what && (traits & rule->with) == rule->with && !(traits & rule->without)) {
      return rule;
    }
  }
  return NULL;
}

/* Input of attention or head: the embedding in its own slot, or what the layer below sent. */
static MoeEdge input_of(const Check *c, const MoeOp *op)
{
  return op->layer == 0                                         ? MOE_EDGE_NONE
         : check_traits(c, op->layer - 1, op->mb) & LAYER_PIPED ? MOE_EDGE_PIPE
                                                                : MOE_EDGE_COMBINE;
}

/* The experts of a layer that is run again read its rows beside their gradients. */
static MoeEdge more_of(const Check *c, const MoeOp *op)
{
  unsigned traits = check_traits(c, op->layer, op->mb);
  return op->kind != MOE_OP_FFN_DGRAD || !(traits & LAYER_AGAIN) ? MOE_EDGE_NONE
         : traits & LAYER_RELAYED                                ? MOE_EDGE_FORWARD_AGAIN
                                                                 : MOE_EDGE_DISPATCH_AGAIN;
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
  int layer = op->layer + rule->from, saved = of_attention(op) ? 0 : 2, work = saved + 1, below = 0;
  State saved_in = rule->saved_in;
  MoeEdge reads = rule->reads;
  if (op->kind == MOE_OP_ATT_FWD || op->kind == MOE_OP_HEAD) {
    reads = input_of(c, op);
    below = 1;
    saved_in = reads == MOE_EDGE_NONE ? S_EMBED : S_EMPTY;
  }
  if (reads != MOE_EDGE_NONE) {
    read_messages(f, row, reads, more_of(c, op), op->layer - below);
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
    if (rule->work_out != S_EMPTY) {
      change(f, row, work, op->work, rule->work_out);
    }
  } else if (rule->work_out != S_EMPTY) {
    take(f, row, work, op->work, layer, rule->work_out);
  }
}

static void play_group(Check *c, const CheckClocks *clocks, int g, Arena *arena)
{
  const SchedGroup *group = &c->sched->groups[g];
  Flow f = {.c = c, .group = g, .clocks = clocks};
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
}

bool check_dataflow(Check *c)
{
  CheckSteps *steps = check_steps(c->arena, c);
  for (int first = 0, end; first < c->n_groups; first = end) {
    Arena *arena = arena_new();
    const CheckClocks *clocks = check_clocks(arena, c, steps, first, &end);
    for (int g = first; g < end; g++) {
      play_group(c, clocks, g, arena);
    }
    arena_free(arena);
  }
  check_steps_free(steps);
  return c->reported == 0;
}
