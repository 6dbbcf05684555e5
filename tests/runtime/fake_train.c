/* `train` with the fake bundle; the layout comes from the environment variable FAKE. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/runtime/fake.h"

#include "runtime/job.h"

int main(int argc, char **argv)
{
  FakeLayout layout;
  const char *text = getenv("FAKE");
  if (!fake_parse(&layout, text != NULL ? text : "")) {
    fprintf(stderr, "FAKE=%s is not a layout\n", text);
    return 2;
  }
  return moe_train(fake_bundle(&layout), &fake_kernels, argc, argv);
}
