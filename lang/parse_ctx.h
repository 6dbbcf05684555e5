/* What scanner, grammar and loader share while one text is parsed. */
#ifndef LANG_PARSE_CTX_H
#define LANG_PARSE_CTX_H

#include "lang/ast.h"

enum { MAX_BLOCK_DEPTH = 32, MAX_EXPR_DEPTH = 500 };

typedef struct ItemList {
  AstItem *first, *last;
} ItemList;

typedef struct ExprList {
  Expr *first, *last;
  int n;
} ExprList;

typedef struct Word {
  const char *text; /* NULL: absent */
  Span span;
} Word;

typedef struct ParseCtx {
  Arena *arena;
  Diag *diag;
  AstFile *file;
  AstComment *last_comment;
  uint32_t pos;    /* bytes scanned */
  bool expression; /* the text is one value, not a file */

  Span open[MAX_BLOCK_DEPTH]; /* braces not closed yet */
  int depth;
  bool closed; /* the last token was a brace that closed one */

  int token, before; /* the last two tokens and where they were */
  Span token_span, before_span;

  bool resync; /* after a syntax error: tokens are dropped up to the end of the line or of the statement */
  int nest;    /* braces opened among the dropped ones */
  bool fatal;  /* gave up; the rest reads as the end of the file */
} ParseCtx;

/* One whole text. Returns false where the grammar gave up; lesser errors are only in the Diag. (parse.y) */
bool parse_file(ParseCtx *);

/* Builders, called by the grammar's actions. (ast_build.c) */
Expr *build_leaf(ParseCtx *, ExprKind, const char *text, const char *unit, Span);
Expr *build_unary(ParseCtx *, ExprKind, Expr *operand, Span);
Expr *build_binary(ParseCtx *, char op, Expr *left, Expr *right, Span);
Expr *build_point(ParseCtx *, Expr *left, Expr *right, Span);
ExprList build_list(ExprList, Expr *);
ItemList build_items(ItemList, AstItem *);
AstItem *build_key(ParseCtx *, Word name, ExprList values, Span);
AstItem *build_let(ParseCtx *, Word name, Expr *value, Span);
AstItem *build_use(ParseCtx *, Expr *path, Span);
AstItem *build_block(ParseCtx *, Word name, Word word, Span brace, ItemList items, Span);

#endif
