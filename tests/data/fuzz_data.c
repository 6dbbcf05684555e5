/* libFuzzer's function over whole token sets: what it is given becomes the .idx beside a .bin of zeros, or a shard;
   what can be opened is read to its ends. The first HEAD bytes choose the rest: kind, seq, batch, samples, holdout,
   seed, and the length of the .bin. Files are made in the working directory. */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include "runtime/data.h"
#include "runtime/log.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { HEAD = 8, MAX_READS = 300 };

static void write_file(const char *path, const uint8_t *bytes, size_t n, off_t length)
{
  int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0 || write(fd, bytes, n) != (ssize_t)n || ftruncate(fd, length) != 0) {
    abort();
  }
  close(fd);
}

static void read_all(const MoeData *d, int32_t *tokens)
{
  uint64_t n = (uint64_t)(d->n_train < MAX_READS ? d->n_train : MAX_READS);
  for (uint64_t i = 0; i < n; i++) {
    int64_t sample = moe_data_sample(d, i);
    if (sample < 0 || sample >= d->n_train) {
      abort();
    }
    (void)moe_data_read(d, false, sample, tokens);
  }
  (void)moe_data_read(d, false, d->n_train - 1, tokens);
  for (int64_t i = 0; i < d->n_eval; i += d->n_eval / MAX_READS + 1) {
    (void)moe_data_read(d, true, i, tokens);
  }
  MoeDataPlace place = moe_data_place(d, n);
  char text[160];
  moe_data_describe(d, text, sizeof text);
  if (d->n_train < 1 || moe_data_check_place(d, &place) != MOE_OK) {
    abort();
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  static char error[400];
  static _Atomic uint32_t failed;
  static const char *const path[] = {"set", "set.bin", "shard.bin", "shard.*"};
  if (size < HEAD) {
    return 0;
  }
  moe_log_to(error, sizeof error, &failed);
  failed = 0;
  int kind = data[0] & 3;
  off_t length = (off_t)moe_little_endian(data + 6, 2) & 1023;
  if (kind < 2) {
    write_file("set.idx", data + HEAD, size - HEAD, (off_t)(size - HEAD));
    write_file("set.bin", NULL, 0, length);
  } else {
    write_file("shard.bin", data + HEAD, size - HEAD, (off_t)(size - HEAD));
  }
  int32_t tokens[17];
  MoeDataIn in = {.path = path[kind],
                  .format = (MoeFormat)((data[0] >> 2) % MOE_N_FORMATS),
                  .holdout = data[4] % 10 * 0.1,
                  .seq = 1 + data[1] % 16,
                  .vocab = data[1] & 128 ? 300 : INT32_MAX,
                  .batch = 1 + data[2] % 4,
                  .seed = data[5],
                  .samples = data[3],
                  .mask_token = MOE_NO_TOKEN,
                  .mask_after = MOE_NO_TOKEN};
  MoeData d;
  if (moe_data_open(&d, &in) == MOE_OK) {
    read_all(&d, tokens);
  } else if (failed != 2) {
    abort(); /* refused without a word */
  }
  moe_data_close(&d);
  return 0;
}
