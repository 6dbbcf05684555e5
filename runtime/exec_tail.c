/* The tail of a step: sums of gradients over holders, sums of scalars over ranks, the optimizer, and updated weights.
   Every sum has a fixed order, so the same plan gives the same bits. */
#include <string.h>

#include "runtime/exec.h"
#include "runtime/log.h"

/* Where the payload of the runtime's own messages begins. */
enum { PAYLOAD = 64 };

/* `payload` may lie in either memory; it stays as it is until the lane has been waited for. */
static MoeStatus write_message(MoeExec *x, const MoeOp *op, uint8_t *slot, const void *payload, size_t bytes)
{
  MoeMsgHead head = {.stamp = moe_stamp((uint32_t)x->tick, 0, (uint32_t)op->layer, (uint32_t)op->mb, op->edge),
                     .bytes = (uint32_t)(PAYLOAD + bytes)};
  memcpy(slot, &head, sizeof head);
  return x->device->copy(MOE_LANE_COMM, slot + PAYLOAD, payload, bytes);
}

static void own_scalars(const MoeExec *x, double *sums)
{
  for (int i = 0; i < MOE_SC_COUNT; i++) {
    sums[i] = x->mem.scalars[MOE_LANE_COMPUTE][i] + x->mem.scalars[MOE_LANE_COMM][i];
  }
}

MoeStatus moe_tail_pack(MoeExec *x, int32_t index, int32_t peer_rank, uint8_t *slot)
{
  const MoeOp *op = &x->ops[index];
  if (op->edge == MOE_EDGE_SCALARS_DOWN) {
    return write_message(x, op, slot, x->totals, sizeof x->totals);
  }
  if (op->edge == MOE_EDGE_SCALARS_UP) {
    double sums[MOE_SC_COUNT];
    own_scalars(x, sums);
    MOE_TRY(write_message(x, op, slot, sums, sizeof sums));
    return x->device->wait(MOE_LANE_COMM);
  }
  const MoeHeld *h = moe_mem_held(&x->mem, op->bucket, op->layer);
  if (op->edge == MOE_EDGE_SHARE) {
    return write_message(x, op, slot, moe_weights_at(&x->mem, h, h->begin), (size_t)h->n * x->mem.weight_bytes);
  }
  int32_t k = moe_holder_index(x->bundle, h->bucket, peer_rank);
  int64_t begin = moe_part_begin(h->bucket->elems, h->bucket->n_holders, k);
  int64_t n = moe_part_size(h->bucket->elems, h->bucket->n_holders, k);
  return write_message(x, op, slot, h->g + begin, (size_t)n * sizeof(float));
}

void moe_tail_arrived(MoeExec *x, int32_t op, const uint8_t *message)
{
  (void)op;
  memcpy(x->totals, message + PAYLOAD, sizeof x->totals);
}

static const float *floats_of(const MoeIn *in)
{
  return (const float *)(const void *)(in->data + PAYLOAD);
}

/* Squares of this rank's slice, without counts, which are no gradients. */
static double slice_sumsq(const MoeExec *x, const MoeHeld *h)
{
  double sum = 0;
  int64_t from = h->begin;
  for (int32_t p = 0; p < h->bucket->n_params; p++) {
    const MoeParam *param = &x->bundle->params[h->bucket->first_param + p];
    MoeSlice slice = moe_held_slice(h, param);
    if (param->counts && slice.from < slice.to) {
      sum += x->kernels->sumsq(h->g + from, (size_t)(slice.from - from));
      from = slice.to;
    }
  }
  return sum + x->kernels->sumsq(h->g + from, (size_t)(h->begin + h->n - from));
}

/* Adds the holders' gradients of this rank's slice in holder order, with the own one in its place. in[] is in that
   order and lacks the own one. */
static MoeStatus grad_reduce(MoeExec *x, const MoeCall *call, MoeHeld *h)
{
  float *mine = h->g + h->begin;
  for (int64_t at = 0; at < h->n && call->n_in > 0; at += MOE_SUM_CHUNK) {
    size_t n = (size_t)(h->n - at < MOE_SUM_CHUNK ? h->n - at : MOE_SUM_CHUNK);
    int32_t next = 0;
    for (int32_t k = 0; k < h->bucket->n_holders; k++) {
      const float *part = k == h->holder ? mine + at : floats_of(&call->in[next++]) + at;
      if (k == 0) {
        MOE_TRY(x->device->copy(MOE_LANE_COMPUTE, x->mem.sums, part, n * sizeof(float)));
      } else {
        x->kernels->add(x->mem.sums, part, n);
      }
    }
    MOE_TRY(x->device->copy(MOE_LANE_COMPUTE, mine + at, x->mem.sums, n * sizeof(float)));
  }
  x->mem.scalars[MOE_LANE_COMPUTE][MOE_SC_SUMSQ] += slice_sumsq(x, h);
  return MOE_OK;
}

/* Adds up all ranks in rank order; this is rank 0, so its own come first. */
static void sum_scalars(MoeExec *x, const MoeCall *call)
{
  double sums[MOE_SC_COUNT];
  own_scalars(x, sums);
  for (int32_t r = 0; r < call->n_in; r++) {
    double theirs[MOE_SC_COUNT];
    memcpy(theirs, call->in[r].data + PAYLOAD, sizeof theirs);
    for (int i = 0; i < MOE_SC_COUNT; i++) {
      sums[i] += theirs[i];
    }
  }
  memcpy(x->totals, sums, sizeof sums);
}

/* A selection bias: up by the rate where its expert had fewer of the step's choices than the mean, down where more. It
   is kept in fp32 whatever the rest is: such steps are smaller than bf16 can tell. Only kernels of the host have such.
 */
static void move_bias(const MoeExec *x, MoeHeld *h, MoeSlice slice)
{
  const MoeBundle *b = x->bundle;
  double choices = (double)b->global_batch * b->seq * b->top_k;
  for (int64_t i = slice.from; i < slice.to; i++) {
    double above = (double)h->g[i] * b->experts - choices;
    float *master = &h->master[i - h->begin];
    *master += (float)(above < 0 ? b->bias_rate : above > 0 ? -b->bias_rate : 0);
    ((float *)h->w)[i] = *master;
  }
}

static void optimize(MoeExec *x, MoeHeld *h)
{
  if (!x->step.update || !moe_totals_finite(x->totals)) {
    return; /* evaluation, or a step that all ranks skip: they see the same totals */
  }
  MoeAdam adam = x->step.adam;
  adam.scale = (float)moe_clip_scale(moe_totals_norm(x->totals), x->bundle->clip);
  for (int32_t p = 0; p < h->bucket->n_params; p++) {
    const MoeParam *param = &x->bundle->params[h->bucket->first_param + p];
    MoeSlice slice = moe_held_slice(h, param);
    int64_t at = slice.from - h->begin;
    if (slice.from < slice.to && param->counts) {
      move_bias(x, h, slice);
    } else if (slice.from < slice.to) {
      x->kernels->adamw(&adam, moe_weights_at(&x->mem, h, slice.from), h->master + at, h->m + at, h->v + at,
                        h->g + slice.from, (size_t)(slice.to - slice.from), param->decay != 0);
    }
  }
}

static MoeStatus weights_in(const MoeExec *x, const MoeCall *call, MoeHeld *h)
{
  int32_t next = 0;
  for (int32_t k = 0; k < h->bucket->n_holders && next < call->n_in; k++) {
    if (k != h->holder) {
      void *w = moe_weights_at(&x->mem, h, moe_part_begin(h->bucket->elems, h->bucket->n_holders, k));
      int64_t n = moe_part_size(h->bucket->elems, h->bucket->n_holders, k);
      const uint8_t *from = call->in[next++].data + PAYLOAD;
      MOE_TRY(x->device->copy(MOE_LANE_COMPUTE, w, from, (size_t)n * x->mem.weight_bytes));
    }
  }
  return MOE_OK;
}

MoeStatus moe_tail_run(MoeExec *x, int32_t index)
{
  const MoeOp *op = &x->ops[index];
  const MoeCall *call = &x->info[index].call;
  if (op->kind == MOE_OP_SCALARS) {
    sum_scalars(x, call);
    return MOE_OK;
  }
  MoeHeld *h = moe_mem_held(&x->mem, op->bucket, op->layer);
  switch ((MoeOpKind)op->kind) {
  case MOE_OP_GRAD_REDUCE:
    return grad_reduce(x, call, h);
  case MOE_OP_OPTIMIZER:
    optimize(x, h);
    return MOE_OK;
  case MOE_OP_WEIGHTS_IN:
    return weights_in(x, call, h);
  default:
    moe_error("this runtime cannot execute %s", moe_op_name(op->kind));
    return MOE_EINVAL;
  }
}
