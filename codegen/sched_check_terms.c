/* Which terms arrive where, by ranks. A term is (token, expert), or a token's residual. sched_check_flow.c has shown
   that each (layer, micro-batch, chunk) runs one chain of ops whose messages hold what the chain promises. Here the
   groups of that chain are read off its rows, forward and backward apart, and terms are followed along it by the layout
   rules of each hop: every term must reach the rank that holds its sequence in the next attention group once, and its
   gradient must come back once to the attention rank that sent the token, along the lists that the forward left.

   Senders address experts by moe_part_of(), FFN ranks compute the experts of moe_part_begin() and moe_part_size(), and
   a sequence is wherever a rank's part says so: the rules are read from both ends, so a gap or an overlap between them
   shows. A relay's share of the tokens is a symbol: every rank of the owner's node relays some of them. A residual
   travels like a term of its home, and any rank may be home.

   The hops of a term look at its sequence or at its expert, never at both. So all sequences are followed with one
   expert, and all experts and homes with one sequence, instead of all pairs. Layers with the same groups, and replicas
   that lie alike in their nodes, have the same paths and are done once. */
#include "codegen/sched_check_int.h"

#include "runtime/moe_layout.h"

/* Groups of a chain: forward att -> ffn -> sum -> next, backward next -> sum -> ffn -> att. ffn: -1 in a dense layer;
   sum: where the terms of a token are added up, which is `next` itself unless a PIPE follows. */
typedef struct Path {
  int att, ffn, sum, next;
  int back_next, back_sum, back_ffn, back_att;
  bool piped, relayed;
} Path;

/* Who holds each of n things by the holders' own rule, if each is held once. */
typedef struct Map {
  int64_t n;
  int32_t *who;
} Map;

typedef struct Terms {
  Check *c;
  Arena *arena;
  int layer;
  Path path;
  int n;               /* FFN ranks */
  Map att, sum, next;  /* sequences */
  Map experts;         /* on the FFN ranks */
  int32_t *node_begin; /* [n] first of the FFN ranks that may relay for this one: of its node, or itself */
  int32_t *node_end;   /* [n] */
  int32_t *sent_by;    /* [n] attention rank whose row this rank got, or -1 */
  int32_t *done_by;    /* [n] rank that computed the term for this one, or -1 */
  int32_t *listed_at;  /* [n] rank that got the sum and lists this one as its sender, or -1 */
  int32_t *arrives;    /* [n] sums of this rank that reached the rank that reads them */
  int32_t *returns;    /* [n] gradients that came back through this rank */
} Terms;

/* ---- the chain, by its rows ---- */

static int group_at(const Check *c, int what, int layer, int mb, int chunk)
{
  return c->group[check_find(c, what, layer, mb, chunk)];
}

/* Where a hop that starts at `from` ends: the group that receives it, if its ends are where they should be. */
static int hop(Check *c, MoeEdge edge, int layer, int mb, int chunk, int from)
{
  int32_t send = check_find(c, WHAT_SEND + (int)edge, layer, mb, chunk);
  int32_t recv = check_find(c, WHAT_RECV + (int)edge, layer, mb, chunk);
  const MoeOp *op = check_op(c, send);
  if (c->group[send] != from || c->group[recv] != op->peer) {
    check_fail(c, send, "goes from group %d to %d, but its data is in group %d and it is received in group %d",
               c->group[send], op->peer, from, c->group[recv]);
  }
  return op->peer;
}

static void arrive(Check *c, int what, int layer, int mb, int chunk, int at)
{
  int32_t row = check_find(c, what, layer, mb, chunk);
  if (c->group[row] != at) {
    check_fail(c, row, "runs in group %d, but its data is in group %d", c->group[row], at);
  }
}

static Path path_of(Check *c, int layer, int mb, int chunk)
{
  unsigned traits = check_traits(c, layer, mb);
  bool dense = traits & LAYER_DENSE, head = layer + 1 == c->n_layers;
  Path p = {.piped = traits & LAYER_PIPED, .relayed = traits & LAYER_RELAYED};
  p.sum = p.att = group_at(c, MOE_OP_ATT_FWD, layer, mb, 0);
  p.ffn = p.back_ffn = -1;
  if (!dense) {
    p.ffn = hop(c, MOE_EDGE_DISPATCH, layer, mb, chunk, p.att);
    arrive(c, MOE_OP_FFN_FWD, layer, mb, chunk, p.ffn);
    p.sum = hop(c, MOE_EDGE_COMBINE, layer, mb, chunk, p.ffn);
  }
  if (traits & LAYER_JOINED) {
    arrive(c, MOE_OP_JOIN_FWD, layer, mb, 0, p.sum);
  }
  p.next = p.piped ? hop(c, MOE_EDGE_PIPE, layer, mb, 0, p.sum) : p.sum;
  arrive(c, head ? MOE_OP_HEAD : MOE_OP_ATT_FWD, layer + 1, mb, 0, p.next);

  p.back_next = group_at(c, head ? MOE_OP_HEAD : MOE_OP_ATT_DGRAD, layer + 1, mb, 0);
  p.back_sum = p.piped ? hop(c, MOE_EDGE_PIPE_B, layer, mb, 0, p.back_next) : p.back_next;
  p.back_att = p.back_sum;
  if (traits & LAYER_JOINED) {
    arrive(c, MOE_OP_JOIN_DGRAD, layer, mb, 0, p.back_sum);
  }
  if (!dense) {
    p.back_ffn = hop(c, MOE_EDGE_COMBINE_B, layer, mb, chunk, p.back_sum);
    arrive(c, MOE_OP_FFN_DGRAD, layer, mb, chunk, p.back_ffn);
    if (traits & LAYER_AGAIN) { /* its rows follow the lists of the first */
      arrive(c, MOE_OP_ATT_AGAIN, layer, mb, 0, p.att);
      int again = hop(c, MOE_EDGE_DISPATCH_AGAIN, layer, mb, chunk, p.att);
      if (again != p.ffn) {
        check_fail_all(c, "layer %d micro-batch %d: dispatched to group %d, the second time to group %d", layer, mb,
                       p.ffn, again);
      }
    }
    p.back_att = hop(c, MOE_EDGE_DISPATCH_B, layer, mb, chunk, p.back_ffn);
  }
  arrive(c, MOE_OP_ATT_DGRAD, layer, mb, 0, p.back_att);
  if (p.att != p.back_att || p.ffn != p.back_ffn || p.sum != p.back_sum || p.next != p.back_next) {
    check_fail_all(c,
                   "layer %d micro-batch %d: gradients go through groups %d %d %d %d, whose lists are in %d %d %d %d",
                   layer, mb, p.back_next, p.back_sum, p.back_ffn, p.back_att, p.next, p.sum, p.ffn, p.att);
  }
  return p;
}

static bool same_path(const Path *a, const Path *b)
{
  return a->att == b->att && a->ffn == b->ffn && a->sum == b->sum && a->next == b->next && a->piped == b->piped &&
         a->relayed == b->relayed;
}

/* ---- who holds what ---- */

/* Parts of `n` things by the rule of their `ranks` holders; false if they leave something out or hold it twice. */
static bool map_parts(Terms *t, Map *map, int64_t n, int ranks, const char *what)
{
  map->n = n;
  map->who = arena_new_array(t->arena, int32_t, (size_t)n + 1);
  for (int64_t i = 0; i < n; i++) {
    map->who[i] = -1;
  }
  for (int rank = 0; rank < ranks; rank++) {
    int64_t begin = moe_part_begin(n, ranks, rank), end = begin + moe_part_size(n, ranks, rank);
    for (int64_t i = begin; i < end; i++) {
      if (i < 0 || i >= n || map->who[i] >= 0) {
        check_fail_all(t->c, "layer %d: %s %lld is held by rank %d of %d, and not by it alone", t->layer, what,
                       (long long)i, rank, ranks);
        return false;
      }
      map->who[i] = rank;
    }
  }
  for (int64_t i = 0; i < n; i++) {
    if (map->who[i] < 0) {
      check_fail_all(t->c, "layer %d: no rank of %d holds %s %lld", t->layer, ranks, what, (long long)i);
      return false;
    }
  }
  return true;
}

/* Every position is in one chunk. */
static void check_chunks(Check *c)
{
  int64_t seq = c->plan->shape->seq, at = 0;
  for (int chunk = 0; chunk < c->n_chunks; chunk++) {
    int64_t begin = moe_part_begin(seq, c->n_chunks, chunk);
    if (begin != at) {
      check_fail_all(c, "chunk %d of %d begins at position %lld, not %lld", chunk, c->n_chunks, (long long)begin,
                     (long long)at);
    }
    at = begin + moe_part_size(seq, c->n_chunks, chunk);
  }
  if (at != seq) {
    check_fail_all(c, "%d chunks end at position %lld of %lld", c->n_chunks, (long long)at, (long long)seq);
  }
}

/* Every sequence of the step is in one of the micro-batches. */
static void check_batch(Check *c)
{
  const Plan *plan = c->plan;
  for (int q = 0; q < plan->replicas; q++) {
    int64_t mine = moe_part_size(plan->shape->global_batch, plan->replicas, q), taken = 0;
    for (int mb = 0; mb < c->n_mbs; mb++) {
      taken += moe_mb_seqs(plan->shape->global_batch, plan->replicas, q, plan->mb_seqs, mb);
    }
    if (taken != mine) {
      check_fail_all(c, "replica %d has %lld sequences, its %d micro-batches take %lld", q, (long long)mine, c->n_mbs,
                     (long long)taken);
      return;
    }
  }
}

/* ---- terms ---- */

/* Token of `seq` to the experts' ranks and their sums to whoever reads them. An attention rank addresses the rank of
   the expert, or any rank of its node. expert < 0: the residual of `home`. */
static void forward(Terms *t, int64_t seq, int expert, int owner)
{
  bool computes = expert < 0 || t->experts.who[expert] == owner;
  for (int r = t->node_begin[owner]; r < t->node_end[owner]; r++) {
    t->sent_by[r] = t->att.who[seq];
    if (!computes) {
      continue; /* nobody adds this pair's term to the sums */
    }
    t->done_by[r] = owner;
    t->listed_at[r] = t->sum.who[seq];
    /* PIPE takes from each rank what the receiver holds; without it the rows are already where they are read */
    int reader = t->path.piped ? t->next.who[seq] : t->listed_at[r];
    t->arrives[r] += reader == t->next.who[seq];
  }
}

/* The gradient of the sum, back along the lists of these FFN ranks. */
static void backward(Terms *t, int64_t seq, int begin, int end)
{
  int reader = t->next.who[seq], at = t->path.piped ? t->sum.who[seq] : reader;
  for (int r = begin; r < end; r++) {
    if (t->listed_at[r] != at || t->done_by[r] < t->node_begin[r] || t->done_by[r] >= t->node_end[r]) {
      continue; /* no COMBINE_B to this rank, or no GATHER_B from it to the expert */
    }
    t->returns[r] += t->sent_by[r] == t->att.who[seq];
  }
}

static void follow(Terms *t, int64_t seq, int expert, int home)
{
  int owner = expert < 0 ? home : (int)moe_part_of(t->experts.n, t->n, expert);
  int holder = expert < 0 ? home : t->experts.who[expert];
  const int nodes[] = {owner, holder};
  for (int i = 0; i < 2; i++) { /* what is addressed, and what should be */
    for (int r = t->node_begin[nodes[i]]; r < t->node_end[nodes[i]]; r++) {
      t->sent_by[r] = t->done_by[r] = t->listed_at[r] = -1;
      t->arrives[r] = t->returns[r] = 0;
    }
  }
  forward(t, seq, expert, owner);
  for (int i = 0; i < 2; i++) {
    int begin = t->node_begin[nodes[i]], end = t->node_end[nodes[i]];
    if (i == 0 || begin != t->node_begin[owner]) {
      backward(t, seq, begin, end);
    }
    for (int r = begin; r < end; r++) {
      int wanted = r >= t->node_begin[holder] && r < t->node_end[holder];
      if (t->arrives[r] != wanted || t->returns[r] != wanted) {
        check_fail_all(t->c,
                       "layer %d: %s %d of sequence %lld by FFN rank %d arrives %d times and its gradient returns %d "
                       "times, not %d",
                       t->layer, expert < 0 ? "residual of home" : "expert", expert < 0 ? home : expert, (long long)seq,
                       r, t->arrives[r], t->returns[r], wanted);
      }
    }
  }
}

static void follow_all(Terms *t)
{
  for (int expert = 0; expert < (int)t->experts.n; expert++) {
    bool first = expert == 0 || t->experts.who[expert] != t->experts.who[expert - 1];
    if (first || expert + 1 == (int)t->experts.n || t->experts.who[expert] != t->experts.who[expert + 1]) {
      follow(t, 0, expert, -1); /* both ends of a rank's experts */
    }
    if (moe_part_of(t->experts.n, t->n, expert) != t->experts.who[expert]) {
      check_fail_all(t->c, "layer %d: expert %d is addressed at rank %lld, but rank %d has it", t->layer, expert,
                     (long long)moe_part_of(t->experts.n, t->n, expert), t->experts.who[expert]);
    }
  }
  for (int home = 0; home < t->n; home++) {
    follow(t, 0, -1, home);
  }
  for (int64_t seq = 1; seq < t->att.n; seq++) {
    bool same = t->att.who[seq] == t->att.who[seq - 1] && t->sum.who[seq] == t->sum.who[seq - 1] &&
                t->next.who[seq] == t->next.who[seq - 1];
    if (!same) {
      follow(t, seq, 0, -1);
    }
  }
}

/* The replica begins `phase` GPUs into a node. */
static void place_nodes(Terms *t, int phase)
{
  const Plan *plan = t->c->plan;
  const int *seat = plan->seat + plan->groups[t->path.ffn].first_rank;
  int per = plan->ranks_per_node;
  for (int r = 0; r < t->n; r++) {
    bool same = t->path.relayed && r > 0 && (phase + seat[r]) / per == (phase + seat[r - 1]) / per;
    t->node_begin[r] = same ? t->node_begin[r - 1] : r;
  }
  for (int r = t->n - 1; r >= 0; r--) {
    bool same = r + 1 < t->n && t->node_begin[r + 1] == t->node_begin[r];
    t->node_end[r] = same ? t->node_end[r + 1] : r + 1;
  }
}

/* A path in replicas that begin `phase` GPUs into a node, with so many sequences. */
static void check_path(Check *c, const Path *path, int layer, int phase, int64_t seqs)
{
  const Plan *plan = c->plan;
  Terms t = {.c = c, .arena = arena_new(), .layer = layer, .path = *path};
  bool ok = map_parts(&t, &t.att, seqs, plan->groups[path->att].n_ranks, "sequence") &&
            map_parts(&t, &t.sum, seqs, plan->groups[path->sum].n_ranks, "sequence") &&
            map_parts(&t, &t.next, seqs, plan->groups[path->next].n_ranks, "sequence");
  if (ok && path->ffn >= 0) { /* a dense layer has nothing but its PIPE, whose ends are the maps just made */
    t.n = plan->groups[path->ffn].n_ranks;
    ok = map_parts(&t, &t.experts, c->spec->model.moe.experts, t.n, "expert");
    int32_t **lists[] = {&t.node_begin, &t.node_end, &t.sent_by, &t.done_by, &t.listed_at, &t.arrives, &t.returns};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
      *lists[i] = arena_new_array(t.arena, int32_t, (size_t)t.n);
    }
    place_nodes(&t, phase);
    if (ok && seqs > 0) {
      follow_all(&t);
    }
  }
  arena_free(t.arena);
}

/* Everything a path depends on beyond its groups: where its replicas lie in their nodes, and how many sequences a
   micro-batch has, in full and at the end of the step. */
static void check_path_everywhere(Check *c, const Path *path, int layer)
{
  const Plan *plan = c->plan;
  int64_t per_node = path->relayed ? plan->ranks_per_node : 1;
  int64_t global = plan->shape->global_batch;
  bool *done = arena_new_array(c->arena, bool, (size_t)per_node *(size_t)(plan->mb_seqs + 1));
  for (int q = 0; q < plan->replicas && c->reported == 0; q++) {
    int64_t phase = (int64_t)q * plan->replica_ranks % per_node;
    int64_t mine = moe_part_size(global, plan->replicas, q), last = mine % plan->mb_seqs;
    const int64_t seqs[] = {mine < plan->mb_seqs ? mine : plan->mb_seqs, last};
    for (int i = 0; i < 2; i++) {
      bool *known = &done[phase * (plan->mb_seqs + 1) + seqs[i]];
      if (seqs[i] > 0 && !*known) {
        check_path(c, path, layer, (int)phase, seqs[i]);
        *known = true;
      }
    }
  }
}

bool check_terms(Check *c)
{
  enum { MAX_PATHS = 1024 };
  Path *paths = arena_new_array(c->arena, Path, MAX_PATHS);
  int n = 0;
  check_chunks(c);
  check_batch(c);
  for (int layer = 0; layer < c->n_layers; layer++) {
    for (int mb = 0; mb < c->n_mbs && c->reported == 0; mb++) {
      for (int chunk = 0; chunk < c->n_chunks; chunk++) {
        Path path = path_of(c, layer, mb, chunk);
        int i = n - 1;
        while (i >= 0 && !same_path(&paths[i], &path)) {
          i--;
        }
        if (i < 0 && c->reported == 0) {
          check_path_everywhere(c, &path, layer);
          paths[n % MAX_PATHS] = path;
          n += n < MAX_PATHS;
        }
      }
    }
  }
  return c->reported == 0;
}
