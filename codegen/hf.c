#include "codegen/hf_keys.h"

static const struct {
  const char *name, *class_name;
} families[] = {
    {"auto", ""},
#define HF_FAMILY(id, name, class_name) {name, class_name},
#include "codegen/hf_families.def"
#undef HF_FAMILY
};

#define QWEN     (1u << FAMILY_QWEN3_MOE)
#define MIXTRAL  (1u << FAMILY_MIXTRAL)
#define OLMOE    (1u << FAMILY_OLMOE)
#define DEEPSEEK (1u << FAMILY_DEEPSEEK)
#define V3       (1u << FAMILY_DEEPSEEK_V3 | 1u << FAMILY_KIMI_K2)
#define GPT      (1u << FAMILY_GPT_OSS)
#define ALL      (QWEN | MIXTRAL | OLMOE | DEEPSEEK | V3 | GPT)
#define REQUIRED (-1)
#define FREE     (-2)

const HfKey hf_keys[] = {
#define HF_KEY(families, a, b, c, kind, field, need)                                                                   \
  {families,                                                                                                           \
   {a, b, c},                                                                                                          \
   HF_##kind,                                                                                                          \
   offsetof(ModelSpec, field),                                                                                         \
   (need) == REQUIRED ? HF_REQUIRED                                                                                    \
   : (need) == FREE   ? HF_FREE                                                                                        \
                      : HF_DEFAULT,                                                                                      \
   (need)},
#include "codegen/hf_config.def"
#undef HF_KEY
};
const int hf_n_keys = sizeof hf_keys / sizeof *hf_keys;

const char *hf_family_name(Family family)
{
  return families[family].name;
}

const char *hf_family_class(Family family)
{
  return families[family].class_name;
}

Family hf_family(const ModelSpec *m)
{
  if (m->family != FAMILY_AUTO) {
    return m->family;
  }
  if (m->attention.kind == ATTENTION_MLA) {
    return FAMILY_DEEPSEEK_V3;
  }
  if (m->attention.sinks || m->moe.router == ROUTER_TOPK_SOFTMAX) {
    return FAMILY_GPT_OSS;
  }
  if (m->attention.qk_norm != QK_NORM_NONE) {
    return m->attention.qk_norm == QK_NORM_HEAD ? FAMILY_QWEN3_MOE : FAMILY_OLMOE;
  }
  return m->moe.shared > 0 || m->dense.layers > 0 || m->moe.router == ROUTER_SOFTMAX ? FAMILY_DEEPSEEK : FAMILY_MIXTRAL;
}
