/* The rows of m2n_shm by MPI: the first M ranks gather them into a send buffer, MPI_Alltoallv moves them to the other
   N, which check a sample. Arguments, on M + N ranks: M N REPEATS [all]. Prints lines of BYTES and GB/s. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/bench/rows.h"

enum { MAX_RANKS = 16 };

static const size_t bytes_moved = (size_t)96 << 20;

typedef struct Rank {
  int m, n, rank, peers;
  bool sender, all;
  uint32_t *pool;
  uint8_t *buffer; /* what is sent or what arrives, one message per peer */
  uint32_t *lists[MAX_RANKS][LISTS];
  int send_count[MAX_RANKS], send_at[MAX_RANKS], recv_count[MAX_RANKS], recv_at[MAX_RANKS];
} Rank;

static _Noreturn void fail(const char *what)
{
  fprintf(stderr, "m2n_mpi: %s\n", what);
  MPI_Abort(MPI_COMM_WORLD, 1);
  exit(1);
}

static void *get(size_t bytes)
{
  void *p = malloc(bytes);
  if (p == NULL) {
    fail("out of memory");
  }
  memset(p, 0, bytes);
  return p;
}

static int src_of(const Rank *r, int peer)
{
  return r->sender ? r->rank : peer;
}

/* Lists and counts, in rows. */
static void prepare(Rank *r, uint32_t rows)
{
  for (int p = 0; p < r->peers; p++) {
    for (int k = 0; k < LISTS; k++) {
      rows_list(src_of(r, p), r->sender ? r->m + p : r->rank, k, rows, r->lists[p][k]);
    }
  }
  for (int i = 0; i < r->m + r->n; i++) {
    bool to = r->sender && i >= r->m;
    bool from = !r->sender && i < r->m;
    r->send_count[i] = to ? (int)rows : 0;
    r->send_at[i] = to ? (i - r->m) * (int)rows : 0;
    r->recv_count[i] = from ? (int)rows : 0;
    r->recv_at[i] = from ? i * (int)rows : 0;
  }
}

static void transfer(Rank *r, MPI_Datatype row, uint32_t messages, uint32_t rows)
{
  size_t message = (size_t)rows * ROW_BYTES;
  for (uint32_t k = 0; k < messages; k++) {
    for (int p = 0; r->sender && p < r->peers; p++) {
      rows_gather(r->buffer + (size_t)p * message, r->pool, r->lists[p][k % LISTS], rows);
    }
    MPI_Alltoallv(r->buffer, r->send_count, r->send_at, row, r->buffer, r->recv_count, r->recv_at, row, MPI_COMM_WORLD);
    for (int p = 0; !r->sender && p < r->peers; p++) {
      if (!rows_ok(p, r->lists[p][k % LISTS], rows, r->buffer + (size_t)p * message, r->all)) {
        fail("a message is not what was sent");
      }
    }
  }
}

static void measure(Rank *r, MPI_Datatype row, int repeats)
{
  for (uint32_t rows = MAX_ROWS; rows >= MIN_ROWS; rows /= 4) {
    uint32_t messages = r->all ? 4 : rows_messages(bytes_moved, r->m * r->n, rows);
    prepare(r, rows);
    transfer(r, row, 2, rows);
    for (int i = 0; i < repeats; i++) {
      MPI_Barrier(MPI_COMM_WORLD);
      double begin = MPI_Wtime();
      transfer(r, row, messages, rows);
      double took = MPI_Wtime() - begin, longest = 0;
      MPI_Reduce(&took, &longest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
      if (r->rank == 0) {
        printf("%zu %.4f\n", (size_t)rows * ROW_BYTES,
               (double)r->m * r->n * messages * rows * ROW_BYTES / longest * 1e-9);
      }
    }
  }
  fflush(stdout);
}

int main(int argc, char **argv)
{
  Rank r = {0};
  int size = 0;
  MPI_Init(&argc, &argv);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm_rank(MPI_COMM_WORLD, &r.rank);
  r.m = argc > 1 ? atoi(argv[1]) : 0;
  r.n = argc > 2 ? atoi(argv[2]) : 0;
  int repeats = argc > 3 ? atoi(argv[3]) : 0;
  r.all = argc > 4 && strcmp(argv[4], "all") == 0;
  if (r.m < 1 || r.n < 1 || r.m + r.n != size || size > MAX_RANKS || repeats < 1) {
    fail("usage: mpirun -np (M + N) m2n_mpi M N REPEATS [all]");
  }
  r.sender = r.rank < r.m;
  r.peers = r.sender ? r.n : r.m;
  for (int p = 0; p < r.peers; p++) {
    for (int k = 0; k < LISTS; k++) {
      r.lists[p][k] = get(rows_pool(MAX_ROWS) * sizeof(uint32_t));
    }
  }
  r.buffer = get((size_t)r.peers * MAX_ROWS * ROW_BYTES);
  if (r.sender) {
    r.pool = get((size_t)rows_pool(MAX_ROWS) * ROW_BYTES);
    rows_fill(r.rank, r.pool, rows_pool(MAX_ROWS));
  }
  MPI_Datatype row;
  MPI_Type_contiguous(ROW_BYTES, MPI_BYTE, &row);
  MPI_Type_commit(&row);
  measure(&r, row, repeats);
  MPI_Finalize();
  return 0;
}
