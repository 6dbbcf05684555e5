/* Who a rank is, whom an op of its group's table speaks to, and how large its buffers and messages get. Pure functions
   of the bundle, so that every rank computes the same. */
#ifndef MOE_TOPO_H
#define MOE_TOPO_H

#include "runtime/moe_bundle.h"

enum { MOE_MAX_NODES = 1024 };

typedef struct MoeRank {
  const MoeBundle *bundle;
  const MoeGroup *group;
  int32_t rank; /* global */
  int32_t replica;
  int32_t group_id; /* index in bundle->groups */
  int32_t index;    /* within its group */
  int32_t first_of_replica;
} MoeRank;

int32_t moe_n_ranks(const MoeBundle *);
MoeRank moe_rank_of(const MoeBundle *, int32_t rank);

/* Global rank of member `index` of a plan group in this rank's replica. */
int32_t moe_rank_in(const MoeRank *, int32_t group_id, int32_t index);

/* Node of a group member, counted within its replica, so that all replicas are alike. */
int32_t moe_node_of(const MoeBundle *, int32_t group_id, int32_t index);

/* Fills node_first[0 .. n_nodes] (moe_kernels.h) and returns n_nodes. `node_first` has room for n_ranks + 1. */
int32_t moe_node_first(const MoeBundle *, int32_t group_id, int32_t *node_first);

/* Groups of a layer on the way that micro-batch `mb` goes: its attention (of layer n_layers: the head), its FFN, and
   where its COMBINE goes; and whether its output reaches the next layer's attention by PIPE. */
int32_t moe_att_of(const MoeBundle *, int32_t mb, int32_t layer);
int32_t moe_ffn_of(const MoeBundle *, int32_t mb, int32_t layer);
int32_t moe_combine_of(const MoeBundle *, int32_t mb, int32_t layer);
bool moe_piped(const MoeBundle *, int32_t mb, int32_t layer);
/* The group that PIPE of a piped layer comes from: where it is joined or, of a dense layer, its own attention group. */
int32_t moe_pipe_of(const MoeBundle *, int32_t mb, int32_t layer);

/* Whether dispatches to this FFN group go through relays. */
bool moe_group_relays(const MoeBundle *, int32_t group_id);

/* The bucket of that kind and layer which this rank holds, or NULL; and the rank's place among its holders, or -1. */
const MoeBucket *moe_bucket_of(const MoeRank *, MoeBucketKind, int32_t layer);
int32_t moe_holder_index(const MoeBundle *, const MoeBucket *, int32_t rank);

static inline int64_t moe_param_elems(const MoeParam *p)
{
  return (int64_t)p->rows * (p->cols > 0 ? p->cols : 1);
}

/* Whether a rank takes part in an op of its group's table. Ops it skips count as finished. */
bool moe_op_is_mine(const MoeRank *, const MoeOp *);

/* Global ranks at the other end of a SEND or RECV, ascending; returns their number. `peers` has room for all ranks. */
int32_t moe_op_peers(const MoeRank *, const MoeOp *, int32_t *peers);

/* Index of a peer in the list its messages are numbered by: within its group, or among the holders, or its rank. */
int32_t moe_peer_index(const MoeRank *, const MoeOp *, int32_t peer);

/* The same for the op that takes a RECV's messages in (MoeIn.peer). An attention op takes those of all chunks at once:
   there chunks count before ranks. */
int32_t moe_source_index(const MoeRank *, const MoeOp *recv, int32_t peer);

/* Largest message of a SEND or RECV between two ranks, in bytes. */
size_t moe_op_msg_bytes(const MoeBundle *, const MoeKernels *, const MoeOp *, int32_t src, int32_t dst);

MoeDims moe_dims(const MoeBundle *, int32_t group_id);

/* "rank 3 (F0, member 1)" */
void moe_rank_text(const MoeBundle *, int32_t rank, char *text, size_t n);

/* "SEND COMBINE layer 2 micro-batch 0", or "GRAD_REDUCE EXPERTS layer 1". */
void moe_op_text(const MoeOp *, char *text, size_t n);

#endif
