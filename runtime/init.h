/* Initial weights. Weight i of tensor `name` is std times a normal deviate that depends on (seed, name, i) alone, so
   every layout starts from the same model. */
#ifndef MOE_INIT_H
#define MOE_INIT_H

#include "runtime/moe_bundle.h"

/* splitmix64's output function (Steele, Lea, Flood 2014): a bijection of 64 bits that mixes well. */
uint64_t moe_mix(uint64_t x);

/* Stream of a tensor: FNV-1a of its name, mixed with the seed. */
uint64_t moe_init_key(uint64_t seed, const char *name);

/* Normal deviate number i of a stream: Box-Muller, z = sqrt(-2 ln u1) cos(2 pi u2), in double, with u1 in (0, 1] and u2
   in [0, 1) from the top 53 bits of moe_mix(key + 2 i) and moe_mix(key + 2 i + 1). */
double moe_init_normal(uint64_t key, uint64_t i);

/* Fills elements [begin, end) of a bucket, in floats before rounding to the storage type. `values` is the whole bucket.
 */
void moe_init_bucket(const MoeBundle *, const MoeBucket *, uint64_t seed, float *values, int64_t begin, int64_t end);

#endif
