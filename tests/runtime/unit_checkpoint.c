/* CRC-32, and the manifest of a checkpoint: what is written reads back; every damage of every byte is found; text with
   a right checksum but wrong content is refused with its reason. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/checkpoint.h"
#include "runtime/crc.h"
#include "runtime/log.h"

static char message[MOE_ERROR_TEXT];
static _Atomic uint32_t failed;

static MoeStatus parse(MoeManifest *m, const char *text, size_t n)
{
  message[0] = '\0';
  failed = 0;
  moe_log_to(message, sizeof message, &failed);
  MoeStatus status = moe_manifest_parse(m, "M", text, n);
  moe_log_to(NULL, 0, NULL);
  assert_true(status == MOE_OK ? failed == 0 : failed == 2);
  return status;
}

/* Two ranks; a matrix in two parts, a vector in one; names in an order that is not theirs. */
static char *example(size_t *n_p)
{
  static MoeCkShape shapes[] = {{"short", 128, true, {640, 0, UINT64_MAX, 0xabcdef0123456789u, 0xfedcba98}},
                                {"long", 4096, true, {3, 1000, UINT64_MAX, 7, 8}}};
  static MoeCkFile files[] = {{1000, 0xdeadbeef}, {2000, 0x01}};
  static MoeCkTensor tensors[] = {{"z.weight", 2, {3, 5}, 0, 2}, {"a.weight", 1, {7, 0}, 2, 1}};
  static MoeCkPart parts[] = {{0, 0, 0, 4, {1, 2, 3}}, {0, 1, 4, 15, {4, 5, 6}}, {1, 1, 0, 7, {7, 8, 0xffffffff}}};
  MoeManifest m = {.step = 100,
                   .updates = 99,
                   .seed = UINT64_MAX,
                   .plan_hash = 0xfedcba9876543210u,
                   .next_lr = 1e-3,
                   .turn = "short:2,long:1",
                   .shapes = shapes,
                   .n_shapes = 2,
                   .model_keys = moe_ck_keys("layers = 4\nattention.heads = 2\n"),
                   .train_keys = moe_ck_keys("optimizer.betas = 0.9, 0.95\n"),
                   .options = json_pack("{s:s}", "mask-token", "-100"),
                   .files = files,
                   .n_files = 2,
                   .tensors = tensors,
                   .n_tensors = 2,
                   .parts = parts,
                   .n_parts = 3};
  char *text = moe_manifest_text(&m, n_p);
  json_decref(m.model_keys);
  json_decref(m.train_keys);
  json_decref(m.options);
  assert_non_null(text);
  assert_int_equal(strlen(text), *n_p);
  return text;
}

static void test_crc(void **state)
{
  (void)state;
  static const char known[] = "123456789"; /* the check value of this polynomial, 0xcbf43926 */
  uint8_t bytes[300];
  assert_int_equal(moe_crc32(0, known, 9), 0xcbf43926);
  assert_int_equal(moe_crc32(0, "", 0), 0);
  for (size_t i = 0; i < sizeof bytes; i++) {
    bytes[i] = (uint8_t)(i * i * 31 + 7);
  }
  uint32_t whole = moe_crc32(0, bytes, sizeof bytes), slow = 0xffffffffu;
  for (size_t i = 0; i < sizeof bytes; i++) { /* bit by bit, as it is defined */
    slow ^= bytes[i];
    for (int bit = 0; bit < 8; bit++) {
      slow = slow & 1 ? slow >> 1 ^ 0xedb88320u : slow >> 1;
    }
  }
  assert_int_equal(whole, ~slow);
  for (size_t cut = 0; cut <= sizeof bytes; cut++) {
    assert_int_equal(moe_crc32(moe_crc32(0, bytes, cut), bytes + cut, sizeof bytes - cut), whole);
  }
}

static void test_round_trip(void **state)
{
  (void)state;
  size_t n;
  MoeManifest m;
  char *text = example(&n);
  assert_int_equal(parse(&m, text, n), MOE_OK);
  assert_int_equal(m.step, 100);
  assert_int_equal(m.updates, 99);
  assert_true(m.seed == UINT64_MAX && m.plan_hash == 0xfedcba9876543210u && m.next_lr == 1e-3);
  assert_string_equal(m.turn, "short:2,long:1");
  assert_int_equal(m.n_shapes, 2);
  assert_string_equal(m.shapes[1].name, "long");
  assert_int_equal(m.shapes[1].seq, 4096);
  assert_int_equal(m.shapes[1].place.next, 3);
  assert_int_equal(m.shapes[1].place.samples, 1000);
  assert_true(m.shapes[0].place.seed == UINT64_MAX && m.shapes[0].place.identity == 0xabcdef0123456789u);
  assert_int_equal(m.shapes[0].place.content, 0xfedcba98);
  assert_string_equal(json_string_value(json_object_get(m.options, "mask-token")), "-100");
  assert_string_equal(json_string_value(json_object_get(m.model_keys, "attention.heads")), "2");
  assert_string_equal(json_string_value(json_object_get(m.train_keys, "optimizer.betas")), "0.9, 0.95");
  assert_int_equal(m.n_files, 2);
  assert_int_equal(m.files[0].bytes, 1000);
  assert_int_equal(m.files[0].header_crc, 0xdeadbeef);
  assert_int_equal(m.n_tensors, 2);
  assert_string_equal(m.tensors[0].name, "a.weight"); /* by name */
  assert_int_equal(m.tensors[0].n_dims, 1);
  const MoeCkTensor *z = &m.tensors[1];
  assert_true(z->n_dims == 2 && z->shape[0] == 3 && z->shape[1] == 5 && z->n_parts == 2);
  const MoeCkPart *p = &m.parts[z->first_part + 1];
  assert_true(p->tensor == 1 && p->file == 1 && p->begin == 4 && p->end == 15);
  assert_true(p->crc[0] == 4 && p->crc[1] == 5 && p->crc[2] == 6);
  assert_int_equal(m.parts[m.tensors[0].first_part].crc[2], 0xffffffff);
  moe_manifest_free(&m);
  free(text);
}

static void test_damage(void **state)
{
  (void)state;
  size_t n;
  MoeManifest m;
  char *text = example(&n);
  for (size_t i = 0; i < n; i++) { /* every byte becomes every other kind of byte, and each of its bits flips */
    static const char kinds[] = {'0', '9', 'a', 'f', ' ', '\n', '"',  '{',   '}',
                                 '[', ']', ',', ':', '-', '\\', '\0', '\x80'};
    char old = text[i];
    for (size_t k = 0; k < sizeof kinds + 8; k++) {
      text[i] = k < sizeof kinds ? kinds[k] : (char)(old ^ 1 << (k - sizeof kinds));
      if (text[i] != old) {
        assert_int_equal(parse(&m, text, n), MOE_EIO);
      }
    }
    text[i] = old;
  }
  for (size_t cut = 0; cut < n; cut++) {
    assert_int_equal(parse(&m, text, cut), MOE_EIO);
    assert_int_equal(parse(&m, text + cut + 1, n - cut - 1), MOE_EIO);
  }
  char *twice = malloc(2 * n);
  memcpy(twice, text, n);
  memcpy(twice + n, text, n);
  assert_int_equal(parse(&m, twice, 2 * n), MOE_EIO);
  assert_int_equal(parse(&m, twice, n + 1), MOE_EIO);
  assert_int_equal(parse(&m, text, n), MOE_OK);
  moe_manifest_free(&m);
  free(twice);
  free(text);
}

/* The example with `from` replaced once by `to`, under a right checksum. */
static MoeStatus parse_edited(const char *from, const char *to)
{
  size_t n;
  MoeManifest m;
  char *text = example(&n);
  char *at = strstr(text, from);
  char *edited = malloc(n + strlen(to) + 32);
  assert_true(at != NULL && edited != NULL);
  size_t length = (size_t)sprintf(edited, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
  size_t tail = strlen(",\n\"crc32\":\"00000000\"}\n");
  length -= tail;
  length += (size_t)sprintf(edited + length, ",\n\"crc32\":\"%08x\"}\n", moe_crc32(0, edited, length));
  MoeStatus status = parse(&m, edited, length);
  if (status == MOE_OK) {
    moe_manifest_free(&m);
  }
  free(edited);
  free(text);
  return status;
}

static void test_wrong_content(void **state)
{
  (void)state;
  static const struct {
    const char *from, *to, *said;
  } wrong[] = {
      {"{\"moec_checkpoint\"", "[\"moec_checkpoint\"", "not valid JSON"},
      {"\"step\":100,", "\"step\":100,\"step\":100,", "not valid JSON"},
      {"\"step\":100,\n", "", "keys"},
      {"\"step\":100", "\"step\":\"100\"", "keys"},
      {"\"step\":100", "\"step\":100.5", "keys"},
      {"\"step\":100", "\"step\":-1", "cannot be"},
      {"\"step\":100", "\"step\":98", "cannot be"}, /* fewer than updates */
      {"\"updates\":99", "\"updates\":-1", "cannot be"},
      {"\"18446744073709551615\"", "\"18446744073709551616\"", "cannot be"},
      {"\"18446744073709551615\"", "\"-1\"", "cannot be"},
      {"\"18446744073709551615\"", "\"\"", "cannot be"},
      {"fedcba9876543210", "fedcba987654321", "cannot be"},
      {"fedcba9876543210", "fedcba987654321G", "cannot be"},
      {"\"turn\"", "\"turns\"", "keys"},
      {"\"turn\":", "\"more\":1,\"turn\":", "keys"},
      {"\"seq\":128", "\"seq\":0", "shapes"},
      {"\"sequences\":640", "\"sequences\":-1", "shapes"},
      {"\"order_of\":1000", "\"order_of\":-1", "shapes"},
      {"\"abcdef0123456789\"", "7", "shapes"},
      {"\"fedcba98\"", "\"fedcba9\"", "shapes"},
      {"\"layers\":\"4\"", "\"layers\":4", "not a text"},
      {"\"mask-token\":\"-100\"", "\"mask-token\":-100", "not a text"},
      {"\"options\"", "\"option\"", "keys"},
      {"\"bytes\":1000", "\"bytes\":7", "files"},
      {"\"deadbeef\"", "\"DEADBEEF\"", "files"},
      {"\"deadbeef\"", "3735928559", "files"},
      {"[3,5]", "[3,6]", "cover"},
      {"[3,5]", "[15]", ""}, /* as many elements: the program compares shapes */
      {"[3,5]", "[]", "shape"},
      {"[3,5]", "[1,3,5]", "shape"},
      {"[3,5]", "[-3,-5]", "shape"},
      {"[3,5]", "[4611686018427387904,4]", "shape"},
      {"[0,0,4,", "[0,1,4,", "cover"},
      {"[0,0,4,", "[0,0,3,", "cover"},
      {"[0,0,4,", "[0,0,5,", "cover"},
      {"[0,0,4,", "[0,4,0,", "cover"},
      {"[0,0,4,", "[2,0,4,", "part"},
      {"[0,0,4,", "[-1,0,4,", "part"},
      {"[0,0,4,", "[4294967296,0,4,", "part"},
      {"[0,0,4,\"00000001\",", "[0,0,4,", "part"},
      {"\"a.weight\"", "\"z.weight\"", "twice"},
      {"\"parts\":[[1,0,7,", "\"part\":[[1,0,7,", "keys"},
      {"[[1,0,7,\"00000007\",\"00000008\",\"ffffffff\"]]", "[]", "cover"},
  };
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    MoeStatus status = parse_edited(wrong[i].from, wrong[i].to);
    if (status != (*wrong[i].said != '\0' ? MOE_EIO : MOE_OK) || strstr(message, wrong[i].said) == NULL) {
      fail_msg("%s -> %s: status %d, \"%s\"", wrong[i].from, wrong[i].to, status, message);
    }
  }
  assert_int_equal(parse_edited("\"moec_checkpoint\":2", "\"moec_checkpoint\":3"), MOE_EINVAL);
  assert_non_null(strstr(message, "version 3"));
  assert_int_equal(parse_edited("\"moec_checkpoint\":2", "\"moec_checkpoint\":null"), MOE_EIO);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_crc),
      cmocka_unit_test(test_round_trip),
      cmocka_unit_test(test_damage),
      cmocka_unit_test(test_wrong_content),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
