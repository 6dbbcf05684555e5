/* Runs the fuzzer's function over files, without libFuzzer. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int main(int argc, char **argv)
{
  static uint8_t bytes[1 << 20];
  for (int i = 1; i < argc; i++) {
    FILE *file = fopen(argv[i], "rb");
    if (!file) {
      perror(argv[i]);
      return 1;
    }
    size_t n = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    LLVMFuzzerTestOneInput(bytes, n);
  }
  printf("%d files\n", argc - 1);
  return 0;
}
