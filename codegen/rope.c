#include "codegen/rope.h"

#include <math.h>

int rope_dim(const ModelSpec *m)
{
  return m->attention.kind == ATTENTION_MLA ? m->attention.rope_dim : m->attention.head_dim;
}

/* The index whose frequency turns so many times within the original context. */
static double index_of(const ModelSpec *m, double turns)
{
  const double pi = 3.14159265358979323846;
  const RopeSpec *r = &m->attention.rope;
  return rope_dim(m) * log((double)r->original / (2 * pi * turns)) / (2 * log(r->theta));
}

YarnRamp yarn_ramp(const ModelSpec *m)
{
  const RopeSpec *r = &m->attention.rope;
  if (!r->yarn) {
    return (YarnRamp){0, 1};
  }
  double low = index_of(m, r->beta_fast), high = index_of(m, r->beta_slow);
  low = fmax(0, r->truncate ? floor(low) : low);
  high = fmin(rope_dim(m) - 1, r->truncate ? ceil(high) : high);
  return (YarnRamp){low, high == low ? low + 0.001 : high};
}

static double mscale(double factor, double k)
{
  return factor > 1 ? 0.1 * k * log(factor) + 1 : 1;
}

double rope_scale(const ModelSpec *m)
{
  const RopeSpec *r = &m->attention.rope;
  if (!r->yarn) {
    return 1;
  }
  if (r->attention_factor > 0) {
    return r->attention_factor;
  }
  bool both = r->mscale > 0 && r->mscale_all_dim > 0;
  return both ? mscale(r->factor, r->mscale) / mscale(r->factor, r->mscale_all_dim) : mscale(r->factor, 1);
}

double score_scale(const ModelSpec *m)
{
  const RopeSpec *r = &m->attention.rope;
  double extra = r->yarn && r->mscale_all_dim > 0 ? mscale(r->factor, r->mscale_all_dim) : 1;
  return extra * extra / sqrt(m->attention.head_dim);
}
