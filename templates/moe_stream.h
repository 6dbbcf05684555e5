/* Copies into message slots past the cache. A large message is read by another core, which finds its lines in memory
   either way; storing them without reading and keeping them first saves a third of the traffic. */
#ifndef MOE_STREAM_H
#define MOE_STREAM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX__)
#include <immintrin.h>
#endif

/* Messages of at least this many bytes are stored past the cache; smaller ones stay in it for their reader. */
enum { MOE_STREAM_MIN = 1 << 20 };

static inline void moe_stream_copy(void *to, const void *from, size_t bytes)
{
#if defined(__AVX__)
  if (((uintptr_t)to & 63) == 0 && bytes % 64 == 0) {
    uint8_t *d = to;
    const uint8_t *s = from;
    for (size_t i = 0; i < bytes; i += 64) {
#if defined(__AVX512F__)
      _mm512_stream_si512((void *)(d + i), _mm512_loadu_si512((const void *)(s + i)));
#else
      _mm256_stream_si256((void *)(d + i), _mm256_loadu_si256((const void *)(s + i)));
      _mm256_stream_si256((void *)(d + i + 32), _mm256_loadu_si256((const void *)(s + i + 32)));
#endif
    }
    return;
  }
#endif
  memcpy(to, from, bytes);
}

/* Orders the stores above before whatever publishes them. */
static inline void moe_stream_end(void)
{
#if defined(__AVX__)
  _mm_sfence();
#endif
}

#endif
