/* The device of a rank. On a GPU: one stream per lane, memory by cudaMalloc, memory of the host pinned and mapped. On
   the emulated device a launch is done when it returns, and memory of the device is out of reach but for kernels and
   copies: an op that reads it on the host ends the program there, as on a GPU. */
#include "moe_cuda.cuh"
#include "moe_lane.h"

#include <stdio.h>

namespace
{

/* Of the host, where kernels reach it. */
struct Words {
  double sum[MOE_LANE_COUNT], partial[MOE_LANE_COUNT][MOE_PARTS];
  int32_t status[MOE_LANE_COUNT];
};

Words *words;
MoeCudaLane lanes[MOE_LANE_COUNT];
MoeStatus noted[MOE_LANE_COUNT];

void name_lanes()
{
  memset(static_cast<void *>(words), 0, sizeof *words);
  for (int i = 0; i < MOE_LANE_COUNT; i++) {
    lanes[i].status = &words->status[i];
    lanes[i].sum = &words->sum[i];
    lanes[i].partial = words->partial[i];
    noted[i] = MOE_OK;
  }
}

/* What a lane that has come to its end tells; forgets it. */
MoeStatus take_status(MoeLane lane)
{
  MoeStatus status = noted[lane] != MOE_OK ? noted[lane] : (MoeStatus)words->status[lane];
  noted[lane] = MOE_OK;
  words->status[lane] = MOE_OK;
  return status;
}

#ifdef __CUDACC__

constexpr const char *NAME = "CUDA";

bool good(cudaError_t error, const char *what)
{
  if (error != cudaSuccess) {
    fprintf(stderr, "error: %s: %s\n", what, cudaGetErrorString(error));
  }
  return error == cudaSuccess;
}

int chosen; /* device of this process */

/* What a thread launches and copies goes to its current device. */
void enter()
{
  thread_local bool entered = false;
  if (!entered) {
    entered = good(cudaSetDevice(chosen), "taking the device");
  }
}

int device_count(char *why, size_t n)
{
  int count = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorInsufficientDriver) {
    snprintf(why, n, "it has no driver, or one that is older than the toolkit (%d)", (int)error);
  } else if (error != cudaSuccess) {
    snprintf(why, n, "%s (%d)", cudaGetErrorString(error), (int)error);
  }
  return error == cudaSuccess ? count : 0;
}

MoeStatus device_open(int32_t number)
{
  int count = 0;
  int same = 0;
  if (!good(cudaGetDeviceCount(&count), "looking for devices") || count == 0) {
    return MOE_EDEVICE;
  }
  chosen = number % count;
  enter();
  if (!good(cudaDeviceGetAttribute(&same, cudaDevAttrCanUseHostPointerForRegisteredMem, chosen), "asking the device")) {
    return MOE_EDEVICE;
  }
  if (!same) {
    fprintf(stderr, "error: device %d does not see memory of the host under the host's addresses\n", chosen);
    return MOE_EDEVICE;
  }
  void *p = nullptr;
  if (!good(cudaHostAlloc(&p, sizeof *words, cudaHostAllocMapped), "memory for status words")) {
    return MOE_ENOMEM;
  }
  words = static_cast<Words *>(p);
  name_lanes();
  for (MoeCudaLane &lane : lanes) {
    if (!good(cudaStreamCreateWithFlags(&lane.queue, cudaStreamNonBlocking), "making a stream")) {
      return MOE_EDEVICE;
    }
  }
  return MOE_OK;
}

void device_close()
{
  for (MoeCudaLane &lane : lanes) {
    if (lane.queue != nullptr) {
      (void)cudaStreamDestroy(lane.queue);
      lane.queue = nullptr;
    }
  }
  (void)cudaFreeHost(words);
  words = nullptr;
}

void *device_alloc(size_t bytes)
{
  void *p = nullptr;
  if (cudaMalloc(&p, bytes) != cudaSuccess) {
    fprintf(stderr, "error: the device has no %zu bytes of memory\n", bytes);
    return nullptr;
  }
  return p;
}

void device_free(void *p, size_t)
{
  (void)cudaFree(p);
}

MoeStatus device_share(void *p, size_t bytes)
{
  unsigned flags = cudaHostRegisterMapped | cudaHostRegisterPortable;
  return good(cudaHostRegister(p, bytes, flags), "pinning memory of the host") ? MOE_OK : MOE_ENOMEM;
}

void device_unshare(void *p)
{
  (void)cudaHostUnregister(p);
}

MoeStatus device_fill(MoeLane lane, void *p, int byte, size_t bytes)
{
  return good(cudaMemsetAsync(p, byte, bytes, moe_cuda_lane(lane)->queue), "filling memory") ? MOE_OK : MOE_EDEVICE;
}

MoeStatus device_wait(MoeLane lane)
{
  if (!good(cudaStreamSynchronize(moe_cuda_lane(lane)->queue), "waiting for the device")) {
    return MOE_EDEVICE;
  }
  return take_status(lane);
}

#else

} // namespace

#include <pthread.h>
#include <sys/mman.h>

#include "simt.h"

namespace
{

constexpr const char *NAME = "emulated CUDA";

/* All memory of the device lies in few pieces; it is opened while at least one launch or copy is under way. */
struct Piece {
  void *p;
  size_t bytes;
};
constexpr int MOST_PIECES = 16;
Piece pieces[MOST_PIECES];
int n_pieces;
int n_users;
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void protect(int how)
{
  for (int i = 0; i < n_pieces; i++) {
    (void)mprotect(pieces[i].p, pieces[i].bytes, how);
  }
}

void open_memory()
{
  pthread_mutex_lock(&lock);
  if (n_users++ == 0) {
    protect(PROT_READ | PROT_WRITE);
  }
  pthread_mutex_unlock(&lock);
}

void close_memory()
{
  pthread_mutex_lock(&lock);
  if (--n_users == 0) {
    protect(PROT_NONE);
  }
  pthread_mutex_unlock(&lock);
}

void enter() {}

int device_count(char *, size_t)
{
  return 1;
}

MoeStatus device_open(int32_t)
{
  static Words own;
  words = &own;
  name_lanes();
  simt_memory(open_memory, close_memory);
  return MOE_OK;
}

void device_close() {}

void *device_alloc(size_t bytes)
{
  void *p = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED || n_pieces == MOST_PIECES) {
    fprintf(stderr, "error: the device has no %zu bytes of memory\n", bytes);
    return nullptr;
  }
  pieces[n_pieces++] = {p, bytes};
  return p;
}

void device_free(void *p, size_t bytes)
{
  for (int i = 0; i < n_pieces; i++) {
    if (pieces[i].p == p) {
      pieces[i] = pieces[--n_pieces];
    }
  }
  munmap(p, bytes);
}

MoeStatus device_share(void *, size_t)
{
  return MOE_OK;
}

void device_unshare(void *) {}

MoeStatus device_fill(MoeLane, void *p, int byte, size_t bytes)
{
  if (bytes > 0) {
    open_memory();
    memset(p, byte, bytes);
    close_memory();
  }
  return MOE_OK;
}

MoeStatus device_wait(MoeLane lane)
{
  const char *error = simt_error();
  if (error != nullptr) {
    fprintf(stderr, "error: %s\n", error);
    moe_cuda_note(lane, MOE_EDEVICE);
  }
  return take_status(lane);
}

#endif

MoeStatus device_copy(MoeLane lane, void *to, const void *from, size_t bytes)
{
  return moe_cuda_copy(to, from, bytes, moe_cuda_lane(lane)->queue);
}

constexpr MoeDevice make_device()
{
  MoeDevice d = {};
  d.name = NAME;
  d.apart = true;
  d.count = device_count;
  d.open = device_open;
  d.close = device_close;
  d.alloc = device_alloc;
  d.free = device_free;
  d.share = device_share;
  d.unshare = device_unshare;
  d.copy = device_copy;
  d.fill = device_fill;
  d.wait = device_wait;
  return d;
}

} // namespace

extern "C" {

const MoeDevice moe_cuda_device = make_device();

const MoeCudaLane *moe_cuda_lane(MoeLane lane)
{
  enter();
  return &lanes[lane];
}

void moe_cuda_note(MoeLane lane, MoeStatus status)
{
  if (status != MOE_OK && noted[lane] == MOE_OK) {
    noted[lane] = status;
  }
}

MoeStatus moe_cuda_copy(void *to, const void *from, size_t bytes, MoeQueue queue)
{
#ifdef __CUDACC__
  return good(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, queue), "copying") ? MOE_OK : MOE_EDEVICE;
#else
  (void)queue;
  if (bytes > 0) {
    open_memory();
    memcpy(to, from, bytes);
    close_memory();
  }
  return MOE_OK;
#endif
}

} // extern "C"
