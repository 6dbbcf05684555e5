/* What keys.def and units.def say, for people, shells and fuzzers. */
#include <stdio.h>
#include <string.h>

#include "lang/spec_keys.h"

static void print_path(FILE *out, BlockId block)
{
  if (block_rows[block].parent != B_root) {
    print_path(out, block_rows[block].parent);
    fputs(".", out);
  }
  fputs(block_rows[block].name, out);
}

static void print_words(FILE *out, WordList list)
{
  for (int i = 0; i < list.n; i++) {
    fprintf(out, "%s`%s`", i ? ", " : "", list.words[i]);
  }
}

static void print_bound(FILE *out, double x)
{
  if (x >= 9.2e18) {
    fputs("2^63 - 1", out);
  } else if (x == (double)(int64_t)x && x < 1e7) {
    fprintf(out, "%.0f", x);
  } else {
    fprintf(out, "%.10g", x);
  }
}

static void print_range(FILE *out, const KeyRow *row)
{
  static const char *const base[DIM_COUNT] = {"", " B", " B/s", " FLOPS", " ns"};
  if (row->range.any) {
    fputs("-", out);
    return;
  }
  fputs(row->range.without_low ? "> " : "", out);
  print_bound(out, row->range.low);
  fputs(row->range.without_high ? " to < " : " to ", out);
  print_bound(out, row->range.high);
  fputs(base[row->unit], out);
}

static void print_type(FILE *out, const KeyRow *row)
{
  static const char *const names[] = {"whole number",
                                      "whole number",
                                      "whole number",
                                      "number",
                                      "`true`, `false`",
                                      "",
                                      "list of whole numbers",
                                      "two numbers",
                                      ""};
  if (row->type == TYPE_ENUM) {
    print_words(out, row->words);
  } else if (row->type == TYPE_CURVE) {
    fprintf(out, "up to %d points `%s: share`", CURVE_POINTS,
            row->unit == DIM_NONE ? "number" : dim_name(row->unit) + 2);
  } else if (row->type == TYPE_REF) {
    fprintf(out, "name of a %s", row->name);
  } else {
    fputs(row->unit == DIM_NONE ? names[row->type] : dim_name(row->unit) + 2, out);
  }
}

static void print_head(FILE *out, const BlockRow *row)
{
  static const char *const counts[] = {"required, once", "optional, once", "at least one", "any number"};
  const char *word = row->head == HEAD_NAME            ? " NAME"
                     : row->head == HEAD_NAME_OPTIONAL ? " [NAME]"
                     : row->head == HEAD_KIND          ? " KIND"
                                                       : "";
  fprintf(out, "`%s%s { ... }`: %s. %c%s.", row->name, word, row->doc, counts[row->count][0] - 'a' + 'A',
          counts[row->count] + 1);
  if (row->head == HEAD_KIND) {
    fputs(" KIND is one of ", out);
    print_words(out, row->kinds);
    fputs(".", out);
  }
  fputs("\n\n", out);
}

void spec_print_reference(FILE *out)
{
  for (int b = 0; b < N_BLOCKS; b++) {
    fputs("### ", out);
    print_path(out, (BlockId)b);
    fputs("\n\n", out);
    print_head(out, &block_rows[b]);
    fputs("| key | value | default | range | meaning |\n|---|---|---|---|---|\n", out);
    for (int k = block_rows[b].first; k < block_end((BlockId)b); k++) {
      const KeyRow *row = &key_rows[k];
      fprintf(out, "| `%s` | ", row->name);
      print_type(out, row);
      fprintf(out, " | %s | ", !row->def ? "required" : *row->def == '=' ? row->def + 2 : row->def);
      print_range(out, row);
      fprintf(out, " | %s |\n", row->doc);
    }
    fputs("\n", out);
  }
  fputs("### Systems\n\n| `schedule` | groups | what it is |\n|---|---|---|\n", out);
#define SYSTEM(id, name, colocated, ways, doc)                                                                         \
  fprintf(out, "| `%s` | %s | %s |\n", name, (colocated) ? "colocated" : "apart", doc);
#include "lang/systems.def"
#undef SYSTEM
  fputs("\n", out);
  fputs("### Units\n\n| kind | units |\n|---|---|\n", out);
  for (int dim = 0; dim < DIM_COUNT; dim++) {
    const char *separator = "";
    fprintf(out, "| %s | ", dim == DIM_NONE ? "multipliers of plain numbers" : dim_name((Dim)dim) + 2);
    for (int i = 0; i < n_units; i++) {
      if ((int)units[i].dim == dim) {
        fprintf(out, "%s`%s`", separator, units[i].name);
        separator = " ";
      }
    }
    fputs(" |\n", out);
  }
}

/* Every word of the language, once, in the order of the tables. */
static void each_word(FILE *out, void (*print)(FILE *, const char *))
{
  print(out, "use");
  print(out, "let");
  for (int b = 0; b < N_BLOCKS; b++) {
    print(out, block_rows[b].name);
    for (int i = 0; i < block_rows[b].kinds.n; i++) {
      print(out, block_rows[b].kinds.words[i]);
    }
  }
  for (int k = 0; k < N_KEYS; k++) {
    bool before = false;
    for (int other = 0; other < k; other++) {
      before = before || strcmp(key_rows[other].name, key_rows[k].name) == 0;
    }
    for (int b = 0; b < N_BLOCKS; b++) {
      before = before || strcmp(block_rows[b].name, key_rows[k].name) == 0;
    }
    if (!before) {
      print(out, key_rows[k].name);
    }
    for (int i = 0; i < key_rows[k].words.n; i++) {
      if (key_rows[k].words.words[i] && key_rows[k].type == TYPE_ENUM) {
        print(out, key_rows[k].words.words[i]);
      }
    }
  }
  for (int i = 0; i < n_units; i++) {
    print(out, units[i].name);
  }
}

static void print_line(FILE *out, const char *word)
{
  fprintf(out, "%s\n", word);
}

static void print_entry(FILE *out, const char *word)
{
  fputs("\"", out);
  for (const char *p = word; *p; p++) {
    if ((unsigned char)*p >= 0x20 && (unsigned char)*p < 0x7f && *p != '"' && *p != '\\') {
      fputc(*p, out);
    } else {
      fprintf(out, "\\x%02X", (unsigned char)*p);
    }
  }
  fputs("\"\n", out);
}

void spec_print_words(FILE *out)
{
  each_word(out, print_line);
  print_line(out, "true");
  print_line(out, "false");
}

void spec_print_dictionary(FILE *out)
{
  each_word(out, print_entry);
  print_entry(out, " = ");
  print_entry(out, " {\n");
  print_entry(out, "}\n");
  print_entry(out, "\"");
}
