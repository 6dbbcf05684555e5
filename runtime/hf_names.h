/* Where each parameter of a bundle lies in Hugging Face files: the name table hf_names.def as places. */
#ifndef MOE_HF_NAMES_H
#define MOE_HF_NAMES_H

#include <stdbool.h>

#include "runtime/moe_bundle.h"

enum { MOE_HF_NAME = 160 };

/* Own element (r, c) is element base + r row_step + c col_step of the file's tensor. MXFP4: of the matrix that blocks
   and scales stand for. */
typedef struct MoeHfPlace {
  char name[MOE_HF_NAME];
  bool stacked; /* the tensor holds the matrices of all experts */
  bool f32;     /* stays F32 in files of any type */
  bool mxfp4;
  char scales[MOE_HF_NAME]; /* MXFP4: tensor of the scales; its shape is `shape` without the last size */
  int32_t n_dims;
  int64_t shape[4]; /* of the tensor `name` */
  int64_t base, row_step, col_step;
  int64_t unit_begin, unit_rows, unit_cols; /* the one matrix, or part of a stack of them, that holds the parameter */
} MoeHfPlace;

/* Place number k of a parameter, in the order of preference; k = 0 is how files are written. False: there are no more.
   Elements of different parameters in one unit never overlap, and all parameters of a unit are in one bucket. */
bool moe_hf_place(const MoeBundle *, const MoeParam *, int32_t k, MoeHfPlace *);

/* Whether a tensor of a file may be left unread: rotary tables, the output table of a tied model. */
bool moe_hf_ignores(const MoeBundle *, const char *name);

/* Whether a tensor is of a layer after the last. It may be left unread where the files hold `marker`, which only layers
   that predict further tokens have (multi-token prediction); without it the files are of a deeper model. */
bool moe_hf_after_last(const MoeBundle *, const char *name, char marker[MOE_HF_NAME]);

#endif
