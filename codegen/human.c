#include "codegen/human.h"

#include <stdio.h>

/* Three digits at least, none after the point from 100 on. */
static int decimals(double n)
{
  return n < 9.995 ? 2 : n < 99.95 ? 1 : 0;
}

static char *scaled(char text[HUMAN_MAX], double n, double step, const char *const *units, int n_units, const char *gap)
{
  int u = 0;
  while (n >= 0.9995 * step && u + 1 < n_units) {
    n /= step;
    u++;
  }
  snprintf(text, HUMAN_MAX, "%.*f%s%s", u == 0 && n == (double)(long long)n ? 0 : decimals(n), n, gap, units[u]);
  return text;
}

char *human_time(char text[HUMAN_MAX], double ns)
{
  static const char *const units[] = {"ns", "us", "ms", "s"};
  return scaled(text, ns, 1000, units, 4, " ");
}

char *human_bytes(char text[HUMAN_MAX], double bytes)
{
  static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  return scaled(text, bytes, 1024, units, 6, " ");
}

char *human_count(char text[HUMAN_MAX], double n)
{
  static const char *const units[] = {"", "K", "M", "G", "T"};
  return scaled(text, n, 1000, units, 5, "");
}

char *human_percent(char text[HUMAN_MAX], double of_one)
{
  snprintf(text, HUMAN_MAX, "%.1f %%", 100 * of_one);
  return text;
}
