/* The order in which training goes through indexed sequences, bit for bit that of the tools that the format comes from
   (GPT data sets; extra token per sample, last partial sample dropped), so that a run can be compared with theirs:
     documents   the part's sequences, once per epoch, shuffled over all epochs together; if the last epoch gives fewer
                 than 80 % of its samples, it is shuffled by itself behind the others
     samples     laid end to end over that: each takes seq + 1 tokens and starts at the last one of the one before
     shuffle     the samples shuffled, again with those of a separate last epoch by themselves
   Shuffles are Fisher-Yates from the end, as numpy.random.RandomState(seed).shuffle() makes them: MT19937 seeded by one
   32-bit number, an index below i by rejection from the smallest mask of ones. */
#ifndef MOE_DATA_ORDER_H
#define MOE_DATA_ORDER_H

#include "runtime/data_index.h"

typedef struct MoeOrder {
  int64_t first_seq; /* of the part */
  int64_t n_seqs;
  int64_t tokens; /* of the part: of one epoch */
  int64_t epochs;
  int64_t n_samples;   /* of all epochs, at least as many as asked for */
  uint32_t *documents; /* [epochs * n_seqs] sequence within the part; NULL: as they lie */
  uint32_t *shuffle;   /* [n_samples]; NULL: as they lie */
  uint32_t *at;        /* [n_samples] where a sample starts: in documents, */
  uint32_t *offset;    /* and which token of that sequence */
} MoeOrder;

/* Order over sequences [first, end) for at least `samples` samples of seq + 1 tokens, and never less than an epoch.
   samples 0: one epoch as it lies, without shuffling. A part that is too short for one sample has n_samples 0. */
MoeStatus moe_order_build(MoeOrder *, const MoeIndex *, int64_t first, int64_t end, int32_t seq, int64_t samples,
                          uint64_t seed);
void moe_order_free(MoeOrder *);

/* Sample of the number-th training sequence. */
int64_t moe_order_sample(const MoeOrder *, int64_t number);

/* Reads the seq + 1 tokens of a sample. */
MoeStatus moe_order_read(const MoeOrder *, const MoeIndex *, const MoeTokenFile *bin, const MoeTokenRange *,
                         int64_t sample, int32_t seq, int32_t *tokens);

#endif
