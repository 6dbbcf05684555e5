/* The planner against every allocation there is: replicas, groups, ranks per group, NICs and placement are enumerated
   and priced by code of its own, which walks ranks and pairs of ranks where the planner uses closed forms. Memory is
   ample here, so that only times decide. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>

#include "tests/plan/specs.h"

enum { CASES = 500 };

typedef struct Raw {
  int replicas, p_att, p_ffn, m, n, att_nics, ffn_nics;
  bool mixed;
  int head; /* attention group of the head */
} Raw;

static int ceil_div(int a, int b)
{
  return a / b + (a % b != 0);
}

static double larger(double a, double b)
{
  return a > b ? a : b;
}

/* ---- where ranks are ---- */

static int first_att(const Raw *r, int g)
{
  return r->mixed ? g * (r->m + r->n) : g * r->m;
}

static int first_ffn(const Raw *r, int g)
{
  return r->mixed ? g * (r->m + r->n) + r->m : r->p_att * r->m + g * r->n;
}

static int total(const Raw *r)
{
  return r->p_att * r->m + r->p_ffn * r->n;
}

/* Attention group after a layer. */
static int next_att(const Spec *s, const Raw *r, int layer)
{
  return layer + 1 == s->model.layers ? r->head : (layer + 1) % r->p_att;
}

/* ---- compute ---- */

static double rate_ns(const Spec *s, double gemm, double grouped, double core)
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

/* Forward, input gradient and, if asked for, weight gradient of one layer's attention side, with launches. */
static double attention_ns(const Spec *s, int layer, int seqs, bool wgrad)
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
  double ns = rate_ns(s, gemm, 0, core) + launch + rate_ns(s, gemm, 0, 2.5 * core) + launch;
  return ns + (wgrad ? rate_ns(s, gemm, 0, 0) + launch : 0);
}

static double head_ns(const Spec *s, int seqs)
{
  double t = (double)s->shapes[0].seq * seqs;
  return rate_ns(s, 6 * t * s->model.hidden * s->model.vocab, 0, 0) + s->cluster.gpu.launch_ns;
}

static int experts_on(const Spec *s, int n, int j)
{
  int e = s->model.moe.experts;
  return e * (j + 1) / n - e * j / n;
}

/* Chance of touching `e` experts: one minus the share of subsets that avoid them. */
static double touch(const Spec *s, int e)
{
  double all = 1, avoid = 1;
  int n = s->model.moe.experts, k = s->model.moe.top_k;
  for (int i = 1; i <= k; i++) { /* binomials by Pascal's product */
    all *= (double)(n - k + i) / i;
    avoid *= n - e - k + i > 0 && n - e >= k ? (double)(n - e - k + i) / i : 0;
  }
  return 1 - avoid / all;
}

static double imbalance(const Spec *s)
{
  return s->model.moe.imbalance > 1 ? s->model.moe.imbalance : 1;
}

static double fullest_rows(const Spec *s, int e)
{
  double rows = touch(s, e) * imbalance(s);
  return rows < 1 ? rows : 1;
}

static double fullest_pairs(const Spec *s, int e)
{
  double k = s->model.moe.top_k, mean = k * e / s->model.moe.experts * imbalance(s), most = e < k ? e : k;
  return mean < most ? mean : most;
}

static double experts_ns(const Spec *s, int n, double tokens)
{
  int e = ceil_div(s->model.moe.experts, n);
  double h = s->model.hidden;
  return 3 * rate_ns(s, 6 * tokens / n * h * s->model.moe.shared,
                     6 * tokens * fullest_pairs(s, e) * h * s->model.moe.hidden, 0);
}

/* ---- traffic ---- */

typedef struct Link {
  double nvlink, nic;
} Link;

typedef struct Traffic {
  Link out, in;
} Traffic;

typedef struct Net {
  const Spec *s;
  const Raw *r;
  int per, nodes;
  bool single, relays;
} Net;

/* Rows and pairs per token from an attention rank to FFN rank j. */
static void share(const Net *net, int j, bool fullest, double *rows, double *pairs)
{
  const Spec *s = net->s;
  int on = net->r->n < net->per ? net->r->n : net->per, e = 0;
  double k = s->model.moe.top_k;
  if (!net->relays) {
    e = experts_on(s, net->r->n, j);
    *rows = fullest ? fullest_rows(s, e) : touch(s, e);
    *pairs = fullest ? fullest_pairs(s, e) : k * e / s->model.moe.experts;
    return;
  }
  for (int i = j / on * on; i < (j / on + 1) * on; i++) {
    e += experts_on(s, net->r->n, i);
  }
  *rows = touch(s, e) / on * (fullest ? imbalance(s) : 1);
  *pairs = fullest ? k / net->r->n : k * e / s->model.moe.experts / on;
}

static void add(Link *link, bool near, double bytes)
{
  *(near ? &link->nvlink : &link->nic) += bytes;
}

static bool near(const Net *net, int a, int f)
{
  return net->single || a / net->per == f / net->per;
}

/* Everything that the first rank of an attention group moves per token over its layers. */
static Traffic att_traffic(const Net *net, int g)
{
  const Spec *s = net->s;
  const Raw *r = net->r;
  double row = s->model.hidden * (s->train.dtype == DTYPE_BF16 ? 2.0 : 4.0);
  Traffic t = {{0, 0}, {0, 0}};
  int me = first_att(r, g);
  for (int l = s->model.dense.layers; l < s->model.layers; l++) {
    int f = first_ffn(r, (l - s->model.dense.layers) % r->p_ffn);
    for (int j = 0; j < r->n; j++) {
      double rows, pairs;
      share(net, j, false, &rows, &pairs);
      if (l % r->p_att == g) {
        add(&t.out, near(net, me, f + j), rows * (row + 8) + pairs * 8);
        add(&t.in, near(net, me, f + j), rows * row + pairs * 4);
      }
      if (next_att(s, r, l) == g) {
        add(&t.in, near(net, me, f + j), rows * (row + 4));
        add(&t.out, near(net, me, f + j), rows * row);
      }
    }
  }
  return t;
}

static double port_ns(const Net *net, Link link, int ranks, int nics)
{
  double ns = link.nvlink / net->s->cluster.nvlink;
  if (link.nic > 0) {
    ns = larger(ns, link.nic / (net->s->cluster.nic * nics / ranks));
  }
  return ns * 1e9;
}

/* Per token of one layer, on the fullest rank of FFN group g. */
static double ffn_traffic_ns(const Net *net, int g, int layer)
{
  const Spec *s = net->s;
  const Raw *r = net->r;
  double row = s->model.hidden * (s->train.dtype == DTYPE_BF16 ? 2.0 : 4.0), rows = 0, pairs = 0, worst = 0;
  for (int j = 0; j < r->n; j++) {
    double x, y;
    share(net, j, true, &x, &y);
    rows = larger(rows, x);
    pairs = larger(pairs, y);
  }
  Link in = {0}, out = {0};
  int me = first_ffn(r, g), here = first_att(r, layer % r->p_att), next = first_att(r, next_att(s, r, layer));
  add(&in, near(net, here, me), rows * (row + 8) + pairs * 8);
  add(&out, near(net, here, me), rows * row + pairs * 4);
  add(&in, near(net, next, me), rows * row);
  add(&out, near(net, next, me), rows * (row + 4));
  worst = larger(port_ns(net, in, r->p_ffn * r->n, r->ffn_nics), port_ns(net, out, r->p_ffn * r->n, r->ffn_nics));
  if (net->relays) { /* FORWARD and GATHER_B as a rank, GATHER and FORWARD_B as a relay */
    int on = r->n < net->per ? r->n : net->per, e = ceil_div(s->model.moe.experts, r->n);
    double x = fullest_rows(s, e), y = fullest_pairs(s, e);
    double bytes = x * (row + 8) + y * 8 + x * row + x * row + x * row + y * 4;
    worst = larger(worst, bytes * (on - 1) / on / s->cluster.nvlink * 1e9);
  }
  return worst;
}

/* ---- gradients ---- */

static double exchange_ns(const Net *net, double elems, int holders, int ranks, int nics)
{
  const ClusterSpec *c = &net->s->cluster;
  bool crosses = net->nodes > 1 && net->r->replicas * total(net->r) > net->per && nics > 0;
  double rate = crosses ? c->nic * nics / ranks : c->nvlink;
  return 8 * elems * (holders - 1) / holders / rate * 1e9;
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
      sum += attention_ns(s, l, 1, true);
    }
    if (turn < 0 || sum < least - 1e-9 * least) {
      least = sum;
      best = g;
    }
  }
  return best;
}

static double att_elems(const Spec *s, const Raw *r, int g)
{
  const ModelSpec *m = &s->model;
  double h = m->hidden, n = g == 0 ? h * m->vocab : 0;
  for (int l = g; l < m->layers; l += r->p_att) {
    n += h + h * m->attention.head_dim * 2 * (m->attention.heads + m->attention.kv_heads) + 2 * m->attention.head_dim;
    n += l < m->dense.layers ? 3 * h * m->dense.hidden : h * m->moe.experts;
  }
  return n + (r->head == g ? h + h * m->vocab : 0);
}

/* ---- one allocation ---- */

static double estimate(const Spec *s, const Raw *r, int per, int nodes)
{
  const ModelSpec *m = &s->model;
  const ShapeSpec *shape = &s->shapes[0];
  Net net = {s, r, per, nodes, nodes == 1 || total(r) <= per, false};
  net.relays = r->n > 1 && per > 1 && (s->plan.dedup == DEDUP_NODE || (s->plan.dedup == DEDUP_AUTO && !net.single));
  int batch = ceil_div(shape->global_batch, r->replicas), mb = shape->micro_batch * r->m;
  mb = mb < batch ? mb : batch;
  int batches = ceil_div(batch, mb), seqs = ceil_div(mb, r->m), moe = m->layers - m->dense.layers, deepest = 0;
  double seq = (double)shape->seq, z = 0;
  for (int g = 0; g < r->p_att; g++) {
    double busy = r->head == g ? head_ns(s, seqs) : 0;
    for (int l = g; l < m->layers; l += r->p_att) {
      busy += attention_ns(s, l, seqs, true);
    }
    Traffic t = att_traffic(&net, g);
    int ranks = r->p_att * r->m;
    double move = larger(port_ns(&net, t.out, ranks, r->att_nics), port_ns(&net, t.in, ranks, r->att_nics));
    double tail = exchange_ns(&net, att_elems(s, r, g), r->m * r->replicas, ranks, r->att_nics);
    z = larger(z, batches * larger(busy, seqs * seq * move) + tail);
  }
  for (int g = 0; g < r->p_ffn; g++) {
    deepest = ceil_div(moe - g, r->p_ffn) > deepest ? ceil_div(moe - g, r->p_ffn) : deepest;
  }
  double launches = batches * 3.0 * deepest * s->cluster.gpu.launch_ns;
  for (int g = 0; g < r->p_ffn; g++) {
    double layers = ceil_div(moe - g, r->p_ffn), move = 0;
    for (int l = m->dense.layers + g; l < m->layers; l += r->p_ffn) {
      move = larger(move, ffn_traffic_ns(&net, g, l));
    }
    double elems = ceil_div(m->moe.experts, r->n) * 3.0 * m->hidden * m->moe.hidden + 3.0 * m->hidden * m->moe.shared;
    double tail = exchange_ns(&net, layers * elems, r->replicas, r->p_ffn * r->n, r->ffn_nics);
    z = larger(z, layers * larger(experts_ns(s, r->n, batch * seq), batch * seq * move) + tail + launches);
  }
  int least = shape->micro_batch < batch ? shape->micro_batch : batch;
  double ahead = 0, all = 0, ratio = (double)r->p_ffn / r->p_att,
         row = m->hidden * (s->train.dtype == DTYPE_BF16 ? 2.0 : 4.0);
  for (int l = 0; l < m->layers; l++) {
    ahead += attention_ns(s, l, least, false);
    all += attention_ns(s, l, least, true);
  }
  int nics = (int)((double)s->cluster.nics * per / s->cluster.gpus);
  double rows = 0; /* places that a token goes to */
  for (int j = 0; j < r->n; j++) {
    double x, y;
    share(&net, j, false, &x, &y);
    rows += x;
  }
  double hop = least * seq * row * rows / (net.single ? s->cluster.nvlink : s->cluster.nic * nics / per) * 1e9;
  hop += net.single ? s->cluster.nvlink_ns : s->cluster.nic_ns;
  double t_att = all / m->layers, t_ffn = t_att * ratio, steps = r->p_att > r->p_ffn ? r->p_att : r->p_ffn;
  z = larger(z, ahead * (1 + ratio) + head_ns(s, least) + 4 * moe * hop);
  return z + steps * (t_att + t_ffn + 4 * hop) - larger(t_att, t_ffn);
}

/* ---- all allocations ---- */

/* What a legal allocation is, in terms of nodes. */
static bool legal(const Raw *r, int per, int nodes, int share)
{
  int ranks = total(r);
  if (ranks * r->replicas > per * nodes || r->m > share) {
    return false;
  }
  if (nodes == 1) {
    return !r->mixed;
  }
  if (r->replicas > 1 && ranks % per != 0 && per % ranks != 0) {
    return false; /* nodes would cut replicas differently */
  }
  if (ranks <= per) {
    return !r->mixed && (r->replicas == 1 || per % ranks == 0);
  }
  if (r->mixed) {
    return r->p_att == r->p_ffn && per % (r->m + r->n) == 0;
  }
  bool alone = r->p_att * r->m % per == 0, even = r->n % per == 0 || per % r->n == 0;
  return alone && even && r->replicas <= nodes;
}

typedef struct Best {
  double estimate;
  Raw raw;
  long seen;
} Best;

static void consider(const Spec *s, Raw r, int per, int nodes, Best *best)
{
  int share = ceil_div(s->shapes[0].global_batch, r.replicas),
      nics = (int)((double)s->cluster.nics * per / s->cluster.gpus);
  if (!legal(&r, per, nodes, share)) {
    return;
  }
  bool single = nodes == 1 || total(&r) <= per;
  if (!single && (s->plan.placement == PLACE_MIXED) != r.mixed && s->plan.placement != PLACE_AUTO) {
    return;
  }
  int all = single ? 1 : nics * ceil_div(total(&r), per); /* on one node no NIC carries the pipeline's traffic */
  for (int a = 1; a <= all; a++) {
    int most = r.mixed ? all - a : nics * ceil_div(r.p_ffn * r.n, per);
    for (int f = 1; f <= (single ? 1 : most); f++) {
      r.att_nics = a;
      r.ffn_nics = f;
      if (single) { /* gradients of replicas on other nodes do use them */
        r.att_nics = nics * r.p_att * r.m / per > 0 ? nics * r.p_att * r.m / per : 1;
        r.ffn_nics = nics * r.p_ffn * r.n / per > 0 ? nics * r.p_ffn * r.n / per : 1;
      } else if (!r.mixed && a > nics * ceil_div(r.p_att * r.m, per)) {
        continue;
      } else if (r.mixed && (a % ceil_div(total(&r), per) || f % ceil_div(total(&r), per))) {
        continue; /* every node divides its NICs alike */
      }
      double e = estimate(s, &r, per, nodes);
      best->seen++;
      if (best->seen == 1 || e < best->estimate) {
        best->estimate = e;
        best->raw = r;
      }
    }
  }
}

static Best enumerate(const Spec *s)
{
  Best best = {0};
  int per = s->cluster.gpus, nodes = s->cluster.nodes, layers = s->model.layers, moe = layers - s->model.dense.layers;
  int most = s->plan.replicas ? s->plan.replicas : per * nodes;
  for (int replicas = 1; replicas <= most && replicas <= s->shapes[0].global_batch; replicas++) {
    for (int pa = 1; pa <= layers; pa++) {
      int head = head_home(s, pa);
      for (int pf = 1; pf <= moe; pf++) {
        for (int m = 1; m * pa < per * nodes; m++) {
          for (int n = 1; n <= s->model.moe.experts && n * pf < per * nodes; n++) {
            consider(s, (Raw){replicas, pa, pf, m, n, 0, 0, false, head}, per, nodes, &best);
            consider(s, (Raw){replicas, pa, pf, m, n, 0, 0, true, head}, per, nodes, &best);
          }
        }
      }
    }
  }
  return best;
}

static Spec random_spec(unsigned long long *seed, ShapeSpec *shape)
{
  Spec s = small_spec(shape);
  s.shapes = shape;
  s.cluster.nodes = in_range(seed, 1, 4);
  s.cluster.gpus = in_range(seed, 1, 8) + (s.cluster.nodes == 1 ? 2 : 0);
  s.cluster.nics = in_range(seed, 1, 8);
  s.cluster.nic = (in_range(seed, 0, 1) ? 1e8 : 2e7) * in_range(seed, 1, 80);
  s.cluster.nvlink = s.cluster.nic * in_range(seed, 1, 6);
  s.cluster.gpu.memory = (int64_t)1 << 50;
  s.cluster.gpu.hbm = 1e30;
  s.cluster.gpu.launch_ns = 100.0 * in_range(seed, 0, 300);
  s.cluster.nic_ns = 1000.0 * in_range(seed, 0, 20);
  s.model.layers = in_range(seed, 1, 5);
  s.model.dense.layers = s.model.layers > 1 && in_range(seed, 0, 3) == 0 ? 1 : 0;
  s.model.dense.hidden = 300;
  s.model.moe.experts = in_range(seed, 2, 9);
  s.model.moe.top_k = in_range(seed, 1, s.model.moe.experts < 4 ? s.model.moe.experts : 4);
  s.model.moe.hidden = 16 * in_range(seed, 1, 20);
  s.model.moe.shared = in_range(seed, 0, 2) == 0 ? 64 : 0;
  s.model.moe.imbalance = in_range(seed, 0, 1) ? 0 : 1 + 0.1 * in_range(seed, 1, 9);
  s.model.attention.window = in_range(seed, 0, 2) == 0 ? 32 : 0;
  s.model.attention.window_layers = (LayerPattern)in_range(seed, 0, 2);
  s.train.dtype = in_range(seed, 0, 1) ? DTYPE_BF16 : DTYPE_FP32;
  shape->seq = 16 * in_range(seed, 1, 16);
  shape->micro_batch = in_range(seed, 1, 3);
  /* few sequences keep replicas from filling the cluster, so that one must span nodes */
  shape->global_batch = in_range(seed, shape->micro_batch, in_range(seed, 0, 1) ? 64 : 8);
  s.plan.replicas = in_range(seed, 0, 3) == 0;
  s.plan.dedup = in_range(seed, 0, 3) ? DEDUP_AUTO : DEDUP_RANK;
  s.plan.placement = (Placement)in_range(seed, PLACE_AUTO, PLACE_MIXED);
  s.plan.gap = 0;
  s.plan.node_limit = 1000000;
  return s;
}

static void planner_finds_the_optimum(void **state)
{
  (void)state;
  unsigned long long seed = 20240611;
  long seen = 0;
  int mixed = 0, several = 0;
  for (int i = 0; i < CASES; i++) {
    Arena *arena = arena_new();
    FILE *quiet = tmpfile();
    Diag *diag = diag_new(arena, quiet);
    ShapeSpec shape;
    Spec spec = random_spec(&seed, &shape);
    spec.shapes = &shape;
    Plan plan;
    bool infeasible = false;
    if (spec.cluster.nodes * spec.cluster.gpus < 2) {
      spec.cluster.gpus = 2;
    }
    Best best = enumerate(&spec);
    bool solved = plan_solve(arena, diag, &spec, 0, SYSTEM_AF_PIPE, &plan, &infeasible);
    if (solved != (best.seen > 0)) {
      print_error("case %d: %d nodes of %d, placement %d, batch %d: solved %d, %ld allocations\n", i,
                  spec.cluster.nodes, spec.cluster.gpus, spec.plan.placement, shape.global_batch, solved, best.seen);
    }
    assert_int_equal(solved, best.seen > 0);
    assert_int_equal(infeasible, best.seen == 0);
    if (best.seen == 0) {
      fclose(quiet);
      arena_free(arena);
      continue;
    }
    if (fabs(plan.step_ns - best.estimate) > 1e-9 * best.estimate) {
      const Raw *r = &best.raw;
      print_error("case %d (%d nodes of %d, %d NICs): planner %.9g: R=%d p=%d,%d ranks %d,%d %s nics %d,%d\n", i,
                  spec.cluster.nodes, spec.cluster.gpus, spec.cluster.nics, plan.step_ns, plan.replicas, plan.p_att,
                  plan.p_ffn, plan.groups[0].n_ranks, plan.groups[plan.n_groups - 1].n_ranks,
                  plan_placement_name(plan.placement), plan.groups[0].nics, plan.groups[plan.n_groups - 1].nics);
      print_error("enumeration %.9g: R=%d p=%d,%d ranks %d,%d mixed %d nics %d,%d\n", best.estimate, r->replicas,
                  r->p_att, r->p_ffn, r->m, r->n, r->mixed, r->att_nics, r->ffn_nics);
    }
    assert_true(fabs(plan.step_ns - best.estimate) <= 1e-9 * best.estimate);
    assert_string_equal(plan.solver.status, "optimal");
    seen += best.seen;
    mixed += plan.placement == PLACE_MIXED && plan.replica_ranks > plan.ranks_per_node;
    several += plan.replica_ranks > plan.ranks_per_node;
    fclose(quiet);
    arena_free(arena);
  }
  print_message("%ld allocations; %d plans over several nodes, %d mixed\n", seen, several, mixed);
  assert_true(several > CASES / 20);
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(planner_finds_the_optimum)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
