/* Prices of mixed plans. Every node of a replica hosts its share of the attention ranks and of the FFN ranks, and the
   groups of a side follow each other on the side's GPUs: a group is a run of nodes. What a rank exchanges with ranks of
   its own node crosses NVLink, the rest its part of the NICs that its side has on the node. */
#include <math.h>
#include <stdlib.h>

#include "codegen/plan_price.h"
#include "codegen/arith.h"
#include "runtime/moe_layout.h"

/* Ranks of a group on a node. */
typedef struct Run {
  int group, node, ranks;
  double rows, pairs; /* of an FFN group: per token and layer */
} Run;

/* What the busiest rank of a group moves in a step. */
typedef struct Busy {
  double near; /* bytes on NVLink */
  double far;  /* bytes between nodes, times the ranks of the side that share the node's NICs */
} Busy;

struct Mixed {
  const Price *outer;
  Price price;          /* with its own view of the layout */
  int *sent, *got;      /* [p_att][p_ffn] layers whose DISPATCH goes, whose COMBINE comes */
  int *att_on, *ffn_on; /* [nodes] ranks of each side */
  Run *att, *ffn;
  int n_att, n_ffn, nodes, att_n, ffn_n, att_most, ffn_most; /* most: on a node */
  double *rows;                                              /* [p_ffn] places a token of a layer goes to */
  int *most;                                                 /* [p_ffn] ranks on one node */
  Busy *att_busy, *ffn_busy;
  Room att_room, ffn_room;
  double fill;
};

Mixed *mixed_new(Arena *arena, const Price *p)
{
  const Tuple *t = p->tuple;
  const Spec *spec = p->spec;
  size_t groups = (size_t)t->p_att * (size_t)t->p_ffn;
  Mixed *m = arena_new_of(arena, Mixed);
  int nodes = (int)moe_part_max(t->ranks, p->nodes.ranks), layers = spec->model.layers;
  m->outer = p;
  m->sent = arena_new_array(arena, int, groups);
  m->got = arena_new_array(arena, int, groups);
  m->att_on = arena_new_array(arena, int, (size_t)nodes);
  m->ffn_on = arena_new_array(arena, int, (size_t)nodes);
  m->att = arena_new_array(arena, Run, (size_t)(nodes + t->p_att));
  m->ffn = arena_new_array(arena, Run, (size_t)(nodes + t->p_ffn));
  m->rows = arena_new_array(arena, double, (size_t)t->p_ffn);
  m->most = arena_new_array(arena, int, (size_t)t->p_ffn);
  m->att_busy = arena_new_array(arena, Busy, (size_t)t->p_att);
  m->ffn_busy = arena_new_array(arena, Busy, (size_t)t->p_ffn);
  for (int l = spec->model.dense.layers; l < layers; l++) {
    int f = layer_ffn(spec, l, t->p_ffn, false);
    m->sent[p->kinds.home[l] * t->p_ffn + f]++;
    m->got[p->kinds.home[l + 1] * t->p_ffn + f]++;
  }
  return m;
}

/* Groups of n ranks after each other on the side's GPUs. */
static int list_runs(Run *runs, const int *on, int nodes, int n)
{
  int k = 0, group = 0, left = n;
  for (int node = 0; node < nodes; node++) {
    for (int here = on[node]; here > 0;) {
      int ranks = here < left ? here : left;
      runs[k++] = (Run){.group = group, .node = node, .ranks = ranks};
      here -= ranks;
      left -= ranks;
      if (left == 0) {
        group++;
        left = n;
      }
    }
  }
  return k;
}

/* What a token sends to the ranks of each run, on average. */
static void fill_runs(Mixed *m)
{
  const Spec *spec = m->price.spec;
  int experts = spec->model.moe.experts, n = m->ffn_n;
  double k = spec->model.moe.top_k;
  bool flat = spec->plan.dedup == DEDUP_FLAT, relays = spec->plan.dedup == DEDUP_NODE || spec->plan.dedup == DEDUP_AUTO;
  for (int i = 0; i < m->n_ffn; i++) {
    m->most[m->ffn[i].group] = 0;
    m->rows[m->ffn[i].group] = 0;
  }
  for (int i = 0; i < m->n_ffn; i++) {
    int *most = &m->most[m->ffn[i].group];
    *most = m->ffn[i].ranks > *most ? m->ffn[i].ranks : *most;
  }
  for (int i = 0, first = 0; i < m->n_ffn; i++) {
    Run *run = &m->ffn[i];
    first = i > 0 && m->ffn[i - 1].group == run->group ? first + m->ffn[i - 1].ranks : 0;
    int step = relays && m->most[run->group] > 1 ? run->ranks : 1;
    run->rows = run->pairs = 0;
    for (int j = first; j < first + run->ranks; j += step) {
      int hits = cost_hits(spec, moe_part_begin(experts, n, j), moe_part_begin(experts, n, j + step));
      double pairs = k * hits / cost_routable(spec);
      run->pairs += pairs;
      run->rows += flat ? pairs : cost_touch(spec, hits);
    }
    m->rows[run->group] += run->rows;
  }
}

/* Attention ranks send rows of their own tokens; those on a node all alike. */
static void weigh_att(Mixed *m)
{
  const Price *p = &m->price;
  int p_att = p->tuple->p_att, p_ffn = p->tuple->p_ffn;
  double k = p->spec->model.moe.top_k, most = 0;
  for (int g = 0; g < p_att; g++) {
    m->att_busy[g] = (Busy){0};
  }
  for (int i = 0, first = 0; i < m->n_att; i++) {
    const Run *run = &m->att[i];
    const int *sent = m->sent + run->group * p_ffn, *got = m->got + run->group * p_ffn;
    double rows[2] = {0}, here[2] = {0}, pairs = 0, pairs_here = 0;
    for (int h = 0; h < p_ffn; h++) {
      rows[0] += sent[h] * m->rows[h];
      rows[1] += got[h] * m->rows[h];
      pairs += sent[h] * k;
    }
    while (first < m->n_ffn && m->ffn[first].node < run->node) {
      first++;
    }
    for (int j = first; j < m->n_ffn && m->ffn[j].node == run->node; j++) {
      const Run *f = &m->ffn[j];
      here[0] += sent[f->group] * f->rows;
      here[1] += got[f->group] * f->rows;
      pairs_here += sent[f->group] * f->pairs;
    }
    double far_rows[2] = {max2(0, rows[0] - here[0]), max2(0, rows[1] - here[1])};
    Bytes d = price_bytes(p, here[0], pairs_here), c = price_bytes(p, here[1], 0);
    Busy *busy = &m->att_busy[run->group];
    busy->near = max2(busy->near, max2(d.dispatch + d.again + c.combine_b, d.dispatch_b + c.combine));
    d = price_bytes(p, far_rows[0], max2(0, pairs - pairs_here));
    c = price_bytes(p, far_rows[1], 0);
    double out = max2(d.dispatch + d.again + c.combine_b, d.dispatch_b + c.combine);
    busy->far = max2(busy->far, out * m->att_on[run->node]);
    most = rows[0] + rows[1] > 0 ? max2(most, (far_rows[0] + far_rows[1]) / (rows[0] + rows[1])) : most;
  }
  m->price.mix.far = most;
}

/* FFN ranks receive rows of all tokens; those of attention ranks on their node come over NVLink. */
static void weigh_ffn(Mixed *m)
{
  const Price *p = &m->price;
  const Spec *spec = p->spec;
  int p_ffn = p->tuple->p_ffn, fullest = cost_hits_max(spec, m->ffn_n);
  double factor = spec->model.moe.imbalance > 1 ? spec->model.moe.imbalance : 1;
  double pairs_in = cost_pairs_per_token(spec, fullest), rows_in = cost_rows_per_token(spec, fullest);
  Bytes within = price_bytes(p, rows_in, pairs_in);
  for (int h = 0; h < p_ffn; h++) {
    m->ffn_busy[h] = (Busy){0};
  }
  m->price.mix.rows_in = 0;
  for (int i = 0, first = 0; i < m->n_ffn; i++) {
    const Run *run = &m->ffn[i];
    bool relayed = m->most[run->group] > 1 && spec->plan.dedup != DEDUP_RANK && spec->plan.dedup != DEDUP_FLAT;
    double layers = p->kinds.ffn[p->kinds.ffn_kind[run->group]].ffn_layers, sent = 0, got = 0;
    double rows = spec->plan.dedup == DEDUP_FLAT ? pairs_in : rows_in, pairs = pairs_in;
    if (relayed) {
      rows = run->rows / run->ranks * factor;
      pairs = run->pairs / run->ranks;
    }
    m->price.mix.rows_in = max2(m->price.mix.rows_in, rows);
    while (first < m->n_att && m->att[first].node < run->node) {
      first++;
    }
    for (int j = first; j < m->n_att && m->att[j].node == run->node; j++) {
      double share = (double)m->att[j].ranks / m->att_n;
      sent += m->sent[m->att[j].group * p_ffn + run->group] * share;
      got += m->got[m->att[j].group * p_ffn + run->group] * share;
    }
    Bytes b = price_bytes(p, rows, pairs);
    Busy *busy = &m->ffn_busy[run->group];
    double hops = within.dispatch + within.again + within.dispatch_b + 2 * within.combine_b;
    double relay = relayed ? layers * hops * (run->ranks - 1) / run->ranks : 0;
    double far_sent = max2(0, layers - sent), far_got = max2(0, layers - got);
    double there = b.dispatch + b.again, in = far_sent * there + far_got * b.combine_b;
    double out = far_sent * b.dispatch_b + far_got * b.combine;
    busy->near =
        max2(busy->near, max2(sent * there + got * b.combine_b, sent * b.dispatch_b + got * b.combine) + relay);
    busy->far = max2(busy->far, max2(in, out) * m->ffn_on[run->node]);
  }
}

bool mixed_set(Mixed *m, int att_n, int ffn_n)
{
  const Tuple *t = m->outer->tuple;
  int per = m->outer->nodes.ranks;
  int64_t att = (int64_t)t->p_att * att_n, total = att + (int64_t)t->p_ffn * ffn_n, before = 0;
  m->price = *m->outer;
  m->nodes = (int)moe_part_max(total, per);
  m->att_n = att_n;
  m->ffn_n = ffn_n;
  m->att_most = m->ffn_most = 0;
  for (int node = 0; node < m->nodes; node++) {
    int64_t end = (int64_t)(node + 1) * per < total ? (int64_t)(node + 1) * per : total;
    int64_t until = end * att / total; /* attention ranks up to this node's end */
    m->att_on[node] = (int)(until - before);
    m->ffn_on[node] = (int)(end - (int64_t)node * per - (until - before));
    before = until;
    m->att_most = m->att_on[node] > m->att_most ? m->att_on[node] : m->att_most;
    m->ffn_most = m->ffn_on[node] > m->ffn_most ? m->ffn_on[node] : m->ffn_most;
    if (m->att_on[node] < 1 || m->ffn_on[node] < 1) {
      return false;
    }
  }
  m->n_att = list_runs(m->att, m->att_on, m->nodes, att_n);
  m->n_ffn = list_runs(m->ffn, m->ffn_on, m->nodes, ffn_n);
  fill_runs(m);
  Mix *mix = &m->price.mix;
  mix->on = 1;
  mix->rows = 0;
  for (int h = 0; h < t->p_ffn; h++) {
    mix->on = m->most[h] > mix->on ? m->most[h] : mix->on;
    mix->rows = max2(mix->rows, m->rows[h]);
  }
  weigh_att(m);
  weigh_ffn(m);
  m->att_room = price_room(&m->price, PLAN_A, att_n, ffn_n);
  m->ffn_room = price_room(&m->price, PLAN_F, att_n, ffn_n);
  m->fill = price_more_fill(&m->price, ffn_n);
  return true;
}

/* Ports of a rank that moves these bytes per token. */
static double ports_ns(const Mixed *m, const Busy *busy, double tokens, int node_nics)
{
  const ClusterSpec *c = &m->price.spec->cluster;
  double near = tokens * busy->near / (c->nvlink * price_reached(&m->price, &c->nvlink_bytes, m->att_n, m->ffn_n));
  double far = tokens * busy->far / (c->nic * node_nics * price_reached(&m->price, &c->nic_bytes, m->att_n, m->ffn_n));
  return max2(near, busy->far > 0 ? far : 0) * 1e9;
}

int64_t mixed_memory(const Mixed *m, int role)
{
  return price_memory(&m->price, role, m->att_n, m->ffn_n);
}

double mixed_att(const Mixed *m, int node_nics)
{
  const Price *p = &m->price;
  int batches = price_micro_batches(p, m->att_n), seqs = (int)moe_part_max(price_mb_seqs(p, m->att_n), m->att_n);
  double tokens = (double)batches * seqs * (double)p->shape->seq, z = 0;
  for (int g = 0; g < p->tuple->p_att; g++) {
    int kind = p->kinds.att_kind[g];
    double busy = batches * price_att_compute(p, kind, seqs), move = ports_ns(m, &m->att_busy[g], tokens, node_nics);
    z = max2(z, max2(busy, move) + price_att_tail(p, kind, m->att_n, m->ffn_n, (double)node_nics / m->att_most));
  }
  return max2(z, m->att_room.base + m->att_room.slope * z) + m->fill;
}

double mixed_ffn(const Mixed *m, int node_nics)
{
  const Price *p = &m->price;
  double tokens = (double)(p->tuple->batch * p->shape->seq), z = 0, launches = price_ffn_launches(p, m->att_n);
  double layer = price_ffn_compute(p, m->ffn_n, price_mb_seqs(p, m->att_n));
  for (int h = 0; h < p->tuple->p_ffn; h++) {
    int kind = p->kinds.ffn_kind[h];
    double busy = p->kinds.ffn[kind].ffn_layers * layer, move = ports_ns(m, &m->ffn_busy[h], tokens, node_nics);
    z = max2(z, max2(busy, move) + price_ffn_tail(p, kind, m->att_n, m->ffn_n, (double)node_nics / m->ffn_most));
  }
  z += launches;
  return max2(z, m->ffn_room.base + m->ffn_room.slope * z) - launches + m->fill;
}
