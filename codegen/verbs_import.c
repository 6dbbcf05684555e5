/* Verb import: a spec from a Hugging Face config.json. */
#define _XOPEN_SOURCE 700 /* realpath */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "codegen/cli.h"
#include "codegen/cost.h"
#include "codegen/hf.h"
#include "codegen/output.h"

enum { MAX_CONFIG = 16 << 20 };

/* The text of the file; NULL after an error. That it is a file is known before it is opened: a pipe would wait. */
static char *read_text(Compile *c, const char *path, size_t *n_p)
{
  struct stat status;
  if (stat(path, &status) == 0 && !S_ISREG(status.st_mode)) {
    diag_error(c->diag, (Span){0}, "cannot read %s: it is no file", path);
    return NULL;
  }
  FILE *in = fopen(path, "rb");
  if (!in || fstat(fileno(in), &status) != 0) {
    output_fail(c->diag, "read", path);
    if (in) {
      fclose(in);
    }
    return NULL;
  }
  if (status.st_size > MAX_CONFIG) {
    diag_error(c->diag, (Span){0}, "%s has %lld bytes, a config.json at most %d", path, (long long)status.st_size,
               MAX_CONFIG);
    fclose(in);
    return NULL;
  }
  char *text = arena_alloc(c->arena, (size_t)status.st_size + 1);
  *n_p = fread(text, 1, (size_t)status.st_size, in);
  fclose(in);
  return text;
}

static const char *folder_of(Arena *arena, const char *path)
{
  const char *slash = path ? strrchr(path, '/') : NULL;
  return slash == path && slash ? "/" : slash ? arena_strndup(arena, path, (size_t)(slash - path)) : ".";
}

/* The hardware library as seen from the folder of the new file: relative where both are below some common folder. */
static const char *library_path(Compile *c, const char *out)
{
  const char *library = arena_printf(c->arena, "%s/specs/hardware/h800.moespec", c->install->home);
  char *from = realpath(folder_of(c->arena, out), NULL);
  char *to = realpath(library, NULL);
  if (from && to) {
    size_t common = 0;
    for (size_t i = 0; from[i] == to[i] || (!from[i] && to[i] == '/'); i++) {
      if (to[i] == '/') {
        common = i;
      }
      if (!from[i]) {
        break;
      }
    }
    const char *up = "";
    for (const char *rest = from + common; (rest = strchr(rest, '/')); rest++) {
      up = arena_printf(c->arena, "%s../", up);
    }
    library =
        common > 0 ? arena_printf(c->arena, "%s%s", up, to + common + 1) : arena_strndup(c->arena, to, strlen(to));
  }
  free(from);
  free(to);
  return library;
}

/* The least power of two of nodes of 8 GPUs of 80 GB of which 18 bytes per parameter take half. */
static int nodes_for(const HfImport *import)
{
  Spec spec = {.model = import->model};
  double bytes = 18 * cost_model_params(&spec);
  int nodes = 1;
  while (nodes < 1024 && bytes > nodes * 8 * 80e9 * 0.5) {
    nodes *= 2;
  }
  return nodes;
}

/* The text in the usual layout; NULL after errors, which it has where the numbers do not go together. */
static const char *formatted(Compile *c, const char *path, const char *text, size_t n, size_t *n_p)
{
  Spec spec;
  AstFile *ast = ast_parse_text(c->arena, c->diag, path, text, n, true, NULL, 0);
  if (!ast || !spec_build(c->arena, c->diag, ast, &spec)) {
    return NULL;
  }
  Printed usual;
  printed_open(&usual);
  ast_print(ast, usual.to);
  printed_keep(&usual, c->arena);
  *n_p = usual.n;
  return usual.text;
}

int verb_import(Compile *c)
{
  const char *path = c->options->file;
  const char *out = c->options->out;
  struct stat status;
  size_t n = 0;
  if (stat(path, &status) == 0 && S_ISDIR(status.st_mode)) {
    size_t length = strlen(path);
    path = arena_printf(c->arena, "%s%sconfig.json", path, path[length - 1] == '/' ? "" : "/");
  }
  const char *text = read_text(c, path, &n);
  HfImport import;
  if (!text || !hf_import(c->arena, c->diag, path, text, n, &import)) {
    return EXIT_BAD_SPEC;
  }
  const char *library = library_path(c, out);
  if (out && !cli_spares(c, arena_printf(c->arena, "%s/specs/hardware/h800.moespec", c->install->home), out)) {
    return EXIT_BAD_SPEC;
  }
  Printed raw;
  printed_open(&raw);
  hf_import_print(&import, path, library, nodes_for(&import), raw.to);
  printed_keep(&raw, c->arena);
  text = formatted(c, out ? out : "spec.moespec", raw.text, raw.n, &n);
  if (!text) {
    return EXIT_BAD_SPEC;
  }
  if (!out) {
    fwrite(text, 1, n, stdout);
    return 0;
  }
  return output_replace(c->arena, c->diag, out, text, n) ? 0 : EXIT_BAD_SPEC;
}
