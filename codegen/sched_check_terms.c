/* Which terms arrive where, by ranks. A term is (token, expert), or a token's residual. Tokens are told apart as far as
   the layout can: their sequence, which gives the attention rank that dispatches them and the rank of the next group
   that gets their sum, and their relay's share of the node. Experts are told apart by the FFN rank that owns them,
   residuals by their home. The messages of sched_check_flow.c carry the terms along these paths; here each path is
   followed for all ranks and every output must hold every term exactly once. Layers with the same groups have the same
   paths and are done once.

   Gradients take the same paths back, row by row along the saved lists: the sum of a token's input gradients at its
   attention rank has the terms its forward sum had at the next one. */
#include "codegen/sched_check_int.h"

#include "runtime/moe_layout.h"

#include <string.h>

typedef struct Terms {
  Check *c;
  const PlanGroup *att, *ffn, *next;
  bool relayed;
  int *node;      /* [FFN ranks] node of a rank */
  int32_t *count; /* [FFN rank that owns][relay share][residual or experts] of one run of sequences, at its receiver */
} Terms;

/* The rank of a group that holds a sequence, -1 unless it is exactly one. */
static int holder(const Terms *t, const PlanGroup *group, int64_t seq)
{
  int found = -1, n = 0;
  for (int i = 0; i < group->n_ranks; i++) {
    int64_t begin = moe_part_begin(t->c->plan->mb_seqs, group->n_ranks, i);
    if (seq >= begin && seq < begin + moe_part_size(t->c->plan->mb_seqs, group->n_ranks, i)) {
      found = i;
      n++;
    }
  }
  return n == 1 ? found : -1;
}

static int32_t *term(Terms *t, int owner, int share, int residual)
{
  return &t->count[((size_t)owner * (size_t)t->ffn->n_ranks + (size_t)share) * 2 + (size_t)residual];
}

/* Forward: the terms of one run of sequences, from its attention rank to the ranks of the next group. */
static void carry(Terms *t)
{
  int n = t->ffn->n_ranks;
  for (int j = 0; j < n; j++) { /* FFN rank that gets rows of pairs it owns */
    if (!t->relayed) {
      ++*term(t, j, j, 0); /* DISPATCH from its attention rank, COMBINE to the receiver's */
      ++*term(t, j, j, 1);
      continue;
    }
    for (int relay = 0; relay < n; relay++) { /* DISPATCH to the relay of j's node, FORWARD to j, GATHER back */
      if (t->node[relay] == t->node[j]) {
        ++*term(t, j, relay, 0);
        ++*term(t, j, relay, 1);
      }
    }
  }
}

static void check_run(Terms *t, int64_t seq, int layer)
{
  int n = t->ffn->n_ranks;
  if (holder(t, t->att, seq) < 0 || holder(t, t->next, seq) < 0) {
    check_fail_all(t->c, "layer %d: sequence %lld is not on exactly one rank of groups %d and %d", layer,
                   (long long)seq, t->att->id, t->next->id);
    return;
  }
  memset(t->count, 0, 2 * (size_t)n * (size_t)n * sizeof *t->count);
  carry(t);
  for (int j = 0; j < n; j++) {
    for (int share = 0; share < n; share++) {
      bool wanted = t->relayed ? t->node[share] == t->node[j] : share == j;
      for (int residual = 0; residual < 2; residual++) {
        if (*term(t, j, share, residual) != wanted) {
          check_fail_all(t->c, "layer %d: sequence %lld gets the %s of FFN rank %d by relay %d %d times, not %d", layer,
                         (long long)seq, residual ? "residual" : "experts", j, share, *term(t, j, share, residual),
                         wanted);
        }
      }
    }
  }
}

/* Every expert has one owner, whatever the counts. */
static void check_experts(Terms *t, int layer)
{
  int experts = t->c->spec->model.moe.experts, n = t->ffn->n_ranks;
  int64_t sum = 0;
  for (int j = 0; j < n; j++) {
    sum += moe_part_size(experts, n, j);
  }
  if (sum != experts) {
    check_fail_all(t->c, "layer %d: FFN ranks own %lld experts of %d", layer, (long long)sum, experts);
  }
  for (int e = 0; e < experts; e++) {
    int64_t owner = moe_part_of(experts, n, e);
    if (owner < 0 || owner >= n) {
      check_fail_all(t->c, "layer %d: expert %d belongs to FFN rank %lld of %d", layer, e, (long long)owner, n);
    }
  }
}

bool check_terms(Check *c)
{
  const Plan *plan = c->plan;
  for (int layer = 0; layer < c->n_layers; layer++) {
    bool seen = false;
    for (int other = 0; other < layer && !seen; other++) {
      seen = plan->att_group[other] == plan->att_group[layer] && plan->ffn_group[other] == plan->ffn_group[layer] &&
             plan->att_group[other + 1] == plan->att_group[layer + 1];
    }
    for (int q = 0; q < plan->replicas && !seen; q++) {
      Terms t = {.c = c, .relayed = c->relayed[layer]};
      t.att = &plan->groups[plan->att_group[layer]];
      t.ffn = &plan->groups[plan->ffn_group[layer]];
      t.next = &plan->groups[plan->att_group[layer + 1]];
      size_t n = (size_t)t.ffn->n_ranks;
      t.count = arena_new_array(c->arena, int32_t, 2 * n * n);
      t.node = arena_new_array(c->arena, int, n);
      for (int j = 0; j < t.ffn->n_ranks; j++) {
        t.node[j] = (q * plan->replica_ranks + t.ffn->first_rank + j) / plan->ranks_per_node;
      }
      for (int64_t seq = 0; seq < plan->mb_seqs; seq++) {
        check_run(&t, seq, layer);
      }
      check_experts(&t, layer);
    }
  }
  return c->reported == 0;
}
