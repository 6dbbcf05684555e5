/* config.json in and out: the configurations of the published models give the models of specs/paper; what is written is
   read back as the same; what has no equivalent is refused by name. */
#include <unistd.h>

#include "codegen/hf.h"
#include "tests/lang/t.h"

static char *read_file(const char *path)
{
  FILE *in = fopen(path, "rb");
  if (!in) {
    fail_msg("cannot read %s", path);
  }
  char *text = calloc(1, 1 << 20);
  assert_true(fread(text, 1, (1 << 20) - 1, in) > 0);
  fclose(in);
  return text;
}

/* The model block as text, without what a config.json and a spec for planning need not share. */
static char *model_text(const ModelSpec *model)
{
  Spec spec = {.model = *model};
  char *text = NULL;
  size_t n = 0;
  FILE *out = open_memstream(&text, &n);
  spec.model.name = "m";
  spec.model.family = FAMILY_AUTO;
  spec.model.moe.imbalance = 0;
  spec.model.moe.balance = BALANCE_NONE;
  spec_print_model(&spec, out);
  fclose(out);
  return text;
}

static void import_file(T *t, const char *name, HfImport *import)
{
  char path[256];
  snprintf(path, sizeof path, "%s/%s.json", getenv("HF_CONFIGS"), name);
  char *text = read_file(path);
  if (!hf_import(t->arena, t->diag, path, text, strlen(text), import)) {
    fail_msg("%s: %s", path, t_messages(t));
  }
  free(text);
}

static void build_spec(T *t, const char *name, Spec *spec)
{
  char path[256];
  snprintf(path, sizeof path, "%s/%s.moespec", getenv("MOEC_SPECS"), name);
  AstFile *ast = ast_parse(t->arena, t->diag, path, NULL, 0);
  assert_non_null(ast);
  assert_true(spec_build(t->arena, t->diag, ast, spec));
}

static void published_models_are_those_of_the_specs(void **state)
{
  (void)state;
  static const struct {
    const char *config, *spec;
    Family family;
  } pairs[] = {{"qwen3_235b", "paper/qwen3_235b", FAMILY_QWEN3_MOE},
               {"qwen3_235b_v5", "paper/qwen3_235b", FAMILY_QWEN3_MOE},
               {"deepseek_moe_top6", "paper/deepseek_moe_top6", FAMILY_DEEPSEEK},
               {"gpt_oss_120b", "paper/gpt_oss_120b", FAMILY_GPT_OSS},
               {"gpt_oss_120b_v5", "paper/gpt_oss_120b", FAMILY_GPT_OSS},
               {"mixtral_8x7b", "paper/mixtral_8x7b", FAMILY_MIXTRAL},
               {"olmoe", "paper/olmoe", FAMILY_OLMOE},
               {"deepseek_v3", "paper/deepseek_v3", FAMILY_DEEPSEEK_V3},
               {"kimi_k2", "paper/kimi_k2", FAMILY_KIMI_K2}};
  for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
    T t;
    t_open(&t);
    HfImport import;
    Spec spec;
    import_file(&t, pairs[i].config, &import);
    build_spec(&t, pairs[i].spec, &spec);
    char *a = model_text(&import.model);
    char *b = model_text(&spec.model);
    assert_string_equal(a, b);
    assert_int_equal(import.model.family, pairs[i].family);
    assert_int_equal(import.dtype, DTYPE_BF16);
    free(a);
    free(b);
    t_close(&t);
  }
}

/* spec -> config.json -> model: the same, balance and family included, where the file can say them. */
static void what_is_written_reads_back(void **state)
{
  (void)state;
  static const char *const specs[] = {
      "tiny",        "paper/qwen3_235b",  "paper/deepseek_moe", "paper/gpt_oss_120b", "paper/mixtral_8x7b",
      "paper/olmoe", "paper/deepseek_v3", "paper/kimi_k2"};
  for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
    T t;
    t_open(&t);
    Spec spec;
    HfImport import;
    const char *why = NULL;
    build_spec(&t, specs[i], &spec);
    const char *text = hf_config_text(t.arena, &spec, &why);
    if (!text || !hf_import(t.arena, t.diag, "out/config.json", text, strlen(text), &import)) {
      fail_msg("%s: %s%s", specs[i], why ? why : "", t_messages(&t));
    }
    char *a = model_text(&import.model);
    char *b = model_text(&spec.model);
    assert_string_equal(a, b);
    assert_int_equal(import.dtype, spec.train.dtype);
    if (spec.model.moe.balance == BALANCE_BATCH) {
      assert_int_equal(import.model.moe.balance, BALANCE_BATCH);
      assert_true(import.model.moe.balance_coef == spec.model.moe.balance_coef);
    }
    free(a);
    free(b);
    t_close(&t);
  }
}

static void a_family_without_the_feature_has_no_config(void **state)
{
  (void)state;
  static const struct {
    Family family;
    const char *spec, *why;
  } cases[] = {{FAMILY_MIXTRAL, "tiny", "family mixtral has no qk_norm = head"},
               {FAMILY_OLMOE, "tiny", "family olmoe has no qk_norm = head"},
               {FAMILY_GPT_OSS, "tiny", "family gpt_oss has no qk_norm = head"},
               {FAMILY_QWEN3_MOE, "paper/olmoe", "family qwen3_moe has qk_norm = head only"},
               {FAMILY_QWEN3_MOE, "paper/deepseek_v3", "family qwen3_moe has no latent attention"},
               {FAMILY_DEEPSEEK_V3, "paper/deepseek_moe", "family deepseek_v3 has latent attention only"},
               {FAMILY_MIXTRAL, "paper/deepseek_moe", "family mixtral has no dense layers"},
               {FAMILY_DEEPSEEK, "paper/gpt_oss_120b", "family deepseek has no attention sinks"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    T t;
    t_open(&t);
    Spec spec;
    const char *why = NULL;
    build_spec(&t, cases[i].spec, &spec);
    spec.model.family = cases[i].family;
    assert_null(hf_config_text(t.arena, &spec, &why));
    assert_string_equal(why, cases[i].why);
    t_close(&t);
  }
}

/* Notes name what has no equivalent, and only that. */
static void notes_name_the_rest(void **state)
{
  (void)state;
  static const struct {
    const char *config, *note;
    int n;
  } cases[] = {{"qwen3_235b", "router_aux_loss_coef = 0.001: off there", 1},
               {"deepseek_moe_top6", NULL, 0},
               {"gpt_oss_120b", "\"quantization_config\": {\"modules_to_not_convert\"", 2},
               {"deepseek_v3", "\"num_nextn_predict_layers\": 1", 2},
               {"kimi_k2", NULL, 0}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    T t;
    t_open(&t);
    HfImport import;
    import_file(&t, cases[i].config, &import);
    bool found = cases[i].note == NULL;
    for (int k = 0; k < import.n_notes; k++) {
      found = found || strncmp(import.notes[k], cases[i].note, strlen(cases[i].note)) == 0;
    }
    if (!found || import.n_notes != cases[i].n) {
      fail_msg("%s has %d notes, the first: %s", cases[i].config, import.n_notes,
               import.n_notes ? import.notes[0] : "");
    }
    t_close(&t);
  }
}

/* A right file with one key replaced or taken out. */
static void refuse(const char *config, const char *key, const char *value, const char *reason)
{
  char path[256];
  snprintf(path, sizeof path, "%s/%s.json", getenv("HF_CONFIGS"), config);
  char *text = read_file(path);
  char *changed = calloc(1, strlen(text) + 400);
  char mark[80];
  snprintf(mark, sizeof mark, "\"%s\":", key);
  char *at = strstr(text, mark);
  assert_non_null(at);
  size_t before = (size_t)(at - text);
  memcpy(changed, text, before);
  /* the old value moves under a name that no family reads; the new one takes its place */
  sprintf(changed + before, "%s%s%s\"unused\":%s", value ? mark : "", value ? value : "", value ? ", " : "",
          at + strlen(mark));
  T t;
  t_open(&t);
  HfImport import;
  if (hf_import(t.arena, t.diag, "some/config.json", changed, strlen(changed), &import)) {
    fail_msg("%s with %s = %s is accepted", config, key, value ? value : "nothing");
  }
  t_contains(t_messages(&t), reason);
  t_contains(t_messages(&t), "some/config.json");
  t_close(&t);
  free(text);
  free(changed);
}

static void what_has_no_equivalent_is_refused(void **state)
{
  (void)state;
  refuse("qwen3_235b", "model_type", "\"llama\"",
         "model_type \"llama\" is not known; known are: qwen3_moe, mixtral, olmoe");
  refuse("qwen3_235b", "model_type", "7", "model_type 7 is not known; known are: qwen3_moe");
  refuse("qwen3_235b", "model_type", NULL, "\"model_type\" is missing; known are: qwen3_moe");
  refuse("qwen3_235b", "num_hidden_layers", NULL, "\"num_hidden_layers\" is missing");
  refuse("qwen3_235b", "num_experts", NULL, "\"num_experts\" is missing");
  refuse("qwen3_235b", "num_experts_per_tok", NULL, "\"num_experts_per_tok\" is missing");
  refuse("qwen3_235b", "moe_intermediate_size", "null", "\"moe_intermediate_size\" is missing");
  refuse("qwen3_235b", "rope_theta", NULL, "\"rope_theta\" is missing");
  refuse("qwen3_235b", "rms_norm_eps", NULL, "\"rms_norm_eps\" is missing");
  refuse("qwen3_235b", "hidden_size", "\"4096\"", "\"hidden_size\" is \"4096\"; expected a whole number");
  refuse("qwen3_235b", "hidden_size", "4096.0", "\"hidden_size\" is 4096.0; expected a whole number");
  refuse("qwen3_235b", "hidden_size", "-1", "\"hidden_size\" is -1; expected a whole number from 0 to 2147483647");
  refuse("qwen3_235b", "hidden_size", "4294967296", "\"hidden_size\" is 4294967296; expected");
  refuse("qwen3_235b", "norm_topk_prob", "1", "\"norm_topk_prob\" is 1; expected true or false");
  refuse("qwen3_235b", "rms_norm_eps", "\"x\"", "\"rms_norm_eps\" is \"x\"; expected a number");
  refuse("qwen3_235b", "hidden_act", "\"gelu\"", "\"hidden_act\" is \"gelu\", which has no equivalent");
  refuse("qwen3_235b", "use_sliding_window", "true", "\"use_sliding_window\" is true");
  refuse("qwen3_235b", "decoder_sparse_step", "2", "\"decoder_sparse_step\" other than 1");
  refuse("qwen3_235b", "mlp_only_layers", "[3]", "\"mlp_only_layers\" is [3]");
  refuse("qwen3_235b", "rope_scaling", "{\"type\":\"linear\",\"factor\":2.0}",
         "rope_type \"linear\" has no equivalent");
  refuse("qwen3_235b", "rope_scaling", "{\"rope_type\":\"llama3\",\"factor\":2.0}",
         "rope_type \"llama3\" has no equivalent");
  refuse("qwen3_235b", "rope_scaling", "{\"rope_type\":\"yarn\"}", "\"factor\" is missing");
  refuse("qwen3_235b", "rope_scaling", "3", "\"rope_scaling\" is 3; expected an object");
  refuse("deepseek_moe_top6", "moe_layer_freq", "2", "\"moe_layer_freq\" other than 1");
  refuse("deepseek_moe_top6", "scoring_func", "\"sigmoid\"",
         "\"scoring_func\" is \"sigmoid\", which has no equivalent");
  refuse("deepseek_v3", "topk_method", "\"greedy\"", "known is \"noaux_tc\"");
  refuse("deepseek_v3", "norm_topk_prob", "false", "\"norm_topk_prob\" is false");
  refuse("deepseek_v3", "attention_bias", "true", "\"attention_bias\" is true");
  refuse("deepseek_v3", "first_k_dense_replace", NULL, "\"first_k_dense_replace\" is missing");
  refuse("gpt_oss_120b", "layer_types", "[\"full_attention\",\"sliding_attention\"]",
         "known are windows on all layers");
  refuse("olmoe", "num_attention_heads", "15", "\"num_attention_heads\" (15) must divide \"hidden_size\" (2048)");
}

static void texts_that_are_no_config_are_refused(void **state)
{
  (void)state;
  static const struct {
    const char *text, *reason;
  } cases[] = {{"", "c.json:1:0: "},
               {"[]", "not an object"},
               {"{\"model_type\":}", "c.json:1:15: "},
               {"{\"a\":1,\"a\":2}", "duplicate object key"},
               {"{\"model_type\":\"qwen3\\u000amoe\"}", "model_type \"qwen3\\nmoe\" is not known"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    T t;
    t_open(&t);
    HfImport import;
    assert_false(hf_import(t.arena, t.diag, "c.json", cases[i].text, strlen(cases[i].text), &import));
    t_contains(t_messages(&t), cases[i].reason);
    t_close(&t);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(published_models_are_those_of_the_specs),
      cmocka_unit_test(what_is_written_reads_back),
      cmocka_unit_test(a_family_without_the_feature_has_no_config),
      cmocka_unit_test(notes_name_the_rest),
      cmocka_unit_test(what_has_no_equivalent_is_refused),
      cmocka_unit_test(texts_that_are_no_config_are_refused),
  };
  return cmocka_run_group_tests_name("import", tests, NULL, NULL);
}
