/* The command line: one list of verbs, one of options, and what verbs share. Each verb is the same list of calls,
   stopped at a different point: text -> AstFile -> Spec -> Plan -> Schedule -> Bundle -> program. */
#ifndef CODEGEN_CLI_H
#define CODEGEN_CLI_H

#include "codegen/bundle.h"
#include "codegen/joint.h"
#include "lang/ast.h"
#include "lang/spec.h"

enum { EXIT_BAD_SPEC = 1, EXIT_USAGE = 2, EXIT_INFEASIBLE = 3 };

typedef struct OptList {
  const char **items;
  int n;
} OptList;

/* Values as given; NULL, false or empty where an option was not. */
typedef struct Options {
  const char *file;
  OptList defines, sweeps, runs;
  const char *shape, *system, *systems;
  const char *html, *trace, *svg, *out;
  const char *target, *device, *cc, *nvcc, *arch, *cflags, *runtime_lib;
  const char *trials, *radius, *steps, *launch, *work, *name, *as;
  const char *measured, *predicted;
  bool json, explain, orders, timing, write, check, sources_only, quiet;
} Options;

/* Where the compiler's own files lie, and what bundles take unless told otherwise. */
typedef struct Install {
  const char *home;        /* folder that holds templates/, runtime/, codegen/ and specs/ */
  const char *runtime_lib; /* library that bundles link */
  const char *cflags;      /* may be NULL */
} Install;

/* install.c: all below the folder of the running program, or the one above if that is bin/, so that a tree of installed
   files may be moved. */
bool install_find(Arena *, Diag *, Install *);

typedef struct Verb Verb;

/* Everything a verb has produced so far. */
typedef struct Compile {
  const Verb *verb;
  const Options *options;
  const Install *install;
  Arena *arena;
  Diag *diag;
  AstFile *ast;
  Spec spec;
  Evaluation result; /* plan and schedule of the shape at hand */
} Compile;

struct Verb {
  const char *name;
  int (*run)(Compile *); /* returns the exit code */
  const char *takes;     /* NULL: no word besides options; in brackets: it may be left out */
  const char *doc;
};

typedef enum OptKind { OPT_FLAG, OPT_TEXT, OPT_IN, OPT_OUT, OPT_LIST } OptKind;

/* A row of options.def. */
typedef struct OptRow {
  const char *name;
  char letter;
  const char *value; /* NULL: takes none */
  OptKind kind;
  size_t field;
  const char *words; /* NULL: any */
  unsigned verbs;    /* 1 << index of each verb that takes it */
  const char *doc;
} OptRow;

enum {
#define VERB(id, name, takes, doc) VERB_##id,
#include "codegen/verbs.def"
#undef VERB
  N_VERBS
};
extern const Verb cli_verbs[N_VERBS];
extern const OptRow cli_options[];
extern const int cli_n_options;

/* Index of a verb, or -1 after a message. */
int cli_verb(Arena *, const char *name);
/* What options.def keeps of an option that was given; NULL: it was not. Not of OPT_FLAG and OPT_LIST. */
const char *cli_text(const Options *, const OptRow *);

/* help.c: for people, of one verb or with -1 of all; help_man.c, help_bash.c: for other programs, all verbs. */
void help_print(FILE *, int verb);
void help_print_man(FILE *);
void help_print_bash(FILE *);

/* Reads the arguments. Returns the verb, or NULL after help or a message, with the exit code in *code. */
const Verb *cli_read(Arena *, int argc, char **argv, Options *, int *code);

/* cli_outputs.c. Before a verb begins: its outputs differ from each other and from what it reads, and can be written.
 */
bool cli_can_write(Compile *);
/* Once all specs are read: no output is one of them or a file that they use. */
bool cli_spares_sources(Compile *);
/* Whether `path`, which is to be written, is another file than `input`; false after an error. */
bool cli_spares(Compile *, const char *input, const char *path);

/* "moec: WHAT: VALUE (moec --help ...)" on stderr; returns EXIT_USAGE. `value` may be NULL. */
int cli_usage_error(const char *what, const char *value);

/* Name of a system, or "auto" where `or_auto`. Says what is wrong with it and returns false otherwise. */
bool cli_system(Arena *, const char *option, const char *name, bool or_auto, SystemKind *);
/* That of --system, or else of the spec. */
bool cli_chosen_system(const Compile *, SystemKind *);

/* verbs_build.c: what --target says, cpu without it; false after a message about one that is not among the n in
 * `known`. */
bool cli_target(const Options *, const Target *known, int n, Target *);
/* The compiler, flags and library that the options name, or else the install's. */
BuildOptions cli_build_options(const Compile *);
/* "specs/tiny.moespec" -> "tiny"; NULL: nothing is left. */
const char *cli_stem(const Compile *);
/* cli_outputs.c: that of -o, or what stands for it: the spec's name. NULL: none does. */
const char *cli_out(const Compile *);

/* verbs_spec.c: text to Spec, with -D and --shape. Returns 0, or an exit code after the errors: 2 where the spec is
   right without its -D or its --shape. */
int cli_load(Compile *);
/* For verbs that take one shape: keeps the first, with a warning if there are more. */
void cli_take_first_shape(Compile *);
/* verbs_plan.c: plan and schedule of one shape, by the system of --system or else of the spec. Returns an exit code. */
int cli_schedule(Compile *, int shape);
/* The same for all shapes in one program; own: each alone. */
int cli_joint(Compile *, const Evaluation *own, Joint *);
/* Under auto: which system was taken and by how much it beats the next, one line. */
void cli_print_choice(const Compile *, FILE *);

#define VERB(id, name, takes, doc) int verb_##name(Compile *);
#include "codegen/verbs.def"
#undef VERB

#endif
