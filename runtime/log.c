/* Where errors go is a property of the process, set once after the fork; hence the one file-level variable here. */
#include "runtime/log.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct {
  char *text;
  size_t n;
  _Atomic uint32_t *failed;
  bool errors_only;
} sink;

void moe_log_errors_only(void)
{
  sink.errors_only = true;
}

void moe_log_to(char *text, size_t n, _Atomic uint32_t *failed)
{
  sink.text = text;
  sink.n = n;
  sink.failed = failed;
}

/* One write per line, so that lines of several processes do not mix. */
static void print_line(const char *prefix, const char *format, va_list args)
{
  char line[1024];
  int used = snprintf(line, sizeof line, "%s", prefix);
  int more = vsnprintf(line + used, sizeof line - (size_t)used - 1, format, args);
  size_t n = (size_t)used + (more > 0 ? (size_t)more : 0);
  if (n > sizeof line - 2) {
    n = sizeof line - 2;
  }
  line[n] = '\n';
  if (write(STDERR_FILENO, line, n + 1) < 0) {
    return; /* nobody is left to tell */
  }
}

void moe_error(const char *format, ...)
{
  va_list args;
  va_start(args, format);
  if (sink.text == NULL) {
    print_line("train: error: ", format, args);
  } else {
    uint32_t none = 0;
    if (atomic_compare_exchange_strong(sink.failed, &none, 1)) {
      vsnprintf(sink.text, sink.n, format, args);
      atomic_store(sink.failed, 2);
    }
  }
  va_end(args);
}

void moe_note(const char *format, ...)
{
  va_list args;
  va_start(args, format);
  if (!sink.errors_only) {
    print_line("train: ", format, args);
  }
  va_end(args);
}
