/* Parameters: every tensor by its global name, the buckets they lie in, and the ranks that hold each bucket. Names and
   shapes are those of the public Qwen3-MoE checkpoints. */
#ifndef CODEGEN_PARAMS_H
#define CODEGEN_PARAMS_H

#include "codegen/plan.h"
#include "runtime/moe_bundle.h"

typedef struct ParamTables {
  MoeBucket *buckets; /* by kind, layer, first holder */
  int n_buckets;
  int32_t *holders;
  int n_holders;
  MoeParam *params;
  int n_params;
} ParamTables;

void params_build(Arena *, const Spec *, const Plan *, ParamTables *);

#endif
