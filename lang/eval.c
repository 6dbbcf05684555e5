/* Values of expressions: numbers with units, lets, arithmetic. Errors are reported here, once, where they arise. */
#include <inttypes.h>
#include <string.h>
#include <uthash.h>

#include "lang/spec_keys.h"

typedef struct Let {
  const char *name;
  Span span; /* of the name */
  Number value;
  bool bad;     /* its value was wrong and has been reported */
  bool pending; /* declared, its turn has not come */
  bool own, used;
  UT_hash_handle hh;
} Let;

typedef struct LetTable {
  Let *lets;
} LetTable;

static Let *find(const Reader *reader, const char *name)
{
  Let *let = NULL;
  if (reader->lets) {
    HASH_FIND_STR(reader->lets->lets, name, let);
  }
  return let;
}

static bool unknown_unit(Reader *reader, const Expr *expr)
{
  Suggest suggest = suggest_for(expr->unit);
  static const char *const slips[][2] = {{"bps", "bit/s"},
                                         {"Kbps", "kbit/s"},
                                         {"Mbps", "Mbit/s"},
                                         {"Gbps", "Gbit/s"},
                                         {"Tbps", "Tbit/s"},
                                         {"GBps", "GB/s"},
                                         {"MBps", "MB/s"},
                                         {"TBps", "TB/s"},
                                         {"Gb", "GB"},
                                         {"gb", "GB"},
                                         {"gb/s", "GB/s' or 'Gbit/s"},
                                         {"GT/s", "GB/s"},
                                         {"TFLOP", "TFLOPS"},
                                         {"TF", "TFLOPS"},
                                         {"sec", "s"},
                                         {"Gib/s", "GiB/s' or 'Gbit/s"},
                                         {"k", "K"},
                                         {"m", "M"},
                                         {"g", "G"},
                                         {"usec", "us"},
                                         {"msec", "ms"}};
  for (size_t i = 0; i < sizeof slips / sizeof slips[0] && !suggest.best; i++) {
    if (strcmp(expr->unit, slips[i][0]) == 0) {
      suggest.best = slips[i][1];
    }
  }
  if (!suggest.best) {
    for (int i = 0; i < n_units; i++) {
      suggest_try(&suggest, units[i].name);
    }
  }
  diag_error(reader->diag, expr->span, "%s: unknown unit '%.24s'%s", diag_quote(reader->diag, expr->span), expr->unit,
             suggest_text(reader->arena, &suggest));
  return false;
}

static bool eval_literal(Reader *reader, const Expr *expr, Number *number)
{
  const char *quote = diag_quote(reader->diag, expr->span);
  const Unit *unit = expr->unit ? unit_find(expr->unit, strlen(expr->unit)) : NULL;
  NumStatus status = number_read(expr->text, unit, number);
  bool junk = status == NUM_SYNTAX || (expr->unit && !unit && strpbrk(expr->unit, "0123456789_."));
  if (junk) {
    bool hex = expr->text[0] == '0' && expr->unit && (expr->unit[0] == 'x' || expr->unit[0] == 'X');
    const char *hint = strchr(expr->text, '_') ? "; digits are not grouped"
                       : hex                   ? "; numbers are decimal"
                       : expr->text[0] == '.'  ? "; write a digit before the point"
                       : strpbrk(expr->text, "eE") && !strpbrk(expr->text, "_")
                           ? "; an exponent needs digits after the e"
                       : expr->text[strlen(expr->text) - 1] == '.' ? "; write a digit after the point"
                                                                   : "";
    diag_error(reader->diag, expr->span, "%s is not a number%s", quote, hint);
    return false;
  }
  if (expr->unit && !unit) {
    return unknown_unit(reader, expr);
  }
  if (status == NUM_LEADING_ZERO) {
    diag_error(reader->diag, expr->span, "%s has a leading zero; numbers are decimal, write it without", quote);
    return false;
  }
  if (status != NUM_OK) {
    diag_error(reader->diag, expr->span, "%s is too %s for any number here", quote,
               status == NUM_HUGE ? "large" : "small");
    return false;
  }
  return true;
}

static bool eval_name(Reader *reader, const Expr *expr, Number *number)
{
  Let *let = find(reader, expr->text);
  if (let && let->pending) {
    diag_error(reader->diag, expr->span, "'%.64s' is let only further down: a let stands before its first use",
               expr->text);
    diag_note(reader->diag, let->span, "here");
    let->used = true;
    return false;
  }
  if (let) {
    let->used = true;
    *number = let->value;
    return !let->bad;
  }
  if (strcmp(expr->text, "nan") == 0 || strcmp(expr->text, "inf") == 0 || strcmp(expr->text, "NaN") == 0 ||
      strcmp(expr->text, "infinity") == 0 || strcmp(expr->text, "Inf") == 0) {
    diag_error(reader->diag, expr->span, "'%s' is not a number that a spec may hold", expr->text);
    return false;
  }
  Suggest suggest = suggest_for(expr->text);
  int tried = 0;
  if (reader->lets) {
    for (const Let *other = reader->lets->lets; other && tried < 1000; other = other->hh.next, tried++) {
      suggest_try(&suggest, other->name);
    }
  }
  diag_error(reader->diag, expr->span, "there is no number or let called '%.64s'%s", expr->text,
             suggest_text(reader->arena, &suggest));
  return false;
}

static bool eval_binary(Reader *reader, const Expr *expr, Number *number)
{
  Number a;
  Number b;
  bool left = expr->left && eval_number(reader, expr->left, &a);
  bool right = expr->right && eval_number(reader, expr->right, &b);
  if (!left || !right) {
    return false;
  }
  bool fits = expr->op == '*'   ? a.dim == DIM_NONE || b.dim == DIM_NONE
              : expr->op == '/' ? b.dim == DIM_NONE || b.dim == a.dim
                                : a.dim == b.dim;
  if (!fits) {
    const char *verb = expr->op == '*' ? "multiply" : expr->op == '/' ? "divide" : expr->op == '+' ? "add" : "subtract";
    diag_error(reader->diag, expr->span, "cannot %s %s (%s) %s %s (%s)", verb,
               diag_quote(reader->diag, expr->left->span), dim_name(a.dim),
               expr->op == '*' || expr->op == '/' ? "by" : "and", diag_quote(reader->diag, expr->right->span),
               dim_name(b.dim));
    return false;
  }
  if (expr->op == '/' && b.d == 0) {
    diag_error(reader->diag, expr->right->span, "division by zero");
    return false;
  }
  *number = expr->op == '*'   ? number_mul(a, b)
            : expr->op == '/' ? number_div(a, b)
                              : number_add(a, expr->op == '-' ? number_neg(b) : b);
  if (!(number->d >= -1.7e308 && number->d <= 1.7e308)) {
    diag_error(reader->diag, expr->span, "the value of %s is too large", diag_quote(reader->diag, expr->span));
    return false;
  }
  return true;
}

bool eval_number(Reader *reader, const Expr *expr, Number *number)
{
  *number = (Number){0};
  switch (expr->kind) {
  case EXPR_NUMBER:
    return eval_literal(reader, expr, number);
  case EXPR_NAME:
    return eval_name(reader, expr, number);
  case EXPR_STRING:
    diag_error(reader->diag, expr->span, "expected a number, found a string");
    return false;
  case EXPR_PAREN:
    return expr->left && eval_number(reader, expr->left, number);
  case EXPR_NEG:
    if (!expr->left || !eval_number(reader, expr->left, number)) {
      return false;
    }
    *number = number_neg(*number);
    return true;
  case EXPR_POINT:
    diag_error(reader->diag, expr->span, "expected a number, found the point %s of a table",
               diag_quote(reader->diag, expr->span));
    return false;
  case EXPR_BINARY:
    return eval_binary(reader, expr, number);
  }
  return false;
}

void eval_declare(Reader *reader, const AstItem *item, bool own)
{
  if (!reader->lets) {
    reader->lets = arena_new_of(reader->arena, LetTable);
  }
  Let *old = find(reader, item->name);
  if (old) {
    diag_error(reader->diag, item->name_span, "'%.64s' is let twice", item->name);
    diag_note(reader->diag, old->span, "first here");
    return;
  }
  Let *let = arena_new_of(reader->arena, Let);
  let->name = item->name;
  let->span = item->name_span;
  let->own = own;
  let->pending = true;
  HASH_ADD_KEYPTR(hh, reader->lets->lets, let->name, strlen(let->name), let);
}

bool eval_let(Reader *reader, const AstItem *item)
{
  Let *let = find(reader, item->name);
  const Expr *value = item->values;
  for (int i = 0; i < reader->file->n_defines; i++) {
    if (strcmp(reader->file->defines[i].name, item->name) == 0) {
      value = reader->file->defines[i].value; /* the last one wins, as usual on command lines */
    }
  }
  if (!let || !let->pending) {
    return false; /* the second of its name */
  }
  let->bad = !eval_number(reader, value, &let->value);
  let->pending = false;
  return !let->bad;
}

void eval_check_defines(Reader *reader)
{
  for (int i = 0; i < reader->file->n_defines; i++) {
    const char *name = reader->file->defines[i].name;
    if (find(reader, name)) {
      continue;
    }
    Suggest suggest = suggest_for(name);
    if (reader->lets) {
      for (const Let *let = reader->lets->lets; let; let = let->hh.next) {
        suggest_try(&suggest, let->name);
      }
    }
    diag_error(reader->diag, (Span){0}, "-D %.64s: the spec has no let of this name%s", name,
               suggest_text(reader->arena, &suggest));
  }
}

void eval_warn_unused(Reader *reader)
{
  for (const Let *let = reader->lets ? reader->lets->lets : NULL; let; let = let->hh.next) {
    if (let->own && !let->used) {
      diag_warn(reader->diag, let->span, "'%.64s' is never used", let->name);
    }
  }
}

void eval_free(Reader *reader)
{
  if (reader->lets) {
    HASH_CLEAR(hh, reader->lets->lets);
  }
}

const char *eval_quote(Reader *reader, const Expr *expr)
{
  const char *quote = diag_quote(reader->diag, expr->span);
  Number number;
  bool literal = expr->kind == EXPR_NUMBER || expr->kind == EXPR_STRING ||
                 (expr->kind == EXPR_NEG && expr->left && expr->left->kind == EXPR_NUMBER);
  const Let *let = expr->kind == EXPR_NAME ? find(reader, expr->text) : NULL;
  if (literal || (expr->kind == EXPR_NAME && (!let || let->bad)) || !eval_number(reader, expr, &number)) {
    return quote;
  }
  return number.exact ? arena_printf(reader->arena, "%s (= %" PRId64 ")", quote, number.i)
                      : arena_printf(reader->arena, "%s (= %.10g)", quote, number.d);
}
