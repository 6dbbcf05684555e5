/* Blocks to structs, by the rows of keys.def. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "lang/spec_keys.h"

enum { MAX_NAME = 64 };

/* ---- storing ---- */

static void store_number(const KeyRow *row, void *base, size_t offset, Number number)
{
  char *at = (char *)base + offset;
  int small = (int)number.i;
  uint64_t seed = (uint64_t)number.i;
  switch (row->type) {
  case TYPE_INT:
    memcpy(at, &small, sizeof small);
    break;
  case TYPE_LONG:
    memcpy(at, &number.i, sizeof number.i);
    break;
  case TYPE_SEED:
    memcpy(at, &seed, sizeof seed);
    break;
  default:
    memcpy(at, &number.d, sizeof number.d);
  }
}

static int find_word(WordList list, const char *word)
{
  for (int i = 0; i < list.n; i++) {
    if (list.words[i] && strcmp(list.words[i], word) == 0) {
      return i;
    }
  }
  return -1;
}

static void store_default(const KeyRow *row, void *base)
{
  const char *text = row->def;
  if (!text || *text == '=' || row->type == TYPE_INTS || row->type == TYPE_REF) {
    return;
  }
  if (row->type == TYPE_ENUM) {
    int word = find_word(row->words, text);
    memcpy((char *)base + row->offset, &word, sizeof word);
  } else if (row->type == TYPE_BOOL) {
    bool on = strcmp(text, "true") == 0;
    memcpy((char *)base + row->offset, &on, sizeof on);
  } else if (*text >= '0' && *text <= '9') {
    size_t offset = row->offset;
    for (; *text; offset = row->second) {
      char digits[32] = {0};
      size_t n = strcspn(text, " ,");
      memcpy(digits, text, n);
      text += n + strspn(text + n, " ,");
      size_t unit = *text && !(*text >= '0' && *text <= '9') ? strlen(text) : 0;
      Number number;
      if (number_read(digits, unit ? unit_find(text, unit) : NULL, &number) != NUM_OK) {
        die("default of %s", row->name);
      }
      store_number(row, base, offset, number);
      text += unit;
    }
  }
}

void read_defaults(BlockId block, void *base)
{
  for (int k = block_rows[block].first; k < block_end(block); k++) {
    store_default(&key_rows[k], base);
  }
  for (int inner = block + 1; inner < N_BLOCKS; inner++) {
    if (block_rows[inner].parent == block) {
      read_defaults((BlockId)inner, base);
    }
  }
}

void read_reset(KeyId key, void *base)
{
  const KeyRow *row = &key_rows[key];
  static const size_t sizes[] = {
      [TYPE_INT] = sizeof(int),     [TYPE_LONG] = sizeof(int64_t), [TYPE_SEED] = sizeof(uint64_t),
      [TYPE_REAL] = sizeof(double), [TYPE_BOOL] = sizeof(bool),    [TYPE_ENUM] = sizeof(int)};
  if (row->def && row->type <= TYPE_ENUM) {
    memset((char *)base + row->offset, 0, sizes[row->type]);
    store_default(row, base);
  }
}

/* ---- values ---- */

static const char *bound(Arena *arena, double x)
{
  return x >= 9.2e18 ? "9223372036854775807" : arena_printf(arena, x == (double)(int64_t)x ? "%.0f" : "%.10g", x);
}

static const char *unit_of_range(Dim dim)
{
  static const char *const base[DIM_COUNT] = {"", " B", " B/s", " FLOPS", " ns"};
  return base[dim];
}

static bool check_range(Reader *reader, const KeyRow *row, const Expr *expr, Number number)
{
  double x = number.d;
  bool low = row->range.without_low ? x > row->range.low : x >= row->range.low;
  bool high = row->range.without_high ? x < row->range.high : x <= row->range.high;
  if (row->range.any || (low && high)) {
    return true;
  }
  diag_error(reader->diag, expr->span, "%s must be %s %s and %s %s%s, not %s", row->name,
             row->range.without_low ? "greater than" : "at least", bound(reader->arena, row->range.low),
             row->range.without_high ? "less than" : "at most", bound(reader->arena, row->range.high),
             unit_of_range(row->unit), eval_quote(reader, expr));
  return false;
}

static bool check_dim(Reader *reader, const KeyRow *row, const Expr *expr, Number number)
{
  if (number.dim == row->unit) {
    return true;
  }
  const char *quote = diag_quote(reader->diag, expr->span);
  if (number.dim == DIM_NONE) {
    diag_error(reader->diag, expr->span, "%s needs a unit: it is %s, such as %s", row->name, dim_name(row->unit),
               dim_example(row->unit));
  } else if (row->unit == DIM_NONE) {
    diag_error(reader->diag, expr->span, "%s is a plain number, but %s is %s", row->name, quote, dim_name(number.dim));
  } else {
    diag_error(reader->diag, expr->span, "%s is %s, such as %s, but %s is %s", row->name, dim_name(row->unit),
               dim_example(row->unit), quote, dim_name(number.dim));
  }
  return false;
}

static bool is_whole(KeyType type)
{
  return type == TYPE_INT || type == TYPE_LONG || type == TYPE_SEED || type == TYPE_INTS;
}

bool read_number(Reader *reader, const KeyRow *row, const Expr *expr, Number *number)
{
  if (!eval_number(reader, expr, number) || !check_dim(reader, row, expr, *number)) {
    return false;
  }
  if (is_whole(row->type) && !number->exact) {
    if (number->overflow || number->d >= 9.2e18) {
      diag_error(reader->diag, expr->span, "%s: %s is beyond the largest whole number, 9223372036854775807", row->name,
                 eval_quote(reader, expr));
    } else {
      diag_error(reader->diag, expr->span, "%s must be a whole number%s, not %s", row->name,
                 row->unit == DIM_BYTES ? " of bytes" : "", eval_quote(reader, expr));
    }
    return false;
  }
  return check_range(reader, row, expr, *number);
}

/* The word that the default is written as ("none", "auto"), for which numbers are 0. */
static bool is_default_word(const KeyRow *row, const Expr *expr)
{
  return expr->kind == EXPR_NAME && row->def && strcmp(expr->text, row->def) == 0;
}

static const char *all_words(Arena *arena, WordList list)
{
  const char *text = list.words[0];
  for (int i = 1; i < list.n; i++) {
    text = arena_printf(arena, "%s%s%s", text, i + 1 < list.n ? ", " : " or ", list.words[i]);
  }
  return text;
}

static bool read_word(Reader *reader, const KeyRow *row, const Expr *expr, WordList list, int *word)
{
  if (expr->kind == EXPR_NAME) {
    *word = find_word(list, expr->text);
    if (*word >= 0) {
      return true;
    }
  }
  Suggest suggest = suggest_for(expr->kind == EXPR_NAME || expr->kind == EXPR_STRING ? expr->text : "");
  for (int i = 0; i < list.n; i++) {
    suggest_try(&suggest, list.words[i]);
  }
  if (expr->kind == EXPR_STRING && find_word(list, expr->text) >= 0) {
    diag_error(reader->diag, expr->span, "%s is a word: write %s without quotes", row->name, expr->text);
  } else {
    diag_error(reader->diag, expr->span, "%s is one of %s, not %s%s", row->name, all_words(reader->arena, list),
               diag_quote(reader->diag, expr->span), suggest_text(reader->arena, &suggest));
  }
  return false;
}

static bool read_ints(Reader *reader, const KeyRow *row, const AstItem *item, void *base)
{
  int *list = arena_new_array(reader->arena, int, (size_t)item->n_values);
  int n = 0;
  bool good = true;
  for (const Expr *expr = item->values; expr; expr = expr->next) {
    Number number;
    bool fine = read_number(reader, row, expr, &number);
    good = good && fine;
    if (fine) {
      list[n++] = (int)number.i;
    }
  }
  memcpy((char *)base + row->offset, &list, sizeof list);
  memcpy((char *)base + row->second, &n, sizeof n);
  return good;
}

static bool read_pair(Reader *reader, const KeyRow *row, const AstItem *item, void *base)
{
  if (item->n_values != 2) {
    diag_error(reader->diag, item->values->span, "%s takes two numbers, such as %s; found %d", row->name, row->def,
               item->n_values);
    return false;
  }
  Number number;
  bool first = read_number(reader, row, item->values, &number);
  if (first) {
    store_number(row, base, row->offset, number);
  }
  bool second = read_number(reader, row, item->values->next, &number);
  if (second) {
    store_number(row, base, row->second, number);
  }
  return first && second;
}

static bool read_scalar(Reader *reader, const KeyRow *row, const Expr *expr, void *base)
{
  static const char *const bools[] = {"false", "true"};
  Number number;
  int word = 0;
  if (row->type == TYPE_ENUM) {
    if (!read_word(reader, row, expr, row->words, &word)) {
      return false;
    }
    memcpy((char *)base + row->offset, &word, sizeof word);
  } else if (row->type == TYPE_BOOL) {
    if (!read_word(reader, row, expr, (WordList){bools, 2}, &word)) {
      return false;
    }
    bool on = word == 1;
    memcpy((char *)base + row->offset, &on, sizeof on);
  } else if (row->type == TYPE_REF) {
    if (expr->kind != EXPR_NAME) {
      diag_error(reader->diag, expr->span, "%s is the name of a %s block, not %s", row->name, row->name,
                 diag_quote(reader->diag, expr->span));
      return false;
    }
    memcpy((char *)base + row->offset, &expr->text, sizeof expr->text);
  } else {
    if (!read_number(reader, row, expr, &number)) {
      return false;
    }
    store_number(row, base, row->offset, number);
  }
  return true;
}

static bool read_value(Reader *reader, const KeyRow *row, const AstItem *item, void *base)
{
  bool number = row->type != TYPE_ENUM && row->type != TYPE_BOOL && row->type != TYPE_REF;
  if (number && item->n_values == 1 && is_default_word(row, item->values)) {
    return true;
  }
  if (row->type == TYPE_INTS) {
    return read_ints(reader, row, item, base);
  }
  if (row->type == TYPE_PAIR) {
    return read_pair(reader, row, item, base);
  }
  if (row->type == TYPE_CURVE) {
    Curve curve = {0};
    bool good = read_curve(reader, row, item, &curve);
    memcpy((char *)base + row->offset, &curve, sizeof curve);
    return good;
  }
  if (item->n_values > 1) {
    diag_error(reader->diag, item->values->next->span, "%s takes one value, not a list of %d", row->name,
               item->n_values);
    return false;
  }
  return read_scalar(reader, row, item->values, base);
}

/* ---- blocks ---- */

BlockId block_find(BlockId parent, const char *name)
{
  for (int b = 0; b < N_BLOCKS; b++) {
    if (block_rows[b].parent == parent && strcmp(block_rows[b].name, name) == 0) {
      return (BlockId)b;
    }
  }
  return B_root;
}

/* "model { moe { ... } }" */
static const char *where(Arena *arena, BlockId block)
{
  const char *text = "...";
  for (; block != B_root; block = block_rows[block].parent) {
    text = arena_printf(arena, "%s { %s }", block_rows[block].name, text);
  }
  return text;
}

static BlockId other_block_with_key(const char *name, BlockId but)
{
  for (int k = 0; k < N_KEYS; k++) {
    if (key_rows[k].block != but && strcmp(key_rows[k].name, name) == 0) {
      return key_rows[k].block;
    }
  }
  return B_root;
}

static Suggest nearest_in(BlockId block, const char *name)
{
  Suggest suggest = suggest_for(name);
  if (block != B_root) {
    for (int k = block_rows[block].first; k < block_end(block); k++) {
      suggest_try(&suggest, key_rows[k].name);
    }
  }
  for (int b = 0; b < N_BLOCKS; b++) {
    if (block_rows[b].parent == block) {
      suggest_try(&suggest, block_rows[b].name);
    }
  }
  return suggest;
}

/* What was meant by a misspelt word is not reported as missing as well. */
static void excuse(Reader *reader, BlockId block, const char *meant)
{
  if (!meant) {
    return;
  }
  for (int k = 0; k < N_KEYS; k++) {
    if (key_rows[k].block == block && strcmp(key_rows[k].name, meant) == 0) {
      reader->excused_key[k] = true;
    }
  }
  BlockId inner = block_find(block, meant);
  if (inner != B_root) {
    reader->excused_block[inner] = true;
  }
}

static void complain_unknown_key(Reader *reader, const AstItem *item, BlockId block)
{
  const char *in = block_rows[block].name;
  if (block_find(block, item->name) != B_root) {
    diag_error(reader->diag, item->name_span, "'%s' is a block: write %s { ... }", item->name, item->name);
    return;
  }
  BlockId other = other_block_with_key(item->name, block);
  if (other != B_root) {
    diag_error(reader->diag, item->name_span, "'%s' does not belong in '%s' but in %s", item->name, in,
               where(reader->arena, other));
    return;
  }
  Suggest suggest = nearest_in(block, item->name);
  excuse(reader, block, suggest.best);
  diag_error(reader->diag, item->name_span, "'%s' has no key '%.64s'%s", in, item->name,
             suggest_text(reader->arena, &suggest));
}

void complain_unknown_block(Reader *reader, const AstItem *item, BlockId parent)
{
  const char *in = parent == B_root ? NULL : block_rows[parent].name;
  for (int k = 0; k < N_KEYS; k++) {
    if (key_rows[k].block == parent && strcmp(key_rows[k].name, item->name) == 0) {
      diag_error(reader->diag, item->name_span, "'%s' is a key: write %s = ...", item->name, item->name);
      return;
    }
  }
  for (int b = 0; b < N_BLOCKS; b++) {
    if (strcmp(block_rows[b].name, item->name) == 0) {
      diag_error(reader->diag, item->name_span, "block '%s' does not belong %s%s%s but in %s", item->name,
                 in ? "in '" : "outside of blocks", in ? in : "", in ? "'" : "",
                 block_rows[b].parent == B_root ? "the file itself" : where(reader->arena, block_rows[b].parent));
      return;
    }
  }
  Suggest suggest = nearest_in(parent, item->name);
  excuse(reader, parent, suggest.best);
  diag_error(reader->diag, item->name_span, "unknown block '%.64s'%s", item->name,
             suggest_text(reader->arena, &suggest));
}

void complain_outside(Reader *reader, const AstItem *item)
{
  if (block_find(B_root, item->name) != B_root) {
    diag_error(reader->diag, item->name_span, "'%s' is a block: write %s { ... }", item->name, item->name);
    return;
  }
  BlockId other = other_block_with_key(item->name, B_root);
  if (other != B_root) {
    diag_error(reader->diag, item->name_span, "'%s' stands outside of a block; it belongs in %s", item->name,
               where(reader->arena, other));
  } else {
    diag_error(reader->diag, item->name_span,
               "'%.64s' stands outside of a block; for a constant of your own write: let %.64s = ...", item->name,
               item->name);
  }
}

void read_block_word(Reader *reader, const AstItem *item, BlockId block, const char **name)
{
  const BlockRow *row = &block_rows[block];
  if (row->head == HEAD_NONE && item->word) {
    diag_error(reader->diag, item->word_span, "block '%s' takes no name", row->name);
  } else if (row->head == HEAD_NAME && !item->word) {
    diag_error(reader->diag, item->name_span, "this %s needs a name: %s NAME { ... }", row->name, row->name);
  } else if (row->head == HEAD_KIND) {
    reader->words[block] = item->word ? find_word(row->kinds, item->word) : -1;
    Suggest suggest = suggest_for(item->word ? item->word : "");
    for (int i = 0; i < row->kinds.n; i++) {
      suggest_try(&suggest, row->kinds.words[i]);
    }
    if (reader->words[block] < 0) {
      diag_error(reader->diag, item->word ? item->word_span : item->name_span, "after '%s' stands its kind, %s%s%s%s",
                 row->name, all_words(reader->arena, row->kinds), item->word ? ", not " : "",
                 item->word ? diag_quote(reader->diag, item->word_span) : "", suggest_text(reader->arena, &suggest));
    }
  } else if (item->word && strlen(item->word) > MAX_NAME) {
    diag_error(reader->diag, item->word_span, "a name may have %d characters, this one has %zu", MAX_NAME,
               strlen(item->word));
  }
  if (name) {
    *name = item->word ? item->word : row->name;
  }
}

static void read_key(Reader *reader, const AstItem *item, BlockId block, void *base)
{
  for (int k = block_rows[block].first; k < block_end(block); k++) {
    if (strcmp(key_rows[k].name, item->name) != 0) {
      continue;
    }
    if (reader->state[k] != KEY_UNSET) {
      diag_error(reader->diag, item->name_span, "'%s' is set twice", item->name);
      diag_note(reader->diag, reader->spans.key[k], "first set here");
      return;
    }
    reader->spans.key[k] = item->span;
    bool good = read_value(reader, &key_rows[k], item, base);
    reader->state[k] = good ? KEY_SET : KEY_BAD;
    reader->spec->misread = reader->spec->misread || !good;
    return;
  }
  complain_unknown_key(reader, item, block);
}

/* The inner block of this name, unless it is unknown or stands here a second time. */
static void read_inner(Reader *reader, const AstItem *item, BlockId parent, void *base)
{
  BlockId inner = block_find(parent, item->name);
  if (inner == B_root) {
    complain_unknown_block(reader, item, parent);
    return;
  }
  if (reader->present[inner]) {
    diag_error(reader->diag, item->name_span, "block '%s' stands twice in '%s'", item->name, block_rows[parent].name);
    diag_note(reader->diag, reader->spans.block[inner], "first here");
    return;
  }
  read_block_word(reader, item, inner, NULL);
  read_block(reader, item, inner, base);
}

static void require(Reader *reader, const AstItem *item, BlockId block)
{
  Span span = item->word ? (Span){item->span.source, item->name_span.begin, item->word_span.end} : item->name_span;
  for (int k = block_rows[block].first; k < block_end(block); k++) {
    if (!key_rows[k].def && reader->state[k] == KEY_UNSET) {
      reader->state[k] = KEY_BAD;
      if (!reader->excused_key[k]) {
        diag_error(reader->diag, span, "'%s' lacks %s: %s", block_rows[block].name, key_rows[k].name, key_rows[k].doc);
      }
    }
  }
  for (int b = 0; b < N_BLOCKS; b++) {
    if (block_rows[b].parent == block && block_rows[b].count == COUNT_ONE && !reader->present[b] &&
        !reader->excused_block[b]) {
      diag_error(reader->diag, span, "'%s' lacks the block '%s': %s", block_rows[block].name, block_rows[b].name,
                 block_rows[b].doc);
    }
  }
}

static void forget(Reader *reader, BlockId block)
{
  for (int k = block_rows[block].first; k < block_end(block); k++) {
    reader->state[k] = KEY_UNSET;
    reader->excused_key[k] = false;
    reader->spans.key[k] = (Span){0};
  }
  for (int b = block + 1; b < N_BLOCKS; b++) {
    if (block_rows[b].parent == block) {
      reader->present[b] = false;
      reader->excused_block[b] = false;
      forget(reader, (BlockId)b);
    }
  }
}

void read_block(Reader *reader, const AstItem *item, BlockId block, void *base)
{
  forget(reader, block); /* blocks of a library or a list come more than once */
  reader->present[block] = true;
  reader->spans.block[block] = item->name_span;
  for (const AstItem *inner = item->items; inner; inner = inner->next) {
    switch (inner->kind) {
    case ITEM_KEY:
      read_key(reader, inner, block, base);
      break;
    case ITEM_BLOCK:
      read_inner(reader, inner, block, base);
      break;
    case ITEM_LET:
      diag_error(reader->diag, inner->span, "'let' cannot stand inside a block: put it at the top of the file");
      break;
    case ITEM_USE:
      diag_error(reader->diag, inner->span, "'use' cannot stand inside a block: put it at the top of the file");
      break;
    }
  }
  require(reader, item, block);
}
