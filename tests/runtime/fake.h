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
  int colocated; /* both roles on every group: a ranks, pa groups */
  int row_bytes;
  int spin_us;  /* CPU time of every compute op */
  int nan_step; /* step (from 1) whose loss is NaN; 0: none */
  int stop_on_nan;
  int wrong_step; /* step in which rank 0 stamps a dispatch wrongly */
  int fail_step;  /* step in which an FFN kernel reports an error */
  int exit_step;  /* step in which an FFN kernel ends its process with exit code 0 */
} FakeLayout;

/* Reads "a=3 f=2 mbs=4"; what is missing keeps its default. Returns false at an unknown key. */
bool fake_parse(FakeLayout *, const char *text);

/* The bundle is static storage, built anew by each call. */
const MoeBundle *fake_bundle(const FakeLayout *);

extern const MoeKernels fake_kernels;

/* For the kernels: the layout and bundle made last. */
extern FakeLayout fake_layout;
extern MoeBundle fake_made;

/* Gradient that every element of a bucket ends up with after a step: each holder adds 1 per op that adds to it. */
double fake_gradient(MoeBucketKind, int layer);

#endif
