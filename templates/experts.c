/* The FFN side of one layer: h = norm(a), expert e: y = down(act), act = silu(gate h) * (up h); a row's partial sum is
   that of weight * y over its pairs here, plus a on the row's home.
   Backward, per pair, dx being the row's gradient: d = down^T dx; dweight = <d, act>; dact = weight * d;
   dup = dact g s, dgate = dact u s (1 + g (1 - s)), s = sigmoid(g). Pairs are kept grouped by expert. */
#include "moe_gemm.h"
#include "moe_parts.h"
#include "moe_vec.h"

enum { F = MOE_FFN_HIDDEN, F2 = 2 * MOE_FFN_HIDDEN, H = MOE_HIDDEN };

/* The part of the grouped order that one expert has. */
typedef struct Group {
  size_t n, begin;
  const uint32_t *pair, *row;
  const float *gate_up, *down; /* [2 F, H], [H, F] */
} Group;

static size_t local_experts(const MoeCall *call)
{
  return (size_t)moe_part_size(MOE_EXPERTS, call->n_ffn, call->me);
}

static Group group_of(const MoeCall *call, const MoeFfnSaved *s, size_t e)
{
  size_t begin = s->first[e];
  return (Group){.n = s->first[e + 1] - begin,
                 .begin = begin,
                 .pair = s->group_pair + begin,
                 .row = s->group_row + begin,
                 .gate_up = call->w + e * MOE_EXPERT_ELEMS,
                 .down = call->w + e * MOE_EXPERT_ELEMS + MOE_AT_DOWN};
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

/* sum [rows, H]: the residual on its home, else zero. */
static void start_sums(const MoeCall *call, const MoeFfnSaved *s, const MoeReal *residual, float *sum)
{
  for (size_t r = 0; r < s->list.head->rows; r++) {
    if (s->list.rows[r].home == call->me) {
      moe_row_add(sum + r * H, residual + r * H, true);
    } else {
      memset(sum + r * H, 0, H * sizeof *sum);
    }
  }
}

static void swiglu(const MoeReal *gate_up, size_t n, float *act)
{
  for (size_t r = 0; r < n; r++) {
    const MoeReal *gate = gate_up + r * F2;
    const MoeReal *up = gate + F;
    float *out = act + r * F;
    for (size_t i = 0; i < F; i++) {
      float g = moe_get(gate[i]);
      out[i] = moe_round(g / (1.0f + moe_exp(-g)) * moe_get(up[i]));
    }
  }
}

/* d [F] is down^T dx of one pair; returns the gradient of its weight. */
static float swiglu_back(const MoeReal *gate_up, const float *d, float weight, float *act, MoeReal *d_gate_up)
{
  for (size_t i = 0; i < F; i++) {
    float g = moe_get(gate_up[i]);
    float u = moe_get(gate_up[F + i]);
    float s = 1.0f / (1.0f + moe_exp(-g));
    float silu = g * s;
    float dact = weight * d[i];
    act[i] = moe_round(silu * u);
    d_gate_up[i] = moe_put(dact * u * moe_fma(silu, 1.0f - s, s));
    d_gate_up[F + i] = moe_put(dact * silu);
  }
  return moe_dot(d, act, F);
}

static MoeStatus take_rows(MoeCall *call, MoeFfnSaved *s)
{
  size_t rows, pairs;
  size_t row = 0;
  MOE_TRY(moe_count_list(call, (size_t)call->me, (size_t)call->me + 1, &rows, &pairs));
  moe_ffn_saved_carve(moe_ffn_saved_base(call), rows, pairs, s);
  moe_copy_list(call, rows, pairs, &s->list);
  for (int32_t i = 0; i < call->n_in; i++) {
    MoeView view;
    MOE_TRY(moe_view(&call->in[i], MOE_LIST_HEAD, MOE_LIST_PAIR, &view));
    moe_row_copy(s->a + row * H, view.rows, view.n_rows);
    row += view.n_rows;
  }
  return MOE_OK;
}

MoeStatus moe_ffn_fwd(MoeCall *call)
{
  MoeFfnSaved s;
  MoeFfnWork out;
  MoeFfnScratch t;
  MOE_TRY(take_rows(call, &s));
  size_t rows = s.list.head->rows;
  moe_ffn_work_carve(call->work, rows, s.list.head->pairs, &out);
  moe_ffn_scratch_carve(call->scratch, rows, &t);
  group_pairs(call, &s);
  moe_norm(s.a, call->gain, rows, t.h, s.rstd);

  float *sum = moe_target(out.rows, t.sum);
  start_sums(call, &s, s.a, sum);
  for (size_t e = 0; e < local_experts(call); e++) {
    Group g = group_of(call, &s, e);
    MoeReal *kept = s.gate_up + g.begin * F2;
    float *gate_up = moe_target(kept, t.gate_up);
    for (size_t j = 0; j < g.n; j++) {
      memcpy(t.in + j * H, t.h + g.row[j] * H, H * sizeof(float));
    }
    moe_gemm_nt(g.n, F2, H, t.in, H, g.gate_up, H, 0.0f, gate_up, F2);
    moe_keep(kept, gate_up, g.n * F2);
    swiglu(kept, g.n, t.act);
    moe_gemm_nt(g.n, H, F, t.act, F, g.down, F, 0.0f, t.out, H);
    for (size_t j = 0; j < g.n; j++) {
      add_row(sum + g.row[j] * H, s.list.pairs[g.pair[j]].weight, t.out + j * H);
    }
  }
  moe_keep(out.rows, sum, rows * H);
  return MOE_OK;
}

MoeStatus moe_ffn_dgrad(MoeCall *call)
{
  MoeFfnSaved s;
  MoeFfnWork out;
  MoeFfnScratch t;
  moe_ffn_saved(call, &s);
  size_t rows = s.list.head->rows;
  moe_ffn_work_carve(call->work, rows, s.list.head->pairs, &out);
  moe_ffn_scratch_carve(call->scratch, rows, &t);
  MOE_TRY(moe_take_grads(call, &s.list, out.dx));

  float *dh = t.h;
  memset(dh, 0, rows * H * sizeof *dh);
  for (size_t e = 0; e < local_experts(call); e++) {
    Group g = group_of(call, &s, e);
    const MoeReal *gate_up = s.gate_up + g.begin * F2;
    MoeReal *d_kept = out.d_gate_up + g.begin * F2;
    for (size_t j = 0; j < g.n; j++) {
      moe_row_add(t.in + j * H, out.dx + g.row[j] * H, true);
    }
    moe_gemm_nn(g.n, F, H, t.in, H, g.down, F, 0.0f, t.d_act, F);
    for (size_t j = 0; j < g.n; j++) {
      float weight = s.list.pairs[g.pair[j]].weight;
      out.dw[g.pair[j]] = swiglu_back(gate_up + j * F2, t.d_act + j * F, weight, t.act, d_kept + j * F2);
    }
    const float *d_gate_up = moe_floats(d_kept, g.n * F2, t.d_gate_up);
    moe_gemm_nn(g.n, H, F2, d_gate_up, F2, g.gate_up, H, 0.0f, t.out, H);
    for (size_t j = 0; j < g.n; j++) {
      add_row(dh + g.row[j] * H, 1.0f, t.out + j * H);
    }
  }
  float *da = moe_target(out.rows, t.sum);
  start_sums(call, &s, out.dx, da);
  moe_norm_back(s.a, call->gain, s.rstd, dh, rows, da, call->g_gain);
  moe_keep(out.rows, da, rows * H);
  return MOE_OK;
}

MoeStatus moe_ffn_wgrad(MoeCall *call)
{
  MoeFfnSaved s;
  MoeFfnWork in;
  MoeFfnScratch t;
  moe_ffn_saved(call, &s);
  moe_ffn_work_carve(call->work, s.list.head->rows, s.list.head->pairs, &in);
  moe_ffn_scratch_carve(call->scratch, s.list.head->rows, &t);
  for (size_t e = 0; e < local_experts(call); e++) {
    Group g = group_of(call, &s, e);
    float *gw = call->gw + e * MOE_EXPERT_ELEMS;
    for (size_t j = 0; j < g.n; j++) {
      float weight = s.list.pairs[g.pair[j]].weight;
      const MoeReal *dx = in.dx + g.row[j] * H;
      for (size_t i = 0; i < H; i++) {
        t.out[j * H + i] = moe_round(weight * moe_get(dx[i]));
      }
      moe_norm_row(s.a + g.row[j] * H, call->gain, s.rstd[g.row[j]], t.in + j * H);
    }
    swiglu(s.gate_up + g.begin * F2, g.n, t.act);
    moe_gemm_tn(H, F, g.n, t.out, H, t.act, F, 1.0f, gw + MOE_AT_DOWN, F);
    const float *d_gate_up = moe_floats(in.d_gate_up + g.begin * F2, g.n * F2, t.d_gate_up);
    moe_gemm_tn(F2, H, g.n, d_gate_up, F2, t.in, H, 1.0f, gw, H);
  }
  return MOE_OK;
}
