#include "runtime/load.h"

#include <string.h>

size_t moe_load_cells(const MoeBundle *b)
{
  return (size_t)(b->n_layers - b->dense) * 2 * (size_t)b->experts;
}

static uint32_t *part_of(const MoeShared *s, size_t cells, int32_t rank, int64_t t)
{
  return s->loads + ((size_t)(t & 1) * (size_t)s->n_ranks + (size_t)rank) * cells;
}

uint32_t *moe_load_begin(const MoeShared *s, const MoeBundle *b, int32_t rank, int64_t t)
{
  size_t cells = moe_load_cells(b);
  if (s->loads == NULL) {
    return NULL;
  }
  uint32_t *part = part_of(s, cells, rank, t);
  memset(part, 0, cells * sizeof *part);
  return part;
}

MoeLoad moe_load_sum(const MoeShared *s, const MoeBundle *b, int64_t t, uint64_t *sums)
{
  size_t cells = moe_load_cells(b);
  MoeLoad load = {.layers = b->n_layers - b->dense, .first = b->dense, .experts = b->experts};
  if (s->loads == NULL || sums == NULL) {
    return load;
  }
  memset(sums, 0, cells * sizeof *sums);
  for (int32_t r = 0; r < s->n_ranks; r++) {
    const uint32_t *part = part_of(s, cells, r, t);
    for (size_t i = 0; i < cells; i++) {
      sums[i] += part[i];
    }
  }
  load.cells = sums;
  return load;
}

double moe_load_fullest(const MoeLoad *load)
{
  double fullest = 0;
  for (int32_t l = 0; load->cells != NULL && l < load->layers; l++) {
    const uint64_t *choices = load->cells + (size_t)l * 2 * (size_t)load->experts;
    uint64_t most = 0, all = 0;
    for (int32_t e = 0; e < load->experts; e++) {
      most = choices[e] > most ? choices[e] : most;
      all += choices[e];
    }
    double over = all > 0 ? (double)most * load->experts / (double)all : 0;
    fullest = over > fullest ? over : fullest;
  }
  return fullest;
}
