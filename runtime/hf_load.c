#include "runtime/hf_load.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/hf_numbers.h"
#include "runtime/log.h"

enum { LISTED = 12 }; /* names of one kind that are printed */

static bool same_shape(const MoeStTensor *t, int32_t n_dims, const int64_t *shape)
{
  return t->n_dims == n_dims && memcmp(t->shape, shape, (size_t)n_dims * sizeof *shape) == 0;
}

static MoeStatus check_shape(const MoeStTensor *t, int32_t n_dims, const int64_t *shape)
{
  char a[MOE_ST_SHAPE_TEXT];
  char b[MOE_ST_SHAPE_TEXT];
  if (same_shape(t, n_dims, shape)) {
    return MOE_OK;
  }
  moe_error("%s: tensor %s is %s, but this model's is %s", t->file, t->name, moe_st_shape_text(t->n_dims, t->shape, a),
            moe_st_shape_text(n_dims, shape, b));
  return MOE_EINVAL;
}

/* The tensor is there: everything else about it must fit. */
static MoeStatus take(MoeHfLoad *load, const MoeHfPlace *place, const MoeStTensor *t, MoeHfSource *source)
{
  const MoeStTensor *scales = NULL;
  MOE_TRY(check_shape(t, place->n_dims, place->shape));
  if (place->mxfp4 ? t->dtype != MOE_ST_U8 : !moe_hf_reads(t->dtype)) {
    moe_error("%s: tensor %s is stored as %s; %s", t->file, t->name, moe_st_dtype_name(t->dtype),
              place->mxfp4 ? "blocks of 4-bit numbers must be U8" : "F32, BF16, F16, F64 and MXFP4 can be read");
    return MOE_EINVAL;
  }
  if (place->mxfp4) {
    scales = moe_st_find(&load->set, place->scales);
    if (scales == NULL || scales->dtype != MOE_ST_U8) {
      moe_error("%s: tensor %s needs %s, U8, beside it", t->file, t->name, place->scales);
      return MOE_EINVAL;
    }
    MOE_TRY(check_shape(scales, place->n_dims - 1, place->shape));
  }
  *source = (MoeHfSource){t, scales, place->base, place->row_step, place->col_step};
  return MOE_OK;
}

/* Finds each parameter; used: by index in the set. Counts those that it does not find. */
static MoeStatus find_all(MoeHfLoad *load, const MoeBundle *b, bool *used, int32_t *missing_p)
{
  MoeHfPlace place;
  for (int32_t i = 0; i < b->n_params; i++) {
    MoeHfSource *source = &load->sources[i];
    for (int32_t k = 0; source->tensor == NULL && moe_hf_place(b, &b->params[i], k, &place); k++) {
      const MoeStTensor *t = moe_st_find(&load->set, place.name);
      if (t != NULL) {
        MOE_TRY(take(load, &place, t, source));
        used[t - load->set.tensors] = true;
        if (source->scales != NULL) {
          used[source->scales - load->set.tensors] = true;
        }
      }
    }
    if (source->tensor == NULL && (*missing_p)++ < LISTED) {
      (void)moe_hf_place(b, &b->params[i], 0, &place);
      moe_note("missing in %s: %s", load->set.path, place.name);
    }
  }
  return MOE_OK;
}

static bool may_stay_unread(const MoeHfLoad *load, const MoeBundle *b, const char *name)
{
  char marker[MOE_HF_NAME];
  return moe_hf_ignores(b, name) || (moe_hf_after_last(b, name, marker) && moe_st_find(&load->set, marker) != NULL);
}

/* Counts the tensors of the files that are no parameter's. */
static int32_t list_strangers(const MoeHfLoad *load, const MoeBundle *b, const bool *used)
{
  int32_t strangers = 0;
  char shape[MOE_ST_SHAPE_TEXT];
  for (int32_t i = 0; i < load->set.n; i++) {
    const MoeStTensor *t = &load->set.tensors[i];
    if (!used[i] && !may_stay_unread(load, b, t->name) && strangers++ < LISTED) {
      moe_note("not of this model, in %s: %s %s", t->file, t->name, moe_st_shape_text(t->n_dims, t->shape, shape));
    }
  }
  return strangers;
}

static MoeStatus match(MoeHfLoad *load, const MoeBundle *b, bool *used)
{
  int32_t missing = 0;
  MOE_TRY(find_all(load, b, used, &missing));
  int32_t strangers = list_strangers(load, b, used);
  if (missing > 0 || strangers > 0) {
    moe_error("%s does not fit this model (%s): %d of %d tensors are missing, %d are not of this model", load->set.path,
              b->hf != NULL ? b->hf->family : b->model, missing, b->n_params, strangers);
    return MOE_EINVAL;
  }
  return MOE_OK;
}

MoeStatus moe_hf_open(MoeHfLoad *load, const MoeBundle *b, const char *path)
{
  *load = (MoeHfLoad){0};
  MOE_TRY(moe_st_open(&load->set, path));
  load->sources = calloc((size_t)b->n_params + 1, sizeof *load->sources);
  bool *used = calloc((size_t)load->set.n + 1, sizeof *used);
  MoeStatus status = MOE_ENOMEM;
  if (load->sources == NULL || used == NULL) {
    moe_error("out of memory for the tensors of %s", path);
  } else {
    status = match(load, b, used);
  }
  free(used);
  if (status != MOE_OK) {
    moe_hf_close(load);
  }
  return status;
}

void moe_hf_close(MoeHfLoad *load)
{
  moe_st_close(&load->set);
  free(load->sources);
  *load = (MoeHfLoad){0};
}

static void widen(const MoeHfSource *s, int64_t at, int64_t step, int64_t n, float *to, int64_t to_step)
{
  if (s->scales != NULL) {
    moe_hf_widen_mxfp4(s->tensor->data, s->scales->data, at, step, n, to, to_step);
  } else {
    moe_hf_widen(s->tensor, at, step, n, to, to_step);
  }
}

/* The inner loop goes along the file, which is read from a disk; memory is not. */
void moe_hf_read(const MoeHfLoad *load, const MoeBundle *b, const MoeBucket *bucket, float *values)
{
  for (int32_t i = bucket->first_param; i < bucket->first_param + bucket->n_params; i++) {
    const MoeParam *p = &b->params[i];
    const MoeHfSource *s = &load->sources[i];
    float *to = values + p->offset;
    int64_t rows = p->rows;
    int64_t cols = p->cols > 0 ? p->cols : 1;
    if (s->col_step < s->row_step) {
      for (int64_t r = 0; r < rows; r++) {
        widen(s, s->base + r * s->row_step, s->col_step, cols, to + r * cols, 1);
      }
    } else {
      for (int64_t c = 0; c < cols; c++) {
        widen(s, s->base + c * s->col_step, s->row_step, rows, to + c, cols);
      }
    }
  }
}
