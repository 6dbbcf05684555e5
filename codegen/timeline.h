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

enum { LANE_COMPUTE, LANE_SEND, LANE_RECV, LANES };

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

/* At most about `most` rectangles in all. */
void timeline_of(Arena *, const Plan *, const Schedule *, int most, Timeline *);

#endif
