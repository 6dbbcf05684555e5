#include "tests/plan/oracle.h"

#include <stdbool.h>

static double larger(double a, double b)
{
  return a > b ? a : b;
}

double oracle_rate_ns(const Spec *s, double gemm, double grouped, double core)
{
  const GpuSpec *g = &s->cluster.gpu;
  return (gemm / (g->flops * g->eff_gemm) + grouped / (g->flops * g->eff_grouped) +
          core / (g->flops * g->eff_attention)) *
         1e9;
}

static bool windowed(const Spec *s, int layer)
{
  return s->model.attention.window > 0 &&
         (s->model.attention.window_layers == LAYERS_ALL ||
          (s->model.attention.window_layers == LAYERS_EVEN ? layer % 2 == 0 : layer % 2));
}

double oracle_attention_ns(const Spec *s, int layer, int seqs, bool wgrad, Recompute recompute)
{
  const ModelSpec *m = &s->model;
  double seq = (double)s->shapes[0].seq, t = seq * seqs, h = m->hidden, d = m->attention.head_dim, pairs = 0;
  for (int q = 0; q < (int)seq; q++) {
    double keys = q + 1;
    pairs += windowed(s, layer) && keys > (double)m->attention.window ? (double)m->attention.window : keys;
  }
  double gemm = 4 * t * h * d * (m->attention.heads + m->attention.kv_heads);
  gemm += layer < m->dense.layers ? 6 * t * h * m->dense.hidden : 2 * t * h * m->moe.experts;
  double core = 4 * seqs * m->attention.heads * d * pairs, launch = s->cluster.gpu.launch_ns;
  double ns = oracle_rate_ns(s, gemm, 0, core) + launch + oracle_rate_ns(s, gemm, 0, 2.5 * core) + launch;
  bool dense = layer < m->dense.layers, twice = recompute == RECOMPUTE_FULL && (dense || wgrad);
  ns += twice ? oracle_rate_ns(s, gemm, 0, core) + (dense ? 0 : launch) : 0;
  return ns + (wgrad ? oracle_rate_ns(s, gemm, 0, 0) + launch : 0);
}

double oracle_head_ns(const Spec *s, int seqs)
{
  double t = (double)s->shapes[0].seq * seqs;
  return oracle_rate_ns(s, 6 * t * s->model.hidden * s->model.vocab, 0, 0) + s->cluster.gpu.launch_ns;
}

/* The head is on the attention group with the least to do otherwise: with one sequence on a rank, forward and backward.
   Equal ones: group L mod p first, then the lowest. */
static int head_home(const Spec *s, int p)
{
  int best = s->model.layers % p;
  double least = 0;
  for (int turn = -1; turn < p; turn++) {
    int g = turn < 0 ? best : turn;
    double sum = 0;
    for (int l = g; l < s->model.layers; l += p) {
      sum += oracle_attention_ns(s, l, 1, true, RECOMPUTE_NONE);
    }
    if (turn < 0 || sum < least - 1e-9 * least) {
      least = sum;
      best = g;
    }
  }
  return best;
}

static double busiest(const Spec *s, int p, const int *home)
{
  double most = 0;
  for (int g = 0; g < p; g++) {
    double sum = home[s->model.layers] == g ? oracle_head_ns(s, 1) : 0;
    for (int l = 0; l < s->model.layers; l++) {
      sum += home[l] == g ? oracle_attention_ns(s, l, 1, true, RECOMPUTE_NONE) : 0;
    }
    most = larger(most, sum);
  }
  return most;
}

static int sort_of(const Spec *s, int layer)
{
  return 2 * windowed(s, layer) + (layer < s->model.dense.layers);
}

/* Layers in turns; or, if the busiest group then has a hundredth less, the longest first to the group that has least,
   the head before all. Of each sort a group has so many; in the order of the layers each goes to the group that has
   the least part of its own so far, the next one after the last on. Groups have the numbers in which they come. */
void oracle_deal(const Spec *s, int p, int *home)
{
  int layers = s->model.layers, n[ORACLE_LAYERS][4] = {{0}}, of[ORACLE_LAYERS] = {0}, got[ORACLE_LAYERS] = {0},
      names = 0;
  double sum[ORACLE_LAYERS] = {0};
  bool dealt[ORACLE_LAYERS] = {false};
  for (int l = 0; l < layers; l++) {
    home[l] = l % p;
  }
  home[layers] = head_home(s, p);
  double turns = busiest(s, p, home);
  sum[p - 1] = oracle_head_ns(s, 1);
  for (int i = 0; i < layers; i++) {
    int longest = -1, g = 0;
    for (int l = 0; l < layers; l++) {
      bool more = !dealt[l] && (longest < 0 || oracle_attention_ns(s, l, 1, true, RECOMPUTE_NONE) >
                                                   oracle_attention_ns(s, longest, 1, true, RECOMPUTE_NONE));
      longest = more ? l : longest;
    }
    for (int h = 0; h < p; h++) {
      g = sum[h] < sum[g] - 1e-9 * sum[g] ? h : g;
    }
    dealt[longest] = true;
    sum[g] += oracle_attention_ns(s, longest, 1, true, RECOMPUTE_NONE);
    n[g][sort_of(s, longest)]++;
    of[g]++;
  }
  double most = 0;
  for (int g = 0; g < p; g++) {
    most = larger(most, sum[g]);
  }
  if (most >= 0.99 * turns) {
    return;
  }
  int name[ORACLE_LAYERS], last = p - 1;
  for (int g = 0; g < p; g++) {
    name[g] = -1;
  }
  for (int l = 0; l < layers; l++) {
    int best = -1;
    for (int i = 0, g = (last + 1) % p; i < p; i++, g = (g + 1) % p) {
      bool first = best < 0 || (got[g] + 1.0) / of[g] < (got[best] + 1.0) / of[best] * (1 - 1e-12);
      best = n[g][sort_of(s, l)] > 0 && first ? g : best;
    }
    n[best][sort_of(s, l)]--;
    got[best]++;
    name[best] = name[best] < 0 ? names++ : name[best];
    home[l] = name[best];
    last = best;
  }
  home[layers] = name[p - 1] < 0 ? p - 1 : name[p - 1];
}
