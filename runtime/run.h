/* What a rank does from its fork to its end. */
#ifndef MOE_RUN_H
#define MOE_RUN_H

#include "runtime/checkpoint.h"
#include "runtime/data.h"
#include "runtime/hf_save.h"
#include "runtime/logits.h"
#include "runtime/options.h"
#include "runtime/metrics.h"
#include "runtime/report.h"
#include "runtime/safetensors.h"
#include "runtime/team.h"

/* Made by the launcher before the fork, so every rank has it. */
typedef struct MoeRun {
  const MoeBundle *bundle; /* of the first shape */
  const MoeKernels *kernels;
  const MoeOptions *options;
  const MoeWiring *wirings; /* of each shape */
  MoeShared *shared;
  const MoeSeat *seat;
  MoeTeam *team;               /* NULL: this process runs all ranks */
  MoeData *data;               /* of each shape: the same file */
  const MoeHfLoad *init;       /* NULL: random weights */
  const MoeCheckpoint *resume; /* NULL: from the beginning */
  int64_t first_step;          /* index of the first step to run: steps of the checkpoint */
  json_t *kept;                /* options that checkpoints keep */
  MoeCkShape *places;          /* of each shape: where its data stands before that step */
  bool save_first;             /* the state before it is not in the folder that is saved into */
  MoeStWriter grads;
  MoeStWriter weights;
  MoeLogits logits;
  MoeHfSave hf;
  MoeReport report; /* rank 0 uses it, and the next two */
  MoeMetrics metrics;
  uint64_t *load; /* sums of moe_load_sum() */
} MoeRun;

/* Number of the first training sequence that step t reads, if it has this shape. Each shape goes through the data on
   its own. */
int64_t moe_run_sequence(const MoeRun *, int32_t shape, int64_t t);

/* The order of shapes, as --shapes takes it. */
const char *moe_run_turn(const MoeRun *);

/* arg: MoeRun. Returns the process's exit code. */
int moe_run_rank(void *arg, int32_t rank);

#endif
