/* The checker's first question: is every op there once, where the plan wants it? */
#include "codegen/sched_check_int.h"

#include <string.h>

/* Exists once per chunk: the experts' ops and their messages. */
bool check_chunked(int what)
{
  switch (what) {
  case MOE_OP_FFN_FWD:
  case MOE_OP_FFN_DGRAD:
  case MOE_OP_FFN_WGRAD:
  case WHAT_SEND + MOE_EDGE_DISPATCH:
  case WHAT_SEND + MOE_EDGE_DISPATCH_AGAIN:
  case WHAT_SEND + MOE_EDGE_COMBINE:
  case WHAT_SEND + MOE_EDGE_COMBINE_B:
  case WHAT_SEND + MOE_EDGE_DISPATCH_B:
  case WHAT_RECV + MOE_EDGE_DISPATCH:
  case WHAT_RECV + MOE_EDGE_DISPATCH_AGAIN:
  case WHAT_RECV + MOE_EDGE_COMBINE:
  case WHAT_RECV + MOE_EDGE_COMBINE_B:
  case WHAT_RECV + MOE_EDGE_DISPATCH_B:
    return true;
  default:
    return false;
  }
}

int check_what(const MoeOp *op)
{
  if (op->kind == MOE_OP_SEND || op->kind == MOE_OP_RECV) {
    return (op->kind == MOE_OP_SEND ? WHAT_SEND : WHAT_RECV) + op->edge;
  }
  return op->kind == MOE_OP_NODE_REDUCE ? WHAT_REDUCE + op->edge : op->kind;
}

static int32_t *at(const Check *c, int what, int layer, int mb, int chunk)
{
  size_t chunks = check_chunked(what) ? (size_t)c->n_chunks : 1;
  return &c->row_of[c->first_of[what] + ((size_t)layer * (size_t)c->n_mbs + (size_t)mb) * chunks + (size_t)chunk];
}

int32_t check_find(const Check *c, int what, int layer, int mb, int chunk)
{
  return *at(c, what, layer, mb, chunk);
}

/* ---- layers ---- */

/* Some node holds two ranks of the layer's FFN group, and tokens go once per node. */
static bool relayed_layer(const Plan *plan, int ffn)
{
  const PlanGroup *group = &plan->groups[ffn];
  for (int q = 0; plan->dedup == DEDUP_NODE && q < plan->replicas; q++) {
    for (int r = 0; r + 1 < group->n_ranks; r++) {
      int rank = q * plan->replica_ranks + group->first_rank + r;
      if (plan_node_of(plan, rank) == plan_node_of(plan, rank + 1)) {
        return true;
      }
    }
  }
  return false;
}

static bool maps_ok(Check *c)
{
  const Plan *plan = c->plan;
  for (int way = 0; way < c->n_ways; way++) {
    for (int layer = 0; layer <= c->n_layers; layer++) {
      bool head = layer == c->n_layers;
      const int groups[] = {plan_att(c->spec, plan, way, layer), head ? 0 : plan_ffn(c->spec, plan, way, layer),
                            head ? 0 : plan_combine(c->spec, plan, way, layer)};
      for (int i = 0; i < 3; i++) {
        if (groups[i] < 0 || groups[i] >= c->n_groups) {
          check_fail_all(c, "layer %d of direction %d is on group %d of %d", layer, way, groups[i], c->n_groups);
          return false;
        }
      }
      int first = head ? 0 : plan_ffn(c->spec, plan, 0, layer);
      if (!head && plan->groups[groups[1]].n_ranks != plan->groups[first].n_ranks) {
        check_fail_all(c, "layer %d: %d ranks share its experts in direction %d, %d in direction 0", layer,
                       plan->groups[groups[1]].n_ranks, way, plan->groups[first].n_ranks);
        return false;
      }
    }
  }
  return true;
}

void check_layers(Check *c)
{
  if (c->n_ways < 1 || c->n_ways > CHECK_MAX_HOLDERS / 2 || c->n_chunks < 1 || c->n_chunks > MOE_MAX_WAITS) {
    check_fail_all(c, "%d directions and %d chunks: 1 or 2, and 1 to %d", c->n_ways, c->n_chunks, MOE_MAX_WAITS);
    return;
  }
  if (c->plan->mb_seqs < 1 || c->plan->ranks_per_node < 1) {
    check_fail_all(c, "%d sequences per micro-batch and %d ranks per node", c->plan->mb_seqs, c->plan->ranks_per_node);
    return;
  }
  if (!maps_ok(c)) {
    return;
  }
  size_t layers = (size_t)c->n_layers + 1;
  c->traits = arena_new_array(c->arena, uint8_t, (size_t)c->n_ways * layers);
  for (int way = 0; way < c->n_ways; way++) {
    for (int layer = 0; layer < c->n_layers; layer++) {
      unsigned traits = spec_layer_is_dense(c->spec, layer) ? LAYER_DENSE : 0;
      int next = plan_att(c->spec, c->plan, way, layer + 1);
      if (traits == 0 && relayed_layer(c->plan, plan_ffn(c->spec, c->plan, way, layer))) {
        traits |= LAYER_RELAYED;
      }
      if (traits & LAYER_DENSE) {
        traits |= LAYER_PIPED;
      } else if (plan_combine(c->spec, c->plan, way, layer) != next) {
        traits |= LAYER_JOINED | LAYER_PIPED;
      }
      if (!(traits & LAYER_DENSE) && c->plan->recompute == RECOMPUTE_FULL) {
        traits |= LAYER_AGAIN;
      }
      if ((traits & LAYER_RELAYED) && c->n_chunks > 1) {
        check_fail_all(c, "layer %d has relays, which cannot work in %d chunks", layer, c->n_chunks);
      }
      c->traits[(size_t)way * layers + (size_t)layer] = (uint8_t)traits;
    }
  }
}

/* ---- where the plan wants a row ---- */

typedef struct Place {
  int group, peer; /* -1: not in this layer */
} Place;

static const Place nowhere = {-1, -1};

/* Groups of an edge, from the forward message's end: PIPE leaves the group that has the sum. */
static Place edge_ends(const Check *c, MoeEdge edge, int way, int layer, unsigned traits)
{
  int att = plan_att(c->spec, c->plan, way, layer), ffn = plan_ffn(c->spec, c->plan, way, layer);
  int next = plan_att(c->spec, c->plan, way, layer + 1), sum = plan_combine(c->spec, c->plan, way, layer);
  bool moe = !(traits & LAYER_DENSE);
  switch (edge) {
  case MOE_EDGE_DISPATCH:
  case MOE_EDGE_DISPATCH_B:
    return moe ? (Place){att, ffn} : nowhere;
  case MOE_EDGE_DISPATCH_AGAIN:
    return traits & LAYER_AGAIN ? (Place){att, ffn} : nowhere;
  case MOE_EDGE_COMBINE:
  case MOE_EDGE_COMBINE_B:
    return moe ? (Place){ffn, sum} : nowhere;
  case MOE_EDGE_PIPE:
  case MOE_EDGE_PIPE_B:
    return traits & LAYER_PIPED ? (Place){moe ? sum : att, next} : nowhere;
  case MOE_EDGE_FORWARD:
  case MOE_EDGE_GATHER:
  case MOE_EDGE_GATHER_B:
  case MOE_EDGE_FORWARD_B:
    return traits & LAYER_RELAYED ? (Place){ffn, ffn} : nowhere;
  case MOE_EDGE_FORWARD_AGAIN:
    return (traits & LAYER_RELAYED) && (traits & LAYER_AGAIN) ? (Place){ffn, ffn} : nowhere;
  default:
    return nowhere;
  }
}

static Place message_place(const Check *c, MoeEdge edge, int way, int layer, unsigned traits, bool send)
{
  if (layer >= c->n_layers) {
    return nowhere;
  }
  Place ends = edge_ends(c, edge, way, layer, traits);
  bool back = edge == MOE_EDGE_DISPATCH_B || edge == MOE_EDGE_COMBINE_B || edge == MOE_EDGE_PIPE_B;
  return back == send ? (Place){ends.peer, ends.group} : ends;
}

static Place place_of(const Check *c, int what, int way, int layer)
{
  unsigned traits = c->traits[way * (c->n_layers + 1) + layer];
  bool inner = layer < c->n_layers, moe = inner && !(traits & LAYER_DENSE);
  Place att = {plan_att(c->spec, c->plan, way, layer), -1}, ffn = nowhere, sum = nowhere;
  if (moe) {
    ffn.group = plan_ffn(c->spec, c->plan, way, layer);
    sum.group = plan_combine(c->spec, c->plan, way, layer);
  }
  switch (what) {
  case MOE_OP_EMBED_FWD:
  case MOE_OP_EMBED_WGRAD:
    return layer == 0 ? att : nowhere;
  case MOE_OP_ATT_FWD:
  case MOE_OP_ATT_DGRAD:
  case MOE_OP_ATT_WGRAD:
    return inner ? att : nowhere;
  case MOE_OP_ATT_AGAIN:
    return traits & LAYER_AGAIN ? att : nowhere;
  case MOE_OP_FFN_FWD:
  case MOE_OP_FFN_DGRAD:
  case MOE_OP_FFN_WGRAD:
    return ffn;
  case MOE_OP_JOIN_FWD:
  case MOE_OP_JOIN_DGRAD:
    return traits & LAYER_JOINED ? sum : nowhere;
  case MOE_OP_HEAD:
    return inner ? nowhere : att;
  case MOE_OP_RELAY:
  case WHAT_REDUCE + MOE_EDGE_GATHER:
  case WHAT_REDUCE + MOE_EDGE_FORWARD_B:
    return traits & LAYER_RELAYED ? ffn : nowhere;
  default:
    break;
  }
  if (what >= WHAT_SEND && what < WHAT_REDUCE) {
    bool send = what < WHAT_RECV;
    return message_place(c, (MoeEdge)(what - (send ? WHAT_SEND : WHAT_RECV)), way, layer, traits, send);
  }
  return nowhere;
}

static const char *what_name(int what)
{
  return what < WHAT_SEND     ? moe_op_name((MoeOpKind)what)
         : what < WHAT_REDUCE ? moe_edge_name((MoeEdge)((what - WHAT_SEND) % MOE_EDGE_COUNT))
                              : "NODE_REDUCE";
}

/* ---- rows ---- */

static MoeStream stream_of(MoeOpKind kind)
{
  static const MoeStream streams[] = {
#define MOE_OP(kind, letters, stream, doc) MOE_STREAM_##stream,
#include "runtime/ops.def"
#undef MOE_OP
  };
  return streams[kind];
}

static bool ids_ok(Check *c, int32_t row)
{
  const MoeOp *op = check_op(c, row);
  const SchedGroup *group = &c->sched->groups[c->group[row]];
  int32_t me = row - c->base[c->group[row]];
  for (int k = 0; k < MOE_MAX_WAITS; k++) {
    int32_t wait = op->wait[k], release = op->release[k];
    if (wait < -1 || wait >= group->n_ops || wait == me) {
      check_fail(c, row, "waits for op %d of %d", wait, group->n_ops);
      return false;
    }
    if (release < -1 || release >= group->n_ops || (release >= 0 && group->ops[release].kind != MOE_OP_RECV)) {
      check_fail(c, row, "releases op %d, which is not a RECV of its table (%d ops)", release, group->n_ops);
      return false;
    }
  }
  return true;
}

static bool fields_ok(Check *c, int32_t row)
{
  const MoeOp *op = check_op(c, row);
  const SchedGroup *group = &c->sched->groups[c->group[row]];
  int32_t me = row - c->base[c->group[row]];
  if (op->kind >= MOE_OP_COUNT || op->edge > MOE_EDGE_NONE || op->bucket > MOE_BUCKET_NONE || op->layer > c->n_layers ||
      op->mb >= c->n_mbs || op->peer >= c->n_groups || (check_is_message(op) && op->edge == MOE_EDGE_NONE) ||
      (op->kind == MOE_OP_NODE_REDUCE && op->edge == MOE_EDGE_NONE) || (op->mb >= 0 && op->layer < 0)) {
    check_fail(c, row, "kind %d, edge %d, bucket %d, layer %d, micro-batch %d or peer %d out of range", op->kind,
               op->edge, op->bucket, op->layer, op->mb, op->peer);
    return false;
  }
  int chunks = op->mb >= 0 && check_chunked(check_what(op)) ? c->n_chunks : 1;
  if (op->chunk < 0 || op->chunk >= chunks || op->pad != 0) {
    check_fail(c, row, "chunk %d of %d, or %d where 0 must be", op->chunk, chunks, op->pad);
    return false;
  }
  if (op->stream != stream_of(op->kind) && !(check_is_compute(op) && stream_of(op->kind) <= MOE_STREAM_BWD)) {
    check_fail(c, row, "stream %d, but its ops run on stream %d", op->stream, stream_of(op->kind));
  }
  if (!ids_ok(c, row)) {
    return false;
  }
  if (me > 0 && group->start_ns[me] < group->start_ns[me - 1]) {
    check_fail(c, row, "starts at %lld ns, before the row above it (%lld ns)", (long long)group->start_ns[me],
               (long long)group->start_ns[me - 1]);
  }
  if (group->end_ns[me] < group->start_ns[me]) {
    check_fail(c, row, "ends at %lld ns, before its start at %lld ns", (long long)group->end_ns[me],
               (long long)group->start_ns[me]);
  }
  return true;
}

static void place_row(Check *c, int32_t row)
{
  const MoeOp *op = check_op(c, row);
  int what = check_what(op);
  Place place = place_of(c, what, plan_way(c->plan, op->mb), op->layer);
  if (place.group < 0) {
    check_fail(c, row, "no such op in this layer");
  } else if (place.group != c->group[row]) {
    check_fail(c, row, "the plan wants it in group %d, not %d", place.group, c->group[row]);
  } else if (place.peer != op->peer) {
    check_fail(c, row, "its peer is group %d, not %d", place.peer, op->peer);
  }
  int32_t *known = at(c, what, op->layer, op->mb, op->chunk);
  if (*known >= 0) {
    check_fail(c, row, "already there as op %d", *known - c->base[c->group[*known]]);
  }
  *known = row;
}

/* Rows of one kind that the plan wants and that are not there. */
static void want_rows(Check *c, int what)
{
  const char *hop = what >= WHAT_RECV && what < WHAT_REDUCE   ? "RECV "
                    : what >= WHAT_SEND && what < WHAT_REDUCE ? "SEND "
                                                              : "";
  int chunks = check_chunked(what) ? c->n_chunks : 1;
  for (int layer = 0; layer <= c->n_layers; layer++) {
    bool wanted[CHECK_MAX_HOLDERS];
    for (int way = 0; way < c->n_ways; way++) {
      wanted[way] = place_of(c, what, way, layer).group >= 0;
    }
    for (int mb = 0; mb < c->n_mbs; mb++) {
      for (int chunk = 0; wanted[plan_way(c->plan, mb)] && chunk < chunks; chunk++) {
        if (check_find(c, what, layer, mb, chunk) < 0) {
          check_fail_all(c, "layer %d micro-batch %d chunk %d has no %s%s", layer, mb, chunk, hop, what_name(what));
        }
      }
    }
  }
}

bool check_rows(Check *c)
{
  int32_t rows = c->base[c->n_groups];
  size_t each = ((size_t)c->n_layers + 1) * (size_t)c->n_mbs;
  for (int what = 0; what < WHAT_COUNT; what++) {
    c->first_of[what + 1] = c->first_of[what] + each * (check_chunked(what) ? (size_t)c->n_chunks : 1);
  }
  c->row_of = arena_new_array(c->arena, int32_t, c->first_of[WHAT_COUNT]);
  memset(c->row_of, -1, c->first_of[WHAT_COUNT] * sizeof *c->row_of);
  bool fields = true;
  for (int32_t row = 0; row < rows; row++) {
    fields &= fields_ok(c, row);
  }
  for (int32_t row = 0; fields && row < rows; row++) {
    if (check_op(c, row)->mb >= 0) { /* the others are the tail's */
      place_row(c, row);
    }
  }
  for (int what = 0; fields && what < WHAT_COUNT; what++) {
    want_rows(c, what);
  }
  return fields && c->reported == 0;
}
