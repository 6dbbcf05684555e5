/* Embedding, and the head: y = norm(x), logits = y table^T, loss = sum over tokens with a label of
   (log sum exp(logits) - logits[label]) / valid tokens of the step; dlogits = (softmax - [label]) / valid tokens.
   Logits are floats, their gradients are rounded to the storage type, as products on a device want it. They exist for
   one chunk of tokens at a time; the chunk's gradients are formed before the next. */
#include "moe_gemm.h"
#include "moe_parts.h"
#include "moe_vec.h"

MoeStatus moe_embed_fwd(MoeCall *call)
{
  MoeAttSaved s;
  moe_att_begin(call, 0, &s);
  for (size_t t = 0; t < s.tokens; t++) {
    int32_t id = call->tokens[t];
    if (id < 0 || id >= MOE_VOCAB) {
      return MOE_EINVAL;
    }
    const float *row = call->table + (size_t)id * MOE_HIDDEN;
    moe_keep_row(s.x + t * MOE_HIDDEN, row, MOE_HIDDEN);
  }
  return MOE_OK;
}

MoeStatus moe_embed_wgrad(MoeCall *call)
{
  MoeAttSaved s;
  MoeAttWork work;
  moe_att_saved(call, &s);
  moe_att_work_carve(call->work, s.tokens, &work);
  for (size_t t = 0; t < s.tokens; t++) {
    int32_t id = call->tokens[t];
    if (id < 0 || id >= MOE_VOCAB) {
      return MOE_EINVAL;
    }
    moe_row_add(call->g_table + (size_t)id * MOE_HIDDEN, work.dx + t * MOE_HIDDEN, false);
  }
  return MOE_OK;
}

/* One row of logits becomes its gradient; returns the token's loss, not yet divided. */
static double cross_entropy(float *z, int32_t label, float inv_tokens)
{
  float best = moe_vec_max(z, MOE_VOCAB);
  float target = z[label];
  float sum = moe_exp_row(z, 1.0f, best, MOE_VOCAB, z);
  float scale = inv_tokens / sum;
  for (size_t i = 0; i < MOE_VOCAB; i++) {
    z[i] *= scale;
  }
  z[label] -= inv_tokens;
  for (size_t i = 0; MOE_BF16 && i < MOE_VOCAB; i++) {
    z[i] = moe_round(z[i]);
  }
  return log((double)sum) + ((double)best - (double)target);
}

/* Logits of n tokens become their gradients. EINVAL: a label outside the vocabulary. */
static MoeStatus chunk_loss(MoeCall *call, const int32_t *labels, size_t n, float *logits)
{
  for (size_t r = 0; r < n; r++) {
    float *z = logits + r * MOE_VOCAB;
    if (labels[r] >= MOE_VOCAB) {
      return MOE_EINVAL;
    }
    if (labels[r] < 0) {
      memset(z, 0, MOE_VOCAB * sizeof *z);
      continue;
    }
    double loss = cross_entropy(z, labels[r], (float)call->inv_tokens);
    call->scalars[MOE_SC_LOSS] += loss * call->inv_tokens;
    call->scalars[MOE_SC_TOKENS] += 1.0;
    call->scalars[MOE_SC_NONFINITE] += isfinite(loss) ? 0.0 : 1.0;
  }
  return MOE_OK;
}

MoeStatus moe_head(MoeCall *call)
{
  MoeAttSaved s;
  MoeAttWork out;
  MoeHeadScratch t;
  moe_att_begin(call, call->piped ? 0 : call->n_in, &s);
  moe_att_work_carve(call->work, s.tokens, &out);
  moe_head_scratch_carve(call->scratch, (size_t)call->n_in, &t);
  MOE_TRY(call->piped ? moe_take_pipe(call, s.x) : moe_take_combine(call, s.x, &s.src, t.source));
  for (size_t at = 0; at < s.tokens; at += MOE_HEAD_CHUNK) {
    size_t n = moe_min(MOE_HEAD_CHUNK, s.tokens - at);
    const MoeReal *x = s.x + at * MOE_HIDDEN;
    MoeReal *dx = out.dx + at * MOE_HIDDEN;
    moe_norm(x, call->w, n, t.y, t.rstd);
    moe_gemm_nt(n, MOE_VOCAB, MOE_HIDDEN, t.y, MOE_HIDDEN, call->table, MOE_HIDDEN, 0.0f, t.logits, MOE_VOCAB);
    if (call->logits != NULL) {
      memcpy(call->logits + at * MOE_VOCAB, t.logits, n * MOE_VOCAB * sizeof *t.logits);
    }
    MOE_TRY(chunk_loss(call, call->labels + at, n, t.logits));
    moe_gemm_tn(MOE_VOCAB, MOE_HIDDEN, n, t.logits, MOE_VOCAB, t.y, MOE_HIDDEN, 1.0f, call->g_table, MOE_HIDDEN);
    moe_gemm_nn(n, MOE_HIDDEN, MOE_VOCAB, t.logits, MOE_VOCAB, call->table, MOE_HIDDEN, 0.0f, t.dy, MOE_HIDDEN);
    float *sum = moe_target(dx, t.y);
    memset(sum, 0, n * MOE_HIDDEN * sizeof *sum);
    moe_norm_back(x, call->w, t.rstd, t.dy, n, sum, call->gw);
    moe_keep(dx, sum, n * MOE_HIDDEN);
  }
  return MOE_OK;
}
