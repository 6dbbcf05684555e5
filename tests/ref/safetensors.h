/* Reads and writes safetensors files for test tools: F64, F32 and (reading only) BF16 tensors, everything in memory. */
#ifndef REF_SAFETENSORS_H
#define REF_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum StDtype { ST_F64, ST_F32, ST_BF16 } StDtype;

enum { ST_MAX_DIMS = 4, ST_ERROR_BYTES = 512 };

typedef struct StTensor {
  char *name;
  StDtype dtype;
  int n_dims;
  int64_t shape[ST_MAX_DIMS];
  int64_t n;           /* elements */
  const uint8_t *data; /* little-endian, C order, not necessarily aligned */
} StTensor;

typedef struct StFile {
  int n;
  StTensor *tensors; /* by ascending offset */
  uint8_t *buffer;   /* the whole file; the tensors point into it */
} StFile;

/* Both return false and write one line into `error` [ST_ERROR_BYTES] if the file cannot be read or breaks the format.
 */
bool st_read(const char *path, StFile *file, char *error);
bool st_write(const char *path, const StTensor *tensors, int n, char *error);

void st_free(StFile *);
const StTensor *st_find(const StFile *, const char *name); /* NULL if there is none */
double st_value(const StTensor *, int64_t i);              /* element i, widened exactly */
int64_t st_dtype_bytes(StDtype);

#endif
