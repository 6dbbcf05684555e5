/* use, let and -D, over files written to a temporary folder. */
#include "t.h"

#include <unistd.h>

static char folder[] = "/tmp/moec-test-lang-XXXXXX";

static void write_file(const char *name, const char *text)
{
  char path[200];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  fputs(text, file);
  fclose(file);
}

static const char *path_of(T *t, const char *name)
{
  return arena_printf(t->arena, "%s/%s", folder, name);
}

static const char rest[] = "model m { layers = 2;  hidden = 64;  vocab = 100  attention { heads = 4 }\n"
                           "  moe { experts = 4;  top_k = 2;  hidden = 32 } }\n"
                           "gpu g { flops = 1 TFLOPS;  memory = 1 GB;  hbm = 1 TB/s }\n"
                           "node n { gpu = g;  gpus = 1;  nics = 0 }\n"
                           "cluster { nodes = 1;  node = n }\n";

static int make_folder(void **state)
{
  (void)state;
  if (!mkdtemp(folder)) {
    return 1;
  }
  write_file("rest.moespec", rest);
  write_file("lets.moespec", "let SEQ = 4Ki\nlet HALF = SEQ / 2\n");
  write_file("main.moespec",
             "use \"rest.moespec\"\nuse \"lets.moespec\"\nshape s { seq = SEQ;  global_batch = HALF / 1Ki }\n");
  write_file("diamond.moespec", "use \"lets.moespec\"\nuse \"main.moespec\"\nuse \"./lets.moespec\"\n");
  return 0;
}

static int remove_folder(void **state)
{
  static const char *const files[] = {"rest.moespec", "lets.moespec", "main.moespec", "diamond.moespec"};
  (void)state;
  for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
    char path[200];
    snprintf(path, sizeof path, "%s/%s", folder, files[i]);
    unlink(path);
  }
  return rmdir(folder);
}

static bool build(T *t, const char *name, const char *const *defines, int n, Spec *spec)
{
  AstFile *file = ast_parse(t->arena, t->diag, path_of(t, name), defines, n);
  return file && spec_build(t->arena, t->diag, file, spec);
}

static void lets_cross_files(void **state)
{
  (void)state;
  T t;
  t_open(&t);
  Spec spec;
  assert_true(build(&t, "main.moespec", NULL, 0, &spec));
  assert_int_equal(spec.shapes[0].seq, 4096);
  assert_int_equal(spec.shapes[0].global_batch, 2);
  assert_string_equal(t_messages(&t), "");
  t_close(&t);
}

static void a_file_counts_once(void **state)
{
  (void)state;
  T t;
  t_open(&t);
  Spec spec;
  assert_true(build(&t, "diamond.moespec", NULL, 0, &spec));
  assert_int_equal(spec.n_shapes, 1);
  t_close(&t);
}

static void defines_override_lets_everywhere(void **state)
{
  (void)state;
  T t;
  t_open(&t);
  Spec spec;
  static const char *const defines[] = {"SEQ=1Ki", "SEQ=8 * 1Ki"}; /* the last one wins */
  assert_true(build(&t, "main.moespec", defines, 2, &spec));
  assert_int_equal(spec.shapes[0].seq, 8192);
  assert_int_equal(spec.shapes[0].global_batch, 4);
  t_close(&t);
}

static void bad_defines_are_told(void **state)
{
  (void)state;
  static const char *const wrong[] = {"SEX=1", "SEQ", "=1", "SEQ=", "SEQ=1 2", "SEQ=4;", "a b=1", "SEQ=}", "SEQ=1 GB"};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    T t;
    t_open(&t);
    Spec spec;
    assert_false(build(&t, "main.moespec", &wrong[i], 1, &spec));
    assert_true(diag_errors(t.diag) > 0);
    t_close(&t);
  }
}

static void missing_file(void **state)
{
  (void)state;
  T t;
  t_open(&t);
  assert_null(ast_parse(t.arena, t.diag, "/nonexistent/x.moespec", NULL, 0));
  t_contains(t_messages(&t), "cannot read '/nonexistent/x.moespec': No such file");
  t_close(&t);
}

static void a_folder_is_no_file(void **state)
{
  (void)state;
  T t;
  t_open(&t);
  assert_null(ast_parse(t.arena, t.diag, folder, NULL, 0));
  t_contains(t_messages(&t), "Is a directory");
  t_close(&t);
}

static void byte_order_mark_and_crlf(void **state)
{
  (void)state;
  T t;
  t_open(&t);
  AstFile *file = t_parse(&t, "\xef\xbb\xbflet a = 1\r\nlet b = 2 # x\r\n");
  assert_non_null(file);
  char *text = t_format(file);
  assert_string_equal(text, "let a = 1\nlet b = 2  # x\n");
  free(text);
  t_close(&t);
}

static void words_after_numbers(void **state)
{
  (void)state;
  T t;
  t_open(&t);
  AstFile *file = t_parse(&t, "a = 1 b = 2 c { d = 3 e f { g = 4 h = 5 us i = 6K/j k = 7 GB/s } }");
  assert_non_null(file);
  char *text = t_format(file);
  assert_string_equal(text, "a = 1;  b = 2;  c { d = 3;  e f { g = 4;  h = 5 us;  i = 6K/j;  k = 7 GB/s } }\n");
  free(text);
  t_close(&t);
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(lets_cross_files),
                                     cmocka_unit_test(a_file_counts_once),
                                     cmocka_unit_test(defines_override_lets_everywhere),
                                     cmocka_unit_test(bad_defines_are_told),
                                     cmocka_unit_test(missing_file),
                                     cmocka_unit_test(a_folder_is_no_file),
                                     cmocka_unit_test(byte_order_mark_and_crlf),
                                     cmocka_unit_test(words_after_numbers)};
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
