/* A spec of 10 MB is read in linear time: several kinds of large files, each also at half its size. The limit is 2 s of
   processor time where nothing is instrumented (TIME_LIMIT_S overrides it). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lang/spec.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SLOWER = 8, MEGABYTES = 1 }; /* instrumented: only that it works */
#else
enum { SLOWER = 1, MEGABYTES = 10 };
#endif

static const char rest[] = "model m { layers = 4;  hidden = 128;  vocab = 512  attention { heads = 4 }\n"
                           "  moe { experts = 8;  top_k = 2;  hidden = 256 } }\n"
                           "gpu g { flops = 1 TFLOPS;  memory = 1 GB;  hbm = 1 TB/s }\n"
                           "node n { gpu = g;  gpus = 1;  nics = 0 }\ncluster { nodes = 1;  node = n }\n"
                           "shape s { seq = 128;  global_batch = 16 }\n";

typedef enum Kind { SHAPES, LETS, COMMENTS, ONE_LINE, ERRORS, WARNINGS, LISTS, GPUS, UNKNOWN_KEYS, N_KINDS } Kind;

static const char *const names[N_KINDS] = {"shapes", "lets",     "comments", "one line",    "errors",
                                           "unused", "one list", "gpus",     "unknown keys"};

/* Returns the bytes written. */
static int piece(FILE *out, Kind kind, long i)
{
  switch (kind) {
  case SHAPES:
    return fprintf(out, "shape s%ld {  # number %ld\n  seq = X%ld + 1;  global_batch = 16 }\n", i, i, i % 7);
  case LETS:
    return fprintf(out, "let L%ld = L%ld + 1  # another\n", i, i - 1);
  case COMMENTS:
    return fprintf(out, "# comment %ld\n\n", i);
  case ONE_LINE:
    return fprintf(out, "shape s%ld { seq = 1;  global_batch = 16 }  ", i);
  case ERRORS:
    return fprintf(out, "shape s%ld { seq = ;  global_batch = 16 }\n", i);
  case WARNINGS:
    return fprintf(out, "let unused%ld = %ld GiB\n", i, i);
  case LISTS:
    return fprintf(out, ", %ld", i % 1000 + 1);
  case GPUS:
    return fprintf(
        out,
        "gpu g%ld { flops = 1 TFLOPS;  memory = 1 GB;  hbm = 1 TB/s }\nnode n%ld { gpu = g%ld;  gpus = 1;  nics = "
        "0 }\n",
        i, i, i);
  default:
    return fprintf(out, "shape s%ld { sequ = 1;  global_batch = 16;  seq = nothing%ld }\n", i, i);
  }
}

static char *make_text(Kind kind, size_t bytes, size_t *n)
{
  char *text = NULL;
  FILE *out = open_memstream(&text, n);
  fputs(rest, out);
  for (int i = 0; i < 7; i++) {
    fprintf(out, "let X%d = 1\n", i);
  }
  fputs(kind == LETS ? "let L0 = 0\n" : kind == LISTS ? "plan { attention_gpus = 1" : "", out);
  size_t written = 0;
  for (long i = 1; written < bytes; i++) {
    written += (size_t)piece(out, kind, i);
  }
  fputs(kind == LISTS ? " }\n" : "", out);
  fclose(out);
  return text;
}

/* Seconds to read and format a text of one kind. */
static double read_text(Kind kind, size_t bytes)
{
  size_t n = 0;
  char *text = make_text(kind, bytes, &n);
  char *messages = NULL;
  size_t n_messages = 0;
  FILE *out = open_memstream(&messages, &n_messages);
  clock_t start = clock();
  Arena *arena = arena_new();
  Diag *diag = diag_new(arena, out);
  AstFile *file = ast_parse_text(arena, diag, "large.moespec", text, n, false, NULL, 0);
  Spec spec;
  bool good = file && spec_build(arena, diag, file, &spec);
  diag_finish(diag);
  arena_free(arena);
  double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
  fclose(out);
  bool meant = kind != ERRORS && kind != UNKNOWN_KEYS && kind != LISTS;
  if (good != meant || n_messages > 20000) {
    fprintf(stderr, "%s: %s\n%.2000s\n", names[kind], good ? "passed" : "failed", messages);
    exit(1);
  }
  free(messages);
  free(text);
  return seconds;
}

static double format_text(Kind kind, size_t bytes)
{
  size_t n = 0;
  char *text = make_text(kind, bytes, &n);
  FILE *out = fopen("/dev/null", "w");
  Arena *arena = arena_new();
  Diag *diag = diag_new(arena, out);
  AstFile *file = ast_parse_text(arena, diag, "large.moespec", text, n, false, NULL, 0);
  clock_t start = clock();
  if (file) {
    ast_print(file, out);
  }
  double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
  arena_free(arena);
  fclose(out);
  free(text);
  return seconds;
}

int main(void)
{
  const char *set = getenv("TIME_LIMIT_S");
  double limit = (set ? atof(set) : 2.0) * SLOWER;
  size_t bytes = (size_t)MEGABYTES << 20;
  int failed = 0;
  for (int kind = 0; kind < N_KINDS; kind++) {
    bool slow = true;
    for (int reading = 0; reading < 3 && slow;
         reading++) { /* others on the machine may have slowed down the first ones */
      double half = read_text((Kind)kind, bytes / 2);
      double whole = read_text((Kind)kind, bytes);
      double format = kind == ERRORS ? 0 : format_text((Kind)kind, bytes);
      slow = whole > limit || format > limit || (SLOWER == 1 && whole > 0.2 && whole > 3.5 * half);
      printf("%-12s  %d MB: %.2f s, half of it: %.2f s, format %.2f s%s\n", names[kind], MEGABYTES, whole, half, format,
             slow ? "  TOO SLOW" : "");
    }
    failed += slow;
  }
  return failed > 0;
}
