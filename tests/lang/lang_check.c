/* The language's library from the command line, for the tests:

     lang_check check [-D name=value]... [--shape names] FILE    diagnostics; exit 1 if there are errors, 2 with options

     lang_check print|fmt|hash FILE

     lang_check reference|words|dictionary */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lang/spec.h"

typedef struct Args {
  const char *verb, *path, *shapes;
  const char *defines[32];
  int n_defines;
} Args;

static int usage(void)
{
  fprintf(stderr, "usage: lang_check check|print|fmt|hash [-D name=value] [--shape names] FILE\n"
                  "       lang_check reference|words|dictionary\n");
  return 2;
}

static bool read_args(int argc, char **argv, Args *args)
{
  args->verb = argc > 1 ? argv[1] : "";
  for (int i = 2; i < argc; i++) {
    if (strcmp(argv[i], "-D") == 0 && i + 1 < argc && args->n_defines < 32) {
      args->defines[args->n_defines++] = argv[++i];
    } else if (strcmp(argv[i], "--shape") == 0 && i + 1 < argc) {
      args->shapes = argv[++i];
    } else if (!args->path) {
      args->path = argv[i];
    } else {
      return false;
    }
  }
  return true;
}

static bool on_file(Arena *arena, Diag *diag, const Args *args)
{
  bool fmt = strcmp(args->verb, "fmt") == 0;
  AstFile *file =
      fmt ? ast_read(arena, diag, args->path) : ast_parse(arena, diag, args->path, args->defines, args->n_defines);
  if (!file) {
    return false;
  }
  if (fmt) {
    ast_print(file, stdout);
    return true;
  }
  Spec spec;
  if (!spec_build(arena, diag, file, &spec) ||
      (args->shapes && !spec_select_shapes(arena, diag, &spec, args->shapes))) {
    return false;
  }
  if (strcmp(args->verb, "print") == 0) {
    spec_print(&spec, stdout);
  } else if (strcmp(args->verb, "hash") == 0) {
    printf("%016" PRIx64 "\n", spec.hash);
  }
  return true;
}

int main(int argc, char **argv)
{
  Args args = {0};
  if (!read_args(argc, argv, &args)) {
    return usage();
  }
  if (strcmp(args.verb, "reference") == 0) {
    spec_print_reference(stdout);
    return 0;
  }
  if (strcmp(args.verb, "words") == 0) {
    spec_print_words(stdout);
    return 0;
  }
  if (strcmp(args.verb, "dictionary") == 0) {
    spec_print_dictionary(stdout);
    return 0;
  }
  if (!args.path) {
    return usage();
  }
  Arena *arena = arena_new();
  Diag *diag = diag_new(arena, stderr);
  bool good = on_file(arena, diag, &args);
  diag_finish(diag);
  arena_free(arena);
  return good ? 0 : args.n_defines || args.shapes ? 2 : 1;
}
