/* The steps of a bundle without kernels: no data, no loss; what they show is how long they take. */
#ifndef MOE_REHEARSE_H
#define MOE_REHEARSE_H

#include "runtime/shapes.h"
#include "runtime/run.h"

MoeStatus moe_rehearse(MoeRun *, MoeShapes *);

#endif
