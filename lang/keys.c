/* keys.def as tables. */
#include "lang/spec_keys.h"

#include <stddef.h>

/* Where each block's fields live. */
#define STRUCT_model      ModelSpec
#define STRUCT_attention  ModelSpec
#define STRUCT_rope       ModelSpec
#define STRUCT_yarn       ModelSpec
#define STRUCT_dense      ModelSpec
#define STRUCT_moe        ModelSpec
#define STRUCT_balance    ModelSpec
#define STRUCT_cluster    ClusterKeys
#define STRUCT_node       NodeKeys
#define STRUCT_gpu        GpuSpec
#define STRUCT_efficiency GpuSpec
#define STRUCT_shape      ShapeSpec
#define STRUCT_train      TrainSpec
#define STRUCT_optimizer  TrainSpec
#define STRUCT_lr         TrainSpec
#define STRUCT_costs      CostsSpec
#define STRUCT_plan       PlanKeys

#define WORDS(id, ...) static const char *const words_of_##id[] = {__VA_ARGS__};
#include "lang/keys.def"
static const char *const words_of_no_words[1] = {NULL};

#define REQUIRED NULL
#define IN(low, high)                                                                                                  \
  {                                                                                                                    \
    low, high, false, false, false                                                                                     \
  }
#define OVER(low, high)                                                                                                \
  {                                                                                                                    \
    low, high, true, false, false                                                                                      \
  }
#define UNDER(low, high)                                                                                               \
  {                                                                                                                    \
    low, high, false, true, false                                                                                      \
  }
#define ANY                                                                                                            \
  {                                                                                                                    \
    0, 0, false, false, true                                                                                           \
  }
#define WORD_LIST(id)                                                                                                  \
  {                                                                                                                    \
    words_of_##id, (int)(sizeof words_of_##id / sizeof words_of_##id[0])                                               \
  }

const KeyRow key_rows[N_KEYS] = {
#define KEY(block, key, type, field, second, def, range, unit, words, doc)                                             \
  {B_##block,                                                                                                          \
   #key,                                                                                                               \
   TYPE_##type,                                                                                                        \
   offsetof(STRUCT_##block, field),                                                                                    \
   offsetof(STRUCT_##block, second),                                                                                   \
   def,                                                                                                                \
   range,                                                                                                              \
   DIM_##unit,                                                                                                         \
   WORD_LIST(words),                                                                                                   \
   doc},
#include "lang/keys.def"
};

/* First key of each block: the number of rows before it. */
enum {
#define BLOCK(id, parent, name, head, count, doc)                          START_##id, START_BACK_##id = START_##id - 1,
#define KEY(block, key, type, field, second, def, range, unit, words, doc) AT_##block##_##key,
#include "lang/keys.def"
  END_OF_KEYS
};

const BlockRow block_rows[N_BLOCKS] = {
#define KINDS_NONE(id)                                                                                                 \
  {                                                                                                                    \
    NULL, 0                                                                                                            \
  }
#define KINDS_NAME(id)                                                                                                 \
  {                                                                                                                    \
    NULL, 0                                                                                                            \
  }
#define KINDS_NAME_OPTIONAL(id)                                                                                        \
  {                                                                                                                    \
    NULL, 0                                                                                                            \
  }
#define KINDS_KIND(id) WORD_LIST(id)
#define BLOCK(id, parent, name, head, count, doc)                                                                      \
  {B_##parent, name, HEAD_##head, KINDS_##head(id), COUNT_##count, doc, START_##id},
#include "lang/keys.def"
};

int block_end(BlockId block)
{
  return block + 1 < N_BLOCKS ? block_rows[block + 1].first : N_KEYS;
}
