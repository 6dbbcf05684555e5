/* Tensors' shapes do not tell how they are used: a model with another base of RoPE or other top-k has the same files.
 */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "runtime/hf_load.h"
#include "runtime/log.h"

static const char *const checked[] = {
    "num_hidden_layers",     "num_attention_heads", "num_key_value_heads", "head_dim",       "rms_norm_eps",
    "tie_word_embeddings",   "num_experts_per_tok", "norm_topk_prob",      "n_group",        "topk_group",
    "routed_scaling_factor", "rope_theta",          "rope_interleave",     "sliding_window", "clip_qkv",
    "swiglu_limit",          "swiglu_alpha"};
static const char *const scaling[] = {
    "factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"};

/* The value as a number; NAN for what is none, and for null: nothing to compare with. */
static double number(const json_t *value)
{
  return json_is_number(value) ? json_number_value(value) : json_is_boolean(value) ? json_is_true(value) : NAN;
}

static void compare(const char *path, const char *key, const json_t *theirs, const json_t *ours)
{
  double a = number(theirs);
  double b = number(ours);
  if (!isnan(a) && !isnan(b) && fabs(a - b) > 1e-9 * fabs(b)) {
    moe_note("%s says %s = %.9g, this model has %.9g", path, key, a, b);
  }
}

/* What null turns off: a window, a limit. */
static double limit(const json_t *value)
{
  return json_is_null(value) ? 0 : number(value);
}

static void compare_limits(const char *path, const json_t *theirs, const json_t *ours)
{
  static const char *const limits[] = {"sliding_window", "clip_qkv"};
  for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
    double a = limit(json_object_get(theirs, limits[i]));
    double b = limit(json_object_get(ours, limits[i]));
    if ((a == 0) != (b == 0) && !isnan(a) && !isnan(b)) {
      moe_note("%s says %s = %.9g, this model has %.9g (0: none)", path, limits[i], a, b);
    }
  }
  const json_t *types = json_object_get(theirs, "layer_types");
  const json_t *own = json_object_get(ours, "layer_types");
  if (json_is_array(types) && json_is_array(own) && !json_equal(types, own)) {
    moe_note("%s has its layer_types, full and sliding attention, in another order than this model", path);
  }
}

static void compare_configs(const char *path, const json_t *theirs, const json_t *ours)
{
  const json_t *parameters = json_object_get(theirs, "rope_parameters"); /* Transformers 5: all of RoPE in one object */
  for (size_t i = 0; i < sizeof checked / sizeof *checked; i++) {
    const json_t *value = json_object_get(theirs, checked[i]);
    value = value != NULL ? value : json_object_get(parameters, checked[i]);
    compare(path, checked[i], value, json_object_get(ours, checked[i]));
  }
  compare_limits(path, theirs, ours);
  const json_t *rope = json_is_object(parameters) ? parameters : json_object_get(theirs, "rope_scaling");
  const json_t *own = json_object_get(ours, "rope_scaling");
  if (json_is_number(json_object_get(rope, "factor")) != json_is_object(own)) {
    moe_note("%s %s RoPE, this model %s", path, json_is_object(own) ? "does not scale" : "scales",
             json_is_object(own) ? "does" : "does not");
  }
  for (size_t i = 0; i < sizeof scaling / sizeof *scaling; i++) {
    compare(path, scaling[i], json_object_get(rope, scaling[i]), json_object_get(own, scaling[i]));
  }
}

void moe_hf_check_config(const MoeBundle *b, const char *path)
{
  struct stat status;
  if (b->hf == NULL || b->hf->config == NULL || stat(path, &status) != 0 || !S_ISDIR(status.st_mode)) {
    return;
  }
  char *file = moe_path_in(path, "config.json");
  if (file == NULL) {
    return;
  }
  json_t *theirs = json_load_file(file, 0, NULL); /* weights without one are as good */
  json_t *ours = json_loads(b->hf->config, 0, NULL);
  if (json_is_object(theirs) && json_is_object(ours)) {
    compare_configs(file, theirs, ours);
  }
  json_decref(theirs);
  json_decref(ours);
  free(file);
}
