/* The FFN side of one layer: h = norm(a), expert e: y = down(act(gate h, up h)), with biases where the model has them;
   a row's partial sum is that of weight * y over its pairs here, plus on the row's home a and the shared expert's
   output. Backward, per pair, dx being the row's gradient: d = down^T dx; dweight = <dx, y> = <d, act> + <dx, down
   bias>; dact = weight * d; moe_act.h has the rest. Pairs are kept grouped by expert. Sums of rows are formed for
   MOE_FFN_ROWS of them at a time, expert after expert, so that scratch does not grow with the micro-batch; the order of
   every sum follows from the list alone. */
#include "moe_act.h"
#include "moe_gemm.h"
#include "moe_parts.h"

enum { F = MOE_FFN_HIDDEN, F2 = 2 * MOE_FFN_HIDDEN, H = MOE_HIDDEN, FS = MOE_SHARED };

/* Some pairs of one expert, neighbours in the grouped order. */
typedef struct Group {
  size_t n, begin;
  const uint32_t *pair, *row;
  const float *gate_up, *down;           /* [2 F, H], [H, F] */
  const float *gate_up_bias, *down_bias; /* [2 F], [H], where the model has them */
} Group;

static size_t local_experts(const MoeCall *call)
{
  return (size_t)moe_part_size(MOE_EXPERTS, call->n_ffn, call->me);
}

/* The pairs of expert e from *next on whose rows lie below row_end, as many as scratch holds; *next moves past them. */
static Group take_group(const MoeCall *call, const MoeFfnSaved *s, size_t e, size_t row_end, uint32_t *next)
{
  size_t begin = *next;
  size_t end = moe_min(s->first[e + 1], begin + moe_min(MOE_FFN_TILE, s->list.head->rows));
  while (*next < end && s->group_row[*next] < row_end) {
    ++*next;
  }
  return (Group){.n = *next - begin,
                 .begin = begin,
                 .pair = s->group_pair + begin,
                 .row = s->group_row + begin,
                 .gate_up = call->w + e * MOE_EXPERT_ELEMS,
                 .down = call->w + e * MOE_EXPERT_ELEMS + MOE_AT_DOWN,
                 .gate_up_bias = call->w + e * MOE_EXPERT_ELEMS + (MOE_EXPERT_BIAS ? MOE_AT_GU_BIAS : 0),
                 .down_bias = call->w + e * MOE_EXPERT_ELEMS + (MOE_EXPERT_BIAS ? MOE_AT_DOWN_BIAS : 0)};
}

/* Counting sort of the pairs by expert; rows stay in order within an expert. */
static void group_pairs(const MoeCall *call, const MoeFfnSaved *s)
{
  size_t first_expert = (size_t)moe_part_begin(MOE_EXPERTS, call->n_ffn, call->me);
  size_t n_pairs = s->list.head->pairs;
  uint32_t next[MOE_EXPERTS];
  memset(s->first, 0, (MOE_EXPERTS + 1) * sizeof *s->first);
  for (size_t p = 0; p < n_pairs; p++) {
    s->first[s->list.pairs[p].expert - first_expert + 1]++;
  }
  for (size_t e = 0; e < MOE_EXPERTS; e++) {
    next[e] = s->first[e];
    s->first[e + 1] += s->first[e];
  }
  size_t p = 0;
  for (size_t r = 0; r < s->list.head->rows; r++) {
    for (size_t k = 0; k < s->list.rows[r].pairs; k++, p++) {
      uint32_t at = next[s->list.pairs[p].expert - first_expert]++;
      s->group_pair[at] = (uint32_t)p;
      s->group_row[at] = (uint32_t)r;
    }
  }
}

static void add_row(float *sum, float weight, const float *x)
{
  for (size_t i = 0; i < H; i++) {
    sum[i] = moe_fma(weight, x[i], sum[i]);
  }
}

/* sum [n, H] of rows first .. first + n: the residual on its home, else zero. */
static void start_sums(const MoeCall *call, const MoeFfnSaved *s, const MoeReal *residual, size_t first, size_t n,
                       float *sum)
{
  for (size_t r = 0; r < n; r++) {
    if (s->list.rows[first + r].home == call->me) {
      moe_row_add(sum + r * H, residual + (first + r) * H, true);
    } else {
      memset(sum + r * H, 0, H * sizeof *sum);
    }
  }
}

static void activate(const MoeReal *gate_up, size_t n, float *act)
{
  for (size_t r = 0; r < n; r++) {
    const MoeReal *gate = gate_up + r * F2;
    const MoeReal *up = gate + F;
    float *out = act + r * F;
    for (size_t i = 0; i < F; i++) {
      out[i] = moe_round(moe_act(MOE_CLAMPED, moe_get(gate[i]), moe_get(up[i])));
    }
  }
}

/* d [F] is down^T dx of one pair; returns <d, act>. gate_up [2 F] becomes its gradient: WGRAD needs that and act, but
   not gate and up themselves. */
static float activate_back(MoeReal *gate_up, const float *d, float weight, MoeReal *act)
{
  float row[MOE_BF16 ? F : 1];
  float *out = moe_target(act, row);
  for (size_t i = 0; i < F; i++) {
    float dg;
    float du;
    out[i] = moe_round(moe_act_back(MOE_CLAMPED, moe_get(gate_up[i]), moe_get(gate_up[F + i]), &dg, &du));
    gate_up[i] = moe_put(weight * d[i] * dg);
    gate_up[F + i] = moe_put(weight * d[i] * du);
  }
  moe_keep(act, out, F);
  return moe_dot(d, out, F);
}

static MoeStatus take_rows(MoeCall *call, MoeFfnSaved *s)
{
  size_t rows, pairs;
  size_t row = 0;
  MOE_TRY(moe_count_list(call, (size_t)call->me, (size_t)call->me + 1, &rows, &pairs));
  moe_ffn_begin(call, rows, pairs, s);
  moe_copy_list(call, rows, pairs, &s->list);
  for (int32_t i = 0; i < call->n_in; i++) {
    MoeView view;
    MOE_TRY(moe_view(&call->in[i], MOE_LIST_HEAD, MOE_LIST_PAIR, &view));
    moe_row_copy(s->a + row * H, view.rows, view.n_rows);
    row += view.n_rows;
  }
  return MOE_OK;
}

/* x [n, H]: a group's rows normed. */
static void norm_group(const MoeCall *call, const MoeFfnSaved *s, const Group *g, float *x)
{
  for (size_t j = 0; j < g->n; j++) {
    moe_norm_row(s->a + g->row[j] * H, call->gain, s->rstd[g->row[j]], x + j * H);
  }
}

/* Gate and up of a group. */
static void group_inner(const MoeCall *call, const MoeFfnSaved *s, const MoeFfnScratch *t, const Group *g)
{
  MoeReal *kept = s->gate_up + g->begin * F2;
  float *gate_up = moe_target(kept, t->gate_up);
  norm_group(call, s, g, t->x);
  moe_gemm_nt(g->n, F2, H, t->x, H, g->gate_up, H, 0.0f, gate_up, F2);
  if (MOE_EXPERT_BIAS) {
    moe_add_bias(gate_up, g->n, F2, g->gate_up_bias, F2);
  }
  moe_keep(kept, gate_up, g->n * F2);
}

/* What one group adds to sum, whose first row is `first`. */
static void group_fwd(const MoeCall *call, const MoeFfnSaved *s, const MoeFfnScratch *t, const Group *g, size_t first,
                      float *sum)
{
  const MoeReal *kept = s->gate_up + g->begin * F2;
  group_inner(call, s, t, g);
  activate(kept, g->n, t->act);
  moe_gemm_nt(g->n, H, F, t->act, F, g->down, F, 0.0f, t->x, H);
  if (MOE_EXPERT_BIAS) {
    moe_add_bias(t->x, g->n, H, g->down_bias, H);
  }
  for (size_t j = 0; j < g->n; j++) {
    add_row(sum + (g->row[j] - first) * H, s->list.pairs[g->pair[j]].weight, t->x + j * H);
  }
}

/* Some rows that have their home here: those of them in first .. end, number `begin` and on in the order of all. */
typedef struct Homes {
  size_t first, end, begin, n;
} Homes;

/* The next ones before row_end, as many as scratch holds; with none left n is 0. */
static bool next_homes(const MoeCall *call, const MoeFfnSaved *s, size_t row_end, Homes *h)
{
  h->first = h->end;
  h->begin += h->n;
  h->n = 0;
  while (FS > 0 && h->end < row_end && h->n < MOE_FFN_TILE) {
    h->n += s->list.rows[h->end++].home == call->me;
  }
  return h->n > 0;
}

/* x [n, H]: their rows normed. */
static void norm_homes(const MoeCall *call, const MoeFfnSaved *s, const Homes *h, float *x)
{
  for (size_t r = h->first; r < h->end; r++) {
    if (s->list.rows[r].home == call->me) {
      moe_norm_row(s->a + r * H, call->gain, s->rstd[r], x);
      x += H;
    }
  }
}

static void read_homes(const MoeCall *call, const MoeFfnSaved *s, const Homes *h, const MoeReal *rows, float *x)
{
  for (size_t r = h->first; r < h->end; r++) {
    if (s->list.rows[r].home == call->me) {
      moe_row_add(x, rows + r * H, true);
      x += H;
    }
  }
}

static void add_homes(const MoeCall *call, const MoeFfnSaved *s, const Homes *h, const float *x, size_t first,
                      float *sum)
{
  for (size_t r = h->first; r < h->end; r++) {
    if (s->list.rows[r].home == call->me) {
      add_row(sum + (r - first) * H, 1.0f, x);
      x += H;
    }
  }
}

/* Gate and up of the shared expert. */
static void shared_inner(const MoeCall *call, const MoeFfnSaved *s, const MoeFfnScratch *t, const Homes *h)
{
  MoeReal *kept = s->shared + h->begin * 2 * FS;
  float *gate_up = moe_target(kept, t->gate_up);
  norm_homes(call, s, h, t->x);
  moe_mlp_inner(call->shared, FS, t->x, h->n, gate_up);
  moe_keep(kept, gate_up, h->n * 2 * FS);
}

/* The shared expert on the rows before row_end that have their home here; sum's first row is `first`. */
static void shared_fwd(const MoeCall *call, const MoeFfnSaved *s, const MoeFfnScratch *t, size_t first, size_t row_end,
                       Homes *h, float *sum)
{
  while (next_homes(call, s, row_end, h)) {
    float *gate_up = moe_target(s->shared + h->begin * 2 * FS, t->gate_up);
    shared_inner(call, s, t, h);
    moe_mlp_outer(call->shared, FS, gate_up, h->n, t->act, t->x);
    add_homes(call, s, h, t->x, first, sum);
  }
}

static void shared_dgrad(const MoeCall *call, const MoeFfnSaved *s, const MoeFfnWork *out, const MoeFfnScratch *t,
                         size_t first, size_t row_end, Homes *h, float *dh)
{
  while (next_homes(call, s, row_end, h)) {
    MoeReal *kept = s->shared + h->begin * 2 * FS;
    float *gate_up = moe_target(kept, t->gate_up);
    if (MOE_RECOMPUTE > 0) {
      shared_inner(call, s, t, h);
    }
    if (MOE_BF16) {
      moe_read_row(kept, h->n * 2 * FS, gate_up);
    }
    read_homes(call, s, h, out->dx, t->x);
    moe_mlp_dgrad_outer(call->shared, FS, t->x, h->n, gate_up, t->act);
    moe_keep(kept, gate_up, h->n * 2 * FS);
    moe_keep_row(out->shared_act + h->begin * FS, t->act, h->n * FS);
    moe_mlp_dgrad_inner(call->shared, FS, gate_up, h->n, t->x);
    add_homes(call, s, h, t->x, first, dh);
  }
}

static void shared_wgrad(const MoeCall *call, const MoeFfnSaved *s, const MoeFfnWork *in, const MoeFfnScratch *t)
{
  Homes h = {0};
  while (next_homes(call, s, s->list.head->rows, &h)) {
    read_homes(call, s, &h, in->dx, t->x);
    const float *act = moe_floats(in->shared_act + h.begin * FS, h.n * FS, t->act);
    moe_mlp_wgrad_outer(FS, t->x, act, h.n, call->g_shared);
    norm_homes(call, s, &h, t->x);
    const float *d_gate_up = moe_floats(s->shared + h.begin * 2 * FS, h.n * 2 * FS, t->gate_up);
    moe_mlp_wgrad_inner(FS, d_gate_up, t->x, h.n, call->g_shared);
  }
}

MoeStatus moe_ffn_fwd(MoeCall *call)
{
  MoeFfnSaved s;
  MoeFfnWork out;
  MoeFfnScratch t;
  uint32_t next[MOE_EXPERTS];
  MOE_TRY(take_rows(call, &s));
  size_t rows = s.list.head->rows;
  moe_ffn_work_carve(call->work, rows, s.list.head->pairs, &out);
  moe_ffn_scratch_carve(call->scratch, rows, &t);
  group_pairs(call, &s);
  moe_rstds(s.a, rows, s.rstd);

  Homes homes = {0};
  memcpy(next, s.first, sizeof next);
  for (size_t first = 0; first < rows; first += MOE_FFN_ROWS) {
    size_t n = moe_min(MOE_FFN_ROWS, rows - first);
    float *sum = moe_target(out.rows + first * H, t.sum);
    start_sums(call, &s, s.a, first, n, sum);
    for (size_t e = 0; e < local_experts(call); e++) {
      Group g;
      while ((g = take_group(call, &s, e, first + n, &next[e])).n > 0) {
        group_fwd(call, &s, &t, &g, first, sum);
      }
    }
    shared_fwd(call, &s, &t, first, first + n, &homes, sum);
    moe_keep(out.rows + first * H, sum, n * H);
  }
  return MOE_OK;
}

/* What one group adds to dh, whose first row is `first`. */
static void group_dgrad(const MoeCall *call, const MoeFfnSaved *s, const MoeFfnWork *out, const MoeFfnScratch *t,
                        const Group *g, size_t first, float *dh)
{
  MoeReal *gate_up = s->gate_up + g->begin * F2;
  if (MOE_RECOMPUTE > 0) {
    group_inner(call, s, t, g);
  }
  for (size_t j = 0; j < g->n; j++) {
    moe_row_add(t->x + j * H, out->dx + g->row[j] * H, true);
  }
  moe_gemm_nn(g->n, F, H, t->x, H, g->down, F, 0.0f, t->act, F);
  for (size_t j = 0; j < g->n; j++) {
    float weight = s->list.pairs[g->pair[j]].weight;
    float bias = MOE_EXPERT_BIAS ? moe_dot(t->x + j * H, g->down_bias, H) : 0.0f;
    out->dw[g->pair[j]] = bias + activate_back(gate_up + j * F2, t->act + j * F, weight, out->act + (g->begin + j) * F);
  }
  moe_gemm_nn(g->n, H, F2, moe_floats(gate_up, g->n * F2, t->gate_up), F2, g->gate_up, H, 0.0f, t->x, H);
  for (size_t j = 0; j < g->n; j++) {
    add_row(dh + (g->row[j] - first) * H, 1.0f, t->x + j * H);
  }
}

MoeStatus moe_ffn_dgrad(MoeCall *call)
{
  MoeFfnSaved s;
  MoeFfnWork out;
  MoeFfnScratch t;
  uint32_t next[MOE_EXPERTS];
  moe_ffn_saved(call, &s);
  size_t rows = s.list.head->rows;
  moe_ffn_work_carve(call->work, rows, s.list.head->pairs, &out);
  moe_ffn_scratch_carve(call->scratch, rows, &t);
  MOE_TRY(moe_take_grads(call, &s.list, out.dx));
  if (MOE_RECOMPUTE == 2) {
    MOE_TRY(moe_take_again(call, &s.list, s.a));
    moe_rstds(s.a, rows, s.rstd);
  }

  Homes homes = {0};
  memcpy(next, s.first, sizeof next);
  for (size_t first = 0; first < rows; first += MOE_FFN_ROWS) {
    size_t end = moe_min(first + MOE_FFN_ROWS, rows);
    memset(t.sum, 0, (end - first) * H * sizeof *t.sum);
    for (size_t e = 0; e < local_experts(call); e++) {
      Group g;
      while ((g = take_group(call, &s, e, end, &next[e])).n > 0) {
        group_dgrad(call, &s, &out, &t, &g, first, t.sum);
      }
    }
    shared_dgrad(call, &s, &out, &t, first, end, &homes, t.sum);
    for (size_t at = first; at < end; at += MOE_FFN_TILE) {
      size_t n = moe_min(MOE_FFN_TILE, end - at);
      float *da = moe_target(out.rows + at * H, t.x);
      start_sums(call, &s, out.dx, at, n, da);
      moe_norm_back(s.a + at * H, call->gain, s.rstd + at, t.sum + (at - first) * H, n, da, call->g_gain);
      moe_keep(out.rows + at * H, da, n * H);
    }
  }
  return MOE_OK;
}

/* What one group adds to its expert's gradients. */
static void group_wgrad(const MoeCall *call, const MoeFfnSaved *s, const MoeFfnWork *in, const MoeFfnScratch *t,
                        const Group *g, float *gw)
{
  for (size_t j = 0; j < g->n; j++) {
    float weight = s->list.pairs[g->pair[j]].weight;
    const MoeReal *dx = in->dx + g->row[j] * H;
    for (size_t i = 0; i < H; i++) {
      t->x[j * H + i] = moe_round(weight * moe_get(dx[i]));
    }
  }
  const float *act = moe_floats(in->act + g->begin * F, g->n * F, t->act);
  moe_gemm_tn(H, F, g->n, t->x, H, act, F, 1.0f, gw + MOE_AT_DOWN, F);
  if (MOE_EXPERT_BIAS) {
    moe_bias_back(gw + MOE_AT_DOWN_BIAS, t->x, g->n, H, H);
  }
  norm_group(call, s, g, t->x);
  const float *d_gate_up = moe_floats(s->gate_up + g->begin * F2, g->n * F2, t->gate_up);
  moe_gemm_tn(F2, H, g->n, d_gate_up, F2, t->x, H, 1.0f, gw, H);
  if (MOE_EXPERT_BIAS) {
    moe_bias_back(gw + MOE_AT_GU_BIAS, d_gate_up, g->n, F2, F2);
  }
}

MoeStatus moe_ffn_wgrad(MoeCall *call)
{
  MoeFfnSaved s;
  MoeFfnWork in;
  MoeFfnScratch t;
  moe_ffn_saved(call, &s);
  size_t rows = s.list.head->rows;
  moe_ffn_work_carve(call->work, rows, s.list.head->pairs, &in);
  moe_ffn_scratch_carve(call->scratch, rows, &t);
  for (size_t e = 0; e < local_experts(call); e++) {
    uint32_t next = s.first[e];
    Group g;
    while ((g = take_group(call, &s, e, rows, &next)).n > 0) {
      group_wgrad(call, &s, &in, &t, &g, call->gw + e * MOE_EXPERT_ELEMS);
    }
  }
  shared_wgrad(call, &s, &in, &t);
  return MOE_OK;
}
