/* What both M2N programs move: rows of a sender, picked by a random list per message, and how a receiver knows them. */
#ifndef TESTS_BENCH_ROWS_H
#define TESTS_BENCH_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "templates/moe_stream.h"

enum {
  ROW_WORDS = 512, /* hidden 512 in fp32 */
  ROW_BYTES = ROW_WORDS * 4,
  LISTS = 4, /* per pair of ranks; message k goes by list k % LISTS */
  MIN_ROWS = 64 * 1024 / ROW_BYTES,
  MAX_ROWS = 16 * 1024 * 1024 / ROW_BYTES,
  CHECK_EVERY = 61 /* of a message's rows, one in so many is checked */
};

static inline uint32_t rows_mix(uint32_t x)
{
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

static inline uint32_t rows_word(int src, uint32_t row, size_t column)
{
  return rows_mix((uint32_t)src * 0x10001u + row) + (uint32_t)column;
}

/* Rows a sender has when its messages have n: a token goes to half of the receivers. */
static inline uint32_t rows_pool(uint32_t n)
{
  return 2 * n;
}

static inline void rows_fill(int src, uint32_t *pool, uint32_t rows)
{
  for (uint32_t r = 0; r < rows; r++) {
    for (size_t c = 0; c < ROW_WORDS; c++) {
      pool[(size_t)r * ROW_WORDS + c] = rows_word(src, r, c);
    }
  }
}

/* n different rows of the pool in random order; `list` has room for the whole pool. */
static inline void rows_list(int src, int dst, int which, uint32_t n, uint32_t *list)
{
  uint32_t pool = rows_pool(n);
  uint32_t state = rows_mix(((uint32_t)src << 16 | (uint32_t)dst << 8 | (uint32_t)which) + n);
  for (uint32_t i = 0; i < pool; i++) {
    list[i] = i;
  }
  for (uint32_t i = 0; i < n; i++) {
    state = rows_mix(state + i + 1);
    uint32_t j = i + state % (pool - i);
    uint32_t held = list[i];
    list[i] = list[j];
    list[j] = held;
  }
}

static inline void rows_gather(uint8_t *to, const uint32_t *pool, const uint32_t *list, uint32_t n)
{
  for (uint32_t i = 0; i < n; i++) {
    memcpy(to + (size_t)i * ROW_BYTES, pool + (size_t)list[i] * ROW_WORDS, ROW_BYTES);
  }
}

/* The same into a slot, as the kernels' pack functions store rows. */
static inline void rows_put(uint8_t *to, const uint32_t *pool, const uint32_t *list, uint32_t n)
{
  bool stream = (size_t)n * ROW_BYTES >= MOE_STREAM_MIN;
  for (uint32_t i = 0; i < n && stream; i++) {
    moe_stream_copy(to + (size_t)i * ROW_BYTES, pool + (size_t)list[i] * ROW_WORDS, ROW_BYTES);
  }
  if (stream) {
    moe_stream_end();
  } else {
    rows_gather(to, pool, list, n);
  }
}

static inline bool rows_row_ok(int src, uint32_t row, const uint8_t *data, size_t stride)
{
  for (size_t c = 0; c < ROW_WORDS; c += stride) {
    uint32_t word;
    memcpy(&word, data + c * sizeof word, sizeof word);
    if (word != rows_word(src, row, c)) {
      return false;
    }
  }
  return true;
}

/* A sample of the rows, first and last word of each and the last row always; `all`: every word. */
static inline bool rows_ok(int src, const uint32_t *list, uint32_t n, const uint8_t *data, bool all)
{
  size_t stride = all ? 1 : ROW_WORDS - 1;
  for (uint32_t i = 0; i < n; i += all ? 1 : CHECK_EVERY) {
    if (!rows_row_ok(src, list[i], data + (size_t)i * ROW_BYTES, stride)) {
      return false;
    }
  }
  return rows_row_ok(src, list[n - 1], data + (size_t)(n - 1) * ROW_BYTES, stride);
}

/* Messages per pair of ranks that make up about `bytes` over all pairs, and fill every slot at least twice. */
static inline uint32_t rows_messages(size_t bytes, int pairs, uint32_t n)
{
  size_t k = bytes / (size_t)pairs / ((size_t)n * ROW_BYTES);
  return k < 4 ? 4 : (uint32_t)k;
}

#endif
