/* Counter-based random numbers: no state, any element on its own. */
#include "runtime/init.h"

#include <math.h>

#include "runtime/topo.h"

uint64_t moe_mix(uint64_t x)
{
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

uint64_t moe_init_key(uint64_t seed, const char *name)
{
  uint64_t h = 0xcbf29ce484222325u;
  for (const char *c = name; *c != '\0'; c++) {
    h = (h ^ (uint8_t)*c) * 0x100000001b3u;
  }
  return moe_mix(h ^ moe_mix(seed));
}

double moe_init_normal(uint64_t key, uint64_t i)
{
  const double tau = 6.283185307179586476925;
  double u1 = (double)((moe_mix(key + 2 * i) >> 11) + 1) * 0x1p-53;
  double u2 = (double)(moe_mix(key + 2 * i + 1) >> 11) * 0x1p-53;
  return sqrt(-2.0 * log(u1)) * cos(tau * u2);
}

void moe_init_bucket(const MoeBundle *b, const MoeBucket *bucket, uint64_t seed, float *values, int64_t begin,
                     int64_t end)
{
  for (int32_t p = 0; p < bucket->n_params; p++) {
    const MoeParam *param = &b->params[bucket->first_param + p];
    int64_t n = moe_param_elems(param);
    uint64_t key = moe_init_key(seed, param->name);
    int64_t from = begin > param->offset ? begin - param->offset : 0;
    int64_t to = end - param->offset < n ? end - param->offset : n;
    for (int64_t i = from; i < to; i++) {
      double value = param->std > 0   ? (double)param->std * moe_init_normal(key, (uint64_t)i)
                     : param->std < 0 ? 0.0
                                      : 1.0;
      values[param->offset + i] = (float)value;
    }
  }
}
