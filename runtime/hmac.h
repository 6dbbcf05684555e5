/* SHA-256 (FIPS 180-4) and HMAC with it (RFC 2104), by which processes of a job know each other. */
#ifndef MOE_HMAC_H
#define MOE_HMAC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MOE_SHA256 = 32 };

typedef struct MoeSha256 {
  uint32_t state[8];
  uint64_t bytes;
  uint8_t block[64];
} MoeSha256;

void moe_sha256_begin(MoeSha256 *);
void moe_sha256_add(MoeSha256 *, const void *bytes, size_t n);
void moe_sha256_end(MoeSha256 *, uint8_t digest[MOE_SHA256]);

/* key: [MOE_SHA256]. Of the bytes of `a` followed by those of `b`. */
void moe_hmac(const uint8_t *key, const void *a, size_t n_a, const void *b, size_t n_b, uint8_t digest[MOE_SHA256]);

/* Takes the same time wherever they differ. */
bool moe_same_digest(const uint8_t *a, const uint8_t *b);

#endif
