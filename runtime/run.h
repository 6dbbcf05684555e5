/* What a rank does from its fork to its end. */
#ifndef MOE_RUN_H
#define MOE_RUN_H

#include "runtime/data.h"
#include "runtime/hf_save.h"
#include "runtime/options.h"
#include "runtime/report.h"
#include "runtime/safetensors.h"

/* Made by the launcher before the fork, so every rank has it. */
typedef struct MoeRun {
  const MoeBundle *bundle; /* of the first shape */
  const MoeKernels *kernels;
  const MoeOptions *options;
  const MoeWiring *wirings; /* of each shape */
  MoeShared *shared;
  MoeData *data;         /* of each shape: the same file */
  const MoeHfLoad *init; /* NULL: random weights */
  MoeStWriter grads;
  MoeStWriter weights;
  MoeHfSave hf;
  MoeReport report; /* rank 0 uses it */
} MoeRun;

/* arg: MoeRun. Returns the process's exit code. */
int moe_run_rank(void *arg, int32_t rank);

#endif
