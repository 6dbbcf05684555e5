#include "codegen/params.h"

#include <string.h>

#include "codegen/cost.h"
#include "runtime/moe_layout.h"

typedef struct Builder {
  Arena *arena;
  const Spec *spec;
  const Plan *plan;
  ParamTables *out;
  int64_t offset; /* next free element of the bucket being filled */
} Builder;

static const PlanGroup *att_group(const Builder *b, int way, int layer)
{
  return &b->plan->groups[plan_att(b->spec, b->plan, way, layer)];
}

static const PlanGroup *ffn_group(const Builder *b, int way, int layer)
{
  return &b->plan->groups[plan_ffn(b->spec, b->plan, way, layer)];
}

/* Counts first, so that every array is allocated once. */
static void allocate(Builder *b)
{
  const ModelSpec *m = &b->spec->model;
  int ranks = b->plan->replicas * b->plan->replica_ranks;
  int per_layer_buckets = 3;
  int n_buckets = 2;
  int n_holders = 2 * ranks;
  for (int l = 0; l < m->layers; l++) {
    int n_ffn = ffn_group(b, 0, l)->n_ranks;
    n_buckets += per_layer_buckets + n_ffn;
    n_holders += 3 * ranks + n_ffn * b->plan->replicas * b->plan->ways;
  }
  b->out->buckets = arena_new_array(b->arena, MoeBucket, (size_t)n_buckets);
  b->out->holders = arena_new_array(b->arena, int32_t, (size_t)n_holders);
  b->out->params = arena_new_array(b->arena, MoeParam, (size_t)(3 + m->layers * (20 + 6 * m->moe.experts)));
}

/* The layers whose groups hold a bucket, in every direction; -1: none. */
typedef struct Holding {
  int att, also_att, ffn;
  int member; /* of the FFN group; -1: all */
} Holding;

static bool is_member(const PlanGroup *group, int rank, int member)
{
  int i = rank - group->first_rank;
  return i >= 0 && i < group->n_ranks && (member < 0 || i == member);
}

static bool holds(const Builder *b, const Holding *h, int rank)
{
  for (int way = 0; way < b->plan->ways; way++) {
    if ((h->att >= 0 && is_member(att_group(b, way, h->att), rank, -1)) ||
        (h->also_att >= 0 && is_member(att_group(b, way, h->also_att), rank, -1)) ||
        (h->ffn >= 0 && is_member(ffn_group(b, way, h->ffn), rank, h->member))) {
      return true;
    }
  }
  return false;
}

static void add_holders(Builder *b, MoeBucket *bucket, Holding h)
{
  bucket->first_holder = b->out->n_holders;
  for (int q = 0; q < b->plan->replicas; q++) {
    for (int r = 0; r < b->plan->replica_ranks; r++) {
      if (holds(b, &h, r)) {
        b->out->holders[b->out->n_holders++] = q * b->plan->replica_ranks + r;
      }
    }
  }
  bucket->n_holders = b->out->n_holders - bucket->first_holder;
}

static MoeBucket *begin_bucket(Builder *b, MoeBucketKind kind, int layer)
{
  MoeBucket *bucket = &b->out->buckets[b->out->n_buckets++];
  bucket->kind = (uint8_t)kind;
  bucket->layer = (int16_t)layer;
  bucket->first_param = b->out->n_params;
  b->offset = 0;
  return bucket;
}

static MoeParam *add_param(Builder *b, const char *name, int rows, int cols)
{
  MoeParam *p = &b->out->params[b->out->n_params++];
  p->name = name;
  p->offset = b->offset;
  p->rows = rows;
  p->cols = cols;
  p->std = cols ? (float)b->spec->model.init_std : 0.0f; /* gains start at one */
  p->decay = cols > 0;
  b->offset += (int64_t)rows * (cols ? cols : 1);
  return p;
}

/* Starts at zero. */
static MoeParam *add_bias(Builder *b, const char *name, int rows)
{
  MoeParam *p = add_param(b, name, rows, 0);
  p->std = MOE_STD_ZERO;
  return p;
}

static const char *layer_name(const Builder *b, int l, const char *rest)
{
  return arena_printf(b->arena, "model.layers.%d.%s", l, rest);
}

static void end_bucket(Builder *b, MoeBucket *bucket, int experts)
{
  bucket->elems = b->offset;
  bucket->n_params = b->out->n_params - bucket->first_param;
  int64_t expected = cost_bucket_elems(b->spec, (MoeBucketKind)bucket->kind, bucket->layer, experts);
  if (expected != bucket->elems) {
    die("bucket %s of layer %d has %lld parameters, the cost model counts %lld",
        moe_bucket_name((MoeBucketKind)bucket->kind), bucket->layer, (long long)bucket->elems, (long long)expected);
  }
}

/* In the order of templates/moe_model.h: what comes from the input, norms, what the latents expand to. */
static void add_latent(Builder *b, int l)
{
  const ModelSpec *m = &b->spec->model;
  int nq = m->attention.heads * m->attention.head_dim, rq = m->attention.q_lora, rkv = m->attention.kv_lora;
  if (rq > 0) {
    add_param(b, layer_name(b, l, "self_attn.q_a_proj.weight"), rq, m->hidden);
  } else {
    add_param(b, layer_name(b, l, "self_attn.q_proj.weight"), nq, m->hidden);
  }
  add_param(b, layer_name(b, l, "self_attn.kv_a_proj_with_mqa.weight"), rkv + m->attention.rope_dim, m->hidden);
  if (rq > 0) {
    add_param(b, layer_name(b, l, "self_attn.q_a_layernorm.weight"), rq, 0);
  }
  add_param(b, layer_name(b, l, "self_attn.kv_a_layernorm.weight"), rkv, 0);
  if (rq > 0) {
    add_param(b, layer_name(b, l, "self_attn.q_b_proj.weight"), nq, rq);
  }
  add_param(b, layer_name(b, l, "self_attn.kv_b_proj.weight"),
            m->attention.heads * (m->attention.nope_dim + m->attention.v_dim), rkv);
}

static void add_grouped(Builder *b, int l)
{
  static const char *const names[] = {"q", "k", "v"};
  const ModelSpec *m = &b->spec->model;
  int d = m->attention.head_dim, nq = m->attention.heads * d, nkv = m->attention.kv_heads * d;
  for (int i = 0; i < 3; i++) {
    add_param(b, arena_printf(b->arena, "model.layers.%d.self_attn.%s_proj.weight", l, names[i]), i ? nkv : nq,
              m->hidden);
  }
  for (int i = 0; i < 3 && m->attention.bias; i++) {
    add_bias(b, arena_printf(b->arena, "model.layers.%d.self_attn.%s_proj.bias", l, names[i]), i ? nkv : nq);
  }
  if (m->attention.qk_norm != QK_NORM_NONE) {
    bool head = m->attention.qk_norm == QK_NORM_HEAD;
    add_param(b, layer_name(b, l, "self_attn.q_norm.weight"), head ? d : nq, 0);
    add_param(b, layer_name(b, l, "self_attn.k_norm.weight"), head ? d : nkv, 0);
  }
}

static void add_mlp(Builder *b, const char *prefix, int hidden)
{
  int h = b->spec->model.hidden;
  add_param(b, arena_printf(b->arena, "%s.gate_proj.weight", prefix), hidden, h);
  add_param(b, arena_printf(b->arena, "%s.up_proj.weight", prefix), hidden, h);
  add_param(b, arena_printf(b->arena, "%s.down_proj.weight", prefix), h, hidden);
}

static void add_router(Builder *b, int l)
{
  const ModelSpec *m = &b->spec->model;
  add_param(b, layer_name(b, l, "mlp.gate.weight"), m->moe.experts, m->hidden);
  if (m->moe.router == ROUTER_SIGMOID_BIAS) {
    add_bias(b, layer_name(b, l, "mlp.gate.e_score_correction_bias"), m->moe.experts)->counts = 1;
  } else if (m->moe.router_bias) {
    add_bias(b, layer_name(b, l, "mlp.gate.bias"), m->moe.experts);
  }
}

static void add_attention(Builder *b, int l)
{
  const ModelSpec *m = &b->spec->model;
  bool latent = m->attention.kind == ATTENTION_MLA;
  MoeBucket *bucket = begin_bucket(b, MOE_BUCKET_ATT, l);
  add_param(b, layer_name(b, l, "input_layernorm.weight"), m->hidden, 0);
  if (latent) {
    add_latent(b, l);
  } else {
    add_grouped(b, l);
  }
  add_param(b, layer_name(b, l, "self_attn.o_proj.weight"), m->hidden,
            m->attention.heads * (latent ? m->attention.v_dim : m->attention.head_dim));
  if (m->attention.bias) {
    add_bias(b, layer_name(b, l, "self_attn.o_proj.bias"), m->hidden);
  }
  if (m->attention.sinks) {
    add_param(b, layer_name(b, l, "self_attn.sinks"), m->attention.heads, 0)->std = (float)m->init_std;
  }
  if (l < m->dense.layers) {
    add_mlp(b, layer_name(b, l, "mlp"), m->dense.hidden);
  } else {
    add_router(b, l);
  }
  add_holders(b, bucket, (Holding){l, -1, -1, -1});
  end_bucket(b, bucket, 0);
}

/* The experts of one rank of the group; member -1: a stand-in that all of its ranks hold. */
static void add_experts(Builder *b, int l, int member)
{
  const ModelSpec *m = &b->spec->model;
  int n_ffn = ffn_group(b, 0, l)->n_ranks; /* of every direction */
  int first = member < 0 ? 0 : member;
  int begin = (int)moe_part_begin(m->moe.experts, n_ffn, first);
  int end = (int)moe_part_begin(m->moe.experts, n_ffn, first + 1);
  MoeBucket *bucket = begin_bucket(b, MOE_BUCKET_EXPERTS, l);
  for (int e = begin; e < end; e++) {
    static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
    for (int k = 0; k < 3; k++) {
      bool down = k == 2;
      add_param(b, arena_printf(b->arena, "model.layers.%d.mlp.experts.%d.%s.weight", l, e, names[k]),
                down ? m->hidden : m->moe.hidden, down ? m->moe.hidden : m->hidden);
    }
    for (int k = 0; k < 3 && m->moe.bias; k++) {
      add_bias(b, arena_printf(b->arena, "model.layers.%d.mlp.experts.%d.%s.bias", l, e, names[k]),
               k == 2 ? m->hidden : m->moe.hidden);
    }
  }
  add_holders(b, bucket, (Holding){-1, -1, l, member});
  end_bucket(b, bucket, end - begin);
}

void params_build(Arena *arena, const Spec *spec, const Plan *plan, ParamTables *out)
{
  *out = (ParamTables){0};
  Builder b = {.arena = arena, .spec = spec, .plan = plan, .out = out};
  const ModelSpec *m = &spec->model;
  allocate(&b);

  MoeBucket *bucket = begin_bucket(&b, MOE_BUCKET_EMBED, 0);
  add_param(&b, "model.embed_tokens.weight", m->vocab, m->hidden);
  add_holders(&b, bucket, (Holding){0, m->tied ? m->layers : -1, -1, -1});
  end_bucket(&b, bucket, 0);
  for (int l = 0; l < m->layers; l++) {
    add_attention(&b, l);
  }
  for (int l = 0; l < m->layers; l++) {
    bucket = begin_bucket(&b, MOE_BUCKET_GAIN, l);
    add_param(&b, arena_printf(arena, "model.layers.%d.post_attention_layernorm.weight", l), m->hidden, 0);
    add_holders(&b, bucket, (Holding){l, -1, l, -1});
    end_bucket(&b, bucket, 0);
  }
  for (int l = m->dense.layers; l < m->layers && m->moe.shared > 0; l++) {
    bucket = begin_bucket(&b, MOE_BUCKET_SHARED, l);
    add_mlp(&b, layer_name(&b, l, "mlp.shared_experts"), m->moe.shared);
    add_holders(&b, bucket, (Holding){-1, -1, l, -1});
    end_bucket(&b, bucket, 0);
  }
  for (int l = m->dense.layers; l < m->layers; l++) {
    if (plan->optimizer_shard == OPT_SHARD_ALL) { /* rehearsals only: see cost_bucket_parties() */
      add_experts(&b, l, -1);
      continue;
    }
    for (int j = 0; j < ffn_group(&b, 0, l)->n_ranks; j++) {
      add_experts(&b, l, j);
    }
  }
  bucket = begin_bucket(&b, MOE_BUCKET_HEAD, 0);
  add_param(&b, "model.norm.weight", m->hidden, 0);
  if (!m->tied) {
    add_param(&b, "lm_head.weight", m->vocab, m->hidden);
  }
  add_holders(&b, bucket, (Holding){m->layers, -1, -1, -1});
  end_bucket(&b, bucket, 0);
}
