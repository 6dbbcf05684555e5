/* moec: the command line. Each verb is the same list of calls, stopped at a different point:
   text -> AstFile -> Spec -> Plan -> Schedule -> Bundle -> program. */
#define _XOPEN_SOURCE 700 /* realpath */

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "codegen/bundle.h"
#include "codegen/emit.h"
#include "codegen/plan.h"
#include "codegen/sched.h"
#include "lang/ast.h"
#include "lang/spec.h"

/* Flags that bundles take unless --cflags says otherwise. */
#ifndef MOEC_CFLAGS
#define MOEC_CFLAGS NULL
#endif

enum { EXIT_BAD_SPEC = 1, EXIT_USAGE = 2, EXIT_INFEASIBLE = 3 };

typedef struct Options {
  const char *verb;
  const char *file;
  const char **defines;
  int n_defines;
  const char *shape;
  const char *out;
  const char *trace;
  const char *svg;
  const char *target;
  const char *cc;
  const char *cflags;
  const char *runtime_lib;
  bool json, write, check, sources_only, quiet;
} Options;

/* Everything a verb has produced so far. */
typedef struct Compile {
  const Options *options;
  Arena *arena;
  Diag *diag;
  Spec spec;
  Plan plan;
  Schedule sched;
} Compile;

static const char usage_text[] =
    "usage: moec VERB FILE.moespec [options]\n"
    "\n"
    "  check     report every error of a spec\n"
    "  fmt       print it in the usual layout; -w writes it back, --check only tells\n"
    "  plan      which ranks hold which layers' attention and experts, and what it costs\n"
    "  schedule  the order of every group's work, one line per group\n"
    "  build     write and compile the training program; -o names its folder\n"
    "  keys      the reference of all keys, as specs/LANGUAGE.md holds it (takes no file)\n"
    "\n"
    "  -D NAME=VALUE       overrides a `let` of the file\n"
    "  --shape NAMES       the shapes to take, comma-separated (default: all; schedule, build and --json: the first)\n"
    "  --json              plan, schedule: print JSON\n"
    "  --trace FILE        schedule: also write it as a Chrome trace\n"
    "  --svg FILE          schedule: also draw it\n"
    "  -o, --out FOLDER    build: where the bundle goes (default: the spec's name)\n"
    "  --target cpu        build: what to build for\n"
    "  --sources-only      build: write the sources, do not compile\n"
    "  --cc COMMAND, --cflags FLAGS, --runtime LIBRARY   build: other compiler, more flags, another runtime library\n"
    "  -q, --quiet         build: no progress\n"
    "\n"
    "exit codes: 0 done, 1 the spec is wrong or a file cannot be written, 2 wrong usage, 3 no plan fits\n";

static bool load(Compile *c)
{
  AstFile *ast = ast_parse(c->arena, c->diag, c->options->file, c->options->defines, c->options->n_defines);
  if (!ast || !spec_build(c->arena, c->diag, ast, &c->spec)) {
    return false;
  }
  return !c->options->shape || spec_select_shapes(c->arena, c->diag, &c->spec, c->options->shape);
}

/* Solves one shape. Returns an exit code. */
static int make_plan(Compile *c, int shape)
{
  bool infeasible = false;
  if (!plan_solve(c->arena, c->diag, &c->spec, shape, &c->plan, &infeasible)) {
    return infeasible ? EXIT_INFEASIBLE : EXIT_BAD_SPEC;
  }
  return plan_check(c->diag, &c->spec, &c->plan) ? 0 : EXIT_BAD_SPEC;
}

static int make_schedule(Compile *c, int shape)
{
  int code = make_plan(c, shape);
  if (code) {
    return code;
  }
  if (!sched_build(c->arena, c->diag, &c->spec, &c->plan, &c->sched) ||
      !sched_check(c->diag, &c->spec, &c->plan, &c->sched)) {
    return EXIT_BAD_SPEC;
  }
  plan_set_step(&c->spec, &c->plan, (double)c->sched.step_ns);
  return 0;
}

/* ---- verbs: each returns the exit code ---- */

static int verb_check(Compile *c)
{
  return load(c) ? 0 : EXIT_BAD_SPEC;
}

/* Replaces a file by renames, so that it is never half written; a device or a pipe is written where it is. */
static bool replace_file(Compile *c, const char *path, const char *text, size_t n)
{
  struct stat old;
  bool exists = stat(path, &old) == 0;
  bool special = exists && !S_ISREG(old.st_mode);
  char *target =
      exists && !special ? realpath(path, NULL) : NULL; /* a link stays, the file that it names is replaced */
  const char *name = target ? target : path;
  const char *temp = special ? path : arena_printf(c->arena, "%s.tmp-%ld", name, (long)getpid());
  FILE *out = fopen(temp, "wb");
  bool ok = out && fwrite(text, 1, n, out) == n;
  ok = out && fclose(out) == 0 && ok;
  if (ok && !special) {
    ok = (!exists || chmod(temp, old.st_mode & 07777) == 0) && rename(temp, name) == 0;
  }
  if (!ok) {
    diag_error(c->diag, (Span){0}, "cannot write %s: %s", path, strerror(errno));
    if (out && !special) {
      unlink(temp);
    }
  }
  free(target);
  return ok;
}

static int verb_fmt(Compile *c)
{
  AstFile *ast = ast_read(c->arena, c->diag, c->options->file);
  if (!ast) {
    return EXIT_BAD_SPEC;
  }
  char *text = NULL;
  size_t n = 0;
  FILE *mem = open_memstream(&text, &n);
  ast_print(ast, mem);
  fclose(mem);
  bool same = n == ast->length && memcmp(text, ast->text, n) == 0;
  int code = 0;
  if (c->options->check) {
    code = same ? 0 : EXIT_BAD_SPEC;
    if (!same) {
      diag_error(c->diag, (Span){0}, "%s is not in the usual layout (moec fmt -w writes it)", c->options->file);
    }
  } else if (!c->options->write) {
    fwrite(text, 1, n, stdout);
  } else if (!same && !replace_file(c, c->options->file, text, n)) {
    code = EXIT_BAD_SPEC;
  }
  free(text);
  return code;
}

/* schedule, build and JSON take one shape. */
static void take_first_shape(Compile *c)
{
  if (c->spec.n_shapes > 1) {
    diag_warn(c->diag, c->spec.shapes[1].span,
              "the spec has %d shapes; `%s` takes the first, \"%s\" (choose with --shape)", c->spec.n_shapes,
              c->options->verb, c->spec.shapes[0].name);
    c->spec.n_shapes = 1;
  }
}

static int verb_plan(Compile *c)
{
  if (!load(c)) {
    return EXIT_BAD_SPEC;
  }
  if (c->options->json) { /* one document */
    take_first_shape(c);
  }
  for (int i = 0; i < c->spec.n_shapes; i++) {
    int code = make_schedule(c, i);
    if (code) {
      return code;
    }
    if (c->options->json) {
      plan_print_json(&c->spec, &c->plan, stdout);
    } else {
      plan_print(&c->spec, &c->plan, stdout);
    }
  }
  return 0;
}

static int one_schedule(Compile *c)
{
  if (!load(c)) {
    return EXIT_BAD_SPEC;
  }
  take_first_shape(c);
  return make_schedule(c, 0);
}

static bool write_schedule(Compile *c, const char *path,
                           void (*print)(const Spec *, const Plan *, const Schedule *, FILE *))
{
  char *text = NULL;
  size_t n = 0;
  FILE *mem = open_memstream(&text, &n);
  print(&c->spec, &c->plan, &c->sched, mem);
  fclose(mem);
  bool ok = replace_file(c, path, text, n);
  free(text);
  return ok;
}

static int verb_schedule(Compile *c)
{
  int code = one_schedule(c);
  if (code) {
    return code;
  }
  if (c->options->trace && !write_schedule(c, c->options->trace, sched_print_trace)) {
    return EXIT_BAD_SPEC;
  }
  if (c->options->svg && !write_schedule(c, c->options->svg, sched_print_svg)) {
    return EXIT_BAD_SPEC;
  }
  if (c->options->json) {
    sched_print_json(&c->spec, &c->plan, &c->sched, stdout);
  } else {
    sched_print(&c->spec, &c->plan, &c->sched, stdout);
  }
  return 0;
}

/* "specs/tiny.moespec" -> "tiny" */
static const char *default_out(Compile *c)
{
  const char *slash = strrchr(c->options->file, '/');
  const char *base = slash ? slash + 1 : c->options->file;
  size_t n = strcspn(base, ".");
  return n ? arena_strndup(c->arena, base, n) : "bundle";
}

static int verb_build(Compile *c)
{
  int code = one_schedule(c);
  if (code) {
    return code;
  }
  Bundle bundle;
  if (!emit_supported(c->diag, &c->spec, &c->plan) ||
      !emit_bundle(c->arena, c->diag, &c->spec, &c->plan, &c->sched, MOEC_HOME, &bundle)) {
    return EXIT_BAD_SPEC;
  }
  const Options *o = c->options;
  BuildOptions build = {.out = o->out ? o->out : default_out(c),
                        .cc = o->cc,
                        .cflags = o->cflags ? o->cflags : MOEC_CFLAGS,
                        .runtime_lib = o->runtime_lib ? o->runtime_lib : MOEC_RUNTIME_LIB,
                        .sources_only = o->sources_only,
                        .progress = !o->quiet && isatty(STDERR_FILENO)};
  BuildResult result;
  if (!bundle_build(c->arena, c->diag, &bundle, &build, &result)) {
    return EXIT_BAD_SPEC;
  }
  if (o->sources_only) {
    printf("%s: %d files\n", build.out, bundle.n_files);
  } else {
    printf("%s/train: %d ranks, %d sources compiled, %d reused\n", build.out, c->plan.replicas * c->plan.replica_ranks,
           result.compiled, result.reused);
  }
  return 0;
}

static int verb_keys(Compile *c)
{
  (void)c;
  spec_print_reference(stdout);
  return 0;
}

static const struct {
  const char *name;
  int (*run)(Compile *);
  bool takes_file;
} verbs[] = {
    {"check", verb_check, true},       {"fmt", verb_fmt, true},     {"plan", verb_plan, true},
    {"schedule", verb_schedule, true}, {"build", verb_build, true}, {"keys", verb_keys, false},
};

/* ---- command line ---- */

static int usage_error(const char *what, const char *value)
{
  fprintf(stderr, "moec: %s%s%s (moec --help lists verbs and options)\n", what, value ? ": " : "", value ? value : "");
  return EXIT_USAGE;
}

enum {
  OPT_SHAPE = 256,
  OPT_JSON,
  OPT_TRACE,
  OPT_SVG,
  OPT_TARGET,
  OPT_CHECK,
  OPT_SOURCES,
  OPT_CC,
  OPT_CFLAGS,
  OPT_RUNTIME
};

/* Returns 0, or an exit code + 1 so that --help's 0 can be told apart. */
static int parse_options(int argc, char **argv, Options *o)
{
  static const struct option longs[] = {{"shape", required_argument, NULL, OPT_SHAPE},
                                        {"json", no_argument, NULL, OPT_JSON},
                                        {"trace", required_argument, NULL, OPT_TRACE},
                                        {"svg", required_argument, NULL, OPT_SVG},
                                        {"out", required_argument, NULL, 'o'},
                                        {"target", required_argument, NULL, OPT_TARGET},
                                        {"write", no_argument, NULL, 'w'},
                                        {"check", no_argument, NULL, OPT_CHECK},
                                        {"sources-only", no_argument, NULL, OPT_SOURCES},
                                        {"cc", required_argument, NULL, OPT_CC},
                                        {"cflags", required_argument, NULL, OPT_CFLAGS},
                                        {"runtime", required_argument, NULL, OPT_RUNTIME},
                                        {"quiet", no_argument, NULL, 'q'},
                                        {"help", no_argument, NULL, 'h'},
                                        {NULL, 0, NULL, 0}};
  o->defines = calloc((size_t)argc + 1, sizeof *o->defines);
  for (int opt; (opt = getopt_long(argc, argv, ":D:o:wqh", longs, NULL)) != -1;) {
    switch (opt) {
    case 'D':
      o->defines[o->n_defines++] = optarg;
      break;
    case 'o':
      o->out = optarg;
      break;
    case 'w':
      o->write = true;
      break;
    case 'q':
      o->quiet = true;
      break;
    case 'h':
      fputs(usage_text, stdout);
      return 1;
    case OPT_SHAPE:
      o->shape = optarg;
      break;
    case OPT_JSON:
      o->json = true;
      break;
    case OPT_TRACE:
      o->trace = optarg;
      break;
    case OPT_SVG:
      o->svg = optarg;
      break;
    case OPT_TARGET:
      o->target = optarg;
      break;
    case OPT_CHECK:
      o->check = true;
      break;
    case OPT_SOURCES:
      o->sources_only = true;
      break;
    case OPT_CC:
      o->cc = optarg;
      break;
    case OPT_CFLAGS:
      o->cflags = optarg;
      break;
    case OPT_RUNTIME:
      o->runtime_lib = optarg;
      break;
    case ':':
      return 1 + usage_error("option needs a value", argv[optind - 1]);
    default:
      return 1 + usage_error("unknown option", argv[optind - 1]);
    }
  }
  if (optind < argc) {
    o->verb = argv[optind++];
  }
  if (optind < argc) {
    o->file = argv[optind++];
  }
  if (!o->verb) {
    fputs(usage_text, stderr);
    return 1 + EXIT_USAGE;
  }
  if (optind < argc) {
    return 1 + usage_error("one file at a time; did not expect", argv[optind]);
  }
  if (o->target && strcmp(o->target, "cpu") != 0) {
    return 1 + usage_error("the target that can be built is cpu, not", o->target);
  }
  return 0;
}

static bool output_written(void)
{
  if (fflush(stdout) == 0 && !ferror(stdout)) {
    return true;
  }
  fprintf(stderr, "moec: cannot write the output: %s\n", strerror(errno));
  return false;
}

int main(int argc, char **argv)
{
  Options options = {0};
  int stop = parse_options(argc, argv, &options);
  if (stop) {
    free(options.defines);
    return output_written() ? stop - 1 : EXIT_BAD_SPEC;
  }
  int code = -1;
  for (size_t i = 0; i < sizeof verbs / sizeof *verbs && code < 0; i++) {
    if (strcmp(options.verb, verbs[i].name) != 0) {
      continue;
    }
    if (verbs[i].takes_file && !options.file) {
      code = usage_error("which file? the verb needs one", options.verb);
      break;
    }
    Compile c = {.options = &options, .arena = arena_new()};
    c.diag = diag_new(c.arena, stderr);
    code = verbs[i].run(&c);
    diag_finish(c.diag);
    if (!output_written()) {
      code = EXIT_BAD_SPEC;
    }
    arena_free(c.arena);
  }
  if (code < 0) {
    code = usage_error("unknown verb", options.verb);
  }
  free(options.defines);
  return code;
}
