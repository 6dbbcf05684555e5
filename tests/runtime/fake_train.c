/* `train` with the fake bundle; the layout comes from the environment variable FAKE. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/runtime/fake.h"

#include "runtime/job.h"

int main(int argc, char **argv)
{
  FakeLayout layouts[FAKE_SHAPES];
  const char *text = getenv("FAKE");
  int n = fake_parse(layouts, text != NULL ? text : "");
  if (n == 0) {
    fprintf(stderr, "FAKE=%s is not a layout\n", text);
    return 2;
  }
  return moe_train(fake_bundle(layouts, n), &fake_kernels, argc, argv);
}
