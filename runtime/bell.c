/* Doorbells over futexes. The owner announces that it sleeps before it compares the word again; a ringer changes the
   word before it looks whether the owner sleeps. With sequential consistency one of the two sees the other. */
#include "runtime/bell.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void futex_wake(_Atomic uint32_t *word, int count)
{
  (void)syscall(SYS_futex, word, FUTEX_WAKE, count, NULL, NULL, 0);
}

/* deadline NULL: no limit. FUTEX_WAIT_BITSET takes absolute times of CLOCK_MONOTONIC. */
static void futex_wait(_Atomic uint32_t *word, uint32_t expected, const struct timespec *deadline)
{
  (void)syscall(SYS_futex, word, FUTEX_WAIT_BITSET, expected, deadline, NULL, FUTEX_BITSET_MATCH_ANY);
}

static struct timespec to_timespec(int64_t ns)
{
  if (ns < 0) {
    ns = 0;
  }
  return (struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
}

void moe_bell_ring(MoeBell *bell)
{
  atomic_fetch_add_explicit(&bell->word, 1, memory_order_seq_cst);
  if (atomic_load_explicit(&bell->asleep, memory_order_seq_cst)) {
    futex_wake(&bell->word, INT_MAX);
  }
}

uint32_t moe_bell_read(const MoeBell *bell)
{
  return atomic_load_explicit(&bell->word, memory_order_acquire);
}

void moe_bell_wait(MoeBell *bell, uint32_t seen, int64_t deadline_ns)
{
  struct timespec deadline = to_timespec(deadline_ns);
  atomic_store_explicit(&bell->asleep, 1, memory_order_seq_cst);
  if (atomic_load_explicit(&bell->word, memory_order_seq_cst) == seen) {
    futex_wait(&bell->word, seen, &deadline);
  }
  atomic_store_explicit(&bell->asleep, 0, memory_order_relaxed);
}

int64_t moe_now_ns(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void moe_sleep_until(int64_t deadline_ns)
{
  struct timespec deadline = to_timespec(deadline_ns);
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &deadline, NULL) == EINTR) {
  }
}

void moe_lock(MoeLock *lock)
{
  uint32_t expected = 0;
  if (atomic_compare_exchange_strong(lock, &expected, 1)) {
    return;
  }
  while (atomic_exchange(lock, 2) != 0) { /* 2: taken, and somebody may sleep */
    futex_wait(lock, 2, NULL);
  }
}

void moe_unlock(MoeLock *lock)
{
  if (atomic_exchange(lock, 0) == 2) {
    futex_wake(lock, 1);
  }
}
