#include "t.h"

static Span add(T *t, const char *text, uint32_t begin, uint32_t end)
{
  return (Span){diag_add_source(t->diag, "f", text, strlen(text)), begin, end};
}

static void shows_line_and_caret(void **state)
{
  (void)state;
  T t;
  t_open(&t);
  diag_error(t.diag, add(&t, "one\ntwo three\nfour", 8, 13), "no %s", "three");
  assert_string_equal(t_messages(&t), "f:2:5: error: no three\n  two three\n      ^~~~~\n");
  assert_int_equal(diag_errors(t.diag), 1);
  t_close(&t);
}

static void widens_tabs(void **state)
{
  (void)state;
  T t;
  t_open(&t);
  diag_warn(t.diag, add(&t, "a\tb", 2, 3), "w");
  assert_string_equal(t_messages(&t), "f:1:3: warning: w\n  a       b\n          ^\n");
  assert_int_equal(diag_errors(t.diag), 0);
  assert_int_equal(diag_warnings(t.diag), 1);
  t_close(&t);
}

static void counts_characters_not_bytes(void **state)
{
  (void)state;
  T t;
  t_open(&t);
  diag_error(t.diag, add(&t, "\xc3\xa9\xe6\x97\xa5 x", 6, 7), "e"); /* an accented letter, a wide character */
  assert_string_equal(t_messages(&t), "f:1:4: error: e\n  \xc3\xa9\xe6\x97\xa5 x\n      ^\n");
  t_close(&t);
}

static void hides_control_and_broken_bytes(void **state)
{
  (void)state;
  T t;
  t_open(&t);
  diag_error(t.diag, add(&t, "\x1b[31m\xff\xe6 x\r\n", 8, 9), "e");
  assert_string_equal(t_messages(&t), "f:1:9: error: e\n  ?[31m?? x\n          ^\n");
  t_close(&t);
}

static void cuts_long_lines(void **state)
{
  (void)state;
  T t;
  t_open(&t);
  char *line = arena_alloc(t.arena, 5001);
  memset(line, 'x', 5000);
  line[3000] = 'Y';
  diag_error(t.diag, add(&t, line, 3000, 3001), "e");
  const char *text = t_messages(&t);
  t_contains(text, "f:1:3001: error: e\n  ...xxx");
  assert_true(strlen(text) < 300);
  const char *caret = strchr(text, '^');
  const char *second = strchr(text, '\n') + 1;
  const char *third = strchr(second, '\n') + 1;
  assert_int_equal(second[caret - third], 'Y');
  t_close(&t);
}

static void places_outside_do_no_harm(void **state)
{
  (void)state;
  T t;
  t_open(&t);
  Span span = add(&t, "ab", 90, 99);
  diag_error(t.diag, span, "far");
  diag_error(t.diag, (Span){span.source, 2, 1}, "backwards");
  diag_error(t.diag, (Span){99, 0, 1}, "no source");
  diag_error(t.diag, add(&t, "", 0, 0), "empty");
  t_contains(t_messages(&t), "moec: error: no source\n");
  assert_int_equal(diag_errors(t.diag), 4);
  t_close(&t);
}

static void stops_after_twenty(void **state)
{
  (void)state;
  T t;
  t_open(&t);
  for (int i = 0; i < 25; i++) {
    diag_error(t.diag, (Span){0}, "number %d", i);
    diag_note(t.diag, (Span){0}, "note %d", i);
  }
  diag_finish(t.diag);
  const char *text = t_messages(&t);
  t_contains(text, "number 19");
  t_contains(text, "note 19");
  assert_null(strstr(text, "number 20"));
  assert_null(strstr(text, "note 20"));
  t_contains(text, "moec: 5 more errors not shown\n");
  assert_int_equal(diag_errors(t.diag), 25);
  t_close(&t);
}

static void quotes_are_short(void **state)
{
  (void)state;
  T t;
  t_open(&t);
  assert_string_equal(diag_quote(t.diag, add(&t, "abc", 0, 2)), "'ab'");
  assert_string_equal(diag_quote(t.diag, (Span){0}), "");
  char *line = arena_alloc(t.arena, 200);
  memset(line, 'x', 199);
  assert_int_equal(strlen(diag_quote(t.diag, add(&t, line, 0, 199))), 45);
  t_close(&t);
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(shows_line_and_caret),
                                     cmocka_unit_test(widens_tabs),
                                     cmocka_unit_test(counts_characters_not_bytes),
                                     cmocka_unit_test(hides_control_and_broken_bytes),
                                     cmocka_unit_test(cuts_long_lines),
                                     cmocka_unit_test(places_outside_do_no_harm),
                                     cmocka_unit_test(stops_after_twenty),
                                     cmocka_unit_test(quotes_are_short)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
