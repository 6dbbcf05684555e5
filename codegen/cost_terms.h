/* Pieces of the cost model that take sizes instead of a Plan, so that the planner prices an allocation with the same
   arithmetic as the scheduler prices a plan. FLOPs count a multiply-add as two; times are in nanoseconds. */
#ifndef CODEGEN_COST_TERMS_H
#define CODEGEN_COST_TERMS_H

#include "codegen/cost.h"

/* Work of one op: its FLOPs by the class of kernel that does them, and the sizes that the sustained rate of a class
   depends on. A size of 0 is not known: the best rate of the class, so that times are bounds from below. */
typedef struct Work {
  double gemm, grouped, attention, attention_back;
  double grouped_dgrad, grouped_wgrad;
  double bytes;             /* of memory traffic */
  double rows, expert_rows; /* of a dense product, and of one expert's */
  int64_t seq;              /* of the attention core */
} Work;

double work_ns(const Spec *, Work);      /* roofline plus one launch */
double work_flop_ns(const Spec *, Work); /* FLOPs at their sustained rates alone */
double work_grouped(const Spec *, Work); /* forward products of experts that take as long as all of theirs here */
double work_flops(Work);                 /* of all classes */

/* Whether the layer's forward is run again before its gradients, in an op and a message of their own: with full
   recomputation. A dense layer's is part of its ATT_DGRAD. */
bool cost_again(const Spec *, Recompute, int layer);

/* kind: ATT_FWD, ATT_AGAIN, ATT_DGRAD or ATT_WGRAD, the dense FFN of a dense layer included; HEAD; EMBED_FWD,
   EMBED_WGRAD. seqs: sequences on the rank. */
Work work_att(const Spec *, MoeOpKind kind, int layer, int64_t seq, int64_t seqs, Recompute);

/* kind: FFN_FWD, FFN_DGRAD or FFN_WGRAD on `rows` tokens of which `pairs` (token, expert) pairs are computed by
   `experts` experts and `home` tokens pass the shared expert. weights: elements read (or, for WGRAD, added to); 0
   leaves them out. */
Work work_ffn(const Spec *, MoeOpKind kind, double rows, double pairs, double experts, double home, double weights,
              Recompute);

/* Experts the router may choose from, and how many of experts [begin, end) are among them. */
int cost_routable(const Spec *);
int cost_hits(const Spec *, int64_t begin, int64_t end);
int cost_hits_max(const Spec *, int parts); /* the fullest of `parts` ranks */

/* Probability that a token has one of `hits` of the routable experts among its choices. */
double cost_touch(const Spec *, int hits);

/* Expected rows and pairs per token on a rank with `hits` routable experts, the imbalance factor included, at most 1
   and min(top_k, hits). */
double cost_rows_per_token(const Spec *, int hits);
double cost_pairs_per_token(const Spec *, int hits);

int cost_elem_bytes(const Spec *);    /* of activations and wire */
int64_t cost_row_bytes(const Spec *); /* of one row on the wire */
bool cost_layer_window(const Spec *, int layer);
double cost_expert_params(const Spec *);
/* Elements per token that the projections write: q, k, v and, for MLA, the latents between. */
double cost_qkv_width(const Spec *);

/* The layer's FFN group gets its dispatch through relays: plan.dedup is node and a node holds two of its ranks. */
bool cost_relayed(const Plan *, int layer);

/* Of the messages into and out of experts that take `work`, the time that Comet hides: it runs dispatch under the first
   grouped product and combine under the second, tile by tile, and hides 86.5 % of what fits under them (arXiv
   2502.19811, measured on one node; SwiGLU has two thirds of its work in the first product). Kind to Comet: nothing is
   charged for the processors that move the data. */
double cost_hidden(double work, double in, double out);

/* Work of one compute op of a plan, of relays and node sums: on the fullest rank, for one full micro-batch or its
   largest chunk. Nothing of ops of the step's tail: they have a bucket. */
Work cost_op_terms(const Spec *, const Plan *, MoeOpKind, int layer);
Work cost_bucket_terms(const Spec *, const Plan *, MoeOpKind, MoeBucketKind, int layer);

/* Ops and messages of the step's tail know a bucket; cost_op_ns and cost_msg answer for the layer's
   largest. Of EMBED and HEAD the layer is not looked at. */
int64_t cost_bucket_op_ns(const Spec *, const Plan *, MoeOpKind, MoeBucketKind, int layer);
MsgCost cost_bucket_msg(const Spec *, const Plan *, MoeEdge, MoeBucketKind, int layer);
/* Groups that hold a bucket, over all ways, each once; returns how many. Of EXPERTS a holder is one rank of each. */
enum { MOE_BUCKET_GROUPS = 4 };
int cost_bucket_groups(const Spec *, const Plan *, MoeBucketKind, int layer, int groups[MOE_BUCKET_GROUPS]);
int cost_bucket_holders(const Spec *, const Plan *, MoeBucketKind, int layer);
/* Ranks whose tables exchange a bucket's slices: its holders. Where its optimizer state lies with all ranks of the
   plan, all ranks of the groups that hold it, those of EXPERTS too: their ports are what the exchange takes time on. */
int cost_bucket_parties(const Spec *, const Plan *, MoeBucketKind, int layer);

#endif
