/* The formatter: exact texts, and over every spec and corpus file that what it prints prints as itself and means the
 * same. */
#include "t.h"

#include <dirent.h>

static void formats(const char *from, const char *to)
{
  T t;
  t_open(&t);
  AstFile *file = t_parse(&t, from);
  assert_non_null(file);
  char *text = t_format(file);
  assert_string_equal(text, to);
  AstFile *again = t_parse(&t, text);
  assert_non_null(again);
  char *twice = t_format(again);
  assert_string_equal(twice, to);
  free(text);
  free(twice);
  t_close(&t);
}

static void exact_texts(void **state)
{
  (void)state;
  formats("", "");
  formats("\n\n# only\n\n\n", "# only\n");
  formats("let  a=1 ;; let b = (a+ 2)*3", "let a = 1;  let b = (a + 2)*3\n");
  formats("a{}", "a { }\n");
  formats("a{b=1}", "a { b = 1 }\n");
  formats("a{\nb=1}", "a {\n  b = 1\n}\n");
  formats("a {\n\n\n  b = 1\n\n\n\n  cc = 2\n\n}\n\n\n", "a {\n  b = 1\n\n  cc = 2\n}\n");
  formats("a {\nb = 1\nccc = 2 # x\nd = 3 # y\n}", "a {\n  b   = 1\n  ccc = 2  # x\n  d   = 3  # y\n}\n");
  formats("a { b = 1\nc = 2 }\nddd { e = 1 }", "a   { b = 1\n      c = 2 }\nddd { e = 1 }\n");
  formats("a = 1 # one\n# two\nb = 2", "a = 1  # one\n# two\nb = 2\n");
  formats("a { # one\n# two\n}", "a {  # one\n  # two\n}\n");
  formats("a { b = 1 # one\n}", "a { b = 1  # one\n}\n");
  formats("use   \"x y\"", "use \"x y\"\n");
  formats("a=1:2,b : c+1 ,(3):-4\nbb = 64KiB:5 %", "a  = 1: 2, b: c + 1, (3): -4\nbb = 64 KiB: 5%\n");
  formats("a = 80GiB; b = 4 K; c = 25GB/s; d = 5 %", "a = 80 GiB;  b = 4K;  c = 25 GB/s;  d = 5%\n");
}

static char *read_file(const char *path, size_t *n)
{
  FILE *file = fopen(path, "rb");
  assert_non_null(file);
  char *text = calloc(1, 1 << 20);
  assert_non_null(text);
  *n = fread(text, 1, (1 << 20) - 1, file);
  fclose(file);
  return text;
}

/* `whole`: it must be a right spec without warnings. */
static int check_file(const char *path, bool whole)
{
  T t;
  t_open(&t);
  size_t n = 0;
  char *bytes = read_file(path, &n);
  AstFile *file = ast_parse_text(t.arena, t.diag, path, bytes, n, true, NULL, 0);
  int checked = 0;
  if (file) {
    char *once = t_format(file);
    AstFile *again = ast_parse_text(t.arena, t.diag, path, once, strlen(once), true, NULL, 0);
    assert_non_null(again);
    char *twice = t_format(again);
    assert_string_equal(once, twice);
    Spec spec;
    Spec other;
    bool good = spec_build(t.arena, t.diag, file, &spec);
    assert_int_equal(spec_build(t.arena, t.diag, again, &other), good);
    assert_true(!good || spec.hash == other.hash);
    if (whole && (!good || *t_messages(&t))) {
      fail_msg("%s", t_messages(&t));
    }
    free(once);
    free(twice);
    checked = 1;
  }
  free(bytes);
  t_close(&t);
  return checked;
}

static int check_folder(const char *folder, bool whole)
{
  DIR *dir = opendir(folder);
  assert_non_null(dir);
  int n = 0;
  for (struct dirent *entry = readdir(dir); entry; entry = readdir(dir)) {
    const char *dot = strrchr(entry->d_name, '.');
    if (dot && strcmp(dot, ".moespec") == 0) {
      char path[1000];
      snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
      n += check_file(path, whole);
    }
  }
  closedir(dir);
  return n;
}

static void every_spec(void **state)
{
  (void)state;
  const char *specs = getenv("MOEC_SPECS");
  const char *bad = getenv("MOEC_BAD");
  if (!specs || !bad) {
    skip();
  }
  char path[1000];
  static const char *const folders[] = {"", "/hardware", "/paper", "/golden"};
  for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
    snprintf(path, sizeof path, "%s%s", specs, folders[i]);
    assert_true(check_folder(path, i != 1) > 0);
  }
  assert_true(check_folder(bad, false) > 50);
  snprintf(path, sizeof path, "%s/../lang/corpus", bad);
  assert_true(check_folder(path, false) > 3);
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(exact_texts), cmocka_unit_test(every_spec)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
