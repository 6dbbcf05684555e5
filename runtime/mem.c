/* Two passes over one list of carvings: the first counts with a NULL base, the second hands out addresses. */
#include "runtime/mem.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/log.h"

typedef struct Region {
  uint8_t *base;
  uint64_t end;
} Region;

static void *carve(Region *r, uint64_t bytes, uint64_t *term)
{
  uint64_t at = r->end;
  uint64_t rounded = (bytes + 63u) & ~(uint64_t)63u;
  r->end += rounded;
  *term += rounded;
  return r->base == NULL || bytes == 0 ? NULL : r->base + at;
}

/* What all shapes share. */
static void carve_held(MoeMem *m, Region *dev)
{
  for (int32_t i = 0; i < m->n_held; i++) {
    m->held[i].w = carve(dev, (uint64_t)m->held[i].bucket->elems * m->weight_bytes, &m->weights);
  }
  for (int32_t i = 0; i < m->n_held; i++) {
    m->held[i].g = carve(dev, (uint64_t)m->held[i].bucket->elems * sizeof(float), &m->gradients);
  }
  for (int32_t i = 0; i < m->n_held; i++) {
    uint64_t bytes = (uint64_t)m->held[i].n * sizeof(float);
    m->held[i].master = carve(dev, bytes, &m->optimizer);
    m->held[i].m = carve(dev, bytes, &m->optimizer);
    m->held[i].v = carve(dev, bytes, &m->optimizer);
  }
}

static void carve_pools(MoeMem *m, const MoeRank *me, Region *dev, Region *host)
{
  const MoeBundle *b = me->bundle;
  const MoeGroup *g = me->group;
  m->att_saved = carve(dev, (uint64_t)g->att_saved * m->att_saved_bytes, &m->activations);
  m->att_work = carve(dev, (uint64_t)g->att_work * m->att_work_bytes, &m->activations);
  m->ffn_saved = carve(dev, (uint64_t)g->ffn_saved * m->ffn_saved_bytes, &m->activations);
  m->ffn_work = carve(dev, (uint64_t)g->ffn_work * m->ffn_work_bytes, &m->activations);
  m->att_notes = carve(host, (uint64_t)g->att_saved * MOE_NOTE_BYTES, &m->activations);
  m->ffn_notes = carve(host, (uint64_t)g->ffn_saved * MOE_NOTE_BYTES, &m->activations);
  m->scratch[0] = carve(dev, m->scratch_bytes[0], &m->workspace);
  m->scratch[1] = carve(dev, m->scratch_bytes[1], &m->workspace);
  m->scalars[0] = carve(host, MOE_SC_COUNT * sizeof(double), &m->workspace);
  m->scalars[1] = carve(host, MOE_SC_COUNT * sizeof(double), &m->workspace);
  m->sums = carve(dev, MOE_SUM_CHUNK * sizeof(float), &m->workspace);
  if (g->role & MOE_ROLE_A) {
    uint64_t n = (uint64_t)b->micro_batches * (uint64_t)moe_part_max(b->mb_seqs, g->n_ranks) * (uint64_t)b->seq;
    m->tokens = carve(host, n * sizeof(int32_t), &m->workspace);
    m->labels = carve(host, n * sizeof(int32_t), &m->workspace);
  }
  m->sample = carve(host, ((uint64_t)b->seq + 1) * sizeof(int32_t), &m->workspace);
}

static void carve_all(MoeMem *mems, const MoeBundle *first, int32_t rank, const MoeWiring *wirings)
{
  Region dev = {mems[0].base, 0};
  Region host = {mems[0].host, 0};
  MoeMem terms = {0};
  int32_t k = 0;
  mems[0].weights = mems[0].gradients = mems[0].optimizer = 0;
  carve_held(&mems[0], &dev);
  Region most = dev, most_host = host;
  for (const MoeBundle *b = first; b != NULL; b = b->next, k++) {
    MoeRank me = moe_rank_of(b, rank);
    Region own = dev, own_host = host;
    mems[k].base = mems[0].base;
    mems[k].host = mems[0].host;
    mems[k].activations = mems[k].workspace = 0;
    carve_pools(&mems[k], &me, &own, &own_host);
    if (own.end > most.end) {
      most = own;
      terms.activations = mems[k].activations;
      terms.workspace = mems[k].workspace;
    }
    most_host = own_host.end > most_host.end ? own_host : most_host;
  }
  for (int32_t i = 0; i < k; i++) {
    uint64_t own = 0;
    mems[i].self_slabs = carve(&most_host, wirings[i].self_bytes[rank], &own);
    terms.buffers += wirings[i].in_bytes[rank];
  }
  mems[0].bytes = most.end;
  mems[0].host_bytes = most_host.end;
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
  mems[0].device = moe_device_of(kernels);
  mems[0].weight_bytes = kernels->weight_bytes;
  for (const MoeBundle *b = first; b != NULL; b = b->next, k++) {
    MoeRank me = moe_rank_of(b, rank);
    if (k > 0) {
      mems[k] = (MoeMem){.device = mems[0].device,
                         .weight_bytes = mems[0].weight_bytes,
                         .held = mems[0].held,
                         .n_held = mems[0].n_held};
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
  MoeMem *m = &mems[0];
  m->host = moe_host_device.alloc(m->host_bytes);
  m->base = m->host != NULL ? m->device->alloc(m->bytes) : NULL;
  if (m->base == NULL) {
    return MOE_ENOMEM;
  }
  MOE_TRY(m->device->share(m->host, m->host_bytes));
  if (poison) {
    memset(m->host, 0xff, m->host_bytes);
    MOE_TRY(m->device->fill(MOE_LANE_COMPUTE, m->base, 0xff, m->bytes));
  }
  carve_all(mems, first, rank, wirings);
  return m->device->wait(MOE_LANE_COMPUTE);
}

void moe_mem_unmap(MoeMem *mems)
{
  MoeMem *m = &mems[0];
  if (m->base != NULL) {
    m->device->free(m->base, m->bytes);
    m->device->unshare(m->host);
  }
  if (m->host != NULL) {
    moe_host_device.free(m->host, m->host_bytes);
  }
  free(m->held);
  *m = (MoeMem){0};
}

void *moe_weights_at(const MoeMem *m, const MoeHeld *h, int64_t at)
{
  return (uint8_t *)h->w + (size_t)at * m->weight_bytes;
}

/* Copies n elements of `bytes` each; bf16 becomes fp32, which has it as its upper half. */
static const float *fetch(const MoeMem *m, const void *at, int64_t n, size_t bytes)
{
  float *values = malloc((size_t)n * sizeof *values + 1);
  if (values == NULL) {
    moe_error("out of memory for a copy of %lld values", (long long)n);
    return NULL;
  }
  if (moe_device_move(m->device, values, at, (size_t)n * bytes) != MOE_OK) {
    free(values);
    return NULL;
  }
  const uint16_t *halves = (const void *)values;
  for (int64_t i = n; bytes == sizeof *halves && i-- > 0;) {
    uint32_t bits = (uint32_t)halves[i] << 16;
    memcpy(&values[i], &bits, sizeof bits);
  }
  return values;
}

const float *moe_values_of(const MoeMem *m, const float *at, int64_t n)
{
  return m->device->apart ? fetch(m, at, n, sizeof *at) : at;
}

const float *moe_values_of_weights(const MoeMem *m, const MoeHeld *h)
{
  return m->device->apart ? fetch(m, h->w, h->bucket->elems, m->weight_bytes) : h->w;
}

void moe_values_done(const MoeMem *m, const float *values)
{
  if (m->device->apart) {
    free((void *)(uintptr_t)values);
  }
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
