/* Sizes that follow from moe_config.h, where each tensor lies in its bucket, and which combinations the kernels refuse.
 */
#ifndef MOE_MODEL_H
#define MOE_MODEL_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include "moe_config.h"
#include "moe_kernels.h"

#define MOE_Q_DIM   (MOE_HEADS * MOE_HEAD_DIM)
#define MOE_KV_DIM  (MOE_KV_HEADS * MOE_HEAD_DIM)
#define MOE_O_DIM   (MOE_HEADS * MOE_V_DIM)
#define MOE_GROUP   (MOE_HEADS / MOE_KV_HEADS)    /* query heads per key head */
#define MOE_NOPE    (MOE_HEAD_DIM - MOE_ROPE_DIM) /* part of a head that does not turn: the first */
#define MOE_KVB_DIM (MOE_LATENT ? MOE_HEADS * (MOE_NOPE + MOE_V_DIM) : 0)

/* What one token keeps of its projections, by column. Without latents: q, k, v. With them: what comes from the input
   (the query latent, or q where there is none; the key-value latent; the turning part of the keys, before it turns,
   which all heads share), then what the latents expand to: q, and per head keys [nope] and values [v]. */
#define MOE_QIN_DIM (MOE_Q_LORA > 0 ? MOE_Q_LORA : MOE_Q_DIM)
#define MOE_IN_DIM  (MOE_LATENT ? MOE_QIN_DIM + MOE_KV_LORA + MOE_ROPE_DIM : MOE_Q_DIM + 2 * MOE_KV_DIM)
#define MOE_Q_COL   (MOE_Q_LORA > 0 ? MOE_IN_DIM : 0)
#define MOE_C_COL   MOE_QIN_DIM /* key-value latent */
#define MOE_R_COL   (MOE_QIN_DIM + MOE_KV_LORA)
#define MOE_KVB_COL (MOE_IN_DIM + (MOE_Q_LORA > 0 ? MOE_Q_DIM : 0))
#define MOE_QKV_DIM (MOE_LATENT ? MOE_KVB_COL + MOE_KVB_DIM : MOE_IN_DIM)

/* Bucket ATT: input norm [H]; projections of the input as one [IN, H], their biases [IN]; norms of q and k, or of the
   latents; expansions of the latents [Q, q_lora], [KVB, kv_lora]; output projection [H, O] and bias [H]; sinks [heads];
   then the router [E, H] and its bias [E], or in a dense layer the MLP: gate and up as one [2 Fd, H], down [H, Fd]. */
#define MOE_QNORM_DIM   (MOE_LATENT ? MOE_Q_LORA : MOE_QK_NORM == 1 ? MOE_HEAD_DIM : MOE_QK_NORM == 2 ? MOE_Q_DIM : 0)
#define MOE_KNORM_DIM   (MOE_LATENT ? MOE_KV_LORA : MOE_QK_NORM == 1 ? MOE_HEAD_DIM : MOE_QK_NORM == 2 ? MOE_KV_DIM : 0)
#define MOE_AT_QKV      ((size_t)MOE_HIDDEN)
#define MOE_AT_QKV_BIAS (MOE_AT_QKV + (size_t)MOE_IN_DIM * MOE_HIDDEN)
#define MOE_AT_QNORM    (MOE_AT_QKV_BIAS + (size_t)(MOE_ATT_BIAS ? MOE_IN_DIM : 0))
#define MOE_AT_KNORM    (MOE_AT_QNORM + (size_t)MOE_QNORM_DIM)
#define MOE_AT_QB       (MOE_AT_KNORM + (size_t)MOE_KNORM_DIM)
#define MOE_AT_KVB      (MOE_AT_QB + (size_t)MOE_Q_LORA * MOE_Q_DIM)
#define MOE_AT_O        (MOE_AT_KVB + (size_t)MOE_KVB_DIM * MOE_KV_LORA)
#define MOE_AT_O_BIAS   (MOE_AT_O + (size_t)MOE_HIDDEN * MOE_O_DIM)
#define MOE_AT_SINKS    (MOE_AT_O_BIAS + (size_t)(MOE_ATT_BIAS ? MOE_HIDDEN : 0))
#define MOE_AT_ROUTER   (MOE_AT_SINKS + (size_t)(MOE_SINKS ? MOE_HEADS : 0))
#define MOE_AT_RBIAS    (MOE_AT_ROUTER + (size_t)MOE_EXPERTS * MOE_HIDDEN)
#define MOE_ATT_ELEMS   (MOE_AT_RBIAS + (size_t)(MOE_ROUTER_BIAS || MOE_ROUTER == 3 ? MOE_EXPERTS : 0))
#define MOE_AT_DENSE    MOE_AT_ROUTER

/* One expert of bucket EXPERTS: gate and up as one [2 F, H], down [H, F], and where there are biases [2 F] and [H]. */
#define MOE_AT_DOWN      ((size_t)2 * MOE_FFN_HIDDEN * MOE_HIDDEN)
#define MOE_AT_GU_BIAS   ((size_t)3 * MOE_FFN_HIDDEN * MOE_HIDDEN)
#define MOE_AT_DOWN_BIAS (MOE_AT_GU_BIAS + (size_t)2 * MOE_FFN_HIDDEN)
#define MOE_EXPERT_ELEMS (MOE_AT_GU_BIAS + (size_t)(MOE_EXPERT_BIAS ? 2 * MOE_FFN_HIDDEN + MOE_HIDDEN : 0))

/* Tokens whose logits are held at once: at most 8 Mi logits, at least 32 tokens. */
#define MOE_HEAD_CHUNK                                                                                                 \
  ((8 << 20) / MOE_VOCAB > 256  ? (size_t)256                                                                          \
   : (8 << 20) / MOE_VOCAB < 32 ? (size_t)32                                                                           \
                                : (size_t)((8 << 20) / MOE_VOCAB))

/* Pairs of one expert that are worked on at once; rows whose sums are under way at once, of which an expert has a share
   of MOE_FFN_SHARE or more: products of fewer rows spend their time on reading weights. Tests choose smaller ones. */
#ifndef MOE_FFN_TILE
#define MOE_FFN_TILE ((size_t)1024)
#endif
#ifndef MOE_FFN_SHARE
#define MOE_FFN_SHARE 256
#endif
#define MOE_FFN_ROWS ((size_t)MOE_FFN_SHARE * ((MOE_EXPERTS + MOE_TOP_K - 1) / MOE_TOP_K))

/* Tokens whose rows are held as floats at once, in all that works token by token. */
#ifndef MOE_ATT_TILE
#define MOE_ATT_TILE ((size_t)1024)
#endif

/* One attention tile: query positions (times the heads that share a key head) and keys. */
#define MOE_TILE_Q (MOE_GROUP <= 2 ? 64 : MOE_GROUP <= 4 ? 32 : 16)
#define MOE_TILE_R (MOE_TILE_Q * MOE_GROUP)
#define MOE_TILE_K 256

static_assert(MOE_TOP_K >= 1 && MOE_TOP_K <= MOE_EXPERTS, "top_k must not exceed experts");
static_assert(MOE_EXPERTS <= 65535, "expert indices are kept in 16 bits");
static_assert(MOE_HEADS % MOE_KV_HEADS == 0, "heads must be a multiple of kv_heads");
static_assert(MOE_ROPE_DIM % 2 == 0, "rotary embedding turns pairs");
static_assert(MOE_LATENT || (MOE_ROPE_DIM == MOE_HEAD_DIM && MOE_V_DIM == MOE_HEAD_DIM),
              "only latent heads have parts");
static_assert(!MOE_LATENT || (MOE_GROUP == 1 && !MOE_ATT_BIAS && !MOE_QK_NORM),
              "latent attention has no grouped heads, biases or norms of heads");
static_assert(MOE_ROUTER >= 0 && MOE_ROUTER <= 3, "these kernels know routers 0 to 3 only");
static_assert(MOE_EXPERTS % MOE_GROUPS == 0, "groups must divide experts");
static_assert(MOE_BF16 == 0 || MOE_BF16 == 1, "storage is fp32 or bf16");

MOE_FN size_t moe_min(size_t a, size_t b)
{
  return a < b ? a : b;
}

MOE_FN size_t moe_max(size_t a, size_t b)
{
  return a > b ? a : b;
}

#endif
