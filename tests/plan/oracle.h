/* What the planner's oracle says of the attention side: times of ops by code of its own, and who has which layer. */
#ifndef TESTS_PLAN_ORACLE_H
#define TESTS_PLAN_ORACLE_H

#include "lang/spec.h"

enum { ORACLE_LAYERS = 8 }; /* and groups, at most */

/* ns of so many FLOPs of each class. */
double oracle_rate_ns(const Spec *, double gemm, double grouped, double core);

/* Forward, input gradient and, if asked for, weight gradient of one layer's attention side, with launches; the head. */
double oracle_attention_ns(const Spec *, int layer, int seqs, bool wgrad, Recompute);
double oracle_head_ns(const Spec *, int seqs);

/* Attention group of each layer, and of the head: home[layers + 1]. */
void oracle_deal(const Spec *, int groups, int *home);

#endif
