/* The format: 8 bytes of header length, a JSON object {name: {dtype, shape, data_offsets}}, then the data. The reader
   is strict: offsets must tile the data exactly, sizes must match shapes, names must be unique. It does not require any
   alignment, because writers differ. The host is little-endian, as all hosts of this project are. */
#include "tests/ref/safetensors.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
  const char *tag;
  int64_t bytes;
} DTYPES[] = {[ST_F64] = {"F64", 8}, [ST_F32] = {"F32", 4}, [ST_BF16] = {"BF16", 2}};

enum { N_DTYPES = sizeof DTYPES / sizeof DTYPES[0], HEAD_BYTES = 8, MAX_HEADER = 100000000 };

int64_t st_dtype_bytes(StDtype dtype)
{
  return DTYPES[dtype].bytes;
}

__attribute__((format(printf, 2, 3))) static bool fail(char *error, const char *format, ...)
{
  va_list args;
  va_start(args, format);
  vsnprintf(error, ST_ERROR_BYTES, format, args);
  va_end(args);
  return false;
}

static uint8_t *read_all(const char *path, size_t *size, char *error)
{
  FILE *f = fopen(path, "rb");
  if (!f) {
    fail(error, "%s: cannot open", path);
    return NULL;
  }
  uint8_t *bytes = NULL;
  long end = -1;
  if (fseek(f, 0, SEEK_END) == 0 && (end = ftell(f)) >= 0 && fseek(f, 0, SEEK_SET) == 0) {
    bytes = malloc((size_t)end + 1);
  }
  if (!bytes || fread(bytes, 1, (size_t)end, f) != (size_t)end) {
    fail(error, "%s: cannot read", path);
    free(bytes);
    bytes = NULL;
  }
  fclose(f);
  *size = bytes ? (size_t)end : 0;
  return bytes;
}

/* Reads one entry of the header into *t; *end is where its data stops. */
static bool read_entry(const char *path, const char *name, json_t *entry, StTensor *t, int64_t *begin, int64_t *end,
                       char *error)
{
  const char *tag = json_string_value(json_object_get(entry, "dtype"));
  json_t *shape = json_object_get(entry, "shape");
  json_t *offsets = json_object_get(entry, "data_offsets");
  if (!tag || !json_is_array(shape) || !json_is_array(offsets) || json_array_size(offsets) != 2 ||
      !json_is_integer(json_array_get(offsets, 0)) || !json_is_integer(json_array_get(offsets, 1))) {
    return fail(error, "%s: %s: dtype, shape or data_offsets is missing or malformed", path, name);
  }
  int dtype = 0;
  while (dtype < N_DTYPES && strcmp(tag, DTYPES[dtype].tag) != 0) {
    dtype++;
  }
  if (dtype == N_DTYPES) {
    return fail(error, "%s: %s: dtype %s is not supported", path, name, tag);
  }
  if (json_array_size(shape) > ST_MAX_DIMS) {
    return fail(error, "%s: %s: more than %d dimensions", path, name, ST_MAX_DIMS);
  }
  t->dtype = (StDtype)dtype;
  t->n_dims = (int)json_array_size(shape);
  t->n = 1;
  for (int i = 0; i < t->n_dims; i++) {
    json_t *dim = json_array_get(shape, (size_t)i);
    t->shape[i] = json_integer_value(dim);
    if (!json_is_integer(dim) || t->shape[i] < 0 || (t->shape[i] > 0 && t->n > INT64_MAX / 8 / t->shape[i])) {
      return fail(error, "%s: %s: bad shape", path, name);
    }
    t->n *= t->shape[i];
  }
  *begin = json_integer_value(json_array_get(offsets, 0));
  *end = json_integer_value(json_array_get(offsets, 1));
  if (*begin < 0 || *end < *begin || *end - *begin != t->n * DTYPES[dtype].bytes) {
    return fail(error, "%s: %s: data_offsets do not match the shape", path, name);
  }
  return true;
}

static int by_data(const void *a, const void *b)
{
  const StTensor *s = a;
  const StTensor *t = b;
  if (s->data != t->data) {
    return s->data < t->data ? -1 : 1;
  }
  return (s->n > t->n) - (s->n < t->n); /* empty tensors first */
}

static bool read_header(const char *path, json_t *header, const uint8_t *data, int64_t data_bytes, StFile *file,
                        char *error)
{
  file->tensors = calloc(json_object_size(header) + 1, sizeof(StTensor));
  if (!file->tensors) {
    return fail(error, "%s: out of memory", path);
  }
  const char *name;
  json_t *entry;
  json_object_foreach(header, name, entry)
  {
    if (strcmp(name, "__metadata__") == 0) {
      continue;
    }
    StTensor *t = &file->tensors[file->n];
    int64_t begin = 0;
    int64_t end = 0;
    if (!read_entry(path, name, entry, t, &begin, &end, error)) {
      return false;
    }
    if (end > data_bytes) {
      return fail(error, "%s: %s: data ends at %lld, past the file's %lld bytes", path, name, (long long)end,
                  (long long)data_bytes);
    }
    t->name = malloc(strlen(name) + 1);
    if (!t->name) {
      return fail(error, "%s: out of memory", path);
    }
    strcpy(t->name, name);
    t->data = data + begin;
    file->n++;
  }
  qsort(file->tensors, (size_t)file->n, sizeof(StTensor), by_data);
  const uint8_t *at = data;
  for (int i = 0; i < file->n; i++) {
    if (file->tensors[i].data != at) {
      return fail(error, "%s: %s: data overlaps or leaves a hole before it", path, file->tensors[i].name);
    }
    at += file->tensors[i].n * st_dtype_bytes(file->tensors[i].dtype);
  }
  if (at != data + data_bytes) {
    return fail(error, "%s: %lld bytes follow the last tensor", path, (long long)(data + data_bytes - at));
  }
  return true;
}

bool st_read(const char *path, StFile *file, char *error)
{
  memset(file, 0, sizeof *file);
  size_t size = 0;
  uint8_t *bytes = read_all(path, &size, error);
  if (!bytes) {
    return false;
  }
  uint64_t header_bytes = 0;
  if (size >= HEAD_BYTES) {
    memcpy(&header_bytes, bytes, HEAD_BYTES);
  }
  if (size < HEAD_BYTES || header_bytes > MAX_HEADER || header_bytes > size - HEAD_BYTES) {
    free(bytes);
    return fail(error, "%s: too short for its header", path);
  }
  json_error_t where;
  json_t *header = json_loadb((const char *)bytes + HEAD_BYTES, header_bytes, JSON_REJECT_DUPLICATES, &where);
  if (!json_is_object(header) || bytes[HEAD_BYTES] != '{') {
    fail(error, "%s: header is not a JSON object: %s", path, header ? "wrong type" : where.text);
    json_decref(header);
    free(bytes);
    return false;
  }
  file->buffer = bytes;
  const uint8_t *data = bytes + HEAD_BYTES + header_bytes;
  bool ok = read_header(path, header, data, (int64_t)(size - HEAD_BYTES - header_bytes), file, error);
  json_decref(header);
  if (!ok) {
    st_free(file);
  }
  return ok;
}

void st_free(StFile *file)
{
  for (int i = 0; i < file->n; i++) {
    free(file->tensors[i].name);
  }
  free(file->tensors);
  free(file->buffer);
  memset(file, 0, sizeof *file);
}

const StTensor *st_find(const StFile *file, const char *name)
{
  for (int i = 0; i < file->n; i++) {
    if (strcmp(file->tensors[i].name, name) == 0) {
      return &file->tensors[i];
    }
  }
  return NULL;
}

double st_value(const StTensor *t, int64_t i)
{
  const uint8_t *at = t->data + i * st_dtype_bytes(t->dtype);
  if (t->dtype == ST_F64) {
    double x;
    memcpy(&x, at, sizeof x);
    return x;
  }
  uint32_t bits = 0;
  if (t->dtype == ST_F32) {
    memcpy(&bits, at, sizeof bits);
  } else {
    bits = (uint32_t)at[0] << 16 | (uint32_t)at[1] << 24;
  }
  float x;
  memcpy(&x, &bits, sizeof x);
  return (double)x;
}

/* The header text, padded with spaces so that the data starts at a multiple of 8; the caller frees it. */
static char *make_header(const StTensor *tensors, int n)
{
  json_t *header = json_object();
  json_object_set_new(header, "__metadata__", json_pack("{s:s}", "format", "pt"));
  int64_t at = 0;
  for (int i = 0; i < n; i++) {
    const StTensor *t = &tensors[i];
    int64_t end = at + t->n * st_dtype_bytes(t->dtype);
    json_t *shape = json_array();
    for (int d = 0; d < t->n_dims; d++) {
      json_array_append_new(shape, json_integer(t->shape[d]));
    }
    json_object_set_new(header, t->name,
                        json_pack("{s:s, s:o, s:[I, I]}", "dtype", DTYPES[t->dtype].tag, "shape", shape, "data_offsets",
                                  (json_int_t)at, (json_int_t)end));
    at = end;
  }
  char *text = json_dumps(header, JSON_COMPACT | JSON_PRESERVE_ORDER);
  json_decref(header);
  size_t length = text ? strlen(text) : 0;
  size_t padded = (length + 7) / 8 * 8;
  char *out = text ? malloc(padded + 1) : NULL;
  if (out) {
    memcpy(out, text, length);
    memset(out + length, ' ', padded - length);
    out[padded] = '\0';
  }
  free(text);
  return out;
}

bool st_write(const char *path, const StTensor *tensors, int n, char *error)
{
  char *header = make_header(tensors, n);
  if (!header) {
    return fail(error, "%s: out of memory", path);
  }
  FILE *f = fopen(path, "wb");
  if (!f) {
    free(header);
    return fail(error, "%s: cannot create", path);
  }
  uint64_t header_bytes = strlen(header);
  bool ok = fwrite(&header_bytes, HEAD_BYTES, 1, f) == 1 && fwrite(header, 1, header_bytes, f) == header_bytes;
  for (int i = 0; i < n && ok; i++) {
    size_t bytes = (size_t)(tensors[i].n * st_dtype_bytes(tensors[i].dtype));
    ok = fwrite(tensors[i].data, 1, bytes, f) == bytes;
  }
  ok = fclose(f) == 0 && ok;
  free(header);
  if (!ok) {
    remove(path);
    return fail(error, "%s: cannot write", path);
  }
  return true;
}
