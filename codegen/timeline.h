/* A schedule as rectangles to draw: per group one lane each for compute, sending and receiving. */
#ifndef CODEGEN_TIMELINE_H
#define CODEGEN_TIMELINE_H

#include "codegen/sched.h"

/* What a rectangle is coloured by. */
typedef enum DrawClass {
  DRAW_FORWARD,
  DRAW_HEAD,
  DRAW_DGRAD,
  DRAW_WGRAD,
  DRAW_UPDATE, /* gradient sums and optimizer */
  DRAW_MESSAGE,
  DRAW_PIPE,
  DRAW_EXCHANGE, /* messages of gradients and weights */
  DRAW_COUNT
} DrawClass;

const char *draw_colour(DrawClass); /* "#rrggbb" */
const char *draw_name(DrawClass);

DrawClass draw_class(const MoeOp *); /* by kind, edge and micro-batch */

enum { LANE_COMPUTE, LANE_SEND, LANE_RECV, LANES };

int draw_lane(const MoeOp *); /* by its stream */

typedef struct DrawRect {
  int64_t begin, end;
  uint8_t kind;  /* DrawClass, of most of it */
  int32_t n;     /* ops in it */
  int16_t layer; /* of a single op, else -1 */
  int32_t mb;
} DrawRect;

typedef struct DrawLane {
  DrawRect *rects;
  int n;
} DrawLane;

typedef struct Timeline {
  char (*names)[16]; /* [n_groups] "A0" */
  DrawLane *lanes;   /* [n_groups][LANES] */
  int n_groups;
  int64_t step_ns;
  int64_t joined_ns; /* ops with gaps shorter than this are one rectangle; 0: every op is its own */
} Timeline;

/* Fills lanes and joined_ns from the ops of each lane, `full` [n_groups][LANES], which it sorts and overwrites, at most
   about `most` rectangles in all. n_groups and step_ns are given. */
void timeline_join(Arena *, DrawLane *full, int most, Timeline *);

/* That of a schedule. */
void timeline_of(Arena *, const Plan *, const Schedule *, int most, Timeline *);

#endif
