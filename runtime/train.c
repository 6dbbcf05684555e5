/* The program that a bundle links: one binary for the launcher and all ranks. */
#include "runtime/job.h"

int main(int argc, char **argv)
{
  return moe_train(&moe_bundle, &moe_kernels, argc, argv);
}
