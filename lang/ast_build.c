/* Builders behind the grammar's actions. */
#include "lang/parse_ctx.h"

static Expr *new_expr(ParseCtx *ctx, ExprKind kind, int depth, Span span)
{
  Expr *expr = arena_new_of(ctx->arena, Expr);
  expr->kind = kind;
  expr->depth = depth;
  expr->span = span;
  return expr;
}

Expr *build_leaf(ParseCtx *ctx, ExprKind kind, const char *text, const char *unit, Span span)
{
  Expr *expr = new_expr(ctx, kind, 1, span);
  expr->text = text;
  expr->unit = unit;
  return expr;
}

static bool too_deep(ParseCtx *ctx, int depth, Span span)
{
  if (depth == MAX_EXPR_DEPTH) {
    diag_error(ctx->diag, span, "this expression has more than %d operators or parentheses", MAX_EXPR_DEPTH - 2);
  }
  return depth >= MAX_EXPR_DEPTH;
}

Expr *build_unary(ParseCtx *ctx, ExprKind kind, Expr *operand, Span span)
{
  int depth = operand->depth + 1;
  bool deep = too_deep(ctx, depth, span);
  Expr *expr = new_expr(ctx, kind, depth, span);
  expr->left = deep ? NULL : operand;
  return expr;
}

Expr *build_binary(ParseCtx *ctx, char op, Expr *left, Expr *right, Span span)
{
  int depth = (left->depth > right->depth ? left->depth : right->depth) + 1;
  bool deep = too_deep(ctx, depth, span);
  Expr *expr = new_expr(ctx, EXPR_BINARY, depth, span);
  expr->op = op;
  expr->left = deep ? NULL : left;
  expr->right = deep ? NULL : right;
  return expr;
}

Expr *build_point(ParseCtx *ctx, Expr *left, Expr *right, Span span)
{
  Expr *expr = build_binary(ctx, ':', left, right, span);
  expr->kind = EXPR_POINT;
  return expr;
}

ExprList build_list(ExprList list, Expr *expr)
{
  if (list.last) {
    list.last->next = expr;
  } else {
    list.first = expr;
  }
  list.last = expr;
  list.n++;
  return list;
}

ItemList build_items(ItemList list, AstItem *item)
{
  if (list.last) {
    list.last->next = item;
  } else {
    list.first = item;
  }
  list.last = item;
  return list;
}

static AstItem *new_item(ParseCtx *ctx, ItemKind kind, Span span)
{
  AstItem *item = arena_new_of(ctx->arena, AstItem);
  item->kind = kind;
  item->span = span;
  return item;
}

AstItem *build_key(ParseCtx *ctx, Word name, ExprList values, Span span)
{
  AstItem *item = new_item(ctx, ITEM_KEY, span);
  item->name = name.text;
  item->name_span = name.span;
  item->values = values.first;
  item->n_values = values.n;
  return item;
}

AstItem *build_let(ParseCtx *ctx, Word name, Expr *value, Span span)
{
  AstItem *item = new_item(ctx, ITEM_LET, span);
  item->name = name.text;
  item->name_span = name.span;
  item->values = value;
  item->n_values = 1;
  return item;
}

AstItem *build_use(ParseCtx *ctx, Expr *path, Span span)
{
  AstItem *item = new_item(ctx, ITEM_USE, span);
  item->values = path;
  item->n_values = 1;
  return item;
}

AstItem *build_block(ParseCtx *ctx, Word name, Word word, Span brace, ItemList items, Span span)
{
  AstItem *item = new_item(ctx, ITEM_BLOCK, span);
  item->name = name.text;
  item->name_span = name.span;
  item->word = word.text;
  item->word_span = word.span;
  item->brace_span = brace;
  item->items = items.first;
  return item;
}
