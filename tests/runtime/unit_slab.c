/* Slots, doorbells and locks between two processes: every message arrives once, whole, in order, and never in a slot
   that is still in use; nobody sleeps for ever. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/bell.h"
#include "runtime/transport.h"

enum { SLOTS = 3, BYTES = 1000, MESSAGES = 20000 };

typedef struct Area {
  MoeBell bells[2];
  MoeLock lock;
  uint64_t counter;
  _Alignas(64) uint8_t slabs[SLOTS * 2048];
} Area;

static Area *map_area(void)
{
  Area *a = mmap(NULL, sizeof *a, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert_true(a != MAP_FAILED);
  return a;
}

static void send_all(const MoeLink *link)
{
  for (uint64_t i = 0; i < MESSAGES; i++) {
    uint32_t slot = (uint32_t)(i % SLOTS);
    uint64_t generation = i / SLOTS + 1;
    int64_t free_ns;
    for (;;) {
      uint32_t seen = moe_bell_read(link->src_bell);
      if (link->transport->acquire(link, slot, generation, &free_ns)) {
        break;
      }
      moe_bell_wait(link->src_bell, seen, moe_now_ns() + 10000000000);
    }
    memset(link->transport->slot(link, slot), (int)(i & 0xff), BYTES);
    if (free_ns != (i < SLOTS ? 0 : (int64_t)(i - SLOTS) * 3)) {
      return;
    }
    (void)link->transport->put(link, slot, generation, BYTES, (MoeSpan){(int64_t)i, (int64_t)i * 2});
  }
}

/* Returns the number of the first wrong message, or -1. */
static int64_t receive_all(const MoeLink *link)
{
  for (uint64_t i = 0; i < MESSAGES; i++) {
    uint32_t slot = (uint32_t)(i % SLOTS);
    uint64_t generation = i / SLOTS + 1;
    MoeSpan span;
    for (;;) {
      uint32_t seen = moe_bell_read(link->dst_bell);
      if (link->transport->arrived(link, slot, generation, &span)) {
        break;
      }
      moe_bell_wait(link->dst_bell, seen, moe_now_ns() + 10000000000);
    }
    const uint8_t *data = link->transport->data(link, slot);
    for (int k = 0; k < BYTES; k++) {
      if (data[k] != (i & 0xff) || span.start_ns != (int64_t)i || span.arrival_ns != (int64_t)i * 2) {
        return (int64_t)i;
      }
    }
    link->transport->release(link, slot, generation, (int64_t)i * 3);
  }
  return -1;
}

static void *send_thread(void *link)
{
  send_all(link);
  return NULL;
}

/* Both ends in one process, where a race detector sees them. */
static void two_threads(void **state)
{
  (void)state;
  Area *a = map_area();
  uint64_t offset[SLOTS] = {0, 2048, 4096};
  size_t capacity[SLOTS] = {BYTES, BYTES, BYTES};
  MoeLink link = {.transport = &moe_transport_self,
                  .src_bell = &a->bells[0],
                  .dst_bell = &a->bells[1],
                  .n_slots = SLOTS,
                  .slab = a->slabs,
                  .offset = offset,
                  .capacity = capacity};
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, send_thread, &link), 0);
  assert_int_equal(receive_all(&link), -1);
  pthread_join(thread, NULL);
  munmap(a, sizeof *a);
}

static void two_processes(void **state)
{
  (void)state;
  Area *a = map_area();
  uint64_t offset[SLOTS] = {0, 2048, 4096};
  size_t capacity[SLOTS] = {BYTES, BYTES, BYTES};
  MoePeer one = {.rank = 0};
  MoePeer two = {.rank = 1};
  MoeLink link = {.transport = moe_transport_for(&one, &two),
                  .src = 0,
                  .dst = 1,
                  .src_bell = &a->bells[0],
                  .dst_bell = &a->bells[1],
                  .n_slots = SLOTS,
                  .slab = a->slabs,
                  .offset = offset,
                  .capacity = capacity};
  assert_string_equal(link.transport->name, "shm");
  int64_t begin = moe_now_ns();
  pid_t child = fork();
  if (child == 0) {
    send_all(&link);
    _exit(0);
  }
  int64_t wrong = receive_all(&link);
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
  assert_int_equal(wrong, -1);
  assert_true(moe_now_ns() - begin < 9000000000); /* a lost wake-up would have slept 10 s */
  munmap(a, sizeof *a);
}

static void transports(void **state)
{
  (void)state;
  MoePeer me = {.rank = 4, .host = 1};
  MoePeer near = {.rank = 5, .host = 1};
  MoePeer far = {.rank = 6, .host = 2};
  assert_string_equal(moe_transport_for(&me, &me)->name, "self");
  assert_string_equal(moe_transport_for(&me, &near)->name, "shm");
  assert_string_equal(moe_transport_for(&me, &far)->name, "tcp");
}

static void a_bell_wakes_at_its_deadline(void **state)
{
  (void)state;
  Area *a = map_area();
  int64_t begin = moe_now_ns();
  moe_bell_wait(&a->bells[0], moe_bell_read(&a->bells[0]), begin + 20000000);
  int64_t took = moe_now_ns() - begin;
  assert_true(took >= 20000000 && took < 2000000000);
  uint32_t seen = moe_bell_read(&a->bells[0]);
  moe_bell_ring(&a->bells[0]);
  begin = moe_now_ns();
  moe_bell_wait(&a->bells[0], seen, begin + 5000000000); /* rung before: does not sleep */
  assert_true(moe_now_ns() - begin < 1000000000);
  munmap(a, sizeof *a);
}

static void lock_excludes(void **state)
{
  (void)state;
  enum { TIMES = 100000 };
  Area *a = map_area();
  pid_t child = fork();
  for (int i = 0; i < TIMES; i++) {
    moe_lock(&a->lock);
    a->counter++;
    moe_unlock(&a->lock);
  }
  if (child == 0) {
    _exit(0);
  }
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(a->counter, 2 * TIMES);
  munmap(a, sizeof *a);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(transports),    cmocka_unit_test(two_threads),
      cmocka_unit_test(two_processes), cmocka_unit_test(a_bell_wakes_at_its_deadline),
      cmocka_unit_test(lock_excludes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
