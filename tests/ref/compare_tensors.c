/* compare_tensors A REF --rtol R: holds every tensor of A to the tensor of the same name in the reference.
   A tensor passes if norm(A - REF) <= R norm(REF), and max |A - REF| <= 10 R max |REF|. The first bounds the error as a
   whole, the second one that sits in few elements of a large tensor, where the norm would hide it. Rounding errors are
   spread like the values themselves, so both ratios are then alike; the factor leaves room for rows (rare tokens,
   fuller experts) whose share of rounding is above the mean. Where the reference is exactly zero, for instance an
   expert without tokens, A must be exactly zero too; --zero-atol allows a difference for gradients that cancel only
   mathematically, such as those of q and k when a sequence has one position. Missing and extra tensors fail.
   Not-a-number fails. */
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ref/safetensors.h"

enum { MAX_FACTOR = 10, SHOWN = 10 };

typedef struct Result {
  const char *name;
  double norm_ratio, max_ratio; /* of an all-zero reference: 0, or infinite if A is not zero */
  double max_diff;
  bool failed;
} Result;

static void usage(void)
{
  fputs("usage: compare_tensors A REF [--ref REF] [--rtol R (1e-4)] [--zero-atol X (0)]\n"
        "exit status: 0 all agree, 1 some differ, 2 wrong usage or unreadable file\n",
        stderr);
  exit(2);
}

static bool same_shape(const StTensor *a, const StTensor *b)
{
  return a->n_dims == b->n_dims && memcmp(a->shape, b->shape, (size_t)a->n_dims * sizeof a->shape[0]) == 0;
}

static Result compare(const StTensor *a, const StTensor *ref, double rtol, double zero_atol)
{
  Result r = {.name = ref->name};
  double diff2 = 0;
  double ref2 = 0;
  double max_ref = 0;
  bool finite = true;
  for (int64_t i = 0; i < ref->n; i++) {
    double x = st_value(a, i);
    double y = st_value(ref, i);
    finite = finite && isfinite(x) && isfinite(y);
    diff2 += (x - y) * (x - y);
    ref2 += y * y;
    max_ref = fmax(max_ref, fabs(y));
    r.max_diff = fmax(r.max_diff, fabs(x - y));
  }
  if (!finite) {
    r.norm_ratio = r.max_ratio = r.max_diff = INFINITY;
    r.failed = true;
  } else if (max_ref == 0) {
    r.norm_ratio = r.max_ratio = r.max_diff > 0 ? INFINITY : 0;
    r.failed = !(r.max_diff <= zero_atol);
  } else {
    r.norm_ratio = sqrt(diff2 / ref2);
    r.max_ratio = r.max_diff / max_ref;
    r.failed = !(r.norm_ratio <= rtol) || !(r.max_ratio <= MAX_FACTOR * rtol);
  }
  return r;
}

/* Failed ones first, then by descending norm ratio. */
static int worse_first(const void *a, const void *b)
{
  const Result *r = a;
  const Result *s = b;
  if (r->failed != s->failed) {
    return r->failed ? -1 : 1;
  }
  if (r->norm_ratio != s->norm_ratio) {
    return r->norm_ratio > s->norm_ratio ? -1 : 1;
  }
  return strcmp(r->name, s->name);
}

static void read_file(const char *path, StFile *file)
{
  char error[ST_ERROR_BYTES];
  if (!st_read(path, file, error)) {
    fprintf(stderr, "compare_tensors: error: %s\n", error);
    exit(2);
  }
}

static double read_real(const char *text)
{
  char *end;
  double x = strtod(text, &end);
  if (end == text || *end != '\0' || !(x >= 0) || !isfinite(x)) {
    usage();
  }
  return x;
}

int main(int argc, char **argv)
{
  static const struct option LONG[] = {{"rtol", required_argument, NULL, 'r'},
                                       {"zero-atol", required_argument, NULL, 'z'},
                                       {"ref", required_argument, NULL, 'f'},
                                       {NULL, 0, NULL, 0}};
  double rtol = 1e-4;
  double zero_atol = 0;
  const char *ref_path = NULL;
  for (int letter; (letter = getopt_long(argc, argv, "", LONG, NULL)) != -1;) {
    switch (letter) {
    case 'r':
      rtol = read_real(optarg);
      break;
    case 'z':
      zero_atol = read_real(optarg);
      break;
    case 'f':
      ref_path = optarg;
      break;
    default:
      usage();
    }
  }
  if (argc - optind != (ref_path ? 1 : 2)) {
    usage();
  }
  StFile a;
  StFile ref;
  read_file(argv[optind], &a);
  read_file(ref_path ? ref_path : argv[optind + 1], &ref);

  int failures = 0;
  int n = 0;
  Result *results = calloc((size_t)ref.n + 1, sizeof *results);
  if (!results) {
    fputs("compare_tensors: error: out of memory\n", stderr);
    return 2;
  }
  for (int i = 0; i < ref.n; i++) {
    const StTensor *tensor = st_find(&a, ref.tensors[i].name);
    if (!tensor || !same_shape(tensor, &ref.tensors[i])) {
      printf("%s: %s\n", tensor ? "other shape" : "missing", ref.tensors[i].name);
      failures++;
      continue;
    }
    results[n] = compare(tensor, &ref.tensors[i], rtol, zero_atol);
    failures += results[n].failed;
    n++;
  }
  for (int i = 0; i < a.n; i++) {
    if (!st_find(&ref, a.tensors[i].name)) {
      printf("extra: %s\n", a.tensors[i].name);
      failures++;
    }
  }
  qsort(results, (size_t)n, sizeof *results, worse_first);
  for (int i = 0; i < n && i < SHOWN && failures > 0; i++) {
    printf("%s norm ratio %.3g, max ratio %.3g, max difference %.3g: %s\n", results[i].failed ? "FAIL" : "ok  ",
           results[i].norm_ratio, results[i].max_ratio, results[i].max_diff, results[i].name);
  }
  printf("%s: %d tensors, %d failures, worst norm ratio %.3g (%s), rtol %.3g\n", failures ? "DIFFERENT" : "same", ref.n,
         failures, n ? results[0].norm_ratio : 0.0, n ? results[0].name : "none", rtol);
  free(results);
  st_free(&a);
  st_free(&ref);
  return failures ? 1 : 0;
}
