/* Which terms arrive where, by ranks. A term is (token, expert), or a token's residual. sched_check_flow.c has shown
   that each (layer, micro-batch) runs one chain of ops whose messages hold what the chain promises; here the chain is
   followed for every rank, sequence and expert, by the layout rules, and every term must reach the next attention group
   once, and its gradient the attention rank that sent it once.

   Senders address experts by moe_part_of(), FFN ranks compute the experts of moe_part_begin() and moe_part_size(), and
   a sequence is wherever a rank's part says so: the rules are read from both ends, so a gap or an overlap between them
   shows. A relay's share of the tokens is a symbol: every rank of the owner's node relays some of them. A residual
   travels like a term of its home, and any rank may be home. Layers with the same groups have the same paths and are
   done once. */
#include "codegen/sched_check_int.h"

#include "runtime/moe_layout.h"

typedef struct Terms {
  Check *c;
  int layer;
  const PlanGroup *att, *ffn, *next;
  bool relayed;
  int *node;     /* [FFN ranks] node of a rank */
  int *forward;  /* [FFN ranks] terms of a share that reached the next group */
  int *backward; /* [FFN ranks] their gradients that came back */
} Terms;

static bool has_seq(const Terms *t, const PlanGroup *group, int rank, int64_t seq)
{
  int64_t begin = moe_part_begin(t->c->plan->mb_seqs, group->n_ranks, rank);
  return seq >= begin && seq < begin + moe_part_size(t->c->plan->mb_seqs, group->n_ranks, rank);
}

static bool has_expert(const Terms *t, int rank, int expert)
{
  int experts = t->c->spec->model.moe.experts;
  int64_t begin = moe_part_begin(experts, t->ffn->n_ranks, rank);
  return expert >= begin && expert < begin + moe_part_size(experts, t->ffn->n_ranks, rank);
}

/* A row of `seq` has reached the rank that computes the term, directly or through a relay that gets the sum back; the
   sum goes on to the next group. */
static void follow(Terms *t, int64_t seq, int relay, bool computes)
{
  for (int i = 0; computes && i < t->next->n_ranks; i++) {
    if (has_seq(t, t->next, i, seq)) {
      t->forward[relay]++;  /* COMBINE to the rank that has the sequence */
      t->backward[relay]++; /* and COMBINE_B along the list it keeps, back to the same relay, rank and sender */
    }
  }
}

/* Sends the term of an expert (or of a home, expert < 0) and counts what arrives. */
static void send_term(Terms *t, int64_t seq, int expert, int home)
{
  int n = t->ffn->n_ranks;
  int owner = expert < 0 ? home : (int)moe_part_of(t->c->spec->model.moe.experts, n, expert);
  for (int r = 0; r < n; r++) {
    t->forward[r] = t->backward[r] = 0;
  }
  for (int from = 0; from < t->att->n_ranks; from++) {
    if (!has_seq(t, t->att, from, seq)) {
      continue;
    }
    bool computes = expert < 0 || has_expert(t, owner, expert);
    for (int relay = 0; relay < n; relay++) {
      if (t->relayed ? t->node[relay] == t->node[owner] : relay == owner) {
        follow(t, seq, relay, computes);
      }
    }
  }
}

/* Every share of the node of whoever holds the expert, counted from the holder's end, must have arrived once. */
static void expect_once(Terms *t, int64_t seq, int expert, int home)
{
  int holder = -1, holders = 0;
  for (int j = 0; j < t->ffn->n_ranks; j++) {
    if (expert < 0 ? j == home : has_expert(t, j, expert)) {
      holder = j;
      holders++;
    }
  }
  for (int relay = 0; relay < t->ffn->n_ranks; relay++) {
    bool wanted = holder >= 0 && (t->relayed ? t->node[relay] == t->node[holder] : relay == holder);
    if (holders != 1 || t->forward[relay] != wanted || t->backward[relay] != wanted) {
      check_fail_all(
          t->c,
          "layer %d: %s %d of sequence %lld by FFN rank %d: %d holders, arrives %d times and returns %d times, "
          "not %d",
          t->layer, expert < 0 ? "residual of home" : "expert", expert < 0 ? home : expert, (long long)seq, relay,
          holders, t->forward[relay], t->backward[relay], wanted);
    }
  }
}

static void check_layer(Terms *t)
{
  int experts = t->c->spec->model.moe.experts, n = t->ffn->n_ranks;
  for (int64_t seq = 0; seq < t->c->plan->mb_seqs; seq++) {
    for (int e = 0; e < experts; e++) {
      send_term(t, seq, e, -1);
      expect_once(t, seq, e, -1);
    }
    for (int home = 0; home < n; home++) {
      send_term(t, seq, -1, home);
      expect_once(t, seq, -1, home);
    }
  }
}

/* The chain that the rows of this layer run is the one followed here: FFN_FWD reads relayed rows, or it does not. */
static void check_chain(Check *c, int layer)
{
  for (int mb = 0; mb < c->n_mbs; mb++) {
    int32_t row = check_find(c, MOE_OP_FFN_FWD, layer, mb);
    const MoeOp *op = check_op(c, row);
    bool relayed = false;
    for (int k = 0; k < MOE_MAX_WAITS; k++) {
      const MoeOp *wait = op->wait[k] < 0 ? NULL : check_op(c, c->base[c->group[row]] + op->wait[k]);
      relayed |= wait && wait->kind == MOE_OP_RECV && wait->edge == MOE_EDGE_FORWARD;
    }
    if (relayed != c->relayed[layer]) {
      check_fail(c, row, "reads %s rows", relayed ? "relayed" : "dispatched");
    }
  }
}

bool check_terms(Check *c)
{
  const Plan *plan = c->plan;
  for (int layer = 0; layer < c->n_layers; layer++) {
    bool seen = false;
    check_chain(c, layer);
    for (int other = 0; other < layer && !seen; other++) {
      seen = plan->att_group[other] == plan->att_group[layer] && plan->ffn_group[other] == plan->ffn_group[layer] &&
             plan->att_group[other + 1] == plan->att_group[layer + 1];
    }
    for (int q = 0; q < plan->replicas && !seen; q++) {
      Terms t = {.c = c, .layer = layer, .relayed = c->relayed[layer]};
      t.att = &plan->groups[plan->att_group[layer]];
      t.ffn = &plan->groups[plan->ffn_group[layer]];
      t.next = &plan->groups[plan->att_group[layer + 1]];
      size_t n = (size_t)t.ffn->n_ranks;
      t.node = arena_new_array(c->arena, int, n);
      t.forward = arena_new_array(c->arena, int, n);
      t.backward = arena_new_array(c->arena, int, n);
      for (int j = 0; j < t.ffn->n_ranks; j++) {
        t.node[j] = (q * plan->replica_ranks + t.ffn->first_rank + j) / plan->ranks_per_node;
      }
      check_layer(&t);
    }
  }
  return c->reported == 0;
}
