/* The safetensors reader and writer: bytes as the reference writer's, pieces from several processes, folders with an
   index, and files that break the format, each refused with its reason in one line. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/log.h"
#include "runtime/mapped.h"
#include "runtime/safetensors.h"
#include "tests/ref/safetensors.h"

static char folder[] = "/tmp/moe-st-XXXXXX";
static char path[64];
static char message[1024];

static int make_folder(void **state)
{
  (void)state;
  if (mkdtemp(folder) == NULL) {
    return -1;
  }
  snprintf(path, sizeof path, "%s/a.safetensors", folder);
  return 0;
}

static int remove_folder(void **state)
{
  (void)state;
  char command[96];
  snprintf(command, sizeof command, "rm -r %s", folder);
  return system(command);
}

static void put_bytes(const char *name, const void *bytes, size_t n)
{
  char where[96];
  snprintf(where, sizeof where, "%s/%s", folder, name);
  FILE *f = fopen(where, "wb");
  assert_non_null(f);
  assert_int_equal(fwrite(bytes, 1, n, f), n);
  assert_int_equal(fclose(f), 0);
}

/* A file of this header and this many bytes of data; header_bytes 0: the header's own length. */
static void put(const char *name, const char *header, uint64_t header_bytes, size_t data_bytes)
{
  size_t n = strlen(header);
  uint8_t *all = calloc(8 + n + data_bytes + 1, 1);
  assert_non_null(all);
  uint64_t length = header_bytes > 0 ? header_bytes : n;
  memcpy(all, &length, 8);
  memcpy(all + 8, header, n);
  for (size_t i = 0; i < data_bytes; i++) {
    all[8 + n + i] = (uint8_t)i;
  }
  put_bytes(name, all, 8 + n + data_bytes);
  free(all);
}

/* Opens what must be refused, and looks for the reason in the message. */
static void refuse_path(const char *where, const char *reason)
{
  _Atomic uint32_t failed = 0;
  MoeStSet s;
  message[0] = '\0';
  moe_log_to(message, sizeof message, &failed);
  MoeStatus status = moe_st_open(&s, where);
  moe_log_to(NULL, 0, NULL);
  if (status == MOE_OK || strstr(message, reason) == NULL || strchr(message, '\n') != NULL) {
    fail_msg("expected '%s' in '%s' (status %d)", reason, message, status);
  }
  assert_non_null(strstr(message, where));
  assert_null(s.tensors);
}

static void refuse(const char *header, uint64_t header_bytes, size_t data_bytes, const char *reason)
{
  put("a.safetensors", header, header_bytes, data_bytes);
  refuse_path(path, reason);
}

#define ENTRY(name, dtype, shape, offsets)                                                                             \
  "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define F32_ENTRY(name, shape, offsets) ENTRY(name, "F32", shape, offsets)

static void broken_files_are_refused(void **state)
{
  (void)state;
  static const struct {
    const char *header;
    uint64_t header_bytes;
    size_t data_bytes;
    const char *reason;
  } files[] = {
      {"{}", 3, 0, "a header of 3 bytes, but only 2 follow: the file is truncated"},
      {"{}", 100000000, 0, "a header of 100000000 bytes, but only 2 follow"},
      {"{}", 100000001, 0, "a header of 100000001 bytes; at most 100000000"},
      {"{}", UINT64_MAX, 0, "a header of 18446744073709551615 bytes; at most"},
      {"", 0, 0, "does not begin with {"},
      {"", 0, 4, "does not begin with {"},
      {"[]", 0, 0, "does not begin with {"},
      {" {}", 0, 0, "does not begin with {"},
      {"\xef\xbb\xbf{}", 0, 0, "does not begin with {"},
      {"{", 0, 0, "is not valid JSON at byte 1"},
      {"{}}", 0, 0, "is not valid JSON at byte 3"},
      {"{\"a\":1}", 0, 0, "\"a\" is not described by exactly"},
      {"{\"a\":[]}", 0, 0, "\"a\" is not described by exactly"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[]}}", 0, 4, "not described by exactly"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4],\"x\":1}}", 0, 4, "not described by exactly"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"offsets\":[0,4]}}", 0, 4, "data_offsets that are not two"},
      {"{\"a\":{\"dtype\":3,\"shape\":[],\"data_offsets\":[0,4]}}", 0, 4, "has no dtype"},
      {"{" ENTRY("a", "F31", "[1]", "[0,4]") "}", 0, 4, "unknown dtype \"F31\""},
      {"{" ENTRY("a", "f32", "[1]", "[0,4]") "}", 0, 4, "unknown dtype \"f32\""},
      {"{" F32_ENTRY("a", "3", "[0,4]") "}", 0, 4, "a shape that is not a list"},
      {"{" F32_ENTRY("a", "[-1]", "[0,4]") "}", 0, 4, "a shape that is not a list of whole numbers"},
      {"{" F32_ENTRY("a", "[1.0]", "[0,4]") "}", 0, 4, "a shape that is not a list of whole numbers"},
      {"{" F32_ENTRY("a", "[1e0]", "[0,4]") "}", 0, 4, "a shape that is not a list of whole numbers"},
      {"{" F32_ENTRY("a", "[\"1\"]", "[0,4]") "}", 0, 4, "a shape that is not a list of whole numbers"},
      {"{" F32_ENTRY("a", "[9223372036854775808]", "[0,4]") "}", 0, 4, "too big integer"},
      {"{" F32_ENTRY("a", "[4611686018427387904,4]", "[0,0]") "}", 0, 0, "too large"},
      {"{" F32_ENTRY("a", "[4294967296,4294967296,16]", "[0,0]") "}", 0, 0, "too large"},
      {"{" F32_ENTRY("a", "[9223372036854775807]", "[0,4]") "}", 0, 4, "too large"},
      {"{" ENTRY("a", "F4", "[3]", "[0,1]") "}", 0, 1, "not a whole number of bytes in F4"},
      {"{" ENTRY("a", "F6_E2M3", "[2]", "[0,1]") "}", 0, 1, "not a whole number of bytes in F6_E2M3"},
      {"{" F32_ENTRY("a", "[1]", "[0]") "}", 0, 4, "data_offsets that are not two whole numbers"},
      {"{" F32_ENTRY("a", "[1]", "[0,4,8]") "}", 0, 4, "data_offsets that are not two whole numbers"},
      {"{" F32_ENTRY("a", "[1]", "[-4,0]") "}", 0, 4, "data_offsets that are not two whole numbers"},
      {"{" F32_ENTRY("a", "[1]", "[4,0]") "}", 0, 4, "F32 [1], 4 bytes, but its data_offsets are [4, 0]"},
      {"{" F32_ENTRY("a", "[2,3]", "[0,4]") "}", 0, 4, "F32 [2, 3], 24 bytes, but its data_offsets are [0, 4]"},
      {"{" F32_ENTRY("a", "[1]", "[9223372036854775803,9223372036854775807]") "}", 0, 4, "has only 4: it is truncated"},
      {"{" F32_ENTRY("a", "[2]", "[0,8]") "}", 0, 4, "ends at byte 8 of the data, but the file has only 4"},
      {"{" F32_ENTRY("a", "[2]", "[0,8]") "}", 0, 9, "1 bytes follow the last tensor"},
      {"{}", 0, 4, "4 bytes follow the last tensor"},
      {"{" F32_ENTRY("a", "[1]", "[0,4]") "," F32_ENTRY("b", "[1]", "[0,4]") "}", 0, 4, "overlaps 4 bytes with tensor"},
      {"{" F32_ENTRY("a", "[2]", "[0,8]") "," F32_ENTRY("b", "[1]", "[6,10]") "}", 0, 10, "\"b\" overlaps 2 bytes"},
      {"{" F32_ENTRY("a", "[1]", "[0,4]") "," F32_ENTRY("b", "[1]", "[8,12]") "}", 0, 12, "leaves 4 bytes unused"},
      {"{" F32_ENTRY("a", "[1]", "[4,8]") "}", 0, 8, "\"a\" leaves 4 bytes unused before it"},
      {"{" F32_ENTRY("a", "[0]", "[4,4]") "}", 0, 4, "\"a\" leaves 4 bytes unused before it"},
      {"{" F32_ENTRY("a", "[1]", "[0,4]") "," F32_ENTRY("a", "[1]", "[4,8]") "}", 0, 8, "duplicate object key"},
      {"{" F32_ENTRY("a", "[1]", "[0,4]") "," F32_ENTRY("\\u0061", "[1]", "[4,8]") "}", 0, 8, "duplicate object key"},
      {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 0, 4,
       "duplicate object key"},
      {"{" F32_ENTRY("a\xff", "[1]", "[0,4]") "}", 0, 4, "unable to decode byte 0xff"},
      {"{" F32_ENTRY("a\xc0\xaf", "[1]", "[0,4]") "}", 0, 4, "unable to decode byte 0xc0"},
      {"{" F32_ENTRY("a\xed\xa0\x80", "[1]", "[0,4]") "}", 0, 4, "unable to decode byte 0xed"},
      {"{" F32_ENTRY("a\\ud800", "[1]", "[0,4]") "}", 0, 4, "invalid Unicode"},
      {"{" F32_ENTRY("a\\u0000", "[1]", "[0,4]") "}", 0, 4, "NUL byte in object key"},
      {"{" F32_ENTRY("a\nb", "[1]", "[0,4]") "}", 0, 4, "unexpected newline"},
      {"{" F32_ENTRY("a\\nb", "[1]", "[0,8]") "}", 0, 8, "tensor \"a?b\" is F32 [1]"},
      {"{\"__metadata__\":[]}", 0, 0, "__metadata__ is not an object"},
      {"{\"__metadata__\":{\"step\":1}}", 0, 0, "a value that is no text, of \"step\""},
  };
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
    refuse(files[i].header, files[i].header_bytes, files[i].data_bytes, files[i].reason);
  }
  put_bytes("a.safetensors", "1234567", 7);
  refuse_path(path, "its 7 bytes are too few");
  put_bytes("a.safetensors", "", 0);
  refuse_path(path, "its 0 bytes are too few");
  refuse_path("/nonexistent/file", "No such file");
  refuse_path("/dev/zero", "not a regular file");
}

/* Nested a hundred thousand deep: refused, not followed. */
static void deep_headers_are_refused(void **state)
{
  (void)state;
  enum { DEPTH = 100000 };
  char *text = malloc(2 * DEPTH + 16);
  assert_non_null(text);
  strcpy(text, "{\"a\":");
  memset(text + 5, '[', DEPTH);
  memset(text + 5 + DEPTH, ']', DEPTH);
  strcpy(text + 5 + 2 * DEPTH, "}");
  refuse(text, 0, 0, "maximum parsing depth reached");
  free(text);
}

/* Every cut of a good file, and every byte of it turned over: refused, or still a file whose tensors can be read. */
static void damaged_files_are_no_danger(void **state)
{
  (void)state;
  const char *header = "{" F32_ENTRY("a", "[2]", "[0,8]") "," ENTRY("b", "U8", "[3]", "[8,11]") "}";
  uint8_t good[256] = {(uint8_t)strlen(header)};
  size_t n = 8 + strlen(header) + 11;
  memcpy(good + 8, header, strlen(header));
  _Atomic uint32_t failed = 0;
  moe_log_to(message, sizeof message, &failed);
  for (size_t cut = 0; cut < n; cut++) {
    MoeStSet s;
    put_bytes("a.safetensors", good, cut);
    assert_int_not_equal(moe_st_open(&s, path), MOE_OK);
  }
  for (size_t at = 0; at < n; at++) {
    for (int bit = 0; bit < 8; bit++) {
      MoeStSet s;
      good[at] ^= (uint8_t)(1 << bit);
      put_bytes("a.safetensors", good, n);
      good[at] ^= (uint8_t)(1 << bit);
      uint64_t sum = 0;
      if (moe_st_open(&s, path) == MOE_OK) {
        for (int32_t i = 0; i < s.n; i++) {
          for (uint64_t k = 0; k < s.tensors[i].bytes; k++) {
            sum += s.tensors[i].data[k];
          }
        }
        moe_st_close(&s);
      }
      assert_true(sum < 11 * 256);
    }
  }
  moe_log_to(NULL, 0, NULL);
}

static void what_the_format_allows_is_read(void **state)
{
  (void)state;
  MoeStSet s;
  /* no padding, tensors in any order, empty ones, a scalar, escapes, metadata, blanks at the end */
  put("a.safetensors",
      "{" ENTRY("b", "U8", "[3]", "[0,3]") "," F32_ENTRY(
          "z", "[0,7]", "[3,3]") ",\"__metadata__\":{\"format\":\"pt\"}," F32_ENTRY("\\u00e4\\\"", "[]",
                                                                                    "[3,7]") "," ENTRY("a", "F4",
                                                                                                       "[2,3]",
                                                                                                       "[7,10]") "}   ",
      0, 10);
  assert_int_equal(moe_st_open(&s, path), MOE_OK);
  assert_int_equal(s.n, 4);
  assert_string_equal(moe_st_metadata(&s, "format"), "pt");
  assert_null(moe_st_metadata(&s, "step"));
  const MoeStTensor *t = moe_st_find(&s, "\xc3\xa4\"");
  assert_non_null(t);
  assert_int_equal(t->n_dims, 0);
  assert_int_equal(t->data[0], 3);
  t = moe_st_find(&s, "a");
  assert_int_equal(t->dtype, MOE_ST_F4);
  assert_int_equal(t->shape[1], 3);
  assert_int_equal(t->bytes, 3);
  assert_int_equal(t->data[2], 9);
  assert_int_equal(moe_st_find(&s, "z")->bytes, 0);
  assert_null(moe_st_find(&s, "__metadata__"));
  moe_st_close(&s);
  put("a.safetensors", "{}", 0, 0);
  assert_int_equal(moe_st_open(&s, path), MOE_OK);
  assert_int_equal(s.n, 0);
  assert_null(moe_st_find(&s, "a"));
  moe_st_close(&s);
}

static const int64_t two_three[] = {2, 3};
static const int64_t five[] = {5};

static void written_bytes_are_the_reference_writers(void **state)
{
  (void)state;
  /* what the safetensors package 0.8 writes for these tensors and metadata {"format": "pt"} */
  static const char header[] =
      "{\"__metadata__\":{\"format\":\"pt\"},\"b\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},"
      "\"c\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[8,32]},"
      "\"a\":{\"dtype\":\"BF16\",\"shape\":[5],\"data_offsets\":[32,42]},"
      "\"d\":{\"dtype\":\"BF16\",\"shape\":[5],\"data_offsets\":[42,52]}}";
  const MoeStTensor tensors[] = {{.name = "d", .dtype = MOE_ST_BF16, .n_dims = 1, .shape = five},
                                 {.name = "c", .dtype = MOE_ST_F32, .n_dims = 2, .shape = two_three},
                                 {.name = "b", .dtype = MOE_ST_I64, .n_dims = 0, .shape = five},
                                 {.name = "a", .dtype = MOE_ST_BF16, .n_dims = 1, .shape = five}};
  const char *const metadata[] = {"format", "pt", NULL};
  uint8_t data[64];
  for (int i = 0; i < 64; i++) {
    data[i] = (uint8_t)(i + 1);
  }
  MoeStWriter w;
  assert_int_equal(moe_st_create(&w, path, tensors, 4, metadata), MOE_OK);
  assert_int_equal(moe_st_write(&w, 2, data, 8, 0), MOE_OK);
  assert_int_equal(moe_st_write(&w, 1, data + 8 + 10, 14, 10), MOE_OK);
  assert_int_equal(moe_st_write(&w, 1, data + 8, 10, 0), MOE_OK);
  assert_int_equal(moe_st_write(&w, 3, data + 32, 10, 0), MOE_OK);
  assert_int_equal(moe_st_write(&w, 0, data + 42, 10, 0), MOE_OK);
  assert_int_equal(moe_st_commit(&w), MOE_OK);
  FILE *f = fopen(path, "rb");
  uint8_t got[512];
  size_t n = fread(got, 1, sizeof got, f);
  fclose(f);
  size_t padded = (strlen(header) + 7) / 8 * 8;
  assert_int_equal(n, 8 + padded + 52);
  assert_int_equal(got[0] + 256 * got[1], padded);
  assert_memory_equal(got + 8, header, strlen(header));
  for (size_t i = strlen(header); i < padded; i++) {
    assert_int_equal(got[8 + i], ' ');
  }
  assert_memory_equal(got + 8 + padded, data, 52);
}

/* JSON has names for some control characters and numbers for the rest; 0x7f is none. */
static void names_of_any_characters_come_back(void **state)
{
  (void)state;
  char name[0x24 + 3];
  for (int c = 1; c < 0x24; c++) {
    name[c - 1] = (char)c;
  }
  strcpy(name + 0x23, "\\\x7f");
  const MoeStTensor tensors[] = {{.name = name, .dtype = MOE_ST_U8, .n_dims = 1, .shape = five},
                                 {.name = "\n", .dtype = MOE_ST_U8, .n_dims = 1, .shape = five}};
  const char *const metadata[] = {name, name, NULL};
  MoeStWriter w;
  MoeStSet s;
  assert_int_equal(moe_st_create(&w, path, tensors, 2, metadata), MOE_OK);
  assert_int_equal(moe_st_write(&w, 0, "abcde", 5, 0), MOE_OK);
  assert_int_equal(moe_st_commit(&w), MOE_OK);
  assert_int_equal(moe_st_open(&s, path), MOE_OK);
  assert_int_equal(s.n, 2);
  assert_string_equal(moe_st_metadata(&s, name), name);
  const MoeStTensor *t = moe_st_find(&s, name);
  assert_non_null(t);
  assert_memory_equal(t->data, "abcde", 5);
  static const char written[] = "\\u0007\\b\\t\\n\\u000b\\f\\r\\u000e";
  char header[1000];
  FILE *f = fopen(path, "rb");
  size_t n = fread(header, 1, sizeof header, f);
  fclose(f);
  assert_non_null(memmem(header, n, written, strlen(written)));
  moe_st_close(&s);
}

/* What is cut off while it is mapped ends the process with a line that names the file, not with a signal. */
static void a_file_that_is_cut_off_has_a_name(void **state)
{
  (void)state;
  MoeStSet s;
  char *said = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  const int64_t large[] = {100000};
  const MoeStTensor tensors[] = {{.name = "a", .dtype = MOE_ST_U8, .n_dims = 1, .shape = large}};
  MoeStWriter w;
  assert_int_equal(moe_st_create(&w, path, tensors, 1, NULL), MOE_OK);
  assert_int_equal(moe_st_commit(&w), MOE_OK);
  assert_int_equal(moe_st_open(&s, path), MOE_OK);
  assert_int_equal(truncate(path, 5000), 0);
  for (int reads = 0; reads < 2; reads++) {
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
      static _Atomic uint32_t failed;
      moe_log_to(said, 4096, &failed);
      moe_mapped_watch();
      volatile uint8_t byte = s.tensors[0].data[reads == 0 ? 100 : 50000];
      _exit(byte == 0 ? 42 : 43);
    }
    int status;
    assert_true(wait(&status) == pid && WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), reads == 0 ? 42 : 1);
  }
  assert_non_null(strstr(said, path));
  assert_non_null(strstr(said, "had 100"));
  moe_st_close(&s);
  munmap(said, 4096);
}

static void pieces_come_from_several_processes(void **state)
{
  (void)state;
  enum { N = 1000 };
  const int64_t shape[] = {N};
  const MoeStTensor tensors[] = {{.name = "a \"b\"", .dtype = MOE_ST_F32, .n_dims = 1, .shape = shape}};
  float values[N];
  for (int i = 0; i < N; i++) {
    values[i] = (float)i / 7;
  }
  MoeStWriter w;
  assert_int_equal(moe_st_create(&w, path, tensors, 1, NULL), MOE_OK);
  for (uint64_t k = 0; k < 4; k++) {
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
      _exit(moe_st_write(&w, 0, values + k * N / 4, sizeof values / 4, k * sizeof values / 4) != MOE_OK);
    }
  }
  for (int k = 0; k < 4; k++) {
    int status;
    assert_true(wait(&status) > 0);
    assert_int_equal(status, 0);
  }
  assert_int_equal(moe_st_commit(&w), MOE_OK);
  StFile oracle; /* the test tools' own reader */
  char error[ST_ERROR_BYTES];
  assert_true(st_read(path, &oracle, error));
  for (int i = 0; i < N; i++) {
    assert_true(st_value(st_find(&oracle, "a \"b\""), i) == (double)values[i]);
  }
  st_free(&oracle);
}

static void a_piece_outside_its_tensor_is_refused(void **state)
{
  (void)state;
  const MoeStTensor tensors[] = {{.name = "a", .dtype = MOE_ST_BF16, .n_dims = 1, .shape = five}};
  const int64_t huge[] = {INT64_MAX, 2};
  const MoeStTensor wrong[] = {{.name = "a", .dtype = MOE_ST_BF16, .n_dims = 2, .shape = huge}};
  MoeStWriter w;
  _Atomic uint32_t failed = 0;
  unlink(path);
  moe_log_to(message, sizeof message, &failed);
  assert_int_equal(moe_st_create(&w, path, tensors, 1, NULL), MOE_OK);
  assert_int_equal(moe_st_write(&w, 0, "abcd", 4, 7), MOE_EINVAL);
  assert_non_null(strstr(message, "bytes 7 to 11 of a tensor of 10"));
  assert_int_equal(moe_st_write(&w, 0, "abcd", 4, UINT64_MAX - 1), MOE_EINVAL);
  moe_st_abandon(&w);
  assert_int_equal(moe_st_create(&w, path, wrong, 1, NULL), MOE_EINVAL);
  moe_st_abandon(&w);
  moe_log_to(NULL, 0, NULL);
  assert_int_not_equal(access(path, F_OK), 0);
}

/* A tensor named `name` in a file of its own. */
static void put_shard(const char *file, const char *name)
{
  char header[256];
  snprintf(header, sizeof header, "{" ENTRY("%s", "U8", "[2]", "[0,2]") "}", name);
  put(file, header, 0, 2);
}

static void put_index(const char *text)
{
  put_bytes("model.safetensors.index.json", text, strlen(text));
}

static void folders_are_read_by_their_index(void **state)
{
  (void)state;
  MoeStSet s;
  unlink(path);
  refuse_path(folder, "has neither model.safetensors.index.json nor model.safetensors");
  put_shard("model.safetensors", "single");
  assert_int_equal(moe_st_open(&s, folder), MOE_OK);
  assert_non_null(moe_st_find(&s, "single"));
  moe_st_close(&s);

  put_shard("model-00000-of-00001.safetensors", "b"); /* from 0, as gpt-oss numbers them */
  put_shard("model-00001-of-00001.safetensors", "a");
  put_index("{\"metadata\":{\"total_size\":4},\"weight_map\":{\"b\":\"model-00000-of-00001.safetensors\","
            "\"a\":\"model-00001-of-00001.safetensors\"}}");
  assert_int_equal(moe_st_open(&s, folder), MOE_OK);
  assert_int_equal(s.n, 2);
  assert_string_equal(s.tensors[0].name, "a");
  assert_non_null(strstr(moe_st_find(&s, "b")->file, "model-00000"));
  assert_null(moe_st_find(&s, "single"));
  moe_st_close(&s);

  char index[96];
  snprintf(index, sizeof index, "%s/model.safetensors.index.json", folder);
  assert_int_equal(moe_st_open(&s, index), MOE_OK);
  assert_int_equal(s.n, 2);
  moe_st_close(&s);

  put_index("{\"weight_map\":{\"c\":\"model-00000-of-00001.safetensors\"}}");
  refuse_path(folder, "tensor \"c\" is said to be in");
  put_index("{\"weight_map\":{\"c\":\"model-00002-of-00002.safetensors\"}}");
  refuse_path(folder, "model-00002-of-00002.safetensors: No such file");
  put_index("{\"weight_map\":{\"a\":\"../a.safetensors\"}}");
  refuse_path(folder, "\"../a.safetensors\", which is no file of this folder");
  put_index("{\"weight_map\":{\"a\":\"/etc/passwd\"}}");
  refuse_path(folder, "which is no file of this folder");
  put_index("{\"weight_map\":{\"a\":\"..\"}}");
  refuse_path(folder, "which is no file of this folder");
  put_index("{\"weight_map\":{\"a\":\"\"}}");
  refuse_path(folder, "which is no file of this folder");
  put_index("{\"weight_map\":{\"a\":1}}");
  refuse_path(folder, "which is no file of this folder");
  put_index("{\"weight_map\":[]}");
  refuse_path(folder, "no weight_map");
  put_index("[]");
  refuse_path(folder, "not an object");
  put_index("");
  refuse_path(folder, "not valid JSON");
  put_index("{\"weight_map\":{\"a\":\"x\",\"a\":\"y\"}}");
  refuse_path(folder, "duplicate object key");
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(broken_files_are_refused),
      cmocka_unit_test(deep_headers_are_refused),
      cmocka_unit_test(damaged_files_are_no_danger),
      cmocka_unit_test(what_the_format_allows_is_read),
      cmocka_unit_test(written_bytes_are_the_reference_writers),
      cmocka_unit_test(names_of_any_characters_come_back),
      cmocka_unit_test(a_file_that_is_cut_off_has_a_name),
      cmocka_unit_test(pieces_come_from_several_processes),
      cmocka_unit_test(a_piece_outside_its_tensor_is_refused),
      cmocka_unit_test(folders_are_read_by_their_index),
  };
  return cmocka_run_group_tests_name("safetensors", tests, make_folder, remove_folder);
}
