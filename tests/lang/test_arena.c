#include "t.h"

static void memory_is_zero_and_aligned(void **state)
{
  (void)state;
  Arena *arena = arena_new();
  for (size_t n = 0; n < 5000; n += 7) {
    char *p = arena_alloc(arena, n);
    assert_int_equal((uintptr_t)p % 16, 0);
    for (size_t i = 0; i < n; i++) {
      assert_int_equal(p[i], 0);
      p[i] = (char)i;
    }
  }
  arena_free(arena);
}

static void large_pieces_leave_small_ones_alone(void **state)
{
  (void)state;
  Arena *arena = arena_new();
  char *a = arena_strndup(arena, "abc", 3);
  char *large = arena_alloc(arena, 5 << 20);
  char *b = arena_strndup(arena, "defg", 2);
  memset(large, 1, 5 << 20);
  assert_string_equal(a, "abc");
  assert_string_equal(b, "de");
  arena_free(arena);
}

static void printf_formats(void **state)
{
  (void)state;
  Arena *arena = arena_new();
  assert_string_equal(arena_printf(arena, "%d of %s", 3, "x"), "3 of x");
  assert_string_equal(arena_printf(arena, "%s", ""), "");
  char *text = arena_printf(arena, "%*s", 100000, "");
  assert_int_equal(strlen(text), 100000);
  arena_free(arena);
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(memory_is_zero_and_aligned),
                                     cmocka_unit_test(large_pieces_leave_small_ones_alone),
                                     cmocka_unit_test(printf_formats)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
