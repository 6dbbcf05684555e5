/* Slurm writes lists of hosts in a compressed form: names with one or more bracketed ranges, of which the last goes
   fastest; zeros in front of a range's first number are kept in all. */
#include "runtime/boot.h"

#include <stdio.h>
#include <string.h>

enum { MOST = 1000000, DIGITS = 9 };

/* A whole number of at most 9 digits; how many digits it has, 0 if there is none. */
static int32_t digits(const char *text, int32_t *value_p)
{
  int32_t n = 0;
  for (*value_p = 0; n < DIGITS && text[n] >= '0' && text[n] <= '9'; n++) {
    *value_p = *value_p * 10 + (text[n] - '0');
  }
  return text[n] >= '0' && text[n] <= '9' ? 0 : n;
}

typedef struct Range {
  int32_t first, n, width;
} Range;

/* "3", "07", "25-27"; returns what follows, NULL if it is no range. */
static const char *read_range(const char *text, Range *r)
{
  int32_t last;
  r->width = digits(text, &r->first);
  const char *end = text + r->width;
  last = r->first;
  if (r->width > 0 && *end == '-') {
    int32_t more = digits(end + 1, &last);
    end = more > 0 ? end + 1 + more : NULL;
  }
  r->n = last - r->first + 1;
  return r->width > 0 && end != NULL && r->n > 0 && r->n <= MOST ? end : NULL;
}

/* "[10,20,25-27]": its size, and what follows in *end_p; 0 if it is no list. number_p: number i of it. */
static int32_t read_bracket(const char *text, int32_t i, Range *number_p, const char **end_p)
{
  int32_t total = 0;
  const char *at = text;
  do {
    Range r;
    at = read_range(at + 1, &r);
    if (at == NULL || total > MOST - r.n) {
      return 0;
    }
    if (i >= total && i < total + r.n) {
      *number_p = (Range){.first = r.first + i - total, .n = 1, .width = r.width};
    }
    total += r.n;
  } while (*at == ',');
  *end_p = at + 1;
  return *at == ']' ? total : 0;
}

static bool in_name(char c)
{
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
}

/* One element of the list, up to a comma or the end: how many hosts it stands for, 0 if it is wrong. */
static int32_t count_element(const char *text, const char **end_p)
{
  int64_t count = 1;
  const char *at = text;
  while (*at != ',' && *at != '\0') {
    Range unused;
    int32_t n = in_name(*at) ? 1 : 0;
    const char *next = at + 1;
    if (*at == '[') {
      n = read_bracket(at, -1, &unused, &next);
    }
    count *= n;
    if (count == 0 || count > MOST) {
      return 0;
    }
    at = next;
  }
  *end_p = at;
  return at > text ? (int32_t)count : 0;
}

int32_t moe_slurm_hosts(const char *list)
{
  int32_t total = 0;
  const char *at = list;
  for (;;) {
    int32_t n = count_element(at, &at);
    if (n == 0 || total > MOST - n) {
      return -1;
    }
    total += n;
    if (*at == '\0') {
      return total;
    }
    at++;
  }
}

/* Host i of an element that count_element() has accepted. */
static bool name_element(const char *text, const char *end, int32_t count, int32_t i, char *name, size_t n)
{
  size_t used = 0;
  while (text < end && used + 1 < n) {
    if (*text != '[') {
      name[used++] = *text++;
      continue;
    }
    Range number = {0};
    const char *after = NULL;
    count /= read_bracket(text, -1, &number, &after);
    (void)read_bracket(text, i / count, &number, &after);
    i %= count;
    int wrote = snprintf(name + used, n - used, "%0*d", (int)number.width, (int)number.first);
    used += wrote > 0 ? (size_t)wrote : 0;
    text = after;
  }
  if (used >= n) {
    return false;
  }
  name[used] = '\0';
  return text == end;
}

bool moe_slurm_host(const char *list, int32_t i, char *name, size_t n)
{
  if (moe_slurm_hosts(list) <= i || i < 0) {
    return false;
  }
  for (const char *at = list;; at++) {
    const char *end;
    int32_t count = count_element(at, &end);
    if (i < count) {
      return name_element(at, end, count, i, name, n);
    }
    i -= count;
    at = end;
  }
}

int32_t moe_slurm_tasks(const char *text, int32_t i, int32_t *at_p, int32_t *total_p)
{
  int32_t hosts = 0;
  int64_t total = 0;
  *at_p = 0;
  for (const char *at = text;; at++) {
    int32_t tasks, times = 1;
    int32_t n = digits(at, &tasks);
    if (n == 0 || tasks == 0) {
      return -1;
    }
    at += n;
    if (at[0] == '(' && at[1] == 'x') {
      n = digits(at + 2, &times);
      if (n == 0 || times == 0 || at[2 + n] != ')') {
        return -1;
      }
      at += n + 3;
    }
    if (hosts > MOST - times || (int64_t)tasks * times > MOST - total) {
      return -1;
    }
    if (i >= hosts && i < hosts + times) {
      *at_p = tasks;
    }
    hosts += times;
    total += (int64_t)tasks * times;
    if (*at == '\0') {
      *total_p = (int32_t)total;
      return hosts;
    }
    if (*at != ',') {
      return -1;
    }
  }
}
