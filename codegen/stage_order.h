/* Orders of the colocated systems, at the grain their authors define them: forward and backward of a run of layers (a
   stage) for one micro-batch, per pipeline rank. The expansion to compute tasks of layers is in sched_stages.c. */
#ifndef CODEGEN_STAGE_ORDER_H
#define CODEGEN_STAGE_ORDER_H

#include <stdio.h>

#include "codegen/plan.h"
#include "lang/arena.h"

typedef enum StageOp {
  STAGE_F, /* forward */
  STAGE_B, /* input and weight gradients */
  STAGE_I, /* input gradients alone: "b" */
  STAGE_W  /* the weight gradients that an STAGE_I left: "w" */
} StageOp;

typedef struct StageStep {
  uint8_t op;     /* StageOp */
  bool with_next; /* an F that runs merged with the B that is the next step */
  int16_t stage;  /* in the micro-batch's direction */
  int32_t mb;
} StageStep;

typedef struct StageOrder {
  StageStep *steps;
  int n;
} StageOrder;

/* What an order depends on. */
typedef struct StageIn {
  SystemKind system;  /* a colocated one */
  int ranks;          /* p: pipeline ranks */
  int virtual_stages; /* interleaved 1F1B: v; the others have a fixed number, whatever this says */
  int micro_batches;
  int mb_group; /* interleaved: G; 0: p. Of no effect with one virtual stage */
} StageIn;

/* What a colocated system's plan asks for. */
StageIn stage_in(const Plan *);

/* DualPipe and DualPipeV: micro-batches from two sides, forwards and backwards merged. */
bool stage_dual(SystemKind);

/* NULL if the system can run this, else why it cannot, with both numbers: "dualpipe: 6 micro-batches, at least 8 (twice
   the pipeline ranks)". */
const char *stage_refuses(Arena *, const StageIn *);

/* The same, with what is to blame: the number of pipeline ranks, that of virtual stages, the micro-batches of a turn,
   or those of the step. */
typedef enum StageFault { STAGE_BAD_RANKS, STAGE_BAD_CUT, STAGE_BAD_TURN, STAGE_FEW_MBS } StageFault;
typedef struct StageRefusal {
  const char *why; /* NULL: none */
  StageFault fault;
  int lacks; /* STAGE_FEW_MBS: micro-batches more that would do */
} StageRefusal;
StageRefusal stage_refusal(Arena *, const StageIn *);

/* Stages of one direction: p v for interleaved 1F1B, p for dualpipe, 2p for dualpipev. */
int stage_count(const StageIn *);

/* Orders of all pipeline ranks: [ranks]. The input has passed stage_refuses(). */
StageOrder *stage_orders(Arena *, const StageIn *);

/* Most (stage, micro-batch) pairs that a rank holds between their forward and their last gradient. */
int stage_live(const StageOrder *);

/* Most (stage, micro-batch) pairs whose input gradients a rank has formed apart and whose weight gradients it owes. */
int stage_owed(const StageOrder *);

/* Notation: "F1.2 F0.3&B1.0 b2.1 w2.1", micro-batch before stage; one line. */
void stage_print(const StageOrder *, FILE *);

#endif
