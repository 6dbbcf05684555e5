/* moec: the command line's main. Verbs are in verbs_*.c. */
#include <errno.h>
#include <string.h>

#include "codegen/cli.h"

static bool output_written(void)
{
  if (fflush(stdout) == 0 && !ferror(stdout)) {
    return true;
  }
  fprintf(stderr, "moec: cannot write the output: %s\n", strerror(errno));
  return false;
}

int main(int argc, char **argv)
{
  Install install;
  Arena *arena = arena_new();
  Options options = {0};
  int code = 0;
  const Verb *verb = cli_read(arena, argc, argv, &options, &code);
  if (verb) {
    Compile c = {.verb = verb, .options = &options, .install = &install, .arena = arena};
    c.diag = diag_new(arena, stderr);
    code = install_find(arena, c.diag, &install) && cli_can_write(&c) ? verb->run(&c) : EXIT_BAD_SPEC;
    diag_finish(c.diag);
    evaluation_free(&c.result);
  }
  if (!output_written()) {
    code = EXIT_BAD_SPEC;
  }
  arena_free(arena);
  return code;
}
