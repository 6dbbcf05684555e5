/* What a verb writes is none of what it reads, and nothing is written twice. */
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>

#include "codegen/cli.h"
#include "codegen/output.h"
#include "runtime/moe_link.h"

const char *cli_out(const Compile *c)
{
  static const struct {
    int (*run)(Compile *);
    const char *ending, *without; /* without a name */
  } known[] = {{verb_build, "", "bundle"}, {verb_sim, ".svg", "schedule"}, {verb_report, ".html", "report"}};
  for (size_t i = 0; !c->options->out && i < sizeof known / sizeof *known; i++) {
    if (known[i].run == c->verb->run) {
      const char *stem = cli_stem(c);
      return arena_printf(c->arena, "%s%s", stem ? stem : known[i].without, known[i].ending);
    }
  }
  return c->options->out;
}

/* The file of an output, NULL where the row is none or writes nothing. That of `build` is a folder. */
static const char *output_of(const Compile *c, int row)
{
  const OptRow *option = &cli_options[row];
  if (option->field == offsetof(Options, out)) {
    return c->verb->run == verb_build ? NULL : cli_out(c);
  }
  return option->kind == OPT_OUT ? cli_text(c->options, option) : NULL;
}

bool cli_spares(Compile *c, const char *input, const char *path)
{
  struct stat st;
  if (input && stat(input, &st) == 0 && S_ISREG(st.st_mode) && moe_same_place(input, path)) {
    diag_error(c->diag, (Span){0}, "cannot write %s: it is what `moec %s` reads", path, c->verb->name);
    return false;
  }
  return true;
}

/* Of a folder it is the config.json that is read. */
static bool spares_named(Compile *c, const char *input, const char *path)
{
  struct stat st;
  bool folder = input && stat(input, &st) == 0 && S_ISDIR(st.st_mode);
  return cli_spares(c, folder ? arena_printf(c->arena, "%s/config.json", input) : input, path);
}

static bool spares_inputs(Compile *c, const char *path)
{
  bool ok = spares_named(c, c->options->file, path);
  for (int i = 0; ok && i < cli_n_options; i++) {
    ok = cli_options[i].kind != OPT_IN || cli_spares(c, cli_text(c->options, &cli_options[i]), path);
  }
  for (int i = 0; ok && i < c->options->runs.n; i++) {
    const char *run = c->options->runs.items[i], *comma = strrchr(run, ',');
    ok = !comma || (cli_spares(c, arena_printf(c->arena, "%.*s", (int)(comma - run), run), path) &&
                    cli_spares(c, comma + 1, path));
  }
  return ok;
}

static bool differs_from_others(Compile *c, int row)
{
  for (int other = 0; other < row; other++) {
    const char *path = output_of(c, other);
    if (path && moe_same_place(path, output_of(c, row))) {
      diag_error(c->diag, (Span){0}, "--%s and --%s name the same file, %s", cli_options[other].name,
                 cli_options[row].name, path);
      return false;
    }
  }
  return true;
}

/* Files are written at the end, after what may take minutes; that they can be is found out first. */
bool cli_can_write(Compile *c)
{
  bool ok = true;
  for (int i = 0; i < cli_n_options; i++) {
    const char *path = output_of(c, i);
    ok =
        (!path || (spares_inputs(c, path) && differs_from_others(c, i) && output_check(c->arena, c->diag, path))) && ok;
  }
  return ok;
}

bool cli_spares_sources(Compile *c)
{
  for (int i = 0; i < cli_n_options; i++) {
    const char *path = output_of(c, i);
    for (int s = 0; path && s < diag_sources(c->diag); s++) {
      if (!cli_spares(c, diag_source_path(c->diag, s), path)) {
        return false;
      }
    }
  }
  return true;
}
