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

/* What all shapes share. */
static void carve_held(MoeMem *m, uint64_t *end)
{
  for (int32_t i = 0; i < m->n_held; i++) {
    m->held[i].w = carve(m->base, end, (uint64_t)m->held[i].bucket->elems * sizeof(float), &m->weights);
  }
  for (int32_t i = 0; i < m->n_held; i++) {
    m->held[i].g = carve(m->base, end, (uint64_t)m->held[i].bucket->elems * sizeof(float), &m->gradients);
  }
  for (int32_t i = 0; i < m->n_held; i++) {
    uint64_t bytes = (uint64_t)m->held[i].n * sizeof(float);
    m->held[i].master = carve(m->base, end, bytes, &m->optimizer);
    m->held[i].m = carve(m->base, end, bytes, &m->optimizer);
    m->held[i].v = carve(m->base, end, bytes, &m->optimizer);
  }
}

static void carve_pools(MoeMem *m, const MoeRank *me, uint64_t *end)
{
  const MoeBundle *b = me->bundle;
  const MoeGroup *g = me->group;
  m->att_saved = carve(m->base, end, (uint64_t)g->att_saved * m->att_saved_bytes, &m->activations);
  m->att_work = carve(m->base, end, (uint64_t)g->att_work * m->att_work_bytes, &m->activations);
  m->ffn_saved = carve(m->base, end, (uint64_t)g->ffn_saved * m->ffn_saved_bytes, &m->activations);
  m->ffn_work = carve(m->base, end, (uint64_t)g->ffn_work * m->ffn_work_bytes, &m->activations);
  m->scratch[0] = carve(m->base, end, m->scratch_bytes[0], &m->workspace);
  m->scratch[1] = carve(m->base, end, m->scratch_bytes[1], &m->workspace);
  m->sums = carve(m->base, end, MOE_SUM_CHUNK * sizeof(float), &m->workspace);
  if (g->role & MOE_ROLE_A) {
    uint64_t n = (uint64_t)b->micro_batches * (uint64_t)moe_part_max(b->mb_seqs, g->n_ranks) * (uint64_t)b->seq;
    m->tokens = carve(m->base, end, n * sizeof(int32_t), &m->workspace);
    m->labels = carve(m->base, end, n * sizeof(int32_t), &m->workspace);
  }
  m->sample = carve(m->base, end, ((uint64_t)b->seq + 1) * sizeof(int32_t), &m->workspace);
}

static void carve_all(MoeMem *mems, const MoeBundle *first, int32_t rank, const MoeWiring *wirings)
{
  uint64_t end = 0;
  MoeMem terms = {0};
  int32_t k = 0;
  mems[0].weights = mems[0].gradients = mems[0].optimizer = 0;
  carve_held(&mems[0], &end);
  uint64_t pools = end;
  for (const MoeBundle *b = first; b != NULL; b = b->next, k++) {
    MoeRank me = moe_rank_of(b, rank);
    uint64_t own_end = pools;
    mems[k].base = mems[0].base;
    mems[k].activations = mems[k].workspace = 0;
    carve_pools(&mems[k], &me, &own_end);
    if (own_end > end) {
      end = own_end;
      terms.activations = mems[k].activations;
      terms.workspace = mems[k].workspace;
    }
  }
  for (int32_t i = 0; i < k; i++) {
    uint64_t own = 0;
    mems[i].self_slabs = carve(mems[0].base, &end, wirings[i].self_bytes[rank], &own);
    terms.buffers += wirings[i].in_bytes[rank];
  }
  mems[0].bytes = end;
  mems[0].activations = terms.activations;
  mems[0].workspace = terms.workspace;
  mems[0].buffers = terms.buffers;
}

static MoeStatus list_held(MoeMem *m, const MoeBundle *b, int32_t rank)
{
  *m = (MoeMem){.held = calloc((size_t)b->n_buckets + 1, sizeof *m->held)};
  if (m->held == NULL) {
    moe_error("out of memory for the list of buckets");
    return MOE_ENOMEM;
  }
  for (int32_t i = 0; i < b->n_buckets; i++) {
    int32_t k = moe_holder_index(b, &b->buckets[i], rank);
    if (k >= 0) {
      int64_t n = b->buckets[i].n_holders;
      m->held[m->n_held++] = (MoeHeld){.bucket = &b->buckets[i],
                                       .holder = k,
                                       .begin = moe_part_begin(b->buckets[i].elems, n, k),
                                       .n = moe_part_size(b->buckets[i].elems, n, k)};
    }
  }
  return MOE_OK;
}

static void size_slots(MoeMem *m, const MoeRank *me, const MoeKernels *kernels)
{
  MoeDims dims = moe_dims(me->bundle, me->group_id);
  if (me->group->role & MOE_ROLE_A) {
    m->att_saved_bytes = moe_align64(kernels->att_saved_bytes(&dims));
    m->att_work_bytes = moe_align64(kernels->att_work_bytes(&dims));
  }
  if (me->group->role & MOE_ROLE_F) {
    m->ffn_saved_bytes = moe_align64(kernels->ffn_saved_bytes(&dims));
    m->ffn_work_bytes = moe_align64(kernels->ffn_work_bytes(&dims));
  }
  m->scratch_bytes[0] = moe_align64(kernels->scratch_bytes(&dims));
  m->scratch_bytes[1] = moe_align64(kernels->comm_scratch_bytes(&dims));
}

MoeStatus moe_mem_size(MoeMem *mems, const MoeBundle *first, int32_t rank, const MoeKernels *kernels,
                       const MoeWiring *wirings)
{
  int32_t k = 0;
  MOE_TRY(list_held(&mems[0], first, rank));
  for (const MoeBundle *b = first; b != NULL; b = b->next, k++) {
    MoeRank me = moe_rank_of(b, rank);
    if (k > 0) {
      mems[k] = (MoeMem){.held = mems[0].held, .n_held = mems[0].n_held};
    }
    size_slots(&mems[k], &me, kernels);
  }
  carve_all(mems, first, rank, wirings);
  return MOE_OK;
}

MoeStatus moe_mem_map(MoeMem *mems, const MoeBundle *first, int32_t rank, const MoeKernels *kernels,
                      const MoeWiring *wirings, bool poison)
{
  MOE_TRY(moe_mem_size(mems, first, rank, kernels, wirings));
  uint64_t bytes = mems[0].bytes;
  void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) {
    moe_error("cannot map %llu bytes of memory: %s", (unsigned long long)bytes, strerror(errno));
    return MOE_ENOMEM;
  }
  mems[0].base = base;
  if (poison) {
    memset(base, 0xff, bytes);
  }
  carve_all(mems, first, rank, wirings);
  return MOE_OK;
}

void moe_mem_unmap(MoeMem *mems)
{
  MoeMem *m = &mems[0];
  if (m->base != NULL) {
    munmap(m->base, m->bytes);
  }
  free(m->held);
  *m = (MoeMem){0};
}

MoeSlice moe_held_slice(const MoeHeld *h, const MoeParam *p)
{
  int64_t end = p->offset + moe_param_elems(p);
  return (MoeSlice){.from = p->offset > h->begin ? p->offset : h->begin,
                    .to = end < h->begin + h->n ? end : h->begin + h->n};
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
