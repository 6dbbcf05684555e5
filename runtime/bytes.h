/* Numbers as files hold them. */
#ifndef MOE_BYTES_H
#define MOE_BYTES_H

#include <stdint.h>

/* Unsigned little-endian number of n bytes, at most 8. */
static inline uint64_t moe_little_endian(const uint8_t *p, int n)
{
  uint64_t value = 0;
  for (int i = 0; i < n; i++) {
    value |= (uint64_t)p[i] << (8 * i);
  }
  return value;
}

#endif
