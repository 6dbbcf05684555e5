/* Loading: one text is parsed, then every file it uses, depth first. Files are told apart by their real path. */
#define _XOPEN_SOURCE 700 /* realpath */
#include "lang/ast.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <uthash.h>

#include "lang/parse_ctx.h"

enum { MAX_USE_DEPTH = 16 };
#define MAX_BYTES ((size_t)512 << 20)

typedef struct Loaded {
  const char *real;
  bool open; /* being loaded now: reaching it again is a cycle */
  UT_hash_handle hh;
} Loaded;

typedef struct Loader {
  Arena *arena;
  Diag *diag;
  Loaded *files;
  Span chain[MAX_USE_DEPTH]; /* the `use` lines that lead to the present file */
  int depth;
} Loader;

/* The whole file, or NULL with errno text in *why. */
static const char *read_file(Arena *arena, const char *path, size_t *length, const char **why)
{
  FILE *file = fopen(path, "rb");
  if (!file) {
    *why = strerror(errno);
    return NULL;
  }
  size_t cap = 1 << 16;
  size_t n = 0;
  char *text = malloc(cap);
  while (text && n <= MAX_BYTES) {
    n += fread(text + n, 1, cap - n, file);
    if (n < cap) {
      break;
    }
    char *bigger = realloc(text, 2 * cap);
    if (!bigger) {
      free(text);
    }
    text = bigger;
    cap *= 2;
  }
  *why = ferror(file) ? strerror(errno) : !text ? "out of memory" : n > MAX_BYTES ? "larger than 512 MiB" : NULL;
  fclose(file);
  char *kept = *why ? NULL : arena_strndup(arena, text, n);
  free(text);
  *length = n;
  return kept;
}

static AstFile *parse_text(Loader *loader, const char *path, const char *text, size_t length, bool expression)
{
  AstFile *file = arena_new_of(loader->arena, AstFile);
  file->path = path;
  file->text = text;
  file->length = length;
  file->source = diag_add_source(loader->diag, path, text, length);
  ParseCtx ctx = {.arena = loader->arena, .diag = loader->diag, .file = file, .expression = expression};
  if (length >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) { /* byte-order mark: a comment to nobody */
    file->text = text + 3;
    file->length = length - 3;
    file->source = diag_add_source(loader->diag, path, file->text, file->length);
  }
  parse_file(&ctx);
  return file;
}

static void load_uses(Loader *, AstFile *);

static const char *path_beside(Arena *arena, const char *user, const char *path)
{
  const char *slash = strrchr(user, '/');
  if (path[0] == '/' || !slash) {
    return path;
  }
  return arena_printf(arena, "%.*s%s", (int)(slash - user + 1), user, path);
}

static void note_chain(Loader *loader)
{
  for (int i = loader->depth; i > 0; i--) {
    diag_note(loader->diag, loader->chain[i - 1], "used from here");
  }
}

static Loaded *remember(Loader *loader, const char *real)
{
  Loaded *entry = arena_new_of(loader->arena, Loaded);
  entry->real = real;
  entry->open = true;
  HASH_ADD_KEYPTR(hh, loader->files, entry->real, strlen(entry->real), entry);
  return entry;
}

static void load_use(Loader *loader, const AstFile *user, AstItem *item)
{
  const char *path = path_beside(loader->arena, user->path, item->values->text);
  Span span = item->values->span;
  if (!*item->values->text) {
    diag_error(loader->diag, span, "'use' needs the path of a file");
    return;
  }
  char *real = realpath(path, NULL);
  if (!real) {
    diag_error(loader->diag, span, "cannot read '%s': %s", item->values->text, strerror(errno));
    return;
  }
  const char *key = arena_strndup(loader->arena, real, strlen(real));
  free(real);
  Loaded *entry = NULL;
  HASH_FIND_STR(loader->files, key, entry);
  if (entry) {
    if (entry->open) {
      diag_error(loader->diag, span, "'%s' uses itself", item->values->text);
      note_chain(loader);
    }
    return;
  }
  if (loader->depth == MAX_USE_DEPTH) {
    diag_error(loader->diag, span, "'use' nests deeper than %d files", MAX_USE_DEPTH);
    return;
  }
  size_t length = 0;
  const char *why = NULL;
  const char *text = read_file(loader->arena, path, &length, &why);
  if (!text) {
    diag_error(loader->diag, span, "cannot read '%s': %s", item->values->text, why);
    return;
  }
  entry = remember(loader, key);
  item->used = parse_text(loader, path, text, length, false);
  loader->chain[loader->depth++] = item->span;
  load_uses(loader, item->used);
  loader->depth--;
  entry->open = false;
}

/* `use` may stand only outside of blocks; spec_build says so where it does not. */
static void load_uses(Loader *loader, AstFile *file)
{
  for (AstItem *item = file->items; item; item = item->next) {
    if (item->kind == ITEM_USE) {
      load_use(loader, file, item);
    }
  }
}

static bool is_name(const char *text, size_t n)
{
  static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789";
  return n > 0 && !(text[0] >= '0' && text[0] <= '9') && strspn(text, letters) >= n;
}

static void parse_defines(Loader *loader, AstFile *file, const char *const *defines, int n)
{
  file->defines = arena_new_array(loader->arena, AstDefine, (size_t)n + 1);
  for (int i = 0; i < n; i++) {
    const char *equals = strchr(defines[i], '=');
    size_t name = equals ? (size_t)(equals - defines[i]) : 0;
    if (!equals || !is_name(defines[i], name)) {
      diag_error(loader->diag, (Span){0}, "-D %s: expected name=value", defines[i]);
      continue;
    }
    const char *path = arena_printf(loader->arena, "-D %.*s", (int)name, defines[i]);
    AstFile *value = parse_text(loader, path, equals + 1, strlen(equals + 1), true);
    if (value->items) {
      file->defines[file->n_defines++] = (AstDefine){.name = arena_strndup(loader->arena, defines[i], name),
                                                     .value = value->items->values,
                                                     .span = value->items->span};
    }
  }
}

AstFile *ast_parse_text(Arena *arena, Diag *diag, const char *path, const char *text, size_t length, bool follow,
                        const char *const *defines, int n_defines)
{
  Loader loader = {.arena = arena, .diag = diag};
  int before = diag_errors(diag);
  AstFile *file = parse_text(&loader, path, text, length, false);
  if (follow) {
    char *real = realpath(path, NULL);
    if (real) {
      remember(&loader, arena_strndup(arena, real, strlen(real)));
      free(real);
    }
    load_uses(&loader, file);
  }
  parse_defines(&loader, file, defines, n_defines);
  HASH_CLEAR(hh, loader.files);
  return diag_errors(diag) > before ? NULL : file;
}

AstFile *ast_read(Arena *arena, Diag *diag, const char *path)
{
  size_t length = 0;
  const char *why = NULL;
  const char *text = read_file(arena, path, &length, &why);
  if (!text) {
    diag_error(diag, (Span){0}, "cannot read '%s': %s", path, why);
    return NULL;
  }
  return ast_parse_text(arena, diag, path, text, length, false, NULL, 0);
}

AstFile *ast_parse(Arena *arena, Diag *diag, const char *path, const char *const *defines, int n_defines)
{
  size_t length = 0;
  const char *why = NULL;
  const char *text = read_file(arena, path, &length, &why);
  if (!text) {
    diag_error(diag, (Span){0}, "cannot read '%s': %s", path, why);
    return NULL;
  }
  return ast_parse_text(arena, diag, path, text, length, true, defines, n_defines);
}
