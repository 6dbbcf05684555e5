/* Arguments to Options, by the rows of verbs.def and options.def. */
#include <getopt.h>
#include <stddef.h>
#include <string.h>

#include "codegen/cli.h"
#include "lang/spec_keys.h"

const Verb cli_verbs[N_VERBS] = {
#define VERB(id, name, takes, doc) {#name, verb_##name, takes, doc},
#include "codegen/verbs.def"
#undef VERB
};

#define SYSTEM(id, name, colocated, ways, doc) name " "
static const char systems[] =
#include "lang/systems.def"
    ;
static const char auto_or_systems[] = "auto "
#include "lang/systems.def"
    ;
#undef SYSTEM

const OptRow cli_options[] = {
#define ON(verb)        (1u << VERB_##verb)
#define SYSTEMS         systems
#define AUTO_OR_SYSTEMS auto_or_systems
#define OPTION(name, letter, value, kind, field, words, verbs, doc)                                                    \
  {name, letter, value, OPT_##kind, offsetof(Options, field), words, verbs, doc},
#include "codegen/options.def"
#undef OPTION
#undef AUTO_OR_SYSTEMS
#undef SYSTEMS
#undef ON
};

enum { N_ROWS = sizeof cli_options / sizeof *cli_options, VERSION = 256, FIRST_LONG };
const int cli_n_options = N_ROWS;

int cli_usage_error(const char *what, const char *value)
{
  fprintf(stderr, "moec: %s%s%s (moec --help lists verbs and options)\n", what, value ? ": " : "", value ? value : "");
  return EXIT_USAGE;
}

/* ---- reading ---- */

static void store(const OptRow *row, Options *options, const char *value)
{
  char *at = (char *)options + row->field;
  if (row->kind == OPT_FLAG) {
    *(bool *)at = true;
  } else if (row->kind != OPT_LIST) {
    *(const char **)at = value;
  } else {
    OptList *list = (OptList *)at;
    list->items[list->n++] = value;
  }
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
      text = arena_printf(arena, "%s%s%s", text, cli_verbs[v].name, left > 1 ? ", " : left == 1 ? " and " : "");
    }
  }
  return text;
}

/* What getopt does not know: the verb takes each option that was given. */
static int check_verb(Arena *arena, int verb, const bool *given, const Options *options)
{
  for (int i = 0; i < N_ROWS; i++) {
    if (given[i] && !(cli_options[i].verbs >> verb & 1)) {
      return cli_usage_error(arena_printf(arena, "`%s` takes no --%s; that is for %s", cli_verbs[verb].name,
                                          cli_options[i].name, takers(arena, cli_options[i].verbs)),
                             NULL);
    }
  }
  if (cli_verbs[verb].takes && cli_verbs[verb].takes[0] != '[' && !options->file) {
    return cli_usage_error("which file? the verb needs one", cli_verbs[verb].name);
  }
  if (!cli_verbs[verb].takes && options->file) {
    return cli_usage_error(arena_printf(arena, "`%s` takes no file", cli_verbs[verb].name), options->file);
  }
  return 0;
}

int cli_verb(Arena *arena, const char *name)
{
  Suggest suggest = suggest_for(name);
  for (int v = 0; v < N_VERBS; v++) {
    if (strcmp(cli_verbs[v].name, name) == 0) {
      return v;
    }
    suggest_try(&suggest, cli_verbs[v].name);
  }
  cli_usage_error("unknown verb", arena_printf(arena, "%s%s", name, suggest_text(arena, &suggest)));
  return -1;
}

const char *cli_text(const Options *options, const OptRow *row)
{
  return *(const char *const *)((const char *)options + row->field);
}

const Verb *cli_read(Arena *arena, int argc, char **argv, Options *options, int *code)
{
  struct option longs[N_ROWS + 3] = {0};
  char shorts[2 * N_ROWS + 4] = ":h";
  bool given[N_ROWS] = {0}, help = false;
  size_t n = 2;
  for (int i = 0; i < N_ROWS; i++) {
    longs[i] = (struct option){cli_options[i].name, cli_options[i].value ? required_argument : no_argument, NULL,
                               FIRST_LONG + i};
    if (cli_options[i].letter) {
      shorts[n++] = cli_options[i].letter;
      shorts[n] = cli_options[i].value ? ':' : 0;
      n += cli_options[i].value != NULL;
    }
    if (cli_options[i].kind == OPT_LIST) {
      ((OptList *)((char *)options + cli_options[i].field))->items =
          arena_new_array(arena, const char *, (size_t)argc + 1);
    }
  }
  longs[N_ROWS] = (struct option){"help", no_argument, NULL, 'h'};
  longs[N_ROWS + 1] = (struct option){"version", no_argument, NULL, VERSION};
  *code = 0;
  for (int opt; (opt = getopt_long(argc, argv, shorts, longs, NULL)) != -1;) {
    int row = opt - FIRST_LONG;
    for (int i = 0; i < N_ROWS && row < 0; i++) {
      row = cli_options[i].letter && cli_options[i].letter == opt ? i : row;
    }
    if (opt == VERSION) {
      printf("moec %s\n", MOEC_VERSION);
      return NULL;
    } else if (opt == 'h') {
      help = true;
    } else if (row >= 0 && row < N_ROWS) {
      if (cli_options[row].kind == OPT_OUT && given[row]) {
        *code = cli_usage_error("given twice", arena_printf(arena, "--%s", cli_options[row].name));
        return NULL;
      }
      store(&cli_options[row], options, optarg);
      given[row] = true;
    } else {
      *code = cli_usage_error(opt == ':' ? "option needs a value" : "unknown option", argv[optind - 1]);
      return NULL;
    }
  }
  if (optind >= argc) {
    help_print(help ? stdout : stderr, -1);
    *code = help ? 0 : EXIT_USAGE;
    return NULL;
  }
  int verb = cli_verb(arena, argv[optind]);
  if (verb < 0 || help) {
    *code = verb < 0 ? EXIT_USAGE : 0;
    if (verb >= 0) {
      help_print(stdout, verb);
    }
    return NULL;
  }
  options->file = ++optind < argc ? argv[optind] : NULL;
  if (optind + 1 < argc) {
    *code = cli_usage_error("one file at a time; did not expect", argv[optind + 1]);
    return NULL;
  }
  *code = check_verb(arena, verb, given, options);
  return *code ? NULL : &cli_verbs[verb];
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
