/* Status codes of the runtime. The function that detects an error logs it; its callers only pass the code on. */
#ifndef MOE_STATUS_H
#define MOE_STATUS_H

typedef enum MoeStatus {
#define MOE_STATUS(name, code, text) MOE_##name = (code),
#include "status.def"
#undef MOE_STATUS
} MoeStatus;

const char *moe_status_text(MoeStatus status);

#define MOE_TRY(call)                                                                                                  \
  do {                                                                                                                 \
    MoeStatus try_status = (call);                                                                                     \
    if (try_status < MOE_OK) {                                                                                         \
      return try_status;                                                                                               \
    }                                                                                                                  \
  } while (0)

#endif
