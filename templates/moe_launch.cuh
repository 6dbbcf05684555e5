/* What the .cu files offer: the kernels of their C twins, launched on a queue. Pointers are the device's; what the twin
   computes is computed, in the same order where the twin's order shows, with the same roundings. A launcher returns at
   once: MOE_OK, or MOE_EDEVICE when the device refuses. Nothing to do is no launch. For C as well as for CUDA. */
#ifndef MOE_LAUNCH_CUH
#define MOE_LAUNCH_CUH

#include "moe_model.h"
#include "moe_store.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CUstream_st *MoeQueue;

/* Sums over rows are formed in this many parts at most, which are then added in order. Kernels that do so take room for
   `partial`: [MOE_PARTS, columns of the sum]. */
enum { MOE_PARTS = 64 };

/* What scores and outputs are made of, per token: heads' queries, key heads' keys, their values. */
#define MOE_TURNED_DIM (MOE_Q_DIM + MOE_KV_HEADS * (MOE_HEAD_DIM + MOE_V_DIM))

/* norm.cu: as moe_norm(), moe_norm_rows() (row: which rows of x, NULL for 0 .. n) and moe_norm_back(). */
MoeStatus moe_cuda_norm(const MoeReal *x, const float *gain, size_t n, MoeReal *y, float *rstd, MoeQueue);
MoeStatus moe_cuda_norm_rows(const MoeReal *x, const float *gain, const float *rstd, const uint32_t *row, size_t n,
                             MoeReal *y, MoeQueue);
MoeStatus moe_cuda_norm_back(const MoeReal *x, const float *gain, const float *rstd, const float *dy, size_t n,
                             float *dx, float *g_gain, float *partial /* [PARTS, H] */, MoeQueue);

/* g [columns] += the sum of n parts, in order. */
MoeStatus moe_cuda_add_parts(const float *partial, size_t n, size_t columns, float *g, MoeQueue);

/* elements.cu: y = x; a = x + y, rounded; of n elements. */
MoeStatus moe_cuda_floats(const MoeReal *x, size_t n, float *y, MoeQueue);
MoeStatus moe_cuda_add_rounded(const MoeReal *x, const float *y, size_t n, MoeReal *a, MoeQueue);

/* heads.cu, w the bucket ATT. cos and sin [seq, ROPE_DIM / 2] of moe_cuda_rope_tables(); n tokens, whole sequences.
   Forward: q and k normed and turned and v, all clamped, out [n, TURNED]. Backward: d [n, TURNED] is the gradient of
   that; dqkv that of the projections; gains' gradients are added to gw. partial [PARTS, QNORM + KNORM]. With latents,
   which have their own norms: to and from the expanded columns and the turning one. */
MoeStatus moe_cuda_rope_tables(size_t seq, float *cosp, float *sinp, MoeQueue);
MoeStatus moe_cuda_heads(const MoeReal *qkv, const float *w, const float *cosp, const float *sinp, size_t seq, size_t n,
                         MoeReal *out, MoeQueue);
MoeStatus moe_cuda_heads_back(const MoeReal *qkv, const float *w, const float *cosp, const float *sinp, size_t seq,
                              size_t n, const float *d, MoeReal *dqkv, float *gw, float *partial, MoeQueue);

/* latent.cu: latent attention around that, as in latent.c. w the bucket ATT, gains the same as floats, of which only
   the gains are read. latent: forward, the first columns of qkv [n, QKV] have come from the input, their expansions
   follow; room [n, widest latent]. latent_back: dqkv's expanded columns, which heads_back() has left, to its first
   ones; d_latent [n, widest] and partial [PARTS, widest]: room. */
MoeStatus moe_cuda_latent(const MoeReal *w, const float *gains, size_t n, MoeReal *qkv, MoeReal *latent, MoeQueue);
MoeStatus moe_cuda_latent_back(const MoeReal *qkv, const MoeReal *w, const float *gains, size_t n, MoeReal *dqkv,
                               float *gw, float *d_latent, float *partial, MoeQueue);
MoeStatus moe_cuda_latent_wgrad(const MoeReal *qkv, const float *gains, size_t n, const MoeReal *dqkv, float *gw,
                                MoeReal *latent, MoeQueue);
/* What moe_cuda_heads() and its gradient do where there are latents. */
MoeStatus moe_cuda_latent_heads(const MoeReal *qkv, const float *cosp, const float *sinp, size_t seq, size_t n,
                                MoeReal *out, MoeQueue);
MoeStatus moe_cuda_latent_heads_back(const float *cosp, const float *sinp, size_t seq, size_t n, const float *d,
                                     MoeReal *dqkv, MoeQueue);

/* attention.cu: as moe_attention() of n_seqs sequences, from what moe_cuda_heads() puts out. o [n, O], lse [n, heads].
   Backward, d_o [n, O] being the gradient of o: d [n, TURNED] becomes that of what heads() put out; the sinks' are
   added to gw. delta [n, heads] and partial [PARTS, heads]: room. */
MoeStatus moe_cuda_attention(const MoeReal *qkv, const float *w, size_t layer, size_t seq, size_t n_seqs, MoeReal *o,
                             float *lse, MoeQueue);
MoeStatus moe_cuda_attention_back(const MoeReal *qkv, const float *w, size_t layer, size_t seq, size_t n_seqs,
                                  const MoeReal *o, const float *lse, const MoeReal *d_o, float *d, float *gw,
                                  float *delta, float *partial, MoeQueue);

/* embed_head.cu: as moe_embed_fwd() and moe_embed_wgrad(). status becomes MOE_EINVAL if an id is outside the
   vocabulary; its row is left alone. */
MoeStatus moe_cuda_embed(const int32_t *tokens, size_t n, const MoeReal *table, MoeReal *x, int32_t *status, MoeQueue);
MoeStatus moe_cuda_embed_wgrad(const int32_t *tokens, size_t n, const MoeReal *dx, float *g_table, int32_t *status,
                               MoeQueue);

/* dense.cu: products as in moe_gemm.h, of the storage type with sums in fp32; where beta is 0, c is not read. Sizes of
   zero are legal and do nothing. nt: c [m, n] = a [m, k] b [n, k]^T + beta c; nn: b [k, n]; tn: a [k, m], b [k, n]. */
MoeStatus moe_cuda_gemm_nt(size_t m, size_t n, size_t k, const MoeReal *a, size_t lda, const MoeReal *b, size_t ldb,
                           float beta, MoeReal *c, size_t ldc, MoeQueue);
MoeStatus moe_cuda_gemm_nt_float(size_t m, size_t n, size_t k, const MoeReal *a, size_t lda, const MoeReal *b,
                                 size_t ldb, float beta, float *c, size_t ldc, MoeQueue);
MoeStatus moe_cuda_gemm_nn(size_t m, size_t n, size_t k, const MoeReal *a, size_t lda, const MoeReal *b, size_t ldb,
                           float beta, MoeReal *c, size_t ldc, MoeQueue);
MoeStatus moe_cuda_gemm_nn_float(size_t m, size_t n, size_t k, const MoeReal *a, size_t lda, const MoeReal *b,
                                 size_t ldb, float beta, float *c, size_t ldc, MoeQueue);
MoeStatus moe_cuda_gemm_tn(size_t m, size_t n, size_t k, const MoeReal *a, size_t lda, const MoeReal *b, size_t ldb,
                           float beta, float *c, size_t ldc, MoeQueue);

/* bias.cu: y [n, width], ld apart: every row becomes `row`, so that a product with beta 1 adds the bias before it
   rounds. Backward: g [width] += the sum of the rows of dy; partial [PARTS, width]. */
MoeStatus moe_cuda_set_rows(const float *row, size_t n, size_t width, MoeReal *y, size_t ld, MoeQueue);
MoeStatus moe_cuda_set_rows_float(const float *row, size_t n, size_t width, float *y, size_t ld, MoeQueue);
MoeStatus moe_cuda_bias_back(const MoeReal *dy, size_t n, size_t ld, size_t width, float *g, float *partial, MoeQueue);
MoeStatus moe_cuda_bias_back_float(const float *dy, size_t n, size_t ld, size_t width, float *g, float *partial,
                                   MoeQueue);

/* head.cu: as moe_head() of n tokens whose rows x [n, H] have arrived. labels [n], those below 0 do not count; dx [n,
   H] is set; g_gain, g_table and scalars are added to; logits [n, V] to be kept, or NULL. status: MOE_EINVAL for a
   label outside the vocabulary. The room is for `chunk` tokens, whose logits are there at once. */
typedef struct MoeHeadIo {
  const MoeReal *x;
  const int32_t *labels;
  const float *gain;
  const MoeReal *table;
  MoeReal *dx;
  float *g_gain, *g_table, *logits;
  double *scalars;
  int32_t *status;
} MoeHeadIo;

enum { MOE_HEAD_LOSS_BYTES = 16 };

typedef struct MoeHeadRoom {
  size_t chunk;
  MoeReal *y;       /* [chunk, H] */
  float *rstd;      /* [chunk] */
  float *logits;    /* [chunk, V] */
  MoeReal *dlogits; /* [chunk, V] */
  float *dy, *dx;   /* [chunk, H] */
  float *partial;   /* [PARTS, H] */
  void *losses;     /* [chunk] of HEAD_LOSS_BYTES, aligned to 8 */
} MoeHeadRoom;

MoeStatus moe_cuda_head(const MoeHeadIo *, size_t n, double inv_tokens, const MoeHeadRoom *, MoeQueue);

/* optimizer.cu: as moe_add(), moe_sumsq() (added to total; partial [PARTS]), moe_adamw() and moe_to_weights(); weights
   are of the storage type. In fp32 w and master may be the same. */
MoeStatus moe_cuda_add(float *sum, const float *x, size_t n, MoeQueue);
MoeStatus moe_cuda_sumsq(const float *x, size_t n, double *total, double *partial, MoeQueue);
MoeStatus moe_cuda_adamw(const MoeAdam *, MoeReal *w, float *master, float *m, float *v, const float *g, size_t n,
                         bool decay, MoeQueue);
MoeStatus moe_cuda_to_weights(MoeReal *w, const float *master, size_t n, MoeQueue);

/* Tokens of an attention rank's slot: whole sequences. */
typedef struct MoeAttSizes {
  size_t seq, n_seqs;
} MoeAttSizes;

/* What a router writes and its gradient reads; as in MoeAttSaved. Of the sigmoid router alone: the selection bias, and
   where its gradient counts choices. */
typedef struct MoeRouterIo {
  float *prob;
  float *weight;
  uint16_t *choice;
  uint8_t *dropped;
  uint32_t *picks;
  const float *bias; /* [E] */
  float *load;       /* [E], added to */
} MoeRouterIo;

/* router.cu: as moe_router() (prob: the logits before) and moe_router_back() of all tokens. sums: room for [n_seqs, 2].
   route_only must have been checked. router_again: logits to prob once more, as moe_router_again(). */
MoeStatus moe_cuda_router(const MoeAttSizes *, const MoeRouterIo *, double inv_seqs, const int32_t *route_only,
                          int n_route_only, double *scalars, double *sums, MoeQueue);
MoeStatus moe_cuda_router_back(const MoeAttSizes *, const MoeRouterIo *, double inv_seqs, const float *dw, float *dz,
                               MoeQueue);

MoeStatus moe_cuda_router_again(float *prob, size_t n, MoeQueue);

/* Who sends what to whom: tokens of the slot, chunk of the message. node_first NULL: not relayed. */
typedef struct MoeRouteSizes {
  size_t seq, n_seqs, seq0;
  int32_t n_ffn, chunk, n_chunks;
  const int32_t *node_first;
} MoeRouteSizes;

typedef struct MoeRouteTotal {
  uint32_t rows, pairs;
} MoeRouteTotal;

/* Where each token of the chunk, in the message's order, has its row and pairs in the message to each FFN rank. */
typedef struct MoeRoutePlan {
  uint32_t *row, *pair; /* [n_ffn, tokens] */
  MoeRouteTotal *total; /* [n_ffn] */
} MoeRoutePlan;

/* messages.cu: moe_pack_dispatch() in two parts, of which the first serves all receivers; moe_take_dispatch_b() of one
   chunk, its messages by rank in `in`; moe_take_combine() of n tokens from `first` on, the senders' lists kept in rows
   [n_in] and token [n_in, stride] (NULL: not kept), where: room for [n_in, n]; moe_pack_combine_b() along one of these
   lists. Pointers in `in` are the device's too. status: MOE_EPROTO where a message contradicts the lists. */
MoeStatus moe_cuda_plan_routes(const MoeRouteSizes *, const uint16_t *choice, const uint8_t *dropped,
                               const MoeRoutePlan *, MoeQueue);
MoeStatus moe_cuda_pack_dispatch(const MoeRouteSizes *, const uint16_t *choice, const uint8_t *dropped,
                                 const float *weight, const MoeReal *a, const MoeRoutePlan *, int32_t peer,
                                 uint32_t stamp, void *slot, MoeQueue);
MoeStatus moe_cuda_take_dispatch_b(const MoeRouteSizes *, const uint16_t *choice, const uint8_t *dropped,
                                   const MoeRoutePlan *, const uint8_t *const *in, float *da, float *dw,
                                   int32_t *status, MoeQueue);
MoeStatus moe_cuda_take_combine(const uint8_t *const *in, size_t n_in, uint32_t first, size_t n, MoeReal *x,
                                uint32_t *rows, uint32_t *token, size_t stride, uint32_t *where, int32_t *status,
                                MoeQueue);
MoeStatus moe_cuda_pack_combine_b(const uint32_t *rows, const uint32_t *token, size_t stride, const MoeReal *dx,
                                  uint32_t stamp, void *slot, MoeQueue);

/* messages.cu: the rows of a dispatch once more, as moe_pack_dispatch_again(), from the plan of the first time. */
MoeStatus moe_cuda_pack_dispatch_again(const MoeRouteSizes *, const uint16_t *choice, const uint8_t *dropped,
                                       const MoeReal *a, const MoeRoutePlan *, int32_t peer, uint32_t stamp, void *slot,
                                       MoeQueue);

/* Runs of a list: run i are rows row[i] .. row[i + 1], with pairs pair[i] .. pair[i + 1]. */
typedef struct MoeRuns {
  uint32_t *row, *pair; /* [runs + 1] */
} MoeRuns;

/* What a list may hold: tokens of a micro-batch of mb_tokens, at positions of the chunk; experts first_expert ..
   end_expert; and rows and pairs of all messages together, as the host has read them in their heads. */
typedef struct MoeTakeSizes {
  size_t mb_tokens, seq, n_rows, n_pairs;
  int32_t n_ffn, chunk, n_chunks, first_expert, end_expert;
} MoeTakeSizes;

typedef struct MoeTaken {
  MoeRowHead *rows; /* [n_rows] */
  MoePair *pairs;   /* [n_pairs] */
  uint16_t *src;    /* [n_rows] */
  MoeReal *a;       /* [n_rows, H]; NULL: of a relay, which leaves rows in their messages */
  MoeRuns runs;     /* [n_in + 1] */
} MoeTaken;

/* lists.cu. take_list: DISPATCH or FORWARD of all senders, in[i] of sender i, as moe_count_list() and moe_copy_list()
   take them; MOE_EPROTO as there. src_runs, dst_runs: the runs of a list that came from each sender; that go to each
   rank of the next group. take_rows: messages of rows alone, in[i] along run i: as moe_take_grads() or
   moe_take_again(). pack_run: run `peer` as a message: COMBINE with the list's heads, DISPATCH_B and FORWARD_B with dw,
   GATHER with neither (NULL); rows lie as in the list, most_rows is the list's length. pack_rows, take_pipe: PIPE, its
   rows known to the host. */
MoeStatus moe_cuda_take_list(const MoeTakeSizes *, const uint8_t *const *in, size_t n_in, const MoeTaken *,
                             int32_t *status, MoeQueue);
MoeStatus moe_cuda_src_runs(const MoeRowHead *rows, const uint16_t *src, size_t n_rows, int32_t n_src, const MoeRuns *,
                            MoeQueue);
MoeStatus moe_cuda_dst_runs(const MoeRowHead *rows, size_t n_rows, int64_t mb_seqs, size_t seq, int32_t n_dst,
                            const MoeRuns *, MoeQueue);
MoeStatus moe_cuda_take_rows(const uint8_t *const *in, size_t n_in, const MoeRuns *, size_t n_rows, MoeReal *to,
                             int32_t *status, MoeQueue);
MoeStatus moe_cuda_pack_run(const MoeRuns *, int32_t peer, const MoeRowHead *heads, const float *dw,
                            const MoeReal *rows, size_t most_rows, uint32_t stamp, void *slot, MoeQueue);
MoeStatus moe_cuda_pack_rows(const MoeReal *rows, size_t n, uint32_t stamp, void *slot, MoeQueue);
MoeStatus moe_cuda_take_pipe(const uint8_t *in, size_t n, MoeReal *x, int32_t *status, MoeQueue);

/* The list of a relay, which is one of the FFN ranks first .. last of its node. */
typedef struct MoeRelaySizes {
  size_t n_rows;
  int32_t n_ffn, first, last;
} MoeRelaySizes;

/* Where each row of the list and its pairs lie in the message to each rank of the node. */
typedef struct MoeRelayPlan {
  uint32_t *row, *pair; /* [ranks, n_rows] */
  uint32_t *row_pair;   /* [n_rows] where its pairs begin in the list */
  MoeRouteTotal *total; /* [ranks] */
} MoeRelayPlan;

/* relay.cu; the list comes by moe_cuda_take_list(). pack_forward: the rows for `peer` out of messages in[i] along run
   i: FORWARD out of DISPATCH with lists; GATHER_B out of COMBINE_B and FORWARD_AGAIN out of DISPATCH_AGAIN without.
   node_reduce: messages in[i] of rank first + i, GATHER, or FORWARD_B with dw [pairs] (else NULL), to sums [n_rows, H].
 */
MoeStatus moe_cuda_plan_relay(const MoeRelaySizes *, const MoeRowHead *rows, const MoePair *pairs, const MoeRelayPlan *,
                              MoeQueue);
MoeStatus moe_cuda_pack_forward(const MoeRelaySizes *, const MoeRowHead *rows, const MoePair *pairs,
                                const MoeRelayPlan *, int32_t peer, const uint8_t *const *in, size_t n_in,
                                const MoeRuns *, bool lists, uint32_t stamp, void *slot, int32_t *status, MoeQueue);
MoeStatus moe_cuda_node_reduce(const MoeRelaySizes *, const MoeRowHead *rows, const MoePair *pairs,
                               const MoeRelayPlan *, const uint8_t *const *in, MoeReal *sums, float *dw,
                               int32_t *status, MoeQueue);

/* The list of an FFN rank and its pairs grouped by expert; as in MoeList and MoeFfnSaved. */
typedef struct MoeFfnList {
  size_t n_rows, n_pairs;
  int32_t first_expert, n_experts; /* of this rank */
  const MoeRowHead *rows;
  const MoePair *pairs;
  /* by moe_cuda_group_pairs() */
  uint32_t *row_pair, *pair_row;    /* [rows + 1] where a row's pairs begin; [pairs] a pair's row */
  uint32_t *first;                  /* [E + 1] where each expert's pairs begin in the grouped order */
  uint32_t *group_pair, *group_row; /* [pairs] grouped order: index in pairs; row */
  uint32_t *place;                  /* [pairs] a pair's place in the grouped order */
} MoeFfnList;

/* experts.cu. y, d, x and act are in the grouped order. start_sums: sum [rows, H] is the row's residual where `me` is
   its home, else zero. sum_outputs: out [rows, H] is the row's residual, where `me` is its home, plus the sum of weight
   * y [pairs, H]. sum_grads: dh [rows, H] the sum of d [pairs, H]. gather_rows: x [pairs, H] the pairs' rows; weighted:
   times their weights. activate_back: d [pairs, F] is down^T dx; gate_up [pairs, 2 F] becomes its gradient, act [pairs,
   F] is set, dw [pairs] by index in pairs. */
MoeStatus moe_cuda_group_pairs(const MoeFfnList *, MoeQueue);
MoeStatus moe_cuda_start_sums(const MoeFfnList *, const MoeReal *residual, int32_t me, float *sum, MoeQueue);
MoeStatus moe_cuda_sum_outputs(const MoeFfnList *, const float *y, const MoeReal *residual, int32_t me, MoeReal *out,
                               MoeQueue);
MoeStatus moe_cuda_sum_grads(const MoeFfnList *, const float *d, float *dh, MoeQueue);
MoeStatus moe_cuda_gather_rows(const MoeFfnList *, const MoeReal *rows, bool weighted, MoeReal *x, MoeQueue);
MoeStatus moe_cuda_activate(const MoeFfnList *, const MoeReal *gate_up, MoeReal *act, MoeQueue);
MoeStatus moe_cuda_activate_back(const MoeFfnList *, const float *d, MoeReal *gate_up, MoeReal *act, float *dw,
                                 MoeQueue);

/* experts.cu, where experts have biases, which lie with their matrices. bias_weights: dw += <dx, bias> of each pair, dx
   [pairs, H] gathered without weights, bias that of down. group_bias_back: g [n] of each expert += the sum of its rows
   of dy [pairs, n]. */
MoeStatus moe_cuda_bias_weights(const MoeFfnList *, const MoeReal *dx, const MoeReal *bias, float *dw, MoeQueue);
MoeStatus moe_cuda_group_bias_back(const MoeFfnList *, const MoeReal *dy, size_t n, float *g, MoeQueue);

/* mlp.cu: as in mlp.c; w and gw a bucket with gate and up [2 f, H], then down [H, f]. d [n, f]: room; mlp_act and
   mlp_act_back are what lies between the products: gate_up [n, 2 f] becomes its gradient, d that of act. */
MoeStatus moe_cuda_mlp_inner(const MoeReal *w, size_t f, const MoeReal *h, size_t n, MoeReal *gate_up, MoeQueue);
MoeStatus moe_cuda_mlp_outer(const MoeReal *w, size_t f, const MoeReal *gate_up, size_t n, MoeReal *act, float *y,
                             MoeQueue);
MoeStatus moe_cuda_mlp_dgrad_outer(const MoeReal *w, size_t f, const MoeReal *dy, size_t n, float *d, MoeReal *gate_up,
                                   MoeReal *act, MoeQueue);
MoeStatus moe_cuda_mlp_dgrad_inner(const MoeReal *w, size_t f, const MoeReal *d_gate_up, size_t n, float *dh, MoeQueue);
MoeStatus moe_cuda_mlp_wgrad_inner(size_t f, const MoeReal *d_gate_up, const MoeReal *h, size_t n, float *gw, MoeQueue);
MoeStatus moe_cuda_mlp_wgrad_outer(size_t f, const MoeReal *dy, const MoeReal *act, size_t n, float *gw, MoeQueue);
MoeStatus moe_cuda_mlp_act(const MoeReal *gate_up, size_t f, size_t n, MoeReal *act, MoeQueue);
MoeStatus moe_cuda_mlp_act_back(const float *d, size_t f, size_t n, MoeReal *gate_up, MoeReal *act, MoeQueue);

/* The rows of an FFN list that have their home on this rank, which its shared expert takes. */
typedef struct MoeHomes {
  uint32_t *first; /* [2] 0 and how many they are */
  uint32_t *row;   /* [rows] which, in order; past the last 0 */
  uint32_t *place; /* [rows] where each row is among them, or MOE_NOT_HOME */
} MoeHomes;

#define MOE_NOT_HOME UINT32_MAX

/* The homes as a list of one group with room for all rows, for gather_rows, norm_rows (n_pairs rows) and the products
   of grouped.cu, with mlp_act between them; what they leave past the last home means nothing. The sums are as without
   `_shared`, plus what the shared expert has for a row, [rows, H] in the order of the homes. */
MoeFfnList moe_homes_list(const MoeFfnList *, const MoeHomes *);
MoeStatus moe_cuda_find_homes(const MoeFfnList *, int32_t me, const MoeHomes *, MoeQueue);
MoeStatus moe_cuda_sum_outputs_shared(const MoeFfnList *, const float *y, const MoeReal *residual, int32_t me,
                                      const MoeHomes *, const float *shared_y, MoeReal *out, MoeQueue);
MoeStatus moe_cuda_sum_grads_shared(const MoeFfnList *, const float *d, const MoeHomes *, const float *shared_d,
                                    float *dh, MoeQueue);

/* grouped.cu: the experts' products, w a matrix of the first local expert, those of the others MOE_EXPERT_ELEMS behind
   each other. nt: c [pairs, n] = a [pairs, k] w [n, k]^T, with bias [n] of each expert added; nn: w [k, n]; tn: gw [m,
   n] += a [pairs, m]^T b [pairs, n].
 */
MoeStatus moe_cuda_group_nt(const MoeFfnList *, const MoeReal *a, size_t k, const MoeReal *w, MoeReal *c, size_t n,
                            MoeQueue);
MoeStatus moe_cuda_group_nt_float(const MoeFfnList *, const MoeReal *a, size_t k, const MoeReal *w, float *c, size_t n,
                                  MoeQueue);
MoeStatus moe_cuda_group_nt_bias(const MoeFfnList *, const MoeReal *a, size_t k, const MoeReal *w, const MoeReal *bias,
                                 MoeReal *c, size_t n, MoeQueue);
MoeStatus moe_cuda_group_nt_bias_float(const MoeFfnList *, const MoeReal *a, size_t k, const MoeReal *w,
                                       const MoeReal *bias, float *c, size_t n, MoeQueue);
MoeStatus moe_cuda_group_nn_float(const MoeFfnList *, const MoeReal *a, size_t k, const MoeReal *w, float *c, size_t n,
                                  MoeQueue);
MoeStatus moe_cuda_group_tn(const MoeFfnList *, const MoeReal *a, size_t m, const MoeReal *b, size_t n, float *gw,
                            MoeQueue);

#ifdef __cplusplus
}
#endif

#endif
