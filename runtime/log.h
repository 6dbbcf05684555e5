/* Messages to people: one line each on stderr. In the launcher an error is printed; in a rank the first one is handed
   to the launcher, which prints it once, together with what the rank was doing. */
#ifndef MOE_LOG_H
#define MOE_LOG_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

void moe_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
void moe_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Of a job's processes one tells what concerns all: in the others moe_note() says nothing from now on. */
void moe_log_errors_only(void);

/* From now on this process is a rank: errors go to `text`. `*failed` becomes 1 while the text is written, then 2. */
void moe_log_to(char *text, size_t n, _Atomic uint32_t *failed);

#endif
