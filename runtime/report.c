/* JSON has no NaN, so a loss that is not finite is written as null. */
#include "runtime/report.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/bell.h"
#include "runtime/log.h"

static const char *number(char *text, size_t n, double x)
{
  if (!isfinite(x)) {
    return "null";
  }
  snprintf(text, n, "%.9g", x);
  return text;
}

/* What tells the step's shape: in a JSON object, to people; nothing where there is only one. */
static const char *json_shape(char *text, size_t n, const char *shape)
{
  text[0] = '\0';
  if (shape != NULL) {
    snprintf(text, n, "\"shape\":\"%s\",", shape);
  }
  return text;
}

static const char *plain_shape(char *text, size_t n, const char *shape)
{
  snprintf(text, n, "%s%s", shape != NULL ? "  " : "", shape != NULL ? shape : "");
  return text;
}

static MoeStatus append(const MoeReport *r, const char *line, size_t n)
{
  if (r->log_fd >= 0 && write(r->log_fd, line, n) != (ssize_t)n) {
    moe_error("cannot write %s: %s", r->log_path, errno != 0 ? strerror(errno) : "short write");
    return MOE_EIO;
  }
  return MOE_OK;
}

static void show(const char *text)
{
  if (write(STDERR_FILENO, text, strlen(text)) < 0) {
    return; /* nobody is left to tell */
  }
}

/* A line for every step if they are few or slow, else about twenty in all, and the first and last. */
static bool due(const MoeReport *r, int64_t step, int64_t now)
{
  int64_t stride = r->steps / 20 > 1 ? r->steps / 20 : 1;
  return step == r->first_step + 1 || step == r->steps || step % stride == 0 || now - r->printed_ns > 10000000000;
}

static void print_progress(MoeReport *r, const MoeStepResult *s, double rate)
{
  int64_t now = moe_now_ns();
  if (r->live ? now - r->printed_ns < 50000000 && s->step < r->steps : !due(r, s->step, now)) {
    return;
  }
  r->printed_ns = now;
  double left_s = (double)(now - r->begin_ns) * 1e-9 / (double)(s->step - r->first_step) * (double)(r->steps - s->step);
  char mfu[32] = "";
  if (r->peak_flops > 0) {
    snprintf(mfu, sizeof mfu, "  MFU %.1f%%", 100 * rate * s->flops_per_token / r->peak_flops);
  }
  char line[352];
  char shape[80];
  snprintf(line, sizeof line,
           "step %lld/%lld%s  loss %.4f  grad %.3f  lr %.2e  %.0f tokens/s%s  ETA %lld:%02lld:%02lld%s%s",
           (long long)s->step, (long long)r->steps, plain_shape(shape, sizeof shape, s->shape), s->loss, s->grad_norm,
           s->lr, rate, mfu, (long long)left_s / 3600, (long long)left_s / 60 % 60, (long long)left_s % 60,
           s->skipped ? "  (skipped)" : "", r->live ? "\x1b[K\r" : "\n");
  show(line);
  r->open_line = r->live;
}

/* ,"NAME":[[...],...]: which: 0 for choices, 1 for drops. */
static void print_experts(FILE *out, const MoeLoad *load, const char *name, int which)
{
  fprintf(out, ",\"%s\":[", name);
  for (int32_t l = 0; l < load->layers; l++) {
    const uint64_t *cells = load->cells + ((size_t)l * 2 + (size_t)which) * (size_t)load->experts;
    for (int32_t e = 0; e < load->experts; e++) {
      fprintf(out, "%s%llu", e > 0 ? "," : l > 0 ? ",[" : "[", (unsigned long long)cells[e]);
    }
    fputc(']', out);
  }
  fputc(']', out);
}

static void print_step(FILE *out, const MoeReport *r, const MoeStepResult *s, double rate)
{
  char a[32], b[32], c[32], d[32], shape[96];
  double fullest = moe_load_fullest(&s->load);
  fprintf(out,
          "{\"step\":%lld,%s\"loss\":%s,\"balance_loss\":%s,\"grad_norm\":%s,\"lr\":%s,\"tokens\":%lld,"
          "\"tokens_per_s\":%.1f,\"step_ms\":%.3f,\"dropped\":%.0f",
          (long long)s->step, json_shape(shape, sizeof shape, s->shape), number(a, sizeof a, s->loss),
          number(b, sizeof b, s->balance_loss), number(c, sizeof c, s->grad_norm), number(d, sizeof d, s->lr),
          (long long)s->tokens, rate, (double)s->step_ns * 1e-6, s->dropped);
  if (fullest > 0) {
    fprintf(out, ",\"fullest_expert\":%.4f", fullest);
  }
  if (fullest > 0 && r->log_experts > 0 && s->step % r->log_experts == 0) {
    print_experts(out, &s->load, "load", 0);
    if (s->dropped > 0) {
      print_experts(out, &s->load, "load_dropped", 1);
    }
  }
  fputs("}\n", out);
}

MoeStatus moe_report_step(MoeReport *r, const MoeStepResult *s)
{
  double seconds = (double)s->step_ns * 1e-9;
  double rate = seconds > 0 ? (double)s->tokens / seconds : 0;
  char *line = NULL;
  size_t n = 0;
  FILE *out = r->log_fd >= 0 ? open_memstream(&line, &n) : NULL;
  MoeStatus status = MOE_OK;
  if (out != NULL) {
    print_step(out, r, s, rate);
  }
  if (r->log_fd >= 0 && (out == NULL || fclose(out) != 0)) {
    moe_error("out of memory for a line of the log");
    status = MOE_ENOMEM;
  } else {
    status = append(r, line, n);
  }
  free(line);
  MOE_TRY(status);
  print_progress(r, s, rate);
  return MOE_OK;
}

MoeStatus moe_report_rehearsed(MoeReport *r, const MoeRehearsedStep *s)
{
  char line[416], shape[96];
  double error = s->executed_ns / s->modelled_ns - 1;
  int n = snprintf(line, sizeof line,
                   "{\"step\":%lld,%s\"executed_ms\":%.6f,\"modelled_ms\":%.6f,\"late_ms\":%.6f,\"scale\":%.9g,"
                   "\"real_ms\":%.3f}\n",
                   (long long)s->step, json_shape(shape, sizeof shape, s->shape), s->executed_ns * 1e-6,
                   s->modelled_ns * 1e-6, s->late_ns * 1e-6, s->scale, (double)s->real_ns * 1e-6);
  MOE_TRY(append(r, line, (size_t)n));
  snprintf(
      line, sizeof line,
      "step %lld/%lld%s  executed %.3f ms  modelled %.3f ms  (%+.2f %%)  real %.0f ms at scale %g, ops late by up to "
      "%.1f ms\n",
      (long long)s->step, (long long)r->steps, plain_shape(shape, sizeof shape, s->shape), s->executed_ns * 1e-6,
      s->modelled_ns * 1e-6, 100 * error, (double)s->real_ns * 1e-6, s->scale, s->late_ns * s->scale * 1e-6);
  show(line);
  return MOE_OK;
}

MoeStatus moe_report_eval(MoeReport *r, int64_t step, const char *shape, double loss)
{
  char a[32], name[96];
  char line[256];
  int n = snprintf(line, sizeof line, "{\"step\":%lld,%s\"eval_loss\":%s}\n", (long long)step,
                   json_shape(name, sizeof name, shape), number(a, sizeof a, loss));
  MOE_TRY(append(r, line, (size_t)n));
  snprintf(line, sizeof line, "step %lld/%lld%s  held-out loss %.4f%s\n", (long long)step, (long long)r->steps,
           plain_shape(name, sizeof name, shape), loss, r->live ? "\x1b[K" : "");
  show(line);
  r->open_line = false;
  return MOE_OK;
}

void moe_report_saved(MoeReport *r, int64_t step, uint64_t bytes, double seconds)
{
  static const char units[] = {'k', 'M', 'G', 'T'};
  double amount = (double)bytes * 1e-3;
  size_t unit = 0;
  while (amount >= 999.5 && unit + 1 < sizeof units) {
    amount *= 1e-3;
    unit++;
  }
  char line[128];
  snprintf(line, sizeof line, "saved step %lld (%.*f %cB in %.1f s)%s\n", (long long)step, amount < 10 ? 1 : 0, amount,
           units[unit], seconds, r->live ? "\x1b[K" : "");
  show(line);
  r->open_line = false;
}

void moe_report_end(MoeReport *r)
{
  if (r->open_line) {
    show("\n");
  }
}
