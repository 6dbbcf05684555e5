#include "runtime/hf_names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The file's matrix has `parts` times the own rows: row r of part p is row parts r + p where interleaved, else p R + r.
   Stacked: one such matrix per expert, one after the other. */
typedef struct Layout {
  int parts, part;
  bool interleaved, stacked, transposed, mxfp4, f32;
} Layout;

static const Layout SAME = {.parts = 1};
static const Layout SAME_F32 = {.parts = 1, .f32 = true};
static const Layout STACKED = {.parts = 1, .stacked = true};
static const Layout TURNED = {.parts = 1, .stacked = true, .transposed = true};
static const Layout FIRST_ROWS = {.parts = 2, .part = 0, .stacked = true};
static const Layout SECOND_ROWS = {.parts = 2, .part = 1, .stacked = true};
static const Layout EVEN = {.parts = 2, .part = 0, .interleaved = true, .stacked = true};
static const Layout ODD = {.parts = 2, .part = 1, .interleaved = true, .stacked = true};
static const Layout EVEN_COLS = {.parts = 2, .part = 0, .interleaved = true, .stacked = true, .transposed = true};
static const Layout ODD_COLS = {.parts = 2, .part = 1, .interleaved = true, .stacked = true, .transposed = true};
static const Layout EVEN_MXFP4 = {.parts = 2, .part = 0, .interleaved = true, .stacked = true, .mxfp4 = true};
static const Layout ODD_MXFP4 = {.parts = 2, .part = 1, .interleaved = true, .stacked = true, .mxfp4 = true};
static const Layout STACKED_MXFP4 = {.parts = 1, .stacked = true, .mxfp4 = true};

typedef enum Use { LOAD, BOTH } Use;

static const struct {
  const char *family, *own, *file;
  const Layout *layout;
  Use use;
} rows[] = {
#define HF_NAME(family, own, file, layout, use) {family, own, file, &layout, use},
#include "hf_names.def"
#undef HF_NAME
};

enum { N_ROWS = sizeof rows / sizeof *rows };

/* "model.layers.7.mlp..." -> 7 and what follows; false for parameters outside of layers. */
static bool split_layer(const char *name, int32_t *layer_p, const char **rest_p)
{
  static const char prefix[] = "model.layers.";
  if (strncmp(name, prefix, sizeof prefix - 1) != 0) {
    return false;
  }
  char *end;
  long layer = strtol(name + sizeof prefix - 1, &end, 10);
  if (end == name + sizeof prefix - 1 || *end != '.' || layer < 0 || layer > INT32_MAX) {
    return false;
  }
  *layer_p = (int32_t)layer;
  *rest_p = end + 1;
  return true;
}

/* Whether name is the pattern; its {e} is returned, -1 without one. */
static bool matches(const char *pattern, const char *name, int32_t *expert_p)
{
  const char *hole = strstr(pattern, "{e}");
  *expert_p = -1;
  if (hole == NULL) {
    return strcmp(pattern, name) == 0;
  }
  size_t n = (size_t)(hole - pattern);
  if (strncmp(pattern, name, n) != 0) {
    return false;
  }
  char *end;
  long expert = strtol(name + n, &end, 10);
  *expert_p = (int32_t)expert;
  return end != name + n && expert >= 0 && expert <= INT32_MAX && strcmp(hole + 3, end) == 0;
}

static void expand(char *to, int32_t layer, const char *pattern, int32_t expert)
{
  const char *hole = strstr(pattern, "{e}");
  if (hole == NULL) {
    snprintf(to, MOE_HF_NAME, "model.layers.%d.%s", layer, pattern);
  } else {
    snprintf(to, MOE_HF_NAME, "model.layers.%d.%.*s%d%s", layer, (int)(hole - pattern), pattern, expert, hole + 3);
  }
}

static void set_shape(MoeHfPlace *place, const MoeBundle *b, const MoeParam *p, const Layout *layout)
{
  int64_t *shape = place->shape;
  int64_t file_rows = (int64_t)p->rows * layout->parts;
  int32_t n = 0;
  if (layout->stacked) {
    shape[n++] = b->experts;
  }
  if (p->cols == 0) {
    shape[n++] = file_rows;
  } else if (layout->mxfp4) { /* 32 elements of a row are one block of 16 bytes */
    shape[n++] = file_rows;
    shape[n++] = p->cols / 32;
    shape[n++] = 16;
  } else {
    shape[n++] = layout->transposed ? p->cols : file_rows;
    shape[n++] = layout->transposed ? file_rows : p->cols;
  }
  place->n_dims = n;
}

static void lay(MoeHfPlace *place, const MoeBundle *b, const MoeParam *p, const Layout *layout, int32_t expert)
{
  int64_t cols = p->cols > 0 ? p->cols : 1;
  int64_t file_rows = (int64_t)p->rows * layout->parts;
  int64_t first = layout->interleaved ? layout->part : (int64_t)layout->part * p->rows;
  int64_t step = layout->interleaved ? layout->parts : 1;
  place->stacked = layout->stacked;
  place->f32 = layout->f32;
  place->mxfp4 = layout->mxfp4;
  place->unit_begin = layout->stacked ? expert * file_rows * cols : 0;
  place->unit_rows = layout->transposed ? cols : file_rows;
  place->unit_cols = layout->transposed ? file_rows : cols;
  place->base = place->unit_begin + first * (layout->transposed ? 1 : cols);
  place->row_step = step * (layout->transposed ? 1 : cols);
  place->col_step = layout->transposed ? file_rows : 1;
  set_shape(place, b, p, layout);
}

static void name_scales(MoeHfPlace *place)
{
  size_t n = strlen(place->name) - strlen("blocks");
  snprintf(place->scales, sizeof place->scales, "%.*sscales", (int)n, place->name);
}

/* Number `*k` of the rows of this family and use; counts it down past those that it skips. */
static bool find_row(const MoeBundle *b, const MoeParam *p, const char *family, Use use, int32_t *k, MoeHfPlace *place)
{
  int32_t layer;
  int32_t expert;
  const char *rest;
  if (!split_layer(p->name, &layer, &rest)) {
    return false;
  }
  for (int i = 0; i < N_ROWS; i++) {
    bool mine = rows[i].use == use && strcmp(rows[i].family, family) == 0 && matches(rows[i].own, rest, &expert);
    bool whole = !rows[i].layout->mxfp4 || p->cols % 32 == 0;
    if (!mine || !whole || (*k)-- > 0) {
      continue;
    }
    expand(place->name, layer, rows[i].file, expert);
    lay(place, b, p, rows[i].layout, expert);
    if (place->mxfp4) {
      name_scales(place);
    }
    return true;
  }
  return false;
}

bool moe_hf_place(const MoeBundle *b, const MoeParam *p, int32_t k, MoeHfPlace *place)
{
  const char *family = b->hf != NULL ? b->hf->family : "";
  *place = (MoeHfPlace){0};
  if (find_row(b, p, family, BOTH, &k, place) || find_row(b, p, "*", BOTH, &k, place)) {
    return true;
  }
  if (k-- == 0) {
    snprintf(place->name, sizeof place->name, "%s", p->name);
    lay(place, b, p, &SAME, 0);
    return true;
  }
  return find_row(b, p, family, LOAD, &k, place) || find_row(b, p, "*", LOAD, &k, place);
}

static bool ends_with(const char *text, const char *end)
{
  size_t n = strlen(text);
  size_t m = strlen(end);
  return n >= m && strcmp(text + n - m, end) == 0;
}

bool moe_hf_ignores(const MoeBundle *b, const char *name)
{
  return ends_with(name, ".rotary_emb.inv_freq") || (b->tied && strcmp(name, "lm_head.weight") == 0);
}

bool moe_hf_after_last(const MoeBundle *b, const char *name, char marker[MOE_HF_NAME])
{
  int32_t layer;
  const char *rest;
  if (!split_layer(name, &layer, &rest) || layer < b->n_layers) {
    return false;
  }
  expand(marker, layer, "eh_proj.weight", -1);
  return true;
}
