/* Any bytes: parsing, building and printing must not crash, hang or leak, and what is printed must read back as the
   same. Linked with libFuzzer, or with fuzz_replay.c, which runs it over files. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lang/spec.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct Text {
  char *bytes;
  size_t n;
} Text;

static void must(bool good, const char *what, const Text *text)
{
  if (!good) {
    fprintf(stderr, "fuzz: %s\n%.*s\n", what, (int)text->n, text->bytes);
    abort();
  }
}

static Text formatted(const AstFile *file)
{
  Text text = {0};
  FILE *out = open_memstream(&text.bytes, &text.n);
  ast_print(file, out);
  fclose(out);
  return text;
}

static Text spec_text(const Spec *spec)
{
  Text text = {0};
  FILE *out = open_memstream(&text.bytes, &text.n);
  spec_print(spec, out);
  fclose(out);
  return text;
}

static AstFile *parse(Arena *arena, Diag *diag, Text text)
{
  return ast_parse_text(arena, diag, "fuzz.moespec", text.bytes, text.n, false, NULL, 0);
}

static void check_spec(Arena *arena, Diag *diag, const Spec *spec)
{
  Text text = spec_text(spec);
  Spec again;
  AstFile *file = parse(arena, diag, text);
  must(file && spec_build(arena, diag, file, &again), "a printed spec does not read back", &text);
  must(again.hash == spec->hash, "a printed spec reads back differently", &text);
  free(text.bytes);
}

static void check_file(Arena *arena, Diag *diag, const AstFile *file)
{
  Text once = formatted(file);
  AstFile *again = parse(arena, diag, once);
  must(again, "formatted text does not parse", &once);
  Text twice = formatted(again);
  must(once.n == twice.n && memcmp(once.bytes, twice.bytes, once.n) == 0, "formatting is not idempotent", &once);
  Spec spec;
  Spec other;
  bool good = spec_build(arena, diag, file, &spec);
  must(spec_build(arena, diag, again, &other) == good, "formatting changes whether a spec is right", &once);
  if (good) {
    must(spec.hash == other.hash, "formatting changes the spec", &once);
    check_spec(arena, diag, &spec);
  }
  free(once.bytes);
  free(twice.bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  Arena *arena = arena_new();
  char *messages = NULL;
  size_t n_messages = 0;
  FILE *out = open_memstream(&messages, &n_messages);
  Diag *diag = diag_new(arena, out);
  AstFile *file = parse(arena, diag, (Text){arena_strndup(arena, (const char *)data, size), size});
  if (file) {
    check_file(arena, diag, file);
  }
  diag_finish(diag);
  fclose(out);
  free(messages);
  arena_free(arena);
  return 0;
}
