/* A plain MLP that every token passes, as in mlp.c, and the rows of an FFN rank that pass its shared expert: those that
   have their home there. How many these are is known on the device alone, so they are one group of grouped.cu. */
#include "moe_act.h"
#include "moe_cuda.cuh"

namespace
{

constexpr int H = MOE_HIDDEN;
constexpr int THREADS = 256;
constexpr int WARPS = THREADS / LANES;

/* Block: a row. gate_up [n, 2 f], act [n, f]. */
__global__ void __launch_bounds__(THREADS) mlp_act(const MoeReal *gate_up, size_t f, MoeReal *act)
{
  const MoeReal *gate = gate_up + blockIdx.x * 2 * f;
  for (size_t i = threadIdx.x; i < f; i += THREADS) {
    act[blockIdx.x * f + i] = moe_put(moe_act(false, moe_get(gate[i]), moe_get(gate[f + i])));
  }
}

/* Gate and up become their gradients, d [n, f] being that of act. */
__global__ void __launch_bounds__(THREADS) mlp_act_back(const float *d, size_t f, MoeReal *gate_up, MoeReal *act)
{
  MoeReal *gate = gate_up + blockIdx.x * 2 * f;
  for (size_t i = threadIdx.x; i < f; i += THREADS) {
    float dg;
    float du;
    float own = d[blockIdx.x * f + i];
    act[blockIdx.x * f + i] = moe_put(moe_act_back(false, moe_get(gate[i]), moe_get(gate[f + i]), &dg, &du));
    gate[i] = moe_put(own * dg);
    gate[f + i] = moe_put(own * du);
  }
}

/* One block. */
__global__ void __launch_bounds__(THREADS) find_homes(const MoeRowHead *rows, size_t n, unsigned me, MoeHomes homes)
{
  SHARED(unsigned, part, WARPS);
  unsigned before = 0;
  for (size_t at = 0; at < n; at += THREADS) {
    size_t r = at + threadIdx.x;
    unsigned own = r < n && rows[r].home == me;
    unsigned end = own;
    unsigned all = block_scan<THREADS>(&end, part);
    if (r < n) {
      homes.place[r] = own ? before + end - 1 : MOE_NOT_HOME;
    }
    if (own) {
      homes.row[before + end - 1] = (uint32_t)r;
    }
    before += all;
  }
  for (size_t i = before + threadIdx.x; i < n; i += THREADS) {
    homes.row[i] = 0; /* past the last: any row that there is */
  }
  if (threadIdx.x == 0) {
    homes.first[0] = 0;
    homes.first[1] = before;
  }
}

} // namespace

MoeStatus moe_cuda_mlp_inner(const MoeReal *w, size_t f, const MoeReal *h, size_t n, MoeReal *gate_up, MoeQueue queue)
{
  return moe_cuda_gemm_nt(n, 2 * f, H, h, H, w, H, 0.0f, gate_up, 2 * f, queue);
}

MoeStatus moe_cuda_mlp_act(const MoeReal *gate_up, size_t f, size_t n, MoeReal *act, MoeQueue queue)
{
  return n == 0 ? MOE_OK : MOE_LAUNCH(mlp_act, (unsigned)n, THREADS, 0, queue, gate_up, f, act);
}

MoeStatus moe_cuda_mlp_act_back(const float *d, size_t f, size_t n, MoeReal *gate_up, MoeReal *act, MoeQueue queue)
{
  return n == 0 ? MOE_OK : MOE_LAUNCH(mlp_act_back, (unsigned)n, THREADS, 0, queue, d, f, gate_up, act);
}

MoeStatus moe_cuda_mlp_outer(const MoeReal *w, size_t f, const MoeReal *gate_up, size_t n, MoeReal *act, float *y,
                             MoeQueue queue)
{
  MOE_TRY(moe_cuda_mlp_act(gate_up, f, n, act, queue));
  return moe_cuda_gemm_nt_float(n, H, f, act, f, w + 2 * f * H, f, 0.0f, y, H, queue);
}

MoeStatus moe_cuda_mlp_dgrad_outer(const MoeReal *w, size_t f, const MoeReal *dy, size_t n, float *d, MoeReal *gate_up,
                                   MoeReal *act, MoeQueue queue)
{
  MOE_TRY(moe_cuda_gemm_nn_float(n, f, H, dy, H, w + 2 * f * H, f, 0.0f, d, f, queue));
  return moe_cuda_mlp_act_back(d, f, n, gate_up, act, queue);
}

MoeStatus moe_cuda_mlp_dgrad_inner(const MoeReal *w, size_t f, const MoeReal *d_gate_up, size_t n, float *dh,
                                   MoeQueue queue)
{
  return moe_cuda_gemm_nn_float(n, H, 2 * f, d_gate_up, 2 * f, w, H, 0.0f, dh, H, queue);
}

MoeStatus moe_cuda_mlp_wgrad_inner(size_t f, const MoeReal *d_gate_up, const MoeReal *h, size_t n, float *gw,
                                   MoeQueue queue)
{
  return moe_cuda_gemm_tn(2 * f, H, n, d_gate_up, 2 * f, h, H, 1.0f, gw, H, queue);
}

MoeStatus moe_cuda_mlp_wgrad_outer(size_t f, const MoeReal *dy, const MoeReal *act, size_t n, float *gw, MoeQueue queue)
{
  return moe_cuda_gemm_tn(H, f, n, dy, H, act, f, 1.0f, gw + 2 * f * H, f, queue);
}

MoeStatus moe_cuda_find_homes(const MoeFfnList *l, int32_t me, const MoeHomes *homes, MoeQueue queue)
{
  return MOE_LAUNCH(find_homes, 1, THREADS, 0, queue, l->rows, l->n_rows, (unsigned)me, *homes);
}

MoeFfnList moe_homes_list(const MoeFfnList *l, const MoeHomes *homes)
{
  MoeFfnList one = {};
  one.n_rows = l->n_rows;
  one.n_pairs = l->n_rows;
  one.n_experts = 1;
  one.first = homes->first;
  one.group_row = homes->row;
  return one;
}
