/* The executor of one rank for one shape. A compute thread runs the compute ops of the group's table in order; a
   progress thread drives sends, receives, relays and node sums beside it. Each op's end is a flag that the other thread
   can wait for. While a step runs, nothing is allocated and no lock is taken but that of the queues to other hosts. */
#ifndef MOE_EXEC_H
#define MOE_EXEC_H

#include <pthread.h>

#include "runtime/hf_load.h"
#include "runtime/mem.h"
#include "runtime/shared.h"
#include "runtime/topo.h"
#include "runtime/transport.h"
#include "runtime/wiring.h"

typedef struct MoeExecOptions {
  bool serial;      /* MOE_TEST_SERIAL: no progress thread, nothing overlaps */
  bool sync_send;   /* MOE_TEST_SYNC_SEND: a send ends when its receiver has seen it */
  bool poison;      /* MOE_POISON: fresh memory is NaN */
  int64_t delay_us; /* MOE_TEST_DELAY: most that an op is held up, at random; 0: off */
  uint64_t delay_seed;
  int64_t save_delay_us; /* MOE_TEST_SAVE_DELAY: that a rank waits before it writes a tensor of a checkpoint */
  double compute_scale;  /* each compute op takes this many times its CPU time; 0: off */
  double scale;          /* a rehearsal: real time for modelled time */
  bool settle;           /* it is a first guess: find the one from which on a step's length no longer depends on it */
} MoeExecOptions;

/* One message that a RECV op takes in. */
typedef struct MoeArrival {
  struct MoeEnd *end;
  const MoeMsg *msg;
} MoeArrival;

/* What the executor knows of an op beyond its row. */
typedef struct MoeOpInfo {
  int32_t wait[MOE_MAX_WAITS];    /* as in the row, without ops this rank skips; -1 fills up */
  int32_t release[MOE_MAX_WAITS]; /* as in the row, without RECV ops that have no messages here */
  bool mine;
  bool compute;    /* runs on the compute thread */
  bool wakes_comm; /* an op of the progress thread waits for it */
  bool wakes_compute;
  bool begun;   /* SEND: its first message of this step was packed */
  bool running; /* an op of the progress thread that takes a given time */
  int32_t n_msgs;
  int32_t left; /* messages still to come or go; touched by the progress thread alone */
  int32_t first_arrival;
  int64_t start_ns; /* of this step, for the trace */
  int64_t end_ns;   /* of this step, on the rank's timeline; set before the op counts as finished */
  MoeCall call;     /* filled in except for step, peer, scratch, logits and inv_tokens */
} MoeOpInfo;

/* One direction and class of traffic between this rank and another, with the cursors of the running step. */
typedef struct MoeEnd {
  MoeLink link;
  const MoeLinkPlan *plan;
  MoeTraffic traffic;
  int32_t other;      /* rank */
  int32_t peer_index; /* of the other in its group */
  bool paced;
  int32_t next;        /* sends: next to pack; receives: next to arrive */
  int32_t sent;        /* sends: handed over */
  int32_t finished;    /* sends: counted as done; differs from `sent` only with sync_send */
  uint64_t *pace_sent; /* messages of all steps of all shapes that the arbiter has let through and we handed over */
} MoeEnd;

/* One run through the tables. */
typedef struct MoeStep {
  bool update; /* false: evaluation */
  bool trace;
  double inv_tokens;
  uint32_t *load;   /* where the step's tokens are counted by expert, moe_load_begin(); or NULL */
  float *logits;    /* [global_batch, seq, vocab] to be kept, or NULL */
  MoeAdam adam;     /* without scale */
  int64_t begin_ns; /* of a rehearsal's timeline */
} MoeStep;

typedef struct MoeExec {
  const MoeBundle *bundle;
  const MoeKernels *kernels;
  const MoeWiring *wiring;
  MoeShared *shared;
  MoeExecOptions options;
  MoeRank me;
  const MoeDevice *device;
  MoeMem mem; /* what it points at is not the executor's */
  uint64_t *pace_sent;
  const MoeOp *ops;
  int32_t n_ops;
  MoeOpInfo *info;        /* [n_ops] */
  _Atomic uint32_t *done; /* [n_ops] tick + 1 of the last step in which the op finished */
  MoeArrival *arrivals;
  MoeIn *ins;
  int32_t *node_first; /* [n_groups][replica_ranks + 1] */
  int32_t *n_nodes;
  MoeEnd *sends;
  MoeEnd *recvs;
  int32_t n_sends;
  int32_t n_recvs;
  int32_t *locals; /* RELAY and NODE_REDUCE ops */
  int32_t n_locals;
  int32_t *unreleased; /* RECV ops that no op releases: done at the end of the step */
  int32_t n_unreleased;

  MoeStep step;
  uint64_t tick;   /* runs before the present one, evaluations included; message generations and stamps count it */
  uint64_t n_runs; /* runs so far */
  double totals[MOE_SC_COUNT]; /* over all ranks, once they are known */
  uint64_t delay_state[2];

  pthread_t thread;
  bool has_thread;
  MoeBell *comm_bell;
  MoeBell *compute_bell;
  _Atomic uint64_t go;        /* tick + 1 of the step that the progress thread may run */
  _Atomic uint64_t comm_done; /* tick + 1 of the last step it has finished */
  _Atomic bool quit;
  _Atomic int32_t failed; /* MoeStatus of either thread */
  int32_t local_at;       /* first unfinished of `locals` */
  int32_t unfinished;     /* progress thread: links and local ops with work left in this step */
  int64_t wake_ns;        /* progress thread: when to look again at the latest */

  /* The timeline: where ops take given times, each starts when what it waits for has ended, and ends that much later,
     whenever the machine got round to it; threads sleep until these times, so lateness never adds up. */
  bool timed;
  int64_t at_ns;   /* compute thread: end of its last op */
  int64_t last_ns; /* progress thread: end of the latest op of this step */
  int64_t late_ns; /* most by which an op of this step began too late */
} MoeExec;

/* What the executors of a rank's shapes have in common. */
typedef struct MoeExecIn {
  const MoeKernels *kernels;
  MoeShared *shared;
  int32_t rank;
  const MoeExecOptions *options;
  uint64_t *pace_sent; /* [n_ranks][MOE_TRAFFIC_COUNT] */
} MoeExecIn;

/* Builds all tables of one shape. Weights are not set yet: moe_exec_init_weights(). */
MoeStatus moe_exec_open(MoeExec *, const MoeExecIn *, const MoeBundle *, const MoeWiring *, const MoeMem *);
void moe_exec_close(MoeExec *);

/* load: files to read from; NULL: random weights of that seed. */
MoeStatus moe_exec_init_weights(MoeExec *, uint64_t seed, const MoeHfLoad *load);

/* Where the host may lay out a bucket's weights as floats, [elems]; NULL: no memory. moe_exec_set_weights() rounds them
   to the storage type, but for selection biases, and makes them the bucket's; it takes the floats back. Until the next
   step they are also in the bucket's gradients. */
float *moe_exec_new_weights(const MoeExec *, MoeHeld *);
MoeStatus moe_exec_set_weights(const MoeExec *, MoeHeld *, float *);

/* The progress thread; steps run between the two. Of a rank's executors one at a time may be started. */
MoeStatus moe_exec_start(MoeExec *);
void moe_exec_stop(MoeExec *);

/* Tokens and labels of micro-batch `mb` for this attention rank, [n_seqs][seq]; sequence i is number *first_p + i of
   the step's global batch. Returns n_seqs, 0 without attention. */
int32_t moe_exec_batch(MoeExec *, int32_t mb, int64_t *first_p, int32_t **tokens_p, int32_t **labels_p);

/* Runs one step. On success x->totals holds the sums over all ranks, in every rank. */
MoeStatus moe_exec_step(MoeExec *, const MoeStep *);

/* Whether the last step's loss and gradients were finite; the gradient norm; the multiplier that clipping applies. */
bool moe_totals_finite(const double *totals);
double moe_totals_norm(const double *totals);
double moe_clip_scale(double norm, double clip);

/* Parts of the executor (exec_*.c). */
MoeStatus moe_exec_build(MoeExec *);
void moe_exec_unbuild(MoeExec *);
bool moe_exec_ready(const MoeExec *, int32_t op);
int64_t moe_exec_ready_ns(const MoeExec *, int32_t op); /* when the last op that it waits for ended, if it is ready */
void moe_exec_finish(MoeExec *, int32_t op, bool on_comm, int64_t start_ns);
/* Until the lane has done its work, which is `so_far` on its way; logs the error. */
MoeStatus moe_exec_wait(const MoeExec *, MoeLane, MoeStatus so_far);
void moe_exec_delay(MoeExec *, bool on_comm);
void moe_exec_release(MoeExec *, int32_t recv_op, int64_t free_ns);
void moe_comm_begin(MoeExec *);
MoeStatus moe_comm_pass(MoeExec *, bool *moved_p);
bool moe_comm_in_flight(const MoeExec *);
MoeStatus moe_tail_pack(MoeExec *, int32_t index, int32_t peer_rank, uint8_t *slot);
void moe_tail_arrived(MoeExec *, int32_t op, const uint8_t *message);
MoeStatus moe_tail_run(MoeExec *, int32_t index);

#endif
