/* Verbs that stop at the Spec: check, fmt, keys; and how all others get one. */
#include <string.h>

#include "codegen/cli.h"
#include "codegen/listener.h"
#include "codegen/output.h"

static bool read_spec(Arena *arena, Diag *diag, const char *file, const OptList *defines, AstFile **ast, Spec *spec)
{
  *ast = ast_parse(arena, diag, file, defines->items, defines->n);
  return *ast && spec_build(arena, diag, *ast, spec);
}

/* Whether the spec is right as it stands in the file. */
static bool right_without_defines(const char *file)
{
  Arena *arena = arena_new();
  Listener *unread = listener_new(arena);
  AstFile *ast;
  Spec spec;
  bool right = read_spec(arena, unread->diag, file, &(OptList){0}, &ast, &spec);
  listener_heard(arena, unread);
  arena_free(arena);
  return right;
}

int cli_load(Compile *c)
{
  const Options *o = c->options;
  if (!read_spec(c->arena, c->diag, o->file, &o->defines, &c->ast, &c->spec)) {
    return o->defines.n && right_without_defines(o->file) ? EXIT_USAGE : EXIT_BAD_SPEC;
  }
  if (!cli_spares_sources(c)) {
    return EXIT_BAD_SPEC;
  }
  return !o->shape || spec_select_shapes(c->arena, c->diag, &c->spec, o->shape) ? 0 : EXIT_USAGE;
}

void cli_take_first_shape(Compile *c)
{
  if (c->spec.n_shapes > 1) {
    diag_warn(c->diag, c->spec.shapes[1].span,
              "the spec has %d shapes; `%s` takes the first, \"%s\" (choose with --shape)", c->spec.n_shapes,
              c->verb->name, c->spec.shapes[0].name);
    c->spec.n_shapes = 1;
  }
}

int verb_check(Compile *c)
{
  return cli_load(c);
}

int verb_fmt(Compile *c)
{
  const Options *o = c->options;
  if (o->check && o->write) {
    return cli_usage_error("-w writes the file and --check does not; choose one", NULL);
  }
  AstFile *ast = ast_read(c->arena, c->diag, o->file);
  if (!ast) {
    return EXIT_BAD_SPEC;
  }
  Printed usual;
  printed_open(&usual);
  ast_print(ast, usual.to);
  printed_keep(&usual, c->arena);
  bool same = usual.n == ast->length && memcmp(usual.text, ast->text, usual.n) == 0;
  int code = 0;
  if (o->check) {
    code = same ? 0 : EXIT_BAD_SPEC;
    if (!same) {
      diag_error(c->diag, (Span){0}, "%s is not in the usual layout (moec fmt -w writes it)", o->file);
    }
  } else if (!o->write) {
    fwrite(usual.text, 1, usual.n, stdout);
  } else if (!same && !output_replace(c->arena, c->diag, o->file, usual.text, usual.n)) {
    code = EXIT_BAD_SPEC;
  }
  return code;
}

int verb_keys(Compile *c)
{
  (void)c;
  spec_print_reference(stdout);
  return 0;
}
