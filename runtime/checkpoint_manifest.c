/* One JSON object, a tensor per line. Numbers that may pass 2^63 and checksums are texts. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/checkpoint.h"
#include "runtime/crc.h"
#include "runtime/log.h"

enum { VERSION = 2, MAX_FILES = 100000 };

/* The end of the file; its length does not depend on the value. */
#define TAIL ",\n\"crc32\":\"%08" PRIx32 "\"}\n"
enum { TAIL_BYTES = 22 };

json_t *moe_ck_keys(const char *lines)
{
  json_t *keys = json_object();
  for (const char *line = lines; line != NULL && *line != '\0';) {
    const char *end = strchr(line, '\n');
    const char *equals = strstr(line, " = ");
    char name[96];
    snprintf(name, sizeof name, "%.*s", (int)(equals - line), line);
    json_object_set_new(keys, name, json_stringn(equals + 3, (size_t)(end - equals) - 3));
    line = end + 1;
  }
  return keys;
}

/* ---- writing ---- */

static void put(FILE *out, const char *before, json_t *value, const char *after)
{
  char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
  fprintf(out, "%s%s%s", before, text != NULL ? text : "", after);
  free(text);
  json_decref(value);
}

static json_t *hex32(uint32_t x)
{
  char text[16];
  snprintf(text, sizeof text, "%08" PRIx32, x);
  return json_string(text);
}

static json_t *hex64(uint64_t x)
{
  char text[24];
  snprintf(text, sizeof text, "%016" PRIx64, x);
  return json_string(text);
}

static json_t *tensor_row(const MoeManifest *m, const MoeCkTensor *t)
{
  json_t *shape = json_array();
  json_t *parts = json_array();
  for (int32_t d = 0; d < t->n_dims; d++) {
    json_array_append_new(shape, json_integer(t->shape[d]));
  }
  for (int32_t i = t->first_part; i < t->first_part + t->n_parts; i++) {
    const MoeCkPart *p = &m->parts[i];
    json_t *row = json_pack("[iII]", p->file, (json_int_t)p->begin, (json_int_t)p->end);
    for (int k = 0; k < MOE_CK_STATE_COUNT; k++) {
      json_array_append_new(row, hex32(p->crc[k]));
    }
    json_array_append_new(parts, row);
  }
  return json_pack("{s:s,s:o,s:o}", "name", t->name, "shape", shape, "parts", parts);
}

static void put_manifest(const MoeManifest *m, FILE *out)
{
  char seed[24];
  snprintf(seed, sizeof seed, "%" PRIu64, m->seed);
  fprintf(out, "{\"moec_checkpoint\":%d,\n", VERSION);
  put(out, "\"step\":", json_integer(m->step), ",\n");
  put(out, "\"updates\":", json_integer(m->updates), ",\n");
  put(out, "\"seed\":", json_string(seed), ",\n");
  put(out, "\"next_lr\":", json_real(m->next_lr), ",\n");
  put(out, "\"plan\":", hex64(m->plan_hash), ",\n");
  put(out, "\"turn\":", json_string(m->turn), ",\n\"shapes\":[\n");
  for (int32_t i = 0; i < m->n_shapes; i++) {
    const MoeCkShape *s = &m->shapes[i];
    put(out, i > 0 ? ",\n" : "",
        json_pack("{s:s,s:I,s:I,s:I,s:o,s:o}", "name", s->name, "seq", (json_int_t)s->seq, "sequences",
                  (json_int_t)s->place.next, "order_of", (json_int_t)s->place.samples, "data", hex64(s->place.identity),
                  "data_crc32", hex32(s->place.content)),
        "");
  }
  fputs("\n],\n", out);
  put(out, "\"model\":", json_incref(m->model_keys), ",\n");
  put(out, "\"train\":", json_incref(m->train_keys), ",\n");
  put(out, "\"options\":", json_incref(m->options), ",\n\"files\":[\n");
  for (int32_t i = 0; i < m->n_files; i++) {
    const MoeCkFile *f = &m->files[i];
    put(out, "", json_pack("{s:I,s:o}", "bytes", (json_int_t)f->bytes, "header_crc32", hex32(f->header_crc)),
        i + 1 < m->n_files ? ",\n" : "\n],\n\"tensors\":[\n");
  }
  for (int32_t i = 0; i < m->n_tensors; i++) {
    put(out, "", tensor_row(m, &m->tensors[i]), i + 1 < m->n_tensors ? ",\n" : "\n");
  }
  fputs("]", out);
}

char *moe_manifest_text(const MoeManifest *m, size_t *n_p)
{
  char *text = NULL;
  FILE *out = open_memstream(&text, n_p);
  if (out == NULL) {
    return NULL;
  }
  put_manifest(m, out);
  fflush(out);
  fprintf(out, TAIL, moe_crc32(0, text, *n_p));
  if (fclose(out) != 0) {
    free(text);
    return NULL;
  }
  return text;
}

/* ---- reading ---- */

static MoeStatus damaged(const char *path, const char *what)
{
  moe_error("%s: %s", path, what);
  return MOE_EIO;
}

static bool read_hex(const json_t *value, size_t digits, uint64_t *x)
{
  const char *text = json_string_value(value);
  if (text == NULL || strlen(text) != digits || strspn(text, "0123456789abcdef") != digits) {
    return false;
  }
  *x = strtoull(text, NULL, 16);
  return true;
}

static bool read_seed(const char *text, uint64_t *x)
{
  char again[24];
  *x = strtoull(text, NULL, 10);
  snprintf(again, sizeof again, "%" PRIu64, *x);
  return strcmp(text, again) == 0;
}

static bool read_part(json_t *row, MoeCkPart *p)
{
  json_int_t file, begin, end;
  if (!json_is_array(row) || json_array_size(row) != 3 + MOE_CK_STATE_COUNT ||
      json_unpack(row, "[III]", &file, &begin, &end) != 0 || file < 0 || file >= MAX_FILES) {
    return false;
  }
  *p = (MoeCkPart){.file = (int32_t)file, .begin = begin, .end = end};
  for (size_t k = 0; k < MOE_CK_STATE_COUNT; k++) {
    uint64_t crc;
    if (!read_hex(json_array_get(row, 3 + k), 8, &crc)) {
      return false;
    }
    p->crc[k] = (uint32_t)crc;
  }
  return true;
}

/* The parts must cover the tensor, each once, in order. */
static const char *read_tensor(MoeManifest *m, json_t *row, int32_t index)
{
  MoeCkTensor *t = &m->tensors[index];
  json_t *shape, *parts, *item;
  size_t i;
  int64_t elems = 1, at = 0;
  if (json_unpack(row, "{s:s,s:o,s:o!}", "name", &t->name, "shape", &shape, "parts", &parts) != 0 ||
      !json_is_array(shape) || json_array_size(shape) < 1 || json_array_size(shape) > 2 || !json_is_array(parts)) {
    return "one of its tensors has not the keys name, shape and parts";
  }
  json_array_foreach(shape, i, item)
  {
    t->shape[i] = json_integer_value(item);
    if (t->shape[i] < 1 || __builtin_mul_overflow(elems, t->shape[i], &elems)) {
      return "one of its tensors has a shape that cannot be";
    }
  }
  t->n_dims = (int32_t)json_array_size(shape);
  t->first_part = m->n_parts;
  t->n_parts = (int32_t)json_array_size(parts);
  json_array_foreach(parts, i, item)
  {
    MoeCkPart *p = &m->parts[m->n_parts];
    if (!read_part(item, p) || p->file >= m->n_files) {
      return "a part of one of its tensors is not [file, begin, end, checksums]";
    }
    if (p->begin != at || p->end <= at) {
      return "the parts of one of its tensors do not cover it, each element once";
    }
    p->tensor = index;
    at = p->end;
    m->n_parts++;
  }
  return at == elems ? NULL : "the parts of one of its tensors do not cover it, each element once";
}

static int by_name(const void *a, const void *b)
{
  return strcmp(((const MoeCkTensor *)a)->name, ((const MoeCkTensor *)b)->name);
}

static const char *read_tensors(MoeManifest *m, json_t *rows)
{
  json_t *row;
  size_t i;
  json_array_foreach(rows, i, row)
  {
    const char *wrong = read_tensor(m, row, (int32_t)i);
    if (wrong != NULL) {
      return wrong;
    }
  }
  qsort(m->tensors, (size_t)m->n_tensors, sizeof *m->tensors, by_name);
  for (int32_t t = 0; t < m->n_tensors; t++) {
    if (t > 0 && strcmp(m->tensors[t].name, m->tensors[t - 1].name) == 0) {
      return "one of its tensors is there twice";
    }
    for (int32_t p = 0; p < m->tensors[t].n_parts; p++) {
      m->parts[m->tensors[t].first_part + p].tensor = t;
    }
  }
  return NULL;
}

static const char *read_shapes(MoeManifest *m, const json_t *rows)
{
  json_t *row;
  size_t i;
  json_array_foreach(rows, i, row)
  {
    json_int_t seq, next, samples;
    json_t *identity, *content;
    uint64_t crc;
    MoeCkShape *at = &m->shapes[i];
    if (json_unpack(row, "{s:s,s:I,s:I,s:I,s:o,s:o!}", "name", &at->name, "seq", &seq, "sequences", &next, "order_of",
                    &samples, "data", &identity, "data_crc32", &content) != 0 ||
        seq < 1 || next < 0 || samples < 0 || !read_hex(identity, 16, &at->place.identity) ||
        !read_hex(content, 8, &crc)) {
      return "one of its shapes has not the keys name, seq, sequences, order_of, data and data_crc32";
    }
    at->seq = seq;
    at->known = true;
    at->place.next = (uint64_t)next;
    at->place.samples = (uint64_t)samples;
    at->place.content = (uint32_t)crc;
    at->place.seed = m->seed;
  }
  return NULL;
}

static const char *read_files(MoeManifest *m, const json_t *rows)
{
  json_t *row;
  size_t i;
  json_array_foreach(rows, i, row)
  {
    json_int_t bytes;
    json_t *crc;
    uint64_t value;
    if (json_unpack(row, "{s:I,s:o!}", "bytes", &bytes, "header_crc32", &crc) != 0 || bytes < 8 ||
        !read_hex(crc, 8, &value)) {
      return "one of its files has not the keys bytes and header_crc32";
    }
    m->files[i] = (MoeCkFile){(uint64_t)bytes, (uint32_t)value};
  }
  return NULL;
}

static bool are_texts(json_t *object)
{
  const char *key;
  json_t *value;
  bool texts = json_is_object(object);
  json_object_foreach(object, key, value)
  {
    texts = texts && json_is_string(value);
  }
  return texts;
}

static size_t count_parts(const json_t *tensors)
{
  json_t *row;
  size_t i, n = 0;
  json_array_foreach(tensors, i, row)
  {
    n += json_array_size(json_object_get(row, "parts"));
  }
  return n;
}

static const char *read_root(MoeManifest *m)
{
  json_int_t step, updates;
  json_t *plan, *shapes, *files, *tensors, *crc;
  const char *seed;
  int version;
  if (json_unpack(m->root, "{s:i,s:I,s:I,s:s,s:F,s:o,s:s,s:o,s:o,s:o,s:o,s:o,s:o,s:o!}", "moec_checkpoint", &version,
                  "step", &step, "updates", &updates, "seed", &seed, "next_lr", &m->next_lr, "plan", &plan, "turn",
                  &m->turn, "shapes", &shapes, "model", &m->model_keys, "train", &m->train_keys, "options", &m->options,
                  "files", &files, "tensors", &tensors, "crc32", &crc) != 0) {
    return "it has not the keys that it should have, or not with values of their kind";
  }
  if (step < 0 || updates < 0 || updates > step || !read_seed(seed, &m->seed) || !read_hex(plan, 16, &m->plan_hash)) {
    return "its step, updates, seed or plan has a value that cannot be";
  }
  if (!are_texts(m->model_keys) || !are_texts(m->train_keys) || !are_texts(m->options)) {
    return "a setting of its model, train or options is not a text";
  }
  size_t n_shapes = json_array_size(shapes), n_files = json_array_size(files), n_tensors = json_array_size(tensors);
  if (!json_is_array(shapes) || n_files < 1 || n_tensors < 1 || n_shapes > MAX_FILES || n_files > MAX_FILES ||
      n_tensors > INT32_MAX / 2 || count_parts(tensors) > INT32_MAX / 2) {
    return "its shapes, files or tensors are not lists, or empty or too long ones";
  }
  m->step = step;
  m->updates = updates;
  m->n_shapes = (int32_t)n_shapes;
  m->n_files = (int32_t)n_files;
  m->n_tensors = (int32_t)n_tensors;
  m->shapes = calloc(n_shapes + 1, sizeof *m->shapes);
  m->files = calloc(n_files, sizeof *m->files);
  m->tensors = calloc(n_tensors, sizeof *m->tensors);
  m->parts = calloc(count_parts(tensors) + 1, sizeof *m->parts);
  if (m->shapes == NULL || m->files == NULL || m->tensors == NULL || m->parts == NULL) {
    return "out of memory for its lists";
  }
  const char *wrong = read_shapes(m, shapes);
  wrong = wrong != NULL ? wrong : read_files(m, files);
  return wrong != NULL ? wrong : read_tensors(m, tensors);
}

MoeStatus moe_manifest_parse(MoeManifest *m, const char *path, const char *text, size_t n)
{
  char tail[TAIL_BYTES + 1];
  *m = (MoeManifest){0};
  size_t body = n >= TAIL_BYTES ? n - TAIL_BYTES : 0;
  snprintf(tail, sizeof tail, TAIL, moe_crc32(0, text, body));
  if (n < TAIL_BYTES || memcmp(text + body, tail, TAIL_BYTES) != 0) {
    return damaged(path, "it is damaged: it does not end in the checksum of what is before");
  }
  json_error_t error;
  m->root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &error);
  if (m->root == NULL) {
    return damaged(path, "it is not valid JSON");
  }
  const json_t *version = json_object_get(m->root, "moec_checkpoint");
  if (json_is_integer(version) && json_integer_value(version) != VERSION) {
    moe_error("%s: it has version %lld; this program reads version %d", path, (long long)json_integer_value(version),
              VERSION);
    moe_manifest_free(m);
    return MOE_EINVAL;
  }
  const char *wrong = read_root(m);
  if (wrong != NULL) {
    moe_manifest_free(m);
    return damaged(path, wrong);
  }
  return MOE_OK;
}

const MoeCkTensor *moe_manifest_find(const MoeManifest *m, const char *name)
{
  MoeCkTensor key = {.name = name};
  return bsearch(&key, m->tensors, (size_t)m->n_tensors, sizeof key, by_name);
}

void moe_manifest_free(MoeManifest *m)
{
  free(m->shapes);
  free(m->files);
  free(m->tensors);
  free(m->parts);
  json_decref(m->root);
  *m = (MoeManifest){0};
}
