/* Blocks of `key = value`, nothing else: the language grows by rows of keys.def, not here.
   Actions are one call each. */
%require "3.8"
%define api.pure full
%define api.prefix {moe_}
%define api.location.type {Span}
%define parse.error custom
%define parse.lac full
%locations
%expect 0 /* never raise this: rewrite the rule instead */

%code requires {
#include "lang/parse_ctx.h"
}

%code provides {
int moe_lex(MOE_STYPE *, Span *, void *scanner);
}

%code {
#include <string.h>

#include "lang/lex.h"

#define YYLLOC_DEFAULT(current, rhs, n) ((current) = span_over(&YYRHSLOC(rhs, 0), (n)))

/* rhs[0] is what stands before the rule's symbols, rhs[1..n] the symbols. */
static Span span_over(const Span *rhs, int n)
{
  if (n == 0) {
    return (Span){.source = rhs[0].source, .begin = rhs[0].end, .end = rhs[0].end};
  }
  return (Span){.source = rhs[1].source, .begin = rhs[1].begin, .end = rhs[n].end};
}

static void moe_error(Span *, void *scanner, ParseCtx *, const char *message);
}

%param {void *scanner}
%parse-param {ParseCtx *ctx}

%union {
  Word word;
  Expr *expr;
  ExprList exprs;
  AstItem *item;
  ItemList items;
}

%token <word> NAME "a name"
%token <expr> NUMBER "a number" STRING "a string"
%token LET "'let'" USE "'use'"
%token RESYNC "end of line" /* only after an error */
%token AS_FILE "file" AS_VALUE "value" /* the first token says what the text is */
/* Signs have the codes of their characters, which is what the scanner returns. */
%token ASSIGN 61 "=" OPEN 123 "{" CLOSE 125 "}" END 59 ";" COMMA 44 "," COLON 58 ":" LEFT 40 "(" RIGHT 41 ")"
%token PLUS 43 "+" MINUS 45 "-" TIMES 42 "*" OVER 47 "/"

%type <expr> expr value
%type <exprs> values
%type <item> item key let use block
%type <items> items
%type <word> word

%left "+" "-"
%left "*" "/"
%precedence NEGATION

%%

text
  : AS_FILE items { ctx->file->items = $items.first; }
  | AS_VALUE expr { ctx->file->items = build_let(ctx, (Word){0}, $expr, @expr); }
  ;

items
  : %empty { $$ = (ItemList){0}; }
  | items item { $$ = build_items($1, $item); }
  | items ";" { $$ = $1; }
  | items error ";" { $$ = $1; yyerrok; }
  | items error RESYNC { $$ = $1; yyerrok; }
  ;

item: key | let | use | block;

key: NAME "=" values { $$ = build_key(ctx, $NAME, $values, @$); };

let: LET NAME "=" expr { $$ = build_let(ctx, $NAME, $expr, @$); };

use: USE STRING { $$ = build_use(ctx, $STRING, @$); };

block
  : NAME word "{" items "}" { $$ = build_block(ctx, $NAME, $word, @3, $items, @$); }
  | NAME word "{" items error "}" { $$ = build_block(ctx, $NAME, $word, @3, $items, @$); yyerrok; }
  ;

word
  : %empty { $$ = (Word){0}; }
  | NAME
  ;

values
  : value { $$ = build_list((ExprList){0}, $value); }
  | values "," value { $$ = build_list($1, $value); }
  ;

value
  : expr
  | expr ":" expr { $$ = build_point(ctx, $1, $3, @$); }
  ;

expr
  : NUMBER
  | STRING
  | NAME { $$ = build_leaf(ctx, EXPR_NAME, $NAME.text, NULL, @$); }
  | "(" expr ")" { $$ = build_unary(ctx, EXPR_PAREN, $2, @$); }
  | "-" expr %prec NEGATION { $$ = build_unary(ctx, EXPR_NEG, $2, @$); }
  | expr "+" expr { $$ = build_binary(ctx, '+', $1, $3, @$); }
  | expr "-" expr { $$ = build_binary(ctx, '-', $1, $3, @$); }
  | expr "*" expr { $$ = build_binary(ctx, '*', $1, $3, @$); }
  | expr "/" expr { $$ = build_binary(ctx, '/', $1, $3, @$); }
  ;

%%

static void moe_error(Span *span, void *scanner, ParseCtx *ctx, const char *message)
{
  (void)scanner;
  if (!ctx->fatal) {
    diag_error(ctx->diag, *span, "%s",
               strcmp(message, "memory exhausted") == 0 ? "parentheses or blocks nest too deeply" : message);
  }
}

static bool expects(const yypcontext_t *context, yysymbol_kind_t kind)
{
  yysymbol_kind_t expected[YYNTOKENS];
  int n = yypcontext_expected_tokens(context, expected, YYNTOKENS);
  for (int i = 0; i < n; i++) {
    if (expected[i] == kind) {
      return true;
    }
  }
  return false;
}

/* What would have been right, in words; NULL where too much would. */
static const char *wanted(const yypcontext_t *context, const ParseCtx *ctx)
{
  if (ctx->before == USE) {
    return "a path in quotes after 'use'";
  }
  if (expects(context, YYSYMBOL_NUMBER)) {
    return ctx->before == '=' ? "a value after '='"
           : ctx->before == ',' ? "a value after ','"
           : ctx->before == ':' ? "a value after ':'"
                                : "a value";
  }
  if (expects(context, YYSYMBOL_OPEN)) { /* after a block's or key's first word */
    return ctx->before == NAME && expects(context, YYSYMBOL_ASSIGN) ? "'=' or '{'" : "'{'";
  }
  if (expects(context, YYSYMBOL_ASSIGN)) {
    return "'='";
  }
  if (expects(context, YYSYMBOL_NAME) && ctx->before == LET) {
    return "a name after 'let'";
  }
  if (expects(context, YYSYMBOL_RIGHT)) {
    return "')'";
  }
  return NULL;
}

static int yyreport_syntax_error(const yypcontext_t *context, void *scanner, ParseCtx *ctx)
{
  (void)scanner;
  yysymbol_kind_t found = yypcontext_token(context);
  if (ctx->fatal || found == YYSYMBOL_YYEMPTY) {
    return 0;
  }
  bool stops = found == YYSYMBOL_YYEOF || found == YYSYMBOL_END || (found == YYSYMBOL_CLOSE && ctx->closed);
  ctx->resync = !stops;
  ctx->nest = found == YYSYMBOL_OPEN;
  if (found == YYSYMBOL_OPEN) {
    ctx->depth--;
  }
  parse_complain(ctx, *yypcontext_location(context), wanted(context, ctx));
  return 0;
}

bool parse_file(ParseCtx *ctx)
{
  void *scanner = lex_open(ctx);
  int rc = moe_parse(scanner, ctx);
  lex_close(scanner);
  return rc == 0 && !ctx->fatal;
}
