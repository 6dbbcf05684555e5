#include "runtime/shapes.h"

#include <stdlib.h>

#include "runtime/log.h"

int32_t moe_n_shapes(const MoeBundle *first)
{
  int32_t n = 0;
  for (const MoeBundle *b = first; b != NULL; b = b->next) {
    n++;
  }
  return n;
}

const MoeBundle *moe_shape_at(const MoeBundle *first, int32_t shape)
{
  const MoeBundle *b = first;
  while (shape-- > 0) {
    b = b->next;
  }
  return b;
}

MoeWiring *moe_wirings_build(const MoeBundle *first, const MoeKernels *kernels)
{
  int32_t n = moe_n_shapes(first), k = 0;
  uint64_t end = 0;
  MoeWiring *wirings = calloc((size_t)n, sizeof *wirings);
  if (wirings == NULL) {
    moe_error("out of memory for message lists");
    return NULL;
  }
  for (const MoeBundle *b = first; b != NULL; b = b->next, k++) {
    if (moe_wiring_build(b, kernels, end, &wirings[k]) != MOE_OK) {
      moe_wirings_free(wirings, n);
      return NULL;
    }
    end = wirings[k].shared_end;
  }
  return wirings;
}

void moe_wirings_free(MoeWiring *wirings, int32_t n)
{
  for (int32_t i = 0; wirings != NULL && i < n; i++) {
    moe_wiring_free(&wirings[i]);
  }
  free(wirings);
}

/* A host counts its devices from 0, whichever ranks it runs. */
static int32_t number_on_host(const MoeShared *s, int32_t rank)
{
  int32_t n = 0;
  for (int32_t r = 0; r < rank; r++) {
    n += s->host_of == NULL || s->host_of[r] == s->host_of[rank];
  }
  return n;
}

MoeStatus moe_shapes_open(MoeShapes *s, const MoeBundle *first, const MoeKernels *kernels, const MoeWiring *wirings,
                          MoeShared *shared, int32_t rank, const MoeExecOptions *options)
{
  *s = (MoeShapes){.n = moe_n_shapes(first), .active = -1, .shared = shared, .rank = rank};
  s->execs = calloc((size_t)s->n, sizeof *s->execs);
  s->mems = calloc((size_t)s->n, sizeof *s->mems);
  s->pace_sent = calloc(MOE_TRAFFIC_COUNT * (size_t)moe_n_ranks(first), sizeof *s->pace_sent);
  MoeExecIn in = {.kernels = kernels, .shared = shared, .rank = rank, .options = options, .pace_sent = s->pace_sent};
  MoeStatus status = MOE_ENOMEM;
  if (s->execs == NULL || s->mems == NULL || s->pace_sent == NULL) {
    moe_error("out of memory for the executors");
  } else {
    s->device = moe_device_of(kernels);
    status = s->device->open(number_on_host(shared, rank));
    status = status == MOE_OK ? s->device->share(shared->base, shared->bytes) : status;
    status = status == MOE_OK ? moe_mem_map(s->mems, first, rank, kernels, wirings, options->poison) : status;
  }
  int32_t k = 0;
  for (const MoeBundle *b = first; b != NULL && status == MOE_OK; b = b->next, k++) {
    status = moe_exec_open(&s->execs[k], &in, b, &wirings[k], &s->mems[k]);
  }
  if (status != MOE_OK) {
    moe_shapes_close(s);
  }
  return status;
}

void moe_shapes_close(MoeShapes *s)
{
  for (int32_t i = 0; s->execs != NULL && i < s->n; i++) {
    moe_exec_close(&s->execs[i]);
  }
  if (s->mems != NULL && s->device != NULL) {
    moe_mem_unmap(s->mems);
    s->device->unshare(s->shared->base);
    s->device->close();
  }
  free(s->execs);
  free(s->mems);
  free(s->pace_sent);
  *s = (MoeShapes){0};
}

MoeStatus moe_shapes_use(MoeShapes *s, int32_t shape, MoeExec **x_p)
{
  *x_p = &s->execs[shape];
  if (shape == s->active) {
    return MOE_OK;
  }
  if (s->active >= 0) {
    moe_exec_stop(&s->execs[s->active]);
  }
  s->active = shape;
  atomic_store(&s->shared->states[s->rank].shape, (uint32_t)shape);
  return moe_exec_start(*x_p);
}
