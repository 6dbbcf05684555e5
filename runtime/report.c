/* JSON has no NaN, so a loss that is not finite is written as null. */
#include "runtime/report.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
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

static MoeStatus append(const MoeReport *r, const char *line, int n)
{
  if (r->log_fd >= 0 && write(r->log_fd, line, (size_t)n) != n) {
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
  return step == 1 || step == r->steps || step % stride == 0 || now - r->printed_ns > 10000000000;
}

static void print_progress(MoeReport *r, const MoeStepResult *s, double rate)
{
  int64_t now = moe_now_ns();
  if (r->live ? now - r->printed_ns < 50000000 && s->step < r->steps : !due(r, s->step, now)) {
    return;
  }
  r->printed_ns = now;
  double left_s = (double)(now - r->begin_ns) * 1e-9 / (double)s->step * (double)(r->steps - s->step);
  char mfu[32] = "";
  if (r->peak_flops > 0) {
    snprintf(mfu, sizeof mfu, "  MFU %.1f%%", 100 * rate * r->flops_per_token / r->peak_flops);
  }
  char line[256];
  snprintf(line, sizeof line,
           "step %lld/%lld  loss %.4f  grad %.3f  lr %.2e  %.0f tokens/s%s  ETA %lld:%02lld:%02lld%s%s",
           (long long)s->step, (long long)r->steps, s->loss, s->grad_norm, s->lr, rate, mfu, (long long)left_s / 3600,
           (long long)left_s / 60 % 60, (long long)left_s % 60, s->skipped ? "  (skipped)" : "",
           r->live ? "\x1b[K\r" : "\n");
  show(line);
  r->open_line = r->live;
}

MoeStatus moe_report_step(MoeReport *r, const MoeStepResult *s)
{
  double seconds = (double)s->step_ns * 1e-9;
  double rate = seconds > 0 ? (double)s->tokens / seconds : 0;
  char a[32], b[32], c[32], d[32];
  char line[320];
  int n = snprintf(line, sizeof line,
                   "{\"step\":%lld,\"loss\":%s,\"balance_loss\":%s,\"grad_norm\":%s,\"lr\":%s,\"tokens\":%lld,"
                   "\"tokens_per_s\":%.1f,\"step_ms\":%.3f}\n",
                   (long long)s->step, number(a, sizeof a, s->loss), number(b, sizeof b, s->balance_loss),
                   number(c, sizeof c, s->grad_norm), number(d, sizeof d, s->lr), (long long)s->tokens, rate,
                   (double)s->step_ns * 1e-6);
  MOE_TRY(append(r, line, n));
  print_progress(r, s, rate);
  return MOE_OK;
}

MoeStatus moe_report_eval(MoeReport *r, int64_t step, double loss)
{
  char a[32];
  char line[128];
  int n = snprintf(line, sizeof line, "{\"step\":%lld,\"eval_loss\":%s}\n", (long long)step, number(a, sizeof a, loss));
  MOE_TRY(append(r, line, n));
  snprintf(line, sizeof line, "step %lld/%lld  held-out loss %.4f%s\n", (long long)step, (long long)r->steps, loss,
           r->live ? "\x1b[K" : "");
  show(line);
  r->open_line = false;
  return MOE_OK;
}

void moe_report_end(MoeReport *r)
{
  if (r->open_line) {
    show("\n");
  }
}
