/* The emulated device itself: what it computes, and that each kind of faulty kernel is reported, with kernel, block and
   thread, or gives other results in another order. */
#include "moe_cuda.cuh"
#include "simt.h"

#include <stdio.h>

namespace
{

constexpr int N = 96; /* threads: three warps */

int failures;

void expect(bool ok, const char *what)
{
  if (!ok) {
    printf("%s: no\n", what);
    failures++;
  }
}

/* Whether the last launch failed and the report has all these words. */
void expect_error(int status, const char *what, const char *first, const char *second)
{
  const char *error = simt_error();
  if (status == MOE_OK || error == nullptr || strstr(error, first) == nullptr || strstr(error, second) == nullptr) {
    printf("%s: '%s' has not both '%s' and '%s'\n", what, error == nullptr ? "no error" : error, first, second);
    failures++;
  }
}

/* -- right kernels -- */

__global__ void meets(int *out)
{
  SHARED(int, all, N);
  int t = (int)threadIdx.x;
  int lane = t % 32;
  all[t] = t;
  __syncthreads();
  int next = all[(t + 1) % N];
  int sum = 0;
  for (int with = 16; with > 0; with /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, t, with);
  }
  int above = __shfl_down_sync(0xffffffffu, t, 1);
  int below = __shfl_up_sync(0xffffffffu, t, 1, 8);
  int one = __shfl_sync(0xffffffffu, t, 3, 16);
  unsigned odd = __ballot_sync(0xffffffffu, t & 1);
  int any = __syncthreads_or(t == 77);
  int half = lane < 16 ? __shfl_xor_sync(0x0000ffffu, t, 1) : __shfl_xor_sync(0xffff0000u, t, 2);
  bool right = next == (t + 1) % N && odd == 0xaaaaaaaau && any != 0 && half == (t ^ (lane < 16 ? 1 : 2)) &&
               above == (lane < 31 ? t + 1 : t) && below == (lane % 8 > 0 ? t - 1 : t) && one == t / 16 * 16 + 3 &&
               sum == (t ^ 16) + (t ^ 8) + (t ^ 4) + (t ^ 2) + (t ^ 1);
  out[blockIdx.x * N + threadIdx.x] = right ? (int)blockIdx.x : -1;
}

__global__ void fresh(float *out)
{
  SHARED(float, fixed, 3);
  SHARED_DYNAMIC(float, sized);
  if (threadIdx.x == 0) {
    out[0] = fixed[1];
    out[1] = sized[7];
    fixed[1] = sized[7] = 1.0f;
  }
}

__global__ void early(int *out)
{
  if (threadIdx.x % 2) {
    return; /* no barrier follows */
  }
  atomicAdd(out, 1);
}

/* -- faulty kernels -- */

__global__ void ends_early(int *out)
{
  if (threadIdx.x == 40) {
    return;
  }
  __syncthreads();
  out[0] = 1;
}

__global__ void two_barriers(int *out)
{
  if (threadIdx.x < 64) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  out[0] = 1;
}

__global__ void missing_lane(float *out)
{
  if (threadIdx.x != 5) {
    out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1.0f, 1);
  }
}

__global__ void wrong_mask(float *out)
{
  out[threadIdx.x] = __shfl_xor_sync(0x0000ffffu, 1.0f, 1);
}

__global__ void one_too_far(int *out)
{
  SHARED(int, a, N);
  a[threadIdx.x + (threadIdx.x == N - 1)] = 1;
  __syncthreads();
  out[0] = a[0];
}

__global__ void unlike(int *out)
{
  if (threadIdx.x == 0) {
    SHARED(int, a, 4);
    a[0] = out[0];
  } else {
    SHARED(int, b, 4);
    b[0] = out[0];
  }
}

__global__ void large(int *out)
{
  SHARED(int, a, 20000);
  a[0] = out[0];
}

__global__ void no_barrier(int *out)
{
  SHARED(int, a, N);
  a[threadIdx.x] = (int)threadIdx.x;
  out[threadIdx.x] = a[(threadIdx.x + 1) % N];
}

__global__ void blocks_depend(int *out)
{
  if (threadIdx.x == 0) {
    out[blockIdx.x + 1] = out[blockIdx.x] + 1;
  }
}

/* Whether the launch leaves other bits in `out` in reverse than forward. */
template <typename F> bool differs(F run, int *out, size_t n)
{
  int first[N];
  for (int reverse = 0; reverse < 2; reverse++) {
    for (size_t i = 0; i < n; i++) {
      out[i] = 0;
    }
    simt_order(reverse ? SIMT_REVERSE : SIMT_FORWARD, 0);
    expect(run() == MOE_OK, "launch");
    if (!reverse) {
      memcpy(first, out, n * sizeof *out);
    }
  }
  simt_order(SIMT_FORWARD, 0);
  return memcmp(first, out, n * sizeof *out) != 0;
}

void right_kernels()
{
  for (int order = SIMT_FORWARD; order <= SIMT_RANDOM; order++) {
    int out[4 * N] = {0};
    int count = 0;
    float poison[2] = {0, 0};
    simt_order((SimtOrder)order, 7);
    expect(MOE_LAUNCH(meets, 4, N, 0, nullptr, out) == MOE_OK, "meets");
    for (int i = 0; i < 4 * N; i++) {
      expect(out[i] == i / N, "result of meets");
    }
    expect(MOE_LAUNCH(fresh, 2, N, 32, nullptr, poison) == MOE_OK, "fresh");
    expect(isnan(poison[0]) && isnan(poison[1]), "shared memory begins as NaN in every block");
    expect(MOE_LAUNCH(early, dim3(2, 3, 2), dim3(8, 4, 2), 0, nullptr, &count) == MOE_OK && count == 384, "early");
  }
  simt_order(SIMT_FORWARD, 0);
  expect(simt_error() == nullptr, "no error");
}

void faulty_kernels()
{
  int out[4 * N] = {0};
  float values[N] = {0};
  expect_error(MOE_LAUNCH(ends_early, dim3(1, 2), N, 0, nullptr, out), "a thread ends before a barrier",
               "ends_early, block (0, 0, 0): thread (0, 0, 0) waits in __syncthreads",
               "thread (40, 0, 0) never reaches: it has ended");
  expect_error(MOE_LAUNCH(two_barriers, 1, N, 0, nullptr, out), "barriers in two places", "thread (0, 0, 0)",
               "it waits in __syncthreads");
  expect_error(MOE_LAUNCH(missing_lane, 1, N, 0, nullptr, values), "a lane ends before a shuffle", "__shfl_xor_sync",
               "thread (5, 0, 0) never reaches: it has ended");
  expect_error(MOE_LAUNCH(wrong_mask, 1, N, 0, nullptr, values), "a lane outside its mask", "thread (16, 0, 0)",
               "0000ffff");
  expect_error(MOE_LAUNCH(unlike, 1, N, 0, nullptr, out), "threads declare unlike arrays", "thread (1, 0, 0)",
               "a of 16");
  expect_error(MOE_LAUNCH(large, 1, N, 0, nullptr, out), "more shared memory than there is", "large", "80000 bytes");
  expect_error(MOE_LAUNCH(early, 0, N, 0, nullptr, out), "no blocks", "early", "0 x 1 x 1");
  expect_error(MOE_LAUNCH(early, 1, 2048, 0, nullptr, out), "too many threads", "early", "2048");
#ifndef __SANITIZE_ADDRESS__ /* which ends the program there */
  expect_error(MOE_LAUNCH(one_too_far, 1, N, 0, nullptr, out), "one past shared memory", "one_too_far",
               "past the 384 bytes of a");
#endif
  expect(MOE_LAUNCH(meets, 4, N, 0, nullptr, out) == MOE_OK && simt_error() == nullptr, "a launch after a failed one");
  expect(differs([&] { return MOE_LAUNCH(no_barrier, 1, N, 0, nullptr, out); }, out, N), "a missing barrier shows");
  expect(differs([&] { return MOE_LAUNCH(blocks_depend, 3, N, 0, nullptr, out); }, out, 4), "dependent blocks show");
  expect(!differs([&] { return MOE_LAUNCH(meets, 4, N, 0, nullptr, out); }, out, N), "nothing else does");
}

} // namespace

/* With an argument: the fault that AddressSanitizer must end the program at. */
int main(int argc, char **argv)
{
  (void)argv;
  if (argc > 1) {
    int out[1];
    (void)MOE_LAUNCH(one_too_far, 1, N, 0, nullptr, out);
    return 0;
  }
  right_kernels();
  faulty_kernels();
  printf("%d failures\n", failures);
  return failures > 0;
}
