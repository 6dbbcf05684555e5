/* Two passes over one list of carvings: the first counts with a NULL base, the second hands out addresses. */
#include "runtime/mem.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "runtime/log.h"

static void *carve(uint8_t *base, uint64_t *end, uint64_t bytes, uint64_t *term)
{
  uint64_t at = *end;
  uint64_t rounded = (bytes + 63u) & ~(uint64_t)63u;
  *end += rounded;
  *term += rounded;
  return base == NULL || bytes == 0 ? NULL : base + at;
}

static void carve_all(MoeMem *m, const MoeRank *me, uint64_t self_slab_bytes)
{
  const MoeBundle *b = me->bundle;
  const MoeGroup *g = me->group;
  uint64_t end = 0;
  m->weights = m->gradients = m->optimizer = m->activations = m->buffers = m->workspace = 0;
  for (int32_t i = 0; i < m->n_held; i++) {
    m->held[i].w = carve(m->base, &end, (uint64_t)m->held[i].bucket->elems * sizeof(float), &m->weights);
  }
  for (int32_t i = 0; i < m->n_held; i++) {
    m->held[i].g = carve(m->base, &end, (uint64_t)m->held[i].bucket->elems * sizeof(float), &m->gradients);
  }
  for (int32_t i = 0; i < m->n_held; i++) {
    uint64_t bytes = (uint64_t)m->held[i].n * sizeof(float);
    m->held[i].master = carve(m->base, &end, bytes, &m->optimizer);
    m->held[i].m = carve(m->base, &end, bytes, &m->optimizer);
    m->held[i].v = carve(m->base, &end, bytes, &m->optimizer);
  }
  m->att_saved = carve(m->base, &end, (uint64_t)g->att_saved * m->att_saved_bytes, &m->activations);
  m->att_work = carve(m->base, &end, (uint64_t)g->att_work * m->att_work_bytes, &m->activations);
  m->ffn_saved = carve(m->base, &end, (uint64_t)g->ffn_saved * m->ffn_saved_bytes, &m->activations);
  m->ffn_work = carve(m->base, &end, (uint64_t)g->ffn_work * m->ffn_work_bytes, &m->activations);
  m->scratch[0] = carve(m->base, &end, m->scratch_bytes, &m->workspace);
  m->scratch[1] = carve(m->base, &end, m->scratch_bytes, &m->workspace);
  m->sums = carve(m->base, &end, MOE_SUM_CHUNK * sizeof(float), &m->workspace);
  if (g->role & MOE_ROLE_A) {
    uint64_t n = (uint64_t)b->micro_batches * (uint64_t)moe_part_max(b->mb_seqs, g->n_ranks) * (uint64_t)b->seq;
    m->tokens = carve(m->base, &end, n * sizeof(int32_t), &m->workspace);
    m->labels = carve(m->base, &end, n * sizeof(int32_t), &m->workspace);
  }
  m->sample = carve(m->base, &end, ((uint64_t)b->seq + 1) * sizeof(int32_t), &m->workspace);
  m->self_slabs = carve(m->base, &end, self_slab_bytes, &m->buffers);
  m->bytes = end;
}

MoeStatus moe_mem_size(MoeMem *m, const MoeRank *me, const MoeKernels *kernels, const MoeWiring *wiring)
{
  const MoeBundle *b = me->bundle;
  *m = (MoeMem){.held = calloc((size_t)b->n_buckets + 1, sizeof *m->held)};
  if (m->held == NULL) {
    moe_error("out of memory for the list of buckets");
    return MOE_ENOMEM;
  }
  for (int32_t i = 0; i < b->n_buckets; i++) {
    int32_t k = moe_holder_index(b, &b->buckets[i], me->rank);
    if (k >= 0) {
      int64_t n = b->buckets[i].n_holders;
      m->held[m->n_held++] = (MoeHeld){.bucket = &b->buckets[i],
                                       .holder = k,
                                       .begin = moe_part_begin(b->buckets[i].elems, n, k),
                                       .n = moe_part_size(b->buckets[i].elems, n, k)};
    }
  }
  MoeDims dims = moe_dims(b, me->group_id);
  if (me->group->role & MOE_ROLE_A) {
    m->att_saved_bytes = moe_align64(kernels->att_saved_bytes(&dims));
    m->att_work_bytes = moe_align64(kernels->att_work_bytes(&dims));
  }
  if (me->group->role & MOE_ROLE_F) {
    m->ffn_saved_bytes = moe_align64(kernels->ffn_saved_bytes(&dims));
    m->ffn_work_bytes = moe_align64(kernels->ffn_work_bytes(&dims));
  }
  m->scratch_bytes = moe_align64(kernels->scratch_bytes(&dims));
  carve_all(m, me, wiring->self_bytes[me->rank]);
  m->buffers = wiring->in_bytes[me->rank];
  return MOE_OK;
}

MoeStatus moe_mem_map(MoeMem *m, const MoeRank *me, const MoeKernels *kernels, const MoeWiring *wiring, bool poison)
{
  MOE_TRY(moe_mem_size(m, me, kernels, wiring));
  void *base = mmap(NULL, m->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) {
    moe_error("cannot map %llu bytes of memory: %s", (unsigned long long)m->bytes, strerror(errno));
    return MOE_ENOMEM;
  }
  m->base = base;
  if (poison) {
    memset(base, 0xff, m->bytes);
  }
  carve_all(m, me, wiring->self_bytes[me->rank]);
  m->buffers = wiring->in_bytes[me->rank];
  return MOE_OK;
}

void moe_mem_unmap(MoeMem *m)
{
  if (m->base != NULL) {
    munmap(m->base, m->bytes);
  }
  free(m->held);
  *m = (MoeMem){0};
}

MoeHeld *moe_mem_held(const MoeMem *m, MoeBucketKind kind, int32_t layer)
{
  for (int32_t i = 0; i < m->n_held; i++) {
    if (m->held[i].bucket->kind == kind && m->held[i].bucket->layer == layer) {
      return &m->held[i];
    }
  }
  return NULL;
}
