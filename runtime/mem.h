/* Memory of a rank: sized and carved from one piece of the device's and one of the host's at start, never allocated
   again. */
#ifndef MOE_MEM_H
#define MOE_MEM_H

#include "runtime/device.h"
#include "runtime/topo.h"
#include "runtime/wiring.h"

/* One bucket as this rank holds it. The optimizer state covers the rank's own slice [begin, begin + n). */
typedef struct MoeHeld {
  const MoeBucket *bucket;
  int32_t holder; /* index among the holders */
  int64_t begin;
  int64_t n;
  void *w;       /* [elems] of weight_bytes each: moe_weights_at() */
  float *g;      /* [elems] */
  float *master; /* [n] */
  float *m;
  float *v;
} MoeHeld;

enum { MOE_SUM_CHUNK = 4096 }; /* floats that gradient reduction sums at a time */

typedef struct MoeMem {
  const MoeDevice *device;
  size_t weight_bytes;
  uint8_t *base; /* of the device */
  uint64_t bytes;
  uint8_t *host; /* of the host, for kernels to reach: batch, notes, scalars, messages to oneself */
  uint64_t host_bytes;
  MoeHeld *held; /* the buckets of this rank, in the bundle's order */
  int32_t n_held;
  size_t att_saved_bytes, att_work_bytes, ffn_saved_bytes, ffn_work_bytes; /* of one slot */
  size_t scratch_bytes[2];
  uint8_t *att_saved, *att_work, *ffn_saved, *ffn_work;
  uint8_t *att_notes, *ffn_notes; /* [saved slots][MOE_NOTE_BYTES] */
  uint8_t *scratch[2];            /* compute thread; progress thread, NULL if it needs none */
  double *scalars[2];             /* [MOE_SC_COUNT] of the two threads */
  float *sums;                    /* [MOE_SUM_CHUNK] */
  int32_t *tokens;                /* [micro_batches][att_seqs * seq]; NULL without attention */
  int32_t *labels;
  int32_t *sample; /* [seq + 1] */
  uint8_t *self_slabs;
  /* bytes by term, as the planner counts them; buffers are message slots, most of which lie in shared memory */
  uint64_t weights, gradients, optimizer, activations, buffers, workspace;
} MoeMem;

/* Memory of a rank, [number of shapes]: buckets once, which all entries name; the pools, batch and scratch of the
   shapes over each other, since one shape runs at a time; slots of messages to itself for each. The terms of mems[0]
   are those of the whole program. Of moe_mem_size() only sizes are set: nothing is allocated but the list of buckets.
 */
MoeStatus moe_mem_size(MoeMem *mems, const MoeBundle *first, int32_t rank, const MoeKernels *, const MoeWiring *);

/* Sizes and maps. poison: fills everything with 0xFF bytes, which are NaN. */
MoeStatus moe_mem_map(MoeMem *mems, const MoeBundle *first, int32_t rank, const MoeKernels *, const MoeWiring *,
                      bool poison);
void moe_mem_unmap(MoeMem *mems);

/* Element `at` of a bucket's weights. */
void *moe_weights_at(const MoeMem *, const MoeHeld *, int64_t at);

/* n values as floats for the host: in place, or a copy. moe_values_done() gives a copy back; NULL: no memory, or the
   device failed, which has been logged. moe_values_of_weights() of a whole bucket; kernels of the host have floats. */
const float *moe_values_of(const MoeMem *, const float *at, int64_t n);
const float *moe_values_of_weights(const MoeMem *, const MoeHeld *);
void moe_values_done(const MoeMem *, const float *);

/* The part of a parameter that lies in the rank's own slice, by index in the bucket; from >= to: none. */
typedef struct MoeSlice {
  int64_t from, to;
} MoeSlice;

MoeSlice moe_held_slice(const MoeHeld *, const MoeParam *);

/* NULL if the rank does not hold it. */
MoeHeld *moe_mem_held(const MoeMem *, MoeBucketKind, int32_t layer);

#endif
