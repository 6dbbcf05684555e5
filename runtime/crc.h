/* CRC-32 as in gzip, PNG and Python's zlib.crc32(): polynomial 0xedb88320, reflected. */
#ifndef MOE_CRC_H
#define MOE_CRC_H

#include <stddef.h>
#include <stdint.h>

/* Of bytes that follow others whose CRC is `crc`; 0 before the first. */
uint32_t moe_crc32(uint32_t crc, const void *bytes, size_t n);

#endif
