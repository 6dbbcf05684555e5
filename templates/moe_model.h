/* Sizes that follow from moe_config.h, where each tensor lies in its bucket, and which combinations the kernels refuse.
 */
#ifndef MOE_MODEL_H
#define MOE_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include "moe_config.h"
#include "moe_kernels.h"

#define MOE_Q_DIM   (MOE_HEADS * MOE_HEAD_DIM)
#define MOE_KV_DIM  (MOE_KV_HEADS * MOE_HEAD_DIM)
#define MOE_QKV_DIM (MOE_Q_DIM + 2 * MOE_KV_DIM)
#define MOE_GROUP   (MOE_HEADS / MOE_KV_HEADS) /* query heads per key head */

/* Bucket ATT: input norm [H], q, k, v projections as one [QKV, H], head norms [d] each, output projection [H, Q],
   router [E, H]. */
#define MOE_AT_QKV    ((size_t)MOE_HIDDEN)
#define MOE_AT_QNORM  (MOE_AT_QKV + (size_t)MOE_QKV_DIM * MOE_HIDDEN)
#define MOE_AT_KNORM  (MOE_AT_QNORM + (size_t)(MOE_QK_NORM ? MOE_HEAD_DIM : 0))
#define MOE_AT_O      (MOE_AT_KNORM + (size_t)(MOE_QK_NORM ? MOE_HEAD_DIM : 0))
#define MOE_AT_ROUTER (MOE_AT_O + (size_t)MOE_HIDDEN * MOE_Q_DIM)
#define MOE_ATT_ELEMS (MOE_AT_ROUTER + (size_t)MOE_EXPERTS * MOE_HIDDEN)

/* One expert of bucket EXPERTS: gate and up as one [2 F, H], then down [H, F]. */
#define MOE_AT_DOWN      ((size_t)2 * MOE_FFN_HIDDEN * MOE_HIDDEN)
#define MOE_EXPERT_ELEMS ((size_t)3 * MOE_FFN_HIDDEN * MOE_HIDDEN)

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

_Static_assert(MOE_TOP_K >= 1 && MOE_TOP_K <= MOE_EXPERTS, "top_k must not exceed experts");
_Static_assert(MOE_EXPERTS <= 65535, "expert indices are kept in 16 bits");
_Static_assert(MOE_HEADS % MOE_KV_HEADS == 0, "heads must be a multiple of kv_heads");
_Static_assert(MOE_HEAD_DIM % 2 == 0, "rotary embedding pairs the two halves of a head");
_Static_assert(MOE_ROUTER >= 0 && MOE_ROUTER <= 2, "these kernels know routers 0 to 2 only");
_Static_assert(MOE_BF16 == 0 || MOE_BF16 == 1, "storage is fp32 or bf16");

static inline size_t moe_min(size_t a, size_t b)
{
  return a < b ? a : b;
}

static inline size_t moe_max(size_t a, size_t b)
{
  return a > b ? a : b;
}

#endif
