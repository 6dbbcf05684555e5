/* Verb build: the bundle and its program. */
#include <string.h>
#include <unistd.h>

#include "codegen/bundle.h"
#include "codegen/cli.h"
#include "codegen/emit.h"

bool cli_target(const Options *o, bool *emu)
{
  *emu = o->target && strcmp(o->target, "emu") == 0;
  if (o->target && !*emu && strcmp(o->target, "cpu") != 0) {
    cli_usage_error("the targets that can be built are cpu and emu, not", o->target);
    return false;
  }
  return true;
}

BuildOptions cli_build_options(const Compile *c)
{
  const Options *o = c->options;
  return (BuildOptions){.cc = o->cc,
                        .cflags = o->cflags ? o->cflags : c->install->cflags,
                        .runtime_lib = o->runtime_lib ? o->runtime_lib : c->install->runtime_lib};
}

const char *cli_stem(const Compile *c)
{
  const char *slash = strrchr(c->options->file, '/');
  const char *base = slash ? slash + 1 : c->options->file;
  size_t n = strcspn(base, ".");
  return n ? arena_strndup(c->arena, base, n) : NULL;
}

/* The plans and schedules of all shapes, and what they come from. */
typedef struct Program {
  Evaluation *own; /* [n] each shape alone */
  Joint joint;     /* of several shapes */
  const Plan *plans;
  const Schedule *scheds;
  int n;
} Program;

static int make_program(Compile *c, Program *p)
{
  *p = (Program){.n = c->spec.n_shapes};
  p->own = arena_new_array(c->arena, Evaluation, (size_t)p->n);
  memset(p->own, 0, (size_t)p->n * sizeof *p->own);
  int code = 0;
  for (int i = 0; i < p->n && !code; i++) {
    code = cli_schedule(c, i);
    if (p->n > 1) { /* of a single shape the compile keeps it */
      p->own[i] = c->result;
      c->result = (Evaluation){0};
    }
  }
  p->plans = &c->result.plan;
  p->scheds = &c->result.sched;
  if (p->n > 1 && !code) {
    code = cli_joint(c, p->own, &p->joint);
    p->plans = p->joint.plans;
    p->scheds = p->joint.scheds;
  }
  return code;
}

static void free_program(Program *p)
{
  for (int i = 0; i < p->n; i++) {
    evaluation_free(&p->own[i]);
  }
  joint_free(&p->joint);
}

static bool emit(Compile *c, const Program *p, bool emu, Bundle *bundle)
{
  const char *home = c->install->home;
  if (emu) {
    return emit_emu_bundle(c->arena, c->diag, &c->spec, p->plans, p->scheds, p->n, home, bundle);
  }
  for (int i = 0; i < p->n; i++) {
    if (!emit_supported(c->diag, &c->spec, &p->plans[i])) {
      return false;
    }
  }
  return emit_bundle(c->arena, c->diag, &c->spec, p->plans, p->scheds, p->n, home, bundle);
}

int verb_build(Compile *c)
{
  const Options *o = c->options;
  bool emu;
  if (!cli_target(o, &emu)) {
    return EXIT_USAGE;
  }
  int code = cli_load(c);
  if (code) {
    return code;
  }
  if (!emu) {
    evaluate_for_cpu(&c->spec);
  }
  Program program;
  code = make_program(c, &program);
  Bundle bundle;
  if (!code && !emit(c, &program, emu, &bundle)) {
    code = EXIT_BAD_SPEC;
  }
  if (code) {
    free_program(&program);
    return code;
  }
  BuildOptions build = cli_build_options(c);
  build.out = cli_out(c);
  build.sources_only = o->sources_only;
  build.progress = !o->quiet && isatty(STDERR_FILENO);
  BuildResult result;
  if (!bundle_build(c->arena, c->diag, &bundle, &build, &result)) {
    free_program(&program);
    return EXIT_BAD_SPEC;
  }
  if (o->quiet) {
    free_program(&program);
    return 0;
  }
  if (program.n > 1) {
    joint_print(&c->spec, program.own, &program.joint, stdout);
  } else {
    cli_print_choice(c, stdout);
  }
  if (o->sources_only) {
    printf("%s: %d files\n", build.out, bundle.n_files);
  } else {
    int ranks = program.plans[0].replicas * program.plans[0].replica_ranks;
    printf("%s/train: %d rank%s, %d sources compiled, %d reused\n", build.out, ranks, ranks == 1 ? "" : "s",
           result.compiled, result.reused);
  }
  free_program(&program);
  return 0;
}
