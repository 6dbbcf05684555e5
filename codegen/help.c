/* Help for people, by the rows of verbs.def and options.def; verb help. */
#include <string.h>

#include "codegen/cli.h"
#include "lang/spec_keys.h"

/* Words of `text` from column `indent` on, in lines of 118 columns. */
static void print_wrapped(FILE *out, int indent, const char *text)
{
  int column = indent;
  for (const char *p = text; *p;) {
    int n = (int)strcspn(p, " ");
    if (column > indent && column + 1 + n > 118) {
      fprintf(out, "\n%*s", indent, "");
      column = indent;
    } else if (column > indent) {
      fputc(' ', out);
      column++;
    }
    fwrite(p, 1, (size_t)n, out);
    column += n;
    p += n + (p[n] == ' ');
  }
  fputc('\n', out);
}

enum { INDENT = 25 };

static void print_option(FILE *out, const OptRow *row)
{
  char text[64];
  int n = row->letter ? snprintf(text, sizeof text, "-%c, ", row->letter) : 0;
  n += snprintf(text + n, sizeof text - (size_t)n, "--%s%s%s", row->name, row->value ? " " : "",
                row->value ? row->value : "");
  fprintf(out, "  %-*s", INDENT - 3, text);
  fprintf(out, n > INDENT - 3 ? "\n%*s" : " %.*s", n > INDENT - 3 ? INDENT : 0, "");
  print_wrapped(out, INDENT, row->doc);
  if (row->words) {
    fprintf(out, "%*s", INDENT, "");
    print_wrapped(out, INDENT, row->words);
  }
}

void help_print(FILE *out, int verb)
{
  if (verb >= 0) {
    const Verb *v = &cli_verbs[verb];
    fprintf(out, "usage: moec %s%s%s [options]\n\n%s\n\n", v->name, v->takes ? " " : "", v->takes ? v->takes : "",
            v->doc);
  } else {
    fprintf(out, "usage: moec VERB FILE.moespec [options]\n\n");
    for (int v = 0; v < N_VERBS; v++) {
      fprintf(out, "  %-9s ", cli_verbs[v].name);
      print_wrapped(out, 12, cli_verbs[v].doc);
    }
    fprintf(out, "\nmoec VERB --help lists the options of a verb. All of them:\n\n");
  }
  for (int i = 0; i < cli_n_options; i++) {
    if (verb < 0 || cli_options[i].verbs >> verb & 1) {
      print_option(out, &cli_options[i]);
    }
  }
  fprintf(out, "  %-*s print this, and end\n", INDENT - 3, "-h, --help");
  if (verb < 0) {
    fprintf(out, "  %-*s print the version, and end\n", INDENT - 3, "--version");
  }
  fprintf(out,
          "\nexit codes: 0 done, 1 the spec is wrong or a file cannot be written, 2 wrong usage, 3 no plan fits\n");
}

int verb_help(Compile *c)
{
  static const struct {
    const char *name;
    void (*print)(FILE *);
  } formats[] = {
      {"man", help_print_man}, {"bash", help_print_bash}, {"vim", spec_print_vim}, {"textmate", spec_print_textmate}};
  const Options *o = c->options;
  if (!o->as) {
    int verb = o->file ? cli_verb(c->arena, o->file) : -1;
    if (o->file && verb < 0) {
      return EXIT_USAGE;
    }
    help_print(stdout, verb);
    return 0;
  }
  if (o->file) {
    return cli_usage_error("--as takes all verbs, not one", o->file);
  }
  for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
    if (strcmp(formats[i].name, o->as) == 0) {
      formats[i].print(stdout);
      return 0;
    }
  }
  return cli_usage_error("--as is one of man, bash, vim and textmate, not", o->as);
}
