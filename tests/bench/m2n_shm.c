/* M senders and N receivers, processes, over the runtime's shared-memory transport, as its progress thread drives it:
   rows are gathered straight into the receiver's slot and published; the receiver checks a sample and releases; whoever
   finds nothing to do sleeps on its bell. In turn with it the same rows are gathered into private memory: by one
   process, and by all senders at once. Arguments: M N REPEATS [all]; "all" checks every word. Prints lines of
   BYTES transport copy copies transport-cpu copy-cpu first: GB/s; GB per second of CPU of all processes involved; and
   the transport's first use of its slots, 0 but once. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "runtime/moe_layout.h"
#include "runtime/moe_ops.h"
#include "runtime/shared.h"
#include "runtime/transport.h"
#include "tests/bench/rows.h"

enum { MAX_SIDE = 8, MAX_RANKS = 2 * MAX_SIDE, SLOTS = 2, LOOK_AROUND_NS = 100000000 };

static const size_t bytes_moved = (size_t)96 << 20;

typedef struct Control {
  pthread_barrier_t barrier;
  int64_t begin[MAX_RANKS];
  int64_t end[MAX_RANKS];
  int64_t cpu[MAX_RANKS];
} Control;

typedef struct Rate {
  double wall, cpu; /* GB per second */
} Rate;

typedef struct Bench {
  int m, n, repeats;
  bool all;
  MoeShared shared;
  Control *control;
  MoeLink links[MAX_SIDE][MAX_SIDE];
  uint64_t offset[MAX_SIDE][MAX_SIDE][SLOTS];
  size_t capacity[SLOTS];
} Bench;

/* One process: a sender has rows and a private buffer, both have the lists. */
typedef struct Rank {
  const Bench *bench;
  int rank;
  bool sender;
  int peers;
  MoeBell *bell;
  uint32_t *pool;
  uint8_t *copy; /* [peers][SLOTS][message] */
  uint32_t *lists[MAX_SIDE][LISTS];
  uint64_t sent[MAX_SIDE]; /* messages so far on each link */
} Rank;

static _Noreturn void fail(const char *what)
{
  fprintf(stderr, "m2n_shm: %s\n", what);
  exit(1);
}

static void *get(size_t bytes)
{
  void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) {
    fail("out of memory");
  }
  return p;
}

static const MoeLink *link_of(const Rank *r, int peer)
{
  return r->sender ? &r->bench->links[r->rank][peer] : &r->bench->links[peer][r->rank - r->bench->m];
}

static void make_lists(Rank *r, uint32_t rows)
{
  for (int p = 0; p < r->peers; p++) {
    const MoeLink *link = link_of(r, p);
    for (int k = 0; k < LISTS; k++) {
      rows_list(link->src, link->dst, k, rows, r->lists[p][k]);
    }
  }
}

static uint32_t stamp_of(uint64_t k)
{
  return moe_stamp((uint32_t)k, (uint32_t)(k >> 5), 0, (uint32_t)(k >> 8), MOE_EDGE_DISPATCH);
}

static void pack(Rank *r, int peer, uint32_t rows)
{
  const MoeLink *link = link_of(r, peer);
  uint64_t k = r->sent[peer]++;
  uint8_t *slot = link->transport->slot(link, (uint32_t)(k % SLOTS));
  size_t rows_at = moe_msg_rows_at(0, 0, 0, 0);
  MoeMsgHead *head = (MoeMsgHead *)(void *)slot;
  *head = (MoeMsgHead){.rows = rows, .stamp = stamp_of(k), .bytes = (uint32_t)(rows_at + (size_t)rows * ROW_BYTES)};
  rows_put(slot + rows_at, r->pool, r->lists[peer][k % LISTS], rows);
  if (link->transport->put(link, (uint32_t)(k % SLOTS), k / SLOTS + 1, head->bytes, (MoeSpan){0}) != MOE_OK) {
    fail("cannot hand over a message");
  }
}

static void take(Rank *r, int peer, uint32_t rows)
{
  const MoeLink *link = link_of(r, peer);
  uint64_t k = r->sent[peer]++;
  const uint8_t *data = link->transport->data(link, (uint32_t)(k % SLOTS));
  size_t rows_at = moe_msg_rows_at(0, 0, 0, 0);
  const MoeMsgHead *head = (const MoeMsgHead *)(const void *)data;
  if (head->rows != rows || head->stamp != stamp_of(k) || head->bytes != rows_at + (size_t)rows * ROW_BYTES ||
      !rows_ok(link->src, r->lists[peer][k % LISTS], rows, data + rows_at, r->bench->all)) {
    fail("a message is not what was sent");
  }
  link->transport->release(link, (uint32_t)(k % SLOTS), k / SLOTS + 1, 0);
}

static bool may_move(const Rank *r, int peer)
{
  const MoeLink *link = link_of(r, peer);
  uint64_t k = r->sent[peer];
  int64_t free_ns;
  MoeSpan span;
  return r->sender ? link->transport->acquire(link, (uint32_t)(k % SLOTS), k / SLOTS + 1, &free_ns)
                   : link->transport->arrived(link, (uint32_t)(k % SLOTS), k / SLOTS + 1, &span);
}

/* `messages` on every link, each link as far as it goes. */
static void transfer(Rank *r, uint32_t messages, uint32_t rows)
{
  uint64_t goal = r->sent[0] + messages;
  for (int left = r->peers; left > 0;) {
    uint32_t seen = moe_bell_read(r->bell);
    bool moved = false;
    left = 0;
    for (int p = 0; p < r->peers; p++) {
      while (r->sent[p] < goal && may_move(r, p)) {
        if (r->sender) {
          pack(r, p, rows);
        } else {
          take(r, p, rows);
        }
        moved = true;
      }
      left += r->sent[p] < goal;
    }
    if (left > 0 && !moved) {
      moe_bell_wait(r->bell, seen, moe_now_ns() + LOOK_AROUND_NS);
    }
  }
}

static void copy(Rank *r, uint32_t messages, uint32_t rows)
{
  size_t message = (size_t)rows * ROW_BYTES;
  for (uint32_t k = 0; k < messages; k++) {
    for (int p = 0; p < r->peers; p++) {
      rows_gather(r->copy + ((size_t)p * SLOTS + k % SLOTS) * message, r->pool, r->lists[p][k % LISTS], rows);
    }
  }
}

typedef enum Phase { PHASE_TRANSFER, PHASE_COPY, PHASE_COPIES } Phase;

static int64_t cpu_ns(void)
{
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* All processes together. */
static Rate phase(Rank *r, Phase what, uint32_t messages, uint32_t rows)
{
  Control *c = r->bench->control;
  int ranks = r->bench->m + r->bench->n;
  int active = what == PHASE_TRANSFER ? ranks : what == PHASE_COPY ? 1 : r->bench->m;
  pthread_barrier_wait(&c->barrier);
  c->begin[r->rank] = moe_now_ns();
  c->cpu[r->rank] = -cpu_ns();
  if (what == PHASE_TRANSFER) {
    transfer(r, messages, rows);
  } else if (r->rank < active) {
    copy(r, messages, rows);
  }
  c->cpu[r->rank] += cpu_ns();
  c->end[r->rank] = moe_now_ns();
  pthread_barrier_wait(&c->barrier);
  int64_t begin = c->begin[0], end = c->end[0], cpu = 0;
  for (int i = 0; i < active; i++) {
    cpu += c->cpu[i];
    begin = c->begin[i] < begin ? c->begin[i] : begin;
    end = c->end[i] > end ? c->end[i] : end;
  }
  int links = (what == PHASE_COPY ? 1 : r->bench->m) * r->bench->n;
  double bytes = (double)links * messages * rows * ROW_BYTES;
  return (Rate){bytes / (double)(end - begin), bytes / (double)cpu};
}

static void run_rank(const Bench *b, int rank)
{
  Rank r = {.bench = b, .rank = rank, .sender = rank < b->m, .bell = &b->shared.comm_bells[rank]};
  uint32_t most = MAX_ROWS;
  r.peers = r.sender ? b->n : b->m;
  for (int p = 0; p < r.peers; p++) {
    for (int k = 0; k < LISTS; k++) {
      r.lists[p][k] = get(rows_pool(most) * sizeof(uint32_t));
    }
  }
  if (r.sender) {
    r.pool = get((size_t)rows_pool(most) * ROW_BYTES);
    r.copy = get((size_t)r.peers * SLOTS * most * ROW_BYTES);
    rows_fill(rank, r.pool, rows_pool(most));
    memset(r.copy, 0, (size_t)r.peers * SLOTS * most * ROW_BYTES);
  }
  for (uint32_t rows = most; rows >= MIN_ROWS; rows /= 4) { /* the largest first: it touches all pages of the slots */
    uint32_t messages = b->all ? 4 : rows_messages(bytes_moved, b->m * b->n, rows);
    make_lists(&r, rows);
    Rate first = phase(&r, PHASE_TRANSFER, rows == most ? SLOTS : messages, rows);
    for (int i = 0; i < b->repeats; i++) {
      Rate one = phase(&r, PHASE_COPY, messages, rows);
      Rate moved = phase(&r, PHASE_TRANSFER, messages, rows);
      Rate all = phase(&r, PHASE_COPIES, messages, rows);
      if (rank == 0) {
        printf("%zu %.4f %.4f %.4f %.4f %.4f %.4f\n", (size_t)rows * ROW_BYTES, moved.wall, one.wall, all.wall,
               moved.cpu, one.cpu, rows == most && i == 0 ? first.wall : 0.0);
      }
    }
  }
  fflush(stdout);
}

static void open_links(Bench *b)
{
  size_t slot = moe_slot_bytes(moe_msg_rows_at(0, 0, 0, 0) + (size_t)MAX_ROWS * ROW_BYTES);
  uint64_t end = 0;
  if (moe_shared_map(&b->shared, b->m + b->n, slot * SLOTS * (uint64_t)(b->m * b->n), false, 0, 0, -1) != MOE_OK) {
    exit(1);
  }
  for (int s = 0; s < SLOTS; s++) {
    b->capacity[s] = slot - sizeof(MoeSlot);
  }
  for (int i = 0; i < b->m; i++) {
    for (int j = 0; j < b->n; j++) {
      int dst = b->m + j;
      for (int s = 0; s < SLOTS; s++, end += slot) {
        b->offset[i][j][s] = end;
      }
      b->links[i][j] = (MoeLink){.transport = moe_transport_for(&(MoePeer){.rank = i}, &(MoePeer){.rank = dst}),
                                 .src = i,
                                 .dst = dst,
                                 .src_bell = &b->shared.comm_bells[i],
                                 .dst_bell = &b->shared.comm_bells[dst],
                                 .n_slots = SLOTS,
                                 .slab = b->shared.slabs,
                                 .offset = b->offset[i][j],
                                 .capacity = b->capacity};
      if (b->links[i][j].transport == NULL || strcmp(b->links[i][j].transport->name, "shm") != 0) {
        fail("no transport through shared memory");
      }
    }
  }
}

int main(int argc, char **argv)
{
  static Bench b;
  int bad = 0;
  b.m = argc > 1 ? atoi(argv[1]) : 0;
  b.n = argc > 2 ? atoi(argv[2]) : 0;
  b.repeats = argc > 3 ? atoi(argv[3]) : 0;
  b.all = argc > 4 && strcmp(argv[4], "all") == 0;
  if (b.m < 1 || b.m > MAX_SIDE || b.n < 1 || b.n > MAX_SIDE || b.repeats < 1) {
    fprintf(stderr, "usage: m2n_shm M N REPEATS [all]\n");
    return 2;
  }
  open_links(&b);
  b.control = mmap(NULL, sizeof *b.control, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  pthread_barrierattr_t shared;
  if (b.control == MAP_FAILED || pthread_barrierattr_init(&shared) != 0 ||
      pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED) != 0 ||
      pthread_barrier_init(&b.control->barrier, &shared, (unsigned)(b.m + b.n)) != 0) {
    fail("cannot make a barrier");
  }
  for (int i = 0; i < b.m + b.n; i++) {
    pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      (void)prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
      run_rank(&b, i);
      exit(0);
    }
    if (pid < 0) {
      fail("cannot fork");
    }
  }
  for (int i = 0; i < b.m + b.n && !bad; i++) {
    int status;
    bad = wait(&status) < 0 || status != 0; /* the others, who wait for it, die with this process */
  }
  return bad;
}
