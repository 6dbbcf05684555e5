/* The safetensors reader: what it writes it reads back; files that break the format are refused, each with its reason.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/ref/safetensors.h"

static char path[] = "/tmp/moe-st-XXXXXX";

static int make_path(void **state)
{
  (void)state;
  int fd = mkstemp(path);
  return fd < 0 ? -1 : close(fd);
}

static int remove_path(void **state)
{
  (void)state;
  return remove(path);
}

/* A file of this header, and this many bytes of data that count up from 0. */
static void put(const char *header, uint64_t header_bytes, int data_bytes)
{
  FILE *f = fopen(path, "wb");
  assert_non_null(f);
  assert_int_equal(fwrite(&header_bytes, 8, 1, f), 1);
  assert_int_equal(fwrite(header, 1, strlen(header), f), strlen(header));
  for (int i = 0; i < data_bytes; i++) {
    fputc(i, f);
  }
  assert_int_equal(fclose(f), 0);
}

static void written_files_read_back(void **state)
{
  (void)state;
  double wide[6] = {0, -0.0, 1.0 / 3, 1e300, -5e-324, 7};
  float narrow[2] = {1.5F, -2.25F};
  char error[ST_ERROR_BYTES];
  StTensor out[] = {
      {"b \"quoted\"", ST_F64, 2, {2, 3, 0, 0}, 6, (const uint8_t *)wide},
      {"empty", ST_F32, 2, {0, 5, 0, 0}, 0, (const uint8_t *)narrow},
      {"a", ST_F32, 1, {2, 0, 0, 0}, 2, (const uint8_t *)narrow},
      {"scalar", ST_F64, 0, {0, 0, 0, 0}, 1, (const uint8_t *)(wide + 2)},
  };
  assert_true(st_write(path, out, 4, error));
  StFile in;
  assert_true(st_read(path, &in, error));
  assert_int_equal(in.n, 4);
  assert_null(st_find(&in, "c"));
  for (int i = 0; i < 4; i++) {
    const StTensor *t = st_find(&in, out[i].name);
    assert_non_null(t);
    assert_int_equal(t->dtype, out[i].dtype);
    assert_int_equal(t->n_dims, out[i].n_dims);
    assert_int_equal(t->n, out[i].n);
    for (int64_t j = 0; j < t->n; j++) {
      double x = st_value(t, j);
      double y = st_value(&out[i], j);
      assert_memory_equal(&x, &y, sizeof x);
    }
  }
  st_free(&in);
}

static void bf16_and_unaligned_data_are_read(void **state)
{
  (void)state;
  const char *header = "{\"x\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[0,2]}} ";
  put(header, strlen(header), 0);
  FILE *f = fopen(path, "ab");
  assert_non_null(f);
  fputc(0xc0, f);
  fputc(0xbf, f); /* 0xbfc0 = -1.5 */
  fclose(f);
  StFile in;
  char error[ST_ERROR_BYTES];
  assert_true(st_read(path, &in, error));
  assert_true(st_value(&in.tensors[0], 0) == -1.5);
  st_free(&in);
}

static void refuse(const char *header, uint64_t header_bytes, int data_bytes, const char *reason)
{
  char error[ST_ERROR_BYTES] = "";
  StFile in;
  put(header, header_bytes ? header_bytes : strlen(header), data_bytes);
  assert_false(st_read(path, &in, error));
  if (!strstr(error, reason)) {
    fail_msg("expected '%s' in '%s'", reason, error);
  }
  assert_null(in.tensors);
}

#define ENTRY(name, shape, offsets) "\"" name "\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void broken_files_are_refused(void **state)
{
  (void)state;
  char error[ST_ERROR_BYTES];
  StFile in;
  assert_false(st_read("/nonexistent/file", &in, error));
  refuse("{}", 3, 0, "too short");
  refuse("{}", UINT64_MAX, 0, "too short");
  refuse("", 0, 0, "not a JSON object");
  refuse("[]", 0, 0, "not a JSON object");
  refuse(" {}", 0, 0, "not a JSON object");
  refuse("{\"a\":1}", 0, 0, "malformed");
  refuse("{}", 0, 4, "follow the last tensor");
  refuse("{" ENTRY("a", "[2]", "[0,8]") "}", 0, 4, "past the file");
  refuse("{" ENTRY("a", "[2]", "[0,8]") "}", 0, 9, "follow the last tensor");
  refuse("{" ENTRY("a", "[2]", "[0,4]") "}", 0, 4, "do not match");
  refuse("{" ENTRY("a", "[1]", "[4,0]") "}", 0, 4, "do not match");
  refuse("{" ENTRY("a", "[-1]", "[0,4]") "}", 0, 4, "bad shape");
  refuse("{" ENTRY("a", "[1.0]", "[0,4]") "}", 0, 4, "bad shape");
  refuse("{" ENTRY("a", "[4611686018427387904,4]", "[0,0]") "}", 0, 0, "bad shape");
  refuse("{" ENTRY("a", "[1]", "[0,4]") "," ENTRY("b", "[1]", "[0,4]") "}", 0, 4, "overlaps");
  refuse("{" ENTRY("a", "[1]", "[0,4]") "," ENTRY("b", "[1]", "[8,12]") "}", 0, 12, "hole");
  refuse("{" ENTRY("a", "[1]", "[0,4]") "," ENTRY("a", "[1]", "[4,8]") "}", 0, 8, "duplicate");
  refuse("{\"a\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[0,8]}}", 0, 8, "not supported");
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(written_files_read_back),
      cmocka_unit_test(bf16_and_unaligned_data_are_read),
      cmocka_unit_test(broken_files_are_refused),
  };
  return cmocka_run_group_tests_name("safetensors", tests, make_path, remove_path);
}
