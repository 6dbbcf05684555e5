/* The formatter. The writer's line breaks are kept, as is the choice between
     block { a = 1;  b = 2        and      block {
             c = 3 }                         a = 1
                                           }
   Everything else is uniform: blanks, `;` between items of one line, at most one empty line, columns. Lines are made
   first, with marks where columns may be aligned; then runs of neighbouring lines are aligned and written. Comments are
   found by their place in the text: one that follows something on its line stays behind it. */
#include <stdlib.h>
#include <string.h>

#include "lang/ast.h"
#include "lang/units.h"

typedef struct Line {
  char *text; /* without indentation; grows by doubling */
  size_t n, cap;
  int indent;
  int depth;      /* of the block, so that only neighbours of one block align */
  size_t mark;    /* where an '=' or '{' may be moved right; 0: nowhere */
  char mark_kind; /* '=' or '{' */
  bool aligned;   /* its mark has been put in its column */
  bool blank_before;
  bool hang; /* indentation is the column of the line `anchor` plus `indent` */
  size_t anchor;
  const char *comment; /* at the end of the line */
  size_t n_comment;
} Line;

typedef struct Printer {
  const AstFile *file;
  const AstComment *comment; /* next to print */
  Line *lines;
  size_t n, cap;
  uint32_t last; /* end of what was printed last, in the source */
} Printer;

static void *grow(void *p, size_t bytes)
{
  p = realloc(p, bytes);
  if (!p) {
    fprintf(stderr, "moec: out of memory\n");
    exit(1);
  }
  return p;
}

static Line *top(Printer *printer)
{
  return &printer->lines[printer->n - 1];
}

static void put(Printer *printer, const char *text, size_t n)
{
  Line *line = top(printer);
  if (line->n + n + 1 > line->cap) {
    line->cap = 2 * (line->n + n + 1);
    line->text = grow(line->text, line->cap);
  }
  memcpy(line->text + line->n, text, n);
  line->n += n;
  line->text[line->n] = 0;
}

static void puts_(Printer *printer, const char *text)
{
  put(printer, text, strlen(text));
}

/* Newlines of the source between two places. */
static int breaks(const Printer *printer, uint32_t from, uint32_t to)
{
  int n = 0;
  for (uint32_t i = from; i < to && n < 2; i++) {
    n += printer->file->text[i] == '\n';
  }
  return n;
}

static void new_line(Printer *printer, int indent, int depth, bool blank)
{
  if (printer->n == printer->cap) {
    printer->cap = printer->cap ? 2 * printer->cap : 64;
    printer->lines = grow(printer->lines, printer->cap * sizeof *printer->lines);
  }
  printer->lines[printer->n++] = (Line){.indent = indent, .depth = depth, .blank_before = blank && printer->n > 0};
}

/* Layout of a block's items: where its lines begin. */
typedef struct Place {
  int indent; /* columns; after `anchor`'s start where it hangs */
  int depth;
  bool hang;
  size_t anchor; /* line that the items hang from */
  size_t column; /* bytes into the anchor's text */
} Place;

static void begin_line(Printer *printer, const Place *place, bool blank)
{
  new_line(printer, place->indent, place->depth, blank);
  if (place->hang) {
    top(printer)->hang = true;
    top(printer)->anchor = place->anchor;
    top(printer)->indent = (int)place->column;
  }
}

/* Comments before byte `until`: behind the present line if they began on it, else on lines of their own. Returns
   whether the present line can take no more. */
static bool comments(Printer *printer, uint32_t until, const Place *place)
{
  bool closed = false;
  while (printer->comment && printer->comment->span.begin < until) {
    const AstComment *comment = printer->comment;
    const char *text = printer->file->text + comment->span.begin;
    size_t n = comment->span.end - comment->span.begin;
    int gap = printer->n ? breaks(printer, printer->last, comment->span.begin) : 0;
    if (printer->n && gap == 0 && !top(printer)->comment && top(printer)->n) {
      top(printer)->comment = text;
      top(printer)->n_comment = n;
    } else {
      begin_line(printer, place, gap > 1);
      top(printer)->comment = text;
      top(printer)->n_comment = n;
    }
    printer->last = comment->span.end > printer->last ? comment->span.end : printer->last;
    printer->comment = comment->next;
    closed = true;
  }
  return closed;
}

/* Whether "left/right" without spaces would be read as a unit of its own: 4 GB divided by a let called s is not 4 GB/s.
 */
static bool reads_as_rate(const Expr *left, const Expr *right)
{
  while (left->kind == EXPR_BINARY) {
    left = left->right;
  }
  while (left->kind == EXPR_NEG) {
    left = left->left;
  }
  return left->kind == EXPR_NUMBER && left->unit && right->kind == EXPR_NAME &&
         unit_takes_rate(left->unit, strlen(left->unit), right->text, strlen(right->text));
}

static void print_expr(Printer *printer, const Expr *expr)
{
  char op[4] = {' ', expr->op, ' ', 0};
  switch (expr->kind) {
  case EXPR_NUMBER:
    puts_(printer, expr->text);
    if (expr->unit) {
      char first = expr->unit[0];
      bool multiplier =
          strlen(expr->unit) <= 2 && strchr("KMGT", first) && (expr->unit[1] == 0 || expr->unit[1] == 'i');
      bool junk = first == '.' || (first >= '0' && first <= '9') || strpbrk(expr->unit + 1, ".%"); /* only ever glued */
      puts_(printer, multiplier || junk || first == '%' ? "" : " ");
      puts_(printer, expr->unit);
    }
    break;
  case EXPR_STRING:
    puts_(printer, "\"");
    puts_(printer, expr->text);
    puts_(printer, "\"");
    break;
  case EXPR_NAME:
    puts_(printer, expr->text);
    break;
  case EXPR_NEG:
    puts_(printer, "-");
    print_expr(printer, expr->left);
    break;
  case EXPR_PAREN:
    puts_(printer, "(");
    print_expr(printer, expr->left);
    puts_(printer, ")");
    break;
  case EXPR_POINT:
    print_expr(printer, expr->left);
    puts_(printer, ": ");
    print_expr(printer, expr->right);
    break;
  case EXPR_BINARY: {
    bool spaced = expr->op == '+' || expr->op == '-' || (expr->op == '/' && reads_as_rate(expr->left, expr->right));
    print_expr(printer, expr->left);
    puts_(printer, spaced ? op : (op[2] = 0, op + 1));
    print_expr(printer, expr->right);
    break;
  }
  }
}

static void print_items(Printer *, const AstItem *, const Place *, uint32_t from, bool first_on_line);

static void print_key(Printer *printer, const AstItem *item, bool alone)
{
  if (item->kind == ITEM_LET) {
    puts_(printer, "let ");
  }
  puts_(printer, item->name);
  if (alone) {
    top(printer)->mark = top(printer)->n;
    top(printer)->mark_kind = '=';
  }
  puts_(printer, " = ");
  for (const Expr *expr = item->values; expr; expr = expr->next) {
    print_expr(printer, expr);
    puts_(printer, expr->next ? ", " : "");
  }
}

static void print_block(Printer *printer, const AstItem *item, const Place *outer, bool alone)
{
  uint32_t close = item->span.end - 1;
  puts_(printer, item->name);
  puts_(printer, item->word ? " " : "");
  puts_(printer, item->word ? item->word : "");
  size_t mark = top(printer)->n;
  puts_(printer, " {");
  printer->last = item->brace_span.end;
  const AstComment *comment = printer->comment;
  bool comment_inside = comment && comment->span.begin < close;
  if (!item->items && !comment_inside) {
    puts_(printer, " }");
    printer->last = item->span.end;
    return;
  }
  bool inline_ = item->items && breaks(printer, item->brace_span.end, item->items->span.begin) == 0;
  if (inline_ && comment_inside && comment->span.begin < item->items->span.begin) {
    inline_ = false;
  }
  Place place = {.indent = outer->hang ? (int)outer->column + 2 : outer->indent + 2, .depth = outer->depth + 1};
  if (outer->hang) { /* stay relative to what the outer block hangs from */
    place.hang = true;
    place.anchor = outer->anchor;
    place.column = outer->column + 2;
  }
  if (inline_) {
    if (alone) {
      top(printer)->mark = mark;
      top(printer)->mark_kind = '{';
    }
    puts_(printer, " ");
    place.hang = true;
    place.anchor = printer->n - 1;
    place.column = top(printer)->n;
  }
  print_items(printer, item->items, &place, item->brace_span.end, inline_);
  bool closed = comments(printer, close, &place);
  if (inline_ && !closed && !top(printer)->comment) {
    puts_(printer, " }");
  } else {
    begin_line(printer, outer, false);
    puts_(printer, "}");
  }
  printer->last = item->span.end;
}

/* `on_line`: the first item continues the present line. */
static void print_items(Printer *printer, const AstItem *items, const Place *place, uint32_t from, bool on_line)
{
  bool first = true;
  for (const AstItem *item = items; item; item = item->next) {
    bool closed = comments(printer, item->span.begin, place);
    int gap = breaks(printer, printer->last, item->span.begin);
    bool fresh = first ? !on_line : closed || gap > 0 || printer->n == 0 || top(printer)->comment;
    if (fresh) {
      begin_line(printer, place, gap > 1 && !(first && from > 0));
    } else if (!first) {
      bool after_block = top(printer)->text[top(printer)->n - 1] == '}';
      puts_(printer, after_block ? "  " : ";  ");
      if (top(printer)->mark_kind == '=') {
        top(printer)->mark = 0;
      }
    }
    if (item->kind == ITEM_BLOCK) {
      print_block(printer, item, place, fresh);
    } else if (item->kind == ITEM_USE) {
      puts_(printer, "use ");
      print_expr(printer, item->values);
    } else {
      print_key(printer, item, fresh);
    }
    printer->last = item->span.end;
    first = false;
  }
}

/* Columns of a text: characters, not bytes. */
static int columns(const char *text, size_t n)
{
  int count = 0;
  for (size_t i = 0; i < n; i++) {
    count += ((unsigned char)text[i] & 0xc0) != 0x80;
  }
  return count;
}

static void widen(Line *line, int by)
{
  if (by <= 0) {
    return;
  }
  line->text = grow(line->text, line->n + (size_t)by + 1);
  memmove(line->text + line->mark + by, line->text + line->mark, line->n - line->mark + 1);
  memset(line->text + line->mark, ' ', (size_t)by);
  line->n += (size_t)by;
}

/* Whether line i continues a run of lines that begin in the same block and have the same mark. Lines that hang from a
   line of the run belong to it. */
static bool same_run(const Line *first, const Line *line)
{
  return line->mark && line->mark_kind == first->mark_kind && line->depth == first->depth &&
         line->hang == first->hang && line->anchor == first->anchor && !line->blank_before;
}

static void align_run(Printer *printer, size_t begin, size_t end)
{
  int widest = 0;
  const Line *first = &printer->lines[begin];
  for (size_t i = begin; i < end; i++) {
    const Line *line = &printer->lines[i];
    if (line->depth == first->depth && line->mark) {
      int width = columns(line->text, line->mark);
      widest = width > widest ? width : widest;
    }
  }
  for (size_t i = begin; i < end; i++) {
    Line *line = &printer->lines[i];
    if (line->depth == first->depth && line->mark) {
      int by = widest - columns(line->text, line->mark);
      line->aligned = true;
      size_t mark = line->mark;
      widen(line, by);
      for (size_t j = i + 1; by > 0 && j < printer->n && printer->lines[j].depth > line->depth; j++) {
        if (printer->lines[j].hang && printer->lines[j].anchor == i && (size_t)printer->lines[j].indent > mark) {
          printer->lines[j].indent += by;
        }
      }
    }
  }
}

static bool inside_run(const Line *first, const Line *line, size_t begin)
{
  return first->mark_kind == '{' && line->depth > first->depth && line->hang && line->anchor >= begin;
}

static void align_marks(Printer *printer)
{
  for (size_t i = 0; i < printer->n; i++) {
    const Line *first = &printer->lines[i];
    if (!first->mark || first->aligned) {
      continue;
    }
    size_t end = i + 1;
    while (end < printer->n && (inside_run(first, &printer->lines[end], i) || same_run(first, &printer->lines[end]))) {
      end++;
    }
    align_run(printer, i, end);
  }
}

static void write_lines(Printer *printer, FILE *out)
{
  int *start = grow(NULL, (printer->n + 1) * sizeof *start); /* column of each line's first character */
  for (size_t i = 0; i < printer->n; i++) {
    const Line *line = &printer->lines[i];
    start[i] = line->hang ? start[line->anchor] + columns(printer->lines[line->anchor].text, (size_t)line->indent)
                          : line->indent;
  }
  for (size_t i = 0; i < printer->n;) {
    size_t end = i; /* a run of lines with text and a comment behind it */
    int widest = 0;
    while (end < printer->n && printer->lines[end].n && printer->lines[end].comment &&
           (end == i || !printer->lines[end].blank_before)) {
      int width = start[end] + columns(printer->lines[end].text, printer->lines[end].n);
      widest = width > widest ? width : widest;
      end++;
    }
    end += end == i;
    for (; i < end; i++) {
      const Line *line = &printer->lines[i];
      fprintf(out, "%s%*s%s", line->blank_before ? "\n" : "", start[i], "", line->n ? line->text : "");
      if (line->comment) {
        int width = start[i] + columns(line->text ? line->text : "", line->n);
        fprintf(out, "%*s", line->n ? widest - width + 2 : 0, "");
        fwrite(line->comment, 1, line->n_comment, out);
      }
      fputc('\n', out);
    }
  }
  free(start);
}

void ast_print(const AstFile *file, FILE *out)
{
  Printer printer = {.file = file, .comment = file->comments};
  Place place = {0};
  print_items(&printer, file->items, &place, 0, false);
  comments(&printer, UINT32_MAX, &place);
  align_marks(&printer);
  write_lines(&printer, out);
  for (size_t i = 0; i < printer.n; i++) {
    free(printer.lines[i].text);
  }
  free(printer.lines);
}
