/* One MLP on one row: y = Wdown (act(g) u) + biases, g = Wgate x, u = Wup x. Plain: act(g) u = silu(g) u. Clamped:
   g = min(g, limit), u = clamp(u, -limit, limit), (u + 1) g sigmoid(alpha g); the clamp passes gradient up to and at
   the limit. */
#include "tests/ref/ref_model.h"

#include <math.h>
#include <stdlib.h>

#include "tests/ref/ref_math.h"

/* Value of the activation and its derivatives. */
static double activate(const RefConfig *c, bool clamped, double gate, double up, double *dgate, double *dup)
{
  double alpha = clamped ? c->act_alpha : 1;
  double g = clamped ? fmin(gate, c->act_limit) : gate;
  double u = clamped ? fmin(fmax(up, -c->act_limit), c->act_limit) + 1 : up;
  double sigma = 1 / (1 + exp(-alpha * g));
  *dgate = !clamped || gate <= c->act_limit ? u * sigma * (1 + alpha * g * (1 - sigma)) : 0;
  *dup = !clamped || fabs(up) <= c->act_limit ? g * sigma : 0;
  return u * g * sigma;
}

void ref_mlp(const RefConfig *c, const RefMlp *w, int64_t f, bool clamped, const double *x, int64_t row, RefMlpState *s)
{
  int64_t h = c->hidden;
  double *gate = s->gate + row * f;
  double *up = s->up + row * f;
  double *y = s->y + row * h;
  double *act = ref_alloc(f, sizeof(double));
  ref_linear(gate, x, w->gate, 1, h, f);
  ref_linear(up, x, w->up, 1, h, f);
  if (w->gate_bias) {
    ref_bias(gate, w->gate_bias, 1, f);
    ref_bias(up, w->up_bias, 1, f);
  }
  for (int64_t i = 0; i < f; i++) {
    double dgate;
    double dup;
    act[i] = activate(c, clamped, gate[i], up[i], &dgate, &dup);
  }
  ref_linear(y, act, w->down, 1, f, h);
  if (w->down_bias) {
    ref_bias(y, w->down_bias, 1, h);
  }
  free(act);
}

void ref_mlp_back(const RefConfig *c, const RefMlp *w, const RefMlp *g, int64_t f, bool clamped, const double *x,
                  const double *dy, int64_t row, const RefMlpState *s, double *dx)
{
  int64_t h = c->hidden;
  double *act = ref_alloc(f, sizeof(double));
  double *dact = ref_alloc(f, sizeof(double));
  ref_linear_dx(dact, dy, w->down, 1, f, h);
  for (int64_t i = 0; i < f; i++) {
    double dgate;
    double dup;
    act[i] = activate(c, clamped, s->gate[row * f + i], s->up[row * f + i], &dgate, &dup);
    dgate *= dact[i];
    dup *= dact[i];
    ref_axpy(g->gate + i * h, dgate, x, h);
    ref_axpy(g->up + i * h, dup, x, h);
    ref_axpy(dx, dgate, w->gate + i * h, h);
    ref_axpy(dx, dup, w->up + i * h, h);
    if (g->gate_bias) {
      g->gate_bias[i] += dgate;
      g->up_bias[i] += dup;
    }
  }
  ref_linear_dw(g->down, dy, act, 1, f, h);
  if (g->down_bias) {
    ref_bias_back(g->down_bias, dy, 1, h);
  }
  free(act);
  free(dact);
}
