#include "runtime/metrics.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "runtime/bell.h"
#include "runtime/file.h"
#include "runtime/log.h"

enum { EVERY_NS = 1000000000 };

/* A value as the format has it. */
static void print_value(FILE *out, double x)
{
  if (isnan(x)) {
    fputs("NaN\n", out);
  } else if (isinf(x)) {
    fputs(x > 0 ? "+Inf\n" : "-Inf\n", out);
  } else {
    fprintf(out, "%.17g\n", x);
  }
}

static void print_head(FILE *out, const char *name, const char *type, const char *help)
{
  fprintf(out, "# HELP moec_%s %s\n# TYPE moec_%s %s\n", name, help, name, type);
}

static void print_metric(FILE *out, const char *name, const char *type, const char *help, double x)
{
  print_head(out, name, type, help);
  fprintf(out, "moec_%s ", name);
  print_value(out, x);
}

/* which: 0 for choices, 1 for drops. */
static void print_experts(FILE *out, const MoeLoad *load, const char *name, const char *help, int which)
{
  print_head(out, name, "gauge", help);
  for (int32_t l = 0; l < load->layers; l++) {
    for (int32_t e = 0; e < load->experts; e++) {
      fprintf(out, "moec_%s{layer=\"%d\",expert=\"%d\"} %llu\n", name, load->first + l, e,
              (unsigned long long)load->cells[((size_t)l * 2 + (size_t)which) * (size_t)load->experts + (size_t)e]);
    }
  }
}

static void print_all(FILE *out, const MoeMetrics *m, double peak_flops)
{
  const MoeStepResult *s = &m->last;
  double seconds = (double)s->step_ns * 1e-9, rate = seconds > 0 ? (double)s->tokens / seconds : 0;
  print_head(out, "info", "gauge", "The program, always 1.");
  fprintf(out, "moec_info{model=\"%s\",schedule=\"%s\"} 1\n", m->model, m->system);
  print_metric(out, "step", "gauge", "Last step of training.", (double)s->step);
  print_metric(out, "steps", "gauge", "Steps of the whole run.", (double)m->steps);
  print_metric(out, "loss", "gauge", "Training loss of the step, nats per token.", s->loss);
  print_metric(out, "balance_loss", "gauge", "Balance loss of the step.", s->balance_loss);
  print_metric(out, "gradient_norm", "gauge", "Norm of the step's gradient before clipping.", s->grad_norm);
  print_metric(out, "learning_rate", "gauge", "Learning rate of the step.", s->lr);
  print_metric(out, "step_seconds", "gauge", "Duration of the step.", seconds);
  print_metric(out, "tokens_per_second", "gauge", "Tokens per second of the step, all ranks.", rate);
  if (peak_flops > 0) {
    print_metric(out, "model_flops_utilization", "gauge", "Model FLOPs over the peak of all ranks, 0 to 1.",
                 rate * s->flops_per_token / peak_flops);
  }
  if (!isnan(m->held_out)) {
    print_metric(out, "held_out_loss", "gauge", "Last held-out loss, nats per token.", m->held_out);
  }
  print_metric(out, "tokens_total", "counter", "Tokens since this run began.", m->tokens);
  print_metric(out, "skipped_steps_total", "counter", "Steps without an update, loss or gradient not finite.",
               m->skipped);
  print_metric(out, "dropped_pairs_total", "counter", "Pairs of token and expert over the capacity.", m->dropped);
  print_metric(out, "written_timestamp_seconds", "gauge", "When this file was written.", (double)time(NULL));
  if (s->load.cells != NULL) {
    print_metric(out, "fullest_expert_ratio", "gauge", "Tokens of the fullest expert over the mean of its layer.",
                 moe_load_fullest(&s->load));
    print_experts(out, &s->load, "expert_tokens", "Tokens that chose the expert in the step.", 0);
    print_experts(out, &s->load, "expert_dropped_tokens", "Of them, those over its capacity.", 1);
  }
}

static MoeStatus write_file(MoeMetrics *m, double peak_flops)
{
  char *text = NULL;
  size_t n = 0;
  FILE *out = open_memstream(&text, &n);
  if (out == NULL) {
    moe_error("out of memory for the metrics");
    return MOE_ENOMEM;
  }
  print_all(out, m, peak_flops);
  MoeStatus status = MOE_ENOMEM;
  if (fclose(out) == 0) {
    status = moe_file_put(m->path, text, n);
  } else {
    moe_error("out of memory for the metrics");
  }
  free(text);
  m->written_ns = moe_now_ns();
  m->behind = false;
  return status;
}

MoeStatus moe_metrics_step(MoeMetrics *m, const MoeStepResult *s, double peak_flops)
{
  if (m->path == NULL) {
    return MOE_OK;
  }
  m->last = *s;
  m->tokens += (double)s->tokens;
  m->skipped += s->skipped;
  m->dropped += s->dropped;
  m->behind = true;
  bool due = m->written_ns == 0 || moe_now_ns() - m->written_ns >= EVERY_NS;
  return due ? write_file(m, peak_flops) : MOE_OK;
}

void moe_metrics_eval(MoeMetrics *m, double loss)
{
  m->held_out = loss;
  m->behind = m->path != NULL;
}

MoeStatus moe_metrics_end(MoeMetrics *m, double peak_flops)
{
  return m->path != NULL && m->behind ? write_file(m, peak_flops) : MOE_OK;
}
