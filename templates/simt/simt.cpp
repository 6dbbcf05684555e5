/* The emulated device. A launch runs its blocks one after the other; a block's threads are fibers that this file
   switches to and from. A thread runs until it waits or ends. Warps go on as long as one of their lanes can; when none
   can, all threads must wait at one barrier, or have ended: whatever else is a fault of the kernel and is reported. */
#include "moe_simt.h"
#include "simt.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define GUARD_ON(p, n)  __asan_poison_memory_region(p, n)
#define GUARD_OFF(p, n) __asan_unpoison_memory_region(p, n)
#define UNCHECKED       __attribute__((no_sanitize("address")))
#else
#define GUARD_ON(p, n)  ((void)(p), (void)(n))
#define GUARD_OFF(p, n) ((void)(p), (void)(n))
#define UNCHECKED
#endif

#if !defined(__x86_64__) && !defined(SIMT_UCONTEXT)
#define SIMT_UCONTEXT
#endif

namespace
{

/* Limits of the devices that the kernels are compiled for. */
constexpr unsigned MAX_THREADS = 1024, MAX_GRID_YZ = 65535, WARP = 32;
constexpr size_t STATIC_SHARED = 48 << 10, MAX_SHARED = 227 << 10;

constexpr size_t GUARD = 64, STACK = 256 << 10, PAGE = 4096;

/* -- switching stacks -- */

#ifdef SIMT_UCONTEXT
} // namespace
#include <ucontext.h>
namespace
{
typedef ucontext_t Context;

void context_switch(Context *from, Context *to)
{
  swapcontext(from, to);
}

void context_new(Context *c, char *stack, size_t bytes, void (*entry)())
{
  getcontext(c);
  c->uc_stack.ss_sp = stack;
  c->uc_stack.ss_size = bytes;
  c->uc_link = nullptr;
  makecontext(c, entry, 0);
}
#else
typedef void *Context; /* the stack pointer; what a call must preserve lies on the stack */

} // namespace
extern "C" void simt_switch(void **from, void *to);
asm(".text\n"
    ".type simt_switch, @function\n"
    "simt_switch:\n"
    "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
    "  movq %rsp, (%rdi)\n"
    "  movq %rsi, %rsp\n"
    "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
    "  popq %rcx\n  jmp *%rcx\n" /* a ret would be predicted to return to the caller */
    ".size simt_switch, . - simt_switch\n");
namespace
{

void context_switch(Context *from, Context *to)
{
  simt_switch(from, *to);
}

/* As if `entry` had been called, and had switched away at once. */
void context_new(Context *c, char *stack, size_t bytes, void (*entry)())
{
  void **sp = reinterpret_cast<void **>(stack + bytes);
  *--sp = nullptr;
  *--sp = reinterpret_cast<void *>(entry);
  for (int i = 0; i < 6; i++) {
    *--sp = nullptr;
  }
  *c = sp;
}
#endif

/* -- a block -- */

enum State { RUNNABLE, AT_WARP, AT_BLOCK, ENDED };

struct Thread {
  Context context;
  dim3 index; /* threadIdx */
  State state;
  const char *what; /* of a wait: by which call, where */
  simt::Place place;
  unsigned mask;
  simt::Meet meet;
  void *give;
  size_t next_array;
};

struct Array {
  const char *name;
  size_t at, bytes;
};

struct Device {
  std::vector<Thread> threads; /* as many as the largest block so far had */
  char *stacks;
  Context scheduler;
  unsigned n; /* threads of the block */
  void (*body)(void *);
  void *arguments;
  const char *kernel;
  bool failed;
  char error[512];
  bool unread; /* error holds something */
  SimtOrder order;
  uint64_t random;
  uint64_t switches;
  char *shared; /* MAX_SHARED and guards */
  std::vector<Array> arrays;
  size_t shared_end, dynamic_bytes, static_bytes;
  ~Device() /* with its thread */
  {
    if (stacks != nullptr) {
      GUARD_OFF(stacks, (size_t)MAX_THREADS * STACK);
      GUARD_OFF(shared, 2 * MAX_SHARED);
      munmap(stacks, (size_t)MAX_THREADS * STACK);
      free(shared);
    }
  }
};

thread_local Device device;
void (*memory_open)() = [] {};
void (*memory_close)() = [] {};

uint64_t draw()
{
  device.random ^= device.random << 13;
  device.random ^= device.random >> 7;
  device.random ^= device.random << 17;
  return device.random;
}

/* order[0 .. n): in which order to go through n things. */
void make_order(unsigned *order, unsigned n)
{
  for (unsigned i = 0; i < n; i++) {
    order[i] = device.order == SIMT_REVERSE ? n - 1 - i : i;
  }
  for (unsigned i = n; device.order == SIMT_RANDOM && i > 1; i--) {
    unsigned j = (unsigned)(draw() % i);
    unsigned kept = order[i - 1];
    order[i - 1] = order[j];
    order[j] = kept;
  }
}

void report(const char *format, ...) __attribute__((format(printf, 1, 2)));

void report_all(const char *format, va_list list)
{
  const simt::Self &s = simt::self;
  device.failed = true;
  if (device.unread) {
    return; /* the first counts */
  }
  device.unread = true;
  int n = snprintf(device.error, sizeof device.error, "%s, block (%u, %u, %u): ", device.kernel, s.block.x, s.block.y,
                   s.block.z);
  vsnprintf(device.error + n, sizeof device.error - (size_t)n, format, list);
}

void report(const char *format, ...)
{
  va_list list;
  va_start(list, format);
  report_all(format, list);
  va_end(list);
}

void leave(State state)
{
  Device &d = device;
  Thread *t = &d.threads[simt::self.linear];
  t->state = state;
  context_switch(&t->context, &d.scheduler);
}

void fiber()
{
  for (;;) {
    device.body(device.arguments);
    leave(ENDED);
  }
}

void new_fibers(unsigned from, unsigned n)
{
  for (unsigned i = from; i < n; i++) {
    char *stack = device.stacks + (size_t)i * STACK + PAGE;
    GUARD_OFF(stack, STACK - PAGE);
    size_t shift = i % 64 * 320; /* else the tops of all stacks would share a few lines of the cache */
    context_new(&device.threads[i].context, stack, STACK - PAGE - shift, fiber);
  }
}

bool need_threads(unsigned n)
{
  if (device.stacks == nullptr) {
    size_t bytes = (size_t)MAX_THREADS * STACK;
    void *p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
      return false;
    }
    device.stacks = static_cast<char *>(p);
    device.shared = static_cast<char *>(aligned_alloc(1024, 2 * MAX_SHARED));
    device.random = device.random != 0 ? device.random : 1;
  }
  unsigned had = (unsigned)device.threads.size();
  if (had < n) {
    device.threads.resize(n);
    for (unsigned i = had; i < n; i++) { /* the page below a stack ends the program instead of the neighbour's data */
      mprotect(device.stacks + (size_t)i * STACK, PAGE, PROT_NONE);
    }
    new_fibers(had, n);
  }
  return device.shared != nullptr;
}

void thread_name(unsigned linear, char *text, size_t n)
{
  const dim3 d = simt::self.block_dim;
  snprintf(text, n, "(%u, %u, %u)", linear % d.x, linear / d.x % d.y, linear / (d.x * d.y));
}

/* Threads that can never meet: names one that waits and one that does not come. */
void report_stuck(unsigned waiting, unsigned missing)
{
  const Thread *w = &device.threads[waiting];
  const Thread *m = &device.threads[missing];
  char who[2][64];
  thread_name(waiting, who[0], sizeof who[0]);
  thread_name(missing, who[1], sizeof who[1]);
  if (m->state == ENDED) {
    report("thread %s waits in %s (%s:%d), which thread %s never reaches: it has ended", who[0], w->what, w->place.file,
           w->place.line, who[1]);
  } else {
    report("thread %s waits in %s (%s:%d), which thread %s never reaches: it waits in %s (%s:%d)", who[0], w->what,
           w->place.file, w->place.line, who[1], m->what, m->place.file, m->place.line);
  }
}

bool same_call(const Thread *a, const Thread *b)
{
  return a->meet == b->meet && a->place.line == b->place.line &&
         (a->place.file == b->place.file || strcmp(a->place.file, b->place.file) == 0);
}

/* Lets go on the lanes of `mask` of the warp, if all of them are there. */
bool meet_lanes(unsigned first, unsigned n, unsigned mask)
{
  void *given[WARP] = {nullptr};
  const Thread *one = nullptr;
  for (unsigned l = 0; l < WARP; l++) {
    if ((mask >> l & 1) == 0) {
      continue;
    }
    const Thread *t = l < n ? &device.threads[first + l] : nullptr;
    if (t == nullptr || t->state != AT_WARP || t->mask != mask || (one != nullptr && !same_call(one, t))) {
      return false;
    }
    one = t;
    given[l] = t->give;
  }
  if (one->meet != nullptr) {
    one->meet(given, WARP);
  }
  for (unsigned l = 0; l < n; l++) {
    if (mask >> l & 1) {
      device.threads[first + l].state = RUNNABLE;
    }
  }
  return true;
}

/* Runs the lanes of a warp until each waits for the block, has ended, or can not go on. */
void run_warp(unsigned first)
{
  Device &d = device;
  unsigned n = d.n - first < WARP ? d.n - first : WARP;
  for (bool moved = true; moved && !d.failed;) {
    unsigned order[WARP];
    make_order(order, n);
    moved = false;
    for (unsigned i = 0; i < n && !d.failed; i++) {
      Thread *t = &d.threads[first + order[i]];
      if (t->state == RUNNABLE) {
        simt::Self &s = simt::self;
        s.linear = first + order[i];
        s.thread = t->index;
        d.switches++;
        context_switch(&d.scheduler, &t->context);
        moved = true;
      }
    }
    for (unsigned l = 0; l < n && !d.failed; l++) {
      const Thread *t = &d.threads[first + l];
      if (t->state == AT_WARP) {
        moved |= meet_lanes(first, n, t->mask);
      }
    }
  }
}

/* No warp can go on. Threads that wait for a part of their warp do so in vain; else all wait at one barrier, and go on,
   or all have ended: false. */
bool meet_threads()
{
  std::vector<void *> given(device.n);
  unsigned first = device.n;
  for (unsigned i = 0; i < device.n; i++) {
    const Thread *t = &device.threads[i];
    for (unsigned l = 0; t->state == AT_WARP && l < WARP; l++) {
      unsigned other = i / WARP * WARP + l;
      if ((t->mask >> l & 1) == 0) {
        continue;
      }
      if (other >= device.n) {
        report("waits in %s (%s:%d) for lane %u, which the block does not have", t->what, t->place.file, t->place.line,
               l);
        return false;
      }
      const Thread *o = &device.threads[other];
      if (o->state != AT_WARP || o->mask != t->mask || !same_call(o, t)) {
        report_stuck(i, other);
        return false;
      }
    }
    if (t->state == AT_BLOCK && first == device.n) {
      first = i;
    }
    given[i] = t->give;
  }
  for (unsigned i = 0; first < device.n && i < device.n; i++) {
    const Thread *t = &device.threads[i];
    if (t->state != AT_BLOCK || !same_call(&device.threads[first], t)) {
      report_stuck(first, i);
      return false;
    }
  }
  if (first == device.n) {
    return false;
  }
  if (device.threads[first].meet != nullptr) {
    device.threads[first].meet(given.data(), device.n);
  }
  for (unsigned i = 0; i < device.n; i++) {
    device.threads[i].state = RUNNABLE;
  }
  return true;
}

/* What guards hold: a signalling NaN in fp32 as in bf16, which arithmetic would change. */
char guard_byte(const char *at)
{
  return (char)(reinterpret_cast<uintptr_t>(at) % 2 ? 0xff : 0xa5);
}

UNCHECKED bool guard_intact(const char *p)
{
  for (size_t i = 0; i < GUARD; i++) {
    if (p[i] != guard_byte(p + i)) {
      return false;
    }
  }
  return true;
}

void check_guards()
{
  for (size_t i = 0; i < device.arrays.size() && !device.failed; i++) {
    const Array *a = &device.arrays[i];
    if (!guard_intact(device.shared + a->at - GUARD)) {
      report("shared memory before %s is overwritten", a->name);
    } else if (!guard_intact(device.shared + a->at + a->bytes)) {
      report("shared memory past the %zu bytes of %s is overwritten", a->bytes, a->name);
    }
  }
}

void open_shared()
{
  GUARD_OFF(device.shared, device.shared_end + GUARD);
  device.arrays.clear();
  device.shared_end = 0;
  device.static_bytes = 0;
}

void run_block()
{
  std::vector<unsigned> order((device.n + WARP - 1) / WARP);
  open_shared();
  for (unsigned i = 0; i < device.n; i++) {
    device.threads[i].state = RUNNABLE;
    device.threads[i].next_array = 0;
  }
  do {
    make_order(order.data(), (unsigned)order.size());
    for (size_t w = 0; w < order.size() && !device.failed; w++) {
      run_warp(order[w] * WARP);
    }
  } while (!device.failed && meet_threads());
  check_guards();
  if (device.failed) { /* their stacks are in the middle of something */
    new_fibers(0, (unsigned)device.threads.size());
  }
}

void *take_array(const char *name, size_t bytes, bool dynamic)
{
  Thread *t = &device.threads[simt::self.linear];
  size_t i = t->next_array++;
  if (i < device.arrays.size()) {
    if (device.arrays[i].name != name || device.arrays[i].bytes != bytes) {
      simt::fail("declares shared memory %s of %zu bytes where another thread has %s of %zu", name, bytes,
                 device.arrays[i].name, device.arrays[i].bytes);
    }
    return device.shared + device.arrays[i].at;
  }
  size_t at = (device.shared_end + GUARD + 127) & ~(size_t)127;
  device.static_bytes += dynamic ? 0 : bytes;
  if (device.static_bytes > STATIC_SHARED || device.static_bytes + device.dynamic_bytes > MAX_SHARED) {
    simt::fail("needs %zu bytes of shared memory and %zu dynamic ones", device.static_bytes, device.dynamic_bytes);
  }
  if (at + bytes + GUARD > 2 * MAX_SHARED) {
    simt::fail("has too many shared arrays");
  }
  device.arrays.push_back(Array{name, at, bytes});
  device.shared_end = at + bytes;
  GUARD_OFF(device.shared + at - GUARD, bytes + 2 * GUARD);
  memset(device.shared + at, 0xff, bytes);
  for (size_t g = 0; g < GUARD; g++) {
    char *before = device.shared + at - GUARD + g;
    char *after = device.shared + at + bytes + g;
    *before = guard_byte(before);
    *after = guard_byte(after);
  }
  GUARD_ON(device.shared + at - GUARD, GUARD);
  GUARD_ON(device.shared + at + bytes, GUARD);
  return device.shared + at;
}

} // namespace

namespace simt
{

__thread Self self = {};

void fail(const char *format, ...)
{
  char text[256];
  char who[64];
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
  thread_name(self.linear, who, sizeof who);
  report("thread %s %s", who, text);
  leave(ENDED); /* a failed block's threads are not run again */
}

static void wait(State state, const char *what, Place place, unsigned mask, Meet meet, void *give)
{
  Thread *t = &device.threads[self.linear];
  t->what = what;
  t->place = place;
  t->mask = mask;
  t->meet = meet;
  t->give = give;
  leave(state);
}

void meet_block(const char *what, Place place, Meet meet, void *give)
{
  wait(AT_BLOCK, what, place, 0, meet, give);
}

void meet_warp(const char *what, Place place, unsigned mask, Meet meet, void *give)
{
  if ((mask >> lane() & 1) == 0) {
    fail("calls %s (%s:%d) for lanes %08x, of which it is none", what, place.file, place.line, mask);
  }
  wait(AT_WARP, what, place, mask, meet, give);
}

void vote_meet(void *const *given, unsigned n)
{
  unsigned all = 0;
  for (unsigned i = 0; i < n; i++) {
    const Vote *v = static_cast<const Vote *>(given[i]);
    all |= v != nullptr && v->mine ? 1u << i % 32 : 0;
  }
  for (unsigned i = 0; i < n; i++) {
    if (given[i] != nullptr) {
      static_cast<Vote *>(given[i])->all = all;
    }
  }
}

void *shared_array(const char *name, size_t bytes)
{
  return take_array(name, bytes, false);
}

void *dynamic_array(const char *name)
{
  return take_array(name, device.dynamic_bytes, true);
}

int launch(const char *name, dim3 grid, dim3 block, size_t dynamic_bytes, void (*body)(void *), void *arguments)
{
  uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z;
  uint64_t threads = (uint64_t)block.x * block.y * block.z;
  device.kernel = name;
  device.failed = false;
  self.block = dim3(0, 0, 0);
  if (blocks == 0 || blocks > UINT32_MAX || grid.x > INT32_MAX || grid.y > MAX_GRID_YZ || grid.z > MAX_GRID_YZ ||
      threads == 0 || threads > MAX_THREADS || dynamic_bytes > MAX_SHARED) {
    report("cannot run %u x %u x %u blocks of %u x %u x %u threads with %zu bytes", grid.x, grid.y, grid.z, block.x,
           block.y, block.z, dynamic_bytes);
    return -1;
  }
  device.n = (unsigned)threads;
  if (!need_threads(device.n)) {
    report("no memory for its threads");
    return -1;
  }
  device.body = body;
  device.arguments = arguments;
  device.dynamic_bytes = dynamic_bytes;
  self.grid_dim = grid;
  self.block_dim = block;
  for (unsigned i = 0; i < device.n; i++) {
    device.threads[i].index = dim3(i % block.x, i / block.x % block.y, i / (block.x * block.y));
  }
  std::vector<unsigned> order((size_t)blocks);
  make_order(order.data(), (unsigned)blocks);
  memory_open();
  for (size_t i = 0; i < order.size() && !device.failed; i++) {
    self.block = dim3(order[i] % grid.x, order[i] / grid.x % grid.y, order[i] / grid.x / grid.y);
    run_block();
  }
  memory_close();
  return device.failed ? -1 : 0;
}

void clear(void *p, size_t bytes)
{
  memory_open();
  memset(p, 0, bytes);
  memory_close();
}

} // namespace simt

void simt_order(SimtOrder order, uint64_t seed)
{
  device.order = order;
  device.random = seed * 0x9e3779b97f4a7c15u | 1;
}

void simt_memory(void (*open)(void), void (*close)(void))
{
  memory_open = open;
  memory_close = close;
}

const char *simt_error(void)
{
  bool unread = device.unread;
  device.unread = false;
  return unread ? device.error : nullptr;
}

uint64_t simt_switches(void)
{
  return device.switches;
}
