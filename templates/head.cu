/* The head: final norm, logits, loss and both gradients, for some tokens at a time; embed_head.c has the formulas.
   Logits are floats; their gradients are of the storage type, as both operands of a product are. One block per token.
 */
#include "moe_cuda.cuh"

namespace
{

constexpr int V = MOE_VOCAB;
constexpr int H = MOE_HIDDEN;
constexpr int THREADS = V >= 4096 ? 512 : 128;
constexpr int WARPS = THREADS / LANES;

/* What a token adds to the scalars, before the division. */
struct TokenLoss {
  double loss;
  uint32_t counts, nonfinite;
};

/* dlogits [n, V] from logits [n, V]. */
__global__ void __launch_bounds__(THREADS) cross_entropy(const float *logits, const int32_t *labels, float inv_tokens,
                                                         MoeReal *dlogits, TokenLoss *losses, int32_t *status)
{
  SHARED(float, part, WARPS);
  const float *z = logits + (size_t)blockIdx.x * V;
  MoeReal *dz = dlogits + (size_t)blockIdx.x * V;
  int32_t label = labels[blockIdx.x];
  TokenLoss own = {0, 0, 0};
  if (label < 0 || label >= V) {
    for (int i = (int)threadIdx.x; i < V; i += THREADS) {
      dz[i] = moe_put(0.0f);
    }
    if (threadIdx.x == 0) {
      losses[blockIdx.x] = own;
      if (label >= V) {
        atomicMin(status, (int32_t)MOE_EINVAL);
      }
    }
    return;
  }
  float most = -INFINITY;
  float sum = 0.0f; /* of e^(z - most) */
  for (int i = (int)threadIdx.x; i < V; i += THREADS) {
    if (z[i] > most) {
      sum = moe_fma(sum, moe_exp(most - z[i]), 1.0f);
      most = z[i];
    } else {
      sum += moe_exp(z[i] - most);
    }
  }
  float best = block_max<THREADS>(most, part);
  sum = block_sum<THREADS>(sum * moe_exp(most - best), part);
  float scale = inv_tokens / sum;
  for (int i = (int)threadIdx.x; i < V; i += THREADS) {
    float p = moe_exp(z[i] - best) * scale;
    dz[i] = moe_put(i == label ? p - inv_tokens : p);
  }
  if (threadIdx.x == 0) {
    own.loss = log((double)sum) + ((double)best - (double)z[label]);
    own.counts = 1;
    own.nonfinite = !isfinite(own.loss);
    losses[blockIdx.x] = own;
  }
}

__global__ void __launch_bounds__(THREADS)
    add_losses(const TokenLoss *losses, unsigned n, double inv_tokens, double *scalars)
{
  SHARED(double, all, THREADS);
  double sum[3] = {0, 0, 0};
  for (unsigned t = threadIdx.x; t < n; t += THREADS) {
    sum[0] += losses[t].loss * inv_tokens;
    sum[1] += losses[t].counts;
    sum[2] += losses[t].nonfinite;
  }
  for (int i = 0; i < 3; i++) {
    sum[i] = block_sum_double<THREADS>(sum[i], all);
  }
  if (threadIdx.x == 0) {
    scalars[MOE_SC_LOSS] += sum[0];
    scalars[MOE_SC_TOKENS] += sum[1];
    scalars[MOE_SC_NONFINITE] += sum[2];
  }
}

} // namespace

static_assert(sizeof(TokenLoss) == MOE_HEAD_LOSS_BYTES, "MoeHeadRoom says how much room losses take");

MoeStatus moe_cuda_head(const MoeHeadIo *io, size_t n, double inv_tokens, const MoeHeadRoom *room, MoeQueue queue)
{
  for (size_t at = 0; at < n; at += room->chunk) {
    size_t now = moe_min(room->chunk, n - at);
    const MoeReal *x = io->x + at * H;
    float *logits = io->logits != NULL ? io->logits + at * V : room->logits;
    MOE_TRY(moe_cuda_norm(x, io->gain, now, room->y, room->rstd, queue));
    MOE_TRY(moe_cuda_gemm_nt_float(now, V, H, room->y, H, io->table, H, 0.0f, logits, V, queue));
    MOE_TRY(MOE_LAUNCH(cross_entropy, (unsigned)now, THREADS, 0, queue, logits, io->labels + at, (float)inv_tokens,
                       room->dlogits, (TokenLoss *)room->losses, io->status));
    MOE_TRY(MOE_LAUNCH(add_losses, 1, THREADS, 0, queue, (const TokenLoss *)room->losses, (unsigned)now, inv_tokens,
                       io->scalars));
    MOE_TRY(moe_cuda_gemm_tn(V, H, now, room->dlogits, V, room->y, H, 1.0f, io->g_table, H, queue));
    MOE_TRY(moe_cuda_gemm_nn_float(now, H, V, room->dlogits, V, io->table, H, 0.0f, room->dy, H, queue));
    MOE_TRY(moe_clear(room->dx, now * H * sizeof *room->dx, queue));
    MOE_TRY(moe_cuda_norm_back(x, io->gain, room->rstd, room->dy, now, room->dx, io->g_gain, room->partial, queue));
    MOE_TRY(moe_cuda_to_weights(io->dx + at * H, room->dx, now * H, queue));
  }
  return MOE_OK;
}
