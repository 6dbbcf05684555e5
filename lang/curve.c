/* Shares by size: tables such as "64: 0.05, 512: 0.2". */
#include <math.h>

#include "lang/spec_keys.h"

double curve_at(const Curve *curve, double x)
{
  int n = curve->n;
  if (n == 0) {
    return 0;
  }
  if (!(x > curve->x[0])) {
    return curve->y[0];
  }
  for (int i = 1; i < n; i++) {
    if (x < curve->x[i]) {
      double low = log2(curve->x[i - 1]);
      double at = (log2(x) - low) / (log2(curve->x[i]) - low);
      return curve->y[i - 1] + at * (curve->y[i] - curve->y[i - 1]);
    }
  }
  return curve->y[n - 1];
}

static bool read_point(Reader *reader, const KeyRow *row, const Expr *expr, double *x, double *y)
{
  if (expr->kind != EXPR_POINT) {
    diag_error(reader->diag, expr->span, "%s lists points as size: share, such as %s: 0.5, not %s", row->name,
               row->unit == DIM_BYTES ? "1 MiB" : "512", diag_quote(reader->diag, expr->span));
    return false;
  }
  if (!expr->left || !expr->right) { /* nested too deeply, which has been said */
    return false;
  }
  KeyRow size = *row;
  size.name = arena_printf(reader->arena, "%s: a point's size", row->name);
  Number number;
  bool good = read_number(reader, &size, expr->left, &number);
  *x = number.d;
  KeyRow share = *row;
  share.type = TYPE_REAL;
  share.unit = DIM_NONE;
  share.range.low = 0;
  share.range.high = 1;
  share.range.without_low = true;
  share.name =
      arena_printf(reader->arena, "%s: the share at %s", row->name, diag_quote(reader->diag, expr->left->span));
  good = read_number(reader, &share, expr->right, &number) && good;
  *y = number.d;
  return good;
}

bool read_curve(Reader *reader, const KeyRow *row, const AstItem *item, Curve *curve)
{
  bool good = true;
  const Expr *before = NULL;
  for (const Expr *expr = item->values; expr; before = expr, expr = expr->next) {
    if (curve->n == CURVE_POINTS) {
      diag_error(reader->diag, expr->span, "%s has %d points; it may have %d", row->name, item->n_values, CURVE_POINTS);
      return false;
    }
    double x = 0;
    double y = 0;
    good = read_point(reader, row, expr, &x, &y) && good;
    if (good && before && !(x > curve->x[curve->n - 1])) {
      diag_error(reader->diag, expr->left->span, "%s: sizes must ascend, but %s stands after %s", row->name,
                 eval_quote(reader, expr->left), eval_quote(reader, before->left));
      good = false;
    }
    curve->x[curve->n] = x;
    curve->y[curve->n++] = y;
  }
  return good;
}
