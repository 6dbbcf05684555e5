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

/* norm.c: the same for one row of n floats and any eps, or a given rstd; y may be x. Backward: dx is set, dgain added
   to. */
float moe_rstd(const float *x, size_t n, double eps);
void moe_norm_vector(const float *x, const float *gain, size_t n, double eps, float *y);
void moe_norm_vector_by(const float *x, const float *gain, float rstd, size_t n, float *y);
void moe_norm_vector_back(const float *x, const float *gain, size_t n, double eps, const float *dy, float *dx,
                          float *dgain);

/* heads.c: between the projections qkv [seq, QKV] of one sequence, w the bucket ATT, and what scores are made of: of
   key head kv the keys core->k and values core->v, and the queries core->q of positions q0 .. q_end. */
void moe_rope_tables(const MoeCore *core, size_t seq);
void moe_heads_open(const MoeCore *core, size_t seq, const MoeReal *qkv);
void moe_load_keys(const MoeCore *core, size_t seq, const MoeReal *qkv, const float *w, size_t kv);
void moe_load_queries(const MoeCore *core, size_t q0, size_t q_end, const MoeReal *qkv, const float *w, size_t kv);
/* Their gradients, in core->dk, core->dv and core->acc, into dqkv; gw is added to. moe_heads_close() does what needs
   all heads. */
void moe_store_keys(const MoeCore *core, size_t seq, const MoeReal *qkv, const float *w, size_t kv, MoeReal *dqkv,
                    float *gw);
void moe_store_queries(const MoeCore *core, size_t q0, size_t q_end, const MoeReal *qkv, const float *w, size_t kv,
                       MoeReal *dqkv, float *gw);
void moe_heads_close(const MoeCore *core, size_t seq, const MoeReal *qkv, const float *w, MoeReal *dqkv, float *gw);
/* Column of dqkv in which the gradient of a head's output waits for its turn. */
size_t moe_out_col(size_t head);

/* attention.c: one sequence of one layer. o [seq, O], lse [seq, heads]. The gradient of o comes in the columns
   moe_out_col() of dqkv. */
void moe_attention(const MoeCore *core, size_t layer, size_t seq, const MoeReal *qkv, const float *w, MoeReal *o,
                   float *lse);
void moe_attention_back(const MoeCore *core, size_t layer, size_t seq, const MoeReal *qkv, const float *w,
                        const MoeReal *o, const float *lse, MoeReal *dqkv, float *gw);

/* latent.c: rows [n, QKV] whose first columns come from the input; their expansions follow. latent: room for n of the
   wider one. Backward: dqkv's expanded columns to its first ones; wide: room for n rows. */
void moe_latent(const float *w, size_t n, float *rows, float *latent);
void moe_latent_back(const MoeReal *qkv, const float *w, size_t n, MoeReal *dqkv, float *gw, float *wide,
                     float *latent);
void moe_latent_wgrad(const MoeReal *qkv, const float *w, size_t n, const float *dqkv, float *gw, float *latent);

/* mlp.c: n rows through an MLP of f hidden, in halves, so that a caller may keep what it needs and give the rows'
   memory away between them: h [n, H] to gate and up [n, 2 f]; those to act [n, f] and y [n, H]. Backward: dy turns gate
   and up into their gradients and sets act; those give dh. Weight gradients are added to. */
void moe_mlp_inner(const float *w, size_t f, const float *h, size_t n, float *gate_up);
void moe_mlp_outer(const float *w, size_t f, const float *gate_up, size_t n, float *act, float *y);
void moe_mlp_dgrad_outer(const float *w, size_t f, const float *dy, size_t n, float *gate_up, float *act);
void moe_mlp_dgrad_inner(const float *w, size_t f, const float *d_gate_up, size_t n, float *dh);
void moe_mlp_wgrad_inner(size_t f, const float *d_gate_up, const float *h, size_t n, float *gw);
void moe_mlp_wgrad_outer(size_t f, const float *dy, const float *act, size_t n, float *gw);

/* router.c: reads the logits in s->prob and fills prob, choice, weight, dropped, picks. EINVAL: too few experts in
 * route_only. */
MoeStatus moe_router(const MoeCall *call, const MoeAttSaved *s);
/* The logits in s->prob become prob once more; what was chosen stays. */
void moe_router_again(const MoeAttSaved *s);
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
/* Copies the rows of DISPATCH_AGAIN or FORWARD_AGAIN, one for each row of the list. */
MoeStatus moe_take_again(const MoeCall *call, const MoeList *list, MoeReal *a);
size_t moe_pack_dispatch(MoeCall *call, void *slot);
size_t moe_pack_dispatch_again(MoeCall *call, void *slot);
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
MoeStatus moe_att_again(MoeCall *call);
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
