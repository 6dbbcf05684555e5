/* Format: 8 bytes of header length, little endian; a JSON object; then the tensors' bytes, back to back. The header is
   padded with spaces to a multiple of 8. Tensors stand in the order of the bundle's parameters. */
#include "runtime/tensors.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/log.h"

static uint64_t param_bytes(const MoeParam *p)
{
  return (uint64_t)p->rows * (uint64_t)(p->cols > 0 ? p->cols : 1) * sizeof(float);
}

static char *header_text(const MoeBundle *b, size_t *n_p, uint64_t *data_bytes_p)
{
  char *text = NULL;
  FILE *out = open_memstream(&text, n_p);
  if (out == NULL) {
    return NULL;
  }
  uint64_t at = 0;
  fputc('{', out);
  for (int32_t i = 0; i < b->n_params; i++) {
    const MoeParam *p = &b->params[i];
    fprintf(out, "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[%d", i > 0 ? "," : "", p->name, p->rows);
    if (p->cols > 0) {
      fprintf(out, ",%d", p->cols);
    }
    fprintf(out, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at, (unsigned long long)(at + param_bytes(p)));
    at += param_bytes(p);
  }
  fputc('}', out);
  for (long length = ftell(out); length % 8 != 0; length++) {
    fputc(' ', out);
  }
  *data_bytes_p = at;
  if (fclose(out) != 0) {
    free(text);
    return NULL;
  }
  return text;
}

MoeStatus moe_tensors_begin(MoeFile *f, const MoeBundle *b, const char *path)
{
  size_t n = 0;
  uint64_t data_bytes = 0;
  char *text = header_text(b, &n, &data_bytes);
  if (text == NULL) {
    moe_error("out of memory for the header of %s", path);
    return MOE_ENOMEM;
  }
  MoeStatus status = moe_file_begin(f, path);
  uint8_t length[8];
  for (int i = 0; i < 8; i++) {
    length[i] = (uint8_t)((uint64_t)n >> 8 * i);
  }
  if (status == MOE_OK) {
    status = moe_file_write_at(f, length, 8, 0);
  }
  if (status == MOE_OK) {
    status = moe_file_write_at(f, text, n, 8);
  }
  if (status == MOE_OK && ftruncate(f->fd, (off_t)(8 + n + data_bytes)) != 0) {
    moe_error("cannot write %s: %s", path, strerror(errno));
    status = MOE_EIO;
  }
  free(text);
  return status;
}

/* Where the data begins: read back, so that ranks need nothing but the open file. */
static MoeStatus data_begin(const MoeFile *f, uint64_t *begin_p)
{
  uint8_t length[8];
  if (pread(f->fd, length, 8, 0) != 8) {
    moe_error("cannot read back the header of %s", f->path);
    return MOE_EIO;
  }
  uint64_t n = 0;
  for (int i = 0; i < 8; i++) {
    n |= (uint64_t)length[i] << 8 * i;
  }
  *begin_p = 8 + n;
  return MOE_OK;
}

MoeStatus moe_tensors_write(const MoeFile *f, const MoeBundle *b, const MoeHeld *h, const float *values)
{
  uint64_t at;
  MOE_TRY(data_begin(f, &at));
  for (int32_t i = 0; i < h->bucket->first_param; i++) {
    at += param_bytes(&b->params[i]);
  }
  for (int32_t i = 0; i < h->bucket->n_params; i++) {
    const MoeParam *p = &b->params[h->bucket->first_param + i];
    int64_t n = (int64_t)(param_bytes(p) / sizeof(float));
    int64_t from = h->begin > p->offset ? h->begin : p->offset;
    int64_t to = h->begin + h->n < p->offset + n ? h->begin + h->n : p->offset + n;
    if (from < to) {
      uint64_t where = at + (uint64_t)(from - p->offset) * sizeof(float);
      MOE_TRY(moe_file_write_at(f, values + from, (size_t)(to - from) * sizeof(float), where));
    }
    at += param_bytes(p);
  }
  return MOE_OK;
}
