/* Arguments to Options, by the rows of verbs.def and options.def; help is printed from the same rows. */
#include <getopt.h>
#include <stddef.h>
#include <string.h>

#include "codegen/cli.h"
#include "lang/spec_keys.h"

enum {
#define VERB(id, name, takes_file, doc) VERB_##id,
#include "codegen/verbs.def"
#undef VERB
  N_VERBS
};

static const Verb verbs[] = {
#define VERB(id, name, takes_file, doc) {#name, verb_##name, takes_file, doc},
#include "codegen/verbs.def"
#undef VERB
};

typedef enum OptKind { OPT_FLAG, OPT_TEXT, OPT_LIST } OptKind;

typedef struct OptRow {
  const char *name;
  char letter;
  const char *value; /* NULL: takes none */
  OptKind kind;
  size_t field;
  unsigned verbs;
  const char *doc;
} OptRow;

static const OptRow rows[] = {
#define ON(verb) (1u << VERB_##verb)
#define OPTION(name, letter, value, kind, field, verbs, doc)                                                           \
  {name, letter, value, OPT_##kind, offsetof(Options, field), verbs, doc},
#include "codegen/options.def"
#undef OPTION
#undef ON
};

enum { N_ROWS = sizeof rows / sizeof *rows, FIRST_LONG = 256 };

int cli_usage_error(const char *what, const char *value)
{
  fprintf(stderr, "moec: %s%s%s (moec --help lists verbs and options)\n", what, value ? ": " : "", value ? value : "");
  return EXIT_USAGE;
}

/* ---- help ---- */

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

static void print_option(FILE *out, const OptRow *row)
{
  enum { INDENT = 25 };
  char text[64];
  int n = row->letter ? snprintf(text, sizeof text, "-%c, ", row->letter) : 0;
  n += snprintf(text + n, sizeof text - (size_t)n, "--%s%s%s", row->name, row->value ? " " : "",
                row->value ? row->value : "");
  fprintf(out, "  %-*s", INDENT - 3, text);
  fprintf(out, n > INDENT - 3 ? "\n%*s" : " %.*s", n > INDENT - 3 ? INDENT : 0, "");
  print_wrapped(out, INDENT, row->doc);
}

/* Help of one verb, or of all. */
static void print_help(FILE *out, int verb)
{
  if (verb >= 0) {
    fprintf(out, "usage: moec %s%s [options]\n\n%s\n\n", verbs[verb].name,
            verbs[verb].takes_file ? " FILE.moespec" : "", verbs[verb].doc);
  } else {
    fprintf(out, "usage: moec VERB FILE.moespec [options]\n\n");
    for (int v = 0; v < N_VERBS; v++) {
      fprintf(out, "  %-9s ", verbs[v].name);
      print_wrapped(out, 12, verbs[v].doc);
    }
    fprintf(out, "\nmoec VERB --help lists the options of a verb. All of them:\n\n");
  }
  for (int i = 0; i < N_ROWS; i++) {
    if (verb < 0 || rows[i].verbs >> verb & 1) {
      print_option(out, &rows[i]);
    }
  }
  fprintf(out,
          "\nexit codes: 0 done, 1 the spec is wrong or a file cannot be written, 2 wrong usage, 3 no plan fits\n");
}

/* ---- reading ---- */

static void store(const OptRow *row, Options *options, const char *value)
{
  char *at = (char *)options + row->field;
  if (row->kind == OPT_FLAG) {
    *(bool *)at = true;
  } else if (row->kind == OPT_TEXT) {
    *(const char **)at = value;
  } else {
    OptList *list = (OptList *)at;
    list->items[list->n++] = value;
  }
}

static int find_verb(const char *name)
{
  for (int v = 0; v < N_VERBS; v++) {
    if (strcmp(verbs[v].name, name) == 0) {
      return v;
    }
  }
  return -1;
}

/* "check, fmt and plan" */
static const char *takers(Arena *arena, unsigned which)
{
  const char *text = "";
  int left = 0;
  for (int v = 0; v < N_VERBS; v++) {
    left += (which >> v & 1) != 0;
  }
  for (int v = 0; v < N_VERBS; v++) {
    if (which >> v & 1) {
      left--;
      text = arena_printf(arena, "%s%s%s", text, verbs[v].name, left > 1 ? ", " : left == 1 ? " and " : "");
    }
  }
  return text;
}

/* What getopt does not know: the verb takes each option that was given. */
static int check_verb(Arena *arena, int verb, const bool *given, const Options *options)
{
  for (int i = 0; i < N_ROWS; i++) {
    if (given[i] && !(rows[i].verbs >> verb & 1)) {
      return cli_usage_error(arena_printf(arena, "`%s` takes no --%s; that is for %s", verbs[verb].name, rows[i].name,
                                          takers(arena, rows[i].verbs)),
                             NULL);
    }
  }
  if (verbs[verb].takes_file && !options->file) {
    return cli_usage_error("which file? the verb needs one", verbs[verb].name);
  }
  if (!verbs[verb].takes_file && options->file) {
    return cli_usage_error(arena_printf(arena, "`%s` takes no file", verbs[verb].name), options->file);
  }
  return 0;
}

static int wrong_verb(Arena *arena, const char *name)
{
  Suggest suggest = suggest_for(name);
  for (int v = 0; v < N_VERBS; v++) {
    suggest_try(&suggest, verbs[v].name);
  }
  return cli_usage_error("unknown verb", arena_printf(arena, "%s%s", name, suggest_text(arena, &suggest)));
}

const Verb *cli_read(Arena *arena, int argc, char **argv, Options *options, int *code)
{
  struct option longs[N_ROWS + 2] = {0};
  char shorts[2 * N_ROWS + 4] = ":h";
  bool given[N_ROWS] = {0}, help = false;
  size_t n = 2;
  for (int i = 0; i < N_ROWS; i++) {
    longs[i] = (struct option){rows[i].name, rows[i].value ? required_argument : no_argument, NULL, FIRST_LONG + i};
    if (rows[i].letter) {
      shorts[n++] = rows[i].letter;
      shorts[n] = rows[i].value ? ':' : 0;
      n += rows[i].value != NULL;
    }
    if (rows[i].kind == OPT_LIST) {
      ((OptList *)((char *)options + rows[i].field))->items = arena_new_array(arena, const char *, (size_t)argc + 1);
    }
  }
  longs[N_ROWS] = (struct option){"help", no_argument, NULL, 'h'};
  *code = 0;
  for (int opt; (opt = getopt_long(argc, argv, shorts, longs, NULL)) != -1;) {
    int row = opt - FIRST_LONG;
    for (int i = 0; i < N_ROWS && row < 0; i++) {
      row = rows[i].letter && rows[i].letter == opt ? i : row;
    }
    if (opt == 'h') {
      help = true;
    } else if (row >= 0 && row < N_ROWS) {
      store(&rows[row], options, optarg);
      given[row] = true;
    } else {
      *code = cli_usage_error(opt == ':' ? "option needs a value" : "unknown option", argv[optind - 1]);
      return NULL;
    }
  }
  int verb = optind < argc ? find_verb(argv[optind]) : -1;
  if (help && (verb >= 0 || optind >= argc)) {
    print_help(stdout, verb);
    return NULL;
  }
  if (verb < 0) {
    if (optind < argc) {
      *code = wrong_verb(arena, argv[optind]);
    } else {
      print_help(stderr, -1);
      *code = EXIT_USAGE;
    }
    return NULL;
  }
  options->file = ++optind < argc ? argv[optind] : NULL;
  if (optind + 1 < argc) {
    *code = cli_usage_error("one file at a time; did not expect", argv[optind + 1]);
    return NULL;
  }
  *code = check_verb(arena, verb, given, options);
  return *code ? NULL : &verbs[verb];
}

bool cli_system(Arena *arena, const char *option, const char *name, bool or_auto, SystemKind *system)
{
  Suggest suggest = suggest_for(name);
  const char *all = "";
  for (int s = 0; s < SYSTEM_COUNT + or_auto; s++) {
    const char *known = plan_system_name((SystemKind)s);
    if (strcmp(name, known) == 0) {
      *system = (SystemKind)s;
      return true;
    }
    suggest_try(&suggest, known);
    all = arena_printf(arena, "%s%s%s", all, s ? ", " : "", known);
  }
  cli_usage_error(arena_printf(arena, "%s: there is no system '%s'%s; known are %s", option, name,
                               suggest_text(arena, &suggest), all),
                  NULL);
  return false;
}

bool cli_chosen_system(const Compile *c, SystemKind *system)
{
  *system = c->spec.plan.system;
  return !c->options->system || cli_system(c->arena, "--system", c->options->system, true, system);
}
