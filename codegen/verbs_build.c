/* Verb build: the bundle and its program. */
#include <string.h>
#include <unistd.h>

#include "codegen/bundle.h"
#include "codegen/cli.h"
#include "codegen/emit.h"

bool cli_target(const Options *o, const Target *known, int n, Target *target)
{
  static const char *const names[] = {[TARGET_CPU] = "cpu", [TARGET_EMU] = "emu", [TARGET_CUDA] = "cuda"};
  const char *wanted = o->target ? o->target : "cpu";
  for (int i = 0; i < n; i++) {
    if (strcmp(wanted, names[known[i]]) == 0) {
      *target = known[i];
      return true;
    }
  }
  cli_usage_error(n > 2 ? "the targets that can be built are cpu, emu and cuda, not"
                        : "the targets that can be tried are cpu and emu, not",
                  wanted);
  return false;
}

/* --device, --arch and --nvcc, which only CUDA sources know. */
static bool read_device(const Options *o, Target target, BuildOptions *build)
{
  const char *given = o->device ? "--device" : o->arch ? "--arch" : o->nvcc ? "--nvcc" : NULL;
  if (given && target != TARGET_CUDA) {
    cli_usage_error("only target cuda takes", given);
    return false;
  }
  bool emulated = o->device && strcmp(o->device, "emulated") == 0;
  if (o->device && !emulated && strcmp(o->device, "gpu") != 0) {
    cli_usage_error("--device is gpu or emulated, not", o->device);
    return false;
  }
  build->device = emulated ? DEVICE_EMULATED : DEVICE_GPU;
  build->arch = o->arch ? o->arch : "sm_90";
  build->nvcc = o->nvcc;
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

static bool emit(Compile *c, const Program *p, Target target, Bundle *bundle)
{
  for (int i = 0; i < p->n; i++) {
    if (!emit_supported(c->diag, &c->spec, &p->plans[i], target)) {
      return false;
    }
  }
  return emit_bundle(c->arena, c->diag, &c->spec, p->plans, p->scheds, p->n, target, c->install->home, bundle);
}

int verb_build(Compile *c)
{
  static const Target known[] = {TARGET_CPU, TARGET_EMU, TARGET_CUDA};
  const Options *o = c->options;
  BuildOptions build = cli_build_options(c);
  Target target;
  if (!cli_target(o, known, 3, &target) || !read_device(o, target, &build)) {
    return EXIT_USAGE;
  }
  int code = cli_load(c);
  if (code) {
    return code;
  }
  if (target != TARGET_EMU) {
    evaluate_for_kernels(&c->spec);
  }
  Program program;
  code = make_program(c, &program);
  Bundle bundle;
  if (!code && !emit(c, &program, target, &bundle)) {
    code = EXIT_BAD_SPEC;
  }
  if (code) {
    free_program(&program);
    return code;
  }
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
