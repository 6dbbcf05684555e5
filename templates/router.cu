/* Router: logits to choices, weights, drops and the balance loss, and back; router.c has the formulas. One warp per
   token, a lane holds experts lane, lane + LANES ...; what needs all tokens of a sequence in order (who is over the
   capacity) is one block per sequence. */
#include "moe_cuda.cuh"

namespace
{

constexpr int E = MOE_EXPERTS;
constexpr int K = MOE_TOP_K;
constexpr int GROUPS = MOE_GROUPS;
constexpr int SIZE = E / GROUPS; /* of a group */
constexpr bool GROUPED = MOE_TOP_GROUPS < MOE_GROUPS;
constexpr bool SIGMOID = MOE_ROUTER == 3;
constexpr int PER = ceil_div(E, LANES); /* experts per lane */
constexpr int WARPS = 4;
constexpr int THREADS = WARPS * LANES;
constexpr int EACH = ceil_div(E, THREADS); /* experts per thread of a block */

struct Best {
  float z;
  int expert; /* E: none */
};

/* The better of two; ties go to the lower index. A NaN is no better than anything, yet somebody is always chosen. */
__device__ __forceinline__ Best better(Best a, Best b)
{
  bool first = b.expert == E || (a.expert != E && (a.z > b.z || (!(b.z > a.z) && a.expert < b.expert)));
  return first ? a : b;
}

/* The best of the warp's allowed experts; the same for all lanes. */
__device__ __forceinline__ Best best_allowed(const float *z, const bool *allowed)
{
  int lane = (int)(threadIdx.x % LANES);
  Best best = {0.0f, E};
  for (int j = 0; j < PER; j++) {
    Best own = {z[j], allowed[j] ? lane + j * (int)LANES : E};
    best = better(best, own);
  }
  for (int by = LANES / 2; by > 0; by /= 2) {
    Best other;
    other.z = __shfl_down_sync(ALL_LANES, best.z, by);
    other.expert = __shfl_down_sync(ALL_LANES, best.expert, by);
    best = better(best, other);
  }
  best.z = __shfl_sync(ALL_LANES, best.z, 0);
  best.expert = __shfl_sync(ALL_LANES, best.expert, 0);
  return best;
}

/* The best score, or the sum of the two best. */
__device__ __forceinline__ float group_score(const float *z)
{
  float first = -INFINITY;
  float second = -INFINITY;
  for (int e = 0; e < SIZE; e++) {
    if (z[e] > first) {
      second = first;
      first = z[e];
    } else if (z[e] > second) {
      second = z[e];
    }
  }
  return SIGMOID && SIZE > 1 ? first + second : first;
}

/* The experts of the best groups are allowed as well. all, groups: of this warp, [E] and [GROUPS] of shared memory. */
__device__ __forceinline__ void allow_groups(const float *z, float *all, float *groups, bool *allowed)
{
  int lane = (int)(threadIdx.x % LANES);
  bool out[GROUPS] = {};
  for (int j = 0; j < PER; j++) {
    if (lane + j * (int)LANES < E) {
      all[lane + j * (int)LANES] = z[j];
    }
  }
  __syncwarp();
  for (int g = lane; g < GROUPS; g += LANES) {
    groups[g] = group_score(all + g * SIZE);
  }
  __syncwarp();
  for (int i = 0; i < MOE_TOP_GROUPS; i++) { /* every lane does the same */
    int best = GROUPS;
    for (int g = 0; g < GROUPS; g++) {
      best = !out[g] && (best == GROUPS || groups[g] > groups[best]) ? g : best;
    }
    out[best < GROUPS ? best : 0] = true;
  }
  for (int j = 0; j < PER; j++) {
    int e = lane + j * (int)LANES;
    allowed[j] |= e < E && out[e < E ? e / SIZE : 0];
  }
}

__device__ __forceinline__ float sigmoid(float z)
{
  return 1.0f / (1.0f + moe_exp(-z));
}

/* prob [n, E]: logits, which become the softmax over all, or sigmoids, that are chosen by sigmoid + bias. route_only:
   experts that may be chosen, NULL for all. */
__global__ void __launch_bounds__(THREADS) choose(size_t n, const int32_t *route_only, int n_route_only,
                                                  const float *bias, float *prob, uint16_t *choice, float *weight)
{
  SHARED(float, scores, GROUPED ? WARPS *E : 1);
  SHARED(float, groups, GROUPED ? WARPS *GROUPS : 1);
  size_t token = (size_t)blockIdx.x * WARPS + threadIdx.x / LANES;
  int lane = (int)(threadIdx.x % LANES);
  if (token >= n) {
    return;
  }
  float z[PER]; /* by which experts are chosen */
  float s[PER];
  bool allowed[PER];
  float best = -INFINITY;
  for (int j = 0; j < PER; j++) {
    int e = lane + j * (int)LANES;
    z[j] = e < E ? prob[token * E + e] : -INFINITY;
    s[j] = SIGMOID && e < E ? sigmoid(z[j]) : 0.0f;
    z[j] = SIGMOID && e < E ? s[j] + bias[e] : z[j];
    allowed[j] = e < E && route_only == NULL && !GROUPED;
    for (int i = 0; i < n_route_only; i++) {
      allowed[j] |= route_only[i] == e;
    }
    best = fmaxf(best, z[j]);
  }
  best = warp_max(best);
  if (GROUPED) {
    allow_groups(z, scores + threadIdx.x / LANES * E, groups + threadIdx.x / LANES * GROUPS, allowed);
  }
  float score[K];
  float chosen_sum = SIGMOID ? 1e-20f : 0.0f;
  for (int k = 0; k < K; k++) {
    Best b = best_allowed(z, allowed);
    for (int j = 0; j < PER; j++) {
      allowed[j] &= lane + j * (int)LANES != b.expert;
    }
    score[k] = b.z;
    if (SIGMOID) {
      float own = 0.0f;
      for (int j = 0; j < PER; j++) {
        own = j == b.expert / (int)LANES ? s[j] : own;
      }
      score[k] = __shfl_sync(ALL_LANES, own, b.expert % (int)LANES);
    }
    chosen_sum += SIGMOID ? score[k] : moe_exp(b.z - score[0]);
    if (lane == 0) {
      choice[token * K + k] = (uint16_t)b.expert;
    }
  }
  float sum = 0.0f;
  for (int j = 0; j < PER; j++) {
    sum += !SIGMOID && lane + j * (int)LANES < E ? moe_exp(z[j] - best) : 0.0f;
  }
  sum = warp_sum(sum);
  for (int j = 0; j < PER; j++) {
    int e = lane + j * (int)LANES;
    if (e < E) {
      prob[token * E + e] = SIGMOID ? s[j] : moe_exp(z[j] - best) / sum;
    }
  }
  for (int k = 0; k < K && lane == 0; k++) {
    float w = SIGMOID           ? score[k] / chosen_sum
              : MOE_ROUTER == 1 ? moe_exp(score[k] - best) / sum
                                : moe_exp(score[k] - score[0]) / chosen_sum;
    weight[token * K + k] = w * (float)MOE_ROUTER_SCALE;
  }
}

/* As choose() leaves prob, from the same logits. */
__global__ void __launch_bounds__(THREADS) score_again(size_t n, float *prob)
{
  size_t token = (size_t)blockIdx.x * WARPS + threadIdx.x / LANES;
  int lane = (int)(threadIdx.x % LANES);
  if (token >= n) {
    return;
  }
  float z[PER];
  float best = -INFINITY;
  float sum = 0.0f;
  for (int j = 0; j < PER; j++) {
    z[j] = lane + j * (int)LANES < E ? prob[token * E + (unsigned)(lane + j * (int)LANES)] : -INFINITY;
    best = fmaxf(best, z[j]);
  }
  best = warp_max(best);
  for (int j = 0; j < PER; j++) {
    sum += !SIGMOID && lane + j * (int)LANES < E ? moe_exp(z[j] - best) : 0.0f;
  }
  sum = warp_sum(sum);
  for (int j = 0; j < PER; j++) {
    int e = lane + j * (int)LANES;
    if (e < E) {
      prob[token * E + e] = SIGMOID ? sigmoid(z[j]) : moe_exp(z[j] - best) / sum;
    }
  }
}

/* What a token's scores are divided by, for THREADS tokens from `first` on: share [THREADS]; with a softmax nothing. */
__device__ __forceinline__ void find_shares(const float *prob, size_t first, size_t end, float *share)
{
  for (unsigned i = threadIdx.x / LANES; i < THREADS && first + i < end; i += WARPS) {
    float sum = 0.0f;
    for (int e = (int)(threadIdx.x % LANES); e < E; e += LANES) {
      sum += prob[(first + i) * E + (unsigned)e];
    }
    sum = warp_sum(sum);
    if (threadIdx.x % LANES == 0) {
      share[i] = 1.0f / sum;
    }
  }
}

/* Of one sequence: picks [E], drops, and its share of the two scalars. Choices go by in tiles; within one a thread
   counts the earlier choices of its expert. */
__global__ void __launch_bounds__(THREADS)
    count_picks(size_t seq, unsigned limit, const float *prob, const uint16_t *choice, uint8_t *dropped,
                uint32_t *picks, double *sums)
{
  SHARED(uint32_t, count, E);
  SHARED(uint16_t, tile, THREADS);
  SHARED(double, total, 2 * THREADS);
  SHARED(float, share, THREADS);
  size_t first = blockIdx.x * seq;
  unsigned n = (unsigned)seq * K;
  unsigned over = 0;
  for (int e = (int)threadIdx.x; e < E; e += THREADS) {
    count[e] = 0;
  }
  for (unsigned at = 0; at < n; at += THREADS) {
    unsigned here = at + threadIdx.x;
    unsigned end = n - at < THREADS ? n - at : THREADS;
    unsigned before = 0;
    unsigned after = 0;
    __syncthreads();
    tile[threadIdx.x] = here < n ? choice[first * K + here] : 0;
    __syncthreads();
    for (unsigned i = 0; threadIdx.x < end && i < end; i++) {
      bool same = tile[i] == tile[threadIdx.x];
      before += same && i < threadIdx.x;
      after += same && i > threadIdx.x;
    }
    if (threadIdx.x < end) {
      before += count[tile[threadIdx.x]];
      dropped[first * K + here] = before >= limit;
      over += before >= limit;
    }
    __syncthreads();
    if (threadIdx.x < end && after == 0) { /* the last of its expert in this tile */
      count[tile[threadIdx.x]] = before + 1;
    }
  }
  __syncthreads();
  double mean[EACH] = {};
  for (size_t at = first; MOE_BALANCE_COEF > 0.0 && at < first + seq; at += THREADS) {
    size_t tile_end = at + THREADS < first + seq ? at + THREADS : first + seq;
    if (SIGMOID) {
      find_shares(prob, at, tile_end, share);
    }
    __syncthreads();
    for (int j = 0; j < EACH; j++) {
      int e = (int)threadIdx.x + j * THREADS;
      for (size_t t = at; e < E && t < tile_end; t++) {
        mean[j] += (double)prob[t * E + e] * (double)(SIGMOID ? share[t - at] : 1.0f);
      }
    }
    __syncthreads();
  }
  double balance = 0;
  for (int j = 0; j < EACH; j++) {
    int e = (int)threadIdx.x + j * THREADS;
    if (e < E) {
      picks[(size_t)blockIdx.x * E + e] = count[e];
      balance += (double)count[e] * E / ((double)seq * K) * (mean[j] / (double)seq);
    }
  }
  total[threadIdx.x] = balance;
  total[THREADS + threadIdx.x] = (double)over;
  __syncthreads();
  if (threadIdx.x < 2) {
    double sum = 0;
    for (int i = 0; i < THREADS; i++) {
      sum += total[threadIdx.x * THREADS + i];
    }
    sums[blockIdx.x * 2 + threadIdx.x] = sum;
  }
}

__global__ void add_scalars(const double *sums, unsigned n_seqs, double inv_seqs, double *scalars)
{
  if (threadIdx.x == 0) {
    for (unsigned b = 0; b < n_seqs; b++) {
      if (MOE_BALANCE_COEF > 0.0) {
        scalars[MOE_SC_BALANCE] += MOE_BALANCE_COEF * inv_seqs * sums[b * 2];
      }
      scalars[MOE_SC_DROPPED] += sums[b * 2 + 1];
    }
  }
}

/* Thread e: the choices of expert e, where the optimizer finds them. */
__global__ void __launch_bounds__(THREADS) count_load(size_t n_seqs, const uint32_t *picks, float *load)
{
  unsigned e = blockIdx.x * THREADS + threadIdx.x;
  if (e < E) {
    float sum = load[e];
    for (size_t b = 0; b < n_seqs; b++) {
      sum += (float)picks[b * E + e];
    }
    load[e] = sum;
  }
}

/* scale: of picks, to the slope of the balance loss by a probability. */
__global__ void __launch_bounds__(THREADS)
    router_back(size_t n, size_t seq, double scale, const uint32_t *picks, const float *prob, const uint16_t *choice,
                const float *weight, const float *dw, float *dz)
{
  size_t token = (size_t)blockIdx.x * WARPS + threadIdx.x / LANES;
  int lane = (int)(threadIdx.x % LANES);
  if (token >= n) {
    return;
  }
  picks += token / seq * E;
  float p[PER];
  float slope[PER];
  float mean = 0.0f;
  float own_sum = 0.0f;
  for (int j = 0; j < PER; j++) {
    int e = lane + j * (int)LANES;
    p[j] = e < E ? prob[token * E + e] : 0.0f;
    slope[j] = e < E && MOE_BALANCE_COEF > 0.0 ? (float)(scale * (double)picks[e]) : 0.0f;
    mean = moe_fma(p[j], slope[j], mean);
    own_sum += p[j];
  }
  mean = warp_sum(mean);
  float c = 0.0f;
  for (int k = 0; k < K; k++) {
    c = moe_fma(dw[token * K + k], weight[token * K + k], c);
  }
  float all = SIGMOID ? warp_sum(own_sum) : 1.0f;
  float chosen = 1e-20f;
  for (int k = 0; SIGMOID && k < K; k++) {
    chosen += prob[token * E + choice[token * K + k]];
  }
  for (int j = 0; SIGMOID && j < PER; j++) {
    int e = lane + j * (int)LANES;
    float g = MOE_BALANCE_COEF > 0.0 ? (slope[j] - mean / all) / all : 0.0f;
    for (int k = 0; k < K; k++) {
      float d = ((float)MOE_ROUTER_SCALE * dw[token * K + k] - c) / chosen;
      g += choice[token * K + k] == e ? d : 0.0f;
    }
    if (e < E) {
      dz[token * E + e] = g * p[j] * (1.0f - p[j]);
    }
  }
  for (int j = 0; !SIGMOID && j < PER; j++) {
    int e = lane + j * (int)LANES;
    float g = MOE_ROUTER == 1 ? -p[j] * c : 0.0f;
    for (int k = 0; k < K; k++) {
      float d = dw[token * K + k];
      d = MOE_ROUTER == 1 ? d : d - c / (float)MOE_ROUTER_SCALE;
      g += choice[token * K + k] == e ? weight[token * K + k] * d : 0.0f;
    }
    if (e < E) {
      dz[token * E + e] = g + p[j] * (slope[j] - mean);
    }
  }
}

/* Pairs that one expert takes from one sequence. */
unsigned capacity(size_t seq)
{
  double share = ceil(MOE_CAPACITY * (double)seq * K / E);
  double all = (double)seq * K;
  return MOE_CAPACITY <= 0.0 || share > all ? (unsigned)all : share < 1.0 ? 1 : (unsigned)share;
}

} // namespace

MoeStatus moe_cuda_router(const MoeAttSizes *sizes, const MoeRouterIo *io, double inv_seqs, const int32_t *route_only,
                          int n_route_only, double *scalars, double *sums, MoeQueue queue)
{
  size_t n = sizes->n_seqs * sizes->seq;
  unsigned blocks = (unsigned)((n + WARPS - 1) / WARPS);
  unsigned n_seqs = (unsigned)sizes->n_seqs;
  if (n == 0) {
    return MOE_OK;
  }
  MOE_TRY(MOE_LAUNCH(choose, blocks, THREADS, 0, queue, n, route_only, n_route_only, io->bias, io->prob, io->choice,
                     io->weight));
  MOE_TRY(MOE_LAUNCH(count_picks, n_seqs, THREADS, 0, queue, sizes->seq, capacity(sizes->seq), io->prob, io->choice,
                     io->dropped, io->picks, sums));
  return MOE_LAUNCH(add_scalars, 1, LANES, 0, queue, sums, n_seqs, inv_seqs, scalars);
}

MoeStatus moe_cuda_router_back(const MoeAttSizes *sizes, const MoeRouterIo *io, double inv_seqs, const float *dw,
                               float *dz, MoeQueue queue)
{
  size_t n = sizes->n_seqs * sizes->seq;
  double seq = (double)sizes->seq;
  double scale = MOE_BALANCE_COEF * inv_seqs * E / (seq * K) / seq;
  unsigned blocks = (unsigned)((n + WARPS - 1) / WARPS);
  if (n == 0) {
    return MOE_OK;
  }
  if (SIGMOID) {
    unsigned parts = (E + THREADS - 1) / THREADS;
    MOE_TRY(MOE_LAUNCH(count_load, parts, THREADS, 0, queue, sizes->n_seqs, io->picks, io->load));
  }
  return MOE_LAUNCH(router_back, blocks, THREADS, 0, queue, n, sizes->seq, scale, io->picks, io->prob, io->choice,
                    io->weight, dw, dz);
}

MoeStatus moe_cuda_router_again(float *prob, size_t n, MoeQueue queue)
{
  unsigned blocks = (unsigned)((n + WARPS - 1) / WARPS);
  return n == 0 ? MOE_OK : MOE_LAUNCH(score_again, blocks, THREADS, 0, queue, n, prob);
}
