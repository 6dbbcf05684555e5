/* Verb tune: plans tried by running them. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "codegen/cli.h"
#include "codegen/human.h"
#include "codegen/output.h"
#include "codegen/tune.h"

/* A whole number in [least, most], or `none` without the option. */
static bool number_of(const char *option, const char *text, int least, int most, int none, int *value)
{
  char *end;
  *value = none;
  if (!text) {
    return true;
  }
  errno = 0;
  long n = strtol(text, &end, 10);
  if (errno || end == text || *end || n < least || n > most) {
    char what[96];
    snprintf(what, sizeof what, "--%s takes a whole number from %d to %d, not", option, least, most);
    cli_usage_error(what, text);
    return false;
  }
  *value = (int)n;
  return true;
}

static bool read_options(Compile *c, TuneOptions *tune)
{
  const Options *o = c->options;
  static const Target known[] = {TARGET_CPU, TARGET_EMU};
  Target target;
  if (!cli_target(o, known, 2, &target)) {
    return false;
  }
  if (o->launch && !strstr(o->launch, "{log}")) {
    cli_usage_error("--launch needs {log} where the command takes the name of its log", o->launch);
    return false;
  }
  tune->emu = target == TARGET_EMU;
  tune->home = c->install->home;
  tune->launch = o->launch;
  tune->work = o->work;
  tune->build = cli_build_options(c);
  return number_of("trials", o->trials, 1, 1000, 8, &tune->trials) &&
         number_of("radius", o->radius, 0, 8, 2, &tune->radius) &&
         number_of("steps", o->steps, TUNE_UNMEASURED_STEPS + 1, 1000000, 7, &tune->steps);
}

typedef struct Progress {
  Arena *arena;
  int trials;
} Progress;

/* One line per trial on the terminal: while it runs, and what it took. */
static void show(void *context, int number, const TuneTrial *t, bool over)
{
  const Progress *p = context;
  char predicted[HUMAN_MAX], measured[HUMAN_MAX];
  fprintf(stderr, "\r\x1b[Ktrial %d of %d  %s  predicted %s", number + 1, p->trials, tune_text(p->arena, t->what),
          human_time(predicted, t->what->predicted_ns));
  if (over && t->reason) {
    fprintf(stderr, "  failed: %s\n", t->reason);
  } else if (over) {
    fprintf(stderr, "  measured %s\n", human_time(measured, t->measured_ns));
  } else {
    fputs(" ...", stderr);
  }
}

static void print_table(Compile *c, const TuneResult *r)
{
  const char *texts[1001];
  int width = 4;
  for (int i = 0; i < r->n_trials; i++) {
    texts[i] = tune_text(c->arena, r->trials[i].what);
    width = (int)strlen(texts[i]) > width ? (int)strlen(texts[i]) : width;
  }
  printf("trial  %-*s  %12s %12s %8s\n", width, "plan", "predicted", "measured", "of seed");
  double seed = r->n_trials ? r->trials[0].measured_ns : 0;
  for (int i = 0; i < r->n_trials; i++) {
    const TuneTrial *t = &r->trials[i];
    char predicted[HUMAN_MAX], measured[HUMAN_MAX];
    printf("%5d  %-*s  %12s", i + 1, width, texts[i], human_time(predicted, t->what->predicted_ns));
    if (t->reason) {
      printf("  failed: %s\n", t->reason);
      continue;
    }
    printf(" %12s", human_time(measured, t->measured_ns));
    if (seed > 0) {
      printf(" %8.3f", t->measured_ns / seed);
    }
    printf("%s\n", i == r->best ? "  best" : "");
  }
}

static const char *summary(Compile *c, const TuneResult *r)
{
  const TuneTrial *best = &r->trials[r->best], *seed = &r->trials[0];
  char time[HUMAN_MAX], first[HUMAN_MAX];
  human_time(time, best->measured_ns);
  human_time(first, seed->measured_ns);
  const char *steps = arena_printf(c->arena, "a step takes %s, the median of %d", time, best->steps);
  if (r->best == 0) {
    return arena_printf(c->arena, "of %d plan%s tried none is faster than the planner's own: %s", r->n_trials,
                        r->n_trials == 1 ? "" : "s", steps);
  }
  if (seed->measured_ns <= 0) {
    return arena_printf(c->arena, "trial %d of %d: %s; the planner's own plan did not run", r->best + 1, r->n_trials,
                        steps);
  }
  return arena_printf(c->arena, "trial %d of %d: %s; %.3fx faster than the planner's own plan, %s", r->best + 1,
                      r->n_trials, steps, seed->measured_ns / best->measured_ns, first);
}

/* The tuned spec in a file, and its pins on the terminal. */
static int conclude(Compile *c, const TuneResult *r)
{
  const char *words = summary(c, r), *out = c->options->out;
  const TuneCandidate *best = r->trials[r->best].what;
  printf("\n%s\n", words);
  tune_print_pins(&c->spec, best, stdout);
  if (!out) {
    return 0;
  }
  Printed file;
  printed_open(&file);
  const char *comment =
      arena_printf(c->arena, "%s with the plan that moec tune measured to be the fastest: %s", c->options->file, words);
  tune_print_spec(&c->spec, best, comment, file.to);
  bool ok = output_finish(&file, c->arena, c->diag, out);
  if (ok) {
    printf("written to %s\n", out);
  }
  return ok ? 0 : EXIT_BAD_SPEC;
}

int verb_tune(Compile *c)
{
  TuneOptions tune = {0};
  TuneResult result;
  if (!read_options(c, &tune)) {
    return EXIT_USAGE;
  }
  int code = cli_load(c);
  if (code) {
    return code;
  }
  cli_take_first_shape(c);
  if (!tune.emu && !tune.launch) {
    evaluate_for_kernels(&c->spec);
  }
  if (!cli_chosen_system(c, &tune.system)) {
    return EXIT_USAGE;
  }
  c->spec.plan.system = tune.system;
  Progress progress = {c->arena, tune.trials};
  if (!c->options->quiet && isatty(STDERR_FILENO)) {
    tune.report = show;
    tune.context = &progress;
  }
  code = tune_search(c->arena, c->diag, &c->spec, &tune, &result);
  if (result.n_trials) {
    print_table(c, &result);
  }
  if (result.ended_by) {
    fprintf(stderr, "moec: interrupted after %d of %d trials\n", result.n_trials, tune.trials);
  }
  if (result.best >= 0) {
    int wrong = conclude(c, &result);
    code = code ? code : wrong;
  } else {
    if (code == 0 && !result.ended_by) {
      diag_error(c->diag, (Span){0}, "none of %d trials ran", result.n_trials);
    }
    code = code ? code : EXIT_BAD_SPEC;
  }
  if (result.ended_by && result.ended_by != SIGINT) { /* whoever sent it sees that it was followed */
    fflush(NULL);
    raise(result.ended_by);
  }
  return code;
}
