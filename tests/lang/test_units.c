#include "t.h"

#include "lang/units.h"

static Number read(const char *digits, const char *unit)
{
  Number number;
  const Unit *found = unit ? unit_find(unit, strlen(unit)) : NULL;
  assert_true(!unit || found);
  assert_int_equal(number_read(digits, found, &number), NUM_OK);
  return number;
}

static void is_exactly(const char *digits, const char *unit, int64_t value)
{
  Number number = read(digits, unit);
  if (!number.exact || number.i != value) {
    fail_msg("%s %s: %lld, exact %d", digits, unit ? unit : "", (long long)number.i, number.exact);
  }
  assert_true(number.d == (double)value);
}

static void integers_are_exact(void **state)
{
  (void)state;
  is_exactly("0", NULL, 0);
  is_exactly("1e3", NULL, 1000);
  is_exactly("1.5e1", NULL, 15);
  is_exactly("100.00", NULL, 100);
  is_exactly("9223372036854775807", NULL, INT64_MAX);
  is_exactly("9.223372036854775807e18", NULL, INT64_MAX);
  is_exactly("1.5", "K", 1500);
  is_exactly("4", "Ki", 4096);
  is_exactly("1.5", "GiB", 1610612736);
}

static void units_are_exact(void **state)
{
  (void)state;
  is_exactly("200", "Gbit/s", 25000000000);
  is_exactly("25", "GB/s", 25000000000);
  is_exactly("200", "Gb/s", 25000000000);
  is_exactly("989.4", "TFLOPS", 989400000000000);
  is_exactly("3.35", "TB/s", 3350000000000);
  is_exactly("3.3", "us", 3300);
  is_exactly("80", "GB", 80000000000);
  is_exactly("80", "GiB", 85899345920);
  is_exactly("8", "bit/s", 1);
  is_exactly("200", "%", 2);
  is_exactly("0.0000000000000000000000000000", "GB", 0);
}

static void fractions_are_not(void **state)
{
  (void)state;
  assert_false(read("0.1", NULL).exact);
  assert_false(read("1", "bit/s").exact);
  assert_false(read("1.0000000001", "KiB").exact);
  assert_true(read("70", "%").d == 0.7);
  assert_true(read("1e-6", NULL).d == 1e-6);
}

static void too_large_is_told_from_fractions(void **state)
{
  (void)state;
  assert_true(read("9223372036854775808", NULL).overflow);
  assert_true(read("99999999999999999999", NULL).overflow);
  assert_true(read("10000000000", "GB").overflow);
  assert_true(read("1e300", NULL).overflow);
  assert_false(read("1.5", NULL).overflow);
}

static void wrong_digits_are_refused(void **state)
{
  (void)state;
  static const char *const wrong[] = {"",   ".5", "5.", "1e", "1e+", "1.2.3", "0x10", "1_0",
                                      "+1", "-1", " 1", "1 ", "e5",  "nan",   "inf"};
  Number number;
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    assert_int_equal(number_read(wrong[i], NULL, &number), NUM_SYNTAX);
  }
  assert_int_equal(number_read("010", NULL, &number), NUM_LEADING_ZERO);
  assert_int_equal(number_read("00", NULL, &number), NUM_LEADING_ZERO);
  assert_int_equal(number_read("1e400", NULL, &number), NUM_HUGE);
  assert_int_equal(number_read("1e-400", NULL, &number), NUM_TINY);
  assert_int_equal(number_read("1e999999999999999999999999", NULL, &number), NUM_HUGE);
  assert_int_equal(number_read("0e999999999999999999999999", NULL, &number), NUM_OK);
}

static void shortest_text_reads_back(void **state)
{
  (void)state;
  static const struct {
    double x;
    const char *text;
  } cases[] = {{0, "0"},
               {0.1, "0.1"},
               {1.0 / 3, "0.3333333333333333"},
               {10000, "1e+04"},
               {-2.5, "-2.5"},
               {1e-6, "1e-06"},
               {0.1 + 0.2, "0.30000000000000004"},
               {1e300, "1e+300"},
               {12345, "12345"},
               {-2.2250738585072014e-308, "-2.2250738585072014e-308"}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char text[REAL_MAX];
    assert_string_equal(real_text(text, cases[i].x), cases[i].text);
    assert_true(strtod(text, NULL) == cases[i].x);
  }
}

static void arithmetic(void **state)
{
  (void)state;
  Number max = number_of(INT64_MAX);
  assert_true(number_add(max, number_of(1)).overflow);
  assert_true(number_mul(max, max).overflow);
  assert_int_equal(number_mul(number_of(-3), number_of(4)).i, -12);
  assert_int_equal(number_div(number_of(12), number_of(4)).i, 3);
  assert_false(number_div(number_of(10), number_of(4)).exact);
  assert_true(number_div(number_of(10), number_of(4)).d == 2.5);
  assert_int_equal(number_add(number_neg(max), number_of(-1)).exact, 0);
  Number size = read("4", "GiB");
  assert_int_equal(number_div(size, size).dim, DIM_NONE);
  assert_int_equal(number_div(size, number_of(2)).dim, DIM_BYTES);
  assert_int_equal(number_mul(number_of(2), size).dim, DIM_BYTES);
}

static void rates_and_divisions(void **state)
{
  (void)state;
  assert_true(unit_takes_rate("GB", 2, "s", 1));
  assert_true(unit_takes_rate("Gbit", 4, "s", 1));
  assert_true(unit_takes_rate("GB", 2, "sec", 3)); /* a misspelling to be reported */
  assert_false(unit_takes_rate("K", 1, "S", 1));   /* 4K/S divides by a let */
  assert_false(unit_takes_rate("GB", 2, "n", 1));
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(integers_are_exact),
                                     cmocka_unit_test(units_are_exact),
                                     cmocka_unit_test(fractions_are_not),
                                     cmocka_unit_test(too_large_is_told_from_fractions),
                                     cmocka_unit_test(wrong_digits_are_refused),
                                     cmocka_unit_test(shortest_text_reads_back),
                                     cmocka_unit_test(arithmetic),
                                     cmocka_unit_test(rates_and_divisions)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
