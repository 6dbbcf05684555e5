/* Saving, beside the training: at the end of a step a rank copies what it owns, and a thread of it writes the copy
   while the next steps run. Rank 0's thread waits for all ranks' files, writes the manifest and gives the folder its
   name. */
#ifndef MOE_CHECKPOINT_SAVE_H
#define MOE_CHECKPOINT_SAVE_H

#include "runtime/checkpoint.h"

/* What a manifest says beside the tensors; the same in all ranks. `shapes` belongs to the caller, [moe_n_shapes()]. */
typedef struct MoeMoment {
  int64_t step;
  int64_t updates;
  uint64_t seed;
  double next_lr;
  const char *turn;
  json_t *options;
  const MoeCkShape *shapes;
  int32_t n_shapes;
} MoeMoment;

typedef struct MoeSaver {
  const MoeBundle *bundle;
  MoeShared *shared;
  int32_t rank;
  const char *dir; /* NULL: nothing is saved */
  int64_t keep;    /* 0: all */
  float *copy;     /* of all states of all buckets, one after the other */
  uint64_t copy_bytes;
  MoeCkPart *parts;
  const float **data;   /* [n_parts * MOE_CK_STATE_COUNT] in the copy */
  MoeStTensor *tensors; /* the same, as they stand in the file */
  int64_t *sizes;       /* shapes of those that are parts */
  int32_t n_parts;
  MoeMoment moment; /* of the save under way */
  MoeCkShape *shapes;
  uint64_t written; /* bytes since the last beat */
  int64_t delay_us;

  pthread_t thread;
  bool running;
  int64_t begin_ns;
  _Atomic bool ended;
  _Atomic bool quit;
  MoeStatus status; /* these are the thread's until it has ended */
  uint64_t bytes;   /* rank 0: of the whole checkpoint */
  int64_t end_ns;
} MoeSaver;

/* What one save has come to; told once. */
typedef struct MoeSaved {
  int64_t step; /* -1: nothing to tell */
  uint64_t bytes;
  double seconds; /* from the end of the step */
} MoeSaved;

/* Bytes of a rank's copy: three states of what it owns. */
uint64_t moe_saver_bytes(const MoeBundle *, int32_t rank);

MoeStatus moe_saver_open(MoeSaver *, const MoeExec *, const char *dir, int64_t keep);
void moe_saver_close(MoeSaver *);

/* Copies the state and starts writing; no save may be under way. */
MoeStatus moe_saver_begin(MoeSaver *, const MoeExec *, const MoeMoment *);

/* Whether the save under way has ended, and how: its error is this status. wait: until it has. */
MoeStatus moe_saver_check(MoeSaver *, bool wait, MoeSaved *);

#endif
