#include "runtime/tensors.h"

#include <stdlib.h>

#include "runtime/log.h"

MoeStatus moe_tensors_begin(MoeStWriter *w, const MoeBundle *b, const char *path)
{
  MoeStTensor *tensors = calloc((size_t)b->n_params + 1, sizeof *tensors);
  int64_t *shapes = calloc(2 * (size_t)b->n_params + 1, sizeof *shapes);
  MoeStatus status = MOE_ENOMEM;
  if (tensors == NULL || shapes == NULL) {
    moe_error("out of memory for the header of %s", path);
  } else {
    for (int32_t i = 0; i < b->n_params; i++) {
      const MoeParam *p = &b->params[i];
      int64_t *shape = shapes + 2 * (size_t)i;
      shape[0] = p->rows;
      shape[1] = p->cols;
      tensors[i] = (MoeStTensor){.name = p->name, .dtype = MOE_ST_F32, .n_dims = p->cols > 0 ? 2 : 1, .shape = shape};
    }
    status = moe_st_create(w, path, tensors, b->n_params, NULL);
  }
  free(tensors);
  free(shapes);
  return status;
}

MoeStatus moe_tensors_write(const MoeStWriter *w, const MoeBundle *b, const MoeHeld *h, const float *values)
{
  for (int32_t i = 0; i < h->bucket->n_params; i++) {
    const MoeParam *p = &b->params[h->bucket->first_param + i];
    MoeSlice slice = moe_held_slice(h, p);
    if (slice.from < slice.to) {
      MOE_TRY(moe_st_write(w, h->bucket->first_param + i, values + slice.from,
                           (uint64_t)(slice.to - slice.from) * sizeof(float),
                           (uint64_t)(slice.from - p->offset) * sizeof(float)));
    }
  }
  return MOE_OK;
}
