/* Memory of a rank, term by term. Weights, gradients and optimizer state are counted per parameter of its buckets;
   activations are slots times the bytes of a slot; buffers are the slots of arriving messages; workspace is scratch.
   Slots: one saved slot per layer and micro-batch in flight, a few of work, two per message channel. An upper bound:
   while a micro-batch is on its way some of its layers have not begun. */
#include "codegen/memory.h"

#include "runtime/moe_layout.h"

enum { THREADS = 2, TILE_KEYS = 256, SOURCE_BYTES = 56 };

/* Bytes per parameter. Master copy and both moments are fp32 whatever the training type, sharded over the holders. */
static const struct {
  int weight, gradient, optimizer;
} per_param[] = {
    [DTYPE_FP32] = {.weight = 4, .gradient = 4, .optimizer = 12},
    [DTYPE_BF16] = {.weight = 2, .gradient = 4, .optimizer = 12},
};

static int64_t piece(double n, int64_t size)
{
  return (int64_t)moe_align64((size_t)((int64_t)n * size));
}

static int64_t max64(int64_t a, int64_t b)
{
  return a > b ? a : b;
}

static double min2(double a, double b)
{
  return a < b ? a : b;
}

/* ---- slots ---- */

static double q_width(const Spec *spec)
{
  bool mla = spec->model.attention.kind == ATTENTION_MLA;
  return (double)spec->model.attention.heads * (mla ? spec->model.attention.v_dim : spec->model.attention.head_dim);
}

static double qkv_width(const Spec *spec)
{
  double nq = spec->model.attention.heads;
  if (spec->model.attention.kind == ATTENTION_MLA) {
    double dn = spec->model.attention.nope_dim, dr = spec->model.attention.rope_dim;
    return spec->model.attention.q_lora + spec->model.attention.kv_lora + dr + nq * (2 * dn + dr) + q_width(spec);
  }
  return (nq + 2.0 * spec->model.attention.kv_heads) * spec->model.attention.head_dim;
}

static int64_t att_saved_bytes(const Spec *spec, const MemIn *in)
{
  double t = (double)(in->att_seqs * in->seq), h = spec->model.hidden, k = spec->model.moe.top_k;
  double e = spec->model.moe.experts, n_src = in->ffn_ranks;
  int b = cost_elem_bytes(spec);
  int64_t n = piece(1, 16) + piece(t * h, b) + piece(t * h, b) + 2 * piece(t, 4); /* head, x, a, norms */
  if (spec->plan.recompute != RECOMPUTE_FULL) {
    n += piece(t * qkv_width(spec), b) + piece(t * q_width(spec), b) + piece(t * spec->model.attention.heads, 4);
  }
  n += piece(t * e, 4) + piece(t * k, 4) + piece(in->att_seqs * e, 4) + piece(t * k, 2) + piece(t * k, 1);
  n += 2 * piece(n_src, 4) + piece(n_src * t, 4);
  return n;
}

/* A dense layer keeps gate and up beside what every layer keeps. */
static int64_t dense_saved_bytes(const Spec *spec, const MemIn *in)
{
  return piece((double)(in->att_seqs * in->seq) * 2.0 * spec->model.dense.hidden, cost_elem_bytes(spec));
}

static int64_t att_work_bytes(const Spec *spec, const MemIn *in)
{
  double t = (double)(in->att_seqs * in->seq), h = spec->model.hidden;
  int b = cost_elem_bytes(spec);
  return 2 * piece(t * h, b) + piece(t * qkv_width(spec), b) + piece(t * spec->model.moe.experts, 4);
}

/* Rows and pairs that an FFN rank must have room for: everything, unless the spec declares an imbalance. */
static double ffn_rows(const Spec *spec, const MemIn *in)
{
  double t = (double)(in->mb_seqs * in->seq);
  return spec->model.moe.imbalance > 0 ? t * cost_rows_per_token(spec, cost_hits_max(spec, in->ffn_ranks)) : t;
}

static double ffn_pairs(const Spec *spec, const MemIn *in)
{
  double t = (double)(in->mb_seqs * in->seq);
  return t * (spec->model.moe.imbalance > 0 ? cost_pairs_per_token(spec, cost_hits_max(spec, in->ffn_ranks))
                                            : min2(spec->model.moe.top_k, in->experts));
}

static int64_t list_bytes(double rows, double pairs)
{
  return piece(1, 8) + piece(rows, sizeof(MoeRowHead)) + piece(pairs, sizeof(MoePair)) + piece(rows, 2);
}

static double relay_rows(const Spec *spec, const MemIn *in)
{
  double t = (double)(in->mb_seqs * in->seq);
  return spec->model.moe.imbalance > 0 ? min2(t, t * spec->model.moe.imbalance / in->node_ranks) : t;
}

static int64_t ffn_saved_bytes(const Spec *spec, const MemIn *in)
{
  double rows = ffn_rows(spec, in), pairs = ffn_pairs(spec, in), h = spec->model.hidden, f = spec->model.moe.hidden;
  int b = cost_elem_bytes(spec);
  int64_t n = list_bytes(rows, pairs) + piece(rows * h, b) + piece(rows, 4);
  n += piece(spec->model.moe.experts + 1, 4) + 2 * piece(pairs, 4);
  if (spec->plan.recompute == RECOMPUTE_NONE) {
    n += piece(pairs * 2 * f, b) + (spec->model.moe.shared ? piece(rows * 2 * spec->model.moe.shared, b) : 0);
  }
  if (in->relayed) {
    double relay = relay_rows(spec, in);
    n += list_bytes(relay, relay * spec->model.moe.top_k);
  }
  return n;
}

static int64_t ffn_work_bytes(const Spec *spec, const MemIn *in)
{
  double rows = ffn_rows(spec, in), pairs = ffn_pairs(spec, in), h = spec->model.hidden, f = spec->model.moe.hidden;
  int b = cost_elem_bytes(spec);
  int64_t n = 2 * piece(rows * h, b) + piece(pairs, 4) + piece(pairs * 2 * f, b);
  if (in->relayed) {
    double relay = relay_rows(spec, in);
    n = max64(n, piece(relay * h, b) + piece(relay * spec->model.moe.top_k, 4));
  }
  return n;
}

static int64_t att_scratch_bytes(const Spec *spec, const MemIn *in)
{
  double t = (double)(in->att_seqs * in->seq), h = spec->model.hidden, s = (double)in->seq;
  double d = q_width(spec) / spec->model.attention.heads, group = 1;
  if (spec->model.attention.kind == ATTENTION_GQA) {
    group = (double)spec->model.attention.heads / spec->model.attention.kv_heads;
  }
  double tile = group * (group <= 2 ? 64 : group <= 4 ? 32 : 16);
  int64_t n = 2 * piece(t * h, 4) + piece(t * q_width(spec), 4) + piece(t * spec->model.moe.top_k, 4);
  n += cost_elem_bytes(spec) == 2 ? piece(t * qkv_width(spec), 4) : 0;
  n += piece(in->ffn_ranks, SOURCE_BYTES) + 2 * piece(s * d / 2, 4) + 3 * piece(s * d * group, 4) + 4 * piece(s * d, 4);
  return n + 2 * piece(tile * TILE_KEYS, 4) + piece(tile * d, 4) + 2 * piece(tile, 4);
}

/* Logits of a chunk of tokens at a time. */
static int64_t head_scratch_bytes(const Spec *spec, const MemIn *in)
{
  int64_t chunk = (8 << 20) / spec->model.vocab;
  chunk = chunk > 256 ? 256 : max64(chunk, 32);
  return 2 * piece((double)chunk * spec->model.hidden, 4) + piece((double)chunk * spec->model.vocab, 4) +
         piece((double)chunk, 4) + piece(in->ffn_ranks, SOURCE_BYTES);
}

/* One expert's rows at a time. */
static int64_t ffn_scratch_bytes(const Spec *spec, const MemIn *in)
{
  double rows = ffn_rows(spec, in), h = spec->model.hidden, f = spec->model.moe.hidden;
  int64_t n = 4 * piece(rows * h, 4) + 2 * piece(rows * f, 4);
  return n + (cost_elem_bytes(spec) == 2 ? 2 * piece(rows * 2 * f, 4) : 0);
}

/* ---- messages ---- */

static int64_t msg_bytes(const Spec *spec, double rows, size_t head, double pairs, size_t pair)
{
  size_t at = moe_msg_rows_at((size_t)rows, head, (size_t)pairs, pair);
  return (int64_t)moe_align64(at + (size_t)rows * (size_t)cost_row_bytes(spec));
}

/* Rows of one attention rank's tokens in one message to or from one FFN rank. */
static double message_rows(const Spec *spec, const MemIn *in)
{
  double t = (double)(in->att_seqs * in->seq), f = spec->model.moe.imbalance;
  if (f <= 0) {
    return t;
  }
  if (in->relayed) {
    return min2(t, t * f / in->node_ranks);
  }
  return t * cost_rows_per_token(spec, cost_hits_max(spec, in->ffn_ranks));
}

static double message_pairs(const Spec *spec, const MemIn *in, double rows)
{
  return rows * min2(spec->model.moe.top_k, in->relayed ? spec->model.moe.experts : in->experts);
}

/* ---- terms ---- */

static void add_params(const Spec *spec, double n, int holders, MemoryTerms *m)
{
  int64_t elems = (int64_t)n;
  m->weights += elems * per_param[spec->train.dtype].weight;
  m->gradients += elems * per_param[spec->train.dtype].gradient;
  m->optimizer += moe_part_max(elems, holders) * per_param[spec->train.dtype].optimizer;
}

void memory_att(const Spec *spec, const MemIn *in, MemoryTerms *m)
{
  int holders = in->own_ranks * in->replicas, dense = spec->model.dense.layers;
  double n = in->att_moe * (double)cost_bucket_elems(spec, MOE_BUCKET_ATT, dense, 0);
  n += in->att_dense * (double)cost_bucket_elems(spec, MOE_BUCKET_ATT, 0, 0);
  n += (in->att_moe + in->att_dense) * (double)spec->model.hidden;
  n += in->embed ? (double)cost_bucket_elems(spec, MOE_BUCKET_EMBED, 0, 0) : 0;
  if (in->head) { /* a tied table is kept once per rank, also where embedding and head meet */
    n += (double)cost_bucket_elems(spec, MOE_BUCKET_HEAD, 0, 0);
    n += spec->model.tied && !in->embed ? (double)cost_bucket_elems(spec, MOE_BUCKET_EMBED, 0, 0) : 0;
  }
  add_params(spec, n, holders, m);

  int64_t slots = (int64_t)in->in_flight * (in->att_moe + in->att_dense) + (in->head ? 1 : 0);
  m->activations += slots * att_saved_bytes(spec, in) + PLAN_WORK_SLOTS * att_work_bytes(spec, in);
  m->activations += (int64_t)in->in_flight * in->att_dense * dense_saved_bytes(spec, in);

  double rows = message_rows(spec, in), pairs = message_pairs(spec, in, rows);
  int64_t combine = msg_bytes(spec, rows, sizeof(uint32_t), 0, 0);
  int64_t dispatch_b = msg_bytes(spec, rows, 0, pairs, sizeof(float));
  m->buffers += PLAN_CHAN_SLOTS * in->ffn_ranks * (in->combine_from * combine + in->dispatch_b_from * dispatch_b);

  m->workspace = max64(m->workspace, THREADS * att_scratch_bytes(spec, in));
  m->workspace = max64(m->workspace, in->head ? THREADS * head_scratch_bytes(spec, in) : 0);
}

void memory_ffn(const Spec *spec, const MemIn *in, MemoryTerms *m)
{
  int dense = spec->model.dense.layers;
  double n = in->ffn_layers * (double)cost_bucket_elems(spec, MOE_BUCKET_EXPERTS, dense, in->experts);
  add_params(spec, n, in->replicas, m);
  add_params(spec, in->ffn_layers * (double)spec->model.hidden, in->replicas * in->own_ranks, m);

  int64_t slots = (int64_t)in->in_flight * in->ffn_layers;
  m->activations += slots * ffn_saved_bytes(spec, in) + (PLAN_WORK_SLOTS + in->relayed) * ffn_work_bytes(spec, in);

  double rows = message_rows(spec, in), pairs = message_pairs(spec, in, rows);
  int64_t dispatch = msg_bytes(spec, rows, sizeof(MoeRowHead), pairs, sizeof(MoePair));
  int64_t combine_b = msg_bytes(spec, rows, 0, 0, 0);
  m->buffers += PLAN_CHAN_SLOTS * in->att_ranks * (in->dispatch_from * dispatch + in->combine_b_from * combine_b);
  if (in->relayed) {
    double relay = relay_rows(spec, in);
    if (spec->model.moe.imbalance > 0) { /* of the relay's rows, those with an expert on the rank */
      relay = min2(relay, ffn_rows(spec, in) / in->node_ranks);
    }
    double k = min2(spec->model.moe.top_k, in->experts);
    int64_t forward = msg_bytes(spec, relay, sizeof(MoeRowHead), relay * k, sizeof(MoePair));
    int64_t forward_b = msg_bytes(spec, relay, 0, relay * k, sizeof(float));
    m->buffers += PLAN_CHAN_SLOTS * in->node_ranks * (forward + forward_b + 2 * msg_bytes(spec, relay, 0, 0, 0));
  }
  m->workspace = max64(m->workspace, THREADS * ffn_scratch_bytes(spec, in));
}

int64_t memory_sum(const MemoryTerms *m)
{
  return m->weights + m->gradients + m->optimizer + m->activations + m->buffers + m->workspace;
}

int64_t memory_need(const Spec *spec, const MemIn *in, int roles)
{
  MemoryTerms m = {0};
  if (roles & PLAN_A) {
    memory_att(spec, in, &m);
  }
  if (roles & PLAN_F) {
    memory_ffn(spec, in, &m);
  }
  return memory_sum(&m);
}

int memory_cap(const Spec *spec, const MemIn *in, int roles)
{
  MemIn one = *in, two = *in;
  one.in_flight = 1;
  two.in_flight = 2;
  int64_t first = memory_need(spec, &one, roles), each = memory_need(spec, &two, roles) - first;
  int64_t left = spec->cluster.gpu.memory - first;
  if (left < 0) {
    return 0;
  }
  int64_t more = each > 0 ? left / each : INT32_MAX;
  return more >= INT32_MAX ? INT32_MAX : (int)more + 1;
}
