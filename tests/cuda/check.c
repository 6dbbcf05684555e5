#include "check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifdef __SANITIZE_ADDRESS__
enum { GUARD = 0 }; /* its own guards are closer */
#else
enum { GUARD = 64 };
#endif

float wave(size_t i)
{
  return (float)((i * 2654435761u >> 7) % 2048) / 1024.0f - 1.0f;
}

/* -- memory -- */

enum { MAX_BUFFERS = 256 };

static struct {
  uint8_t *p;
  size_t bytes;
} buffers[MAX_BUFFERS];

/* What guards hold: a signalling NaN in either type, which arithmetic would change. */
static uint8_t guard_byte(const uint8_t *at)
{
  return (uintptr_t)at % 2 ? 0xff : 0xa5;
}

void *dev_new(size_t bytes)
{
  size_t i = 0;
  void *p;
  while (i < MAX_BUFFERS && buffers[i].p != NULL) {
    i++;
  }
  assert_true(i < MAX_BUFFERS);
  assert_int_equal(posix_memalign(&p, 64, bytes + 2 * GUARD), 0);
  memset(p, 0xff, bytes + 2 * GUARD);
  buffers[i].p = (uint8_t *)p + GUARD;
  buffers[i].bytes = bytes;
  for (size_t g = GUARD; g-- > 0;) {
    buffers[i].p[(ptrdiff_t)g - GUARD] = guard_byte(buffers[i].p + g - GUARD);
    buffers[i].p[bytes + g] = guard_byte(buffers[i].p + bytes + g);
  }
  return buffers[i].p;
}

void *dev_copy(const void *from, size_t bytes)
{
  void *p = dev_new(bytes);
  memcpy(p, from, bytes);
  return p;
}

void dev_free(void *p)
{
  for (size_t i = 0; i < MAX_BUFFERS; i++) {
    if (buffers[i].p == p && p != NULL) {
      const uint8_t *before = buffers[i].p - GUARD;
      const uint8_t *after = buffers[i].p + buffers[i].bytes;
      for (size_t g = GUARD; g-- > 0;) {
        bool under = before[g] != guard_byte(before + g);
        if (under || after[g] != guard_byte(after + g)) {
          fail_msg("a kernel wrote %s a buffer of %zu bytes", under ? "before" : "past", buffers[i].bytes);
        }
      }
      free(buffers[i].p - GUARD);
      buffers[i].p = NULL;
      return;
    }
  }
  fail_msg("not a buffer");
}

void ok(MoeStatus status)
{
  if (status != MOE_OK) {
    const char *error = simt_error();
    fail_msg("%s", error != NULL ? error : "a launch was refused");
  }
}

/* -- orders -- */

enum { MAX_OUTS = 32 };

static struct {
  void *now, *first;
  size_t bytes;
} outs[MAX_OUTS];
static size_t n_outs;

static void outs_free(void)
{
  for (size_t i = 0; i < MAX_OUTS && outs[i].now != NULL; i++) {
    dev_free(outs[i].now);
    outs[i].now = NULL;
  }
}

void *out_new(size_t bytes)
{
  assert_true(n_outs < MAX_OUTS);
  outs[n_outs].now = dev_new(bytes);
  outs[n_outs].bytes = bytes;
  return outs[n_outs++].now;
}

void *out_copy(const void *from, size_t bytes)
{
  return memcpy(out_new(bytes), from, bytes);
}

void in_all_orders(void (*launch)(void *c), void *c)
{
  static const struct {
    SimtOrder order;
    uint64_t seed;
    const char *name;
  } orders[] = {{SIMT_FORWARD, 0, "ascending"},
                {SIMT_REVERSE, 0, "descending"},
                {SIMT_RANDOM, 1, "random 1"},
                {SIMT_RANDOM, 2, "random 2"}};
  for (size_t o = 0; o < sizeof orders / sizeof *orders; o++) {
    outs_free();
    n_outs = 0;
    simt_order(orders[o].order, orders[o].seed);
    launch(c);
    const char *error = simt_error();
    if (error != NULL) {
      fail_msg("%s", error);
    }
    for (size_t i = 0; i < n_outs; i++) {
      if (o == 0) {
        outs[i].first = malloc(outs[i].bytes + 1);
        memcpy(outs[i].first, outs[i].now, outs[i].bytes);
      } else if (memcmp(outs[i].first, outs[i].now, outs[i].bytes) != 0) {
        fail_msg("output %zu depends on the order of threads or blocks (%s)", i, orders[o].name);
      }
    }
  }
  for (size_t i = 0; i < n_outs; i++) {
    free(outs[i].first);
  }
}

/* -- values -- */

float *float_waves(size_t n, size_t seed, float scale)
{
  float *x = malloc((n + 1) * sizeof *x);
  for (size_t i = 0; i < n; i++) {
    x[i] = moe_round(scale * wave(i + seed * 7919));
  }
  return x;
}

MoeReal *real_waves(size_t n, size_t seed, float scale)
{
  MoeReal *x = malloc((n + 1) * sizeof *x);
  for (size_t i = 0; i < n; i++) {
    x[i] = moe_put(scale * wave(i + seed * 7919));
  }
  return x;
}

double *doubles_of(const float *x, size_t n)
{
  double *y = malloc((n + 1) * sizeof *y);
  for (size_t i = 0; i < n; i++) {
    y[i] = (double)x[i];
  }
  return y;
}

double *doubles_of_reals(const MoeReal *x, size_t n)
{
  double *y = malloc((n + 1) * sizeof *y);
  for (size_t i = 0; i < n; i++) {
    y[i] = (double)moe_get(x[i]);
  }
  return y;
}

/* -- errors -- */

/* Over the norm of `size`. */
static double error_of(const double *got, const double *want, const double *size, size_t n)
{
  double diff = 0;
  double norm = 0;
  for (size_t i = 0; i < n; i++) {
    diff += (got[i] - want[i]) * (got[i] - want[i]);
    norm += size[i] * size[i];
  }
  return norm > 0 ? sqrt(diff / norm) : sqrt(diff);
}

static void check(const char *what, double *got, double *twin, const double *want, const double *size, size_t n)
{
  double error = error_of(got, want, size, n);
  double of_twin = error_of(twin, want, size, n);
  double bound = MOE_BF16 ? fmax(2 * of_twin, 1e-5) : 1e-5;
  free(got);
  free(twin);
  if (getenv("MOE_VERBOSE")) {
    print_message("    %s: %.2g, twin %.2g\n", what, error, of_twin);
  }
  if (!(error <= bound)) {
    fail_msg("%s: error %.3g, at most %.3g (the C twin's is %.3g)", what, error, bound, of_twin);
  }
}

void check_floats(const char *what, const float *got, const float *twin, const double *want, size_t n)
{
  check(what, doubles_of(got, n), doubles_of(twin, n), want, want, n);
}

void check_sums(const char *what, const float *got, const float *twin, const double *want, const double *size, size_t n)
{
  check(what, doubles_of(got, n), doubles_of(twin, n), want, size, n);
}

void check_reals(const char *what, const MoeReal *got, const MoeReal *twin, const double *want, size_t n)
{
  check(what, doubles_of_reals(got, n), doubles_of_reals(twin, n), want, want, n);
}

void check_columns(const char *what, const MoeReal *got, const MoeReal *twin, const double *want, size_t n,
                   size_t stride, size_t col, size_t width)
{
  MoeReal *cut[2] = {malloc((n * width + 1) * sizeof(MoeReal)), malloc((n * width + 1) * sizeof(MoeReal))};
  double *cut64 = malloc((n * width + 1) * sizeof *cut64);
  for (size_t r = 0; r < n; r++) {
    memcpy(cut[0] + r * width, got + r * stride + col, width * sizeof *got);
    memcpy(cut[1] + r * width, twin + r * stride + col, width * sizeof *twin);
    memcpy(cut64 + r * width, want + r * stride + col, width * sizeof *want);
  }
  check_reals(what, cut[0], cut[1], cut64, n * width);
  free(cut[0]);
  free(cut[1]);
  free(cut64);
}

void check_same(const char *what, const void *got, const void *twin, size_t bytes)
{
  const uint8_t *a = got;
  const uint8_t *b = twin;
  for (size_t i = 0; i < bytes; i++) {
    if (a[i] != b[i]) {
      fail_msg("%s: byte %zu of %zu differs from the C twin's", what, i, bytes);
    }
  }
}
