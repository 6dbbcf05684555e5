/* Maps the shared region. A memfd, not a file in a temporary directory: the kernel frees it with its last process. */
#include "runtime/shared.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/log.h"

static uint64_t take(uint64_t *end, uint64_t bytes)
{
  uint64_t at = *end;
  *end += (bytes + 63u) & ~(uint64_t)63u;
  return at;
}

static MoeStatus make(uint64_t bytes, int *fd_p)
{
  *fd_p = memfd_create("moe", MFD_CLOEXEC);
  if (*fd_p < 0 || ftruncate(*fd_p, (off_t)bytes) != 0) {
    moe_error("cannot make %llu bytes of shared memory: %s", (unsigned long long)bytes, strerror(errno));
    if (*fd_p >= 0) {
      close(*fd_p);
    }
    return MOE_ENOMEM;
  }
  return MOE_OK;
}

static MoeStatus check_size(int fd, uint64_t bytes)
{
  struct stat status;
  if (fstat(fd, &status) != 0 || (uint64_t)status.st_size != bytes) {
    moe_error("the shared memory of this host has %llu bytes, not %llu", (unsigned long long)status.st_size,
              (unsigned long long)bytes);
    return MOE_EPROTO;
  }
  return MOE_OK;
}

MoeStatus moe_shared_map(MoeShared *s, int32_t n_ranks, uint64_t slab_bytes, int32_t pace_ports, int32_t max_ops,
                         size_t load_cells, int fd)
{
  uint64_t n = (uint64_t)n_ranks;
  uint64_t end = 0;
  uint64_t states = take(&end, n * sizeof(MoeRankState));
  uint64_t comm_bells = take(&end, n * sizeof(MoeBell));
  uint64_t compute_bells = take(&end, n * sizeof(MoeBell));
  uint64_t pacer = take(&end, pace_ports > 0 ? moe_pace_bytes(n_ranks, pace_ports) : 0);
  uint64_t times = take(&end, n * (uint64_t)max_ops * 2 * sizeof(int64_t));
  uint64_t loads = take(&end, 2 * n * load_cells * sizeof(uint32_t));
  uint64_t slabs = take(&end, slab_bytes);
  MOE_TRY(fd < 0 ? make(end, &fd) : check_size(fd, end));
  uint8_t *base = mmap(NULL, end, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) {
    moe_error("cannot map %llu bytes of shared memory: %s", (unsigned long long)end, strerror(errno));
    close(fd);
    return MOE_ENOMEM;
  }
  *s = (MoeShared){
      .base = base,
      .bytes = end,
      .n_ranks = n_ranks,
      .states = (MoeRankState *)(void *)(base + states),
      .comm_bells = (MoeBell *)(void *)(base + comm_bells),
      .compute_bells = (MoeBell *)(void *)(base + compute_bells),
      .pacer = pace_ports > 0 ? (MoePacer *)(void *)(base + pacer) : NULL,
      .times = max_ops > 0 ? (_Atomic int64_t *)(void *)(base + times) : NULL,
      .max_ops = max_ops,
      .loads = load_cells > 0 ? (uint32_t *)(void *)(base + loads) : NULL,
      .slabs = base + slabs,
      .slab_bytes = slab_bytes,
      .fd = fd,
  };
  return MOE_OK;
}

void moe_shared_unmap(MoeShared *s)
{
  if (s->base != NULL) {
    munmap(s->base, s->bytes);
    close(s->fd);
  }
  *s = (MoeShared){0};
}
