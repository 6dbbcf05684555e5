/* A head is a word that says moec, the type and the size. */
#include "runtime/wire.h"

#include <string.h>

#include "runtime/bytes.h"

#define WORD 0x63656f6du /* "moec" */

static const struct {
  uint32_t least, most, per_rank;
} sizes[] = {
#define MOE_FRAME(name, least, most, per_rank, doc) {least, most, per_rank},
#include "runtime/frames.def"
#undef MOE_FRAME
};

static uint64_t most_of(uint32_t type, int32_t n_ranks)
{
  return sizes[type].most + (uint64_t)sizes[type].per_rank * (uint64_t)n_ranks;
}

MoeStatus moe_frame_read(const uint8_t *bytes, size_t n, uint32_t accepts, int32_t n_ranks, MoeFrame *f, size_t *need_p)
{
  uint8_t word[4];
  for (int i = 0; i < 4; i++) {
    word[i] = (uint8_t)(WORD >> 8 * i);
  }
  *need_p = MOE_FRAME_HEAD;
  if (n > 0 && memcmp(bytes, word, n < 4 ? n : 4) != 0) {
    return MOE_EPROTO;
  }
  if (n < MOE_FRAME_HEAD) {
    return MOE_AGAIN;
  }
  uint32_t type = (uint32_t)moe_little_endian(bytes + 4, 4);
  uint32_t size = (uint32_t)moe_little_endian(bytes + 8, 4);
  if (type >= MOE_FRAME_COUNT || (accepts & 1u << type) == 0 || size < sizes[type].least ||
      size > most_of(type, n_ranks)) {
    return MOE_EPROTO;
  }
  *need_p = MOE_FRAME_HEAD + (size_t)size;
  if (n < *need_p) {
    return MOE_AGAIN;
  }
  *f = (MoeFrame){.type = (MoeFrameType)type, .n = size, .body = bytes + MOE_FRAME_HEAD};
  return MOE_OK;
}

size_t moe_frame_most(uint32_t accepts, int32_t n_ranks)
{
  uint64_t most = 0;
  for (uint32_t i = 0; i < MOE_FRAME_COUNT; i++) {
    most = (accepts & 1u << i) != 0 && most_of(i, n_ranks) > most ? most_of(i, n_ranks) : most;
  }
  return MOE_FRAME_HEAD + (size_t)most;
}

void moe_frame_head(uint8_t *to, MoeFrameType type, uint32_t n)
{
  MoeCursor c = {.to = to, .n = MOE_FRAME_HEAD};
  moe_put(&c, WORD, 4);
  moe_put(&c, type, 4);
  moe_put(&c, n, 4);
}

void moe_put(MoeCursor *c, uint64_t value, int bytes)
{
  uint8_t text[8];
  for (int i = 0; i < bytes; i++) {
    text[i] = (uint8_t)(value >> 8 * i);
  }
  moe_put_bytes(c, text, (size_t)bytes);
}

void moe_put_bytes(MoeCursor *c, const void *bytes, size_t n)
{
  if (c->bad || n > c->n - c->at) {
    c->bad = true;
    return;
  }
  memcpy(c->to + c->at, bytes, n);
  c->at += n;
}

uint64_t moe_get(MoeCursor *c, int bytes)
{
  uint8_t text[8];
  moe_get_bytes(c, text, (size_t)bytes);
  return moe_little_endian(text, bytes);
}

void moe_get_bytes(MoeCursor *c, void *bytes, size_t n)
{
  if (c->bad || n > c->n - c->at) {
    c->bad = true;
    memset(bytes, 0, n);
    return;
  }
  memcpy(bytes, c->from + c->at, n);
  c->at += n;
}

void moe_get_text(MoeCursor *c, char *text, size_t n)
{
  size_t i = 0;
  for (; i + 1 < n && !c->bad && c->at < c->n; i++) {
    uint8_t byte = c->from[c->at++];
    text[i] = byte >= 0x20 && byte < 0x7f ? (char)byte : '?';
  }
  text[i] = '\0';
}
