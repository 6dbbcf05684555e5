/* Choice of a transport for a peer. */
#include "runtime/transport.h"

static const MoeTransport *const transports[] = {
#define MOE_TRANSPORT(name) &moe_transport_##name,
#include "runtime/transports.def"
#undef MOE_TRANSPORT
};

const MoeTransport *moe_transport_for(const MoePeer *me, const MoePeer *other)
{
  for (size_t i = 0; i < sizeof transports / sizeof *transports; i++) {
    if (transports[i]->reaches(me, other)) {
      return transports[i];
    }
  }
  return NULL;
}
