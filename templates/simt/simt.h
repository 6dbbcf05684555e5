/* What drives the emulated device: in which order threads and blocks run, and what went wrong. */
#ifndef SIMT_H
#define SIMT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* In which order the threads of a block run between two points where they meet, and its blocks: ascending, descending,
   or drawn anew each time. A kernel whose result depends on the order lacks a barrier, or its blocks depend on each
   other. */
typedef enum SimtOrder { SIMT_FORWARD, SIMT_REVERSE, SIMT_RANDOM } SimtOrder;
void simt_order(SimtOrder order, uint64_t seed);

/* The first error since the last call, with kernel, block and thread; NULL: none. Valid until the next launch. A launch
   that fails ends with the block at fault. */
const char *simt_error(void);

/* Called before and after every launch of any thread. */
void simt_memory(void (*open)(void), void (*close)(void));

/* Times that a thread has run up to a meeting point or its end, since the program began. */
uint64_t simt_switches(void);

#ifdef __cplusplus
}
#endif

#endif
