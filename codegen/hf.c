#include "codegen/hf.h"

static const struct {
  const char *name, *class_name;
} families[] = {
    {"auto", ""},
#define HF_FAMILY(id, name, class_name) {name, class_name},
#include "codegen/hf_families.def"
#undef HF_FAMILY
};

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
