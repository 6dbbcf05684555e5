/* Numbers are read as mantissa x 10^exponent x unit in integers, so that 1.5 GiB, 989.4 TFLOPS and 2^63 - 1 are exact;
   only what has no integer value falls back to a double. */
#include "lang/units.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNIT(name, dim, num, den) {name, DIM_##dim, num, den},
const Unit units[] = {
#include "lang/units.def"
};
#undef UNIT
const int n_units = (int)(sizeof units / sizeof units[0]);

const Unit *unit_find(const char *name, size_t length)
{
  for (int i = 0; i < n_units; i++) {
    if (strlen(units[i].name) == length && memcmp(units[i].name, name, length) == 0) {
      return &units[i];
    }
  }
  return NULL;
}

bool unit_takes_rate(const char *word, size_t length, const char *per, size_t per_length)
{
  const Unit *unit = unit_find(word, length);
  bool plain = unit && unit->dim == DIM_NONE;
  bool second = (per_length == 1 && (per[0] == 's' || per[0] == 'S')) ||
                (per_length == 3 && memcmp(per, "sec", 3) == 0) || (per_length == 6 && memcmp(per, "second", 6) == 0);
  return second && !(plain && per[0] == 'S') && !(unit && unit->dim == DIM_TIME);
}

const char *dim_name(Dim dim)
{
  static const char *const names[DIM_COUNT] = {"a plain number", "a size", "a data rate", "a compute rate", "a time"};
  return names[dim];
}

const char *dim_example(Dim dim)
{
  static const char *const examples[DIM_COUNT] = {"8", "80 GiB", "25 GB/s", "989.4 TFLOPS", "5 us"};
  return examples[dim];
}

static bool mul64(int64_t a, int64_t b, int64_t *product)
{
  if (a == 0 || b == 0) {
    *product = 0;
    return true;
  }
  if (a == INT64_MIN || b == INT64_MIN || llabs(a) > INT64_MAX / llabs(b)) {
    return false;
  }
  *product = a * b;
  return true;
}

static bool add64(int64_t a, int64_t b, int64_t *sum)
{
  if (b > 0 ? a > INT64_MAX - b : a < INT64_MIN - b) {
    return false;
  }
  *sum = a + b;
  return true;
}

static NumStatus check_digits(const char *p)
{
  if (*p < '0' || *p > '9') {
    return NUM_SYNTAX;
  }
  if (p[0] == '0' && p[1] >= '0' && p[1] <= '9') {
    return strspn(p, "0123456789") == strlen(p) ? NUM_LEADING_ZERO : NUM_SYNTAX;
  }
  p += strspn(p, "0123456789");
  if (*p == '.') {
    size_t n = strspn(p + 1, "0123456789");
    if (n == 0) {
      return NUM_SYNTAX;
    }
    p += 1 + n;
  }
  if (*p == 'e' || *p == 'E') {
    p += p[1] == '+' || p[1] == '-' ? 2 : 1;
    size_t n = strspn(p, "0123456789");
    if (n == 0) {
      return NUM_SYNTAX;
    }
    p += n;
  }
  return *p ? NUM_SYNTAX : NUM_OK;
}

/* Integer mantissa and decimal exponent, trailing zeros moved to the exponent; false where the mantissa needs over 63
 * bits. */
static bool mantissa_of(const char *p, int64_t *mantissa, long *exponent)
{
  long scale = 0;
  long zeros = 0;
  bool point = false;
  *mantissa = 0;
  for (; *p && *p != 'e' && *p != 'E'; p++) {
    if (*p == '.') {
      point = true;
      continue;
    }
    scale -= point;
    if (*p == '0') {
      zeros++;
      continue;
    }
    for (; zeros >= 0; zeros--) {
      if (*mantissa && !mul64(*mantissa, 10, mantissa)) {
        return false;
      }
    }
    zeros = 0;
    if (!add64(*mantissa, *p - '0', mantissa)) {
      return false;
    }
  }
  long written = *p ? strtol(p + 1, NULL, 10) : 0;
  long far = 1000000000000000; /* beyond any text's length: keeps the sum below from overflowing */
  *exponent = scale + zeros + (written > far ? far : written < -far ? -far : written);
  return true;
}

static int64_t common_divisor(int64_t a, int64_t b)
{
  while (b) {
    int64_t r = a % b;
    a = b;
    b = r;
  }
  return a;
}

/* value = mantissa * 10^exponent * num / den as an integer, if it is one. */
static bool exact_value(int64_t mantissa, long exponent, int64_t num, int64_t den, int64_t *value, bool *whole)
{
  *whole = true;
  if (mantissa == 0) {
    *value = 0;
    return true;
  }
  for (; exponent < 0; exponent++) {
    if (!mul64(den, 10, &den)) {
      *whole = false;
      return false;
    }
  }
  int64_t g = common_divisor(mantissa, den);
  mantissa /= g;
  den /= g;
  g = common_divisor(num, den);
  num /= g;
  den /= g;
  while (den > 1 && exponent > 0) {
    int64_t ten = common_divisor(10, den);
    if (ten == 1) {
      break;
    }
    den /= ten;
    if (!mul64(num, 10 / ten, &num)) {
      return false;
    }
    exponent--;
  }
  if (den != 1) {
    *whole = false;
    return false;
  }
  for (; exponent > 0; exponent--) {
    if (!mul64(mantissa, 10, &mantissa)) {
      return false;
    }
  }
  return mul64(mantissa, num, value);
}

NumStatus number_read(const char *digits, const Unit *unit, Number *number)
{
  NumStatus status = check_digits(digits);
  *number = (Number){0};
  if (status != NUM_OK) {
    return status;
  }
  int64_t num = unit ? unit->num : 1;
  int64_t den = unit ? unit->den : 1;
  number->dim = unit ? unit->dim : DIM_NONE;
  int64_t mantissa = 0;
  long exponent = 0;
  bool whole = true;
  bool fits = mantissa_of(digits, &mantissa, &exponent);
  if (fits) {
    number->exact = exact_value(mantissa, exponent, num, den, &number->i, &whole);
  }
  number->d = number->exact ? (double)number->i : strtod(digits, NULL) * (double)num / (double)den;
  if (!isfinite(number->d)) {
    return NUM_HUGE;
  }
  if (number->d < 1e-300 && !(fits && mantissa == 0)) {
    return NUM_TINY;
  }
  number->overflow = !number->exact && whole && number->d >= 9.2e18;
  return NUM_OK;
}

char *real_text(char text[REAL_MAX], double x)
{
  for (int digits = 1; digits <= 17; digits++) {
    snprintf(text, REAL_MAX, "%.*g", digits, x);
    if (strtod(text, NULL) == x) {
      break;
    }
  }
  return text;
}

Number number_of(int64_t i)
{
  return (Number){.exact = true, .i = i, .d = (double)i};
}

static Number inexact(Number like, double d, bool overflow)
{
  return (Number){.dim = like.dim, .overflow = overflow, .d = d};
}

Number number_neg(Number a)
{
  a.d = -a.d;
  a.i = -a.i; /* never INT64_MIN: add64 and mul64 keep to its positive mirror, see number_add */
  return a;
}

Number number_add(Number a, Number b)
{
  Number sum = inexact(a, a.d + b.d, a.overflow || b.overflow);
  if (a.exact && b.exact) {
    sum.exact = add64(a.i, b.i, &sum.i) && sum.i != INT64_MIN;
    sum.overflow = !sum.exact;
    sum.d = sum.exact ? (double)sum.i : sum.d;
  }
  return sum;
}

Number number_mul(Number a, Number b)
{
  Number product = inexact(a.dim == DIM_NONE ? b : a, a.d * b.d, a.overflow || b.overflow);
  if (a.exact && b.exact) {
    product.exact = mul64(a.i, b.i, &product.i);
    product.overflow = !product.exact;
    product.d = product.exact ? (double)product.i : product.d;
  }
  return product;
}

Number number_div(Number a, Number b)
{
  Number quotient = inexact(a, a.d / b.d, false);
  if (b.dim != DIM_NONE) {
    quotient.dim = DIM_NONE;
  }
  if (a.exact && b.exact && a.i % b.i == 0) {
    quotient.exact = true;
    quotient.i = a.i / b.i;
    quotient.d = (double)quotient.i;
  }
  return quotient;
}
