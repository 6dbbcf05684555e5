#include "runtime/device.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/log.h"

static MoeStatus host_open(int32_t number)
{
  (void)number;
  return MOE_OK;
}

static void host_close(void) {}

static void *host_alloc(size_t bytes)
{
  void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) {
    moe_error("cannot map %zu bytes of memory: %s", bytes, strerror(errno));
    return NULL;
  }
  return p;
}

static void host_free(void *p, size_t bytes)
{
  munmap(p, bytes);
}

static MoeStatus host_share(void *p, size_t bytes)
{
  (void)p;
  (void)bytes;
  return MOE_OK;
}

static void host_unshare(void *p)
{
  (void)p;
}

static MoeStatus host_copy(MoeLane lane, void *to, const void *from, size_t bytes)
{
  (void)lane;
  if (bytes > 0) {
    memcpy(to, from, bytes);
  }
  return MOE_OK;
}

static MoeStatus host_fill(MoeLane lane, void *p, int byte, size_t bytes)
{
  (void)lane;
  if (bytes > 0) {
    memset(p, byte, bytes);
  }
  return MOE_OK;
}

static MoeStatus host_wait(MoeLane lane)
{
  (void)lane;
  return MOE_OK;
}

const MoeDevice moe_host_device = {
    .name = "host",
    .open = host_open,
    .close = host_close,
    .alloc = host_alloc,
    .free = host_free,
    .share = host_share,
    .unshare = host_unshare,
    .copy = host_copy,
    .fill = host_fill,
    .wait = host_wait,
};

const MoeDevice *moe_device_of(const MoeKernels *kernels)
{
  return kernels->device != NULL ? kernels->device : &moe_host_device;
}

bool moe_device_here(const MoeDevice *device)
{
  char why[200];
  if (device->count == NULL) {
    return true;
  }
  int ends[2];
  pid_t pid = pipe(ends) == 0 ? fork() : -1;
  if (pid < 0) {
    moe_error("cannot look for a %s device: %s", device->name, strerror(errno));
    return false;
  }
  if (pid == 0) {
    memset(why, 0, sizeof why);
    int n = device->count(why, sizeof why);
    ssize_t wrote = n > 0 ? 0 : write(ends[1], why, sizeof why);
    _exit(n > 0 ? 0 : wrote < 0 ? 2 : 1);
  }
  close(ends[1]);
  ssize_t got = read(ends[0], why, sizeof why);
  close(ends[0]);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
    return true;
  }
  why[sizeof why - 1] = 0;
  moe_error("this program is for a %s device, and this machine has none%s%s", device->name, got > 0 ? ": " : "",
            got > 0 ? why : "");
  return false;
}

MoeStatus moe_device_move(const MoeDevice *device, void *to, const void *from, size_t bytes)
{
  MOE_TRY(device->copy(MOE_LANE_COMPUTE, to, from, bytes));
  return device->wait(MOE_LANE_COMPUTE);
}
