/* AstFile: one .moespec as written, with every comment, so that it can be printed back. The grammar is generic (blocks
   of `key = value`); what keys mean is keys.def's business. All of it lives in the Arena; texts point into the source.
 */
#ifndef LANG_AST_H
#define LANG_AST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "lang/arena.h"
#include "lang/diag.h"

typedef enum ExprKind { EXPR_NUMBER, EXPR_NAME, EXPR_STRING, EXPR_NEG, EXPR_PAREN, EXPR_BINARY, EXPR_POINT } ExprKind;

typedef struct Expr {
  ExprKind kind;
  int depth; /* of the tree below, bounded, so that walks may recurse */
  Span span;
  const char *text;          /* NUMBER: the digits; NAME: the word; STRING: what lies between the quotes */
  const char *unit;          /* NUMBER: unit or multiplier as written; NULL: none */
  char op;                   /* BINARY: one of + - * / */
  struct Expr *left, *right; /* NEG and PAREN: left; POINT, which only stands in comma lists: left ":" right */
  struct Expr *next;         /* in a comma list */
} Expr;

typedef enum ItemKind { ITEM_KEY, ITEM_BLOCK, ITEM_LET, ITEM_USE } ItemKind;

typedef struct AstFile AstFile;

typedef struct AstItem {
  ItemKind kind;
  int n_values;
  Span span; /* first byte to last, without the `;` */
  Span name_span;
  Span word_span;        /* BLOCK: of the word between name and brace */
  Span brace_span;       /* BLOCK: of the opening brace */
  const char *name;      /* KEY, LET: left of `=`; BLOCK: first word */
  const char *word;      /* BLOCK: second word, a name or a kind; NULL: none */
  Expr *values;          /* KEY, LET: comma list; USE: one string */
  struct AstItem *items; /* BLOCK */
  AstFile *used;         /* USE: the file, NULL where it was loaded before or was not asked for */
  struct AstItem *next;
} AstItem;

typedef struct AstComment {
  Span span; /* from `#` to the last byte that is not blank */
  struct AstComment *next;
} AstComment;

/* An override of a `let` from the command line. */
typedef struct AstDefine {
  const char *name;
  Expr *value;
  Span span;
} AstDefine;

struct AstFile {
  const char *path;
  const char *text;
  size_t length;
  uint32_t source; /* in the Diag */
  AstItem *items;
  AstComment *comments; /* in order */
  AstDefine *defines;   /* of the file that was asked for, not of used ones */
  int n_defines;
};

/* Reads a file and, in place, every file it uses (paths relative to the using file; a file reached twice counts once).
   `defines` are "name=value" texts of -D. Returns NULL after reporting every error found. */
AstFile *ast_parse(Arena *, Diag *, const char *path, const char *const *defines, int n_defines);

/* The same from memory; `path` is for messages and for relative `use`, and the text must outlive the Diag. Without
   `follow`, `use` lines are kept but not read: enough to print the file back. */
AstFile *ast_parse_text(Arena *, Diag *, const char *path, const char *text, size_t length, bool follow,
                        const char *const *defines, int n_defines);

/* One file from disk, `use` lines not followed: what the formatter needs. */
AstFile *ast_read(Arena *, Diag *, const char *path);

/* The formatter: same items, same comments, same line breaks, uniform blanks and aligned columns. What it prints parses
   to the same file and prints as itself. */
void ast_print(const AstFile *, FILE *);

#endif
