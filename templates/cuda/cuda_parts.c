/* Scratch, and what the ops have in common. */
#include "cuda_ops.h"

static size_t most(size_t a, size_t b, size_t c)
{
  return moe_max(moe_max(a, b), c);
}

size_t cuda_att_scratch(uint8_t *base, size_t seq, size_t n_seqs, size_t n_in, size_t n_ffn, CudaAttScratch *s)
{
  MoeCarve c = {base, 0};
  size_t t = seq * n_seqs;
  size_t half = MOE_HEAD_DIM / 2;
  size_t small = (size_t)2 * MOE_HIDDEN + MOE_QNORM_DIM + MOE_KNORM_DIM;
  s->in = moe_carve(&c, n_in, sizeof *s->in);
  s->route_only = moe_carve(&c, MOE_EXPERTS, sizeof *s->route_only);
  s->where = moe_carve(&c, n_in * t, sizeof *s->where);
  s->nodes = moe_carve(&c, n_ffn + 1, sizeof *s->nodes);
  s->plan.row = moe_carve(&c, n_ffn * t, sizeof *s->plan.row);
  s->plan.pair = moe_carve(&c, n_ffn * t, sizeof *s->plan.pair);
  s->plan.total = moe_carve(&c, n_ffn, sizeof *s->plan.total);
  s->h = moe_carve(&c, t * MOE_HIDDEN, sizeof *s->h);
  s->turned = moe_carve(&c, t * MOE_TURNED_DIM, sizeof *s->turned);
  s->d_o = moe_carve(&c, t * MOE_O_DIM, sizeof *s->d_o);
  s->d = moe_carve(&c, t * MOE_TURNED_DIM, sizeof *s->d);
  s->wide = moe_carve(&c, t * MOE_HIDDEN, sizeof *s->wide);
  s->da = moe_carve(&c, t * MOE_HIDDEN, sizeof *s->da);
  s->dw = moe_carve(&c, t * MOE_TOP_K, sizeof *s->dw);
  s->delta = moe_carve(&c, t * MOE_HEADS, sizeof *s->delta);
  s->dz = moe_carve(&c, MOE_IF_BF16(t * MOE_EXPERTS), sizeof *s->dz);
  s->cosp = moe_carve(&c, seq * half, sizeof *s->cosp);
  s->sinp = moe_carve(&c, seq * half, sizeof *s->sinp);
  s->partial = moe_carve(&c, MOE_PARTS * most(MOE_HIDDEN, (size_t)2 * MOE_HEAD_DIM, MOE_HEADS), sizeof *s->partial);
  s->sums = moe_carve(&c, n_seqs * 2, sizeof *s->sums);
  s->gains = moe_carve(&c, MOE_IF_BF16(small), sizeof *s->gains);
  return c.at;
}

size_t cuda_pack_scratch(uint8_t *base, size_t n_ffn, size_t tokens, size_t n, size_t relay_rows, CudaPackScratch *s)
{
  MoeCarve c = {base, 0};
  s->nodes = moe_carve(&c, n_ffn + 1, sizeof *s->nodes);
  s->plan.row = moe_carve(&c, n_ffn * tokens, sizeof *s->plan.row);
  s->plan.pair = moe_carve(&c, n_ffn * tokens, sizeof *s->plan.pair);
  s->plan.total = moe_carve(&c, n_ffn, sizeof *s->plan.total);
  s->in = moe_carve(&c, n, sizeof *s->in);
  s->runs.row = moe_carve(&c, n + 1, sizeof *s->runs.row);
  s->runs.pair = moe_carve(&c, n + 1, sizeof *s->runs.pair);
  s->relay.row = moe_carve(&c, n_ffn * relay_rows, sizeof *s->relay.row);
  s->relay.pair = moe_carve(&c, n_ffn * relay_rows, sizeof *s->relay.pair);
  s->relay.row_pair = moe_carve(&c, relay_rows + 1, sizeof *s->relay.row_pair);
  s->relay.total = moe_carve(&c, n_ffn, sizeof *s->relay.total);
  return c.at;
}

size_t cuda_head_scratch(uint8_t *base, size_t tokens, size_t n_in, CudaHeadScratch *s)
{
  MoeCarve c = {base, 0};
  size_t n = moe_min(tokens, MOE_HEAD_CHUNK);
  MoeHeadRoom *r = &s->room;
  s->in = moe_carve(&c, n_in, sizeof *s->in);
  s->where = moe_carve(&c, n_in * tokens, sizeof *s->where);
  r->chunk = n;
  r->y = moe_carve(&c, n * MOE_HIDDEN, sizeof *r->y);
  r->rstd = moe_carve(&c, n, sizeof *r->rstd);
  r->logits = moe_carve(&c, n * MOE_VOCAB, sizeof *r->logits);
  r->dlogits = moe_carve(&c, n * MOE_VOCAB, sizeof *r->dlogits);
  r->dy = moe_carve(&c, n * MOE_HIDDEN, sizeof *r->dy);
  r->dx = moe_carve(&c, n * MOE_HIDDEN, sizeof *r->dx);
  r->partial = moe_carve(&c, (size_t)MOE_PARTS * MOE_HIDDEN, sizeof *r->partial);
  r->losses = moe_carve(&c, n, MOE_HEAD_LOSS_BYTES);
  s->logits = moe_carve(&c, n * MOE_VOCAB, sizeof *s->logits);
  s->gains = moe_carve(&c, MOE_IF_BF16(MOE_HIDDEN), sizeof *s->gains);
  return c.at;
}

size_t cuda_ffn_scratch(uint8_t *base, size_t rows, size_t pairs, size_t n_in, CudaFfnScratch *s)
{
  MoeCarve c = {base, 0};
  s->in = moe_carve(&c, n_in, sizeof *s->in);
  s->runs.row = moe_carve(&c, n_in + 1, sizeof *s->runs.row);
  s->runs.pair = moe_carve(&c, n_in + 1, sizeof *s->runs.pair);
  s->row_pair = moe_carve(&c, rows + 1, sizeof *s->row_pair);
  s->pair_row = moe_carve(&c, pairs, sizeof *s->pair_row);
  s->place = moe_carve(&c, pairs, sizeof *s->place);
  s->h = moe_carve(&c, rows * MOE_HIDDEN, sizeof *s->h);
  s->x = moe_carve(&c, pairs * MOE_HIDDEN, sizeof *s->x);
  s->y = moe_carve(&c, pairs * MOE_HIDDEN, sizeof *s->y);
  s->d = moe_carve(&c, pairs * MOE_FFN_HIDDEN, sizeof *s->d);
  s->dh = moe_carve(&c, rows * MOE_HIDDEN, sizeof *s->dh);
  s->da = moe_carve(&c, rows * MOE_HIDDEN, sizeof *s->da);
  s->partial = moe_carve(&c, (size_t)MOE_PARTS * MOE_HIDDEN, sizeof *s->partial);
  s->gains = moe_carve(&c, MOE_IF_BF16(MOE_HIDDEN), sizeof *s->gains);
  return c.at;
}

MoeStatus cuda_gains(const MoeCall *call, const float *w, size_t n, float *room, const float **gains_p)
{
  *gains_p = MOE_BF16 ? room : w;
  return MOE_BF16 ? moe_cuda_floats(moe_reals(w), n, room, moe_queue(call)) : MOE_OK;
}

MoeStatus cuda_routes(const MoeCall *call, const MoeAttSaved *s, int32_t chunk, int32_t *nodes, MoeRouteSizes *routes)
{
  *routes = (MoeRouteSizes){.seq = s->head->seq,
                            .n_seqs = s->head->n_seqs,
                            .seq0 = s->head->seq0,
                            .n_ffn = call->n_ffn,
                            .chunk = chunk,
                            .n_chunks = call->n_chunks,
                            .node_first = call->relayed ? nodes : NULL};
  size_t bytes = ((size_t)call->n_nodes + 1) * sizeof *nodes;
  return call->relayed ? moe_cuda_copy(nodes, call->node_first, bytes, moe_queue(call)) : MOE_OK;
}
