/* What trials say about plans that were not tried. The simulator errs mostly because a constant is wrong: attention,
   the experts or the network take longer than it thinks, each by a factor of its own. Every combination of such factors
   is a world; trials make worlds likely or not (Bayes). A plan's step in a world is the simulated one, times how much
   longer its busiest resources are busy there: sides and network count by their 6-norm, a maximum with soft edges.
   What worlds do not explain is taken for a smooth function of where a plan lies, with correlation exp(-d^2 / 2) at
   distance d (Gaussian process regression). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "codegen/cost_terms.h"
#include "codegen/tune.h"

enum { GRID = 13, WORLDS = GRID * GRID * GRID };

/* Factors are powers of 2 with exponents from -1.5 to 1.5; a likely error of a constant, as an exponent; how well a
   world says what a step takes, and how far plans that have nothing in common may be from what it says; noise of a
   measured step. All but the first two are logarithms to base e. */
static const double grid_step = 0.25, likely = 0.7, fit = 0.08, variation = 0.12, noise = 0.02;

struct TuneBelief {
  int most, n; /* trials */
  double factor[GRID];
  double weight[WORLDS];
  TuneLoad *loads; /* [most] of the trials */
  double (*places)[TUNE_FEATURES];
  double *off; /* logarithm of measured over predicted */
  double *y;   /* what worlds do not explain, solved by l */
  double *l;   /* [most][most] */
  double *scratch;
};

/* ---- worlds ---- */

static double sixth(double x)
{
  return x * x * x * x * x * x;
}

/* To the sixth power. */
static double norm(const TuneLoad *w, double att, double ffn, double net)
{
  double sum = sixth(net * w->net);
  for (int r = 0; r < TUNE_ROLES; r++) {
    sum += sixth(att * w->att[r] + ffn * w->ffn[r]);
  }
  return sum;
}

/* Logarithm of how much longer a step is in a world. */
static double stretch(const TuneBelief *b, const TuneLoad *load, int world)
{
  double att = b->factor[world % GRID], ffn = b->factor[world / GRID % GRID], net = b->factor[world / GRID / GRID];
  double now = norm(load, 1, 1, 1);
  return now > 0 ? log(norm(load, att, ffn, net) / now) / 6 : 0;
}

static void believe(TuneBelief *b)
{
  double most = -INFINITY, sum = 0;
  for (int w = 0; w < WORLDS; w++) {
    double at[3] = {w % GRID, w / GRID % GRID, w / GRID / GRID}, score = 0;
    for (int k = 0; k < 3; k++) {
      double exponent = (at[k] - GRID / 2) * grid_step / likely;
      score -= exponent * exponent / 2;
    }
    for (int i = 0; i < b->n; i++) {
      double miss = isfinite(b->off[i]) ? (b->off[i] - stretch(b, &b->loads[i], w)) / fit : 0;
      score -= miss * miss / 2;
    }
    b->weight[w] = score;
    most = score > most ? score : most;
  }
  for (int w = 0; w < WORLDS; w++) {
    b->weight[w] = exp(b->weight[w] - most);
    sum += b->weight[w];
  }
  for (int w = 0; w < WORLDS; w++) {
    b->weight[w] /= sum;
  }
}

static void expect(const TuneBelief *b, const TuneLoad *load, double *mean, double *variance)
{
  double first = 0, second = 0;
  for (int w = 0; w < WORLDS; w++) {
    if (b->weight[w] > 1e-6) {
      double s = stretch(b, load, w);
      first += b->weight[w] * s;
      second += b->weight[w] * s * s;
    }
  }
  *mean = first;
  *variance = second > first * first ? second - first * first : 0;
}

/* ---- the rest ---- */

static double correlation(const double *a, const double *b)
{
  double d = 0;
  for (int i = 0; i < TUNE_FEATURES; i++) {
    d += (a[i] - b[i]) * (a[i] - b[i]);
  }
  return exp(-d / 2);
}

/* v := l^-1 v */
static void solve(const TuneBelief *b, double *v)
{
  for (int i = 0; i < b->n; i++) {
    for (int k = 0; k < i; k++) {
      v[i] -= b->l[i * b->most + k] * v[k];
    }
    v[i] /= b->l[i * b->most + i];
  }
}

/* The correlations of all trials as l l^T. */
static void factorize(TuneBelief *b)
{
  for (int i = 0; i < b->n; i++) {
    for (int j = 0; j <= i; j++) {
      double sum = correlation(b->places[i], b->places[j]);
      sum += i == j ? noise * noise / (variation * variation) : 0;
      for (int k = 0; k < j; k++) {
        sum -= b->l[i * b->most + k] * b->l[j * b->most + k];
      }
      b->l[i * b->most + j] = i == j ? sqrt(sum) : sum / b->l[j * b->most + j];
    }
  }
}

TuneBelief *tune_belief(Arena *arena, int trials)
{
  TuneBelief *b = arena_new_of(arena, TuneBelief);
  size_t n = (size_t)trials + 1;
  b->most = trials + 1;
  b->loads = arena_new_array(arena, TuneLoad, n);
  b->places = arena_array(arena, n, sizeof *b->places);
  b->off = arena_new_array(arena, double, n);
  b->y = arena_new_array(arena, double, n);
  b->l = arena_new_array(arena, double, n *n);
  b->scratch = arena_new_array(arena, double, n);
  for (int i = 0; i < GRID; i++) {
    b->factor[i] = exp2((i - GRID / 2) * grid_step);
  }
  believe(b);
  return b;
}

void tune_learn(TuneBelief *b, const TuneTrial *t)
{
  static const double failure = 0.7; /* plans like one that fails count as if they took twice as long */
  const TuneCandidate *c = t->what;
  b->loads[b->n] = c->load;
  memcpy(b->places[b->n], c->at, sizeof c->at);
  b->off[b->n] = t->measured_ns > 0 ? log(t->measured_ns / c->predicted_ns) : INFINITY;
  b->n++;
  believe(b);
  factorize(b);
  for (int i = 0; i < b->n; i++) {
    double mean, variance;
    expect(b, &b->loads[i], &mean, &variance);
    b->y[i] = isfinite(b->off[i]) ? b->off[i] - mean : failure;
  }
  solve(b, b->y);
}

void tune_guess(const TuneBelief *b, const TuneCandidate *c, double *mean, double *spread)
{
  double variance, known = 0, *k = b->scratch;
  expect(b, &c->load, mean, &variance);
  for (int i = 0; i < b->n; i++) {
    k[i] = correlation(b->places[i], c->at);
  }
  solve(b, k);
  for (int i = 0; i < b->n; i++) {
    *mean += k[i] * b->y[i];
    known += k[i] * k[i];
  }
  *spread = sqrt(variance + variation * variation * (known < 1 ? 1 - known : 0));
}

/* ---- loads ---- */

static double layer_net(const Spec *spec, const Plan *plan, int layer)
{
  static const MoeEdge edges[] = {MOE_EDGE_DISPATCH, MOE_EDGE_COMBINE, MOE_EDGE_DISPATCH_B, MOE_EDGE_COMBINE_B,
                                  MOE_EDGE_DISPATCH_AGAIN};
  int n = cost_again(spec, plan->recompute, layer) ? 5 : 4;
  double ns = 0;
  for (int i = 0; i < n; i++) {
    MsgCost c = cost_msg(spec, plan, edges[i], layer);
    ns += (double)(c.src_ns > c.dst_ns ? c.src_ns : c.dst_ns);
  }
  return ns / 2; /* two go each way, and the ways do not disturb each other */
}

TuneLoad tune_load(Arena *arena, const Spec *spec, const Plan *plan)
{
  TuneLoad load = {0};
  double *att = arena_new_array(arena, double, (size_t)plan->n_groups);
  double *ffn = arena_new_array(arena, double, (size_t)plan->n_groups);
  double *net = arena_new_array(arena, double, (size_t)plan->n_groups);
  double times = (double)plan->micro_batches / plan->ways, chunks = plan->chunks > 1 ? plan->chunks : 1;
  for (int way = 0; way < plan->ways; way++) {
    for (int l = 0; l < spec->model.layers; l++) {
      int a = plan_att(spec, plan, way, l), f = plan_ffn(spec, plan, way, l);
      for (int kind = 0; kind < 3; kind++) {
        static const MoeOpKind of_att[] = {MOE_OP_ATT_FWD, MOE_OP_ATT_DGRAD, MOE_OP_ATT_WGRAD};
        static const MoeOpKind of_ffn[] = {MOE_OP_FFN_FWD, MOE_OP_FFN_DGRAD, MOE_OP_FFN_WGRAD};
        att[a] += times * (double)cost_op_ns(spec, plan, of_att[kind], l);
        ffn[f] += l < spec->model.dense.layers ? 0 : times * chunks * (double)cost_op_ns(spec, plan, of_ffn[kind], l);
      }
      att[a] += times * (double)cost_op_ns(spec, plan, MOE_OP_ATT_AGAIN, l);
      if (l >= spec->model.dense.layers) {
        double ns = times * chunks * layer_net(spec, plan, l);
        net[a] += ns;
        net[f] += a == f ? 0 : ns;
      }
    }
    att[plan_att(spec, plan, way, spec->model.layers)] +=
        times * (double)cost_op_ns(spec, plan, MOE_OP_HEAD, spec->model.layers);
  }
  for (int g = 0; g < plan->n_groups; g++) {
    int r = plan->groups[g].role - 1;
    if (att[g] + ffn[g] > load.att[r] + load.ffn[r]) {
      load.att[r] = att[g];
      load.ffn[r] = ffn[g];
    }
    load.net = net[g] > load.net ? net[g] : load.net;
  }
  return load;
}
