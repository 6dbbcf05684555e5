/* keys.def as data, and what the parts of spec_build share. */
#ifndef LANG_SPEC_KEYS_H
#define LANG_SPEC_KEYS_H

#include "lang/spec.h"
#include "lang/units.h"

typedef enum BlockId {
  B_root = -1,
#define BLOCK(id, parent, name, head, count, doc) B_##id,
#include "lang/keys.def"
  N_BLOCKS
} BlockId;

typedef enum KeyId {
#define KEY(block, key, type, field, second, def, range, unit, words, doc) K_##block##_##key,
#include "lang/keys.def"
  N_KEYS
} KeyId;

typedef enum KeyType {
  TYPE_INT,
  TYPE_LONG,
  TYPE_SEED,
  TYPE_REAL,
  TYPE_BOOL,
  TYPE_ENUM,
  TYPE_INTS,
  TYPE_PAIR,
  TYPE_REF,
  TYPE_CURVE
} KeyType;
typedef enum BlockHead { HEAD_NONE, HEAD_NAME, HEAD_NAME_OPTIONAL, HEAD_KIND } BlockHead;
typedef enum BlockCount { COUNT_ONE, COUNT_MAYBE, COUNT_MANY, COUNT_LIBRARY } BlockCount;

typedef struct WordList {
  const char *const *words;
  int n;
} WordList;

typedef struct KeyRow {
  BlockId block;
  const char *name;
  KeyType type;
  size_t offset, second;
  const char *def; /* NULL: required */
  struct {
    double low, high;
    bool without_low, without_high, any;
  } range;
  Dim unit;
  WordList words;
  const char *doc;
} KeyRow;

typedef struct BlockRow {
  BlockId parent;
  const char *name;
  BlockHead head;
  WordList kinds;
  BlockCount count;
  const char *doc;
  int first; /* of its keys; they end where the next block's begin */
} BlockRow;

extern const KeyRow key_rows[N_KEYS];
extern const BlockRow block_rows[N_BLOCKS];
int block_end(BlockId); /* one past its last key */

/* What keys write to where Spec has no field of its own for it. */
typedef struct ClusterKeys {
  ClusterSpec cluster;
  const char *node;
} ClusterKeys;

typedef struct NodeKeys {
  ClusterSpec part; /* gpus, nics, nvlink, nic and latencies */
  const char *gpu;
} NodeKeys;

typedef struct PlanKeys {
  PlanSpec plan;
  int stages;
} PlanKeys;

typedef enum KeyState { KEY_UNSET, KEY_SET, KEY_BAD } KeyState;

struct SpecSpans {
  Span key[N_KEYS];
  Span block[N_BLOCKS];
};

typedef struct Reader {
  Arena *arena;
  Diag *diag;
  Spec *spec;
  const AstFile *file;
  struct LetTable *lets;
  KeyState state[N_KEYS];
  bool present[N_BLOCKS];
  bool excused_key[N_KEYS], excused_block[N_BLOCKS]; /* misspelt, which has been reported */
  struct SpecSpans spans;
  int words[N_BLOCKS]; /* index of the kind of HEAD_KIND blocks; -1: it was wrong */
} Reader;

/* eval.c: lets are declared first, then given their values in order, so that a use before the let can be told. */
void eval_declare(Reader *, const AstItem *, bool own);
bool eval_let(Reader *, const AstItem *); /* own: of the file asked for, so worth a warning if unused */
void eval_warn_unused(Reader *);
void eval_check_defines(Reader *);
void eval_free(Reader *);
bool eval_number(Reader *, const Expr *, Number *);
const char *eval_quote(Reader *, const Expr *); /* as written, and its value where that is another text */

/* spec_read.c */
void read_defaults(BlockId, void *base);
void read_reset(KeyId, void *base); /* one key, back to its default */
/* One number of the row's dimension, kind and range. */
bool read_number(Reader *, const KeyRow *, const Expr *, Number *);
/* Fills `base` with the block's keys and those of its inner blocks; keeps states and spans in the Reader. */
void read_block(Reader *, const AstItem *, BlockId, void *base);
void read_block_word(Reader *, const AstItem *, BlockId, const char **name);
BlockId block_find(BlockId parent, const char *name);
void complain_unknown_block(Reader *, const AstItem *, BlockId parent);
void complain_outside(Reader *, const AstItem *);

/* curve.c */
bool read_curve(Reader *, const KeyRow *, const AstItem *, Curve *);

/* spec_rules_system.c: what a system is, by systems.def; false of auto, which is all of them. */
bool system_is(SystemKind, bool colocated);

/* spec_rules.c */
void rules_model(Reader *);
void rules_node(Reader *, const AstItem *, const NodeKeys *);
void rules_gpu(Reader *, const AstItem *, const GpuSpec *);
void rules_shape(Reader *, const AstItem *, const ShapeSpec *);
void rules_train(Reader *);
void rules_costs(Reader *, CostsSpec *);
void rules_plan(Reader *, PlanKeys *);

/* spec_print.c: FNV-1a over every key's value, in the order of keys.def. */
uint64_t spec_hash(const Spec *);

/* suggest.c: the word nearest to `word`, if near enough to be a slip; `hit` is called for every candidate. */
typedef struct Suggest {
  const char *word;
  const char *best;
  int distance;
} Suggest;
Suggest suggest_for(const char *word);
void suggest_try(Suggest *, const char *candidate);
const char *suggest_text(Arena *, const Suggest *); /* "; did you mean 'x'?" or "" */

#endif
