/* Index arithmetic that the compiler, the runtime and the kernels must agree on: who holds which sequences and experts,
   who is home, who relays, and how many bytes a message takes. Inline, so that there is one copy of each rule. */
#ifndef MOE_LAYOUT_H
#define MOE_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

/* A function that kernels on a device call as well. */
#ifdef __CUDACC__
#define MOE_FN static inline __host__ __device__
#else
#define MOE_FN static inline
#endif

/* Part i of n of `count` things in contiguous parts whose sizes differ by at most one. */
MOE_FN int64_t moe_part_begin(int64_t count, int64_t n, int64_t i)
{
  return count * i / n;
}

MOE_FN int64_t moe_part_size(int64_t count, int64_t n, int64_t i)
{
  return moe_part_begin(count, n, i + 1) - moe_part_begin(count, n, i);
}

MOE_FN int64_t moe_part_max(int64_t count, int64_t n)
{
  return (count + n - 1) / n;
}

/* The part that holds thing x; the inverse of the above. Requires 0 <= x < count. */
MOE_FN int64_t moe_part_of(int64_t count, int64_t n, int64_t x)
{
  int64_t i = x * n / count;
  while (moe_part_begin(count, n, i) > x) {
    i--;
  }
  while (moe_part_begin(count, n, i + 1) <= x) {
    i++;
  }
  return i;
}

/* Sequences of micro-batch `mb` of one replica: the step's global batch is dealt to replicas in contiguous parts, each
   replica's part to its micro-batches in runs of `mb_seqs`; the last run may be short or empty (a ragged tail). */
MOE_FN int64_t moe_mb_seqs(int64_t global_batch, int64_t replicas, int64_t replica, int64_t mb_seqs, int64_t mb)
{
  int64_t mine = moe_part_size(global_batch, replicas, replica);
  int64_t left = mine - mb * mb_seqs;
  return left <= 0 ? 0 : left < mb_seqs ? left : mb_seqs;
}

/* Index within the global batch of the first sequence of that micro-batch. */
MOE_FN int64_t moe_mb_first(int64_t global_batch, int64_t replicas, int64_t replica, int64_t mb_seqs, int64_t mb)
{
  return moe_part_begin(global_batch, replicas, replica) + mb * mb_seqs;
}

/* Direction of a micro-batch: with two ways the first half of the micro-batches (the larger one) goes way 0, the rest
   way 1. */
MOE_FN int32_t moe_way(int32_t ways, int32_t micro_batches, int32_t mb)
{
  return ways > 1 && mb >= (micro_batches + 1) / 2;
}

/* How FFN ranks are addressed by a dispatch. With MOE_DEDUP_RANK a token goes once to each rank that holds one of its
   experts; with MOE_DEDUP_NODE once to each node, to a relay there; with MOE_DEDUP_FLAT once per chosen expert. */
typedef enum MoeDedup { MOE_DEDUP_RANK, MOE_DEDUP_NODE, MOE_DEDUP_FLAT } MoeDedup;

/* Things that part i of n has in common with the run [first, first + size), from *begin_p on: the sequences of a PIPE
   message between a rank that holds that run and rank i of the other group. */
MOE_FN int64_t moe_part_overlap(int64_t count, int64_t n, int64_t i, int64_t first, int64_t size, int64_t *begin_p)
{
  int64_t begin = moe_part_begin(count, n, i);
  int64_t end = moe_part_begin(count, n, i + 1);
  begin = begin > first ? begin : first;
  end = end < first + size ? end : first + size;
  *begin_p = begin;
  return end > begin ? end - begin : 0;
}

/* A message is a header, `rows` row heads, `pairs` pairs (DISPATCH, FORWARD) or `pairs` floats (their gradients),
   padding to 64 bytes, then `rows` rows of the wire type. Gradient messages of COMBINE and GATHER, and both directions
   of PIPE, have no heads and no pairs. */
typedef struct MoeMsgHead {
  uint32_t rows;
  uint32_t pairs;
  uint32_t stamp; /* moe_stamp() of the op that sent it; checked by the receiver */
  uint32_t bytes; /* of the whole message, this head included */
} MoeMsgHead;

typedef struct MoeRowHead {
  uint32_t token; /* sequence within the micro-batch of the replica, times seq, plus position */
  uint16_t pairs; /* pairs of this row in this message; may be 0 when a capacity dropped them all */
  uint16_t home;  /* index in the FFN group of the rank that adds the residual */
} MoeRowHead;

typedef struct MoePair {
  uint32_t expert; /* global expert index */
  float weight;    /* routing weight, as used */
} MoePair;

MOE_FN uint32_t moe_stamp(uint32_t step, uint32_t chunk, uint32_t layer, uint32_t mb, uint32_t edge)
{
  return (step & 0x1fu) << 27 | (chunk & 0x7u) << 24 | (layer & 0xffu) << 16 | (mb & 0xfffu) << 4 | (edge & 0xfu);
}

MOE_FN size_t moe_align64(size_t bytes)
{
  return (bytes + 63u) & ~(size_t)63u;
}

MOE_FN size_t moe_msg_rows_at(size_t rows, size_t row_head_bytes, size_t pairs, size_t pair_bytes)
{
  return moe_align64(sizeof(MoeMsgHead) + rows * row_head_bytes + pairs * pair_bytes);
}

#endif
