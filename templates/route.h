/* Where tokens go. Attention ranks and relays derive the same lists from the same saved choices in forward and
 * backward. */
#ifndef MOE_ROUTE_H
#define MOE_ROUTE_H

#include "moe_model.h"

/* The FFN ranks of a token: owners of its pairs that were not dropped, ascending; with none left, the owner of its
   first choice, which then gets a row without pairs. */
typedef struct MoeRoute {
  size_t n;
  uint16_t rank[MOE_TOP_K];
  uint16_t home; /* adds the residual: rank[token mod n] */
} MoeRoute;

/* A row that the attention side sends: to `rank`, with the pairs whose owners are first <= owner < last. */
typedef struct MoeTarget {
  uint16_t rank, first, last;
} MoeTarget;

/* owner[e] of every expert. */
MOE_FN void moe_owners(int32_t n_ffn, uint16_t owner[MOE_EXPERTS])
{
  for (int64_t i = 0; i < n_ffn; i++) {
    int64_t end = moe_part_begin(MOE_EXPERTS, n_ffn, i + 1);
    for (int64_t e = moe_part_begin(MOE_EXPERTS, n_ffn, i); e < end; e++) {
      owner[e] = (uint16_t)i;
    }
  }
}

/* Keeps rank[0 .. n) ascending and without repetition. */
MOE_FN size_t moe_rank_insert(uint16_t *rank, size_t n, uint16_t r)
{
  size_t at = n;
  while (at > 0 && rank[at - 1] > r) {
    at--;
  }
  if (at > 0 && rank[at - 1] == r) {
    return n;
  }
  for (size_t i = n; i > at; i--) {
    rank[i] = rank[i - 1];
  }
  rank[at] = r;
  return n + 1;
}

/* choice and dropped: [K] of this token. */
MOE_FN void moe_route(const uint16_t *owner, const uint16_t *choice, const uint8_t *dropped, uint32_t token,
                      MoeRoute *route_p)
{
  size_t n = 0;
  for (size_t k = 0; k < MOE_TOP_K; k++) {
    if (!dropped[k]) {
      n = moe_rank_insert(route_p->rank, n, owner[choice[k]]);
    }
  }
  if (n == 0) {
    route_p->rank[0] = owner[choice[0]];
    n = 1;
  }
  route_p->n = n;
  route_p->home = route_p->rank[token % n];
}

/* The rows that are sent for a token: one per rank or, with the nodes' first ranks (and the end) in `node`, one per
   node, to the relay among the token's ranks there. Returns their number; ranks ascend. */
MOE_FN size_t moe_targets(const int32_t *node, const MoeRoute *route, uint32_t token, MoeTarget target[MOE_TOP_K])
{
  if (node == NULL) {
    for (size_t i = 0; i < route->n; i++) {
      target[i].rank = target[i].first = route->rank[i];
      target[i].last = (uint16_t)(route->rank[i] + 1);
    }
    return route->n;
  }
  size_t n = 0;
  size_t all = moe_min(route->n, MOE_TOP_K); /* says the bound to compilers that look for one */
  for (size_t i = 0, end; i < all; i = end) {
    while (node[1] <= route->rank[i]) {
      node++;
    }
    end = i + 1;
    while (end < all && route->rank[end] < node[1]) {
      end++;
    }
    target[n].rank = route->rank[i + token % (end - i)];
    target[n].first = (uint16_t)node[0];
    target[n++].last = (uint16_t)node[1];
  }
  return n;
}

MOE_FN bool moe_in_target(const MoeTarget *target, uint16_t owner)
{
  return target->first <= owner && owner < target->last;
}

/* The ranks that a relay forwards a row to, from the row's pairs; ascending. */
MOE_FN size_t moe_row_ranks(const uint16_t *owner, const MoeRowHead *row, const MoePair *pairs,
                            uint16_t rank[MOE_TOP_K])
{
  size_t n = 0;
  for (size_t k = 0; k < row->pairs; k++) {
    n = moe_rank_insert(rank, n, owner[pairs[k].expert]);
  }
  if (n == 0) {
    rank[n++] = row->home;
  }
  return n;
}

/* Whether a relay forwards the row to `peer`; *n_p: how many of the row's pairs go there. */
MOE_FN bool moe_row_goes_to(const uint16_t *owner, const MoeRowHead *row, const MoePair *pairs, uint16_t peer,
                            size_t *n_p)
{
  size_t n = 0;
  for (size_t k = 0; k < row->pairs; k++) {
    n += owner[pairs[k].expert] == peer;
  }
  *n_p = n;
  return n > 0 || (row->pairs == 0 && row->home == peer);
}

#endif
