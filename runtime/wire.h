/* Frames: the one place where bytes from the network get a size and a type. */
#ifndef MOE_WIRE_H
#define MOE_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/moe_status.h"

enum { MOE_FRAME_HEAD = 12, MOE_PROTOCOL = 1 };

typedef enum MoeFrameType {
#define MOE_FRAME(name, least, most, per_rank, doc) MOE_FRAME_##name,
#include "runtime/frames.def"
#undef MOE_FRAME
  MOE_FRAME_COUNT
} MoeFrameType;

#define MOE_FRAME_BIT(name) (1u << MOE_FRAME_##name)

typedef struct MoeFrame {
  MoeFrameType type;
  uint32_t n; /* bytes of the body */
  const uint8_t *body;
} MoeFrame;

/* Reads the frame at the beginning of `bytes`. accepts: MOE_FRAME_BITs of the types that may come now. MOE_AGAIN: more
   bytes are needed, *need_p of them in all; MOE_EPROTO: these never become such a frame. Nothing is logged. */
MoeStatus moe_frame_read(const uint8_t *bytes, size_t n, uint32_t accepts, int32_t n_ranks, MoeFrame *, size_t *need_p);

/* Largest frame of these types, with its head. */
size_t moe_frame_most(uint32_t accepts, int32_t n_ranks);

/* to: [MOE_FRAME_HEAD] */
void moe_frame_head(uint8_t *to, MoeFrameType, uint32_t n);

/* Numbers and bytes, one after the other. A reader that runs past the end reads zeros and turns bad. */
typedef struct MoeCursor {
  uint8_t *to;
  const uint8_t *from;
  size_t at, n;
  bool bad;
} MoeCursor;

void moe_put(MoeCursor *, uint64_t value, int bytes);
void moe_put_bytes(MoeCursor *, const void *, size_t n);
uint64_t moe_get(MoeCursor *, int bytes);
void moe_get_bytes(MoeCursor *, void *, size_t n);

/* Text from elsewhere as a line may show it: at most n - 1 bytes, others than printable ones as '?'. */
void moe_get_text(MoeCursor *, char *text, size_t n);

#endif
