/* The op row: what the compiler's schedule, its simulator and checker, and the runtime's executor all read.
   One table per plan group serves every rank of that group in every replica; a rank derives its peers from the bundle.
 */
#ifndef MOE_OPS_H
#define MOE_OPS_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

typedef enum MoeOpKind {
#define MOE_OP(kind, letters, stream, doc) MOE_OP_##kind,
#include "ops.def"
#undef MOE_OP
  MOE_OP_COUNT
} MoeOpKind;

typedef enum MoeEdge {
#define MOE_EDGE(name, pairs, reverse, doc) MOE_EDGE_##name,
#include "edges.def"
#undef MOE_EDGE
  MOE_EDGE_NONE,
  MOE_EDGE_COUNT = MOE_EDGE_NONE
} MoeEdge;

typedef enum MoePairs { MOE_PAIRS_GROUPS, MOE_PAIRS_NODE, MOE_PAIRS_HOLDERS, MOE_PAIRS_ROOT } MoePairs;

typedef enum MoeBucketKind {
#define MOE_BUCKET(kind, per, holders, doc) MOE_BUCKET_##kind,
#include "buckets.def"
#undef MOE_BUCKET
  MOE_BUCKET_NONE,
  MOE_BUCKET_COUNT = MOE_BUCKET_NONE
} MoeBucketKind;

/* FWD and BWD order kernels on one compute resource (two CUDA streams, one CPU thread); SEND and RECV are the two
   directions of the network. RELAY and NODE_REDUCE run on SEND, beside the compute. */
typedef enum MoeStream { MOE_STREAM_FWD, MOE_STREAM_BWD, MOE_STREAM_SEND, MOE_STREAM_RECV, MOE_STREAM_COUNT } MoeStream;

enum { MOE_MAX_WAITS = 8 };

/* An op's id is its index in its group's table; finishing it is its signal. Rows stand in the order of their modelled
   start. Compute ops of a rank run strictly in table order; SEND and RECV of one pair of ranks keep table order too,
   and table order is the same on both sides. */
typedef struct MoeOp {
  uint8_t kind;   /* MoeOpKind */
  uint8_t stream; /* MoeStream */
  uint8_t edge;   /* MoeEdge of SEND and RECV, else MOE_EDGE_NONE */
  uint8_t bucket; /* MoeBucketKind of REDUCE and SHARE messages, GRAD_REDUCE, OPTIMIZER, WEIGHTS_IN; else NONE */
  int16_t layer;  /* 0..L-1; L for HEAD; of per-model buckets 0; -1 for scalars */
  int16_t peer;   /* plan group at the other end of GROUPS and NODE messages; -1 otherwise */
  int32_t mb;     /* micro-batch, -1 outside the micro-batches */
  int32_t saved;  /* slot in the saved pool of this op's (layer, micro-batch), -1 if none. SEND: where it packs from */
  int32_t work;   /* slot in the work pool: results waiting to be sent, gradients waiting for the weight gradient; -1 if
                     none */
  int16_t chan;   /* SEND, RECV: index in the bundle's channels, else -1 */
  int16_t slot;   /* SEND, RECV: slot of that channel, the same number on both sides; else -1 */
  int32_t use;    /* SEND, RECV: how many earlier messages of this step used this slot */
  int32_t wait[MOE_MAX_WAITS]; /* ids of ops of this table that must have finished; -1 fills up */
  int32_t
      release[MOE_MAX_WAITS]; /* ids of RECV ops whose message slots are free once this op has finished; -1 fills up */
  int16_t chunk;              /* FFN ops and their messages: part of the micro-batch's tokens, 0 without chunks */
  int16_t pad;                /* 0 */
} MoeOp;

static_assert(sizeof(MoeOp) == 96, "the op row is written into bundles: its size is part of the contract");

/* Classes of traffic between two ranks, each in its own order. To the second belong messages of buckets: they are
   large, nothing of a micro-batch waits for them, and they move with what the first leaves of a port. */
typedef enum MoeTraffic { MOE_TRAFFIC_STEP, MOE_TRAFFIC_BUCKETS, MOE_TRAFFIC_COUNT } MoeTraffic;

const char *moe_op_name(MoeOpKind kind);    /* "ATT_FWD" */
const char *moe_op_letters(MoeOpKind kind); /* "a" */
const char *moe_edge_name(MoeEdge edge);    /* "DISPATCH" */
MoePairs moe_edge_pairs(MoeEdge edge);
MoeTraffic moe_edge_traffic(MoeEdge edge);
const char *moe_bucket_name(MoeBucketKind kind); /* "ATT" */

/* Name of an op in timelines, modelled and measured alike: "SEND DISPATCH l0 m2"; of later chunks "... m2 c1". */
void moe_op_title(const MoeOp *, char *title, size_t n);

#endif
