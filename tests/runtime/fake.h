/* A bundle made at run time, with kernels that move tagged rows and check every one: what arrives where, in which
   order, from whom, in which step. It tests the runtime without any model. */
#ifndef TESTS_RUNTIME_FAKE_H
#define TESTS_RUNTIME_FAKE_H

#include "runtime/moe_bundle.h"

typedef struct FakeLayout {
  int a, f;                        /* ranks per group */
  int pa, pf;                      /* groups of each side */
  int replicas, layers, mbs, seqs; /* seqs: of a full micro-batch */
  int short_by;                    /* sequences missing in the last micro-batch of each replica */
  int seq;
  int rpn; /* ranks per node; with relay != 0, layers are relayed where nodes share ranks */
  int relay;
  int mixed;     /* every node hosts its share of both sides; replicas are whole nodes */
  int colocated; /* both roles on every group: a ranks, pa groups */
  int join;      /* outputs are summed at their origin and sent on from there */
  int ways;      /* 2: the second half of the micro-batches crosses the groups in reverse */
  int chunks;    /* parts of each sequence that dispatch, experts and combine take in turn */
  int row_bytes;
  int turn;     /* steps in a row on this shape, where a program has several: what --shapes says; 0: none */
  int done;     /* steps that an earlier run has done, of a program with one shape */
  int spin_us;  /* CPU time of every compute op */
  int nan_step; /* step (from 1) whose loss is NaN; 0: none */
  int stop_on_nan;
  int wrong_step; /* step in which rank 0 stamps a dispatch wrongly */
  int fail_step;  /* step in which an FFN kernel reports an error */
  int exit_step;  /* step in which an FFN kernel ends its process with exit code 0 */
  int hash;       /* of the bundle */
} FakeLayout;

enum {
  FAKE_SHAPES = 4,
  FAKE_GROUPS = 8,
  FAKE_OPS = 6000,
  FAKE_CHANS = 400,
  FAKE_LAYERS = 16,
};

/* One shape of the program: mbs, seqs, short_by, seq, chunks and turn are its own, and no two have the same seq. */
typedef struct FakeShape {
  FakeLayout layout;
  MoeBundle made;
  char name[16];
  MoeOp ops[FAKE_GROUPS][FAKE_OPS];
  MoeGroup groups[FAKE_GROUPS];
  MoeChan chans[FAKE_CHANS];
  int32_t seat[64];
  int16_t att_group[2 * (FAKE_LAYERS + 1)], ffn_group[2 * FAKE_LAYERS], combine_group[2 * FAKE_LAYERS];
} FakeShape;

extern FakeShape fake_shapes[FAKE_SHAPES];
extern int fake_n_shapes;
extern _Thread_local FakeShape *fake; /* the one at hand */

/* Reads "a=3 f=2 mbs=4; mbs=2 seq=5": shapes after the first have its values where they name none. What is missing
   keeps its default. Returns the number of shapes, 0 at an unknown key. */
int fake_parse(FakeLayout *, const char *text);

/* The bundles are static storage, built anew by each call. Shapes are named s0, s1, ... */
const MoeBundle *fake_bundle(const FakeLayout *, int n);

extern const MoeKernels fake_kernels;

/* Groups of a layer on a micro-batch's way. */
int fake_att(int mb, int layer);
int fake_ffn(int mb, int layer);
int fake_combine(int mb, int layer);

/* Gradient that every element of a bucket ends up with after a step: each holder adds 1 per op that adds to it. */
double fake_gradient(MoeBucketKind, int layer);

#endif
