#include <cblas.h>
#include <stdio.h>
#include <string.h>

#include "tests/cuda/tests.h"

/* Without an argument all groups. */
int main(int argc, char **argv)
{
  static const struct {
    const char *name;
    int (*run)(void);
  } groups[] = {
      {"rows", test_rows},       {"router", test_router},       {"messages", test_messages},
      {"experts", test_experts}, {"attention", test_attention}, {"dense", test_dense},
      {"head", test_head},       {"lists", test_lists},         {"heads", test_heads},
  };
  int failed = 0;
  int ran = 0;
  openblas_set_num_threads(1);
  for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
    if (argc < 2 || strcmp(argv[1], groups[i].name) == 0) {
      failed += groups[i].run();
      ran++;
    }
  }
  if (ran == 0) {
    fprintf(stderr, "no group of tests %s\n", argv[1]);
    return 2;
  }
  return failed > 0;
}
