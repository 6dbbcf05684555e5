/* The bytes are those of the reference writer: tensors by descending type, then by name; compact JSON; the header
   padded so that data begins at a multiple of 8. */
#include "runtime/safetensors.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/log.h"

/* A tensor and its place in the caller's list. */
typedef struct Place {
  const MoeStTensor *tensor;
  int32_t index;
} Place;

static int in_file_order(const void *a, const void *b)
{
  const MoeStTensor *x = ((const Place *)a)->tensor;
  const MoeStTensor *y = ((const Place *)b)->tensor;
  return x->dtype != y->dtype ? (x->dtype < y->dtype) - (x->dtype > y->dtype) : strcmp(x->name, y->name);
}

static void put_text(FILE *out, const char *text)
{
  fputc('"', out);
  static const char special[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
  for (const char *c = text; *c != '\0'; c++) {
    const char *at = strchr(special, *c);
    if (at != NULL) {
      fprintf(out, "\\%c", letters[at - special]);
    } else if ((unsigned char)*c < 0x20) {
      fprintf(out, "\\u%04x", (unsigned)*c);
    } else {
      fputc(*c, out);
    }
  }
  fputc('"', out);
}

/* The header, and with it where each tensor lies, relative to the data. */
static char *header_text(MoeStWriter *w, const Place *places, const char *const *metadata, size_t *n_p, uint64_t *end_p)
{
  char *text = NULL;
  FILE *out = open_memstream(&text, n_p);
  if (out == NULL) {
    return NULL;
  }
  const char *comma = "";
  uint64_t at = 0;
  fputc('{', out);
  if (metadata != NULL) {
    fputs("\"__metadata__\":{", out);
    for (int i = 0; metadata[i] != NULL; i += 2) {
      fputs(i > 0 ? "," : "", out);
      put_text(out, metadata[i]);
      fputc(':', out);
      put_text(out, metadata[i + 1]);
    }
    fputc('}', out);
    comma = ",";
  }
  for (int32_t i = 0; i < w->n; i++) {
    const MoeStTensor *t = places[i].tensor;
    uint64_t bytes = w->bytes[places[i].index];
    fputs(comma, out);
    put_text(out, t->name);
    fprintf(out, ":{\"dtype\":\"%s\",\"shape\":[", moe_st_dtype_name(t->dtype));
    for (int32_t d = 0; d < t->n_dims; d++) {
      fprintf(out, "%s%lld", d > 0 ? "," : "", (long long)t->shape[d]);
    }
    fprintf(out, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at, (unsigned long long)(at + bytes));
    w->begin[places[i].index] = at;
    at += bytes;
    comma = ",";
  }
  fputc('}', out);
  for (long length = ftell(out); length % 8 != 0; length++) {
    fputc(' ', out);
  }
  *end_p = at;
  if (fclose(out) != 0) {
    free(text);
    return NULL;
  }
  return text;
}

static MoeStatus write_header(const MoeStWriter *w, const char *text, size_t n, uint64_t data_bytes)
{
  uint8_t length[8];
  for (int i = 0; i < 8; i++) {
    length[i] = (uint8_t)((uint64_t)n >> 8 * i);
  }
  MOE_TRY(moe_file_write_at(&w->file, length, 8, 0));
  MOE_TRY(moe_file_write_at(&w->file, text, n, 8));
  if (ftruncate(w->file.fd, (off_t)(8 + n + data_bytes)) != 0) {
    moe_error("cannot write %s: %s", w->file.path, strerror(errno));
    return MOE_EIO;
  }
  return MOE_OK;
}

static MoeStatus create(MoeStWriter *w, const char *path, const MoeStTensor *tensors, Place *places,
                        const char *const *metadata)
{
  for (int32_t i = 0; i < w->n; i++) {
    const MoeStTensor *t = &tensors[i];
    int64_t bytes = moe_st_tensor_bytes(t->dtype, t->n_dims, t->shape);
    if (bytes < 0) {
      char text[MOE_ST_SHAPE_TEXT];
      moe_error("%s: tensor %s has a shape %s that cannot be stored as %s", path, t->name,
                moe_st_shape_text(t->n_dims, t->shape, text), moe_st_dtype_name(t->dtype));
      return MOE_EINVAL;
    }
    w->bytes[i] = (uint64_t)bytes;
    places[i] = (Place){t, i};
  }
  qsort(places, (size_t)w->n, sizeof *places, in_file_order);
  size_t n = 0;
  uint64_t data_bytes = 0;
  char *text = header_text(w, places, metadata, &n, &data_bytes);
  if (text == NULL) {
    moe_error("out of memory for the header of %s", path);
    return MOE_ENOMEM;
  }
  for (int32_t i = 0; i < w->n; i++) {
    w->begin[i] += 8 + n;
  }
  MoeStatus status = moe_file_begin(&w->file, path);
  if (status == MOE_OK) {
    status = write_header(w, text, n, data_bytes);
  }
  free(text);
  return status;
}

MoeStatus moe_st_create(MoeStWriter *w, const char *path, const MoeStTensor *tensors, int32_t n,
                        const char *const *metadata)
{
  *w = MOE_NO_ST_WRITER;
  w->n = n;
  w->begin = calloc((size_t)n + 1, sizeof *w->begin);
  w->bytes = calloc((size_t)n + 1, sizeof *w->bytes);
  Place *places = calloc((size_t)n + 1, sizeof *places);
  MoeStatus status = MOE_ENOMEM;
  if (w->begin == NULL || w->bytes == NULL || places == NULL) {
    moe_error("out of memory for the header of %s", path);
  } else {
    status = create(w, path, tensors, places, metadata);
  }
  free(places);
  if (status != MOE_OK) {
    moe_st_abandon(w);
  }
  return status;
}

MoeStatus moe_st_write(const MoeStWriter *w, int32_t i, const void *bytes, uint64_t n, uint64_t offset)
{
  if (offset > w->bytes[i] || n > w->bytes[i] - offset) {
    moe_error("%s: bytes %llu to %llu of a tensor of %llu", w->file.path, (unsigned long long)offset,
              (unsigned long long)(offset + n), (unsigned long long)w->bytes[i]);
    return MOE_EINVAL;
  }
  return moe_file_write_at(&w->file, bytes, n, w->begin[i] + offset);
}

static void free_tables(MoeStWriter *w)
{
  free(w->begin);
  free(w->bytes);
  *w = MOE_NO_ST_WRITER;
}

MoeStatus moe_st_commit(MoeStWriter *w)
{
  MOE_TRY(moe_file_commit(&w->file));
  free_tables(w);
  return MOE_OK;
}

void moe_st_abandon(MoeStWriter *w)
{
  moe_file_abandon(&w->file);
  free_tables(w);
}
