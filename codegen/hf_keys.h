/* hf_config.def as data, shared by import and export. */
#ifndef CODEGEN_HF_KEYS_H
#define CODEGEN_HF_KEYS_H

#include <stddef.h>

#include "codegen/hf.h"

typedef enum HfKind { HF_INT, HF_REAL, HF_BOOL } HfKind;
typedef enum HfNeed { HF_REQUIRED, HF_FREE, HF_DEFAULT } HfNeed;

typedef struct HfKey {
  unsigned families; /* bits by Family */
  const char *names[3];
  HfKind kind;
  size_t offset; /* in ModelSpec */
  HfNeed need;
  double def; /* of HF_DEFAULT */
} HfKey;

extern const HfKey hf_keys[];
extern const int hf_n_keys;

static inline bool hf_is(const HfKey *key, Family family)
{
  return key->families >> family & 1u;
}

static inline bool hf_is_v3(Family family)
{
  return family == FAMILY_DEEPSEEK_V3 || family == FAMILY_KIMI_K2;
}

#endif
