/* Verb calibrate: a hardware library from traces. */
#include <ctype.h>
#include <math.h>
#include <string.h>

#include "codegen/calibrate.h"
#include "codegen/cli.h"
#include "codegen/human.h"
#include "codegen/output.h"

/* "F.moespec,TRACE.json" */
static bool read_run(Compile *c, Calibration *cal, const char *text)
{
  const char *comma = strrchr(text, ',');
  const char *spec = arena_strndup(c->arena, text, comma ? (size_t)(comma - text) : 0);
  return calibrate_read(c->arena, c->diag, cal, spec, comma + 1);
}

/* Modelled over measured time of a kind of op or message, weighted by time. */
typedef struct Residual {
  double modelled, measured, worst;
  int n;
} Residual;

static void add_residual(Residual *r, double modelled, double measured, int n)
{
  double off = modelled / measured - 1;
  r->worst = fabs(off) > fabs(r->worst) ? off : r->worst;
  r->modelled += modelled * n;
  r->measured += measured * n;
  r->n += n;
}

static void print_residual(FILE *out, const char *name, const Residual *r, double total)
{
  if (r->n) {
    fprintf(out, "#   %-12s %6d  %9.1f %%  %+8.1f %%  %+8.1f %%\n", name, r->n, 100 * r->measured / total,
            100 * (r->modelled / r->measured - 1), 100 * r->worst);
  }
}

static void print_residuals(const Calibration *cal, const ClusterSpec *cluster, FILE *out)
{
  Residual ops[MOE_OP_COUNT] = {0}, msgs[MOE_EDGE_COUNT] = {0};
  double compute = 0, network = 0;
  for (int i = 0; i < cal->n_ops; i++) {
    const CalOp *o = &cal->ops[i];
    add_residual(&ops[o->kind], calibrate_op_ns(cal, o, cluster), o->ns, o->n);
    compute += o->ns * o->n;
  }
  for (int i = 0; i < cal->n_msgs; i++) {
    const CalMsg *m = &cal->msgs[i];
    add_residual(&msgs[m->edge], calibrate_msg_ns(cal, m, cluster), m->ns, m->n);
    network += m->ns * m->n;
  }
  fprintf(out, "# Modelled over measured time, medians of equal ops:\n#   %-12s %6s  %11s  %10s  %10s\n", "op", "n",
          "of compute", "off by", "at worst");
  for (int k = 0; k < MOE_OP_COUNT; k++) {
    print_residual(out, moe_op_name((MoeOpKind)k), &ops[k], compute);
  }
  if (network > 0) {
    fprintf(out, "# The same of messages that had the ports to themselves:\n");
  }
  for (int k = 0; k < MOE_EDGE_COUNT; k++) {
    print_residual(out, moe_edge_name((MoeEdge)k), &msgs[k], network);
  }
}

static void print_kept(const CalFit *fit, const ClusterSpec *c, FILE *out)
{
  const struct {
    const char *name;
    bool kept;
  } rows[] = {{"gemm", !fit->gemm},
              {"grouped_gemm", !fit->grouped},
              {"attention", !fit->attention},
              {"attention, backward", !fit->attention_back},
              {"nvlink", !fit->nvlink && c->gpus > 1},
              {"nic", !fit->nic && c->nics > 0}};
  const char *lead = "# Not in these runs, so as it was: ";
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    if (rows[i].kept) {
      fprintf(out, "%s%s", lead, rows[i].name);
      lead = ", ";
    }
  }
  fputs(lead[0] == ',' ? "\n" : "", out);
}

/* The gpu and node blocks of a printed spec, under new names. */
static void print_blocks(const Spec *spec, const char *name, FILE *out)
{
  Printed whole;
  printed_open(&whole);
  spec_print(spec, whole.to);
  fflush(whole.to);
  const char *gpu = strstr(whole.text, "\ngpu "), *node = strstr(whole.text, "\nnode "),
             *cluster = strstr(whole.text, "\ncluster ");
  if (!gpu || !node || !cluster) {
    die("a printed spec has no gpu, node and cluster");
  }
  const char *brace = strchr(node, '{');
  fprintf(out, "%.*s\n\nnode %s_node %.*s\n", (int)(node - gpu), gpu, name, (int)(cluster - brace), brace);
  printed_drop(&whole);
}

static void print_library(const Calibration *cal, const Spec *fitted, const CalFit *fit, const char *name, FILE *out)
{
  fprintf(out, "# Fitted by moec calibrate to %d run%s:\n", cal->n_runs, cal->n_runs == 1 ? "" : "s");
  for (int i = 0; i < cal->n_runs; i++) {
    const CalRun *r = &cal->runs[i];
    fprintf(out, "#   %s as traced in %s: %s, %d ranks, %d ops and messages\n", r->spec_path, r->trace_path,
            plan_system_name(r->system), r->ranks, r->events);
  }
  print_residuals(cal, &fitted->cluster, out);
  print_kept(fit, &fitted->cluster, out);
  print_blocks(fitted, name, out);
}

static bool is_name(const char *text)
{
  bool ok = isalpha((unsigned char)*text) || *text == '_';
  for (const char *p = text; *p; p++) {
    ok = ok && (isalnum((unsigned char)*p) || *p == '_');
  }
  return ok && strlen(text) <= 32;
}

int verb_calibrate(Compile *c)
{
  const Options *o = c->options;
  const char *name = o->name ? o->name : "calibrated";
  Calibration cal = {0};
  CalFit fit;
  if (o->runs.n == 0) {
    return cli_usage_error("calibrate needs runs: --run F.moespec,TRACE.json", NULL);
  }
  if (!is_name(name)) {
    return cli_usage_error("--name takes letters, digits and _, 32 at most, not", name);
  }
  for (int i = 0; i < o->runs.n; i++) {
    const char *comma = strrchr(o->runs.items[i], ',');
    if (!comma || comma == o->runs.items[i] || !comma[1]) {
      return cli_usage_error("--run takes a spec and the trace of its run, F.moespec,TRACE.json, not",
                             o->runs.items[i]);
    }
  }
  for (int i = 0; i < o->runs.n; i++) {
    if (!read_run(c, &cal, o->runs.items[i])) {
      return EXIT_BAD_SPEC;
    }
  }
  if (!cli_spares_sources(c)) {
    return EXIT_BAD_SPEC;
  }
  Spec fitted = cal.runs[0].spec;
  fitted.cluster.gpu.name = name;
  calibrate_fit(c->arena, &cal, &fitted.cluster, &fit);
  if (!o->out) {
    print_library(&cal, &fitted, &fit, name, stdout);
    return 0;
  }
  Printed file;
  printed_open(&file);
  print_library(&cal, &fitted, &fit, name, file.to);
  return output_finish(&file, c->arena, c->diag, o->out) ? 0 : EXIT_BAD_SPEC;
}
