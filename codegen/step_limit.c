/* Times are whole nanoseconds in 63 bits. That those of a step do not leave them is found out before anything is
   planned: all work of a step on one GPU after the other, each limit of the hardware by itself. */
#include <math.h>

#include "codegen/cost_terms.h"
#include "codegen/sched.h"

/* 1e17 ns are 3 years of one GPU, or 12 minutes of 131072. What this does not see (rates below the peak, the fullest
   rank, latencies) has 92 times as much until 2^63 ns. */
static const double most_ns = 1e17;

typedef struct Bound {
  double ns;
  const char *block, *key; /* the rate that it comes from */
} Bound;

/* Bytes that all ops of the layer move for `tokens`, weights read anew for every sequence. */
static double layer_bytes(const Spec *spec, const ShapeSpec *shape, int layer, double tokens)
{
  static const MoeOpKind att[] = {MOE_OP_ATT_FWD, MOE_OP_ATT_DGRAD, MOE_OP_ATT_WGRAD};
  static const MoeOpKind ffn[] = {MOE_OP_FFN_FWD, MOE_OP_FFN_DGRAD, MOE_OP_FFN_WGRAD};
  int experts = spec->model.moe.experts, top_k = spec->model.moe.top_k;
  double bytes = 0, weights = cost_expert_params(spec) * experts * shape->global_batch;
  for (int i = 0; i < 3; i++) {
    bytes += work_att(spec, att[i], layer, shape->seq, shape->global_batch, RECOMPUTE_FULL).bytes;
    if (layer >= spec->model.dense.layers) {
      bytes += work_ffn(spec, ffn[i], tokens, tokens * top_k, experts, tokens, weights, RECOMPUTE_SELECTIVE).bytes;
    }
  }
  return bytes;
}

bool sched_in_time(Diag *diag, const Spec *spec, const ShapeSpec *shape)
{
  const ClusterSpec *c = &spec->cluster;
  double tokens = (double)shape->seq * shape->global_batch, gpus = (double)c->nodes * c->gpus;
  double moved = 0, sent = 0;
  for (int l = 0; l < spec->model.layers; l++) {
    moved += layer_bytes(spec, shape, l, tokens);
    /* dispatch, combine and the gradients of both, flat */
    sent += 4 * tokens * spec->model.moe.top_k * (double)cost_row_bytes(spec);
  }
  double tail = fmin(16 * cost_model_params(spec) * gpus, (double)c->gpu.memory * gpus);
  const Bound bounds[] = {{2 * tokens * cost_flops_per_token(spec, shape->seq) / c->gpu.flops * 1e9, "gpu", "flops"},
                          {(moved + tail) / c->gpu.hbm * 1e9, "gpu", "hbm"},
                          {c->gpus > 1 ? (sent + tail) / c->nvlink * 1e9 : 0, "node", "nvlink"},
                          {c->nodes > 1 ? (sent + tail) / c->nic * 1e9 : 0, "node", "nic"}};
  for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++) {
    if (!(bounds[i].ns <= most_ns)) {
      diag_error(diag, spec_span(spec, bounds[i].block, bounds[i].key),
                 "at this %s a step of shape %s takes %.3g years of one GPU; up to %.3g can be planned", bounds[i].key,
                 shape->name, bounds[i].ns / 3.156e16, most_ns / 3.156e16);
      return false;
    }
  }
  return true;
}
