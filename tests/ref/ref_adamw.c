#include "tests/ref/ref_model.h"

#include <math.h>

#include "tests/ref/ref_math.h"

double ref_lr(const RefConfig *c, int64_t step)
{
  if (step < c->warmup) {
    return c->lr * (double)(step + 1) / (double)c->warmup;
  }
  if (c->lr_kind == REF_LR_CONSTANT) {
    return c->lr;
  }
  int64_t length = c->steps - c->warmup > 1 ? c->steps - c->warmup : 1;
  double done = fmin(1, (double)(step - c->warmup) / (double)length);
  double left = c->lr_kind == REF_LR_COSINE ? 0.5 * (1 + cos(3.14159265358979323846 * done)) : 1 - done;
  return c->lr_min + (c->lr - c->lr_min) * left;
}

double ref_grad_norm(const RefParams *g)
{
  double sum = 0;
  for (int i = 0; i < g->n_tensors; i++) {
    const RefTensor *t = &g->tensors[i];
    sum += t->kind == REF_SELECTION ? 0 : ref_dot(t->data, t->data, t->n);
  }
  return sqrt(sum);
}

void ref_adamw(const RefConfig *c, RefParams *p, const RefParams *g, RefAdam *adam)
{
  if (!adam->m) {
    adam->m = ref_alloc(p->n, sizeof(double));
    adam->v = ref_alloc(p->n, sizeof(double));
  }
  double lr = ref_lr(c, adam->step);
  double norm = ref_grad_norm(g);
  double scale = c->clip > 0 && norm > c->clip ? c->clip / norm : 1;
  adam->step++;
  double bias1 = 1 - pow(c->beta1, (double)adam->step);
  double bias2 = 1 - pow(c->beta2, (double)adam->step);
  for (int i = 0; i < p->n_tensors; i++) {
    if (p->tensors[i].kind == REF_SELECTION) {
      continue;
    }
    double decay = p->tensors[i].kind == REF_MATRIX ? c->weight_decay : 0;
    int64_t first = p->tensors[i].data - p->data;
    for (int64_t j = first; j < first + p->tensors[i].n; j++) {
      double x = g->data[j] * scale;
      adam->m[j] = c->beta1 * adam->m[j] + (1 - c->beta1) * x;
      adam->v[j] = c->beta2 * adam->v[j] + (1 - c->beta2) * x * x;
      double update = adam->m[j] / bias1 / (sqrt(adam->v[j] / bias2) + c->eps);
      p->data[j] -= lr * update + lr * decay * p->data[j];
    }
  }
}
