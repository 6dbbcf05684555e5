/* Memory of a rank, term by term, as the runtime lays it out. Weights, gradients and optimizer state are counted per
   bucket; activations are slots times the bytes of a slot; buffers are the slots of arriving messages, those of the
   gradient exchange included; workspace is scratch of the largest kernel that the rank runs, and the step's tokens.
   Slots: one saved slot per layer and micro-batch in flight, a few of work and per message channel. An upper bound:
   while a micro-batch is on its way some of its layers have not begun, and short schedules need fewer slots.

   Bytes per parameter are those of a GPU that trains in the spec's type: bf16 weights beside fp32 master copies. The
   cpu target computes in fp32 and keeps fp32 weights whatever the type: 4 bytes a weight instead of 2. */
#include "codegen/memory.h"

#include "codegen/arith.h"
#include "runtime/moe_layout.h"

enum { TILE_KEYS = 256, SOURCE_BYTES = 56, SLOT_HEAD = 64, SUM_CHUNK = 4096 };

/* Rows that a kernel holds as floats at once: tokens of attention, pairs of one expert, rows per expert under way. */
enum { ATT_TILE = 1024, FFN_TILE = 1024, FFN_SHARE = 256 };

/* Slots in which the exchanges of one kind of bucket take turns; gains have one each. */
enum { TAIL_SLOTS = 2 };

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

/* Positions of the largest chunk of a sequence. */
static int64_t chunk_seq(const MemIn *in)
{
  return moe_part_max(in->seq, in->chunks > 1 ? in->chunks : 1);
}

static int at_least(int n, int least)
{
  return n > least ? n : least;
}

/* ---- slots ---- */

static double v_dim(const Spec *spec)
{
  bool mla = spec->model.attention.kind == ATTENTION_MLA;
  return mla ? spec->model.attention.v_dim : spec->model.attention.head_dim;
}

static double q_width(const Spec *spec)
{
  return spec->model.attention.heads * v_dim(spec);
}

static bool again(const MemIn *in)
{
  return in->recompute == RECOMPUTE_FULL;
}

/* What attention makes of a layer's input: its output a, which travels, both norms, projections, the core's output, the
   router's probabilities. It is kept, or made again and then lies in a work slot. Whom the router chose, and with which
   weights, is always kept, so that the choice is the same. */
static int64_t att_again_bytes(const Spec *spec, const MemIn *in)
{
  double t = (double)(in->att_seqs * in->seq);
  int b = cost_elem_bytes(spec);
  return piece(t * spec->model.hidden, b) + 2 * piece(t, 4) + piece(t * cost_qkv_width(spec), b) +
         piece(t * q_width(spec), b) + piece(t * spec->model.attention.heads, 4) +
         piece(t * spec->model.moe.experts, 4);
}

static int64_t att_saved_bytes(const Spec *spec, const MemIn *in)
{
  double t = (double)(in->att_seqs * in->seq), h = spec->model.hidden, k = spec->model.moe.top_k;
  double e = spec->model.moe.experts, listed = (double)(in->att_seqs * chunk_seq(in));
  int b = cost_elem_bytes(spec);
  int64_t n = piece(1, 24) + piece(t * h, b) + (again(in) ? 0 : att_again_bytes(spec, in)); /* head, x */
  n += piece(t * k, 4) + piece(in->att_seqs * e, 4) + piece(t * k, 2) + piece(t * k, 1);
  n += 2 * piece(in->n_src, 4) + piece(in->n_src * listed, 4);
  return n + 2 * piece(in->n_join, 4) + piece(in->n_join * listed, 4);
}

/* A dense layer keeps gate and up beside what every layer keeps, or makes them again in its work slot. */
static int64_t dense_saved_bytes(const Spec *spec, const MemIn *in)
{
  return piece((double)(in->att_seqs * in->seq) * 2.0 * spec->model.dense.hidden, cost_elem_bytes(spec));
}

static bool keeps_gate_up(const MemIn *in)
{
  return in->recompute == RECOMPUTE_NONE || in->recompute == RECOMPUTE_AUTO;
}

static int64_t att_work_bytes(const Spec *spec, const MemIn *in)
{
  double t = (double)(in->att_seqs * in->seq), h = spec->model.hidden;
  int b = cost_elem_bytes(spec);
  int64_t n = 2 * piece(t * h, b) + piece(t * cost_qkv_width(spec), b) + piece(t * spec->model.moe.experts, 4);
  return n + (again(in) ? att_again_bytes(spec, in) : 0);
}

/* Rows and pairs that an FFN rank must have room for: everything, unless the spec declares an imbalance. */
static double ffn_rows(const Spec *spec, const MemIn *in)
{
  double t = (double)(in->mb_seqs * chunk_seq(in));
  return spec->model.moe.imbalance > 0 ? t * cost_rows_per_token(spec, cost_hits_max(spec, in->ffn_ranks)) : t;
}

static double ffn_pairs(const Spec *spec, const MemIn *in)
{
  double t = (double)(in->mb_seqs * chunk_seq(in));
  return t * (spec->model.moe.imbalance > 0 ? cost_pairs_per_token(spec, cost_hits_max(spec, in->ffn_ranks))
                                            : min2(spec->model.moe.top_k, in->experts));
}

/* Of them, rows whose home the rank is: those pass the shared expert. */
static double home_rows(const Spec *spec, const MemIn *in)
{
  double t = (double)(in->mb_seqs * chunk_seq(in)), f = spec->model.moe.imbalance;
  return f > 0 ? min2(ffn_rows(spec, in), t * f / in->ffn_ranks) : t;
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
  int64_t n = list_bytes(rows, pairs) + (again(in) ? 0 : piece(rows * h, b) + piece(rows, 4));
  n += piece(spec->model.moe.experts + 1, 4) + 2 * piece(pairs, 4);
  if (keeps_gate_up(in)) {
    n += piece(pairs * 2 * f, b) + piece(home_rows(spec, in) * 2 * spec->model.moe.shared, b);
  }
  if (in->relayed) {
    double relay = relay_rows(spec, in);
    n += list_bytes(relay, relay * spec->model.moe.top_k);
  }
  return n;
}

/* Gradients of gate and up take the place of gate and up, which lie here if they are recomputed, as do rows that
   arrive twice. */
static int64_t ffn_work_bytes(const Spec *spec, const MemIn *in)
{
  double rows = ffn_rows(spec, in), pairs = ffn_pairs(spec, in), h = spec->model.hidden, f = spec->model.moe.hidden;
  double shared = home_rows(spec, in) * spec->model.moe.shared;
  int b = cost_elem_bytes(spec);
  int64_t n = 2 * piece(rows * h, b) + piece(pairs, 4) + piece(pairs * f, b) + piece(shared, b);
  n += again(in) ? piece(rows * h, b) + piece(rows, 4) : 0;
  if (!keeps_gate_up(in)) {
    n += piece(pairs * 2 * f, b) + piece(2 * shared, b);
  }
  if (in->relayed) {
    double relay = relay_rows(spec, in);
    n = max64(n, piece(relay * h, b) + piece(relay * spec->model.moe.top_k, 4));
  }
  return n;
}

static int64_t senders(const MemIn *in)
{
  return at_least(at_least(in->n_src, in->n_join), in->ffn_ranks * at_least(in->chunks, 1));
}

static int64_t att_scratch_bytes(const Spec *spec, const MemIn *in)
{
  double t = min2((double)(in->att_seqs * in->seq), ATT_TILE), h = spec->model.hidden, s = (double)in->seq;
  bool mla = spec->model.attention.kind == ATTENTION_MLA;
  double d = spec->model.attention.head_dim, dv = v_dim(spec), turn = mla ? spec->model.attention.rope_dim : d;
  double group = (double)spec->model.attention.heads / spec->model.attention.kv_heads;
  double tile = group * (group <= 2 ? 64 : group <= 4 ? 32 : 16);
  int64_t n = 2 * piece(t * h, 4) + piece(t * cost_qkv_width(spec), 4) + piece(t * spec->model.moe.top_k, 4);
  if (mla) {
    n += piece(t * at_least(spec->model.attention.q_lora, spec->model.attention.kv_lora), 4) + piece(s * turn, 4);
  }
  if (spec->model.attention.qk_norm == QK_NORM_WHOLE) {
    n += 2 * piece(s, 4);
  }
  if (spec->model.dense.layers > 0) {
    n += piece(t * spec->model.dense.hidden, 4) + piece(t * 2 * spec->model.dense.hidden, 4);
  }
  n += piece((double)senders(in), SOURCE_BYTES) + 2 * piece(s * turn / 2, 4) + 2 * piece(s * d, 4) +
       2 * piece(s * dv, 4);
  n += piece(tile * d, 4) + piece(tile * dv, 4) + piece(tile * (d > dv ? d : dv), 4);
  return n + 2 * piece(tile * TILE_KEYS, 4) + 2 * piece(tile, 4);
}

/* Logits of a chunk of tokens at a time. */
static int64_t head_scratch_bytes(const Spec *spec, const MemIn *in)
{
  int64_t chunk = (8 << 20) / spec->model.vocab;
  chunk = chunk > 256 ? 256 : max64(chunk, 32);
  return 2 * piece((double)chunk * spec->model.hidden, 4) + piece((double)chunk * spec->model.vocab, 4) +
         piece((double)chunk, 4) + piece((double)senders(in), SOURCE_BYTES);
}

/* A tile of one expert's rows, or of the shared expert's, at a time; and the sums of so many rows that
   every expert has a fair share of them. */
static int64_t ffn_scratch_bytes(const Spec *spec, const MemIn *in)
{
  int experts = spec->model.moe.experts, k = spec->model.moe.top_k, sums = FFN_SHARE * ((experts + k - 1) / k);
  double rows = ffn_rows(spec, in), tile = min2(rows, FFN_TILE), h = spec->model.hidden;
  double f = at_least(spec->model.moe.hidden, spec->model.moe.shared);
  int64_t n = piece(tile * h, 4) + piece(tile * f, 4) + (cost_elem_bytes(spec) == 2 ? piece(tile * 2 * f, 4) : 0);
  return n + piece(min2(rows, sums) * h, 4);
}

/* One thread computes; beside it node sums are formed, which need little. */
static int64_t workspace_bytes(const Spec *spec, const MemIn *in, int roles)
{
  int64_t scratch = roles & PLAN_F ? ffn_scratch_bytes(spec, in) : 0;
  if (roles & PLAN_A) {
    scratch = max64(scratch, max64(att_scratch_bytes(spec, in), head_scratch_bytes(spec, in)));
  }
  int64_t n = scratch + (in->relayed ? piece(in->ffn_ranks, SOURCE_BYTES) : 0);
  n += piece(SUM_CHUNK, 4) + piece((double)in->seq + 1, 4);
  return n + (roles & PLAN_A ? 2 * piece((double)(in->micro_batches * in->att_seqs * in->seq), 4) : 0);
}

/* ---- messages ---- */

/* A slot for one message of so many rows. */
static int64_t msg_bytes(const Spec *spec, double rows, size_t head, double pairs, size_t pair)
{
  size_t at = moe_msg_rows_at((size_t)rows, head, (size_t)pairs, pair);
  return SLOT_HEAD + (int64_t)moe_align64(at + (size_t)rows * (size_t)cost_row_bytes(spec));
}

/* Rows of one attention rank's tokens in one message to or from one FFN rank. */
static double message_rows(const Spec *spec, const MemIn *in, bool relayed)
{
  double t = (double)(in->att_seqs * chunk_seq(in)), f = spec->model.moe.imbalance;
  if (f <= 0) {
    return t;
  }
  if (relayed) {
    return min2(t, t * f / in->node_ranks);
  }
  return t * cost_rows_per_token(spec, cost_hits_max(spec, in->ffn_ranks));
}

static double message_pairs(const Spec *spec, int experts, double rows, bool relayed)
{
  return rows * min2(spec->model.moe.top_k, relayed ? spec->model.moe.experts : experts);
}

/* Between a relay and a rank of its node: of the relay's rows, those with an expert on the rank. */
static int64_t node_message(const Spec *spec, const MemIn *in, MoeEdge edge)
{
  double rows = relay_rows(spec, in), k = min2(spec->model.moe.top_k, in->experts);
  if (spec->model.moe.imbalance > 0) {
    rows = min2(rows, ffn_rows(spec, in) / in->node_ranks);
  }
  switch (edge) {
  case MOE_EDGE_FORWARD:
    return msg_bytes(spec, rows, sizeof(MoeRowHead), rows * k, sizeof(MoePair));
  case MOE_EDGE_FORWARD_B:
    return msg_bytes(spec, rows, 0, rows * k, sizeof(float));
  default:
    return msg_bytes(spec, rows, 0, 0, 0);
  }
}

int64_t memory_message(const Spec *spec, const MemIn *in, MoeEdge edge)
{
  double to_ffn = message_rows(spec, in, in->relayed), to_att = message_rows(spec, in, in->relays);
  int least = (int)moe_part_max(spec->model.moe.experts, at_least(in->ffn_ranks, 1));
  switch (edge) {
  case MOE_EDGE_DISPATCH:
    return msg_bytes(spec, to_ffn, sizeof(MoeRowHead), message_pairs(spec, in->experts, to_ffn, in->relayed),
                     sizeof(MoePair));
  case MOE_EDGE_DISPATCH_AGAIN:
  case MOE_EDGE_COMBINE_B:
    return msg_bytes(spec, to_ffn, 0, 0, 0);
  case MOE_EDGE_COMBINE:
    return msg_bytes(spec, to_att, sizeof(uint32_t), 0, 0);
  case MOE_EDGE_DISPATCH_B:
    return msg_bytes(spec, to_att, 0, message_pairs(spec, least, to_att, in->relays), sizeof(float));
  case MOE_EDGE_PIPE:
  case MOE_EDGE_PIPE_B:
    return msg_bytes(spec, (double)(in->att_seqs * in->seq), 0, 0, 0);
  case MOE_EDGE_FORWARD:
  case MOE_EDGE_FORWARD_AGAIN:
  case MOE_EDGE_FORWARD_B:
  case MOE_EDGE_GATHER:
  case MOE_EDGE_GATHER_B:
    return node_message(spec, in, edge);
  default:
    return 0;
  }
}

/* ---- parameters ---- */

/* Slots in which slices of a bucket arrive: REDUCE from the other holders, SHARE from the other owners. */
static int64_t tail_bytes(double elems, int holders, int owners, int slots)
{
  int64_t slice = moe_part_max((int64_t)elems, owners), arrive = holders - 1 + owners - 1;
  return (int64_t)slots * arrive * (SLOT_HEAD + 64 + (int64_t)moe_align64((size_t)(4 * slice)));
}

/* n buckets of a kind with so many elements each. slots: what their exchanges use together. */
static void add_buckets(const Spec *spec, const MemIn *in, int n, double elems, int holders, int slots, MemoryTerms *m)
{
  int owners = holders;
  if (n == 0 || elems == 0) {
    return;
  }
  if (in->shard == OPT_SHARD_NONE) {
    owners = 1;
  } else if (in->shard == OPT_SHARD_ALL) {
    owners = at_least(in->total_ranks, holders);
  }
  int64_t owned = moe_part_max((int64_t)elems, owners);
  m->weights += n * piece(elems, per_param[spec->train.dtype].weight);
  m->gradients += n * piece(elems, per_param[spec->train.dtype].gradient);
  m->optimizer += n * 3 * piece((double)owned, per_param[spec->train.dtype].optimizer / 3);
  m->buffers += tail_bytes(elems, holders, owners > holders ? owners : holders, slots < n ? slots : n);
}

static int ways(const MemIn *in)
{
  return at_least(in->ways, 1);
}

/* Post-attention gains of `moe` layers, held by both sides, and of dense layers, held by their attention group. */
static void add_gains(const Spec *spec, const MemIn *in, int moe, int dense, bool both, MemoryTerms *m)
{
  int own = in->own_ranks * in->replicas * ways(in);
  int all = both ? own : (in->att_ranks + in->ffn_ranks) * in->replicas * ways(in);
  add_buckets(spec, in, moe, spec->model.hidden, all, moe, m);
  add_buckets(spec, in, dense, spec->model.hidden, own, dense, m);
}

/* ---- terms ---- */

/* Of one of a layer's messages: with an order that finishes layer after layer, each chunk's and the layer's before. */
static int chan_slots(const MemIn *in)
{
  return in->work > 0 ? at_least(in->chunks, 2) : PLAN_CHAN_SLOTS;
}

int memory_under_way(const MemIn *in)
{
  int layers = in->att_moe + in->att_dense, n = layers > 0 ? at_least(2 * in->live / layers - 1, 1) : 1;
  return n < in->micro_batches ? n : in->micro_batches;
}

static void memory_att(const Spec *spec, const MemIn *in, int roles, MemoryTerms *m)
{
  int holders = in->own_ranks * in->replicas * ways(in), dense = spec->model.dense.layers;
  int layers = in->att_moe + in->att_dense;
  add_buckets(spec, in, in->att_moe, (double)cost_bucket_elems(spec, MOE_BUCKET_ATT, dense, 0), holders, TAIL_SLOTS, m);
  add_buckets(spec, in, in->att_dense, (double)cost_bucket_elems(spec, MOE_BUCKET_ATT, 0, 0), holders,
              in->att_moe > 1 ? 0 : TAIL_SLOTS - in->att_moe, m);
  add_gains(spec, in, in->att_moe, in->att_dense, roles & PLAN_F, m);
  double table = (double)cost_bucket_elems(spec, MOE_BUCKET_EMBED, 0, 0);
  /* a tied table is kept once per rank, also where embedding and head meet */
  if (in->embed || (in->head && spec->model.tied)) {
    int also = spec->model.tied && !(in->embed && in->head) ? 2 : 1;
    add_buckets(spec, in, 1, table, holders * also, 1, m);
  }
  if (in->head) {
    add_buckets(spec, in, 1, (double)cost_bucket_elems(spec, MOE_BUCKET_HEAD, 0, 0), holders, 1, m);
  }

  int64_t saved = (in->live > 0 ? in->live : (int64_t)in->in_flight * layers) + (in->head ? 1 : 0);
  int64_t dense_saved = (int64_t)(in->live > 0 ? memory_under_way(in) : in->in_flight) * in->att_dense;
  if (in->live > 0 && in->work > 0) { /* an order of stages: any of its slots may be a dense layer's */
    dense_saved = in->att_dense > 0 ? in->live : 0;
  }
  int64_t work = in->work > 0 ? in->work + 1 : PLAN_WORK_SLOTS; /* rows of a PIPE stay a moment longer */
  if (in->slots) {
    saved = in->slots->att_saved;
    work = in->slots->att_work;
  }
  dense_saved = dense_saved < saved ? dense_saved : saved;
  m->activations += saved * att_saved_bytes(spec, in) + work * att_work_bytes(spec, in);
  m->activations += (again(in) ? (in->att_dense > 0) * work : dense_saved) * dense_saved_bytes(spec, in);
  if (in->slots) {
    return;
  }
  m->buffers += chan_slots(in) * in->ffn_ranks *
                (in->combine_from * memory_message(spec, in, MOE_EDGE_COMBINE) +
                 in->dispatch_b_from * memory_message(spec, in, MOE_EDGE_DISPATCH_B));
  m->buffers += PLAN_CHAN_SLOTS * (in->pipe_from + in->pipe_b_from) * memory_message(spec, in, MOE_EDGE_PIPE);
}

static void memory_ffn(const Spec *spec, const MemIn *in, int roles, MemoryTerms *m)
{
  int dense = spec->model.dense.layers;
  add_buckets(spec, in, in->ffn_layers, (double)cost_bucket_elems(spec, MOE_BUCKET_EXPERTS, dense, in->experts),
              in->replicas * ways(in), TAIL_SLOTS, m);
  if (spec->model.moe.shared > 0) {
    add_buckets(spec, in, in->ffn_layers, (double)cost_bucket_elems(spec, MOE_BUCKET_SHARED, dense, 0),
                in->ffn_ranks * in->replicas * ways(in), TAIL_SLOTS, m);
  }
  if (!(roles & PLAN_A)) {
    add_gains(spec, in, in->ffn_layers, 0, false, m);
  }

  int64_t saved = (in->live > 0 ? in->live : (int64_t)in->in_flight * in->ffn_layers) * at_least(in->chunks, 1);
  int64_t work = (in->work > 0 ? in->work * at_least(in->chunks, 1) : PLAN_WORK_SLOTS) + in->relayed;
  saved = in->slots ? in->slots->ffn_saved : saved;
  work = in->slots ? in->slots->ffn_work : work;
  m->activations += saved * ffn_saved_bytes(spec, in) + work * ffn_work_bytes(spec, in);
  if (in->slots) {
    return;
  }
  m->buffers += chan_slots(in) * in->att_ranks *
                (in->dispatch_from * memory_message(spec, in, MOE_EDGE_DISPATCH) +
                 (again(in) ? in->dispatch_from * memory_message(spec, in, MOE_EDGE_DISPATCH_AGAIN) : 0) +
                 in->combine_b_from * memory_message(spec, in, MOE_EDGE_COMBINE_B));
  for (MoeEdge e = 0; in->relayed && e < MOE_EDGE_COUNT; e++) {
    bool within = moe_edge_pairs(e) == MOE_PAIRS_NODE && (e != MOE_EDGE_FORWARD_AGAIN || again(in));
    m->buffers += within ? chan_slots(in) * in->node_ranks * memory_message(spec, in, e) : 0;
  }
}

void memory_terms(const Spec *spec, const MemIn *in, int roles, MemoryTerms *m)
{
  *m = (MemoryTerms){0};
  if (roles & PLAN_A) {
    memory_att(spec, in, roles, m);
  }
  if (roles & PLAN_F) {
    memory_ffn(spec, in, roles, m);
  }
  m->workspace = workspace_bytes(spec, in, roles);
  m->total = m->weights + m->gradients + m->optimizer + m->activations + m->buffers + m->workspace;
  m->limit = spec->cluster.gpu.memory;
}

int64_t memory_need(const Spec *spec, const MemIn *in, int roles)
{
  MemoryTerms m;
  memory_terms(spec, in, roles, &m);
  return m.total;
}

double memory_cap(const Spec *spec, const MemIn *in, int roles)
{
  MemIn one = *in, two = *in;
  one.in_flight = 1;
  two.in_flight = 2;
  int64_t first = memory_need(spec, &one, roles), each = memory_need(spec, &two, roles) - first;
  int64_t left = spec->cluster.gpu.memory - first;
  if (left < 0) {
    return 0;
  }
  return each > 0 ? 1 + (double)left / (double)each : INT32_MAX;
}
