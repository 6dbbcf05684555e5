/* What an allocation costs, from its numbers alone. Times are sums over one step of one replica on its busiest rank:
   z = max(compute, bytes / port) + the tail (gradient exchange and optimizer), and never less than what the
   micro-batches that fit in memory let through. */
#ifndef CODEGEN_PLAN_PRICE_H
#define CODEGEN_PLAN_PRICE_H

#include "codegen/plan_int.h"

/* Groups of a side that price alike. */
typedef struct Kind {
  int layers[4]; /* attention layers by kind: dense * 2 + window */
  int embed, head;
  int dispatches, combines; /* MoE layers whose DISPATCH it sends, whose COMBINE it receives */
  int combine_from, dispatch_b_from;
  int ffn_layers, dispatch_from, combine_b_from;
} Kind;

/* A corner of the search: all but the ranks per group and their NICs. */
typedef struct Tuple {
  int index;
  int replicas, p_att, p_ffn;
  Placement place;
  Recompute recompute;
  OptShard shard;
  int ranks;    /* budget of a replica */
  bool exact;   /* replicas share a node without straddling one only if the whole budget is used */
  bool single;  /* a replica stays on one node */
  int batch;    /* sequences per step of the largest replica's share */
  double bound; /* of the estimate, from below */
} Tuple;

enum { MAX_KINDS = 256, MEMO = 1024 };

/* The groups of a tuple by kind; the same for all tuples with these numbers of groups. */
typedef struct Kinds {
  const Kind *att, *ffn; /* colocated: att[i] and ffn[i] are the same group */
  int n_att, n_ffn;
  const short *att_kind, *ffn_kind; /* of each group */
  const int *home;                  /* [layers + 1] attention group of each layer, and of the head */
} Kinds;

/* Prices that come up again and again, by ranks per FFN group or by sequences; 0: not known yet. */
typedef struct Memo {
  double rows_out[MEMO], ffn_layer[MEMO];
  int ffn_seqs[MEMO];          /* micro-batch that ffn_layer is for */
  double path[MEMO];           /* attention and head of one micro-batch's chain, by sequences on a rank */
  double attention[MAX_KINDS]; /* of one micro-batch with `seqs` sequences on a rank */
  int seqs;
} Memo;

/* A mixed layout in numbers: ranks of an FFN group on one node and rows that reach one of them per token, at most;
   places that a token of a layer goes to, and the share of its rows that leave the node. on = 0: not mixed, groups are
   alone on their nodes. */
typedef struct Mix {
  int on;
  double rows_in, rows, far;
} Mix;

typedef struct Price {
  const Spec *spec;
  const ShapeSpec *shape;
  Nodes nodes;
  const Tuple *tuple;
  Kinds kinds;
  Memo *memo;
  Mix mix;
  double chain; /* longest dependent chain of one micro-batch, at least */
  double fill;  /* until the last group has work, and while the first has none left; at least */
} Price;

/* What a micro-batch of the smallest size takes: attention of all layers without and with weight gradients, the experts
   if the same ranks have them, the head, and one message. */
typedef struct Chain {
  double ahead, all, ffn, head, hop;
} Chain;
Chain price_chain(const Price *);
void price_span(const Spec *, const Tuple *, const Chain *, double *chain, double *fill);

/* kinds: filled by price_kinds for the tuple's numbers of groups, or NULL where no group is priced. memo: this price's
   own, cleared here. */
void price_kinds(Arena *, const Spec *, const int *home, const Tuple *, Kinds *);
void price_init(Price *, const Spec *, const ShapeSpec *, const Tuple *, const Kinds *, Memo *);

int price_mb_seqs(const Price *, int att_n);
int price_micro_batches(const Price *, int att_n);

/* INFINITY where memory does not hold one micro-batch (or the pinned number of them). */
double price_att(const Price *, int att_n, int att_nics, int ffn_n);
double price_ffn(const Price *, int att_n, int ffn_n, int ffn_nics);
double price_ffn_launches(const Price *, int att_n); /* per step, to be added to price_ffn */
double price_both(const Price *, int n, int nics);   /* colocated */

/* ---- parts of prices: plan_price.c, for plan_mixed.c ---- */

typedef struct Bytes {
  double dispatch, again, dispatch_b, combine, combine_b; /* per token and layer; again: of DISPATCH_AGAIN, or 0 */
} Bytes;
Bytes price_bytes(const Price *, double rows, double pairs);

/* Most of a port's rate that messages of the size between two ranks reach. */
double price_reached(const Price *, const Curve *, int att_n, int ffn_n);

double price_att_compute(const Price *, int kind, int seqs);     /* one micro-batch */
double price_ffn_compute(const Price *, int ffn_n, int mb_seqs); /* one layer of all micro-batches, without launches */
double price_att_tail(const Price *, int kind, int att_n, int ffn_n, double nics_per_rank);
double price_ffn_tail(const Price *, int kind, int att_n, int ffn_n, double nics_per_rank);
double price_more_fill(const Price *, int ffn_n);

/* With what fits in memory, a side whose busiest rank takes z takes max(z, base + slope z). base: INFINITY where not
   one micro-batch fits. */
typedef struct Room {
  double base, slope;
} Room;
Room price_room(const Price *, int roles, int att_n, int ffn_n);

/* ---- mixed layouts: plan_mixed.c ---- */

typedef struct Mixed Mixed;
Mixed *mixed_new(Arena *, const Price *);

/* Ranks of both sides over the nodes. False if that cannot be: some node would lack a side. */
bool mixed_set(Mixed *, int att_n, int ffn_n);

/* Both sides with so many NICs of every node, by the sizes last set. */
double mixed_att(const Mixed *, int node_nics);
double mixed_ffn(const Mixed *, int node_nics); /* launches not included */

/* price_memory of the sizes last set. */
int64_t mixed_memory(const Mixed *, int role);

/* Bytes on the fullest rank of a side with the least micro-batches in flight. */
int64_t price_memory(const Price *, int roles, int att_n, int ffn_n);

/* Bounds of the two from below, cheaper: compute alone. */
double price_att_least(const Price *, int att_n);
double price_ffn_least(const Price *, int att_n, int ffn_n); /* launches included */

/* ---- tuples: plan_tuples.c ---- */

/* All corners of the search, smallest bound on the estimate first. */
Tuple *tuples_list(Arena *, const Spec *, const ShapeSpec *, int *n);

/* ---- allocations of a tuple: plan_columns.c ---- */

typedef struct IntList {
  int *v, n;
} IntList;

typedef struct Space {
  Arena *arena; /* for lists and columns */
  const Spec *spec;
  const ShapeSpec *shape;
  Nodes nodes;
} Space;

typedef struct Columns {
  Column *v;
  int n, room;
} Columns;

IntList space_counts(const Space *, const Tuple *, bool att); /* ranks per group that a side may have */
int space_ranks(const Space *, bool att, int p, int n);       /* of all p groups, n in each or as pinned */
int space_nics(const Space *, const Tuple *, int ranks);      /* of a side with so many ranks */
bool space_mixed(const Space *, const Tuple *, int n, int m); /* mixed groups of these sizes may be tried */

/* Ranks per FFN group beside attention groups of n in a mixed layout. */
void space_partners(const Space *, const Tuple *, int n, int *least, int *most);

/* The columns whose times are within the limit; of mixed ones those that no other has beaten. */
void space_columns(const Space *, const Price *, double limit, Columns *);

#endif
