/* One table row per key: where the value lies in RefConfig and how it is read. */
#include "tests/ref/ref_config.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void ref_fail(const char *format, ...)
{
  va_list args;
  va_start(args, format);
  fflush(stdout);
  fputs("ref: error: ", stderr);
  vfprintf(stderr, format, args);
  fputc('\n', stderr);
  va_end(args);
  exit(1);
}

typedef enum FieldType {
  FIELD_INT,
  FIELD_REAL,
  FIELD_BOOL,
  FIELD_ROUTER,
  FIELD_LR,
  FIELD_QK_NORM,
  FIELD_LAYERS
} FieldType;

#define FIELD(name, type)                                                                                              \
  {                                                                                                                    \
#name, type, offsetof(RefConfig, name)                                                                             \
  }

static const struct {
  const char *key;
  FieldType type;
  size_t offset;
} FIELDS[] = {
    FIELD(layers, FIELD_INT),
    FIELD(hidden, FIELD_INT),
    FIELD(vocab, FIELD_INT),
    FIELD(heads, FIELD_INT),
    FIELD(kv_heads, FIELD_INT),
    FIELD(head_dim, FIELD_INT),
    FIELD(qk_norm, FIELD_QK_NORM),
    FIELD(tied, FIELD_BOOL),
    FIELD(norm_eps, FIELD_REAL),
    FIELD(attention_bias, FIELD_BOOL),
    FIELD(sinks, FIELD_BOOL),
    FIELD(window, FIELD_INT),
    FIELD(window_layers, FIELD_LAYERS),
    FIELD(clip_qkv, FIELD_REAL),
    FIELD(mla, FIELD_BOOL),
    FIELD(q_lora, FIELD_INT),
    FIELD(kv_lora, FIELD_INT),
    FIELD(nope_dim, FIELD_INT),
    FIELD(rope_dim, FIELD_INT),
    FIELD(v_dim, FIELD_INT),
    FIELD(rope_theta, FIELD_REAL),
    FIELD(rope_interleaved, FIELD_BOOL),
    FIELD(yarn, FIELD_BOOL),
    FIELD(yarn_truncate, FIELD_BOOL),
    FIELD(yarn_factor, FIELD_REAL),
    FIELD(yarn_beta_fast, FIELD_REAL),
    FIELD(yarn_beta_slow, FIELD_REAL),
    FIELD(yarn_mscale, FIELD_REAL),
    FIELD(yarn_mscale_all_dim, FIELD_REAL),
    FIELD(yarn_attention_factor, FIELD_REAL),
    FIELD(yarn_original, FIELD_INT),
    FIELD(dense_layers, FIELD_INT),
    FIELD(dense_hidden, FIELD_INT),
    FIELD(experts, FIELD_INT),
    FIELD(top_k, FIELD_INT),
    FIELD(ffn_hidden, FIELD_INT),
    FIELD(shared, FIELD_INT),
    FIELD(router, FIELD_ROUTER),
    FIELD(router_scale, FIELD_REAL),
    FIELD(groups, FIELD_INT),
    FIELD(top_groups, FIELD_INT),
    FIELD(router_bias, FIELD_BOOL),
    FIELD(expert_bias, FIELD_BOOL),
    FIELD(clamped, FIELD_BOOL),
    FIELD(act_limit, FIELD_REAL),
    FIELD(act_alpha, FIELD_REAL),
    FIELD(capacity, FIELD_REAL),
    FIELD(balance_coef, FIELD_REAL),
    FIELD(bias_rate, FIELD_REAL),
    FIELD(seq, FIELD_INT),
    FIELD(init_std, FIELD_REAL),
    FIELD(lr, FIELD_REAL),
    FIELD(lr_min, FIELD_REAL),
    FIELD(beta1, FIELD_REAL),
    FIELD(beta2, FIELD_REAL),
    FIELD(eps, FIELD_REAL),
    FIELD(weight_decay, FIELD_REAL),
    FIELD(clip, FIELD_REAL),
    FIELD(lr_kind, FIELD_LR),
    FIELD(warmup, FIELD_INT),
    FIELD(steps, FIELD_INT),
};

enum { N_FIELDS = sizeof FIELDS / sizeof FIELDS[0] };

static const char *const ROUTERS[] = {"softmax_renorm", "softmax", "topk_softmax", "sigmoid_bias", NULL};
static const char *const QK_NORMS[] = {"none", "head", "whole", NULL};
static const char *const LAYERS[] = {"all", "even", "odd", NULL};
static const char *const LR_KINDS[] = {"constant", "cosine", "linear", NULL};

void ref_config_default(RefConfig *c)
{
  *c = (RefConfig){.layers = 2,
                   .hidden = 16,
                   .vocab = 32,
                   .heads = 2,
                   .kv_heads = 1,
                   .head_dim = 8,
                   .qk_norm = REF_QK_HEAD,
                   .norm_eps = 1e-6,
                   .rope_theta = 1e4,
                   .yarn_truncate = true,
                   .yarn_beta_fast = 32,
                   .yarn_beta_slow = 1,
                   .router_scale = 1,
                   .groups = 1,
                   .top_groups = 1,
                   .act_limit = 7,
                   .act_alpha = 1.702,
                   .experts = 4,
                   .top_k = 2,
                   .ffn_hidden = 16,
                   .seq = 8,
                   .init_std = 0.02,
                   .lr = 1e-3,
                   .beta1 = 0.9,
                   .beta2 = 0.95,
                   .eps = 1e-8,
                   .lr_kind = REF_LR_CONSTANT,
                   .steps = 1};
}

static int64_t read_int(const char *key, const char *text)
{
  char *end;
  errno = 0;
  long long x = strtoll(text, &end, 10);
  if (end == text || *end != '\0' || errno != 0) {
    ref_fail("%s: '%s' is not an integer", key, text);
  }
  return x;
}

static double read_real(const char *key, const char *text)
{
  char *end;
  double x = strtod(text, &end);
  if (end == text || *end != '\0' || !isfinite(x)) {
    ref_fail("%s: '%s' is not a finite number", key, text);
  }
  return x;
}

static bool read_bool(const char *key, const char *text)
{
  if (strcmp(text, "0") == 0 || strcmp(text, "false") == 0) {
    return false;
  }
  if (strcmp(text, "1") == 0 || strcmp(text, "true") == 0) {
    return true;
  }
  ref_fail("%s: '%s' is neither true nor false", key, text);
}

static int read_name(const char *key, const char *text, const char *const *names)
{
  for (int i = 0; names[i]; i++) {
    if (strcmp(text, names[i]) == 0) {
      return i;
    }
  }
  ref_fail("%s: '%s' is unknown", key, text);
}

static void read_route_only(RefConfig *c, const char *text)
{
  c->n_route_only = 0;
  while (*text) {
    char number[24];
    size_t length = strcspn(text, ",");
    if (length >= sizeof number || c->n_route_only == REF_MAX_ROUTE_ONLY) {
      ref_fail("route_only: list is too long");
    }
    memcpy(number, text, length);
    number[length] = '\0';
    c->route_only[c->n_route_only++] = read_int("route_only", number);
    text += length + (text[length] == ',');
  }
}

void ref_config_set(RefConfig *c, const char *key, const char *value)
{
  if (strcmp(key, "route_only") == 0) {
    read_route_only(c, value);
    return;
  }
  int i = 0;
  while (i < N_FIELDS && strcmp(key, FIELDS[i].key) != 0) {
    i++;
  }
  if (i == N_FIELDS) {
    ref_fail("unknown key '%s'", key);
  }
  void *at = (char *)c + FIELDS[i].offset;
  switch (FIELDS[i].type) {
  case FIELD_INT:
    *(int64_t *)at = read_int(key, value);
    break;
  case FIELD_REAL:
    *(double *)at = read_real(key, value);
    break;
  case FIELD_BOOL:
    *(bool *)at = read_bool(key, value);
    break;
  case FIELD_ROUTER:
    *(RefRouter *)at = (RefRouter)read_name(key, value, ROUTERS);
    break;
  case FIELD_LR:
    *(RefLrKind *)at = (RefLrKind)read_name(key, value, LR_KINDS);
    break;
  case FIELD_QK_NORM:
    *(RefQkNorm *)at = (RefQkNorm)read_name(key, value, QK_NORMS);
    break;
  case FIELD_LAYERS:
    *(RefLayers *)at = (RefLayers)read_name(key, value, LAYERS);
    break;
  }
}

/* Cuts white space from both ends, in place. */
static char *trim(char *text)
{
  while (isspace((unsigned char)*text)) {
    text++;
  }
  size_t n = strlen(text);
  while (n > 0 && isspace((unsigned char)text[n - 1])) {
    text[--n] = '\0';
  }
  return text;
}

void ref_config_read(RefConfig *c, const char *path)
{
  FILE *f = fopen(path, "r");
  if (!f) {
    ref_fail("%s: cannot open", path);
  }
  char line[8192];
  for (int number = 1; fgets(line, sizeof line, f); number++) {
    line[strcspn(line, "#")] = '\0';
    char *key = trim(line);
    if (*key == '\0') {
      continue;
    }
    char *equals = strchr(key, '=');
    if (!equals) {
      ref_fail("%s:%d: expected key = value", path, number);
    }
    *equals = '\0';
    ref_config_set(c, trim(key), trim(equals + 1));
  }
  fclose(f);
}

static void check_range(const char *key, int64_t x, int64_t low, int64_t high)
{
  if (x < low || x > high) {
    ref_fail("%s = %lld is outside %lld .. %lld", key, (long long)x, (long long)low, (long long)high);
  }
}

void ref_config_check(const RefConfig *c)
{
  const int64_t most = INT64_C(1) << 24;
  check_range("layers", c->layers, 1, 1024);
  check_range("hidden", c->hidden, 1, most);
  check_range("vocab", c->vocab, 1, most);
  check_range("heads", c->heads, 1, most);
  check_range("kv_heads", c->kv_heads, 1, c->heads);
  check_range("head_dim", c->head_dim, 2, most);
  check_range("experts", c->experts, 1, most);
  check_range("top_k", c->top_k, 1, c->n_route_only ? c->n_route_only : c->experts);
  check_range("ffn_hidden", c->ffn_hidden, 1, most);
  check_range("seq", c->seq, 1, most);
  check_range("warmup", c->warmup, 0, INT64_MAX);
  check_range("dense_layers", c->dense_layers, 0, c->layers - 1);
  check_range("groups", c->groups, 1, c->experts);
  check_range("top_groups", c->top_groups, 1, c->groups);
  if (c->mla) {
    check_range("kv_lora", c->kv_lora, 1, most);
    check_range("rope_dim", c->rope_dim, 2, most);
    check_range("nope_dim", c->nope_dim, 1, most);
    check_range("v_dim", c->v_dim, 1, most);
  }
  if (c->experts % c->groups != 0) {
    ref_fail("experts = %lld is not a multiple of groups = %lld", (long long)c->experts, (long long)c->groups);
  }
  if (c->heads % c->kv_heads != 0) {
    ref_fail("heads = %lld is not a multiple of kv_heads = %lld", (long long)c->heads, (long long)c->kv_heads);
  }
  int64_t rotated = c->mla ? c->rope_dim : c->head_dim;
  if (rotated % 2 != 0) {
    ref_fail("the rotated part of a head, %lld, is odd", (long long)rotated);
  }
  for (int64_t i = 0; i < c->n_route_only; i++) {
    check_range("route_only", c->route_only[i], 0, c->experts - 1);
    for (int64_t j = 0; j < i; j++) {
      if (c->route_only[i] == c->route_only[j]) {
        ref_fail("route_only names expert %lld twice", (long long)c->route_only[i]);
      }
    }
  }
  if (!(c->capacity >= 0) || !(c->balance_coef >= 0) || !(c->clip >= 0)) {
    ref_fail("capacity, balance_coef and clip must not be negative");
  }
}
