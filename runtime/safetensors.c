/* The reader parses headers with jansson: duplicate keys and bad UTF-8 are errors there, integers are exact to 2^63 and
   nesting is bounded. */
#include "runtime/safetensors.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/bytes.h"
#include "runtime/log.h"
#include "runtime/mapped.h"

enum { MAX_HEADER = 100000000, SHOWN = 160 };

typedef struct MoeStFile {
  char *path;
  MoeMapped mapped;
  const uint8_t *map; /* NULL of an empty file */
  uint64_t bytes;
  uint64_t data; /* where the data begins */
  json_t *header;
  MoeStTensor *tensors; /* by ascending offset */
  int64_t *shapes;
  int32_t n;
} MoeStFile;

static const char *const dtype_names[] = {
#define MOE_ST_DTYPE(name, bits) #name,
    MOE_ST_DTYPES(MOE_ST_DTYPE)
#undef MOE_ST_DTYPE
};

static const uint8_t dtype_bits[] = {
#define MOE_ST_DTYPE(name, bits) bits,
    MOE_ST_DTYPES(MOE_ST_DTYPE)
#undef MOE_ST_DTYPE
};

const char *moe_st_dtype_name(MoeStDtype dtype)
{
  return dtype_names[dtype];
}

const char *moe_st_shape_text(int32_t n_dims, const int64_t *shape, char *text)
{
  size_t at = (size_t)snprintf(text, MOE_ST_SHAPE_TEXT, "[");
  for (int32_t i = 0; i < n_dims && at < MOE_ST_SHAPE_TEXT - 30; i++) {
    at += (size_t)snprintf(text + at, MOE_ST_SHAPE_TEXT - at, "%s%lld", i > 0 ? ", " : "", (long long)shape[i]);
  }
  snprintf(text + at, MOE_ST_SHAPE_TEXT - at, at < MOE_ST_SHAPE_TEXT - 30 ? "]" : ", ...]");
  return text;
}

int64_t moe_st_tensor_bytes(MoeStDtype dtype, int32_t n_dims, const int64_t *shape)
{
  int64_t bits = dtype_bits[dtype];
  for (int32_t i = 0; i < n_dims; i++) {
    if (shape[i] < 0 || __builtin_mul_overflow(bits, shape[i], &bits)) {
      return -1;
    }
  }
  return bits % 8 == 0 ? bits / 8 : -1;
}

/* A name as it may stand in a line of text. */
static const char *shown(const char *name, char *text)
{
  size_t n = 0;
  for (; name[n] != '\0' && n < SHOWN - 4; n++) {
    text[n] = iscntrl((unsigned char)name[n]) ? '?' : name[n];
  }
  strcpy(text + n, name[n] != '\0' ? "..." : "");
  return text;
}

/* ---- one file ---- */

static MoeStatus broken(const char *path, const char *name, const char *what)
{
  char text[SHOWN];
  if (name != NULL) {
    moe_error("%s: tensor \"%s\" %s", path, shown(name, text), what);
  } else {
    moe_error("%s: %s", path, what);
  }
  return MOE_EINVAL;
}

static MoeStatus out_of_memory(const char *path)
{
  moe_error("%s: out of memory for its header", path);
  return MOE_ENOMEM;
}

static MoeStatus map_file(MoeStFile *f)
{
  struct stat status;
  if (stat(f->path, &status) != 0) {
    moe_error("cannot read %s: %s", f->path, strerror(errno));
    return MOE_EIO;
  }
  if (!S_ISREG(status.st_mode)) {
    moe_error("cannot read %s: it is not a regular file", f->path);
    return MOE_EIO;
  }
  int fd = open(f->path, O_RDONLY | O_CLOEXEC);
  if (fd < 0 || fstat(fd, &status) != 0) {
    moe_error("cannot read %s: %s", f->path, strerror(errno));
    if (fd >= 0) {
      close(fd);
    }
    return MOE_EIO;
  }
  f->bytes = (uint64_t)status.st_size;
  bool mapped = f->bytes == 0 || moe_map(&f->mapped, fd, f->bytes, PROT_READ, f->path);
  int error = errno;
  close(fd);
  if (!mapped) {
    moe_error("cannot map %s: %s", f->path, strerror(error));
    return MOE_EIO;
  }
  f->map = f->mapped.base;
  return MOE_OK;
}

/* A JSON object from text; says what is wrong with it and where. */
static MoeStatus parse_object(const char *path, const char *what, const uint8_t *text, uint64_t n, json_t **object_p)
{
  json_error_t error;
  json_t *object = json_loadb((const char *)text, n, JSON_REJECT_DUPLICATES, &error);
  if (object == NULL) {
    char words[SHOWN];
    moe_error("%s: %s at byte %d: %s", path, what, error.position, shown(error.text, words));
    return MOE_EINVAL;
  }
  if (!json_is_object(object)) {
    json_decref(object);
    moe_error("%s: %s: it is not an object", path, what);
    return MOE_EINVAL;
  }
  *object_p = object;
  return MOE_OK;
}

static MoeStatus read_header(MoeStFile *f)
{
  if (f->bytes < 8) {
    moe_error("%s: its %llu bytes are too few for the 8 that give the header's length", f->path,
              (unsigned long long)f->bytes);
    return MOE_EINVAL;
  }
  uint64_t n = moe_little_endian(f->map, 8);
  if (n > MAX_HEADER) {
    moe_error("%s: a header of %llu bytes; at most %d are allowed", f->path, (unsigned long long)n, MAX_HEADER);
    return MOE_EINVAL;
  }
  if (n > f->bytes - 8) {
    moe_error("%s: a header of %llu bytes, but only %llu follow: the file is truncated", f->path, (unsigned long long)n,
              (unsigned long long)f->bytes - 8);
    return MOE_EINVAL;
  }
  if (n == 0 || f->map[8] != '{') {
    return broken(f->path, NULL, "its header does not begin with {");
  }
  f->data = 8 + n;
  return parse_object(f->path, "its header is not valid JSON", f->map + 8, n, &f->header);
}

static MoeStatus read_dtype(const MoeStFile *f, const char *name, const json_t *entry, MoeStDtype *dtype_p)
{
  const char *tag = json_string_value(json_object_get(entry, "dtype"));
  for (int i = 0; tag != NULL && i < MOE_ST_DTYPE_COUNT; i++) {
    if (strcmp(tag, dtype_names[i]) == 0) {
      *dtype_p = (MoeStDtype)i;
      return MOE_OK;
    }
  }
  if (tag == NULL) {
    return broken(f->path, name, "has no dtype");
  }
  char what[SHOWN + 32];
  char words[SHOWN];
  snprintf(what, sizeof what, "has the unknown dtype \"%s\"", shown(tag, words));
  return broken(f->path, name, what);
}

/* A list of whole numbers that are not negative into `to`. */
static bool read_numbers(const json_t *list, int64_t *to)
{
  size_t i;
  json_t *item;
  json_array_foreach(list, i, item)
  {
    if (!json_is_integer(item) || json_integer_value(item) < 0) {
      return false;
    }
    to[i] = json_integer_value(item);
  }
  return true;
}

static MoeStatus read_tensor(const MoeStFile *f, const char *name, const json_t *entry, int64_t *shape, MoeStTensor *t)
{
  const json_t *dims = json_object_get(entry, "shape");
  const json_t *offsets = json_object_get(entry, "data_offsets");
  int64_t range[2];
  if (!json_is_object(entry) || json_object_size(entry) != 3) {
    return broken(f->path, name, "is not described by exactly dtype, shape and data_offsets");
  }
  MoeStDtype dtype = MOE_ST_BOOL;
  MOE_TRY(read_dtype(f, name, entry, &dtype));
  if (!json_is_array(dims) || !read_numbers(dims, shape)) {
    return broken(f->path, name, "has a shape that is not a list of whole numbers");
  }
  if (!json_is_array(offsets) || json_array_size(offsets) != 2 || !read_numbers(offsets, range)) {
    return broken(f->path, name, "has data_offsets that are not two whole numbers");
  }
  int32_t n_dims = (int32_t)json_array_size(dims);
  int64_t bytes = moe_st_tensor_bytes(dtype, n_dims, shape);
  char dims_text[MOE_ST_SHAPE_TEXT];
  char what[256];
  moe_st_shape_text(n_dims, shape, dims_text);
  if (bytes < 0) {
    snprintf(what, sizeof what, "has a shape %s that is too large, or not a whole number of bytes in %s", dims_text,
             dtype_names[dtype]);
    return broken(f->path, name, what);
  }
  if (range[0] > range[1] || range[1] - range[0] != bytes) {
    snprintf(what, sizeof what, "is %s %s, %lld bytes, but its data_offsets are [%lld, %lld]", dtype_names[dtype],
             dims_text, (long long)bytes, (long long)range[0], (long long)range[1]);
    return broken(f->path, name, what);
  }
  if ((uint64_t)range[1] > f->bytes - f->data) {
    snprintf(what, sizeof what, "ends at byte %lld of the data, but the file has only %llu: it is truncated",
             (long long)range[1], (unsigned long long)(f->bytes - f->data));
    return broken(f->path, name, what);
  }
  *t = (MoeStTensor){.name = name,
                     .dtype = dtype,
                     .n_dims = n_dims,
                     .shape = shape,
                     .bytes = (uint64_t)bytes,
                     .data = f->map + f->data + range[0],
                     .file = f->path};
  return MOE_OK;
}

static int by_offset(const void *a, const void *b)
{
  const MoeStTensor *x = a;
  const MoeStTensor *y = b;
  const uint8_t *x_end = x->data + x->bytes;
  const uint8_t *y_end = y->data + y->bytes;
  return x->data != y->data ? (x->data > y->data) - (x->data < y->data) : (x_end > y_end) - (x_end < y_end);
}

/* The tensors must fill the data without holes and overlaps. */
static MoeStatus check_tiling(const MoeStFile *f)
{
  const uint8_t *at = f->map + f->data;
  const uint8_t *end = f->map + f->bytes;
  char what[2 * SHOWN];
  char words[SHOWN];
  for (int32_t i = 0; i < f->n; i++) {
    const MoeStTensor *t = &f->tensors[i];
    if (t->data != at) {
      bool hole = t->data > at;
      snprintf(what, sizeof what, "%s %llu bytes %s%s%s", hole ? "leaves" : "overlaps",
               (unsigned long long)(hole ? t->data - at : at - t->data), hole ? "unused before it" : "with ",
               hole ? "" : "tensor ", hole ? "" : shown(f->tensors[i - 1].name, words));
      return broken(f->path, t->name, what);
    }
    at += t->bytes;
  }
  if (at != end) {
    snprintf(what, sizeof what, "%llu bytes follow the last tensor", (unsigned long long)(end - at));
    return broken(f->path, NULL, what);
  }
  return MOE_OK;
}

static MoeStatus check_metadata(const MoeStFile *f, json_t *metadata)
{
  const char *key;
  json_t *value;
  if (!json_is_object(metadata)) {
    return broken(f->path, NULL, "its __metadata__ is not an object");
  }
  json_object_foreach(metadata, key, value)
  {
    if (!json_is_string(value)) {
      char words[SHOWN];
      moe_error("%s: __metadata__ has a value that is no text, of \"%s\"", f->path, shown(key, words));
      return MOE_EINVAL;
    }
  }
  return MOE_OK;
}

static MoeStatus read_tensors(MoeStFile *f)
{
  const char *name;
  json_t *entry;
  size_t n_numbers = 1;
  json_object_foreach(f->header, name, entry)
  {
    n_numbers += json_array_size(json_object_get(entry, "shape"));
  }
  f->tensors = calloc(json_object_size(f->header) + 1, sizeof *f->tensors);
  f->shapes = calloc(n_numbers, sizeof *f->shapes);
  if (f->tensors == NULL || f->shapes == NULL) {
    return out_of_memory(f->path);
  }
  int64_t *shape = f->shapes;
  json_object_foreach(f->header, name, entry)
  {
    if (strcmp(name, "__metadata__") == 0) {
      MOE_TRY(check_metadata(f, entry));
      continue;
    }
    MOE_TRY(read_tensor(f, name, entry, shape, &f->tensors[f->n]));
    shape += f->tensors[f->n++].n_dims;
  }
  qsort(f->tensors, (size_t)f->n, sizeof *f->tensors, by_offset);
  return check_tiling(f);
}

static MoeStatus open_file(MoeStFile *f)
{
  MOE_TRY(map_file(f));
  MOE_TRY(read_header(f));
  return read_tensors(f);
}

static void close_file(MoeStFile *f)
{
  moe_unmap(&f->mapped);
  json_decref(f->header);
  free(f->tensors);
  free(f->shapes);
  free(f->path);
}

/* ---- sets of files ---- */

static int by_name(const void *a, const void *b)
{
  return strcmp(((const MoeStTensor *)a)->name, ((const MoeStTensor *)b)->name);
}

const MoeStTensor *moe_st_find(const MoeStSet *s, const char *name)
{
  MoeStTensor key = {.name = name};
  return s->n > 0 ? bsearch(&key, s->tensors, (size_t)s->n, sizeof key, by_name) : NULL;
}

const char *moe_st_metadata(const MoeStSet *s, const char *key)
{
  return s->n_files > 0 ? json_string_value(json_object_get(json_object_get(s->files[0].header, "__metadata__"), key))
                        : NULL;
}

void moe_st_close(MoeStSet *s)
{
  for (int32_t i = 0; i < s->n_files; i++) {
    close_file(&s->files[i]);
  }
  free(s->files);
  free(s->tensors);
  *s = (MoeStSet){0};
}

/* Opens one more file of the set. `folder` of n characters, its last slash included. */
static MoeStatus add_file(MoeStSet *s, const char *folder, size_t n, const char *name)
{
  MoeStFile *f = &s->files[s->n_files++];
  *f = (MoeStFile){.path = malloc(n + strlen(name) + 1)};
  if (f->path == NULL) {
    return out_of_memory(name);
  }
  memcpy(f->path, folder, n);
  strcpy(f->path + n, name);
  return open_file(f);
}

static MoeStatus open_single(MoeStSet *s, const char *folder, size_t n, const char *name)
{
  s->files = calloc(1, sizeof *s->files);
  if (s->files == NULL) {
    return out_of_memory(s->path);
  }
  MOE_TRY(add_file(s, folder, n, name));
  s->n = s->files[0].n;
  s->tensors = calloc((size_t)s->n + 1, sizeof *s->tensors);
  if (s->tensors == NULL) {
    return out_of_memory(s->path);
  }
  memcpy(s->tensors, s->files[0].tensors, (size_t)s->n * sizeof *s->tensors);
  qsort(s->tensors, (size_t)s->n, sizeof *s->tensors, by_name);
  return MOE_OK;
}

static MoeStFile *file_named(const MoeStSet *s, const char *name)
{
  for (int32_t i = 0; i < s->n_files; i++) {
    const char *slash = strrchr(s->files[i].path, '/');
    if (strcmp(slash != NULL ? slash + 1 : s->files[i].path, name) == 0) {
      return &s->files[i];
    }
  }
  return NULL;
}

/* The files of a weight_map, each once, then the tensors that it lists. */
static MoeStatus open_mapped(MoeStSet *s, const char *index, size_t folder, json_t *map)
{
  const char *name;
  json_t *value;
  char a[SHOWN];
  char b[SHOWN];
  s->files = calloc(json_object_size(map) + 1, sizeof *s->files);
  s->tensors = calloc(json_object_size(map) + 1, sizeof *s->tensors);
  if (s->files == NULL || s->tensors == NULL) {
    return out_of_memory(index);
  }
  json_object_foreach(map, name, value)
  {
    const char *file = json_string_value(value);
    if (file == NULL || strchr(file, '/') != NULL || *file == '\0' || strcmp(file, ".") == 0 ||
        strcmp(file, "..") == 0) {
      moe_error("%s: tensor \"%s\" is said to be in \"%s\", which is no file of this folder", index, shown(name, a),
                file != NULL ? shown(file, b) : "");
      return MOE_EINVAL;
    }
    if (file_named(s, file) == NULL) {
      MOE_TRY(add_file(s, index, folder, file));
      MoeStFile *f = &s->files[s->n_files - 1];
      qsort(f->tensors, (size_t)f->n, sizeof *f->tensors, by_name);
    }
  }
  int64_t stored = 0;
  for (int32_t i = 0; i < s->n_files; i++) {
    stored += s->files[i].n;
  }
  json_object_foreach(map, name, value)
  {
    const MoeStFile *f = file_named(s, json_string_value(value));
    MoeStTensor key = {.name = name};
    const MoeStTensor *t = bsearch(&key, f->tensors, (size_t)f->n, sizeof key, by_name);
    if (t == NULL) {
      moe_error("%s: tensor \"%s\" is said to be in %s, which does not have it", index, shown(name, a), f->path);
      return MOE_EINVAL;
    }
    s->tensors[s->n++] = *t;
  }
  qsort(s->tensors, (size_t)s->n, sizeof *s->tensors, by_name);
  if (stored > s->n) {
    moe_note("%s: %lld tensors of its files are not in it and are not read", index, (long long)stored - s->n);
  }
  return MOE_OK;
}

static MoeStatus open_index(MoeStSet *s, const char *index)
{
  MoeStFile text = {.path = strdup(index)};
  json_t *object = NULL;
  MoeStatus status = text.path != NULL ? map_file(&text) : out_of_memory(index);
  if (status == MOE_OK && text.bytes > MAX_HEADER) {
    moe_error("%s: %llu bytes; an index has at most %d", index, (unsigned long long)text.bytes, MAX_HEADER);
    status = MOE_EINVAL;
  }
  if (status == MOE_OK) {
    status = parse_object(index, "the index is not valid JSON", text.map, text.bytes, &object);
  }
  if (status == MOE_OK) {
    json_t *map = json_object_get(object, "weight_map");
    const char *slash = strrchr(index, '/');
    if (!json_is_object(map)) {
      moe_error("%s: it has no weight_map, a list of tensors and their files", index);
      status = MOE_EINVAL;
    } else {
      status = open_mapped(s, index, slash != NULL ? (size_t)(slash + 1 - index) : 0, map);
    }
  }
  json_decref(object);
  close_file(&text);
  return status;
}

static MoeStatus open_folder(MoeStSet *s, const char *path)
{
  static const char *const names[] = {"/model.safetensors.index.json", "/model.safetensors"};
  size_t n = strlen(path);
  char *text = malloc(n + 32);
  if (text == NULL) {
    return out_of_memory(path);
  }
  MoeStatus status = MOE_EIO;
  for (int i = 0; i <= 2; i++) {
    if (i == 2) {
      moe_error("%s has neither model.safetensors.index.json nor model.safetensors", path);
      break;
    }
    snprintf(text, n + 32, "%s%s", path, names[i]);
    if (access(text, F_OK) == 0) {
      status = i == 0 ? open_index(s, text) : open_single(s, path, n, names[i]);
      break;
    }
  }
  free(text);
  return status;
}

MoeStatus moe_st_open(MoeStSet *s, const char *path)
{
  *s = (MoeStSet){.path = path};
  struct stat status;
  MoeStatus result;
  size_t n = strlen(path);
  if (stat(path, &status) != 0) {
    moe_error("cannot read %s: %s", path, strerror(errno));
    result = MOE_EIO;
  } else if (S_ISDIR(status.st_mode)) {
    result = open_folder(s, path);
  } else if (n > 5 && strcmp(path + n - 5, ".json") == 0) {
    result = open_index(s, path);
  } else {
    result = open_single(s, "", 0, path);
  }
  if (result != MOE_OK) {
    moe_st_close(s);
  }
  return result;
}
