/* config.json to ModelSpec. Keys are ticked off as they are read; what is left over becomes notes. */
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "codegen/hf_keys.h"
#include "lang/spec_keys.h"

enum { MAX_KEYS = 128, SHOWN = 96 };

typedef struct Import {
  Arena *arena;
  Diag *diag;
  const char *path;
  const json_t *config;
  HfImport *out;
  Family family;
  const char *read[MAX_KEYS]; /* keys that are dealt with */
  int n_read;
  int note_room;
  bool ok;
} Import;

static void wrong(Import *im, const char *text)
{
  diag_error(im->diag, (Span){0}, "%s: %s", im->path, text);
  im->ok = false;
}

/* A value as it may stand in a line of text. */
static const char *shown(Import *im, const json_t *value)
{
  char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(15));
  size_t n = text ? strlen(text) : 0;
  const char *kept =
      arena_printf(im->arena, "%.*s%s", (int)(n > SHOWN ? SHOWN : n), text ? text : "?", n > SHOWN ? "..." : "");
  free(text);
  return kept;
}

static void note(Import *im, const char *text)
{
  HfImport *out = im->out;
  out->notes = arena_grow(im->arena, out->notes, out->n_notes, &im->note_room, sizeof *out->notes);
  out->notes[out->n_notes++] = text;
}

static void tick(Import *im, const char *key)
{
  if (im->n_read < MAX_KEYS) {
    im->read[im->n_read++] = key;
  }
}

/* The value of a key, NULL where it is missing or null. */
static const json_t *get(Import *im, const char *key)
{
  const json_t *value = json_object_get(im->config, key);
  tick(im, key);
  return json_is_null(value) ? NULL : value;
}

static bool get_bool(Import *im, const char *key, bool def)
{
  const json_t *value = get(im, key);
  if (value && !json_is_boolean(value)) {
    wrong(im, arena_printf(im->arena, "\"%s\" is %s; expected true or false", key, shown(im, value)));
  }
  return value ? json_is_true(value) : def;
}

/* Of an object of its own, such as rope_scaling; def where it is missing. NAN: it must be there. */
static double number_in(Import *im, const json_t *object, const char *key, double def)
{
  const json_t *value = json_object_get(object, key);
  if (!value || json_is_null(value)) {
    if (isnan(def)) {
      wrong(im, arena_printf(im->arena, "\"%s\" is missing", key));
    }
    return def;
  }
  if (!json_is_number(value)) {
    wrong(im, arena_printf(im->arena, "\"%s\" is %s; expected a number", key, shown(im, value)));
    return 1;
  }
  return json_number_value(value);
}

static double get_number(Import *im, const char *key, double def)
{
  tick(im, key);
  return number_in(im, im->config, key, def);
}

/* A whole number; -1 where it is missing or wrong, which is an error if required. */
static int get_int(Import *im, const char *key, bool required, int def)
{
  const json_t *value = get(im, key);
  if (!value && !required) {
    return def;
  }
  if (!value) {
    wrong(im, arena_printf(im->arena, "\"%s\" is missing", key));
    return -1;
  }
  if (!json_is_integer(value) || json_integer_value(value) < 0 || json_integer_value(value) > INT_MAX) {
    wrong(im, arena_printf(im->arena, "\"%s\" is %s; expected a whole number from 0 to %d", key, shown(im, value),
                           INT_MAX));
    return -1;
  }
  return (int)json_integer_value(value);
}

/* A text that must be one of at most two, where it is there at all. */
static void must_be(Import *im, const char *key, const char *one, const char *other)
{
  const json_t *value = get(im, key);
  const char *text = json_string_value(value);
  if (value && (!text || (strcmp(text, one) != 0 && (!other || strcmp(text, other) != 0)))) {
    wrong(im, arena_printf(im->arena, "\"%s\" is %s, which has no equivalent; known is \"%s\"", key, shown(im, value),
                           one));
  }
}

/* ---- the parts of a model ---- */

static bool read_family(Import *im)
{
  const json_t *value = get(im, "model_type");
  const char *type = json_string_value(value);
  const char *known = "";
  for (Family f = FAMILY_AUTO + 1; f <= FAMILY_GPT_OSS; f++) {
    if (type && strcmp(type, hf_family_name(f)) == 0) {
      im->family = im->out->model.family = f;
      return true;
    }
    known = arena_printf(im->arena, "%s%s%s", known, *known ? ", " : "", hf_family_name(f));
  }
  if (value && !json_is_null(value)) {
    wrong(im, arena_printf(im->arena, "model_type %s is not known; known are: %s", shown(im, value), known));
  } else {
    wrong(im, arena_printf(im->arena, "\"model_type\" is missing; known are: %s", known));
  }
  return false;
}

static const char *first_name(const Import *im, const HfKey *row)
{
  for (int i = 0; i < 3 && row->names[i]; i++) {
    const json_t *value = json_object_get(im->config, row->names[i]);
    if (value && !json_is_null(value)) {
      return row->names[i];
    }
  }
  return row->names[0];
}

static void read_keys(Import *im)
{
  for (int i = 0; i < hf_n_keys; i++) {
    const HfKey *row = &hf_keys[i];
    if (!hf_is(row, im->family)) {
      continue;
    }
    char *to = (char *)&im->out->model + row->offset;
    const char *name = first_name(im, row);
    bool required = row->need == HF_REQUIRED;
    double def = row->need == HF_DEFAULT ? row->def : 0;
    for (int k = 0; k < 3 && row->names[k]; k++) {
      tick(im, row->names[k]);
    }
    if (row->kind == HF_INT) {
      int value = get_int(im, name, required, (int)def);
      memcpy(to, &value, sizeof value);
    } else if (row->kind == HF_REAL) {
      double value = get_number(im, name, required ? NAN : def);
      memcpy(to, &value, sizeof value);
    } else {
      bool value = get_bool(im, name, def != 0);
      memcpy(to, &value, sizeof value);
    }
  }
}

static void read_attention(Import *im)
{
  ModelSpec *m = &im->out->model;
  m->attention.kind = hf_is_v3(im->family) ? ATTENTION_MLA : ATTENTION_GQA;
  m->attention.qk_norm = im->family == FAMILY_QWEN3_MOE ? QK_NORM_HEAD
                         : im->family == FAMILY_OLMOE   ? QK_NORM_WHOLE
                                                        : QK_NORM_NONE;
  m->attention.sinks = im->family == FAMILY_GPT_OSS;
  if (m->attention.kind == ATTENTION_MLA) {
    m->attention.kv_heads = m->attention.heads;
    tick(im, "head_dim");
    tick(im, "qk_head_dim");
    if (get_bool(im, "attention_bias", false)) {
      wrong(im, "\"attention_bias\" is true, which has no equivalent with latent attention");
    }
    return;
  }
  if (m->attention.kv_heads == 0) {
    m->attention.kv_heads = m->attention.heads;
  }
  if (m->attention.head_dim == 0 && m->attention.heads > 0) {
    const json_t *given = get(im, "head_dim"); /* of families that have no such key but may say it */
    m->attention.head_dim = json_is_integer(given) ? get_int(im, "head_dim", true, 0) : m->hidden / m->attention.heads;
    if (!given && m->hidden % m->attention.heads != 0) {
      wrong(im, arena_printf(im->arena, "\"num_attention_heads\" (%d) must divide \"hidden_size\" (%d)",
                             m->attention.heads, m->hidden));
    }
  }
}

static void read_window(Import *im)
{
  ModelSpec *m = &im->out->model;
  const json_t *types = get(im, "layer_types");
  int window = get_int(im, "sliding_window", false, 0);
  bool used = im->family == FAMILY_GPT_OSS || im->family == FAMILY_MIXTRAL;
  tick(im, "max_window_layers");
  if (im->family == FAMILY_QWEN3_MOE && get_bool(im, "use_sliding_window", false)) {
    wrong(im, "\"use_sliding_window\" is true: a window on the layers after max_window_layers has no equivalent");
  }
  if (!used || window <= 0) {
    return;
  }
  bool even = true, all = true, none = true;
  size_t l;
  json_t *type;
  json_array_foreach(types, l, type)
  {
    bool sliding = json_string_value(type) && strcmp(json_string_value(type), "sliding_attention") == 0;
    even = even && sliding == (l % 2 == 0);
    all = all && sliding;
    none = none && !sliding;
  }
  if (types && none) {
    return;
  }
  if (types && !even && !all) {
    wrong(im, arena_printf(im->arena, "\"layer_types\" is %s; known are windows on all layers or on the even ones",
                           shown(im, types)));
  }
  m->attention.window = window;
  m->attention.window_layers = (types ? !all : im->family == FAMILY_GPT_OSS) ? LAYERS_EVEN : LAYERS_ALL;
}

static void read_yarn(Import *im, const json_t *scaling)
{
  RopeSpec *rope = &im->out->model.attention.rope;
  static const char *const known[] = {
      "rope_type", "type",      "rope_theta", "factor",         "original_max_position_embeddings",
      "beta_fast", "beta_slow", "mscale",     "mscale_all_dim", "attention_factor",
      "truncate"};
  rope->yarn = true;
  rope->factor = number_in(im, scaling, "factor", NAN);
  double original = number_in(im, scaling, "original_max_position_embeddings", NAN);
  if (original >= 1 && original <= 1e12) {
    rope->original = (int64_t)original;
  } else if (!isnan(original)) {
    wrong(im, arena_printf(im->arena, "\"original_max_position_embeddings\" is %.15g; expected 1 to 1e12", original));
  }
  rope->beta_fast = number_in(im, scaling, "beta_fast", 32);
  rope->beta_slow = number_in(im, scaling, "beta_slow", 1);
  rope->mscale = number_in(im, scaling, "mscale", 0);
  rope->mscale_all_dim = number_in(im, scaling, "mscale_all_dim", 0);
  rope->attention_factor = number_in(im, scaling, "attention_factor", 0);
  const json_t *truncate = json_object_get(scaling, "truncate");
  rope->truncate = !json_is_false(truncate);
  const char *key;
  json_t *value;
  json_object_foreach((json_t *)(uintptr_t)scaling, key, value)
  {
    bool found = false;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
      found = found || strcmp(key, known[i]) == 0;
    }
    if (!found) {
      note(im, arena_printf(im->arena, "rope %s = %s", key, shown(im, value)));
    }
  }
}

/* Transformers 4: rope_theta, and rope_scaling with `type` or `rope_type`. Transformers 5: all in rope_parameters. */
static void read_rope(Import *im)
{
  RopeSpec *rope = &im->out->model.attention.rope;
  const json_t *parameters = get(im, "rope_parameters");
  const json_t *scaling = get(im, "rope_scaling");
  scaling = parameters ? parameters : scaling;
  if (scaling && !json_is_object(scaling)) {
    wrong(im, arena_printf(im->arena, "\"%s\" is %s; expected an object",
                           parameters ? "rope_parameters" : "rope_scaling", shown(im, scaling)));
    return;
  }
  tick(im, "rope_theta");
  rope->theta = number_in(im, json_object_get(parameters, "rope_theta") ? parameters : im->config, "rope_theta", NAN);
  const json_t *kind = json_object_get(scaling, "rope_type");
  kind = kind ? kind : json_object_get(scaling, "type");
  const char *word = json_string_value(kind);
  if (word && strcmp(word, "yarn") == 0) {
    read_yarn(im, scaling);
  } else if (kind && !json_is_null(kind) && (!word || strcmp(word, "default") != 0)) {
    wrong(im, arena_printf(im->arena, "rope_type %s has no equivalent; known are: default, yarn", shown(im, kind)));
  }
}

/* Which layers are dense: only the first ones can be. */
static void read_dense(Import *im)
{
  ModelSpec *m = &im->out->model;
  if (im->family == FAMILY_QWEN3_MOE) {
    const json_t *only = get(im, "mlp_only_layers");
    size_t i;
    json_t *layer;
    if (get_int(im, "decoder_sparse_step", false, 1) != 1) {
      wrong(im, "\"decoder_sparse_step\" other than 1 has no equivalent");
    }
    json_array_foreach(only, i, layer)
    {
      if (json_integer_value(layer) != (json_int_t)i || !json_is_integer(layer)) {
        wrong(im, arena_printf(im->arena, "\"mlp_only_layers\" is %s; known are dense layers at the beginning",
                               shown(im, only)));
        break;
      }
    }
    m->dense.layers = (int)json_array_size(only);
  } else if (im->family == FAMILY_DEEPSEEK || hf_is_v3(im->family)) {
    m->dense.layers = get_int(im, "first_k_dense_replace", true, 0);
    if (get_int(im, "moe_layer_freq", false, 1) != 1) {
      wrong(im, "\"moe_layer_freq\" other than 1 has no equivalent");
    }
    int shared = get_int(im, "n_shared_experts", false, 0);
    m->moe.shared = shared > 0 && m->moe.hidden > 0 && shared <= INT_MAX / m->moe.hidden ? shared * m->moe.hidden : 0;
  } else {
    return;
  }
  int hidden = get_int(im, "intermediate_size", m->dense.layers > 0, 0);
  m->dense.hidden = m->dense.layers > 0 ? hidden : 0;
}

static void read_router(Import *im)
{
  ModelSpec *m = &im->out->model;
  switch (im->family) {
  case FAMILY_DEEPSEEK:
    must_be(im, "scoring_func", "softmax", NULL);
    must_be(im, "topk_method", "greedy", NULL);
    m->moe.router = get_bool(im, "norm_topk_prob", false) ? ROUTER_SOFTMAX_RENORM : ROUTER_SOFTMAX;
    break;
  case FAMILY_DEEPSEEK_V3:
  case FAMILY_KIMI_K2:
    must_be(im, "scoring_func", "sigmoid", NULL);
    must_be(im, "topk_method", "noaux_tc", NULL);
    m->moe.router = ROUTER_SIGMOID_BIAS;
    if (!get_bool(im, "norm_topk_prob", true)) {
      wrong(im, "\"norm_topk_prob\" is false, which has no equivalent with the sigmoid router");
    }
    break;
  case FAMILY_GPT_OSS:
    m->moe.router = ROUTER_TOPK_SOFTMAX;
    m->moe.router_bias = m->moe.bias = true;
    m->moe.activation = ACT_SWIGLU_CLAMPED;
    break;
  case FAMILY_MIXTRAL:
    m->moe.router = ROUTER_SOFTMAX_RENORM;
    break;
  default:
    m->moe.router = get_bool(im, "norm_topk_prob", false) ? ROUTER_SOFTMAX_RENORM : ROUTER_SOFTMAX;
    break;
  }
}

/* Transformers add the balance loss of most families only when they return the router's logits. */
static void read_balance(Import *im)
{
  ModelSpec *m = &im->out->model;
  double alpha = get_number(im, "aux_loss_alpha", 0);
  double coef = get_number(im, "router_aux_loss_coef", 0);
  bool by_sequence = get_bool(im, "seq_aux", true);
  bool logits = get_bool(im, "output_router_logits", false);
  if (hf_is_v3(im->family)) {
    m->moe.balance = BALANCE_BIAS;
    m->moe.balance_coef = alpha;
  } else if (im->family == FAMILY_DEEPSEEK && alpha > 0) {
    m->moe.balance = by_sequence ? BALANCE_SEQUENCE : BALANCE_BATCH;
    m->moe.balance_coef = alpha;
  } else if (coef > 0 && logits) {
    m->moe.balance = BALANCE_BATCH;
    m->moe.balance_coef = coef;
  } else if (coef > 0) {
    note(im, arena_printf(im->arena,
                          "router_aux_loss_coef = %.15g: off there, since output_router_logits is false; "
                          "balance { kind = batch; coef = %.15g } in `moe` would turn it on",
                          coef, coef));
  }
}

static void read_rest(Import *im)
{
  const json_t *dtype = get(im, "torch_dtype");
  const json_t *newer = get(im, "dtype");
  const char *name = json_string_value(newer ? newer : dtype);
  im->out->dtype = name && strcmp(name, "float32") == 0 ? DTYPE_FP32 : DTYPE_BF16;
  if (name && strcmp(name, "float32") != 0 && strcmp(name, "bfloat16") != 0) {
    note(im, arena_printf(im->arena, "dtype %s: bf16 instead", shown(im, newer ? newer : dtype)));
  }
  must_be(im, "hidden_act", "silu", NULL);
  im->out->positions = get_int(im, "max_position_embeddings", false, 0);
}

/* What is left: of no concern to a model's mathematics, off, or worth a line. */
static void note_rest(Import *im)
{
  static const char *const silent[] = {"architectures",
                                       "auto_map",
                                       "transformers_version",
                                       "_name_or_path",
                                       "bos_token_id",
                                       "eos_token_id",
                                       "pad_token_id",
                                       "use_cache",
                                       "initial_context_length",
                                       "rope_interleave",
                                       "ep_size",
                                       "pretraining_tp",
                                       "chunk_size_feed_forward",
                                       "id2label",
                                       "label2id",
                                       "problem_type",
                                       "return_dict",
                                       "is_encoder_decoder",
                                       "output_hidden_states",
                                       "output_attentions"};
  const char *key;
  json_t *value;
  json_object_foreach((json_t *)(uintptr_t)im->config, key, value)
  {
    bool done = json_is_null(value) || json_is_false(value) ||
                (json_is_number(value) && json_number_value(value) == 0) ||
                (json_is_array(value) && json_array_size(value) == 0) ||
                (json_is_object(value) && json_object_size(value) == 0);
    for (int i = 0; i < im->n_read && !done; i++) {
      done = strcmp(key, im->read[i]) == 0;
    }
    for (size_t i = 0; i < sizeof silent / sizeof *silent && !done; i++) {
      done = strcmp(key, silent[i]) == 0;
    }
    if (!done) {
      json_t *name = json_string(key);
      note(im, arena_printf(im->arena, "%s: %s", shown(im, name), shown(im, value)));
      json_decref(name);
    }
  }
}

/* "Qwen3-30B-A3B/config.json" -> "Qwen3_30B_A3B"; without a folder that gives a name, the family. */
static const char *model_name(Import *im)
{
  const char *end = strrchr(im->path, '/');
  const char *begin = end;
  while (begin && begin > im->path && begin[-1] != '/') {
    begin--;
  }
  size_t n = end ? (size_t)(end - begin) : 0;
  char *name = arena_strndup(im->arena, begin ? begin : "", n > 60 ? 60 : n);
  bool letters = false;
  for (char *c = name; *c; c++) {
    bool letter = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z');
    letters = letters || letter;
    *c = letter || (*c >= '0' && *c <= '9') ? *c : '_';
  }
  return letters ? arena_printf(im->arena, "%s%s", *name >= '0' && *name <= '9' ? "m" : "", name)
                 : hf_family_name(im->family);
}

static bool read_config(Import *im)
{
  if (!read_family(im)) {
    return false;
  }
  im->out->model.name = model_name(im);
  read_keys(im);
  read_attention(im);
  read_window(im);
  read_rope(im);
  read_dense(im);
  read_router(im);
  read_balance(im);
  read_rest(im);
  note_rest(im);
  return im->ok;
}

bool hf_import(Arena *arena, Diag *diag, const char *path, const char *text, size_t n, HfImport *out)
{
  *out = (HfImport){0};
  read_defaults(B_model, &out->model);
  json_error_t error;
  json_t *config = json_loadb(text, n, JSON_REJECT_DUPLICATES, &error);
  if (!json_is_object(config)) {
    diag_error(diag, (Span){0}, "%s:%d:%d: %s", path, config ? 1 : error.line, config ? 1 : error.column,
               config ? "not an object" : error.text);
    json_decref(config);
    return false;
  }
  Import im = {.arena = arena, .diag = diag, .path = path, .config = config, .out = out, .ok = true};
  bool ok = read_config(&im);
  json_decref(config);
  return ok;
}
