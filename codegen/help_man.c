/* The man page, by the rows of verbs.def and options.def. */
#include "codegen/cli.h"

/* Text as troff takes it. */
static void print_escaped(FILE *out, const char *text)
{
  for (const char *p = text; *p; p++) {
    switch (*p) {
    case '\\':
      fputs("\\e", out);
      break;
    case '-':
      fputs("\\-", out);
      break;
    case '`':
      fputs("\\(ga", out);
      break;
    case '\'':
      fputs("\\(aq", out);
      break;
    case '.':
      fputs("\\&.", out);
      break;
    default:
      fputc(*p, out);
    }
  }
}

static void print_verb(FILE *out, const Verb *v)
{
  fprintf(out, ".TP\n.B moec %s", v->name);
  if (v->takes) {
    fputs(" \\fI", out);
    print_escaped(out, v->takes);
    fputs("\\fP", out);
  }
  fputs("\n", out);
  print_escaped(out, v->doc);
  fputs(".\n", out);
}

static void print_option(FILE *out, const OptRow *row)
{
  fputs(".TP\n", out);
  if (row->letter) {
    fprintf(out, "\\fB\\-%c\\fP, ", row->letter);
  }
  fputs("\\fB\\-\\-", out);
  print_escaped(out, row->name);
  fputs("\\fP", out);
  if (row->value) {
    fputs(" \\fI", out);
    print_escaped(out, row->value);
    fputs("\\fP", out);
  }
  fputs("\n", out);
  print_escaped(out, row->doc);
  fputs(".\n", out);
  if (row->words) {
    fputs("Known are: ", out);
    print_escaped(out, row->words);
    fputs(".\n", out);
  }
  fputs("Of", out);
  for (int v = 0, n = 0; v < N_VERBS; v++) {
    if (row->verbs >> v & 1) {
      fprintf(out, "%s \\fB%s\\fP", n++ ? "," : "", cli_verbs[v].name);
    }
  }
  fputs(".\n", out);
}

void help_print_man(FILE *out)
{
  fprintf(
      out,
      ".TH MOEC 1 \"\" \"moec %s\" \"User Commands\"\n.SH NAME\n"
      "moec \\- compile training programs of Mixture\\-of\\-Experts transformers for GPU clusters\n"
      ".SH SYNOPSIS\n.B moec\n.I VERB\n[\\fIFILE.moespec\\fP]\n[\\fIOPTION\\fP]...\n"
      ".SH DESCRIPTION\n"
      "moec compiles a Mixture\\-of\\-Experts transformer, a cluster and the batch shapes to train at into a training\n"
      "program for exactly that cluster.\n.SH VERBS\n",
      MOEC_VERSION);
  for (int v = 0; v < N_VERBS; v++) {
    print_verb(out, &cli_verbs[v]);
  }
  fputs(".SH OPTIONS\n", out);
  for (int i = 0; i < cli_n_options; i++) {
    print_option(out, &cli_options[i]);
  }
  fputs(".TP\n\\fB\\-h\\fP, \\fB\\-\\-help\\fP\nPrint the help of the verb, or of all, and end.\n"
        ".TP\n\\fB\\-\\-version\\fP\nPrint the version, and end.\n"
        ".SH TRAINING\n.B moec build\nwrites a program, \\fIDIR\\fP/train, which trains; \\fIDIR\\fP/train \\-\\-help "
        "lists "
        "its options.\n"
        ".SH EXIT STATUS\n.TP\n0\nDone.\n.TP\n1\nThe spec is wrong, or a file cannot be written.\n"
        ".TP\n2\nWrong usage.\n.TP\n3\nNo plan fits.\n"
        ".SH ENVIRONMENT\n.TP\n.B MOEC_CACHE\nFolder of compiled objects; without it $XDG_CACHE_HOME/moec, or "
        "~/.cache/moec.\n"
        ".SH FILES\nBelow the folder that holds bin/moec:\n"
        ".TP\n.I share/moec/specs\nExamples, and the hardware that specs may \\fBuse\\fP.\n"
        ".TP\n.I share/moec/templates\nThe kernels that bundles get.\n"
        ".TP\n.I lib/moec/libmoert.a\nThe library that bundles link.\n"
        ".TP\n.I share/doc/moec\nREADME.md, and LANGUAGE.md with every key of a spec.\n"
        ".SH EXAMPLES\n.nf\nmoec plan tiny.moespec \\-\\-explain\n"
        "moec build tiny.moespec \\-o out/tiny\nout/tiny/train \\-\\-data text.txt \\-\\-steps 400\n.fi\n",
        out);
}
