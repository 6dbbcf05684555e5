/* A model as config.json. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "codegen/hf_keys.h"
#include "lang/printed.h"
#include "lang/units.h"

typedef struct Text {
  FILE *to;
  const char *comma;
} Text;

static void key(Text *t, const char *name)
{
  fprintf(t->to, "%s\n  \"%s\": ", t->comma, name);
  t->comma = ",";
}

/* With a point or an exponent, since readers tell reals from integers. */
static void real(FILE *out, double x)
{
  char text[REAL_MAX];
  if (x == floor(x) && fabs(x) < 1e15) {
    fprintf(out, "%.1f", x);
  } else {
    fputs(real_text(text, x), out);
  }
}

static void put_int(Text *t, const char *name, int64_t value)
{
  key(t, name);
  fprintf(t->to, "%" PRId64, value);
}

static void put_real(Text *t, const char *name, double value)
{
  key(t, name);
  real(t->to, value);
}

static void put_word(Text *t, const char *name, const char *value)
{
  key(t, name);
  fputs(value, t->to);
}

static void put_text(Text *t, const char *name, const char *value)
{
  key(t, name);
  fprintf(t->to, "\"%s\"", value);
}

static void put_bool(Text *t, const char *name, bool value)
{
  put_word(t, name, value ? "true" : "false");
}

/* What a family's own code cannot do. */
static const char *what_is_missing(const ModelSpec *m, Family f)
{
  bool qwen = f == FAMILY_QWEN3_MOE;
  bool mixtral = f == FAMILY_MIXTRAL;
  bool olmoe = f == FAMILY_OLMOE;
  bool deepseek = f == FAMILY_DEEPSEEK;
  bool gpt = f == FAMILY_GPT_OSS;
  bool v3 = hf_is_v3(f);
  bool softmax = m->moe.router == ROUTER_SOFTMAX || m->moe.router == ROUTER_SOFTMAX_RENORM;
  bool window_fits = gpt ? m->attention.window == 0 || m->attention.window_layers != LAYERS_ODD
                         : mixtral && m->attention.window_layers == LAYERS_ALL;
  const struct {
    bool wrong;
    const char *what;
  } checks[] = {
      {(m->attention.kind == ATTENTION_MLA) != v3, v3 ? "has latent attention only" : "has no latent attention"},
      {(m->attention.qk_norm == QK_NORM_HEAD) != qwen, qwen ? "has qk_norm = head only" : "has no qk_norm = head"},
      {(m->attention.qk_norm == QK_NORM_WHOLE) != olmoe, olmoe ? "has qk_norm = whole only" : "has no qk_norm = whole"},
      {m->attention.sinks != gpt, gpt ? "always has attention sinks" : "has no attention sinks"},
      {m->attention.bias && (mixtral || v3), "has no attention biases"},
      {m->attention.window > 0 && !window_fits, "has no such sliding window"},
      {m->attention.clip_qkv > 0 && !olmoe, "has no clip_qkv"},
      {m->attention.rope.interleaved && !v3, "has no interleaved RoPE"},
      {(olmoe || deepseek) && m->attention.heads * m->attention.head_dim != m->hidden,
       "has no head_dim other than hidden / heads"},
      {m->dense.layers > 0 && !(qwen || deepseek || v3), "has no dense layers"},
      {m->moe.shared > 0 && !(deepseek || v3), "has no shared experts"},
      {m->moe.shared % m->moe.hidden != 0, "has shared experts of the routed ones' size only"},
      {v3 && m->moe.shared == 0, "always has a shared expert"},
      {(m->moe.router == ROUTER_SIGMOID_BIAS) != v3, v3 ? "has the sigmoid router only" : "has no sigmoid router"},
      {(m->moe.router == ROUTER_TOPK_SOFTMAX) != gpt, gpt ? "has router = topk_softmax only" : "has no topk_softmax"},
      {mixtral && m->moe.router != ROUTER_SOFTMAX_RENORM, "has router = softmax_renorm only"},
      {(qwen || olmoe || deepseek) && !softmax, "has a softmax router only"},
      {(m->moe.groups > 1 || m->moe.router_scale != 1) && !v3, "has neither expert groups nor a router scale"},
      {m->moe.router_bias != gpt || m->moe.bias != gpt,
       gpt ? "always has biases in router and experts" : "has no biases in router and experts"},
      {(m->moe.activation == ACT_SWIGLU_CLAMPED) != gpt,
       gpt ? "has the clamped activation only" : "has no clamped activation"},
  };
  for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
    if (checks[i].wrong) {
      return checks[i].what;
    }
  }
  return NULL;
}

static void put_keys(Text *t, const ModelSpec *m, Family family)
{
  for (int i = 0; i < hf_n_keys; i++) {
    const HfKey *row = &hf_keys[i];
    const char *at = (const char *)m + row->offset;
    int whole;
    double number;
    bool on;
    if (!hf_is(row, family)) {
      continue;
    }
    switch (row->kind) {
    case HF_INT:
      memcpy(&whole, at, sizeof whole);
      if (row->need == HF_DEFAULT && row->def == 0 && whole == 0) {
        put_word(t, row->names[0], "null");
      } else {
        put_int(t, row->names[0], whole);
      }
      break;
    case HF_REAL:
      memcpy(&number, at, sizeof number);
      if (row->need == HF_DEFAULT && row->def == 0 && number == 0) {
        put_word(t, row->names[0], "null");
      } else {
        put_real(t, row->names[0], number);
      }
      break;
    case HF_BOOL:
      memcpy(&on, at, sizeof on);
      put_bool(t, row->names[0], on);
      break;
    }
  }
}

/* As both Transformers 4 (rope_theta, rope_scaling) and 5 (which still takes those) read it. */
static void put_rope(Text *t, const RopeSpec *rope)
{
  put_real(t, "rope_theta", rope->theta);
  key(t, "rope_scaling");
  if (!rope->yarn) {
    fputs("null", t->to);
    return;
  }
  fprintf(t->to, "{\"rope_type\": \"yarn\", \"factor\": ");
  real(t->to, rope->factor);
  fprintf(t->to, ", \"original_max_position_embeddings\": %" PRId64 ", \"beta_fast\": ", rope->original);
  real(t->to, rope->beta_fast);
  fputs(", \"beta_slow\": ", t->to);
  real(t->to, rope->beta_slow);
  if (rope->mscale > 0) {
    fputs(", \"mscale\": ", t->to);
    real(t->to, rope->mscale);
  }
  if (rope->mscale_all_dim > 0) {
    fputs(", \"mscale_all_dim\": ", t->to);
    real(t->to, rope->mscale_all_dim);
  }
  if (rope->attention_factor > 0) {
    fputs(", \"attention_factor\": ", t->to);
    real(t->to, rope->attention_factor);
  }
  fprintf(t->to, ", \"truncate\": %s}", rope->truncate ? "true" : "false");
}

static void put_window(Text *t, const ModelSpec *m, Family family)
{
  if (family == FAMILY_GPT_OSS) {
    key(t, "layer_types");
    for (int l = 0; l < m->layers; l++) {
      bool sliding = m->attention.window > 0 && (m->attention.window_layers == LAYERS_ALL || l % 2 == 0);
      fprintf(t->to, "%s\"%s_attention\"", l ? ", " : "[", sliding ? "sliding" : "full");
    }
    fputc(']', t->to);
  }
  if (family == FAMILY_GPT_OSS || family == FAMILY_MIXTRAL) {
    if (m->attention.window > 0) {
      put_int(t, "sliding_window", m->attention.window);
    } else {
      put_word(t, "sliding_window", "null");
    }
  } else if (family == FAMILY_QWEN3_MOE) {
    put_bool(t, "use_sliding_window", false);
  }
}

static void put_dense(Text *t, const ModelSpec *m, Family family)
{
  if (family == FAMILY_QWEN3_MOE) {
    put_int(t, "intermediate_size", m->dense.layers > 0 ? m->dense.hidden : m->moe.hidden);
    put_int(t, "decoder_sparse_step", 1);
    key(t, "mlp_only_layers");
    fputc('[', t->to);
    for (int l = 0; l < m->dense.layers; l++) {
      fprintf(t->to, "%s%d", l ? ", " : "", l);
    }
    fputc(']', t->to);
  } else if (family == FAMILY_DEEPSEEK || hf_is_v3(family)) {
    put_int(t, "intermediate_size", m->dense.layers > 0 ? m->dense.hidden : m->moe.hidden);
    put_int(t, "first_k_dense_replace", m->dense.layers);
    put_int(t, "moe_layer_freq", 1);
    if (m->moe.shared > 0) {
      put_int(t, "n_shared_experts", m->moe.shared / m->moe.hidden);
    } else {
      put_word(t, "n_shared_experts", "null");
    }
  }
}

static void put_router(Text *t, const ModelSpec *m, Family family)
{
  bool deepseek = family == FAMILY_DEEPSEEK;
  if (family == FAMILY_QWEN3_MOE || family == FAMILY_OLMOE || deepseek) {
    put_bool(t, "norm_topk_prob", m->moe.router == ROUTER_SOFTMAX_RENORM);
  }
  if (hf_is_v3(family)) {
    put_bool(t, "norm_topk_prob", true);
    put_text(t, "topk_method", "noaux_tc");
  }
  if (deepseek || hf_is_v3(family)) {
    put_text(t, "scoring_func", deepseek ? "softmax" : "sigmoid");
    put_real(t, "aux_loss_alpha", m->moe.balance_coef);
    put_bool(t, "seq_aux", m->moe.balance != BALANCE_BATCH);
  } else {
    put_real(t, "router_aux_loss_coef", m->moe.balance == BALANCE_NONE ? 0 : m->moe.balance_coef);
    put_bool(t, "output_router_logits", m->moe.balance == BALANCE_BATCH);
  }
}

/* Positions that the model is made for: what YaRN reaches, or the longest shape. */
static int64_t positions(const Spec *spec)
{
  const RopeSpec *rope = &spec->model.attention.rope;
  int64_t longest = rope->yarn ? (int64_t)(rope->factor * (double)rope->original) : 0;
  for (int i = 0; i < spec->n_shapes; i++) {
    longest = spec->shapes[i].seq > longest ? spec->shapes[i].seq : longest;
  }
  return longest;
}

const char *hf_config_text(Arena *arena, const Spec *spec, const char **why)
{
  const ModelSpec *m = &spec->model;
  Family family = hf_family(m);
  const char *missing = what_is_missing(m, family);
  if (missing) {
    *why = arena_printf(arena, "family %s %s", hf_family_name(family), missing);
    return NULL;
  }
  Printed printed;
  printed_open(&printed);
  Text t = {printed.to, ""};
  fputc('{', t.to);
  key(&t, "architectures");
  fprintf(t.to, "[\"%s\"]", hf_family_class(family));
  family = family == FAMILY_KIMI_K2 ? FAMILY_DEEPSEEK_V3 : family; /* the same code, which Transformers have */
  put_text(&t, "model_type", hf_family_name(family));
  put_text(&t, "hidden_act", "silu");
  put_int(&t, "max_position_embeddings", positions(spec));
  put_keys(&t, m, family);
  put_rope(&t, &m->attention.rope);
  put_window(&t, m, family);
  put_dense(&t, m, family);
  put_router(&t, m, family);
  put_real(&t, "attention_dropout", 0);
  put_text(&t, "torch_dtype", spec->train.dtype == DTYPE_BF16 ? "bfloat16" : "float32");
  fputs("\n}\n", t.to);
  return printed_keep(&printed, arena);
}
