/* What the kernel files offer each other. H = MOE_HIDDEN, E = MOE_EXPERTS and so on; T = tokens of the call. */
#ifndef MOE_PARTS_H
#define MOE_PARTS_H

#include "moe_slots.h"

/* norm.c: y = round(gain * round(x * rstd)), rstd = 1 / sqrt(mean(x^2) + eps). Rows of H. */
void moe_norm(const MoeReal *x, const float *gain, size_t n, float *y, float *rstd);
void moe_rstds(const MoeReal *x, size_t n, float *rstd);
void moe_norm_row(const MoeReal *x, const float *gain, float rstd, float *y); /* the same again from a saved rstd */
void moe_norm_rows(const MoeReal *x, const float *gain, const float *rstd, size_t n, float *y);
/* dx += its gradient for dy; g_gain += that of the gain, in row order. */
void moe_norm_back(const MoeReal *x, const float *gain, const float *rstd, const float *dy, size_t n, float *dx,
                   float *g_gain);

/* attention.c: one sequence. qkv [seq, QKV] raw, w the bucket ATT, o [seq, Q], lse [seq, heads]. The gradient of o
   comes in the query columns of dqkv, whose gradients take its place. */
void moe_rope_tables(const MoeCore *core, size_t seq);
void moe_attention(const MoeCore *core, size_t seq, const MoeReal *qkv, const float *w, MoeReal *o, float *lse);
void moe_attention_back(const MoeCore *core, size_t seq, const MoeReal *qkv, const float *w, const MoeReal *o,
                        const float *lse, MoeReal *dqkv, float *gw);

/* router.c: reads the logits in s->prob and fills prob, choice, weight, dropped, picks. EINVAL: too few experts in
 * route_only. */
MoeStatus moe_router(const MoeCall *call, const MoeAttSaved *s);
/* Tokens first .. first + n of the call: dw [n, K], 0 where dropped; dz [n, E] is written whole, balance loss included.
 */
void moe_router_back(const MoeCall *call, const MoeAttSaved *s, size_t first, size_t n, const float *dw, float *dz);

/* messages.c. EPROTO: a message contradicts the lists; EOVERFLOW: more rows than a micro-batch has. */
/* Sums the rows of COMBINE into x [T, H], in rank order, and keeps the senders' lists. */
MoeStatus moe_take_combine(MoeCall *call, MoeReal *x, const MoeSenders *senders, MoeSource *source);
/* DISPATCH_B: opens the messages; sums the rows of the next n tokens, from `first` on, into da [n, H], in rank order,
   and fills dw [n, K], 0 where dropped. moe_sources_done() says whether nothing is left. */
MoeStatus moe_open_dispatch_b(const MoeCall *call, MoeSource *source);
MoeStatus moe_take_dispatch_b(const MoeCall *call, const MoeAttSaved *s, MoeSource *source, size_t first, size_t n,
                              float *da, float *dw);
/* Checks DISPATCH or FORWARD messages whose experts must lie on ranks first to last - 1, and counts. */
MoeStatus moe_count_list(const MoeCall *call, size_t first, size_t last, size_t *rows_p, size_t *pairs_p);
void moe_copy_list(const MoeCall *call, size_t rows, size_t pairs, const MoeList *list);
/* Copies the rows of COMBINE_B or GATHER_B, one for each row of the list. */
MoeStatus moe_take_grads(const MoeCall *call, const MoeList *list, MoeReal *dx);
size_t moe_pack_dispatch(MoeCall *call, void *slot);
size_t moe_pack_combine(MoeCall *call, void *slot);
size_t moe_pack_combine_b(MoeCall *call, void *slot);
size_t moe_pack_dispatch_b(MoeCall *call, void *slot);

/* Rows row .. row_end of a list, and their pairs. */
typedef struct MoeRun {
  size_t row, row_end, pair, pair_end;
} MoeRun;

/* The run that came from sender src; the run whose tokens rank dst of the next attention group holds. */
MoeRun moe_src_run(const MoeList *list, int32_t src);
MoeRun moe_dst_run(const MoeCall *call, const MoeList *list, int32_t dst);

/* join.c */
/* Copies the rows of PIPE or PIPE_B into x [T, H]. */
MoeStatus moe_take_pipe(const MoeCall *call, MoeReal *x);
size_t moe_pack_pipe(MoeCall *call, void *slot);
MoeStatus moe_join_fwd(MoeCall *call);
MoeStatus moe_join_dgrad(MoeCall *call);

/* relay.c */
MoeStatus moe_relay(MoeCall *call);
MoeStatus moe_node_reduce(MoeCall *call);
size_t moe_pack_forward(MoeCall *call, void *slot);
size_t moe_pack_gather(MoeCall *call, void *slot);
size_t moe_pack_gather_b(MoeCall *call, void *slot);
size_t moe_pack_forward_b(MoeCall *call, void *slot);

/* The ops. */
MoeStatus moe_embed_fwd(MoeCall *call);
MoeStatus moe_embed_wgrad(MoeCall *call);
MoeStatus moe_head(MoeCall *call);
MoeStatus moe_att_fwd(MoeCall *call);
MoeStatus moe_att_dgrad(MoeCall *call);
MoeStatus moe_att_wgrad(MoeCall *call);
MoeStatus moe_ffn_fwd(MoeCall *call);
MoeStatus moe_ffn_dgrad(MoeCall *call);
MoeStatus moe_ffn_wgrad(MoeCall *call);

/* optimizer.c */
void moe_add(float *sum, const float *x, size_t n);
double moe_sumsq(const float *x, size_t n);
void moe_adamw(const MoeAdam *adam, float *w, float *master, float *m, float *v, const float *g, size_t n, bool decay);
void moe_to_weights(float *w, const float *master, size_t n);

#endif
