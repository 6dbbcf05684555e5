/* Verbs that plan and schedule: plan, schedule, sim. */
#include <stdlib.h>

#include "codegen/cli.h"
#include "codegen/fastest.h"
#include "codegen/metrics.h"
#include "codegen/output.h"
#include "codegen/plan_explain.h"

int cli_joint(Compile *c, const Evaluation *own, Joint *joint)
{
  SystemKind system;
  return cli_chosen_system(c, &system) ? evaluate_joint(c->diag, &c->spec, system, own, joint) : EXIT_USAGE;
}

int cli_schedule(Compile *c, int shape)
{
  SystemKind system;
  if (!cli_chosen_system(c, &system)) {
    return EXIT_USAGE;
  }
  evaluation_free(&c->result);
  return evaluate_shape(c->diag, &c->spec, shape, system, &c->result);
}

/* How much longer the next system takes. */
void cli_print_choice(const Compile *c, FILE *out)
{
  const Evaluation *e = &c->result;
  Contender list[SYSTEM_COUNT] = {0};
  int refused = 0;
  for (int i = 0; i < e->n_outcomes; i++) {
    const Outcome *o = &e->outcomes[i];
    list[i] = (Contender){o->system, o->ran ? (double)o->step_ns : 0};
    refused += !o->ran;
  }
  if (!e->n_outcomes) {
    return;
  }
  fprintf(out, "schedule = auto: %s", fastest_text(c->arena, list, e->n_outcomes));
  fprintf(out, refused ? "; %d of %d cannot run this (moec compare says why)\n" : "\n", refused, e->n_outcomes);
}

/* A spec loaded and its first shape scheduled. */
static int one_schedule(Compile *c)
{
  int code = cli_load(c);
  if (code) {
    return code;
  }
  cli_take_first_shape(c);
  return cli_schedule(c, 0);
}

static void print_one_plan(Compile *c)
{
  Evaluation *e = &c->result;
  e->plan.solver.ms = c->options->timing ? e->plan.solver.ms : 0; /* else the same input gives the same bytes */
  if (c->options->json) {
    plan_print_json(&c->spec, &e->plan, stdout);
    return;
  }
  plan_print(&c->spec, &e->plan, stdout);
  cli_print_choice(c, stdout);
  if (c->options->explain) {
    plan_explain(&c->spec, e->plans, e->n_plans, stdout);
  }
}

int verb_plan(Compile *c)
{
  const Options *o = c->options;
  if (o->json && o->explain) {
    return cli_usage_error("--explain is words and --json is not; choose one", NULL);
  }
  int code = cli_load(c);
  if (code) {
    return code;
  }
  if (o->json) { /* one document */
    cli_take_first_shape(c);
  }
  int n = c->spec.n_shapes, done = 0;
  Plan *plans = arena_new_array(c->arena, Plan, (size_t)n);
  Evaluation *kept = arena_new_array(c->arena, Evaluation, (size_t)n);
  while (done < n && !code) {
    code = cli_schedule(c, done);
    if (!code) {
      print_one_plan(c);
      plans[done] = c->result.plan;
      kept[done++] = c->result;
      c->result = (Evaluation){0};
    }
  }
  if (!code && n > 1) {
    Joint joint;
    code = cli_joint(c, kept, &joint);
    if (!code) {
      joint_print(&c->spec, kept, &joint, stdout);
    }
    joint_free(&joint);
  }
  if (!code && o->svg) {
    Printed svg;
    printed_open(&svg);
    plan_roofline_svg(&c->spec, plans, n, svg.to);
    code = output_finish(&svg, c->arena, c->diag, o->svg) ? 0 : EXIT_BAD_SPEC;
  }
  for (int i = 0; i < done; i++) {
    evaluation_free(&kept[i]);
  }
  return code;
}

typedef void Printer(const Spec *, const Plan *, const Schedule *, FILE *);

/* Prints to a file; without a path does nothing. */
static bool write_to(Compile *c, const char *path, Printer *print)
{
  if (!path) {
    return true;
  }
  Printed file;
  printed_open(&file);
  print(&c->spec, &c->result.plan, &c->result.sched, file.to);
  return output_finish(&file, c->arena, c->diag, path);
}

int verb_schedule(Compile *c)
{
  if (c->options->json && c->options->orders) {
    return cli_usage_error("--json and --orders print different things", NULL);
  }
  int code = one_schedule(c);
  if (code) {
    return code;
  }
  const Options *o = c->options;
  if (!write_to(c, o->trace, sched_print_trace) || !write_to(c, o->svg, sched_print_svg)) {
    return EXIT_BAD_SPEC;
  }
  Printer *print = o->json ? sched_print_json : o->orders ? sched_print_orders : sched_print;
  print(&c->spec, &c->result.plan, &c->result.sched, stdout);
  if (!o->json && !o->orders) {
    cli_print_choice(c, stdout);
  }
  return 0;
}

int verb_sim(Compile *c)
{
  int code = one_schedule(c);
  if (code) {
    return code;
  }
  const Options *o = c->options;
  const char *out = cli_out(c);
  if (!write_to(c, out, sched_print_svg) || !write_to(c, o->trace, sched_print_trace)) {
    return EXIT_BAD_SPEC;
  }
  Metrics metrics;
  metrics_of(c->arena, &c->spec, &c->result.plan, &c->result.sched, &metrics);
  metrics_print(&c->spec, &c->result.plan, &c->result.sched, &metrics, stdout);
  cli_print_choice(c, stdout);
  printf("drawn in %s\n", out);
  return 0;
}
