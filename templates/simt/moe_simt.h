/* The words of CUDA that the kernels use, for g++: the same text runs on this machine. Every thread of a block is a
   fiber that runs until it meets others (a barrier, a shuffle, a vote) or ends; blocks run one after the other. Shared
   memory is filled with NaN before every block and has guard zones, which AddressSanitizer knows of. Everything that
   several threads do together goes through simt::meet_warp() and simt::meet_block(): each thread hands over a structure
   on its own stack; once all are there, one function sees them all and fills in what each gets. That is where fragments
   of mma (a warp) and wgmma (128 threads) belong. Streams, events and asynchronous copies belong to simt::launch(),
   which runs a kernel before it returns. */
#ifndef MOE_SIMT_H
#define MOE_SIMT_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

struct alignas(16) float4 {
  float x, y, z, w;
};

namespace simt
{

/* A place in the kernel's text; as a default argument here() is that of the call. */
struct Place {
  const char *file;
  int line;
};

constexpr Place here(const char *file = __builtin_FILE(), int line = __builtin_LINE())
{
  return Place{file, line};
}

typedef void (*Meet)(void *const *given, unsigned n);

struct Self {
  dim3 thread, block, block_dim, grid_dim;
  unsigned linear; /* of the thread in its block */
};
extern __thread Self self; /* __thread: no check before every use whether it is initialised */

/* Returns when all threads of the block, or all lanes of `mask` of the warp, have called it from the same place, and
   `meet` (may be NULL) has seen what each gave: given[i] of thread or lane i, NULL for lanes that are not in the mask.
 */
void meet_block(const char *what, Place, Meet, void *give);
void meet_warp(const char *what, Place, unsigned mask, Meet, void *give);

/* The next array of shared memory that this thread declares; all threads of a block get the same. Dynamic: the bytes
   that the launch asked for. */
void *shared_array(const char *name, size_t bytes);
void *dynamic_array(const char *name);

/* 0, or the launch was refused or failed: simt_error() says why. */
int launch(const char *name, dim3 grid, dim3 block, size_t dynamic_bytes, void (*body)(void *), void *arguments);

template <typename F> int launch(const char *name, dim3 grid, dim3 block, size_t dynamic_bytes, F body)
{
  return launch(
      name, grid, block, dynamic_bytes, [](void *f) { (*static_cast<F *>(f))(); }, &body);
}

/* Zeros in the device's memory. */
void clear(void *p, size_t bytes);

/* Reports; the thread does not go on. */
void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

template <typename T> struct Shuffle {
  T give, got;
  unsigned from;
};

template <typename T> void shuffle_meet(void *const *given, unsigned n)
{
  for (unsigned i = 0; i < n; i++) {
    Shuffle<T> *s = static_cast<Shuffle<T> *>(given[i]);
    if (s != nullptr && given[s->from] != nullptr) {
      s->got = static_cast<Shuffle<T> *>(given[s->from])->give;
    } else if (s != nullptr) {
      memset(static_cast<void *>(&s->got), 0xff, sizeof(T)); /* a lane that takes no part: undefined */
    }
  }
}

template <typename T> T shuffle(const char *what, Place place, unsigned mask, T value, unsigned from)
{
  static_assert(std::is_trivially_copyable<T>::value && sizeof(T) <= 8, "a register or two");
  Shuffle<T> s = {value, value, from & 31};
  meet_warp(what, place, mask, shuffle_meet<T>, &s);
  return s.got;
}

struct Vote {
  bool mine;
  unsigned all;
};

void vote_meet(void *const *given, unsigned n);

inline unsigned lane()
{
  return self.linear & 31;
}

} // namespace simt

#define threadIdx (simt::self.thread)
#define blockIdx  (simt::self.block)
#define blockDim  (simt::self.block_dim)
#define gridDim   (simt::self.grid_dim)

inline void __syncthreads(simt::Place p = simt::here())
{
  simt::meet_block("__syncthreads", p, nullptr, nullptr);
}

inline int __syncthreads_or(int predicate, simt::Place p = simt::here())
{
  simt::Vote v = {predicate != 0, 0};
  simt::meet_block("__syncthreads_or", p, simt::vote_meet, &v);
  return v.all != 0;
}

inline void __syncwarp(unsigned mask = 0xffffffffu, simt::Place p = simt::here())
{
  simt::meet_warp("__syncwarp", p, mask, nullptr, nullptr);
}

template <typename T> T __shfl_sync(unsigned mask, T value, int from, int width = 32, simt::Place p = simt::here())
{
  unsigned first = simt::lane() & ~(unsigned)(width - 1);
  return simt::shuffle("__shfl_sync", p, mask, value, first + ((unsigned)from & (unsigned)(width - 1)));
}

template <typename T> T __shfl_xor_sync(unsigned mask, T value, int with, int width = 32, simt::Place p = simt::here())
{
  unsigned from = simt::lane() ^ (unsigned)with;
  bool inside = (from & ~(unsigned)(width - 1)) <= (simt::lane() & ~(unsigned)(width - 1));
  return simt::shuffle("__shfl_xor_sync", p, mask, value, inside ? from : simt::lane());
}

template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32, simt::Place p = simt::here())
{
  bool inside = (simt::lane() & (unsigned)(width - 1)) >= by;
  return simt::shuffle("__shfl_up_sync", p, mask, value, inside ? simt::lane() - by : simt::lane());
}

template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32, simt::Place p = simt::here())
{
  bool inside = (simt::lane() & (unsigned)(width - 1)) + by < (unsigned)width;
  return simt::shuffle("__shfl_down_sync", p, mask, value, inside ? simt::lane() + by : simt::lane());
}

inline unsigned __ballot_sync(unsigned mask, int predicate, simt::Place p = simt::here())
{
  simt::Vote v = {predicate != 0, 0};
  simt::meet_warp("__ballot_sync", p, mask, simt::vote_meet, &v);
  return v.all;
}

inline int __any_sync(unsigned mask, int predicate, simt::Place p = simt::here())
{
  return __ballot_sync(mask, predicate, p) != 0;
}

inline int __popc(unsigned x)
{
  return __builtin_popcount(x);
}

/* Fibers are not interrupted, so that a plain update is atomic. */
template <typename T> T atomicAdd(T *p, T value)
{
  T old = *p;
  *p = old + value;
  return old;
}

template <typename T> T atomicMin(T *p, T value)
{
  T old = *p;
  *p = value < old ? value : old;
  return old;
}

template <typename T> T atomicMax(T *p, T value)
{
  T old = *p;
  *p = value > old ? value : old;
  return old;
}

#endif
