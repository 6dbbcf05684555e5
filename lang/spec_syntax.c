/* The words of keys.def and units.def as editors read them: a syntax file for Vim and a TextMate grammar. What a word
   is depends on what follows it: a brace makes it a block, an equals sign a key. */
#include <stdlib.h>
#include <string.h>

#include "lang/spec_keys.h"

enum { MAX_WORDS = 1024 };

typedef struct Words {
  const char *list[MAX_WORDS];
  int n;
} Words;

static void add(Words *words, const char *word)
{
  for (int i = 0; i < words->n; i++) {
    if (strcmp(words->list[i], word) == 0) {
      return;
    }
  }
  if (words->n == MAX_WORDS) {
    die("the language has more than %d words", MAX_WORDS);
  }
  words->list[words->n++] = word;
}

/* Blocks, keys, values of enumerations, and units. */
typedef struct Vocabulary {
  Words blocks, keys, values, units;
} Vocabulary;

/* Longest first, so that of two units of which one begins like the other the longer is found. */
static int longest_first(const void *a, const void *b)
{
  const char *x = *(const char *const *)a, *y = *(const char *const *)b;
  size_t n = strlen(x), m = strlen(y);
  return n != m ? (n < m) - (n > m) : strcmp(x, y);
}

static void collect(Vocabulary *v)
{
  memset(v, 0, sizeof *v);
  for (int b = 0; b < N_BLOCKS; b++) {
    add(&v->blocks, block_rows[b].name);
    for (int i = 0; i < block_rows[b].kinds.n; i++) {
      add(&v->values, block_rows[b].kinds.words[i]);
    }
  }
  for (int k = 0; k < N_KEYS; k++) {
    add(&v->keys, key_rows[k].name);
    for (int i = 0; key_rows[k].type == TYPE_ENUM && i < key_rows[k].words.n; i++) {
      add(&v->values, key_rows[k].words.words[i]);
    }
  }
  for (int i = 0; i < n_units; i++) {
    add(&v->units, units[i].name);
  }
  qsort(v->units.list, (size_t)v->units.n, sizeof *v->units.list, longest_first);
}

static void print_or(FILE *out, const Words *words, const char * or)
{
  for (int i = 0; i < words->n; i++) {
    fprintf(out, "%s%s", i ? or : "", words->list[i]);
  }
}

void spec_print_vim(FILE *out)
{
  Vocabulary v;
  collect(&v);
  fputs("\" Vim syntax file for moec's specs, written by `moec help --as vim`.\n"
        "if exists(\"b:current_syntax\")\n  finish\nendif\n\n"
        "setlocal commentstring=#\\ %s\n"
        "syn match moespecValue \"\\<\\%(",
        out);
  print_or(out, &v.values, "\\|");
  fputs("\\)\\>\"\nsyn match moespecBoolean \"\\<\\%(true\\|false\\)\\>\"\n"
        "syn match moespecStatement \"\\<\\%(use\\|let\\)\\>\"\n"
        "syn match moespecKey \"\\<\\%(",
        out);
  print_or(out, &v.keys, "\\|");
  fputs("\\)\\>\\ze\\s*=\"\nsyn match moespecBlock \"\\<\\%(", out);
  print_or(out, &v.blocks, "\\|");
  fputs("\\)\\>\\ze\\%(\\s\\+\\w\\+\\)\\?\\s*{\"\n"
        "syn match moespecNumber \"\\%(\\w\\|\\.\\)\\@<!\\.\\?\\d[0-9._]*\\%([eE][+-]\\?\\d\\+\\)\\?\\%(\\s*\\%(",
        out);
  print_or(out, &v.units, "\\|");
  fputs("\\)\\%(\\w\\|/\\)\\@!\\)\\?\"\n"
        "syn region moespecString start=+\"+ end=+\"+ oneline\n"
        "syn match moespecComment \"#.*$\" contains=@Spell\n\n"
        "hi def link moespecValue Constant\nhi def link moespecBoolean Boolean\n"
        "hi def link moespecStatement Statement\nhi def link moespecKey Identifier\n"
        "hi def link moespecBlock Type\nhi def link moespecNumber Number\n"
        "hi def link moespecString String\nhi def link moespecComment Comment\n\n"
        "let b:current_syntax = \"moespec\"\n",
        out);
}

static void print_rule(FILE *out, const char *scope, const char *before, const Words *words, const char *after,
                       bool last)
{
  fprintf(out, "    {\"name\": \"%s.moespec\", \"match\": \"%s", scope, before);
  print_or(out, words, "|");
  fprintf(out, "%s\"}%s\n", after, last ? "" : ",");
}

void spec_print_textmate(FILE *out)
{
  static const Words none = {{NULL}, 0};
  Vocabulary v;
  collect(&v);
  fputs("{\n  \"information_for_contributors\": [\"Written by `moec help --as textmate`.\"],\n"
        "  \"name\": \"moespec\",\n  \"scopeName\": \"source.moespec\",\n  \"fileTypes\": [\"moespec\"],\n"
        "  \"patterns\": [\n",
        out);
  print_rule(out, "comment.line.number-sign", "#.*$", &none, "", false);
  print_rule(out, "string.quoted.double", "\\\"[^\\\"]*\\\"", &none, "", false);
  print_rule(out, "storage.type.block", "\\\\b(", &v.blocks, ")\\\\b(?=(\\\\s+\\\\w+)?\\\\s*\\\\{)", false);
  print_rule(out, "variable.parameter.key", "\\\\b(", &v.keys, ")\\\\b(?=\\\\s*=)", false);
  print_rule(out, "keyword.control", "\\\\b(use|let)\\\\b", &none, "", false);
  print_rule(out, "constant.language.boolean", "\\\\b(true|false)\\\\b", &none, "", false);
  print_rule(out, "constant.language.value", "\\\\b(", &v.values, ")\\\\b", false);
  print_rule(out, "constant.numeric", "(?<![\\\\w.])\\\\.?[0-9][0-9._]*([eE][+-]?[0-9]+)?(\\\\s*(", &v.units,
             ")(?![\\\\w/]))?", true);
  fputs("  ]\n}\n", out);
}
