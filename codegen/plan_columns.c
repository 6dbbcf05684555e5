/* What an allocation of a tuple may look like: ranks per group and NICs of each side; and the same as columns of the
   mixed-integer program. */
#include <math.h>

#include "codegen/plan_price.h"
#include "runtime/moe_layout.h"

static void push(Arena *arena, IntList *list, int value, int room)
{
  if (list->v == NULL) {
    list->v = arena_new_array(arena, int, (size_t)room);
  }
  list->v[list->n++] = value;
}

static int largest(const int *list, int n)
{
  int most = 0;
  for (int i = 0; i < n; i++) {
    most = list[i] > most ? list[i] : most;
  }
  return most;
}

static int total(const int *list, int n, int p)
{
  if (n <= 1) {
    return p * list[0];
  }
  int sum = 0;
  for (int i = 0; i < n; i++) {
    sum += list[i];
  }
  return sum;
}

/* Ranks of all groups of a side with n in each, or as pinned. */
int space_ranks(const Space *s, bool att, int p, int n)
{
  const PlanSpec *pin = &s->spec->plan;
  int count = att ? pin->n_attention_gpus : pin->n_ffn_gpus;
  return count > 1 ? total(att ? pin->attention_gpus : pin->ffn_gpus, count, p) : p * n;
}

/* Ranks per group that a side may have in a tuple. In separate plans over several nodes a side has whole nodes, so that
   nothing of the other side shares its NICs, and an FFN group either whole nodes or an equal part of one. */
IntList space_counts(const Space *s, const Tuple *t, bool att)
{
  const PlanSpec *pin = &s->spec->plan;
  IntList list = {0};
  bool both = t->place == PLACE_COLOCATED; /* either side's pin holds for both */
  att = both ? pin->n_attention_gpus > 0 || pin->n_ffn_gpus == 0 : att;
  int pinned = att ? pin->n_attention_gpus : pin->n_ffn_gpus, p = att ? t->p_att : t->p_ffn, per = s->nodes.ranks;
  int other = att ? t->p_ffn : t->p_att, most = att ? t->batch : s->spec->model.moe.experts;
  if (pinned > 0) {
    push(s->arena, &list, largest(att ? pin->attention_gpus : pin->ffn_gpus, pinned), 1);
    return list;
  }
  int left = both ? t->ranks : t->ranks - other;
  for (int n = 1; n * p <= left && n <= most; n++) {
    bool even = att || t->single || t->place != PLACE_SEPARATE || n % per == 0 || per % n == 0;
    bool ends = !att && t->replicas == 1; /* the last node of the only replica may be used in part */
    if (even && (t->single || ends || t->place != PLACE_SEPARATE || n * p % per == 0)) {
      push(s->arena, &list, n, left);
    }
  }
  return list;
}

/* NICs of a side of a separate plan: those of its nodes, where it has them alone. */
int space_nics(const Space *s, const Tuple *t, int ranks)
{
  const PlanSpec *pin = &s->spec->plan;
  bool shared =
      pin->n_attention_gpus > 0 && space_ranks(s, true, t->p_att, pin->attention_gpus[0]) % s->nodes.ranks != 0;
  if (t->single || shared) {
    return plan_default_nics(&s->nodes, ranks);
  }
  return (int)moe_part_max(ranks, s->nodes.ranks) * s->nodes.nics;
}

/* Mixed groups of n and m ranks: over more than one node, and over all nodes of the budget unless both are pinned. The
   last node of the only replica may be used in part. */
bool space_mixed(const Space *s, const Tuple *t, int n, int m)
{
  const PlanSpec *pin = &s->spec->plan;
  int per = s->nodes.ranks, ranks = t->p_att * n + t->p_ffn * m;
  bool other = (pin->n_attention_gpus && pin->attention_gpus[0] != n) || (pin->n_ffn_gpus && pin->ffn_gpus[0] != m);
  bool both = pin->n_attention_gpus > 0 && pin->n_ffn_gpus > 0;
  return !other && ranks > per && ranks <= t->ranks && (both || t->ranks - ranks < per) &&
         (t->replicas == 1 || ranks % per == 0) && (pin->n_attention_gpus > 0 || n <= t->batch) &&
         m <= s->spec->model.moe.experts && pin->n_attention_gpus <= 1 && pin->n_ffn_gpus <= 1;
}

void space_partners(const Space *s, const Tuple *t, int n, int *least, int *most)
{
  const PlanSpec *pin = &s->spec->plan;
  int experts = s->spec->model.moe.experts, left = t->ranks - t->p_att * n;
  *most = left / t->p_ffn < experts ? left / t->p_ffn : experts;
  *least = left >= s->nodes.ranks ? (left - s->nodes.ranks) / t->p_ffn + 1 : 1;
  if (pin->n_ffn_gpus > 0) {
    *least = *most = pin->ffn_gpus[0];
  }
}

/* ---- columns ---- */

static const double SAME = 1e-9; /* relative; times closer than this are equal */

static void add_column(Arena *arena, Columns *list, Column c)
{
  list->v = arena_grow(arena, list->v, list->n, &list->room, sizeof *list->v);
  list->v[list->n++] = c;
}

/* Columns of one side: its price may change with the other side's count; one column per run of equal price. */
static void add_side(const Space *s, const Price *p, bool att, const IntList *own, const IntList *other, double limit,
                     Columns *out)
{
  const Tuple *t = p->tuple;
  int pinned = att ? s->spec->plan.attention_nics : s->spec->plan.ffn_nics;
  for (int i = 0; i < own->n; i++) {
    int n = own->v[i], ranks = space_ranks(s, att, att ? t->p_att : t->p_ffn, n);
    int nics = pinned > 0 ? pinned : space_nics(s, t, ranks);
    Column c = {.att = att, .ffn = !att, .att_n = att ? n : 0, .ffn_n = att ? 0 : n, .ranks = ranks};
    double run = INFINITY;
    c.att_nics = att ? nics : 0;
    c.ffn_nics = att ? 0 : nics;
    for (int j = 0; j <= other->n; j++) {
      double z = INFINITY;
      if (j < other->n) {
        z = att ? price_att(p, n, nics, other->v[j]) : price_ffn(p, other->v[j], n, nics);
        z = z <= limit ? z : INFINITY;
      }
      if (z != run) {
        if (isfinite(run)) {
          c.hi = other->v[j - 1];
          add_column(s->arena, out, c);
        }
        run = z;
        c.lo = j < other->n ? other->v[j] : 0;
        c.z_att = att ? z : 0;
        c.z_ffn = att ? price_ffn_launches(p, n) : z;
      }
    }
  }
}

/* Mixed layouts of the sizes last set: each division of every node's NICs between the sides. What is slower than one
   already seen does not count. */
static void add_mixed_nics(const Space *s, const Price *p, const Mixed *m, Column c, double *limit, Columns *out)
{
  const PlanSpec *pin = &s->spec->plan;
  int nodes = (int)moe_part_max(c.ranks, s->nodes.ranks), all = s->nodes.nics;
  for (int a = 1; a < all; a++) {
    int f = pin->ffn_nics > 0 ? pin->ffn_nics / nodes : all - a;
    if (f < 1 || a + f > all || (pin->attention_nics > 0 && pin->attention_nics / nodes != a)) {
      continue;
    }
    c.att_nics = pin->attention_nics > 0 ? pin->attention_nics : a * nodes;
    c.ffn_nics = pin->ffn_nics > 0 ? pin->ffn_nics : f * nodes;
    c.z_att = mixed_att(m, a);
    c.z_ffn = mixed_ffn(m, f) + price_ffn_launches(p, c.att_n);
    double z = fmax(p->chain, fmax(c.z_att, c.z_ffn));
    if (isfinite(z) && z <= *limit) {
      add_column(s->arena, out, c);
      *limit = fmin(*limit, z * (1 + SAME));
    }
  }
}

static void add_mixed(const Space *s, const Price *p, double limit, Columns *out)
{
  const Tuple *t = p->tuple;
  IntList att = space_counts(s, t, true);
  Mixed *mixed = mixed_new(s->arena, p);
  for (int i = 0; i < att.n; i++) {
    int n = att.v[i], least, most;
    space_partners(s, t, n, &least, &most);
    for (int m = least; m <= most && price_att_least(p, n) <= limit; m++) {
      Column c = {.att = true, .ffn = true, .att_n = n, .ffn_n = m, .ranks = t->p_att * n + t->p_ffn * m};
      if (space_mixed(s, t, n, m) && price_ffn_least(p, n, m) <= limit && mixed_set(mixed, n, m)) {
        add_mixed_nics(s, p, mixed, c, &limit, out);
      }
    }
  }
}

static void add_colocated(const Space *s, const Price *p, const IntList *own, double limit, Columns *out)
{
  int pinned = s->spec->plan.attention_nics;
  for (int i = 0; i < own->n && own->v[i] <= s->spec->model.moe.experts; i++) {
    int n = own->v[i], ranks = space_ranks(s, s->spec->plan.n_attention_gpus > 0, p->tuple->p_att, n);
    int nics = pinned > 0 ? pinned : plan_default_nics(&s->nodes, ranks);
    Column c = {.att = true, .ffn = true, .att_n = n, .ffn_n = n, .att_nics = nics, .ffn_nics = nics, .ranks = ranks};
    c.z_att = price_both(p, n, nics);
    if (isfinite(c.z_att) && c.z_att <= limit) {
      add_column(s->arena, out, c);
    }
  }
}

void space_columns(const Space *s, const Price *p, double limit, Columns *out)
{
  const Tuple *t = p->tuple;
  IntList att = space_counts(s, t, true), ffn = space_counts(s, t, false);
  if (t->place == PLACE_COLOCATED) {
    add_colocated(s, p, &att, limit, out);
  } else if (t->place == PLACE_MIXED && !t->single) {
    add_mixed(s, p, limit, out);
  } else {
    add_side(s, p, true, &att, &ffn, limit, out);
    add_side(s, p, false, &ffn, &att, limit, out);
  }
}
