/* Straight from FIPS 180-4: names of its section 6.2 where they are not words. The constants are the first 32 bits of
   the fractional parts of the cube and square roots of the first primes. */
#include "runtime/hmac.h"

#include <string.h>

static const uint32_t k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t turn(uint32_t x, int n)
{
  return x >> n | x << (32 - n);
}

static void add_block(uint32_t *state, const uint8_t *block)
{
  uint32_t w[64], v[8];
  for (int t = 0; t < 16; t++) {
    w[t] = (uint32_t)block[4 * t] << 24 | (uint32_t)block[4 * t + 1] << 16 | (uint32_t)block[4 * t + 2] << 8 |
           block[4 * t + 3];
  }
  for (int t = 16; t < 64; t++) {
    uint32_t s0 = turn(w[t - 15], 7) ^ turn(w[t - 15], 18) ^ w[t - 15] >> 3;
    uint32_t s1 = turn(w[t - 2], 17) ^ turn(w[t - 2], 19) ^ w[t - 2] >> 10;
    w[t] = w[t - 16] + s0 + w[t - 7] + s1;
  }
  memcpy(v, state, sizeof v);
  for (int t = 0; t < 64; t++) {
    uint32_t sum1 = turn(v[4], 6) ^ turn(v[4], 11) ^ turn(v[4], 25);
    uint32_t sum0 = turn(v[0], 2) ^ turn(v[0], 13) ^ turn(v[0], 22);
    uint32_t t1 = v[7] + sum1 + ((v[4] & v[5]) ^ (~v[4] & v[6])) + k[t] + w[t];
    uint32_t t2 = sum0 + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
    memmove(v + 1, v, 7 * sizeof *v);
    v[4] += t1;
    v[0] = t1 + t2;
  }
  for (int i = 0; i < 8; i++) {
    state[i] += v[i];
  }
}

void moe_sha256_begin(MoeSha256 *s)
{
  *s = (MoeSha256){
      .state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

void moe_sha256_add(MoeSha256 *s, const void *bytes, size_t n)
{
  const uint8_t *from = bytes;
  for (size_t i = 0; i < n; i++) {
    s->block[s->bytes++ % 64] = from[i];
    if (s->bytes % 64 == 0) {
      add_block(s->state, s->block);
    }
  }
}

void moe_sha256_end(MoeSha256 *s, uint8_t digest[MOE_SHA256])
{
  uint64_t bits = s->bytes * 8;
  uint8_t length[8];
  moe_sha256_add(s, "\x80", 1);
  while (s->bytes % 64 != 56) {
    moe_sha256_add(s, "", 1);
  }
  for (int i = 0; i < 8; i++) {
    length[i] = (uint8_t)(bits >> (56 - 8 * i));
  }
  moe_sha256_add(s, length, 8);
  for (int i = 0; i < MOE_SHA256; i++) {
    digest[i] = (uint8_t)(s->state[i / 4] >> (24 - 8 * (i % 4)));
  }
}

void moe_hmac(const uint8_t *key, const void *a, size_t n_a, const void *b, size_t n_b, uint8_t digest[MOE_SHA256])
{
  MoeSha256 s;
  uint8_t pad[64];
  for (int i = 0; i < 64; i++) {
    pad[i] = (i < MOE_SHA256 ? key[i] : 0) ^ 0x36;
  }
  moe_sha256_begin(&s);
  moe_sha256_add(&s, pad, sizeof pad);
  moe_sha256_add(&s, a, n_a);
  moe_sha256_add(&s, b, n_b);
  moe_sha256_end(&s, digest);
  for (int i = 0; i < 64; i++) {
    pad[i] ^= 0x36 ^ 0x5c;
  }
  moe_sha256_begin(&s);
  moe_sha256_add(&s, pad, sizeof pad);
  moe_sha256_add(&s, digest, MOE_SHA256);
  moe_sha256_end(&s, digest);
}

bool moe_same_digest(const uint8_t *a, const uint8_t *b)
{
  volatile uint8_t differ = 0;
  for (int i = 0; i < MOE_SHA256; i++) {
    differ = (uint8_t)(differ | (a[i] ^ b[i]));
  }
  return differ == 0;
}
