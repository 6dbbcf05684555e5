/* The list is of the process, as the signal is. */
#include "runtime/mapped.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/log.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static MoeMapped *first;

bool moe_map(MoeMapped *m, int fd, size_t bytes, int protection, const char *path)
{
  void *base = mmap(NULL, bytes, protection, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) {
    return false;
  }
  *m = (MoeMapped){.base = base, .bytes = bytes, .path = path};
  pthread_mutex_lock(&lock);
  m->next = first;
  first = m;
  pthread_mutex_unlock(&lock);
  return true;
}

void moe_unmap(MoeMapped *m)
{
  if (m->base == NULL) {
    return;
  }
  pthread_mutex_lock(&lock);
  MoeMapped **at = &first;
  while (*at != m) {
    at = &(*at)->next;
  }
  *at = m->next;
  pthread_mutex_unlock(&lock);
  munmap(m->base, m->bytes);
  *m = (MoeMapped){0};
}

/* The thread that read is the one that gets it, so what it holds of ours is consistent. */
static void on_bus_error(int number, siginfo_t *info, void *context)
{
  const uint8_t *at = info->si_addr;
  (void)context;
  for (const MoeMapped *m = first; m != NULL; m = m->next) {
    if (at >= m->base && at < m->base + m->bytes) {
      moe_error("cannot read byte %zu of %s: it had %zu bytes when it was opened, and has been cut off since, or its "
                "disk fails",
                (size_t)(at - m->base), m->path, m->bytes);
      _exit(1);
    }
  }
  signal(number, SIG_DFL); /* it happens again, and ends the process as ever */
}

void moe_mapped_watch(void)
{
  struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, NULL);
}
