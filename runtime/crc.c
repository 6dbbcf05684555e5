/* Eight bytes at a time: table k holds the CRC of a byte that k more bytes follow. */
#include "runtime/crc.h"

#include <pthread.h>

static uint32_t tables[8][256];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void fill_tables(void)
{
  for (uint32_t i = 0; i < 256; i++) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; bit++) {
      crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    }
    tables[0][i] = crc;
  }
  for (int k = 1; k < 8; k++) {
    for (uint32_t i = 0; i < 256; i++) {
      tables[k][i] = tables[k - 1][i] >> 8 ^ tables[0][tables[k - 1][i] & 0xff];
    }
  }
}

static uint32_t step(uint32_t crc, uint8_t byte)
{
  return crc >> 8 ^ tables[0][(crc ^ byte) & 0xff];
}

uint32_t moe_crc32(uint32_t crc, const void *bytes, size_t n)
{
  const uint8_t *p = bytes;
  pthread_once(&once, fill_tables);
  crc = ~crc;
  for (; n >= 8; n -= 8, p += 8) {
    uint32_t low = crc ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
    crc = tables[7][low & 0xff] ^ tables[6][low >> 8 & 0xff] ^ tables[5][low >> 16 & 0xff] ^ tables[4][low >> 24] ^
          tables[3][p[4]] ^ tables[2][p[5]] ^ tables[1][p[6]] ^ tables[0][p[7]];
  }
  for (; n > 0; n--, p++) {
    crc = step(crc, *p);
  }
  return ~crc;
}
