/* The planner against every allocation there is: replicas, groups, ranks per group, NICs and placement are enumerated
   and priced by code of its own, which walks ranks and pairs of ranks where the planner uses closed forms. Memory is
   ample here, so that only times decide. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>

#include "tests/plan/oracle.h"
#include "tests/plan/specs.h"

enum { CASES = 700, MAX_RANKS = 64, MAX_GROUPS = ORACLE_LAYERS };

typedef struct Raw {
  int replicas, p_att, p_ffn, m, n, att_nics, ffn_nics;
  bool mixed;
  const int *home; /* attention group of each layer, and of the head */
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

static int total(const Raw *r)
{
  return r->p_att * r->m + r->p_ffn * r->n;
}

/* Nodes of a side's ranks, in order, and how many of the side share each. */
typedef struct Where {
  int att[MAX_RANKS], ffn[MAX_RANKS];
  int att_on[MAX_RANKS], ffn_on[MAX_RANKS]; /* of a node */
  int nodes;
} Where;

/* GPU by GPU. Mixed: to attention as soon as its share of the GPUs so far comes to one more. */
static Where where(const Raw *r, int per)
{
  Where w = {.nodes = ceil_div(total(r), per)};
  int all = total(r), att = r->p_att * r->m, a = 0;
  for (int gpu = 0; gpu < all; gpu++) {
    bool mine = r->mixed ? (gpu + 1) * att - a * all >= all : gpu < att;
    if (mine) {
      w.att[a++] = gpu / per;
      w.att_on[gpu / per]++;
    } else {
      w.ffn[gpu - a] = gpu / per;
      w.ffn_on[gpu / per]++;
    }
  }
  return w;
}

/* ---- compute ---- */

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
  double grouped = 6 * tokens * fullest_pairs(s, e) * h * s->model.moe.hidden; /* of each of the three */
  double dgrad = grouped / s->cluster.gpu.eff_grouped_dgrad, wgrad = grouped / s->cluster.gpu.eff_grouped_wgrad;
  double twice = s->plan.recompute == RECOMPUTE_NONE ? 0 : 2.0 / 3; /* gate and up, of three products */
  return oracle_rate_ns(s, (3 + twice) * 6 * tokens / n * h * s->model.moe.shared,
                        (1 + twice) * grouped + dgrad + wgrad, 0);
}

/* ---- traffic ---- */

typedef struct Link {
  double nvlink, nic;
} Link;

typedef struct Net {
  const Spec *s;
  const Raw *r;
  Where w;
  int per, nodes;
  bool single, relays;
} Net;

static bool relayed(const Net *net, int g)
{
  bool found = false;
  for (int j = g * net->r->n + 1; j < (g + 1) * net->r->n; j++) {
    found |= net->w.ffn[j] == net->w.ffn[j - 1];
  }
  return found && net->relays;
}

/* Rows and pairs per token from an attention rank to rank j of FFN group g; fullest: of the rank, or the node, that
   gets most. */
static void share(const Net *net, int g, int j, bool fullest, double *rows, double *pairs)
{
  const Spec *s = net->s;
  int on = 0, e = 0, n = net->r->n;
  double k = s->model.moe.top_k;
  if (!relayed(net, g)) {
    e = fullest ? ceil_div(s->model.moe.experts, n) : experts_on(s, n, j);
    *rows = fullest ? fullest_rows(s, e) : touch(s, e);
    *pairs = fullest ? fullest_pairs(s, e) : k * e / s->model.moe.experts;
    return;
  }
  for (int i = 0; i < n; i++) {
    bool here = net->w.ffn[g * n + i] == net->w.ffn[g * n + j];
    e += here ? experts_on(s, n, i) : 0;
    on += here;
  }
  *rows = touch(s, e) / on * (fullest ? imbalance(s) : 1);
  *pairs = fullest && !net->r->mixed ? k / n : k * e / s->model.moe.experts / on;
}

static void add(Link *link, bool near, double bytes)
{
  *(near ? &link->nvlink : &link->nic) += bytes;
}

static bool near(const Net *net, int a, int f)
{
  return net->single || net->w.att[a] == net->w.ffn[f];
}

/* Adds what a rank moves to the most of its group: bytes on NVLink, and bytes on NICs times the ranks that share one.
 */
static void most(const Net *net, Link *group, Link out, Link in, int side, int on)
{
  int ranks = net->r->mixed ? on * net->w.nodes : side;
  group->nvlink = larger(group->nvlink, larger(out.nvlink, in.nvlink));
  group->nic = larger(group->nic, larger(out.nic, in.nic) * ranks);
}

/* The most that a rank of an attention group moves per token over its layers. */
static Link att_traffic(const Net *net, int g)
{
  const Spec *s = net->s;
  const Raw *r = net->r;
  double row = s->model.hidden * (s->train.dtype == DTYPE_BF16 ? 2.0 : 4.0), twice = s->plan.recompute / 2; /* full */
  Link group = {0, 0};
  for (int me = g * r->m; me < (g + 1) * r->m; me++) {
    Link out = {0, 0}, in = {0, 0};
    for (int l = s->model.dense.layers; l < s->model.layers; l++) {
      int f = (l - s->model.dense.layers) % r->p_ffn;
      for (int j = 0; j < r->n; j++) {
        double rows, pairs;
        bool here = near(net, me, f * r->n + j);
        share(net, f, j, false, &rows, &pairs);
        if (r->home[l] == g) {
          add(&out, here, rows * (row + 8) + pairs * 8 + twice * rows * row);
          add(&in, here, rows * row + pairs * 4);
        }
        if (r->home[l + 1] == g) {
          add(&in, here, rows * (row + 4));
          add(&out, here, rows * row);
        }
      }
    }
    most(net, &group, out, in, r->p_att * r->m, net->w.att_on[net->w.att[me]]);
  }
  return group;
}

static double port_ns(const Net *net, Link link, int nics)
{
  double nic = link.nic > 0 ? link.nic / (net->s->cluster.nic * nics) : 0;
  return larger(link.nvlink / net->s->cluster.nvlink, nic) * 1e9;
}

/* The most that a rank of FFN group g moves per token of the step over its layers. */
static Link ffn_traffic(const Net *net, int g)
{
  const Spec *s = net->s;
  const Raw *r = net->r;
  double row = s->model.hidden * (s->train.dtype == DTYPE_BF16 ? 2.0 : 4.0), twice = s->plan.recompute / 2; /* full */
  Link group = {0, 0};
  for (int me = g * r->n; me < (g + 1) * r->n; me++) {
    double rows, pairs;
    Link out = {0, 0}, in = {0, 0};
    share(net, g, me - g * r->n, true, &rows, &pairs);
    for (int l = s->model.dense.layers + g; l < s->model.layers; l += r->p_ffn) {
      for (int i = 0; i < r->m; i++) {
        int from = r->home[l] * r->m + i, to = r->home[l + 1] * r->m + i;
        add(&in, near(net, from, me), (rows * (row + 8) + pairs * 8 + twice * rows * row) / r->m);
        add(&out, near(net, from, me), (rows * row + pairs * 4) / r->m);
        add(&in, near(net, to, me), rows * row / r->m);
        add(&out, near(net, to, me), rows * (row + 4) / r->m);
      }
      if (relayed(net, g)) { /* FORWARD, again or once, and GATHER_B as a rank, GATHER and FORWARD_B as a relay */
        int on = 0, e = ceil_div(s->model.moe.experts, r->n);
        for (int j = g * r->n; j < (g + 1) * r->n; j++) {
          on += net->w.ffn[j] == net->w.ffn[me];
        }
        double x = fullest_rows(s, e), y = fullest_pairs(s, e);
        double relay = (x * (row + 8) + y * 8 + (3 + twice) * x * row + y * 4) * (on - 1) / on;
        in.nvlink += relay;
        out.nvlink += relay;
      }
    }
    most(net, &group, out, in, r->p_ffn * r->n, net->w.ffn_on[net->w.ffn[me]]);
  }
  return group;
}

/* ---- gradients ---- */

static double exchange_ns(const Net *net, double elems, int holders, int ranks, int nics)
{
  const ClusterSpec *c = &net->s->cluster;
  bool crosses = net->nodes > 1 && net->r->replicas * total(net->r) > net->per && nics > 0;
  double rate = crosses ? c->nic * nics / ranks : c->nvlink;
  return 8 * elems * (holders - 1) / holders / rate * 1e9;
}

static double att_elems(const Spec *s, const Raw *r, int g)
{
  const ModelSpec *m = &s->model;
  double h = m->hidden, n = r->home[0] == g ? h * m->vocab : 0;
  for (int l = 0; l < m->layers; l++) {
    if (r->home[l] != g) {
      continue;
    }
    n += h + h * m->attention.head_dim * 2 * (m->attention.heads + m->attention.kv_heads) + 2 * m->attention.head_dim;
    n += l < m->dense.layers ? 3 * h * m->dense.hidden : h * m->moe.experts;
  }
  return n + (r->home[m->layers] == g ? h + h * m->vocab : 0);
}

/* ---- one allocation ---- */

/* What does not depend on NICs. */
typedef struct Loads {
  Link att[MAX_GROUPS], ffn[MAX_GROUPS];
  double rows;                  /* places that a token goes to, of the FFN group where those are most */
  int att_sharing, ffn_sharing; /* ranks of a side for its NICs: all, or those of the fullest node on every node */
} Loads;

static Loads measure(const Net *net)
{
  const Raw *r = net->r;
  Loads load = {.att_sharing = r->p_att * r->m, .ffn_sharing = r->p_ffn * r->n};
  for (int g = 0; g < r->p_att; g++) {
    load.att[g] = att_traffic(net, g);
  }
  for (int g = 0; g < r->p_ffn; g++) {
    double rows = 0;
    for (int j = 0; j < r->n; j++) {
      double x, y;
      share(net, g, j, false, &x, &y);
      rows += x;
    }
    load.ffn[g] = ffn_traffic(net, g);
    load.rows = larger(load.rows, rows);
  }
  for (int node = 0; r->mixed && node < net->w.nodes; node++) {
    int att = net->w.att_on[node] * net->w.nodes, ffn = net->w.ffn_on[node] * net->w.nodes;
    load.att_sharing = node == 0 || att > load.att_sharing ? att : load.att_sharing;
    load.ffn_sharing = node == 0 || ffn > load.ffn_sharing ? ffn : load.ffn_sharing;
  }
  return load;
}

static Net net_of(const Spec *s, const Raw *r, int per, int nodes)
{
  Net net = {s, r, where(r, per), per, nodes, nodes == 1 || total(r) <= per, false};
  net.relays = r->n > 1 && per > 1 && (s->plan.dedup == DEDUP_NODE || (s->plan.dedup == DEDUP_AUTO && !net.single));
  return net;
}

static double estimate(const Net *net, const Raw *r, const Loads *load)
{
  const Spec *s = net->s;
  const ModelSpec *m = &s->model;
  const ShapeSpec *shape = &s->shapes[0];
  int batch = ceil_div(shape->global_batch, r->replicas), mb = shape->micro_batch * r->m;
  mb = mb < batch ? mb : batch;
  int batches = ceil_div(batch, mb), seqs = ceil_div(mb, r->m), moe = m->layers - m->dense.layers;
  double seq = (double)shape->seq, z = 0;
  for (int g = 0; g < r->p_att; g++) {
    double busy = r->home[m->layers] == g ? oracle_head_ns(s, seqs) : 0;
    for (int l = 0; l < m->layers; l++) {
      busy += r->home[l] == g ? oracle_attention_ns(s, l, seqs, true, s->plan.recompute) : 0;
    }
    double move = port_ns(net, load->att[g], r->att_nics);
    double tail = exchange_ns(net, att_elems(s, r, g), r->m * r->replicas, load->att_sharing, r->att_nics);
    z = larger(z, batches * larger(busy, seqs * seq * move) + tail);
  }
  double launches = batches * 3.0 * ceil_div(moe, r->p_ffn) * s->cluster.gpu.launch_ns;
  for (int g = 0; g < r->p_ffn; g++) {
    double layers = ceil_div(moe - g, r->p_ffn), move = port_ns(net, load->ffn[g], r->ffn_nics);
    double elems = ceil_div(m->moe.experts, r->n) * 3.0 * m->hidden * m->moe.hidden;
    double shared = 3.0 * m->hidden * m->moe.shared; /* held by all ranks of the group */
    double tail = exchange_ns(net, layers * elems, r->replicas, load->ffn_sharing, r->ffn_nics) +
                  exchange_ns(net, layers * shared, r->n * r->replicas, load->ffn_sharing, r->ffn_nics);
    z = larger(z, larger(layers * experts_ns(s, r->n, batch * seq), batch * seq * move) + tail + launches);
  }
  int least = shape->micro_batch < batch ? shape->micro_batch : batch;
  double ahead = 0, all = 0, ratio = (double)r->p_ffn / r->p_att,
         row = m->hidden * (s->train.dtype == DTYPE_BF16 ? 2.0 : 4.0);
  for (int l = 0; l < m->layers; l++) {
    ahead += oracle_attention_ns(s, l, least, false, s->plan.recompute);
    all += oracle_attention_ns(s, l, least, true, s->plan.recompute);
  }
  int nics = (int)((double)s->cluster.nics * net->per / s->cluster.gpus);
  double hop =
      least * seq * row * load->rows / (net->single ? s->cluster.nvlink : s->cluster.nic * nics / net->per) * 1e9;
  hop += net->single ? s->cluster.nvlink_ns : s->cluster.nic_ns;
  double t_att = all / m->layers, t_ffn = t_att * ratio, steps = r->p_att > r->p_ffn ? r->p_att : r->p_ffn;
  z = larger(z, ahead * (1 + ratio) + oracle_head_ns(s, least) + 4 * moe * hop);
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
  if (r->mixed) { /* all nodes that a replica can have, and both sides on each */
    Where w = where(r, per);
    bool both = w.nodes == nodes / r->replicas;
    for (int node = 0; node < w.nodes; node++) {
      both = both && w.att_on[node] > 0 && w.ffn_on[node] > 0;
    }
    return both;
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
  Net net = net_of(s, &r, per, nodes);
  Loads load = measure(&net);
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
      double e = estimate(&net, &r, &load);
      best->seen++;
      if (best->seen == 1 || e < best->estimate) {
        best->estimate = e;
        best->raw = r;
        best->raw.home = NULL; /* it is the caller's */
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
      int home[ORACLE_LAYERS + 1];
      oracle_deal(s, pa, home);
      for (int pf = 1; pf <= moe; pf++) {
        for (int m = 1; m * pa < per * nodes; m++) {
          for (int n = 1; n <= s->model.moe.experts && n * pf < per * nodes; n++) {
            consider(s, (Raw){replicas, pa, pf, m, n, 0, 0, false, home}, per, nodes, &best);
            consider(s, (Raw){replicas, pa, pf, m, n, 0, 0, true, home}, per, nodes, &best);
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
  bool starved = in_range(seed, 0, 3) == 0; /* mixed plans that NICs bind, on either side */
  s.cluster.nic /= starved ? 30 : 1;
  s.cluster.gpu.memory = (int64_t)1 << 50;
  s.cluster.gpu.hbm = 1e30;
  s.cluster.gpu.launch_ns = 100.0 * in_range(seed, 0, 300);
  s.cluster.nic_ns = 1000.0 * in_range(seed, 0, 20);
  s.model.layers = in_range(seed, 1, 5);
  s.model.dense.layers = s.model.layers > 1 && in_range(seed, 0, 3) == 0 ? 1 : 0;
  s.cluster.gpu.eff_grouped_dgrad = 1 - 0.125 * (s.model.layers % 3);
  s.cluster.gpu.eff_grouped_wgrad = 1 + 0.25 * (s.model.layers % 2);
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
  s.plan.placement = starved ? PLACE_MIXED : (Placement)in_range(seed, PLACE_AUTO, PLACE_MIXED);
  s.plan.recompute = (Recompute)in_range(seed, RECOMPUTE_NONE, RECOMPUTE_FULL);
  s.plan.gap = 0;
  s.plan.node_limit = 1000000;
  return s;
}

static void planner_finds_the_optimum(void **state)
{
  (void)state;
  unsigned long long seed = 20240611;
  long seen = 0;
  int mixed = 0, several = 0, dealt = 0;
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
    for (int l = 0, no_turns = 0; l < spec.model.layers && !no_turns; l++) {
      no_turns = plan.att_group[l] != l % plan.p_att;
      dealt += no_turns;
    }
    fclose(quiet);
    arena_free(arena);
  }
  print_message("%ld allocations; %d plans over several nodes, %d mixed, %d where layers take no turns\n", seen,
                several, mixed, dealt);
  assert_true(several > CASES / 20 && mixed > CASES / 20 && dealt > 5);
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(planner_finds_the_optimum)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
