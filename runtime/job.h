/* A training run: everything between the command line and the exit code. */
#ifndef MOE_JOB_H
#define MOE_JOB_H

#include "runtime/moe_bundle.h"

/* The whole program. Returns the exit code: 0, 1 after a failure, 2 for a wrong command line, 4 where the machine
   has no device that the kernels run on, 128 + n after signal n.
 */
int moe_train(const MoeBundle *, const MoeKernels *, int argc, char **argv);

/* Learning rate of the step with index t, from 0: linear warm-up, then a half cosine from lr to lr_min, then lr_min;
   constant after the warm-up if lr_steps is 0. */
double moe_learning_rate(const MoeBundle *, int64_t t);

#endif
