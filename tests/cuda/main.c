#include <cblas.h>

#include "tests/cuda/tests.h"

int main(void)
{
  openblas_set_num_threads(1);
  return test_rows() + test_router() + test_messages() + test_experts() > 0;
}
