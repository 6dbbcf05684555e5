/* Vector work of gradient reduction and AdamW:
   g' = scale g; m = b1 m + (1 - b1) g'; v = b2 v + (1 - b2) g'^2;
   w -= lr ((m / bias1) / (sqrt(v / bias2) + eps) + weight_decay w). Sums of squares are fp64. */
#include "moe_parts.h"
#include "moe_vec.h"

void moe_add(float *sum, const float *x, size_t n)
{
  for (size_t i = 0; i < n; i++) {
    sum[i] += x[i];
  }
}

double moe_sumsq(const float *x, size_t n)
{
  double lane[8] = {0};
  double sum = 0;
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (size_t l = 0; l < 8; l++) {
      lane[l] += (double)x[i + l] * (double)x[i + l];
    }
  }
  for (; i < n; i++) {
    sum += (double)x[i] * (double)x[i];
  }
  for (size_t l = 0; l < 8; l++) {
    sum += lane[l];
  }
  return sum;
}

typedef struct Rates {
  float lr, beta1, beta2, eps, decay, scale;
  float unbias1, unbias2; /* 1 / bias */
} Rates;

static inline float step(const Rates *a, float w, float *m, float *v, float g)
{
  float scaled = g * a->scale;
  *m = moe_fma(a->beta1, *m, (1.0f - a->beta1) * scaled);
  *v = moe_fma(a->beta2, *v, (1.0f - a->beta2) * scaled * scaled);
  float update = *m * a->unbias1 / (sqrtf(*v * a->unbias2) + a->eps);
  return moe_fma(-a->lr, moe_fma(a->decay, w, update), w);
}

/* Two loops, because fp32 callers may keep one copy for both: a loop that must allow for that is not vector code. */
void moe_adamw(const MoeAdam *adam, float *w, float *master, float *m, float *v, const float *g, size_t n, bool decay)
{
  const Rates a = {.lr = adam->lr,
                   .beta1 = adam->beta1,
                   .beta2 = adam->beta2,
                   .eps = adam->eps,
                   .decay = decay ? adam->weight_decay : 0.0f,
                   .scale = adam->scale,
                   .unbias1 = 1.0f / adam->bias1,
                   .unbias2 = 1.0f / adam->bias2};
  if (w == master) {
    for (size_t i = 0; i < n; i++) {
      w[i] = moe_round(step(&a, w[i], &m[i], &v[i], g[i]));
    }
    return;
  }
  for (size_t i = 0; i < n; i++) {
    master[i] = step(&a, master[i], &m[i], &v[i], g[i]);
    w[i] = moe_round(master[i]);
  }
}

void moe_to_weights(float *w, const float *master, size_t n)
{
  for (size_t i = 0; i < n; i++) {
    w[i] = moe_round(master[i]);
  }
}
