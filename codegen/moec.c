/* moec: the command line's main. Verbs are in verbs_*.c. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "codegen/cli.h"
#include "codegen/output.h"

/* A spec or a trace, or the config.json of a folder, that the verb reads is not what it writes. */
static bool spares(Compile *c, const char *input, const char *path)
{
  struct stat of_input, of_path;
  if (!input || stat(path, &of_path) != 0 || stat(input, &of_input) != 0) {
    return true;
  }
  if (S_ISDIR(of_input.st_mode)) {
    input = arena_printf(c->arena, "%s/config.json", input);
  }
  if (stat(input, &of_input) == 0 && S_ISREG(of_input.st_mode) && of_input.st_dev == of_path.st_dev &&
      of_input.st_ino == of_path.st_ino) {
    diag_error(c->diag, (Span){0}, "cannot write %s: it is what `moec %s` reads", path, c->verb->name);
    return false;
  }
  return true;
}

static bool spares_inputs(Compile *c, const char *path)
{
  bool ok = spares(c, c->options->file, path);
  for (int i = 0; ok && i < c->options->runs.n; i++) {
    const char *run = c->options->runs.items[i], *comma = strrchr(run, ',');
    ok = !comma ||
         (spares(c, arena_printf(c->arena, "%.*s", (int)(comma - run), run), path) && spares(c, comma + 1, path));
  }
  return ok;
}

/* Files are written at the end, after what may take minutes; that they can be is found out first. */
static bool can_write(Compile *c)
{
  const Options *o = c->options;
  const char *const files[] = {o->html, o->trace, o->svg, c->verb->run == verb_build ? NULL : o->out};
  bool ok = true;
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
    ok = (!files[i] || (spares_inputs(c, files[i]) && output_check(c->arena, c->diag, files[i]))) && ok;
  }
  return ok;
}

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
    code = install_find(arena, c.diag, &install) && can_write(&c) ? verb->run(&c) : EXIT_BAD_SPEC;
    diag_finish(c.diag);
    evaluation_free(&c.result);
  }
  if (!output_written()) {
    code = EXIT_BAD_SPEC;
  }
  arena_free(arena);
  return code;
}
